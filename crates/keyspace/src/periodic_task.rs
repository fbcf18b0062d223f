//! Periodic work in the background, and the operations whose results it can remove.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use meta::Txn;
use types::OpId;

use crate::batch::Done;

/// The result of an operation that no term keeps is removed only when it is older than this, and when more than
/// `REMEMBERED_OPS` results are kept.
const REMEMBERED_FOR: Duration = Duration::from_secs(180);
const REMEMBERED_OPS: usize = 16_384;

/// Operations that one handle committed and that no term keeps, oldest first.
#[derive(Debug, Default)]
pub struct CompletedOps(Mutex<VecDeque<(OpId, Instant)>>);

impl CompletedOps {
    /// Records those of the transactions that were committed now.
    pub fn note(&self, txns: &[Txn], done: &[Done]) {
        let now = Instant::now();
        let is_committed = |(_, done): &(&Txn, &Done)| matches!(done, Done::Committed { .. });
        let committed = txns.iter().zip(done).filter(is_committed).map(|(txn, _)| txn);
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.extend(committed.filter(|txn| txn.kept_by().is_none()).map(|txn| (txn.op_id, now)));
    }

    /// Returns up to `most` operations that are old enough to be dropped.
    pub fn take_old(&self, most: usize) -> Vec<OpId> {
        let mut done = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut old = Vec::new();
        while done.len() > REMEMBERED_OPS
            && old.len() < most
            && done.front().is_some_and(|(_, at)| at.elapsed() > REMEMBERED_FOR)
            && let Some((op, _)) = done.pop_front()
        {
            old.push(op);
        }
        old
    }
}

/// A thread that works periodically. It ends after this value is dropped.
#[derive(Debug)]
pub struct PeriodicTask {
    _alive: Sender<()>,
}

impl PeriodicTask {
    /// Runs `work` on `shared` at the interval `every`, until `shared` has no other owner.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start<T: Send + Sync + 'static>(
        name: &str,
        shared: &Arc<T>,
        every: Duration,
        mut work: impl FnMut(&T) + Send + 'static,
    ) -> io::Result<Self> {
        let (alive, ended) = mpsc::channel::<()>();
        let shared = Arc::downgrade(shared);
        thread::Builder::new().name(name.into()).spawn(move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let Some(shared) = shared.upgrade() else { return };
                work(&shared);
            }
        })?;
        Ok(PeriodicTask { _alive: alive })
    }
}
