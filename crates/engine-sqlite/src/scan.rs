//! Scans of ranges of records, in key order.

use meta::{Page, Scan, Seq};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Result, params_from_iter};
use tables::{Arg, PageBuilder, Source};

use crate::sql::Select;

/// Reads a page of a range with one statement.
pub(crate) fn page(conn: &Connection, seq: Seq, scan: &Scan) -> Result<Page> {
    let select = tables::select(scan);
    let args = select.args.iter().map(|arg| match arg {
        Arg::Number(number) => ValueRef::Integer(i64::try_from(*number).unwrap_or(i64::MAX)),
        Arg::Bytes(bytes) => ValueRef::Blob(bytes),
    });
    let args = params_from_iter(args.map(ToSqlOutput::Borrowed));
    let mut page = PageBuilder::new(scan);
    let source = Source::of_scan(scan, &select);
    Select::new(&source, select.range).each(conn, args, |row| page.take(row))?;
    Ok(page.finish(seq))
}
