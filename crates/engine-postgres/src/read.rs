//! Record keys as arrays, and facts from rows. The header of the crate `tables` describes the facts.

use meta::RecordKey;
use tables::Fact;

use crate::columns::Rows;
use crate::connection::get;
use crate::error::Failure;

/// The numbers and byte strings of a row.
pub(crate) type Values<'r> = (Vec<Option<i64>>, Vec<Option<&'r [u8]>>);

/// The fact in a row of a reply.
pub(crate) fn fact(row: &tokio_postgres::Row) -> Result<Fact<Values<'_>>, Failure> {
    let (numbers, bytes) = (get::<Option<_>>(row, 1)?, get::<Option<_>>(row, 2)?);
    Ok(Fact { about: get(row, 0)?, row: (numbers.unwrap_or_default(), bytes.unwrap_or_default()) })
}

/// Record keys as arrays: the kind, two numbers, a name.
pub(crate) fn wants(wants: &[RecordKey]) -> Rows<3, 1> {
    let mut rows = Rows::default();
    for want in wants {
        rows.line(&[tables::want(want).into()], &tables::wanted(want));
    }
    rows
}
