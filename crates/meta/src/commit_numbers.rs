//! The [`Seq`] of a read, for engines whose server numbers commits but does not report which of them a read
//! saw.
//!
//! The server numbers a commit while it holds the locks on the records that the commit changes. Numbers only
//! increase, so the numbers of two commits that change the same record are in the order of the commits. A
//! read sees all commits that were acknowledged before it began, but may miss a commit that is still in
//! flight. The number of such a commit of this handle is above the newest number that was known when the
//! commit began. So a read is labelled with the newest number that was known when the oldest commit of this
//! handle in flight began. Such a label is never too new for this handle's commits. It may be too old, which
//! can only cause an unnecessary read later. It may be too new for a commit of another handle in flight, so
//! the change of such a commit invalidates what was read before its delivery, whatever the label.

use host::Instant;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::{EngineError, ErrorKind, Outcome};
use crate::record::Seq;

/// The commit numbers that one handle knows, and its own commits in flight.
#[derive(Debug, Default)]
pub struct CommitNumbers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    newest: u64,
    /// How many commits are in flight, by the newest number that was known when they began.
    in_flight: BTreeMap<u64, usize>,
    /// Commits whose end is unknown: the newest number when each began, and since when its end is unknown.
    lost: Vec<(u64, Instant)>,
}

/// A commit in flight. If it is dropped without [`Pending::done`], it counts as in flight for [`LOST_FOR`].
#[derive(Debug)]
struct Pending<'a> {
    commit_numbers: &'a CommitNumbers,
    began: u64,
    lost: bool,
}

/// After this time a server has ended any request that its client no longer waits for.
pub const LOST_FOR: Duration = Duration::from_secs(60);

impl CommitNumbers {
    /// The label for a read that begins now.
    pub fn read(&self) -> Seq {
        let mut state = self.state();
        state.lost.retain(|(_, since)| since.elapsed() < LOST_FOR);
        let lost = state.lost.iter().map(|(began, _)| *began).min();
        let oldest = state.in_flight.keys().next().copied().into_iter().chain(lost).min();
        Seq(oldest.unwrap_or(state.newest))
    }

    /// Runs `commit`, and passes it the label for its reads. If `commit` fails with an indeterminate error,
    /// it counts as in flight for [`LOST_FOR`].
    ///
    /// # Errors
    /// Those of `commit`.
    pub fn commit(
        &self,
        commit: impl FnOnce(Seq) -> Result<Vec<Outcome>, EngineError>,
    ) -> Result<Vec<Outcome>, EngineError> {
        let label = self.read();
        let pending = self.begin();
        let done = commit(label);
        match &done {
            Ok(outcomes) => pending.done(Outcome::newest(outcomes)),
            Err(error) if error.kind == ErrorKind::Indeterminate => {}
            Err(_) => pending.done(None),
        }
        done
    }

    /// Registers a commit that begins now.
    fn begin(&self) -> Pending<'_> {
        let mut state = self.state();
        let began = state.newest;
        *state.in_flight.entry(began).or_default() += 1;
        Pending { commit_numbers: self, began, lost: true }
    }

    /// Records that the commit with this number is visible to all reads that begin from now on.
    pub fn saw_commit(&self, seq: Seq) {
        let mut state = self.state();
        state.newest = state.newest.max(seq.0);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending<'_> {
    /// Records that the commit has ended. `newest` is its highest number, or `None` if it had no effect.
    fn done(mut self, newest: Option<Seq>) {
        if let Some(seq) = newest {
            self.commit_numbers.saw_commit(seq);
        }
        self.lost = false;
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = self.commit_numbers.state();
        if let Some(count) = state.in_flight.get_mut(&self.began) {
            *count -= 1;
            if *count == 0 {
                state.in_flight.remove(&self.began);
            }
        }
        if self.lost {
            state.lost.push((self.began, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_never_labelled_newer_than_a_commit_that_it_may_have_missed() {
        let numbers = CommitNumbers::default();
        numbers.begin().done(Some(Seq(10)));
        assert_eq!(numbers.read(), Seq(10));
        let slow = numbers.begin();
        numbers.begin().done(Some(Seq(12)));
        assert_eq!(numbers.read(), Seq(10), "the slow commit may get number 11");
        let later = numbers.begin();
        slow.done(Some(Seq(11)));
        assert_eq!(numbers.read(), Seq(12), "the later commit's number will be above 12");
        later.done(None);
        numbers.saw_commit(Seq(20));
        numbers.saw_commit(Seq(15));
        assert_eq!(numbers.read(), Seq(20));
    }

    #[test]
    fn an_indeterminate_commit_counts_as_in_flight() {
        let numbers = CommitNumbers::default();
        numbers.begin().done(Some(Seq(5)));
        drop(numbers.begin());
        numbers.begin().done(Some(Seq(7)));
        assert_eq!(numbers.read(), Seq(5));
    }
}
