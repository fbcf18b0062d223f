//! Parts of ranges, in order.

use meta::{Beside, Page, Scan, Seq};
use tables::{Arg, Select, Table, list};
use tokio_postgres::types::ToSql;

use crate::connection::Connection;
use crate::error::Failure;
use crate::read::fact;
use crate::schema::Names;

/// A part of a range: one statement.
pub(crate) fn page(
    connection: &mut Connection,
    names: &Names,
    scan: &Scan,
    seq: Seq,
) -> Result<Page, Failure> {
    let select = tables::select(scan);
    let args: Vec<_> = select.args.iter().map(value).collect();
    let args: Vec<_> = args.iter().map(|value| &**value).collect();
    let rows = connection.query(&names.text(&statement(scan, &select)), &args)?;
    let facts = rows.iter().map(fact).collect::<Result<Vec<_>, _>>()?;
    Ok(tables::page(scan, seq, &facts)?)
}

fn value<'a>(arg: &'a Arg<'_>) -> Box<dyn ToSql + Sync + 'a> {
    match arg {
        Arg::Number(number) => Box::new(i64::try_from(*number).unwrap_or(i64::MAX)),
        Arg::Bytes(bytes) => Box::new(&**bytes),
    }
}

/// With the entries of a directory come, if asked for, the inodes, and each of their ACLs once.
fn statement(scan: &Scan, Select { table, from, range, .. }: &Select<'_>) -> String {
    let page = format!("WITH page AS MATERIALIZED (SELECT r.* FROM {from} {range})");
    let sql = match scan {
        Scan::Dir { beside: Beside::Nodes, .. } => format!(
            "{page} {} FROM page r UNION ALL {} FROM page p JOIN @node r ON r.ino = p.ino",
            facts(table),
            facts(&Table::NODE)
        ),
        Scan::Dir { beside: Beside::NodesWithAcls, .. } => format!(
            "{page}, inode AS MATERIALIZED (SELECT n.* FROM page p JOIN @node n ON n.ino = p.ino) \
             {} FROM page r UNION ALL {} FROM inode r UNION ALL {} FROM @acl r \
             WHERE r.id = ANY (ARRAY(SELECT unnest(ARRAY[n.access_acl, n.default_acl]) FROM inode n))",
            facts(table),
            facts(&Table::NODE),
            facts(&Table::ACL)
        ),
        _ => format!("{} FROM {from} {range}", facts(table)),
    };
    sql.replace('`', "").replace('?', "$")
}

/// The columns of rows `r` as facts.
fn facts(table: &Table) -> String {
    let column = |name: &&str| match *name {
        "text" | "host" | "mountpoint" | "boot_id" | "version" => format!("convert_to(r.{name}, 'UTF8')"),
        _ => format!("r.{name}"),
    };
    let array = |columns: &[&str], of: &str| match columns {
        [] => format!("NULL::{of}[]"),
        _ => format!("ARRAY[{}]", list(columns.iter().map(column))),
    };
    let (numbers, strings) = (array(table.numbers, "bigint"), array(table.strings, "bytea"));
    format!("SELECT {}::smallint, {numbers}, {strings}", table.fact)
}
