//! Copies of a counter or a histogram, so that threads rarely write the same memory. Readers add them up.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The number of copies. If there are more threads, some share a copy.
pub(crate) const SHARDS: usize = 8;

/// The copy that this thread uses, below [`SHARDS`].
pub(crate) fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let own = OWN.get();
    if own < SHARDS {
        return own;
    }
    let own = NEXT.fetch_add(1, Relaxed) % SHARDS;
    OWN.set(own);
    own
}
