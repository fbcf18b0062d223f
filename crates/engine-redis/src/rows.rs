//! The stored forms of records. [`schema`](crate::schema) describes their contents.

use keyspace::{Reader, Writer};
use meta::{
    Dirent, Garbage, Inode, Lock, LockOwner, LockWait, Quota, QuotaKey, QuotaRule, QuotaState, QuotaTag,
    Session,
};
use types::{AclId, FileType, Ino, Mode, QuotaId, SessionId, Slice, SliceId, Time};

use crate::error::Malformed;

/// Decodes the fields of a record. No bytes may remain.
fn read<'a, T>(
    what: &'static str,
    bytes: &'a [u8],
    fields: impl FnOnce(&mut Reader<'a>) -> Option<T>,
) -> Result<T, Malformed> {
    Reader::whole(bytes, fields).ok_or(Malformed(what))
}

/// An encoded time; empty if the time does not change.
pub(crate) fn time(time: Option<Time>) -> Vec<u8> {
    time.map_or(Vec::new(), |time| Writer::default().ordered_time(time).into_vec())
}

/// Both ACL IDs; empty if there is no ACL.
pub(crate) fn acls(access: AclId, default: AclId) -> Vec<u8> {
    let none = access.is_none() && default.is_none();
    if none { Vec::new() } else { [access.to_bytes(), default.to_bytes()].concat() }
}

/// Offsets of fields in a stored inode, counted from 1.
pub(crate) const LINKS: u8 = 12;
pub(crate) const SIZE: u8 = 16;
pub(crate) const PARENT: u8 = 48;

pub(crate) fn put_inode(inode: &Inode) -> Vec<u8> {
    let row = Writer::with_capacity(100)
        .kind(inode.kind)
        .bytes(&access_fields(inode.mode, inode.uid, inode.gid))
        .u32(inode.nlink)
        .u64(inode.size)
        .ordered_time(inode.atime)
        .ordered_time(inode.mtime)
        .ordered_time(inode.ctime)
        .u64(inode.parent.0)
        .u64(inode.access_rev)
        .bytes(&acls(inode.access_acl, inode.default_acl));
    let row = if inode.rdev == 0 { row } else { row.u32(inode.rdev) };
    let row = row.bytes(&tag(inode.quota));
    let row = if inode.xattr_blocks == 0 { row } else { row.u16(inode.xattr_blocks) };
    row.into_vec()
}

/// A quota tag; empty if there is none.
pub(crate) fn tag(tag: QuotaTag) -> Vec<u8> {
    if tag == QuotaTag::NONE { Vec::new() } else { tag.to_number().to_be_bytes().to_vec() }
}

/// The key of a quota: a kind and a number.
pub(crate) fn put_quota_key(key: QuotaKey) -> Vec<u8> {
    let (kind, number) = key.to_numbers();
    Writer::default().u8(kind).u64(number).into_vec()
}

pub(crate) fn quota_key(bytes: &[u8]) -> Result<QuotaKey, Malformed> {
    read("the key of a quota cannot be read", bytes, |row| QuotaKey::from_numbers(row.u8()?, row.u64()?))
}

/// The rule of a quota, which follows its counters.
pub(crate) fn put_rule(rule: &QuotaRule) -> Vec<u8> {
    let numbers =
        [rule.outer.0, rule.max_inodes, rule.max_blocks, rule.soft_inodes, rule.soft_blocks, rule.root.0];
    numbers.into_iter().fold(Writer::default(), Writer::u64).u8(rule.state.to_number()).into_vec()
}

pub(crate) fn quota(bytes: &[u8]) -> Result<Quota, Malformed> {
    read("a quota cannot be read", bytes, |row| {
        let (inodes, blocks) = (row.i64()?, row.i64()?);
        let rule = QuotaRule {
            outer: QuotaId(row.u64()?),
            max_inodes: row.u64()?,
            max_blocks: row.u64()?,
            soft_inodes: row.u64()?,
            soft_blocks: row.u64()?,
            root: Ino(row.u64()?),
            state: QuotaState::from_number(row.u8()?)?,
        };
        Some(Quota { inodes, blocks, rule })
    })
}

/// Mode, uid and gid, as stored in an inode.
pub(crate) fn access_fields(mode: Mode, uid: u32, gid: u32) -> Vec<u8> {
    Writer::default().u16(mode.bits() as u16).u32(uid).u32(gid).into_vec()
}

pub(crate) fn inode(ino: Ino, bytes: &[u8]) -> Result<Inode, Malformed> {
    read("an inode cannot be read", bytes, |row| {
        Some(Inode {
            ino,
            kind: row.kind()?,
            mode: Mode::new(row.u16()?.into()),
            uid: row.u32()?,
            gid: row.u32()?,
            nlink: row.u32()?,
            size: row.u64()?,
            atime: row.ordered_time()?,
            mtime: row.ordered_time()?,
            ctime: row.ordered_time()?,
            parent: Ino(row.u64()?),
            access_rev: row.u64()?,
            // The rest is optional. Its length says which fields it has.
            access_acl: if row.0.len() >= 32 { AclId::from_bytes(row.chunk()?) } else { AclId::NONE },
            default_acl: if row.0.len() >= 16 { AclId::from_bytes(row.chunk()?) } else { AclId::NONE },
            // The optional fields that are left have 4, 8 and 2 bytes, so each has its own bit in the
            // remaining length.
            rdev: if row.0.len() & 4 != 0 { row.u32()? } else { 0 },
            quota: if row.0.len() & 8 != 0 { QuotaTag::from_number(row.u64()?) } else { QuotaTag::NONE },
            xattr_blocks: if row.0.is_empty() { 0 } else { row.u16()? },
        })
    })
}

pub(crate) fn put_dirent(ino: Ino, kind: FileType) -> Vec<u8> {
    Writer::default().kind(kind).u64(ino.0).into_vec()
}

pub(crate) fn dirent(bytes: &[u8]) -> Result<Dirent, Malformed> {
    read("an entry cannot be read", bytes, |row| Some(Dirent { kind: row.kind()?, ino: Ino(row.u64()?) }))
}

pub(crate) fn put_slice(slice: &Slice) -> Vec<u8> {
    Writer::default().row(slice).into_vec()
}

pub(crate) fn slice(bytes: &[u8]) -> Result<Slice, Malformed> {
    read("a slice row cannot be read", bytes, |row| row.row())
}

/// The owner of a lock, which is the key of a wait.
pub(crate) fn put_owner(owner: LockOwner) -> Vec<u8> {
    Writer::default().owner(owner).into_vec()
}

pub(crate) fn put_locks(locks: &[Lock]) -> Vec<u8> {
    locks.iter().fold(Writer::default(), Writer::lock).into_vec()
}

pub(crate) fn locks(bytes: &[u8]) -> Result<Vec<Lock>, Malformed> {
    read("locks cannot be read", bytes, |row| row.all(Reader::lock))
}

pub(crate) fn wait(bytes: &[u8]) -> Result<LockWait, Malformed> {
    read("a wait for a lock cannot be read", bytes, |row| {
        Some(LockWait { ino: Ino(row.u64()?), lock: row.lock()? })
    })
}

/// Decodes all fields except the ID, which is the key.
pub(crate) fn session(id: SessionId, bytes: &[u8]) -> Result<Session, Malformed> {
    read("a session cannot be read", bytes, |row| row.session(id))
}

pub(crate) fn orphan(session: SessionId, ino: Ino) -> Vec<u8> {
    Writer::default().u64(session.0).u64(ino.0).into_vec()
}

pub(crate) fn garbage(slice: u64, bytes: &[u8]) -> Result<Garbage, Malformed> {
    read("garbage cannot be read", bytes, |row| Some(Garbage { slice: SliceId(slice), size: row.u32()? }))
}

pub(crate) fn number(bytes: &[u8]) -> Result<u64, Malformed> {
    read("a number cannot be read", bytes, |row| row.u64())
}

/// Splits a member of a map with keys of fixed length into the key and the value after the NUL.
pub(crate) fn member<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), Malformed> {
    match bytes.split_first_chunk() {
        Some((key, [0, value @ ..])) => Ok((*key, value)),
        _ => Err(Malformed("a map member is too short")),
    }
}
