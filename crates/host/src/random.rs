//! Random numbers, and the seeds of hash tables.

use std::hash::{BuildHasher, Hasher};

#[cfg(not(feature = "sim"))]
pub use foldhash::quality::RandomState;

/// A hasher with the same seed in every run of the simulator, because the order of a hash table can affect
/// the behaviour.
#[cfg(feature = "sim")]
pub use foldhash::quality::FixedState as RandomState;

/// A hash table with the same order in every run of the simulator.
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// A hash set with the same order in every run of the simulator.
pub type HashSet<T> = std::collections::HashSet<T, RandomState>;

/// An unpredictable random number.
pub fn random() -> u64 {
    #[cfg(feature = "sim")]
    if let Some(number) = crate::sim::with(|machine| machine.random()) {
        return number;
    }
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
