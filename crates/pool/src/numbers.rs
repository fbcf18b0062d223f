//! The numbers of a log in which transactions become visible in another order than that of their numbers.

use std::collections::BTreeSet;

/// Which numbers of a log are accounted for.
#[derive(Debug, Default)]
pub struct Numbers {
    /// All up to this one were told or never come.
    known: u64,
    /// Those beyond that were told.
    told: BTreeSet<u64>,
}

impl Numbers {
    /// All up to this one were told or never come.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Whether no number is missing below one that was told.
    pub fn is_settled(&self) -> bool {
        self.told.is_empty()
    }

    /// Whether the row of this number is to be told, which it then is.
    pub fn tell(&mut self, id: u64) -> bool {
        id > self.known && self.told.insert(id)
    }

    /// Up to number `sure` nothing comes any more.
    pub fn pass(&mut self, sure: u64) {
        while let Some(&id) = self.told.first()
            && (id == self.known + 1 || id <= sure)
        {
            self.known = id;
            self.told.pop_first();
        }
        self.known = self.known.max(sure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_shows_late_is_told_and_one_that_never_comes_is_passed() {
        let mut numbers = Numbers { known: 10, ..Numbers::default() };
        assert!(numbers.tell(11) && numbers.tell(13));
        numbers.pass(0);
        assert_eq!((numbers.known, numbers.told.len()), (11, 1));
        assert!(!numbers.tell(11) && !numbers.tell(13) && numbers.tell(12));
        numbers.pass(0);
        assert_eq!((numbers.known, numbers.told.len()), (13, 0));
        assert!(numbers.tell(16) && numbers.tell(20));
        numbers.pass(17);
        assert_eq!((numbers.known, numbers.told.len()), (17, 1), "of 18 nothing was seen yet");
        numbers.pass(18);
        assert_eq!((numbers.known, numbers.told.len()), (18, 1));
    }
}
