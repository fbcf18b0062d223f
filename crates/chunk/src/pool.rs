//! The memory of blocks, used again: what the system gives anew costs a page fault every 4 KiB, and these cost more than to
//! fill the pages.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use types::BLOCK_BYTES;

/// Room for a block and what is stored with it, in bytes.
const BUFFER_BYTES: usize = BLOCK_BYTES as usize + (16 << 10);

/// How many unused buffers are kept, 32 MiB: as many as there are threads that bring blocks to the store or from it.
const MOST: usize = 8;

static FREE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty buffer that has room for a block.
pub(crate) fn empty() -> Vec<u8> {
    let mut buffer = take();
    buffer.clear();
    buffer
}

/// A buffer of `len` bytes to be overwritten: what they are is not said.
pub(crate) fn any(len: usize) -> Vec<u8> {
    // A small one is cheap to make.
    let mut buffer = if (BUFFER_BYTES / 4..=BUFFER_BYTES).contains(&len) { take() } else { Vec::new() };
    buffer.resize(len, 0);
    buffer
}

/// The bytes of a buffer; when the last user drops them, the buffer is used again.
pub(crate) fn freeze(buffer: Vec<u8>) -> Bytes {
    if buffer.capacity() < BUFFER_BYTES { buffer.into() } else { Bytes::from_owner(Returned(buffer)) }
}

/// Goes back to the pool when it is dropped.
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
    fn a_buffer_has_the_length_asked_for_whatever_it_held_before() {
        for len in [0, 1, BUFFER_BYTES / 4, BUFFER_BYTES - 5, BUFFER_BYTES, BUFFER_BYTES + 1] {
            let mut buffer = any(len);
            assert_eq!(buffer.len(), len);
            buffer.fill(7);
            assert_eq!(freeze(buffer), vec![7; len]);
            assert!(empty().is_empty() && empty().capacity() >= BUFFER_BYTES);
        }
        assert!(free().len() <= MOST);
    }
}
