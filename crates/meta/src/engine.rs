//! The boundary to a database.

use std::fmt;
use std::time::Duration;

use types::Errno;

use crate::change::Change;
use crate::record::{Facts, Node, Page, Scan, Seq, Want};
use crate::txn::Txn;

/// A metadata engine: a store of [records](crate::record) that commits [transactions](Txn). It knows no operation.
///
/// All methods may be called from many threads at once and block until done.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Reads records as of one moment, in the order of `wants`; one network round trip. Every want is answered, by
    /// absence if need be.
    ///
    /// # Errors
    /// Always determinate: a read changes nothing.
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError>;

    /// Commits each transaction by itself, in order, all in one network round trip: a later one sees what an earlier
    /// one did. Outcomes come in the order of `txns`. What touches a record together ([`runs`](crate::runs)) may be
    /// applied together.
    ///
    /// A transaction with effects whose `op_id` was committed before does nothing and is answered as committed again, so
    /// that a caller may repeat it after an indeterminate error. Results are kept until the end of the term that guards the
    /// operation ([`Guard::Term`](crate::Guard::Term), [`Txn::kept_by`]), and then they go: so what is stored is bounded by
    /// the operations of open terms, and an operation of a term that has ended is never applied, however late it arrives.
    /// Results that no term keeps are kept for a while: at least 10,000 transactions, for at least as long as the caller's
    /// handle lives, of a network engine for at least two minutes.
    ///
    /// Acknowledged means kept if the process dies; [`Engine::sync`] adds the machine's power.
    ///
    /// # Errors
    /// For all of `txns` together. [`ErrorKind::Determinate`]: none of them happened. [`ErrorKind::Indeterminate`]:
    /// some or all may have happened.
    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError>;

    /// Reads a part of a range as of one moment; one network round trip.
    ///
    /// # Errors
    /// Always determinate.
    fn scan(&self, scan: &Scan) -> Result<Page, EngineError>;

    /// Returns when everything committed so far survives a loss of power.
    ///
    /// # Errors
    /// What was committed is still there, but may not survive.
    fn sync(&self) -> Result<(), EngineError>;

    /// Removes every record.
    ///
    /// # Errors
    /// Records may be left; calling again is fine.
    fn wipe(&self) -> Result<(), EngineError>;

    /// All changes by whatever handle, this one's own included, that are committed after this returns; `None` where
    /// the engine cannot tell of them.
    ///
    /// # Errors
    /// Always determinate.
    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        Ok(None)
    }
}

/// A stream of changes, from [`Engine::watch`] on.
pub trait Changes: Send + fmt::Debug {
    /// What was committed since the last call: waits for it until something is there, at most for `wait`. Each change
    /// comes once, after it can be read; two that meet in a record come in the order of their [`Seq`]. An empty answer
    /// says that during the call the server was asked and had nothing more to tell.
    ///
    /// # Errors
    /// Changes may be missing from here on: the caller forgets what it remembers, and watches anew.
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError>;
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All guards held and all effects are applied. `nodes` are the inodes that existed before and were changed, as
    /// they stand right after this transaction, or a later one of the same call, without those that this one has
    /// removed; empty if this is the answer to a repetition.
    Committed { seq: Seq, nodes: Vec<Node> },
    /// A guard did not hold and nothing happened; the facts answer every guard's [`want`](crate::Guard::want) afresh.
    Conflict(Facts),
}

impl Outcome {
    /// The highest number that a transaction of these was given, or found.
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
    /// It did not happen. Worth another try only if `transient`.
    Determinate { transient: bool },
    /// It may have happened; only a repetition with the same `op_id` tells.
    Indeterminate,
}

/// A failure of the database, not of the operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    pub kind: ErrorKind,
    /// What the caller of the system call is told: EIO, or ENOSPC where the database's disk is full.
    pub errno: Errno,
    pub message: String,
}

impl EngineError {
    /// It did not happen and will not if tried again at once.
    pub fn permanent(message: impl Into<String>) -> Self {
        EngineError {
            kind: ErrorKind::Determinate { transient: false },
            errno: Errno::EIO,
            message: message.into(),
        }
    }

    /// It did not happen, and may if tried again.
    pub fn transient(message: impl Into<String>) -> Self {
        EngineError { kind: ErrorKind::Determinate { transient: true }, ..Self::permanent(message) }
    }

    /// It may have happened.
    pub fn indeterminate(message: impl Into<String>) -> Self {
        EngineError { kind: ErrorKind::Indeterminate, ..Self::permanent(message) }
    }

    #[must_use]
    pub fn with_errno(self, errno: Errno) -> Self {
        EngineError { errno, ..self }
    }
}
