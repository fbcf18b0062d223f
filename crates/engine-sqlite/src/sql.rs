//! Statements for the rows that the crate `tables` describes.

use std::sync::{LazyLock, OnceLock};

use meta::Inode;
use rusqlite::types::{ToSqlOutput, Type, ValueRef};
use rusqlite::{
    CachedStatement, Connection, Error, Params, ParamsFromIter, Result, Statement, params_from_iter,
};
use tables::{Line, Malformed, ReplyRow, RowSource, Table, joined, kind, list, values};

/// One value for each kind of rows, computed at its first use. The index is the kind; kinds start at 1.
pub(crate) type ByKind<T> = [OnceLock<T>; kind::ALL.len() + 1];

/// The statements that a batch uses again and again. Taking a statement from the cache of the connection
/// costs as much as a simple lookup, so a batch takes each one once.
pub(crate) struct Statements<'c> {
    conn: &'c Connection,
    taken: Vec<(&'static str, CachedStatement<'c>)>,
}

impl<'c> Statements<'c> {
    pub(crate) fn new(conn: &'c Connection) -> Self {
        Statements { conn, taken: Vec::with_capacity(8) }
    }

    /// The statement with this text. While it is taken, no other code may prepare this text.
    pub(crate) fn get(&mut self, text: &'static str) -> Result<&mut CachedStatement<'c>> {
        let at = match self.taken.iter().position(|(of, _)| *of == text) {
            Some(at) => at,
            None => {
                self.taken.push((text, self.conn.prepare_cached(text)?));
                self.taken.len() - 1
            }
        };
        Ok(&mut self.taken[at].1)
    }
}

/// The statement that inserts a row into any table except `node`. If the table has a row with the same key,
/// an ACL is kept, and any other row is replaced.
pub(crate) fn put(table: Table) -> &'static str {
    static TEXTS: ByKind<String> = [const { OnceLock::new() }; _];
    TEXTS[table.kind as usize].get_or_init(|| {
        let (verb, end) = match table.kind {
            kind::ACL => ("INSERT", " ON CONFLICT DO NOTHING"),
            _ => ("REPLACE", ""),
        };
        let places = list((1..=table.columns().count()).map(|place| format!("?{place}")));
        format!("{verb} INTO {} ({}) VALUES ({places}){end}", table.name, list(table.columns()))
    })
}

/// The statement that replaces all values of an existing inode.
pub(crate) fn update_inode() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let columns = (1..).zip(Table::INODE.columns()).skip(1);
        let set = list(columns.map(|(place, column)| format!("{column} = ?{place}")));
        format!("UPDATE node SET {set} WHERE ino = ?1")
    });
    &TEXT
}

/// The statement that deletes the rows that match this key: the values of their first columns. All keys of a
/// table that effects remove ([`tables::removed`]) have the same columns.
pub(crate) fn remove(key: &Line<'_>) -> &'static str {
    static TEXTS: ByKind<String> = [const { OnceLock::new() }; _];
    let text = || format!("DELETE FROM {} AS r WHERE {}", key.table.name, has(key));
    let stored = TEXTS[key.table.kind as usize].get_or_init(text);
    debug_assert_eq!(*stored, text(), "the keys of a table have the same columns");
    stored
}

/// Runs a statement whose parameters are all values of an inode.
pub(crate) fn execute_inode(statement: &mut Statement<'_>, inode: &Inode) -> Result<usize> {
    let numbers = values::inode(inode);
    for (place, number) in (1..).zip(numbers) {
        statement.raw_bind_parameter(place, number as i64)?;
    }
    for (place, id) in (1 + numbers.len()..).zip([inode.access_acl, inode.default_acl].map(values::acl)) {
        statement.raw_bind_parameter(place, id)?;
    }
    statement.raw_execute()
}

/// The condition that row `r` matches `key`. Its parameters are the [`parameters`] of `key`. Every row
/// matches an empty key.
pub(crate) fn has(key: &Line<'_>) -> String {
    let each = (1..).zip(key.columns()).map(|(place, column)| format!("r.{column} = ?{place}"));
    joined(["true".to_owned()].into_iter().chain(each), " AND ")
}

/// The values of a row, as parameters in the order of its columns.
pub(crate) fn parameters<'l>(line: &'l Line<'_>) -> ParamsFromIter<impl Iterator<Item = ToSqlOutput<'l>>> {
    let numbers = line.numbers.iter().map(|number| number.map(|number| ValueRef::Integer(number as i64)));
    let strings = line.table.strings.iter().zip(&line.strings).map(|(column, string)| {
        let string = string.as_deref();
        string.map(if line.table.is_text(column) { ValueRef::Text } else { ValueRef::Blob })
    });
    let values = numbers.chain(strings).map(|value| value.unwrap_or(ValueRef::Null));
    params_from_iter(values.map(ToSqlOutput::Borrowed))
}

/// The text of a SELECT statement, and the columns that it returns.
#[derive(Debug)]
pub(crate) struct Select {
    text: String,
    kind: i16,
    numbers: usize,
}

impl Select {
    /// Selects the rows of a source; `rest` follows the FROM clause.
    pub(crate) fn new(source: &RowSource, rest: &str) -> Self {
        let columns = list(source.numbers.iter().chain(&source.strings));
        // `RowSource` writes the table prefix as `@`. The tables in SQLite have no prefix.
        let text = format!("SELECT {columns} FROM {} {rest}", source.from).replace("`@", "`");
        Select { text, kind: source.kind, numbers: source.numbers.len() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Runs the statement, and calls `take` with each row.
    pub(crate) fn each(
        &self,
        conn: &Connection,
        params: impl Params,
        take: impl FnMut(&ReplyRow<Columns<'_>>) -> Result<(), Malformed>,
    ) -> Result<()> {
        self.run(&mut *conn.prepare_cached(&self.text)?, params, take)
    }

    /// Runs the prepared statement, and calls `take` with each row.
    pub(crate) fn run(
        &self,
        statement: &mut Statement<'_>,
        params: impl Params,
        mut take: impl FnMut(&ReplyRow<Columns<'_>>) -> Result<(), Malformed>,
    ) -> Result<()> {
        let mut rows = statement.query(params)?;
        while let Some(row) = rows.next()? {
            let columns = Columns { row, numbers: self.numbers };
            let row = ReplyRow { kind: self.kind, row: columns };
            take(&row).map_err(|error| Error::FromSqlConversionFailure(0, Type::Null, Box::new(error)))?;
        }
        Ok(())
    }
}

/// The columns of a row: numbers, then byte strings and texts.
pub(crate) struct Columns<'r> {
    row: &'r rusqlite::Row<'r>,
    numbers: usize,
}

impl tables::RowValues for Columns<'_> {
    fn number(&self, at: usize) -> Result<Option<i64>, Malformed> {
        match self.row.get_ref(at) {
            Ok(ValueRef::Integer(number)) if at < self.numbers => Ok(Some(number)),
            Ok(ValueRef::Null) => Ok(None),
            _ if at >= self.numbers => Ok(None),
            _ => Err(Malformed("a column holds no number")),
        }
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, Malformed> {
        match self.row.get_ref(self.numbers + at) {
            Ok(ValueRef::Blob(bytes) | ValueRef::Text(bytes)) => Ok(Some(bytes)),
            // An error means that there is no such column.
            Ok(ValueRef::Null) | Err(_) => Ok(None),
            Ok(_) => Err(Malformed("a column holds no bytes")),
        }
    }
}
