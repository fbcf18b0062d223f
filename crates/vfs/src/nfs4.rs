//! Volumes of NFSv4 ACLs: the kernel checks by a projection of them, the daemon exactly.
//!
//! The kernel is shown mode bits and a POSIX ACL that are never narrower than the NFSv4 ACL ([`acl::nfs4::project`]), so
//! that it walks paths, its own cache of names included, without asking, and refuses by itself whom it can. What it lets
//! through, the operations of [`meta::ops`] check for the caller.
//!
//! Whether a directory may be searched nobody checks but the kernel. Where the projection is not exact for that, the
//! directory's attributes are said to hold for no time at all ([`Attr::per_caller`]): the kernel then asks for them on
//! behalf of every caller before it lets him search (`fuse_permission`), and takes a refusal of GETATTR for its own. So
//! names below stay cached, a caller who may not search meets EACCES before they are looked at, and no LOOKUP is ever
//! refused: the kernel would take that for a name that is gone, and unmount what is mounted there (`d_invalidate`).

use std::sync::Arc;

use acl::credential::Credential;
use acl::identity::Id;
use acl::nfs4::{self, Mask, Nfs4Acl, Scope};
use acl::posix::PosixAcl;
use meta::ops::{Admit, CopiedAcl, CopyAcl, GetNfs4Acl, GetProjection, Numbering, SetNfs4Acl, XattrMode};
use meta::{AclKind, Failure, Node, Subject, Vouch};
use types::{Caps, Errno, FileType, Ino, Mode};

use crate::attr::Attr;
use crate::caller::Caller;
use crate::vfs::{BY_KERNEL, Vfs};

impl Subject for Caller<'_> {
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

    /// Whether the kernel's check of a caller is all there is to check.
    pub(crate) fn kernel_vouches(&self) -> bool {
        !self.has_nfs4_acls() && !self.is_squashing()
    }

    /// Who answers for the caller, where the kernel has checked him by attributes that are current.
    pub(crate) fn vouch<'a>(&self, caller: &'a Caller<'_>) -> Vouch<'a> {
        if self.kernel_vouches() { BY_KERNEL } else { Vouch::Both(caller) }
    }

    /// Refuses a caller who may not do `want` to an inode, on a volume of NFSv4 ACLs.
    ///
    /// # Errors
    /// Those of [`Admit`].
    pub(crate) fn admit(&self, caller: &Caller<'_>, ino: Ino, want: Mask) -> Result<(), Errno> {
        if self.has_nfs4_acls() {
            Ok(self.meta.run(&Admit { ino, want }, &self.vouch(caller))?)
        } else {
            Ok(())
        }
    }

    /// The attributes as the kernel is to be told them.
    pub(crate) fn shown(&self, node: &Node) -> Attr {
        let (uid, gid) = (self.ids.user_here(node.uid), self.ids.group_here(node.gid));
        let attr = Attr { uid, gid, ..Attr::from(node) };
        let is_lent = node.kind.is_dir() && !self.meta.traversers().is_empty();
        if !self.has_nfs4_acls() || node.access_acl.is_none() && !is_lent {
            return attr;
        }
        match self.meta.run(&GetProjection(node), &BY_KERNEL) {
            Ok(None) => attr,
            Ok(Some(projection)) => Attr {
                mode: node.mode.without(0o777).with(projection.rwx),
                per_caller: node.kind.is_dir() && !projection.search_is_exact,
                ..attr
            },
            // An ACL that cannot be read lets nobody in, and what may be a failure of the moment is not to be kept.
            Err(error) => {
                tracing::error!(ino = %node.ino, %error, "an ACL cannot be read; access to the inode is refused");
                Attr { mode: node.mode.without(0o777), per_caller: true, ..attr }
            }
        }
    }

    /// Attributes for a caller. Where they are not for everybody, it is the kernel that asks, before he may search.
    ///
    /// # Errors
    /// As [`Vfs::getattr`]; EACCES for a directory that the caller may not search, where the kernel cannot tell.
    pub fn getattr_for(&self, caller: &Caller<'_>, ino: Ino) -> Result<Attr, Errno> {
        let attr = self.getattr(ino)?;
        if attr.per_caller && attr.kind.is_dir() {
            self.admit(caller, ino, Mask::SEARCH)?;
        }
        Ok(attr)
    }

    /// The POSIX ACL that stands for an inode's NFSv4 ACL, as programs read it, with a reference to the inode
    /// ([`nfs4::refer`]) where [`Vfs::has_references`].
    pub(crate) fn projected_acl(&self, ino: Ino) -> Result<Option<PosixAcl>, Errno> {
        let node = self.node(ino)?;
        let Some(projection) = self.meta.run(&GetProjection(&node), &BY_KERNEL)? else { return Ok(None) };
        let shown = match &projection.acl {
            None if self.has_references => nfs4::minimal(Mode::new(projection.rwx)),
            None => return Ok(None),
            Some(acl) => self.acl_here(acl)?,
        };
        if !self.has_references {
            return Ok(Some(shown));
        }
        let of = (ino, node.kind.is_dir());
        Ok(Some(nfs4::refer(&shown, &self.meta.volume().uuid, of, node.access_acl)))
    }

    /// Sets what a program takes for a POSIX ACL.
    ///
    /// # Errors
    /// EOPNOTSUPP for an ACL that may be a projection and cannot be traced to a file; those of [`CopyAcl`].
    pub(crate) fn set_posix_over_nfs4(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        acl: &PosixAcl,
        kill_sgid: bool,
    ) -> Result<(), Errno> {
        let is_dir = self.node(ino)?.kind.is_dir();
        let from = match nfs4::classify(acl, is_dir) {
            _ if !self.has_references => return Err(Errno::EOPNOTSUPP),
            nfs4::Posix::Unclear => return Err(Errno::EOPNOTSUPP),
            nfs4::Posix::Reference(reference) => CopiedAcl::File(reference),
            nfs4::Posix::Foreign => {
                let is_mapping = self.ids.is_mapping();
                CopiedAcl::Foreign(if is_mapping { self.acl_in_volume(acl)? } else { acl.clone() })
            }
        };
        self.keep_nfs4_strangers(ino)?;
        let set = self.change_for(caller, &CopyAcl { ino, from, kill_sgid });
        self.forget_attributes(ino);
        set
    }

    pub(crate) fn nfs4_acl(&self, caller: &Caller<'_>, ino: Ino, scope: Scope) -> Result<Vec<u8>, Errno> {
        let acl = self.meta.run(&GetNfs4Acl(ino), &self.vouch(caller))?;
        let table = match self.meta.domains(acl.highest_domain()) {
            // Nobody's rights rest on it. What it does not say is shown as it is stored.
            Err(Failure::Refused(errno)) => {
                tracing::error!(%errno, "the volume's table of domains is damaged; identities show as numbers");
                self.meta.domains(0)
            }
            table => table,
        }?;
        let (here, _) = self.nfs4_acl_here(&acl);
        Ok(here.to_xattr(scope, &self.principals.now(table))?)
    }

    /// An ACL in the numbers of users and groups here, and how many entries name somebody who has none.
    fn nfs4_acl_here(&self, acl: &Nfs4Acl) -> (Nfs4Acl, usize) {
        if !self.ids.is_mapping() {
            return (acl.clone(), 0);
        }
        acl.renumbered(|id, is_group| match (id.to_system(), is_group) {
            (None, _) => Some(id),
            // Who has no place here has the number that is none.
            (Some(gid), true) => Id::system(self.ids.group_here(gid)),
            (Some(uid), false) => Id::system(self.ids.user_here(uid)),
        })
    }

    /// An ACL in the volume's numbers.
    ///
    /// # Errors
    /// EINVAL where it names somebody whom the volume does not know.
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

    /// Refuses to replace an ACL that says more than is shown of it here, as with POSIX ACLs.
    ///
    /// # Errors
    /// EOVERFLOW.
    fn keep_nfs4_strangers(&self, ino: Ino) -> Result<(), Errno> {
        if !self.ids.is_mapping() {
            return Ok(());
        }
        match self.meta.run(&GetNfs4Acl(ino), &BY_KERNEL) {
            Ok(acl) if self.nfs4_acl_here(&acl).1 > 0 => Err(Errno::EOVERFLOW),
            // One that is damaged has nothing to keep; else the operation says why not.
            Ok(_) | Err(Failure::Refused(_)) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Sets an ACL from its wire form, or with `None` removes it.
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
        self.keep_nfs4_strangers(ino)?;
        let numbering = Numbering { table: names.sids.into_table(), known };
        let set = self.change_for(caller, &SetNfs4Acl { ino, acl, mode, numbering });
        // To the kernel that was an xattr like any other: it goes on by mode and ACL as it knew them.
        self.forget_attributes(ino);
        set
    }

    /// The names under which the ACL of an inode of that kind is found.
    pub(crate) fn nfs4_names(&self, kind: FileType) -> &'static [&'static [u8]] {
        if self.has_nfs4_acls() && kind != FileType::Symlink { &[NFS4_ACL, NFS4_DACL] } else { &[] }
    }

    /// Calls users and groups `name@domain` in ACLs, and understands that; otherwise they are numbers. Said once.
    pub fn set_nfs4_domain(&self, domain: String) {
        self.principals.set_domain(domain);
    }
}

pub(crate) const NFS4_ACL: &[u8] = b"system.nfs4_acl";
pub(crate) const NFS4_DACL: &[u8] = b"system.nfs4_dacl";
