//! Slices and locks as the functions on the server have them: in columns, and as texts that guards compare.

use meta::Lock;
use types::{Ino, Slice, SliceSource};

use crate::read::int;

pub(crate) fn source(source: &SliceSource) -> Source<'_> {
    match source {
        SliceSource::Hole => (None, None, None, None),
        SliceSource::Inline(data) => (None, None, None, Some(data)),
        SliceSource::Blocks { id, offset, size } => {
            (Some(int(id.0)), Some((*offset).into()), Some((*size).into()), None)
        }
    }
}

/// Slice, first byte in it, bytes of it; or the data.
pub(crate) type Source<'a> = (Option<i64>, Option<i64>, Option<i64>, Option<&'a [u8]>);

/// The rows as function `failed` writes them, to be compared.
pub(crate) fn rows_text(rows: &[Slice]) -> String {
    let number = |n: Option<i64>| n.map(|n| n.to_string()).unwrap_or_default();
    let row = |slice: &Slice| {
        let (id, offset, size, data) = source(&slice.source);
        let hex = |data: &[u8]| data.iter().map(|byte| format!("{byte:02x}")).collect();
        let data: String = data.map_or("-".to_owned(), hex);
        [slice.pos.to_string(), slice.len.to_string(), number(id), number(offset), number(size), data]
            .join(",")
    };
    rows.iter().map(row).collect::<Vec<_>>().join(";")
}

/// The locks as function `failed` writes them: in the order of the table's keys.
pub(crate) fn locks_text(locks: &[Lock]) -> String {
    let mut rows: Vec<[i64; 7]> = locks
        .iter()
        .map(|lock| {
            let [_, first, last, session, owner, kind, exclusive, pid] = lock_numbers(Ino(0), lock);
            [first, last, session, owner, kind, exclusive, pid]
        })
        .collect();
    rows.sort_unstable();
    let row = |numbers: &[i64; 7]| numbers.map(|n| n.to_string()).join(",");
    rows.iter().map(row).collect::<Vec<_>>().join(";")
}

pub(crate) fn lock_numbers(ino: Ino, lock: &Lock) -> [i64; 8] {
    let owner = lock.owner;
    [
        int(ino.0),
        int(lock.start),
        int(lock.end),
        int(owner.session.0),
        int(owner.owner),
        owner.kind.number().into(),
        lock.exclusive.into(),
        lock.pid.into(),
    ]
}
