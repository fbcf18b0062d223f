//! Who may do it: the checks that operations share.
//!
//! Where the kernel vouches it has made them all, by the attributes it knows; what is left is that it knows the
//! present ones. Where the daemon has to vouch, they are made here, beside the kernel functions that make them there; on
//! a volume of NFSv4 ACLs by the rules of [`super::nfs4`].

use acl::nfs4::Mask;
use acl::posix::{self, Perm};
use types::{Caps, Cred, Errno, FileType, Mode};

use crate::driver::{Ctx, Vouch};
use crate::record::Node;
use crate::view::{Stop, View};
use crate::volume::AclKind;

impl Ctx<'_> {
    /// Whether the rules of NFSv4 ACLs have to be asked.
    pub(super) fn asks_nfs4(&self) -> bool {
        self.volume.acl == AclKind::Nfs4 && !matches!(self.vouch, Vouch::Kernel { .. })
    }

    /// The caller may look names up in the directory.
    ///
    /// # Errors
    /// ESTALE where the kernel decided by what no longer holds; EACCES.
    pub(super) fn admit_search(&self, view: &mut View<'_>, dir: &Node) -> Result<(), Stop> {
        match self.asks_nfs4() {
            true => self.admit_mask(view, dir, Mask::SEARCH, Errno::EACCES),
            false => self.admit(view, dir, Perm::EXECUTE),
        }
    }

    /// The caller may add a name for an inode of that kind to the directory. Twin of `may_create`, fs/namei.c.
    ///
    /// # Errors
    /// As [`Ctx::admit_search`].
    pub(super) fn admit_new(&self, view: &mut View<'_>, dir: &Node, kind: FileType) -> Result<(), Stop> {
        if !self.asks_nfs4() {
            return self.admit(view, dir, Perm::WRITE | Perm::EXECUTE);
        }
        let add = if kind.is_dir() { Mask::ADD_SUBDIRECTORY } else { Mask::ADD_FILE };
        self.admit_mask(view, dir, add | Mask::SEARCH, Errno::EACCES)
    }

    /// The caller may take `child` out of the directory, sticky bit considered. Twin of `may_delete` and
    /// `__check_sticky`, fs/namei.c.
    ///
    /// # Errors
    /// As [`Ctx::admit_search`], then EPERM.
    pub(super) fn admit_removal(&self, view: &mut View<'_>, dir: &Node, child: &Node) -> Result<(), Stop> {
        if self.asks_nfs4() {
            return self.admit_nfs4_removal(view, dir, child);
        }
        self.admit(view, dir, Perm::WRITE | Perm::EXECUTE)?;
        let is_kept = match self.cred()? {
            Some(cred) => {
                dir.mode.has(Mode::STICKY)
                    && cred.uid != child.uid
                    && cred.uid != dir.uid
                    && !cred.caps.has(Caps::FOWNER)
            }
            None => false,
        };
        if is_kept { Err(Errno::EPERM.into()) } else { Ok(()) }
    }

    /// The caller may move the directory to another parent, which changes its `..`. Twin of the check of its own that
    /// `vfs_rename` makes; ZFS asks for `ACE_WRITE_DATA` there (`zfs_zaccess_rename`).
    ///
    /// # Errors
    /// EACCES.
    pub(super) fn admit_move(&self, view: &mut View<'_>, dir: &Node) -> Result<(), Stop> {
        match self.vouch {
            Vouch::Kernel { .. } => Ok(()),
            _ if self.asks_nfs4() => self.admit_mask(view, dir, Mask::WRITE_DATA, Errno::EACCES),
            _ => self.admit(view, dir, Perm::WRITE),
        }
    }

    /// The caller owns the inode or may act as if. Twin of `inode_owner_or_capable`, fs/inode.c.
    ///
    /// # Errors
    /// EPERM.
    pub(super) fn admit_owner(&self, node: &Node) -> Result<(), Stop> {
        match self.cred()? {
            Some(cred) if cred.uid != node.uid && !cred.caps.has(Caps::FOWNER) => Err(Errno::EPERM.into()),
            _ => Ok(()),
        }
    }

    /// Whom the daemon has to check; nobody where the kernel has.
    ///
    /// # Errors
    /// Those of [`Subject::identity`](crate::Subject::identity).
    pub(super) fn cred(&self) -> Result<Option<Cred>, Errno> {
        match self.vouch {
            Vouch::Kernel { .. } => Ok(None),
            Vouch::Daemon(cred) => Ok(Some(cred.clone())),
            Vouch::Both(subject) => {
                let (credential, caps) = subject.identity()?;
                let mut cred = credential.cred().clone();
                cred.caps = caps;
                Ok(Some(cred))
            }
        }
    }

    /// By POSIX rules, the caller may do `want` in the directory. Twin of `inode_permission`, fs/namei.c.
    fn admit(&self, view: &mut View<'_>, dir: &Node, want: Perm) -> Result<(), Stop> {
        if let Vouch::Kernel { told } = self.vouch {
            return match told {
                Some(told) if told.is_stale(dir.ino, dir.access_rev) => Err(Stop::KernelIsStale),
                _ => Ok(()),
            };
        }
        let Some(cred) = self.cred()? else { return Ok(()) };
        let acl = view.acl(dir.access_acl)?;
        let node = posix::Node {
            uid: dir.uid,
            gid: dir.gid,
            mode: dir.mode,
            is_dir: dir.kind.is_dir(),
            acl: acl.as_deref(),
        };
        Ok(posix::check(&cred, want, &node)?)
    }
}
