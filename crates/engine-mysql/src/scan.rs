//! Ranges of records: one statement each, whose rows are facts (crate `tables`).

use meta::{Beside, Page, Scan, Seq};
use tables::Arg;

use crate::connect::Connection;
use crate::error::Fault;
use crate::read::Source;
use crate::rows::fact;
use crate::sql::{bytes, fill, list};

/// A part of a range, one row more than its limit, so that it shows whether more follow.
pub(crate) fn page(conn: &mut Connection, scan: &Scan, seq: Seq) -> Result<Page, Fault> {
    let select = tables::select(scan);
    let Source { about, numbers, strings, from } = match scan {
        Scan::Dir { beside: Beside::Nodes, .. } => Source::entries(),
        Scan::Dir { beside: Beside::NodesWithAcls, .. } => Source::entries().with_acls("n"),
        _ => Source { from: select.from.to_owned(), ..Source::table(&select.table) },
    };
    let args: Vec<String> = select.args.iter().map(literal).collect();
    let columns = list(numbers.iter().chain(&strings));
    let rows = conn.rows(&fill(&format!("SELECT {columns} FROM {from} {}", select.range), &args))?;
    let facts: Vec<_> = rows.iter().map(|row| fact(about, row, numbers.len())).collect();
    Ok(tables::page(scan, seq, &facts)?)
}

fn literal(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Number(number) => number.to_string(),
        Arg::Bytes(string) => bytes(string),
    }
}
