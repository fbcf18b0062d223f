//! New inode and slice numbers, leased from the volume in ranges.
//!
//! Blocks are stored before the row that names them, so `limen gc` on another machine may see blocks that no
//! row names yet. The session's record says from which slice number on that is possible
//! ([`NumberAllocator::first`]). No slice of this mount that may be stored without a row is below that
//! number, because:
//!
//! 1. A thread gets an [`AllocationGuard`] before it takes a number, and keeps the guard until the row is
//!    committed or the slice is given up. The floor of the guard is `left.start` when the guard is created.
//! 2. `left.start` never decreases: numbers are taken from it upwards, a new lease begins at the volume's
//!    counter or above, and [`NumberAllocator::advance`] and [`NumberAllocator::discard_lease`] raise it to
//!    that counter. So a number that is taken under a guard is not below the guard's floor, and a number that
//!    is taken later is not below the current `left.start`.
//! 3. `first` is the minimum of all floors, `left.start`, and the slice numbers in rows that are queued for a
//!    commit.
//! 4. A commit that was given up in doubt may still arrive and name slices whose guard was dropped. So if a
//!    guard is dropped while there is such a commit, its floor counts until there is no such commit any more.
//!
//! The record may be outdated: then its number is lower, which protects more slices.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use client::Meta;
use meta::Counter;
use types::Errno;

/// Numbers per lease: one round trip for this many creates. Numbers that are left at the end of a session are
/// lost.
const LEASE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct NumberAllocator {
    meta: Arc<Meta>,
    counter: Counter,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: Range<u64>,
    /// The number of guards per floor.
    guards: BTreeMap<u64, u64>,
    /// The lowest floor of the guards that were dropped while a commit was in doubt.
    in_doubt: Option<u64>,
}

impl State {
    /// The lowest floor that counts.
    fn floor(&mut self, meta: &Meta) -> Option<u64> {
        if !meta.is_in_doubt() {
            self.in_doubt = None;
        }
        self.guards.keys().next().copied().into_iter().chain(self.in_doubt).min()
    }
}

/// While this exists, numbers may be in use that no row names yet.
#[derive(Debug)]
pub(crate) struct AllocationGuard {
    numbers: Arc<NumberAllocator>,
    floor: u64,
}

impl NumberAllocator {
    pub(crate) fn new(meta: &Arc<Meta>, counter: Counter) -> Self {
        let state = State { left: 0..0, guards: BTreeMap::new(), in_doubt: None };
        NumberAllocator { meta: Arc::clone(meta), counter, state: Mutex::new(state) }
    }

    /// A number that was never used before in the volume.
    pub(crate) fn take(&self) -> Result<u64, Errno> {
        let mut state = host::lock(&self.state);
        if state.left.is_empty() {
            let first = self.meta.lease(self.counter, LEASE)?;
            state.left = first..first + LEASE;
        }
        state.left.next().ok_or(Errno::EIO)
    }

    pub(crate) fn guard(self: &Arc<Self>) -> AllocationGuard {
        let mut state = host::lock(&self.state);
        let floor = state.left.start;
        *state.guards.entry(floor).or_default() += 1;
        AllocationGuard { numbers: Arc::clone(self), floor }
    }

    /// The lowest number that may be in use, now or later, although no row names it. See the module
    /// documentation.
    pub(crate) fn first(&self) -> u64 {
        let first = {
            let mut state = host::lock(&self.state);
            let floor = state.floor(&self.meta);
            floor.map_or(state.left.start, |floor| floor.min(state.left.start))
        };
        // Read this after the floors, because a row is queued before the guard of its slices is dropped.
        self.queued().map_or(first, |queued| queued.min(first))
    }

    /// The lowest number in a row that is not committed yet.
    fn queued(&self) -> Option<u64> {
        let slice = self.meta.first_queued_slice().filter(|_| self.counter == Counter::Slice);
        slice.map(|slice| slice.0)
    }

    /// Gives up the rest of the range if there is no guard and other clients have leased numbers since, so
    /// that an idle mount does not protect the slices of other clients forever.
    pub(crate) fn advance(&self) -> Result<(), Errno> {
        if host::lock(&self.state).floor(&self.meta).is_some() || self.queued().is_some() {
            return Ok(());
        }
        let next = self.meta.read_counter(self.counter)?;
        let mut state = host::lock(&self.state);
        if state.floor(&self.meta).is_none() && next > state.left.end {
            state.left = next..next;
        }
        Ok(())
    }

    /// Gives up the rest of the range, because the session in which it was leased was lost: `limen gc` may
    /// have read the sessions while this mount had no record, and then treats objects with these numbers as
    /// unreferenced. A new lease is above the counter that `limen gc` read before.
    pub(crate) fn discard_lease(&self) -> Result<(), Errno> {
        let next = self.meta.read_counter(self.counter)?;
        let mut state = host::lock(&self.state);
        if next >= state.left.end {
            state.left = next..next;
        }
        Ok(())
    }
}

impl Drop for AllocationGuard {
    fn drop(&mut self) {
        let mut state = host::lock(&self.numbers.state);
        if self.numbers.meta.is_in_doubt() {
            state.in_doubt = Some(state.in_doubt.map_or(self.floor, |floor| floor.min(self.floor)));
        }
        if let Some(count) = state.guards.get_mut(&self.floor) {
            *count -= 1;
            if *count == 0 {
                state.guards.remove(&self.floor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meta::MemEngine;
    use ops::AtimeMode;
    use suite::{Fault, FaultRates, Faulty};

    use super::*;
    use crate::fixture;

    #[test]
    fn no_number_leased_in_a_lost_session_is_taken_later() {
        let (vfs, _) = fixture::volume(AtimeMode::Never);
        let numbers = Arc::new(NumberAllocator::new(vfs.meta(), Counter::Slice));
        let early = numbers.take().unwrap();
        let guard = numbers.guard();
        let next = vfs.meta().read_counter(Counter::Slice).unwrap();
        numbers.discard_lease().unwrap();
        assert!(numbers.first() <= early + 1, "the numbers under a guard stay protected");
        assert!(numbers.take().unwrap() >= next);
        drop(guard);
        assert!(numbers.first() > next);
    }

    #[test]
    fn slices_of_a_commit_in_doubt_are_protected_after_the_close_until_it_can_no_longer_arrive() {
        let engine = Arc::new(Faulty::new(MemEngine::default(), 1, FaultRates::default()));
        fixture::format(&*engine);
        let vfs = fixture::mount(engine.clone());
        vfs.meta().set_lifetime(Duration::from_secs(60));
        let [other, ino] = ["other", "f"].map(|name| fixture::make(&vfs, name));
        vfs.files.write(other, 0, &[1; 100_000]).unwrap();
        vfs.files.close(other).unwrap();
        vfs.files.write(ino, 0, &[1; 100_000]).unwrap();
        let floor = vfs.base.slices.first();
        engine.arm(true);
        vfs.meta().set_retry_timeout(Duration::ZERO);
        engine.script([Fault::Late, Fault::Late]);
        assert_eq!(vfs.files.flush(ino), Err(Errno::EIO));
        assert_eq!(vfs.files.close(ino), Err(Errno::EIO));
        engine.script([]);
        vfs.base.slices.advance().unwrap();
        assert_eq!(vfs.base.slices.first(), floor);
        // The flush thread makes the same call.
        vfs.base.abandoned.settle(None).unwrap();
        for names in [["a", "b"], ["c", "d"]] {
            for name in names {
                fixture::make(&vfs, name);
            }
            vfs.meta().begin_next_term().unwrap();
        }
        assert!(vfs.base.slices.first() > floor);
    }

    #[test]
    fn first_number_is_never_above_one_in_use() {
        let (vfs, _) = fixture::volume(AtimeMode::Never);
        let numbers = Arc::new(NumberAllocator::new(vfs.meta(), Counter::Slice));
        let others = NumberAllocator::new(vfs.meta(), Counter::Slice);
        assert_eq!(numbers.first(), 0);
        numbers.advance().unwrap();
        let [early, late] = [(); 2].map(|()| (numbers.guard(), numbers.take().unwrap()));
        assert!(early.1 < late.1 && numbers.first() <= early.1);
        others.take().unwrap();
        numbers.advance().unwrap();
        assert!(numbers.first() <= early.1, "it is in use");
        drop(early.0);
        assert!(numbers.first() <= late.1);
        // A whole lease is used up meanwhile.
        for _ in 0..LEASE {
            let (guard, number) = (numbers.guard(), numbers.take().unwrap());
            assert!(numbers.first() <= late.1 && late.1 < number);
            drop(guard);
        }
        drop(late.0);
        let idle = numbers.first();
        assert!(idle > late.1);
        let other = (0..2 * LEASE).map(|_| others.take().unwrap()).last().unwrap();
        numbers.advance().unwrap();
        let first = numbers.first();
        assert!(first > other, "an idle mount does not protect the slices of others");
        assert!(numbers.take().unwrap() >= first);
    }
}
