//! The records of a volume.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lock::Lock;
use crate::quota::{Quota, QuotaKey, QuotaTag};
use serde::{Deserialize, Serialize};
use types::{AclId, ChunkIndex, FileType, Ino, Mode, Name, SessionId, Slice, SliceId, Time, XattrName};

/// The size of any directory (`st_size`), independent of its number of entries.
pub const DIR_BYTES: u64 = 4096;

/// A directory of at least this size is held ([`Inode::holder`]): its size is this number plus the id of the
/// session that holds it.
const HELD: u64 = 1 << 51;

/// Whether a directory of this size is held.
pub(crate) fn is_held_size(size: u64) -> bool {
    size >= HELD
}

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    pub ino: Ino,
    pub kind: FileType,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    /// Device number, packed in 32 bits as by `makedev(3)`; 0 unless this is a device node.
    pub rdev: u32,
    /// Number of hard links; for a directory, 2 plus the number of its subdirectories.
    pub nlink: u32,
    /// Length in bytes; for a symlink, the length of its target. For a directory [`DIR_BYTES`], or, while a
    /// session holds it, a number that names the session ([`Inode::held_size`]).
    pub size: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub access_acl: AclId,
    pub default_acl: AclId,
    /// For a directory, its parent (the root is its own parent); 0 for all other types.
    pub parent: Ino,
    /// Increases with each change of a field that access depends on (mode, owner, group, ACL ids) or of the
    /// quota tag, and when a session takes a directory that exists.
    pub access_rev: u64,
    /// The size of the inode's extended attributes in blocks: the sum of their [`xattr_blocks`].
    pub xattr_blocks: u16,
    /// The quotas in which the inode counts. A change of the tag increments `access_rev`, so a guard of the
    /// access revision covers it too.
    pub quota: QuotaTag,
}

impl Inode {
    /// The largest number of xattr blocks of an inode: 16 values of the largest size (`XATTR_SIZE_MAX`,
    /// limits.h), or 256 short ones. With this limit the names fit in the result of `listxattr(2)`
    /// (`XATTR_LIST_MAX`, 64 KiB), and all values fit in one response of every server.
    pub const MAX_XATTR_BLOCKS: u16 = 256;

    /// A new inode that belongs to user 0 and group 0, and has no ACL, no data and no extended attributes. It
    /// has one link, or two if it is a directory. The caller sets the parent and the size of a directory.
    pub const fn new(ino: Ino, kind: FileType, mode: Mode, now: Time) -> Self {
        Inode {
            ino,
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: if matches!(kind, FileType::Directory) { 2 } else { 1 },
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            access_acl: AclId::NONE,
            default_acl: AclId::NONE,
            parent: Ino(0),
            access_rev: 1,
            xattr_blocks: 0,
            quota: QuotaTag::NONE,
        }
    }

    /// The ACLs of the inode: none, one or two.
    pub fn acls(&self) -> impl Iterator<Item = AclId> + use<> {
        [self.access_acl, self.default_acl].into_iter().filter(|id| !id.is_none())
    }

    /// The fields that decisions about access depend on, together with `sid_rules`, the version of the rules
    /// for SIDs (0 on volumes without NFSv4 ACLs).
    pub fn as_decided(&self, sid_rules: u64) -> acl::cache::FileAttrs {
        let Inode { uid, gid, mode, access_acl: acl, .. } = *self;
        let is_dir = self.kind.is_dir();
        acl::cache::FileAttrs { uid, gid, mode, is_dir, acl, sid_rules }
    }

    /// The session that holds this directory: only this session changes anything below the directory, and the
    /// changes there may not be committed yet. `None` for other files, and for a directory that no session
    /// holds.
    pub fn holder(&self) -> Option<SessionId> {
        let is_held = self.kind.is_dir() && is_held_size(self.size);
        is_held.then(|| SessionId(self.size - HELD))
    }

    /// The size of a directory that this session holds; `None` if the session's id is 0 or too large to be
    /// stored there. The size is below 2^52, so servers that store numbers as floating point store it
    /// exactly.
    pub fn held_size(holder: SessionId) -> Option<u64> {
        (holder.0 > 0 && holder.0 < HELD).then(|| HELD + holder.0)
    }

    /// The size as it is shown, `st_size`.
    pub fn shown_size(&self) -> u64 {
        if self.holder().is_some() { DIR_BYTES } else { self.size }
    }

    /// The number of blocks that the inode adds to [`Usage::blocks`].
    pub fn blocks(&self) -> u64 {
        self.data_blocks() + u64::from(self.xattr_blocks)
    }

    /// The size of a regular file in blocks.
    pub fn data_blocks(&self) -> u64 {
        if self.kind == FileType::Regular { blocks_of(self.size) } else { 0 }
    }
}

/// The number of blocks of [`Usage::BLOCK_BYTES`] that `size` bytes occupy; a partial block counts as one.
pub fn blocks_of(size: u64) -> u64 {
    size.div_ceil(Usage::BLOCK_BYTES)
}

/// The size of an extended attribute in blocks of [`Usage::BLOCK_BYTES`]: its value of `len` bytes, rounded
/// up, and at least one. The name does not count.
pub fn xattr_blocks(len: usize) -> u16 {
    u16::try_from(blocks_of(len as u64).max(1)).unwrap_or(u16::MAX)
}

/// A directory entry: the inode that a name in a directory refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent {
    pub ino: Ino,
    pub kind: FileType,
}

/// All extended attributes of an inode except its ACLs.
pub type Xattrs = BTreeMap<XattrName, Arc<[u8]>>;

/// The volume's settings by name.
pub type Settings = BTreeMap<String, String>;

/// A source of unique numbers. Clients lease ranges of numbers from it. Its value only increases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Counter {
    Ino,
    Slice,
    Session,
}

impl Counter {
    pub const ALL: [Counter; 3] = [Counter::Ino, Counter::Slice, Counter::Session];

    /// The name under which engines store the counter.
    pub fn name(self) -> &'static str {
        match self {
            Counter::Ino => "next_ino",
            Counter::Slice => "next_slice",
            Counter::Session => "next_session",
        }
    }
}

/// The number of inodes and blocks in use. Every engine keeps it equal to the sum over all inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub inodes: u64,
    /// The sum of [`Inode::blocks`] of all inodes: the sizes of regular files, each rounded up to blocks of
    /// [`Usage::BLOCK_BYTES`], and the xattr blocks of all inodes.
    pub blocks: u64,
}

impl Usage {
    pub const BLOCK_BYTES: u64 = 4096;
}

/// The session of a mounted client. Every change by the client is guarded by a term of its session
/// ([`Guard::Term`](crate::Guard::Term)), so a client whose session was removed can no longer change the
/// volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub id: SessionId,
    pub host: String,
    pub pid: u32,
    pub mountpoint: String,
    pub since: Time,
    /// A time that changes with each renewal. Other clients only compare whether it has changed, because the
    /// clocks of machines differ.
    pub heartbeat: Time,
    pub process: Process,
    /// The limen version of the mount.
    pub version: String,
    /// Slices with this or a higher number may be in the object store although no row refers to them yet.
    pub first_slice: SliceId,
}

impl Session {
    /// A session of an unknown process, with `heartbeat` as its first heartbeat.
    pub fn new(id: SessionId, heartbeat: Time) -> Self {
        Session {
            id,
            host: String::new(),
            pid: 0,
            mountpoint: String::new(),
            since: heartbeat,
            heartbeat,
            process: Process::default(),
            version: String::new(),
            first_slice: SliceId(0),
        }
    }
}

/// The attributes that identify a process, together with its PID. The PID alone is not enough, because PIDs
/// are reused, and a PID has a meaning only in its PID namespace and until the next boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// `/proc/sys/kernel/random/boot_id`; empty if unknown.
    pub boot_id: String,
    /// Inode number of `/proc/self/ns/pid`; 0 if unknown.
    pub pid_namespace: u64,
    /// Start of the process in clock ticks since boot (field 22 of `/proc/PID/stat`); 0 if unknown.
    pub start_time: u64,
}

/// A lock that an owner waits for. These records are used to detect deadlocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWait {
    pub ino: Ino,
    pub lock: Lock,
}

/// A slice that no file refers to any more. Its blocks are to be deleted from the object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage {
    pub slice: SliceId,
    pub size: u32,
}

/// A position in the order of commits, as one engine handle sees it. Records read at `Seq(n)` show all
/// commits of this handle up to `n`. On some engines, they can miss a commit of another handle up to `n`
/// whose change is not delivered yet ([`CommitNumbers`](crate::CommitNumbers)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// A record in an answer of an engine. If the record does not exist, its value says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Inode(Ino, Option<Inode>),
    Dirent(Ino, Name, Option<Dirent>),
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
    /// A session; `None` if it does not exist.
    Session(SessionId, Option<Session>),
    Orphan(SessionId, Ino),
    /// All locks on the inode, sorted.
    Locks(Ino, Arc<[Lock]>),
    /// All waits for a lock, sorted by owner.
    Waits(Arc<[LockWait]>),
    Garbage(Garbage),
    /// The number of rows, beyond the first, that refer to a slice. A slice that was ever shared keeps this
    /// record until it becomes garbage; the number is 0 if one row is left.
    Shared(SliceId, u64),
    /// A quota; `None` if it does not exist.
    Quota(QuotaKey, Option<Quota>),
}

/// The key of a record to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordKey {
    /// Answered by [`Record::Inode`], then one [`Record::Acl`] for each ACL of the inode.
    Inode(Ino),
    /// Answered by [`Record::Dirent`] and, if the entry exists, by the answer of [`RecordKey::Inode`] for its
    /// inode.
    Dirent(Ino, Name),
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
    Quota(QuotaKey),
}

/// A snapshot: records as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub seq: Seq,
    pub records: Vec<Record>,
}

/// A range of records to read in order. At most `limit` rows are returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The entries of a directory after `after`, in bytewise order of their names. Each entry is a
    /// [`Record::Dirent`], followed by the records that `include` selects.
    Dir { parent: Ino, after: Option<Name>, limit: usize, include: ScanInclude },
    /// [`Record::Inode`] of every inode after `after`, by number.
    Inodes { after: Ino, limit: usize },
    /// [`Record::Slices`] of every chunk of a file that has rows, from chunk `from` on.
    Slices { ino: Ino, from: ChunkIndex, limit: usize },
    /// [`Record::Orphan`] of every orphan after `after`, by session and inode.
    Orphans { after: (SessionId, Ino), limit: usize },
    /// [`Record::Session`] of every session after `after`, by id.
    Sessions { after: SessionId, limit: usize },
    /// [`Record::Locks`] of every inode after `after` that has locks, by number.
    Locks { after: Ino, limit: usize },
    /// [`Record::Garbage`] of every garbage slice after `after`, by id.
    Garbage { after: SliceId, limit: usize },
    /// [`Record::Shared`] of every slice after `after` that was ever shared, by id.
    Shared { after: SliceId, limit: usize },
    /// [`Record::Acl`] of every stored ACL after `after`, by id.
    Acls { after: AclId, limit: usize },
    /// [`Record::Quota`] of every quota after `after`, in the order of [`QuotaKey`]; `None` begins with the
    /// first.
    Quotas { after: Option<QuotaKey>, limit: usize },
}

impl Scan {
    /// The largest number of rows to return: entries, inodes, chunks and so on.
    pub fn limit(&self) -> usize {
        let (Scan::Dir { limit, .. }
        | Scan::Inodes { limit, .. }
        | Scan::Slices { limit, .. }
        | Scan::Orphans { limit, .. }
        | Scan::Sessions { limit, .. }
        | Scan::Locks { limit, .. }
        | Scan::Garbage { limit, .. }
        | Scan::Shared { limit, .. }
        | Scan::Acls { limit, .. }
        | Scan::Quotas { limit, .. }) = self;
        *limit
    }

    /// Iterates over the pages of the range, in order. Each item has the records of one page, which `read`
    /// reads. After an error of `read` the iteration ends.
    pub fn pages<E>(
        mut self,
        mut read: impl FnMut(&Scan) -> Result<Page, E>,
    ) -> impl Iterator<Item = Result<Vec<Record>, E>> {
        let mut more = true;
        std::iter::from_fn(move || {
            std::mem::take(&mut more).then(|| {
                let Page { snapshot: Snapshot { records, .. }, more: follows } = read(&self)?;
                more = follows && records.iter().rev().any(|record| self.continue_after(record));
                Ok(records)
            })
        })
    }

    /// Lets the scan begin after a record that it has returned. Returns `false` for a record that is no row
    /// of this scan, such as the inode that follows a directory entry.
    fn continue_after(&mut self, record: &Record) -> bool {
        match (self, record) {
            (Scan::Dir { after, .. }, Record::Dirent(_, name, _)) => *after = Some(name.clone()),
            (Scan::Inodes { after, .. }, Record::Inode(ino, _)) => *after = *ino,
            (Scan::Slices { from, .. }, Record::Slices(_, chunk, _)) => from.0 = chunk.0.saturating_add(1),
            (Scan::Orphans { after, .. }, Record::Orphan(session, ino)) => *after = (*session, *ino),
            (Scan::Sessions { after, .. }, Record::Session(session, _)) => *after = *session,
            (Scan::Locks { after, .. }, Record::Locks(ino, _)) => *after = *ino,
            (Scan::Garbage { after, .. }, Record::Garbage(garbage)) => *after = garbage.slice,
            (Scan::Shared { after, .. }, Record::Shared(slice, _)) => *after = *slice,
            (Scan::Acls { after, .. }, Record::Acl(id, _)) => *after = *id,
            (Scan::Quotas { after, .. }, Record::Quota(key, _)) => *after = Some(*key),
            _ => return false,
        }
        true
    }
}

/// The records that a [`Scan::Dir`] returns about the inodes of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanInclude {
    Nothing,
    /// A [`Record::Inode`] for each entry.
    Inodes,
    /// The answer of [`RecordKey::Inode`] for each entry; an ACL that several inodes share may come only
    /// once.
    InodesWithAcls,
}

/// One page of a [`Scan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub snapshot: Snapshot,
    /// Whether rows may follow the last row of this page.
    pub more: bool,
}
