//! A range of dirty bytes that becomes one row.

use std::sync::Arc;

use types::{BLOCK_BYTES, ChunkIndex, Slice, SliceId, SliceSource};

use crate::ChunkError;
use crate::block::BlockName;
use crate::budget::MemoryGrant;
use crate::pool;
use crate::store::BlockStore;
use crate::upload::{ErrorSlot, Upload};

/// Contiguous dirty bytes of one chunk. A full block is uploaded at once; the bytes after the last full block
/// are the tail, which can still be overwritten and extended.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) serial: u64,
    /// The file offset of the extent's first byte.
    pub(crate) offset: u64,
    /// The number of valid bytes. After a truncation, the uploads or the inline bytes may hold more than
    /// these.
    pub(crate) shown: u32,
    /// Whether `stage` has returned the extent's row, and the row may have been committed. As long as this is
    /// set, the extent changes only by a truncation. `restage` and `not_committed` clear it.
    pub(crate) staged: bool,
    id: Option<SliceId>,
    /// The blocks given to uploads, in order. All are full while the tail is open; later, the last one may be
    /// short.
    uploads: Vec<Arc<Upload>>,
    tail: Tail,
    /// The grant for the tail, which covers its capacity, not only its length.
    held: MemoryGrant,
}

/// A tail that reaches this length gets the capacity of a whole block, because it probably becomes one, and
/// growing by doubling would copy most of it.
const LONG_TAIL_BYTES: usize = 256 << 10;

#[derive(Debug)]
enum Tail {
    Open(Vec<u8>),
    /// The row will contain the bytes.
    Inline(Arc<[u8]>),
    /// No tail: all bytes are in the uploads.
    Sealed,
    /// No tail: the bytes are in the only upload, from this position on. Other extents share that block.
    Shared(u32),
}

impl Extent {
    pub(crate) fn new(serial: u64, offset: u64, held: MemoryGrant) -> Self {
        let tail = Tail::Open(Vec::new());
        Extent { serial, offset, shown: 0, staged: false, id: None, uploads: Vec::new(), tail, held }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.shown)
    }

    pub(crate) fn overlaps(&self, from: u64, to: u64) -> bool {
        from < self.end() && self.offset < to
    }

    /// Whether a write that begins at `from` can be done in place: the tail is open, `from` is in the tail or
    /// at its end, and `from` is in the extent's chunk.
    pub(crate) fn takes(&self, from: u64) -> bool {
        let same_chunk = ChunkIndex::of(from).0 == ChunkIndex::of(self.offset).0;
        let tail_start = self.offset + u64::from(self.sent());
        matches!(self.tail, Tail::Open(_)) && same_chunk && (tail_start..=self.end()).contains(&from)
    }

    /// Writes `data` at file offset `from`, for which [`Extent::takes`] holds, and passes each full block to
    /// `send`.
    pub(crate) fn write(
        &mut self,
        from: u64,
        data: &[u8],
        grant: &mut MemoryGrant,
        new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
        send: &mut dyn FnMut(&Arc<Upload>),
    ) -> Result<(), ChunkError> {
        let (mut at, mut rest) = ((from - self.offset) as usize, data);
        while !rest.is_empty() {
            let start = at - self.sent() as usize;
            let Tail::Open(tail) = &mut self.tail else { return Err(ChunkError::Aborted) };
            let room = BLOCK_BYTES as usize - start;
            let (now, later) = rest.split_at(room.min(rest.len()));
            // The slice number is allocated before anything changes, so that a failure leaves no full block
            // without a number.
            let fills = start + now.len() == BLOCK_BYTES as usize;
            let full_id = if fills { Some(take_id(&mut self.id, new_id)?) } else { None };
            let over = now.len().min(tail.len() - start);
            tail[start..start + over].copy_from_slice(&now[..over]);
            grow(tail, start + now.len(), &mut self.held, grant);
            tail.extend_from_slice(&now[over..]);
            at += now.len();
            self.shown = self.shown.max(at as u32);
            if let Some(id) = full_id {
                let full = std::mem::take(tail);
                send(self.push(id, full));
            }
            rest = later;
        }
        Ok(())
    }

    /// If the extent is no longer than `inline_limit` and no block was uploaded, decides that its row will
    /// contain the bytes.
    pub(crate) fn seal_inline(&mut self, inline_limit: u32) {
        if let Tail::Open(tail) = &mut self.tail
            && self.id.is_none()
            && self.shown <= inline_limit
        {
            let tail = std::mem::take(tail);
            drop(self.held.split((tail.capacity() - tail.len()) as u64));
            self.tail = Tail::Inline(Arc::from(tail));
        }
    }

    /// The number of bytes, if it is not decided yet how they are stored, and no block was uploaded.
    pub(crate) fn undecided(&self) -> Option<u32> {
        (self.id.is_none() && matches!(self.tail, Tail::Open(_))).then_some(self.shown)
    }

    /// Moves the bytes of an undecided extent to the end of a block that it shares with others, and their
    /// grant to `held`. [`Extent::set_shared`] must follow.
    pub(crate) fn move_to(&mut self, block: &mut Vec<u8>, held: &mut MemoryGrant) {
        let at = block.len() as u32;
        if let Tail::Open(tail) = std::mem::replace(&mut self.tail, Tail::Shared(at)) {
            block.extend_from_slice(&tail);
            held.absorb(&mut self.held, tail.len() as u64);
            drop(self.held.split(u64::MAX));
        }
    }

    /// Sets the block that holds the bytes of this extent and of others. If the row is staged, the next flush
    /// returns another one.
    pub(crate) fn set_shared(&mut self, upload: &Arc<Upload>) {
        (self.id, self.uploads, self.staged) = (Some(upload.slice), vec![Arc::clone(upload)], false);
    }

    /// The block that other extents share with this one.
    pub(crate) fn shared_block(&self) -> Option<&Arc<Upload>> {
        matches!(self.tail, Tail::Shared(_)).then(|| self.uploads.first())?
    }

    /// Decides that the extent is stored as blocks, of which the last may be short, unless something else was
    /// decided.
    pub(crate) fn seal(
        &mut self,
        new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
    ) -> Result<(), ChunkError> {
        let Tail::Open(tail) = &mut self.tail else { return Ok(()) };
        let id = take_id(&mut self.id, new_id)?;
        let tail = std::mem::take(tail);
        self.tail = Tail::Sealed;
        if !tail.is_empty() {
            self.push(id, tail);
        }
        Ok(())
    }

    /// Stores the blocks again under a new number; see [`WriteBuffer::restage`](crate::WriteBuffer::restage).
    /// Keeps one block at a time in memory. The extent must not share a block with others.
    pub(crate) fn restage(
        &mut self,
        store: &BlockStore,
        errors: &ErrorSlot,
        new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
    ) -> Result<(), ChunkError> {
        if self.id.is_none() {
            self.staged = false;
            return Ok(());
        }
        let id = new_id()?;
        let size = self.sent();
        let mut uploads = Vec::with_capacity(self.uploads.len());
        for upload in &self.uploads {
            uploads.push(store_again(upload, id, size, self.held.split(0), store, errors)?);
        }
        (self.id, self.uploads, self.staged) = (Some(id), uploads, false);
        Ok(())
    }

    pub(crate) fn has_slice(&self) -> bool {
        self.id.is_some()
    }

    pub(crate) fn uploads(&self) -> &[Arc<Upload>] {
        &self.uploads
    }

    /// The row; `None` if it is not decided yet how the bytes are stored.
    pub(crate) fn row(&self) -> Option<(ChunkIndex, Slice)> {
        let (chunk, pos) = ChunkIndex::of(self.offset);
        let source = match (&self.tail, self.id) {
            (Tail::Inline(bytes), _) if bytes.len() == self.shown as usize => {
                SliceSource::Inline(Arc::clone(bytes))
            }
            (Tail::Inline(bytes), _) => SliceSource::Inline(Arc::from(&bytes[..self.shown as usize])),
            (Tail::Sealed, Some(id)) => SliceSource::Blocks { id, offset: 0, size: self.sent() },
            (Tail::Shared(offset), Some(id)) => {
                SliceSource::Blocks { id, offset: *offset, size: self.sent() }
            }
            _ => return None,
        };
        Some((chunk, Slice { pos, len: self.shown, source }))
    }

    /// Cuts the extent to end at file offset `end`, which lies within it. Blocks beyond that are removed from
    /// the store, unless a row may name them.
    pub(crate) fn cut(&mut self, end: u64, store: &BlockStore) {
        self.shown = (end - self.offset) as u32;
        if let Tail::Shared(_) = self.tail {
            // Other extents have bytes in the block, so it is not cut.
            return;
        }
        let kept = self.shown.div_ceil(BLOCK_BYTES) as usize;
        if !self.staged && kept < self.uploads.len() {
            discard(self.uploads.split_off(kept), store);
            self.seal_tail();
        }
        let sent = self.sent();
        let Tail::Open(tail) = &mut self.tail else { return };
        if self.shown >= sent {
            let kept = (self.shown - sent) as usize;
            tail.truncate(kept);
        } else {
            // The blocks are longer than the valid bytes, so nothing may follow them in this extent.
            self.seal_tail();
        }
    }

    /// Drops a tail that is still open, and its part of the grant `held`.
    fn seal_tail(&mut self) {
        if let Tail::Open(tail) = &self.tail {
            drop(self.held.split(tail.capacity() as u64));
            self.tail = Tail::Sealed;
        }
    }

    /// Copies the extent's bytes into `buf`, which holds the file's bytes from `offset` on.
    pub(crate) fn paint(&self, store: &BlockStore, offset: u64, buf: &mut [u8]) -> Result<(), ChunkError> {
        if let (Tail::Shared(at), Some(upload)) = (&self.tail, self.uploads.first()) {
            if let Some((skip, out)) = self.overlap(self.offset, self.shown, offset, buf) {
                copy_of(upload, *at as usize + skip, upload.len, out, store)?;
            }
            return Ok(());
        }
        let mut start = self.offset;
        for upload in &self.uploads {
            if let Some((skip, out)) = self.overlap(start, upload.len, offset, buf) {
                copy_of(upload, skip, self.sent(), out, store)?;
            }
            start += u64::from(upload.len);
        }
        let tail: &[u8] = match &self.tail {
            Tail::Open(bytes) => bytes,
            Tail::Inline(bytes) => bytes,
            Tail::Sealed | Tail::Shared(_) => &[],
        };
        if let Some((skip, out)) = self.overlap(start, tail.len() as u32, offset, buf) {
            out.copy_from_slice(&tail[skip..skip + out.len()]);
        }
        Ok(())
    }

    /// The blocks of an extent that is dropped, if no row names them.
    pub(crate) fn into_unnamed(self) -> Vec<Arc<Upload>> {
        if self.staged { Vec::new() } else { self.uploads }
    }

    /// The part of `buf` (the file's bytes from `offset` on) that overlaps the extent's `len` bytes at file
    /// offset `start`, and how many of these `len` bytes precede it.
    fn overlap<'b>(
        &self,
        start: u64,
        len: u32,
        offset: u64,
        buf: &'b mut [u8],
    ) -> Option<(usize, &'b mut [u8])> {
        let from = start.max(offset);
        let to = (start + u64::from(len)).min(self.end()).min(offset + buf.len() as u64);
        (from < to)
            .then(|| ((from - start) as usize, &mut buf[(from - offset) as usize..(to - offset) as usize]))
    }

    /// The number of bytes given to uploads.
    fn sent(&self) -> u32 {
        self.uploads.iter().map(|upload| upload.len).sum()
    }

    fn push(&mut self, id: SliceId, data: Vec<u8>) -> &Arc<Upload> {
        let held = self.held.split(data.capacity() as u64);
        let block = self.uploads.len();
        self.uploads.push(Upload::new(id, block as u32, pool::freeze(data), held));
        &self.uploads[block]
    }
}

/// Fills `out` with the block's bytes from `skip` on. `size` is the size of the block's slice.
fn copy_of(
    upload: &Upload,
    skip: usize,
    size: u32,
    out: &mut [u8],
    store: &BlockStore,
) -> Result<(), ChunkError> {
    match upload.bytes() {
        Some(data) => {
            out.copy_from_slice(&data[skip..skip + out.len()]);
            Ok(())
        }
        None => store.read(upload.slice, size, upload.block * BLOCK_BYTES + skip as u32, out),
    }
}

/// Stores a block once more, as a block of slice `id`. `size` is the size of the slice that the block belongs
/// to now.
///
/// # Errors
/// As for [`WriteBuffer::restage`](crate::WriteBuffer::restage).
pub(crate) fn store_again(
    upload: &Upload,
    id: SliceId,
    size: u32,
    held: MemoryGrant,
    store: &BlockStore,
    errors: &ErrorSlot,
) -> Result<Arc<Upload>, ChunkError> {
    let data = match upload.bytes() {
        Some(data) => data,
        None => {
            let mut data = pool::any(upload.len as usize);
            store.read(upload.slice, size, upload.block * BLOCK_BYTES, &mut data)?;
            pool::freeze(data)
        }
    };
    let again = Upload::new(id, upload.block, data, held);
    again.run(store, errors);
    if again.is_stored() { Ok(again) } else { Err(errors.take().unwrap_or(ChunkError::Aborted)) }
}

/// Removes, in the background, blocks that no row will ever name.
pub(crate) fn discard(uploads: Vec<Arc<Upload>>, store: &BlockStore) {
    store.spawn(move |inner| {
        for upload in uploads {
            upload.wait();
            let name = BlockName { id: upload.slice, block: upload.block, len: upload.len };
            if let Err(error) = inner.delete_block(name) {
                tracing::warn!(%error, "cannot delete an unreferenced block");
            }
        }
    });
}

/// Grows the capacity of a tail to at least `need` bytes. `grant` covers the bytes that are added for `need`.
/// While less than half of the budget is used, the tail gets spare capacity to grow.
fn grow(tail: &mut Vec<u8>, need: usize, held: &mut MemoryGrant, grant: &mut MemoryGrant) {
    let old = tail.capacity();
    if need <= old {
        return;
    }
    held.absorb(grant, (need - old) as u64);
    let is_long = need >= LONG_TAIL_BYTES;
    let roomy = if is_long { pool::BUFFER_BYTES } else { need.next_power_of_two() };
    if !held.try_grow((roomy - need) as u64) {
        tail.reserve_exact(need - tail.len());
    } else if is_long {
        let short = std::mem::replace(tail, pool::empty());
        tail.extend_from_slice(&short);
    } else {
        tail.reserve_exact(roomy - tail.len());
    }
}

/// The extent's slice number, allocated at the first call.
fn take_id(
    id: &mut Option<SliceId>,
    new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
) -> Result<SliceId, ChunkError> {
    match *id {
        Some(id) => Ok(id),
        None => Ok(*id.insert(new_id()?)),
    }
}
