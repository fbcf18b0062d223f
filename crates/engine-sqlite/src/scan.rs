//! Ranges of records, in order.

use std::collections::HashSet;

use meta::{Beside, Facts, Garbage, Node, Page, Record, Scan, Seq};
use rusqlite::{Connection, Params, Result, Row};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, SliceId};

use crate::read::{
    acl, edge_at, int, name_at, node_at, node_columns, node_joined, session_at, session_columns, slices, uint,
};

/// The rows of `scan`, each as its records. An ACL that several nodes carry comes once.
pub(crate) fn page(conn: &Connection, seq: Seq, scan: &Scan) -> Result<Page> {
    let mut page = Page { facts: Facts { seq, records: Vec::new() }, more: false };
    match scan {
        Scan::Dir { parent, after, limit, beside: beside @ (Beside::Nodes | Beside::NodesWithAcls) } => {
            let acls = *beside == Beside::NodesWithAcls;
            entries_with_nodes(conn, *parent, (after, *limit), acls, &mut page)?
        }
        Scan::Dir { parent, after, limit, beside: Beside::Nothing } => {
            const SQL: &str =
                "SELECT name, ino, kind FROM edge WHERE parent = ?1 AND name > ?2 ORDER BY name LIMIT ?3";
            let params = (int(parent.0), after_name(after), one_more(*limit));
            rows(conn, SQL, params, *limit, &mut page, |row, records| {
                records.push(Record::Edge(*parent, name_at(row, 0)?, Some(edge_at(row, 1)?)));
                Ok(())
            })?;
        }
        Scan::Nodes { after, limit } => {
            const SQL: &str =
                concat!("SELECT ", node_columns!(), " FROM node n WHERE n.ino > ?1 ORDER BY n.ino LIMIT ?2");
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row, records| {
                let node = node_at(row, 0)?;
                records.push(Record::Node(node.ino, Some(node)));
                Ok(())
            })?;
        }
        Scan::Slices { ino, from, limit } => {
            const SQL: &str =
                "SELECT DISTINCT chunk FROM slice WHERE ino = ?1 AND chunk >= ?2 ORDER BY chunk LIMIT ?3";
            let params = (int(ino.0), after_id(from.0), one_more(*limit));
            rows(conn, SQL, params, *limit, &mut page, |row, records| {
                let chunk = ChunkIndex(uint(row.get(0)?));
                records.push(Record::Slices(*ino, chunk, slices(conn, *ino, chunk)?.into()));
                Ok(())
            })?;
        }
        Scan::Orphans { after: (session, ino), limit } => {
            const SQL: &str = "SELECT session, ino FROM orphan WHERE (session, ino) > (?1, ?2) ORDER BY session, ino LIMIT ?3";
            let params = (after_id(session.0), after_id(ino.0), one_more(*limit));
            rows(conn, SQL, params, *limit, &mut page, |row, records| {
                records.push(Record::Orphan(SessionId(uint(row.get(0)?)), Ino(uint(row.get(1)?))));
                Ok(())
            })?;
        }
        Scan::Sessions { after, limit } => {
            const SQL: &str =
                concat!("SELECT ", session_columns!(), " FROM session WHERE id > ?1 ORDER BY id LIMIT ?2");
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row, records| {
                let session = session_at(row)?;
                records.push(Record::Session(session.id, Some(session)));
                Ok(())
            })?;
        }
        Scan::Locks { after, limit } => {
            const SQL: &str = "SELECT DISTINCT ino FROM lock WHERE ino > ?1 ORDER BY ino LIMIT ?2";
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row, records| {
                let ino = Ino(uint(row.get(0)?));
                records.push(Record::Locks(ino, crate::locks::of(conn, ino)?.into()));
                Ok(())
            })?;
        }
        Scan::Garbage { after, limit } => {
            const SQL: &str = "SELECT slice, size FROM garbage WHERE slice > ?1 ORDER BY slice LIMIT ?2";
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row, records| {
                records
                    .push(Record::Garbage(Garbage { slice: SliceId(uint(row.get(0)?)), size: row.get(1)? }));
                Ok(())
            })?;
        }
        Scan::Shared { after, limit } => {
            const SQL: &str = "SELECT slice, extra FROM shared WHERE slice > ?1 ORDER BY slice LIMIT ?2";
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row, records| {
                records.push(Record::Shared(SliceId(uint(row.get(0)?)), uint(row.get(1)?)));
                Ok(())
            })?;
        }
        Scan::Acls { after, limit } => {
            const SQL: &str = "SELECT id, text FROM acl WHERE id > ?1 ORDER BY id LIMIT ?2";
            rows(conn, SQL, (after.to_bytes(), one_more(*limit)), *limit, &mut page, |row, records| {
                let id = AclId::from_bytes(row.get(0)?);
                records.push(Record::Acl(id, Some(row.get::<_, String>(1)?.into())));
                Ok(())
            })?;
        }
    }
    Ok(page)
}

fn entries_with_nodes(
    conn: &Connection,
    parent: Ino,
    (after, limit): (&Option<Name>, usize),
    acls: bool,
    page: &mut Page,
) -> Result<()> {
    const SQL: &str = concat!(
        "SELECT e.name, e.ino, e.kind, ",
        node_columns!(),
        " FROM edge e LEFT JOIN node n ON n.ino = e.ino \
         WHERE e.parent = ?1 AND e.name > ?2 ORDER BY e.name LIMIT ?3"
    );
    let mut seen = HashSet::new();
    rows(conn, SQL, (int(parent.0), after_name(after), one_more(limit)), limit, page, |row, records| {
        let (edge, node) = (edge_at(row, 1)?, node_joined(row, 3)?);
        records.push(Record::Edge(parent, name_at(row, 0)?, Some(edge)));
        records.push(Record::Node(edge.ino, node));
        for id in node.iter().filter(|_| acls).flat_map(Node::acls) {
            if seen.insert(id) {
                records.push(Record::Acl(id, acl(conn, id)?));
            }
        }
        Ok(())
    })
}

/// Takes at most `limit` rows, and finds out whether there is one more.
fn rows(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    limit: usize,
    page: &mut Page,
    mut take: impl FnMut(&Row<'_>, &mut Vec<Record>) -> Result<()>,
) -> Result<()> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    for _ in 0..limit {
        let Some(row) = rows.next()? else { return Ok(()) };
        take(row, &mut page.facts.records)?;
    }
    page.more = rows.next()?.is_some();
    Ok(())
}

fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// No name is empty, so every name comes after nothing.
fn after_name(after: &Option<Name>) -> &[u8] {
    after.as_ref().map_or(&[], Name::as_bytes)
}

/// Nothing comes after an id beyond what is stored.
fn after_id(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}
