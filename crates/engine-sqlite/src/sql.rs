//! Statements for the rows that the crate `tables` describes.

use std::sync::{LazyLock, OnceLock};

use rusqlite::types::{ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, Error, Params, ParamsFromIter, Result, params_from_iter};
use tables::{Line, Malformed, ReplyRow, Source, Table, joined, kind, list};

/// One value for each kind of rows, computed at its first use. The index is the kind; kinds start at 1.
pub(crate) type ByKind<T> = [OnceLock<T>; kind::ALL.len() + 1];

/// Inserts a row. If the table has a row with the same key, an inode or ACL is kept, and any other row is
/// replaced. Returns the number of rows inserted: 0 or 1.
pub(crate) fn put(conn: &Connection, line: &Line<'_>) -> Result<usize> {
    static TEXTS: ByKind<String> = [const { OnceLock::new() }; _];
    let text = TEXTS[line.table.kind as usize].get_or_init(|| {
        let (verb, end) = match line.table.kind {
            kind::INODE | kind::ACL => ("INSERT", " ON CONFLICT DO NOTHING"),
            _ => ("REPLACE", ""),
        };
        let places = list((1..=line.columns().count()).map(|place| format!("?{place}")));
        format!("{verb} INTO {} ({}) VALUES ({places}){end}", line.table.name, list(line.columns()))
    });
    conn.prepare_cached(text)?.execute(values(line))
}

/// Replaces all values of an existing inode.
pub(crate) fn update_inode(conn: &Connection, line: &Line<'_>) -> Result<()> {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let columns = (1..).zip(Table::INODE.columns()).skip(1);
        let set = list(columns.map(|(place, column)| format!("{column} = ?{place}")));
        format!("UPDATE node SET {set} WHERE ino = ?1")
    });
    conn.prepare_cached(&TEXT)?.execute(values(line)).map(drop)
}

/// Deletes the rows that match this key: the values of their first columns.
pub(crate) fn remove(conn: &Connection, key: &Line<'_>) -> Result<()> {
    let text = format!("DELETE FROM {} AS r WHERE {}", key.table.name, has(key));
    conn.prepare_cached(&text)?.execute(values(key)).map(drop)
}

/// The condition that row `r` matches `key`. Its parameters are the [`values`] of `key`. Every row matches an
/// empty key.
pub(crate) fn has(key: &Line<'_>) -> String {
    let each = (1..).zip(key.columns()).map(|(place, column)| format!("r.{column} = ?{place}"));
    joined(["true".to_owned()].into_iter().chain(each), " AND ")
}

/// The values of a row, as parameters in the order of its columns.
pub(crate) fn values<'l>(line: &'l Line<'_>) -> ParamsFromIter<impl Iterator<Item = ToSqlOutput<'l>>> {
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
    pub(crate) fn new(source: &Source, rest: &str) -> Self {
        let columns = list(source.numbers.iter().chain(&source.strings));
        // `Source` writes the table prefix as `@`. The tables in SQLite have no prefix.
        let text = format!("SELECT {columns} FROM {} {rest}", source.from).replace("`@", "`");
        Select { text, kind: source.kind, numbers: source.numbers.len() }
    }

    /// Runs the statement, and calls `take` with each row.
    pub(crate) fn each(
        &self,
        conn: &Connection,
        params: impl Params,
        mut take: impl FnMut(&ReplyRow<Columns<'_>>) -> Result<(), Malformed>,
    ) -> Result<()> {
        let mut statement = conn.prepare_cached(&self.text)?;
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
