//! Fresh inode and slice numbers, leased from the volume in ranges.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use meta::{Counter, Meta};
use types::Errno;

/// How many numbers one lease takes: a round trip in so many creates. What is left at the end of a session is lost.
const LEASE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Numbers {
    meta: Arc<Meta>,
    counter: Counter,
    left: Mutex<Range<u64>>,
}

impl Numbers {
    pub(crate) fn new(meta: &Arc<Meta>, counter: Counter) -> Self {
        Numbers { meta: Arc::clone(meta), counter, left: Mutex::new(0..0) }
    }

    /// A number that was never given out before in the volume.
    pub(crate) fn take(&self) -> Result<u64, Errno> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() {
            let first = self.meta.lease(self.counter, LEASE)?;
            *left = first..first + LEASE;
        }
        left.next().ok_or(Errno::EIO)
    }
}
