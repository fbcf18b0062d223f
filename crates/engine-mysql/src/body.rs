//! Effects on what inodes have, slices above all, and on what belongs to no inode: one statement or more for each.

use meta::{Effect, Lock};
use types::{ChunkIndex, Ino, Slice, SliceSource};

use crate::effect::Target;
use crate::rows::kind_number;
use crate::script::Count;
use crate::sql::{Bytes, Nullable, Text};

/// Writes an effect that [`crate::effect`] does not collect.
pub(crate) fn write(target: &mut Target<'_>, effect: &Effect) {
    let p = target.p;
    match effect {
        Effect::AppendSlice { ino, chunk, slice } => {
            let next = format!(
                "COALESCE((SELECT MAX(seq) FROM `{p}slice` WHERE ino = {} AND chunk = {}), 0) + 1",
                ino.0, chunk.0
            );
            let row = row(*ino, *chunk, &next, slice);
            target.put(format!("{} SELECT {row} FROM `{p}node` WHERE ino = {}", into_slice(p), ino.0));
        }
        Effect::DropSlices { ino, from, to } => {
            let (ino, from, to) = (ino.0, from.0, to.0);
            release(target, None, &format!("c.ino = {ino} AND c.chunk >= {from} AND c.chunk < {to}"));
        }
        Effect::ReplaceRows { ino, chunk, count, rows } => replace(target, *ino, *chunk, *count, rows),
        Effect::Share { slice } => target.put(format!(
            "INSERT INTO `{p}shared` (slice, extra) VALUES ({}, 1) ON DUPLICATE KEY UPDATE extra = extra + 1",
            slice.0
        )),
        Effect::PutXattr { ino, name, value } => target.put(format!(
            "INSERT INTO `{p}xattr` (ino, name, value) SELECT ino, {}, {} FROM `{p}node` WHERE ino = {} \
             ON DUPLICATE KEY UPDATE value = VALUES(value)",
            Bytes(name.as_bytes()),
            Bytes(value),
            ino.0
        )),
        Effect::DropXattr { ino, name } => target.put(format!(
            "DELETE FROM `{p}xattr` WHERE ino = {} AND name = {}",
            ino.0,
            Bytes(name.as_bytes())
        )),
        Effect::PutSymlink { ino, target: to } => target.put(format!(
            "INSERT INTO `{p}symlink` (ino, target) SELECT ino, {} FROM `{p}node` WHERE ino = {} \
             ON DUPLICATE KEY UPDATE target = VALUES(target)",
            Bytes(to),
            ino.0
        )),
        Effect::PutOrphan { session, ino } => {
            target.put(format!("REPLACE INTO `{p}orphan` (session, ino) VALUES ({}, {})", session.0, ino.0))
        }
        Effect::DropOrphan { session, ino } => {
            target.put(format!("DELETE FROM `{p}orphan` WHERE session = {} AND ino = {}", session.0, ino.0));
        }
        Effect::PutSession(session) => target.put(format!(
            "REPLACE INTO `{p}session` (id, host, pid, mountpoint, since, heartbeat) \
             VALUES ({}, {}, {}, {}, {}, {})",
            session.id.0,
            Text(&session.host),
            session.pid,
            Text(&session.mountpoint),
            session.since.nanos(),
            session.heartbeat.nanos()
        )),
        Effect::DropSession { session } => {
            target.put(format!("DELETE FROM `{p}session` WHERE id = {}", session.0));
        }
        Effect::PutLocks { ino, locks } => {
            target.put(format!("DELETE FROM `{p}lock` WHERE ino = {}", ino.0));
            for lock in locks.iter() {
                target.put(format!(
                    "INSERT INTO `{p}lock` ({LOCK_COLUMNS}) SELECT {} FROM `{p}node` WHERE ino = {}",
                    lock_values(*ino, lock),
                    ino.0
                ));
            }
        }
        Effect::PutWait(wait) => target.put(format!(
            "REPLACE INTO `{p}lock_wait` ({LOCK_COLUMNS}) VALUES ({})",
            lock_values(wait.ino, &wait.lock)
        )),
        Effect::DropWait { owner } => target.put(format!(
            "DELETE FROM `{p}lock_wait` WHERE session = {} AND owner = {} AND kind = {}",
            owner.session.0,
            owner.owner,
            kind_number(owner.kind)
        )),
        Effect::DropGarbage { slice } => {
            target.put(format!("DELETE FROM `{p}garbage` WHERE slice = {}", slice.0));
        }
        Effect::PutSetting { name, value } => target.put(format!(
            "REPLACE INTO `{p}setting` (name, value) VALUES ({}, {})",
            Bytes(name.as_bytes()),
            Bytes(value.as_bytes())
        )),
        Effect::SetCounter { counter, value } => target.put(format!(
            "REPLACE INTO `{p}counter` (name, value) VALUES ({}, {value})",
            Bytes(counter.name().as_bytes())
        )),
        // All that is left is collected.
        _ => {}
    }
}

/// The rows of table `slice` that `gone` selects, by the name `c`, go, and with each one reference to its slice; if
/// `gate`, only where that is not 0.
pub(crate) fn release(target: &mut Target<'_>, gate: Option<Count>, gone: &str) {
    let p = target.p;
    let [any, slices, shared] = match gate {
        Some(gate) => [gate; 3],
        None => [Count::Any, Count::Slices, Count::Shared],
    };
    let counted = format!(
        "SELECT c.slice AS slice, COUNT(*) AS k, MAX(c.slice_size) AS size FROM `{p}slice` AS c \
         WHERE {gone} AND c.slice IS NOT NULL GROUP BY c.slice"
    );
    target.put_if(
        any,
        format!(
            "SELECT COUNT(*), COUNT(s.slice) INTO @c, @h FROM `{p}slice` AS c \
             LEFT JOIN `{p}shared` AS s ON s.slice = c.slice WHERE {gone} FOR UPDATE"
        ),
    );
    target.put_if(
        slices,
        format!(
            "INSERT INTO `{p}garbage` (slice, size) SELECT g.slice, g.size FROM ({counted}) AS g \
             LEFT JOIN `{p}shared` AS s ON s.slice = g.slice WHERE g.k > COALESCE(s.extra, 0) \
             ON DUPLICATE KEY UPDATE size = VALUES(size)"
        ),
    );
    target.put_if(
        shared,
        format!(
            "UPDATE `{p}shared` AS s JOIN ({counted}) AS g ON g.slice = s.slice \
             SET s.extra = IF(s.extra > g.k, s.extra - g.k, 0)"
        ),
    );
    target.put_if(
        shared,
        format!(
            "DELETE s FROM `{p}shared` AS s JOIN `{p}slice` AS c ON c.slice = s.slice WHERE {gone} AND s.extra = 0"
        ),
    );
    target.put_if(slices, format!("DELETE c FROM `{p}slice` AS c WHERE {gone}"));
}

/// `rows` come in the place of the chunk's `count` oldest ones, and no more than these were.
fn replace(target: &mut Target<'_>, ino: Ino, chunk: ChunkIndex, count: u32, rows: &[Slice]) {
    let p = target.p;
    target.put(format!(
        "SELECT COUNT(*), COALESCE(MAX(seq), 0) INTO @k, @l FROM (SELECT seq FROM `{p}slice` \
         WHERE ino = {} AND chunk = {} ORDER BY seq LIMIT {count}) AS oldest",
        ino.0, chunk.0
    ));
    release(target, None, &format!("c.ino = {} AND c.chunk = {} AND c.seq <= @l", ino.0, chunk.0));
    for (index, slice) in rows.iter().enumerate() {
        // Numbers that became free, the last ones of them.
        let seq = format!("@l - LEAST({}, @k) + {}", rows.len(), index + 1);
        let row = row(ino, chunk, &seq, slice);
        target.put(format!("{} SELECT {row} FROM DUAL WHERE {index} < @k", into_slice(p)));
    }
}

fn into_slice(p: &str) -> String {
    format!("INSERT INTO `{p}slice` (ino, chunk, seq, pos, len, data, slice, slice_off, slice_size)")
}

fn row(ino: Ino, chunk: ChunkIndex, seq: &str, slice: &Slice) -> String {
    let (data, blocks) = match &slice.source {
        SliceSource::Hole => (None, None),
        SliceSource::Inline(data) => (Some(Bytes(data)), None),
        SliceSource::Blocks { id, offset, size } => (None, Some((id.0, *offset, *size))),
    };
    format!(
        "{}, {}, {seq}, {}, {}, {}, {}, {}, {}",
        ino.0,
        chunk.0,
        slice.pos,
        slice.len,
        Nullable(data),
        Nullable(blocks.map(|(id, ..)| id)),
        Nullable(blocks.map(|(_, offset, _)| offset)),
        Nullable(blocks.map(|(.., size)| size))
    )
}

/// Of tables `lock` and `lock_wait`.
const LOCK_COLUMNS: &str = "ino, first, last, session, owner, kind, exclusive, pid";

fn lock_values(ino: Ino, lock: &Lock) -> String {
    format!(
        "{}, {}, {}, {}, {}, {}, {}, {}",
        ino.0,
        lock.start,
        lock.end,
        lock.owner.session.0,
        lock.owner.owner,
        kind_number(lock.owner.kind),
        u8::from(lock.exclusive),
        lock.pid
    )
}
