//! What survives a loss of power: blocks before the rows that name them.
//!
//! The embedded engine commits lazily, and syncing it syncs every commit so far, whoever made it. So whoever syncs must
//! first see to the blocks of *all* rows committed by then, not only of the file at hand.
//!
//! Lock order: `order` before `pending`; both before whatever the store and the engine lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use meta::Doubt;
use types::{Errno, SliceId};

use crate::vfs::{BY_KERNEL, Vfs};

#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// Held shared while rows are committed, exclusively from the last look at `pending` to the end of the sync.
    order: RwLock<()>,
    /// Slices that rows name, or are about to, whose blocks may not be durable.
    pending: Mutex<Vec<SliceId>>,
    /// Something was committed since the last sync.
    dirty: AtomicBool,
}

impl Vfs {
    /// Runs an operation that commits rows naming `slices`, which are stored but may not be durable: where others share
    /// the volume, and may make the rows durable at any time, they are made so first.
    pub(crate) fn commit_rows<O: meta::Op>(&self, op: &O, slices: &[SliceId]) -> Result<O::Reply, Errno> {
        self.commit_naming(slices, || self.change(op))
    }

    /// As [`Vfs::commit_rows`], for an operation that must not be tried under another id while it may have happened: see
    /// [`Meta::run_once`](meta::Meta::run_once).
    pub(crate) fn commit_rows_once<O: meta::Op<Reply = ()>>(
        &self,
        op: &O,
        slices: &[SliceId],
        doubt: &mut Option<Doubt>,
    ) -> Result<(), Errno> {
        self.commit_naming(slices, || {
            let done = self.meta.run_once(op, &BY_KERNEL, doubt);
            self.note_change();
            Ok(done?)
        })
    }

    fn commit_naming<T>(
        &self,
        slices: &[SliceId],
        commit: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let _shared = host::read(&self.durability.order);
        if self.is_alone() {
            self.pending().extend_from_slice(slices);
        } else {
            self.store.make_durable(slices).map_err(|error| sync_error(&error))?;
        }
        commit()
    }

    pub(crate) fn note_change(&self) {
        self.durability.dirty.store(true, Ordering::Release);
    }

    /// Makes everything committed so far survive a loss of power, names and data.
    ///
    /// # Errors
    /// Those of the store and the database.
    pub fn make_durable(&self) -> Result<(), Errno> {
        // Most of the work is done before others have to wait.
        self.sync_pending()?;
        let _alone = host::write(&self.durability.order);
        self.sync_pending()?;
        self.durability.dirty.store(false, Ordering::Release);
        Ok(self.meta.sync()?)
    }

    /// The same, if anything was committed since the last time.
    pub(crate) fn make_durable_if_dirty(&self) -> Result<(), Errno> {
        if self.durability.dirty.load(Ordering::Acquire) { self.make_durable() } else { Ok(()) }
    }

    fn sync_pending(&self) -> Result<(), Errno> {
        let slices = std::mem::take(&mut *self.pending());
        self.store.make_durable(&slices).map_err(|error| {
            self.pending().extend(slices);
            sync_error(&error)
        })
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Vec<SliceId>> {
        self.durability.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sync_error(error: &chunk::ChunkError) -> Errno {
    tracing::error!(%error, "blocks could not be made durable");
    error.errno()
}
