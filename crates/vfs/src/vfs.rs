//! The mounted volume: its parts, and the operations on it as a whole.

use std::sync::Arc;

use chunk::BlockStore;
use client::Meta;
use ops::AtimeMode;

use crate::access_check::AccessCheck;
use crate::activity::Activity;
use crate::attributes::Attributes;
use crate::base::{Base, VfsOptions};
use crate::cleanup::OwnerCheck;
use crate::coherence::{Caches, StreamEvents};
use crate::commits::Commits;
use crate::fencing::SessionLoss;
use crate::files::Files;
use crate::lifecycle::Lifecycle;
use crate::listings::OpenListings;
use crate::locks::Locks;
use crate::names::Names;
use crate::xattrs::Xattrs;

/// A mounted volume. Protocol requests are calls of its parts, which can be called from many threads.
#[derive(Debug)]
pub struct Vfs {
    pub(crate) base: Arc<Base>,
    pub access: Arc<AccessCheck>,
    pub caches: Arc<Caches>,
    pub commits: Arc<Commits>,
    pub attributes: Arc<Attributes>,
    pub files: Arc<Files>,
    pub names: Names,
    pub listings: OpenListings,
    pub xattrs: Xattrs,
    pub locks: Arc<Locks>,
    pub lifecycle: Arc<Lifecycle>,
}

impl Vfs {
    pub fn new(meta: Arc<Meta>, store: Arc<BlockStore>, options: VfsOptions) -> Vfs {
        let base = Arc::new(Base::new(meta, store, &options));
        let files = Arc::new(Files::new(&base));
        let locks = Arc::new(Locks::new(&base));
        Vfs {
            access: Arc::clone(&base.access),
            caches: Arc::clone(&base.caches),
            commits: Arc::clone(&base.commits),
            attributes: Arc::clone(&base.attributes),
            names: Names::new(&base, &files),
            listings: OpenListings::new(&base, options.hide_unreadable),
            xattrs: Xattrs::new(&base, options.nfs4_domain, options.has_references),
            lifecycle: Arc::new(Lifecycle::new(&base, &locks)),
            files,
            locks,
            base,
        }
    }

    /// Sets the check that this mount makes before it removes objects, once for each page of them. Only the
    /// first call has an effect.
    pub fn set_store_owner_check(&self, check: OwnerCheck) {
        self.lifecycle.cleanup.store_owner.set(check);
    }

    pub fn meta(&self) -> &Arc<Meta> {
        &self.base.meta
    }

    /// Whether no other client can change the volume, so that the kernel may cache data and listings.
    pub fn is_exclusive(&self) -> bool {
        self.base.meta.is_exclusive()
    }

    pub fn atime_mode(&self) -> AtimeMode {
        self.base.pending_atimes.mode()
    }

    /// Bytes that programs wrote and that are neither in the object store nor in the metadata yet.
    pub fn unstored_bytes(&self) -> u64 {
        self.base.writes.budget.used_bytes()
    }

    /// The counts of this mount since it started, and its present state.
    pub fn activity(&self) -> Activity {
        let StreamEvents { answers, changes, failures } = &self.caches.stream;
        let Lifecycle { session, cleanup, .. } = &*self.lifecycle;
        Activity {
            open_files: self.base.open.count(),
            kernel_inodes: self.caches.kernel_inodes(),
            write_buffer_bytes: self.base.writes.budget.limit_bytes(),
            session_age: session.renewed().elapsed(),
            sessions: cleanup.sessions(),
            is_elected: cleanup.is_elected(),
            lease: self.base.meta.lease_left(),
            stream_answers: answers.count(),
            stream_changes: changes.count(),
            stream_failures: failures.count(),
            garbage_removed: cleanup.removed.count(),
            garbage_failures: cleanup.failed.count(),
        }
    }

    /// The last loss of this mount's session, if there was one.
    pub fn session_loss(&self) -> Option<SessionLoss> {
        self.base.fencing.session_loss()
    }
}
