//! A store in memory, and clients that read it and write to it step by step: between two steps of a client,
//! others may change what it has read, as on a network.

#![allow(dead_code, reason = "not every test binary needs all of it")]

use std::collections::BTreeMap;

use bytes::Bytes;
use keyspace::{
    Answer, Batch, CachedSource, KeyCache, KeyQuery, KeyWrite, Keyspace, Options, Precondition, ReadSet,
    ReadStop, Source, Span, StoredValue, decide,
};
use meta::{Effect, Guard, Inode, Record, RecordKey, Scan, Txn};
use types::{FileType, Ino, Mode, OpId, Time};

/// A store that compares and writes atomically, like etcd.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) keys: Keyspace,
    revision: u64,
    values: BTreeMap<Vec<u8>, StoredValue>,
}

impl Store {
    fn find(&self, span: &Span) -> Vec<(Bytes, StoredValue)> {
        let found = self.values.range(span.start.clone()..span.end.clone()).take(span.limit);
        found.map(|(key, held)| (Bytes::from(key.clone()), held.clone())).collect()
    }

    fn read(&self, query: &KeyQuery, into: &mut ReadSet) {
        let found = match query {
            KeyQuery::Key(key) => {
                let held = self.values.get(key).map(|held| (Bytes::from(key.clone()), held.clone()));
                held.into_iter().collect()
            }
            query => query.span().map(|span| self.find(&span)).unwrap_or_default(),
        };
        into.fill(query, found);
    }

    fn holds(&self, precondition: &Precondition, read_at: u64) -> bool {
        match precondition {
            Precondition::Key(key, version) => self.values.get(key).map(|held| held.version) == *version,
            Precondition::Untouched(key) => self.values.get(key).is_none_or(|held| held.version <= read_at),
            Precondition::Empty(span) => self.find(span).is_empty(),
            Precondition::Unchanged(span) => self.find(span).iter().all(|(_, held)| held.version <= read_at),
        }
    }

    fn write(&mut self, writes: &[KeyWrite]) {
        self.revision += 1;
        let version = self.revision;
        for write in writes {
            match write.clone() {
                KeyWrite::Put(key, value) => drop(self.values.insert(key, StoredValue { value, version })),
                KeyWrite::Delete(key) => drop(self.values.remove(&key)),
                KeyWrite::DeleteSpan(span) => {
                    self.values.retain(|key, _| *key < span.start || *key >= span.end);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn inodes(&self) -> u64 {
        let records = self.ask(|source| keyspace::answer(&self.keys, &[RecordKey::Usage], source));
        match records[..] {
            [Record::Usage(usage)] => usage.inodes,
            ref other => panic!("{other:?}"),
        }
    }

    pub(crate) fn scan(&self, scan: &Scan) -> Vec<Record> {
        self.ask(|source| keyspace::page(&self.keys, scan, source)).0
    }

    fn ask<T>(&self, ask: impl Fn(&dyn Source) -> Answer<T>) -> T {
        let mut read_set = ReadSet::default();
        loop {
            let (answer, queries) = ask(&read_set);
            match answer {
                Ok(answer) => return answer,
                Err(stop) => assert_eq!(stop, ReadStop::Missing),
            }
            queries.iter().for_each(|query| self.read(query, &mut read_set));
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Client {
    shard: u64,
    pub(crate) key_cache: KeyCache,
    read_set: ReadSet,
    read_at: u64,
    /// The number of writes that failed because of outdated values.
    pub(crate) retries: u64,
    /// The number of writes that needed a read of all shards.
    pub(crate) limit_reads: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read,
    Done,
    Refused,
    Beaten,
}

impl Client {
    pub(crate) fn new(shard: u64) -> Self {
        Client { shard, ..Client::default() }
    }

    fn decide(&self, keys: &Keyspace, txn: &Txn) -> Batch {
        let (shard, read_at) = (self.shard, self.read_at);
        let options = Options { blind: true, shard, read_at, max_preconditions: 100, show: false };
        decide(keys, std::slice::from_ref(txn), &CachedSource::new(&self.read_set, &self.key_cache), options)
    }

    fn read(&mut self, store: &Store, batch: &Batch) {
        self.read_set = ReadSet::default();
        batch.queried.iter().for_each(|query| store.read(query, &mut self.read_set));
        self.read_at = store.revision;
        self.key_cache.note_snapshot(&store.keys, &self.read_set, self.read_at);
    }

    /// One step of a commit: either a read, or a write based on earlier reads. Other clients may read and
    /// write between two steps.
    pub(crate) fn step(&mut self, store: &mut Store, txn: &Txn) -> Step {
        let batch = self.decide(&store.keys, txn);
        assert_eq!(batch.damaged(), None);
        let shards = KeyQuery::Span(store.keys.usage_shards());
        if batch.is_missing() || batch.done.is_empty() {
            let fresh = batch.queried.iter().all(|query| self.read_set.has(query));
            if fresh && batch.conflicts() {
                self.read_set = ReadSet::default();
                return Step::Refused;
            }
            assert!(!fresh, "nothing is left to read");
            self.read(store, &batch);
            return Step::Read;
        }
        if !batch.preconditions.iter().all(|precondition| store.holds(precondition, self.read_at)) {
            self.retries += 1;
            self.read(store, &batch);
            return Step::Beaten;
        }
        // The guard must hold at the time of the write, even if the writer's values are out of date.
        for guard in &txn.guards {
            if let Guard::Room { max_inodes, .. } = guard {
                let inodes = store.inodes();
                assert!(inodes < *max_inodes, "{inodes} inodes exist, so no more fits below {max_inodes}");
            }
        }
        self.limit_reads += u64::from(batch.queried.contains(&shards));
        store.write(&batch.writes);
        self.key_cache.note_writes(&batch.writes, store.revision);
        self.read_set = ReadSet::default();
        Step::Done
    }

    pub(crate) fn commit(&mut self, store: &mut Store, txn: &Txn) -> Step {
        loop {
            match self.step(store, txn) {
                Step::Read | Step::Beaten => {}
                done => return done,
            }
        }
    }
}

pub(crate) fn store() -> Store {
    Store { keys: Keyspace::new("p/"), revision: 1, values: BTreeMap::new() }
}

pub(crate) fn file(ino: u64) -> Effect {
    let now = Time::from_nanos(1);
    Effect::PutInode(Inode { size: 5000, ..Inode::new(Ino(ino), FileType::Regular, Mode::new(0o644), now) })
}

pub(crate) fn txn(op: u64, guards: Vec<Guard>, effects: Vec<Effect>) -> Txn {
    Txn { op_id: OpId(op.into()), guards, effects }
}
