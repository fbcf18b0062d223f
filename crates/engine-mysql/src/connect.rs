//! One connection: its settings, and requests on it.

use meta::EngineError;
use mysql::Conn;
use mysql::prelude::Queryable;
use pool::Connect;

use crate::config::Config;
use crate::error::{Fault, Stage, engine_error};
use crate::rows::{Row, RowReader, Sets};
use crate::script::Script;

/// Makes connections.
#[derive(Clone, Debug)]
pub(crate) struct Connector(pub(crate) Config);

/// A connection whose settings are made.
#[derive(Debug)]
pub(crate) struct Connection {
    conn: Conn,
    pub(crate) server: Server,
    /// The longest request the server takes, in bytes.
    max_request: usize,
    procedure: bool,
}

/// What is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// As the server says it, such as `10.11.6-MariaDB`.
    version: String,
    pub(crate) mariadb: bool,
}

impl Server {
    /// For people: "MariaDB 10.11.6".
    pub(crate) fn name(&self) -> String {
        let number = self.version.split('-').next().unwrap_or_default();
        format!("{} {number}", if self.mariadb { "MariaDB" } else { "MySQL" })
    }
}

impl Connect for Connector {
    type Connection = Connection;

    fn connect(&self) -> Result<Connection, EngineError> {
        Connection::open(&self.0).map_err(|fault| engine_error(&self.0.place, fault, Stage::Connect))
    }

    fn place(&self) -> &str {
        &self.0.place
    }
}

impl Connection {
    fn open(config: &Config) -> Result<Self, Fault> {
        let mut conn = Conn::new(config.opts.clone())?;
        let about = sets(&mut conn, "SELECT VERSION(), @@max_allowed_packet")?;
        let about = about.first().and_then(|rows| rows.first()).ok_or(Fault::malformed("no version"))?;
        let about = RowReader(about);
        let version = about.text(0)?.to_owned();
        let server = Server { mariadb: version.contains("MariaDB"), version };
        let max_request = about.number(1)?;
        let seconds = config.params.op_timeout.as_secs().max(1);
        // The log's numbers are to follow each other, for whoever watches looks for those that are missing.
        // NO_UNSIGNED_SUBTRACTION: a difference below 0 is no error.
        let mut settings = format!(
            "SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}, autocommit = 1, \
             auto_increment_increment = 1, auto_increment_offset = 1, \
             sql_mode = 'STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION,NO_AUTO_VALUE_ON_ZERO'"
        );
        if server.mariadb {
            // A statement that nobody waits for any more ends by itself.
            settings.push_str(&format!(", max_statement_time = {seconds}"));
        }
        conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")?;
        conn.query_drop(settings)?;
        let procedure = config.routine || !server.mariadb;
        Ok(Connection { conn, server, max_request, procedure })
    }

    /// Whether scripts are run by the stored procedure.
    pub(crate) fn needs_procedure(&self) -> bool {
        self.procedure
    }

    /// Runs a script: one request.
    pub(crate) fn run(&mut self, prefix: &str, script: &Script) -> Result<Sets, Fault> {
        let text = if self.procedure { script.call(prefix) } else { script.block() };
        self.query(&text)
    }

    /// The sets of rows that a statement gives: one request.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Sets, Fault> {
        // One byte says that it is a query.
        if sql.len() >= self.max_request {
            return Err(Fault::TooLong(sql.len()));
        }
        sets(&mut self.conn, sql)
    }

    /// How many rows the last statement changed.
    pub(crate) fn affected_rows(&self) -> u64 {
        self.conn.affected_rows()
    }

    /// The rows of a statement that gives one set.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Fault> {
        Ok(self.query(sql)?.into_iter().next().unwrap_or_default())
    }
}

fn sets(conn: &mut Conn, sql: &str) -> Result<Sets, Fault> {
    let mut result = conn.query_iter(sql)?;
    let mut sets = Vec::new();
    while let Some(set) = result.iter() {
        // What ends an answer has no columns.
        let is_set = !set.columns().as_ref().is_empty();
        let mut rows: Vec<Row> = Vec::new();
        for row in set {
            rows.push(row?.unwrap());
        }
        if is_set {
            sets.push(rows);
        }
    }
    Ok(sets)
}
