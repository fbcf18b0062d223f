//! The base of a mounted volume: the state that its parts share.
//!
//! Each field is a part with its own state and locks, in a file of its own, and depends on earlier fields
//! only. The methods of [`Base`], in `changes` and `flush`, are the sequences of calls that several of the
//! other parts use.

use std::sync::Arc;

use acl::idmap::Ids;
use chunk::{BlockStore, MemoryBudget, WriteContext};
use client::{Meta, TakePolicy};
use journal::Journals;
use meta::Counter;
use ops::AtimeMode;
use types::SliceId;

use crate::abandoned::Abandoned;
use crate::access_check::AccessCheck;
use crate::atime::PendingAtimes;
use crate::attributes::Attributes;
use crate::candidates::Candidates;
use crate::coherence::Caches;
use crate::commits::Commits;
use crate::fencing::Fencing;
use crate::numbers::NumberAllocator;
use crate::open::OpenTable;
use crate::session::SessionTimes;
use crate::stop::Stop;

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct VfsOptions {
    /// The limit of bytes that are written but not yet stored, for all files together.
    pub write_buffer_bytes: u64,
    pub atime: AtimeMode,
    /// The mapping of ids between this machine and the volume, and the squashing of callers.
    pub ids: Ids,
    /// Listings show a caller only the entries that it may read, even if the volume does not require that.
    pub hide_unreadable: bool,
    /// If a file has an NFSv4 ACL, the POSIX ACL that programs read in its place contains a reference to the
    /// file ([`acl::nfs4::refer`]). The kernel accepts such an ACL only if every group has an id in the
    /// mount's user namespace.
    pub has_references: bool,
    /// The domain of users and groups in NFSv4 ACLs, which are then written and accepted as `name@domain`.
    /// Without a domain, they are numbers.
    pub nfs4_domain: Option<String>,
    /// New directories are held: changes below them are answered at once, and committed afterwards. Needs
    /// `journals`.
    pub holds_directories: bool,
    /// Directories that exist are taken if only this mount creates files in them. Needs `holds_directories`.
    pub takes_directories: bool,
    /// The journals of the mounts of this machine. Changes in the journals of ended processes are committed.
    pub journals: Option<Arc<dyn Journals>>,
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
            nfs4_domain: None,
            holds_directories: false,
            takes_directories: false,
            journals: None,
            times: SessionTimes::default(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) meta: Arc<Meta>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) times: SessionTimes,
    pub(crate) stop: Stop,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) candidates: Candidates,
    /// The numbers of new slices.
    pub(crate) slices: Arc<NumberAllocator>,
    pub(crate) writes: Arc<WriteContext>,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) pending_atimes: Arc<PendingAtimes>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) fencing: Fencing,
    pub(crate) abandoned: Abandoned,
    pub(crate) journals: Option<Arc<dyn Journals>>,
}

impl Base {
    pub(crate) fn new(meta: Arc<Meta>, store: Arc<BlockStore>, options: &VfsOptions) -> Self {
        let stop = Stop::default();
        let open = Arc::<OpenTable>::default();
        let slices = Arc::new(NumberAllocator::new(&meta, Counter::Slice));
        let fresh = Arc::clone(&slices);
        let writes = Arc::new(WriteContext {
            store: Arc::clone(&store),
            budget: MemoryBudget::new(options.write_buffer_bytes),
            new_id: Box::new(move || fresh.take().map(SliceId)),
        });
        let access = Arc::new(AccessCheck::new(&meta, options.ids.clone()));
        let caches = Arc::new(Caches::new(&meta, &access, &stop));
        let commits = Arc::new(Commits::new(&meta, &store));
        if let Some(journals) = options.journals.as_ref().filter(|_| options.holds_directories) {
            commits.hold_directories(journals);
            if options.takes_directories {
                caches.follow_takes();
                meta.set_take_policy(TakePolicy::default());
            }
        }
        let pending_atimes = Arc::new(PendingAtimes::new(options.atime, &commits));
        let attributes = Arc::new(Attributes::new(&meta, &open, &pending_atimes, &access, &caches));
        let abandoned = Abandoned::new(&meta, &open);
        let fencing = Fencing::new(&meta, &stop, options.times.rejoin);
        let (times, candidates) = (options.times, Candidates::default());
        Base {
            meta,
            store,
            times,
            stop,
            open,
            candidates,
            slices,
            writes,
            access,
            caches,
            commits,
            pending_atimes,
            attributes,
            fencing,
            abandoned,
            journals: options.journals.clone(),
        }
    }
}
