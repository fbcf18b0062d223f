//! The dirty data of one open file.
//!
//! A buffer is a list of extents, oldest first; where extents overlap, the newer one wins. A write goes into
//! the newest extent that it overlaps or continues, if that can be done in place; otherwise it becomes a new
//! extent on top of all others. A large sequential write is therefore one extent per chunk, and each block is
//! uploaded as soon as it is full.
//!
//! A flush has three steps, so that the metadata commit in the middle needs no lock on the buffer:
//! [`WriteBuffer::stage`] stores all blocks and returns the rows (several rows may name one slice: see
//! [`crate::sharing`]); the caller commits the rows; [`WriteBuffer::committed`] drops the extents. Until
//! then, reads are served from the buffer.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use types::{BLOCK_BYTES, CHUNK_BYTES, ChunkIndex, Errno, Slice, SliceId};

use crate::ChunkError;
use crate::budget::{MemoryBudget, MemoryGrant};
use crate::extent::{Extent, discard, store_again};
use crate::pool;
use crate::sharing::share_slices;
use crate::store::BlockStore;
use crate::upload::{ErrorSlot, Upload};

/// The number of uploads of one file that run at once before a writer waits for the oldest.
const UPLOADS_PER_FILE: usize = 8;

/// The number of extents that one file may have before it must be flushed.
const EXTENTS_PER_FILE: usize = 1024;

/// Allocates a slice number that was never used before in the volume.
pub type NewSliceId = Box<dyn Fn() -> Result<SliceId, Errno> + Send + Sync>;

/// The state that all write buffers of a mount share.
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

/// The result of a write.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The buffer holds all of the data.
    Buffered,
    /// Nothing was written. Flush this file (stage, commit, [`WriteBuffer::committed`]) and write again. A
    /// buffer without dirty data is never full.
    Full,
    /// Nothing was written: this file holds little, and other files hold most of the budget. Flush others and
    /// write again, or use [`WriteBuffer::write_beyond`].
    BudgetUsedByOthers,
}

/// The result of [`WriteBuffer::stage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The rows to append, in commit order. Every block they name is stored.
    pub rows: Vec<(ChunkIndex, Slice)>,
    /// `rows` includes all extents with a serial number below this.
    through: u64,
}

/// The dirty data of one open file. An error neither commits nor drops data: the caller may stage again. If
/// the buffer is dropped, the blocks that no row may name are removed from the store.
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

    /// Like [`WriteBuffer::write`], but ignores the budget. The caller must flush the buffer before it
    /// continues.
    ///
    /// # Errors
    /// As for [`WriteBuffer::write`].
    pub fn write_beyond(&mut self, offset: u64, data: &[u8]) -> Result<(), ChunkError> {
        let grant = self.context.budget.grant(data.len() as u64);
        self.write_granted(offset, data, grant)
    }

    /// Buffers `data` for file offset `offset`. Waits only if this file already has many uploads running.
    ///
    /// # Errors
    /// The error of an earlier upload, which is reported once; nothing is written then. [`ChunkError::Row`]
    /// if the end is beyond 2^64 - 1. [`ChunkError::SliceId`] if no slice number can be allocated; the first
    /// part of `data` may be written then.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<Written, ChunkError> {
        match self.admit(data.len() as u64) {
            Ok(grant) => self.write_granted(offset, data, grant).map(|()| Written::Buffered),
            Err(refused) => Ok(refused),
        }
    }

    fn write_granted(&mut self, offset: u64, data: &[u8], mut grant: MemoryGrant) -> Result<(), ChunkError> {
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

    /// Copies the dirty bytes of `[offset, offset + buf.len())` over `buf`, which holds the committed bytes,
    /// or zeros.
    ///
    /// # Errors
    /// As for [`BlockStore::read`], for bytes that were already sent to the store.
    pub fn overlay(&self, offset: u64, buf: &mut [u8]) -> Result<(), ChunkError> {
        self.extents.iter().try_for_each(|extent| extent.paint(&self.context.store, offset, buf))
    }

    /// Whether dirty data covers all of `[offset, offset + len)`.
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
    pub fn is_dirty_in(&self, offset: u64, len: u64) -> bool {
        self.extents.iter().any(|extent| extent.overlaps(offset, offset.saturating_add(len)))
    }

    /// The end of the last dirty byte in the file; 0 if there is none.
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

    /// Drops the dirty data from file offset `len` on, and the errors of its uploads if no other data is
    /// left. No flush of this file may be between stage and commit at that time.
    pub fn truncate(&mut self, len: u64) {
        let (kept, dropped) =
            std::mem::take(&mut self.extents).into_iter().partition(|extent| extent.offset < len);
        self.extents = kept;
        for extent in &mut self.extents {
            if extent.end() > len {
                extent.cut(len, &self.context.store);
            }
        }
        self.discard(dropped);
        if self.extents.is_empty() {
            // Uploads that still run report their errors to the old slot.
            self.errors = ErrorSlot::default();
        }
    }

    /// Stores every dirty byte and returns the rows that name them. If `inline_limit` is given, extents of at
    /// most that many bytes are stored inside the rows; all others become slices of blocks, uploaded in
    /// parallel. Small extents share slices ([`share_slices`]). The bytes may not survive a power failure
    /// yet: pass [`Staged::slices`] to [`BlockStore::make_durable`].
    ///
    /// Idempotent: if the commit failed, staging again returns the same rows and uploads nothing twice. The
    /// caller makes sure that flushes of one file do not overlap.
    ///
    /// # Errors
    /// The error of the first failed upload ([`ChunkError::Store`]), or [`ChunkError::SliceId`]. All data
    /// remains, and the next call uploads what is missing. A background upload that failed earlier and
    /// succeeds now is not an error: nothing was lost.
    pub fn stage(&mut self, inline_limit: Option<u32>) -> Result<Staged, ChunkError> {
        if let Some(limit) = inline_limit {
            self.extents.iter_mut().for_each(|extent| extent.seal_inline(limit));
        }
        self.share()?;
        let new_id = || (self.context.new_id)().map_err(ChunkError::SliceId);
        for extent in &mut self.extents {
            extent.seal(&new_id)?;
        }
        // The old error is dropped only now: if sealing fails, no upload is tried again, so the error must
        // still be reported.
        drop(self.errors.take());
        self.upload_all()?;
        let mut rows = Vec::with_capacity(self.extents.len());
        for extent in &mut self.extents {
            extent.staged = true;
            rows.extend(extent.row());
        }
        Ok(Staged { rows, through: self.next_serial })
    }

    /// Drops the extents of `staged`, because its rows are committed, and releases their memory. Data written
    /// since stays.
    pub fn committed(&mut self, staged: &Staged) {
        self.extents.retain(|extent| !extent.staged || extent.serial >= staged.through);
    }

    /// Records that the rows of `staged` are not committed and never will be. If their data is dropped, the
    /// blocks are removed from the store. Until then, the next call of [`WriteBuffer::stage`] returns the
    /// same rows again.
    pub fn not_committed(&mut self, staged: &Staged) {
        let of_staged = |extent: &&mut Extent| extent.serial < staged.through;
        self.extents.iter_mut().filter(of_staged).for_each(|extent| extent.staged = false);
    }

    /// Stores the staged extents once more, as other slices, because it is indeterminate whether the rows
    /// that [`WriteBuffer::stage`] returned were committed. The old blocks stay in the store, because a row
    /// may name them. The next call of [`WriteBuffer::stage`] returns rows that name the new ones.
    ///
    /// # Errors
    /// As for [`WriteBuffer::stage`], or as for [`BlockStore::read`] for stored bytes; extents that are not
    /// stored again yet stay staged.
    pub fn restage(&mut self) -> Result<(), ChunkError> {
        let context = &self.context;
        let new_id = || (context.new_id)().map_err(ChunkError::SliceId);
        let (store, errors) = (&context.store, &self.errors);
        for index in 0..self.extents.len() {
            let extent = &mut self.extents[index];
            if !extent.staged {
                continue;
            }
            let Some(old) = extent.shared_block().map(Arc::clone) else {
                extent.restage(store, errors, &new_id)?;
                continue;
            };
            let again = store_again(&old, new_id()?, old.len, context.budget.grant(0), store, errors)?;
            let has_old =
                |extent: &&mut Extent| extent.shared_block().is_some_and(|it| Arc::ptr_eq(it, &old));
            self.extents.iter_mut().filter(has_old).for_each(|extent| extent.set_shared(&again));
        }
        Ok(())
    }

    /// Takes the error of a failed background upload that was not reported yet.
    pub fn take_error(&mut self) -> Option<ChunkError> {
        self.errors.take()
    }

    /// Moves the bytes of small extents into shared blocks.
    fn share(&mut self) -> Result<(), ChunkError> {
        let undecided = |(_, extent): &(usize, &Extent)| extent.undecided().is_some();
        let mut found: Vec<usize> =
            self.extents.iter().enumerate().filter(undecided).map(|(index, _)| index).collect();
        found.sort_by_key(|&index| self.extents[index].offset);
        for members in share_slices(found.iter().map(|&index| self.extents[index].shown)) {
            if members.len() < 2 {
                continue;
            }
            let members = || members.iter().map(|&member| found[member]);
            let id = (self.context.new_id)().map_err(ChunkError::SliceId)?;
            let size = members().map(|index| self.extents[index].shown as usize).sum();
            // The block gets exactly the size that the grants of the extents cover: a buffer of the pool
            // would be larger.
            let (mut block, mut held) = (Vec::with_capacity(size), self.context.budget.grant(0));
            members().for_each(|index| self.extents[index].move_to(&mut block, &mut held));
            let upload = Upload::new(id, 0, pool::freeze(block), held);
            members().for_each(|index| self.extents[index].set_shared(&upload));
        }
        Ok(())
    }

    fn admit(&self, bytes: u64) -> Result<MemoryGrant, Written> {
        if self.extents.len() >= EXTENTS_PER_FILE {
            return Err(Written::Full);
        }
        let refused = if self.dirty_bytes() < u64::from(BLOCK_BYTES) {
            Written::BudgetUsedByOthers
        } else {
            Written::Full
        };
        self.context.budget.try_grant(bytes).ok_or(refused)
    }

    fn write_in_chunk(
        &mut self,
        offset: u64,
        data: &[u8],
        grant: &mut MemoryGrant,
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

    /// The extent that can take a write of `[from, to)`: the newest one that it overlaps or continues, if the
    /// write can be done in place. An older extent must not take it, because the newer one would hide the
    /// write.
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
        let mut waiting: Vec<&Arc<Upload>> = self.uploads().filter(|upload| !upload.is_stored()).collect();
        each_once(&mut waiting, |upload| *upload);
        let mut waiting = waiting.into_iter();
        // The first upload runs on this thread, so that a small file needs no switch to another thread.
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

    /// Removes the blocks of dropped extents from the store, unless a row may name them or another extent has
    /// bytes in them.
    fn discard(&self, extents: Vec<Extent>) {
        let mut unnamed: Vec<Arc<Upload>> = extents.into_iter().flat_map(Extent::into_unnamed).collect();
        each_once(&mut unnamed, |upload| upload);
        let is_shared = |upload: &Arc<Upload>| {
            self.extents.iter().filter_map(Extent::shared_block).any(|block| Arc::ptr_eq(block, upload))
        };
        unnamed.retain(|upload| !is_shared(upload));
        if !unnamed.is_empty() {
            discard(unnamed, &self.context.store);
        }
    }
}

/// Keeps one element for each block.
fn each_once<T>(uploads: &mut Vec<T>, of: impl Fn(&T) -> &Arc<Upload>) {
    let name = |upload: &T| (of(upload).slice, of(upload).block);
    uploads.sort_by_key(name);
    uploads.dedup_by_key(|upload| name(upload));
}

impl Staged {
    /// The slices that the rows name, each once.
    pub fn slices(&self) -> Vec<SliceId> {
        let slices = self.rows.iter().filter_map(|(_, row)| match row.source {
            types::SliceSource::Blocks { id, .. } => Some(id),
            _ => None,
        });
        slices.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Drop for WriteBuffer {
    fn drop(&mut self) {
        let extents = std::mem::take(&mut self.extents);
        self.discard(extents);
    }
}
