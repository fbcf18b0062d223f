//! What is done now and then in the background, and which operations nobody will repeat any more.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use meta::Txn;
use types::OpId;

use crate::batch::Done;

/// Operations that no term keeps are remembered for so long, and so many of them.
const REMEMBERED_FOR: Duration = Duration::from_secs(180);
const REMEMBERED_OPS: usize = 16_384;

/// Operations that were done by one handle and that no term keeps, oldest first.
#[derive(Debug, Default)]
pub struct DoneOps(Mutex<VecDeque<(OpId, Instant)>>);

impl DoneOps {
    /// Notes those of the transactions that were committed now.
    pub fn note(&self, txns: &[Txn], done: &[Done]) {
        let now = Instant::now();
        let is_committed = |(_, done): &(&Txn, &Done)| matches!(done, Done::Committed { .. });
        let committed = txns.iter().zip(done).filter(is_committed).map(|(txn, _)| txn);
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.extend(committed.filter(|txn| txn.kept_by().is_none()).map(|txn| (txn.op_id, now)));
    }

    /// Some that are old enough to be forgotten.
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

/// A thread that works now and then; it ends when this is dropped.
#[derive(Debug)]
pub struct Upkeep {
    _alive: Sender<()>,
}

impl Upkeep {
    /// Does the work on `shared` every so often, for as long as somebody else holds that.
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
        Ok(Upkeep { _alive: alive })
    }
}
