//! The stored forms of records. [`schema`](crate::schema) says what each holds.

use meta::{Edge, Garbage, Lock, LockKind, LockOwner, LockWait, Node, Session};
use types::{AclId, FileType, Ino, Mode, SessionId, Slice, SliceId, SliceSource, Time};

use crate::request::Malformed;

/// Takes the numbers of a stored form off its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Malformed("a record is too short"))?;
        self.0 = rest;
        Ok(*front)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_be_bytes)
    }

    fn time(&mut self) -> Result<Time, Malformed> {
        self.u64().map(|bits| Time::from_nanos((bits ^ SIGN) as i64))
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let len = self.u32()? as usize;
        let (front, rest) = self.0.split_at_checked(len).ok_or(Malformed("a record is too short"))?;
        self.0 = rest;
        String::from_utf8(front.to_vec()).map_err(|_| Malformed("a text is not UTF-8"))
    }

    fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed("a record is too long")) }
    }
}

/// Turned over, so that times order like their bytes.
const SIGN: u64 = 1 << 63;

pub(crate) fn time(time: Time) -> [u8; 8] {
    (time.nanos() as u64 ^ SIGN).to_be_bytes()
}

/// Both ACLs, or nothing if there is neither.
pub(crate) fn acls(access: AclId, default: AclId) -> Vec<u8> {
    if access.is_none() && default.is_none() {
        return Vec::new();
    }
    [access.to_bytes(), default.to_bytes()].concat()
}

pub(crate) fn put_node(node: &Node) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(100);
    bytes.push(node.kind.to_dtype() as u8);
    bytes.extend(access_fields(node.mode, node.uid, node.gid));
    bytes.extend(node.nlink.to_be_bytes());
    bytes.extend(node.size.to_be_bytes());
    bytes.extend(time(node.atime));
    bytes.extend(time(node.mtime));
    bytes.extend(time(node.ctime));
    bytes.extend(node.parent.0.to_be_bytes());
    bytes.extend(node.access_rev.to_be_bytes());
    bytes.extend(acls(node.access_acl, node.default_acl));
    if node.rdev != 0 {
        bytes.extend(node.rdev.to_be_bytes());
    }
    bytes
}

/// Mode, user and group, as they stand in a node.
pub(crate) fn access_fields(mode: Mode, uid: u32, gid: u32) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&(mode.bits() as u16).to_be_bytes());
    bytes[2..6].copy_from_slice(&uid.to_be_bytes());
    bytes[6..].copy_from_slice(&gid.to_be_bytes());
    bytes
}

pub(crate) fn node(ino: Ino, bytes: &[u8]) -> Result<Node, Malformed> {
    let mut row = Reader(bytes);
    let mut node = Node {
        ino,
        kind: kind(row.u8()?)?,
        mode: Mode::new(u16::from_be_bytes(row.take()?).into()),
        uid: row.u32()?,
        gid: row.u32()?,
        nlink: row.u32()?,
        size: row.u64()?,
        atime: row.time()?,
        mtime: row.time()?,
        ctime: row.time()?,
        parent: Ino(row.u64()?),
        access_rev: row.u64()?,
        access_acl: AclId::NONE,
        default_acl: AclId::NONE,
        rdev: 0,
    };
    if row.0.len() >= 32 {
        node.access_acl = AclId::from_bytes(row.take()?);
        node.default_acl = AclId::from_bytes(row.take()?);
    }
    if !row.0.is_empty() {
        node.rdev = row.u32()?;
    }
    row.end(node)
}

pub(crate) fn put_edge(ino: Ino, kind: FileType) -> [u8; 9] {
    let mut bytes = [kind.to_dtype() as u8; 9];
    bytes[1..].copy_from_slice(&ino.0.to_be_bytes());
    bytes
}

pub(crate) fn edge(bytes: &[u8]) -> Result<Edge, Malformed> {
    let mut row = Reader(bytes);
    let kind = kind(row.u8()?)?;
    let ino = Ino(row.u64()?);
    row.end(Edge { ino, kind })
}

const HOLE: u8 = 0;
const INLINE: u8 = 1;
const BLOCKS: u8 = 2;

pub(crate) fn put_slice(slice: &Slice) -> Vec<u8> {
    let mut bytes = vec![match slice.source {
        SliceSource::Hole => HOLE,
        SliceSource::Inline(_) => INLINE,
        SliceSource::Blocks { .. } => BLOCKS,
    }];
    bytes.extend(slice.pos.to_be_bytes());
    bytes.extend(slice.len.to_be_bytes());
    match &slice.source {
        SliceSource::Hole => {}
        SliceSource::Inline(data) => bytes.extend_from_slice(data),
        SliceSource::Blocks { id, offset, size } => {
            bytes.extend(id.0.to_be_bytes());
            bytes.extend(size.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
        }
    }
    bytes
}

pub(crate) fn slice(bytes: &[u8]) -> Result<Slice, Malformed> {
    let mut row = Reader(bytes);
    let (source, pos, len) = (row.u8()?, row.u32()?, row.u32()?);
    let source = match source {
        HOLE => SliceSource::Hole,
        INLINE => SliceSource::Inline(std::mem::take(&mut row.0).into()),
        BLOCKS => {
            let (id, size, offset) = (SliceId(row.u64()?), row.u32()?, row.u32()?);
            SliceSource::Blocks { id, offset, size }
        }
        _ => return Err(Malformed("a row of a file is of no known kind")),
    };
    row.end(Slice { pos, len, source })
}

/// Whose lock it is: the key of a wait.
pub(crate) fn put_owner(owner: LockOwner) -> Vec<u8> {
    let kind = match owner.kind {
        LockKind::Posix => 0,
        LockKind::Flock => 1,
    };
    [&owner.session.0.to_be_bytes()[..], &owner.owner.to_be_bytes(), &[kind]].concat()
}

pub(crate) fn put_locks(locks: &[Lock]) -> Vec<u8> {
    locks.iter().flat_map(put_lock).collect()
}

fn put_lock(lock: &Lock) -> Vec<u8> {
    let mut bytes = put_owner(lock.owner);
    bytes.extend(lock.start.to_be_bytes());
    bytes.extend(lock.end.to_be_bytes());
    bytes.push(lock.exclusive.into());
    bytes.extend(lock.pid.to_be_bytes());
    bytes
}

fn lock(row: &mut Reader<'_>) -> Result<Lock, Malformed> {
    let (session, owner) = (SessionId(row.u64()?), row.u64()?);
    let kind = match row.u8()? {
        0 => LockKind::Posix,
        1 => LockKind::Flock,
        _ => return Err(Malformed("a lock is of no known kind")),
    };
    Ok(Lock {
        owner: LockOwner { session, owner, kind },
        start: row.u64()?,
        end: row.u64()?,
        exclusive: row.u8()? != 0,
        pid: row.u32()?,
    })
}

pub(crate) fn locks(bytes: &[u8]) -> Result<Vec<Lock>, Malformed> {
    let mut row = Reader(bytes);
    let mut locks = Vec::new();
    while !row.0.is_empty() {
        locks.push(lock(&mut row)?);
    }
    Ok(locks)
}

pub(crate) fn put_wait(wait: &LockWait) -> Vec<u8> {
    [&wait.ino.0.to_be_bytes()[..], &put_lock(&wait.lock)].concat()
}

pub(crate) fn wait(bytes: &[u8]) -> Result<LockWait, Malformed> {
    let mut row = Reader(bytes);
    let ino = Ino(row.u64()?);
    let lock = lock(&mut row)?;
    row.end(LockWait { ino, lock })
}

/// All but its id, which is its key.
pub(crate) fn put_session(session: &Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(session.pid.to_be_bytes());
    bytes.extend(time(session.since));
    bytes.extend(time(session.heartbeat));
    for text in [&session.host, &session.mountpoint] {
        bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

pub(crate) fn session(id: u64, bytes: &[u8]) -> Result<Session, Malformed> {
    let mut row = Reader(bytes);
    let (pid, since, heartbeat) = (row.u32()?, row.time()?, row.time()?);
    let (host, mountpoint) = (row.text()?, row.text()?);
    row.end(Session { id: SessionId(id), host, pid, mountpoint, since, heartbeat })
}

pub(crate) fn garbage(slice: u64, bytes: &[u8]) -> Result<Garbage, Malformed> {
    let mut row = Reader(bytes);
    let size = row.u32()?;
    row.end(Garbage { slice: SliceId(slice), size })
}

pub(crate) fn number(bytes: &[u8]) -> Result<u64, Malformed> {
    let mut row = Reader(bytes);
    let number = row.u64()?;
    row.end(number)
}

/// A member of a map whose keys are of a fixed length: the key, and what follows NUL.
pub(crate) fn member<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), Malformed> {
    match bytes.split_first_chunk() {
        Some((key, [0, value @ ..])) => Ok((*key, value)),
        _ => Err(Malformed("a member of a map is too short")),
    }
}

fn kind(dtype: u8) -> Result<FileType, Malformed> {
    FileType::from_ifmt(u32::from(dtype) << 12).ok_or(Malformed("an inode is of no known type"))
}
