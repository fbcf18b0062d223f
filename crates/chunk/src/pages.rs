//! Caches single pages of blocks that several rows share: which pages to fetch, and their keys in the block
//! cache.

use std::ops::Range;

use types::{BLOCK_BYTES, SliceId};

use crate::block::BlockName;
use crate::format::PAGE_BYTES;

/// A block, or one of its pages ([`page_key`]).
pub(crate) type BlockKey = (SliceId, u32);

/// Set in the second number of a page's key, but not of a block's key. A slice has far fewer than 2^31 blocks
/// or pages.
const PAGE: u32 = 1 << 31;

/// Whether to fetch a block of `len` bytes as a whole, if several rows share its slice and a request reads
/// `shared` bytes of the slice; see [`Inner::read_block`](crate::store::Inner::read_block).
pub(crate) fn is_dense(len: u32, shared: Option<u64>) -> bool {
    shared.is_some_and(|bytes| bytes * 8 >= len.into())
}

/// The pages to fetch and cache for `count` bytes of a block from `from` on. `None` unless several rows share
/// the slice, the request reads little of it, and the block has more than two pages; see
/// [`Inner::read_block`](crate::store::Inner::read_block).
pub(crate) fn pages_to_cache(
    name: BlockName,
    from: u32,
    count: u32,
    shared: Option<u64>,
) -> Option<Range<u32>> {
    let end = from.saturating_add(count).min(name.len);
    let pages = from / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
    let is_sparse = shared.is_some() && !is_dense(name.len, shared) && name.len > 2 * PAGE_BYTES;
    is_sparse.then_some(pages)
}

/// The key of a page in the block cache.
pub(crate) fn page_key(name: BlockName, page: u32) -> BlockKey {
    (name.id, PAGE | (name.block * (BLOCK_BYTES / PAGE_BYTES) + page))
}
