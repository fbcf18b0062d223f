//! Recalls: this client makes another session give back a directory that the other session holds (`held.rs`).
//!
//! This client writes the directory's locks again, unchanged, so that the change stream notifies the holder.
//! If the holder's session has been removed, this client itself removes the session from the directory's
//! record.

use std::cell::Cell;
use std::time::Duration;

use host::Instant;
use meta::{DIR_BYTES, Effect, EngineError, Guard, Inode, Outcome, Record, RecordKey, Txn};
use types::{BootInstant, Errno, Ino, SessionId, Time};

use crate::driver::Meta;
use crate::failure::Failure;

/// How often the recall is repeated. The holder ignores a recall that arrives before it knows that it holds
/// the directory, because the answer to the creation is still on its way.
const REPEAT_EVERY: Duration = Duration::from_millis(500);
/// The pauses between reads of the directory's record. If the holder has not given the directory back after
/// [`LIKELY_WITHIN`], it has probably stopped, and [`LATE_LOOK`] keeps the load low.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(20);
const LIKELY_WITHIN: Duration = Duration::from_secs(1);
const LATE_LOOK: Duration = Duration::from_millis(250);
/// How long a holder may take before the operation fails. It is longer than [`SILENT`], so a holder that has
/// stopped does not make the operation fail.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(180);
/// A session whose heartbeat has not changed for this long is removed, as other mounts do (`SessionTimes` of
/// the crate `vfs`).
const SILENT: Duration = Duration::from_secs(90);
/// The maximum time that counts as silence between two successive reads of the same heartbeat.
const LONGEST_GAP: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether operations of this thread fail instead of recalling a directory.
    static IS_FORBIDDEN: Cell<bool> = const { Cell::new(false) };
    /// Whether such an operation has failed.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `call`, during which each operation fails with EBUSY if it would have to recall a directory. Also
/// returns whether one has failed.
pub fn without_recalls<T>(call: impl FnOnce() -> T) -> (T, bool) {
    /// Permits recalls again when it is dropped, also after a panic, which a serving thread survives.
    struct Forbidden;
    impl Drop for Forbidden {
        fn drop(&mut self) {
            IS_FORBIDDEN.set(false);
        }
    }
    HAS_FAILED.set(false);
    IS_FORBIDDEN.set(true);
    let forbidden = Forbidden;
    let done = call();
    drop(forbidden);
    (done, HAS_FAILED.get())
}

/// Whether recalls are forbidden. If so, [`without_recalls`] will report a failure.
pub(crate) fn is_recall_forbidden() -> bool {
    let is_forbidden = IS_FORBIDDEN.get();
    if is_forbidden {
        HAS_FAILED.set(true);
    }
    is_forbidden
}

impl Meta {
    /// Returns when no other session holds the directory any more.
    ///
    /// # Errors
    /// EIO if the holder's session exists and does not give the directory back; those of the database.
    pub(crate) fn recall(&self, dir: Ino) -> Result<(), Failure> {
        let began = Instant::now();
        let mut asked: Option<Instant> = None;
        let mut pause = FIRST_LOOK;
        let mut silence: Option<(SessionId, Time, Duration)> = None;
        let mut looked = BootInstant::now();
        loop {
            let Some(holder) = self.holder_of(dir)? else { return Ok(()) };
            let keys = [RecordKey::Inode(dir), RecordKey::Session(holder), RecordKey::Locks(dir)];
            let snapshot = self.retry(|| self.engine.read(&keys))?;
            let is_gone = snapshot.records.iter().any(|record| matches!(record, Record::Session(_, None)));
            let heartbeat = snapshot.records.iter().find_map(|record| match record {
                Record::Session(id, Some(session)) => Some((*id, session.heartbeat)),
                _ => None,
            });
            // If this client or the database was suspended, only `LONGEST_GAP` of that time counts.
            let gap = looked.elapsed().min(LONGEST_GAP);
            looked = BootInstant::now();
            silence = match (heartbeat, silence) {
                (Some((id, at)), Some((known, seen, silent))) if (id, at) == (known, seen) => {
                    Some((id, at, silent + gap))
                }
                (Some((id, at)), _) => Some((id, at, Duration::ZERO)),
                (None, _) => None,
            };
            if let Some((id, at, silent)) = silence
                && silent >= SILENT
            {
                self.remove_session(id, at)?;
                continue;
            }
            let is_due = asked.is_none_or(|asked| asked.elapsed() >= REPEAT_EVERY);
            let locks = snapshot.records.iter().find_map(|record| match record {
                Record::Locks(_, locks) => Some(locks.clone()),
                _ => None,
            });
            match (is_gone, Inode::held_size(holder), locks) {
                (true, Some(size), _) => {
                    let free = vec![Effect::SetSize { ino: dir, size: DIR_BYTES }];
                    self.commit_alone(vec![Guard::Size { ino: dir, size }], free)?;
                }
                (false, _, Some(locks)) if is_due => {
                    let again = vec![Effect::PutLocks { ino: dir, locks: locks.clone() }];
                    self.commit_alone(vec![Guard::Locks { ino: dir, locks }], again)?;
                    asked = Some(Instant::now());
                }
                _ if began.elapsed() >= HOLDER_TIMEOUT => {
                    tracing::error!(%dir, %holder, "a mount does not give back a directory that it holds");
                    return Err(Errno::EIO.into());
                }
                _ if began.elapsed() >= LIKELY_WITHIN => host::sleep(LATE_LOOK),
                _ => {
                    host::sleep(pause);
                    pause = (pause * 2).min(LONGEST_LOOK);
                }
            }
        }
    }

    /// The other session that holds a directory, as the database has it.
    fn holder_of(&self, dir: Ino) -> Result<Option<SessionId>, Failure> {
        let snapshot = self.retry(|| self.engine.read(&[RecordKey::Inode(dir)]))?;
        Ok(match snapshot.records.first() {
            Some(Record::Inode(_, Some(inode))) => inode.holder().filter(|holder| *holder != self.session()),
            _ => None,
        })
    }

    /// Commits one transaction and ignores its result, because the caller reads the record again.
    fn commit_alone(&self, guards: Vec<Guard>, effects: Vec<Effect>) -> Result<(), Failure> {
        let ticket = self.terms.next_op(self.session())?;
        let guards = self.with_own_guard(guards, ticket.id)?;
        let txn = Txn { op_id: ticket.id, guards, effects };
        let outcome = self.retry(|| {
            let outcome = self.engine.commit(std::slice::from_ref(&txn))?.pop();
            outcome.ok_or_else(|| EngineError::indeterminate("the engine returned no outcome"))
        })?;
        match outcome {
            Outcome::Conflict(snapshot) => self.check_own(&txn.guards, &snapshot),
            Outcome::Committed { .. } => Ok(()),
        }
    }
}
