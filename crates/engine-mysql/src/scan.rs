//! Ranges of records: one statement each.

use std::collections::HashSet;
use std::sync::Arc;

use meta::{Beside, Edge, Facts, Garbage, Page, Record, Scan, Seq, Session};
use types::{AclId, ChunkIndex, Ino, SessionId, Slice, SliceId, Time};

use crate::error::Fault;
use crate::read::{NodeAndAcls, acls_of_node};
use crate::rows::{Row, RowReader, lock_at, slice_at};
use crate::sql::Bytes;

/// The statement for a range, one row more than its limit, so that it shows whether more follow.
pub(crate) fn statement(p: &str, scan: &Scan) -> String {
    match scan {
        Scan::Dir { parent, after, limit, beside } => {
            // No name is empty, so every name comes after nothing.
            let after = Bytes(after.as_ref().map_or(&[], |name| name.as_bytes()));
            let range = format!(
                "WHERE e.parent = {} AND e.name > {after} ORDER BY e.name LIMIT {}",
                parent.0,
                more(*limit)
            );
            let nodes = format!("`{p}edge` AS e LEFT JOIN `{p}node` AS n ON n.ino = e.ino");
            match beside {
                Beside::Nothing => format!("SELECT e.name, e.ino, e.kind FROM `{p}edge` AS e {range}"),
                Beside::Nodes => {
                    format!("SELECT e.name, e.ino, e.kind, {NODE}, NULL, NULL FROM {nodes} {range}")
                }
                Beside::NodesWithAcls => format!(
                    "SELECT e.name, e.ino, e.kind, {NODE}, a.text, d.text FROM {nodes} {} {range}",
                    acls_of_node(p)
                ),
            }
        }
        Scan::Nodes { after, limit } => format!(
            "SELECT {NODE}, NULL, NULL FROM `{p}node` AS n WHERE n.ino > {} ORDER BY n.ino LIMIT {}",
            after.0,
            more(*limit)
        ),
        Scan::Slices { ino, from, limit } => format!(
            "SELECT s.pos, s.len, s.slice, s.slice_off, s.slice_size, s.data, s.chunk FROM `{p}slice` AS s \
             JOIN (SELECT DISTINCT chunk FROM `{p}slice` WHERE ino = {ino} AND chunk >= {} ORDER BY chunk LIMIT {}) AS c \
             ON c.chunk = s.chunk WHERE s.ino = {ino} ORDER BY s.chunk, s.seq",
            from.0,
            more(*limit),
            ino = ino.0
        ),
        Scan::Orphans { after: (session, ino), limit } => format!(
            "SELECT session, ino FROM `{p}orphan` WHERE session > {session} OR (session = {session} AND ino > {}) \
             ORDER BY session, ino LIMIT {}",
            ino.0,
            more(*limit),
            session = session.0
        ),
        Scan::Sessions { after, limit } => format!(
            "SELECT id, host, pid, mountpoint, since, heartbeat FROM `{p}session` WHERE id > {} ORDER BY id LIMIT {}",
            after.0,
            more(*limit)
        ),
        Scan::Locks { after, limit } => format!(
            "SELECT l.first, l.last, l.session, l.owner, l.kind, l.exclusive, l.pid, l.ino FROM `{p}lock` AS l \
             JOIN (SELECT DISTINCT ino FROM `{p}lock` WHERE ino > {} ORDER BY ino LIMIT {}) AS c ON c.ino = l.ino \
             ORDER BY l.ino",
            after.0,
            more(*limit)
        ),
        Scan::Garbage { after, limit } => format!(
            "SELECT slice, size FROM `{p}garbage` WHERE slice > {} ORDER BY slice LIMIT {}",
            after.0,
            more(*limit)
        ),
        Scan::Shared { after, limit } => format!(
            "SELECT slice, extra FROM `{p}shared` WHERE slice > {} ORDER BY slice LIMIT {}",
            after.0,
            more(*limit)
        ),
        Scan::Acls { after, limit } => format!(
            "SELECT id, text FROM `{p}acl` WHERE id > {} ORDER BY id LIMIT {}",
            Bytes(&after.to_bytes()),
            more(*limit)
        ),
    }
}

/// An inode; the texts of its two ACLs, or NULLs, follow.
const NODE: &str = "n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime, n.mtime, n.ctime, n.parent, \
                    n.access_rev, n.access_acl, n.default_acl";

fn more(limit: usize) -> u64 {
    u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1)
}

/// The page that the rows of [`statement`] make; an ACL that several nodes carry comes once.
pub(crate) fn page(rows: &[Row], seq: Seq, scan: &Scan) -> Result<Page, Fault> {
    let mut page = Page { facts: Facts { seq, records: Vec::new() }, more: false };
    let rows = rows.iter().map(RowReader);
    let (Scan::Dir { limit, .. }
    | Scan::Nodes { limit, .. }
    | Scan::Slices { limit, .. }
    | Scan::Orphans { limit, .. }
    | Scan::Sessions { limit, .. }
    | Scan::Locks { limit, .. }
    | Scan::Garbage { limit, .. }
    | Scan::Shared { limit, .. }
    | Scan::Acls { limit, .. }) = scan;
    let records = &mut page.facts.records;
    match scan {
        Scan::Slices { ino, .. } => {
            let rows = rows.map(|row| Ok((ChunkIndex(row.number(6)?), slice_at(&row, 0, 5)?)));
            let (groups, more) = grouped(rows, *limit)?;
            page.more = more;
            let record = |(chunk, rows): (_, Vec<Slice>)| Record::Slices(*ino, chunk, rows.into());
            records.extend(groups.into_iter().map(record));
        }
        Scan::Locks { .. } => {
            let (groups, more) =
                grouped(rows.map(|row| Ok((Ino(row.number(7)?), lock_at(&row, 0)?))), *limit)?;
            page.more = more;
            for (ino, mut locks) in groups {
                locks.sort_unstable();
                records.push(Record::Locks(ino, locks.into()));
            }
        }
        _ => {
            page.more = rows.len() > *limit;
            let mut seen = HashSet::new();
            for row in rows.take(*limit) {
                one(&row, scan, &mut seen, records)?;
            }
        }
    }
    Ok(page)
}

/// The records of one row.
fn one(
    row: &RowReader<'_>,
    scan: &Scan,
    seen: &mut HashSet<AclId>,
    records: &mut Vec<Record>,
) -> Result<(), Fault> {
    match scan {
        Scan::Dir { parent, beside, .. } => {
            let ino = Ino(row.number(1)?);
            records.push(Record::Edge(*parent, row.name(0)?, Some(Edge { ino, kind: row.kind(2)? })));
            if *beside != Beside::Nothing {
                let node = NodeAndAcls::at(row, 3, 16)?;
                records.push(Record::Node(ino, node.as_ref().map(|node| node.node)));
                let with_acls = node.iter().filter(|_| *beside == Beside::NodesWithAcls);
                for (id, text) in with_acls.flat_map(NodeAndAcls::acls) {
                    if seen.insert(id) {
                        records.push(Record::Acl(id, text));
                    }
                }
            }
        }
        Scan::Nodes { .. } => {
            let node = NodeAndAcls::at(row, 0, 13)?.ok_or(Fault::malformed("an inode has no number"))?;
            records.push(Record::Node(node.node.ino, Some(node.node)));
        }
        Scan::Orphans { .. } => {
            records.push(Record::Orphan(SessionId(row.number(0)?), Ino(row.number(1)?)));
        }
        Scan::Sessions { .. } => records.push(Record::Session(Session {
            id: SessionId(row.number(0)?),
            host: row.text(1)?.to_owned(),
            pid: row.number(2)?,
            mountpoint: row.text(3)?.to_owned(),
            since: Time::from_nanos(row.number(4)?),
            heartbeat: Time::from_nanos(row.number(5)?),
        })),
        Scan::Garbage { .. } => {
            records.push(Record::Garbage(Garbage { slice: SliceId(row.number(0)?), size: row.number(1)? }));
        }
        Scan::Shared { .. } => records.push(Record::Shared(SliceId(row.number(0)?), row.number(1)?)),
        Scan::Acls { .. } => records.push(Record::Acl(row.acl_id(0)?, Some(Arc::from(row.text(1)?)))),
        // Their rows come in groups.
        Scan::Slices { .. } | Scan::Locks { .. } => {}
    }
    Ok(())
}

/// Neighbours of one key together, at most `limit` keys, and whether there are more.
type Groups<K, V> = (Vec<(K, Vec<V>)>, bool);

fn grouped<K: PartialEq, V>(
    rows: impl Iterator<Item = Result<(K, V), Fault>>,
    limit: usize,
) -> Result<Groups<K, V>, Fault> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for row in rows {
        let (key, value) = row?;
        match groups.last_mut() {
            Some((last, values)) if *last == key => values.push(value),
            _ => groups.push((key, vec![value])),
        }
        if groups.len() > limit {
            groups.pop();
            return Ok((groups, true));
        }
    }
    Ok((groups, false))
}
