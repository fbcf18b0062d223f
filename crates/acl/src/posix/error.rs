//! Errors of parsing and building POSIX ACLs.

use std::fmt;

use types::Errno;

/// Why bytes or text are not a valid POSIX ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclError {
    /// The xattr is not a header and a whole number of entries.
    Size,
    /// The xattr is not of version 2.
    Version,
    /// The text is not of the form `tag:id:rwx`, with numeric ids.
    Text,
    /// A tag that is not in `acl(5)`.
    Tag,
    /// Permission bits other than rwx.
    Perm,
    /// The id -1, which is not valid.
    Id,
    /// The tags of an xattr are out of order.
    Order,
    /// Two entries for the same user, group, owner, owning group, mask or others.
    Duplicate,
    /// The entry for the owner, the owning group or others is missing.
    Missing,
    /// Named entries without a mask.
    NoMask,
    /// More than [`MAX_ENTRIES`](super::PosixAcl::MAX_ENTRIES) entries.
    TooLong,
}

impl AclError {
    /// The errno that the kernel returns: EINVAL (`posix_acl_from_xattr`, `posix_acl_valid`), EOPNOTSUPP for
    /// another version, and E2BIG for an ACL longer than a page (`fuse_set_acl`).
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
            AclError::Size => "length of the ACL attribute is not that of a header and whole entries",
            AclError::Version => "ACL attribute has an unknown version",
            AclError::Text => "ACL text is not of the form tag:id:rwx with a numeric id",
            AclError::Tag => "ACL entry has an unknown tag",
            AclError::Perm => "ACL entry has permissions other than rwx",
            AclError::Id => "ACL entry has the invalid id -1",
            AclError::Order => "ACL entries are out of order",
            AclError::Duplicate => "two ACL entries for the same principal",
            AclError::Missing => "ACL lacks the entry for the owner, the owning group or others",
            AclError::NoMask => "ACL has named entries but no mask",
            AclError::TooLong => "ACL has more than 511 entries",
        })
    }
}

impl std::error::Error for AclError {}
