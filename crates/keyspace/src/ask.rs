//! Answers reads from values as of one moment, and from cached values that never change.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use meta::{EngineError, Guard, Page, Record, RecordKey, Scan, Seq, Snapshot, SnapshotReader, Txn};

use crate::answer::{Answer, answer, page};
use crate::key_cache::{CachedSource, KeyCache};
use crate::keys::{Keyspace, Span};
use crate::source::{KeyQuery, KeyState, ReadSet, ReadStop, Source, StoredValue};
use crate::value::Damaged;

/// The maximum number of rounds of reads. It is large, because a long range is read in parts, one per round.
const ROUNDS: usize = 256;

/// The values that were read as of one moment; for other keys, cached values that never change.
#[derive(Debug)]
pub struct Fresh<'a> {
    pub read_set: &'a ReadSet,
    pub key_cache: &'a KeyCache,
    pub keys: &'a Keyspace,
}

impl Source for Fresh<'_> {
    fn get(&self, key: &[u8]) -> KeyState {
        match self.read_set.get(key) {
            KeyState::Unknown if self.keys.is_constant(key) => match self.key_cache.get(key) {
                KeyState::StoredValue(held) => KeyState::StoredValue(held),
                // A key that was absent may exist by now.
                KeyState::Absent | KeyState::Unknown => KeyState::Unknown,
            },
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, StoredValue)]> {
        self.read_set.span(span)
    }
}

/// Whether the query must be sent to the store. A cached value that never changes need not be.
pub fn is_needed(keys: &Keyspace, key_cache: &KeyCache, query: &KeyQuery) -> bool {
    match query {
        KeyQuery::Key(key) if keys.is_constant(key) => {
            !matches!(key_cache.get(key), KeyState::StoredValue(_))
        }
        _ => true,
    }
}

/// The queries that the answer to the record keys probably needs.
pub fn likely(keys: &Keyspace, key_cache: &KeyCache, record_keys: &[RecordKey]) -> BTreeSet<KeyQuery> {
    let nothing = ReadSet::default();
    answer(keys, record_keys, &CachedSource::new(&nothing, key_cache)).1
}

/// The record keys that the outcome must answer if any of the transactions conflicts.
pub fn guard_keys(txns: &[Txn]) -> Vec<RecordKey> {
    txns.iter().flat_map(|txn| &txn.guards).map(Guard::key).collect()
}

/// Reads keys and ranges of a store, for an engine.
pub trait KeyReader {
    fn keys(&self) -> &Keyspace;

    fn key_cache(&self) -> &KeyCache;

    /// Reads as of the moment `at`. If `at` is `None`, the store chooses the moment. Returns the moment too.
    ///
    /// # Errors
    /// Always determinate.
    fn fetch(&self, queries: &[KeyQuery], at: Option<u64>) -> Result<(ReadSet, u64), EngineError>;
}

/// Answers record keys as of one moment, and returns the moment.
///
/// # Errors
/// Those of [`read_until_complete`].
pub fn read(store: &impl KeyReader, record_keys: &[RecordKey]) -> Result<(Vec<Record>, u64), EngineError> {
    // Answer from the cache first, to find out which keys are needed. The current answer usually needs the
    // same keys.
    let first = likely(store.keys(), store.key_cache(), record_keys);
    read_until_complete(store, None, first, true, |source| answer(store.keys(), record_keys, source))
}

/// Answers a scan as of one moment: returns a page, whether more may follow, and the moment. A short page
/// takes one read. A directory's inodes take one more read for ACLs that are not cached, and two more for
/// hard links. A scan of inodes by number takes three reads: the numbers, the location records, and the
/// dirents.
///
/// # Errors
/// Those of [`read_until_complete`].
pub fn scan(store: &impl KeyReader, scan: &Scan) -> Result<((Vec<Record>, bool), u64), EngineError> {
    let (_, first) = page(store.keys(), scan, &ReadSet::default());
    read_until_complete(store, None, first, true, |source| page(store.keys(), scan, source))
}

/// Reads a store as of one moment, for as long as the store keeps the values of that moment.
#[derive(Debug)]
pub struct SnapshotStore<S> {
    store: Arc<S>,
    at: u64,
    seq: Seq,
}

impl<S: KeyReader> SnapshotStore<S> {
    /// A reader of the present moment. `seq_of` returns the sequence number of a moment.
    ///
    /// # Errors
    /// Those of [`KeyReader::fetch`].
    pub fn new(store: &Arc<S>, seq_of: impl FnOnce(u64) -> Seq) -> Result<Self, EngineError> {
        let (_, at) = store.fetch(&[KeyQuery::Key(store.keys().version())], None)?;
        Ok(SnapshotStore { store: Arc::clone(store), at, seq: seq_of(at) })
    }
}

impl<S: KeyReader + Send + Sync + fmt::Debug> SnapshotReader for SnapshotStore<S> {
    fn read(&mut self, record_keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let store = &*self.store;
        let first = likely(store.keys(), store.key_cache(), record_keys);
        // Do not use cached values, because they may be newer than the moment.
        let (records, _) = read_until_complete(store, Some(self.at), first, false, |source| {
            answer(store.keys(), record_keys, source)
        })?;
        Ok(Snapshot { seq: self.seq, records })
    }

    fn scan(&mut self, scan: &Scan) -> Result<Page, EngineError> {
        let store = &*self.store;
        let (_, first) = page(store.keys(), scan, &ReadSet::default());
        let ((records, more), _) = read_until_complete(store, Some(self.at), first, false, |source| {
            page(store.keys(), scan, source)
        })?;
        Ok(Page { snapshot: Snapshot { seq: self.seq, records }, more })
    }

    fn is_lasting(&self) -> bool {
        false
    }
}

/// Reads until there is an answer that depends only on values as of one moment. Returns the answer and that
/// moment: `at`, or the moment of the first read if `at` is `None`. `first` has the keys and ranges that the
/// answer probably needs. If `cached` is set, cached values that never change are used instead of being read
/// again.
///
/// # Errors
/// Those of [`KeyReader::fetch`]; a permanent error if the store is damaged.
pub fn read_until_complete<T>(
    store: &impl KeyReader,
    at: Option<u64>,
    first: impl IntoIterator<Item = KeyQuery>,
    cached: bool,
    answer: impl Fn(&dyn Source) -> Answer<T>,
) -> Result<(T, u64), EngineError> {
    let (keys, key_cache) = (store.keys(), store.key_cache());
    let none = KeyCache::default();
    let constants = if cached { key_cache } else { &none };
    let mut queries: Vec<KeyQuery> =
        first.into_iter().filter(|query| is_needed(keys, constants, query)).collect();
    if queries.is_empty() {
        queries.push(KeyQuery::Key(keys.version()));
    }
    let (mut read_set, mut moment) = (ReadSet::default(), at);
    for _ in 0..ROUNDS {
        let (found, read_at) = store.fetch(&queries, moment)?;
        key_cache.note_snapshot(keys, &found, read_at);
        read_set.extend(found);
        moment = Some(read_at);
        let (answered, queried) = answer(&Fresh { read_set: &read_set, key_cache: constants, keys });
        queries = queried
            .into_iter()
            .filter(|query| !read_set.has(query) && is_needed(keys, constants, query))
            .collect();
        match answered {
            Ok(answer) if queries.is_empty() => return Ok((answer, read_at)),
            Err(ReadStop::Damaged(damaged)) => return Err(damaged.into()),
            Err(ReadStop::Missing | ReadStop::Flush) if queries.is_empty() => return Err(disagree()),
            _ => {}
        }
    }
    Err(EngineError::permanent(format!("a read is not complete after {ROUNDS} rounds")))
}

/// The error for keys that were read as of one moment and contradict each other.
pub fn disagree() -> EngineError {
    EngineError::permanent(
        "the location record of an inode names a directory entry that does not store the inode: run limen fsck",
    )
}

impl From<Damaged> for EngineError {
    fn from(damaged: Damaged) -> Self {
        EngineError::permanent(damaged.to_string())
    }
}
