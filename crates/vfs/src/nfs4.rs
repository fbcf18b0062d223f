//! Volumes with NFSv4 ACLs: the kernel checks a projection of the ACLs, the daemon checks the ACLs
//! themselves.
//!
//! The kernel gets mode bits and a POSIX ACL that are never narrower than the NFSv4 ACL
//! ([`acl::nfs4::project`]). So the kernel walks cached paths without requests, and denies what the
//! projection denies. The operations in [`ops`] check everything that the kernel lets through, with the NFSv4
//! ACL.
//!
//! The kernel checks search permission on directories. If the projection is not exact for search, the
//! directory's attributes get a lifetime of zero ([`Attr::per_caller`](crate::Attr::per_caller)): the kernel
//! then sends GETATTR on behalf of every caller before it grants search (`fuse_permission`), the daemon
//! checks the ACL, and the kernel returns an error of GETATTR to the program. So names below stay cached, and
//! a caller without search permission gets EACCES before they are looked up. No LOOKUP is denied, except to
//! squashed callers: the kernel treats a denied LOOKUP as a removed name, and unmounts a file system that is
//! mounted there (`d_invalidate`).

use acl::nfs4::{self, Mask, Nfs4Acl, Scope};
use acl::posix::PosixAcl;
use client::Failure;
use meta::Inode;
use ops::{AclType, CopiedAcl, CopyAcl, GetNfs4Acl, GetProjection, Numbering, SetNfs4Acl, XattrMode};
use types::{Errno, FileType, Ino, Mode};

use crate::acl_ids;
use crate::caller::{BY_KERNEL, Caller};
use crate::xattrs::{NFS4_ACL, NFS4_DACL, Sids, Xattrs};

impl Xattrs {
    /// The POSIX ACL that programs read in place of an inode's NFSv4 ACL, with a reference to the inode
    /// ([`nfs4::refer`]) if [`Self::has_references`].
    pub(crate) fn projected_acl(&self, ino: Ino) -> Result<Option<PosixAcl>, Errno> {
        let inode = self.base.attributes.inode(ino)?;
        let project = |inode: &Inode| Ok((*inode, self.base.meta.run(&GetProjection(inode), &BY_KERNEL)?));
        let (inode, Some(projection)) = self.base.meta.read_acl_of(&inode, project)? else {
            return Ok(None);
        };
        let shown = match &projection.acl {
            None if self.has_references => nfs4::minimal(Mode::new(projection.rwx)),
            None => return Ok(None),
            Some(acl) => acl_ids::posix_to_local(&self.base.access.ids, acl)?.0,
        };
        if !self.has_references {
            return Ok(Some(shown));
        }
        let of = (ino, inode.kind.is_dir());
        Ok(Some(nfs4::refer(&shown, &self.base.meta.volume().uuid, of, inode.access_acl)))
    }

    /// Sets a POSIX ACL on a volume with NFSv4 ACLs.
    ///
    /// # Errors
    /// EOPNOTSUPP if this mount writes no references, or if the ACL may be a projection but refers to no
    /// file; EINVAL if it names an id that has no mapping in the volume; those of
    /// [`RequireMappedAcl`](ops::RequireMappedAcl) and [`CopyAcl`].
    pub(crate) fn set_posix_over_nfs4(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        acl: &PosixAcl,
        kill_sgid: bool,
    ) -> Result<(), Errno> {
        let is_dir = self.base.attributes.inode(ino)?.kind.is_dir();
        let from = match nfs4::classify(acl, is_dir) {
            _ if !self.has_references => return Err(Errno::EOPNOTSUPP),
            nfs4::Posix::Unclear => return Err(Errno::EOPNOTSUPP),
            nfs4::Posix::Reference(reference) => CopiedAcl::File(reference),
            nfs4::Posix::Foreign => {
                CopiedAcl::Foreign(acl_ids::posix_in_volume(&self.base.access.ids, acl.clone())?)
            }
        };
        let copy = CopyAcl { ino, from, kill_sgid };
        let set = self.base.change_for(caller, &self.keeping_unmapped(ino, AclType::Access, &copy));
        self.base.caches.invalidate_attributes(ino);
        set
    }

    /// The wire form of an inode's NFSv4 ACL, with the ids of this machine.
    ///
    /// # Errors
    /// Those of [`GetNfs4Acl`]; E2BIG if the ACL does not fit into an xattr.
    pub(crate) fn nfs4_acl(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        scope: Scope,
        sids: Sids,
    ) -> Result<Vec<u8>, Errno> {
        let mut acl = self.base.meta.run(&GetNfs4Acl(ino), &self.base.access.authority(caller))?;
        if sids == Sids::Mapped
            && let Some(mapped) = acl.mapped(&self.base.meta.volume().sid_rules)
        {
            acl = mapped.acl;
        }
        let table = match self.base.meta.domains(acl.highest_domain()) {
            // No access decision depends on the table. Identities that it does not resolve show as they are
            // stored.
            Err(Failure::Operation(errno)) => {
                tracing::error!(%errno, "the volume's table of Windows domains is damaged; identities show as numbers");
                self.base.meta.domains(0)
            }
            table => table,
        }?;
        let (local, _) = acl_ids::nfs4_to_local(&self.base.access.ids, &acl);
        Ok(local.to_xattr(scope, &self.principals.now(table))?)
    }

    /// Sets an ACL from its wire form; `None` removes it.
    ///
    /// # Errors
    /// EOPNOTSUPP if the volume does not have NFSv4 ACLs; those of the wire form; ENOSPC if the volume's
    /// table of domains is full; ETIMEDOUT if a user or group is not known in time; EINVAL if the ACL names
    /// an id that has no mapping in the volume; with [`Sids::Mapped`], EOVERFLOW if a SID of the present ACL
    /// is mapped to an id that has no mapping on this machine; those of
    /// [`RequireMappedAcl`](ops::RequireMappedAcl) and [`SetNfs4Acl`].
    pub(crate) fn set_nfs4_acl(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        scope: Scope,
        sids: Sids,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        if !self.base.access.has_nfs4_acls() {
            return Err(Errno::EOPNOTSUPP);
        }
        let before = match (sids, value) {
            (Sids::Mapped, Some(_)) => Some(self.base.meta.run(&GetNfs4Acl(ino), &BY_KERNEL)?),
            _ => None,
        };
        // The new ACL gets SIDs of the present one, so their domains must be in the table.
        let table = self.base.meta.domains(before.as_ref().map_or(0, Nfs4Acl::highest_domain))?;
        let known = table.domains().len();
        let names = self.principals.now(table);
        let parse = |value| {
            let parsed = Nfs4Acl::from_xattr(value, scope, &names);
            if parsed.is_ok() || !names.is_unknown() {
                return Ok::<_, Errno>(parsed);
            }
            // Only a caller that may set the ACL makes this mount ask for names.
            self.base.access.check_nfs4(caller, ino, Mask::WRITE_ACL).map_err(|errno| match errno {
                Errno::EACCES => Errno::EPERM,
                errno => errno,
            })?;
            names.wait();
            Ok(Nfs4Acl::from_xattr(value, scope, &names))
        };
        let acl = value.map(|value| match parse(value)? {
            Ok(acl) => {
                let acl = acl_ids::nfs4_in_volume(&self.base.access.ids, acl)?;
                let acl = match &before {
                    None => acl,
                    Some(before) => {
                        let rules = &self.base.meta.volume().sid_rules;
                        let shown = before.mapped(rules).map(|mapped| mapped.acl);
                        // The program has not seen these entries, so it would remove them.
                        if shown
                            .is_some_and(|shown| acl_ids::nfs4_to_local(&self.base.access.ids, &shown).1 > 0)
                        {
                            return Err(Errno::EOVERFLOW);
                        }
                        acl.with_sids_of(before, rules)
                    }
                };
                Ok((acl, scope))
            }
            Err(_) if names.sids.is_full() => Err(Errno::ENOSPC),
            Err(_) if names.is_unknown() => Err(Errno::ETIMEDOUT),
            Err(error) => Err(error.into()),
        });
        let acl = acl.transpose()?;
        let numbering = Numbering { table: names.sids.into_table(), known };
        let set = SetNfs4Acl { ino, acl, mode, numbering };
        let set = self.base.change_for(caller, &self.keeping_unmapped(ino, AclType::Access, &set));
        // The kernel treats this as an ordinary xattr, and keeps its cached mode and ACL unless it is told to
        // drop them.
        self.base.caches.invalidate_attributes(ino);
        set
    }

    /// The xattr names of the NFSv4 ACL for an inode of this type.
    pub(crate) fn nfs4_names(&self, kind: FileType) -> &'static [&'static [u8]] {
        if self.base.access.has_nfs4_acls() && kind != FileType::Symlink {
            &[NFS4_ACL, NFS4_DACL]
        } else {
            &[]
        }
    }
}
