//! The interface to a metadata database.

use std::fmt;
use std::time::Duration;

use types::Errno;

use crate::change::Change;
use crate::record::{Inode, Page, RecordKey, Scan, Seq, Snapshot};
use crate::txn::Txn;

/// Reads records as of one moment ([`Engine::open_snapshot`]). Later commits do not affect the result.
pub trait SnapshotReader: Send + fmt::Debug {
    /// As [`Engine::read`], as of that moment.
    ///
    /// # Errors
    /// The server no longer keeps the records of that moment, or the database failed.
    fn read(&mut self, keys: &[RecordKey]) -> Result<Snapshot, EngineError>;

    /// As [`Engine::scan`], as of that moment.
    ///
    /// # Errors
    /// The server no longer keeps the records of that moment, or the database failed.
    fn scan(&mut self, scan: &Scan) -> Result<Page, EngineError>;

    /// Whether the records of that moment can be read for as long as this reader exists. If not, the server
    /// keeps them for at least 30 seconds.
    fn is_lasting(&self) -> bool {
        true
    }
}

/// A metadata engine: a store of [records](crate::record) that commits [transactions](Txn). It knows nothing
/// about operations.
///
/// All methods may be called from many threads at once. They block until they are done.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Reads records as of one moment, in the order of `keys`, in one network round trip. Every record key
    /// is answered; if a record does not exist, the answer says so.
    ///
    /// # Errors
    /// Always determinate, because a read changes nothing.
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError>;

    /// Commits each transaction independently, in order: a later transaction sees the effects of an earlier
    /// one. All of them take one network round trip. Outcomes come in the order of `txns`. An engine may
    /// apply several transactions together if they do not conflict
    /// ([`conflict_free_groups`](crate::conflict_free_groups)).
    ///
    /// Retries are idempotent: if the `op_id` of a transaction with effects was committed before, the
    /// transaction changes nothing and is answered as committed. So a caller may repeat it after an
    /// indeterminate error. An engine keeps the result of an operation until the end of the term that guards
    /// the operation ([`Guard::Term`](crate::Guard::Term), [`Txn::kept_by`]), and then drops it. So the
    /// number of stored results is bounded by the operations of open terms, and an operation of a term that
    /// has ended is never applied, however late it arrives. The result of an operation without a term is kept
    /// for at least 10,000 further transactions while the caller's handle lives; a network engine keeps it
    /// for at least two minutes.
    ///
    /// A committed transaction survives the death of the process. It survives a loss of power after
    /// [`Engine::sync`].
    ///
    /// # Errors
    /// An error applies to all of `txns`. [`ErrorKind::Determinate`]: none of them was committed.
    /// [`ErrorKind::Indeterminate`]: some or all of them may have been committed.
    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError>;

    /// Reads one page of a range as of one moment, in one network round trip.
    ///
    /// # Errors
    /// Always determinate, because a scan changes nothing.
    fn scan(&self, scan: &Scan) -> Result<Page, EngineError>;

    /// Returns a reader of all records as of one moment during this call. If it
    /// [lasts](SnapshotReader::is_lasting), it has a connection of its own. `None` if the server does not
    /// keep old records.
    ///
    /// # Errors
    /// Always determinate, because the call changes nothing.
    fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        Ok(None)
    }

    /// Returns when everything that was committed before the call survives a loss of power.
    ///
    /// # Errors
    /// The committed transactions remain visible, but may not survive a loss of power.
    fn sync(&self) -> Result<(), EngineError>;

    /// Removes all records. The settings are removed last and together. Otherwise an interrupted wipe could
    /// not be repeated, because a database without settings is not recognized as a volume.
    ///
    /// # Errors
    /// Some records may remain. If any record remains, the settings remain too, and the call can be repeated.
    fn wipe(&self) -> Result<(), EngineError>;

    /// If there are no records, removes everything else that the engine stores, such as tables. If there are
    /// records, another volume was formatted in the database since [`Engine::wipe`], and nothing is removed.
    /// The handle must not be used after this call. To create another volume, the database must be opened
    /// again with `create`.
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

    /// Whether the database is a file on this machine. Each process that uses the file locks it, and the
    /// results of transactions are kept in the memory of the process.
    fn is_embedded(&self) -> bool {
        false
    }

    /// Sets whether effects that add something ([`Effect::adds`](crate::Effect::adds)) may use the disk space
    /// that an embedded engine reserves for the others. Only a replay sets this: changes that were answered
    /// must not be lost, and the volume cannot be mounted before they are committed.
    fn set_reserve_open(&self, _is_open: bool) {}
}

/// Implements the named methods of [`Engine`] by calling those of an inner engine. The path from `self` to
/// the inner engine comes first: `pass_on! { (.inner) read scan }`.
#[macro_export]
macro_rules! pass_on {
    ($inner:tt $($method:ident)+) => { $($crate::pass_on! { @$method $inner })+ };
    (@read $inner:tt) => { $crate::pass_on! { $inner @fn read(keys: &[$crate::RecordKey]) -> $crate::Snapshot } };
    (@commit $inner:tt) => { $crate::pass_on! { $inner @fn commit(txns: &[$crate::Txn]) -> Vec<$crate::Outcome> } };
    (@scan $inner:tt) => { $crate::pass_on! { $inner @fn scan(scan: &$crate::Scan) -> $crate::Page } };
    (@open_snapshot $inner:tt) => { $crate::pass_on! { $inner @fn open_snapshot() -> Option<Box<dyn $crate::SnapshotReader>> } };
    (@sync $inner:tt) => { $crate::pass_on! { $inner @fn sync() -> () } };
    (@wipe $inner:tt) => { $crate::pass_on! { $inner @fn wipe() -> () } };
    (@remove $inner:tt) => { $crate::pass_on! { $inner @fn remove() -> () } };
    (@watch $inner:tt) => { $crate::pass_on! { $inner @fn watch() -> Option<Box<dyn $crate::Changes>> } };
    (@is_embedded ($($inner:tt)+)) => { fn is_embedded(&self) -> bool { self $($inner)+ .is_embedded() } };
    (@set_reserve_open ($($inner:tt)+)) => {
        fn set_reserve_open(&self, is_open: bool) { self $($inner)+ .set_reserve_open(is_open) }
    };
    (($($inner:tt)+) @fn $method:ident($($argument:ident: $type:ty)?) -> $reply:ty) => {
        fn $method(&self $(, $argument: $type)?) -> Result<$reply, $crate::EngineError> {
            self $($inner)+ .$method($($argument)?)
        }
    };
}

/// A stream of changes, which begins at the call of [`Engine::watch`].
pub trait Changes: Send + fmt::Debug {
    /// Returns the changes committed since the previous call. If there are none, waits for one, for at most
    /// `wait`. Each change is delivered once, and only after it can be read. Two changes to the same record
    /// come in the order of their [`Seq`]. An empty result means that the server was queried during this call
    /// and had no further changes. If `wait` is zero, the result has all changes that were committed before
    /// the call. If the stream polls its server, the call first waits until the polling interval has passed
    /// since the previous poll.
    ///
    /// # Errors
    /// Changes may be missing from here on: the caller must invalidate what it has cached, and call
    /// [`Engine::watch`] again.
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError>;
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All guards held and all effects are applied. `inodes` has the inodes that existed before and were
    /// changed. Each is in its state right after this transaction or after a later one of the same call. An
    /// inode that this or a later transaction of the call removed is left out. `inodes` is empty if the
    /// transaction had been committed before (a retry).
    Committed { seq: Seq, inodes: Vec<Inode> },
    /// A guard did not hold and nothing was changed. The snapshot has the current records that decide the
    /// guards ([`Guard::key`](crate::Guard::key)).
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
    /// The request had no effect. A retry is useful only if `transient`.
    Determinate { transient: bool },
    /// The request may have taken effect. Only a retry with the same `op_id` can tell.
    Indeterminate,
}

/// A failure of the database, not of the operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    pub kind: ErrorKind,
    /// The errno for the caller of the system call. Engines set EIO, or ENOSPC if the database has no room
    /// left.
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

    /// Whether the request certainly did not happen, and would fail again, because the engine rejects it or
    /// because of too many conflicts. A smaller request may succeed.
    pub fn is_refusal(&self) -> bool {
        self.kind == ErrorKind::Determinate { transient: false } && self.errno == Errno::EIO
    }

    /// The same error with another errno for the caller.
    #[must_use]
    pub fn with_errno(self, errno: Errno) -> Self {
        EngineError { errno, ..self }
    }
}
