//! The locks that this mount holds.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use meta::LockKind;
use serde::{Deserialize, Serialize};
use types::Ino;

/// A requested lock on the bytes from `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    pub kind: LockKind,
    /// The kernel's id of the lock owner.
    pub owner: u64,
    pub exclusive: bool,
    pub start: u64,
    pub end: u64,
    pub pid: u32,
}

impl LockRequest {
    /// Whether both requests are of the same owner and have a byte in common.
    fn overlaps(&self, other: LockRequest) -> bool {
        (self.kind, self.owner) == (other.kind, other.owner)
            && self.start <= other.end
            && other.start <= self.end
    }
}

/// Locks that were granted to this session and not released: if the session is lost, they are lost too. Each
/// file has the ranges of its lock owners, and the number of lock requests in flight, whose outcome is not
/// known yet.
#[derive(Debug, Default)]
pub(crate) struct Granted(Mutex<HashMap<Ino, GrantedOn>>);

#[derive(Debug, Default)]
struct GrantedOn {
    in_flight: u64,
    ranges: Vec<LockRequest>,
}

/// A lock request in flight.
pub(crate) struct InFlight<'a>(&'a Granted, Ino);

impl Granted {
    pub(crate) fn in_flight(&self, ino: Ino) -> InFlight<'_> {
        host::lock(&self.0).entry(ino).or_default().in_flight += 1;
        InFlight(self, ino)
    }

    pub(crate) fn note_granted(&self, ino: Ino, request: LockRequest) {
        self.note_released(ino, request);
        host::lock(&self.0).entry(ino).or_default().ranges.push(request);
    }

    pub(crate) fn note_released(&self, ino: Ino, request: LockRequest) {
        let LockRequest { start, end, .. } = request;
        let mut all = host::lock(&self.0);
        let Some(held) = all.get_mut(&ino) else { return };
        let cut: Vec<_> = held.ranges.extract_if(.., |range| range.overlaps(request)).collect();
        for range in cut {
            if range.start < start {
                held.ranges.push(LockRequest { end: start - 1, ..range });
            }
            if range.end > end {
                held.ranges.push(LockRequest { start: end + 1, ..range });
            }
        }
        if held.is_unused() {
            all.remove(&ino);
        }
    }

    /// Whether one of these owners of POSIX locks, or this owner of a `flock(2)` lock, holds an exclusive
    /// lock on the file.
    pub(crate) fn is_held(&self, ino: Ino, posix: &HashSet<u64>, flock: Option<u64>) -> bool {
        let is_owner = |held: &LockRequest| match held.kind {
            LockKind::Posix => posix.contains(&held.owner),
            LockKind::Flock => flock == Some(held.owner),
        };
        host::lock(&self.0)
            .get(&ino)
            .is_some_and(|held| held.ranges.iter().any(|range| range.exclusive && is_owner(range)))
    }

    /// Whether the request downgrades an exclusive lock of its owner, or a part of one, to a shared lock.
    pub(crate) fn shares(&self, ino: Ino, request: LockRequest) -> bool {
        let is_shared = |held: &LockRequest| held.exclusive && held.overlaps(request);
        let all = host::lock(&self.0);
        !request.exclusive && all.get(&ino).is_some_and(|held| held.ranges.iter().any(is_shared))
    }

    /// All held locks, for another process; `None` if a request is in flight.
    pub(crate) fn describe(&self) -> Option<Vec<(Ino, LockRequest)>> {
        let all = host::lock(&self.0);
        let ranges = |(ino, held): (&Ino, &GrantedOn)| {
            let ino = *ino;
            held.ranges.iter().map(move |range| (ino, *range)).collect::<Vec<_>>()
        };
        all.values().all(|held| held.in_flight == 0).then(|| all.iter().flat_map(ranges).collect())
    }

    /// Adds the locks that another process has described.
    pub(crate) fn restore(&self, granted: Vec<(Ino, LockRequest)>) {
        let mut all = host::lock(&self.0);
        for (ino, range) in granted {
            all.entry(ino).or_default().ranges.push(range);
        }
    }

    /// The files on which locks are held or may have been granted. All held locks are removed.
    pub(crate) fn take_all(&self) -> HashSet<Ino> {
        let mut all = host::lock(&self.0);
        let inos = all.keys().copied().collect();
        all.values_mut().for_each(|held| held.ranges.clear());
        all.retain(|_, held| !held.is_unused());
        inos
    }
}

impl GrantedOn {
    fn is_unused(&self) -> bool {
        self.in_flight == 0 && self.ranges.is_empty()
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut all = host::lock(&self.0.0);
        if let Some(held) = all.get_mut(&self.1) {
            held.in_flight -= 1;
            if held.is_unused() {
                all.remove(&self.1);
            }
        }
    }
}
