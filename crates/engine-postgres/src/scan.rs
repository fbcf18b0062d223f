//! Scans: pages of ranges of records, in key order.

use meta::{Page, Scan, ScanInclude, Seq};
use tables::{Arg, PageBuilder, Select, Table, list};
use tokio_postgres::types::ToSql;

use crate::connection::Connection;
use crate::error::Failure;
use crate::read::reply_row;
use crate::shared::Shared;

impl Shared {
    /// Reads one page of a range with one statement.
    pub(crate) fn page(&self, on: &mut Connection, scan: &Scan, seq: Seq) -> Result<Page, Failure> {
        let select = tables::select(scan);
        let args: Vec<_> = select.args.iter().map(value).collect();
        let args: Vec<_> = args.iter().map(|value| &**value).collect();
        let rows = on.query(&self.tables.text(&statement(scan, &select)), &args)?;
        let mut page = PageBuilder::new(scan);
        for row in &rows {
            page.take(&reply_row(row)?)?;
        }
        Ok(page.finish(seq))
    }
}

fn value<'a>(arg: &'a Arg<'_>) -> Box<dyn ToSql + Sync + 'a> {
    match arg {
        Arg::Number(number) => Box::new(i64::try_from(*number).unwrap_or(i64::MAX)),
        Arg::Bytes(bytes) => Box::new(&**bytes),
    }
}

/// The statement of a scan. If the scan of a directory includes inodes, it returns these after the dirents,
/// and then, if requested, each ACL of these inodes once.
fn statement(scan: &Scan, Select { table, from, range, .. }: &Select<'_>) -> String {
    let page = format!("WITH page AS MATERIALIZED (SELECT r.* FROM {from} {range})");
    let sql = match scan {
        Scan::Dir { include: ScanInclude::Inodes, .. } => format!(
            "{page} {} FROM page r UNION ALL {} FROM page p JOIN @node r ON r.ino = p.ino",
            columns(table),
            columns(&Table::INODE)
        ),
        Scan::Dir { include: ScanInclude::InodesWithAcls, .. } => format!(
            "{page}, inode AS MATERIALIZED (SELECT n.* FROM page p JOIN @node n ON n.ino = p.ino) \
             {} FROM page r UNION ALL {} FROM inode r UNION ALL {} FROM @acl r \
             WHERE r.id = ANY (ARRAY(SELECT unnest(ARRAY[n.access_acl, n.default_acl]) FROM inode n))",
            columns(table),
            columns(&Table::INODE),
            columns(&Table::ACL)
        ),
        _ => format!("{} FROM {from} {range}", columns(table)),
    };
    sql.replace('`', "").replace('?', "$")
}

/// The columns of rows `r`, in the form of all replies: the kind, the numbers, the byte strings.
fn columns(table: &Table) -> String {
    let column = |name: &&str| match table.is_text(name) {
        true => format!("convert_to(r.{name}, 'UTF8')"),
        false => format!("r.{name}"),
    };
    let array = |columns: &[&str], of: &str| match columns {
        [] => format!("NULL::{of}[]"),
        _ => format!("ARRAY[{}]", list(columns.iter().map(column))),
    };
    let (numbers, strings) = (array(table.numbers, "bigint"), array(table.strings, "bytea"));
    format!("SELECT {}::smallint, {numbers}, {strings}", table.kind)
}
