//! Scans of ranges of records, in key order.

use std::collections::HashSet;

use meta::{Beside, Garbage, Inode, Page, Record, Scan, Seq, Snapshot};
use rusqlite::{Connection, Params, Result, Row};
use types::{AclId, ChunkIndex, Ino, Name, SessionId, SliceId};

use crate::number::{int, uint};
use crate::read::{
    acl, dirent_at, inode_at, inode_columns, inode_joined, name_at, session_at, session_columns, slices,
};

/// Returns the rows of `scan` as records. The text of an ACL that several inodes share is included once.
pub(crate) fn page(conn: &Connection, seq: Seq, scan: &Scan) -> Result<Page> {
    let mut page = Page { snapshot: Snapshot { seq, records: Vec::new() }, more: false };
    match scan {
        Scan::Dir { parent, after, limit, beside: beside @ (Beside::Inodes | Beside::InodesWithAcls) } => {
            let acls = *beside == Beside::InodesWithAcls;
            entries_with_inodes(conn, *parent, (after, *limit), acls, &mut page)?
        }
        Scan::Dir { parent, after, limit, beside: Beside::Nothing } => {
            const SQL: &str =
                "SELECT name, ino, kind FROM edge WHERE parent = ?1 AND name > ?2 ORDER BY name LIMIT ?3";
            let params = (int(parent.0), after_name(after), one_more(*limit));
            rows(conn, SQL, params, *limit, &mut page, |row| {
                Ok([Record::Dirent(*parent, name_at(row, 0)?, Some(dirent_at(row, 1)?))])
            })?;
        }
        Scan::Inodes { after, limit } => {
            const SQL: &str =
                concat!("SELECT ", inode_columns!(), " FROM node n WHERE n.ino > ?1 ORDER BY n.ino LIMIT ?2");
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row| {
                let inode = inode_at(row, 0)?;
                Ok([Record::Inode(inode.ino, Some(inode))])
            })?;
        }
        Scan::Slices { ino, from, limit } => {
            const SQL: &str =
                "SELECT DISTINCT chunk FROM slice WHERE ino = ?1 AND chunk >= ?2 ORDER BY chunk LIMIT ?3";
            let params = (int(ino.0), after_id(from.0), one_more(*limit));
            rows(conn, SQL, params, *limit, &mut page, |row| {
                let chunk = ChunkIndex(uint(row.get(0)?));
                Ok([Record::Slices(*ino, chunk, slices(conn, *ino, chunk)?.into())])
            })?;
        }
        Scan::Orphans { after: (session, ino), limit } => {
            const SQL: &str = "SELECT session, ino FROM orphan WHERE (session, ino) > (?1, ?2) ORDER BY session, ino LIMIT ?3";
            let params = (after_id(session.0), after_id(ino.0), one_more(*limit));
            rows(conn, SQL, params, *limit, &mut page, |row| {
                Ok([Record::Orphan(SessionId(uint(row.get(0)?)), Ino(uint(row.get(1)?)))])
            })?;
        }
        Scan::Sessions { after, limit } => {
            const SQL: &str =
                concat!("SELECT ", session_columns!(), " FROM session WHERE id > ?1 ORDER BY id LIMIT ?2");
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row| {
                let session = session_at(row)?;
                Ok([Record::Session(session.id, Some(session))])
            })?;
        }
        Scan::Locks { after, limit } => {
            const SQL: &str = "SELECT DISTINCT ino FROM lock WHERE ino > ?1 ORDER BY ino LIMIT ?2";
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row| {
                let ino = Ino(uint(row.get(0)?));
                Ok([Record::Locks(ino, crate::locks::of(conn, ino)?.into())])
            })?;
        }
        Scan::Garbage { after, limit } => {
            const SQL: &str = "SELECT slice, size FROM garbage WHERE slice > ?1 ORDER BY slice LIMIT ?2";
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row| {
                Ok([Record::Garbage(Garbage { slice: SliceId(uint(row.get(0)?)), size: row.get(1)? })])
            })?;
        }
        Scan::Shared { after, limit } => {
            const SQL: &str = "SELECT slice, extra FROM shared WHERE slice > ?1 ORDER BY slice LIMIT ?2";
            rows(conn, SQL, (after_id(after.0), one_more(*limit)), *limit, &mut page, |row| {
                Ok([Record::Shared(SliceId(uint(row.get(0)?)), uint(row.get(1)?))])
            })?;
        }
        Scan::Acls { after, limit } => {
            const SQL: &str = "SELECT id, text FROM acl WHERE id > ?1 ORDER BY id LIMIT ?2";
            rows(conn, SQL, (after.to_bytes(), one_more(*limit)), *limit, &mut page, |row| {
                let id = AclId::from_bytes(row.get(0)?);
                Ok([Record::Acl(id, Some(row.get::<_, String>(1)?.into()))])
            })?;
        }
    }
    Ok(page)
}

fn entries_with_inodes(
    conn: &Connection,
    parent: Ino,
    (after, limit): (&Option<Name>, usize),
    acls: bool,
    page: &mut Page,
) -> Result<()> {
    const SQL: &str = concat!(
        "SELECT e.name, e.ino, e.kind, ",
        inode_columns!(),
        " FROM edge e LEFT JOIN node n ON n.ino = e.ino \
         WHERE e.parent = ?1 AND e.name > ?2 ORDER BY e.name LIMIT ?3"
    );
    let mut seen = HashSet::new();
    rows(conn, SQL, (int(parent.0), after_name(after), one_more(limit)), limit, page, |row| {
        let (dirent, inode) = (dirent_at(row, 1)?, inode_joined(row, 3)?);
        let entry =
            [Record::Dirent(parent, name_at(row, 0)?, Some(dirent)), Record::Inode(dirent.ino, inode)];
        let mut found = Vec::new();
        for id in inode.iter().filter(|_| acls).flat_map(Inode::acls) {
            if seen.insert(id) {
                found.push(Record::Acl(id, acl(conn, id)?));
            }
        }
        Ok(entry.into_iter().chain(found))
    })
}

/// Takes at most `limit` rows and checks whether there is one more.
fn rows<R: IntoIterator<Item = Record>>(
    conn: &Connection,
    sql: &str,
    params: impl Params,
    limit: usize,
    page: &mut Page,
    mut take: impl FnMut(&Row<'_>) -> Result<R>,
) -> Result<()> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    for _ in 0..limit {
        let Some(row) = rows.next()? else { return Ok(()) };
        page.snapshot.records.extend(take(row)?);
    }
    page.more = rows.next()?.is_some();
    Ok(())
}

fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// No name is empty, so every name is greater than the empty one.
fn after_name(after: &Option<Name>) -> &[u8] {
    after.as_ref().map_or(&[], Name::as_bytes)
}

/// An ID above i64::MAX is never stored, so no row comes after it.
fn after_id(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}
