//! Compaction: many rows of a chunk are replaced by few, and the slices of the old rows become garbage.
//!
//! A chunk is rewritten as a whole, so it is compacted only when it has more than one row for every
//! [`BYTES_A_ROW`] of its data. This bounds the bytes that compaction writes by the bytes that were written
//! before.

use std::sync::Arc;

use chunk::PieceSource;
use ops::{Compact, GetSlices};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice, SliceId};

use crate::base::Base;
use crate::caller::BY_KERNEL;
use crate::candidates::FEW_ROWS;
use crate::fencing::Within;

/// A chunk with this many rows is compacted however much data it has.
const MANY_ROWS: usize = 1024;
const BYTES_A_ROW: u64 = 64 << 10;

/// Compacts the chunks that have many rows.
pub(crate) fn compact_candidates(base: &Base) {
    for (ino, chunk) in base.candidates.take() {
        if base.stop.is_set() {
            return;
        }
        match compact(base, ino, chunk) {
            // The file was deleted or changed meanwhile.
            Ok(()) | Err(Errno::ESTALE | Errno::EAGAIN) => {}
            Err(errno) => tracing::warn!(%ino, %chunk, %errno, "cannot compact a chunk"),
        }
    }
}

fn compact(base: &Base, ino: Ino, chunk: ChunkIndex) -> Result<(), Errno> {
    let (session, _hold) = (base.meta.session(), base.slices.hold());
    let old = base.meta.run(&GetSlices { ino, chunk }, &BY_KERNEL)?;
    let runs = runs(&old);
    let held: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
    let enough = (held / BYTES_A_ROW).clamp(FEW_ROWS as u64, MANY_ROWS as u64);
    if (old.len() as u64) < enough || runs.len() >= old.len() {
        return Ok(());
    }
    let inline = base.inline_limit(base.attributes.inode(ino)?.size);
    let mut slices = Vec::new();
    let new: Result<Arc<[Slice]>, Errno> =
        runs.iter().map(|run| rewrite(base, &old, run, inline, &mut slices)).collect();
    let ids: Vec<SliceId> = slices.iter().map(|(id, _)| *id).collect();
    let mut doubt = None;
    let replaced = new.and_then(|new| {
        let op = Within(session, &Compact { ino, chunk, old, new });
        base.commits.commit_rows_once(&op, &ids, &mut doubt)
    });
    // If the outcome is unknown, the blocks may be in use: leave them to `limen gc`.
    if let (Err(Errno::ESTALE | Errno::EAGAIN), None) = (&replaced, &doubt) {
        discard(base, &slices);
    }
    if (replaced.is_ok() || doubt.is_some())
        && let Some(file) = base.open.get(ino)
    {
        file.lock().rows.clear();
    }
    replaced
}

/// Stores the data of a run as one new row.
fn rewrite(
    base: &Base,
    old: &[Slice],
    run: &Run,
    inline: Option<u32>,
    slices: &mut Vec<(SliceId, u32)>,
) -> Result<Slice, Errno> {
    let mut buf = vec![0; run.len as usize];
    base.store.read_chunk(old, run.pos, &mut buf).map_err(|error| {
        tracing::error!(%error, "cannot read file data to compact it");
        error.errno()
    })?;
    let (source, stored) = base.store_bytes(buf, inline)?;
    slices.extend(stored.into_iter().map(|id| (id, run.len)));
    Ok(Slice { pos: run.pos, len: run.len, source })
}

fn discard(base: &Base, slices: &[(SliceId, u32)]) {
    for &(id, size) in slices {
        if let Err(error) = base.store.delete_slice(id, size) {
            tracing::warn!(%error, "cannot remove the blocks of a failed compaction");
        }
    }
}

/// A range of a chunk that has data and no hole.
struct Run {
    pos: u32,
    len: u32,
}

fn runs(rows: &[Slice]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for piece in chunk::resolve(rows, 0, CHUNK_BYTES as u32) {
        if piece.source == PieceSource::Zeros {
            continue;
        }
        match runs.last_mut().filter(|run| run.pos + run.len == piece.pos) {
            Some(run) => run.len += piece.len,
            None => runs.push(Run { pos: piece.pos, len: piece.len }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meta::{Effect, Engine, Txn};
    use suite::Fault;
    use types::{OpId, SliceSource};

    use super::*;
    use crate::{VfsOptions, fixture};

    #[test]
    fn runs_join_adjacent_data_and_end_at_holes() {
        let row = |pos, len, hole: bool| {
            let source =
                if hole { SliceSource::Hole } else { SliceSource::Inline(vec![1; len as usize].into()) };
            Slice { pos, len, source }
        };
        let rows = [row(0, 10, false), row(10, 5, false), row(4, 2, true), row(40, 1, false)];
        let found: Vec<_> = runs(&rows).iter().map(|run| (run.pos, run.len)).collect();
        assert_eq!(found, [(0, 4), (6, 9), (40, 1)]);
    }

    #[test]
    fn compaction_in_doubt_leaves_all_blocks() {
        let (vfs, engine) = fixture::unreliable_volume(VfsOptions::default());
        vfs.meta().set_repeat_for(Duration::ZERO);
        let ino = fixture::make(&vfs, "f");
        let bytes: Vec<u8> = (0..40 * 5000_u32).map(|i| (i / 251) as u8).collect();
        for at in (0..bytes.len()).step_by(5000) {
            vfs.files.write(ino, at as u64, &bytes[at..at + 5000]).unwrap();
            vfs.files.flush(ino).unwrap();
        }
        vfs.base.candidates.take();
        // The compaction commits, its answer is lost, and the database drops its result before the retry.
        engine.set_rival(|inner| {
            for number in 0..20_000 {
                let effects = vec![Effect::DropGarbage { slice: SliceId(0) }];
                inner.commit(&[Txn { op_id: OpId(number), guards: Vec::new(), effects }]).unwrap();
            }
        });
        engine.script([Fault::None, Fault::After, Fault::Rival]);
        assert_eq!(compact(&vfs.base, ino, ChunkIndex(0)), Err(Errno::EIO));
        engine.script([]);
        let rows = vfs.meta().run(&GetSlices { ino, chunk: ChunkIndex(0) }, &BY_KERNEL).unwrap();
        assert_eq!(rows.len(), 1, "the compaction was committed");
        // Read the store, not the block cache.
        let SliceSource::Blocks { id, size, .. } = rows[0].source else { panic!("{rows:?}") };
        vfs.base.store.verify_block(id, size, 0).unwrap();
        assert!(vfs.files.read(ino, 0, bytes.len() as u32).unwrap() == bytes);
    }
}
