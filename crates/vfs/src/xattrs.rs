//! Extended attributes, including ACLs.
//!
//! [`Xattrs`] holds the names of principals in NFSv4 ACLs. The operations on NFSv4 ACLs are in `nfs4.rs`.

use std::sync::Arc;

use acl::nfs4::{Mask, Scope};
use acl::posix::PosixAcl;
use meta::{AclKind, Inode};
use ops::{AclType, GetAcl, GetXattrs, RemoveXattr, RequireMappedAcl, SetAcl, SetXattr, XattrMode};
use types::{Caps, Errno, Ino};

use crate::access_check::Perm;
use crate::acl_ids;
use crate::base::Base;
use crate::caller::{BY_KERNEL, Caller};
use crate::kernel_cache::RevisionsAsOf;
use crate::principals::Principals;

/// The name of an xattr, by how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
enum XattrName {
    Acl(AclType),
    Nfs4(Scope, Sids),
    Stored(types::XattrName),
}

/// How an NFSv4 ACL shows the SIDs that the volume's rules map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sids {
    Kept,
    /// As users and groups, for a server that does not know the SIDs.
    Mapped,
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
pub(crate) const NFS4_ACL: &[u8] = b"system.nfs4_acl";
pub(crate) const NFS4_DACL: &[u8] = b"system.nfs4_dacl";
/// As [`NFS4_DACL`], with [`Sids::Mapped`]. It is not listed, so that no program copies it.
const NFS4_DACL_IDS: &[u8] = b"system.nfs4_dacl_ids";
/// The volume stores no SELinux labels. EOPNOTSUPP makes `ls` stop requesting the label of each file.
const SELINUX: &[u8] = b"security.selinux";
const TRUSTED: &[u8] = b"trusted.";
const USER: &[u8] = b"user.";
const STORED: [&[u8]; 3] = [USER, TRUSTED, b"security."];

impl XattrName {
    /// Parses the name of an xattr.
    ///
    /// # Errors
    /// EOPNOTSUPP for `security.selinux`; EINVAL if nothing follows the namespace; ERANGE if the name is too
    /// long; EOPNOTSUPP if it is neither an ACL nor in the namespaces `user`, `trusted` and `security`.
    fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        match bytes {
            ACCESS => Ok(XattrName::Acl(AclType::Access)),
            DEFAULT => Ok(XattrName::Acl(AclType::Default)),
            NFS4_ACL => Ok(XattrName::Nfs4(Scope::Entries, Sids::Kept)),
            NFS4_DACL => Ok(XattrName::Nfs4(Scope::Access, Sids::Kept)),
            NFS4_DACL_IDS => Ok(XattrName::Nfs4(Scope::Access, Sids::Mapped)),
            SELINUX => Err(Errno::EOPNOTSUPP),
            _ if STORED.contains(&bytes) => Err(Errno::EINVAL),
            _ if STORED.iter().any(|namespace| bytes.starts_with(namespace)) => {
                Ok(XattrName::Stored(types::XattrName::new(bytes).map_err(|_| Errno::ERANGE)?))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// Extended attributes and ACLs.
#[derive(Debug)]
pub struct Xattrs {
    pub(crate) base: Arc<Base>,
    pub(crate) principals: Principals,
    /// See [`VfsOptions::has_references`](crate::VfsOptions::has_references).
    pub(crate) has_references: bool,
}

impl Xattrs {
    pub(crate) fn new(base: &Arc<Base>, nfs4_domain: Option<String>, has_references: bool) -> Self {
        Xattrs { base: Arc::clone(base), principals: Principals::new(nfs4_domain), has_references }
    }

    /// The value of an xattr. ACLs are converted to their wire form, with the ids of this machine.
    ///
    /// # Errors
    /// EOPNOTSUPP, EINVAL or ERANGE for the name; EOPNOTSUPP for an ACL that the volume does not have;
    /// EACCES, or ENODATA in the namespace `trusted`, if the caller may not read it; EIO if the ACL is
    /// damaged; ENODATA if it does not exist; E2BIG for an ACL that does not fit into an xattr.
    pub fn getxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>, Errno> {
        match XattrName::parse(name)? {
            XattrName::Acl(which) => {
                // The kernel may ask for the ACL before it ends the open(2) that created the file, as for
                // attributes: see `Attributes::getattr_for`.
                match self.posix_acl(ino, which) {
                    Err(Errno::ESTALE) if self.base.attributes.created(ino).is_some() => Err(Errno::ENODATA),
                    acl => acl,
                }
            }
            XattrName::Nfs4(scope, sids) => Ok(self.nfs4_acl(caller, ino, scope, sids)?.into()),
            XattrName::Stored(name) => {
                if name.as_bytes().starts_with(USER) {
                    self.base.access.check_nfs4(caller, ino, Mask::READ_NAMED_ATTRS)?;
                }
                self.check_reading(caller, ino, &name)?;
                let xattrs = self.base.meta.run(&GetXattrs(ino), &BY_KERNEL)?;
                xattrs.get(&name).cloned().ok_or(Errno::ENODATA)
            }
        }
    }

    fn posix_acl(&self, ino: Ino, which: AclType) -> Result<Arc<[u8]>, Errno> {
        if self.base.access.has_nfs4_acls() {
            let shown = if which == AclType::Access { self.projected_acl(ino)? } else { None };
            return Ok(shown.ok_or(Errno::ENODATA)?.to_xattr().into());
        }
        let acl = self.acl(ino, which)?.ok_or(Errno::ENODATA)?;
        Ok(acl_ids::posix_to_local(&self.base.access.ids, &acl)?.0.to_xattr().into())
    }

    /// The names of the xattrs, each followed by NUL, as `listxattr(2)` returns them. The names of the
    /// trusted namespace are listed for user 0 only.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist; those of the database.
    pub fn listxattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>, Errno> {
        let inode = self.base.attributes.inode(ino)?;
        let xattrs = self.base.meta.run(&GetXattrs(ino), &BY_KERNEL)?;
        // The POSIX ACL that stands for an NFSv4 ACL is not listed, so that programs copy the NFSv4 ACL
        // instead.
        let acls = [(ACCESS, inode.access_acl), (DEFAULT, inode.default_acl)];
        let acls = acls.into_iter().filter(|(_, id)| !self.base.access.has_nfs4_acls() && !id.is_none());
        let acls = acls.map(|(name, _)| name).chain(self.nfs4_names(inode.kind).iter().copied());
        let stored = xattrs.keys().map(types::XattrName::as_bytes);
        let stored = stored.filter(|name| caller.is_superuser || !name.starts_with(TRUSTED));
        Ok(acls.chain(stored).flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    /// Sets an xattr or an ACL. With `acl_kill_sgid`, setting an access ACL clears the SGID bit
    /// (`FUSE_SETXATTR_ACL_KILL_SGID`).
    ///
    /// # Errors
    /// EOPNOTSUPP, EINVAL or ERANGE for the name; EINVAL, E2BIG or EOPNOTSUPP for a malformed ACL; EINVAL if
    /// an ACL names an id that has no mapping in the volume; EOVERFLOW if the present ACL has entries whose
    /// id has no mapping here; those of [`SetAcl`], [`SetNfs4Acl`](ops::SetNfs4Acl) and [`SetXattr`].
    pub fn setxattr(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        acl_kill_sgid: bool,
    ) -> Result<(), Errno> {
        let held = self.base.caches.held_by_kernel();
        match XattrName::parse(name)? {
            XattrName::Acl(which) => {
                let acl = match PosixAcl::from_xattr(value)? {
                    Some(acl) if self.base.access.has_nfs4_acls() && which == AclType::Access => {
                        return self.set_posix_over_nfs4(caller, ino, &acl, acl_kill_sgid);
                    }
                    Some(acl) => Some(acl_ids::posix_in_volume(&self.base.access.ids, acl)?),
                    None => None,
                };
                self.set_acl(caller, held, &SetAcl { ino, which, acl, kill_sgid: acl_kill_sgid })
            }
            XattrName::Nfs4(scope, sids) => self.set_nfs4_acl(caller, ino, scope, sids, Some(value), mode),
            XattrName::Stored(name) => self.base.change_inodes(
                caller,
                held,
                &SetXattr { ino, name, value: value.into(), mode },
                [ino],
            ),
        }
    }

    /// Removes an xattr or an ACL.
    ///
    /// # Errors
    /// EOPNOTSUPP, EINVAL or ERANGE for the name; EOVERFLOW if an ACL has entries whose id has no mapping
    /// here; those of [`SetAcl`], [`SetNfs4Acl`](ops::SetNfs4Acl) and [`RemoveXattr`].
    pub fn removexattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        let held = self.base.caches.held_by_kernel();
        match XattrName::parse(name)? {
            // A volume with NFSv4 ACLs has no default ACLs, but programs that copy a directory remove the
            // default ACL.
            XattrName::Acl(AclType::Default) if self.base.access.has_nfs4_acls() => Ok(()),
            XattrName::Acl(which) => {
                self.set_acl(caller, held, &SetAcl { ino, which, acl: None, kill_sgid: false })
            }
            XattrName::Nfs4(scope, sids) => {
                self.set_nfs4_acl(caller, ino, scope, sids, None, XattrMode::Replace)
            }
            XattrName::Stored(name) => {
                self.base.change_inodes(caller, held, &RemoveXattr { ino, name }, [ino])
            }
        }
    }

    /// Sets a POSIX ACL, which may change the mode.
    ///
    /// # Errors
    /// EOPNOTSUPP if the kernel was told at mount time that the volume has no ACLs. It then never reports
    /// that the SGID bit must be cleared, and before Linux 6.2 it does not check that the caller owns the
    /// inode. Those of [`SetAcl`] and [`RequireMappedAcl`].
    fn set_acl(&self, caller: &Caller<'_>, held: RevisionsAsOf<'_>, op: &SetAcl) -> Result<(), Errno> {
        if self.base.attributes.kernel_lacks_acls() {
            return Err(Errno::EOPNOTSUPP);
        }
        let set =
            self.base.change_inodes(caller, held, &self.keeping_unmapped(op.ino, op.which, op), [op.ino]);
        // The kernel itself invalidates the mode, but a GETATTR in flight could bring the old one back,
        // because `fuse_invalidate_attr` does not change the inode's `attr_version`.
        self.base.caches.invalidate_attributes(op.ino);
        set
    }

    /// Wraps an operation that replaces or removes an ACL: it fails if the present ACL has entries whose id
    /// has no mapping here.
    pub(crate) fn keeping_unmapped<'a, O>(
        &'a self,
        ino: Ino,
        which: AclType,
        op: &'a O,
    ) -> RequireMappedAcl<'a, O> {
        RequireMappedAcl { ino, which, ids: &self.base.access.ids, unmapped: acl_ids::unmapped, op }
    }

    /// Checks that a squashed caller may read an xattr, like `xattr_permission` in the kernel.
    fn check_reading(&self, caller: &Caller<'_>, ino: Ino, name: &types::XattrName) -> Result<(), Errno> {
        if !self.base.access.is_squashing() {
            return Ok(());
        }
        match name.as_bytes() {
            name if name.starts_with(TRUSTED) && !caller.identity()?.caps.has(Caps::SYS_ADMIN) => {
                Err(Errno::ENODATA)
            }
            name if name.starts_with(USER) => {
                self.base.access.check_posix(caller, &self.base.attributes.inode(ino)?, Perm::READ)
            }
            _ => Ok(()),
        }
    }

    /// An inode's POSIX ACL, which is cached by its id.
    pub(crate) fn acl(&self, ino: Ino, which: AclType) -> Result<Option<Arc<PosixAcl>>, Errno> {
        match (self.base.meta.volume().acl, which) {
            (AclKind::Off, _) => return Err(Errno::EOPNOTSUPP),
            (AclKind::Posix, _) => {}
            // The projection of an NFSv4 ACL is not a stored POSIX ACL.
            (AclKind::Nfs4, _) => return Ok(None),
        }
        let inode = self.base.attributes.inode(ino)?;
        let read = |inode: &Inode| {
            let id = match which {
                AclType::Access => inode.access_acl,
                AclType::Default => inode.default_acl,
            };
            // The kernel asks once for each new inode, and few inodes have an ACL.
            if id.is_none() { Ok(None) } else { self.base.meta.run(&GetAcl(id), &BY_KERNEL) }
        };
        Ok(self.base.meta.read_acl_of(&inode, read)?)
    }
}

#[cfg(test)]
mod tests {
    use acl::identity::DomainTable;
    use acl::idmap::Ids;
    use meta::{Effect, Engine, MemEngine, Txn, Volume};
    use ops::{Ctx, Op, Plan, PlanStop, SetNfs4Acl, View};
    use suite::{Fault, FaultRates, Faulty};
    use types::{OpId, SessionId, Term};

    use super::*;
    use crate::fixture::{NO_WAIT, make, mount, mount_with, root, user};
    use crate::{Vfs, VfsOptions};

    /// Changes a file without reading it.
    struct Touch(Ino);

    impl Op for Touch {
        type Reply = ();
        const NAME: &'static str = "touch";

        fn plan(&self, _: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
            let mtime = Some(ctx.now);
            let effects = vec![Effect::SetTimes { ino: self.0, atime: None, mtime, ctime: mtime }];
            Ok(Plan { reply: (), effects })
        }
    }

    #[test]
    fn an_acl_that_was_removed_after_it_was_replaced_is_read_again() {
        let set = |vfs: &Vfs, kind, ino, user: u32| match kind {
            AclKind::Nfs4 => {
                let acl = acl::nfs4::Nfs4Acl::from_storage(&format!("A::{user}:r")).unwrap();
                let (acl, numbering) = (Some((acl, Scope::Entries)), Default::default());
                vfs.commits.change(&SetNfs4Acl { ino, acl, mode: XattrMode::Set, numbering }).unwrap();
            }
            _ => {
                let acl = PosixAcl::from_storage(&format!("u::rw-,u:{user}:r--,g::---,m::r--,o::---")).ok();
                let which = AclType::Access;
                vfs.commits.change(&SetAcl { ino, which, acl, kill_sgid: false }).unwrap();
            }
        };
        type Read = fn(&Vfs, &Inode) -> bool;
        // Whether user 6 may read the file, and user 5 may not.
        let by_acl: Read = |vfs, inode| {
            let acl = vfs.xattrs.acl(inode.ino, AclType::Access).unwrap().unwrap();
            acl.to_storage().contains("u:6:r") && !acl.to_storage().contains("u:5:r")
        };
        let by_projection: Read = |vfs, inode| {
            let acl = vfs.xattrs.projected_acl(inode.ino).unwrap().unwrap();
            acl.to_storage().contains("u:6:r") && !acl.to_storage().contains("u:5:r")
        };
        let by_mode: Read = |vfs, inode| vfs.attributes.shown(inode).mode.rwx() & 0o40 != 0;
        let by_check: Read = |vfs, inode| {
            let may = |uid| vfs.access.may_read(user(uid).identity().unwrap(), inode).unwrap();
            may(6) && !may(5)
        };
        let cases = [
            (AclKind::Posix, by_acl),
            (AclKind::Posix, by_check),
            (AclKind::Nfs4, by_projection),
            (AclKind::Nfs4, by_mode),
            (AclKind::Nfs4, by_check),
        ];
        for (number, (kind, reads)) in cases.into_iter().enumerate() {
            let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
            Volume { acl: kind, ..Volume::in_memory("v") }.format(&*engine).unwrap();
            let [vfs, other] = [(); 2].map(|()| mount(Arc::clone(&engine)));
            let ino = make(&vfs, "f");
            vfs.meta().set_lifetime(std::time::Duration::from_secs(3600));
            other.attributes.getattr(ino).unwrap();
            set(&other, kind, ino, 5);
            // The answer to a commit contains the inode with its ACL's id, but not the ACL.
            vfs.commits.change(&Touch(ino)).unwrap();
            let inode = vfs.attributes.inode(ino).unwrap();
            set(&other, kind, ino, 6);
            let id = inode.access_acl;
            let effects = vec![Effect::CondemnAcl { id }, Effect::DropAcl { id }];
            let op_id = OpId::new(SessionId(u64::MAX), Term::NONE, 0);
            engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
            assert_eq!(vfs.attributes.inode(ino).unwrap().access_acl, id, "the cached inode has the old ACL");
            assert!(reads(&vfs, &inode), "case {number}");
        }
    }

    #[test]
    fn an_acl_that_gets_an_unmapped_entry_meanwhile_is_not_replaced() {
        for kind in [AclKind::Posix, AclKind::Nfs4] {
            let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
            Volume { acl: kind, ..Volume::in_memory("v") }.format(&*engine).unwrap();
            let faulty = Arc::new(Faulty::new(Arc::clone(&engine), 1, FaultRates::default()));
            let ids = Ids { users: Some("0:0:1000".parse().unwrap()), ..Ids::default() };
            let options = VfsOptions { ids, times: NO_WAIT, ..VfsOptions::default() };
            let (vfs, other) = (mount_with(faulty.clone(), options), mount(engine));
            let ino = make(&vfs, "f");
            faulty.set_rival(move |_| {
                let acl = "u::rw-,u:5000:r--,g::---,m::r--,o::---";
                let (acl, which) = (PosixAcl::from_storage(acl).ok(), AclType::Access);
                let nfs4 = Some((acl::nfs4::Nfs4Acl::from_storage("A::5000:r").unwrap(), Scope::Entries));
                let numbering = Default::default();
                match kind {
                    AclKind::Nfs4 => {
                        other.commits.change(&SetNfs4Acl { ino, acl: nfs4, mode: XattrMode::Set, numbering })
                    }
                    _ => other.commits.change(&SetAcl { ino, which, acl, kill_sgid: false }),
                }
                .unwrap();
            });
            let inode = || vfs.meta().run(&ops::GetInode(ino), &BY_KERNEL).unwrap();
            let name = if kind == AclKind::Nfs4 { NFS4_ACL } else { ACCESS };
            faulty.script([Fault::Rival]);
            faulty.arm(true);
            let removed = vfs.xattrs.removexattr(&root(), ino, name);
            faulty.arm(false);
            assert_eq!(removed, Err(Errno::EOVERFLOW), "{kind:?}");
            vfs.meta().set_lifetime(std::time::Duration::ZERO);
            assert!(!inode().access_acl.is_none(), "{kind:?}");
        }
    }

    #[test]
    fn an_acl_with_a_mapped_sid_that_is_not_shown_is_not_replaced() {
        // The rule maps SIDs to users and groups from 5000 on. The ids of the first case do not include these
        // users.
        for (users, expected) in [("0:0:1000", Err(Errno::EOVERFLOW)), ("0:0:10000", Ok(()))] {
            let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
            Volume { acl: AclKind::Nfs4, ..Volume::in_memory("v") }.format(&*engine).unwrap();
            let other = mount(Arc::clone(&engine));
            let domain = "S-1-5-21-1-2-3";
            let ids = "5000-5999".parse().unwrap();
            let rule = ops::AddSidRule { domain: domain.parse().unwrap(), first_rid: 1000, ids };
            other.commits.change(&rule).unwrap().unwrap();
            let ino = make(&other, "f");
            let acl = acl::nfs4::Nfs4Acl::from_storage("A::1-1007:r,A::OWNER@:rw").unwrap();
            let table = Arc::new(DomainTable::from_storage(domain).unwrap());
            let numbering = ops::Numbering { table, known: 1 };
            let set =
                SetNfs4Acl { ino, acl: Some((acl.clone(), Scope::Entries)), mode: XattrMode::Set, numbering };
            other.commits.change(&set).unwrap();
            let ids = Ids { users: Some(users.parse().unwrap()), ..Ids::default() };
            let vfs = mount_with(engine, VfsOptions { ids, times: NO_WAIT, ..VfsOptions::default() });
            let shown = vfs.xattrs.getxattr(&root(), ino, NFS4_DACL_IDS).unwrap();
            let set = vfs.xattrs.setxattr(&root(), ino, NFS4_DACL_IDS, &shown, XattrMode::Set, false);
            assert_eq!(set, expected, "{users}");
            let stored = vfs.meta().run(&ops::GetNfs4Acl(ino), &BY_KERNEL).unwrap();
            assert_eq!(stored.to_storage(), acl.to_storage(), "{users}");
        }
    }
}
