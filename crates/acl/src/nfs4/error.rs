//! Errors of parsing and building NFSv4 ACLs.

use types::Errno;

use super::entry::MAX_ENTRIES;

/// Why bytes, text or entries are not a valid ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// The xattr ends within an entry, or has bytes after the last one.
    #[error("ACL attribute is truncated or has bytes after its last entry")]
    Size,
    #[error("ACL text is not of the form type:flags:who:permissions")]
    Text,
    /// A type other than allow, deny, audit and alarm; or audit or alarm in `system.nfs4_dacl`, which has
    /// only allow and deny entries.
    #[error("ACL entry has an unknown type, or a type that this attribute cannot hold")]
    Kind,
    #[error("ACL entry has flags that RFC 8881 does not define")]
    Flags,
    #[error("ACL entry has permissions that RFC 8881 does not define")]
    Mask,
    /// A principal that this system or volume does not know, or the id -1, which is not valid.
    #[error("ACL entry names a principal that this system or volume does not know")]
    Who,
    #[error("ACL text has no entries: to allow nothing, write A::EVERYONE@:")]
    Empty,
    #[error("ACL has more than {MAX_ENTRIES} entries or is larger than 64 KiB")]
    TooLong,
}

/// EINVAL, which the Linux NFS client returns if a server rejects an ACL (`NFS4ERR_INVAL`,
/// `NFS4ERR_BADOWNER`); E2BIG for `TooLong`, as for any xattr.
impl From<AclError> for Errno {
    fn from(error: AclError) -> Self {
        match error {
            AclError::TooLong => Errno::E2BIG,
            _ => Errno::EINVAL,
        }
    }
}
