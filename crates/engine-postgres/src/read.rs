//! Record keys as arrays, and the rows of replies, which the header of the crate `tables` describes.

use meta::{RecordKey, Seq, Snapshot};
use tables::{ReplyContent, ReplyRow};

use crate::columns::Rows;
use crate::connection::{Connection, get};
use crate::error::Failure;
use crate::shared::Shared;

/// The numbers and byte strings of a row.
pub(crate) type Values<'r> = (Vec<Option<i64>>, Vec<Option<&'r [u8]>>);

/// A row of a reply.
pub(crate) fn reply_row(row: &tokio_postgres::Row) -> Result<ReplyRow<Values<'_>>, Failure> {
    let (numbers, bytes) = (get::<Option<_>>(row, 1)?, get::<Option<_>>(row, 2)?);
    Ok(ReplyRow { kind: get(row, 0)?, row: (numbers.unwrap_or_default(), bytes.unwrap_or_default()) })
}

/// Record keys as arrays: the kind, two numbers, a name.
fn arrays(keys: &[RecordKey]) -> Rows<3, 1> {
    let mut rows = Rows::default();
    for key in keys {
        rows.line(&[tables::kind_of(key).into()], &tables::row_key(key));
    }
    rows
}

impl Shared {
    /// Reads records with one statement.
    pub(crate) fn read(&self, on: &mut Connection, keys: &[RecordKey], at: Seq) -> Result<Snapshot, Failure> {
        let arrays = arrays(keys);
        let args: Vec<_> = arrays.args().collect();
        let rows = on.call(&self.sql.functions, &self.sql.read, &args)?;
        Ok(Snapshot { seq: at, records: ReplyContent::in_rows(rows.iter().map(reply_row), keys)? })
    }
}
