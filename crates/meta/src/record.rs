//! The records a volume consists of.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lock::Lock;
use types::{AclId, ChunkIndex, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, Time, XattrName};

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub ino: Ino,
    pub kind: FileType,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    /// Device number as `makedev(3)` packs it in 32 bits; 0 unless a device node.
    pub rdev: u32,
    /// Hard links; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Length in bytes; of a symlink, its target's.
    pub size: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub access_acl: AclId,
    pub default_acl: AclId,
    /// The directory that holds this directory, the root's own number for the root; 0 for all else.
    pub parent: Ino,
    /// Moves with each change of what access depends on: mode, owner, group, ACL ids.
    pub access_rev: u64,
}

impl Node {
    /// The ACLs that it carries: none, one or two.
    pub fn acls(&self) -> impl Iterator<Item = AclId> + use<> {
        [self.access_acl, self.default_acl].into_iter().filter(|id| !id.is_none())
    }

    /// What the node adds to [`Usage::blocks`].
    pub fn blocks(&self) -> u64 {
        if self.kind == FileType::Regular { blocks_of(self.size) } else { 0 }
    }
}

/// Blocks of [`Usage::BLOCK_BYTES`] that `size` bytes fill, the last one counted whole.
pub fn blocks_of(size: u64) -> u64 {
    size.div_ceil(Usage::BLOCK_BYTES)
}

/// A directory entry: what a name in a directory refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub ino: Ino,
    pub kind: FileType,
}

/// All extended attributes of an inode but its ACLs.
pub type Xattrs = BTreeMap<XattrName, Arc<[u8]>>;

/// The volume's settings by name; written at format time.
pub type Settings = BTreeMap<String, String>;

/// A source of numbers; leased to clients in ranges, never going back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counter {
    Ino,
    Slice,
    Session,
}

impl Counter {
    pub const ALL: [Counter; 3] = [Counter::Ino, Counter::Slice, Counter::Session];

    /// The name under which engines store it.
    pub fn name(self) -> &'static str {
        match self {
            Counter::Ino => "next_ino",
            Counter::Slice => "next_slice",
            Counter::Session => "next_session",
        }
    }
}

/// What the volume holds, kept exact by every engine: it follows from the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub inodes: u64,
    /// Sum over regular files of their size in blocks of [`Usage::BLOCK_BYTES`], the last one counted whole.
    pub blocks: u64,
}

impl Usage {
    pub const BLOCK_BYTES: u64 = 4096;
}

/// A mounted client. Every change that it makes is guarded by a term of this session ([`Guard::Term`](crate::Guard::Term)),
/// so a client whose record was removed can no longer change the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: SessionId,
    pub host: String,
    pub pid: u32,
    pub mountpoint: String,
    pub since: Time,
    /// Moves with each renewal. Others compare it for equality only, because clocks differ between machines.
    pub heartbeat: Time,
    pub process: Process,
    /// The version of limen that mounted.
    pub version: String,
    /// Slices with this number or a higher one may be in the object store before a row names them.
    pub first_slice: SliceId,
}

/// What identifies a process beyond its number. Only on the same boot and in the same PID namespace does the number say
/// whether the process still runs; host names and bare numbers prove nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// `/proc/sys/kernel/random/boot_id`; empty if unknown.
    pub boot_id: String,
    /// Inode number of `/proc/self/ns/pid`; 0 if unknown.
    pub pid_namespace: u64,
    /// Start of the process in clock ticks since boot (field 22 of `/proc/PID/stat`); 0 if unknown.
    pub start_time: u64,
}

/// What the xattrs of an inode take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct XattrBytes {
    /// The names, each with a NUL, as `listxattr(2)` returns them.
    pub(crate) names: usize,
    pub(crate) values: usize,
}

impl XattrBytes {
    pub(crate) fn of(xattrs: &Xattrs) -> Self {
        xattrs.iter().fold(XattrBytes::default(), |all, (name, value)| all.with(name, value.len()))
    }

    /// With one more.
    pub(crate) fn with(self, name: &XattrName, value_len: usize) -> Self {
        XattrBytes { names: self.names + name.as_bytes().len() + 1, values: self.values + value_len }
    }
}

/// Somebody waits for a lock: how a deadlock is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWait {
    pub ino: Ino,
    pub lock: Lock,
}

/// A slice no file refers to any more; its blocks are to be deleted from the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub slice: SliceId,
    pub size: u32,
}

/// Where a record stands in the order of one engine handle's commits: facts read at `Seq(n)` include commit `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// One record as an engine found it, absence included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Node(Ino, Option<Node>),
    Edge(Ino, Name, Option<Edge>),
    /// Whether the directory has no entries.
    Empty(Ino, bool),
    Xattrs(Ino, Arc<Xattrs>),
    Symlink(Ino, Option<Arc<[u8]>>),
    /// The rows of one chunk in commit order.
    Slices(Ino, ChunkIndex, Arc<[Slice]>),
    /// An ACL in its storage form.
    Acl(AclId, Option<Arc<str>>),
    Settings(Arc<Settings>),
    Counter(Counter, u64),
    Usage(Usage),
    /// A session, or its absence.
    Session(SessionId, Option<Session>),
    Orphan(SessionId, Ino),
    /// All locks on the inode, in order.
    Locks(Ino, Arc<[Lock]>),
    /// All that wait for a lock, by owner.
    Waits(Arc<[LockWait]>),
    Garbage(Garbage),
    /// Rows that refer to a slice beyond its first. A slice that was ever shared keeps this record, with 0 if need be,
    /// until it becomes garbage.
    Shared(SliceId, u64),
}

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Answered by [`Record::Node`], then a [`Record::Acl`] for each ACL it carries.
    Node(Ino),
    /// Answered by [`Record::Edge`] and, where the edge is there, by all that [`Want::Node`] gives for its inode.
    Entry(Ino, Name),
    Empty(Ino),
    Xattrs(Ino),
    Symlink(Ino),
    Slices(Ino, ChunkIndex),
    Acl(AclId),
    Settings,
    Counter(Counter),
    Usage,
    Locks(Ino),
    Waits,
    Session(SessionId),
}

/// Records as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub seq: Seq,
    pub records: Vec<Record>,
}

/// A range to read in order, at most `limit` rows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Entries of a directory by name (bytewise), those after `after`: for each a [`Record::Edge`], then what is to
    /// come `beside` it.
    Dir { parent: Ino, after: Option<Name>, limit: usize, beside: Beside },
    /// [`Record::Node`] of every inode after `after`, by number.
    Nodes { after: Ino, limit: usize },
    /// [`Record::Slices`] of every chunk of a file that has rows, from `from` on.
    Slices { ino: Ino, from: ChunkIndex, limit: usize },
    /// [`Record::Orphan`] by session and inode, those after.
    Orphans { after: (SessionId, Ino), limit: usize },
    /// [`Record::Session`] by id, those after.
    Sessions { after: SessionId, limit: usize },
    /// [`Record::Locks`] of every inode that has some, by number, those after.
    Locks { after: Ino, limit: usize },
    /// [`Record::Garbage`] by slice id, those after.
    Garbage { after: SliceId, limit: usize },
    /// [`Record::Shared`] of every slice that more than one row has referred to, by its id, those after.
    Shared { after: SliceId, limit: usize },
    /// [`Record::Acl`] of every ACL that is stored, by id, those after.
    Acls { after: AclId, limit: usize },
}

impl Scan {
    /// How many entries, inodes or whatever the range is of are wanted.
    pub fn limit(&self) -> usize {
        let (Scan::Dir { limit, .. }
        | Scan::Nodes { limit, .. }
        | Scan::Slices { limit, .. }
        | Scan::Orphans { limit, .. }
        | Scan::Sessions { limit, .. }
        | Scan::Locks { limit, .. }
        | Scan::Garbage { limit, .. }
        | Scan::Shared { limit, .. }
        | Scan::Acls { limit, .. }) = self;
        *limit
    }
}

/// What a [`Scan::Dir`] brings of the inodes that its entries refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    Nothing,
    /// Of each a [`Record::Node`].
    Nodes,
    /// Of each all that [`Want::Node`] gives; an ACL that several nodes carry may come once.
    NodesWithAcls,
}

/// A part of a [`Scan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub facts: Facts,
    /// Whether rows may follow the last one here.
    pub more: bool,
}
