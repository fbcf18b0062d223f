//! A guard as a condition in SQL. What it looks at is locked before, so that it still holds when the effects come.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Guard, Txn, Usage, most_added};

use crate::body::{lock_row, slice_row};
use crate::sql::{Row, bytes, is, joined, row};

/// What a guard looks at.
enum Look {
    /// For a row of a table.
    There(&'static str, Row),
    /// For there being none.
    Absent(&'static str, Row),
    /// For whatever this condition says.
    Other(String),
}

/// Room has to be there beside `ahead`.
fn look(guard: &Guard, ahead: Usage) -> Look {
    use Look::{Absent, Other, There};
    match guard {
        Guard::EdgeIs { parent, name, ino } => {
            There("edge", row!(parent = parent, name = bytes(name.as_bytes()), ino = ino))
        }
        Guard::EdgeAbsent { parent, name } => {
            Absent("edge", row!(parent = parent, name = bytes(name.as_bytes())))
        }
        Guard::Empty { ino } => Absent("edge", row!(parent = ino)),
        Guard::NodeAbsent { ino } => Absent("node", row!(ino = ino)),
        Guard::Access { ino, rev } => There("node", row!(ino = ino, access_rev = rev)),
        Guard::Links { ino, nlink } => There("node", row!(ino = ino, nlink = nlink)),
        Guard::ParentIs { ino, parent } => There("node", row!(ino = ino, parent = parent)),
        Guard::Size { ino, size } => There("node", row!(ino = ino, size = size)),
        Guard::Xattr { ino, name, present } => {
            let look = if *present { There } else { Absent };
            look("xattr", row!(ino = ino, name = bytes(name.as_bytes())))
        }
        Guard::Setting { name, value: None } => Absent("setting", row!(name = bytes(name.as_bytes()))),
        Guard::Setting { name, value: Some(value) } => {
            There("setting", row!(name = bytes(name.as_bytes()), value = bytes(value.as_bytes())))
        }
        Guard::Counter { counter, value } => {
            let name = is(&row!(name = bytes(counter.name().as_bytes())), "=");
            Other(format!("COALESCE((SELECT value FROM `@counter` WHERE {name}), 0) = {value}"))
        }
        Guard::Locks { ino, locks } => {
            // A list must not be empty.
            let these = locks.iter().map(|lock| is(&lock_row(*ino, lock), "=")).chain(["0".to_owned()]);
            let (these, count) = (joined(these, " OR "), locks.len());
            Other(format!(
                "(EXISTS(SELECT 1 FROM `@node` WHERE ino = {ino}) AND (SELECT COUNT(*) = {count} AND \
                 COALESCE(SUM({these}), 0) = {count} FROM `@lock` WHERE ino = {ino}))"
            ))
        }
        Guard::Rows { rows, .. } if rows.is_empty() => Other("1".to_owned()),
        Guard::Rows { ino, chunk, rows } => {
            let is_row = |(nth, row)| {
                let row = slice_row(*ino, *chunk, row);
                format!("nth = {nth} AND {}", is(row.get(2..).unwrap_or_default(), "<=>"))
            };
            let (these, count) = (joined((1..).zip(rows.iter()).map(is_row), " OR "), rows.len());
            Other(format!(
                "(SELECT COUNT(*) FROM (SELECT ROW_NUMBER() OVER (ORDER BY seq) AS nth, pos, len, slice, slice_off, \
                 slice_size, data FROM `@slice` WHERE ino = {ino} AND chunk = {chunk}) AS oldest WHERE {these}) = {count}"
            ))
        }
        // Unless one at a time adds, there has to be room for what others add at this moment.
        Guard::Room { .. } => {
            Other(format!("IF(@t, {}, {})", room(guard, ahead, false), room(guard, ahead, true)))
        }
    }
}

/// The condition that all of these hold. Rows of one table that are to be there are counted, so that there is one look for
/// them and not one for each.
pub(crate) fn all_hold<'g>(guards: impl Iterator<Item = &'g Guard>, ahead: Usage) -> String {
    // Different ones that say the same columns cannot be the same row, so as many rows as guards are to be found.
    let mut rows: BTreeMap<(&str, Vec<&str>), BTreeSet<String>> = BTreeMap::new();
    let mut conditions = BTreeSet::new();
    for guard in guards {
        match look(guard, ahead) {
            Look::There(table, row) => {
                let columns = row.iter().map(|(column, _)| *column).collect();
                rows.entry((table, columns)).or_default().insert(is(&row, "="));
            }
            Look::Absent(table, row) => {
                conditions.insert(format!("NOT EXISTS(SELECT 1 FROM `@{table}` WHERE {})", is(&row, "=")));
            }
            Look::Other(condition) => drop(conditions.insert(condition)),
        }
    }
    conditions.extend(rows.into_iter().map(|((table, _), rows)| match (rows.len(), joined(rows, " OR ")) {
        (1, row) => format!("EXISTS(SELECT 1 FROM `@{table}` WHERE {row})"),
        (count, rows) => {
            format!("(SELECT COUNT(*) FROM `@{table}` FORCE INDEX (PRIMARY) WHERE {rows}) = {count}")
        }
    }));
    if conditions.is_empty() { "1".to_owned() } else { joined(conditions, " AND ") }
}

/// What a commit adds at most, unless it [`adds_much`].
const MOST_INODES: u64 = 64;
const MOST_BLOCKS: u64 = 65_536;

/// The condition that there is room beside `ahead`, and with `others` for what all who are connected add at this moment.
pub(crate) fn room(guard: &Guard, ahead: Usage, others: bool) -> String {
    let Guard::Room { max_inodes, max_blocks } = guard else { return "1".to_owned() };
    let sum_below = |column: &str, max: u64, ahead: u64, most: u64| {
        let added = if others { format!(" + {most} * @@max_connections") } else { String::new() };
        format!("SUM({column}){added} < {}", max.saturating_sub(ahead))
    };
    let inodes = sum_below("inodes", *max_inodes, ahead.inodes, MOST_INODES);
    let blocks = sum_below("blocks", *max_blocks, ahead.blocks, MOST_BLOCKS);
    format!("(SELECT {inodes} AND {blocks} FROM `@usage`)")
}

/// Whether these may add more than others reckon with.
pub(crate) fn adds_much(txns: &[Txn]) -> bool {
    let most = most_added(txns);
    most.inodes > MOST_INODES || most.blocks > MOST_BLOCKS
}
