//! Changes that callers request, and who has checked the caller: the kernel, this client, or both.
//!
//! Holds nothing of its own. Depends on [`Commits`], [`AccessCheck`] and [`Caches`], which knows the revisions that the
//! kernel checked with.

use std::sync::Arc;

use client::{Failure, Meta};
use meta::Inode;
use ops::Authority;
use types::{Errno, Ino};

use crate::access_check::{AccessCheck, Perm};
use crate::caller::Caller;
use crate::coherence::Caches;
use crate::commits::Commits;
use crate::kernel_cache::Held;

#[derive(Debug)]
pub(crate) struct CallerChanges {
    pub(crate) meta: Arc<Meta>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
}

impl CallerChanges {
    /// Runs an operation that may change the volume, for a caller.
    pub(crate) fn change_for<O: ops::Op>(&self, caller: &Caller<'_>, op: &O) -> Result<O::Reply, Errno> {
        Ok(self.commits.change_by(op, &self.access.authority(caller))?)
    }

    /// Runs an operation for a caller that may change the volume, on these inodes or on names in them.
    ///
    /// If the kernel checked outdated permissions, this client checks the caller itself. ESTALE, after which
    /// the kernel looks up and checks again, would be wrong for calls on a file descriptor, which are not
    /// retried, and if the attributes change again meanwhile.
    ///
    /// # Errors
    /// Those of the operation; ESTALE if the caller must be checked and its credential cannot be read.
    pub(crate) fn change_inodes<O: ops::Op, const N: usize>(
        &self,
        caller: &Caller<'_>,
        held: Held<'_>,
        op: &O,
        inos: [Ino; N],
    ) -> Result<O::Reply, Errno> {
        if !self.only_kernel_checks() {
            return self.change_for(caller, op);
        }
        match self.commits.change_by(op, &Authority::Kernel { told: Some(&held) }) {
            Err(Failure::Refused(Errno::ESTALE)) => {
                if caller.identity().is_err() {
                    // Without this, the kernel would retry with the same outdated attributes.
                    inos.iter().for_each(|&ino| self.caches.forget_attributes(ino));
                    return Err(Errno::ESTALE);
                }
                inos.iter().for_each(|&ino| self.caches.forget_if_kept(ino));
                Ok(self.commits.change_by(op, &Authority::Both(caller))?)
            }
            reply => Ok(reply?),
        }
    }

    /// Whether only the kernel checks callers, while other clients can change what it checks.
    fn only_kernel_checks(&self) -> bool {
        !self.meta.is_exclusive() && self.access.kernel_check_suffices()
    }

    /// Denies access that the kernel granted by outdated attributes: a request may wait for the database long
    /// after the kernel checked it. On volumes of NFSv4 ACLs the daemon does its own check.
    ///
    /// # Errors
    /// EACCES; ESTALE if the caller's credential cannot be read: the kernel then looks up and checks again.
    pub(crate) fn admit_by_kernel(
        &self,
        caller: &Caller<'_>,
        inode: &Inode,
        want: Perm,
    ) -> Result<(), Errno> {
        if !self.only_kernel_checks() || self.caches.has_current(inode) {
            return Ok(());
        }
        if caller.identity().is_err() {
            self.caches.forget_attributes(inode.ino);
            return Err(Errno::ESTALE);
        }
        self.caches.forget_if_kept(inode.ino);
        if self.access.permits(caller, inode, want)? { Ok(()) } else { Err(Errno::EACCES) }
    }
}
