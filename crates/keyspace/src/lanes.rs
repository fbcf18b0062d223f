//! The usage in parts: each writer has one of its own, a lane, so that no two write the same key.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use meta::{Guard, Txn};
use types::{SessionId, Term};

use crate::keys::Keyspace;
use crate::settle::{Claim, Write};
use crate::source::Held;
use crate::value::{Damaged, Lane, decode_lane, encode_lane};

/// Lanes beyond which they are folded, and how many at once.
const MOST_LANES: usize = 64;

/// The lanes that one handle writes: one for each commit under way, used again and again.
#[derive(Debug)]
pub struct Lanes {
    free: Mutex<Vec<u64>>,
    next: AtomicU64,
}

/// A lane in use; it is free again when dropped.
#[derive(Debug)]
pub struct Taken<'a> {
    lanes: &'a Lanes,
    number: u64,
}

impl Default for Lanes {
    /// The first number is random, so that no two handles have a lane in common.
    fn default() -> Self {
        Lanes { free: Mutex::default(), next: AtomicU64::new(RandomState::new().hash_one("lanes")) }
    }
}

impl Lanes {
    pub fn take(&self) -> Taken<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Lane 0 is where others are folded into.
        let number = free.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed).max(1));
        Taken { lanes: self, number }
    }
}

impl Taken<'_> {
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The lane to write for the transactions: if a term guards them, the lane of that term which this one stands for,
    /// because the term's end claims the heads of its lanes.
    pub fn number_for(&self, txns: &[Txn]) -> u64 {
        let lane = |guard: &Guard| match guard {
            Guard::Term { session, term } => Some(term_lane(*session, *term, self.number)),
            _ => None,
        };
        txns.iter().flat_map(|txn| &txn.guards).find_map(lane).unwrap_or(self.number)
    }
}

/// How many lanes a term has. A handle that commits more than this at once commits some of them on the same lane, where
/// they conflict and are attempted again.
const TERM_LANES: u64 = 16;

/// How many terms of a session have lanes of their own: the end of a term must not meet the commits of the next ones.
const TERMS: u64 = 4;

const SESSION_LANES: u64 = TERMS * TERM_LANES;

/// The lane of a term that stands for a lane of a handle. It is never lane 0. Should two sessions have a lane in common,
/// because their numbers are beyond 2^57, then their commits may conflict needlessly.
pub(crate) fn term_lane(session: SessionId, term: Term, lane: u64) -> u64 {
    let place = u64::from(term.0) % TERMS * TERM_LANES + lane % TERM_LANES;
    1 << 63 | session.0.wrapping_mul(SESSION_LANES) | place
}

/// All lanes of a term.
pub(crate) fn term_lanes(session: SessionId, term: Term) -> impl Iterator<Item = u64> {
    (0..TERM_LANES).map(move |lane| term_lane(session, term, lane))
}

/// All lanes of the terms of a session.
pub(crate) fn session_lanes(session: SessionId) -> impl Iterator<Item = u64> {
    (0..TERMS as u32).flat_map(move |term| term_lanes(session, Term(term)))
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.lanes.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// Lanes that are brought into one: what must be so, and what is then written.
#[derive(Debug)]
pub struct Fold {
    pub claims: Vec<Claim>,
    pub writes: Vec<Write>,
}

/// Brings the usage into one lane, should handles that are gone have left many; shares of theirs go with them. `found` is
/// all that [`Keyspace::lanes`] holds. Whoever writes one of the lanes meanwhile makes this fail, to be done another time.
///
/// # Errors
/// [`Damaged`].
pub fn fold(keys: &Keyspace, found: &[(Bytes, Held)]) -> Result<Option<Fold>, Damaged> {
    if found.len() <= MOST_LANES {
        return Ok(None);
    }
    let first = keys.lane(0);
    let (mut sum, mut claims, mut writes) = (Lane::default(), Vec::new(), Vec::new());
    // Lane 0 is the first in order, so it is among those that are folded.
    for (key, held) in found.iter().take(MOST_LANES) {
        let lane = decode_lane(key, &held.value)?;
        sum.used = sum.used.plus(lane.used);
        if *key == first {
            // While there are shares, it says so.
            sum.share = lane.share;
        }
        claims.push(Claim::Key(key.to_vec(), Some(held.version)));
        if *key != first {
            writes.push(Write::Delete(key.to_vec()));
        }
    }
    if !claims.iter().any(|claim| matches!(claim, Claim::Key(key, _) if *key == first)) {
        claims.push(Claim::Key(first.clone(), None));
    }
    writes.push(Write::Put(first, encode_lane(sum)));
    Ok(Some(Fold { claims, writes }))
}
