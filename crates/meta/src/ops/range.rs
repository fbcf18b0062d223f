//! Ranges of a file: truncation, fallocate(2), copies by reference, and compaction of what many writes left.

use std::sync::Arc;

use types::{CHUNK_BYTES, ChunkIndex, Errno, FileType, Ino, Slice, SliceSource};

use crate::driver::{Ctx, Op, Plan};
use crate::ops::write::make_room;
use crate::record::{Node, Want};
use crate::txn::Effect;
use crate::view::{Stop, View};

/// What fallocate(2) does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// The file reaches to the range's end. No space is set aside: object stores have no such thing.
    Extend,
    /// `FALLOC_FL_KEEP_SIZE` alone: there is nothing to do but to say so.
    Reserve,
    /// `FALLOC_FL_PUNCH_HOLE`: the range reads as zeros and takes no space.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`: the same, and unless `keep_size` the file reaches to the range's end.
    ZeroRange { keep_size: bool },
}

/// Changes a range of a file without writing bytes. Twin of `vfs_fallocate`.
///
/// # Errors
/// EINVAL for an empty range; EFBIG beyond 2^63 - 1 bytes; ESTALE where the inode is gone; ENODEV for what is no regular
/// file; ENOSPC at the volume's limit.
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

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        if self.len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = self.offset.checked_add(self.len).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        view.prefetch([Want::Node(self.ino)])?;
        let node = view.inode(self.ino)?;
        if node.kind != FileType::Regular {
            return Err(Errno::ENODEV.into());
        }
        let grows = matches!(self.mode, AllocateMode::Extend | AllocateMode::ZeroRange { keep_size: false });
        if grows {
            make_room(view, ctx, &node, end)?;
        }
        let mut effects = Vec::with_capacity(5);
        if let AllocateMode::PunchHole | AllocateMode::ZeroRange { .. } = self.mode {
            zero(self.ino, self.offset, end, &mut effects);
        }
        if grows {
            effects.push(Effect::Extend { ino: self.ino, size: end });
        }
        let now = Some(ctx.now);
        effects.push(Effect::Touch { ino: self.ino, atime: None, mtime: now, ctime: now });
        Ok(Plan { reply: (), effects })
    }
}

/// Chunks whose rows one copy goes through at most; the caller asks again for the rest, `copy_file_range(2)`.
const CHUNKS_A_COPY: u64 = 4;

/// Copies a range between files, or within one, without moving bytes: the rows of the source are written for the target
/// too. Twin of `vfs_copy_file_range`. Replies with the bytes copied, fewer than asked for at the end of the source or
/// where that is much.
///
/// # Errors
/// EFBIG beyond 2^63 - 1 bytes; ESTALE where an inode is gone; EINVAL for what is no regular file and for ranges of one
/// file that overlap; ENOSPC at the volume's limit.
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

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<u64>, Stop> {
        let fits = |offset: u64| offset.checked_add(self.len).is_some_and(|end| end <= i64::MAX as u64);
        if !fits(self.offset) || !fits(self.to_offset) {
            return Err(Errno::EFBIG.into());
        }
        view.prefetch([Want::Node(self.from), Want::Node(self.to)])?;
        let source = view.inode(self.from)?;
        let target = view.inode(self.to)?;
        let regular = |node: &Node| node.kind == FileType::Regular;
        let overlap = self.offset < self.to_offset + self.len && self.to_offset < self.offset + self.len;
        if !regular(&source) || !regular(&target) || (self.from == self.to && overlap) {
            return Err(Errno::EINVAL.into());
        }
        let furthest = (self.offset / CHUNK_BYTES + CHUNKS_A_COPY) * CHUNK_BYTES;
        // The size from memory may be of any age: without a guard, what others have written since would not be copied.
        let size = view.size(self.from)?;
        let end = (self.offset + self.len).min(size).min(furthest);
        let copied = end.saturating_sub(self.offset);
        if copied == 0 {
            return Ok(Plan::answer(0));
        }
        make_room(view, ctx, &target, self.to_offset + copied)?;
        let chunks = self.offset / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES);
        view.prefetch(chunks.clone().map(|chunk| Want::Slices(self.from, ChunkIndex(chunk))))?;
        let mut effects = Vec::new();
        zero(self.to, self.to_offset, self.to_offset + copied, &mut effects);
        for chunk in chunks.map(ChunkIndex) {
            // The rows hold their blocks only as long as they stand: all of them must at the moment of the copy.
            for row in view.all_rows(self.from, chunk)?.iter() {
                self.copy_row(chunk, row, end, &mut effects);
            }
        }
        let now = Some(ctx.now);
        effects.push(Effect::Extend { ino: self.to, size: self.to_offset + copied });
        effects.push(Effect::Touch { ino: self.to, atime: None, mtime: now, ctime: now });
        Ok(Plan { reply: copied, effects })
    }
}

impl CopyRange {
    /// Writes the part of a source row that lies in the range for the target, in two where that has a chunk's end within.
    fn copy_row(&self, chunk: ChunkIndex, row: &Slice, end: u64, effects: &mut Vec<Effect>) {
        let start = chunk.start() + u64::from(row.pos);
        let (mut at, end) = (start.max(self.offset), end.min(start + u64::from(row.len)));
        while at < end {
            let (to_chunk, pos) = ChunkIndex::of(self.to_offset + (at - self.offset));
            let len = (end - at).min(CHUNK_BYTES - u64::from(pos)) as u32;
            let slice = Slice { pos, len, source: part(&row.source, (at - start) as u32, len) };
            if let SliceSource::Blocks { id, .. } = slice.source {
                effects.push(Effect::Share { slice: id });
            }
            effects.push(Effect::AppendSlice { ino: self.to, chunk: to_chunk, slice });
            at += u64::from(len);
        }
    }
}

/// `len` bytes of a source from its byte `skip` on. A damaged row may hold fewer: what is not there reads as an error.
pub(super) fn part(source: &SliceSource, skip: u32, len: u32) -> SliceSource {
    match source {
        SliceSource::Hole => SliceSource::Hole,
        SliceSource::Inline(bytes) => {
            let to = bytes.len().min(skip as usize + len as usize);
            SliceSource::Inline(bytes[bytes.len().min(skip as usize)..to].into())
        }
        SliceSource::Blocks { id, offset, size } => {
            SliceSource::Blocks { id: *id, offset: offset.saturating_add(skip), size: *size }
        }
    }
}

/// Puts new rows that say the same in the place of a chunk's oldest ones.
///
/// # Errors
/// ESTALE where the inode is gone; EAGAIN where the old rows no longer stand as they did: nothing is replaced then, and
/// the slices of the new ones are the caller's to remove.
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

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.ino)])?;
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
        Ok(Plan { reply: (), effects: vec![effect] })
    }
}

/// Bytes from `size` on read as zeros from now on, whatever is there now and however the file grows later.
pub(super) fn truncate(ino: Ino, size: u64, effects: &mut Vec<Effect>) {
    effects.push(Effect::SetSize { ino, size });
    zero(ino, size, u64::MAX, effects);
}

/// Bytes from `from` to before `to` read as zeros from now on: whole chunks lose their rows, the parts of others are
/// covered by a hole.
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
    // A range without an end has no last chunk to spare.
    if end != 0 && to != u64::MAX {
        effects.push(hole(last, 0, end));
    }
}
