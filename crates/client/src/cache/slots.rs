//! The slots of a shard by key, and the CLOCK algorithm, which chooses the slot to evict.
//!
//! The clock's hand goes through the slots in the order in which they lie in memory, and a new slot takes the
//! place of an evicted one. So the clock does not search for keys. The removal of a slot does not hash its
//! key, because the hash is kept beside the slot.

use hashbrown::HashTable;
use meta::Seq;
use ops::{Key, Value};

/// A time in nanoseconds since the cache was created. It has half the size of an [`Instant`](host::Instant),
/// which matters because each slot has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) u64);

/// A cached value, and how it may be replaced.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) value: Value,
    pub(super) seq: Seq,
    /// If the value is [`Value::Unknown`] or [`Value::XattrSizes`], the record has changed. A read that began
    /// at this time or earlier may have missed the change.
    pub(super) since: Moment,
    /// When the read of the value began, or the commit that left it was sent. The value may be as old as
    /// this, because the answer may have taken long.
    pub(super) began: Moment,
    /// Whether a commit of this client left the value, so that `seq` is its exact position in the server's
    /// order.
    pub(super) committed: bool,
    /// Whether the slot was used since the clock's hand last passed it.
    pub(super) used: bool,
}

/// The slots of a shard. The caller passes the hash of each key.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Positions in `entries`, by the hashes of the keys.
    index: HashTable<u32>,
    /// `None`: vacant.
    entries: Vec<Option<Entry>>,
    /// The vacant positions.
    vacant: Vec<u32>,
    /// The position that the clock looks at next.
    hand: usize,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    key: Key,
    slot: Slot,
}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn get_mut(&mut self, hash: u64, key: &Key) -> Option<&mut Slot> {
        let at = self.position(hash, key)?;
        self.entries[at].as_mut().map(|entry| &mut entry.slot)
    }

    pub(super) fn contains(&self, hash: u64, key: &Key) -> bool {
        self.position(hash, key).is_some()
    }

    fn position(&self, hash: u64, key: &Key) -> Option<usize> {
        let is_it = |at: &u32| self.entries[*at as usize].as_ref().is_some_and(|entry| entry.key == *key);
        self.index.find(hash, is_it).map(|at| *at as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Slot)> {
        self.entries.iter().flatten().map(|entry| (&entry.key, &entry.slot))
    }

    /// Inserts a slot whose key has none.
    pub(super) fn insert(&mut self, hash: u64, key: Key, slot: Slot) {
        let entry = Some(Entry { hash, key, slot });
        let at = match self.vacant.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let Slots { index, entries, .. } = self;
        index.insert_unique(hash, at, |at| entries[*at as usize].as_ref().map_or(0, |entry| entry.hash));
    }

    /// Removes the next slot that was not used since the hand last passed it, but never that of `keep`.
    /// `None` if no other slot is left.
    pub(super) fn evict(&mut self, keep: Option<&Key>) -> Option<(Key, Slot)> {
        if self.len() <= usize::from(keep.is_some()) {
            return None;
        }
        // At most two rounds: the first one clears every `used` flag.
        loop {
            let at = if self.hand < self.entries.len() { self.hand } else { 0 };
            self.hand = at + 1;
            let entry = &mut self.entries[at];
            match entry {
                Some(Entry { key, slot, .. }) if slot.used || keep == Some(key) => slot.used = false,
                Some(_) => {
                    let Entry { hash, key, slot } = entry.take()?;
                    if let Ok(found) = self.index.find_entry(hash, |found| *found as usize == at) {
                        found.remove();
                    }
                    self.vacant.push(at as u32);
                    return Some((key, slot));
                }
                None => {}
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Slots::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use types::Ino;

    use super::*;

    fn key(number: u64) -> Key {
        Key::Inode(Ino(number))
    }

    fn slot(number: u64) -> Slot {
        let (since, began) = (Moment(0), Moment(0));
        Slot { value: Value::Inode(None), seq: Seq(number), since, began, committed: false, used: true }
    }

    #[test]
    fn every_slot_is_found_until_it_is_evicted() {
        // Many keys have the same hash.
        let hash = |number: u64| number % 7;
        let (mut slots, mut expected) = (Slots::default(), BTreeMap::new());
        for number in 0..2_000 {
            slots.insert(hash(number), key(number), slot(number));
            expected.insert(number, Seq(number));
            for _ in 0..number % 3 {
                let (gone, slot) = slots.evict(None).unwrap();
                assert!(expected.remove(&slot.seq.0) == Some(slot.seq) && gone == key(slot.seq.0));
            }
            assert_eq!(slots.len(), expected.len());
        }
        for number in 0..2_000 {
            let found = slots.get_mut(hash(number), &key(number)).map(|slot| slot.seq);
            assert_eq!(found, expected.get(&number).copied());
            assert_eq!(slots.contains(hash(number), &key(number)), found.is_some());
        }
        let mut all: Vec<u64> = slots.iter().map(|(_, slot)| slot.seq.0).collect();
        all.sort_unstable();
        assert_eq!(all, expected.into_keys().collect::<Vec<_>>());
    }

    #[test]
    fn used_slots_stay_for_another_round_and_new_ones_longest() {
        let mut slots = Slots::default();
        (0..4).for_each(|number| slots.insert(number, key(number), slot(number)));
        let evicted = |slots: &mut Slots| slots.evict(None).map(|(_, slot)| slot.seq.0);
        assert_eq!(evicted(&mut slots), Some(0), "the first round clears the flags");
        slots.get_mut(1, &key(1)).unwrap().used = true;
        slots.insert(4, key(4), slot(4));
        assert_eq!(evicted(&mut slots), Some(2));
        assert_eq!(evicted(&mut slots), Some(3));
        assert_eq!(evicted(&mut slots), Some(1), "the hand passes the new slot, which is used");
        assert_eq!((evicted(&mut slots), evicted(&mut slots)), (Some(4), None));
    }

    #[test]
    fn a_slot_to_keep_is_never_evicted() {
        let mut slots = Slots::default();
        (0..3).for_each(|number| slots.insert(number, key(number), slot(number)));
        let keep = key(1);
        let evicted: Vec<u64> =
            std::iter::from_fn(|| slots.evict(Some(&keep))).map(|(_, slot)| slot.seq.0).collect();
        assert_eq!(evicted, [0, 2]);
        assert!(slots.contains(1, &keep));
    }
}
