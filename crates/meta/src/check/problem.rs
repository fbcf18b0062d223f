//! What can be wrong with a volume's records.

use std::fmt;

use types::{AclId, ChunkIndex, FileType, Ino, Name, SessionId, SliceId};

use crate::record::{Counter, Usage};

/// One thing that is wrong. `says` is what is stored, `is` what the other records make of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The root is not there, or is no directory.
    NoRoot,
    /// A name refers to an inode that is not there.
    EntryWithoutInode {
        dir: Ino,
        name: Name,
        ino: Ino,
    },
    EntryKind {
        dir: Ino,
        name: Name,
        ino: Ino,
        says: FileType,
        is: FileType,
    },
    /// A name beyond its first of a directory, or any of the root.
    SecondName {
        dir: Ino,
        name: Name,
        ino: Ino,
    },
    /// A directory says that it lies elsewhere than its name does.
    Parent {
        ino: Ino,
        says: Ino,
        is: Ino,
    },
    /// A directory lies in itself, by way of others or not.
    Circle {
        ino: Ino,
        parent: Ino,
        name: Name,
    },
    /// An inode without a name that no session has open.
    Lost {
        ino: Ino,
        kind: FileType,
    },
    Links {
        ino: Ino,
        says: u32,
        is: u32,
    },
    /// What a session is said to have open without a name has one, or is not there.
    StaleOrphan {
        session: SessionId,
        ino: Ino,
    },
    AclMissing {
        ino: Ino,
        id: AclId,
    },
    /// The text is none of an ACL, or of another one.
    AclDamaged {
        ino: Ino,
        id: AclId,
    },
    /// The access ACL stands for other permission bits than the mode has.
    AclMode {
        ino: Ino,
        says: u32,
        is: u32,
    },
    /// An NFSv4 ACL names a Windows domain by this number, and the volume's table has only so many.
    AclDomain {
        ino: Ino,
        id: AclId,
        says: u32,
        is: u32,
    },
    /// The volume's table of Windows domains is none.
    Domains,
    NoTarget {
        ino: Ino,
    },
    TargetLength {
        ino: Ino,
        says: u64,
        is: u64,
    },
    /// The row at this position of its chunk cannot be what was written.
    Row {
        ino: Ino,
        chunk: ChunkIndex,
        row: usize,
        fault: &'static str,
    },
    /// Rows disagree about the length of a slice in bytes.
    SliceSize {
        ino: Ino,
        slice: SliceId,
        says: u32,
        is: u32,
    },
    /// How many rows beyond the first refer to a slice.
    Shared {
        slice: SliceId,
        says: u64,
        is: u64,
    },
    /// A slice that a file refers to is listed for removal.
    GarbageInUse {
        slice: SliceId,
        ino: Ino,
    },
    Usage {
        says: Usage,
        is: Usage,
    },
    /// The next number to be given out is one that is in use.
    Counter {
        counter: Counter,
        says: u64,
        last: u64,
    },
}

/// What a problem is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Volume,
    Inode(Ino),
    Entry(Ino, Name),
}

impl Problem {
    /// A word for it, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Problem::NoRoot => "no-root",
            Problem::EntryWithoutInode { .. } => "entry-without-inode",
            Problem::EntryKind { .. } => "entry-kind",
            Problem::SecondName { .. } => "second-name",
            Problem::Parent { .. } => "parent",
            Problem::Circle { .. } => "circle",
            Problem::Lost { .. } => "lost",
            Problem::Links { .. } => "links",
            Problem::StaleOrphan { .. } => "stale-orphan",
            Problem::AclMissing { .. } => "acl-missing",
            Problem::AclDamaged { .. } => "acl-damaged",
            Problem::AclMode { .. } => "acl-mode",
            Problem::AclDomain { .. } => "acl-domain",
            Problem::Domains => "domains",
            Problem::NoTarget { .. } => "no-target",
            Problem::TargetLength { .. } => "target-length",
            Problem::Row { .. } => "row",
            Problem::SliceSize { .. } => "slice-size",
            Problem::Shared { .. } => "shared",
            Problem::GarbageInUse { .. } => "garbage-in-use",
            Problem::Usage { .. } => "usage",
            Problem::Counter { .. } => "counter",
        }
    }

    pub fn place(&self) -> Place {
        match self {
            Problem::NoRoot
            | Problem::Domains
            | Problem::Shared { .. }
            | Problem::Usage { .. }
            | Problem::Counter { .. } => Place::Volume,
            Problem::EntryWithoutInode { dir, name, .. }
            | Problem::EntryKind { dir, name, .. }
            | Problem::SecondName { dir, name, .. } => Place::Entry(*dir, name.clone()),
            Problem::Circle { parent, name, .. } => Place::Entry(*parent, name.clone()),
            Problem::Parent { ino, .. }
            | Problem::Lost { ino, .. }
            | Problem::Links { ino, .. }
            | Problem::StaleOrphan { ino, .. }
            | Problem::AclMissing { ino, .. }
            | Problem::AclDamaged { ino, .. }
            | Problem::AclMode { ino, .. }
            | Problem::AclDomain { ino, .. }
            | Problem::NoTarget { ino }
            | Problem::TargetLength { ino, .. }
            | Problem::Row { ino, .. }
            | Problem::SliceSize { ino, .. }
            | Problem::GarbageInUse { ino, .. } => Place::Inode(*ino),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NoRoot => f.write_str("there is no root directory"),
            Problem::EntryWithoutInode { ino, .. } => {
                write!(f, "the name refers to inode {ino}, which is not there")
            }
            Problem::EntryKind { ino, says, is, .. } => {
                write!(f, "the name says {}, but inode {ino} is a {}", kind(*says), kind(*is))
            }
            Problem::SecondName { ino, .. } => write!(f, "directory {ino} has another name already"),
            Problem::Parent { says, is, .. } => {
                write!(f, "the directory says that it lies in directory {says}, but it does in {is}")
            }
            Problem::Circle { ino, .. } => write!(f, "directory {ino} lies in itself"),
            Problem::Lost { kind: what, .. } => {
                write!(f, "the {} has no name, and nobody has it open", kind(*what))
            }
            Problem::Links { says, is, .. } => write!(f, "it says {says} links, and has {is}"),
            Problem::StaleOrphan { session, .. } => {
                write!(f, "session {session} is said to have it open without a name, which is not so")
            }
            Problem::AclMissing { id, .. } => write!(f, "its ACL {id} is not stored"),
            Problem::AclDamaged { id, .. } => write!(f, "its ACL {id} is damaged"),
            Problem::AclMode { says, is, .. } => {
                write!(f, "its mode says {says:03o}, and its access ACL {is:03o}")
            }
            Problem::AclDomain { id, says, is, .. } => {
                write!(f, "its ACL {id} names Windows domain {says}, and the volume's table has {is}")
            }
            Problem::Domains => f.write_str("the table of Windows domains is damaged"),
            Problem::NoTarget { .. } => f.write_str("the symbolic link points nowhere"),
            Problem::TargetLength { says, is, .. } => {
                write!(f, "the symbolic link says {says} bytes, and its target has {is}")
            }
            Problem::Row { chunk, row, fault, .. } => write!(f, "row {row} of chunk {chunk}: {fault}"),
            Problem::SliceSize { slice, says, is, .. } => {
                write!(f, "a row says that slice {slice} has {says} bytes, and another one {is}")
            }
            Problem::Shared { slice, says, is } => {
                write!(f, "slice {slice} is said to have {says} rows beyond its first, and has {is}")
            }
            Problem::GarbageInUse { slice, .. } => {
                write!(f, "slice {slice} of the file is listed for removal")
            }
            Problem::Usage { says, is } => write!(
                f,
                "the volume says {} inodes and {} blocks, and has {} and {}",
                says.inodes, says.blocks, is.inodes, is.blocks
            ),
            Problem::Counter { counter, says, last } => {
                write!(f, "{} is {says}, but {last} is in use", counter.name())
            }
        }
    }
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "fifo",
        FileType::CharDevice => "character device",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block device",
        FileType::Regular => "file",
        FileType::Symlink => "symbolic link",
        FileType::Socket => "socket",
    }
}
