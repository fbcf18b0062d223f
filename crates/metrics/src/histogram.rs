//! Distributions with buckets that double in width.
//!
//! Recording a value takes two relaxed additions to the copy of the thread ([`crate::shard`]). A reader may
//! see one of them without the other, so the sum may be off by the values that are being recorded. The count
//! always agrees with the buckets, because it is their sum.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::shard::{SHARDS, shard_of_thread};

/// The maximum number of bounds of a distribution. With [`Shard::sum`] and [`Shard::above`], a copy fills
/// four cache lines.
const MAX_BOUNDS: usize = 30;

/// The upper bounds of the buckets: `count` powers of two, from 2^`first` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buckets {
    first: u32,
    count: usize,
    /// The divisor of a recorded value when it is exported.
    divisor: f64,
}

impl Buckets {
    /// Times in nanoseconds, exported in seconds: from 1 µs to 34 s.
    pub const SECONDS: Buckets = Buckets { first: 10, count: 26, divisor: 1e9 };
    /// Sizes in bytes: from 64 bytes to 8 MiB.
    pub const BYTES: Buckets = Buckets { first: 6, count: 18, divisor: 1.0 };
    /// Numbers of items in a request: from 1 to 256.
    pub const NUMBERS: Buckets = Buckets { first: 0, count: 9, divisor: 1.0 };

    /// The index of the first bound that is at least `value`; `count` if there is none.
    fn index(self, value: u64) -> usize {
        let power = u64::BITS - value.saturating_sub(1).leading_zeros();
        (power.saturating_sub(self.first) as usize).min(self.count)
    }

    fn bound(self, index: usize) -> f64 {
        (1u64 << (self.first as usize + index)) as f64 / self.divisor
    }
}

/// A distribution of recorded values.
#[derive(Debug)]
pub struct Histogram {
    buckets: Buckets,
    shards: Box<[Shard; SHARDS]>,
}

/// Aligned so that threads which use different copies do not write the same cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    within: [AtomicU64; MAX_BOUNDS],
    /// Values above the last bound.
    above: AtomicU64,
    sum: AtomicU64,
}

/// The values of a histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The upper bound of each bucket, and the number of all values up to this bound.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum: f64,
}

impl Histogram {
    pub fn new(buckets: Buckets) -> Self {
        Histogram { buckets, shards: Box::default() }
    }

    /// Records a value in the unit of the buckets: nanoseconds, bytes, or a number.
    pub fn record(&self, value: u64) {
        let shard = &self.shards[shard_of_thread()];
        let index = self.buckets.index(value);
        let cell = if index < self.buckets.count { &shard.within[index] } else { &shard.above };
        cell.fetch_add(1, Relaxed);
        shard.sum.fetch_add(value, Relaxed);
    }

    /// Records a time in a histogram of [`Buckets::SECONDS`].
    pub fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The number of recorded values.
    pub fn count(&self) -> u64 {
        let cells = self.shards.iter().flat_map(|shard| shard.within.iter().chain([&shard.above]));
        cells.map(|cell| cell.load(Relaxed)).sum()
    }

    pub fn summary(&self) -> Summary {
        let total = |of: &dyn Fn(&Shard) -> &AtomicU64| -> u64 {
            self.shards.iter().map(|shard| of(shard).load(Relaxed)).fold(0, u64::wrapping_add)
        };
        let mut count = 0;
        let mut buckets = Vec::with_capacity(self.buckets.count);
        for index in 0..self.buckets.count {
            count += total(&|shard| &shard.within[index]);
            buckets.push((self.buckets.bound(index), count));
        }
        count += total(&|shard| &shard.above);
        Summary { buckets, count, sum: total(&|shard| &shard.sum) as f64 / self.buckets.divisor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_every_bucket_from_its_own_on() {
        let histogram = Histogram::new(Buckets::NUMBERS);
        for value in [0, 1, 2, 3, 4, 5, 256, 257, u64::from(u32::MAX)] {
            histogram.record(value);
        }
        let summary = histogram.summary();
        let counts: Vec<u64> = summary.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 3, 5, 6, 6, 6, 6, 6, 7]);
        let bounds: Vec<f64> = summary.buckets.iter().map(|(bound, _)| *bound).collect();
        assert_eq!(bounds, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]);
        assert_eq!((summary.count, histogram.count()), (9, 9));
        assert_eq!(summary.sum, 15.0 + 256.0 + 257.0 + f64::from(u32::MAX));
    }

    #[test]
    fn times_are_exported_in_seconds() {
        let histogram = Histogram::new(Buckets::SECONDS);
        histogram.record_time(Duration::from_nanos(1024));
        histogram.record_time(Duration::from_nanos(1025));
        histogram.record_time(Duration::from_secs(60));
        let summary = histogram.summary();
        assert_eq!(summary.buckets[0], (1.024e-6, 1));
        assert_eq!(summary.buckets[1], (2.048e-6, 2));
        assert_eq!(summary.buckets.last(), Some(&(34.359738368, 2)));
        assert_eq!(summary.count, 3);
        assert!((summary.sum - 60.000002049).abs() < 1e-9);
    }

    #[test]
    fn records_of_all_threads_count() {
        let histogram = Histogram::new(Buckets::BYTES);
        std::thread::scope(|scope| {
            for _ in 0..3 * SHARDS {
                scope.spawn(|| (0..100).for_each(|_| histogram.record(7)));
            }
        });
        assert_eq!(histogram.count(), 300 * SHARDS as u64);
        assert_eq!(histogram.summary().sum, 2100.0 * SHARDS as f64);
    }
}
