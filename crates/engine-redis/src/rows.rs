//! The stored forms of records. [`schema`](crate::schema) says what each holds.

use keyspace::{Reader, Writer};
use meta::{Edge, Garbage, Lock, LockOwner, LockWait, Node, Session};
use types::{AclId, FileType, Ino, Mode, SessionId, Slice, SliceId, Time};

use crate::error::Malformed;

/// Takes the fields of a record; nothing may be left over.
fn read<'a, T>(
    what: &'static str,
    bytes: &'a [u8],
    fields: impl FnOnce(&mut Reader<'a>) -> Option<T>,
) -> Result<T, Malformed> {
    Reader::whole(bytes, fields).ok_or(Malformed(what))
}

/// A time, or nothing if it stays.
pub(crate) fn time(time: Option<Time>) -> Vec<u8> {
    time.map_or(Vec::new(), |time| Writer::default().ordered_time(time).into_vec())
}

/// Both ACLs, or nothing if there is neither.
pub(crate) fn acls(access: AclId, default: AclId) -> Vec<u8> {
    let none = access.is_none() && default.is_none();
    if none { Vec::new() } else { [access.to_bytes(), default.to_bytes()].concat() }
}

/// Where fields of a node begin, counted from 1.
pub(crate) const LINKS: u8 = 12;
pub(crate) const SIZE: u8 = 16;
pub(crate) const PARENT: u8 = 48;

pub(crate) fn put_node(node: &Node) -> Vec<u8> {
    let row = Writer::with_capacity(100)
        .kind(node.kind)
        .bytes(&access_fields(node.mode, node.uid, node.gid))
        .u32(node.nlink)
        .u64(node.size)
        .ordered_time(node.atime)
        .ordered_time(node.mtime)
        .ordered_time(node.ctime)
        .u64(node.parent.0)
        .u64(node.access_rev)
        .bytes(&acls(node.access_acl, node.default_acl));
    let row = if node.rdev == 0 { row } else { row.u32(node.rdev) };
    row.into_vec()
}

/// Mode, user and group, as they stand in a node.
pub(crate) fn access_fields(mode: Mode, uid: u32, gid: u32) -> Vec<u8> {
    Writer::default().u16(mode.bits() as u16).u32(uid).u32(gid).into_vec()
}

pub(crate) fn node(ino: Ino, bytes: &[u8]) -> Result<Node, Malformed> {
    read("an inode cannot be read", bytes, |row| {
        let mut node = Node {
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
            access_acl: AclId::NONE,
            default_acl: AclId::NONE,
            rdev: 0,
        };
        if row.0.len() >= 32 {
            node.access_acl = AclId::from_bytes(row.chunk()?);
            node.default_acl = AclId::from_bytes(row.chunk()?);
        }
        if !row.0.is_empty() {
            node.rdev = row.u32()?;
        }
        Some(node)
    })
}

pub(crate) fn put_edge(ino: Ino, kind: FileType) -> Vec<u8> {
    Writer::default().kind(kind).u64(ino.0).into_vec()
}

pub(crate) fn edge(bytes: &[u8]) -> Result<Edge, Malformed> {
    read("an entry cannot be read", bytes, |row| Some(Edge { kind: row.kind()?, ino: Ino(row.u64()?) }))
}

pub(crate) fn put_slice(slice: &Slice) -> Vec<u8> {
    Writer::default().row(slice).into_vec()
}

pub(crate) fn slice(bytes: &[u8]) -> Result<Slice, Malformed> {
    read("a row of a file cannot be read", bytes, |row| row.row())
}

/// Whose lock it is: the key of a wait.
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

/// All but its id, which is its key.
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

/// A member of a map whose keys are of a fixed length: the key, and what follows NUL.
pub(crate) fn member<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), Malformed> {
    match bytes.split_first_chunk() {
        Some((key, [0, value @ ..])) => Ok((*key, value)),
        _ => Err(Malformed("a member of a map is too short")),
    }
}
