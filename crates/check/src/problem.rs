//! The problems that a check can find in a volume's records.

use std::fmt;

use meta::{Counter, QuotaKey, Usage};
use types::{AclId, ChunkIndex, FileType, Ino, Name, SessionId, SliceId, counted, plural};

/// One problem. `stored` is the stored value, `actual` the value that follows from the other records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The root does not exist or is not a directory.
    #[error("there is no root directory")]
    NoRoot,
    /// A name refers to an inode that does not exist.
    #[error("the name refers to inode {ino}, which does not exist")]
    EntryWithoutInode { dir: Ino, name: Name, ino: Ino },
    #[error("the entry says {}, but inode {ino} is a {}", type_name(.stored), type_name(.actual))]
    EntryKind { dir: Ino, name: Name, ino: Ino, stored: FileType, actual: FileType },
    /// A directory has more than one name, or the root or the trash has a name.
    #[error("directory {ino} has another name already")]
    SecondName { dir: Ino, name: Name, ino: Ino },
    /// The recorded parent of a directory is not the directory with its name.
    #[error("the directory's recorded parent is {stored}, but its name is in directory {actual}")]
    Parent { ino: Ino, stored: Ino, actual: Ino },
    /// A directory is its own ancestor.
    #[error("directory {ino} is its own ancestor")]
    Cycle { ino: Ino, parent: Ino, name: Name },
    /// An inode has no name, and no session is recorded to have it open.
    #[error("the {} has no name and is not open in any session", type_name(.kind))]
    Lost { ino: Ino, kind: FileType },
    #[error("the link count is {stored}, but there {} {}", plural(i128::from(*actual), "is", "are"), show(.actual, "link", "links"))]
    Links { ino: Ino, stored: u32, actual: u32 },
    /// The recorded number of xattr blocks of the inode is wrong.
    #[error("the recorded size of the extended attributes is {}, but they have {actual}", show(.stored, "block", "blocks"))]
    XattrBlocks { ino: Ino, stored: u16, actual: u64 },
    /// An inode is recorded as open without a name, but it has a name or does not exist.
    #[error(
        "session {session} is recorded to have it open without a name, but it has a name or does not exist"
    )]
    StaleOrphan { session: SessionId, ino: Ino },
    #[error("its ACL {id} is not stored")]
    AclMissing { ino: Ino, id: AclId },
    /// The text is not a valid ACL, or is the text of another ACL.
    #[error("its ACL {id} is damaged")]
    AclDamaged { ino: Ino, id: AclId },
    /// The permission bits of the mode differ from those that the access ACL implies.
    #[error("the permission bits are {stored:03o}, but the access ACL implies {actual:03o}")]
    AclMode { ino: Ino, stored: u32, actual: u32 },
    /// An NFSv4 ACL refers to the Windows domain number `stored`, but the volume's table has only `actual`
    /// domains.
    #[error("its ACL {id} refers to Windows domain {stored}, but the volume's table has only {actual}")]
    AclDomain { ino: Ino, id: AclId, stored: u32, actual: u32 },
    /// The volume's table of Windows domains is malformed.
    #[error("the table of Windows domains is damaged")]
    Domains,
    #[error("the symbolic link has no target")]
    NoTarget { ino: Ino },
    #[error("the symbolic link's size is {}, but its target has {actual}", show(.stored, "byte", "bytes"))]
    TargetLength { ino: Ino, stored: u64, actual: u64 },
    /// The row at this position of its chunk is invalid.
    #[error("row {row} of chunk {chunk}: {fault}")]
    Row { ino: Ino, chunk: ChunkIndex, row: usize, fault: &'static str },
    /// Rows disagree about the size of a slice in bytes.
    #[error("one row says that slice {slice} has {}, another one says {other}", show(.one, "byte", "bytes"))]
    SliceSize { ino: Ino, slice: SliceId, one: u32, other: u32 },
    /// The number of rows beyond the first that refer to a slice is wrong.
    #[error("slice {slice} is recorded with {} beyond the first, but has {actual}", show(.stored, "row", "rows"))]
    Shared { slice: SliceId, stored: u64, actual: u64 },
    /// A slice that a file refers to is listed as garbage.
    #[error("slice {slice} of the file is listed as garbage")]
    GarbageInUse { slice: SliceId, ino: Ino },
    #[error(
        "the usage is recorded as {}, but is {}",
        inodes_and_blocks(.stored.inodes, .stored.blocks), inodes_and_blocks(.actual.inodes, .actual.blocks)
    )]
    Usage { stored: Usage, actual: Usage },
    /// A quota counts wrong numbers of inodes and blocks. `stored` is `None` if the quota does not exist,
    /// although inodes count in it.
    #[error("{} {}, but it has {}", Whose(.key), Stored(.stored), inodes_and_blocks(.actual.0, .actual.1))]
    Quota { key: QuotaKey, stored: Option<(i64, i64)>, actual: (i64, i64) },
    /// The counter will give out a number that is already in use.
    #[error("the counter {} is {stored}, but {last} is in use", .counter.name())]
    Counter { counter: Counter, stored: u64, last: u64 },
}

/// The object that a problem is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    Volume,
    Inode(Ino),
    Dirent(Ino, Name),
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
            // Not "cycle", because identifiers do not change.
            Problem::Cycle { .. } => "circle",
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
            Problem::Quota { .. } => "quota",
            Problem::Counter { .. } => "counter",
        }
    }

    pub fn location(&self) -> Location {
        match self {
            Problem::NoRoot
            | Problem::Domains
            | Problem::Shared { .. }
            | Problem::Usage { .. }
            | Problem::Quota { .. }
            | Problem::Counter { .. } => Location::Volume,
            Problem::EntryWithoutInode { dir, name, .. }
            | Problem::EntryKind { dir, name, .. }
            | Problem::SecondName { dir, name, .. } => Location::Dirent(*dir, name.clone()),
            Problem::Cycle { parent, name, .. } => Location::Dirent(*parent, name.clone()),
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
            | Problem::GarbageInUse { ino, .. } => Location::Inode(*ino),
        }
    }
}

/// Names the directory, user or group of a quota, for messages.
struct Whose<'a>(&'a QuotaKey);

impl fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            QuotaKey::Directory(id) => write!(f, "directory quota {id}"),
            QuotaKey::User(uid) => write!(f, "the quota of user {uid}"),
            QuotaKey::Group(gid) => write!(f, "the quota of group {gid}"),
        }
    }
}

/// The inodes and blocks that a quota is recorded to count, for messages.
struct Stored<'a>(&'a Option<(i64, i64)>);

impl fmt::Display for Stored<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((inodes, blocks)) => write!(f, "counts {}", inodes_and_blocks(*inodes, *blocks)),
            None => f.write_str("does not exist"),
        }
    }
}

fn inodes_and_blocks<N: fmt::Display + Copy + TryInto<i128>>(inodes: N, blocks: N) -> String {
    format!("{} and {}", counted(inodes, "inode", "inodes"), counted(blocks, "block", "blocks"))
}

/// As [`counted`], for the field of a problem.
fn show<N: fmt::Display + Copy + TryInto<i128>>(number: &N, one: &str, many: &str) -> String {
    counted(*number, one, many)
}

fn type_name(kind: &FileType) -> &'static str {
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
