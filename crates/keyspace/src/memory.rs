//! The keys that were seen last, and as of which moment: what makes a warm commit one round trip, or says at once all
//! that it has to read.
//!
//! It only has to be good guesses: whatever a commit rests on is read or compared by the server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::answer::implied_place;
use crate::keys::{Keyspace, Span};
use crate::settle::Write;
use crate::source::{Held, Known, Snapshot, Source};

/// Keys in one generation; there are two.
const GENERATION: usize = 100_000;
const SHARDS: usize = 16;

/// What was seen of keys, bounded, shared by threads.
#[derive(Debug, Default)]
pub struct Memory {
    shards: [Mutex<Shard>; SHARDS],
}

/// What was used since the last turn is in `young`; the rest is forgotten with the next turn.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<Vec<u8>, Seen>,
    old: HashMap<Vec<u8>, Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    held: Option<Held>,
    as_of: u64,
}

impl Memory {
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        // FNV-1a (Fowler, Noll, Vo): a short key's hash in few instructions.
        let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let [first, ..] = &self.shards;
        let shard = self.shards.get((hash >> 32) as usize % SHARDS).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the key was when it was seen last.
    pub fn get(&self, key: &[u8]) -> Known {
        let mut shard = self.shard(key);
        if let Some(seen) = shard.young.get(key) {
            return known(seen.held.clone());
        }
        match shard.old.remove(key) {
            None => Known::Unknown,
            Some(seen) => {
                let found = known(seen.held.clone());
                shard.insert(key.to_vec(), seen);
                found
            }
        }
    }

    /// Notes what the key was as of a moment, of which later ones are greater, unless something newer is known.
    pub fn note(&self, key: &[u8], held: Option<Held>, as_of: u64) {
        let mut shard = self.shard(key);
        let newer = |seen: &Seen| seen.as_of > as_of;
        if shard.young.get(key).is_some_and(newer) || shard.old.get(key).is_some_and(newer) {
            return;
        }
        shard.old.remove(key);
        shard.insert(key.to_vec(), Seen { held, as_of });
    }

    pub fn forget(&self, key: &[u8]) {
        let mut shard = self.shard(key);
        shard.young.remove(key);
        shard.old.remove(key);
    }

    /// Notes what was read, and where the inodes are that were met in it.
    pub fn note_snapshot(&self, keys: &Keyspace, snapshot: &Snapshot, as_of: u64) {
        let single = snapshot.keys().map(|(key, held)| (key.as_slice(), held.as_ref()));
        for (key, held) in single.chain(snapshot.found().map(|(key, held)| (&key[..], Some(held)))) {
            self.note(key, held.cloned(), as_of);
            let implied = held.and_then(|held| implied_place(keys, key, &held.value));
            if let Some((place, value)) = implied
                && self.get(&place) == Known::Unknown
            {
                // Its version is of no matter, for the entry is what is compared.
                self.note(&place, Some(Held { value, version: 0 }), as_of);
            }
        }
    }

    /// Notes what was written by the commit of that number.
    pub fn note_writes(&self, writes: &[Write], version: u64) {
        for write in writes {
            match write {
                Write::Put(key, value) => {
                    self.note(key, Some(Held { value: value.clone(), version }), version);
                }
                Write::Delete(key) => self.note(key, None, version),
                // It may have stood there before, or stands there as it was.
                Write::PutGreater(key, _) | Write::PutIfAbsent(key, _) => self.forget(key),
                Write::DeleteSpan(_) => {}
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

fn known(held: Option<Held>) -> Known {
    held.map_or(Known::Absent, Known::Held)
}

/// What was just read, and beneath it what is remembered, which stays the same for as long as this lives.
#[derive(Debug)]
pub struct Recall<'a> {
    fresh: &'a Snapshot,
    memory: &'a Memory,
    recalled: RefCell<HashMap<Vec<u8>, Known>>,
}

impl<'a> Recall<'a> {
    pub fn new(fresh: &'a Snapshot, memory: &'a Memory) -> Self {
        Recall { fresh, memory, recalled: RefCell::default() }
    }
}

impl Source for Recall<'_> {
    fn get(&self, key: &[u8]) -> Known {
        match self.fresh.get(key) {
            Known::Unknown => {
                let mut recalled = self.recalled.borrow_mut();
                if let Some(known) = recalled.get(key) {
                    return known.clone();
                }
                let known = self.memory.get(key);
                recalled.insert(key.to_vec(), known.clone());
                known
            }
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, Held)]> {
        self.fresh.span(span)
    }
}

/// One source above another.
#[derive(Debug)]
pub struct Above<'a>(pub &'a Snapshot, pub &'a dyn Source);

impl Source for Above<'_> {
    fn get(&self, key: &[u8]) -> Known {
        match self.0.get(key) {
            Known::Unknown => self.1.get(key),
            known => known,
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, Held)]> {
        self.1.span(span)
    }
}
