//! The attributes of inodes, names and the volume in replies.

use std::time::Duration;

use types::Time;

use crate::wire;
use crate::{NodeId, OpenFlags};

/// The attributes of an inode, `stat(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    pub ino: u64,
    pub size_bytes: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Includes the type, `S_IFMT`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// In the format of the kernel's `new_encode_dev`, as in MKNOD.
    pub rdev: u32,
    pub blksize_bytes: u32,
}

/// The result of LOOKUP and of each request that creates a name.
///
/// Each reply with a `nodeid` other than 0 counts as a lookup, which FORGET takes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub nodeid: NodeId,
    /// The pair of `nodeid` and `generation` is never reused.
    pub generation: u64,
    pub attr: Attr,
    /// How long the kernel may use the name without revalidation.
    pub entry_ttl: Duration,
    /// How long the kernel may use the attributes without revalidation.
    pub attr_ttl: Duration,
}

impl Entry {
    /// A negative entry, which the kernel may cache for `ttl`. Only for LOOKUP. With a `ttl` of zero it is
    /// equivalent to ENOENT.
    pub fn negative(ttl: Duration) -> Self {
        Entry { entry_ttl: ttl, ..Entry::default() }
    }
}

/// The state of the volume, `statfs(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// In units of `frsize_bytes`, as are `bfree` and `bavail`.
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize_bytes: u32,
    pub frsize_bytes: u32,
    pub namelen_bytes: u32,
}

impl From<&Attr> for wire::Attr {
    fn from(attr: &Attr) -> Self {
        wire::Attr {
            ino: attr.ino,
            size: attr.size_bytes,
            blocks: attr.blocks,
            atime: attr.atime.sec(),
            mtime: attr.mtime.sec(),
            ctime: attr.ctime.sec(),
            atimensec: attr.atime.nsec(),
            mtimensec: attr.mtime.nsec(),
            ctimensec: attr.ctime.nsec(),
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: attr.blksize_bytes,
            flags: 0,
        }
    }
}

impl From<&Entry> for wire::EntryOut {
    fn from(entry: &Entry) -> Self {
        wire::EntryOut {
            nodeid: entry.nodeid.0,
            generation: entry.generation,
            entry_valid: entry.entry_ttl.as_secs(),
            attr_valid: entry.attr_ttl.as_secs(),
            entry_valid_nsec: entry.entry_ttl.subsec_nanos(),
            attr_valid_nsec: entry.attr_ttl.subsec_nanos(),
            attr: (&entry.attr).into(),
        }
    }
}

impl From<&StatFs> for wire::StatfsOut {
    fn from(st: &StatFs) -> Self {
        wire::StatfsOut {
            blocks: st.blocks,
            bfree: st.bfree,
            bavail: st.bavail,
            files: st.files,
            ffree: st.ffree,
            bsize: st.bsize_bytes,
            namelen: st.namelen_bytes,
            frsize: st.frsize_bytes,
            ..wire::StatfsOut::default()
        }
    }
}

impl wire::OpenOut {
    pub(crate) fn new(fh: crate::Fh, flags: OpenFlags) -> Self {
        wire::OpenOut { fh: fh.0, open_flags: flags.bits(), backing_id: 0 }
    }
}
