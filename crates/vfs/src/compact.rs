//! Compaction: many rows of a chunk are replaced by few, and the slices of the old rows become garbage.
//!
//! A chunk is rewritten as a whole, so the background thread compacts it only when it has at least one row
//! for every [`BYTES_PER_ROW`] of its data, or [`MANY_ROWS`]. So compaction writes at most about
//! [`BYTES_PER_ROW`] for each row that it replaces. Short runs of data share slices, as the small extents of
//! a flush do.

use std::ops::Range;

use chunk::{Piece, PieceSource};
use ops::{Compact, GetSlices};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice, SliceId};

use crate::base::Base;
use crate::caller::BY_KERNEL;
use crate::candidates::FEW_ROWS;
use crate::fencing::InSession;

/// A chunk with this many rows is compacted however much data it has.
const MANY_ROWS: usize = 1024;
const BYTES_PER_ROW: u64 = 64 << 10;

/// Compacts the chunks that have many rows.
pub(crate) fn compact_candidates(base: &Base) {
    for (ino, chunk) in base.candidates.take() {
        if base.stop.ends_housekeeping() {
            return;
        }
        match compact(base, ino, chunk, Threshold::ByData) {
            // The file was deleted or changed meanwhile.
            Ok(_) | Err(Errno::ESTALE | Errno::EAGAIN) => {}
            Err(errno) => tracing::warn!(%ino, %chunk, %errno, "cannot compact a chunk"),
        }
    }
}

/// The number of rows from which a chunk is compacted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Threshold {
    /// One row for every [`BYTES_PER_ROW`] of its data, but at least [`FEW_ROWS`] and at most [`MANY_ROWS`].
    ByData,
    /// Two rows.
    Any,
}

/// The result of a compaction: the rows of a chunk or a file before and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    pub rows_before: u64,
    pub rows_after: u64,
    /// The bytes that were stored again.
    pub bytes: u64,
}

/// Compacts a chunk, unless it has few rows or as many runs of data as rows.
///
/// # Errors
/// ESTALE if the file was deleted, EAGAIN if the rows were changed meanwhile; those of the store and the
/// database.
pub(crate) fn compact(
    base: &Base,
    ino: Ino,
    chunk: ChunkIndex,
    threshold: Threshold,
) -> Result<Compacted, Errno> {
    let (session, _guard) = (base.meta.session(), base.slices.guard());
    let old = base.meta.run(&GetSlices { ino, chunk }, &BY_KERNEL)?;
    let pieces = chunk::resolve(&old, 0, CHUNK_BYTES as u32);
    let runs = runs(&pieces);
    let held: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
    let enough = match threshold {
        Threshold::ByData => (held / BYTES_PER_ROW).clamp(FEW_ROWS as u64, MANY_ROWS as u64),
        Threshold::Any => 2,
    };
    let rows = old.len() as u64;
    if rows < enough || runs.len() as u64 >= rows {
        return Ok(Compacted { rows_before: rows, rows_after: rows, bytes: 0 });
    }
    let inline = base.inline_limit(base.attributes.inode(ino)?.size);
    let mut slices = Vec::new();
    let new = rewrite(base, &pieces, &runs, inline, &mut slices);
    let ids: Vec<SliceId> = slices.iter().map(|(id, _)| *id).collect();
    let mut in_doubt = None;
    let replaced = new.and_then(|new| {
        // A program may have synced the rows that are replaced, and a checkpoint of the embedded engine makes
        // the new ones durable at any time.
        base.commits.make_blocks_durable(&ids)?;
        let op = InSession(session, &Compact { ino, chunk, old, new: new.into() });
        base.commits.commit_rows_once(&op, &ids, &mut in_doubt)
    });
    // If the outcome is unknown, the blocks may be in use: leave them to `limen gc`.
    if replaced.is_err() && in_doubt.is_none() {
        base.discard(&slices);
    }
    if (replaced.is_ok() || in_doubt.is_some())
        && let Some(file) = base.open.get(ino)
    {
        file.lock().rows.clear();
    }
    replaced.map(|()| Compacted { rows_before: rows, rows_after: runs.len() as u64, bytes: held })
}

/// Stores the data of each run again, and returns its new row.
fn rewrite(
    base: &Base,
    pieces: &[Piece<'_>],
    runs: &[Run],
    inline: Option<u32>,
    slices: &mut Vec<(SliceId, u32)>,
) -> Result<Vec<Slice>, Errno> {
    let mut rows = Vec::with_capacity(runs.len());
    for members in chunk::share_slices(runs.iter().map(|run| run.len)) {
        let size = members.iter().map(|&index| runs[index].len).sum();
        let mut buf = vec![0; size as usize];
        let (mut wanted, mut rest) = (Vec::new(), &mut buf[..]);
        for piece in members.iter().flat_map(|&index| &pieces[runs[index].pieces.clone()]) {
            let (part, tail) = rest.split_at_mut(piece.len as usize);
            wanted.push((piece, part));
            rest = tail;
        }
        base.store.read_pieces(wanted).map_err(|error| {
            tracing::error!(%error, "cannot read file data to compact it");
            error.errno()
        })?;
        let (source, stored) = base.store_bytes(buf, inline)?;
        slices.extend(stored.into_iter().map(|id| (id, size)));
        let mut skip = 0;
        for &index in &members {
            let Run { pos, len, .. } = runs[index];
            rows.push(Slice { pos, len, source: source.part(skip, len) });
            skip += len;
        }
    }
    Ok(rows)
}

/// A range of a chunk that has data and no hole.
struct Run {
    pos: u32,
    len: u32,
    pieces: Range<usize>,
}

fn runs(pieces: &[Piece<'_>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        if piece.source == PieceSource::Zeros {
            continue;
        }
        match runs.last_mut().filter(|run| run.pos + run.len == piece.pos) {
            Some(run) => {
                run.len += piece.len;
                run.pieces.end = index + 1;
            }
            None => runs.push(Run { pos: piece.pos, len: piece.len, pieces: index..index + 1 }),
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
        let pieces = chunk::resolve(&rows, 0, 100);
        let found: Vec<_> = runs(&pieces).into_iter().map(|run| (run.pos, run.len, run.pieces)).collect();
        assert_eq!(found, [(0, 4, 0..1), (6, 9, 2..4), (40, 1, 5..6)]);
    }

    #[test]
    fn compaction_fetches_each_shared_block_once() {
        const FLUSHES: u64 = 8;
        let block = u64::from(types::BLOCK_BYTES);
        // The cache has room for two of the eight blocks.
        let (vfs, _) = fixture::volume_with_cache(ops::AtimeMode::Never, 2 * block);
        let ino = fixture::make(&vfs, "f");
        for flush in 0..FLUSHES {
            for at in (flush * 4096..FLUSHES * block).step_by(FLUSHES as usize * 4096) {
                vfs.files.write(ino, at, &[flush as u8; 4096]).unwrap();
            }
            vfs.files.flush(ino).unwrap();
        }
        assert_eq!(vfs.base.store.requests().puts, FLUSHES);
        compact(&vfs.base, ino, ChunkIndex(0), Threshold::ByData).unwrap();
        assert_eq!(vfs.base.store.requests().gets, FLUSHES);
        let rows = vfs.meta().run(&GetSlices { ino, chunk: ChunkIndex(0) }, &BY_KERNEL).unwrap();
        assert_eq!(rows.len(), 1);
        let read = vfs.files.read(ino, block - 4096, 8192).unwrap();
        assert_eq!((&read[..4096], &read[4096..]), (&[FLUSHES as u8 - 1; 4096][..], &[0; 4096][..]));
    }

    #[test]
    fn rows_are_replaced_only_by_rows_whose_blocks_are_durable() {
        let (vfs, faults, _directory) = fixture::volume_on_files();
        let ino = fixture::make(&vfs, "f");
        for at in [0, 100_000] {
            vfs.files.write(ino, at, &[1; 100_000]).unwrap();
            vfs.files.flush(ino).unwrap();
        }
        vfs.files.fsync(ino).unwrap();
        let rows = || vfs.meta().run(&GetSlices { ino, chunk: ChunkIndex(0) }, &BY_KERNEL).unwrap().len();
        faults.add(chunk::StoreCall::Sync, chunk::Fault::Fail(Errno::EIO), 1000);
        let compacted = compact(&vfs.base, ino, ChunkIndex(0), Threshold::Any);
        assert_eq!((compacted, rows()), (Err(Errno::EIO), 2));
        faults.clear();
        compact(&vfs.base, ino, ChunkIndex(0), Threshold::Any).unwrap();
        assert_eq!(rows(), 1);
    }

    #[test]
    fn compaction_packs_short_runs() {
        let (vfs, engine) = fixture::volume(ops::AtimeMode::Never);
        let ino = fixture::make(&vfs, "f");
        // Two flushes of the same places: half of the rows are hidden.
        let places = || (0..3000_u64).map(|i| (i * 1013 % 3000) * 20_000);
        let mut expected = vec![0; 3000 * 20_000];
        for seed in [3, 7] {
            for at in places() {
                let data = [(at / 20_000) as u8 ^ seed; 100];
                vfs.files.write(ino, at, &data).unwrap();
                expected[at as usize..at as usize + 100].copy_from_slice(&data);
            }
            vfs.files.flush(ino).unwrap();
        }
        let before = vfs.base.store.requests();
        assert_eq!(before.puts, 6);
        compact(&vfs.base, ino, ChunkIndex(0), Threshold::ByData).unwrap();
        let rows = vfs.meta().run(&GetSlices { ino, chunk: ChunkIndex(0) }, &BY_KERNEL).unwrap();
        let ids: std::collections::BTreeSet<_> = rows
            .iter()
            .map(|row| match row.source {
                SliceSource::Blocks { id, size: 300_000, .. } => id,
                _ => panic!("{row:?}"),
            })
            .collect();
        assert_eq!((rows.len(), ids.len(), vfs.base.store.requests().puts), (3000, 1, 7));
        for at in (0..expected.len()).step_by(1 << 20) {
            let read = vfs.files.read(ino, at as u64, 1 << 20).unwrap();
            assert!(read == expected[at..expected.len().min(at + (1 << 20))][..read.len()]);
        }
        // The old slices are garbage. The new slice becomes garbage when its last row is deleted.
        let garbage = || {
            let scan = meta::Scan::Garbage { after: SliceId(0), limit: 100 };
            engine.scan(&scan).unwrap().snapshot.records.len()
        };
        assert_eq!(garbage(), 6);
        vfs.files.close(ino).unwrap();
        vfs.names.unlink(&fixture::root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(garbage(), 7);
    }

    #[test]
    fn compaction_that_certainly_failed_leaves_no_blocks() {
        let (vfs, engine) = fixture::unreliable_volume(VfsOptions::default());
        vfs.meta().set_retry_timeout(Duration::ZERO);
        let ino = fixture::make(&vfs, "f");
        for at in [0, 50_000] {
            vfs.files.write(ino, at, &[1; 50_000]).unwrap();
            vfs.files.flush(ino).unwrap();
        }
        let before = vfs.base.store.requests();
        engine.script([Fault::None, Fault::Before]);
        assert_eq!(compact(&vfs.base, ino, ChunkIndex(0), Threshold::Any), Err(Errno::EIO));
        engine.script([]);
        let after = vfs.base.store.requests();
        assert_eq!((after.puts - before.puts, after.deletes - before.deletes), (1, 1));
        assert_eq!(vfs.files.read(ino, 0, 100_000).unwrap(), vec![1; 100_000]);
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
        assert_eq!(compact(&vfs.base, ino, ChunkIndex(0), Threshold::ByData), Err(Errno::EIO));
        engine.script([]);
        let rows = vfs.meta().run(&GetSlices { ino, chunk: ChunkIndex(0) }, &BY_KERNEL).unwrap();
        assert_eq!(rows.len(), 1, "the compaction was committed");
        // Read the store, not the block cache.
        let SliceSource::Blocks { id, size, .. } = rows[0].source else { panic!("{rows:?}") };
        vfs.base.store.verify_block(id, size, 0).unwrap();
        assert!(vfs.files.read(ino, 0, bytes.len() as u32).unwrap() == bytes);
    }
}
