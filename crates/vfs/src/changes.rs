//! Changes that callers request, and which side checks the caller: the kernel, this client, or both.
//!
//! [`Caches`](crate::coherence::Caches) knows the revisions that the kernel checked with.

use client::Failure;
use meta::Inode;
use ops::{Authority, KernelRevisions as _, Reap};
use types::{Errno, Ino, SessionId};

use crate::access_check::Perm;
use crate::base::Base;
use crate::caller::{BY_KERNEL, Caller};
use crate::kernel_cache::RevisionsAsOf;

impl Base {
    /// Runs an operation that may change the volume, for a caller.
    pub(crate) fn change_for<O: ops::Op>(&self, caller: &Caller<'_>, op: &O) -> Result<O::Reply, Errno> {
        Ok(self.commits.change_by(op, &self.access.authority(caller))?)
    }

    /// As [`Self::change_for`], for an operation that changes these inodes or names in them.
    ///
    /// If the kernel checked outdated permissions, this client checks the caller itself. ESTALE would make
    /// the kernel look up and check again, but the kernel does not retry calls on a file descriptor, and the
    /// attributes may change again before the retry.
    ///
    /// # Errors
    /// Those of the operation; ESTALE if the caller must be checked and its credential cannot be read.
    pub(crate) fn change_inodes<O: ops::Op, const N: usize>(
        &self,
        caller: &Caller<'_>,
        held: RevisionsAsOf<'_>,
        op: &O,
        inos: [Ino; N],
    ) -> Result<O::Reply, Errno> {
        if !self.only_kernel_checks() {
            return self.change_for(caller, op);
        }
        match self.commits.change_by(op, &Authority::Kernel { revisions: Some(&held) }) {
            Err(Failure::Operation(Errno::ESTALE)) => {
                if caller.identity().is_err() {
                    // Without this, the kernel would retry with the same outdated attributes.
                    inos.iter().for_each(|&ino| self.caches.invalidate_attributes(ino));
                    return Err(Errno::ESTALE);
                }
                inos.iter().for_each(|&ino| self.caches.invalidate_unless_recent(ino));
                Ok(self.commits.change_by(op, &Authority::Both(caller))?)
            }
            reply => Ok(reply?),
        }
    }

    /// Deletes an orphan of `session`. If that fails, [`Self::reap_orphans`] tries again.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn reap(&self, session: SessionId, ino: Ino) -> Result<(), Failure> {
        self.commits
            .change_by(&Reap { session, ino }, &BY_KERNEL)
            .inspect_err(|_| self.commits.in_doubt.note_orphan(session, ino))
    }

    /// Deletes the inodes without a name that failed calls have left behind. Skips those that are open,
    /// because their last close deletes them.
    ///
    /// # Errors
    /// Those of the database: the first error. After an error of one inode, the others are tried too.
    pub(crate) fn reap_orphans(&self) -> Result<(), Errno> {
        let own = self.meta.session();
        let orphans = self.commits.in_doubt.take_orphans();
        let mut done = Ok(());
        // Other mounts delete the orphans of a session that was lost.
        let mut orphans = orphans.into_iter().filter(|(session, _)| *session == own);
        // The end of the session deletes those that are left when the mount ends.
        while !self.stop.is_set()
            && let Some((session, ino)) = orphans.next()
        {
            let Some(_guard) = self.open.orphan_guard(ino) else { continue };
            let Err(failure) = self.reap(session, ino) else { continue };
            let is_of_one = failure.is_of_one();
            done = done.and(Err(failure.into()));
            if !is_of_one {
                orphans.for_each(|(session, ino)| self.commits.in_doubt.note_orphan(session, ino));
                break;
            }
        }
        done
    }

    /// Whether only the kernel checks callers, while other clients can change what it checks.
    fn only_kernel_checks(&self) -> bool {
        !self.meta.is_exclusive() && self.access.kernel_check_suffices()
    }

    /// Denies access that the kernel granted by outdated attributes: a request may wait for the database long
    /// after the kernel checked it, and the kernel may get newer attributes meanwhile. `held` are the
    /// revisions that the kernel had when the request arrived. On volumes with NFSv4 ACLs, the daemon makes
    /// its own check.
    ///
    /// # Errors
    /// If the kernel's attributes are outdated: ESTALE if the caller's credential cannot be read, after which
    /// the kernel looks up and checks again; EACCES if the current attributes deny the access; those of
    /// [`AccessCheck::permits`](crate::access_check::AccessCheck::permits).
    pub(crate) fn check_by_kernel(
        &self,
        caller: &Caller<'_>,
        held: RevisionsAsOf<'_>,
        inode: &Inode,
        want: Perm,
    ) -> Result<(), Errno> {
        if !self.only_kernel_checks() || held.revision(inode.ino) == Some(inode.access_rev) {
            return Ok(());
        }
        if caller.identity().is_err() {
            self.caches.invalidate_attributes(inode.ino);
            return Err(Errno::ESTALE);
        }
        self.caches.invalidate_unless_recent(inode.ino);
        if self.access.permits(caller, inode, want)? { Ok(()) } else { Err(Errno::EACCES) }
    }
}
