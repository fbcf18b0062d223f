//! Random numbers, and the seeds of hash tables.

use std::hash::{BuildHasher, Hasher};

#[cfg(not(feature = "sim"))]
pub use foldhash::quality::RandomState;

/// The same in every run, because the place of a record in memory can decide what becomes of it.
#[cfg(feature = "sim")]
pub use foldhash::quality::FixedState as RandomState;

/// A table whose order is the same in every run of the simulator.
pub type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// A number that nobody can guess or has drawn before.
pub fn random() -> u64 {
    #[cfg(feature = "sim")]
    if let Some(number) = crate::sim::with(|machine| machine.random()) {
        return number;
    }
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
