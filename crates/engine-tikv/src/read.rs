//! Reads keys and ranges as of a timestamp.
//!
//! A value ends with the start timestamp of the transaction that wrote it, in eight bytes, big endian. This
//! timestamp is the version of the key, and the sequence number of the commit is derived from it: of two
//! transactions that write the same key, the later one began after the earlier one was committed.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use keyspace::{KeyCache, KeyQuery, KeyReader, Keyspace, ReadSet, StoredValue};
use meta::{EngineError, Seq};

use crate::shared::Shared;

/// 2025-01-01 in milliseconds since 1970. Sequence numbers count the time since then, so that, until 2059, an
/// index fits into the bits below the time.
const EPOCH_MS: u64 = 1_735_689_600_000;
/// The number of bits of a timestamp below its milliseconds.
pub(crate) const LOGICAL_BITS: u32 = 18;
const INDEX_BITS: u32 = 6;

/// The maximum number of transactions with effects in one commit: each needs its own index.
pub(crate) const MAX_TXNS: usize = (1 << INDEX_BITS) - 1;

/// The sequence number of a transaction: the TiKV transaction that committed it began at `start`, and `index`
/// is its position in that transaction.
pub(crate) fn seq(start: u64, index: u8) -> Seq {
    let since = start.saturating_sub(EPOCH_MS << LOGICAL_BITS).min(u64::MAX >> INDEX_BITS);
    Seq(since << INDEX_BITS | u64::from(index).min((1 << INDEX_BITS) - 1))
}

/// Encodes a value with its version.
pub(crate) fn seal(value: &[u8], start: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(value.len() + 8);
    bytes.put_slice(value);
    bytes.put_u64(start);
    bytes.freeze()
}

fn held(mut value: Bytes) -> Result<StoredValue, EngineError> {
    let start = value.len().checked_sub(8).map(|at| value.split_off(at));
    let start = start.and_then(|start| Some(u64::from_be_bytes(start[..].try_into().ok()?)));
    let version = start.ok_or_else(|| EngineError::permanent("malformed value: it has no version"))?;
    Ok(StoredValue { value, version })
}

impl KeyReader for Shared {
    fn keys(&self) -> &Keyspace {
        &self.keys
    }

    fn key_cache(&self) -> &KeyCache {
        &self.key_cache
    }

    fn fetch(&self, queries: &[KeyQuery], at: Option<u64>) -> Result<(ReadSet, u64), EngineError> {
        let at = at.map_or_else(|| self.store.timestamp(), Ok)?;
        Ok((self.read_as_of(at, queries)?, at))
    }
}

impl Shared {
    /// Answers the queries with one read of the store.
    pub(crate) fn read_as_of(&self, at: u64, queries: &[KeyQuery]) -> Result<ReadSet, EngineError> {
        let mut keys: Vec<Vec<u8>> = queries.iter().flat_map(KeyQuery::keys).collect();
        keys.sort_unstable();
        keys.dedup();
        let ranges = queries.iter().filter(|query| matches!(query, KeyQuery::Span(_)));
        let spans: Vec<_> = ranges.clone().filter_map(KeyQuery::span).collect();
        let found = self.store.read(at, &keys, &spans)?;
        let mut values = HashMap::with_capacity(keys.len());
        for (key, value) in keys.into_iter().zip(found.values) {
            if let Some(value) = value {
                values.insert(key, held(value)?);
            }
        }
        let mut read_set = ReadSet::default();
        for query in queries.iter().filter(|query| !matches!(query, KeyQuery::Span(_))) {
            let there = |key: Vec<u8>| values.get(&key).cloned().map(|held| (Bytes::from(key), held));
            read_set.fill(query, query.keys().into_iter().filter_map(there).collect());
        }
        for (query, rows) in ranges.zip(found.spans) {
            let rows: Result<_, EngineError> =
                rows.into_iter().map(|(key, value)| Ok((key, held(value)?))).collect();
            read_set.fill(query, rows?);
        }
        Ok(read_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_follow_timestamps_and_indexes() {
        let at = |ms: u64, count: u64| (EPOCH_MS + ms) << LOGICAL_BITS | count;
        let last = at((1 << 40) - 1, (1 << LOGICAL_BITS) - 1);
        let numbers =
            [seq(0, 0), seq(at(0, 0), 1), seq(at(0, 1), 0), seq(at(0, 1), 59), seq(at(0, 1), u8::MAX)];
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        assert!(numbers[4] < seq(at(1, 0), 0) && seq(last, 0) < seq(last, 255));
        assert_eq!(seq(u64::MAX, 255), Seq(u64::MAX));
    }

    #[test]
    fn sealed_value_is_read_back() {
        let found = held(seal(b"abc", 7)).unwrap();
        assert_eq!((&found.value[..], found.version), (&b"abc"[..], 7));
        assert!(held(Bytes::from_static(b"1234567")).is_err());
    }
}
