//! Group commit without a thread of its own.
//!
//! There is one writer. A caller who finds it free takes the lead, and commits; a caller who finds it taken leaves its
//! transactions in the queue, and sleeps. The leader takes all that is queued into its next batch, one COMMIT for all
//! of it, and wakes their owners with the answers. So an uncontended commit never leaves its thread, which matters where
//! waking another CPU costs as much as the commit itself; under contention each batch carries what arrived during the
//! one before.
//!
//! Calls that overlap are committed in any order, as the contract of [`Engine::commit`](meta::Engine::commit) has it: a
//! caller that is awake when the lead is free takes it before one that is being woken. No caller is passed over again and
//! again, because each batch takes along those that have waited longest.
//!
//! Lock order: `writer` before `state` before `answer`. `state` is never held while a batch is worked on.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use meta::{EngineError, Outcome, Txn};

/// How many transactions of others make a batch full, lest its first member wait long.
const BATCH_TXNS: usize = 256;

/// How often a caller whose transactions wait lets others run before it sleeps.
const YIELDS: u32 = 300;

pub(crate) type Answer = Result<Vec<Outcome>, EngineError>;

/// The writer `W` and those who wait for it: never more than there are threads, since each of them blocks.
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
    /// It was woken, or would have been: there is an answer, or nobody leads.
    told: AtomicBool,
    /// Set with the state locked, before it sleeps.
    asleep: AtomicBool,
    wake: Condvar,
}

/// The lead, and the batch of others being worked on. Dropping it hands the lead on.
struct Lead<'g, W> {
    group: &'g GroupCommit<W>,
    batch: Vec<Arc<Waiter>>,
}

impl<W> GroupCommit<W> {
    pub(crate) fn new(writer: W) -> Self {
        GroupCommit { writer: Mutex::new(writer), state: Mutex::default() }
    }

    /// Has `txns` committed, by this thread or another, through `work`, which gives each member of a batch an answer.
    pub(crate) fn commit(&self, txns: &[Txn], work: impl Fn(&mut W, &[&[Txn]]) -> Vec<Answer>) -> Answer {
        let mut state = lock(&self.state);
        if !state.led {
            return self.lead(state, txns, work);
        }
        let waiter = Arc::new(Waiter::new(txns));
        state.waiting.push_back(waiter.clone());
        drop(state);
        waiter.yield_until_told();
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

    /// The writer for something other than transactions.
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
        let mut lead = Lead { group: self, batch: state.take_batch() };
        drop(state);
        let own = lead.work(txns, &work);
        own.unwrap_or_else(lost)
    }
}

impl Waiter {
    fn new(txns: &[Txn]) -> Self {
        let (told, asleep) = (AtomicBool::new(false), AtomicBool::new(false));
        Waiter { txns: txns.to_vec(), answer: Mutex::new(None), told, asleep, wake: Condvar::new() }
    }

    /// What it is woken for was done with the state locked: if it does not sleep by now, it sees that before it would.
    fn wake(&self) {
        self.told.store(true, Ordering::Release);
        if self.asleep.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Lets others run for about as long as a commit takes. Who sleeps is woken by the kernel only after that.
    fn yield_until_told(&self) {
        for _ in 0..YIELDS {
            if self.told.load(Ordering::Acquire) {
                break;
            }
            thread::yield_now();
        }
    }
}

impl State {
    fn take_batch(&mut self) -> Vec<Arc<Waiter>> {
        let mut txns = 0;
        let full = self.waiting.iter().position(|waiter| {
            txns += waiter.txns.len();
            txns > BATCH_TXNS
        });
        // A member larger than a batch still makes one of its own.
        let members = full.map_or(self.waiting.len(), |full| full.max(1));
        self.waiting.drain(..members).collect()
    }
}

impl<W> Lead<'_, W> {
    /// Works on `own` and the batch; wakes the batch's owners, and returns the answer to `own`. The next batch is led by
    /// one of those who wait: measured, that is faster than one thread working for all.
    fn work(&mut self, own: &[Txn], work: &impl Fn(&mut W, &[&[Txn]]) -> Vec<Answer>) -> Option<Answer> {
        let others = self.batch.iter().map(|waiter| &waiter.txns[..]);
        let members: Vec<&[Txn]> = std::iter::once(own).chain(others).collect();
        let mut answers = work(&mut lock(&self.group.writer), &members).into_iter();
        let own_answer = answers.next();
        self.wake_with(answers);
        own_answer
    }

    /// Wakes the owners of the batch, each with its answer.
    fn wake_with(&mut self, answers: impl Iterator<Item = Answer>) {
        let mut answers = answers.chain(std::iter::repeat_with(lost));
        // A waiter looks for its answer with the state locked, then sleeps: so it is put there with the state locked.
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

/// What a caller hears whose transactions a leader took and never answered for: it panicked.
fn lost() -> Answer {
    Err(EngineError::indeterminate("the thread that committed for this one died"))
}

/// Nothing under these locks is left half done by a panic: the writer rolls back what it finds open.
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

    /// Writes down the size of each member of each batch; answers with as many nothings.
    fn note(batches: &mut Vec<Vec<usize>>, members: &[&[Txn]]) -> Vec<Answer> {
        batches.push(members.iter().map(|txns| txns.len()).collect());
        members.iter().map(|_| Ok(Vec::new())).collect()
    }

    fn until_waiting(group: &GroupCommit<Vec<Vec<usize>>>, count: usize) {
        while lock(&group.state).waiting.len() < count {
            std::thread::yield_now();
        }
    }

    /// Which of the waiting callers leads the next batch is not promised.
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
            for (waiting, count) in [(1, 2), (2, 3), (3, BATCH_TXNS - 4), (4, 5)] {
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
        assert_eq!(batches[0], [1], "the first caller found nobody waiting: {batches:?}");
        let mut queue = vec![2, 3, BATCH_TXNS - 4, 5];
        for batch in &batches[1..] {
            let (leader, others) = batch.split_first().unwrap();
            queue.retain(|size| size != leader);
            // The leader takes along the callers that have waited longest, up to the first one that does not fit.
            let fit = |count: &usize| queue[..*count].iter().sum::<usize>() <= BATCH_TXNS;
            let longest: Vec<usize> = queue.drain(..(0..=queue.len()).rev().find(fit).unwrap()).collect();
            assert_eq!(others, longest, "{batches:?}");
        }
        assert_eq!(queue, [], "each is committed once: {batches:?}");
        assert!(batches.len() <= 3, "{batches:?}");
    }

    #[test]
    fn a_leader_that_panics_leaves_nobody_waiting() {
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
        let alone = catch_unwind(AssertUnwindSafe(|| group.commit(&txns(1), |_, _| panic!("on purpose"))));
        assert!(alone.is_err());
        assert_eq!(group.commit(&txns(3), note), Ok(Vec::new()));
    }
}
