//! Reads that are answered only from values of one moment, and from values that never change.

use std::collections::BTreeSet;

use bytes::Bytes;
use meta::{EngineError, Guard, RecordKey, Txn};

use crate::answer::{Answer, answer};
use crate::keys::{Keyspace, Span};
use crate::memory::{CachedSource, Memory};
use crate::source::{Access, KeyState, ReadSet, ReadStop, Source, StoredValue};
use crate::value::Damaged;

/// The maximum number of rounds of reads; a long range is read in parts.
const ROUNDS: usize = 256;

/// The values that were read, and below them cached values that never change.
#[derive(Debug)]
pub struct Fresh<'a> {
    pub read_set: &'a ReadSet,
    pub memory: &'a Memory,
    pub keys: &'a Keyspace,
}

impl Source for Fresh<'_> {
    fn get(&self, key: &[u8]) -> KeyState {
        match self.read_set.get(key) {
            KeyState::Unknown if self.keys.is_constant(key) => match self.memory.get(key) {
                KeyState::StoredValue(held) => KeyState::StoredValue(held),
                // It may exist by now.
                KeyState::Absent | KeyState::Unknown => KeyState::Unknown,
            },
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, StoredValue)]> {
        self.read_set.span(span)
    }
}

/// Whether it must be read; a cached value that cannot have changed need not be.
pub fn is_needed(keys: &Keyspace, memory: &Memory, access: &Access) -> bool {
    match access {
        Access::Key(key) if keys.is_constant(key) => !matches!(memory.get(key), KeyState::StoredValue(_)),
        _ => true,
    }
}

/// What probably must be read to answer the record keys.
pub fn likely(keys: &Keyspace, memory: &Memory, wants: &[RecordKey]) -> BTreeSet<Access> {
    let nothing = ReadSet::default();
    answer(keys, wants, &CachedSource::new(&nothing, memory)).1
}

/// The record keys that a conflict of any of the transactions returns.
pub fn wants(txns: &[Txn]) -> Vec<RecordKey> {
    txns.iter().flat_map(|txn| &txn.guards).map(Guard::want).collect()
}

/// Reads until there is an answer based only on values read as of one moment, and returns that moment: `at`;
/// or, if that is `None`, the moment that `fetch` chooses for its first read. `first` is what will probably
/// be needed.
///
/// # Errors
/// Those of `fetch`; a permanent error if the store is damaged.
pub fn until<T>(
    keys: &Keyspace,
    memory: &Memory,
    at: Option<u64>,
    first: impl IntoIterator<Item = Access>,
    mut fetch: impl FnMut(&[Access], Option<u64>) -> Result<(ReadSet, u64), EngineError>,
    answer: impl Fn(&dyn Source) -> Answer<T>,
) -> Result<(T, u64), EngineError> {
    let mut accesses: Vec<Access> =
        first.into_iter().filter(|access| is_needed(keys, memory, access)).collect();
    if accesses.is_empty() {
        accesses.push(Access::Key(keys.version()));
    }
    let (mut read_set, mut moment) = (ReadSet::default(), at);
    for _ in 0..ROUNDS {
        let (found, read_at) = fetch(&accesses, moment)?;
        memory.note_snapshot(keys, &found, read_at);
        read_set.extend(found);
        moment = Some(read_at);
        let (answered, looked) = answer(&Fresh { read_set: &read_set, memory, keys });
        accesses = looked
            .into_iter()
            .filter(|access| !read_set.has(access) && is_needed(keys, memory, access))
            .collect();
        match answered {
            Ok(answer) if accesses.is_empty() => return Ok((answer, read_at)),
            Err(ReadStop::Damaged(damaged)) => return Err(damaged.into()),
            Err(ReadStop::Missing | ReadStop::Flush) if accesses.is_empty() => return Err(disagree()),
            _ => {}
        }
    }
    Err(EngineError::permanent("a read did not end after the maximum number of rounds"))
}

/// The error for records that were read as of one moment and contradict each other.
pub fn disagree() -> EngineError {
    EngineError::permanent("an inode's place and the entry it names do not agree: run limen fsck")
}

impl From<Damaged> for EngineError {
    fn from(damaged: Damaged) -> Self {
        EngineError::permanent(damaged.to_string())
    }
}
