//! The conformance suite on a minimal store: an ordered map with one lock.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use keyspace::{
    Batch, Done, KeyQuery, KeyWrite, Keyspace, Options, Precondition, ReadSet, ReadStop, Source, Span,
    StoredValue,
};
use meta::{
    Counter, Effect, Engine, EngineError, Guard, Inode, Outcome, Page, Record, RecordKey, Scan, Seq,
    Snapshot, Txn,
};
use types::{FileType, Ino, Mode, OpId, Time};

#[derive(Debug)]
struct Store {
    keys: Keyspace,
    /// As [`Options::blind`].
    blind: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    keys: BTreeMap<Vec<u8>, StoredValue>,
    /// The number of keys in all ranges that were read. etcd visits all of them, however few it returns.
    visited: Cell<usize>,
}

impl State {
    fn find(&self, span: &Span) -> Vec<(Bytes, StoredValue)> {
        let found = self.keys.range(span.start.clone()..span.end.clone()).take(span.limit);
        found.map(|(key, held)| (Bytes::from(key.clone()), held.clone())).collect()
    }

    fn read(&self, query: &KeyQuery, into: &mut ReadSet) {
        let found = match (query, query.span()) {
            (_, Some(span)) => {
                let visited = self.keys.range(span.start.clone()..span.end.clone()).count();
                self.visited.set(self.visited.get() + visited);
                self.find(&span)
            }
            (query, None) => {
                let keys = query.keys().into_iter();
                keys.filter_map(|key| self.keys.get(&key).map(|held| (key.into(), held.clone()))).collect()
            }
        };
        into.fill(query, found);
    }

    /// Repeats `ask` until there is an answer, reading only what was queried.
    fn read_until_complete<T>(&self, ask: impl Fn(&dyn Source) -> (Option<T>, BTreeSet<KeyQuery>)) -> T {
        let mut read_set = ReadSet::default();
        for _ in 0..1000 {
            let (answer, queries) = ask(&read_set);
            if let Some(answer) = answer {
                return answer;
            }
            let missing: Vec<_> = queries.into_iter().filter(|query| !read_set.has(query)).collect();
            assert!(!missing.is_empty(), "nothing is left to read");
            missing.iter().for_each(|query| self.read(query, &mut read_set));
        }
        panic!("the reads do not end");
    }

    fn holds(&self, precondition: &Precondition) -> bool {
        match precondition {
            Precondition::Key(key, version) => self.keys.get(key).map(|held| held.version) == *version,
            Precondition::Empty(span) => self.find(&Span { limit: 1, ..span.clone() }).is_empty(),
            // Nothing can change, because the values were read under the lock that is still held.
            Precondition::Unchanged(_) | Precondition::Untouched(_) => true,
        }
    }

    fn write(&mut self, writes: Vec<KeyWrite>) {
        let version = self.revision;
        let mut seen = BTreeSet::new();
        for write in writes {
            assert!(seen.insert(write.key().to_vec()), "two writes of {:?}", write.key());
            match write {
                KeyWrite::Put(key, value) => drop(self.keys.insert(key, StoredValue { value, version })),
                KeyWrite::PutGreater(key, value) => {
                    if let Some(held) = self.keys.get_mut(&key).filter(|held| held.value < value) {
                        *held = StoredValue { value, version };
                    }
                }
                KeyWrite::Delete(key) => drop(self.keys.remove(&key)),
                KeyWrite::DeleteSpan(span) => {
                    self.keys.retain(|key, _| *key < span.start || *key >= span.end)
                }
            }
        }
    }
}

impl Store {
    fn new(blind: bool) -> (Self, ()) {
        (Store { keys: Keyspace::new("p/"), blind, state: Mutex::default() }, ())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides from the values that were read so far, and reads more until all preconditions hold.
    fn decide(&self, state: &State, txns: &[Txn], read_set: &mut ReadSet, show: bool) -> Batch {
        let options = Options { blind: self.blind, shard: 7, read_at: u64::MAX, max_preconditions: 60, show };
        loop {
            let batch = keyspace::decide(&self.keys, txns, read_set, options);
            assert_eq!(batch.damaged(), None);
            let missing: Vec<_> =
                batch.queried.iter().filter(|query| !read_set.has(query)).cloned().collect();
            let sure = missing.is_empty()
                || batch.preconditions.iter().all(|precondition| state.holds(precondition));
            if !batch.is_missing() && sure && (missing.is_empty() || !batch.done.is_empty()) {
                return batch;
            }
            assert!(!missing.is_empty(), "nothing is left to read");
            missing.iter().for_each(|query| state.read(query, read_set));
        }
    }

    fn answer(&self, state: &State, record_keys: &[RecordKey]) -> Snapshot {
        let records = state.read_until_complete(|source| {
            let (answer, queries) = keyspace::answer(&self.keys, record_keys, source);
            (known(answer), queries)
        });
        Snapshot { seq: seq(state.revision, u8::MAX), records }
    }
}

fn known<T>(answer: Result<T, ReadStop>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(ReadStop::Missing) => None,
        Err(stop) => panic!("{stop:?}"),
    }
}

fn seq(revision: u64, index: u8) -> Seq {
    Seq(revision << 8 | u64::from(index))
}

impl Engine for Store {
    fn read(&self, record_keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        Ok(self.answer(&self.state(), record_keys))
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let mut state = self.state();
        let mut outcomes = Vec::new();
        while let Some(rest) = txns.get(outcomes.len()..).filter(|rest| !rest.is_empty()) {
            // On a store with conditional writes, the values that are only returned are not needed to decide.
            let mut read_set = ReadSet::default();
            let batch = self.decide(&state, rest, &mut read_set, !self.blind);
            if batch.done.is_empty() {
                assert!(batch.conflicts());
                let record_keys: Vec<RecordKey> = rest[0].guards.iter().map(Guard::key).collect();
                outcomes.push(Outcome::Conflict(self.answer(&state, &record_keys)));
                continue;
            }
            assert!(
                batch.preconditions.iter().all(|precondition| state.holds(precondition)),
                "{:?}",
                batch.preconditions
            );
            let shown = self.decide(&state, &rest[..batch.done.len()], &mut read_set, true);
            assert_eq!(shown.done.len(), batch.done.len());
            state.revision += u64::from(!batch.writes.is_empty());
            let revision = state.revision;
            state.write(batch.writes);
            outcomes.extend(shown.done.into_iter().map(|done| match done {
                Done::Committed { index, inodes } => Outcome::Committed { seq: seq(revision, index), inodes },
                Done::Claimed => Outcome::Committed { seq: seq(revision, u8::MAX), inodes: Vec::new() },
                Done::Repeated { version, index } => {
                    Outcome::Committed { seq: seq(version.unwrap_or(revision), index), inodes: Vec::new() }
                }
            }));
        }
        Ok(outcomes)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        let state = self.state();
        let (records, more) = state.read_until_complete(|source| {
            let (page, queries) = keyspace::page(&self.keys, scan, source);
            (known(page), queries)
        });
        Ok(Page { snapshot: Snapshot { seq: seq(state.revision, u8::MAX), records }, more })
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let mut state = self.state();
        state.revision += 1;
        state.keys.clear();
        Ok(())
    }
}

/// Inodes in three groups with wide gaps between them, and one beyond the counter.
#[test]
fn a_scan_of_all_inodes_visits_few_keys_beyond_each_page() {
    let (store, ()) = Store::new(true);
    let numbers: Vec<u64> = (2..3000)
        .chain((10_000..40_000).step_by(7))
        .chain(1 << 40..(1 << 40) + 3000)
        .chain([1 << 52])
        .collect();
    let put = |ino: &u64| {
        Effect::PutInode(Inode::new(Ino(*ino), FileType::Regular, Mode::new(0o644), Time::from_nanos(1)))
    };
    let raise = Effect::SetCounter { counter: Counter::Ino, value: (1 << 40) + 5000 };
    let effects: Vec<Effect> = numbers.iter().map(put).chain([raise]).collect();
    let outcomes = store.commit(&[Txn { op_id: OpId(1), guards: Vec::new(), effects }]).unwrap();
    assert!(matches!(outcomes[..], [Outcome::Committed { .. }]));
    for limit in [1, 10, 256] {
        store.state().visited.set(0);
        let pages = Scan::Inodes { after: Ino(0), limit }.pages(|scan| store.scan(scan));
        let found: Vec<u64> = pages
            .flat_map(|page| page.unwrap())
            .filter_map(|record| match record {
                Record::Inode(ino, Some(_)) => Some(ino.0),
                _ => None,
            })
            .collect();
        assert_eq!(found, numbers);
        // The first page and the one that looks for the end of a gap visit many keys.
        let visited = store.state().visited.get();
        assert!(visited < 8 * numbers.len() + 200 * numbers.len() / limit, "limit {limit}: {visited} keys");
    }
}

mod blind {
    suite::conformance!(without_stream, || super::Store::new(true));
}

mod seeing {
    suite::conformance!(without_stream, || super::Store::new(false));
}

mod operations {
    suite::operations!(without_stream, || super::Store::new(true));
}

mod operations_seeing {
    suite::operations!(without_stream, || super::Store::new(false));
}
