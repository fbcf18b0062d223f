//! One connection, requests on it, and the rows of answers. All values come as text: the requests are plain queries.

use std::fmt;

use meta::EngineError;
use mysql::prelude::Queryable;
use mysql::{Conn, Value};
use pool::{Asked, Connect, Failed};
use tables::{Fact, Malformed};

use crate::config::Config;
use crate::error::Fault;

pub(crate) type Row = Vec<Value>;

/// A connection whose settings are made.
pub(crate) struct Connection {
    conn: Conn,
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
        let (conn, prefix) = (Conn::new(config.opts.clone())?, format!("`{}", config.params.table_prefix));
        let mut opened = Connection { conn, max_request: 1024, procedure: config.routine, prefix };
        let about = opened.row("SELECT @@max_allowed_packet, VERSION() NOT LIKE '%MariaDB%'")?;
        let about = plain(&about);
        opened.max_request = usize::try_from(about.number(0)?).unwrap_or(usize::MAX);
        opened.procedure |= about.number(1)? != 0;
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

    /// What a statement gives of which each row is one text.
    pub(crate) fn texts(&mut self, sql: &str) -> Result<Vec<String>, Fault> {
        let text = |row| Ok(String::from_utf8_lossy(plain(row).bytes(0)?).into_owned());
        self.rows(sql)?.iter().map(text).collect()
    }

    /// The row of a statement that always gives one.
    pub(crate) fn row(&mut self, sql: &str) -> Result<Row, Fault> {
        Ok(self.rows(sql)?.into_iter().next().ok_or(Malformed("a row is missing"))?)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `conn`, which holds the password.
        f.debug_struct("Connection").field("procedure", &self.procedure).finish_non_exhaustive()
    }
}

/// The columns of a row.
pub(crate) struct Columns<'r> {
    numbers: &'r [Value],
    strings: &'r [Value],
}

/// A row with so many numbers before its strings.
pub(crate) fn fact(about: i16, row: &[Value], numbers: usize) -> Fact<Columns<'_>> {
    let (numbers, strings) = row.split_at_checked(numbers).unwrap_or_default();
    Fact { about, row: Columns { numbers, strings } }
}

/// A row about nothing else: each column by its place, whatever it holds.
pub(crate) fn plain(row: &Row) -> Fact<Columns<'_>> {
    Fact { about: 0, row: Columns { numbers: row, strings: row } }
}

impl tables::Row for Columns<'_> {
    fn number(&self, at: usize) -> Result<Option<i64>, Malformed> {
        let Some(bytes) = text(self.numbers, at)? else { return Ok(None) };
        // One without a sign may reach beyond those with one.
        let text = str::from_utf8(bytes).unwrap_or_default();
        let number = text.parse().or_else(|_| text.parse::<u64>().map(|number| number as i64));
        number.map(Some).map_err(|_| Malformed("a column holds no number of its range"))
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, Malformed> {
        text(self.strings, at)
    }
}

fn text(columns: &[Value], at: usize) -> Result<Option<&[u8]>, Malformed> {
    match columns.get(at) {
        None | Some(Value::NULL) => Ok(None),
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        Some(_) => Err(Malformed("a column is no text")),
    }
}
