//! Periodic work in the background, and the operations whose results it can remove.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use meta::Txn;
use types::OpId;

use crate::batch::Done;

/// While there are more than `REMEMBERED_OPS` results that no term keeps ([`Txn::kept_by`]), those older than
/// this are removed, oldest first.
const REMEMBERED_FOR: Duration = Duration::from_secs(180);
const REMEMBERED_OPS: usize = 16_384;

/// Operations that one handle committed and that no term keeps, oldest first.
#[derive(Debug, Default)]
pub struct CompletedOps(Mutex<VecDeque<(OpId, Instant)>>);

impl CompletedOps {
    /// Records the transactions that `done` reports as committed, except those whose result a term keeps.
    pub fn note(&self, txns: &[Txn], done: &[Done]) {
        let now = Instant::now();
        let is_committed = |(_, done): &(&Txn, &Done)| matches!(done, Done::Committed { .. });
        let committed = txns.iter().zip(done).filter(is_committed).map(|(txn, _)| txn);
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.extend(committed.filter(|txn| txn.kept_by().is_none()).map(|txn| (txn.op_id, now)));
    }

    /// Calls `remove` with the oldest operations whose results may be removed, at most `most` of them, and
    /// drops these operations from the list if `remove` succeeds. If there are none, does not call `remove`
    /// and returns false. Only one thread at a time may call this.
    ///
    /// # Errors
    /// Those of `remove`. The operations are then passed again by the next call.
    pub fn remove_old<E>(
        &self,
        most: usize,
        remove: impl FnOnce(&[OpId]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = lock();
        let spare = done.len().saturating_sub(REMEMBERED_OPS).min(most);
        let is_old = |at: &Instant| at.elapsed() > REMEMBERED_FOR;
        let old: Vec<OpId> =
            done.iter().take(spare).take_while(|(_, at)| is_old(at)).map(|(op, _)| *op).collect();
        drop(done);
        if old.is_empty() {
            return Ok(false);
        }
        remove(&old)?;
        // In the meantime, operations were added only at the end.
        lock().drain(..old.len());
        Ok(true)
    }
}

/// A thread that works periodically. It ends after this value is dropped.
#[derive(Debug)]
pub struct PeriodicTask {
    _alive: Sender<()>,
}

impl PeriodicTask {
    /// Runs `work` on `shared`, each time after a pause of `every`, until `shared` has no owner any more or
    /// the returned value is dropped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_whose_removal_failed_are_removed_later() {
        let at = Instant::now().checked_sub(2 * REMEMBERED_FOR).expect("the machine runs for some minutes");
        let count = REMEMBERED_OPS + 3;
        let ops = CompletedOps(Mutex::new((0..count).map(|op| (OpId(op as u128), at)).collect()));
        assert_eq!(ops.remove_old(2, |_| Err("the server is away")), Err("the server is away"));
        let mut removed = Vec::new();
        let mut step = || {
            ops.remove_old(2, |old| {
                removed.extend_from_slice(old);
                Ok::<(), ()>(())
            })
        };
        assert_eq!([step(), step(), step()], [Ok(true), Ok(true), Ok(false)]);
        assert_eq!(removed, [OpId(0), OpId(1), OpId(2)]);
    }
}
