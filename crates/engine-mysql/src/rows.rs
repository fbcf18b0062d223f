//! Records out of rows. All values come as text: the requests are plain queries.

use meta::{Lock, LockKind, LockOwner, Node};
use mysql::Value;
use types::{AclId, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, SliceSource, Time, XattrName};

use crate::error::Fault;

pub(crate) type Row = Vec<Value>;
/// The sets of rows that a request gave.
pub(crate) type Sets = Vec<Vec<Row>>;

/// The columns of a node: thirteen numbers, and the ids of its two ACLs.
pub(crate) const NODE_COLUMNS: &str = "ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, parent, \
                                       access_rev, access_acl, default_acl";

/// Values of a row's columns by number.
#[derive(Clone, Copy)]
pub(crate) struct RowReader<'r>(pub(crate) &'r Row);

impl<'r> RowReader<'r> {
    /// The bytes of a column, `None` for NULL.
    pub(crate) fn optional_bytes(self, at: usize) -> Result<Option<&'r [u8]>, Fault> {
        match self.0.get(at) {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Value::NULL) => Ok(None),
            _ => Err(Fault::malformed("a row lacks a column")),
        }
    }

    pub(crate) fn bytes(self, at: usize) -> Result<&'r [u8], Fault> {
        self.optional_bytes(at)?.ok_or(Fault::malformed("a column is NULL that never is"))
    }

    pub(crate) fn optional<T: std::str::FromStr>(self, at: usize) -> Result<Option<T>, Fault> {
        let Some(bytes) = self.optional_bytes(at)? else { return Ok(None) };
        let number = str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or(Fault::malformed("a column holds no number of its range"))
    }

    pub(crate) fn number<T: std::str::FromStr>(self, at: usize) -> Result<T, Fault> {
        self.optional(at)?.ok_or(Fault::malformed("a column is NULL that never is"))
    }

    pub(crate) fn text(self, at: usize) -> Result<&'r str, Fault> {
        str::from_utf8(self.bytes(at)?).map_err(|_| Fault::malformed("a column holds no UTF-8"))
    }

    pub(crate) fn name(self, at: usize) -> Result<Name, Fault> {
        Name::new(self.bytes(at)?).map_err(|_| Fault::malformed("an entry's name cannot be one"))
    }

    pub(crate) fn xattr_name(self, at: usize) -> Result<XattrName, Fault> {
        XattrName::new(self.bytes(at)?).map_err(|_| Fault::malformed("an attribute's name cannot be one"))
    }

    pub(crate) fn acl_id(self, at: usize) -> Result<AclId, Fault> {
        let Some(bytes) = self.optional_bytes(at)? else { return Ok(AclId::NONE) };
        let id = bytes.try_into().map_err(|_| Fault::malformed("an ACL's id has not 16 bytes"))?;
        Ok(AclId::from_bytes(id))
    }

    pub(crate) fn kind(self, at: usize) -> Result<FileType, Fault> {
        let dtype: u8 = self.number(at)?;
        FileType::from_ifmt(u32::from(dtype) << 12).ok_or(Fault::malformed("an inode's kind is none"))
    }

    fn time(self, at: usize) -> Result<Time, Fault> {
        self.number(at).map(Time::from_nanos)
    }
}

/// A node whose numbers begin at `at`, and the ids of its ACLs at `acls`.
pub(crate) fn node_at(row: &RowReader<'_>, at: usize, acls: usize) -> Result<Node, Fault> {
    Ok(Node {
        ino: Ino(row.number(at)?),
        kind: row.kind(at + 1)?,
        mode: Mode::new(row.number(at + 2)?),
        uid: row.number(at + 3)?,
        gid: row.number(at + 4)?,
        rdev: row.number(at + 5)?,
        nlink: row.number(at + 6)?,
        size: row.number(at + 7)?,
        atime: row.time(at + 8)?,
        mtime: row.time(at + 9)?,
        ctime: row.time(at + 10)?,
        parent: Ino(row.number(at + 11)?),
        access_rev: row.number(at + 12)?,
        access_acl: row.acl_id(acls)?,
        default_acl: row.acl_id(acls + 1)?,
    })
}

/// A lock: first, last, session, owner, kind, exclusive, pid.
pub(crate) fn lock_at(row: &RowReader<'_>, at: usize) -> Result<Lock, Fault> {
    let number: u8 = row.number(at + 4)?;
    let kind = [LockKind::Posix, LockKind::Flock].into_iter().find(|kind| kind_number(*kind) == number);
    let kind = kind.ok_or(Fault::malformed("a lock's kind is none"))?;
    let exclusive: u8 = row.number(at + 5)?;
    Ok(Lock {
        start: row.number(at)?,
        end: row.number(at + 1)?,
        owner: LockOwner { session: SessionId(row.number(at + 2)?), owner: row.number(at + 3)?, kind },
        exclusive: exclusive != 0,
        pid: row.number(at + 6)?,
    })
}

/// A row of table `slice`: pos, len, slice, slice_off, slice_size from `at` on, and data.
pub(crate) fn slice_at(row: &RowReader<'_>, at: usize, data: usize) -> Result<Slice, Fault> {
    let source = match (row.optional_bytes(data)?, row.optional(at + 2)?) {
        (Some(data), _) => SliceSource::Inline(data.into()),
        (None, Some(id)) => {
            SliceSource::Blocks { id: SliceId(id), offset: row.number(at + 3)?, size: row.number(at + 4)? }
        }
        (None, None) => SliceSource::Hole,
    };
    Ok(Slice { pos: row.number(at)?, len: row.number(at + 1)?, source })
}

pub(crate) fn kind_number(kind: LockKind) -> u8 {
    match kind {
        LockKind::Posix => 0,
        LockKind::Flock => 1,
    }
}
