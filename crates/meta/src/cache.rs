//! The client's records in memory: bounded, versioned, shared by all threads.
//!
//! Two facts about one record may arrive in any order: a read that took its snapshot before a commit may come back
//! after it. So each slot carries the [`Seq`] it is known at, and only news replace it. What was evicted leaves its
//! version behind as its shard's floor, below which nothing new is taken in.
//!
//! Lock order: one shard's lock at a time, held for no call out of this file.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use acl::posix::PosixAcl;
use types::{AclId, Ino, Name, Slice};

use crate::lock::Lock;
use crate::record::{Counter, Edge, Facts, LockWait, Node, Record, Seq, Settings, Usage, Xattrs};
use types::ChunkIndex;

/// What a record is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Node(Ino),
    Edge(Ino, Name),
    Empty(Ino),
    Xattrs(Ino),
    Symlink(Ino),
    Slices(Ino, ChunkIndex),
    Acl(AclId),
    /// What a default ACL makes of the rwx bits of a new file's mode.
    Inherited(AclId, u32),
    Settings,
    Counter(Counter),
    Usage,
    Locks(Ino),
    Waits,
}

/// A record as the client holds it, absence included; ACLs parsed.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Node(Option<Node>),
    Edge(Option<Edge>),
    Empty(bool),
    Xattrs(Arc<Xattrs>),
    Symlink(Option<Arc<[u8]>>),
    Slices(Arc<[Slice]>),
    /// `None` also where the stored text is no ACL: access is then refused, never guessed.
    Acl(Option<Arc<PosixAcl>>),
    Inherited(AclId),
    Settings(Arc<Settings>),
    Counter(u64),
    Usage(Usage),
    Locks(Arc<[Lock]>),
    Waits(Arc<[LockWait]>),
    /// It changed, and the new value did not come along.
    Unknown,
}

impl Key {
    /// Whether the record may be kept beyond the operation that read it. Chunks are kept by open files, and the rest
    /// is wanted fresh whenever it is wanted.
    fn is_cacheable(&self) -> bool {
        match self {
            Key::Node(_)
            | Key::Edge(..)
            | Key::Xattrs(_)
            | Key::Symlink(_)
            | Key::Acl(_)
            | Key::Inherited(..) => true,
            Key::Empty(_)
            | Key::Slices(..)
            | Key::Settings
            | Key::Counter(_)
            | Key::Usage
            | Key::Locks(_)
            | Key::Waits => false,
        }
    }
}

impl Key {
    /// Whether the record never changes, once it is there: ACLs go by their content.
    fn is_immutable(&self) -> bool {
        matches!(self, Key::Acl(_) | Key::Inherited(..))
    }
}

/// Splits facts into what they are found by and what they say. Rows of scans that no plan looks at fall away.
pub(crate) fn known(record: &Record) -> Option<(Key, Value)> {
    Some(match record {
        Record::Node(ino, node) => (Key::Node(*ino), Value::Node(*node)),
        Record::Edge(parent, name, edge) => (Key::Edge(*parent, name.clone()), Value::Edge(*edge)),
        Record::Empty(ino, empty) => (Key::Empty(*ino), Value::Empty(*empty)),
        Record::Xattrs(ino, xattrs) => (Key::Xattrs(*ino), Value::Xattrs(xattrs.clone())),
        Record::Symlink(ino, target) => (Key::Symlink(*ino), Value::Symlink(target.clone())),
        Record::Slices(ino, chunk, rows) => (Key::Slices(*ino, *chunk), Value::Slices(rows.clone())),
        Record::Acl(id, text) => (Key::Acl(*id), Value::Acl(parse_acl(*id, text.as_deref()))),
        Record::Settings(settings) => (Key::Settings, Value::Settings(settings.clone())),
        Record::Counter(counter, value) => (Key::Counter(*counter), Value::Counter(*value)),
        Record::Usage(usage) => (Key::Usage, Value::Usage(*usage)),
        Record::Locks(ino, locks) => (Key::Locks(*ino), Value::Locks(locks.clone())),
        Record::Waits(waits) => (Key::Waits, Value::Waits(waits.clone())),
        Record::Session(_) | Record::Orphan(..) | Record::Garbage(_) | Record::Shared(..) => return None,
    })
}

fn parse_acl(id: AclId, text: Option<&str>) -> Option<Arc<PosixAcl>> {
    let Some(text) = text else {
        tracing::error!(acl = %id, "an inode refers to an ACL that is not stored; access to it is refused");
        return None;
    };
    match PosixAcl::from_storage(text) {
        Ok(acl) => Some(Arc::new(acl)),
        Err(error) => {
            tracing::error!(acl = %id, %error, "a stored ACL is corrupt; access by it is refused");
            None
        }
    }
}

const SHARDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    shard_capacity: usize,
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<Key, Slot>,
    /// The keys of `slots` in the order of the eviction clock, and its hand.
    clock: Vec<Key>,
    hand: usize,
    floor: Seq,
}

#[derive(Debug)]
struct Slot {
    value: Value,
    seq: Seq,
    since: Instant,
    /// Used since the clock's hand last passed.
    used: bool,
}

impl Cache {
    /// Holds about `capacity` records, at least one a shard.
    pub(crate) fn new(capacity: usize) -> Self {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shard_capacity: (capacity / SHARDS).max(1),
        }
    }

    /// The record, unless it is older than `oldest`.
    pub(crate) fn get(&self, key: &Key, oldest: Option<Instant>) -> Option<Value> {
        let mut shard = self.shard(key);
        let slot = shard.slots.get_mut(key)?;
        if oldest.is_some_and(|oldest| slot.since < oldest) && !key.is_immutable() {
            return None;
        }
        slot.used = true;
        match &slot.value {
            Value::Unknown => None,
            value => Some(value.clone()),
        }
    }

    pub(crate) fn absorb(&self, facts: &Facts) -> Vec<(Key, Value)> {
        let known: Vec<_> = facts.records.iter().filter_map(known).collect();
        for (key, value) in &known {
            self.put(key.clone(), value.clone(), facts.seq);
        }
        known
    }

    pub(crate) fn put(&self, key: Key, value: Value, seq: Seq) {
        if !key.is_cacheable() || matches!(value, Value::Acl(None)) {
            return;
        }
        let capacity = self.shard_capacity;
        let mut shard = self.shard(&key);
        let seq = if key.is_immutable() { shard.floor } else { seq };
        let fresh = Slot { value, seq, since: Instant::now(), used: true };
        if let Some(slot) = shard.slots.get_mut(&key) {
            if slot.seq <= seq {
                *slot = fresh;
            }
        } else if seq >= shard.floor {
            shard.insert(key, fresh, capacity);
        }
    }

    /// Forgets everything, as after a gap in what is heard of other clients.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let newest = shard.slots.values().map(|slot| slot.seq).max();
            shard.floor = shard.floor.max(newest.unwrap_or_default());
            shard.slots.clear();
            shard.clock.clear();
            shard.hand = 0;
        }
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        let index = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn insert(&mut self, key: Key, slot: Slot, capacity: usize) {
        if self.clock.len() < capacity {
            self.clock.push(key.clone());
        } else {
            // Two rounds at most: the first one clears every mark.
            while let Some(slot) = self.slots.get_mut(&self.clock[self.hand]).filter(|slot| slot.used) {
                slot.used = false;
                self.hand = (self.hand + 1) % capacity;
            }
            let evicted = std::mem::replace(&mut self.clock[self.hand], key.clone());
            if let Some(slot) = self.slots.remove(&evicted) {
                self.floor = self.floor.max(slot.seq);
            }
            self.hand = (self.hand + 1) % capacity;
        }
        self.slots.insert(key, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(ino: u64) -> Value {
        Value::Edge(Some(Edge { ino: Ino(ino), kind: types::FileType::Regular }))
    }

    fn ino_at(cache: &Cache, key: &Key) -> Option<Ino> {
        match cache.get(key, None) {
            Some(Value::Edge(edge)) => edge.map(|e| e.ino),
            _ => None,
        }
    }

    #[test]
    fn older_facts_never_replace_newer_ones() {
        let cache = Cache::new(1000);
        let key = Key::Edge(Ino::ROOT, Name::new(b"a").unwrap());
        cache.put(key.clone(), edge(7), Seq(5));
        cache.put(key.clone(), edge(6), Seq(4));
        assert_eq!(ino_at(&cache, &key), Some(Ino(7)));
        cache.put(key.clone(), Value::Unknown, Seq(6));
        cache.put(key.clone(), edge(7), Seq(5));
        assert_eq!(ino_at(&cache, &key), None);
    }

    #[test]
    fn an_evicted_record_bars_facts_older_than_itself() {
        let cache = Cache::new(SHARDS);
        let keys: Vec<_> = (0..1000u64).map(|i| Key::Edge(Ino(i), Name::new(b"a").unwrap())).collect();
        for key in &keys {
            cache.put(key.clone(), edge(1), Seq(9));
        }
        let gone: Vec<_> = keys.iter().filter(|key| ino_at(&cache, key).is_none()).collect();
        assert!(gone.len() >= 1000 - SHARDS, "the cache is bounded");
        for key in gone {
            cache.put(key.clone(), edge(2), Seq(8));
            assert_eq!(ino_at(&cache, key), None);
        }
    }

    #[test]
    fn clearing_bars_what_was_read_before() {
        let cache = Cache::new(1000);
        let key = Key::Node(Ino(3));
        cache.put(key.clone(), Value::Node(None), Seq(9));
        cache.clear();
        cache.put(key.clone(), Value::Node(None), Seq(8));
        assert!(cache.get(&key, None).is_none());
        cache.put(key.clone(), Value::Node(None), Seq(9));
        assert!(cache.get(&key, None).is_some());
    }
}
