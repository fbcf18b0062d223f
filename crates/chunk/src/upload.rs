//! The upload of one block.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use host::Instant;
use metrics::{WaitTarget, wait_on};
use types::SliceId;

use crate::ChunkError;
use crate::budget::MemoryGrant;
use crate::store::{BlockStore, Inner};

/// A block to be stored. Its bytes stay in memory, and count against the budget, until the store has them;
/// after that, reads go to the store.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) slice: SliceId,
    pub(crate) block: u32,
    pub(crate) len: u32,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
enum State {
    /// Not started, or failed and to be retried.
    Waiting(Bytes, MemoryGrant),
    Running(Bytes, MemoryGrant),
    Stored,
}

/// The first upload error of a file that was not reported yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct ErrorSlot(Arc<Mutex<Option<ChunkError>>>);

impl ErrorSlot {
    pub(crate) fn set(&self, error: ChunkError) {
        self.lock().get_or_insert(error);
    }

    pub(crate) fn take(&self) -> Option<ChunkError> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<ChunkError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    pub(crate) fn new(slice: SliceId, block: u32, data: Bytes, held: MemoryGrant) -> Arc<Self> {
        let len = data.len() as u32;
        Arc::new(Upload {
            slice,
            block,
            len,
            state: Mutex::new(State::Waiting(data, held)),
            ended: Condvar::new(),
        })
    }

    /// The bytes while they are in memory; `None` once the store has them.
    pub(crate) fn bytes(&self) -> Option<Bytes> {
        match &*self.lock() {
            State::Waiting(data, _) | State::Running(data, _) => Some(data.clone()),
            State::Stored => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(&*self.lock(), State::Running(..))
    }

    pub(crate) fn is_stored(&self) -> bool {
        matches!(&*self.lock(), State::Stored)
    }

    /// Waits until the block is stored or the attempt has failed. Returns at once if no attempt is running.
    pub(crate) fn wait(&self) {
        let mut state = self.lock();
        if !matches!(*state, State::Running(..)) {
            return;
        }
        wait_on(WaitTarget::Store("put"), || {
            let began = Instant::now();
            while matches!(*state, State::Running(..)) {
                state = host::wait(&self.ended, &self.state, state);
            }
            ((), began.elapsed())
        });
    }

    /// Stores the block on a background thread, unless it is stored or an attempt is running.
    pub(crate) fn spawn(self: &Arc<Self>, store: &BlockStore, errors: &ErrorSlot) {
        if let Some(attempt) = self.begin(errors) {
            store.spawn(move |inner| attempt.run(inner));
        }
    }

    /// Stores the block on this thread, unless it is stored or an attempt is running.
    pub(crate) fn run(self: &Arc<Self>, store: &BlockStore, errors: &ErrorSlot) {
        if let Some(attempt) = self.begin(errors) {
            attempt.run(&store.inner);
        }
    }

    fn begin(self: &Arc<Self>, errors: &ErrorSlot) -> Option<Attempt> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Stored) {
            State::Waiting(data, held) => {
                *state = State::Running(data.clone(), held);
                Some(Attempt {
                    upload: Arc::clone(self),
                    data,
                    errors: errors.clone(),
                    outcome: Err(ChunkError::Aborted),
                })
            }
            other => {
                *state = other;
                None
            }
        }
    }

    fn end(&self, stored: bool) {
        let mut state = self.lock();
        if let State::Running(data, held) = std::mem::replace(&mut *state, State::Stored)
            && !stored
        {
            *state = State::Waiting(data, held);
        }
        self.ended.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One attempt to store a block. When it ends, waiters are notified, even if it is dropped before it runs.
struct Attempt {
    upload: Arc<Upload>,
    data: Bytes,
    errors: ErrorSlot,
    outcome: Result<(), ChunkError>,
}

impl Attempt {
    fn run(mut self, inner: &Inner) {
        self.outcome = inner.put_block(self.upload.slice, self.upload.block, self.data.clone());
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.outcome, Ok(())) {
            Ok(()) => self.upload.end(true),
            Err(error) => {
                // Set the error first, so that a thread that sees the failure finds its cause.
                self.errors.set(error);
                self.upload.end(false);
            }
        }
    }
}
