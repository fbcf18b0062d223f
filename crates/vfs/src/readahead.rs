//! Readahead: blocks of a file that is read sequentially are prefetched.
//!
//! The window grows with the number of bytes read sequentially, so a short read costs nothing extra and a
//! long one keeps as many requests in flight as a distant store needs. Readahead continues across slices and
//! chunks.

use std::ops::Range;

use types::BLOCK_BYTES;

/// The number of sequential readers of one file that are told apart by their positions.
const READERS: usize = 4;

/// The maximum readahead in bytes: with a store that answers in 50 ms, this gives 600 MB/s.
const MAX_BYTES: u64 = 32 << 20;

/// The readahead of all files together may use the size of the block cache divided by this.
const CACHE_SHARE: u64 = 4;

/// A read at most this far from a reader's last position continues that reader: the kernel reads ahead too,
/// with several requests at once, which arrive in any order.
const NEAR_BYTES: u64 = 2 << 20;

/// The readers of one file.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    readers: [Reader; READERS],
    /// Counts the reads.
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    /// Bytes read sequentially.
    run: u64,
    /// The end of the furthest read.
    next: u64,
    /// The end of the prefetched range.
    prefetched: u64,
    /// The value of [`ReadAhead::clock`] at the last read; 0 before the first one.
    used: u64,
}

/// The maximum readahead of each file in bytes, for a number of open files and a cache of this size.
pub(crate) fn max_bytes(cache_bytes: u64, open_files: u64) -> u64 {
    (cache_bytes / CACHE_SHARE / open_files.max(1)).clamp(BLOCK_BYTES.into(), MAX_BYTES)
}

impl ReadAhead {
    /// Records a read, and returns the range to prefetch now, at most `most` bytes ahead of the reader.
    pub(crate) fn note(&mut self, read: Range<u64>, most: u64) -> Option<Range<u64>> {
        self.clock += 1;
        let goes_on = |reader: &Reader| {
            reader.used > 0 && read.start <= reader.next + NEAR_BYTES && read.end + NEAR_BYTES >= reader.next
        };
        let reader = match self.readers.iter().position(goes_on) {
            Some(found) => &mut self.readers[found],
            None => {
                let oldest = self.readers.iter_mut().min_by_key(|reader| reader.used)?;
                *oldest = Reader { next: read.end, prefetched: read.end, ..Reader::default() };
                oldest
            }
        };
        reader.used = self.clock;
        reader.run += read.end - read.start;
        reader.next = reader.next.max(read.end);
        // Up to half a block, nothing is prefetched, because sequential reads make the store fetch the whole
        // block anyway.
        if reader.run <= u64::from(BLOCK_BYTES) / 2 {
            return None;
        }
        let until = reader.next + reader.run.next_power_of_two().min(most);
        let from = reader.prefetched.max(reader.next);
        if until < from + u64::from(BLOCK_BYTES) {
            return None;
        }
        reader.prefetched = until;
        Some(from..until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;
    const STEP: u64 = 128 << 10;

    #[test]
    fn reading_half_a_block_prefetches_nothing() {
        let mut ahead = ReadAhead::default();
        for at in (0..BLOCK / 2).step_by(STEP as usize) {
            assert_eq!(ahead.note(at..at + STEP, MAX_BYTES), None);
        }
    }

    #[test]
    fn window_grows_to_its_bound_and_nothing_is_prefetched_twice() {
        let mut ahead = ReadAhead::default();
        let (mut prefetched, mut furthest) = (0, 0);
        for at in (0..64 * BLOCK).step_by(STEP as usize) {
            if let Some(range) = ahead.note(at..at + STEP, MAX_BYTES) {
                assert!(
                    range.start >= prefetched && range.end - range.start >= BLOCK,
                    "{range:?} after {prefetched}"
                );
                prefetched = range.end;
            }
            furthest = furthest.max(prefetched.saturating_sub(at + STEP));
            assert!(prefetched.saturating_sub(at + STEP) <= MAX_BYTES);
        }
        assert_eq!(furthest, MAX_BYTES);
    }

    #[test]
    fn reordered_requests_count_as_one_reader() {
        let mut ahead = ReadAhead::default();
        let mut prefetched = 0;
        for pair in (0..16 * BLOCK).step_by(2 * STEP as usize) {
            for at in [pair + STEP, pair] {
                prefetched = ahead.note(at..at + STEP, MAX_BYTES).map_or(prefetched, |range| range.end);
            }
        }
        assert!(prefetched > 16 * BLOCK);
    }

    #[test]
    fn random_reads_prefetch_nothing_and_parallel_readers_are_independent() {
        let mut ahead = ReadAhead::default();
        for i in 0..10_000 {
            let at = (i * 7919 % 10_007) * BLOCK;
            assert_eq!(ahead.note(at..at + 4096, MAX_BYTES), None);
        }
        let mut ranges = [0; READERS];
        for at in (0..8 * BLOCK).step_by(STEP as usize) {
            for (reader, count) in ranges.iter_mut().enumerate() {
                let at = at + reader as u64 * 1000 * BLOCK;
                *count += usize::from(ahead.note(at..at + STEP, MAX_BYTES).is_some());
            }
        }
        assert!(ranges.iter().all(|&count| count > 1), "{ranges:?}");
    }

    #[test]
    fn many_files_share_the_cache() {
        assert_eq!(max_bytes(256 << 20, 1), MAX_BYTES);
        assert_eq!(max_bytes(256 << 20, 8), 8 << 20);
        assert_eq!(max_bytes(256 << 20, 1000), BLOCK);
    }
}
