//! A cluster within this process: TiKV's isolation, the two phases of its client, and the faults between
//! them.
//!
//! Each request is one critical section, so that requests of several threads interleave as those of several
//! clients do: another transaction may run between any two steps of a commit. The cluster has a clock of its
//! own, which only a test advances, so that no lock expires because the machine is slow.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use engine_tikv::{Attempt, CommitError, Mutation, Phases, ReadResult, Store};
use keyspace::Span;
use meta::EngineError;

use super::mvcc::{Blocked, Kind, Mvcc};

/// A fault of the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server locks the keys instead of committing them in one phase.
    OnePhaseRefused,
    /// The client dies after it has locked the keys.
    DeadAfterPrewrite,
    /// The commit request never arrives.
    RequestLost,
    /// The commit request arrives, and the reply is lost; the client commits no other key.
    AnswerLost,
}

/// The number of requests since the last query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) timestamps: u64,
    pub(crate) reads: u64,
    pub(crate) prewrites: u64,
    /// Commit requests of two-phase transactions.
    pub(crate) commits: u64,
}

type Hook = Box<dyn FnOnce() + Send>;

pub(crate) struct Cluster {
    state: Mutex<State>,
    moved: Condvar,
    /// The keys at which a region ends and the next one begins.
    boundaries: Vec<Vec<u8>>,
    /// Whether a [`Mutation::Lock`] has an effect.
    locks: bool,
    before_commit: Mutex<Option<Hook>>,
    between_phases: Mutex<Option<Hook>>,
}

#[derive(Debug)]
struct State {
    millis: u64,
    logical: u64,
    data: Mvcc,
    faults: VecDeque<Fault>,
    counts: Counts,
    transactions: u64,
}

#[derive(Debug)]
struct Running<'a> {
    cluster: &'a Cluster,
    start: u64,
    phases: Phases,
}

/// The lifetime of a lock, in milliseconds.
pub(crate) const LOCK_MS: u64 = 3000;
/// How many times a caller that waits for a lock checks it, and the interval.
const MAX_ATTEMPTS: u32 = 400;
const BETWEEN: Duration = Duration::from_millis(2);

impl Cluster {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::with(&[], true))
    }

    /// A cluster with regions that end at these keys.
    pub(crate) fn split(boundaries: &[&[u8]]) -> Arc<Self> {
        Arc::new(Self::with(boundaries, true))
    }

    /// A cluster that ignores mutations that only lock, like an engine that does not send them.
    pub(crate) fn without_locks() -> Arc<Self> {
        Arc::new(Self::with(&[], false))
    }

    fn with(boundaries: &[&[u8]], locks: bool) -> Self {
        // A day in 2027.
        let state = State {
            millis: 1_800_000_000_000,
            logical: 0,
            data: Mvcc::default(),
            faults: VecDeque::new(),
            counts: Counts::default(),
            transactions: 0,
        };
        Cluster {
            state: Mutex::new(state),
            moved: Condvar::new(),
            boundaries: boundaries.iter().map(|key| key.to_vec()).collect(),
            locks,
            before_commit: Mutex::new(None),
            between_phases: Mutex::new(None),
        }
    }

    pub(crate) fn fail_next(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    /// Runs `hook` between the next transaction's reads and its commit.
    pub(crate) fn before_commit(&self, hook: impl FnOnce() + Send + 'static) {
        *self.before_commit.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// Runs `hook` when the next transaction has locked its keys.
    pub(crate) fn between_phases(&self, hook: impl FnOnce() + Send + 'static) {
        *self.between_phases.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    pub(crate) fn advance(&self, time: Duration) {
        let mut state = self.state();
        state.millis += u64::try_from(time.as_millis()).expect("a short time");
        drop(state);
        self.moved.notify_all();
    }

    /// The number of requests since the last call.
    pub(crate) fn counts(&self) -> Counts {
        std::mem::take(&mut self.state().counts)
    }

    pub(crate) fn locks(&self) -> usize {
        self.state().data.locks()
    }

    pub(crate) fn records(&self) -> usize {
        self.state().data.records()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn region(&self, key: &[u8]) -> usize {
        self.boundaries.partition_point(|boundary| boundary.as_slice() <= key)
    }

    /// Repeats a request until no lock blocks it; `request` returns the key of the lock.
    fn until_free<T>(
        &self,
        mut request: impl FnMut(&mut State) -> Result<T, (Vec<u8>, Blocked)>,
    ) -> Result<T, Option<EngineError>> {
        let mut state = self.state();
        let mut attempts = 0;
        loop {
            match request(&mut state) {
                Ok(done) => return Ok(done),
                Err((_, Blocked::Late)) => return Err(None),
                Err((key, Blocked::By(lock))) => {
                    let now = state.millis;
                    if state.data.resolve(&key, &lock, now) {
                        continue;
                    }
                }
            }
            attempts += 1;
            if attempts > MAX_ATTEMPTS {
                return Err(Some(EngineError::transient("a lock remains")));
            }
            state = self.moved.wait_timeout(state, BETWEEN).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn roll_back(&self, mutations: &[Mutation], start: u64) {
        let mut state = self.state();
        mutations.iter().for_each(|mutation| state.data.roll_back(mutation.key(), start));
        drop(state);
        self.moved.notify_all();
    }

    fn prewrite(
        &self,
        part: &[Mutation],
        start: u64,
        primary: &[u8],
        in_one: bool,
    ) -> Result<(), CommitError> {
        let done = self.until_free(|state| {
            for mutation in part {
                let key = mutation.key();
                state.data.check(key, start).map_err(|blocked| (key.to_vec(), blocked))?;
            }
            let commit = if in_one { Some(state.next()) } else { None };
            let expires = state.millis + LOCK_MS;
            for mutation in part {
                let key = mutation.key();
                match commit {
                    Some(commit) => state.data.write(key, start, commit, kind(mutation)),
                    None => state.data.lock(key, start, primary, kind(mutation), expires),
                }
            }
            state.counts.prewrites += 1;
            Ok(())
        });
        self.moved.notify_all();
        done.map_err(|error| CommitError::Conflict(format!("{error:?}")))
    }

    fn commit(&self, start: u64, mutations: &[Mutation], phases: Phases) -> Result<(), CommitError> {
        let Some(primary) = mutations.first().map(Mutation::key) else { return Ok(()) };
        let mut keys: Vec<&[u8]> = mutations.iter().map(Mutation::key).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|two| two[0] != two[1]), "two mutations of one key");
        let fault = self.state().faults.pop_front();
        let lost = |what: &str| Err(CommitError::Failed(EngineError::indeterminate(what)));
        let first_region = self.region(primary);
        let in_one = phases == Phases::One && keys.iter().all(|key| self.region(key) == first_region);
        if in_one && fault != Some(Fault::OnePhaseRefused) {
            if matches!(fault, Some(Fault::RequestLost | Fault::DeadAfterPrewrite)) {
                return lost("the request is lost");
            }
            self.prewrite(mutations, start, primary, true)?;
            return if fault == Some(Fault::AnswerLost) { lost("the answer is lost") } else { Ok(()) };
        }
        for region in 0..=self.boundaries.len() {
            let part: Vec<Mutation> =
                mutations.iter().filter(|mutation| self.region(mutation.key()) == region).cloned().collect();
            if part.is_empty() {
                continue;
            }
            if let Err(error) = self.prewrite(&part, start, primary, false) {
                self.roll_back(mutations, start);
                return Err(error);
            }
        }
        match fault {
            Some(Fault::OnePhaseRefused) if in_one => {
                self.roll_back(mutations, start);
                return Err(CommitError::OnePhaseRefused);
            }
            Some(Fault::DeadAfterPrewrite) => return lost("the client is dead"),
            Some(Fault::RequestLost) => return lost("the request is lost"),
            _ => {}
        }
        // Other transactions may run here.
        run(&self.between_phases);
        std::thread::yield_now();
        let commit = self.timestamp().map_err(CommitError::Failed)?;
        let mut state = self.state();
        state.counts.commits += 1;
        if !state.data.commit(primary, start, commit) {
            return Err(CommitError::Conflict("it was rolled back".to_owned()));
        }
        state.transactions += 1;
        // The other keys are committed after the reply. Every second client dies before it does so.
        let leaves_locks = fault == Some(Fault::AnswerLost) || state.transactions.is_multiple_of(2);
        drop(state);
        if !leaves_locks {
            let mut state = self.state();
            for mutation in mutations {
                assert!(state.data.commit(mutation.key(), start, commit), "a part was rolled back");
            }
        }
        self.moved.notify_all();
        if fault == Some(Fault::AnswerLost) { lost("the answer is lost") } else { Ok(()) }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.logical += 1;
        if self.logical == 1 << 18 {
            (self.millis, self.logical) = (self.millis + 1, 0);
        }
        self.millis << 18 | self.logical
    }
}

fn run(hook: &Mutex<Option<Hook>>) {
    let hook = hook.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(hook) = hook {
        hook();
    }
}

fn kind(mutation: &Mutation) -> Kind {
    match mutation {
        Mutation::Put(_, value) => Kind::Put(value.clone()),
        Mutation::Delete(_) => Kind::Delete,
        Mutation::Lock(_) => Kind::Lock,
    }
}

impl Store for Cluster {
    fn timestamp(&self) -> Result<u64, EngineError> {
        let mut state = self.state();
        state.counts.timestamps += 1;
        Ok(state.next())
    }

    fn begin(&self, phases: Phases) -> Result<Box<dyn Attempt + '_>, EngineError> {
        Ok(Box::new(Running { cluster: self, start: self.timestamp()?, phases }))
    }

    fn read(&self, at: u64, keys: &[Vec<u8>], spans: &[Span]) -> Result<ReadResult, EngineError> {
        self.state().counts.reads += 1;
        let mut found = ReadResult::default();
        let transient = |error: Option<EngineError>| error.expect("reads are never late");
        for key in keys {
            let value: Option<Bytes> = self
                .until_free(|state| state.data.get(key, at).map_err(|lock| (key.clone(), Blocked::By(lock))))
                .map_err(transient)?;
            found.values.push(value);
        }
        for span in spans {
            let rows = self
                .until_free(|state| {
                    let rows = state.data.scan(&span.start, &span.end, span.limit, at);
                    rows.map_err(|(key, lock)| (key, Blocked::By(lock)))
                })
                .map_err(transient)?;
            found.spans.push(rows);
        }
        Ok(found)
    }

    fn forget_before(&self, at: u64) -> Result<(), EngineError> {
        self.state().data.forget_before(at);
        Ok(())
    }

    fn name(&self) -> String {
        "TiKV's isolation, in this process".to_owned()
    }
}

impl Attempt for Running<'_> {
    fn started_at(&self) -> u64 {
        self.start
    }

    fn commit(self: Box<Self>, mut mutations: Vec<Mutation>) -> Result<(), CommitError> {
        run(&self.cluster.before_commit);
        if !self.cluster.locks {
            mutations.retain(|mutation| !matches!(mutation, Mutation::Lock(_)));
        }
        self.cluster.commit(self.start, &mutations, self.phases)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}
