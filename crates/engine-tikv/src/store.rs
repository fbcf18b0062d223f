//! The operations of TiKV that the engine uses: timestamps, reads as of a timestamp, and optimistic
//! transactions (Percolator, OSDI 2010). Tests run the engine on a store in memory that has TiKV's isolation
//! but no servers.

use std::fmt::Debug;

use bytes::Bytes;
use keyspace::Span;
use meta::EngineError;

/// A cluster. Timestamps order all events in it: milliseconds since 1970 in the upper 46 bits, a count below.
pub trait Store: Send + Sync + Debug {
    /// A timestamp greater than all earlier ones. One round trip to the placement driver.
    ///
    /// # Errors
    /// Always determinate.
    fn timestamp(&self) -> Result<u64, EngineError>;

    /// Begins a transaction: one round trip, for its timestamp.
    ///
    /// # Errors
    /// Always determinate.
    fn begin(&self, phases: Phases) -> Result<Box<dyn Attempt + '_>, EngineError>;

    /// Reads keys and ranges: everything that was committed at or before the timestamp `at`, and nothing
    /// else. If another client has left a transaction unfinished, the read commits it or rolls it back when
    /// that client can no longer do so. One round trip, because keys and ranges are requested concurrently;
    /// more only if the answer may be larger than a server sends.
    ///
    /// # Errors
    /// Always determinate; transient if the transaction of another client blocks the read.
    fn read(&self, at: u64, keys: &[Vec<u8>], spans: &[Span]) -> Result<ReadResult, EngineError>;

    /// Declares that no client will read as of a timestamp before `at`, so that older versions can be
    /// deleted.
    ///
    /// # Errors
    /// Old versions remain; the call can be repeated.
    fn forget_before(&self, at: u64) -> Result<(), EngineError>;

    /// The name of the cluster, for messages.
    fn name(&self) -> String;
}

/// An optimistic transaction. If it is dropped, it has no effect.
pub trait Attempt: Debug {
    /// The start timestamp. It identifies the transaction, and its reads are as of this timestamp.
    fn started_at(&self) -> u64;

    /// Writes all mutations or none. It succeeds only if no other transaction has written or locked any of
    /// their keys since this one began. No two mutations have the same key; the key of the first one is the
    /// primary key of the transaction.
    ///
    /// # Errors
    /// [`CommitError`].
    fn commit(self: Box<Self>, mutations: Vec<Mutation>) -> Result<(), CommitError>;
}

/// A mutation of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    Put(Vec<u8>, Bytes),
    Delete(Vec<u8>),
    /// Leaves the key unchanged, and conflicts with any transaction that changes it.
    Lock(Vec<u8>),
}

impl Mutation {
    pub fn key(&self) -> &[u8] {
        match self {
            Mutation::Put(key, _) | Mutation::Delete(key) | Mutation::Lock(key) => key,
        }
    }
}

/// How a transaction is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phases {
    /// In one round trip, if all keys are in one region; otherwise like [`Phases::Two`].
    One,
    /// Locks the keys, then commits the first of them with a timestamp of its own.
    Two,
}

/// Why a transaction was not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitError {
    /// It did not happen, because it conflicts with another transaction. It can be attempted again.
    Conflict(String),
    /// It did not happen, because the server cannot commit it in one phase, as was requested.
    OnePhaseRefused,
    Failed(EngineError),
}

impl CommitError {
    /// The error of a commit that need not succeed now, because another client or a later call does the same:
    /// a conflict is no error.
    pub(crate) fn failure(done: Result<(), CommitError>) -> Result<(), EngineError> {
        if let Err(CommitError::Failed(error)) = done { Err(error) } else { Ok(()) }
    }
}

/// The result of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadResult {
    /// In the order of the requested keys; `None` if the key does not exist.
    pub values: Vec<Option<Bytes>>,
    /// In the order of the requested ranges; each in key order.
    pub spans: Vec<Vec<(Bytes, Bytes)>>,
}
