//! TiKV's versions of keys, and the operations of its servers on them: Percolator's locks and writes (OSDI
//! 2010; TiKV: src/storage/txn/actions, `prewrite`, `commit`, `cleanup`, `check_txn_status`), without the
//! servers.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Keys and their values.
type Rows = Vec<(Bytes, Bytes)>;

#[derive(Debug, Default)]
pub(crate) struct Mvcc {
    keys: BTreeMap<Vec<u8>, Cell>,
}

#[derive(Debug, Default)]
struct Cell {
    /// By commit timestamp; a rollback by the start timestamp of its transaction.
    writes: BTreeMap<u64, Record>,
    lock: Option<Lock>,
}

#[derive(Clone, Debug)]
struct Record {
    start: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Put(Bytes),
    Delete,
    /// Nothing was written, but the record conflicts with writers.
    Lock,
    Rollback,
}

#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) start: u64,
    pub(crate) primary: Vec<u8>,
    kind: Kind,
    /// In milliseconds of the cluster's clock.
    expires: u64,
}

/// Why a transaction cannot write a key, or a read cannot pass it.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// Another transaction has locked it.
    By(Lock),
    /// Another transaction has committed since this one began, or this one was rolled back.
    Late,
}

impl Mvcc {
    /// Whether a transaction may lock the key.
    pub(crate) fn check(&self, key: &[u8], start: u64) -> Result<(), Blocked> {
        let Some(cell) = self.keys.get(key) else { return Ok(()) };
        match &cell.lock {
            Some(lock) if lock.start != start => return Err(Blocked::By(lock.clone())),
            _ => {}
        }
        match cell.writes.last_key_value() {
            Some((commit, _)) if *commit > start => Err(Blocked::Late),
            _ if cell.writes.contains_key(&start) => Err(Blocked::Late),
            _ => Ok(()),
        }
    }

    pub(crate) fn lock(&mut self, key: &[u8], start: u64, primary: &[u8], kind: Kind, expires: u64) {
        let lock = Lock { start, primary: primary.to_vec(), kind, expires };
        self.keys.entry(key.to_vec()).or_default().lock = Some(lock);
    }

    /// Writes without a lock, as a one-phase commit does.
    pub(crate) fn write(&mut self, key: &[u8], start: u64, commit: u64, kind: Kind) {
        let cell = self.keys.entry(key.to_vec()).or_default();
        cell.writes.insert(commit, Record { start, kind });
    }

    /// Turns the transaction's lock into a write. Returns false if there is neither, because it was rolled
    /// back.
    pub(crate) fn commit(&mut self, key: &[u8], start: u64, commit: u64) -> bool {
        let cell = self.keys.entry(key.to_vec()).or_default();
        match cell.lock.take_if(|lock| lock.start == start) {
            Some(lock) => {
                cell.writes.insert(commit, Record { start, kind: lock.kind });
                true
            }
            None => cell.fate(start).is_some_and(|(_, rolled_back)| !rolled_back),
        }
    }

    pub(crate) fn roll_back(&mut self, key: &[u8], start: u64) {
        let cell = self.keys.entry(key.to_vec()).or_default();
        if cell.fate(start).is_none() {
            cell.lock.take_if(|lock| lock.start == start);
            cell.writes.insert(start, Record { start, kind: Kind::Rollback });
        }
    }

    /// Removes the lock that another client left at a key: commits or rolls back its transaction there, if
    /// the outcome is certain. Returns false if the caller must wait.
    pub(crate) fn resolve(&mut self, key: &[u8], lock: &Lock, now: u64) -> bool {
        let primary = self.keys.entry(lock.primary.clone()).or_default();
        match primary.fate(lock.start) {
            Some((commit, false)) => {
                self.commit(key, lock.start, commit);
            }
            Some((_, true)) => self.roll_back(key, lock.start),
            None if lock.expires <= now => {
                // First the primary key, so that later clients find the outcome of the transaction there.
                self.roll_back(&lock.primary.clone(), lock.start);
                self.roll_back(key, lock.start);
            }
            None => return false,
        }
        true
    }

    /// The value as of a timestamp.
    pub(crate) fn get(&self, key: &[u8], at: u64) -> Result<Option<Bytes>, Lock> {
        self.keys.get(key).map_or(Ok(None), |cell| cell.read(at))
    }

    /// The values of a range as of a timestamp. A lock is returned with its key.
    pub(crate) fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        limit: usize,
        at: u64,
    ) -> Result<Rows, (Vec<u8>, Lock)> {
        let mut found = Vec::new();
        for (key, cell) in self.keys.range(start.to_vec()..end.to_vec()) {
            if found.len() == limit {
                break;
            }
            if let Some(value) = cell.read(at).map_err(|lock| (key.clone(), lock))? {
                found.push((Bytes::from(key.clone()), value));
            }
        }
        Ok(found)
    }

    /// Drops the versions that no read as of `at` or later can see.
    pub(crate) fn forget_before(&mut self, at: u64) {
        self.keys.retain(|_, cell| {
            let is_value = |record: &Record| matches!(record.kind, Kind::Put(_) | Kind::Delete);
            let newest = cell.writes.range(..at).rev().find(|(_, record)| is_value(record));
            let newest = newest.map(|(commit, record)| (*commit, matches!(record.kind, Kind::Delete)));
            cell.writes.retain(|commit, _| *commit >= at || newest == Some((*commit, false)));
            cell.lock.is_some() || !cell.writes.is_empty()
        });
    }

    pub(crate) fn locks(&self) -> usize {
        self.keys.values().filter(|cell| cell.lock.is_some()).count()
    }

    /// The number of versions and records of all keys.
    pub(crate) fn records(&self) -> usize {
        self.keys.values().map(|cell| cell.writes.len()).sum()
    }
}

impl Cell {
    /// The commit timestamp of the transaction that began at `start`, and whether the transaction was rolled
    /// back.
    fn fate(&self, start: u64) -> Option<(u64, bool)> {
        let (commit, record) = self.writes.iter().find(|(_, record)| record.start == start)?;
        Some((*commit, matches!(record.kind, Kind::Rollback)))
    }

    fn read(&self, at: u64) -> Result<Option<Bytes>, Lock> {
        match &self.lock {
            // The transaction may be committed at or before `at`.
            Some(lock) if lock.start <= at && !matches!(lock.kind, Kind::Lock) => return Err(lock.clone()),
            _ => {}
        }
        let value = self.writes.range(..=at).rev().find_map(|(_, record)| match &record.kind {
            Kind::Put(value) => Some(Some(value.clone())),
            Kind::Delete => Some(None),
            Kind::Lock | Kind::Rollback => None,
        });
        Ok(value.flatten())
    }
}
