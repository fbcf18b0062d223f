//! Errors of parsing and building NFSv4 ACLs.

use std::fmt;

use types::Errno;

/// Why bytes, text or entries are not a valid ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclError {
    /// The xattr ends within an entry, or has bytes after the last one.
    Size,
    /// The text is not of the form `type:flags:who:permissions`.
    Text,
    /// A type other than allow, deny, audit and alarm; or audit or alarm in `system.nfs4_dacl`, which has only
    /// allow and deny entries.
    Kind,
    /// A flag that RFC 8881 does not define.
    Flags,
    /// A permission that RFC 8881 does not define.
    Mask,
    /// A principal that this system or volume does not know, or the id -1, which is not valid.
    Who,
    /// Text without any entry. An ACL that allows nothing is written `A::EVERYONE@:`.
    Empty,
    /// More than [`MAX_ENTRIES`](super::Nfs4Acl::MAX_ENTRIES) entries, or larger than the 64 KiB of an xattr.
    TooLong,
}

impl AclError {
    /// EINVAL, which the Linux NFS client returns if a server rejects an ACL (`NFS4ERR_INVAL`,
    /// `NFS4ERR_BADOWNER`); E2BIG for `TooLong`, as for any xattr.
    pub fn errno(self) -> Errno {
        match self {
            AclError::TooLong => Errno::E2BIG,
            AclError::Size
            | AclError::Text
            | AclError::Kind
            | AclError::Flags
            | AclError::Mask
            | AclError::Who
            | AclError::Empty => Errno::EINVAL,
        }
    }
}

impl From<AclError> for Errno {
    fn from(error: AclError) -> Self {
        error.errno()
    }
}

impl fmt::Display for AclError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AclError::Size => "ACL attribute is truncated or has bytes after its last entry",
            AclError::Text => "ACL text is not of the form type:flags:who:permissions",
            AclError::Kind => "ACL entry has an unknown type, or a type that this attribute cannot hold",
            AclError::Flags => "ACL entry has flags that RFC 8881 does not define",
            AclError::Mask => "ACL entry has permissions that RFC 8881 does not define",
            AclError::Who => "ACL entry names a principal that this system or volume does not know",
            AclError::Empty => "ACL text has no entries: to allow nothing, write A::EVERYONE@:",
            AclError::TooLong => "ACL has more than 8000 entries or is larger than 64 KiB",
        })
    }
}

impl std::error::Error for AclError {}
