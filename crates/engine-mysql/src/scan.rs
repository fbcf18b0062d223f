//! Ranges of records: one statement per page, whose rows the crate `tables` describes.

use meta::{Page, Scan, Seq};
use tables::{Arg, PageBuilder, RowSource, fill, list};

use crate::connect::{Connection, reply_row};
use crate::error::Failure;
use crate::sql::bytes;

/// Reads a page of a range. It selects one row more than the limit, which shows whether more rows follow.
pub(crate) fn page(conn: &mut Connection, scan: &Scan, seq: Seq) -> Result<Page, Failure> {
    let select = tables::select(scan);
    let RowSource { kind, numbers, strings, from } = RowSource::of_scan(scan, &select);
    let literal = |arg: &Arg<'_>| match arg {
        Arg::Number(number) => number.to_string(),
        Arg::Bytes(string) => bytes(string),
    };
    let args: Vec<String> = select.args.iter().map(literal).collect();
    let columns = list(numbers.iter().chain(&strings));
    // MariaDB seeks in an index by a comparison of rows only if the comparison is written out.
    let written_out = "(r.kind = ?1 AND r.number >= ?2 OR r.kind > ?1)";
    let range = select.range.replace("(r.kind, r.number) >= (?1, ?2)", written_out);
    let rows = conn.rows(&fill(&format!("SELECT {columns} FROM {from} {range}"), &args))?;
    let mut page = PageBuilder::new(scan);
    rows.iter().try_for_each(|row| page.take(&reply_row(kind, row, numbers.len())))?;
    Ok(page.finish(seq))
}
