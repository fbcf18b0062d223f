//! Who may do it: the checks that operations share.
//!
//! Where the kernel vouches it has made them all, by the attributes it knows; what is left is that it knows the
//! present ones. Where the daemon has to vouch, they are made here, beside the kernel functions that make them there; on
//! a volume of NFSv4 ACLs by the rules of [`super::nfs4`].

use acl::evaluate::{self, Evaluation};
use acl::nfs4::{self, Mask};
use acl::posix::{self, Perm};
use types::{Caps, Cred, Errno, FileType, Mode, XattrName};

use crate::driver::{Ctx, Vouch};
use crate::record::Node;
use crate::view::{Stop, View};
use crate::volume::AclKind;

/// The outcome of a check, of which an operation needs no reason.
pub(super) fn granted(evaluation: Evaluation) -> Result<(), Stop> {
    match evaluation {
        Ok(_) => Ok(()),
        Err(denial) => Err(denial.errno().into()),
    }
}

impl Ctx<'_> {
    /// Whether the rules of NFSv4 ACLs have to be asked.
    pub(super) fn asks_nfs4(&self) -> bool {
        self.volume.acl == AclKind::Nfs4 && !matches!(self.vouch, Vouch::Kernel { .. })
    }

    /// Whether the kernel takes the caller for somebody else.
    pub(super) fn is_mistaken(&self) -> bool {
        matches!(self.vouch, Vouch::Both(subject) if subject.is_mistaken())
    }

    /// The caller may look names up in the directory.
    ///
    /// # Errors
    /// ESTALE where the kernel decided by what no longer holds; EACCES.
    pub(super) fn admit_search(&self, view: &mut View<'_>, dir: &Node) -> Result<(), Stop> {
        match self.vouch {
            _ if !self.asks_nfs4() => self.admit(view, dir, Perm::EXECUTE),
            Vouch::Anyone if self.anyone_may_search(view, dir)? => Ok(()),
            _ => self.admit_mask(view, dir, Mask::SEARCH, Errno::EACCES),
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
        if !dir.mode.has(Mode::STICKY) {
            return Ok(());
        }
        let Some(cred) = self.cred_about(child)? else { return Ok(()) };
        granted(evaluate::sticky(cred.uid, cred.caps, dir.mode, dir.uid, child.uid))
    }

    /// The caller may move the directory to another parent, which changes its `..`. Twin of the check of its own that
    /// `vfs_rename` makes; ZFS asks for `ACE_WRITE_DATA` there (`zfs_zaccess_rename`).
    ///
    /// # Errors
    /// EACCES.
    pub(super) fn admit_move(&self, view: &mut View<'_>, dir: &Node) -> Result<(), Stop> {
        if self.asks_nfs4() {
            return self.admit_mask(view, dir, Mask::WRITE_DATA, Errno::EACCES);
        }
        self.admit(view, dir, Perm::WRITE)
    }

    /// The caller owns the inode or may act as if. Twin of `inode_owner_or_capable`, fs/inode.c.
    ///
    /// # Errors
    /// ESTALE where the kernel decided by what no longer holds; EPERM.
    pub(super) fn admit_owner(&self, node: &Node) -> Result<(), Stop> {
        let Some(cred) = self.cred_about(node)? else { return Ok(()) };
        granted(evaluate::owner(cred.uid, cred.caps, node.uid))
    }

    /// The caller may set or remove this xattr. Twin of `xattr_permission`, fs/xattr.c.
    ///
    /// # Errors
    /// ESTALE where the kernel decided by what no longer holds; EPERM for what takes `CAP_SYS_ADMIN`, and for `user.*` of
    /// a sticky directory unless owner; EACCES.
    pub(super) fn admit_xattr(&self, view: &mut View<'_>, node: &Node, name: &XattrName) -> Result<(), Stop> {
        if self.asks_nfs4() {
            return self.admit_nfs4_xattr(view, node, name);
        }
        if !name.as_bytes().starts_with(b"user.") {
            // That depends on no inode, so the kernel knows.
            let Some(cred) = self.cred()? else { return Ok(()) };
            return granted(evaluate::capability(cred.caps, Caps::SYS_ADMIN));
        }
        if node.kind.is_dir() && node.mode.has(Mode::STICKY) {
            self.admit_owner(node)?;
        }
        self.admit(view, node, Perm::WRITE)
    }

    /// Whether an SGID bit that the caller sets, or leaves, on what has this group stays: he is in the group, or has
    /// `CAP_FSETID`. `told` is what the kernel says, where it does not take the caller for somebody else.
    ///
    /// # Errors
    /// Those of [`Ctx::cred`].
    pub(super) fn keeps_sgid(&self, gid: u32, told: bool) -> Result<bool, Errno> {
        if self.asks_nfs4() && !self.is_mistaken() {
            return Ok(told);
        }
        Ok(self.cred()?.map_or(told, |cred| cred.in_group(gid) || cred.caps.has(Caps::FSETID)))
    }

    /// Whether the caller lacks `CAP_FSETID`, where it is not for the kernel to say so.
    ///
    /// # Errors
    /// Those of [`Ctx::cred`].
    pub(super) fn is_without_fsetid(&self) -> Result<bool, Errno> {
        let is_told = self.asks_nfs4() && !self.is_mistaken();
        Ok(!is_told && self.cred()?.is_some_and(|cred| !cred.caps.has(Caps::FSETID)))
    }

    /// Whom the daemon has to check; nobody where the kernel has.
    ///
    /// # Errors
    /// Those of [`Subject::identity`](crate::Subject::identity); EACCES where nobody was asked for.
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
            Vouch::Anyone => Err(Errno::EACCES),
        }
    }

    /// As [`Ctx::cred`], for a decision that rests on this inode's owner, mode or ACL.
    ///
    /// # Errors
    /// ESTALE where the kernel decided by what no longer holds of it; those of [`Ctx::cred`].
    pub(super) fn cred_about(&self, node: &Node) -> Result<Option<Cred>, Stop> {
        match self.vouch {
            Vouch::Kernel { told: Some(told) } if told.revision(node.ino) != Some(node.access_rev) => {
                Err(Stop::KernelIsStale)
            }
            _ => Ok(self.cred()?),
        }
    }

    /// By POSIX rules, the caller may do `want` to the inode. Twin of `inode_permission`, fs/namei.c.
    pub(super) fn admit(&self, view: &mut View<'_>, node: &Node, want: Perm) -> Result<(), Stop> {
        if matches!(self.vouch, Vouch::Anyone)
            && want == Perm::EXECUTE
            && self.anyone_may_search(view, node)?
        {
            return Ok(());
        }
        let Some(cred) = self.cred_about(node)? else { return Ok(()) };
        let acl = view.acl(node.access_acl)?;
        let node = posix::Node {
            uid: node.uid,
            gid: node.gid,
            mode: node.mode,
            is_dir: node.kind.is_dir(),
            acl: acl.as_deref(),
        };
        granted(posix::permits(&cred, want, &node))
    }

    /// Whether everybody may search the directory: what is worked out of an ACL is worked out once.
    fn anyone_may_search(&self, view: &mut View<'_>, dir: &Node) -> Result<bool, Stop> {
        if self.volume.acl == AclKind::Nfs4 {
            return self.anyone_may_search_nfs4(view, dir);
        }
        if dir.access_acl.is_none() || !posix::anyone_may_traverse(dir.mode.with(0o010), None) {
            return Ok(posix::anyone_may_traverse(dir.mode, None));
        }
        if dir.mode.rwx() & 0o070 == 0 {
            return Ok(false);
        }
        if let Some(known) = view.anyone_passes(dir.access_acl) {
            return Ok(known);
        }
        let acl = view.acl(dir.access_acl)?;
        let passes = posix::anyone_may_traverse(Mode::new(0o111), acl.as_deref());
        view.remember_anyone_passes(dir.access_acl, passes);
        Ok(passes)
    }

    fn anyone_may_search_nfs4(&self, view: &mut View<'_>, dir: &Node) -> Result<bool, Stop> {
        if let Some(known) = view.anyone_passes(dir.access_acl) {
            return Ok(known);
        }
        let acl = view.nfs4_acl(dir.access_acl)?;
        let passes = nfs4::anyone_may_traverse(dir.mode, acl.as_deref().map(nfs4::Compiled::acl));
        if acl.is_some() {
            view.remember_anyone_passes(dir.access_acl, passes);
        }
        Ok(passes)
    }
}
