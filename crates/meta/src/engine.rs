//! The interface to a metadata database.

use std::fmt;
use std::time::Duration;

use types::Errno;

use crate::change::Change;
use crate::record::{Inode, Page, RecordKey, Scan, Seq, Snapshot};
use crate::txn::Txn;

/// A metadata engine: a store of [records](crate::record) that commits [transactions](Txn). It knows nothing
/// about operations.
///
/// All methods may be called from many threads at once. They block until they are done.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Reads records as of one moment, in the order of `wants`, in one network round trip. Every record key
    /// is answered, if need be by the absence of the record.
    ///
    /// # Errors
    /// Always determinate, because a read changes nothing.
    fn read(&self, wants: &[RecordKey]) -> Result<Snapshot, EngineError>;

    /// Commits each transaction independently, in order, all in one network round trip: a later transaction
    /// sees the effects of an earlier one. Outcomes come in the order of `txns`. An engine may apply several
    /// transactions together if they do not conflict ([`conflict_free_groups`](crate::conflict_free_groups)).
    ///
    /// Retries are idempotent: a transaction with effects whose `op_id` was committed before changes nothing
    /// and is answered as committed, so a caller may repeat it after an indeterminate error. An engine keeps
    /// the result of an operation until the end of the term that guards it
    /// ([`Guard::Term`](crate::Guard::Term), [`Txn::kept_by`]), and then drops it. So the number of stored
    /// results is bounded by the operations of open terms, and an operation of a term that has ended is never
    /// applied, however late it arrives. Results that no term keeps are kept for at least 10,000 transactions
    /// and as long as the caller's handle lives; a network engine keeps them for at least two minutes.
    ///
    /// A committed transaction survives the death of the process. It survives a loss of power after
    /// [`Engine::sync`].
    ///
    /// # Errors
    /// An error is about all of `txns`. [`ErrorKind::Determinate`]: none of them was committed.
    /// [`ErrorKind::Indeterminate`]: some or all of them may have been committed.
    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError>;

    /// Reads one page of a range as of one moment, in one network round trip.
    ///
    /// # Errors
    /// Always determinate, because a scan changes nothing.
    fn scan(&self, scan: &Scan) -> Result<Page, EngineError>;

    /// Returns when everything that was committed before the call survives a loss of power.
    ///
    /// # Errors
    /// The committed transactions are still there, but may not survive a loss of power.
    fn sync(&self) -> Result<(), EngineError>;

    /// Removes all records.
    ///
    /// # Errors
    /// Some records may remain; the call can be repeated.
    fn wipe(&self) -> Result<(), EngineError>;

    /// Removes what the engine stores beside records, such as tables, if there is no record: a volume that was
    /// formatted there since stays. No handle is used after this call; only opening the database again with `create`
    /// makes another volume there.
    ///
    /// # Errors
    /// Something may be left; calling again is safe.
    fn remove(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Returns a stream of all changes that are committed after this call returns, by any handle including
    /// this one. `None` if the engine cannot report changes.
    ///
    /// # Errors
    /// Always determinate, because the call changes no record.
    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(None)
    }
}

/// A stream of changes, which begins at the call of [`Engine::watch`].
pub trait Changes: Send + fmt::Debug {
    /// Returns the changes committed since the previous call. If there are none, waits for one, for at most
    /// `wait`. Each change is delivered once, and only after it can be read. Two changes to the same record
    /// come in the order of their [`Seq`]. An empty result means that the server was queried during this call
    /// and had no further changes. A stream that polls its server first waits until its polling interval has
    /// passed since the previous poll.
    ///
    /// # Errors
    /// Changes may be missing from here on: the caller must invalidate what it has cached, and call
    /// [`Engine::watch`] again.
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError>;
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All guards held and all effects are applied. `inodes` are the inodes that existed before and were
    /// changed. Each is as of right after this transaction or a later one of the same call, and is left out
    /// if this or a later transaction of the call removed it. `inodes` is empty if the transaction had been
    /// committed before (a retry).
    Committed { seq: Seq, inodes: Vec<Inode> },
    /// A guard did not hold and nothing was changed. The snapshot has the record of every guard
    /// ([`want`](crate::Guard::want)), read again.
    Conflict(Snapshot),
}

impl Outcome {
    /// The highest [`Seq`] of the committed transactions among `outcomes`; `None` if none was committed.
    pub fn newest(outcomes: &[Outcome]) -> Option<Seq> {
        let seqs = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Committed { seq, .. } => Some(*seq),
            Outcome::Conflict(_) => None,
        });
        seqs.max()
    }
}

/// Whether a failed request may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// It had no effect. A retry is useful only if `transient`.
    Determinate { transient: bool },
    /// It may have taken effect. Only a retry with the same `op_id` can tell.
    Indeterminate,
}

/// A failure of the database, not of the operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    pub kind: ErrorKind,
    /// The errno for the caller of the system call: EIO, or ENOSPC if the database's disk is full.
    pub errno: Errno,
    pub message: String,
}

impl EngineError {
    /// The request had no effect, and would fail again if retried at once.
    pub fn permanent(message: impl Into<String>) -> Self {
        EngineError {
            kind: ErrorKind::Determinate { transient: false },
            errno: Errno::EIO,
            message: message.into(),
        }
    }

    /// The request had no effect, and may succeed if retried.
    pub fn transient(message: impl Into<String>) -> Self {
        EngineError { kind: ErrorKind::Determinate { transient: true }, ..Self::permanent(message) }
    }

    /// The request may have taken effect.
    pub fn indeterminate(message: impl Into<String>) -> Self {
        EngineError { kind: ErrorKind::Indeterminate, ..Self::permanent(message) }
    }

    /// The same error with another errno for the caller.
    #[must_use]
    pub fn with_errno(self, errno: Errno) -> Self {
        EngineError { errno, ..self }
    }
}
