//! NFSv4 ACLs of files, as the xattrs that carry them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;

use acl::identity::DomainTable;
use acl::nfs4::{Nfs4Acl, Scope};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

pub(crate) const NFS4_ACL: &str = "system.nfs4_acl";
pub(crate) const NFS4_DACL: &str = "system.nfs4_dacl";

/// From its short text, e.g. `A::1000:rx,A::EVERYONE@:r`.
pub(crate) fn acl(text: &str) -> Nfs4Acl {
    Nfs4Acl::from_storage(text).unwrap()
}

pub(crate) fn blob(acl: &Nfs4Acl, scope: Scope) -> Vec<u8> {
    acl.to_xattr(scope, &DomainTable::default()).unwrap()
}

pub(crate) fn set(path: &Path, text: &str) -> Result<(), Errno> {
    set_acl(path, &acl(text))
}

pub(crate) fn set_acl(path: &Path, acl: &Nfs4Acl) -> Result<(), Errno> {
    setxattr(path, NFS4_ACL, &blob(acl, Scope::Entries), XattrFlags::empty())
}

/// The value of an xattr.
pub(crate) fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// The ACL as short text.
pub(crate) fn get(path: &Path) -> Result<String, Errno> {
    let acl = Nfs4Acl::from_xattr(&value(path, NFS4_ACL)?, Scope::Entries, &DomainTable::default());
    Ok(acl.unwrap().to_storage())
}
