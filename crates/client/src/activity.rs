//! The work of a client since it was opened, and the memory that it uses.

use std::sync::atomic::{AtomicU64, Ordering};

/// The rare events of the retry loop. The cache counts hits and misses.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) conflicts: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) failures: AtomicU64,
}

/// Counts since the client was opened, and sizes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Transactions with a guard that did not hold, so that the operation was planned again.
    pub conflicts: u64,
    /// Requests that were sent again because they failed.
    pub retries: u64,
    /// Requests that were given up.
    pub failures: u64,
    /// Records that operations found in the cache.
    pub cache_hits: u64,
    /// Records that operations did not find in the cache.
    pub cache_misses: u64,
    /// The memory of the record cache, estimated.
    pub cache_bytes: u64,
    /// The memory of cached listings, estimated.
    pub listing_bytes: u64,
    /// Directories that this client holds (SEMANTICS.md, "Asynchronous metadata").
    pub held_directories: u64,
    /// Transactions that are queued and not yet committed: answered changes in held directories, and changes
    /// that give directories back.
    pub queued_changes: u64,
}

pub(crate) fn count(event: &AtomicU64) {
    event.fetch_add(1, Ordering::Relaxed);
}
