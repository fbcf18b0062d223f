//! What the engine needs of TiKV: timestamps, reads as of one of them, and optimistic transactions (Percolator's, OSDI
//! 2010). Tests run the engine on a store of their own that has TiKV's isolation and none of its servers.

use std::fmt::Debug;

use bytes::Bytes;
use keyspace::Span;
use meta::EngineError;

/// A cluster. Timestamps order all that happens in it: milliseconds since 1970 in the upper 46 bits, a count below.
pub trait Store: Send + Sync + Debug {
    /// A timestamp later than all that were given before. One round trip, to the placement driver.
    ///
    /// # Errors
    /// Always determinate.
    fn timestamp(&self) -> Result<u64, EngineError>;

    /// Begins a transaction: one round trip, for its timestamp.
    ///
    /// # Errors
    /// Always determinate.
    fn begin(&self, phases: Phases) -> Result<Box<dyn Attempt + '_>, EngineError>;

    /// Reads keys and ranges: all that was committed by the timestamp `at`, and nothing else. What a client left half
    /// done is completed or undone on the way, once it is certain that it will not do so itself. One round trip: keys
    /// and ranges are asked for side by side, wherever they lie; more only for ranges without a limit.
    ///
    /// # Errors
    /// Always determinate; transient where another client's transaction stays in the way.
    fn read(&self, at: u64, keys: &[Vec<u8>], spans: &[Span]) -> Result<Found, EngineError>;

    /// Nobody reads as of a timestamp before `at` any more.
    ///
    /// # Errors
    /// Old versions stay; calling again is fine.
    fn forget_before(&self, at: u64) -> Result<(), EngineError>;

    /// What answers, for people.
    fn name(&self) -> String;
}

/// An optimistic transaction. One that is dropped has done nothing.
pub trait Attempt: Debug {
    /// Its timestamp: its number in the cluster, and what it reads as of.
    fn started_at(&self) -> u64;

    /// Writes all of the mutations, or none: all of them if since the transaction began no other has written or locked
    /// any of their keys. No two mutations have a key in common; the first one's is the key that decides for all.
    ///
    /// # Errors
    /// [`CommitError`].
    fn commit(self: Box<Self>, mutations: Vec<Mutation>) -> Result<(), CommitError>;
}

/// What a transaction does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    Put(Vec<u8>, Bytes),
    Delete(Vec<u8>),
    /// The key stays as it is; that it did is what the transaction rests on.
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
    /// In one round trip, if all its keys lie in one region; otherwise as by [`Phases::Two`].
    One,
    /// The keys are locked, then the first of them is committed by a timestamp of its own.
    Two,
}

/// Why a transaction was not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitError {
    /// It did not happen: another transaction was faster. Worth another attempt.
    Conflict(String),
    /// It did not happen: the server cannot commit it in one phase, though it was asked to.
    OnePhaseRefused,
    Failed(EngineError),
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In the order of the keys asked for; `None` where there is nothing.
    pub values: Vec<Option<Bytes>>,
    /// In the order of the ranges asked for; each in the order of its keys.
    pub spans: Vec<Vec<(Bytes, Bytes)>>,
}
