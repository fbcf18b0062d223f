//! Replies that are overtaken by a change of another client.
//!
//! A reply about an inode is built from records of some moment, and the kernel caches it. If the inode
//! changes meanwhile, the kernel may receive the invalidation first, when it has nothing to invalidate yet,
//! and then keep the outdated reply for its whole lifetime. So a request whose reply contains attributes or
//! names is counted from before its first read of a record until its reply is written ([`ReplyGuard`]). An
//! invalidation is sent again after the requests that began before it were answered ([`Repeats`]). No request
//! waits for that.
//!
//! Requests are counted by epochs, like SRCU in Linux counts readers: a request joins the current epoch, and
//! an invalidation ends it. A reply that took longer than [`REPLY_TRUSTED`] gets no lifetime, so a request
//! that hangs cannot delay the repetition for longer than that.
//!
//! The kernel applies a reply on the caller's thread, some time after it was written, and does not report
//! when. So an invalidation is also repeated after the pauses in [`SETTLE`].

use host::Instant;
use std::array;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use meta::Invalidation;
use types::BootInstant;

use crate::attr::Lifetimes;

/// The longest time from the beginning of a request to its reply for which the kernel may cache the reply.
pub(crate) const REPLY_TRUSTED: Duration = Duration::from_millis(500);
/// The pause before the first repetition. While requests are in flight, it doubles after each repetition, up
/// to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The pauses before the repetitions after the last reply.
const SETTLE: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// The maximum number of invalidations that wait to be repeated. If there would be more, everything is
/// invalidated.
const MAX_WAITING: usize = 50_000;
/// The number of epochs that have a counter. While the oldest of them has requests in flight, the current
/// epoch does not end, because the next one needs the counter of the oldest.
const EPOCHS: usize = 64;

/// The requests in flight, by the epoch in which each began.
#[derive(Debug)]
pub(crate) struct InFlight {
    epoch: AtomicU64,
    requests: [Count; EPOCHS],
}

/// Padded to its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

impl Default for InFlight {
    fn default() -> Self {
        InFlight { epoch: AtomicU64::new(EPOCHS as u64), requests: array::from_fn(|_| Count::default()) }
    }
}

impl InFlight {
    /// Counts a request. The request must not read a record before this returns.
    fn enter(&self) -> u64 {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            self.count(epoch).fetch_add(1, Ordering::SeqCst);
            // The epoch may have ended before this request was counted.
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return epoch;
            }
            self.leave(epoch);
        }
    }

    fn leave(&self, epoch: u64) {
        self.count(epoch).fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends the current epoch if the next one is free. All requests that began before belong to the returned
    /// epoch or to an earlier one. Called by one thread at a time (under the lock of [`Repeats`]).
    fn end_epoch(&self) -> u64 {
        let epoch = self.epoch.load(Ordering::SeqCst);
        if self.count(epoch + 1).load(Ordering::SeqCst) == 0 {
            self.epoch.store(epoch + 1, Ordering::SeqCst);
        }
        epoch
    }

    /// Whether all requests of the epoch and of earlier ones have been answered.
    fn is_answered(&self, epoch: u64) -> bool {
        // Older epochs have no requests, because their counters would not have been reused otherwise.
        let current = self.epoch.load(Ordering::SeqCst);
        let oldest = (current + 1).saturating_sub(EPOCHS as u64);
        (oldest..=epoch).all(|epoch| self.count(epoch).load(Ordering::SeqCst) == 0)
    }

    fn count(&self, epoch: u64) -> &AtomicU64 {
        &self.requests[(epoch % EPOCHS as u64) as usize].0
    }
}

/// A request whose reply contains attributes or names. Dropped when the reply has been written.
#[derive(Debug)]
#[must_use = "the request counts as answered when this is dropped"]
pub struct ReplyGuard<'a> {
    /// `None` if no other client can change the volume.
    counted: Option<(&'a InFlight, u64, BootInstant)>,
    lifetimes: Lifetimes,
}

impl<'a> ReplyGuard<'a> {
    /// Counts a request, or only stores its lifetimes if no other client can change the volume.
    ///
    /// `lifetimes` is called after the request was counted and its start was taken. If this thread is stopped
    /// between these steps and the lease expires meanwhile, the kernel still keeps no outdated reply: the
    /// lifetimes are short, or the reply is late and gets none, or the invalidation is repeated after the
    /// reply.
    pub(crate) fn new(in_flight: Option<&'a InFlight>, lifetimes: impl FnOnce() -> Lifetimes) -> Self {
        let counted = in_flight.map(|in_flight| (in_flight, in_flight.enter(), BootInstant::now()));
        ReplyGuard { counted, lifetimes: lifetimes() }
    }

    /// How long the kernel may cache the reply. The lifetimes are those from the start of the request,
    /// because the records that it read may be older than an invalidation that this client has received
    /// since.
    pub fn lifetimes(&self) -> Lifetimes {
        match self.counted {
            Some((.., began)) if began.elapsed() > REPLY_TRUSTED => Lifetimes::NONE,
            _ => self.lifetimes,
        }
    }
}

impl Drop for ReplyGuard<'_> {
    fn drop(&mut self) {
        if let Some((in_flight, epoch, _)) = self.counted {
            in_flight.leave(epoch);
        }
    }
}

/// The kernel's caches that an invalidation covers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outdated {
    Parts(Vec<Invalidation>),
    Everything,
}

/// Invalidations that were sent to the kernel and will be sent again.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    waiting: Mutex<Waiting>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    parts: usize,
}

#[derive(Debug)]
struct Batch {
    outdated: Arc<Outdated>,
    /// Requests of this epoch and of earlier ones may have read records from before the change.
    epoch: u64,
    since: Instant,
    due: Instant,
    pause: Duration,
    /// How often the invalidation was repeated after the last of those requests was answered.
    settled: usize,
}

impl Batch {
    fn parts(&self) -> usize {
        match &*self.outdated {
            Outdated::Parts(parts) => parts.len(),
            Outdated::Everything => 0,
        }
    }

    /// Schedules the next repetition after one was due; false if this was the last one.
    fn schedule_next(&mut self, now: Instant, in_flight: &InFlight) -> bool {
        let is_answered = self.settled > 0
            || in_flight.is_answered(self.epoch)
            || now.saturating_duration_since(self.since) > REPLY_TRUSTED;
        if !is_answered {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.due = now + self.pause;
            return true;
        }
        let Some(pause) = SETTLE.get(self.settled) else { return false };
        self.due = now + *pause;
        self.settled += 1;
        true
    }
}

impl Repeats {
    /// Adds an invalidation that was applied to this client's cache, before it is sent to the kernel. Returns
    /// false if there are too many: the caller must invalidate everything instead.
    pub(crate) fn add(&self, outdated: Outdated, in_flight: &InFlight) -> bool {
        let mut waiting = host::lock(&self.waiting);
        let now = Instant::now();
        let epoch = in_flight.end_epoch();
        let (due, pause) = (now + FIRST_PAUSE, FIRST_PAUSE);
        let batch = Batch { outdated: Arc::new(outdated), epoch, since: now, due, pause, settled: 0 };
        let is_all = *batch.outdated == Outdated::Everything;
        let fits = is_all || waiting.parts + batch.parts() <= MAX_WAITING;
        if is_all || !fits {
            // Everything is invalidated, now or by the caller, so the earlier invalidations need no
            // repetition.
            *waiting = Waiting::default();
        }
        if fits {
            waiting.parts += batch.parts();
            waiting.batches.push_back(batch);
        }
        drop(waiting);
        self.added.notify_one();
        fits
    }

    /// Waits until an invalidation is due, but at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut waiting = host::lock(&self.waiting);
        loop {
            let now = Instant::now();
            let due = waiting.batches.iter().map(|batch| batch.due).min();
            let next = due.map_or(until, |due| due.min(until));
            if next <= now {
                return;
            }
            waiting = host::wait_timeout(&self.added, &self.waiting, waiting, next - now);
        }
    }

    /// The invalidations to be sent again now.
    pub(crate) fn due(&self, now: Instant, in_flight: &InFlight) -> Vec<Arc<Outdated>> {
        let mut waiting = host::lock(&self.waiting);
        let mut due = Vec::new();
        let mut parts = 0;
        waiting.batches.retain_mut(|batch| {
            let is_kept = batch.due > now || {
                due.push(Arc::clone(&batch.outdated));
                batch.schedule_next(now, in_flight)
            };
            parts += if is_kept { batch.parts() } else { 0 };
            is_kept
        });
        waiting.parts = parts;
        due
    }
}

#[cfg(test)]
mod tests {
    use types::Ino;

    use super::*;

    fn change(ino: u64) -> Outdated {
        Outdated::Parts(vec![Invalidation::Inode(Ino(ino))])
    }

    #[test]
    fn epoch_is_answered_when_its_requests_and_earlier_ones_are() {
        let in_flight = InFlight::default();
        let first = in_flight.enter();
        let before = in_flight.end_epoch();
        let second = in_flight.enter();
        let between = in_flight.end_epoch();
        let third = in_flight.enter();
        assert!(first <= before && before < second && second <= between && between < third);
        in_flight.leave(second);
        assert!(!in_flight.is_answered(before) && !in_flight.is_answered(between));
        in_flight.leave(first);
        assert!(in_flight.is_answered(before) && in_flight.is_answered(between));
        in_flight.leave(third);
    }

    #[test]
    fn lifetimes_are_read_after_the_request_is_counted() {
        let in_flight = InFlight::default();
        let lifetimes = || {
            let epoch = in_flight.end_epoch();
            assert!(!in_flight.is_answered(epoch), "an invalidation now must wait for this request");
            Lifetimes::NONE
        };
        drop(ReplyGuard::new(Some(&in_flight), lifetimes));
    }

    #[test]
    fn request_that_hangs_keeps_its_epoch_unanswered() {
        let in_flight = InFlight::default();
        let hanging = in_flight.enter();
        for _ in 0..3 * EPOCHS {
            let request = in_flight.enter();
            let epoch = in_flight.end_epoch();
            assert!(request <= epoch && !in_flight.is_answered(epoch));
            in_flight.leave(request);
            assert!(!in_flight.is_answered(epoch));
        }
        in_flight.leave(hanging);
        assert!(in_flight.is_answered(in_flight.end_epoch()));
    }

    #[test]
    fn invalidation_is_repeated_until_after_the_replies_in_flight() {
        let (in_flight, repeats) = (InFlight::default(), Repeats::default());
        let request = in_flight.enter();
        assert!(repeats.add(change(7), &in_flight));
        let began = Instant::now();
        let count_until = |from: u64, to: u64| -> usize {
            (from..to).map(|ms| repeats.due(began + Duration::from_millis(ms), &in_flight).len()).sum()
        };
        assert!(count_until(0, 400) >= 5, "repeated while the request is in flight");
        in_flight.leave(request);
        assert_eq!(count_until(400, 2000), 1 + SETTLE.len(), "repeated after the reply");
        assert!(repeats.due(began + Duration::from_secs(3), &in_flight).is_empty());
    }

    #[test]
    fn repetitions_end_although_a_request_hangs() {
        let (in_flight, repeats) = (InFlight::default(), Repeats::default());
        let _request = in_flight.enter();
        assert!(repeats.add(change(7), &in_flight));
        let end = Instant::now() + REPLY_TRUSTED + LONGEST_PAUSE + SETTLE.into_iter().sum::<Duration>();
        let mut now = Instant::now();
        while now <= end {
            repeats.due(now, &in_flight);
            now += Duration::from_millis(1);
        }
        assert!(host::lock(&repeats.waiting).batches.is_empty());
    }

    #[test]
    fn slow_reply_gets_no_lifetime() {
        let in_flight = InFlight::default();
        let lifetimes = Lifetimes { name: REPLY_TRUSTED, attributes: REPLY_TRUSTED };
        let began = |ago| BootInstant::now().checked_sub(ago).unwrap();
        let guard =
            |ago| ReplyGuard { counted: Some((&in_flight, in_flight.enter(), began(ago))), lifetimes };
        assert_eq!(guard(Duration::ZERO).lifetimes(), lifetimes);
        assert_eq!(guard(REPLY_TRUSTED + Duration::from_millis(1)).lifetimes(), Lifetimes::NONE);
        assert!(in_flight.is_answered(in_flight.end_epoch()), "neither is in flight any more");
    }

    #[test]
    fn too_many_invalidations_become_one_of_everything() {
        let (in_flight, repeats) = (InFlight::default(), Repeats::default());
        let most =
            Outdated::Parts((0..MAX_WAITING as u64).map(|ino| Invalidation::Inode(Ino(ino))).collect());
        assert!(repeats.add(most, &in_flight));
        assert!(!repeats.add(change(7), &in_flight), "everything must be invalidated");
        assert!(repeats.add(Outdated::Everything, &in_flight));
        let due = repeats.due(Instant::now() + FIRST_PAUSE, &in_flight);
        assert_eq!(due, [Arc::new(Outdated::Everything)]);
    }
}
