//! The dirty data of one open file.
//!
//! A buffer is a list of extents, oldest first; where they overlap, the newer one holds. A write goes into the newest
//! extent it touches if it can be done there in place, and on top of all as a new extent otherwise. A large sequential
//! write thus is one extent a chunk, whose blocks leave for the store as they fill.
//!
//! To flush is three steps, so that the metadata commit in the middle needs no lock on the buffer:
//! [`WriteBuffer::stage`] stores all blocks and returns the rows; the caller commits these; [`WriteBuffer::committed`]
//! drops them. Until then the bytes are read from here.

use std::fmt;
use std::sync::Arc;

use types::{BLOCK_BYTES, CHUNK_BYTES, ChunkIndex, Errno, Slice, SliceId};

use crate::ChunkError;
use crate::budget::{MemoryBudget, Reservation};
use crate::extent::Extent;
use crate::store::BlockStore;
use crate::upload::{ErrorSlot, Upload};

/// How many uploads of one file run at once before a writer waits for the oldest.
const UPLOADS_PER_FILE: usize = 8;

/// How many extents one file may have before it must be flushed.
const EXTENTS_PER_FILE: usize = 1024;

/// Allocates a slice number that was never used in the volume.
pub type NewSliceId = Box<dyn Fn() -> Result<SliceId, Errno> + Send + Sync>;

/// What all write buffers of a mount share.
pub struct WriteContext {
    pub store: Arc<BlockStore>,
    pub budget: Arc<MemoryBudget>,
    pub new_id: NewSliceId,
}

impl fmt::Debug for WriteContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteContext")
            .field("store", &self.store)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// What became of a write.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All of it is in the buffer.
    Buffered,
    /// Nothing of it is: flush this file (stage, commit, [`WriteBuffer::committed`]) and write again. A buffer that
    /// holds nothing is never full.
    Full,
    /// Nothing of it is: this file holds little, and others hold what the budget allows. Flush others and write again, or
    /// use [`WriteBuffer::write_beyond`].
    Crowded,
}

/// What [`WriteBuffer::stage`] made of the dirty data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The rows to append, in commit order. Every block they name is stored.
    pub rows: Vec<(ChunkIndex, Slice)>,
    /// The last extent among them.
    through: u64,
}

/// The dirty data of one open file. It is neither committed nor dropped on an error: the caller may stage again. What was
/// never staged and is dropped with the buffer has its blocks removed from the store.
#[derive(Debug)]
pub struct WriteBuffer {
    context: Arc<WriteContext>,
    extents: Vec<Extent>,
    next_serial: u64,
    errors: ErrorSlot,
}

impl WriteBuffer {
    pub fn new(context: &Arc<WriteContext>) -> Self {
        WriteBuffer {
            context: Arc::clone(context),
            extents: Vec::new(),
            next_serial: 0,
            errors: ErrorSlot::default(),
        }
    }

    /// As [`WriteBuffer::write`], whatever the budget says. The caller flushes the buffer before it goes on.
    ///
    /// # Errors
    /// As [`WriteBuffer::write`].
    pub fn write_beyond(&mut self, offset: u64, data: &[u8]) -> Result<(), ChunkError> {
        let grant = self.context.budget.reserve(data.len() as u64);
        self.write_granted(offset, data, grant)
    }

    /// Buffers `data` for file offset `offset`. It waits only when this file already has many uploads running.
    ///
    /// # Errors
    /// An earlier upload's error, once, nothing being written then; [`ChunkError::SliceId`], when a part at the front of
    /// `data` may have been written; [`ChunkError::Row`] if the end is beyond 2^64.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<Written, ChunkError> {
        match self.admit(data.len() as u64) {
            Ok(grant) => self.write_granted(offset, data, grant).map(|()| Written::Buffered),
            Err(refused) => Ok(refused),
        }
    }

    fn write_granted(&mut self, offset: u64, data: &[u8], mut grant: Reservation) -> Result<(), ChunkError> {
        if let Some(error) = self.errors.take() {
            return Err(error);
        }
        let len = data.len() as u64;
        if offset.checked_add(len).is_none() {
            return Err(ChunkError::Row { offset, len, size: u64::MAX });
        }
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let room = CHUNK_BYTES - at % CHUNK_BYTES;
            let (now, later) = rest.split_at((rest.len() as u64).min(room) as usize);
            self.write_in_chunk(at, now, &mut grant)?;
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Paints the dirty bytes of `[offset, offset + buf.len())` over `buf`, which holds what is committed there, or zeros.
    ///
    /// # Errors
    /// As [`BlockStore::read`], for bytes that were already sent to the store.
    pub fn overlay(&self, offset: u64, buf: &mut [u8]) -> Result<(), ChunkError> {
        self.extents.iter().try_for_each(|extent| extent.paint(&self.context.store, offset, buf))
    }

    /// Whether the dirty data alone answers a read of `[offset, offset + len)`.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let reach = self.extents.iter().filter(|extent| extent.offset <= at).map(Extent::end).max();
            match reach {
                Some(reach) if reach > at => at = reach,
                _ => return false,
            }
        }
        true
    }

    /// Whether any dirty byte lies in `[offset, offset + len)`.
    pub fn touches(&self, offset: u64, len: u64) -> bool {
        self.extents.iter().any(|extent| extent.overlaps(offset, offset.saturating_add(len)))
    }

    /// The end of the dirty byte furthest back in the file; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.extents.iter().map(Extent::end).max().unwrap_or(0)
    }

    pub fn is_dirty(&self) -> bool {
        !self.extents.is_empty()
    }

    /// Whether part of the dirty data has a slice number, so that blocks of it may be stored.
    pub fn has_slices(&self) -> bool {
        self.extents.iter().any(Extent::has_slice)
    }

    /// The bytes not yet committed; overwritten ones may count twice.
    pub fn dirty_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.shown)).sum()
    }

    /// Drops the dirty data from file offset `len` on. No flush of this file may be between stage and commit meanwhile.
    pub fn truncate(&mut self, len: u64) {
        let (kept, gone) =
            std::mem::take(&mut self.extents).into_iter().partition(|extent| extent.offset < len);
        self.extents = kept;
        for extent in &mut self.extents {
            if extent.end() > len {
                extent.cut(len);
            }
        }
        self.discard(gone);
    }

    /// Stores every dirty byte and returns the rows that name them: extents of at most `inline_limit` bytes, if any limit
    /// is given, inside the rows; all others as slices of blocks, uploaded in parallel. The bytes may not yet survive a
    /// power failure: [`Staged::slices`] are what to give to [`BlockStore::make_durable`].
    ///
    /// Idempotent: staged again because the commit failed, the same rows come back and nothing is uploaded twice.
    /// The caller sees to it that flushes of one file do not overlap.
    ///
    /// # Errors
    /// The first failed upload's ([`ChunkError::Store`]), or [`ChunkError::SliceId`]. All data remains, and the next call
    /// uploads what is missing. A background upload that failed and succeeds now is no error: nothing was lost.
    pub fn stage(&mut self, inline_limit: Option<u32>) -> Result<Staged, ChunkError> {
        let new_id = || (self.context.new_id)().map_err(ChunkError::SliceId);
        for extent in &mut self.extents {
            extent.seal(inline_limit, &new_id)?;
        }
        // Only now, so that an error is not forgotten where no upload is tried.
        drop(self.errors.take());
        self.upload_all()?;
        let mut rows = Vec::with_capacity(self.extents.len());
        for extent in &mut self.extents {
            extent.staged = true;
            rows.extend(extent.row());
        }
        Ok(Staged { rows, through: self.next_serial })
    }

    /// Drops what `staged` holds, because its rows are committed, and gives its memory back. Data written since stays.
    pub fn committed(&mut self, staged: &Staged) {
        self.extents.retain(|extent| !extent.staged || extent.serial >= staged.through);
    }

    /// Stores what is staged once more, as other slices, because it cannot be learned whether the rows that
    /// [`WriteBuffer::stage`] gave were committed. The old blocks stay in the store, because a row may name them. The next
    /// call of [`WriteBuffer::stage`] gives rows that name the new ones.
    ///
    /// # Errors
    /// As [`WriteBuffer::stage`], or as [`BlockStore::read`] for what was stored; what is not stored again yet stays staged.
    pub fn restage(&mut self) -> Result<(), ChunkError> {
        let context = &self.context;
        let new_id = || (context.new_id)().map_err(ChunkError::SliceId);
        let errors = &self.errors;
        self.extents
            .iter_mut()
            .filter(|extent| extent.staged)
            .try_for_each(|extent| extent.restage(&context.store, errors, &new_id))
    }

    /// Takes the error of an upload in the background, if one failed and nobody was told yet.
    pub fn take_error(&mut self) -> Option<ChunkError> {
        self.errors.take()
    }

    fn admit(&self, bytes: u64) -> Result<Reservation, Written> {
        if self.extents.len() >= EXTENTS_PER_FILE {
            return Err(Written::Full);
        }
        let refused =
            if self.dirty_bytes() < u64::from(BLOCK_BYTES) { Written::Crowded } else { Written::Full };
        self.context.budget.try_reserve(bytes).ok_or(refused)
    }

    fn write_in_chunk(
        &mut self,
        offset: u64,
        data: &[u8],
        grant: &mut Reservation,
    ) -> Result<(), ChunkError> {
        let target = match self.in_place(offset, offset + data.len() as u64) {
            Some(index) => index,
            None => {
                self.extents.push(Extent::new(self.next_serial, offset, grant.split(0)));
                self.next_serial += 1;
                self.extents.len() - 1
            }
        };
        let context = &self.context;
        let new_id = || (context.new_id)().map_err(ChunkError::SliceId);
        let mut sent = Vec::new();
        let written = self.extents[target]
            .write(offset, data, grant, &new_id, &mut |upload| sent.push(Arc::clone(upload)));
        if self.extents[target].shown == 0 {
            self.extents.remove(target);
        }
        for upload in sent {
            self.wait_for_room();
            upload.spawn(&self.context.store, &self.errors);
        }
        written
    }

    /// The extent that can take a write of `[from, to)`: the newest that it overlaps or continues, if it can do so in
    /// place. An older one will not do, for the newer would hide the write.
    fn in_place(&self, from: u64, to: u64) -> Option<usize> {
        for (index, extent) in self.extents.iter().enumerate().rev() {
            if extent.takes(from) {
                return Some(index);
            }
            if extent.overlaps(from, to) {
                return None;
            }
        }
        None
    }

    fn wait_for_room(&self) {
        let running: Vec<&Arc<Upload>> = self.uploads().filter(|upload| upload.is_running()).collect();
        if running.len() >= UPLOADS_PER_FILE {
            running[0].wait();
        }
    }

    fn upload_all(&self) -> Result<(), ChunkError> {
        let store = &self.context.store;
        let mut waiting = self.uploads().filter(|upload| !upload.is_stored());
        // The first on this thread: a small file then costs no hand-over to another.
        let first = waiting.next();
        waiting.for_each(|upload| upload.spawn(store, &self.errors));
        if let Some(upload) = first {
            upload.run(store, &self.errors);
        }
        self.uploads().for_each(|upload| upload.wait());
        if self.uploads().all(|upload| upload.is_stored()) {
            return Ok(());
        }
        Err(self.errors.take().unwrap_or(ChunkError::Aborted))
    }

    fn uploads(&self) -> impl Iterator<Item = &Arc<Upload>> {
        self.extents.iter().flat_map(Extent::uploads)
    }

    fn discard(&self, extents: Vec<Extent>) {
        for extent in extents {
            extent.discard(&self.context.store);
        }
    }
}

impl Staged {
    /// The slices that the rows name.
    pub fn slices(&self) -> Vec<SliceId> {
        self.rows
            .iter()
            .filter_map(|(_, row)| match row.source {
                types::SliceSource::Blocks { id, .. } => Some(id),
                _ => None,
            })
            .collect()
    }
}

impl Drop for WriteBuffer {
    fn drop(&mut self) {
        let extents = std::mem::take(&mut self.extents);
        self.discard(extents);
    }
}
