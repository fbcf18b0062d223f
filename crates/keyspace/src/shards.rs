//! The usage, divided into shards. Each writer has its own shard, so that no two writers write the same key.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use meta::{Guard, Txn};
use types::{SessionId, Term};

use crate::keys::Keyspace;
use crate::source::StoredValue;
use crate::value::{Damaged, UsageShard, decode_shard, encode_shard};
use crate::writes::{KeyWrite, Precondition};

/// If there are more shards than this, a merge combines this many of them.
const MAX_SHARDS: usize = 64;

/// The shards that one handle writes: one for each commit in flight. Later commits reuse them.
#[derive(Debug)]
pub struct ShardPool {
    free: Mutex<Vec<u64>>,
    next: AtomicU64,
}

/// A shard in use; it is free again when dropped.
#[derive(Debug)]
pub struct TakenShard<'a> {
    shards: &'a ShardPool,
    number: u64,
}

impl Default for ShardPool {
    /// The first number is random, so that two handles almost surely share no shard.
    fn default() -> Self {
        ShardPool { free: Mutex::default(), next: AtomicU64::new(RandomState::new().hash_one("shards")) }
    }
}

impl ShardPool {
    pub fn take(&self) -> TakenShard<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Shard 0 is the one into which others are merged.
        let number = free.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed).max(1));
        TakenShard { shards: self, number }
    }
}

impl TakenShard<'_> {
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The shard that a commit of the transactions writes. If a term guards the transactions, the shard is
    /// one of that term's, because the end of the term has preconditions on the heads of the term's shards.
    pub fn number_for(&self, txns: &[Txn]) -> u64 {
        let shard = |guard: &Guard| match guard {
            Guard::Term { session, term } => Some(term_shard(*session, *term, self.number)),
            _ => None,
        };
        txns.iter().flat_map(|txn| &txn.guards).find_map(shard).unwrap_or(self.number)
    }
}

/// The number of shards of a term. If a handle has more commits in flight than this, some of them use the
/// same shard, where they conflict and are retried.
const SHARDS_PER_TERM: u64 = 16;

/// The number of consecutive terms of a session that have separate shards, because the end of a term must not
/// conflict with commits of the next terms.
const TERMS: u64 = 4;

const SHARDS_PER_SESSION: u64 = TERMS * SHARDS_PER_TERM;

/// The shard of a term for a commit that has taken `shard`. It is never shard 0. Two sessions can share a
/// shard only if one of their ids is 2^57 or greater; then their commits may conflict needlessly.
pub(crate) fn term_shard(session: SessionId, term: Term, shard: u64) -> u64 {
    let place = u64::from(term.0) % TERMS * SHARDS_PER_TERM + shard % SHARDS_PER_TERM;
    1 << 63 | session.0.wrapping_mul(SHARDS_PER_SESSION) | place
}

/// All shards of a term.
pub(crate) fn term_shards(session: SessionId, term: Term) -> impl Iterator<Item = u64> {
    (0..SHARDS_PER_TERM).map(move |shard| term_shard(session, term, shard))
}

/// All shards of the terms of a session.
pub(crate) fn session_shards(session: SessionId) -> impl Iterator<Item = u64> {
    (0..TERMS as u32).flat_map(move |term| term_shards(session, Term(term)))
}

/// The number of the key on which a transaction that refers to ACLs has a precondition, if it writes this
/// usage shard. Commits at the same time have different shards, so they rarely have the same key.
pub(crate) fn acl_users(shard: u64) -> u8 {
    // Multiplying by 2^64 divided by the golden ratio (Fibonacci hashing) gives neighbouring shards numbers
    // that are far apart.
    (shard.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Drop for TakenShard<'_> {
    fn drop(&mut self) {
        self.shards.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// A merge of shards: the preconditions, and the writes if all of them hold.
#[derive(Debug)]
pub struct ShardMerge {
    pub preconditions: Vec<Precondition>,
    pub writes: Vec<KeyWrite>,
}

/// If closed handles have left many usage shards, merges some of them into shard 0 and drops their
/// reservations. `found` has all shards, [`Keyspace::usage_shards`]. If another writer writes one of the
/// shards in the meantime, a precondition fails, and a later call merges them.
///
/// # Errors
/// [`Damaged`].
pub fn merge_shards(keys: &Keyspace, found: &[(Bytes, StoredValue)]) -> Result<Option<ShardMerge>, Damaged> {
    if found.len() <= MAX_SHARDS {
        return Ok(None);
    }
    let first = keys.usage_shard(0);
    let (mut sum, mut preconditions, mut writes) = (UsageShard::default(), Vec::new(), Vec::new());
    // Shard 0 is the first in key order, so if it exists it is among the merged ones.
    for (key, held) in found.iter().take(MAX_SHARDS) {
        let shard = decode_shard(key, &held.value)?;
        sum.used = sum.used.plus(shard.used);
        if *key == first {
            // The mark that there are reservations; see the module `reservation`.
            sum.reservation = shard.reservation;
        }
        preconditions.push(Precondition::Key(key.to_vec(), Some(held.version)));
        if *key != first {
            writes.push(KeyWrite::Delete(key.to_vec()));
        }
    }
    if !preconditions
        .iter()
        .any(|precondition| matches!(precondition, Precondition::Key(key, _) if *key == first))
    {
        preconditions.push(Precondition::Key(first.clone(), None));
    }
    writes.push(KeyWrite::Put(first, encode_shard(sum)));
    Ok(Some(ShardMerge { preconditions, writes }))
}
