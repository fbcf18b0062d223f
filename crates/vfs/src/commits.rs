//! Commits: the changes of this mount to the volume, and when they become durable. A change that is committed
//! by another function of [`Meta`] counts as not yet synced only if [`Commits::note_change`] is called.
//!
//! [`Commits`] holds the slices whose blocks may not be durable yet, and whether anything was committed since
//! the last sync. It depends on [`Meta`] and the [`BlockStore`] only. Blocks become durable before the rows
//! that name them.
//!
//! The embedded engine commits lazily, and a sync covers all earlier commits of all threads. So the thread
//! that syncs must first make the blocks of *all* committed rows durable, not only those of its file.
//!
//! Lock order: `order`, then `syncing`, then `pending`, then the locks of the store and the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use chunk::BlockStore;
use client::{Failure, InDoubtTxn, MakeDurable, Meta};
use journal::Journals;
use ops::Authority;
use types::{Errno, SliceId};

use crate::caller::BY_KERNEL;
use crate::doubts::InDoubtTxns;

/// Commits of this mount.
#[derive(Debug)]
pub struct Commits {
    meta: Arc<Meta>,
    store: Arc<BlockStore>,
    /// Held shared while rows are committed, and exclusively from the last read of `pending` to the end of
    /// the sync.
    order: RwLock<()>,
    /// Slices that committed rows name, or will name, and whose blocks may not be durable.
    pending: Mutex<Vec<SliceId>>,
    /// Held while slices that were taken from `pending` are made durable: another sync must wait for them
    /// too.
    syncing: Mutex<()>,
    /// Whether anything was committed since the last sync.
    dirty: AtomicBool,
    /// The changes that failed and may still happen, and what they have left behind.
    pub(crate) in_doubt: InDoubtTxns,
}

impl Commits {
    pub(crate) fn new(meta: &Arc<Meta>, store: &Arc<BlockStore>) -> Self {
        Commits {
            meta: Arc::clone(meta),
            store: Arc::clone(store),
            order: RwLock::default(),
            pending: Mutex::default(),
            syncing: Mutex::default(),
            dirty: AtomicBool::new(false),
            in_doubt: InDoubtTxns::default(),
        }
    }

    /// From the next session on, new directories are held
    /// ([`VfsOptions::holds_directories`](crate::VfsOptions::holds_directories)). The client then makes
    /// blocks durable itself, before it commits a row that names them.
    pub(crate) fn hold_directories(&self, journals: &Arc<dyn Journals>) {
        self.meta.hold_new_directories(self.make_durable_by_client(), Arc::clone(journals));
    }

    /// The function that a client calls before it commits rows that name slices.
    pub(crate) fn make_durable_by_client(&self) -> MakeDurable {
        let store = Arc::clone(&self.store);
        Arc::new(move |slices| store.make_durable(slices).map_err(|error| sync_error(&error)))
    }

    /// Runs an operation that may change the volume and needs no access check.
    pub(crate) fn change<O: ops::Op>(&self, op: &O) -> Result<O::Reply, Errno> {
        Ok(self.change_by(op, &BY_KERNEL)?)
    }

    /// Runs an operation that may change the volume. Changes that failed before, and may still happen, are
    /// canceled first.
    pub(crate) fn change_by<O: ops::Op>(
        &self,
        op: &O,
        authority: &Authority<'_>,
    ) -> Result<O::Reply, Failure> {
        self.change_noting(op, authority, &mut false)
    }

    /// As [`Self::change_by`]. Sets `is_in_doubt` if the operation may still happen after an error.
    fn change_noting<O: ops::Op>(
        &self,
        op: &O,
        authority: &Authority<'_>,
        is_in_doubt: &mut bool,
    ) -> Result<O::Reply, Failure> {
        self.settle()?;
        let mut in_doubt = None;
        let reply = self.meta.run_cancelable(op, authority, &mut in_doubt);
        if let (Err(_), Some(in_doubt)) = (&reply, in_doubt) {
            *is_in_doubt = true;
            self.in_doubt.keep(in_doubt);
        }
        self.note_change();
        reply
    }

    /// Cancels the changes that failed and may still happen.
    ///
    /// # Errors
    /// Those of the database; the changes may then still happen.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        self.in_doubt.settle(&self.meta)
    }

    /// Runs an operation that commits rows naming `slices`, which are stored but may not be durable. If other
    /// clients share the volume, they can make the rows durable at any time. So the slices are made durable
    /// first, here or, if new directories are held, by the client ([`Self::hold_directories`]). Sets
    /// `in_doubt` if the operation may still happen after an error.
    pub(crate) fn commit_rows<O: ops::Op>(
        &self,
        op: &O,
        slices: &[SliceId],
        in_doubt: &mut bool,
    ) -> Result<O::Reply, Errno> {
        self.commit_naming(slices, || Ok(self.change_noting(op, &BY_KERNEL, in_doubt)?))
    }

    /// As [`Self::commit_rows`], for an operation that must not be retried under another id while it is in
    /// doubt: see [`Meta::run_once`](client::Meta::run_once).
    pub(crate) fn commit_rows_once<O: ops::Op<Reply = ()>>(
        &self,
        op: &O,
        slices: &[SliceId],
        in_doubt: &mut Option<InDoubtTxn>,
    ) -> Result<(), Errno> {
        self.settle()?;
        self.commit_naming(slices, || {
            let done = self.meta.run_once(op, &BY_KERNEL, in_doubt);
            self.note_change();
            Ok(done?)
        })
    }

    fn commit_naming<T>(
        &self,
        slices: &[SliceId],
        commit: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let _shared = host::read(&self.order);
        if self.meta.is_exclusive() {
            host::lock(&self.pending).extend_from_slice(slices);
        } else if !self.meta.is_holding() {
            self.make_blocks_durable(slices)?;
        }
        commit()
    }

    /// Makes the blocks of slices durable.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn make_blocks_durable(&self, slices: &[SliceId]) -> Result<(), Errno> {
        self.store.make_durable(slices).map_err(|error| sync_error(&error))
    }

    pub(crate) fn note_change(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    /// Makes everything committed so far durable, metadata and data.
    ///
    /// # Errors
    /// EIO, once, if changes in held directories were lost with a session; those of the store and the
    /// database.
    pub fn make_durable(&self) -> Result<(), Errno> {
        let done = self.sync();
        if self.meta.take_held_loss() { Err(Errno::EIO) } else { done }
    }

    /// As [`Self::make_durable`], for a caller that does not report lost changes.
    ///
    /// # Errors
    /// Those of the store and the database.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        // A change that is answered from here on may be committed only after this sync.
        self.dirty.store(false, Ordering::Release);
        self.sync_all().inspect_err(|_| self.note_change())
    }

    fn sync_all(&self) -> Result<(), Errno> {
        self.meta.settle_held()?;
        // Most of the work is done before other threads must wait for `order`.
        self.sync_pending()?;
        let _alone = host::write(&self.order);
        self.sync_pending()?;
        Ok(self.meta.sync()?)
    }

    /// As [`Self::sync`], but does nothing if nothing was committed since the last sync.
    pub(crate) fn make_durable_if_dirty(&self) -> Result<(), Errno> {
        if self.dirty.load(Ordering::Acquire) { self.sync() } else { Ok(()) }
    }

    fn sync_pending(&self) -> Result<(), Errno> {
        let _syncing = host::lock(&self.syncing);
        let slices = std::mem::take(&mut *host::lock(&self.pending));
        self.store.make_durable(&slices).map_err(|error| {
            host::lock(&self.pending).extend(slices);
            sync_error(&error)
        })
    }
}

fn sync_error(error: &chunk::ChunkError) -> Errno {
    tracing::error!(%error, "cannot make blocks durable");
    error.errno()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use chunk::{Fault, StoreCall};
    use meta::{Counting, MemEngine};
    use suite::{FaultRates, Faulty};

    use super::*;
    use crate::fixture::{format, make, mount, volume_on_files};

    #[test]
    fn a_sync_waits_for_the_blocks_that_another_one_makes_durable() {
        const SLOW: Duration = Duration::from_secs(1);
        let (vfs, faults, _directory) = volume_on_files();
        let [first, second] = ["f", "g"].map(|name| make(&vfs, name));
        for ino in [first, second] {
            vfs.files.write(ino, 0, &vec![b'x'; 300_000]).unwrap();
            vfs.files.flush(ino).unwrap();
        }
        faults.add(StoreCall::Sync, Fault::Slow(SLOW), 1000);
        thread::scope(|scope| {
            let began = Instant::now();
            // This makes the blocks of both files durable.
            scope.spawn(|| vfs.files.fsync(first).unwrap());
            while faults.injected() == 0 {
                thread::yield_now();
            }
            vfs.files.fsync(second).unwrap();
            assert!(began.elapsed() >= SLOW, "the blocks of the second file are not durable yet");
        });
    }

    #[test]
    fn a_sync_that_failed_is_tried_again() {
        let engine = Arc::new(Faulty::new(Counting::new(MemEngine::default()), 1, FaultRates::default()));
        format(&*engine);
        let vfs = mount(engine.clone());
        make(&vfs, "f");
        vfs.meta().set_retry_timeout(Duration::ZERO);
        engine.arm(true);
        engine.script([suite::Fault::Before]);
        assert_eq!(vfs.commits.make_durable_if_dirty(), Err(Errno::EIO));
        let before = engine.inner().counts().syncs;
        (0..2).for_each(|_| vfs.commits.make_durable_if_dirty().unwrap());
        assert_eq!(engine.inner().counts().syncs - before, 1);
    }
}
