//! The memory that all write buffers of a mount share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A bound on the bytes held by write buffers, shared by every open file.
#[derive(Debug)]
pub struct MemoryBudget {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

impl MemoryBudget {
    /// The default bound of a mount, in bytes: 256 MiB.
    pub const DEFAULT_BYTES: u64 = 256 << 20;

    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(MemoryBudget { limit_bytes, used_bytes: AtomicU64::new(0) })
    }

    /// The bytes held now. Only writes that are stored before they return exceed the limit
    /// ([`WriteBuffer::write_beyond`](crate::WriteBuffer::write_beyond)).
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Grants `bytes` if the sum stays within the limit.
    pub(crate) fn try_grant(self: &Arc<Self>, bytes: u64) -> Option<MemoryGrant> {
        self.used_bytes
            .fetch_update(Relaxed, Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.limit_bytes)
            })
            .ok()
            .map(|_| MemoryGrant { budget: Arc::clone(self), bytes })
    }

    /// Grants `bytes` regardless of the limit.
    pub(crate) fn grant(self: &Arc<Self>, bytes: u64) -> MemoryGrant {
        self.used_bytes.fetch_add(bytes, Relaxed);
        MemoryGrant { budget: Arc::clone(self), bytes }
    }
}

/// Bytes of a budget that one owner may hold; released when dropped.
#[derive(Debug)]
pub(crate) struct MemoryGrant {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl MemoryGrant {
    /// Splits off up to `bytes`.
    pub(crate) fn split(&mut self, bytes: u64) -> MemoryGrant {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        MemoryGrant { budget: Arc::clone(&self.budget), bytes }
    }

    /// Adds `bytes` for capacity that holds no data yet, if at most half of the limit is used
    /// afterwards.
    pub(crate) fn try_grow(&mut self, bytes: u64) -> bool {
        let (used, half) = (&self.budget.used_bytes, self.budget.limit_bytes / 2);
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= half);
        let grown = used.fetch_update(Relaxed, Relaxed, add).is_ok();
        if grown {
            self.bytes += bytes;
        }
        grown
    }

    /// Moves up to `bytes` from `other` to this grant.
    pub(crate) fn absorb(&mut self, other: &mut MemoryGrant, bytes: u64) {
        let bytes = bytes.min(other.bytes);
        other.bytes -= bytes;
        self.bytes += bytes;
    }
}

impl Drop for MemoryGrant {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_grants_are_released() {
        let budget = MemoryBudget::new(100);
        let mut first = budget.try_grant(60).unwrap();
        assert!(budget.try_grant(41).is_none());
        let mut second = first.split(50);
        drop(first);
        assert_eq!(budget.used_bytes(), 50);
        let mut third = budget.grant(70);
        second.absorb(&mut third, 1000);
        drop(third);
        assert_eq!(budget.used_bytes(), 120);
        assert!(!second.try_grow(1), "more than half is used");
        drop(second.split(80));
        assert!(second.try_grow(10) && !second.try_grow(1));
        drop(second);
        assert_eq!(budget.used_bytes(), 0);
    }
}
