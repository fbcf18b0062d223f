//! The mounted volume.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;

use acl::idmap::Ids;
use chunk::{BlockStore, MemoryBudget, WriteBuffer, WriteContext};
use meta::ops::{AtimeMode, GetNode, GetUsage};
use meta::{Counter, Failure, Meta, Node, Usage, Vouch};
use types::{BootInstant, Errno, Ino, Name, SliceId, Time};

use crate::atime::Accesses;
use crate::attr::Attr;
use crate::caller::Caller;
use crate::coherence::Neighbour;
use crate::compact::Candidates;
use crate::dirs::{DirHandle, OpenDir};
use crate::durable::Durability;
use crate::fencing::Losses;
use crate::gate::Gate;
use crate::locks::{Askers, Held};
use crate::numbers::Numbers;
use crate::open::OpenTable;
use crate::principals::Principals;
use crate::session::{SessionInfo, SessionTimes};

/// A mounted volume: what a protocol's requests are carried out on. All methods may be called from many threads.
#[derive(Debug)]
pub struct Vfs {
    pub(crate) meta: Arc<Meta>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) inos: Numbers,
    pub(crate) slices: Arc<Numbers>,
    pub(crate) writes: Arc<WriteContext>,
    pub(crate) files: OpenTable,
    /// Held while room is made in the write buffers, before the lock of any file.
    pub(crate) making_space: Mutex<()>,
    pub(crate) dirs: RwLock<HashMap<DirHandle, Arc<OpenDir>>>,
    pub(crate) next_dir: AtomicU64,
    /// Names that open directories hold in memory.
    pub(crate) listed: Arc<AtomicUsize>,
    /// Inodes that are gone, but that the kernel still holds, as they stood last: a working directory, an `O_PATH`
    /// descriptor. They leave when the kernel forgets them.
    ghosts: Mutex<HashMap<Ino, Node>>,
    pub(crate) durability: Durability,
    pub(crate) candidates: Candidates,
    pub(crate) askers: Askers,
    pub(crate) held: Held,
    pub(crate) neighbour: Neighbour,
    pub(crate) accesses: Accesses,
    pub(crate) principals: Principals,
    pub(crate) gate: Gate,
    pub(crate) ids: Ids,
    pub(crate) hide_unreadable: bool,
    pub(crate) has_references: bool,
    pub(crate) stopping: AtomicBool,
    pub(crate) house: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) info: OnceLock<SessionInfo>,
    pub(crate) since: Time,
    pub(crate) times: SessionTimes,
    /// When the last renewal of the session that succeeded began.
    pub(crate) renewed: Mutex<BootInstant>,
    pub(crate) losses: Losses,
    /// This mount cleans up for all.
    pub(crate) elected: AtomicBool,
    /// A session was removed, and what it left has not been looked for since.
    pub(crate) leftovers: AtomicBool,
}

/// What a mount may choose.
#[derive(Clone, Debug)]
pub struct VfsOptions {
    /// Bytes written but not yet stored, all files together.
    pub write_buffer_bytes: u64,
    pub atime: AtimeMode,
    /// What numbers users and groups have here, and whom callers are taken for.
    pub ids: Ids,
    /// Listings show a caller only what he may read, even if the volume does not say so.
    pub hide_unreadable: bool,
    /// What programs read as POSIX ACLs of files with NFSv4 ACLs names the file. The kernel takes that only if every group
    /// has a number in the mount's user namespace.
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

/// What a volume without limits shows as its size.
const UNLIMITED_BYTES: u64 = 1 << 50;
const UNLIMITED_INODES: u64 = 1 << 40;

/// The kernel has checked the caller, by attributes that are current because this client is alone.
pub(crate) const BY_KERNEL: Vouch<'_> = Vouch::Kernel { told: None };

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
            askers: Askers::default(),
            held: Held::default(),
            neighbour: Neighbour::default(),
            accesses: Accesses::new(options.atime),
            principals: Principals::default(),
            gate: Gate::default(),
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

    /// Whether nobody else can change the volume, so that the kernel may cache data and listings.
    pub fn is_alone(&self) -> bool {
        self.meta.is_alone()
    }

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

    /// Runs an operation that may change the volume, and that no caller's rights bear on.
    pub(crate) fn change<O: meta::Op>(&self, op: &O) -> Result<O::Reply, Errno> {
        self.change_by(op, &BY_KERNEL)
    }

    /// Runs an operation that may change the volume, for a caller.
    pub(crate) fn change_for<O: meta::Op>(&self, caller: &Caller<'_>, op: &O) -> Result<O::Reply, Errno> {
        self.change_by(op, &self.vouch(caller))
    }

    fn change_by<O: meta::Op>(&self, op: &O, vouch: &Vouch<'_>) -> Result<O::Reply, Errno> {
        let reply = self.meta.run(op, vouch);
        self.note_change();
        reply.map_err(Failure::into)
    }

    /// An inode as the records have it; one that is gone as it stood last.
    pub(crate) fn node(&self, ino: Ino) -> Result<Node, Errno> {
        match self.meta.run(&GetNode(ino), &BY_KERNEL) {
            Ok(node) => Ok(node),
            Err(Failure::Refused(Errno::ESTALE)) => self.ghosts().get(&ino).copied().ok_or(Errno::ESTALE),
            Err(failure) => Err(failure.into()),
        }
    }

    /// An open file's node is looked at again: first what is in the buffer, then the records, so that what a flush
    /// moves between the two is seen in both rather than in neither.
    pub(crate) fn attr_of(&self, node: &Node) -> Attr {
        let Some(file) = self.files.get(node.ino) else {
            self.tell(node);
            return self.accesses.overlay(self.shown(node));
        };
        let unflushed = file.unflushed();
        let node = self.node(node.ino).unwrap_or(*node);
        self.tell(&node);
        let mut attr = self.shown(&node);
        if let Some(unflushed) = unflushed {
            unflushed.overlay(&mut attr);
        }
        self.accesses.overlay(attr)
    }

    /// Bytes that programs wrote and that are in no store and no record yet.
    pub fn unstored_bytes(&self) -> u64 {
        self.writes.budget.used_bytes()
    }

    /// What numbers users and groups have here.
    pub fn ids(&self) -> &Ids {
        &self.ids
    }

    /// Keeps what stat(2) shows of an inode that is gone.
    pub(crate) fn bury(&self, node: &Node) {
        self.ghosts().insert(node.ino, Node { nlink: 0, ctime: types::Time::now(), ..*node });
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// How long a row of a file of `size` bytes may be to lie in the metadata.
    pub(crate) fn inline_limit(&self, size: u64) -> Option<u32> {
        let limit = self.meta.volume().inline_bytes;
        (size <= u64::from(limit)).then_some(limit)
    }

    pub(crate) fn new_buffer(&self) -> WriteBuffer {
        WriteBuffer::new(&self.writes)
    }

    pub(crate) fn ghosts(&self) -> std::sync::MutexGuard<'_, HashMap<Ino, Node>> {
        self.ghosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks a name where it enters.
pub(crate) fn name(bytes: &[u8]) -> Result<Name, Errno> {
    Ok(Name::new(bytes)?)
}
