//! An engine whose callers share their round trips.
//!
//! A few commits are under way at a time. Who comes meanwhile waits, and when one ends, the longest waiter takes along all
//! that may be committed together with it. So one caller alone never waits, and many that create in one directory do not
//! queue for its row one round trip each.
//!
//! Lock order: the queue's lock alone, never across a request to the inner engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::engine::{Changes, Engine, EngineError, ErrorKind, Outcome};
use crate::record::{Facts, Page, Scan, Want};
use crate::runs::Run;
use crate::txn::Txn;

/// Merges the commits of concurrent callers into few requests.
#[derive(Debug)]
pub struct Batching<E> {
    inner: E,
    /// Commits under way at once.
    lanes: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    under_way: usize,
    waiting: VecDeque<Arc<Caller>>,
}

/// Somebody whose commit waits.
#[derive(Debug)]
struct Caller {
    txns: Vec<Txn>,
    turn: Mutex<Turn>,
    came: Condvar,
}

#[derive(Debug)]
enum Turn {
    Waits,
    /// A commit has ended: this caller goes on with its own and with others'.
    Leads,
    Done(Answer),
}

type Answer = Result<Vec<Outcome>, EngineError>;

/// Transactions in one request at most.
const MAX_BATCH: usize = 64;

impl<E: Engine> Batching<E> {
    /// At most `lanes` commits are under way at once, and at least one.
    pub fn new(inner: E, lanes: usize) -> Self {
        Batching { inner, lanes: lanes.max(1), queue: Mutex::default() }
    }

    pub fn inner(&self) -> &E {
        &self.inner
    }

    fn commit_shared(&self, txns: &[Txn]) -> Answer {
        let mut queue = lock(&self.queue);
        if queue.under_way < self.lanes {
            queue.under_way += 1;
            drop(queue);
            let lane = Lane(&self.queue);
            let answer = self.inner.commit(txns);
            drop(lane);
            return answer;
        }
        let caller =
            Arc::new(Caller { txns: txns.to_vec(), turn: Mutex::new(Turn::Waits), came: Condvar::new() });
        queue.waiting.push_back(Arc::clone(&caller));
        drop(queue);
        let mut turn = lock(&caller.turn);
        loop {
            match std::mem::replace(&mut *turn, Turn::Waits) {
                Turn::Waits => turn = caller.came.wait(turn).unwrap_or_else(PoisonError::into_inner),
                Turn::Done(answer) => return answer,
                Turn::Leads => break,
            }
        }
        drop(turn);
        self.lead(&caller.txns)
    }

    /// Commits a caller's transactions, and with them those of others that wait.
    fn lead(&self, own: &[Txn]) -> Answer {
        let lane = Lane(&self.queue);
        let mut run = Run::default();
        let mut batch: Vec<Txn> = own.to_vec();
        let joins = batch.iter().all(|txn| run.admit(txn));
        let others =
            if joins { take_along(&mut lock(&self.queue), &mut run, &mut batch) } else { Vec::new() };
        let mut answer = self.inner.commit(&batch);
        // One that the engine can never commit must not be the others' failure.
        let refused = ErrorKind::Determinate { transient: false };
        if !others.is_empty() && answer.as_ref().is_err_and(|error| error.kind == refused) {
            for other in others {
                other.tell(Turn::Done(self.inner.commit(&other.txns)));
            }
            return self.inner.commit(own);
        }
        drop(lane);
        // Each gets its part from the end of what is left.
        for other in others.into_iter().rev() {
            let part = match &mut answer {
                Ok(outcomes) => Ok(outcomes.split_off(outcomes.len().saturating_sub(other.txns.len()))),
                Err(error) => Err(error.clone()),
            };
            other.tell(Turn::Done(part));
        }
        answer
    }
}

/// Takes callers out of the queue whose transactions may go along, and adds these to the batch.
fn take_along(queue: &mut Queue, run: &mut Run, batch: &mut Vec<Txn>) -> Vec<Arc<Caller>> {
    let mut taken = Vec::new();
    queue.waiting.retain(|caller| {
        // A caller with several transactions is rare, and a part of it admitted bars no more than itself.
        let fits =
            batch.len() + caller.txns.len() <= MAX_BATCH && caller.txns.iter().all(|txn| run.admit(txn));
        if fits {
            batch.extend_from_slice(&caller.txns);
            taken.push(Arc::clone(caller));
        }
        !fits
    });
    taken
}

/// The right to have a commit under way; whoever has waited longest gets it next.
struct Lane<'a>(&'a Mutex<Queue>);

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut queue = lock(self.0);
        match queue.waiting.pop_front() {
            Some(next) => {
                drop(queue);
                next.tell(Turn::Leads);
            }
            None => queue.under_way -= 1,
        }
    }
}

impl Caller {
    fn tell(&self, turn: Turn) {
        *lock(&self.turn) = turn;
        self.came.notify_one();
    }
}

impl<E: Engine> Engine for Batching<E> {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.inner.read(wants)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.commit_shared(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.inner.scan(scan)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.inner.sync()
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.inner.wipe()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        self.inner.watch()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use types::{FileType, Ino, Mode, OpId, Time};

    use super::*;
    use crate::mem::MemEngine;
    use crate::record::{Node, Record};
    use crate::txn::{Effect, Guard};
    use crate::wrap::{Counting, Fault, Faulty, Odds};

    crate::engine_conformance!(|| (Batching::new(MemEngine::default(), 2), ()));

    fn node(ino: u64) -> Node {
        let time = Time::from_nanos(1);
        Node {
            ino: Ino(ino),
            kind: FileType::Directory,
            mode: Mode::new(0o755),
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: 2,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            access_acl: Default::default(),
            default_acl: Default::default(),
            parent: Ino(ino),
            access_rev: 1,
        }
    }

    fn add_link(op: u64) -> Txn {
        let guards = vec![Guard::Access { ino: Ino(2), rev: 1 }];
        let effects = vec![Effect::AddLinks { ino: Ino(2), delta: 1 }];
        Txn { op_id: OpId(u128::from(op)), guards, effects }
    }

    /// Commits what `txn` makes of the numbers from 1 to 32 from as many threads, and says in how many requests.
    fn requests(engine: &Batching<Counting<Faulty<MemEngine>>>, txn: impl Fn(u64) -> Txn + Sync) -> u64 {
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
        let slow =
            Faulty::new(MemEngine::default(), 1, Odds { delay: 1000, delay_us: 50_000, ..Odds::default() });
        let engine = Batching::new(Counting::new(slow), 1);
        let first = Txn { op_id: OpId(1 << 70), guards: Vec::new(), effects: vec![Effect::PutNode(node(2))] };
        engine.commit(&[first]).unwrap();
        engine.inner().inner().arm(true);
        // Also where a limit has to be kept to: they take the last of it together.
        let limited = |op: u64| {
            let guards = vec![Guard::Room { max_inodes: 1 + THREADS, max_blocks: u64::MAX }];
            Txn { op_id: OpId(u128::from(1000 + op)), guards, effects: vec![Effect::PutNode(node(10 + op))] }
        };
        for commits in [requests(&engine, add_link), requests(&engine, limited)] {
            assert!(commits < THREADS / 2, "{commits} requests for {THREADS} callers");
        }
        let facts = engine.inner().inner().inner().read(&[Want::Node(Ino(2))]).unwrap();
        let Record::Node(_, Some(node)) = &facts.records[0] else { panic!("{facts:?}") };
        assert_eq!(u64::from(node.nlink), 2 + THREADS);
    }

    #[test]
    fn a_failed_request_is_told_to_all_that_shared_it() {
        let engine = Batching::new(Faulty::new(MemEngine::default(), 1, Odds::default()), 1);
        engine.inner().script([Fault::Delay(Duration::from_millis(200)), Fault::After]);
        engine.inner().arm(true);
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
        assert_eq!(lock(&engine.queue).under_way, 0);
    }
}
