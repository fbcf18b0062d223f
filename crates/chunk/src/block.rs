//! The object of a block: its key, and the trailer by which each page can be verified separately.
//!
//! There are two formats. A block that is neither compressed nor encrypted is its data followed by a trailer;
//! this file describes that format. Any other block is packed, see `packed.rs`. A volume that is not
//! encrypted reads both formats, whatever its compression is now. An encrypted volume accepts only blocks
//! that are encrypted with its cipher. All numbers are little endian.
//!
//! ```text
//! data        len bytes
//! page sums   u32 CRC-32C of each 64 KiB page of the data (the last page may be shorter)
//! magic       "LMBK"
//! format      u32, 1
//! len         u32
//! sum         u32 CRC-32C of the trailer up to here
//! ```
//!
//! A reader computes `len` from the slice's size in the row, so it knows the position of the trailer without
//! a request. The key is `chunks/<id / 1 000 000>/<id / 1 000>/<id>_<block>_<len>`: the lowest directory has
//! the blocks of at most 1000 slices, the one above it at most 1000 directories, and a listing shows the
//! length of each block.

use types::{BLOCK_BYTES, SliceId};

use crate::format::{BlockFault, MAGIC, PAGE_BYTES};

/// The version of the format described in this file.
const PLAIN_FORMAT: u32 = 1;

const FOOTER_BYTES: usize = 16;

/// The key of block `block` of slice `id`, which holds `len` bytes of data.
pub fn object_key(id: SliceId, block: u32, len: u32) -> String {
    format!("chunks/{}/{}/{id}_{block}_{len}", id.0 / 1_000_000, id.0 / 1_000)
}

/// Identifies a block: its slice, its index and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockName {
    pub(crate) id: SliceId,
    pub(crate) block: u32,
    pub(crate) len: u32,
}

impl BlockName {
    pub(crate) fn key(self) -> String {
        object_key(self.id, self.block, self.len)
    }

    /// Parses the last part of a key; `None` if it is not that of a block.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        let mut parts = key.rsplit('/').next()?.split('_');
        let (id, block, len) = (parts.next()?, parts.next()?, parts.next()?);
        let name =
            BlockName { id: SliceId(id.parse().ok()?), block: block.parse().ok()?, len: len.parse().ok()? };
        parts.next().is_none().then_some(name)
    }
}

/// How many blocks a slice of `size` bytes has.
pub(crate) fn block_count(size: u32) -> u32 {
    size.div_ceil(BLOCK_BYTES)
}

/// How many bytes block `block` of a slice of `size` bytes holds.
pub(crate) fn block_len(size: u32, block: u32) -> u32 {
    size.saturating_sub(block.saturating_mul(BLOCK_BYTES)).min(BLOCK_BYTES)
}

/// The length in bytes of the trailer of a block of `len` bytes.
pub(crate) fn trailer_len(len: u32) -> usize {
    len.div_ceil(PAGE_BYTES) as usize * 4 + FOOTER_BYTES
}

/// The trailer of a block with the bytes `data`.
pub(crate) fn encode_trailer(data: &[u8]) -> Vec<u8> {
    let mut trailer = Vec::with_capacity(trailer_len(data.len() as u32));
    for page in data.chunks(PAGE_BYTES as usize) {
        trailer.extend_from_slice(&crc32c::crc32c(page).to_le_bytes());
    }
    trailer.extend_from_slice(&MAGIC);
    trailer.extend_from_slice(&PLAIN_FORMAT.to_le_bytes());
    trailer.extend_from_slice(&(data.len() as u32).to_le_bytes());
    let sum = crc32c::crc32c(&trailer);
    trailer.extend_from_slice(&sum.to_le_bytes());
    trailer
}

/// The verified trailer of a block: the checksums of its pages.
#[derive(Debug)]
pub(crate) struct Trailer {
    sums: Vec<u32>,
}

impl Trailer {
    /// Reads the trailer of a block of `len` bytes.
    pub(crate) fn parse(bytes: &[u8], len: u32) -> Result<Self, BlockFault> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(BlockFault::Trailer)?;
        if bytes.len() != trailer_len(len) || crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(BlockFault::Trailer);
        }
        let mut words = body.as_chunks::<4>().0.to_vec();
        let found_len = words.pop().map(u32::from_le_bytes).ok_or(BlockFault::Trailer)?;
        let format = words.pop().map(u32::from_le_bytes).ok_or(BlockFault::Trailer)?;
        if words.pop() != Some(MAGIC) {
            return Err(BlockFault::Trailer);
        }
        if format != PLAIN_FORMAT {
            return Err(BlockFault::Format(format));
        }
        if found_len != len {
            return Err(BlockFault::Length(found_len));
        }
        Ok(Trailer { sums: words.into_iter().map(u32::from_le_bytes).collect() })
    }

    /// Verifies `bytes`, which are whole pages of the block from page `first` on.
    pub(crate) fn verify(&self, first: u32, bytes: &[u8]) -> Result<(), BlockFault> {
        for (i, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let index = first as usize + i;
            if self.sums.get(index) != Some(&crc32c::crc32c(page)) {
                return Err(BlockFault::Page(index as u32 * PAGE_BYTES));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reads_back_and_every_flipped_byte_is_detected() {
        let data: Vec<u8> = (0..PAGE_BYTES * 2 + 10).map(|i| (i % 251) as u8).collect();
        let len = data.len() as u32;
        let bytes = encode_trailer(&data);
        assert_eq!(bytes.len(), trailer_len(len));
        let trailer = Trailer::parse(&bytes, len).unwrap();
        trailer.verify(0, &data).unwrap();
        trailer.verify(2, &data[PAGE_BYTES as usize * 2..]).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(Trailer::parse(&bad, len).unwrap_err(), BlockFault::Trailer);
        }
        let mut bad = data.clone();
        bad[PAGE_BYTES as usize + 5] ^= 1;
        assert_eq!(trailer.verify(0, &bad), Err(BlockFault::Page(PAGE_BYTES)));
    }

    #[test]
    fn a_trailer_of_another_length_is_refused() {
        let bytes = encode_trailer(&[1; 100]);
        assert_eq!(Trailer::parse(&bytes, 101).unwrap_err(), BlockFault::Length(100));
        assert_eq!(Trailer::parse(&bytes, PAGE_BYTES * 3).unwrap_err(), BlockFault::Trailer);
        assert_eq!(Trailer::parse(&[], 0).unwrap_err(), BlockFault::Trailer);
    }

    #[test]
    fn keys_name_slice_block_and_length() {
        let name = BlockName { id: SliceId(1_234_567), block: 3, len: 4096 };
        assert_eq!(name.key(), "chunks/1/1234/1234567_3_4096");
        assert_eq!(BlockName::of_key(&name.key()), Some(name));
        assert_eq!(BlockName::of_key("1_2_3_4"), None);
        assert_eq!(BlockName::of_key("x"), None);
    }

    #[test]
    fn slices_are_cut_into_blocks() {
        assert_eq!(block_count(0), 0);
        assert_eq!(block_count(BLOCK_BYTES + 1), 2);
        assert_eq!(block_len(BLOCK_BYTES + 1, 0), BLOCK_BYTES);
        assert_eq!(block_len(BLOCK_BYTES + 1, 1), 1);
        assert_eq!(block_len(BLOCK_BYTES + 1, 2), 0);
    }
}
