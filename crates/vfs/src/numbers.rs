//! Fresh inode and slice numbers, leased from the volume in ranges.
//!
//! Blocks are stored before the row that names them, so `limen gc` on another machine may see blocks that nothing names
//! yet. The session's record says from which slice number on that may be so ([`Numbers::first`]). Why no slice of this
//! mount that may be stored without a row is below what the record says:
//!
//! 1. A thread that takes a number holds a [`Hold`] from before that until the row is committed or the slice is given up. Its floor
//!    is `left.start` as of its beginning.
//! 2. `left.start` never goes back: numbers are taken from it upwards, a new lease begins at the volume's counter or
//!    above, and so does [`Numbers::skip_to`]. So a number that is taken under a hold is not below its floor, and one
//!    that is taken later is not below `left.start` of now.
//! 3. `first` is the lowest of all floors and `left.start`.
//!
//! The record may be older than that: then it says less, which protects more.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use meta::{Counter, Meta};
use types::Errno;

/// How many numbers one lease takes: a round trip in so many creates. What is left at the end of a session is lost.
const LEASE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Numbers {
    meta: Arc<Meta>,
    counter: Counter,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: Range<u64>,
    /// How many holds have this floor.
    holds: BTreeMap<u64, u64>,
}

/// Numbers that are taken meanwhile may be in use without a record that says so.
#[derive(Debug)]
pub(crate) struct Hold {
    numbers: Arc<Numbers>,
    floor: u64,
}

impl Numbers {
    pub(crate) fn new(meta: &Arc<Meta>, counter: Counter) -> Self {
        let state = State { left: 0..0, holds: BTreeMap::new() };
        Numbers { meta: Arc::clone(meta), counter, state: Mutex::new(state) }
    }

    /// A number that was never given out before in the volume.
    pub(crate) fn take(&self) -> Result<u64, Errno> {
        let mut state = self.lock();
        if state.left.is_empty() {
            let first = self.meta.lease(self.counter, LEASE)?;
            state.left = first..first + LEASE;
        }
        state.left.next().ok_or(Errno::EIO)
    }

    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        let mut state = self.lock();
        let floor = state.left.start;
        *state.holds.entry(floor).or_default() += 1;
        Hold { numbers: Arc::clone(self), floor }
    }

    /// The lowest number that is in use without a record that says so, or that may yet be. See the module.
    pub(crate) fn first(&self) -> u64 {
        let state = self.lock();
        state.holds.keys().next().map_or(state.left.start, |&floor| floor.min(state.left.start))
    }

    /// Gives up the rest of the range if nothing is held and others have taken numbers since, so that a mount that does
    /// nothing does not protect their slices for ever.
    pub(crate) fn move_on(&self) -> Result<(), Errno> {
        if !self.lock().holds.is_empty() {
            return Ok(());
        }
        let next = self.meta.read_counter(self.counter)?;
        self.skip_to(next);
        Ok(())
    }

    /// Gives up the rest of the range, because the session that it was leased in is lost: `limen gc` may have read the sessions
    /// while no record of this mount was there, and then takes objects of these numbers for strays. A new lease lies beyond
    /// the counter that it read before.
    pub(crate) fn start_anew(&self) -> Result<(), Errno> {
        let next = self.meta.read_counter(self.counter)?;
        let mut state = self.lock();
        if next >= state.left.end {
            state.left = next..next;
        }
        Ok(())
    }

    /// The volume's counter was found to be `next`.
    fn skip_to(&self, next: u64) {
        let mut state = self.lock();
        if state.holds.is_empty() && next > state.left.end {
            state.left = next..next;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        host::lock(&self.state)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.numbers.lock();
        if let Some(count) = state.holds.get_mut(&self.floor) {
            *count -= 1;
            if *count == 0 {
                state.holds.remove(&self.floor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use meta::ops::AtimeMode;

    use super::*;
    use crate::fixture;

    #[test]
    fn no_number_of_a_lost_session_is_taken_after_it() {
        let (vfs, _) = fixture::volume(AtimeMode::Never);
        let numbers = Arc::new(Numbers::new(&vfs.meta, Counter::Slice));
        let early = numbers.take().unwrap();
        let hold = numbers.hold();
        let next = vfs.meta.read_counter(Counter::Slice).unwrap();
        numbers.start_anew().unwrap();
        assert!(numbers.first() <= early + 1, "what is held stays in the record");
        assert!(numbers.take().unwrap() >= next);
        drop(hold);
        assert!(numbers.first() > next);
    }

    #[test]
    fn the_first_number_never_passes_one_that_is_in_use() {
        let (vfs, _) = fixture::volume(AtimeMode::Never);
        let numbers = Arc::new(Numbers::new(&vfs.meta, Counter::Slice));
        let others = Numbers::new(&vfs.meta, Counter::Slice);
        assert_eq!(numbers.first(), 0);
        numbers.move_on().unwrap();
        let [early, late] = [(); 2].map(|()| (numbers.hold(), numbers.take().unwrap()));
        assert!(early.1 < late.1 && numbers.first() <= early.1);
        others.take().unwrap();
        numbers.move_on().unwrap();
        assert!(numbers.first() <= early.1, "it is in use");
        drop(early.0);
        assert!(numbers.first() <= late.1);
        // A whole lease is used up meanwhile.
        for _ in 0..LEASE {
            let (hold, number) = (numbers.hold(), numbers.take().unwrap());
            assert!(numbers.first() <= late.1 && late.1 < number);
            drop(hold);
        }
        drop(late.0);
        let idle = numbers.first();
        assert!(idle > late.1);
        let other = (0..2 * LEASE).map(|_| others.take().unwrap()).last().unwrap();
        numbers.move_on().unwrap();
        let first = numbers.first();
        assert!(first > other, "an idle mount does not hold others back");
        assert!(numbers.take().unwrap() >= first);
    }
}
