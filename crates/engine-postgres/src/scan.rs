//! Parts of ranges, in order.

use meta::{Beside, Page, Scan, Seq};

use crate::connection::{Args, Connection};
use crate::error::Failure;
use crate::read::{fact, int};
use crate::schema::Names;

/// Entries; with them, if asked for, the inodes, and each of their ACLs once.
const DIR: &str = "SELECT 2::smallint, ARRAY[e.parent, e.ino, e.kind], ARRAY[e.name] FROM @edge e \
                   WHERE e.parent = $1 AND e.name > $2 ORDER BY e.name LIMIT $3";
const DIR_NODES_ACLS: &str = "WITH page AS MATERIALIZED (SELECT e.* FROM @edge e WHERE e.parent = $1 AND e.name > $2 \
                                                    ORDER BY e.name LIMIT $3), \
                         inode AS MATERIALIZED (SELECT n.* FROM page p JOIN @node n ON n.ino = p.ino) \
                         SELECT 2::smallint, ARRAY[p.parent, p.ino, p.kind], ARRAY[p.name] FROM page p \
                         UNION ALL SELECT 1::smallint, ARRAY[n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, \
                             n.atime, n.mtime, n.ctime, n.parent, n.access_rev], ARRAY[n.access_acl, n.default_acl] \
                         FROM inode n \
                         UNION ALL SELECT 7::smallint, NULL::bigint[], ARRAY[l.id, convert_to(l.text, 'UTF8')] \
                         FROM @acl l WHERE l.id = ANY (ARRAY( \
                             SELECT unnest(ARRAY[n.access_acl, n.default_acl]) FROM inode n))";
const DIR_NODES: &str = "WITH page AS MATERIALIZED (SELECT e.* FROM @edge e WHERE e.parent = $1 AND e.name > $2 \
                                                    ORDER BY e.name LIMIT $3) \
                         SELECT 2::smallint, ARRAY[p.parent, p.ino, p.kind], ARRAY[p.name] FROM page p \
                         UNION ALL SELECT 1::smallint, ARRAY[n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, \
                             n.atime, n.mtime, n.ctime, n.parent, n.access_rev], ARRAY[n.access_acl, n.default_acl] \
                         FROM page p JOIN @node n ON n.ino = p.ino";
const NODES: &str = "SELECT 1::smallint, ARRAY[n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime, \
                         n.mtime, n.ctime, n.parent, n.access_rev], ARRAY[n.access_acl, n.default_acl] \
                     FROM @node n WHERE n.ino > $1 ORDER BY n.ino LIMIT $2";
const SLICES: &str = "SELECT 6::smallint, ARRAY[r.ino, r.chunk, r.pos, r.len, r.slice, r.slice_off, r.slice_size], \
                          ARRAY[r.data] \
                      FROM (SELECT DISTINCT o.ino, o.chunk FROM @slice o WHERE o.ino = $1 AND o.chunk >= $2 \
                            ORDER BY o.ino, o.chunk LIMIT $3) c \
                      JOIN @slice r ON r.ino = c.ino AND r.chunk = c.chunk ORDER BY r.chunk, r.seq";
const ORPHANS: &str = "SELECT 14::smallint, ARRAY[r.session, r.ino], NULL::bytea[] FROM @orphan r \
                       WHERE (r.session, r.ino) > ($1, $2) ORDER BY r.session, r.ino LIMIT $3";
const SESSIONS: &str = "SELECT 13::smallint, ARRAY[r.id, r.pid, r.since, r.heartbeat], \
                            ARRAY[convert_to(r.host, 'UTF8'), convert_to(r.mountpoint, 'UTF8')] \
                        FROM @session r WHERE r.id > $1 ORDER BY r.id LIMIT $2";
const LOCKS: &str = "SELECT 11::smallint, ARRAY[r.ino, r.first, r.last, r.session, r.owner, r.kind, r.exclusive, r.pid], \
                         NULL::bytea[] \
                     FROM (SELECT DISTINCT o.ino FROM @lock o WHERE o.ino > $1 ORDER BY o.ino LIMIT $2) i \
                     JOIN @lock r ON r.ino = i.ino ORDER BY r.ino";
const GARBAGE: &str = "SELECT 15::smallint, ARRAY[r.slice, r.size], NULL::bytea[] FROM @garbage r \
                       WHERE r.slice > $1 ORDER BY r.slice LIMIT $2";
const SHARED: &str = "SELECT 16::smallint, ARRAY[r.slice, r.extra], NULL::bytea[] FROM @shared r \
                      WHERE r.slice > $1 ORDER BY r.slice LIMIT $2";
const ACLS: &str = "SELECT 7::smallint, NULL::bigint[], ARRAY[r.id, convert_to(r.text, 'UTF8')] FROM @acl r \
                    WHERE r.id > $1 ORDER BY r.id LIMIT $2";

/// A part of a range: one statement.
pub(crate) fn page(
    connection: &mut Connection,
    names: &Names,
    scan: &Scan,
    seq: Seq,
) -> Result<Page, Failure> {
    let more = i64::try_from(tables::limit(scan)).unwrap_or(i64::MAX).saturating_add(1);
    let mut run = |sql: &str, args: Args<'_>| connection.query(&names.text(sql), args);
    let rows = match scan {
        Scan::Dir { parent, after, beside, .. } => {
            // No name is empty, so every name comes after nothing.
            let after = after.as_ref().map_or(&[][..], |name| name.as_bytes());
            let sql = match beside {
                Beside::Nothing => DIR,
                Beside::Nodes => DIR_NODES,
                Beside::NodesWithAcls => DIR_NODES_ACLS,
            };
            run(sql, &[&int(parent.0), &after, &more])?
        }
        Scan::Nodes { after, .. } => run(NODES, &[&after_id(after.0), &more])?,
        Scan::Slices { ino, from, .. } => run(SLICES, &[&int(ino.0), &after_id(from.0), &more])?,
        Scan::Orphans { after, .. } => run(ORPHANS, &[&after_id(after.0.0), &after_id(after.1.0), &more])?,
        Scan::Sessions { after, .. } => run(SESSIONS, &[&after_id(after.0), &more])?,
        Scan::Locks { after, .. } => run(LOCKS, &[&after_id(after.0), &more])?,
        Scan::Garbage { after, .. } => run(GARBAGE, &[&after_id(after.0), &more])?,
        Scan::Shared { after, .. } => run(SHARED, &[&after_id(after.0), &more])?,
        Scan::Acls { after, .. } => run(ACLS, &[&after.to_bytes().as_slice(), &more])?,
    };
    let facts = rows.iter().map(fact).collect::<Result<Vec<_>, _>>()?;
    Ok(tables::page(scan, seq, &facts)?)
}

/// Nothing comes after an id beyond what is stored.
fn after_id(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}
