//! Tracks which numbers of a log were delivered. The transactions of the log may become visible in an order
//! other than that of their numbers.

use std::collections::BTreeSet;

/// The numbers of a log that were delivered or will never appear.
#[derive(Debug, Default)]
pub struct DeliveredNumbers {
    /// All numbers up to this one were delivered or will never appear.
    known: u64,
    /// Delivered numbers above `known`.
    delivered: BTreeSet<u64>,
}

impl DeliveredNumbers {
    /// All numbers up to this one were delivered or will never appear.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Whether every number below a delivered one was delivered or will never appear.
    pub fn is_settled(&self) -> bool {
        self.delivered.is_empty()
    }

    /// Returns whether the row of this number must be delivered, and records it as delivered.
    pub fn deliver(&mut self, id: u64) -> bool {
        id > self.known && self.delivered.insert(id)
    }

    /// Records that no further number up to `sure` can appear.
    pub fn pass(&mut self, sure: u64) {
        while let Some(&id) = self.delivered.first()
            && (id == self.known + 1 || id <= sure)
        {
            self.known = id;
            self.delivered.pop_first();
        }
        self.known = self.known.max(sure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_numbers_are_delivered_and_missing_ones_are_skipped() {
        let mut numbers = DeliveredNumbers { known: 10, ..DeliveredNumbers::default() };
        assert!(numbers.deliver(11) && numbers.deliver(13));
        numbers.pass(0);
        assert_eq!((numbers.known, numbers.delivered.len()), (11, 1));
        assert!(!numbers.deliver(11) && !numbers.deliver(13) && numbers.deliver(12));
        numbers.pass(0);
        assert_eq!((numbers.known, numbers.delivered.len()), (13, 0));
        assert!(numbers.deliver(16) && numbers.deliver(20));
        numbers.pass(17);
        assert_eq!((numbers.known, numbers.delivered.len()), (17, 1), "number 18 has not appeared yet");
        numbers.pass(18);
        assert_eq!((numbers.known, numbers.delivered.len()), (18, 1));
    }
}
