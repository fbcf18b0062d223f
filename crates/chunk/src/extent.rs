//! A run of dirty bytes, as they were written, on its way to become one row.

use std::sync::Arc;

use types::{BLOCK_BYTES, ChunkIndex, Slice, SliceId, SliceSource};

use crate::ChunkError;
use crate::budget::Reservation;
use crate::pool;
use crate::store::BlockStore;
use crate::upload::{ErrorSlot, Upload};

/// Dirty bytes of one chunk, contiguous. Full blocks are sent off as they fill; what follows them is the tail, which can
/// still be overwritten and extended.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) serial: u64,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    /// How many of its bytes count: all, unless a truncation cut into blocks already sent off.
    pub(crate) shown: u32,
    /// Whether its row has been handed out; nothing of it changes any more then, except that it may be cut.
    pub(crate) staged: bool,
    id: Option<SliceId>,
    /// The blocks sent off, in order, all full but the last of a sealed extent.
    uploads: Vec<Arc<Upload>>,
    tail: Tail,
    /// For the capacity of the tail, not only for its bytes.
    held: Reservation,
}

/// A tail that has come to so many bytes is given room for a whole block, for it probably becomes one, and to grow by
/// doubling is to copy most of it.
const LONG_TAIL_BYTES: usize = 256 << 10;

#[derive(Debug)]
enum Tail {
    Open(Vec<u8>),
    /// The row will carry the bytes.
    Inline(Arc<[u8]>),
    /// There is none any more: all is in the uploads.
    Sealed,
}

impl Extent {
    pub(crate) fn new(serial: u64, offset: u64, held: Reservation) -> Self {
        let tail = Tail::Open(Vec::new());
        Extent { serial, offset, shown: 0, staged: false, id: None, uploads: Vec::new(), tail, held }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.shown)
    }

    pub(crate) fn overlaps(&self, from: u64, to: u64) -> bool {
        from < self.end() && self.offset < to
    }

    /// Whether a write to `[from, ..)`, within the extent's chunk, can be done in place: it begins in the tail or where it
    /// ends.
    pub(crate) fn takes(&self, from: u64) -> bool {
        let same_chunk = ChunkIndex::of(from).0 == ChunkIndex::of(self.offset).0;
        let tail_start = self.offset + u64::from(self.sent());
        matches!(self.tail, Tail::Open(_)) && same_chunk && (tail_start..=self.end()).contains(&from)
    }

    /// Writes `data` at file offset `from`, for which [`Extent::takes`] holds, and sends off each block that fills.
    pub(crate) fn write(
        &mut self,
        from: u64,
        data: &[u8],
        grant: &mut Reservation,
        new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
        send: &mut dyn FnMut(&Arc<Upload>),
    ) -> Result<(), ChunkError> {
        let (mut at, mut rest) = ((from - self.offset) as usize, data);
        while !rest.is_empty() {
            let start = at - self.sent() as usize;
            let Tail::Open(tail) = &mut self.tail else { return Err(ChunkError::Aborted) };
            let room = BLOCK_BYTES as usize - start;
            let (now, later) = rest.split_at(room.min(rest.len()));
            // The number is had before anything changes, so that a failure leaves no full block without one.
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

    /// Settles what the extent becomes: inline bytes if it is no longer than `inline_limit` and nothing was sent off,
    /// else blocks, of which the last may be short.
    pub(crate) fn seal(
        &mut self,
        inline_limit: Option<u32>,
        new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
    ) -> Result<(), ChunkError> {
        let Tail::Open(tail) = &mut self.tail else { return Ok(()) };
        if self.id.is_none() && inline_limit.is_some_and(|limit| self.shown <= limit) {
            let tail = std::mem::take(tail);
            drop(self.held.split((tail.capacity() - tail.len()) as u64));
            self.tail = Tail::Inline(Arc::from(tail));
            return Ok(());
        }
        let id = take_id(&mut self.id, new_id)?;
        let tail = std::mem::take(tail);
        self.tail = Tail::Sealed;
        if !tail.is_empty() {
            self.push(id, tail);
        }
        Ok(())
    }

    /// Stores the blocks once more under a new number; see [`WriteBuffer::restage`](crate::WriteBuffer::restage). One block
    /// at a time is in memory for it.
    pub(crate) fn restage(
        &mut self,
        store: &BlockStore,
        errors: &ErrorSlot,
        new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
    ) -> Result<(), ChunkError> {
        let Some(old) = self.id else {
            self.staged = false;
            return Ok(());
        };
        let id = new_id()?;
        let size = self.sent();
        let mut uploads = Vec::with_capacity(self.uploads.len());
        for upload in &self.uploads {
            let data = match upload.bytes() {
                Some(data) => data,
                None => {
                    let mut data = pool::any(upload.len as usize);
                    store.read(old, size, upload.block * BLOCK_BYTES, &mut data)?;
                    pool::freeze(data)
                }
            };
            let again = Upload::new(id, upload.block, data, self.held.split(0));
            again.run(store, errors);
            if !again.is_stored() {
                return Err(errors.take().unwrap_or(ChunkError::Aborted));
            }
            uploads.push(again);
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

    /// The row, once sealed.
    pub(crate) fn row(&self) -> Option<(ChunkIndex, Slice)> {
        let (chunk, pos) = ChunkIndex::of(self.offset);
        let source = match (&self.tail, self.id) {
            (Tail::Inline(bytes), _) if bytes.len() == self.shown as usize => {
                SliceSource::Inline(Arc::clone(bytes))
            }
            (Tail::Inline(bytes), _) => SliceSource::Inline(Arc::from(&bytes[..self.shown as usize])),
            (Tail::Sealed, Some(id)) => SliceSource::Blocks { id, offset: 0, size: self.sent() },
            _ => return None,
        };
        Some((chunk, Slice { pos, len: self.shown, source }))
    }

    /// Cuts the extent to end at file offset `end`, which lies within it.
    pub(crate) fn cut(&mut self, end: u64) {
        self.shown = (end - self.offset) as u32;
        let sent = self.sent();
        let Tail::Open(tail) = &mut self.tail else { return };
        if self.shown >= sent {
            let kept = (self.shown - sent) as usize;
            tail.truncate(kept);
        } else {
            // The blocks remain longer than what counts of them, so nothing may follow them in this extent.
            // What is no longer held is given back as the split-off part drops.
            drop(self.held.split(tail.capacity() as u64));
            self.tail = Tail::Sealed;
        }
    }

    /// Copies to `buf`, the file's bytes from `offset` on, what the extent holds of them.
    pub(crate) fn paint(&self, store: &BlockStore, offset: u64, buf: &mut [u8]) -> Result<(), ChunkError> {
        let mut start = self.offset;
        for upload in &self.uploads {
            if let Some((skip, out)) = self.shared(start, upload.len, offset, buf) {
                match upload.bytes() {
                    Some(data) => out.copy_from_slice(&data[skip..skip + out.len()]),
                    None => {
                        let from = upload.block * BLOCK_BYTES + skip as u32;
                        store.read(upload.slice, self.sent(), from, out)?;
                    }
                }
            }
            start += u64::from(upload.len);
        }
        let tail: &[u8] = match &self.tail {
            Tail::Open(bytes) => bytes,
            Tail::Inline(bytes) => bytes,
            Tail::Sealed => &[],
        };
        if let Some((skip, out)) = self.shared(start, tail.len() as u32, offset, buf) {
            out.copy_from_slice(&tail[skip..skip + out.len()]);
        }
        Ok(())
    }

    /// Removes, in the background, the blocks of an extent that no row will ever name.
    pub(crate) fn discard(self, store: &BlockStore) {
        if self.staged || self.uploads.is_empty() {
            return;
        }
        let uploads = self.uploads;
        store.spawn(move |inner| {
            for upload in uploads {
                upload.wait();
                if let Err(error) = inner.delete_block(upload.slice, upload.block, upload.len) {
                    tracing::warn!(%error, "a block that nothing refers to remains");
                }
            }
        });
    }

    /// The part of `buf`, the file's bytes from `offset` on, that `len` of the extent's bytes from file offset `start` on
    /// fill, and how many of these come before it.
    fn shared<'b>(
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

    /// How many bytes have been sent off.
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

/// Gives a tail room for `need` bytes, of which `grant` holds those that are new. Memory is plentiful while less than half of
/// the budget is used: then there is room to grow.
fn grow(tail: &mut Vec<u8>, need: usize, held: &mut Reservation, grant: &mut Reservation) {
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

/// The extent's slice number, allocated when it is first needed.
fn take_id(
    id: &mut Option<SliceId>,
    new_id: &dyn Fn() -> Result<SliceId, ChunkError>,
) -> Result<SliceId, ChunkError> {
    match *id {
        Some(id) => Ok(id),
        None => Ok(*id.insert(new_id()?)),
    }
}
