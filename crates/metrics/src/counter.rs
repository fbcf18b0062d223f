//! A counter for events on the path of every request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::shard::{SHARDS, shard_of_thread};

/// A number of events, as the sum of several copies ([`crate::shard`]).
#[derive(Debug, Default)]
pub struct ShardedCounter(Box<[Shard; SHARDS]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

impl ShardedCounter {
    pub fn add(&self, count: u64) {
        self.0[shard_of_thread()].0.fetch_add(count, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_all_threads_count() {
        let counter = ShardedCounter::default();
        std::thread::scope(|scope| {
            for _ in 0..3 * SHARDS {
                scope.spawn(|| (0..100).for_each(|_| counter.add(2)));
            }
        });
        assert_eq!(counter.get(), 600 * SHARDS as u64);
    }
}
