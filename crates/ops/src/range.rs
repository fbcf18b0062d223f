//! Ranges of a file: truncation, fallocate(2), copies by reference, and compaction of rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use meta::{Effect, Inode, RecordKey};
use types::{CHUNK_BYTES, ChunkIndex, Errno, FileType, Ino, Slice, SliceId, SliceSource};

use crate::op::{Ctx, Op, Plan};
use crate::room::make_room_to;
use crate::view::{PlanStop, View};

/// The effect of fallocate(2) on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// The file is extended to the end of the range. No space is reserved, because object stores cannot
    /// reserve space.
    Extend,
    /// `FALLOC_FL_KEEP_SIZE` alone: succeeds without any effect on the data.
    Reserve,
    /// `FALLOC_FL_PUNCH_HOLE`: the range reads as zeros and takes no space.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`: as `PunchHole`, and unless `keep_size` is set, the file is extended to the end
    /// of the range.
    ZeroRange { keep_size: bool },
}

/// Changes a range of a file without writing data. Equivalent to `vfs_fallocate`.
///
/// # Errors
/// EINVAL if the range is empty; EFBIG if it ends beyond 2^63 - 1 bytes; ESTALE if the inode does not exist;
/// ENODEV if it is not a regular file; ENOSPC if the file would grow beyond the volume's limit.
#[derive(Debug)]
pub struct Allocate {
    pub ino: Ino,
    pub offset: u64,
    pub len: u64,
    pub mode: AllocateMode,
}

impl Op for Allocate {
    type Reply = ();
    const NAME: &'static str = "fallocate";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if self.len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = self.offset.checked_add(self.len).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        let inode = view.inode(self.ino)?;
        if inode.kind != FileType::Regular {
            return Err(Errno::ENODEV.into());
        }
        let grows = matches!(self.mode, AllocateMode::Extend | AllocateMode::ZeroRange { keep_size: false });
        if grows {
            make_room_to(view, ctx, &inode, end)?;
        }
        let mut effects = Vec::with_capacity(5);
        if let AllocateMode::PunchHole | AllocateMode::ZeroRange { .. } = self.mode {
            zero(self.ino, self.offset, end, &mut effects);
        }
        if grows {
            effects.push(Effect::Extend { ino: self.ino, size: end });
        }
        let now = Some(ctx.now);
        effects.push(Effect::SetTimes { ino: self.ino, atime: None, mtime: now, ctime: now });
        Ok(Plan { reply: (), effects })
    }
}

/// The largest number of source chunks in one copy. The caller requests the rest by further calls, see
/// `copy_file_range(2)`.
const CHUNKS_PER_COPY: u64 = 4;

/// Copies a range between files, or within one, without copying data: rows of the target refer to the same
/// slices. Equivalent to `vfs_copy_file_range`. Replies with the number of bytes copied. This is less than
/// requested if the range extends beyond the end of the source, or if it is large ([`CHUNKS_PER_COPY`]).
///
/// # Errors
/// EFBIG if a range ends beyond 2^63 - 1 bytes; ESTALE if an inode does not exist; EINVAL if one of them is
/// not a regular file, or if the ranges are in one file and overlap; ENOSPC if the target would grow beyond
/// the volume's limit.
#[derive(Debug)]
pub struct CopyRange {
    pub from: Ino,
    pub offset: u64,
    pub to: Ino,
    pub to_offset: u64,
    pub len: u64,
}

impl Op for CopyRange {
    type Reply = u64;
    const NAME: &'static str = "copy_file_range";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<u64>, PlanStop> {
        let fits = |offset: u64| offset.checked_add(self.len).is_some_and(|end| end <= i64::MAX as u64);
        if !fits(self.offset) || !fits(self.to_offset) {
            return Err(Errno::EFBIG.into());
        }
        let furthest = (self.offset / CHUNK_BYTES + CHUNKS_PER_COPY) * CHUNK_BYTES;
        let last = (self.offset + self.len).min(furthest);
        let chunks = (self.offset / CHUNK_BYTES..last.div_ceil(CHUNK_BYTES)).map(ChunkIndex);
        // The size and the rows of all chunks must be of one moment. Otherwise the copy could contain a later
        // write but not an earlier one, or zeros in place of rows that were written between two reads. The
        // number of chunks in the copy is not known before the size is read, so chunks beyond the end are
        // read and guarded too.
        let inodes = [self.from, self.to].map(RecordKey::Inode);
        let rows = chunks.clone().map(|chunk| RecordKey::Slices(self.from, chunk));
        view.prefetch_snapshot(inodes.into_iter().chain(rows).collect())?;
        let source = view.inode(self.from)?;
        let target = view.inode(self.to)?;
        let regular = |inode: &Inode| inode.kind == FileType::Regular;
        let overlap = self.offset < self.to_offset + self.len && self.to_offset < self.offset + self.len;
        if !regular(&source) || !regular(&target) || (self.from == self.to && overlap) {
            return Err(Errno::EINVAL.into());
        }
        let end = view.size(self.from)?.min(last);
        let copied = end.saturating_sub(self.offset);
        if copied == 0 {
            return Ok(Plan::answer(0));
        }
        make_room_to(view, ctx, &target, self.to_offset + copied)?;
        let mut effects = Vec::new();
        zero(self.to, self.to_offset, self.to_offset + copied, &mut effects);
        let mut rows = Vec::new();
        for chunk in chunks {
            // The blocks of a row are kept only while a row refers to them, so all source rows must still
            // exist when the copy commits.
            for row in view.all_rows(self.from, chunk)?.iter() {
                self.copy_row(chunk, row, end, &mut rows);
            }
        }
        effects.extend(share(rows.iter().map(|(_, row)| row), false));
        effects.extend(rows.into_iter().map(|(chunk, slice)| Effect::AppendSlice {
            ino: self.to,
            chunk,
            slice,
        }));
        let now = Some(ctx.now);
        effects.push(Effect::Extend { ino: self.to, size: self.to_offset + copied });
        effects.push(Effect::SetTimes { ino: self.to, atime: None, mtime: now, ctime: now });
        Ok(Plan { reply: copied, effects })
    }
}

impl CopyRange {
    /// Adds target rows for the part of a source row that is in the range: two rows if a chunk of the target
    /// ends within it.
    fn copy_row(&self, chunk: ChunkIndex, row: &Slice, end: u64, rows: &mut Vec<(ChunkIndex, Slice)>) {
        let start = chunk.start() + u64::from(row.pos);
        let (mut at, end) = (start.max(self.offset), end.min(start + u64::from(row.len)));
        while at < end {
            let (to_chunk, pos) = ChunkIndex::of(self.to_offset + (at - self.offset));
            let len = (end - at).min(CHUNK_BYTES - u64::from(pos)) as u32;
            let source = row.source.part((at - start) as u32, len);
            rows.push((to_chunk, Slice { pos, len, source }));
            at += u64::from(len);
        }
    }
}

/// The effects that count new rows in the share counts of their slices ([`Effect::Share`]), one effect for
/// each slice. If the slices are new (`are_new`), the first row of each slice is not counted.
pub(super) fn share<'r>(rows: impl IntoIterator<Item = &'r Slice>, are_new: bool) -> Vec<Effect> {
    let mut counts: BTreeMap<SliceId, u32> = BTreeMap::new();
    for row in rows {
        if let SliceSource::Blocks { id, .. } = row.source {
            counts.entry(id).and_modify(|count| *count += 1).or_insert(u32::from(!are_new));
        }
    }
    counts.retain(|_, count| *count > 0);
    counts.into_iter().map(|(slice, rows)| Effect::Share { slice, rows }).collect()
}

/// Replaces the oldest rows of a chunk by new ones with the same content, whose slices are new.
///
/// # Errors
/// ESTALE if the inode does not exist; EAGAIN if the old rows have changed. Nothing is replaced then, and the
/// caller must remove the slices of the new rows.
#[derive(Debug)]
pub struct Compact {
    pub ino: Ino,
    pub chunk: ChunkIndex,
    pub old: Arc<[Slice]>,
    pub new: Arc<[Slice]>,
}

impl Op for Compact {
    type Reply = ();
    const NAME: &'static str = "compact";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        view.inode(self.ino)?;
        if !view.rows_begin_with(self.ino, self.chunk, &self.old) {
            return Err(Errno::EAGAIN.into());
        }
        let effect = Effect::ReplaceRows {
            ino: self.ino,
            chunk: self.chunk,
            count: self.old.len() as u32,
            rows: Arc::clone(&self.new),
        };
        let mut effects = vec![effect];
        effects.extend(share(&self.new[..], true));
        Ok(Plan { reply: (), effects })
    }
}

/// Adds the effects of a truncation to `size`. Bytes from `size` on then read as zeros, even if the file
/// grows again later.
pub(super) fn truncate(ino: Ino, size: u64, effects: &mut Vec<Effect>) {
    effects.push(Effect::SetSize { ino, size });
    zero(ino, size, u64::MAX, effects);
}

/// Adds the effects by which the bytes in `from..to` read as zeros. Chunks that are entirely in the range
/// lose their rows. In the other chunks, a hole covers the range.
fn zero(ino: Ino, from: u64, to: u64, effects: &mut Vec<Effect>) {
    let (first, pos) = ChunkIndex::of(from);
    let (last, end) = ChunkIndex::of(to);
    let hole = |chunk, pos, end: u32| {
        let slice = Slice { pos, len: end - pos, source: SliceSource::Hole };
        Effect::AppendSlice { ino, chunk, slice }
    };
    if first == last {
        effects.push(hole(first, pos, end));
        return;
    }
    let whole = if pos == 0 { first } else { ChunkIndex(first.0 + 1) };
    if whole < last {
        effects.push(Effect::DropSlices { ino, from: whole, to: last });
    }
    if pos != 0 {
        effects.push(hole(first, pos, CHUNK_BYTES as u32));
    }
    // A range without an end has no last chunk to preserve.
    if end != 0 && to != u64::MAX {
        effects.push(hole(last, 0, end));
    }
}
