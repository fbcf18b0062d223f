//! Extended attributes, including ACLs.
//!
//! Holds nothing of its own. Depends on [`Nfs4Acls`], [`Attributes`] and [`CallerChanges`].

use std::sync::Arc;

use acl::idmap::UNMAPPED;
use acl::nfs4::{Mask, Scope};
use acl::posix::PosixAcl;
use client::Meta;
use meta::AclKind;
use ops::{AclType, GetAcl, GetXattrs, RemoveXattr, SetAcl, SetXattr, XattrMode};
use types::{Caps, Errno, Ino};

use crate::access_check::{AccessCheck, Perm};
use crate::acl_ids;
use crate::attributes::Attributes;
use crate::caller::{BY_KERNEL, Caller};
use crate::changes::CallerChanges;
use crate::coherence::Caches;
use crate::kernel_cache::Held;
use crate::nfs4::{NFS4_ACL, NFS4_DACL, Nfs4Acls};

/// The name of an xattr, by how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrName {
    Acl(AclType),
    Nfs4(Scope),
    Stored(types::XattrName),
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
/// The volume stores no SELinux labels. EOPNOTSUPP makes `ls` stop requesting the label of each file.
const SELINUX: &[u8] = b"security.selinux";
const TRUSTED: &[u8] = b"trusted.";
const USER: &[u8] = b"user.";
const STORED: [&[u8]; 3] = [USER, TRUSTED, b"security."];

impl XattrName {
    /// Parses the name of an xattr.
    ///
    /// # Errors
    /// EOPNOTSUPP for a name outside the namespaces `user`, `trusted` and `security`, except the ACLs; EINVAL
    /// or ERANGE for an invalid name.
    pub fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        match bytes {
            ACCESS => Ok(XattrName::Acl(AclType::Access)),
            DEFAULT => Ok(XattrName::Acl(AclType::Default)),
            NFS4_ACL => Ok(XattrName::Nfs4(Scope::Entries)),
            NFS4_DACL => Ok(XattrName::Nfs4(Scope::Access)),
            SELINUX => Err(Errno::EOPNOTSUPP),
            _ if STORED.contains(&bytes) => Err(Errno::EINVAL),
            _ if STORED.iter().any(|namespace| bytes.starts_with(namespace)) => {
                Ok(XattrName::Stored(types::XattrName::new(bytes).map_err(|_| Errno::ERANGE)?))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Xattrs {
    pub(crate) meta: Arc<Meta>,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) changes: Arc<CallerChanges>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) nfs4: Nfs4Acls,
}

impl Xattrs {
    /// The value of an xattr. ACLs are converted to their wire form, with the ids of this machine.
    ///
    /// # Errors
    /// EOPNOTSUPP, EINVAL or ERANGE for the name; ENODATA; EIO if the ACL is damaged; EACCES by an NFSv4 ACL;
    /// E2BIG for an ACL that does not fit into an xattr.
    pub(crate) fn getxattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>, Errno> {
        match XattrName::parse(name)? {
            XattrName::Acl(which) => {
                if self.access.has_nfs4_acls() {
                    let shown = if which == AclType::Access { self.nfs4.projected_acl(ino)? } else { None };
                    return Ok(shown.ok_or(Errno::ENODATA)?.to_xattr().into());
                }
                let acl = self.acl(ino, which)?.ok_or(Errno::ENODATA)?;
                Ok(acl_ids::posix_here(&self.access.ids, &acl)?.to_xattr().into())
            }
            XattrName::Nfs4(scope) => Ok(self.nfs4.nfs4_acl(caller, ino, scope)?.into()),
            XattrName::Stored(name) => {
                if name.as_bytes().starts_with(USER) {
                    self.access.admit(caller, ino, Mask::READ_NAMED_ATTRS)?;
                }
                self.admit_reading(caller, ino, &name)?;
                let xattrs = self.meta.run(&GetXattrs(ino), &BY_KERNEL)?;
                xattrs.get(&name).cloned().ok_or(Errno::ENODATA)
            }
        }
    }

    /// The names, each followed by NUL, `listxattr(2)`. The names of the trusted namespace are listed for
    /// user 0 only.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn listxattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>, Errno> {
        let inode = self.attributes.inode(ino)?;
        let xattrs = self.meta.run(&GetXattrs(ino), &BY_KERNEL)?;
        // The POSIX ACL that stands for an NFSv4 ACL is not listed, so that programs copy the NFSv4 ACL
        // instead.
        let acls = [(ACCESS, inode.access_acl), (DEFAULT, inode.default_acl)];
        let acls = acls.into_iter().filter(|(_, id)| !self.access.has_nfs4_acls() && !id.is_none());
        let acls = acls.map(|(name, _)| name).chain(self.nfs4.nfs4_names(inode.kind).iter().copied());
        let stored = xattrs.keys().map(types::XattrName::as_bytes);
        let stored = stored.filter(|name| caller.is_superuser || !name.starts_with(TRUSTED));
        Ok(acls.chain(stored).flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    /// `acl_kill_sgid`: setting an access ACL clears the SGID bit (`FUSE_SETXATTR_ACL_KILL_SGID`).
    ///
    /// # Errors
    /// EOPNOTSUPP, EINVAL or ERANGE for the name; EINVAL, E2BIG or EOPNOTSUPP for a malformed ACL; those of
    /// [`SetAcl`], [`SetNfs4Acl`](ops::SetNfs4Acl) and [`SetXattr`].
    pub(crate) fn setxattr(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        acl_kill_sgid: bool,
    ) -> Result<(), Errno> {
        let held = self.caches.held_by_kernel();
        match XattrName::parse(name)? {
            XattrName::Acl(which) => {
                let acl = match PosixAcl::from_xattr(value)? {
                    Some(acl) if self.access.has_nfs4_acls() && which == AclType::Access => {
                        return self.nfs4.set_posix_over_nfs4(caller, ino, &acl, acl_kill_sgid);
                    }
                    Some(acl) if self.access.ids.is_mapping() => {
                        Some(acl_ids::posix_in_volume(&self.access.ids, &acl)?)
                    }
                    acl => acl,
                };
                self.keep_unmapped_entries(ino, which)?;
                self.set_acl(caller, held, &SetAcl { ino, which, acl, kill_sgid: acl_kill_sgid })
            }
            XattrName::Nfs4(scope) => self.nfs4.set_nfs4_acl(caller, ino, scope, Some(value), mode),
            XattrName::Stored(name) => self.changes.change_inodes(
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
    /// EOPNOTSUPP, EINVAL or ERANGE for the name; those of [`SetAcl`], [`SetNfs4Acl`](ops::SetNfs4Acl)
    /// and [`RemoveXattr`].
    pub(crate) fn removexattr(&self, caller: &Caller<'_>, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        let held = self.caches.held_by_kernel();
        match XattrName::parse(name)? {
            // There is never a default ACL, but programs that copy a directory remove it.
            XattrName::Acl(AclType::Default) if self.access.has_nfs4_acls() => Ok(()),
            XattrName::Acl(which) => {
                self.keep_unmapped_entries(ino, which)?;
                self.set_acl(caller, held, &SetAcl { ino, which, acl: None, kill_sgid: false })
            }
            XattrName::Nfs4(scope) => self.nfs4.set_nfs4_acl(caller, ino, scope, None, XattrMode::Replace),
            XattrName::Stored(name) => {
                self.changes.change_inodes(caller, held, &RemoveXattr { ino, name }, [ino])
            }
        }
    }

    /// Sets a POSIX ACL, which may change the mode.
    fn set_acl(&self, caller: &Caller<'_>, held: Held<'_>, op: &SetAcl) -> Result<(), Errno> {
        let set = self.changes.change_inodes(caller, held, op, [op.ino]);
        // The kernel itself invalidates the mode, but a GETATTR in flight could bring the old one back,
        // because `fuse_invalidate_attr` does not change the inode's `attr_version`.
        self.caches.forget_attributes(op.ino);
        set
    }

    /// Denies replacing an ACL that has entries without a mapping here: those users and groups would lose
    /// their permissions unnoticed.
    ///
    /// # Errors
    /// EOVERFLOW.
    fn keep_unmapped_entries(&self, ino: Ino, which: AclType) -> Result<(), Errno> {
        if !self.access.ids.is_mapping() {
            return Ok(());
        }
        let Some(acl) = self.acl(ino, which)? else { return Ok(()) };
        let mapped = |id| Some(id).filter(|id| *id != UNMAPPED);
        let user = |uid| mapped(self.access.ids.user_here(uid));
        match acl.renumbered(user, |gid| mapped(self.access.ids.group_here(gid)))? {
            (_, 0) => Ok(()),
            _ => Err(Errno::EOVERFLOW),
        }
    }

    /// Denies reading an xattr, like `xattr_permission` in the kernel.
    fn admit_reading(&self, caller: &Caller<'_>, ino: Ino, name: &types::XattrName) -> Result<(), Errno> {
        if !self.access.is_squashing() {
            return Ok(());
        }
        match name.as_bytes() {
            name if name.starts_with(TRUSTED) && !caller.identity()?.caps.has(Caps::SYS_ADMIN) => {
                Err(Errno::ENODATA)
            }
            name if name.starts_with(USER) => {
                self.access.admit_posix(caller, &self.attributes.inode(ino)?, Perm::READ)
            }
            _ => Ok(()),
        }
    }

    /// An inode's POSIX ACL, which is cached by its id.
    pub(crate) fn acl(&self, ino: Ino, which: AclType) -> Result<Option<Arc<PosixAcl>>, Errno> {
        match (self.meta.volume().acl, which) {
            (AclKind::Off, _) => return Err(Errno::EOPNOTSUPP),
            (AclKind::Posix, _) => {}
            // The projection of an NFSv4 ACL is not a stored POSIX ACL.
            (AclKind::Nfs4, _) => return Ok(None),
        }
        let inode = self.attributes.inode(ino)?;
        let id = match which {
            AclType::Access => inode.access_acl,
            AclType::Default => inode.default_acl,
        };
        Ok(self.meta.run(&GetAcl(id), &BY_KERNEL)?)
    }
}
