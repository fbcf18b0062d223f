//! The operation of a request.

use types::Time;

use crate::wire;
use crate::{Fh, InitIn, LockOwner, NodeId, Opcode, RenameFlags, Unique};

/// An operation on the inode [`crate::Header::nodeid`].
///
/// A `name` has at least one byte and contains neither `/` nor NUL; it may be `.`, `..` or longer than 255
/// bytes. A symlink's `target` may be empty and contain `/`. Flags of system calls have the values of Linux.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// Takes back `lookups` lookups; no reply.
    Forget {
        lookups: u64,
    },
    /// Takes back lookups of several inodes; no reply.
    BatchForget(Forgets<'a>),
    GetAttr {
        /// The request is made through an open file (`FUSE_GETATTR_FH`).
        by_handle: bool,
    },
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    /// `mode` includes the type. `rdev` is in the format of the kernel's `new_encode_dev`, like
    /// [`crate::Attr::rdev`].
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    /// RENAME and RENAME2.
    Rename {
        name: &'a [u8],
        new_parent: NodeId,
        new_name: &'a [u8],
        flags: RenameFlags,
    },
    /// The new name is created in [`crate::Header::nodeid`].
    Link {
        node: NodeId,
        name: &'a [u8],
    },
    /// `flags` of `open(2)`, without `O_CREAT`, `O_EXCL` and `O_NOCTTY`.
    Open {
        flags: u32,
    },
    Create(Create<'a>),
    /// A file without a name, `O_TMPFILE`; the reply is that of CREATE. Its `name` is empty.
    TmpFile(Create<'a>),
    Read(Read),
    Write(Write<'a>),
    Flush {
        lock_owner: LockOwner,
    },
    Release(Release),
    Fsync,
    StatFs,
    SetXattr(SetXattr<'a>),
    /// `size` 0 asks for the length.
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    /// `size` 0 asks for the length.
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Init(InitIn),
    OpenDir {
        flags: u32,
    },
    ReadDir(Read),
    ReadDirPlus(Read),
    ReleaseDir(Release),
    FsyncDir,
    GetLk(LockRequest),
    /// SETLK, and SETLKW with `wait`.
    SetLk {
        request: LockRequest,
        wait: bool,
    },
    /// `mask` of `access(2)`; never sent under `default_permissions`.
    Access {
        mask: u32,
    },
    /// The caller of request `unique` was interrupted; no reply. INTERRUPT may arrive before that request.
    Interrupt {
        unique: Unique,
    },
    /// The last request: the file system is unmounted.
    Destroy,
    /// `mode` of `fallocate(2)`.
    Fallocate {
        fh: Fh,
        offset: u64,
        len: u64,
        mode: u32,
    },
    /// `whence` of `lseek(2)`: `SEEK_DATA` (3) or `SEEK_HOLE` (4).
    Lseek {
        offset: u64,
        whence: u32,
    },
    /// The reply is [`crate::Body::written`], for `CopyFileRange64` [`crate::Body::copied_64`].
    CopyFileRange(CopyRange),
    CopyFileRange64(CopyRange),
    SyncFs,
    /// An opcode that limenfs does not implement; the reply must be ENOSYS.
    Unknown(Opcode),
}

/// The arguments of CREATE and TMPFILE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    pub name: &'a [u8],
    /// The flags of `open(2)`.
    pub flags: u32,
    /// Includes `S_IFREG`.
    pub mode: u32,
    pub umask: u32,
}

/// The arguments of SETATTR: attributes that are `Some` are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Includes the type.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size_bytes: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<Time>,
    /// The handle of the file that is truncated by `ftruncate(2)`.
    pub fh: Option<Fh>,
    /// SUID and SGID must be cleared, because the caller lacks `CAP_FSETID` (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Time),
}

/// The arguments of READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub fh: Fh,
    /// In a directory: 0, or the `next_offset` of an entry sent before.
    pub offset: u64,
    pub size_bytes: u32,
    /// The flags of `open(2)`.
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    pub fh: Fh,
    pub offset: u64,
    pub data: &'a [u8],
    /// The flags of `open(2)`.
    pub flags: u32,
    /// Writeback from the page cache: `fh` is any handle of the file, and the header's ids are not those of
    /// the writer.
    pub from_cache: bool,
    /// SUID and SGID must be cleared, because the writer lacks `CAP_FSETID` (`HANDLE_KILLPRIV_V2`).
    pub kill_suidgid: bool,
}

/// The arguments of RELEASE and RELEASEDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    pub fh: Fh,
    pub lock_owner: LockOwner,
    /// The owner's `flock(2)` lock must be released.
    pub flock_unlock: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// `XATTR_CREATE` (1) and `XATTR_REPLACE` (2).
    pub flags: u32,
    /// Setting this access ACL clears SGID (`FUSE_SETXATTR_ACL_KILL_SGID`).
    pub acl_kill_sgid: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    pub fh: Fh,
    pub owner: LockOwner,
    pub lock: FileLock,
    /// A lock of `flock(2)`, not of `fcntl(2)`.
    pub flock: bool,
}

/// A byte range of a file and how it is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    pub start: u64,
    /// The last byte; `i64::MAX` for the end of the file.
    pub end: u64,
    /// `F_RDLCK` (0), `F_WRLCK` (1) or `F_UNLCK` (2).
    pub kind: u32,
    pub pid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// In the source file, [`crate::Header::nodeid`].
    pub offset_in: u64,
    pub node_out: NodeId,
    pub fh_out: Fh,
    pub offset_out: u64,
    pub len: u64,
}

/// The inodes of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(pub(crate) &'a [[u8; 16]]);

impl<'a> Forgets<'a> {
    /// Each inode and the number of its lookups that are taken back.
    pub fn iter(self) -> impl Iterator<Item = (NodeId, u64)> + 'a {
        self.0.iter().map(|forget| {
            let forget: wire::ForgetOne = zerocopy::transmute!(*forget);
            (NodeId(forget.nodeid), forget.nlookup)
        })
    }
}
