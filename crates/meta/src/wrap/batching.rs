//! An engine whose callers share round trips (group commit).
//!
//! At most a few commits are in flight at a time. Later callers wait. When a commit ends, the longest-waiting
//! caller becomes the leader of the next one, which includes all waiting transactions that do not conflict
//! with the leader's. So a single caller never waits, and many concurrent creates in one directory share a
//! few round trips, although each of them changes the directory's record. A commit yields to other callers if
//! an in-flight commit changes the same inode, because at the server it would wait for that commit, and the
//! other transactions of its request would wait with it.
//!
//! The embedded engine has a queue of its own (`engine-sqlite/src/queue.rs`), because its conditions differ.
//! There, a caller waits for microseconds, and one writer applies everything in the queue as one transaction
//! of the database, even if transactions conflict. Here, a request costs a round trip. So several requests
//! are in flight, the transactions of each request must not conflict, and a transaction that the server
//! refuses must not fail the others.
//!
//! Lock order: the queue's lock and the lock of a caller's state are never held together, and neither is held
//! across a request to the inner engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use host::HashMap;
use types::Ino;

use crate::engine::{Engine, EngineError, ErrorKind, Outcome};
use crate::groups::ConflictGroup;
use crate::txn::Txn;

/// Merges the commits of concurrent callers into few requests.
#[derive(Debug)]
pub struct Batching<E> {
    inner: E,
    /// The largest number of commits in flight.
    max_in_flight: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    in_flight: usize,
    /// The inodes that in-flight commits change, each with the number of these commits.
    busy: HashMap<Ino, usize>,
    waiting: VecDeque<Arc<Caller>>,
}

/// A caller whose commit waits.
#[derive(Debug)]
struct Caller {
    txns: Vec<Txn>,
    /// The inodes that the transactions change.
    inos: Vec<Ino>,
    state: Mutex<CallerState>,
    state_changed: Condvar,
}

#[derive(Debug)]
enum CallerState {
    Waits,
    /// A commit has ended, and this caller sends the next one, with its own transactions and those of others.
    Leads,
    Done(Answer),
}

type Answer = Result<Vec<Outcome>, EngineError>;

/// The largest number of transactions in one request.
const MAX_BATCH: usize = 64;

impl<E: Engine> Batching<E> {
    /// At most `max_in_flight` commits are in flight at a time, and at least one.
    pub fn new(inner: E, max_in_flight: usize) -> Self {
        Batching { inner, max_in_flight: max_in_flight.max(1), queue: Mutex::default() }
    }

    pub fn inner(&self) -> &E {
        &self.inner
    }
}

impl<E: Engine> Engine for Batching<E> {
    crate::pass_on! { (.inner) read scan open_snapshot sync wipe remove watch is_embedded set_reserve_open }

    fn commit(&self, txns: &[Txn]) -> Answer {
        let inos = changed(txns);
        let mut queue = lock(&self.queue);
        if queue.in_flight < self.max_in_flight {
            queue.in_flight += 1;
            queue.begin(&inos);
            drop(queue);
            let commit = InFlight { queue: &self.queue, inos };
            let answer = self.inner.commit(txns);
            drop(commit);
            return answer;
        }
        let caller = Arc::new(Caller {
            txns: txns.to_vec(),
            inos,
            state: Mutex::new(CallerState::Waits),
            state_changed: Condvar::new(),
        });
        queue.waiting.push_back(Arc::clone(&caller));
        drop(queue);
        let mut state = lock(&caller.state);
        loop {
            match std::mem::replace(&mut *state, CallerState::Waits) {
                CallerState::Waits => state = host::wait(&caller.state_changed, &caller.state, state),
                CallerState::Done(answer) => return answer,
                CallerState::Leads => break,
            }
        }
        drop(state);
        self.lead(&caller)
    }
}

impl<E: Engine> Batching<E> {
    /// Commits a caller's transactions together with those of other waiting callers.
    fn lead(&self, own: &Caller) -> Answer {
        let mut commit = InFlight { queue: &self.queue, inos: own.inos.clone() };
        let mut group = ConflictGroup::default();
        let joins = own.txns.iter().all(|txn| group.admit(txn));
        let mut queue = lock(&self.queue);
        let mut others = Others(if joins { queue.take_along(own, group) } else { VecDeque::new() });
        commit.inos.extend(others.0.iter().flat_map(|other| &other.inos));
        queue.begin(&commit.inos);
        drop(queue);
        let of_others = others.0.iter().flat_map(|other| &other.txns);
        let batch: Vec<Txn> = own.txns.iter().chain(of_others).cloned().collect();
        let mut answer = self.inner.commit(&batch).and_then(|outcomes| {
            // It is unknown which transactions the missing outcomes belong to.
            let message = || {
                format!("the engine returned {} outcomes for {} transactions", outcomes.len(), batch.len())
            };
            if outcomes.len() == batch.len() {
                Ok(outcomes)
            } else {
                Err(EngineError::indeterminate(message()))
            }
        });
        // If the engine can never commit one of the transactions, that must not fail the other callers.
        let refused = ErrorKind::Determinate { transient: false };
        if !others.0.is_empty() && answer.as_ref().is_err_and(|error| error.kind == refused) {
            others.answer(|other| self.inner.commit(&other.txns));
            return self.inner.commit(&own.txns);
        }
        drop(commit);
        // The outcomes after this caller's own belong to the others, in order.
        let mut rest =
            answer.as_mut().map(|outcomes| outcomes.split_off(own.txns.len())).map_err(|e| e.clone());
        others.answer(|other| match &mut rest {
            Ok(outcomes) => Ok(outcomes.drain(..other.txns.len()).collect()),
            Err(error) => Err(error.clone()),
        });
        answer
    }
}

impl Queue {
    /// Removes from the queue the callers whose transactions can be committed together with those of `own`.
    /// `group` has the transactions of `own`.
    fn take_along(&mut self, own: &Caller, group: ConflictGroup<'_>) -> VecDeque<Arc<Caller>> {
        // Rebind the group with a shorter lifetime, so that it can also borrow transactions from the queue.
        let mut group = group;
        let mut taken: VecDeque<Arc<Caller>> = VecDeque::new();
        let mut size = own.txns.len();
        let waits_anyway = own.conflicts(&self.busy);
        for caller in &self.waiting {
            // Callers with several transactions are rare. If only some transactions of a caller fit, the
            // caller is not taken, but these transactions stay in `group`. That may exclude other callers
            // from this batch, but never admits conflicting transactions.
            if (waits_anyway || !caller.conflicts(&self.busy))
                && size + caller.txns.len() <= MAX_BATCH
                && caller.txns.iter().all(|txn| group.admit(txn))
            {
                size += caller.txns.len();
                taken.push_back(Arc::clone(caller));
            }
        }
        let mut next = taken.iter().peekable();
        self.waiting.retain(|caller| next.next_if(|taken| Arc::ptr_eq(taken, caller)).is_none());
        taken
    }

    fn begin(&mut self, inos: &[Ino]) {
        for ino in inos {
            *self.busy.entry(*ino).or_default() += 1;
        }
    }

    fn end(&mut self, inos: &[Ino]) {
        for ino in inos {
            if let Some(commits) = self.busy.get_mut(ino) {
                *commits -= 1;
                if *commits == 0 {
                    self.busy.remove(ino);
                }
            }
        }
    }
}

fn changed(txns: &[Txn]) -> Vec<Ino> {
    txns.iter().flat_map(Txn::changed_inodes).collect()
}

/// The right to have one commit in flight, which changes `inos`. When it is dropped, it passes to the
/// longest-waiting caller that conflicts with no in-flight commit. If all waiting callers conflict, it passes
/// to the longest-waiting one.
struct InFlight<'a> {
    queue: &'a Mutex<Queue>,
    inos: Vec<Ino>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut queue = lock(self.queue);
        queue.end(&self.inos);
        let next = queue.waiting.iter().position(|caller| !caller.conflicts(&queue.busy)).unwrap_or(0);
        match queue.waiting.remove(next) {
            Some(next) => {
                drop(queue);
                next.set_state(CallerState::Leads);
            }
            None => queue.in_flight -= 1,
        }
    }
}

/// Callers whose transactions are part of another caller's batch. Each gets an answer even if that caller
/// panics.
struct Others(VecDeque<Arc<Caller>>);

impl Others {
    /// Gives each caller its answer, in order.
    fn answer(&mut self, mut get: impl FnMut(&Caller) -> Answer) {
        while let Some(other) = self.0.front() {
            let answer = get(other);
            other.set_state(CallerState::Done(answer));
            self.0.pop_front();
        }
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.answer(|_| {
            Err(EngineError::indeterminate("the thread that sent this transaction for others has panicked"))
        });
    }
}

impl Caller {
    fn conflicts(&self, busy: &HashMap<Ino, usize>) -> bool {
        self.inos.iter().any(|ino| busy.contains_key(ino))
    }

    fn set_state(&self, state: CallerState) {
        *lock(&self.state) = state;
        self.state_changed.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use types::{FileType, Ino, Mode, OpId, Time};

    use super::*;
    use crate::mem::MemEngine;
    use crate::record::{Inode, Record, RecordKey, Seq};
    use crate::txn::{Effect, Guard};
    use crate::wrap::Counting;

    type Commit = Box<dyn Fn(&MemEngine, &[Txn]) -> Answer + Send + Sync>;

    /// An in-memory engine with another `commit`.
    struct Odd(MemEngine, Commit);

    impl std::fmt::Debug for Odd {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_tuple("Odd").field(&self.0).finish_non_exhaustive()
        }
    }

    impl Engine for Odd {
        crate::pass_on! { (.0) read scan sync wipe }

        fn commit(&self, txns: &[Txn]) -> Answer {
            (self.1)(&self.0, txns)
        }
    }

    /// The answers to four callers (`None` if the caller panicked). The engine gets the first transaction
    /// alone, then the other three together.
    fn one_and_three(commit: fn(&MemEngine, &[Txn]) -> Answer) -> Vec<Option<Answer>> {
        let gate = Arc::new(Mutex::new(()));
        let held = Arc::clone(&gate);
        let waits = move |engine: &MemEngine, txns: &[Txn]| {
            drop(lock(&held));
            commit(engine, txns)
        };
        let engine = Batching::new(Odd(MemEngine::default(), Box::new(waits)), 1);
        let closed = lock(&gate);
        let answers = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|op| {
                    let engine = &engine;
                    let thread =
                        scope.spawn(move || engine.commit(&[Txn { guards: Vec::new(), ..add_link(op) }]));
                    while lock(&engine.queue).waiting.len() < op as usize
                        || lock(&engine.queue).in_flight == 0
                    {
                        std::thread::yield_now();
                    }
                    thread
                })
                .collect();
            drop(closed);
            threads.into_iter().map(|thread| thread.join().ok()).collect()
        });
        let queue = lock(&engine.queue);
        assert_eq!((queue.in_flight, queue.waiting.len(), queue.busy.len()), (0, 0, 0));
        answers
    }

    fn is_unknown(answer: &Option<Answer>) -> bool {
        matches!(answer, Some(Err(error)) if error.kind == ErrorKind::Indeterminate)
    }

    #[test]
    fn each_caller_gets_its_own_outcome() {
        let in_order = one_and_three(|engine, txns| engine.commit(txns));
        let seqs = in_order.iter().map(|answer| Outcome::newest(answer.as_ref().unwrap().as_ref().unwrap()));
        assert!(seqs.eq((1..=4).map(|seq| Some(Seq(seq)))), "{in_order:?}");
        let short = one_and_three(|engine, txns| {
            let mut outcomes = engine.commit(txns)?;
            outcomes.truncate(2);
            Ok(outcomes)
        });
        assert!(matches!(short[0], Some(Ok(_))) && short[1..].iter().all(is_unknown), "{short:?}");
    }

    #[test]
    fn every_caller_of_a_batch_is_answered_even_if_its_leader_panics() {
        let answers = one_and_three(|engine, txns| match txns {
            [_] => engine.commit(txns),
            _ => panic!("a request with several transactions"),
        });
        assert!(matches!(answers[0], Some(Ok(_))) && answers[1].is_none(), "{answers:?}");
        assert!(answers[2..].iter().all(is_unknown), "{answers:?}");
    }

    fn inode(ino: u64) -> Inode {
        let time = Time::from_nanos(1);
        Inode { parent: Ino(ino), ..Inode::new(Ino(ino), FileType::Directory, Mode::new(0o755), time) }
    }

    fn add_link(op: u64) -> Txn {
        let guards = vec![Guard::Access { ino: Ino(2), rev: 1 }];
        let effects = vec![Effect::AddLinks { ino: Ino(2), delta: 1 }];
        Txn { op_id: OpId(u128::from(op)), guards, effects }
    }

    /// Commits `txn` of each number from 1 to 32, each in a thread of its own. Returns the number of
    /// requests.
    fn requests(engine: &Batching<Counting<Odd>>, txn: impl Fn(u64) -> Txn + Sync) -> u64 {
        let before = engine.inner().counts().commits;
        std::thread::scope(|scope| {
            for op in 1..=THREADS {
                let txn = &txn;
                scope.spawn(move || {
                    let outcome = engine.commit(&[txn(op)]).unwrap();
                    assert!(matches!(outcome[..], [Outcome::Committed { .. }]), "{op}: {outcome:?}");
                });
            }
        });
        engine.inner().counts().commits - before
    }

    const THREADS: u64 = 32;

    #[test]
    fn many_callers_share_few_requests() {
        let slow = |engine: &MemEngine, txns: &[Txn]| {
            host::sleep(Duration::from_millis(50));
            engine.commit(txns)
        };
        let engine = Batching::new(Counting::new(Odd(MemEngine::default(), Box::new(slow))), 1);
        let first =
            Txn { op_id: OpId(1 << 70), guards: Vec::new(), effects: vec![Effect::PutInode(inode(2))] };
        engine.commit(&[first]).unwrap();
        // The same with a limit on inodes: the last free inodes are allocated in one batch.
        let limited = |op: u64| {
            let guards = vec![Guard::Room { max_inodes: 1 + THREADS, max_blocks: u64::MAX }];
            Txn {
                op_id: OpId(u128::from(1000 + op)),
                guards,
                effects: vec![Effect::PutInode(inode(10 + op))],
            }
        };
        for commits in [requests(&engine, add_link), requests(&engine, limited)] {
            assert!(commits < THREADS / 2, "{commits} requests for {THREADS} callers");
        }
        let snapshot = engine.read(&[RecordKey::Inode(Ino(2))]).unwrap();
        let Record::Inode(_, Some(inode)) = &snapshot.records[0] else { panic!("{snapshot:?}") };
        assert_eq!(u64::from(inode.nlink), 2 + THREADS);
    }

    #[test]
    fn a_commit_yields_if_an_in_flight_commit_changes_the_same_inode() {
        // Operations 0 and 1 each wait for a mutex of their own.
        let gates: Arc<[Mutex<()>; 2]> = Arc::default();
        let held = Arc::clone(&gates);
        let waits = move |engine: &MemEngine, txns: &[Txn]| {
            for gate in txns.iter().filter_map(|txn| held.get(txn.op_id.0 as usize)) {
                drop(lock(gate));
            }
            engine.commit(txns)
        };
        let engine = Batching::new(Odd(MemEngine::default(), Box::new(waits)), 2);
        for ino in 2..6 {
            let effects = vec![Effect::PutInode(inode(ino))];
            engine
                .commit(&[Txn { op_id: OpId(u128::from(100 + ino)), guards: Vec::new(), effects }])
                .unwrap();
        }
        let closed = [lock(&gates[0]), lock(&gates[1])];
        let wait_for = |in_flight, waiting| loop {
            let queue = lock(&engine.queue);
            if (queue.in_flight, queue.waiting.len()) == (in_flight, waiting) {
                break;
            }
            drop(queue);
            std::thread::yield_now();
        };
        // The first two start at once, and the others wait. The commit that changes inode 2 takes longest.
        let seqs: Vec<Seq> = std::thread::scope(|scope| {
            let threads: Vec<_> = [2, 3, 2, 3, 4, 2]
                .into_iter()
                .enumerate()
                .map(|(at, ino)| {
                    let effects = vec![Effect::AddLinks { ino: Ino(ino), delta: 1 }];
                    let txn = Txn { op_id: OpId(at as u128), guards: Vec::new(), effects };
                    let engine = &engine;
                    let thread = scope.spawn(move || engine.commit(&[txn]).unwrap());
                    wait_for((at + 1).min(2), at.saturating_sub(1));
                    thread
                })
                .collect();
            let [first, second] = closed;
            drop(second);
            // The operations that change other inodes complete.
            let links = |ino| match engine.inner().0.read(&[RecordKey::Inode(Ino(ino))]).unwrap().records[..]
            {
                [Record::Inode(_, Some(inode))] => inode.nlink,
                ref other => panic!("{other:?}"),
            };
            while (links(3), links(4)) != (4, 3) {
                std::thread::yield_now();
            }
            drop(first);
            threads.into_iter().filter_map(|thread| Outcome::newest(&thread.join().unwrap())).collect()
        });
        let [_, _, again, other, free, last] = seqs[..] else { panic!("{seqs:?}") };
        // The two that wait for inode 2 are committed together, or separately in either order.
        assert!(other.max(free) < again.min(last), "{seqs:?}");
        assert!(lock(&engine.queue).busy.is_empty());
    }

    #[test]
    fn a_failed_request_fails_all_callers_that_shared_it() {
        let requests = AtomicU64::new(0);
        let second_is_lost = move |engine: &MemEngine, txns: &[Txn]| {
            let request = requests.fetch_add(1, Ordering::Relaxed);
            if request == 0 {
                host::sleep(Duration::from_millis(200));
            }
            let done = engine.commit(txns);
            if request == 1 { Err(EngineError::indeterminate("the response was lost")) } else { done }
        };
        let engine = Batching::new(Odd(MemEngine::default(), Box::new(second_is_lost)), 1);
        let failed = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=8)
                .map(|op| {
                    scope.spawn({
                        let engine = &engine;
                        move || engine.commit(&[Txn { guards: Vec::new(), ..add_link(op) }])
                    })
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).count()
        });
        assert!((1..=7).contains(&failed), "{failed}: the first went alone, and the second request was lost");
        assert_eq!(lock(&engine.queue).in_flight, 0);
    }
}
