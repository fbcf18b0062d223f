//! Wants as arrays, and facts out of rows. What a fact holds is in the table at the head of the crate `tables`.

use meta::Want;
use tables::{Fact, Malformed};

/// Numbers and byte strings of a row.
#[derive(Debug)]
pub(crate) struct Values<'r> {
    pub(crate) numbers: Vec<Option<i64>>,
    bytes: Vec<Option<&'r [u8]>>,
}

impl tables::Row for Values<'_> {
    fn number(&self, at: usize) -> Result<Option<i64>, Malformed> {
        Ok(self.numbers.get(at).copied().flatten())
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, Malformed> {
        Ok(self.bytes.get(at).copied().flatten())
    }
}

/// What a row of an answer says.
pub(crate) fn fact(row: &tokio_postgres::Row) -> Result<Fact<Values<'_>>, Malformed> {
    let malformed = |_| Malformed("a row that is no fact");
    let numbers: Option<_> = row.try_get(1).map_err(malformed)?;
    let bytes: Option<_> = row.try_get(2).map_err(malformed)?;
    let row_values = Values { numbers: numbers.unwrap_or_default(), bytes: bytes.unwrap_or_default() };
    Ok(Fact { about: row.try_get(0).map_err(malformed)?, row: row_values })
}

/// A number as PostgreSQL stores it; those above `i64::MAX` turn negative and come back unchanged.
pub(crate) fn int(n: u64) -> i64 {
    n as i64
}

/// Wants as arrays: what, two numbers, a name.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    pub(crate) what: Vec<i16>,
    pub(crate) a: Vec<Option<i64>>,
    pub(crate) b: Vec<Option<i64>>,
    pub(crate) x: Vec<Option<Vec<u8>>>,
}

impl Wants {
    pub(crate) fn new(wants: &[Want]) -> Self {
        let mut all = Wants::default();
        for want in wants {
            let (b, x) = match want {
                Want::Entry(_, name) => (None, Some(name.as_bytes().to_vec())),
                Want::Slices(_, chunk) => (Some(chunk.0), None),
                Want::Acl(id) => (None, Some(id.to_bytes().to_vec())),
                _ => (None, None),
            };
            all.what.push(tables::want(want));
            all.a.push(tables::inode(want).map(|ino| int(ino.0)));
            all.b.push(b.map(int));
            all.x.push(x);
        }
        all
    }
}
