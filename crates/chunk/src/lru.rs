//! A bounded cache with least-recently-used eviction. Concurrent requests for a missing entry load it once.
//!
//! The order is exact, in contrast to libraries with an admission policy, because a block just fetched must
//! be present for the reads that follow. A sequential read of 1 GiB in steps of 128 KiB through a cache of
//! 256 MiB takes 256 requests this way; with quick_cache 0.7 it took 380 to 700, because a full cache dropped
//! new blocks before they were read.

use host::Instant;
use metrics::{WaitTarget, wait_on};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The use of a cache of blocks since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    pub hits: u64,
    pub misses: u64,
    /// The bytes that the cache holds now.
    pub bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    capacity: u64,
    state: Mutex<State<K, V>>,
    loaded: Condvar,
}

#[derive(Debug)]
struct State<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// The keys, sorted by [`Entry::used`].
    order: BTreeMap<u64, K>,
    loading: HashSet<K>,
    /// Keys of entries that are to be loaded in the background. A request for an entry removes its key.
    planned: HashSet<K>,
    /// The number of uses so far, which puts them in order.
    clock: u64,
    charge: u64,
    /// How often the cache was cleared. A value that was requested before the last clear is not cached.
    generation: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    charge: u64,
    /// The value of [`State::clock`] at the last use.
    used: u64,
}

impl<K: Copy + Eq + Hash, V: Clone> Lru<K, V> {
    /// A cache of entries with a total charge of at most `capacity`.
    pub(crate) fn new(capacity: u64) -> Self {
        let (entries, order) = (HashMap::new(), BTreeMap::new());
        let (loading, planned) = (HashSet::new(), HashSet::new());
        let state = State { entries, order, loading, planned, clock: 0, charge: 0, generation: 0 };
        Lru { capacity, state: Mutex::new(state), loaded: Condvar::new() }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.lock().touch(key)
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.lock().entries.contains_key(key)
    }

    /// Records that [`Lru::load_planned`] will load the entry. Returns false if it is cached, being loaded or
    /// planned already.
    pub(crate) fn plan(&self, key: K) -> bool {
        let mut state = self.lock();
        let is_needed = !state.entries.contains_key(&key) && !state.loading.contains(&key);
        is_needed && state.planned.insert(key)
    }

    /// Loads a planned entry, unless it was requested since it was planned: then it was loaded, and perhaps
    /// used and evicted already, and a second load would be wasted.
    pub(crate) fn load_planned<E>(
        &self,
        key: K,
        load: impl FnOnce() -> Result<(V, u64), E>,
    ) -> Result<(), E> {
        let generation = {
            let mut state = self.lock();
            if !state.planned.remove(&key) || !state.loading.insert(key) {
                return Ok(());
            }
            state.generation
        };
        self.load(key, generation, load).map(drop)
    }

    /// The sum of the charges of all entries.
    pub(crate) fn charge(&self) -> u64 {
        self.lock().charge
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Caches `value`, unless its charge alone exceeds the capacity. Returns the keys that were evicted.
    pub(crate) fn insert(&self, key: K, value: V, charge: u64) -> Vec<K> {
        self.lock().insert(self.capacity, key, value, charge)
    }

    /// The number to pass to [`Lru::insert_loaded`], read before the value is requested.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// As [`Lru::insert`], but caches nothing if the cache was cleared since [`Lru::generation`].
    pub(crate) fn insert_loaded(&self, key: K, value: V, charge: u64, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.insert(self.capacity, key, value, charge);
        }
    }

    /// Removes and returns the least recently used key.
    pub(crate) fn pop_oldest(&self) -> Option<K> {
        let mut state = self.lock();
        let oldest = *state.order.first_key_value()?.1;
        state.remove(&oldest);
        Some(oldest)
    }

    /// Returns the entry, or loads it with `load`, which also returns its charge. Concurrent callers wait; if
    /// `load` fails, the next caller tries.
    pub(crate) fn get_or_load<E>(&self, key: K, load: impl FnOnce() -> Result<(V, u64), E>) -> Result<V, E> {
        let mut state = self.lock();
        loop {
            if let Some(value) = state.touch(&key) {
                return Ok(value);
            }
            state.planned.remove(&key);
            if state.loading.insert(key) {
                break;
            }
            state = wait_on(WaitTarget::Store("get"), || {
                let began = Instant::now();
                (host::wait(&self.loaded, &self.state, state), began.elapsed())
            });
        }
        let generation = state.generation;
        drop(state);
        self.load(key, generation, load)
    }

    /// Loads an entry that was marked as loading in this generation.
    fn load<E>(&self, key: K, generation: u64, load: impl FnOnce() -> Result<(V, u64), E>) -> Result<V, E> {
        let _loading = Loading { cache: self, key };
        let (value, charge) = load()?;
        self.insert_loaded(key, value.clone(), charge, generation);
        Ok(value)
    }

    pub(crate) fn remove(&self, key: &K) {
        self.lock().remove(key);
    }

    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        state.entries.clear();
        state.order.clear();
        state.charge = 0;
        state.generation += 1;
    }
}

impl<K, V> Lru<K, V> {
    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash, V: Clone> State<K, V> {
    fn touch(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        self.order.remove(&entry.used);
        entry.used = self.clock;
        self.order.insert(self.clock, *key);
        Some(entry.value.clone())
    }

    /// Inserts an entry, and removes the oldest ones above `capacity`; see [`Lru::insert`].
    fn insert(&mut self, capacity: u64, key: K, value: V, charge: u64) -> Vec<K> {
        let mut evicted = Vec::new();
        self.remove(&key);
        self.planned.remove(&key);
        if charge > capacity {
            return evicted;
        }
        self.clock += 1;
        let used = self.clock;
        self.charge += charge;
        self.order.insert(used, key);
        self.entries.insert(key, Entry { value, charge, used });
        while self.charge > capacity
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            self.remove(&oldest);
            evicted.push(oldest);
        }
        evicted
    }

    fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.charge -= entry.charge;
        }
    }
}

/// Wakes the waiting callers when a load ends, even by a panic.
struct Loading<'a, K: Copy + Eq + Hash, V> {
    cache: &'a Lru<K, V>,
    key: K,
}

impl<K: Copy + Eq + Hash, V> Drop for Loading<'_, K, V> {
    fn drop(&mut self) {
        self.cache.lock().loading.remove(&self.key);
        self.cache.loaded.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    #[test]
    fn least_recently_used_entries_are_evicted_first() {
        let cache = Lru::new(10);
        for key in 0..3 {
            cache.insert(key, key, 3);
        }
        assert_eq!(cache.get(&0), Some(0));
        cache.insert(3, 3, 3);
        assert_eq!(
            (cache.get(&0), cache.get(&1), cache.get(&2), cache.get(&3)),
            (Some(0), None, Some(2), Some(3))
        );
        cache.insert(4, 4, 11);
        assert!(!cache.contains(&4) && cache.contains(&3));
        cache.insert(3, 33, 4);
        assert_eq!(cache.lock().charge, 10);
        cache.remove(&3);
        cache.clear();
        assert_eq!((cache.get(&0), cache.lock().charge), (None, 0));
    }

    #[test]
    fn a_value_that_was_requested_before_a_clear_is_not_cached() {
        let cache = Lru::new(10);
        let load = || {
            cache.clear();
            Ok::<_, ()>((7, 1))
        };
        assert_eq!((cache.get_or_load(1, load), cache.get(&1)), (Ok(7), None));
        assert!(cache.plan(2));
        cache.load_planned(2, load).unwrap();
        let generation = cache.generation();
        cache.clear();
        cache.insert_loaded(3, 7, 1, generation);
        assert_eq!((cache.contains(&2), cache.contains(&3), cache.charge()), (false, false, 0));
        assert_eq!((cache.get_or_load(1, || Ok::<_, ()>((8, 1))), cache.get(&1)), (Ok(8), Some(8)));
    }

    #[test]
    fn a_planned_load_runs_once_and_not_after_a_request() {
        let (cache, loads) = (Lru::new(10), AtomicU32::new(0));
        let load = || {
            loads.fetch_add(1, Relaxed);
            Ok::<_, ()>((7, 6))
        };
        assert!(cache.plan(1) && !cache.plan(1));
        cache.load_planned(1, load).unwrap();
        assert_eq!((cache.get(&1), cache.plan(1), loads.load(Relaxed)), (Some(7), false, 1));
        // Loading entry 3 evicts entry 2.
        assert!(cache.plan(2));
        assert_eq!(cache.get_or_load(2, load), Ok(7));
        assert_eq!(cache.get_or_load(3, load), Ok(7));
        assert!(!cache.contains(&2));
        cache.load_planned(2, load).unwrap();
        assert_eq!((cache.get(&2), loads.load(Relaxed)), (None, 3));
        // A failed load can be planned again, and an entry inserted in the meantime is not loaded.
        assert!(cache.plan(4));
        cache.load_planned(4, || Err(())).unwrap_err();
        assert!(cache.plan(4));
        cache.insert(4, 8, 1);
        cache.load_planned(4, load).unwrap();
        assert_eq!((cache.get(&4), loads.load(Relaxed)), (Some(8), 3));
    }

    #[test]
    fn concurrent_callers_share_one_load_and_a_failure_causes_one_more() {
        let (cache, loads) = (Lru::new(10), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let loaded = cache.get_or_load(1, || {
                        std::thread::sleep(std::time::Duration::from_millis(5));
                        if loads.fetch_add(1, Relaxed) == 0 { Err(()) } else { Ok((7, 1)) }
                    });
                    assert!(matches!(loaded, Ok(7) | Err(())));
                });
            }
        });
        assert_eq!(loads.load(Relaxed), 2);
    }
}
