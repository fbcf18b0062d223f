//! Extended attributes, the ACLs among them.

use std::sync::Arc;

use acl::posix::PosixAcl;
use meta::AclKind;
use meta::ops::{AclType, GetAcl, GetXattrs, RemoveXattr, SetAcl, SetXattr, XattrMode};
use types::{Errno, Ino};

use crate::caller::Caller;
use crate::vfs::{BY_KERNEL, Vfs};

/// The name of an xattr, sorted by who answers for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrName {
    Acl(AclType),
    Stored(types::XattrName),
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
/// The volume carries no security labels. Saying so once keeps `ls` from asking for every file.
const SELINUX: &[u8] = b"security.selinux";
const TRUSTED: &[u8] = b"trusted.";
const STORED: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];

impl XattrName {
    /// # Errors
    /// EOPNOTSUPP for a name outside the namespaces `user`, `trusted` and `security`, but for the POSIX ACLs; EINVAL,
    /// ERANGE for what is no name.
    pub fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        match bytes {
            ACCESS => Ok(XattrName::Acl(AclType::Access)),
            DEFAULT => Ok(XattrName::Acl(AclType::Default)),
            SELINUX => Err(Errno::EOPNOTSUPP),
            _ if STORED.contains(&bytes) => Err(Errno::EINVAL),
            _ if STORED.iter().any(|namespace| bytes.starts_with(namespace)) => {
                Ok(XattrName::Stored(types::XattrName::new(bytes).map_err(|_| Errno::ERANGE)?))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

impl Vfs {
    /// # Errors
    /// EOPNOTSUPP, EINVAL, ERANGE for the name; ENODATA; EIO for an ACL that is damaged.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Arc<[u8]>, Errno> {
        match XattrName::parse(name)? {
            XattrName::Acl(which) => {
                let acl = self.acl(ino, which)?.ok_or(Errno::ENODATA)?;
                Ok(acl.to_xattr().into())
            }
            XattrName::Stored(name) => {
                let xattrs = self.meta.run(&GetXattrs(ino), &BY_KERNEL)?;
                xattrs.get(&name).cloned().ok_or(Errno::ENODATA)
            }
        }
    }

    /// The names, each followed by NUL, `listxattr(2)`; those of the trusted namespace only for user 0.
    ///
    /// # Errors
    /// Those of the database.
    pub fn listxattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<Vec<u8>, Errno> {
        let node = self.node(ino)?;
        let xattrs = self.meta.run(&GetXattrs(ino), &BY_KERNEL)?;
        let acls = [(ACCESS, node.access_acl), (DEFAULT, node.default_acl)];
        let acls = acls.into_iter().filter(|(_, id)| !id.is_none()).map(|(name, _)| name);
        let stored = xattrs.keys().map(types::XattrName::as_bytes);
        let stored = stored.filter(|name| caller.uid == 0 || !name.starts_with(TRUSTED));
        Ok(acls.chain(stored).flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    /// `acl_kill_sgid`: setting an access ACL takes the SGID bit (`FUSE_SETXATTR_ACL_KILL_SGID`).
    ///
    /// # Errors
    /// EOPNOTSUPP, EINVAL, ERANGE for the name; EINVAL, E2BIG, EOPNOTSUPP for a malformed ACL; those of [`SetAcl`] and
    /// [`SetXattr`].
    pub fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        acl_kill_sgid: bool,
    ) -> Result<(), Errno> {
        match XattrName::parse(name)? {
            XattrName::Acl(which) => {
                let acl = PosixAcl::from_xattr(value)?;
                self.change(&SetAcl { ino, which, acl, kill_sgid: acl_kill_sgid })
            }
            XattrName::Stored(name) => self.change(&SetXattr { ino, name, value: value.into(), mode }),
        }
    }

    /// # Errors
    /// EOPNOTSUPP, EINVAL, ERANGE for the name; those of [`SetAcl`] and [`RemoveXattr`].
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        match XattrName::parse(name)? {
            XattrName::Acl(which) => self.change(&SetAcl { ino, which, acl: None, kill_sgid: false }),
            XattrName::Stored(name) => self.change(&RemoveXattr { ino, name }),
        }
    }

    /// An inode's ACL, by its id from memory.
    fn acl(&self, ino: Ino, which: AclType) -> Result<Option<Arc<PosixAcl>>, Errno> {
        if self.meta.volume().acl == AclKind::Off {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.node(ino)?;
        let id = match which {
            AclType::Access => node.access_acl,
            AclType::Default => node.default_acl,
        };
        Ok(self.meta.run(&GetAcl(id), &BY_KERNEL)?)
    }
}
