//! Ranges of records: one statement each, whose rows are facts (crate `tables`).

use meta::{Beside, Page, Scan, Seq};
use tables::Arg;

use crate::connect::Connection;
use crate::error::Fault;
use crate::read::{ENTRY_WITH_NODE, columns_of, entry_with_node};
use crate::rows::fact;
use crate::sql::{bytes, fill, list};

/// A part of a range, one row more than its limit, so that it shows whether more follow.
pub(crate) fn page(conn: &mut Connection, scan: &Scan, seq: Seq) -> Result<Page, Fault> {
    let select = tables::select(scan);
    let (about, numbers, strings, from) = match scan {
        Scan::Dir { beside: Beside::Nodes | Beside::NodesWithAcls, .. } => {
            let with_acls = matches!(scan, Scan::Dir { beside: Beside::NodesWithAcls, .. });
            let (numbers, strings, from) = entry_with_node(with_acls);
            (ENTRY_WITH_NODE, numbers, strings, from)
        }
        _ => {
            let table = &select.table;
            let (numbers, strings) = (columns_of("r", table.numbers), columns_of("r", table.strings));
            (table.fact, numbers, strings, select.from.to_owned())
        }
    };
    let args: Vec<String> = select.args.iter().map(literal).collect();
    let sql = format!(
        "SELECT {} FROM {} {}",
        list(numbers.iter().chain(&strings)),
        fill(&from, &args),
        fill(select.range, &args)
    );
    let rows = conn.rows(&sql)?;
    let facts: Vec<_> = rows.iter().map(|row| fact(about, row, numbers.len())).collect();
    Ok(tables::page(scan, seq, &facts)?)
}

fn literal(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Number(number) => number.to_string(),
        Arg::Bytes(string) => bytes(string),
    }
}
