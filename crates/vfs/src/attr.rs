//! The attributes of an inode as callers see them.

use std::time::Duration;

use meta::Inode;
use types::{FileType, Ino, Mode, Time};

/// The attributes of an inode, `stat(2)`, unflushed writes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileType,
    pub mode: Mode,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size_bytes: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// The kernel must not cache these attributes: the reply depends on the caller, another mount has deleted
    /// the inode, or its ACL cannot be read.
    pub per_caller: bool,
    /// Whether the inode is in the trash. The kernel must not cache its attributes and name, because the
    /// removal of a file from any other directory changes the trash, and the kernel does not know that.
    pub is_in_trash: bool,
    /// The access revision that these attributes belong to.
    pub(crate) access_rev: u64,
}

impl Attr {
    /// The size in units of 512 bytes, like `st_blocks`, rounded up to 4 KiB.
    pub fn blocks(&self) -> u64 {
        match self.kind {
            FileType::Regular => self.size_bytes.div_ceil(4096).saturating_mul(8),
            FileType::Directory => 8,
            _ => 0,
        }
    }
}

impl From<&Inode> for Attr {
    fn from(inode: &Inode) -> Self {
        Attr {
            ino: inode.ino,
            kind: inode.kind,
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size_bytes: inode.shown_size(),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            per_caller: false,
            is_in_trash: ops::is_in_trash(inode),
            access_rev: inode.access_rev,
        }
    }
}

/// The kernel's lifetimes if other clients can change the volume and this client is notified. If this process
/// stops, the kernel's caches are outdated for at most this long.
pub(crate) const NOTIFIED_LIFETIME: Duration = Duration::from_secs(60);

/// How long the kernel may cache a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// The lifetime of a name, or of its absence.
    pub name: Duration,
    pub attributes: Duration,
}

impl Lifetimes {
    pub const NONE: Lifetimes = Lifetimes { name: Duration::ZERO, attributes: Duration::ZERO };
}
