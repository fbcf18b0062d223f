//! Records out of rows. All values come as text: the requests are plain queries.

use meta::{LockKind, Node};
use mysql::Value;
use tables::{Fact, Malformed};

use crate::error::Fault;

pub(crate) type Row = Vec<Value>;
/// The sets of rows that a request gave.
pub(crate) type Sets = Vec<Vec<Row>>;

/// The columns of a node: thirteen numbers, and the ids of its two ACLs.
pub(crate) const NODE_COLUMNS: &str = "ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, parent, \
                                       access_rev, access_acl, default_acl";

/// Values of a row's columns by number.
#[derive(Clone, Copy)]
pub(crate) struct RowReader<'r>(pub(crate) &'r Row);

impl<'r> RowReader<'r> {
    /// The bytes of a column, `None` for NULL.
    pub(crate) fn optional_bytes(self, at: usize) -> Result<Option<&'r [u8]>, Fault> {
        match self.0.get(at) {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Value::NULL) => Ok(None),
            _ => Err(Fault::malformed("a row lacks a column")),
        }
    }

    pub(crate) fn bytes(self, at: usize) -> Result<&'r [u8], Fault> {
        self.optional_bytes(at)?.ok_or(Fault::malformed("a column is NULL that never is"))
    }

    pub(crate) fn optional<T: std::str::FromStr>(self, at: usize) -> Result<Option<T>, Fault> {
        let Some(bytes) = self.optional_bytes(at)? else { return Ok(None) };
        let number = str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or(Fault::malformed("a column holds no number of its range"))
    }

    pub(crate) fn number<T: std::str::FromStr>(self, at: usize) -> Result<T, Fault> {
        self.optional(at)?.ok_or(Fault::malformed("a column is NULL that never is"))
    }

    pub(crate) fn text(self, at: usize) -> Result<&'r str, Fault> {
        str::from_utf8(self.bytes(at)?).map_err(|_| Fault::malformed("a column holds no UTF-8"))
    }
}

/// Columns as a fact has its values: numbers from one column on, byte strings from another.
#[derive(Debug)]
pub(crate) struct Columns<'r> {
    pub(crate) row: &'r Row,
    pub(crate) numbers: usize,
    pub(crate) strings: usize,
}

impl tables::Row for Columns<'_> {
    fn number(&self, at: usize) -> Result<Option<i64>, Malformed> {
        let column = self.numbers + at;
        let bytes = match self.row.get(column).filter(|_| column < self.strings) {
            None | Some(Value::NULL) => return Ok(None),
            Some(Value::Bytes(bytes)) => bytes,
            Some(_) => return Err(Malformed("a column is no text")),
        };
        // One without a sign may reach beyond those with one.
        let text = str::from_utf8(bytes).unwrap_or_default();
        let number = text.parse().or_else(|_| text.parse::<u64>().map(|number| number as i64));
        number.map(Some).map_err(|_| Malformed("a column holds no number of its range"))
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, Malformed> {
        match self.row.get(self.strings + at) {
            None | Some(Value::NULL) => Ok(None),
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(_) => Err(Malformed("a column is no text")),
        }
    }
}

/// A node whose numbers begin at `at`, and the ids of its ACLs at `acls`.
pub(crate) fn node_at(row: &RowReader<'_>, at: usize, acls: usize) -> Result<Node, Fault> {
    Ok(Fact { about: 1, row: Columns { row: row.0, numbers: at, strings: acls } }.node()?)
}

pub(crate) fn kind_number(kind: LockKind) -> u8 {
    kind.number()
}
