//! Ranges of records: one statement each, whose rows are facts (crate `tables`).

use meta::{Beside, Page, Scan, Seq};
use tables::Fact;

use crate::error::Fault;
use crate::read::{WITH_NODE, acls_of_node};
use crate::rows::{Columns, Row};
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
                Beside::Nothing => format!("SELECT {EDGE}, e.name FROM `{p}edge` AS e {range}"),
                Beside::Nodes => {
                    format!("SELECT {EDGE}, {NODE}, e.name, {ACLS} FROM {nodes} {range}")
                }
                Beside::NodesWithAcls => format!(
                    "SELECT {EDGE}, {NODE}, e.name, {ACLS}, a.text, d.text FROM {nodes} {} {range}",
                    acls_of_node(p)
                ),
            }
        }
        Scan::Nodes { after, limit } => format!(
            "SELECT {NODE}, {ACLS} FROM `{p}node` AS n WHERE n.ino > {} ORDER BY n.ino LIMIT {}",
            after.0,
            more(*limit)
        ),
        Scan::Slices { ino, from, limit } => format!(
            "SELECT s.ino, s.chunk, s.pos, s.len, s.slice, s.slice_off, s.slice_size, s.data FROM `{p}slice` AS s \
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
            "SELECT id, pid, since, heartbeat, host, mountpoint FROM `{p}session` WHERE id > {} ORDER BY id LIMIT {}",
            after.0,
            more(*limit)
        ),
        Scan::Locks { after, limit } => format!(
            "SELECT l.ino, l.first, l.last, l.session, l.owner, l.kind, l.exclusive, l.pid FROM `{p}lock` AS l \
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

const EDGE: &str = "e.parent, e.ino, e.kind";
const NODE: &str = "n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime, n.mtime, n.ctime, n.parent, \
                    n.access_rev";
const ACLS: &str = "n.access_acl, n.default_acl";

fn more(limit: usize) -> u64 {
    u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1)
}

/// What the rows of [`statement`] are about, and how many numbers stand before their byte strings.
fn shape(scan: &Scan) -> (i16, usize) {
    match scan {
        Scan::Dir { beside: Beside::Nothing, .. } => (2, 3),
        Scan::Dir { .. } => (WITH_NODE, 16),
        Scan::Nodes { .. } => (1, 13),
        Scan::Slices { .. } => (6, 7),
        Scan::Acls { .. } => (7, 0),
        Scan::Locks { .. } => (11, 8),
        Scan::Sessions { .. } => (13, 4),
        Scan::Orphans { .. } => (14, 2),
        Scan::Garbage { .. } => (15, 2),
        Scan::Shared { .. } => (16, 2),
    }
}

/// The page that the rows of [`statement`] make.
pub(crate) fn page(rows: &[Row], seq: Seq, scan: &Scan) -> Result<Page, Fault> {
    let (about, strings) = shape(scan);
    let fact = |row| Fact { about, row: Columns { row, numbers: 0, strings } };
    let facts: Vec<_> = rows.iter().map(fact).collect();
    Ok(tables::page(scan, seq, &facts)?)
}
