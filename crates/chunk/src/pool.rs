//! Reuses the memory of blocks: new memory costs one page fault per 4 KiB, which costs more than filling the
//! pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use types::BLOCK_BYTES;

/// The size in bytes of a buffer for a block and its checksums.
pub(crate) const BUFFER_BYTES: usize = BLOCK_BYTES as usize + (16 << 10);

/// The number of unused buffers kept (32 MiB): the number of threads that read or write blocks.
const MOST: usize = 8;

static FREE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty buffer with the capacity of a block.
pub(crate) fn empty() -> Vec<u8> {
    let mut buffer = take();
    buffer.clear();
    buffer
}

/// A buffer of `len` bytes with arbitrary content, to be overwritten.
pub(crate) fn any(len: usize) -> Vec<u8> {
    // A small buffer is cheap to allocate.
    let mut buffer = if (BUFFER_BYTES / 4..=BUFFER_BYTES).contains(&len) { take() } else { Vec::new() };
    buffer.resize(len, 0);
    buffer
}

/// The bytes of a buffer; the buffer returns to the pool when the last user drops them. If the buffer is less
/// than half full, the bytes are copied, because a cache charges them by their length and may keep them for
/// long.
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
        if free.len() < MOST {
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
        assert!(free().len() <= MOST);
    }

    #[test]
    fn few_bytes_do_not_keep_a_whole_block_in_memory() {
        for len in [1, 300_000, 1 << 20] {
            let mut buffer = empty();
            buffer.resize(len, 7);
            // Memory shared with the pool could not become a unique BytesMut.
            let own = freeze(buffer).try_into_mut().expect("memory of its own");
            assert!(own.capacity() <= len + 64, "{} for {len}", own.capacity());
        }
        let mut small = Vec::with_capacity(8192);
        small.extend_from_slice(&[7; 5000]);
        assert!(freeze(small).try_into_mut().expect("memory of its own").capacity() <= 5000 + 64);
    }
}
