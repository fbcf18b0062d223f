//! An engine whose requests are counted.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::{Changes, Engine, EngineError, Outcome};
use crate::record::{Page, RecordKey, Scan, Snapshot};
use crate::txn::Txn;

/// Counts the requests to an engine, including failed ones.
#[derive(Debug, Default)]
pub struct Counting<E> {
    inner: E,
    reads: AtomicU64,
    commits: AtomicU64,
    scans: AtomicU64,
    syncs: AtomicU64,
    txns: AtomicU64,
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
        }
    }

    pub fn inner(&self) -> &E {
        &self.inner
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
    fn read(&self, wants: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(wants)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.txns.fetch_add(txns.len() as u64, Ordering::Relaxed);
        self.inner.commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        self.inner.scan(scan)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync()
    }

    fn wipe(&self) -> Result<(), EngineError> {
        self.inner.wipe()
    }

    fn remove(&self) -> Result<(), EngineError> {
        self.inner.remove()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        self.inner.watch()
    }
}

#[cfg(test)]
mod tests {
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
    }
}
