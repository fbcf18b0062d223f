//! One connection, requests on it, and the rows of replies. All values are received as text, because the
//! requests are plain queries.

use std::fmt;

use meta::EngineError;
use mysql::prelude::Queryable;
use mysql::{Conn, Value};
use pool::{Connect, Intent, RequestError};
use tables::{Malformed, ReplyRow};

use crate::config::Config;
use crate::error::Failure;

pub(crate) type Row = Vec<Value>;

/// A connection with the settings of [`Config`].
pub(crate) struct Connection {
    conn: Conn,
    /// The maximum length of a request, in bytes.
    max_request: usize,
    /// Whether the stored procedure runs the scripts.
    pub(crate) procedure: bool,
    /// A backquote and the table prefix.
    prefix: String,
}

impl Connect for Config {
    type Connection = Connection;

    fn connect(&self) -> Result<Connection, EngineError> {
        Connection::open(self).map_err(|failure| failure.engine_error(&self.address, Intent::Read))
    }

    fn address(&self) -> &str {
        &self.address
    }
}

impl Connection {
    fn open(config: &Config) -> Result<Self, Failure> {
        let (conn, prefix) = (Conn::new(config.opts.clone())?, format!("`{}", config.params.table_prefix));
        let mut opened = Connection { conn, max_request: 1024, procedure: config.routine, prefix };
        let settings = opened.row("SELECT @@max_allowed_packet, VERSION() NOT LIKE '%MariaDB%'")?;
        let settings = plain(&settings);
        opened.max_request = usize::try_from(settings.number(0)?).unwrap_or(usize::MAX);
        opened.procedure |= settings.number(1)? != 0;
        Ok(opened)
    }

    /// Runs a statement in one request, and returns all its result sets.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Vec<Vec<Row>>, Failure> {
        let sql = self.named(sql);
        // One byte of the packet is the type of the command.
        if sql.len() >= self.max_request {
            return Err(Failure::TooLong(sql.len()));
        }
        let mut result = self.conn.query_iter(sql)?;
        let mut sets = Vec::new();
        while let Some(set) = result.iter() {
            // The end of a reply is a set without columns.
            let is_set = !set.columns().as_ref().is_empty();
            let rows = set.map(|row| row.map(mysql::Row::unwrap)).collect::<Result<Vec<Row>, _>>()?;
            sets.extend(is_set.then_some(rows));
        }
        Ok(sets)
    }

    /// Replaces the `@` at the beginning of table names by the table prefix.
    fn named(&self, sql: &str) -> String {
        let mut parts = sql.split('`');
        let mut named = String::with_capacity(sql.len() + sql.len() / 4);
        named.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (quote, rest) = part.strip_prefix('@').map_or(("`", part), |name| (&*self.prefix, name));
            named.push_str(quote);
            named.push_str(rest);
        }
        named
    }

    /// The number of rows that the last statement changed.
    pub(crate) fn affected_rows(&self) -> u64 {
        self.conn.affected_rows()
    }

    /// Runs a statement that returns one result set.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
        Ok(self.query(sql)?.into_iter().next().unwrap_or_default())
    }

    /// Runs a statement whose rows are one text each.
    pub(crate) fn texts(&mut self, sql: &str) -> Result<Vec<String>, Failure> {
        let text = |row| Ok(String::from_utf8_lossy(plain(row).bytes(0)?).into_owned());
        self.rows(sql)?.iter().map(text).collect()
    }

    /// Runs a statement that always returns one row.
    pub(crate) fn row(&mut self, sql: &str) -> Result<Row, Failure> {
        Ok(self.rows(sql)?.into_iter().next().ok_or(Malformed("a row is missing"))?)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `conn` is left out, because it contains the password.
        f.debug_struct("Connection").field("procedure", &self.procedure).finish_non_exhaustive()
    }
}

/// The columns of a row.
pub(crate) struct Columns<'r> {
    numbers: &'r [Value],
    strings: &'r [Value],
}

/// A row whose first `numbers` columns are numbers, followed by strings.
pub(crate) fn reply_row(kind: i16, row: &[Value], numbers: usize) -> ReplyRow<Columns<'_>> {
    let (numbers, strings) = row.split_at_checked(numbers).unwrap_or_default();
    ReplyRow { kind, row: Columns { numbers, strings } }
}

/// A row without a kind. Each column, of any type, is read by its position.
pub(crate) fn plain(row: &Row) -> ReplyRow<Columns<'_>> {
    ReplyRow { kind: 0, row: Columns { numbers: row, strings: row } }
}

impl tables::RowValues for Columns<'_> {
    fn number(&self, at: usize) -> Result<Option<i64>, Malformed> {
        let Some(bytes) = text(self.numbers, at)? else { return Ok(None) };
        // An unsigned number may be greater than the signed maximum.
        let text = str::from_utf8(bytes).unwrap_or_default();
        let number = text.parse().or_else(|_| text.parse::<u64>().map(|number| number as i64));
        number.map(Some).map_err(|_| Malformed("a column holds no valid number"))
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, Malformed> {
        text(self.strings, at)
    }
}

fn text(columns: &[Value], at: usize) -> Result<Option<&[u8]>, Malformed> {
    match columns.get(at) {
        None | Some(Value::NULL) => Ok(None),
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        Some(_) => Err(Malformed("a column is not text")),
    }
}
