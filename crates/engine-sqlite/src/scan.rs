//! Scans of ranges of records, in key order.

use std::sync::OnceLock;

use meta::{Page, Scan, ScanInclude, Seq};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Result, params_from_iter};
use tables::{Arg, PageBuilder, RowSource};

use crate::sql::{ByKind, Select};

/// Reads a page of a range with one statement.
pub(crate) fn page(conn: &Connection, seq: Seq, scan: &Scan) -> Result<Page> {
    // The first index is the value of `include`, the second one the kind of rows. Each kind of scan has its
    // own table.
    static SELECTS: [ByKind<Select>; 3] = [const { [const { OnceLock::new() }; _] }; _];
    let select = tables::select(scan);
    let include = if let Scan::Dir { include, .. } = scan { *include } else { ScanInclude::Nothing };
    let statement = SELECTS[include as usize][select.table.kind as usize]
        .get_or_init(|| Select::new(&RowSource::of_scan(scan, &select), select.range));
    let args = select.args.iter().map(|arg| match arg {
        Arg::Number(number) => ValueRef::Integer(i64::try_from(*number).unwrap_or(i64::MAX)),
        Arg::Bytes(bytes) => ValueRef::Blob(bytes),
    });
    let args = params_from_iter(args.map(ToSqlOutput::Borrowed));
    let mut page = PageBuilder::new(scan);
    statement.each(conn, args, |row| page.take(row))?;
    Ok(page.finish(seq))
}
