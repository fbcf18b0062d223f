//! Changes that failed and may still happen.
//!
//! After EIO a program may repeat the call, or do something else. If the request of the failed change arrived
//! after that, it would undo later changes: a late truncation cuts off newer data, a late chmod grants access
//! that was revoked. So before this mount commits anything newer, and before it releases a lock, it cancels
//! such changes ([`Meta::cancel`]): then each has happened already, or never happens. Flushes are kept with
//! their files ([`crate::abandoned`]).
//!
//! If such a change has happened, it may have left an inode without a name. The inode may be open, or no
//! program has opened it (an `O_TMPFILE` that failed). Such inodes are deleted by
//! [`Base::reap_orphans`](crate::base::Base::reap_orphans).
//!
//! Lock order: `all` is locked alone. A transaction is locked before `orphans` and before the locks of the
//! client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use client::{Failure, InDoubtTxn, Meta};
use types::{Ino, SessionId};

#[derive(Debug, Default)]
pub(crate) struct InDoubtTxns {
    /// Each transaction is locked while it is canceled, so that nothing newer is committed meanwhile.
    all: Mutex<Vec<Arc<Mutex<Option<InDoubtTxn>>>>>,
    /// Whether any change is in doubt. If not, other calls need not take the lock.
    exist: AtomicBool,
    /// Inodes without a name that are still to be deleted, and the sessions whose orphans they are.
    orphans: Mutex<Vec<(SessionId, Ino)>>,
}

impl InDoubtTxns {
    /// Keeps the in-doubt transaction of a change that failed.
    pub(crate) fn keep(&self, in_doubt: InDoubtTxn) {
        let mut all = host::lock(&self.all);
        all.push(Arc::new(Mutex::new(Some(in_doubt))));
        self.exist.store(true, Ordering::Release);
    }

    /// Whether a change is in doubt.
    pub(crate) fn exist(&self) -> bool {
        self.exist.load(Ordering::Acquire)
    }

    /// Whether no change is in doubt, and none has left anything behind.
    pub(crate) fn is_empty(&self) -> bool {
        host::lock(&self.all).is_empty() && host::lock(&self.orphans).is_empty()
    }

    /// Cancels all changes in doubt. Ends at the first error.
    ///
    /// # Errors
    /// Those of the database; changes may then still be in doubt.
    pub(crate) fn settle(&self, meta: &Meta) -> Result<(), Failure> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(());
        }
        let all = host::lock(&self.all).clone();
        all.iter().try_for_each(|in_doubt| self.cancel(meta, &mut host::lock(in_doubt)))?;
        let mut left = host::lock(&self.all);
        left.retain(|in_doubt| !all.iter().any(|settled| Arc::ptr_eq(settled, in_doubt)));
        self.exist.store(!left.is_empty(), Ordering::Release);
        Ok(())
    }

    fn cancel(&self, meta: &Meta, in_doubt: &mut Option<InDoubtTxn>) -> Result<(), Failure> {
        let Some(session) = in_doubt.as_ref().map(InDoubtTxn::session) else { return Ok(()) };
        let orphans = meta.cancel(in_doubt)?.into_iter().flatten();
        host::lock(&self.orphans).extend(orphans.map(|ino| (session, ino)));
        Ok(())
    }

    /// Notes an inode without a name that is to be deleted.
    pub(crate) fn note_orphan(&self, session: SessionId, ino: Ino) {
        host::lock(&self.orphans).push((session, ino));
    }

    /// Empties the list of inodes that are still to be deleted, and returns it: those that changes in doubt
    /// have left without a name, and those whose deletion failed.
    pub(crate) fn take_orphans(&self) -> Vec<(SessionId, Ino)> {
        std::mem::take(&mut *host::lock(&self.orphans))
    }
}
