//! Encodes records as values of columns, in the order of the rows of replies. `reply.rs` decodes them.
//!
//! Numbers have 64 bits, some signed and some unsigned; an engine whose columns are all signed stores the
//! same bits.

use meta::{Inode, Lock, QuotaKey, QuotaRule};
use types::{AclId, Slice, SliceSource};

/// The numbers of an inode.
pub fn inode(inode: &Inode) -> [i128; 15] {
    [
        inode.ino.0.into(),
        inode.kind.to_dtype().into(),
        inode.mode.bits().into(),
        inode.uid.into(),
        inode.gid.into(),
        inode.rdev.into(),
        inode.nlink.into(),
        inode.size.into(),
        inode.atime.nanos().into(),
        inode.mtime.nanos().into(),
        inode.ctime.nanos().into(),
        inode.parent.0.into(),
        inode.access_rev.into(),
        inode.xattr_blocks.into(),
        inode.quota.to_number().into(),
    ]
}

/// The id of an ACL; `None` for no ACL.
pub fn acl(id: AclId) -> Option<[u8; 16]> {
    (!id.is_none()).then(|| id.to_bytes())
}

/// The numbers of a row of a chunk after inode and chunk: pos, len, slice, slice_off, slice_size; and its
/// data.
pub fn slice(slice: &Slice) -> ([Option<i128>; 5], Option<&[u8]>) {
    let (blocks, data) = match &slice.source {
        SliceSource::Hole => ([None; 3], None),
        SliceSource::Inline(data) => ([None; 3], Some(&data[..])),
        SliceSource::Blocks { id, offset, size } => {
            ([id.0.into(), (*offset).into(), (*size).into()].map(Some), None)
        }
    };
    let [id, offset, size] = blocks;
    ([Some(slice.pos.into()), Some(slice.len.into()), id, offset, size], data)
}

/// The numbers of a lock after its inode.
pub fn lock(lock: &Lock) -> [i128; 7] {
    let owner = lock.owner;
    [
        lock.start.into(),
        lock.end.into(),
        owner.session.0.into(),
        owner.owner.into(),
        owner.kind.number().into(),
        lock.exclusive.into(),
        lock.pid.into(),
    ]
}

/// The numbers of a quota: its key and its rule.
pub fn quota(key: QuotaKey, rule: &QuotaRule) -> [u64; 9] {
    let (kind, number) = key.to_numbers();
    [
        kind.into(),
        number,
        rule.outer.0,
        rule.max_inodes,
        rule.max_blocks,
        rule.soft_inodes,
        rule.soft_blocks,
        rule.root.0,
        rule.state.to_number().into(),
    ]
}

#[cfg(test)]
mod tests {
    use meta::{LockKind, LockOwner, Quota, QuotaState, QuotaTag, Record, RecordKey};
    use types::{ChunkIndex, FileType, Ino, Mode, QuotaId, SessionId, SliceId, Time};

    use super::*;
    use crate::{ReplyContent, ReplyRow, kind};

    #[test]
    fn rows_of_these_values_give_the_records_back() {
        let sample = Inode {
            ino: Ino(u64::MAX),
            kind: FileType::Symlink,
            mode: Mode::new(0o4711),
            uid: 1,
            gid: u32::MAX,
            rdev: 3,
            nlink: 4,
            size: 5,
            atime: Time::from_nanos(-6),
            mtime: Time::from_nanos(7),
            ctime: Time::from_nanos(8),
            access_acl: AclId::from_bytes([9; 16]),
            default_acl: AclId::NONE,
            parent: Ino(10),
            access_rev: 11,
            xattr_blocks: u16::MAX,
            quota: QuotaTag::new(QuotaId(12), true),
        };
        let owner = LockOwner { session: SessionId(3), owner: u64::MAX, kind: LockKind::Flock };
        let held = Lock { start: 1, end: u64::MAX, owner, exclusive: true, pid: 4 };
        let sources = [
            SliceSource::Hole,
            SliceSource::Inline(b""[..].into()),
            SliceSource::Blocks { id: SliceId(1 << 63), offset: 2, size: 3 },
        ];
        let rows = sources.map(|source| Slice { pos: 1, len: 2, source });

        let mut found = ReplyContent::default();
        let mut take = |kind, numbers: Vec<Option<i128>>, strings: &[Option<&[u8]>]| {
            let numbers = numbers.into_iter().map(|number| number.map(|number| number as i64));
            found.take(&ReplyRow { kind, row: (numbers.collect(), strings.to_vec()) }).unwrap();
        };
        let acls = [acl(sample.access_acl), acl(sample.default_acl)];
        take(
            kind::INODE,
            inode(&sample).map(Some).into(),
            &acls.each_ref().map(|id| id.as_ref().map(|id| &id[..])),
        );
        for row in &rows {
            let (numbers, data) = slice(row);
            take(kind::SLICE, [&[Some(7), Some(0)], &numbers[..]].concat(), &[data]);
        }
        take(kind::LOCK, [&[7], &lock(&held)[..]].concat().into_iter().map(Some).collect(), &[]);
        let key = QuotaKey::Group(u32::MAX);
        let rule = QuotaRule {
            outer: QuotaId(1),
            max_inodes: 2,
            soft_inodes: 3,
            soft_blocks: 4,
            root: Ino(5),
            state: QuotaState::Removing,
            ..QuotaRule::default()
        };
        let counted = [-6, 7].map(|count| Some(i128::from(count)));
        take(
            kind::QUOTA,
            quota(key, &rule).map(|n| Some(n.into())).into_iter().chain(counted).collect(),
            &[],
        );
        let keys = [
            RecordKey::Quota(key),
            RecordKey::Inode(sample.ino),
            RecordKey::Slices(Ino(7), ChunkIndex(0)),
            RecordKey::Locks(Ino(7)),
        ];
        let expected = [
            Record::Quota(key, Some(Quota { inodes: -6, blocks: 7, rule })),
            Record::Inode(sample.ino, Some(sample)),
            Record::Acl(sample.access_acl, None),
            Record::Slices(Ino(7), ChunkIndex(0), rows.into()),
            Record::Locks(Ino(7), [held].into()),
        ];
        assert_eq!(found.answer(&keys), expected);
    }
}
