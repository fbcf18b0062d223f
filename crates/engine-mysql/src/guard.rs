//! A guard as a condition in SQL. What it looks at is locked before, so that it still holds when the effects come.

use std::collections::{BTreeMap, BTreeSet};

use meta::{Guard, Txn, Usage, most_added};
use types::{Slice, SliceSource};

use crate::rows::kind_number;
use crate::sql::{Bytes, Nullable, joined};

/// The condition; `p` is what the names of tables begin with. Room has to be there beside `ahead`.
pub(crate) fn condition(p: &str, guard: &Guard, ahead: Usage) -> String {
    let node = |ino: &types::Ino, column: &str, value: u64| {
        format!("EXISTS(SELECT 1 FROM `{p}node` WHERE ino = {ino} AND {column} = {value})", ino = ino.0)
    };
    match guard {
        Guard::EdgeIs { parent, name, ino } => format!(
            "EXISTS(SELECT 1 FROM `{p}edge` WHERE parent = {} AND name = {} AND ino = {})",
            parent.0,
            Bytes(name.as_bytes()),
            ino.0
        ),
        Guard::EdgeAbsent { parent, name } => format!(
            "NOT EXISTS(SELECT 1 FROM `{p}edge` WHERE parent = {} AND name = {})",
            parent.0,
            Bytes(name.as_bytes())
        ),
        Guard::Access { ino, rev } => node(ino, "access_rev", *rev),
        Guard::NodeAbsent { ino } => {
            format!("NOT EXISTS(SELECT 1 FROM `{p}node` WHERE ino = {})", ino.0)
        }
        Guard::Links { ino, nlink } => node(ino, "nlink", u64::from(*nlink)),
        Guard::ParentIs { ino, parent } => node(ino, "parent", parent.0),
        Guard::Size { ino, size } => node(ino, "size", *size),
        Guard::Empty { ino } => format!("NOT EXISTS(SELECT 1 FROM `{p}edge` WHERE parent = {})", ino.0),
        Guard::Xattr { ino, name, present } => format!(
            "{}EXISTS(SELECT 1 FROM `{p}xattr` WHERE ino = {} AND name = {})",
            if *present { "" } else { "NOT " },
            ino.0,
            Bytes(name.as_bytes())
        ),
        Guard::Setting { name, value: None } => {
            format!("NOT EXISTS(SELECT 1 FROM `{p}setting` WHERE name = {})", Bytes(name.as_bytes()))
        }
        Guard::Setting { name, value: Some(value) } => format!(
            "EXISTS(SELECT 1 FROM `{p}setting` WHERE name = {} AND value = {})",
            Bytes(name.as_bytes()),
            Bytes(value.as_bytes())
        ),
        Guard::Counter { counter, value } => format!(
            "COALESCE((SELECT value FROM `{p}counter` WHERE name = {}), 0) = {value}",
            Bytes(counter.name().as_bytes())
        ),
        Guard::Locks { ino, locks } => {
            let there = format!("EXISTS(SELECT 1 FROM `{p}node` WHERE ino = {})", ino.0);
            let all = format!("(SELECT COUNT(*) FROM `{p}lock` WHERE ino = {})", ino.0);
            if locks.is_empty() {
                return format!("({there} AND {all} = 0)");
            }
            let these = locks.iter().map(|lock| {
                format!(
                    "(first = {} AND last = {} AND session = {} AND owner = {} AND kind = {} AND exclusive = {} AND pid = {})",
                    lock.start,
                    lock.end,
                    lock.owner.session.0,
                    lock.owner.owner,
                    kind_number(lock.owner.kind),
                    u8::from(lock.exclusive),
                    lock.pid
                )
            });
            let these = joined(these, " OR ");
            let count = locks.len();
            format!(
                "({there} AND {all} = {count} AND \
                 (SELECT COUNT(*) FROM `{p}lock` WHERE ino = {} AND ({these})) = {count})",
                ino.0
            )
        }
        Guard::Rows { rows, .. } if rows.is_empty() => "1".to_owned(),
        Guard::Rows { ino, chunk, rows } => {
            let these =
                rows.iter().enumerate().map(|(index, row)| format!("(nth = {} AND {})", index + 1, is(row)));
            format!(
                "(SELECT COUNT(*) FROM (SELECT ROW_NUMBER() OVER (ORDER BY seq) AS nth, pos, len, data, slice, slice_off, \
                 slice_size FROM `{p}slice` WHERE ino = {} AND chunk = {}) AS oldest WHERE {}) = {}",
                ino.0,
                chunk.0,
                joined(these, " OR "),
                rows.len()
            )
        }
        // Unless one at a time adds, there has to be room for what others add at this moment.
        Guard::Room { .. } => {
            format!("IF(@t, {}, {})", room(p, guard, ahead, false), room(p, guard, ahead, true))
        }
    }
}

/// The condition that all of these hold, for when it need not be known which of them do not. Those of the commonest kinds
/// are counted, so that there is one look for each kind and not one for each guard.
pub(crate) fn all_hold<'g>(p: &str, guards: impl Iterator<Item = &'g Guard>, ahead: Usage) -> String {
    // Different ones of a kind cannot hold for the same row, so as many rows as guards are to be found.
    let mut counted: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    let mut conditions = BTreeSet::new();
    for guard in guards {
        let (table, of, row) = match guard {
            Guard::Access { ino, rev } => {
                ("node", "rev", format!("(ino = {} AND access_rev = {rev})", ino.0))
            }
            Guard::Links { ino, nlink } => {
                ("node", "nlink", format!("(ino = {} AND nlink = {nlink})", ino.0))
            }
            Guard::EdgeIs { parent, name, ino } => {
                let name = Bytes(name.as_bytes());
                ("edge", "ino", format!("(parent = {} AND name = {name} AND ino = {})", parent.0, ino.0))
            }
            _ => {
                conditions.insert(condition(p, guard, ahead));
                continue;
            }
        };
        counted.entry((table, of)).or_default().insert(row);
    }
    conditions.extend(counted.into_iter().map(|((table, _), rows)| {
        let count = rows.len();
        let rows = joined(rows, " OR ");
        format!("(SELECT COUNT(*) FROM `{p}{table}` FORCE INDEX (PRIMARY) WHERE {rows}) = {count}")
    }));
    if conditions.is_empty() { "1".to_owned() } else { joined(conditions, " AND ") }
}

/// What a commit adds at most, unless it [`adds_much`].
const MOST_INODES: u64 = 64;
const MOST_BLOCKS: u64 = 65_536;

/// The condition that there is room beside `ahead`, and with `others` for what all who are connected add at this moment.
pub(crate) fn room(p: &str, guard: &Guard, ahead: Usage, others: bool) -> String {
    let Guard::Room { max_inodes, max_blocks } = guard else { return "1".to_owned() };
    let inodes = max_inodes.saturating_sub(ahead.inodes);
    let blocks = max_blocks.saturating_sub(ahead.blocks);
    let added = |most: u64| if others { format!(" + {most} * @@max_connections") } else { String::new() };
    format!(
        "(SELECT SUM(inodes){} < {inodes} AND SUM(blocks){} < {blocks} FROM `{p}usage`)",
        added(MOST_INODES),
        added(MOST_BLOCKS)
    )
}

/// Whether these may add more than others reckon with.
pub(crate) fn adds_much(txns: &[Txn]) -> bool {
    let most = most_added(txns);
    most.inodes > MOST_INODES || most.blocks > MOST_BLOCKS
}

/// Whether a row of table `slice` says just this.
fn is(row: &Slice) -> String {
    let (data, blocks) = match &row.source {
        SliceSource::Hole => (None, None),
        SliceSource::Inline(data) => (Some(Bytes(data)), None),
        SliceSource::Blocks { id, offset, size } => (None, Some((id.0, *offset, *size))),
    };
    format!(
        "pos = {} AND len = {} AND data <=> {} AND slice <=> {} AND slice_off <=> {} AND slice_size <=> {}",
        row.pos,
        row.len,
        Nullable(data),
        Nullable(blocks.map(|(id, ..)| id)),
        Nullable(blocks.map(|(_, offset, _)| offset)),
        Nullable(blocks.map(|(.., size)| size))
    )
}
