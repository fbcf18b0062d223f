//! A log of changes, stored as keys, for stores that push no changes: a client that needs changes polls the
//! log.
//!
//! Each writer numbers its writes. The head of its shard holds the number of the last write, and a key for
//! each number holds the invalidations of that write. The transaction that changes the records writes both,
//! so they become visible with the records. Two writes of one shard conflict on its head, so the numbers are
//! in the order in which the writes become visible, without gaps. Therefore a read of all heads as of one
//! moment shows exactly the writes that have become visible since the previous read, however long a
//! transaction took.

use bytes::Bytes;
use meta::Invalidation;
use types::OpId;

use crate::form::Writer;
use crate::value::{Damaged, decode};

/// The number of recent writes of a shard that are kept.
pub const KEPT: u64 = 1024;

/// The numbers of a shard's first and last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardHead {
    pub first: u64,
    pub last: u64,
}

/// A committed transaction, as delivered to other clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeEntry {
    pub op: OpId,
    /// Its position among the transactions committed by the same write.
    pub index: u8,
    pub invalidations: Vec<Invalidation>,
}

impl ShardHead {
    /// The head after one more write. The first write of a shard gets `number`, the timestamp of its
    /// transaction. So if a shard is removed and used again later, its numbers do not repeat, because
    /// timestamps grow faster than numbers.
    pub fn after(head: Option<ShardHead>, number: u64) -> ShardHead {
        match head {
            Some(ShardHead { first, last }) => ShardHead { first, last: last.saturating_add(1) },
            None => ShardHead { first: number, last: number },
        }
    }

    /// The numbers of the writes since the head was `before`; `None` if some of them are no longer kept.
    pub fn since(&self, before: Option<ShardHead>) -> Option<std::ops::RangeInclusive<u64>> {
        let from = match before {
            Some(before) if before.first == self.first => before.last.saturating_add(1),
            _ => self.first,
        };
        let is_there = from.saturating_add(KEPT) > self.last;
        is_there.then_some(from..=self.last)
    }
}

pub fn encode_head(head: ShardHead) -> Bytes {
    Writer::versioned().u64(head.first).u64(head.last).done()
}

/// # Errors
/// [`Damaged`].
pub fn decode_head(key: &[u8], value: &[u8]) -> Result<ShardHead, Damaged> {
    decode("the head of a shard", key, value, |reader| {
        Some(ShardHead { first: reader.u64()?, last: reader.u64()? })
    })
}

pub fn encode_changes(all: &[ChangeEntry]) -> Bytes {
    let write = |writer: Writer, entry: &ChangeEntry| {
        let invalidations = Invalidation::encode(&entry.invalidations);
        let (session, count) = ((entry.op.0 >> 64) as u64, entry.op.0 as u64);
        // The invalidations of one transaction are far below 4 GiB.
        let length = u32::try_from(invalidations.len()).unwrap_or(u32::MAX);
        writer.u64(session).u64(count).u8(entry.index).u32(length).bytes(&invalidations)
    };
    all.iter().fold(Writer::versioned(), write).done()
}

/// # Errors
/// [`Damaged`].
pub fn decode_changes(key: &[u8], value: &[u8]) -> Result<Vec<ChangeEntry>, Damaged> {
    decode("the invalidations of a write", key, value, |reader| {
        reader.all(|reader| {
            let op = OpId(u128::from(reader.u64()?) << 64 | u128::from(reader.u64()?));
            let index = reader.u8()?;
            Some(ChangeEntry { op, index, invalidations: Invalidation::decode(reader.counted()?)? })
        })
    })
}

#[cfg(test)]
mod tests {
    use types::Ino;

    use super::*;

    #[test]
    fn heads_show_new_writes_and_lost_ones() {
        let mut head = ShardHead::after(None, 900);
        assert_eq!(head.since(None), Some(900..=900));
        let seen = head;
        assert!(head.since(Some(seen)).unwrap().is_empty());
        for number in 901..=903 {
            head = ShardHead::after(Some(head), number * 10);
        }
        assert_eq!(head.since(Some(seen)), Some(901..=903));
        // The shard was removed in between.
        let again = ShardHead::after(None, 5000);
        assert_eq!(again.since(Some(seen)), Some(5000..=5000));
        let far = ShardHead { first: 900, last: 900 + KEPT };
        assert_eq!(far.since(Some(seen)), Some(901..=900 + KEPT));
        assert_eq!(ShardHead { last: far.last + 1, ..far }.since(Some(seen)), None);
    }

    #[test]
    fn stored_changes_are_read_back() {
        let all = vec![
            ChangeEntry {
                op: OpId(u128::MAX - 7),
                index: 255,
                invalidations: vec![Invalidation::Inode(Ino(3))],
            },
            ChangeEntry { op: OpId(1 << 64 | 2), index: 0, invalidations: Vec::new() },
        ];
        assert_eq!(decode_changes(b"k", &encode_changes(&all)), Ok(all));
        assert!(decode_changes(b"k", b"\x01\x02").is_err());
        let head = ShardHead { first: 1, last: u64::MAX };
        assert_eq!(decode_head(b"k", &encode_head(head)), Ok(head));
    }
}
