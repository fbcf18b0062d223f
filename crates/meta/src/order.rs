//! Which [`Seq`] a read has on an engine whose server numbers commits, but cannot say which of them a read saw.
//!
//! The server gives a commit its number while it holds the locks on what it changes, so that the numbers of two commits
//! that meet in a record are in their order; and never a number below one that it gave before. A read sees all that was
//! acknowledged before it began. A commit under way then may be missed, and its number is above the newest one known
//! when it began: that is what the read is labelled with. So a label may be too old, which costs a later read, and never
//! too new.

use host::Instant;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::{EngineError, ErrorKind, Outcome};
use crate::record::Seq;

/// The numbers that one handle has heard of.
#[derive(Debug, Default)]
pub struct Order(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    newest: u64,
    /// How many commits are under way that began when this was the newest number.
    under_way: BTreeMap<u64, usize>,
    /// Commits of which nobody knows whether they are still under way, and since when.
    lost: Vec<(u64, Instant)>,
}

/// A commit under way. Dropped without [`Pending::done`], it counts as under way for another minute.
#[derive(Debug)]
struct Pending<'a> {
    order: &'a Order,
    began: u64,
    lost: bool,
}

/// After this time a server has ended whatever a client no longer waits for.
pub(crate) const LOST_FOR: Duration = Duration::from_secs(60);

impl Order {
    /// The label of a read that begins now.
    pub fn read(&self) -> Seq {
        let mut state = self.state();
        state.lost.retain(|(_, since)| since.elapsed() < LOST_FOR);
        let lost = state.lost.iter().map(|(began, _)| *began).min();
        let oldest = state.under_way.keys().next().copied().into_iter().chain(lost).min();
        Seq(oldest.unwrap_or(state.newest))
    }

    /// Has `commit` make a commit, which gets the label of what it reads. Unless it is known to be over when it fails, it
    /// counts as under way for another minute.
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

    /// A commit begins.
    fn begin(&self) -> Pending<'_> {
        let mut state = self.state();
        let began = state.newest;
        *state.under_way.entry(began).or_default() += 1;
        Pending { order: self, began, lost: true }
    }

    /// A commit of this number can be read by whoever asks from now on.
    pub fn heard(&self, seq: Seq) {
        let mut state = self.state();
        state.newest = state.newest.max(seq.0);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending<'_> {
    /// It is over, and `newest` the highest number it was given; `None` if it surely did not happen.
    fn done(mut self, newest: Option<Seq>) {
        if let Some(seq) = newest {
            self.order.heard(seq);
        }
        self.lost = false;
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = self.order.state();
        if let Some(count) = state.under_way.get_mut(&self.began) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&self.began);
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
    fn a_read_is_never_labelled_newer_than_what_it_may_have_missed() {
        let order = Order::default();
        order.begin().done(Some(Seq(10)));
        assert_eq!(order.read(), Seq(10));
        let slow = order.begin();
        order.begin().done(Some(Seq(12)));
        assert_eq!(order.read(), Seq(10), "the slow one may become 11");
        let later = order.begin();
        slow.done(Some(Seq(11)));
        assert_eq!(order.read(), Seq(12), "whatever the later one becomes, it is above 12");
        later.done(None);
        order.heard(Seq(20));
        order.heard(Seq(15));
        assert_eq!(order.read(), Seq(20));
    }

    #[test]
    fn a_commit_of_unknown_fate_counts_as_under_way() {
        let order = Order::default();
        order.begin().done(Some(Seq(5)));
        drop(order.begin());
        order.begin().done(Some(Seq(7)));
        assert_eq!(order.read(), Seq(5));
    }
}
