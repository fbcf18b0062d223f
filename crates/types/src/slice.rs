//! How the bytes of a file are stored: chunks, slices, blocks.
//!
//! A file is divided into chunks of [`CHUNK_BYTES`]. Each write to a chunk appends one [`Slice`] row to it.
//! If rows overlap, the newest one applies. Bytes without a row read as zeros.
//!
//! The bytes of a small file are stored in its rows ([`SliceSource::Inline`]), not in a record of another
//! kind. So the same rules for overlaps and growth hold for all files, appends commute, and nothing is
//! converted when a file outgrows the limit for small files.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{ChunkIndex, SliceId};

/// The size of a chunk in bytes: 64 MiB. A slice never crosses the end of a chunk.
pub const CHUNK_BYTES: u64 = 64 << 20;

/// The size of a block, the unit of the object store, in bytes: 4 MiB. The last block of a slice may be
/// shorter.
pub const BLOCK_BYTES: u32 = 4 << 20;

/// One row of a chunk: the `len` bytes from position `pos` in the chunk come from `source`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slice {
    pub pos: u32,
    pub len: u32,
    pub source: SliceSource,
}

/// The source of the bytes of a [`Slice`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SliceSource {
    /// The bytes are zeros, whatever older rows contain.
    Hole,
    /// The bytes are in the row itself.
    Inline(#[serde(with = "crate::bytes")] Arc<[u8]>),
    /// The bytes are in the object store. The slice `id` has `size` bytes, stored as blocks; the row uses
    /// `len` of them, starting at byte `offset` of the slice.
    Blocks { id: SliceId, offset: u32, size: u32 },
}

impl SliceSource {
    /// The source of `len` bytes of the row, starting at its byte `skip`. If the row is damaged, the result
    /// may have fewer bytes; reading the missing ones fails.
    #[must_use]
    pub fn part(&self, skip: u32, len: u32) -> SliceSource {
        match self {
            SliceSource::Hole => SliceSource::Hole,
            SliceSource::Inline(bytes) => {
                let to = bytes.len().min(skip as usize + len as usize);
                SliceSource::Inline(bytes[bytes.len().min(skip as usize)..to].into())
            }
            SliceSource::Blocks { id, offset, size } => {
                SliceSource::Blocks { id: *id, offset: offset.saturating_add(skip), size: *size }
            }
        }
    }
}

impl ChunkIndex {
    /// The chunk that holds byte `offset` of a file, and the position within it.
    pub fn of(offset: u64) -> (ChunkIndex, u32) {
        (ChunkIndex(offset / CHUNK_BYTES), (offset % CHUNK_BYTES) as u32)
    }

    /// The file offset at which the chunk begins.
    pub fn start(self) -> u64 {
        self.0 * CHUNK_BYTES
    }
}
