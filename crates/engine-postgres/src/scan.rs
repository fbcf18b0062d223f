//! Parts of ranges, in order.

use meta::{Beside, Facts, Page, Record, Scan, Seq};
use tokio_postgres::Row;
use types::{SessionId, SliceId};

use crate::connection::Connection;
use crate::error::Failure;
use crate::read::{Fact, Found, int, sorted};
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
                         FROM @acl l WHERE l.id IN (SELECT n.access_acl FROM inode n UNION \
                                                    SELECT n.default_acl FROM inode n)";
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

/// Takes at most the scan's limit of rows, and finds out whether there is one more.
pub(crate) fn page(
    connection: &mut Connection,
    names: &Names,
    scan: &Scan,
    seq: Seq,
) -> Result<Page, Failure> {
    let mut run = |sql: &str, args: crate::connection::Args<'_>| connection.query(&names.text(sql), args);
    let (limit, rows) = match scan {
        Scan::Dir { parent, after, limit, beside } => {
            // No name is empty, so every name comes after nothing.
            let after = after.as_ref().map_or(&[][..], |name| name.as_bytes());
            let sql = match beside {
                Beside::Nothing => DIR,
                Beside::Nodes => DIR_NODES,
                Beside::NodesWithAcls => DIR_NODES_ACLS,
            };
            (limit, run(sql, &[&int(parent.0), &after, &one_more(*limit)])?)
        }
        Scan::Nodes { after, limit } => (limit, run(NODES, &[&after_id(after.0), &one_more(*limit)])?),
        Scan::Slices { ino, from, limit } => {
            (limit, run(SLICES, &[&int(ino.0), &after_id(from.0), &one_more(*limit)])?)
        }
        Scan::Orphans { after: (session, ino), limit } => {
            (limit, run(ORPHANS, &[&after_id(session.0), &after_id(ino.0), &one_more(*limit)])?)
        }
        Scan::Sessions { after, limit } => (limit, run(SESSIONS, &[&after_id(after.0), &one_more(*limit)])?),
        Scan::Locks { after, limit } => (limit, run(LOCKS, &[&after_id(after.0), &one_more(*limit)])?),
        Scan::Garbage { after, limit } => (limit, run(GARBAGE, &[&after_id(after.0), &one_more(*limit)])?),
        Scan::Shared { after, limit } => (limit, run(SHARED, &[&after_id(after.0), &one_more(*limit)])?),
        Scan::Acls { after, limit } => {
            (limit, run(ACLS, &[&after.to_bytes().as_slice(), &one_more(*limit)])?)
        }
    };
    let (mut records, more) = match scan {
        Scan::Dir { beside, .. } => entries(&rows, *limit, *beside)?,
        _ => {
            let mut records = records(&rows)?;
            let more = records.len() > *limit;
            records.truncate(*limit);
            (records, more)
        }
    };
    records.shrink_to_fit();
    Ok(Page { facts: Facts { seq, records }, more })
}

fn entries(rows: &[Row], limit: usize, beside: Beside) -> Result<(Vec<Record>, bool), Failure> {
    let mut entries = Vec::with_capacity(rows.len());
    let mut found = Found::default();
    for row in rows {
        let fact = Fact::new(row)?;
        match fact.about {
            2 => entries.push(fact.edge()?),
            _ => found.take(&fact)?,
        }
    }
    entries.sort_unstable_by(|(_, one, _), (_, other, _)| one.cmp(other));
    let more = entries.len() > limit;
    entries.truncate(limit);
    let mut records = Vec::with_capacity(rows.len());
    for (parent, name, edge) in entries {
        records.push(Record::Edge(parent, name, Some(edge)));
        match beside {
            Beside::Nothing => {}
            Beside::Nodes => records.push(found.node(edge.ino)),
            Beside::NodesWithAcls => found.push_node(edge.ino, &mut records),
        }
    }
    Ok((records, more))
}

/// A record of each row, those of one chunk or of one inode's locks together.
fn records(rows: &[Row]) -> Result<Vec<Record>, Failure> {
    let facts: Vec<Fact<'_>> = rows.iter().map(Fact::new).collect::<Result<_, _>>()?;
    let together = |one: &Fact<'_>, next: &Fact<'_>| match one.about {
        6 => one.numbers.get(..2) == next.numbers.get(..2),
        11 => one.numbers.first() == next.numbers.first(),
        _ => false,
    };
    facts.chunk_by(together).map(record).collect()
}

fn record(facts: &[Fact<'_>]) -> Result<Record, Failure> {
    let Some(fact) = facts.first() else { return Err(Failure::Malformed("no row")) };
    Ok(match fact.about {
        1 => Record::Node(fact.ino(0)?, Some(fact.node()?)),
        6 => {
            let (ino, chunk, _) = fact.slice()?;
            let slices = facts.iter().map(|fact| Ok(fact.slice()?.2));
            Record::Slices(ino, chunk, slices.collect::<Result<_, _>>()?)
        }
        7 => {
            let (id, text) = fact.acl()?;
            Record::Acl(id, Some(text))
        }
        11 => {
            let locks = facts.iter().map(Fact::lock).collect::<Result<_, _>>()?;
            Record::Locks(fact.ino(0)?, sorted(locks))
        }
        13 => Record::Session(fact.session()?),
        14 => Record::Orphan(SessionId(fact.number(0)?), fact.ino(1)?),
        15 => Record::Garbage(fact.garbage()?),
        16 => Record::Shared(SliceId(fact.number(0)?), fact.number(1)?),
        _ => return Err(Failure::Malformed("a row that does not belong to the range")),
    })
}

fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// Nothing comes after an id beyond what is stored.
fn after_id(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}
