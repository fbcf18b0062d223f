//! Group commit without a dedicated thread.
//!
//! There is one writer. A caller that finds it free becomes the leader and commits. A caller that finds it
//! busy puts its transactions into a queue and waits. The leader adds queued transactions to its own, up to
//! [`BATCH_EFFECTS`] effects, commits this batch with one COMMIT, and wakes the callers with the results. So
//! an uncontended commit stays on its thread, which matters because waking another CPU can cost as much as
//! the commit itself. Under contention, each batch contains the transactions that arrived during the previous
//! batch.
//!
//! Concurrent calls are committed in any order, as the contract of [`Engine::commit`](meta::Engine::commit)
//! permits. When there is no leader, a caller that is running becomes the leader before one that is being
//! woken. No caller starves, because each batch includes those that have waited longest.
//!
//! The engines on servers have another group commit (`Batching` in the crate `meta`, which says why).
//!
//! Lock order: `writer` before `state` before `answer`. `state` is never held while a batch is committed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use meta::{EngineError, Outcome, Txn};

/// The maximum number of effects in a batch, unless its first two members have more. It bounds the latency of
/// the batch's first member. Large transactions gain little from a common COMMIT. If a batch has few of them,
/// other threads prepare the next batch meanwhile.
const BATCH_EFFECTS: usize = 1024;

/// How many times a caller whose transactions are queued yields the CPU before it sleeps.
const YIELDS: u32 = 300;

pub(crate) type Answer = Result<Vec<Outcome>, EngineError>;

/// The writer `W` and the waiting callers. Each caller blocks its thread, so the queue is no longer than the
/// number of threads.
#[derive(Debug)]
pub(crate) struct GroupCommit<W> {
    writer: Mutex<W>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    led: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    txns: Vec<Txn>,
    answer: Mutex<Option<Answer>>,
    /// Set when the waiter is woken: it has an answer, or there is no leader.
    notified: AtomicBool,
    /// Set before the waiter sleeps, with `state` locked.
    asleep: AtomicBool,
    wake: Condvar,
}

/// The leader's role, and the batch of other callers that it commits. Dropping it passes the role on.
struct Lead<'g, W> {
    group: &'g GroupCommit<W>,
    batch: Vec<Arc<Waiter>>,
}

impl<W> GroupCommit<W> {
    pub(crate) fn new(writer: W) -> Self {
        GroupCommit { writer: Mutex::new(writer), state: Mutex::default() }
    }

    /// Commits `txns`, on this thread or another one. `work` commits a batch and returns one answer per
    /// member.
    pub(crate) fn commit(&self, txns: &[Txn], work: impl Fn(&mut W, &[&[Txn]]) -> Vec<Answer>) -> Answer {
        let mut state = lock(&self.state);
        if !state.led {
            return self.lead(state, txns, work);
        }
        let waiter = Arc::new(Waiter::new(txns));
        state.waiting.push_back(waiter.clone());
        drop(state);
        waiter.yield_until_notified();
        state = lock(&self.state);
        loop {
            if let Some(answer) = lock(&waiter.answer).take() {
                return answer;
            }
            if !state.led {
                state.waiting.retain(|other| !Arc::ptr_eq(other, &waiter));
                return self.lead(state, &waiter.txns, work);
            }
            waiter.asleep.store(true, Ordering::Relaxed);
            state = waiter.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Locks the writer for work other than transactions.
    pub(crate) fn writer(&self) -> MutexGuard<'_, W> {
        lock(&self.writer)
    }

    fn lead(
        &self,
        mut state: MutexGuard<'_, State>,
        txns: &[Txn],
        work: impl Fn(&mut W, &[&[Txn]]) -> Vec<Answer>,
    ) -> Answer {
        state.led = true;
        let mut lead = Lead { group: self, batch: state.take_batch(size(txns)) };
        drop(state);
        let own = lead.work(txns, &work);
        own.unwrap_or_else(lost)
    }
}

impl Waiter {
    fn new(txns: &[Txn]) -> Self {
        let (notified, asleep) = (AtomicBool::new(false), AtomicBool::new(false));
        Waiter { txns: txns.to_vec(), answer: Mutex::new(None), notified, asleep, wake: Condvar::new() }
    }

    /// Wakes the waiter. The leader must first store the answer, or end its lead, with `state` locked. Then a
    /// waiter that is not asleep yet sees the change before it sleeps.
    fn wake(&self) {
        self.notified.store(true, Ordering::Release);
        if self.asleep.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Yields the CPU for about as long as a commit takes, because waking a thread that sleeps takes longer.
    fn yield_until_notified(&self) {
        for _ in 0..YIELDS {
            if self.notified.load(Ordering::Acquire) {
                break;
            }
            thread::yield_now();
        }
    }
}

impl State {
    /// Takes the callers that have waited longest: as many as fit into a batch with the transactions of the
    /// leader, which have size `own`, and at least one.
    fn take_batch(&mut self, own: usize) -> Vec<Arc<Waiter>> {
        let mut total = own;
        let full = self.waiting.iter().position(|waiter| {
            total += size(&waiter.txns);
            total > BATCH_EFFECTS
        });
        let members = full.map_or(self.waiting.len(), |full| full.max(1));
        self.waiting.drain(..members).collect()
    }
}

/// The size of transactions: the number of their effects. A transaction without effects counts as one.
fn size(txns: &[Txn]) -> usize {
    txns.iter().map(|txn| txn.effects.len().max(1)).sum()
}

impl<W> Lead<'_, W> {
    /// Commits `own` together with the batch, wakes the batch's callers, and returns the answer to `own`. The
    /// leader then ends its role, and a waiting caller leads the next batch: measurements show that this is
    /// faster than one thread that leads all batches.
    fn work(&mut self, own: &[Txn], work: &impl Fn(&mut W, &[&[Txn]]) -> Vec<Answer>) -> Option<Answer> {
        let others = self.batch.iter().map(|waiter| &waiter.txns[..]);
        let members: Vec<&[Txn]> = std::iter::once(own).chain(others).collect();
        let mut answers = work(&mut lock(&self.group.writer), &members).into_iter();
        let own_answer = answers.next();
        self.wake_with(answers);
        own_answer
    }

    /// Wakes the callers of the batch, each with its answer.
    fn wake_with(&mut self, answers: impl Iterator<Item = Answer>) {
        let mut answers = answers.chain(std::iter::repeat_with(lost));
        // A waiter checks for its answer and goes to sleep with `state` locked, so the answer is also stored
        // with `state` locked.
        let state = lock(&self.group.state);
        for waiter in &self.batch {
            *lock(&waiter.answer) = answers.next();
        }
        drop(state);
        for waiter in self.batch.drain(..) {
            waiter.wake();
        }
    }
}

impl<W> Drop for Lead<'_, W> {
    fn drop(&mut self) {
        // The batch is empty unless this thread is panicking.
        self.wake_with(std::iter::empty());
        let mut state = lock(&self.group.state);
        state.led = false;
        let next = state.waiting.front().cloned();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }
}

/// The answer to a caller whose transactions a leader took, but never answered because the leader panicked.
fn lost() -> Answer {
    Err(EngineError::indeterminate("the thread that committed this transaction panicked"))
}

/// A panic leaves no inconsistent state under these locks: the writer rolls back an open transaction.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;

    use types::OpId;

    use super::*;

    fn txns(count: usize) -> Vec<Txn> {
        vec![Txn { op_id: OpId(0), guards: Vec::new(), effects: Vec::new() }; count]
    }

    /// Records the size of each member of each batch. Returns an empty answer for each.
    fn note(batches: &mut Vec<Vec<usize>>, members: &[&[Txn]]) -> Vec<Answer> {
        batches.push(members.iter().map(|txns| txns.len()).collect());
        members.iter().map(|_| Ok(Vec::new())).collect()
    }

    fn until_waiting(group: &GroupCommit<Vec<Vec<usize>>>, count: usize) {
        while lock(&group.state).waiting.len() < count {
            std::thread::yield_now();
        }
    }

    /// It is unspecified which of the waiting callers leads the next batch.
    #[test]
    fn callers_that_wait_share_the_next_batches() {
        let group = GroupCommit::new(Vec::new());
        std::thread::scope(|scope| {
            let (started, start) = mpsc::channel();
            let (release, released) = mpsc::channel::<()>();
            let first = scope.spawn(|| {
                let (started, released) = (started, released);
                group.commit(&txns(1), |batches, members| {
                    started.send(()).unwrap();
                    released.recv().unwrap();
                    note(batches, members)
                })
            });
            start.recv().unwrap();
            let mut others = Vec::new();
            for (waiting, count) in [(1, 2), (2, 3), (3, BATCH_EFFECTS - 4), (4, 5)] {
                let group = &group;
                others.push(scope.spawn(move || group.commit(&txns(count), note)));
                until_waiting(group, waiting);
            }
            release.send(()).unwrap();
            for thread in others.into_iter().chain([first]) {
                assert_eq!(thread.join().unwrap(), Ok(Vec::new()));
            }
        });
        let batches = group.writer();
        assert_eq!(batches[0], [1], "no caller waited when the first batch started: {batches:?}");
        let mut queue = vec![2, 3, BATCH_EFFECTS - 4, 5];
        for batch in &batches[1..] {
            let (leader, others) = batch.split_first().unwrap();
            queue.retain(|size| size != leader);
            // The leader takes along the callers that have waited longest, up to the first one that does not
            // fit, and at least one.
            let fit = |count: &usize| {
                *count <= 1 || leader + queue[..*count].iter().sum::<usize>() <= BATCH_EFFECTS
            };
            let longest: Vec<usize> = queue.drain(..(0..=queue.len()).rev().find(fit).unwrap()).collect();
            assert_eq!(others, longest, "{batches:?}");
        }
        assert_eq!(queue, [], "each member is committed once: {batches:?}");
        assert!(batches.len() <= 3, "{batches:?}");
    }

    #[test]
    fn waiters_continue_after_a_leader_panics() {
        let group = GroupCommit::new(Vec::new());
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                group.commit(&txns(1), |_, _| {
                    until_waiting(&group, 1);
                    panic!("on purpose")
                })
            });
            while !lock(&group.state).led {
                std::thread::yield_now();
            }
            assert_eq!(group.commit(&txns(2), note), Ok(Vec::new()));
            assert!(first.join().is_err());
        });
        let only_caller =
            catch_unwind(AssertUnwindSafe(|| group.commit(&txns(1), |_, _| panic!("on purpose"))));
        assert!(only_caller.is_err());
        assert_eq!(group.commit(&txns(3), note), Ok(Vec::new()));
    }
}
