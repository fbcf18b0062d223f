//! Volumes of NFSv4 ACLs: the kernel checks a projection of the ACLs, the daemon checks the ACLs themselves.
//!
//! The kernel gets mode bits and a POSIX ACL that are never narrower than the NFSv4 ACL
//! ([`acl::nfs4::project`]). So it walks paths, its own dentry cache included, without requests, and denies
//! what it can. The operations in [`meta::ops`] check for the caller what it lets through.
//!
//! Only the kernel checks search permission on directories. If the projection is not exact for search, the
//! directory's attributes get a lifetime of zero ([`Attr::per_caller`]): the kernel then sends GETATTR on
//! behalf of every caller before it grants search (`fuse_permission`), and passes an error of GETATTR on. So
//! names below stay cached, a caller without search permission gets EACCES before they are looked up, and no
//! LOOKUP is ever denied: the kernel would treat a denied LOOKUP as a removed name, and unmount what is
//! mounted there (`d_invalidate`).

use std::sync::Arc;

use acl::credential::Credential;
use acl::identity::Id;
use acl::nfs4::{self, Mask, Nfs4Acl, Scope};
use acl::posix::PosixAcl;
use meta::ops::{Admit, CopiedAcl, CopyAcl, GetNfs4Acl, GetProjection, Numbering, SetNfs4Acl, XattrMode};
use meta::{AclKind, Authority, CredentialSource, Failure, Inode};
use types::{Caps, Errno, FileType, Ino, Mode};

use crate::attr::Attr;
use crate::caller::Caller;
use crate::vfs::{BY_KERNEL, Vfs};

impl CredentialSource for Caller<'_> {
    fn uid(&self) -> u32 {
        self.uid
    }

    fn gid(&self) -> u32 {
        self.gid
    }

    fn is_mistaken(&self) -> bool {
        self.is_squashed
    }

    fn identity(&self) -> Result<(Arc<Credential>, Caps), Errno> {
        let identity = Caller::identity(self)?;
        Ok((Arc::clone(&identity.credential), identity.caps))
    }
}

impl Vfs {
    pub(crate) fn has_nfs4_acls(&self) -> bool {
        self.meta.volume().acl == AclKind::Nfs4
    }

    /// Whether the kernel's check of a caller is sufficient.
    pub(crate) fn kernel_check_suffices(&self) -> bool {
        !self.has_nfs4_acls() && !self.is_squashing()
    }

    /// The authority for a caller that the kernel has checked with current attributes.
    pub(crate) fn authority<'a>(&self, caller: &'a Caller<'_>) -> Authority<'a> {
        if self.kernel_check_suffices() { BY_KERNEL } else { Authority::Both(caller) }
    }

    /// Denies `want` on an inode if its NFSv4 ACL does not grant it. Does nothing on other volumes.
    ///
    /// # Errors
    /// Those of [`Admit`].
    pub(crate) fn admit(&self, caller: &Caller<'_>, ino: Ino, want: Mask) -> Result<(), Errno> {
        if self.has_nfs4_acls() {
            Ok(self.meta.run(&Admit { ino, want }, &self.authority(caller))?)
        } else {
            Ok(())
        }
    }

    /// The attributes that the kernel gets.
    pub(crate) fn shown(&self, inode: &Inode) -> Attr {
        let (uid, gid) = (self.ids.user_here(inode.uid), self.ids.group_here(inode.gid));
        let attr = Attr { uid, gid, ..Attr::from(inode) };
        let is_lent = inode.kind.is_dir() && !self.meta.traversers().is_empty();
        if !self.has_nfs4_acls() || inode.access_acl.is_none() && !is_lent {
            return attr;
        }
        match self.meta.run(&GetProjection(inode), &BY_KERNEL) {
            Ok(None) => attr,
            Ok(Some(projection)) => Attr {
                mode: inode.mode.without(0o777).with(projection.rwx),
                per_caller: inode.kind.is_dir() && !projection.search_is_exact,
                ..attr
            },
            // An ACL that cannot be read grants nothing. The error may be transient, so the kernel must not
            // cache this.
            Err(error) => {
                tracing::error!(ino = %inode.ino, %error, "cannot read an ACL; access to the inode is denied");
                Attr { mode: inode.mode.without(0o777), per_caller: true, ..attr }
            }
        }
    }

    /// The attributes for a caller. If they are per caller, the kernel requests them before it grants search.
    ///
    /// # Errors
    /// As [`Vfs::getattr`]; EACCES for a directory that the caller may not search, if the kernel cannot
    /// decide that.
    pub fn getattr_for(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        let attr = self.getattr(ino)?;
        if attr.per_caller && attr.kind.is_dir() {
            self.admit(caller, ino, Mask::SEARCH)?;
        }
        Ok(attr)
    }

    /// The POSIX ACL that programs read in place of an inode's NFSv4 ACL, with a reference to the inode
    /// ([`nfs4::refer`]) if [`Vfs::has_references`].
    pub(crate) fn projected_acl(&self, ino: Ino) -> Result<Option<PosixAcl>, Errno> {
        let inode = self.inode(ino)?;
        let Some(projection) = self.meta.run(&GetProjection(&inode), &BY_KERNEL)? else { return Ok(None) };
        let shown = match &projection.acl {
            None if self.has_references => nfs4::minimal(Mode::new(projection.rwx)),
            None => return Ok(None),
            Some(acl) => self.acl_here(acl)?,
        };
        if !self.has_references {
            return Ok(Some(shown));
        }
        let of = (ino, inode.kind.is_dir());
        Ok(Some(nfs4::refer(&shown, &self.meta.volume().uuid, of, inode.access_acl)))
    }

    /// Sets a POSIX ACL on a volume of NFSv4 ACLs.
    ///
    /// # Errors
    /// EOPNOTSUPP for an ACL that may be a projection but refers to no file; those of [`CopyAcl`].
    pub(crate) fn set_posix_over_nfs4(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        acl: &PosixAcl,
        kill_sgid: bool,
    ) -> Result<(), Errno> {
        let is_dir = self.inode(ino)?.kind.is_dir();
        let from = match nfs4::classify(acl, is_dir) {
            _ if !self.has_references => return Err(Errno::EOPNOTSUPP),
            nfs4::Posix::Unclear => return Err(Errno::EOPNOTSUPP),
            nfs4::Posix::Reference(reference) => CopiedAcl::File(reference),
            nfs4::Posix::Foreign => {
                let is_mapping = self.ids.is_mapping();
                CopiedAcl::Foreign(if is_mapping { self.acl_in_volume(acl)? } else { acl.clone() })
            }
        };
        self.keep_unmapped_nfs4_entries(ino)?;
        let set = self.change_for(caller, &CopyAcl { ino, from, kill_sgid });
        self.forget_attributes(ino);
        set
    }

    pub(crate) fn nfs4_acl(&self, caller: &Caller<'_>, ino: Ino, scope: Scope) -> Result<Vec<u8>, Errno> {
        let acl = self.meta.run(&GetNfs4Acl(ino), &self.authority(caller))?;
        let table = match self.meta.domains(acl.highest_domain()) {
            // No access decision depends on the table. Identities that it does not resolve show as they are
            // stored.
            Err(Failure::Refused(errno)) => {
                tracing::error!(%errno, "the volume's table of Windows domains is damaged; identities show as numbers");
                self.meta.domains(0)
            }
            table => table,
        }?;
        let (here, _) = self.nfs4_acl_here(&acl);
        Ok(here.to_xattr(scope, &self.principals.now(table))?)
    }

    /// An ACL in the ids of this machine, and the number of entries whose id has no mapping here.
    fn nfs4_acl_here(&self, acl: &Nfs4Acl) -> (Nfs4Acl, usize) {
        if !self.ids.is_mapping() {
            return (acl.clone(), 0);
        }
        acl.renumbered(|id, is_group| match (id.to_system(), is_group) {
            (None, _) => Some(id),
            // An id without a mapping here becomes the unmapped id.
            (Some(gid), true) => Id::system(self.ids.group_here(gid)),
            (Some(uid), false) => Id::system(self.ids.user_here(uid)),
        })
    }

    /// An ACL in the ids of the volume.
    ///
    /// # Errors
    /// EINVAL if it names an id that has no mapping in the volume.
    fn nfs4_acl_in_volume(&self, here: Nfs4Acl) -> Result<Nfs4Acl, Errno> {
        if !self.ids.is_mapping() {
            return Ok(here);
        }
        let renumbered = here.renumbered(|id, is_group| match (id.to_system(), is_group) {
            (None, _) => Some(id),
            (Some(gid), true) => Id::system(self.ids.group_in_volume(gid)),
            (Some(uid), false) => Id::system(self.ids.user_in_volume(uid)),
        });
        if let (acl, 0) = renumbered { Ok(acl) } else { Err(Errno::EINVAL) }
    }

    /// Denies replacing an ACL that has entries without a mapping here, as for POSIX ACLs.
    ///
    /// # Errors
    /// EOVERFLOW.
    fn keep_unmapped_nfs4_entries(&self, ino: Ino) -> Result<(), Errno> {
        if !self.ids.is_mapping() {
            return Ok(());
        }
        match self.meta.run(&GetNfs4Acl(ino), &BY_KERNEL) {
            Ok(acl) if self.nfs4_acl_here(&acl).1 > 0 => Err(Errno::EOVERFLOW),
            // A damaged ACL has nothing to keep. Other errors are returned by the operation itself.
            Ok(_) | Err(Failure::Refused(_)) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Sets an ACL from its wire form; `None` removes it.
    pub(crate) fn set_nfs4_acl(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        scope: Scope,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        if !self.has_nfs4_acls() {
            return Err(Errno::EOPNOTSUPP);
        }
        let table = self.meta.domains(0)?;
        let known = table.domains().len();
        let names = self.principals.now(table);
        let acl = value.map(|value| match Nfs4Acl::from_xattr(value, scope, &names) {
            Ok(acl) => Ok((self.nfs4_acl_in_volume(acl)?, scope)),
            Err(_) if names.sids.is_full() => Err(Errno::ENOSPC),
            Err(error) => Err(error.into()),
        });
        let acl = acl.transpose()?;
        self.keep_unmapped_nfs4_entries(ino)?;
        let numbering = Numbering { table: names.sids.into_table(), known };
        let set = self.change_for(caller, &SetNfs4Acl { ino, acl, mode, numbering });
        // For the kernel this is an ordinary xattr: it keeps its cached mode and ACL unless told to drop
        // them.
        self.forget_attributes(ino);
        set
    }

    /// The xattr names of the NFSv4 ACL for an inode of this type.
    pub(crate) fn nfs4_names(&self, kind: FileType) -> &'static [&'static [u8]] {
        if self.has_nfs4_acls() && kind != FileType::Symlink { &[NFS4_ACL, NFS4_DACL] } else { &[] }
    }

    /// Writes and accepts users and groups as `name@domain` in ACLs; otherwise they are numbers. Only the
    /// first call counts.
    pub fn set_nfs4_domain(&self, domain: String) {
        self.principals.set_domain(domain);
    }
}

pub(crate) const NFS4_ACL: &[u8] = b"system.nfs4_acl";
pub(crate) const NFS4_DACL: &[u8] = b"system.nfs4_dacl";
