//! Wants as arrays, and facts out of rows. What a fact holds is in the table at the head of the crate `tables`.

use meta::Want;
use tables::Fact;

use crate::columns::Rows;
use crate::connection::get;
use crate::error::Failure;

/// Numbers and byte strings of a row.
pub(crate) type Values<'r> = (Vec<Option<i64>>, Vec<Option<&'r [u8]>>);

/// What a row of an answer says.
pub(crate) fn fact(row: &tokio_postgres::Row) -> Result<Fact<Values<'_>>, Failure> {
    let (numbers, bytes) = (get::<Option<_>>(row, 1)?, get::<Option<_>>(row, 2)?);
    Ok(Fact { about: get(row, 0)?, row: (numbers.unwrap_or_default(), bytes.unwrap_or_default()) })
}

/// A number as PostgreSQL stores it; those above `i64::MAX` turn negative and come back unchanged.
pub(crate) fn int(n: impl Into<i128>) -> i64 {
    n.into() as i64
}

/// Wants as arrays: what, two numbers, a name.
pub(crate) fn wants(wants: &[Want]) -> Rows<3, 1> {
    let mut rows = Rows::default();
    for want in wants {
        rows.line(&[tables::want(want).into()], &tables::wanted(want));
    }
    rows
}
