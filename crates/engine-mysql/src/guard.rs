//! A guard as an SQL condition. The records that the condition reads are locked before it is evaluated, or by
//! the condition itself. So the condition still holds when the effects are applied.

use std::collections::{BTreeMap, BTreeSet};

use host::HashMap;
use meta::{
    CONDEMNED, Guard, QuotaKey, Txn, Usage, max_added_before_room_guard, max_charged_before_quota_guard,
};
use tables::{Line, joined};

use types::{SessionId, Term};

use crate::sql::{XATTR_BLOCKS, bytes, is, ops, row};

/// A table, and the columns that identify its rows.
type Rows = (&'static str, Vec<&'static str>);

/// The most that the transactions of a part may add before the last one that checks a limit.
struct Ahead<'t> {
    part: &'t [Txn],
    room: Usage,
    /// The inodes and blocks that are added to each quota.
    quotas: HashMap<QuotaKey, (u64, u64)>,
}

/// The condition under which a guard holds; a guard on a limit must leave room for `ahead` too. If the guard
/// requires that a row exists, also returns the row's table and columns. `locks`: whether to lock rows that
/// were not locked before.
fn condition(guard: &Guard, ahead: &mut Ahead<'_>, locks: bool) -> (Option<Rows>, String) {
    let record_key = guard.key();
    let key = tables::row_key(&record_key);
    let (table, mut columns) = (key.table.name, row(&key));
    let other = |condition: String| (None, condition);
    let (is_there, also) = match guard {
        Guard::DirentAbsent { .. } | Guard::InodeAbsent { .. } | Guard::Empty { .. } => (false, vec![]),
        Guard::DirentIs { ino, .. } => (true, vec![("ino", ino.to_string())]),
        Guard::Access { rev, .. } => (true, vec![("access_rev", rev.to_string())]),
        Guard::Links { nlink, .. } => (true, vec![("nlink", nlink.to_string())]),
        Guard::ParentIs { parent, .. } => (true, vec![("parent", parent.to_string())]),
        Guard::Size { size, .. } => (true, vec![("size", size.to_string())]),
        Guard::Xattr { name, blocks: 0, .. } => (false, vec![("name", bytes(name.as_bytes()))]),
        Guard::Xattr { name, blocks, .. } => {
            (true, vec![("name", bytes(name.as_bytes())), (XATTR_BLOCKS, blocks.to_string())])
        }
        Guard::XattrBlocks { ino, least, most } => {
            return other(format!(
                "EXISTS(SELECT 1 FROM `@node` WHERE ino = {ino} AND xattr_blocks BETWEEN {least} AND {most})"
            ));
        }
        Guard::Quota { key, outer, inodes, blocks } => {
            let ahead =
                ahead.quotas.entry(*key).or_insert_with(|| max_charged_before_quota_guard(ahead.part, *key));
            let limits = [("inodes", *inodes, ahead.0), ("blocks", *blocks, ahead.1)];
            // An addition of 0 always fits. A difference of two numbers up to i64::MAX does not overflow.
            let over = limits.iter().filter(|(_, more, _)| *more > 0).map(|(column, more, ahead)| {
                format!("{column} > max_{column} - {}", more.saturating_add(*ahead).min(i64::MAX as u64))
            });
            let over = joined(over.chain(["0".to_owned()]), " OR ");
            let row = is(&columns, "=");
            // An absent quota has no limits.
            return other(match outer {
                Some(outer) => {
                    format!("EXISTS(SELECT 1 FROM `@quota` WHERE {row} AND next = {outer} AND NOT ({over}))")
                }
                None => format!("NOT EXISTS(SELECT 1 FROM `@quota` WHERE {row} AND ({over}))"),
            });
        }
        Guard::Setting { name, value } => {
            let name = ("name", bytes(name.as_bytes()));
            let value = value.as_ref().map(|value| ("value", bytes(value.as_bytes())));
            (value.is_some(), [Some(name), value].into_iter().flatten().collect())
        }
        Guard::Counter { value, .. } => {
            let found = format!("SELECT value FROM `@counter` WHERE {}", is(&columns, "="));
            return other(format!("COALESCE(({found}), 0) = {value}"));
        }
        Guard::Locks { ino, locks } => {
            // A list must not be empty.
            let these = locks.iter().map(|lock| is(&row(&Line::lock(*ino, lock)), "="));
            let (these, count) = (joined(these.chain(["0".to_owned()]), " OR "), locks.len());
            return other(format!(
                "(EXISTS(SELECT 1 FROM `@node` WHERE ino = {ino}) AND (SELECT COUNT(*) = {count} AND \
                 COALESCE(SUM({these}), 0) = {count} FROM `@lock` WHERE ino = {ino}))"
            ));
        }
        Guard::Session { heartbeat: Some(heartbeat), .. } => {
            (true, vec![("heartbeat", heartbeat.nanos().to_string())])
        }
        // The lock prevents the removal of the row until this commit ends, and a locking read sees an earlier
        // removal. The locked row is not the one of table `session`, because then renewals and commits would
        // wait for each other.
        Guard::Session { session, heartbeat: None } => return other(is_open(*session, Term::NONE, locks)),
        Guard::Term { session, term } => return other(is_open(*session, *term, locks)),
        Guard::Acl { .. } => {
            let (row, mode) = (is(&columns, "="), lock_mode(locks));
            let condition = format!("{row} AND text NOT LIKE '{CONDEMNED}%'{mode}");
            return other(format!("EXISTS(SELECT 1 FROM `@acl` WHERE {condition})"));
        }
        Guard::Rows { rows, .. } if rows.is_empty() => return other("1".to_owned()),
        Guard::Rows { ino, chunk, rows } => {
            let is_row = |(nth, slice)| {
                let row = row(&Line::slice(*ino, *chunk, slice));
                format!("nth = {nth} AND {}", is(row.get(2..).unwrap_or_default(), "<=>"))
            };
            let (these, count) = (joined((1..).zip(rows.iter()).map(is_row), " OR "), rows.len());
            return other(format!(
                "(SELECT COUNT(*) FROM (SELECT ROW_NUMBER() OVER (ORDER BY seq) AS nth, pos, len, slice, slice_off, \
                 slice_size, data FROM `@slice` WHERE ino = {ino} AND chunk = {chunk}) AS oldest WHERE {these}) = {count}"
            ));
        }
        // Unless only one commit at a time adds, there must also be room for what others add at this moment.
        Guard::Room { .. } => {
            let [exclusive, with_others] = [false, true].map(|others| room(guard, ahead.room, others));
            return other(format!("IF(@tight, {exclusive}, {with_others})"));
        }
    };
    columns.extend(also);
    let row = is(&columns, "=");
    if is_there {
        return (Some((table, columns.iter().map(|(column, _)| *column).collect())), row);
    }
    other(format!("NOT EXISTS(SELECT 1 FROM `@{table}` WHERE {row})"))
}

fn is_open(session: SessionId, term: Term, locks: bool) -> String {
    format!("EXISTS(SELECT 1 FROM `@fence` WHERE ops = {}{})", ops(session, term), lock_mode(locks))
}

fn lock_mode(locks: bool) -> &'static str {
    if locks { " LOCK IN SHARE MODE" } else { "" }
}

/// The condition that all of these guards of the transactions `part` hold. Rows of one table that must exist
/// are counted, so that one subquery checks them all.
pub(crate) fn all_hold<'g>(guards: impl Iterator<Item = &'g Guard>, part: &[Txn], locks: bool) -> String {
    let mut ahead = Ahead { part, room: max_added_before_room_guard(part), quotas: HashMap::default() };
    // Different conditions on the same columns cannot match the same row, so the number of rows found must
    // equal the number of conditions.
    let mut rows: BTreeMap<Rows, BTreeSet<String>> = BTreeMap::new();
    let mut conditions = BTreeSet::new();
    for guard in guards {
        match condition(guard, &mut ahead, locks) {
            (Some(which), row) => rows.entry(which).or_default().insert(row),
            (None, condition) => conditions.insert(condition),
        };
    }
    conditions.extend(rows.into_iter().map(|((table, _), rows)| match (rows.len(), joined(rows, " OR ")) {
        (1, row) => format!("EXISTS(SELECT 1 FROM `@{table}` WHERE {row})"),
        (count, rows) => {
            format!("(SELECT COUNT(*) FROM `@{table}` FORCE INDEX (PRIMARY) WHERE {rows}) = {count}")
        }
    }));
    if conditions.is_empty() { "1".to_owned() } else { joined(conditions, " AND ") }
}

/// The condition that selects the rows of these quotas.
pub(crate) fn quotas(keys: &BTreeSet<QuotaKey>) -> String {
    joined(keys.iter().map(|key| is(&row(&Line::quota(*key)), "=")), " OR ")
}

/// The maximum that one commit adds while others add too.
pub(crate) const MAX: Usage = Usage { inodes: 64, blocks: 65_536 };

/// The condition that there is room for the transactions in addition to `ahead` and, if `others`, for the
/// additions that all connected clients may make at this moment.
pub(crate) fn room(guard: &Guard, ahead: Usage, others: bool) -> String {
    let Guard::Room { max_inodes, max_blocks } = guard else { return "1".to_owned() };
    let sum_below = |column: &str, max: u64, ahead: u64, most: u64| {
        let added = if others { format!(" + {most} * @@max_connections") } else { String::new() };
        format!("SUM({column}){added} < {}", max.saturating_sub(ahead))
    };
    let inodes = sum_below("inodes", *max_inodes, ahead.inodes, MAX.inodes);
    let blocks = sum_below("blocks", *max_blocks, ahead.blocks, MAX.blocks);
    format!("(SELECT {inodes} AND {blocks} FROM `@usage`)")
}
