//! The values of a row of a reply, in the order of the table in `lib.rs`.

use std::sync::Arc;

use meta::{Dirent, Garbage, Inode, Lock, LockKind, LockOwner, Process, Session};
use types::{AclId, ChunkIndex, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, SliceSource, Time};

/// Data that limenfs never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The numbers and byte strings of a row, each by its position; `None` for NULL and beyond the last.
pub trait Row {
    /// Returns a number of 64 bits. An unsigned number is returned as the signed one with the same bits, so
    /// it may be negative.
    ///
    /// # Errors
    /// [`Malformed`].
    fn number(&self, at: usize) -> Result<Option<i64>, Malformed>;

    /// # Errors
    /// [`Malformed`].
    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, Malformed>;
}

/// A row as its numbers and its byte strings.
impl<B: AsRef<[u8]>> Row for (Vec<Option<i64>>, Vec<Option<B>>) {
    fn number(&self, at: usize) -> Result<Option<i64>, Malformed> {
        Ok(self.0.get(at).copied().flatten())
    }

    fn bytes(&self, at: usize) -> Result<Option<&[u8]>, Malformed> {
        Ok(self.1.get(at).and_then(Option::as_ref).map(AsRef::as_ref))
    }
}

/// A row of a reply, and its [`kind`](crate::kind).
#[derive(Clone, Copy, Debug)]
pub struct ReplyRow<R> {
    pub kind: i16,
    pub row: R,
}

/// The values of a row from a position on.
pub(crate) struct Values<'r, R> {
    row: &'r R,
    numbers: usize,
    strings: usize,
}

impl<R: Row> ReplyRow<R> {
    pub(crate) fn values(&self) -> Values<'_, R> {
        Values { row: &self.row, numbers: 0, strings: 0 }
    }

    /// A number that must not be NULL.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn number(&self, at: usize) -> Result<u64, Malformed> {
        self.values().number(at)
    }

    /// A number, `None` for NULL.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn optional(&self, at: usize) -> Result<Option<u64>, Malformed> {
        Ok(self.row.number(at)?.map(|number| number as u64))
    }

    /// A byte string that must not be NULL.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn bytes(&self, at: usize) -> Result<&[u8], Malformed> {
        self.values().bytes(at)
    }

    /// The inode of a row of kind [`INODE`](crate::kind::INODE).
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn inode(&self) -> Result<Inode, Malformed> {
        self.values().inode()
    }
}

impl<'r, R: Row> Values<'r, R> {
    /// The values after this many numbers and strings.
    pub(crate) fn behind(&self, numbers: usize, strings: usize) -> Values<'r, R> {
        Values { row: self.row, numbers: self.numbers + numbers, strings: self.strings + strings }
    }

    pub(crate) fn optional(&self, at: usize) -> Result<Option<i64>, Malformed> {
        self.row.number(self.numbers + at)
    }

    pub(crate) fn signed(&self, at: usize) -> Result<i64, Malformed> {
        self.optional(at)?.ok_or(Malformed("a number is missing"))
    }

    pub(crate) fn number(&self, at: usize) -> Result<u64, Malformed> {
        self.signed(at).map(|n| n as u64)
    }

    fn small<T: TryFrom<i64>>(&self, at: usize) -> Result<T, Malformed> {
        T::try_from(self.signed(at)?).map_err(|_| Malformed("a number is out of its range"))
    }

    pub(crate) fn ino(&self, at: usize) -> Result<Ino, Malformed> {
        self.number(at).map(Ino)
    }

    fn time(&self, at: usize) -> Result<Time, Malformed> {
        self.signed(at).map(Time::from_nanos)
    }

    fn optional_bytes(&self, at: usize) -> Result<Option<&'r [u8]>, Malformed> {
        self.row.bytes(self.strings + at)
    }

    pub(crate) fn bytes(&self, at: usize) -> Result<&'r [u8], Malformed> {
        self.optional_bytes(at)?.ok_or(Malformed("a value is missing"))
    }

    pub(crate) fn text(&self, at: usize) -> Result<&'r str, Malformed> {
        str::from_utf8(self.bytes(at)?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    fn acl_id(&self, at: usize) -> Result<AclId, Malformed> {
        let Some(id) = self.optional_bytes(at)? else { return Ok(AclId::NONE) };
        id.try_into().map(AclId::from_bytes).map_err(|_| Malformed("the id of an ACL does not have 16 bytes"))
    }

    fn kind(&self, at: usize) -> Result<FileType, Malformed> {
        let kind = self.small::<u8>(at).ok().and_then(|dtype| FileType::from_ifmt(u32::from(dtype) << 12));
        kind.ok_or(Malformed("an inode has an unknown type"))
    }

    pub(crate) fn inode(&self) -> Result<Inode, Malformed> {
        Ok(Inode {
            ino: self.ino(0)?,
            kind: self.kind(1)?,
            mode: Mode::new(self.small(2)?),
            uid: self.small(3)?,
            gid: self.small(4)?,
            rdev: self.small(5)?,
            nlink: self.small(6)?,
            size: self.number(7)?,
            atime: self.time(8)?,
            mtime: self.time(9)?,
            ctime: self.time(10)?,
            parent: self.ino(11)?,
            access_rev: self.number(12)?,
            xattr_blocks: self.small(13)?,
            access_acl: self.acl_id(0)?,
            default_acl: self.acl_id(1)?,
        })
    }

    /// The ACLs of the inode whose texts were read and found.
    pub(crate) fn acls_of(&self, inode: &Inode) -> Result<Vec<(AclId, Arc<str>)>, Malformed> {
        let mut acls = Vec::new();
        for (at, id) in [(2, inode.access_acl), (3, inode.default_acl)] {
            if !id.is_none() && self.optional_bytes(at)?.is_some() {
                acls.push((id, self.text(at)?.into()));
            }
        }
        Ok(acls)
    }

    pub(crate) fn dirent(&self) -> Result<(Ino, Name, Dirent), Malformed> {
        let name = Name::new(self.bytes(0)?).map_err(|_| Malformed("a dirent has an invalid name"))?;
        Ok((self.ino(0)?, name, Dirent { ino: self.ino(1)?, kind: self.kind(2)? }))
    }

    /// The row's inode and chunk, its position in the chunk, and the slice.
    pub(crate) fn slice(&self) -> Result<((Ino, ChunkIndex), i64, Slice), Malformed> {
        let source = match (self.optional_bytes(0)?, self.optional(4)?) {
            (Some(data), _) => SliceSource::Inline(data.into()),
            (None, Some(id)) => {
                SliceSource::Blocks { id: SliceId(id as u64), offset: self.small(5)?, size: self.small(6)? }
            }
            (None, None) => SliceSource::Hole,
        };
        let slice = Slice { pos: self.small(2)?, len: self.small(3)?, source };
        Ok(((self.ino(0)?, ChunkIndex(self.number(1)?)), self.optional(7)?.unwrap_or(0), slice))
    }

    pub(crate) fn acl(&self) -> Result<(AclId, Arc<str>), Malformed> {
        Ok((self.acl_id(0)?, self.text(1)?.into()))
    }

    pub(crate) fn lock(&self) -> Result<Lock, Malformed> {
        let kind = LockKind::of(self.small(5)?).ok_or(Malformed("a lock has an unknown kind"))?;
        let owner = LockOwner { session: SessionId(self.number(3)?), owner: self.number(4)?, kind };
        let (start, end) = (self.number(1)?, self.number(2)?);
        Ok(Lock { start, end, owner, exclusive: self.signed(6)? != 0, pid: self.small(7)? })
    }

    pub(crate) fn session(&self) -> Result<Session, Malformed> {
        Ok(Session {
            id: SessionId(self.number(0)?),
            host: self.text(0)?.to_owned(),
            pid: self.small(1)?,
            mountpoint: self.text(1)?.to_owned(),
            since: self.time(2)?,
            heartbeat: self.time(3)?,
            process: Process {
                boot_id: self.text(2)?.to_owned(),
                pid_namespace: self.number(4)?,
                start_time: self.number(5)?,
            },
            version: self.text(3)?.to_owned(),
            first_slice: SliceId(self.number(6)?),
        })
    }

    pub(crate) fn garbage(&self) -> Result<Garbage, Malformed> {
        Ok(Garbage { slice: SliceId(self.number(0)?), size: self.small(1)? })
    }
}
