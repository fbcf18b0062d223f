//! How the bytes of a file are named: chunks, slices, blocks.
//!
//! A file is cut into chunks of [`CHUNK_BYTES`]. Each write to a chunk appends one [`Slice`] row to it; where rows
//! overlap, the one appended last holds. What no row covers reads as zeros.

use std::sync::Arc;

use crate::{ChunkIndex, SliceId};

/// The length of a chunk in bytes: 64 MiB. A slice never crosses a chunk's end.
pub const CHUNK_BYTES: u64 = 64 << 20;

/// The length of a block, the unit of the object store, in bytes: 4 MiB. The last block of a slice may be shorter.
pub const BLOCK_BYTES: u32 = 4 << 20;

/// One row of a chunk: `len` bytes from `pos` on (bytes into the chunk) come from `source`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    pub pos: u32,
    pub len: u32,
    pub source: SliceSource,
}

/// Where the bytes of a [`Slice`] are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SliceSource {
    /// Nowhere: they are zeros, whatever older rows say.
    Hole,
    /// In the row itself, `len` of them.
    Inline(Arc<[u8]>),
    /// In the object store: the slice `id` holds `size` bytes in blocks; this row shows those from `offset` on.
    Blocks { id: SliceId, offset: u32, size: u32 },
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
