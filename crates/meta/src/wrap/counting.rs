//! An engine whose requests are counted and measured.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

use host::Instant;
use metrics::{Buckets, Histogram, WaitTarget, wait_on};

use crate::engine::{Engine, EngineError, ErrorKind, Outcome};
use crate::record::{Page, RecordKey, Scan, Snapshot};
use crate::txn::Txn;

/// Counts and measures reads, commits, scans and syncs of an engine, including failed ones. Other requests
/// are passed on without being counted.
#[derive(Debug, Default)]
pub struct Counting<E> {
    inner: E,
    reads: AtomicU64,
    commits: AtomicU64,
    scans: AtomicU64,
    syncs: AtomicU64,
    txns: AtomicU64,
    measured: Measured,
}

/// The durations, sizes and failures of the requests that have been answered.
#[derive(Debug)]
pub struct Measured {
    pub reads: Histogram,
    pub commits: Histogram,
    pub scans: Histogram,
    pub syncs: Histogram,
    /// Transactions in a commit.
    pub batches: Histogram,
    /// Failed requests that had no effect and may succeed if retried.
    pub transient: AtomicU64,
    /// Failed requests that had no effect, and would fail again.
    pub permanent: AtomicU64,
    /// Failed requests that may have taken effect.
    pub indeterminate: AtomicU64,
}

/// The number of requests of each kind. The difference of two values counts the requests between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub commits: u64,
    pub scans: u64,
    pub syncs: u64,
    /// The number of transactions in all `commits`.
    pub txns: u64,
}

impl<E> Counting<E> {
    pub fn new(inner: E) -> Self {
        Counting {
            inner,
            reads: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            scans: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            txns: AtomicU64::new(0),
            measured: Measured::default(),
        }
    }

    pub fn inner(&self) -> &E {
        &self.inner
    }

    pub fn measured(&self) -> &Measured {
        &self.measured
    }

    /// The counts since the wrapper was created.
    pub fn counts(&self) -> Counts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            reads: load(&self.reads),
            commits: load(&self.commits),
            scans: load(&self.scans),
            syncs: load(&self.syncs),
            txns: load(&self.txns),
        }
    }
}

impl Default for Measured {
    fn default() -> Self {
        let times = || Histogram::new(Buckets::SECONDS);
        Measured {
            reads: times(),
            commits: times(),
            scans: times(),
            syncs: times(),
            batches: Histogram::new(Buckets::NUMBERS),
            transient: AtomicU64::new(0),
            permanent: AtomicU64::new(0),
            indeterminate: AtomicU64::new(0),
        }
    }
}

impl Measured {
    /// Sends a request, and measures it.
    fn request<T>(
        &self,
        call: &'static str,
        times: &Histogram,
        send: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let answer = wait_on(WaitTarget::Engine(call), || {
            let began = Instant::now();
            let answer = send();
            let time = began.elapsed();
            times.record_time(time);
            (answer, time)
        });
        if let Err(error) = &answer {
            let failures = match error.kind {
                ErrorKind::Determinate { transient: true } => &self.transient,
                ErrorKind::Determinate { transient: false } => &self.permanent,
                ErrorKind::Indeterminate => &self.indeterminate,
            };
            failures.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

impl Counts {
    /// The number of network round trips, unless the engine is embedded.
    pub fn round_trips(self) -> u64 {
        self.reads + self.commits + self.scans + self.syncs
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            reads: self.reads - earlier.reads,
            commits: self.commits - earlier.commits,
            scans: self.scans - earlier.scans,
            syncs: self.syncs - earlier.syncs,
            txns: self.txns - earlier.txns,
        }
    }
}

impl<E: Engine> Engine for Counting<E> {
    crate::pass_on! { (.inner) open_snapshot wipe remove watch is_embedded set_reserve_open }

    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.measured.request("read", &self.measured.reads, || self.inner.read(keys))
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.txns.fetch_add(txns.len() as u64, Ordering::Relaxed);
        self.measured.batches.record(txns.len() as u64);
        self.measured.request("commit", &self.measured.commits, || self.inner.commit(txns))
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        self.measured.request("scan", &self.measured.scans, || self.inner.scan(scan))
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.measured.request("sync", &self.measured.syncs, || self.inner.sync())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::mem::MemEngine;

    #[test]
    fn each_request_counts_once_and_each_transaction_too() {
        let engine = Counting::new(MemEngine::default());
        let txn = |id| Txn { op_id: types::OpId(id), guards: Vec::new(), effects: Vec::new() };
        engine.read(&[RecordKey::Usage]).unwrap();
        let before = engine.counts();
        engine.commit(&[txn(1), txn(2), txn(3)]).unwrap();
        engine.sync().unwrap();
        let counts = engine.counts() - before;
        assert_eq!(counts, Counts { commits: 1, txns: 3, syncs: 1, ..Counts::default() });
        assert_eq!(engine.counts().round_trips(), 3);
        let measured = engine.measured();
        let times = [&measured.reads, &measured.commits, &measured.scans, &measured.syncs];
        assert_eq!(times.map(Histogram::count), [1, 1, 0, 1]);
        let batches = measured.batches.summary();
        assert_eq!((batches.count, batches.sum), (1, 3.0));
    }

    /// An engine whose commits fail with these errors, the last one first.
    #[derive(Debug)]
    struct Failing(MemEngine, Mutex<Vec<EngineError>>);

    impl Engine for Failing {
        crate::pass_on! { (.0) read scan sync wipe remove watch }

        fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
            self.1.lock().unwrap().pop().map_or_else(|| self.0.commit(txns), Err)
        }
    }

    #[test]
    fn failures_count_by_kind_and_waiting_is_charged_to_the_thread() {
        let errors = vec![EngineError::indeterminate("lost"), EngineError::transient("busy")];
        let engine = Counting::new(Counting::new(Failing(MemEngine::default(), Mutex::new(errors))));
        metrics::start_waiting();
        let txn = Txn { op_id: types::OpId(1), guards: Vec::new(), effects: Vec::new() };
        engine.commit(std::slice::from_ref(&txn)).unwrap_err();
        engine.commit(std::slice::from_ref(&txn)).unwrap_err();
        engine.commit(&[txn]).unwrap();
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Measured { transient, permanent, indeterminate, commits, .. } = engine.measured();
        assert_eq!([transient, permanent, indeterminate].map(load), [1, 0, 1]);
        // Each wrapper counts a commit, but the thread's account counts it once.
        assert_eq!((metrics::waited().engine_calls, commits.count()), (3, 3));
    }
}
