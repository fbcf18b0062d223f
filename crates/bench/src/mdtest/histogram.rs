//! Latency histograms of many operations in bounded memory.

use std::time::Duration;

/// Each power of two is divided into this many steps, so the relative error of a time is at most 1/32, about
/// 3 %.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.ilog2();
const SLOTS: usize = ((u64::BITS - STEP_BITS + 1) as usize) * STEPS as usize;

/// Counts of operations by latency: exact below 32 ns, above in steps of 1/32 of a power of two.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    slots: Vec<u64>,
    count: u64,
    longest: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { slots: vec![0; SLOTS], count: 0, longest: Duration::ZERO }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(slot) = self.slots.get_mut(slot_of(nanos)) {
            *slot += 1;
        }
        self.count += 1;
        self.longest = self.longest.max(time);
    }

    /// Adds the counts of another histogram.
    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (slot, more) in self.slots.iter_mut().zip(&other.slots) {
            *slot += more;
        }
        self.count += other.count;
        self.longest = self.longest.max(other.longest);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// The latency that the given share of all operations did not exceed, rounded up to the end of a step.
    /// Zero without operations.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (slot, count) in self.slots.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(end_of(slot)).min(self.longest);
            }
        }
        self.longest
    }
}

/// The slot of a time. Below `STEPS` each number has its own slot; above, the highest bit selects a row of
/// slots and the next bits the slot in it.
fn slot_of(nanos: u64) -> usize {
    if nanos < STEPS {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - STEP_BITS;
    ((u64::from(shift) * STEPS) + (nanos >> shift)) as usize
}

/// The longest time of a slot, in nanoseconds.
fn end_of(slot: usize) -> u64 {
    let slot = slot as u64;
    if slot < STEPS {
        return slot;
    }
    let shift = slot / STEPS - 1;
    let first = (slot % STEPS + STEPS) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_end_exceeds_a_time_by_at_most_one_step() {
        for nanos in (0..5000).chain((12..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 12])) {
            let slot = slot_of(nanos);
            assert!(slot < SLOTS, "{nanos}");
            let end = end_of(slot);
            assert!(end >= nanos && end - nanos <= nanos / STEPS, "{nanos} ends at {end}");
            assert!(slot == 0 || end_of(slot - 1) < nanos, "{nanos} is in the first slot that holds it");
        }
        assert_eq!(end_of(slot_of(u64::MAX)), u64::MAX);
        assert_eq!(slot_of(u64::MAX), SLOTS - 1);
    }

    #[test]
    fn quantiles_of_merged_histograms_are_correct() {
        let (mut all, mut slow) = (Histogram::default(), Histogram::default());
        assert_eq!(all.quantile(0.5), Duration::ZERO);
        (1..=98).for_each(|_| all.add(Duration::from_nanos(20)));
        (1..=2).for_each(|n| slow.add(Duration::from_millis(n)));
        all.merge(&slow);
        assert_eq!((all.count(), all.longest()), (100, Duration::from_millis(2)));
        assert_eq!(all.quantile(0.5), Duration::from_nanos(20));
        assert_eq!(all.quantile(0.98), Duration::from_nanos(20));
        let almost_all = all.quantile(0.99);
        assert!(almost_all >= Duration::from_millis(1) && almost_all < Duration::from_micros(1032));
        assert_eq!(all.quantile(1.0), Duration::from_millis(2));
    }
}
