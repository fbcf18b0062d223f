//! Decodes a row of a reply. The table in `lib.rs` gives the order of its values.

use std::sync::Arc;

use meta::{
    CONDEMNED, Dirent, Garbage, Inode, Lock, LockKind, LockOwner, Process, Quota, QuotaKey, QuotaRule,
    QuotaState, QuotaTag, Session,
};
use types::{
    AclId, ChunkIndex, FileType, Ino, Mode, Name, QuotaId, SessionId, Slice, SliceId, SliceSource, Time,
};

/// Data that limenfs never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The numbers and byte strings of a row, each by its position; `None` for NULL and beyond the last.
pub trait RowValues {
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
impl<B: AsRef<[u8]>> RowValues for (Vec<Option<i64>>, Vec<Option<B>>) {
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

impl<R: RowValues> ReplyRow<R> {
    /// A number that must not be NULL.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn number(&self, at: usize) -> Result<u64, Malformed> {
        self.signed(at).map(|number| number as u64)
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
        self.row.bytes(at)?.ok_or(Malformed("a value is missing"))
    }

    /// The inode of a row of kind [`INODE`](crate::kind::INODE).
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn inode(&self) -> Result<Inode, Malformed> {
        self.inode_at(0, 0)
    }

    pub(crate) fn signed(&self, at: usize) -> Result<i64, Malformed> {
        self.row.number(at)?.ok_or(Malformed("a number is missing"))
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

    pub(crate) fn text(&self, at: usize) -> Result<&str, Malformed> {
        str::from_utf8(self.bytes(at)?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    fn acl_id(&self, at: usize) -> Result<AclId, Malformed> {
        let Some(id) = self.row.bytes(at)? else { return Ok(AclId::NONE) };
        id.try_into().map(AclId::from_bytes).map_err(|_| Malformed("the id of an ACL does not have 16 bytes"))
    }

    fn kind(&self, at: usize) -> Result<FileType, Malformed> {
        let kind = self.small::<u8>(at).ok().and_then(|dtype| FileType::from_ifmt(u32::from(dtype) << 12));
        kind.ok_or(Malformed("an inode has an unknown type"))
    }

    /// The inode whose values begin at these positions.
    pub(crate) fn inode_at(&self, number: usize, string: usize) -> Result<Inode, Malformed> {
        Ok(Inode {
            ino: self.ino(number)?,
            kind: self.kind(number + 1)?,
            mode: Mode::new(self.small(number + 2)?),
            uid: self.small(number + 3)?,
            gid: self.small(number + 4)?,
            rdev: self.small(number + 5)?,
            nlink: self.small(number + 6)?,
            size: self.number(number + 7)?,
            atime: self.time(number + 8)?,
            mtime: self.time(number + 9)?,
            ctime: self.time(number + 10)?,
            parent: self.ino(number + 11)?,
            access_rev: self.number(number + 12)?,
            xattr_blocks: self.small(number + 13)?,
            quota: QuotaTag::from_number(self.number(number + 14)?),
            access_acl: self.acl_id(string)?,
            default_acl: self.acl_id(string + 1)?,
        })
    }

    /// The text of an ACL, if it was read and found.
    pub(crate) fn acl_text(&self, at: usize) -> Result<Option<&str>, Malformed> {
        if self.row.bytes(at)?.is_none() {
            return Ok(None);
        }
        let text = self.text(at)?;
        Ok(Some(text.strip_prefix(CONDEMNED).unwrap_or(text)))
    }

    pub(crate) fn dirent(&self) -> Result<(Ino, Name, Dirent), Malformed> {
        let name = Name::new(self.bytes(0)?).map_err(|_| Malformed("a dirent has an invalid name"))?;
        Ok((self.ino(0)?, name, self.dirent_value()?))
    }

    pub(crate) fn dirent_value(&self) -> Result<Dirent, Malformed> {
        Ok(Dirent { ino: self.ino(1)?, kind: self.kind(2)? })
    }

    /// The inode of a row of kind [`DIRENT_WITH_INODE`](crate::kind::DIRENT_WITH_INODE), if the inode exists.
    pub(crate) fn joined_inode(&self) -> Result<Option<Inode>, Malformed> {
        if self.optional(3)?.is_some() { self.inode_at(3, 1).map(Some) } else { Ok(None) }
    }

    /// The row's inode and chunk.
    pub(crate) fn chunk(&self) -> Result<(Ino, ChunkIndex), Malformed> {
        Ok((self.ino(0)?, ChunkIndex(self.number(1)?)))
    }

    /// The row's position in its chunk, and the slice.
    pub(crate) fn slice(&self) -> Result<(i64, Slice), Malformed> {
        let source = match (self.row.bytes(0)?, self.optional(4)?) {
            (Some(data), _) => SliceSource::Inline(data.into()),
            (None, Some(id)) => {
                SliceSource::Blocks { id: SliceId(id), offset: self.small(5)?, size: self.small(6)? }
            }
            (None, None) => SliceSource::Hole,
        };
        let slice = Slice { pos: self.small(2)?, len: self.small(3)?, source };
        Ok((self.row.number(7)?.unwrap_or(0), slice))
    }

    pub(crate) fn acl(&self) -> Result<(AclId, Arc<str>), Malformed> {
        Ok((self.acl_id(0)?, self.acl_text(1)?.unwrap_or_default().into()))
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

    pub(crate) fn quota(&self) -> Result<(QuotaKey, Quota), Malformed> {
        let key = QuotaKey::from_numbers(self.small(0)?, self.number(1)?);
        let rule = QuotaRule {
            outer: QuotaId(self.number(2)?),
            max_inodes: self.number(3)?,
            max_blocks: self.number(4)?,
            soft_inodes: self.number(5)?,
            soft_blocks: self.number(6)?,
            root: self.ino(7)?,
            state: QuotaState::from_number(self.small(8)?)
                .ok_or(Malformed("a quota has an unknown state"))?,
        };
        let quota = Quota { inodes: self.signed(9)?, blocks: self.signed(10)?, rule };
        Ok((key.ok_or(Malformed("a quota has an unknown kind"))?, quota))
    }

    pub(crate) fn garbage(&self) -> Result<Garbage, Malformed> {
        Ok(Garbage { slice: SliceId(self.number(0)?), size: self.small(1)? })
    }
}
