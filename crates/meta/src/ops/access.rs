//! Who may do it: the checks that operations share.
//!
//! Where the kernel vouches it has made them all, by the attributes it knows; what is left is that it knows the
//! present ones. Where the daemon has to vouch, they are made here, beside the kernel functions that make them there.

use acl::posix::{self, Perm};
use types::{Caps, Errno, Mode};

use crate::driver::{Ctx, Vouch};
use crate::record::Node;
use crate::view::{Stop, View};

impl Ctx<'_> {
    /// The caller may do `want` in the directory. Twin of `inode_permission`, fs/namei.c.
    ///
    /// # Errors
    /// ESTALE where the kernel decided by what no longer holds; EACCES.
    pub(super) fn admit(&self, view: &mut View<'_>, dir: &Node, want: Perm) -> Result<(), Stop> {
        match self.vouch {
            Vouch::Kernel { told: Some(told) } if told.is_stale(dir.ino, dir.access_rev) => {
                Err(Stop::KernelIsStale)
            }
            Vouch::Kernel { .. } => Ok(()),
            Vouch::Daemon(cred) => {
                let acl = view.acl(dir.access_acl)?;
                let node = posix::Node {
                    uid: dir.uid,
                    gid: dir.gid,
                    mode: dir.mode,
                    is_dir: dir.kind.is_dir(),
                    acl: acl.as_deref(),
                };
                Ok(posix::check(cred, want, &node)?)
            }
        }
    }

    /// The caller may add or remove names in the directory.
    pub(super) fn admit_change(&self, view: &mut View<'_>, dir: &Node) -> Result<(), Stop> {
        self.admit(view, dir, Perm::WRITE | Perm::EXECUTE)
    }

    /// The caller may take `child` out of the directory, sticky bit considered. Twin of `may_delete` and
    /// `__check_sticky`, fs/namei.c.
    ///
    /// # Errors
    /// EACCES, then EPERM.
    pub(super) fn admit_removal(&self, view: &mut View<'_>, dir: &Node, child: &Node) -> Result<(), Stop> {
        self.admit_change(view, dir)?;
        match self.vouch {
            Vouch::Daemon(cred)
                if dir.mode.has(Mode::STICKY)
                    && cred.uid != child.uid
                    && cred.uid != dir.uid
                    && !cred.caps.has(Caps::FOWNER) =>
            {
                Err(Errno::EPERM.into())
            }
            _ => Ok(()),
        }
    }

    /// The caller owns the inode or may act as if. Twin of `inode_owner_or_capable`, fs/inode.c.
    ///
    /// # Errors
    /// EPERM.
    pub(super) fn admit_owner(&self, node: &Node) -> Result<(), Stop> {
        match self.vouch {
            Vouch::Daemon(cred) if cred.uid != node.uid && !cred.caps.has(Caps::FOWNER) => {
                Err(Errno::EPERM.into())
            }
            _ => Ok(()),
        }
    }
}
