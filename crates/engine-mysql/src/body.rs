//! Effects on what inodes have, slices above all, and on what belongs to no inode.

use meta::{Effect, Lock};
use tables::{Table, values};
use types::{ChunkIndex, Ino, Slice};

use crate::effect::Target;
use crate::sql::{Row, bytes, is, list, or_null, row, statements, text};

/// Writes an effect that [`crate::effect`] does not take together with others.
pub(crate) fn write(target: &mut Target<'_>, effect: &Effect) {
    match effect {
        Effect::AppendSlice { ino, chunk, slice } => {
            let [columns, values] = texts(&slice_row(*ino, *chunk, slice));
            target.run(statements!("append_row"), &[columns, values, ino.to_string(), chunk.to_string()]);
        }
        Effect::DropSlices { ino, from, to } => {
            let gone = format!("c.ino = {ino} AND c.chunk >= {from} AND c.chunk < {to}");
            target.run(statements!("release"), &[gone]);
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => {
            target.run(statements!("oldest_rows"), &[ino.0, chunk.0, u64::from(*count)]);
            let gone = format!("c.ino = {ino} AND c.chunk = {chunk} AND c.seq <= @l");
            target.run(statements!("release"), &[gone]);
            for (index, slice) in rows.iter().enumerate() {
                let [columns, values] = texts(&slice_row(*ino, *chunk, slice));
                let places = [rows.len(), index + 1].map(|place| place.to_string());
                target.run(statements!("put_oldest_row"), &[&[columns, values], &places[..]].concat());
            }
        }
        Effect::Share { slice } => target.run(statements!("share"), &[slice]),
        Effect::DropGarbage { slice } => delete(target, "garbage", row!(slice = slice)),
        Effect::PutXattr { ino, name, value } => {
            let row = row!(ino = ino, name = bytes(name.as_bytes()), value = bytes(value));
            put(target, Some(*ino), "xattr", row);
        }
        Effect::DropXattr { ino, name } => {
            delete(target, "xattr", row!(ino = ino, name = bytes(name.as_bytes())));
        }
        Effect::PutSymlink { ino, target: to } => {
            put(target, Some(*ino), "symlink", row!(ino = ino, target = bytes(to)));
        }
        Effect::PutLocks { ino, locks } => {
            delete(target, "lock", row!(ino = ino));
            locks.iter().for_each(|lock| put(target, Some(*ino), "lock", lock_row(*ino, lock)));
        }
        Effect::PutWait(wait) => put(target, None, "lock_wait", lock_row(wait.ino, &wait.lock)),
        Effect::DropWait { owner } => {
            let row = row!(session = owner.session, owner = owner.owner, kind = owner.kind.number());
            delete(target, "lock_wait", row);
        }
        Effect::PutOrphan { session, ino } => put(target, None, "orphan", row!(session = session, ino = ino)),
        Effect::DropOrphan { session, ino } => delete(target, "orphan", row!(session = session, ino = ino)),
        Effect::PutSession(session) => {
            let [since, heartbeat] = [session.since, session.heartbeat].map(|time| time.nanos());
            let (host, mountpoint) = (text(&session.host), text(&session.mountpoint));
            let row = row!(id = session.id, pid = session.pid, since = since, heartbeat = heartbeat);
            put(target, None, "session", [row, row!(host = host, mountpoint = mountpoint)].concat());
        }
        Effect::DropSession { session } => delete(target, "session", row!(id = session)),
        Effect::PutSetting { name, value } => {
            let row = row!(name = bytes(name.as_bytes()), value = bytes(value.as_bytes()));
            put(target, None, "setting", row);
        }
        Effect::SetCounter { counter, value } => {
            put(target, None, "counter", row!(name = bytes(counter.name().as_bytes()), value = value));
        }
        _ => {}
    }
}

/// Puts a row, in the place of one with the same key; if it is of an inode, only where that is there.
fn put(target: &mut Target<'_>, of: Option<Ino>, table: &str, row: Row) {
    let [columns, values] = texts(&row);
    let values = match of {
        Some(ino) => format!("SELECT {values} FROM `@node` WHERE ino = {ino}"),
        None => format!("VALUES ({values})"),
    };
    target.put(format!("REPLACE INTO `@{table}` ({columns}) {values}"));
}

fn delete(target: &mut Target<'_>, table: &str, whose: Row) {
    target.put(format!("DELETE FROM `@{table}` WHERE {}", is(&whose, "=")));
}

/// The columns and the values.
fn texts(row: &Row) -> [String; 2] {
    [list(row.iter().map(|(column, _)| column)), list(row.iter().map(|(_, value)| value))]
}

/// A row of a chunk, but for its place.
pub(crate) fn slice_row(ino: Ino, chunk: ChunkIndex, slice: &Slice) -> Row {
    let (numbers, data) = values::slice(slice);
    let whose = [ino.0, chunk.0].map(|number| number.to_string()).into_iter();
    let values = whose.chain(numbers.map(or_null)).chain([or_null(data.map(bytes))]);
    Table::SLICE.columns().zip(values).collect()
}

pub(crate) fn lock_row(ino: Ino, lock: &Lock) -> Row {
    let values = [ino.to_string()].into_iter().chain(values::lock(lock).map(|number| number.to_string()));
    Table::LOCK.columns().zip(values).collect()
}
