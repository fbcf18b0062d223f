//! Why a list of entries is not an ACL.

use std::fmt;

use types::Errno;

/// Why bytes or text were refused as a POSIX ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclError {
    /// The xattr is not a header and a whole number of entries.
    Size,
    /// The xattr is not of version 2.
    Version,
    /// The text is not of the form `tag:id:rwx`, with numeric ids.
    Text,
    /// A tag that `acl(5)` does not know.
    Tag,
    /// Permission bits other than rwx.
    Perm,
    /// The id -1, which names nobody.
    Id,
    /// The tags of an xattr are out of order.
    Order,
    /// Two entries for the same user, group, owner, owning group, mask or others.
    Duplicate,
    /// No entry for the owner, the owning group or others.
    Missing,
    /// Named entries without a mask.
    NoMask,
    /// More than [`MAX_ENTRIES`](super::PosixAcl::MAX_ENTRIES) entries.
    TooLong,
}

impl AclError {
    /// What the kernel answers: `posix_acl_from_xattr` and `posix_acl_valid` say EINVAL, but EOPNOTSUPP to another
    /// version; `fuse_set_acl` says E2BIG to an ACL that is longer than a page.
    pub fn errno(self) -> Errno {
        match self {
            AclError::Version => Errno::EOPNOTSUPP,
            AclError::TooLong => Errno::E2BIG,
            AclError::Size
            | AclError::Text
            | AclError::Tag
            | AclError::Perm
            | AclError::Id
            | AclError::Order
            | AclError::Duplicate
            | AclError::Missing
            | AclError::NoMask => Errno::EINVAL,
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
            AclError::Size => "an ACL attribute of a length that no ACL has",
            AclError::Version => "an ACL attribute of an unknown version",
            AclError::Text => "ACL text not of the form tag:id:rwx with a numeric id",
            AclError::Tag => "an ACL entry with an unknown tag",
            AclError::Perm => "an ACL entry with permissions other than rwx",
            AclError::Id => "an ACL entry for the id -1",
            AclError::Order => "ACL entries out of order",
            AclError::Duplicate => "two ACL entries for the same principal",
            AclError::Missing => "an ACL without entries for owner, owning group and others",
            AclError::NoMask => "an ACL with named entries but without a mask",
            AclError::TooLong => "an ACL of more than 511 entries",
        })
    }
}

impl std::error::Error for AclError {}
