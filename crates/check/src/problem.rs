//! The problems that a check can find in a volume's records.

use std::fmt;

use meta::{Counter, Usage};
use types::{AclId, ChunkIndex, FileType, Ino, Name, SessionId, SliceId};

/// One problem. `says` is the stored value, `is` the value that follows from the other records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The root does not exist or is not a directory.
    NoRoot,
    /// A name refers to an inode that does not exist.
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
    /// A directory has more than one name, or the root has one.
    SecondName {
        dir: Ino,
        name: Name,
        ino: Ino,
    },
    /// The recorded parent of a directory is not the directory with its name.
    Parent {
        ino: Ino,
        says: Ino,
        is: Ino,
    },
    /// A directory is its own ancestor.
    Circle {
        ino: Ino,
        parent: Ino,
        name: Name,
    },
    /// An inode without a name that is not recorded as open in any session.
    Lost {
        ino: Ino,
        kind: FileType,
    },
    Links {
        ino: Ino,
        says: u32,
        is: u32,
    },
    /// The recorded number of xattr blocks of the inode is wrong.
    XattrBlocks {
        ino: Ino,
        says: u16,
        is: u64,
    },
    /// An inode that is recorded as open without a name has a name, or does not exist.
    StaleOrphan {
        session: SessionId,
        ino: Ino,
    },
    AclMissing {
        ino: Ino,
        id: AclId,
    },
    /// The text is not a valid ACL, or is another ACL.
    AclDamaged {
        ino: Ino,
        id: AclId,
    },
    /// The permission bits of the mode differ from those that the access ACL implies.
    AclMode {
        ino: Ino,
        says: u32,
        is: u32,
    },
    /// An NFSv4 ACL refers to the Windows domain number `says`, but the volume's table has only `is` domains.
    AclDomain {
        ino: Ino,
        id: AclId,
        says: u32,
        is: u32,
    },
    /// The volume's table of Windows domains is malformed.
    Domains,
    NoTarget {
        ino: Ino,
    },
    TargetLength {
        ino: Ino,
        says: u64,
        is: u64,
    },
    /// The row at this position of its chunk is invalid.
    Row {
        ino: Ino,
        chunk: ChunkIndex,
        row: usize,
        fault: &'static str,
    },
    /// Rows disagree about the size of a slice in bytes.
    SliceSize {
        ino: Ino,
        slice: SliceId,
        says: u32,
        is: u32,
    },
    /// The number of rows beyond the first that refer to a slice is wrong.
    Shared {
        slice: SliceId,
        says: u64,
        is: u64,
    },
    /// A slice that a file refers to is listed as garbage.
    GarbageInUse {
        slice: SliceId,
        ino: Ino,
    },
    Usage {
        says: Usage,
        is: Usage,
    },
    /// The next number to be given out is already in use.
    Counter {
        counter: Counter,
        says: u64,
        last: u64,
    },
}

/// The object that a problem is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Volume,
    Inode(Ino),
    Entry(Ino, Name),
}

impl Problem {
    /// A stable identifier for programs.
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
            Problem::XattrBlocks { .. } => "xattr-blocks",
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
            | Problem::XattrBlocks { ino, .. }
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
                write!(f, "the name refers to inode {ino}, which does not exist")
            }
            Problem::EntryKind { ino, says, is, .. } => {
                write!(f, "the entry says {}, but inode {ino} is a {}", kind(*says), kind(*is))
            }
            Problem::SecondName { ino, .. } => write!(f, "directory {ino} has another name already"),
            Problem::Parent { says, is, .. } => {
                write!(f, "the directory's recorded parent is {says}, but its name is in directory {is}")
            }
            Problem::Circle { ino, .. } => write!(f, "directory {ino} is its own ancestor"),
            Problem::Lost { kind: what, .. } => {
                write!(f, "the {} has no name and is not open in any session", kind(*what))
            }
            Problem::Links { says, is, .. } => {
                write!(f, "the link count is {says}, but there are {is} links")
            }
            Problem::XattrBlocks { says, is, .. } => {
                write!(f, "the recorded size of the extended attributes is {says} blocks, but they have {is}")
            }
            Problem::StaleOrphan { session, .. } => {
                write!(
                    f,
                    "session {session} is recorded to have it open without a name, but it has a name or does not exist"
                )
            }
            Problem::AclMissing { id, .. } => write!(f, "its ACL {id} is not stored"),
            Problem::AclDamaged { id, .. } => write!(f, "its ACL {id} is damaged"),
            Problem::AclMode { says, is, .. } => {
                write!(f, "the permission bits are {says:03o}, but the access ACL implies {is:03o}")
            }
            Problem::AclDomain { id, says, is, .. } => {
                write!(
                    f,
                    "its ACL {id} refers to Windows domain {says}, but the volume's table has only {is}"
                )
            }
            Problem::Domains => f.write_str("the table of Windows domains is damaged"),
            Problem::NoTarget { .. } => f.write_str("the symbolic link has no target"),
            Problem::TargetLength { says, is, .. } => {
                write!(f, "the symbolic link's size is {says} bytes, but its target has {is}")
            }
            Problem::Row { chunk, row, fault, .. } => write!(f, "row {row} of chunk {chunk}: {fault}"),
            Problem::SliceSize { slice, says, is, .. } => {
                write!(f, "one row says that slice {slice} has {says} bytes, another one says {is}")
            }
            Problem::Shared { slice, says, is } => {
                write!(f, "slice {slice} is recorded with {says} rows beyond the first, but has {is}")
            }
            Problem::GarbageInUse { slice, .. } => {
                write!(f, "slice {slice} of the file is listed as garbage")
            }
            Problem::Usage { says, is } => write!(
                f,
                "the usage is recorded as {} inodes and {} blocks, but there are {} and {}",
                says.inodes, says.blocks, is.inodes, is.blocks
            ),
            Problem::Counter { counter, says, last } => {
                write!(f, "the counter {} is {says}, but {last} is in use", counter.name())
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
