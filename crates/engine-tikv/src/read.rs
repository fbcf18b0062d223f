//! Records out of keys.
//!
//! A value ends with the timestamp of the transaction that wrote it, in eight bytes, big end first. It is what tells
//! versions of a key apart, and the number of the commit: of two transactions that meet in a key, the later one began
//! after the earlier one was committed.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use keyspace::{Access, Answer, Held, Snapshot, Source, answer};
use meta::{EngineError, Facts, Seq, Want};

use crate::engine::Shared;

/// Numbers of commits count from the first day of 2025, so that they leave room for an index below them until 2059.
const EPOCH_MS: u64 = 1_735_689_600_000;
/// Of a timestamp, the bits below its milliseconds.
pub(crate) const LOGICAL_BITS: u32 = 18;
const INDEX_BITS: u32 = 6;

/// How many transactions with effects can be told apart in one commit: the last has the highest index.
pub(crate) const MOST_TXNS: usize = (1 << INDEX_BITS) - 1;

/// The number of one of the transactions that were committed by the one which began at `start`.
pub(crate) fn seq(start: u64, index: u8) -> Seq {
    let since = start.saturating_sub(EPOCH_MS << LOGICAL_BITS).min(u64::MAX >> INDEX_BITS);
    Seq(since << INDEX_BITS | u64::from(index).min((1 << INDEX_BITS) - 1))
}

/// A value as it is stored.
pub(crate) fn seal(value: &[u8], start: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(value.len() + 8);
    bytes.put_slice(value);
    bytes.put_u64(start);
    bytes.freeze()
}

fn held(mut value: Bytes) -> Result<Held, EngineError> {
    let start = value.len().checked_sub(8).map(|at| value.split_off(at));
    let start = start.and_then(|start| Some(u64::from_be_bytes(start[..].try_into().ok()?)));
    let version = start.ok_or_else(|| EngineError::permanent("a value that no limenfs writes"))?;
    Ok(Held { value, version })
}

impl Shared {
    pub(crate) fn facts(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        let seq = self.order.read();
        // What a look at the memory comes across is most likely all that is needed.
        let first = keyspace::likely(&self.keys, &self.memory, wants);
        let (records, _) = self.read_until(None, first, |source| answer(&self.keys, wants, source))?;
        Ok(Facts { seq, records })
    }

    /// Reads until there is an answer, all as of one timestamp: `at`, or one of its own.
    pub(crate) fn read_until<T>(
        &self,
        at: Option<u64>,
        first: impl IntoIterator<Item = Access>,
        answer: impl Fn(&dyn Source) -> Answer<T>,
    ) -> Result<(T, u64), EngineError> {
        let fetch = |accesses: &[Access], at: Option<u64>| {
            let at = at.map_or_else(|| self.store.timestamp(), Ok)?;
            Ok((self.read_as_of(at, accesses)?, at))
        };
        keyspace::until(&self.keys, &self.memory, at, first, fetch, answer)
    }

    /// One read of the store.
    pub(crate) fn read_as_of(&self, at: u64, accesses: &[Access]) -> Result<Snapshot, EngineError> {
        let mut keys: Vec<Vec<u8>> = accesses.iter().flat_map(Access::keys).collect();
        keys.sort_unstable();
        keys.dedup();
        let ranges = accesses.iter().filter(|access| matches!(access, Access::Span(_)));
        let spans: Vec<_> = ranges.clone().filter_map(Access::span).collect();
        let found = self.store.read(at, &keys, &spans)?;
        let mut values = HashMap::with_capacity(keys.len());
        for (key, value) in keys.into_iter().zip(found.values) {
            if let Some(value) = value {
                values.insert(key, held(value)?);
            }
        }
        let mut snapshot = Snapshot::default();
        for access in accesses.iter().filter(|access| !matches!(access, Access::Span(_))) {
            let there = |key: Vec<u8>| values.get(&key).cloned().map(|held| (Bytes::from(key), held));
            snapshot.fill(access, access.keys().into_iter().filter_map(there).collect());
        }
        for (access, rows) in ranges.zip(found.spans) {
            let rows: Result<_, EngineError> =
                rows.into_iter().map(|(key, value)| Ok((key, held(value)?))).collect();
            snapshot.fill(access, rows?);
        }
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_order_of_timestamps_and_indexes() {
        let at = |ms: u64, count: u64| (EPOCH_MS + ms) << LOGICAL_BITS | count;
        let last = at((1 << 40) - 1, (1 << LOGICAL_BITS) - 1);
        let numbers =
            [seq(0, 0), seq(at(0, 0), 1), seq(at(0, 1), 0), seq(at(0, 1), 59), seq(at(0, 1), u8::MAX)];
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        assert!(numbers[4] < seq(at(1, 0), 0) && seq(last, 0) < seq(last, 255));
        assert_eq!(seq(u64::MAX, 255), Seq(u64::MAX));
    }

    #[test]
    fn a_value_is_read_as_it_was_sealed() {
        let found = held(seal(b"abc", 7)).unwrap();
        assert_eq!((&found.value[..], found.version), (&b"abc"[..], 7));
        assert!(held(Bytes::from_static(b"1234567")).is_err());
    }
}
