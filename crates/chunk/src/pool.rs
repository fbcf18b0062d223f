//! Reuses the memory of blocks. New memory costs one page fault per 4 KiB, and the page faults take longer
//! than the copy of the data.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use types::BLOCK_BYTES;

/// The size in bytes of a buffer for a block and its checksums.
pub(crate) const BUFFER_BYTES: usize = BLOCK_BYTES as usize + (16 << 10);

/// At most this many unused buffers are kept (32 MiB): one for each background thread of the store.
const MAX: usize = 8;

static FREE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty buffer with a capacity of at least [`BUFFER_BYTES`].
pub(crate) fn empty() -> Vec<u8> {
    let mut buffer = take();
    buffer.clear();
    buffer
}

/// A buffer of `len` bytes. Its content is arbitrary, so the caller overwrites it.
pub(crate) fn any(len: usize) -> Vec<u8> {
    // Smaller buffers are cheap to allocate, and larger ones do not fit.
    let mut buffer = if (BUFFER_BYTES / 4..=BUFFER_BYTES).contains(&len) { take() } else { Vec::new() };
    buffer.resize(len, 0);
    buffer
}

/// Makes the buffer immutable, so that it can be shared. A buffer of the pool returns to the pool when its
/// last user drops it. If such a buffer is less than half full, its bytes are copied and it returns at once,
/// because a cache charges bytes by their length and may keep them for a long time.
pub(crate) fn freeze(mut buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() < BUFFER_BYTES {
        buffer.shrink_to_fit();
        return buffer.into();
    }
    let buffer = Returned(buffer);
    if buffer.0.len() < BUFFER_BYTES / 2 {
        return Bytes::copy_from_slice(&buffer.0);
    }
    Bytes::from_owner(buffer)
}

/// A buffer that returns to the pool when it is dropped.
struct Returned(Vec<u8>);

impl AsRef<[u8]> for Returned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        let mut free = free();
        if free.len() < MAX {
            free.push(std::mem::take(&mut self.0));
        }
    }
}

fn take() -> Vec<u8> {
    let kept = free().pop();
    kept.unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

fn free() -> MutexGuard<'static, Vec<Vec<u8>>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_buffer_has_the_requested_length() {
        for len in [0, 1, BUFFER_BYTES / 4, BUFFER_BYTES - 5, BUFFER_BYTES, BUFFER_BYTES + 1] {
            let mut buffer = any(len);
            assert_eq!(buffer.len(), len);
            buffer.fill(7);
            assert_eq!(freeze(buffer), vec![7; len]);
            assert!(empty().is_empty() && empty().capacity() >= BUFFER_BYTES);
        }
        assert!(free().len() <= MAX);
    }

    #[test]
    fn few_bytes_do_not_keep_a_whole_block_in_memory() {
        for len in [1, 300_000, 1 << 20] {
            let mut buffer = empty();
            buffer.resize(len, 7);
            // `try_into_mut` fails for a buffer of the pool, so this is a copy.
            let own = freeze(buffer).try_into_mut().expect("memory of its own");
            assert!(own.capacity() <= len + 64, "{} for {len}", own.capacity());
        }
        let mut small = Vec::with_capacity(8192);
        small.extend_from_slice(&[7; 5000]);
        assert!(freeze(small).try_into_mut().expect("memory of its own").capacity() <= 5000 + 64);
    }
}
