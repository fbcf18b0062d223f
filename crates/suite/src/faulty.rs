//! An engine with injected faults: a request fails before the work or after it, is delayed, arrives late, or
//! conflicts with a faster client.
//!
//! Lock order: the random state, the script, the rival and the late commits are each locked alone, never
//! across a request to the inner engine.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meta::{
    Access, Effect, Engine, EngineError, Guard, Outcome, Page, Record, RecordKey, Scan, Snapshot, Txn,
};
use types::OpId;

use crate::rng::split_mix;

/// Injects faults into requests to an engine: first those of a script, then random ones, which a seed makes
/// reproducible. It starts disarmed.
pub struct Faulty<E> {
    inner: E,
    armed: AtomicBool,
    fault_rates: FaultRates,
    rng_state: Mutex<u64>,
    script: Mutex<VecDeque<Fault>>,
    rival: Mutex<Option<Rival<E>>>,
    late: Mutex<Vec<Vec<Txn>>>,
    injected: AtomicU64,
}

type Rival<E> = Box<dyn FnMut(&E) + Send>;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The request fails before any work is done: determinate and transient.
    Before,
    /// The work is done, and then the response is lost. That is indeterminate for a commit, and transient for
    /// any other request, because it changes nothing.
    After,
    /// The request is delayed in transit. A commit is indeterminate, and is applied when [`Faulty::deliver`]
    /// is called; any other request fails with a transient error.
    Late,
    /// The request takes this much longer.
    Delay(Duration),
    /// Another client commits right before the request: the closure of [`Faulty::set_rival`], or by default a
    /// commit that increments the access revision of one inode that the transaction guards, without any other
    /// change. No effect on requests that are not commits.
    Rival,
    /// As [`Fault::Rival`], but also before a read. A closure must be set.
    RivalOfRead,
}

/// How many of 1,000 requests get each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    pub before: u32,
    pub after: u32,
    pub delay: u32,
    pub rival: u32,
    /// The duration of a [`FaultRates::delay`].
    pub delay_us: u64,
}

impl<E: Engine> Faulty<E> {
    pub fn new(inner: E, seed: u64, fault_rates: FaultRates) -> Self {
        Faulty {
            inner,
            armed: AtomicBool::new(false),
            fault_rates,
            rng_state: Mutex::new(seed),
            script: Mutex::default(),
            rival: Mutex::new(None),
            late: Mutex::default(),
            injected: AtomicU64::new(0),
        }
    }

    pub fn inner(&self) -> &E {
        &self.inner
    }

    /// Faults are injected only while armed.
    pub fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::Release);
    }

    /// The next requests get these faults, one each, before random ones are injected again. Replaces an
    /// earlier script.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        *lock(&self.script) = faults.into_iter().collect();
    }

    /// Sets the action of [`Fault::Rival`]. The closure gets the inner engine, and must not use the wrapper.
    pub fn set_rival(&self, rival: impl FnMut(&E) + Send + 'static) {
        *lock(&self.rival) = Some(Box::new(rival));
    }

    /// Delivers the commits that met [`Fault::Late`], in their order. Returns the engine's outcomes, which
    /// the original callers never get.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn deliver(&self) -> Result<Vec<Outcome>, EngineError> {
        let late = std::mem::take(&mut *lock(&self.late));
        let mut outcomes = Vec::with_capacity(late.len());
        for txns in late {
            outcomes.extend(self.inner.commit(&txns)?);
        }
        Ok(outcomes)
    }

    /// The number of faults injected so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    fn next_fault(&self) -> Fault {
        if !self.armed.load(Ordering::Acquire) {
            return Fault::None;
        }
        let scripted = lock(&self.script).pop_front();
        let fault = scripted.unwrap_or_else(|| self.fault_rates.draw(self.roll()));
        if fault != Fault::None {
            self.injected.fetch_add(1, Ordering::Relaxed);
        }
        fault
    }

    fn roll(&self) -> u64 {
        split_mix(&mut lock(&self.rng_state))
    }

    /// Runs a request that changes nothing, with the next fault.
    fn read_only<T>(&self, request: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
        match self.next_fault() {
            Fault::None | Fault::Rival => request(),
            Fault::RivalOfRead => {
                self.run_rival(&[])?;
                request()
            }
            Fault::Before => Err(EngineError::transient("injected: failed before the work")),
            Fault::Late => Err(EngineError::transient("injected: the request is delayed")),
            Fault::After => {
                request()?;
                Err(EngineError::transient("injected: the response was lost"))
            }
            Fault::Delay(time) => {
                std::thread::sleep(time);
                request()
            }
        }
    }

    fn run_rival(&self, txns: &[Txn]) -> Result<(), EngineError> {
        let rival = lock(&self.rival).take();
        let Some(mut rival) = rival else { return self.move_revision(txns) };
        rival(&self.inner);
        lock(&self.rival).get_or_insert(rival);
        Ok(())
    }

    /// Increments the access revision of one of the inodes that the transactions guard.
    fn move_revision(&self, txns: &[Txn]) -> Result<(), EngineError> {
        let guarded = txns.iter().flat_map(|txn| &txn.guards).filter_map(|guard| match guard {
            Guard::Access { ino, .. } => Some(*ino),
            _ => None,
        });
        let guarded: Vec<_> = guarded.collect();
        if guarded.is_empty() {
            return Ok(());
        }
        let ino = guarded[(self.roll() % guarded.len() as u64) as usize];
        let snapshot = self.inner.read(&[RecordKey::Inode(ino)])?;
        if let Some(Record::Inode(_, Some(inode))) = snapshot.records.first() {
            let guards = vec![Guard::Access { ino, rev: inode.access_rev }];
            let effects = vec![Effect::SetAccess { ino, access: Access::from(inode) }];
            // No session has this number, so the operation id is unique.
            let op_id = OpId(u128::from(u64::MAX) << 64 | u128::from(self.roll()));
            self.inner.commit(&[Txn { op_id, guards, effects }])?;
        }
        Ok(())
    }
}

impl<E: Engine> Engine for Faulty<E> {
    meta::pass_on! { (.inner) open_snapshot wipe remove watch is_embedded set_reserve_open }

    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.read_only(|| self.inner.read(keys))
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        match self.next_fault() {
            Fault::None => {}
            Fault::Before => return Err(EngineError::transient("injected: failed before the work")),
            Fault::Late => {
                lock(&self.late).push(txns.to_vec());
                return Err(EngineError::indeterminate("injected: the request is delayed"));
            }
            Fault::After => {
                self.inner.commit(txns)?;
                return Err(EngineError::indeterminate("injected: the response was lost"));
            }
            Fault::Delay(time) => std::thread::sleep(time),
            Fault::Rival | Fault::RivalOfRead => self.run_rival(txns)?,
        }
        self.inner.commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.read_only(|| self.inner.scan(scan))
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.read_only(|| self.inner.sync())
    }
}

impl<E: fmt::Debug> fmt::Debug for Faulty<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("fault_rates", &self.fault_rates)
            .finish_non_exhaustive()
    }
}

impl FaultRates {
    fn draw(&self, roll: u64) -> Fault {
        let mut left = (roll % 1000) as u32;
        let delay = Fault::Delay(Duration::from_micros(self.delay_us));
        let faults = [
            (self.before, Fault::Before),
            (self.after, Fault::After),
            (self.delay, delay),
            (self.rival, Fault::Rival),
        ];
        for (rate, fault) in faults {
            if left < rate {
                return fault;
            }
            left -= rate;
        }
        Fault::None
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::{Counter, ErrorKind, MemEngine};

    fn count_to(value: u64) -> Txn {
        let guards = vec![Guard::Counter { counter: Counter::Slice, value: value - 1 }];
        let effects = vec![Effect::SetCounter { counter: Counter::Slice, value }];
        Txn { op_id: OpId(u128::from(value)), guards, effects }
    }

    fn counter(engine: &MemEngine) -> u64 {
        match engine.read(&[RecordKey::Counter(Counter::Slice)]).unwrap().records[0] {
            Record::Counter(_, value) => value,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn faults_come_as_scripted_and_only_while_armed() {
        let engine = Faulty::new(MemEngine::default(), 1, FaultRates::default());
        engine.script([Fault::Before, Fault::After, Fault::None]);
        assert!(engine.commit(&[count_to(1)]).is_ok());
        engine.arm(true);
        let before = engine.commit(&[count_to(2)]).unwrap_err();
        assert_eq!((before.kind, counter(engine.inner())), (ErrorKind::Determinate { transient: true }, 1));
        let after = engine.commit(&[count_to(2)]).unwrap_err();
        assert_eq!((after.kind, counter(engine.inner())), (ErrorKind::Indeterminate, 2));
        let again = engine.commit(&[count_to(2)]).unwrap();
        assert!(matches!(again[..], [Outcome::Committed { .. }]), "the retry is recognized: {again:?}");
        assert_eq!(engine.injected(), 2);
    }

    #[test]
    fn a_rival_commits_first() {
        let engine =
            Faulty::new(MemEngine::default(), 1, FaultRates { rival: 1000, ..FaultRates::default() });
        engine.arm(true);
        engine.set_rival(|inner| drop(inner.commit(&[count_to(1)])));
        let other = Txn { op_id: OpId(77), ..count_to(1) };
        let outcome = engine.commit(&[other]).unwrap();
        assert!(matches!(outcome[..], [Outcome::Conflict(_)]));
    }

    #[test]
    fn a_seed_reproduces_its_faults() {
        let faults = |seed| {
            let fault_rates = FaultRates { before: 300, after: 300, ..FaultRates::default() };
            let engine = Faulty::new(MemEngine::default(), seed, fault_rates);
            engine.arm(true);
            (0..100).map(|_| engine.next_fault()).collect::<Vec<_>>()
        };
        assert_eq!(faults(7), faults(7));
        assert_ne!(faults(7), faults(8));
    }
}
