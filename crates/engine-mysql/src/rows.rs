//! Rows of answers. All values come as text: the requests are plain queries.

use mysql::Value;
use tables::{Fact, Malformed};

pub(crate) type Row = Vec<Value>;
/// The sets of rows that a request gave.
pub(crate) type Sets = Vec<Vec<Row>>;

/// The columns of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'r> {
    numbers: &'r [Value],
    strings: &'r [Value],
}

impl<'r> Reader<'r> {
    /// Each column by its place, whatever it holds.
    pub(crate) fn new(row: &'r Row) -> Self {
        Reader { numbers: row, strings: row }
    }

    /// What a number says, `None` for NULL.
    pub(crate) fn optional(self, at: usize) -> Result<Option<u64>, Malformed> {
        Ok(tables::Row::number(&self, at)?.map(|number| number as u64))
    }

    pub(crate) fn number(self, at: usize) -> Result<u64, Malformed> {
        self.optional(at)?.ok_or(Malformed("a column is NULL that never is"))
    }

    pub(crate) fn bytes(self, at: usize) -> Result<&'r [u8], Malformed> {
        text(self.strings, at)?.ok_or(Malformed("a column is NULL that never is"))
    }
}

/// A row with so many numbers before its strings.
pub(crate) fn fact(about: i16, row: &[Value], numbers: usize) -> Fact<Reader<'_>> {
    let (numbers, strings) = row.split_at_checked(numbers).unwrap_or_default();
    Fact { about, row: Reader { numbers, strings } }
}

impl tables::Row for Reader<'_> {
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
