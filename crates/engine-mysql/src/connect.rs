//! One connection, and requests on it.

use std::fmt;

use meta::EngineError;
use mysql::Conn;
use mysql::prelude::Queryable;
use pool::{Asked, Connect, Failed};
use tables::Malformed;

use crate::config::Config;
use crate::error::Fault;
use crate::rows::{Row, plain};

/// A connection whose settings are made.
pub(crate) struct Connection {
    conn: Conn,
    /// What is at the other end, for people: "MariaDB 10.11.6".
    pub(crate) server: String,
    /// The longest request the server takes, in bytes.
    max_request: usize,
    /// Scripts are run by the stored procedure.
    pub(crate) procedure: bool,
    /// The backquote before the name of a table, and what its name begins with.
    prefix: String,
}

impl Connect for Config {
    type Connection = Connection;

    fn connect(&self) -> Result<Connection, EngineError> {
        Connection::open(self).map_err(|fault| fault.engine_error(&self.place, Asked::Look))
    }

    fn place(&self) -> &str {
        &self.place
    }
}

impl Connection {
    fn open(config: &Config) -> Result<Self, Fault> {
        // Such as `10.11.6-MariaDB-1`.
        const ABOUT: &str = "SELECT CONCAT(IF(VERSION() LIKE '%MariaDB%', 'MariaDB ', 'MySQL '), \
                             SUBSTRING_INDEX(VERSION(), '-', 1)), @@max_allowed_packet";
        let (conn, prefix) = (Conn::new(config.opts.clone())?, format!("`{}", config.params.table_prefix));
        let mut opened =
            Connection { conn, server: String::new(), max_request: 1024, procedure: false, prefix };
        let about = opened.row(ABOUT)?;
        let about = plain(&about);
        opened.server = String::from_utf8_lossy(about.bytes(0)?).into_owned();
        opened.max_request = usize::try_from(about.number(1)?).unwrap_or(usize::MAX);
        opened.procedure = config.routine || !opened.server.starts_with("MariaDB");
        Ok(opened)
    }

    /// The sets of rows that a statement gives: one request.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Vec<Vec<Row>>, Fault> {
        let sql = sql.replace("`@", &self.prefix);
        // One byte says that it is a query.
        if sql.len() >= self.max_request {
            return Err(Fault::TooLong(sql.len()));
        }
        let mut result = self.conn.query_iter(sql)?;
        let mut sets = Vec::new();
        while let Some(set) = result.iter() {
            // What ends an answer has no columns.
            let is_set = !set.columns().as_ref().is_empty();
            let rows = set.map(|row| row.map(mysql::Row::unwrap)).collect::<Result<Vec<Row>, _>>()?;
            if is_set {
                sets.push(rows);
            }
        }
        Ok(sets)
    }

    /// How many rows the last statement changed.
    pub(crate) fn affected_rows(&self) -> u64 {
        self.conn.affected_rows()
    }

    /// The rows of a statement that gives one set.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Fault> {
        Ok(self.query(sql)?.into_iter().next().unwrap_or_default())
    }

    /// The row of a statement that always gives one.
    pub(crate) fn row(&mut self, sql: &str) -> Result<Row, Fault> {
        Ok(self.rows(sql)?.into_iter().next().ok_or(Malformed("a row is missing"))?)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `conn`, which holds the password.
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}
