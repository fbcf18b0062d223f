//! A cache of keys and their values, each with the moment as of which it was read. If the cache has what a
//! commit needs, the commit takes one round trip on a store that compares versions. On other stores, the
//! commit knows in advance which keys it must read, and reads them at once.
//!
//! The cached values may be out of date. This is harmless, because every value that a commit depends on is
//! compared by the server or read again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::answer::implied_inode_row;
use crate::keys::{Keyspace, Span};
use crate::source::{KeyState, ReadSet, Source, StoredValue};
use crate::writes::KeyWrite;

/// The maximum number of keys in one generation, in all shards together. There are two generations: `young`
/// and `old`.
const GENERATION: usize = 100_000;
const SHARDS: usize = 16;
/// Larger values are not cached, because the limit on the number of keys would not bound their memory. Most
/// of them are rows with data, which commits read by ranges, not by key.
const MAX_VALUE_BYTES: usize = 4 << 10;

/// A bounded cache of keys, shared by threads.
#[derive(Debug, Default)]
pub struct KeyCache {
    shards: [Mutex<Shard>; SHARDS],
}

/// When `young` is full, it becomes `old`, and the previous `old` is dropped. An entry of `old` that is used
/// moves to `young`.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<Vec<u8>, Seen>,
    old: HashMap<Vec<u8>, Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    held: Option<StoredValue>,
    as_of: u64,
}

impl KeyCache {
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        // FNV-1a (Fowler, Noll, Vo) hashes a short key in few instructions.
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let [first, ..] = &self.shards;
        let shard = self.shards.get((hash >> 32) as usize % SHARDS).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key as it was last seen.
    pub fn get(&self, key: &[u8]) -> KeyState {
        let mut shard = self.shard(key);
        if let Some(seen) = shard.young.get(key) {
            return known(seen.held.clone());
        }
        match shard.old.remove(key) {
            None => KeyState::Unknown,
            Some(seen) => {
                let found = known(seen.held.clone());
                shard.insert(key.to_vec(), seen);
                found
            }
        }
    }

    /// Records the key as of a moment, unless a newer state is known. Later moments are greater numbers. A
    /// key with a large value becomes unknown.
    pub fn note(&self, key: &[u8], held: Option<StoredValue>, as_of: u64) {
        let mut shard = self.shard(key);
        let newer = |seen: &Seen| seen.as_of > as_of;
        if shard.young.get(key).is_some_and(newer) || shard.old.get(key).is_some_and(newer) {
            return;
        }
        shard.young.remove(key);
        shard.old.remove(key);
        if held.as_ref().is_some_and(|held| held.value.len() > MAX_VALUE_BYTES) {
            return;
        }
        // Without the copy, the value would keep in memory the whole answer that it is a part of.
        let copy = |held: StoredValue| StoredValue { value: Bytes::copy_from_slice(&held.value), ..held };
        shard.insert(key.to_vec(), Seen { held: held.map(copy), as_of });
    }

    pub fn forget(&self, key: &[u8]) {
        let mut shard = self.shard(key);
        shard.young.remove(key);
        shard.old.remove(key);
    }

    /// Records everything that was read. For each dirent that stores an inode, also records the inode's
    /// location record, if that is unknown.
    pub fn note_snapshot(&self, keys: &Keyspace, read_set: &ReadSet, as_of: u64) {
        let single = read_set.keys().map(|(key, held)| (key.as_slice(), held.as_ref()));
        for (key, held) in single.chain(read_set.found().map(|(key, held)| (&key[..], Some(held)))) {
            self.note(key, held.cloned(), as_of);
            let implied = held.and_then(|held| implied_inode_row(keys, key, &held.value));
            if let Some((place, value)) = implied
                && self.get(&place) == KeyState::Unknown
            {
                // The version does not matter, because a commit has its precondition on the dirent, not on
                // the location record.
                self.note(&place, Some(StoredValue { value, version: 0 }), as_of);
            }
        }
    }

    /// Records the writes of a commit, except deletions of ranges: their keys keep outdated values in the
    /// cache. `version` is the version of the written keys, and the moment as of which they are recorded.
    pub fn note_writes(&self, writes: &[KeyWrite], version: u64) {
        for write in writes {
            match write {
                KeyWrite::Put(key, value) => {
                    self.note(key, Some(StoredValue { value: value.clone(), version }), version);
                }
                KeyWrite::Delete(key) => self.note(key, None, version),
                // It is not known whether the key has kept its earlier value.
                KeyWrite::PutGreater(key, _) => self.forget(key),
                KeyWrite::DeleteSpan(_) => {}
            }
        }
    }

    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
    }
}

impl Shard {
    fn insert(&mut self, key: Vec<u8>, seen: Seen) {
        if self.young.len() >= GENERATION / SHARDS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, seen);
    }
}

fn known(held: Option<StoredValue>) -> KeyState {
    held.map_or(KeyState::Absent, KeyState::StoredValue)
}

/// The values that were just read; for other keys, cached values. A cached value that was returned once stays
/// the same during the lifetime of this source.
#[derive(Debug)]
pub struct CachedSource<'a> {
    fresh: &'a ReadSet,
    key_cache: &'a KeyCache,
    recalled: RefCell<HashMap<Vec<u8>, KeyState>>,
}

impl<'a> CachedSource<'a> {
    pub fn new(fresh: &'a ReadSet, key_cache: &'a KeyCache) -> Self {
        CachedSource { fresh, key_cache, recalled: RefCell::default() }
    }
}

impl Source for CachedSource<'_> {
    fn get(&self, key: &[u8]) -> KeyState {
        match self.fresh.get(key) {
            KeyState::Unknown => {
                let mut recalled = self.recalled.borrow_mut();
                if let Some(known) = recalled.get(key) {
                    return known.clone();
                }
                let known = self.key_cache.get(key);
                recalled.insert(key.to_vec(), known.clone());
                known
            }
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, StoredValue)]> {
        self.fresh.span(span)
    }
}

/// A read set, and another source, which provides the keys that the read set does not have, and all ranges.
#[derive(Debug)]
pub struct Overlay<'a>(pub &'a ReadSet, pub &'a dyn Source);

impl Source for Overlay<'_> {
    fn get(&self, key: &[u8]) -> KeyState {
        match self.0.get(key) {
            KeyState::Unknown => self.1.get(key),
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, StoredValue)]> {
        self.1.span(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_values_and_large_answers_are_not_kept_in_memory() {
        let key_cache = KeyCache::default();
        let note = |value: Bytes, as_of| {
            key_cache.note(b"k", Some(StoredValue { value, version: as_of }), as_of);
        };
        let answer = Bytes::from(vec![7; 1 << 20]);
        note(answer.slice(..100), 1);
        let small = StoredValue { value: answer.slice(..100), version: 1 };
        assert_eq!(key_cache.get(b"k"), KeyState::StoredValue(small));
        assert!(answer.is_unique(), "the cache holds a part of the answer");
        note(answer.slice(..1 << 16), 2);
        assert_eq!(key_cache.get(b"k"), KeyState::Unknown);
        assert!(answer.is_unique());
    }
}
