//! Who reads a file from end to end finds its blocks fetched already.
//!
//! The window grows with what was read in a row, so that a short read costs nothing more and a long one keeps as many
//! requests under way as a distant store needs. It does not end where a slice or a chunk does.

use std::ops::Range;

use types::BLOCK_BYTES;

/// So many readers of one file are told apart, by where they read.
const READERS: usize = 4;

/// The furthest that is fetched ahead, in bytes: a store that answers in 50 ms then brings 600 MB/s.
const MOST_BYTES: u64 = 32 << 20;

/// The share of the cache of blocks that what is fetched ahead may take, for all files together.
const CACHE_SHARE: u64 = 4;

/// A reader goes on who reads so near to where he was last: the kernel reads ahead too, by several requests at once, and
/// they come in any order.
const NEAR_BYTES: u64 = 2 << 20;

/// The readers of one file.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    readers: [Reader; READERS],
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    /// Bytes read in a row.
    run: u64,
    /// The end of the furthest read.
    next: u64,
    /// Up to here it is fetched, or is about to be.
    asked: u64,
    used: u64,
}

/// How far ahead each of so many open files may be fetched, in bytes, with a cache of this size.
pub(crate) fn most_bytes(cache_bytes: u64, open_files: u64) -> u64 {
    (cache_bytes / CACHE_SHARE / open_files.max(1)).clamp(BLOCK_BYTES.into(), MOST_BYTES)
}

impl ReadAhead {
    /// Notes a read, and gives what is to be fetched now, at most `most` bytes ahead of the reader.
    pub(crate) fn note(&mut self, read: Range<u64>, most: u64) -> Option<Range<u64>> {
        self.clock += 1;
        let goes_on = |reader: &Reader| {
            reader.used > 0 && read.start <= reader.next + NEAR_BYTES && read.end + NEAR_BYTES >= reader.next
        };
        let reader = match self.readers.iter().position(goes_on) {
            Some(found) => &mut self.readers[found],
            None => {
                let oldest = self.readers.iter_mut().min_by_key(|reader| reader.used)?;
                *oldest = Reader { next: read.end, asked: read.end, ..Reader::default() };
                oldest
            }
        };
        reader.used = self.clock;
        reader.run += read.end - read.start;
        reader.next = reader.next.max(read.end);
        // Half a block is no run yet: a block of which so much is read is fetched whole anyway.
        if reader.run <= u64::from(BLOCK_BYTES) / 2 {
            return None;
        }
        let until = reader.next + reader.run.next_power_of_two().min(most);
        let from = reader.asked.max(reader.next);
        if until < from + u64::from(BLOCK_BYTES) {
            return None;
        }
        reader.asked = until;
        Some(from..until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;
    const STEP: u64 = 128 << 10;

    #[test]
    fn a_reader_of_half_a_block_costs_nothing_ahead() {
        let mut ahead = ReadAhead::default();
        for at in (0..BLOCK / 2).step_by(STEP as usize) {
            assert_eq!(ahead.note(at..at + STEP, MOST_BYTES), None);
        }
    }

    #[test]
    fn the_window_grows_to_its_bound_and_nothing_is_asked_for_twice() {
        let mut ahead = ReadAhead::default();
        let (mut asked, mut furthest) = (0, 0);
        for at in (0..64 * BLOCK).step_by(STEP as usize) {
            if let Some(range) = ahead.note(at..at + STEP, MOST_BYTES) {
                assert!(range.start >= asked && range.end - range.start >= BLOCK, "{range:?} after {asked}");
                asked = range.end;
            }
            furthest = furthest.max(asked.saturating_sub(at + STEP));
            assert!(asked.saturating_sub(at + STEP) <= MOST_BYTES);
        }
        assert_eq!(furthest, MOST_BYTES);
    }

    #[test]
    fn requests_in_any_order_are_one_reader() {
        let mut ahead = ReadAhead::default();
        let mut asked = 0;
        for pair in (0..16 * BLOCK).step_by(2 * STEP as usize) {
            for at in [pair + STEP, pair] {
                asked = ahead.note(at..at + STEP, MOST_BYTES).map_or(asked, |range| range.end);
            }
        }
        assert!(asked > 16 * BLOCK);
    }

    #[test]
    fn random_reads_fetch_nothing_and_readers_beside_each_other_do_not_disturb() {
        let mut ahead = ReadAhead::default();
        for i in 0..10_000 {
            let at = (i * 7919 % 10_007) * BLOCK;
            assert_eq!(ahead.note(at..at + 4096, MOST_BYTES), None);
        }
        let mut ranges = [0; READERS];
        for at in (0..8 * BLOCK).step_by(STEP as usize) {
            for (reader, count) in ranges.iter_mut().enumerate() {
                let at = at + reader as u64 * 1000 * BLOCK;
                *count += usize::from(ahead.note(at..at + STEP, MOST_BYTES).is_some());
            }
        }
        assert!(ranges.iter().all(|&count| count > 1), "{ranges:?}");
    }

    #[test]
    fn many_files_share_the_cache() {
        assert_eq!(most_bytes(256 << 20, 1), MOST_BYTES);
        assert_eq!(most_bytes(256 << 20, 8), 8 << 20);
        assert_eq!(most_bytes(256 << 20, 1000), BLOCK);
    }
}
