//! What callers are told of an inode.

use std::time::Duration;

use meta::Node;
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
    /// Whoever asks has to ask by himself each time: what he is told is not for others.
    pub per_caller: bool,
    /// What a check by these attributes is a check of.
    pub(crate) access_rev: u64,
}

impl Attr {
    /// In units of 512 bytes, as `st_blocks` counts; whole blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        match self.kind {
            FileType::Regular => self.size_bytes.div_ceil(4096).saturating_mul(8),
            FileType::Directory => 8,
            _ => 0,
        }
    }
}

impl From<&Node> for Attr {
    fn from(node: &Node) -> Self {
        Attr {
            ino: node.ino,
            kind: node.kind,
            mode: node.mode,
            nlink: node.nlink,
            uid: node.uid,
            gid: node.gid,
            rdev: node.rdev,
            size_bytes: node.size,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
            per_caller: false,
            access_rev: node.access_rev,
        }
    }
}

/// A name's inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `None`: the name is free.
    pub attr: Option<Attr>,
}

/// How long the kernel may go by a reply without asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// By what a name refers to, or that it is free.
    pub name: Duration,
    pub attributes: Duration,
}

impl Lifetimes {
    pub const NONE: Lifetimes = Lifetimes { name: Duration::ZERO, attributes: Duration::ZERO };
}
