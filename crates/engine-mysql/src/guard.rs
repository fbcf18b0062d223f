//! A guard as a condition in SQL. What it looks at is locked before, or by the condition, so that it still holds when the
//! effects come.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Guard, Usage};
use tables::{Line, joined};

use types::{SessionId, Term};

use crate::sql::{bytes, is, ops, row};

/// Rows of this table of which these columns are given.
type Rows = (&'static str, Vec<&'static str>);

/// The condition by which a guard holds, where room has to be there beside `ahead`. If it is one on the columns of a row that
/// has to be there, that is said. `locks` says whether what was not locked before is to be locked.
fn condition(guard: &Guard, ahead: Usage, locks: bool) -> (Option<Rows>, String) {
    let want = guard.want();
    let key = tables::wanted(&want);
    let (table, mut whose) = (key.table.name, row(&key));
    let other = |condition: String| (None, condition);
    let (is_there, also) = match guard {
        Guard::EdgeAbsent { .. } | Guard::NodeAbsent { .. } | Guard::Empty { .. } => (false, vec![]),
        Guard::EdgeIs { ino, .. } => (true, vec![("ino", ino.to_string())]),
        Guard::Access { rev, .. } => (true, vec![("access_rev", rev.to_string())]),
        Guard::Links { nlink, .. } => (true, vec![("nlink", nlink.to_string())]),
        Guard::ParentIs { parent, .. } => (true, vec![("parent", parent.to_string())]),
        Guard::Size { size, .. } => (true, vec![("size", size.to_string())]),
        Guard::Xattr { name, present, .. } => (*present, vec![("name", bytes(name.as_bytes()))]),
        Guard::Setting { name, value } => {
            let name = ("name", bytes(name.as_bytes()));
            let value = value.as_ref().map(|value| ("value", bytes(value.as_bytes())));
            (value.is_some(), [Some(name), value].into_iter().flatten().collect())
        }
        Guard::Counter { value, .. } => {
            let found = format!("SELECT value FROM `@counter` WHERE {}", is(&whose, "="));
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
        // The row cannot be removed before this commit ends, and a read that locks sees that it was removed before. It is
        // not the row of table `session`, for which renewals and commits would wait for each other.
        Guard::Session { session, heartbeat: None } => return other(is_open(*session, Term::NONE, locks)),
        Guard::Term { session, term } => return other(is_open(*session, *term, locks)),
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
        // Unless one at a time adds, there has to be room for what others add at this moment.
        Guard::Room { .. } => {
            let [alone, beside] = [false, true].map(|others| room(guard, ahead, others));
            return other(format!("IF(@t, {alone}, {beside})"));
        }
    };
    whose.extend(also);
    let row = is(&whose, "=");
    if is_there {
        return (Some((table, whose.iter().map(|(column, _)| *column).collect())), row);
    }
    other(format!("NOT EXISTS(SELECT 1 FROM `@{table}` WHERE {row})"))
}

fn is_open(session: SessionId, term: Term, locks: bool) -> String {
    let mode = if locks { " LOCK IN SHARE MODE" } else { "" };
    format!("EXISTS(SELECT 1 FROM `@fence` WHERE ops = {}{mode})", ops(session, term))
}

/// The condition that all of these hold. Rows of one table that are to be there are counted, so that there is one look for
/// them and not one for each.
pub(crate) fn all_hold<'g>(guards: impl Iterator<Item = &'g Guard>, ahead: Usage, locks: bool) -> String {
    // Different ones that say the same columns cannot be the same row, so as many rows as guards are to be found.
    let mut rows: BTreeMap<Rows, BTreeSet<String>> = BTreeMap::new();
    let mut conditions = BTreeSet::new();
    for guard in guards {
        match condition(guard, ahead, locks) {
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

/// What a commit adds at most, unless nobody else adds anything meanwhile.
pub(crate) const MOST: Usage = Usage { inodes: 64, blocks: 65_536 };

/// The condition that there is room beside `ahead`, and with `others` for what all who are connected add at this moment.
pub(crate) fn room(guard: &Guard, ahead: Usage, others: bool) -> String {
    let Guard::Room { max_inodes, max_blocks } = guard else { return "1".to_owned() };
    let sum_below = |column: &str, max: u64, ahead: u64, most: u64| {
        let added = if others { format!(" + {most} * @@max_connections") } else { String::new() };
        format!("SUM({column}){added} < {}", max.saturating_sub(ahead))
    };
    let inodes = sum_below("inodes", *max_inodes, ahead.inodes, MOST.inodes);
    let blocks = sum_below("blocks", *max_blocks, ahead.blocks, MOST.blocks);
    format!("(SELECT {inodes} AND {blocks} FROM `@usage`)")
}
