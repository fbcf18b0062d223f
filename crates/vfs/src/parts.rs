//! The parts of a mounted volume, and how they are connected.
//!
//! A part is built with references to those that it uses, in the order of [`Parts::new`]. No part refers to one that is
//! built after it, so their dependencies form a tree.

use std::sync::Arc;

use acl::idmap::Ids;
use chunk::{BlockStore, MemoryBudget, WriteContext};
use client::Meta;
use meta::Counter;
use ops::AtimeMode;
use types::SliceId;

use crate::access_check::AccessCheck;
use crate::atime::Accesses;
use crate::attributes::Attributes;
use crate::candidates::Candidates;
use crate::changes::CallerChanges;
use crate::cleanup::Cleanup;
use crate::coherence::Caches;
use crate::commits::Commits;
use crate::compact::Compactor;
use crate::fencing::Fencing;
use crate::files::Files;
use crate::flush::Flusher;
use crate::housekeeping::{Housekeeping, Work};
use crate::lifecycle::Lifecycle;
use crate::listings::Listings;
use crate::locks::Locks;
use crate::names::Names;
use crate::nfs4::Nfs4Acls;
use crate::numbers::Numbers;
use crate::open::OpenTable;
use crate::principals::Principals;
use crate::ranges::Ranges;
use crate::rows::Rows;
use crate::session::{Session, SessionTimes};
use crate::setattr::AttributeChanges;
use crate::space::Space;
use crate::stop::Stop;
use crate::xattrs::Xattrs;

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

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) meta: Arc<Meta>,
    pub(crate) writes: Arc<WriteContext>,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) accesses: Arc<Accesses>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) setattr: AttributeChanges,
    pub(crate) fencing: Arc<Fencing>,
    pub(crate) files: Arc<Files>,
    pub(crate) ranges: Ranges,
    pub(crate) names: Names,
    pub(crate) listings: Listings,
    pub(crate) xattrs: Xattrs,
    pub(crate) locks: Arc<Locks>,
    pub(crate) session: Arc<Session>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) housekeeping: Housekeeping,
}

impl Parts {
    pub(crate) fn new(meta: Arc<Meta>, store: Arc<BlockStore>, options: VfsOptions) -> Self {
        let stop = Stop::default();
        let open = Arc::new(OpenTable::default());
        let candidates = Arc::new(Candidates::default());
        let slices = Arc::new(Numbers::new(&meta, Counter::Slice));
        let fresh = Arc::clone(&slices);
        let writes = Arc::new(WriteContext {
            store: Arc::clone(&store),
            budget: MemoryBudget::new(options.write_buffer_bytes),
            new_id: Box::new(move || fresh.take().map(SliceId)),
        });
        let access = Arc::new(AccessCheck::new(&meta, options.ids));
        let caches = Arc::new(Caches::new(&meta, &access, &stop));
        let commits = Arc::new(Commits::new(&meta, &store));
        let changes = Arc::new(CallerChanges {
            meta: Arc::clone(&meta),
            commits: Arc::clone(&commits),
            access: Arc::clone(&access),
            caches: Arc::clone(&caches),
        });
        let accesses = Arc::new(Accesses::new(options.atime, &commits));
        let attributes = Arc::new(Attributes::new(&meta, &open, &accesses, &access, &caches));
        let fencing = Arc::new(Fencing::new(&meta, &stop, options.times.rejoin));
        let flusher = Arc::new(Flusher {
            meta: Arc::clone(&meta),
            writes: Arc::clone(&writes),
            open: Arc::clone(&open),
            commits: Arc::clone(&commits),
            attributes: Arc::clone(&attributes),
            fencing: Arc::clone(&fencing),
            candidates: Arc::clone(&candidates),
        });
        let files = Arc::new(Files {
            meta: Arc::clone(&meta),
            slices: Arc::clone(&slices),
            open: Arc::clone(&open),
            access: Arc::clone(&access),
            caches: Arc::clone(&caches),
            commits: Arc::clone(&commits),
            changes: Arc::clone(&changes),
            attributes: Arc::clone(&attributes),
            fencing: Arc::clone(&fencing),
            candidates: Arc::clone(&candidates),
            flusher: Arc::clone(&flusher),
            rows: Rows {
                meta: Arc::clone(&meta),
                store: Arc::clone(&store),
                open: Arc::clone(&open),
                candidates: Arc::clone(&candidates),
            },
            space: Space::new(&writes, &open, &flusher),
        });
        let locks = Arc::new(Locks::new(&meta, &open, &flusher));
        let session = Arc::new(Session::new(&meta, &slices, options.times));
        let cleanup = Arc::new(Cleanup::new(&meta, &store, &commits, options.times, &stop));
        let lifecycle = Arc::new(Lifecycle {
            meta: Arc::clone(&meta),
            session: Arc::clone(&session),
            caches: Arc::clone(&caches),
            commits: Arc::clone(&commits),
            accesses: Arc::clone(&accesses),
            open: Arc::clone(&open),
            flusher: Arc::clone(&flusher),
            fencing: Arc::clone(&fencing),
            locks: Arc::clone(&locks),
            cleanup: Arc::clone(&cleanup),
        });
        Parts {
            setattr: AttributeChanges {
                meta: Arc::clone(&meta),
                access: Arc::clone(&access),
                caches: Arc::clone(&caches),
                changes: Arc::clone(&changes),
                accesses: Arc::clone(&accesses),
                attributes: Arc::clone(&attributes),
                open: Arc::clone(&open),
                flusher: Arc::clone(&flusher),
                fencing: Arc::clone(&fencing),
            },
            ranges: Ranges {
                meta: Arc::clone(&meta),
                access: Arc::clone(&access),
                caches: Arc::clone(&caches),
                commits: Arc::clone(&commits),
                attributes: Arc::clone(&attributes),
                open: Arc::clone(&open),
                fencing: Arc::clone(&fencing),
                flusher: Arc::clone(&flusher),
            },
            names: Names {
                meta: Arc::clone(&meta),
                inos: Numbers::new(&meta, Counter::Ino),
                access: Arc::clone(&access),
                caches: Arc::clone(&caches),
                changes: Arc::clone(&changes),
                attributes: Arc::clone(&attributes),
                open: Arc::clone(&open),
                files: Arc::clone(&files),
            },
            listings: Listings::new(&meta, &access, &changes, &attributes, options.hide_unreadable),
            xattrs: Xattrs {
                meta: Arc::clone(&meta),
                access: Arc::clone(&access),
                caches: Arc::clone(&caches),
                changes: Arc::clone(&changes),
                attributes: Arc::clone(&attributes),
                nfs4: Nfs4Acls {
                    meta: Arc::clone(&meta),
                    access: Arc::clone(&access),
                    caches: Arc::clone(&caches),
                    changes: Arc::clone(&changes),
                    attributes: Arc::clone(&attributes),
                    principals: Principals::default(),
                    has_references: options.has_references,
                },
            },
            housekeeping: Housekeeping::new(Work {
                meta: Arc::clone(&meta),
                session: Arc::clone(&session),
                lifecycle: Arc::clone(&lifecycle),
                cleanup,
                commits: Arc::clone(&commits),
                accesses: Arc::clone(&accesses),
                flusher: Arc::clone(&flusher),
                compactor: Compactor {
                    meta: Arc::clone(&meta),
                    store,
                    slices,
                    open,
                    commits: Arc::clone(&commits),
                    attributes: Arc::clone(&attributes),
                    flusher,
                    candidates,
                    stop: stop.clone(),
                },
                stop,
            }),
            meta,
            writes,
            access,
            caches,
            commits,
            accesses,
            attributes,
            fencing,
            files,
            locks,
            session,
            lifecycle,
        }
    }
}
