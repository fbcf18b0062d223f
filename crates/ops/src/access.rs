//! The access checks that operations share.
//!
//! If the kernel is the authority ([`Authority`]), it has made all checks, with the attributes that it has
//! cached; the functions here only verify that these attributes are current. If the daemon is the authority,
//! the functions here make the checks; their docs name the kernel function that makes the same check. On a
//! volume with NFSv4 ACLs the checks follow the rules in [`super::nfs4`].

use acl::evaluate::{self, Evaluation};
use acl::nfs4::{self, Mask};
use acl::posix::{self, Perm};
use meta::{AclKind, Inode};
use types::{Caps, Cred, Errno, FileType, Mode, XattrName};

use crate::op::{Authority, Ctx};
use crate::trash_names::is_in_trash;
use crate::view::{PlanStop, View};

/// Turns an evaluation into a result. Its reason is dropped, because operations do not need it.
pub(super) fn granted(evaluation: Evaluation) -> Result<(), PlanStop> {
    match evaluation {
        Ok(_) => Ok(()),
        Err(denial) => Err(denial.errno().into()),
    }
}

impl Ctx<'_> {
    /// Whether the rules of NFSv4 ACLs must be checked here.
    pub(super) fn checks_nfs4(&self) -> bool {
        self.volume.acl == AclKind::Nfs4 && !matches!(self.authority, Authority::Kernel { .. })
    }

    /// Whether the kernel assumes another identity for the caller than the daemon does.
    pub(super) fn kernel_ids_differ(&self) -> bool {
        matches!(self.authority, Authority::Both(source) if source.kernel_ids_differ())
    }

    /// Checks that the caller may look up names in the directory.
    ///
    /// # Errors
    /// ESTALE if the kernel checked with outdated attributes; EIO if the directory's ACL is missing or
    /// damaged; EACCES if the caller has no search permission.
    pub(super) fn check_search(&self, view: &mut View<'_>, dir: &Inode) -> Result<(), PlanStop> {
        match self.authority {
            _ if !self.checks_nfs4() => self.check_posix(view, dir, Perm::EXECUTE),
            Authority::Anyone if self.anyone_may_search(view, dir)? => Ok(()),
            _ => self.check_mask(view, dir, Mask::SEARCH, Errno::EACCES),
        }
    }

    /// Checks that the caller may add a name for an inode of that type to the directory. Equivalent to
    /// `may_create` in fs/namei.c.
    ///
    /// # Errors
    /// ENOENT if the directory is in the trash: it counts as removed, and `limen restore` relies on the names
    /// there. As [`Ctx::check_search`], with EACCES if the caller may not write to the directory or may not
    /// search it.
    pub(super) fn check_new(&self, view: &mut View<'_>, dir: &Inode, kind: FileType) -> Result<(), PlanStop> {
        if is_in_trash(dir) {
            return Err(Errno::ENOENT.into());
        }
        if !self.checks_nfs4() {
            return self.check_posix(view, dir, Perm::WRITE | Perm::EXECUTE);
        }
        let add = if kind.is_dir() { Mask::ADD_SUBDIRECTORY } else { Mask::ADD_FILE };
        self.check_mask(view, dir, add | Mask::SEARCH, Errno::EACCES)
    }

    /// Checks that the caller may remove `child` from the directory. This includes the check of the sticky
    /// bit. Equivalent to `may_delete` and `__check_sticky` in fs/namei.c.
    ///
    /// # Errors
    /// As [`Ctx::check_search`], with EACCES if the caller may not remove names from the directory or may not
    /// search it; then EPERM if the directory is sticky and the caller owns neither it nor `child`.
    pub(super) fn check_removal(
        &self,
        view: &mut View<'_>,
        dir: &Inode,
        child: &Inode,
    ) -> Result<(), PlanStop> {
        if self.checks_nfs4() {
            return self.check_nfs4_removal(view, dir, child);
        }
        self.check_posix(view, dir, Perm::WRITE | Perm::EXECUTE)?;
        if !dir.mode.has(Mode::STICKY) {
            return Ok(());
        }
        let Some(cred) = self.cred_about(child)? else { return Ok(()) };
        granted(evaluate::sticky(cred.uid, cred.caps, dir.mode, dir.uid, child.uid))
    }

    /// Checks that the caller may move the directory to another parent, which changes its `..`. Equivalent to
    /// the additional check of `vfs_rename`; ZFS checks `ACE_WRITE_DATA` there (`zfs_zaccess_rename`).
    ///
    /// # Errors
    /// ESTALE if the kernel checked with outdated attributes; EIO if the directory's ACL is missing or
    /// damaged; EACCES if the caller may not write to the directory.
    pub(super) fn check_move(&self, view: &mut View<'_>, dir: &Inode) -> Result<(), PlanStop> {
        if self.checks_nfs4() {
            return self.check_mask(view, dir, Mask::WRITE_DATA, Errno::EACCES);
        }
        self.check_posix(view, dir, Perm::WRITE)
    }

    /// Checks that the caller owns the inode or has the capability to act as its owner. Equivalent to
    /// `inode_owner_or_capable` in fs/inode.c.
    ///
    /// # Errors
    /// ESTALE if the kernel checked with outdated attributes; EPERM if the caller neither owns the inode nor
    /// has the capability.
    pub(super) fn check_owner(&self, inode: &Inode) -> Result<(), PlanStop> {
        let Some(cred) = self.cred_about(inode)? else { return Ok(()) };
        granted(evaluate::owner(cred.uid, cred.caps, inode.uid))
    }

    /// Checks that the caller may set or remove this xattr. As `xattr_permission` in fs/xattr.c, but every
    /// name outside `user.` requires `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// For a name outside `user.`: EPERM if the caller lacks `CAP_SYS_ADMIN`. For a name in `user.`: ESTALE
    /// if the kernel checked with outdated attributes; EPERM if the inode is a sticky directory that the
    /// caller does not own; EACCES if the caller has no write permission.
    pub(super) fn check_xattr(
        &self,
        view: &mut View<'_>,
        inode: &Inode,
        name: &XattrName,
    ) -> Result<(), PlanStop> {
        if self.checks_nfs4() {
            return self.check_nfs4_xattr(view, inode, name);
        }
        if !name.as_bytes().starts_with(b"user.") {
            // The check of the capability does not depend on an inode, so the kernel's check is valid even
            // with outdated attributes.
            let Some(cred) = self.cred()? else { return Ok(()) };
            return granted(evaluate::capability(cred.caps, Caps::SYS_ADMIN));
        }
        if inode.kind.is_dir() && inode.mode.has(Mode::STICKY) {
            self.check_owner(inode)?;
        }
        self.check_posix(view, inode, Perm::WRITE)
    }

    /// Whether a file of this group keeps its SGID bit when the caller sets it or changes the file: only if
    /// the caller is in the group or has `CAP_FSETID`. `kernel_answer` is the kernel's answer, which is used
    /// if the kernel has checked the caller under the right identity.
    ///
    /// # Errors
    /// Those of [`Ctx::cred`].
    pub(super) fn keeps_sgid(&self, gid: u32, kernel_answer: bool) -> Result<bool, Errno> {
        if self.checks_nfs4() && !self.kernel_ids_differ() {
            return Ok(kernel_answer);
        }
        Ok(self.cred()?.map_or(kernel_answer, |cred| cred.in_group(gid) || cred.caps.has(Caps::FSETID)))
    }

    /// Whether the caller lacks `CAP_FSETID`. `false` if the kernel has checked that for the right identity.
    ///
    /// # Errors
    /// Those of [`Ctx::cred`].
    pub(super) fn is_without_fsetid(&self) -> Result<bool, Errno> {
        let kernel_decides = self.checks_nfs4() && !self.kernel_ids_differ();
        Ok(!kernel_decides && self.cred()?.is_some_and(|cred| !cred.caps.has(Caps::FSETID)))
    }

    /// The credential that the daemon must check; `None` if the kernel has checked it.
    ///
    /// # Errors
    /// Those of [`CredentialSource::identity`](crate::CredentialSource::identity). EACCES if the authority is
    /// [`Authority::Anyone`].
    pub(super) fn cred(&self) -> Result<Option<Cred>, Errno> {
        match self.authority {
            Authority::Kernel { .. } => Ok(None),
            Authority::Daemon(cred) => Ok(Some(cred.clone())),
            Authority::Both(source) => {
                let (credential, caps) = source.identity()?;
                let mut cred = credential.cred().clone();
                cred.caps = caps;
                Ok(Some(cred))
            }
            Authority::Anyone => Err(Errno::EACCES),
        }
    }

    /// As [`Ctx::cred`], for a decision that depends on this inode's owner, mode or ACL.
    ///
    /// # Errors
    /// ESTALE if the kernel checked with outdated attributes of the inode; those of [`Ctx::cred`].
    pub(super) fn cred_about(&self, inode: &Inode) -> Result<Option<Cred>, PlanStop> {
        match self.authority {
            Authority::Kernel { revisions: Some(revs) }
                if revs.revision(inode.ino) != Some(inode.access_rev) =>
            {
                Err(PlanStop::KernelIsStale)
            }
            _ => Ok(self.cred()?),
        }
    }

    /// Checks that the caller has these POSIX permissions on the inode. Equivalent to `inode_permission` in
    /// fs/namei.c.
    ///
    /// # Errors
    /// Those of [`Ctx::cred_about`]; EIO if the ACL is missing or damaged; EACCES if a permission is not
    /// granted.
    pub(super) fn check_posix(&self, view: &mut View<'_>, inode: &Inode, want: Perm) -> Result<(), PlanStop> {
        if matches!(self.authority, Authority::Anyone)
            && want == Perm::EXECUTE
            && self.anyone_may_search(view, inode)?
        {
            return Ok(());
        }
        let Some(cred) = self.cred_about(inode)? else { return Ok(()) };
        let acl = view.acl(inode.access_acl)?;
        let inode = posix::FileAttrs {
            uid: inode.uid,
            gid: inode.gid,
            mode: inode.mode,
            is_dir: inode.kind.is_dir(),
            acl: acl.as_deref(),
        };
        granted(posix::permits(&cred, want, &inode))
    }

    /// Whether everybody may search the directory. The result for an ACL is computed once and cached.
    ///
    /// # Errors
    /// EIO if the ACL is missing or damaged.
    pub(super) fn anyone_may_search(&self, view: &mut View<'_>, dir: &Inode) -> Result<bool, PlanStop> {
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

    fn anyone_may_search_nfs4(&self, view: &mut View<'_>, dir: &Inode) -> Result<bool, PlanStop> {
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
