//! Small ranges of data share a slice.
//!
//! Each object costs a request, and on a local directory a sync. So the small extents of one flush, and the
//! small ranges that one compaction rewrites, share slices, and each row names its part of a slice. A shared
//! slice has one block only: it cannot be removed before its last row is gone, so a larger one would be kept
//! longer.
//!
//! The parts are in the order of the file: a reader of the file then reads the block from the front to the
//! back, and adjacent ranges can be read as one.

use types::BLOCK_BYTES;

/// A longer range has a slice of its own: a few of them fill a block, so it would save little to copy them
/// together.
pub(crate) const MAX_SHARED_BYTES: u32 = BLOCK_BYTES / 4;

/// Divides ranges of these lengths into slices, and returns the indexes of the ranges in each slice. A slice
/// of more than one range has at most [`BLOCK_BYTES`].
pub fn share_slices(lens: impl IntoIterator<Item = u32>) -> Vec<Vec<usize>> {
    let (mut slices, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (index, len) in lens.into_iter().enumerate() {
        if len > MAX_SHARED_BYTES {
            slices.push(vec![index]);
            continue;
        }
        if bytes + len > BLOCK_BYTES {
            slices.push(std::mem::take(&mut open));
            bytes = 0;
        }
        open.push(index);
        bytes += len;
    }
    slices.push(open);
    slices.retain(|slice| !slice.is_empty());
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ranges_fill_blocks_and_long_ones_stay_alone() {
        let none: [Vec<usize>; 0] = [];
        assert_eq!(share_slices([]), none);
        assert_eq!(share_slices([5, BLOCK_BYTES, 7]), [vec![1], vec![0, 2]]);
        let most = MAX_SHARED_BYTES;
        assert_eq!(share_slices([most, most + 1, most, most, most]), [vec![1], vec![0, 2, 3, 4]]);
        assert_eq!(share_slices([most, most, most, most, 1]), [vec![0, 1, 2, 3], vec![4]]);
    }
}
