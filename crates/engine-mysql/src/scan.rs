//! Ranges of records: one statement per page, whose rows the crate `tables` describes.

use meta::{Beside, Page, Scan, Seq};
use tables::{Arg, fill, list};

use crate::connect::{Connection, reply_row};
use crate::error::Fault;
use crate::read::Source;
use crate::sql::bytes;

/// Reads a page of a range. It selects one row more than the limit, which shows whether more rows follow.
pub(crate) fn page(conn: &mut Connection, scan: &Scan, seq: Seq) -> Result<Page, Fault> {
    let select = tables::select(scan);
    let beside = if let Scan::Dir { beside, .. } = scan { *beside } else { Beside::Nothing };
    let (with_inodes, with_acls) = (beside != Beside::Nothing, beside == Beside::InodesWithAcls);
    let source = Source::new(select.table, select.from, with_inodes, with_acls);
    let Source { kind, numbers, strings, from } = source;
    let literal = |arg: &Arg<'_>| match arg {
        Arg::Number(number) => number.to_string(),
        Arg::Bytes(string) => bytes(string),
    };
    let args: Vec<String> = select.args.iter().map(literal).collect();
    let columns = list(numbers.iter().chain(&strings));
    let rows = conn.rows(&fill(&format!("SELECT {columns} FROM {from} {}", select.range), &args))?;
    let rows: Vec<_> = rows.iter().map(|row| reply_row(kind, row, numbers.len())).collect();
    Ok(tables::page(scan, seq, &rows)?)
}
