//! Ranges, answered by facts.

use std::collections::HashSet;

use meta::{Beside, Facts, Page, Record, Scan, Seq};
use types::{SessionId, SliceId};

use crate::fact::{Fact, Malformed, Row};
use crate::found::{Found, sorted};

/// How many entries, inodes or whatever the range is of are wanted. The server is asked for one more, so that it shows
/// whether there are more.
pub fn limit(scan: &Scan) -> usize {
    let (Scan::Dir { limit, .. }
    | Scan::Nodes { limit, .. }
    | Scan::Slices { limit, .. }
    | Scan::Orphans { limit, .. }
    | Scan::Sessions { limit, .. }
    | Scan::Locks { limit, .. }
    | Scan::Garbage { limit, .. }
    | Scan::Shared { limit, .. }
    | Scan::Acls { limit, .. }) = scan;
    *limit
}

/// The page that these facts make. They come in the order of the range, but for those of a directory; an ACL that
/// several nodes carry comes once.
///
/// # Errors
/// [`Malformed`], also for facts that do not belong to the range.
pub fn page<R: Row>(scan: &Scan, seq: Seq, facts: &[Fact<R>]) -> Result<Page, Malformed> {
    let limit = limit(scan);
    let (mut records, more) = match scan {
        Scan::Dir { beside, .. } => entries(facts, limit, *beside)?,
        _ => {
            // Rows of one chunk, and locks on one inode, are one record.
            let together = |one: &Fact<R>, next: &Fact<R>| match one.about {
                6 => one.number(0) == next.number(0) && one.number(1) == next.number(1),
                11 => one.number(0) == next.number(0),
                _ => false,
            };
            let mut records = facts.chunk_by(together).map(record).collect::<Result<Vec<_>, _>>()?;
            let more = records.len() > limit;
            records.truncate(limit);
            (records, more)
        }
    };
    records.shrink_to_fit();
    Ok(Page { facts: Facts { seq, records }, more })
}

fn entries<R: Row>(
    facts: &[Fact<R>],
    limit: usize,
    beside: Beside,
) -> Result<(Vec<Record>, bool), Malformed> {
    let mut entries = Vec::with_capacity(facts.len());
    let mut found = Found::default();
    for fact in facts {
        match fact.about {
            2 => entries.push(fact.values().edge()?),
            17 => {
                entries.push(fact.values().edge()?);
                found.take_joined(&fact.values())?;
            }
            _ => found.take(fact)?,
        }
    }
    entries.sort_unstable_by(|(_, one, _), (_, other, _)| one.cmp(other));
    let more = entries.len() > limit;
    entries.truncate(limit);
    let mut records = Vec::with_capacity(2 * entries.len());
    let mut seen = HashSet::new();
    for (parent, name, edge) in entries {
        records.push(Record::Edge(parent, name, Some(edge)));
        if beside != Beside::Nothing {
            records.push(found.node(edge.ino));
        }
        if beside == Beside::NodesWithAcls {
            let acls = found.nodes.get(&edge.ino).into_iter().flat_map(|node| node.acls());
            records.extend(acls.filter(|id| seen.insert(*id)).map(|id| found.acl(id)));
        }
    }
    Ok((records, more))
}

fn record<R: Row>(facts: &[Fact<R>]) -> Result<Record, Malformed> {
    let Some(fact) = facts.first() else { return Err(Malformed("no row")) };
    let values = fact.values();
    Ok(match fact.about {
        1 => Record::Node(values.ino(0)?, Some(values.node()?)),
        6 => {
            let ((ino, chunk), ..) = values.slice()?;
            let slices = facts.iter().map(|fact| Ok(fact.values().slice()?.2));
            Record::Slices(ino, chunk, slices.collect::<Result<_, _>>()?)
        }
        7 => {
            let (id, text) = values.acl()?;
            Record::Acl(id, Some(text))
        }
        11 => {
            let locks = facts.iter().map(|fact| fact.values().lock()).collect::<Result<_, _>>()?;
            Record::Locks(values.ino(0)?, sorted(locks))
        }
        13 => Record::Session(values.session()?),
        14 => Record::Orphan(SessionId(values.number(0)?), values.ino(1)?),
        15 => Record::Garbage(values.garbage()?),
        16 => Record::Shared(SliceId(values.number(0)?), values.number(1)?),
        _ => return Err(Malformed("a row that does not belong to the range")),
    })
}
