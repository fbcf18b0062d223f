//! The mounted volume.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;

use acl::idmap::Ids;
use chunk::{BlockStore, MemoryBudget, WriteBuffer, WriteContext};
use meta::ops::{AtimeMode, GetInode, GetUsage};
use meta::{Authority, Counter, Failure, Inode, Meta, Usage};
use types::{BootInstant, Errno, Ino, Name, SliceId, Time};

use crate::access_check::AccessCheck;
use crate::atime::Accesses;
use crate::attr::Attr;
use crate::caller::Caller;
use crate::coherence::KernelState;
use crate::compact::Candidates;
use crate::dirs::{DirHandle, OpenDir};
use crate::durable::Durability;
use crate::fencing::Losses;
use crate::locks::{Held, LockOwners};
use crate::numbers::Numbers;
use crate::open::OpenTable;
use crate::principals::Principals;
use crate::session::{SessionInfo, SessionTimes};

/// A mounted volume. Protocol requests are calls of its methods, which can be called from many threads.
#[derive(Debug)]
pub struct Vfs {
    pub(crate) meta: Arc<Meta>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) inos: Numbers,
    pub(crate) slices: Arc<Numbers>,
    pub(crate) writes: Arc<WriteContext>,
    pub(crate) files: OpenTable,
    /// Held while room is made in the write buffers; locked before any file.
    pub(crate) making_space: Mutex<()>,
    pub(crate) dirs: RwLock<HashMap<DirHandle, Arc<OpenDir>>>,
    pub(crate) next_dir: AtomicU64,
    /// The number of names that open directories hold in memory.
    pub(crate) listed: Arc<AtomicUsize>,
    /// Deleted inodes that the kernel still holds, for example as a working directory or through an `O_PATH`
    /// descriptor, with their last attributes. They are removed when the kernel forgets them.
    ghosts: Mutex<HashMap<Ino, Inode>>,
    pub(crate) durability: Durability,
    pub(crate) candidates: Candidates,
    pub(crate) lock_owners: LockOwners,
    pub(crate) held: Held,
    pub(crate) kernel_state: KernelState,
    pub(crate) accesses: Accesses,
    pub(crate) principals: Principals,
    pub(crate) access_check: AccessCheck,
    pub(crate) ids: Ids,
    pub(crate) hide_unreadable: bool,
    pub(crate) has_references: bool,
    pub(crate) stopping: AtomicBool,
    pub(crate) house: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) info: OnceLock<SessionInfo>,
    pub(crate) since: Time,
    pub(crate) times: SessionTimes,
    /// When the last successful renewal of the session began.
    pub(crate) renewed: Mutex<BootInstant>,
    pub(crate) losses: Losses,
    /// Whether this mount cleans up for all mounts.
    pub(crate) elected: AtomicBool,
    /// Whether a session was removed whose state may not be cleaned up yet.
    pub(crate) leftovers: AtomicBool,
}

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct VfsOptions {
    /// The limit of bytes that are written but not yet stored, for all files together.
    pub write_buffer_bytes: u64,
    pub atime: AtimeMode,
    /// The mapping of ids between this machine and the volume, and the squashing of callers.
    pub ids: Ids,
    /// Listings show a caller only what it may read, even if the volume does not require that.
    pub hide_unreadable: bool,
    /// The POSIX ACLs that programs read of files with NFSv4 ACLs refer to the file. The kernel accepts that
    /// only if every group has an id in the mount's user namespace.
    pub has_references: bool,
    pub times: SessionTimes,
}

impl Default for VfsOptions {
    fn default() -> Self {
        VfsOptions {
            write_buffer_bytes: MemoryBudget::DEFAULT_BYTES,
            atime: AtimeMode::default(),
            ids: Ids::default(),
            hide_unreadable: false,
            has_references: true,
            times: SessionTimes::default(),
        }
    }
}

/// The state of the volume, `statfs(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    pub block_bytes: u64,
    pub blocks: u64,
    pub free_blocks: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

/// The size that statfs reports for a volume without limits.
const UNLIMITED_BYTES: u64 = 1 << 50;
const UNLIMITED_INODES: u64 = 1 << 40;

/// The authority of operations without a caller, and of callers that the kernel has checked with current
/// attributes.
pub(crate) const BY_KERNEL: Authority<'_> = Authority::Kernel { told: None };

impl Vfs {
    pub fn new(meta: Arc<Meta>, store: Arc<BlockStore>, options: VfsOptions) -> Vfs {
        let slices = Arc::new(Numbers::new(&meta, Counter::Slice));
        let fresh = Arc::clone(&slices);
        let writes = Arc::new(WriteContext {
            store: Arc::clone(&store),
            budget: MemoryBudget::new(options.write_buffer_bytes),
            new_id: Box::new(move || fresh.take().map(SliceId)),
        });
        Vfs {
            inos: Numbers::new(&meta, Counter::Ino),
            slices,
            meta,
            store,
            writes,
            files: OpenTable::default(),
            making_space: Mutex::default(),
            dirs: RwLock::default(),
            next_dir: AtomicU64::new(1),
            listed: Arc::default(),
            ghosts: Mutex::default(),
            durability: Durability::default(),
            candidates: Candidates::default(),
            lock_owners: LockOwners::default(),
            held: Held::default(),
            kernel_state: KernelState::default(),
            accesses: Accesses::new(options.atime),
            principals: Principals::default(),
            access_check: AccessCheck::default(),
            ids: options.ids,
            hide_unreadable: options.hide_unreadable,
            has_references: options.has_references,
            stopping: AtomicBool::new(false),
            house: Mutex::default(),
            info: OnceLock::new(),
            since: Time::now(),
            times: options.times,
            renewed: Mutex::new(BootInstant::now()),
            losses: Losses::default(),
            elected: AtomicBool::new(false),
            leftovers: AtomicBool::new(false),
        }
    }

    pub fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    /// Whether no other client can change the volume, so that the kernel may cache data and listings.
    pub fn is_exclusive(&self) -> bool {
        self.meta.is_exclusive()
    }

    /// The size and usage of the volume, `statfs(2)`.
    ///
    /// # Errors
    /// Those of the database.
    pub fn statfs(&self) -> Result<StatFs, Errno> {
        let Usage { inodes, blocks } = self.meta.run(&GetUsage, &BY_KERNEL)?;
        let volume = self.meta.volume();
        let or = |limit: u64, unlimited: u64| if limit == 0 { unlimited } else { limit };
        let all_blocks = or(volume.capacity_bytes, UNLIMITED_BYTES).div_ceil(Usage::BLOCK_BYTES).max(blocks);
        let all_inodes = or(volume.max_inodes, UNLIMITED_INODES).max(inodes);
        Ok(StatFs {
            block_bytes: Usage::BLOCK_BYTES,
            blocks: all_blocks,
            free_blocks: all_blocks - blocks,
            inodes: all_inodes,
            free_inodes: all_inodes - inodes,
        })
    }

    /// Runs an operation that may change the volume and needs no access check.
    pub(crate) fn change<O: meta::Op>(&self, op: &O) -> Result<O::Reply, Errno> {
        self.change_by(op, &BY_KERNEL)
    }

    /// Runs an operation that may change the volume, for a caller.
    pub(crate) fn change_for<O: meta::Op>(&self, caller: &Caller<'_>, op: &O) -> Result<O::Reply, Errno> {
        self.change_by(op, &self.authority(caller))
    }

    fn change_by<O: meta::Op>(&self, op: &O, authority: &Authority<'_>) -> Result<O::Reply, Errno> {
        let reply = self.meta.run(op, authority);
        self.note_change();
        reply.map_err(Failure::into)
    }

    /// An inode as stored; a deleted inode that the kernel still holds, with its last attributes.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode, Errno> {
        match self.meta.run(&GetInode(ino), &BY_KERNEL) {
            Ok(inode) => Ok(inode),
            Err(Failure::Refused(Errno::ESTALE)) => self.ghosts().get(&ino).copied().ok_or(Errno::ESTALE),
            Err(failure) => Err(failure.into()),
        }
    }

    /// The attributes of an inode. For an open file, the buffer is read first and then the record, again:
    /// what a flush moves between the two then shows in both rather than in neither.
    pub(crate) fn attr_of(&self, inode: &Inode) -> Attr {
        let Some(file) = self.files.get(inode.ino) else {
            self.note_given(inode);
            return self.accesses.overlay(self.shown(inode));
        };
        let unflushed = file.unflushed();
        let inode = self.inode(inode.ino).unwrap_or(*inode);
        self.note_given(&inode);
        let mut attr = self.shown(&inode);
        if let Some(unflushed) = unflushed {
            unflushed.overlay(&mut attr);
        }
        self.accesses.overlay(attr)
    }

    /// Bytes that programs wrote and that are neither in the object store nor in the metadata yet.
    pub fn unstored_bytes(&self) -> u64 {
        self.writes.budget.used_bytes()
    }

    /// The mapping of ids between this machine and the volume.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Keeps the attributes of a deleted inode for stat(2).
    pub(crate) fn keep_deleted(&self, inode: &Inode) {
        self.ghosts().insert(inode.ino, Inode { nlink: 0, ctime: types::Time::now(), ..*inode });
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The longest write, in bytes, that is stored inline in the metadata for a file of `size` bytes.
    pub(crate) fn inline_limit(&self, size: u64) -> Option<u32> {
        let limit = self.meta.volume().inline_bytes;
        (size <= u64::from(limit)).then_some(limit)
    }

    pub(crate) fn new_buffer(&self) -> WriteBuffer {
        WriteBuffer::new(&self.writes)
    }

    pub(crate) fn ghosts(&self) -> std::sync::MutexGuard<'_, HashMap<Ino, Inode>> {
        self.ghosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses a name from a request.
pub(crate) fn name(bytes: &[u8]) -> Result<Name, Errno> {
    Ok(Name::new(bytes)?)
}
