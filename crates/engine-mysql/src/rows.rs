//! Rows of answers. All values come as text: the requests are plain queries.

use mysql::Value;
use tables::{Fact, Malformed};

pub(crate) type Row = Vec<Value>;

/// The columns of a row.
#[derive(Clone, Copy, Debug)]
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
