//! A table of fixed size that any number of threads read without a lock. It may drop any entry at any time.
//!
//! Each slot is a *seqlock* of atomic numbers (Boehm, "Can seqlocks get along with programming language
//! memory models?", MSPC 2012). A writer makes the sequence number odd, writes the entry, and makes the
//! number even. A reader reads the number, the entry, and the number again, and uses the entry only if both
//! numbers are equal and even. So a reader never sees parts of two entries, and it never waits: if the
//! numbers differ or are odd, it finds nothing. A writer that finds another writer in a slot drops its own
//! entry.
//!
//! The numbers are atomic so that the table needs no `unsafe`. A slot holds the whole key, not a hash of
//! it: a user who can write ACLs could construct a collision of hashes, and a decision must not depend on
//! that.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The key of an entry.
pub(super) type Key = [u64; 4];

/// One cache line of the processor, so that a lookup in one slot is at most one cache miss.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Slot {
    /// An even number if no writer is in the slot; 0 if the slot is empty.
    sequence: AtomicU64,
    value: AtomicU64,
    key: [AtomicU64; 4],
}

#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[Slot]>,
}

impl Table {
    /// A table of `entries` slots, rounded up to a power of two; at least 2 and at most 2^30.
    pub(super) fn new(entries: usize) -> Self {
        let entries = entries.clamp(2, 1 << 30).next_power_of_two();
        Table { slots: std::iter::repeat_with(Slot::default).take(entries).collect() }
    }

    /// The two slots that may hold an entry with this key.
    fn places(&self, key: &Key) -> [Option<&Slot>; 2] {
        let place = hash(key) as usize & self.slots.len().wrapping_sub(1);
        [self.slots.get(place), self.slots.get(place ^ 1)]
    }

    #[inline]
    pub(super) fn get(&self, key: &Key) -> Option<u64> {
        self.places(key).into_iter().flatten().find_map(|slot| slot.get(key))
    }

    /// Stores an entry. It may replace another one.
    pub(super) fn put(&self, key: &Key, value: u64) {
        let [Some(first), Some(second)] = self.places(key) else { return };
        // Choose the slot with fewer writes, so that the two alternate.
        let writes = |slot: &Slot| slot.sequence.load(Ordering::Relaxed);
        let slot = if writes(first) <= writes(second) { first } else { second };
        slot.put(key, value);
    }
}

impl Slot {
    #[inline]
    fn get(&self, key: &Key) -> Option<u64> {
        let before = self.sequence.load(Ordering::Acquire);
        let value = self.value.load(Ordering::Relaxed);
        let is_found =
            self.key.iter().zip(key).all(|(found, wanted)| found.load(Ordering::Relaxed) == *wanted);
        // Keeps the loads above before the second load of the number.
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (is_found && before == after && before != 0 && before.is_multiple_of(2)).then_some(value)
    }

    fn put(&self, key: &Key, value: u64) {
        let before = self.sequence.load(Ordering::Relaxed);
        let odd = before | 1;
        if odd == before
            || self.sequence.compare_exchange(before, odd, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        // Keeps the stores below after the store of the odd number.
        fence(Ordering::Release);
        self.value.store(value, Ordering::Relaxed);
        for (slot, part) in self.key.iter().zip(key) {
            slot.store(*part, Ordering::Relaxed);
        }
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }
}

#[inline]
fn hash(key: &Key) -> u64 {
    let mixed = key.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, part| {
        (hash ^ part).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29)
    });
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn get_returns_what_was_put() {
        let table = Table::new(1 << 10);
        let key = |number: u64| [number, number << 32, 7, 0];
        for number in 0..100_000 {
            table.put(&key(number), number);
            assert_eq!(table.get(&key(number)), Some(number));
        }
        let found: Vec<u64> = (0..100_000).filter(|number| table.get(&key(*number)).is_some()).collect();
        assert!(found.iter().all(|number| table.get(&key(*number)) == Some(*number)));
        assert!(found.len() <= 1 << 10 && found.len() > 1 << 9, "{}", found.len());
        assert_eq!(table.get(&[1, 1 << 32, 8, 0]), None);
        assert_eq!(Table::new(0).get(&[0; 4]), None, "an empty slot has no entry for a key of zeros");
    }

    #[test]
    fn size_is_a_power_of_two_and_the_smallest_table_works() {
        assert_eq!(Table::new(100).slots.len(), 128);
        let table = Table::new(0);
        assert_eq!(table.slots.len(), 2);
        table.put(&[1; 4], 1);
        table.put(&[2; 4], 2);
        assert_eq!((table.get(&[1; 4]), table.get(&[2; 4])), (Some(1), Some(2)));
    }

    /// Threads write and read a few slots concurrently. The value is derived from the key, so a torn entry is
    /// detected.
    #[test]
    fn readers_never_see_a_torn_entry() {
        let table = Table::new(4);
        let stop = AtomicBool::new(false);
        let entry = |number: u64| ([number, !number, number.rotate_left(17), number], number);
        let hits: u64 = std::thread::scope(|scope| {
            for writer in 0..2_u64 {
                let (table, stop) = (&table, &stop);
                scope.spawn(move || {
                    let mut number = writer;
                    while !stop.load(Ordering::Relaxed) {
                        let (key, value) = entry(number % 64);
                        table.put(&key, value);
                        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    }
                });
            }
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut hits = 0;
                        for number in 0..2_000_000_u64 {
                            let (key, value) = entry(number % 64);
                            if let Some(found) = table.get(&key) {
                                assert_eq!(found, value);
                                hits += 1;
                            }
                        }
                        hits
                    })
                })
                .collect();
            let hits: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
            stop.store(true, Ordering::Relaxed);
            hits.into_iter().map(Result::unwrap).sum()
        });
        assert!(hits > 0);
    }
}
