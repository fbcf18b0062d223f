//! Errors of parsing and building POSIX ACLs.

use types::Errno;

use super::entry::MAX_ENTRIES;

/// Why bytes or text are not a valid POSIX ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    #[error("length of the ACL attribute is not that of a header and whole entries")]
    Size,
    /// The xattr is not of version 2.
    #[error("ACL attribute has an unknown version")]
    Version,
    #[error("ACL text is not of the form tag:id:rwx with a numeric id")]
    Text,
    /// A tag that is not in `acl(5)`.
    #[error("ACL entry has an unknown tag")]
    Tag,
    #[error("ACL entry has permissions other than rwx")]
    Perm,
    #[error("ACL entry has an id above 4294967294, the highest id")]
    Id,
    /// Only for an xattr. In a text, entries can be in any order.
    #[error("ACL entries are out of order")]
    Order,
    /// Two entries for the same user, group, owner, owning group, mask or others.
    #[error("two ACL entries for the same principal")]
    Duplicate,
    #[error("ACL lacks the entry for the owner, the owning group or others")]
    Missing,
    #[error("ACL has named entries but no mask")]
    NoMask,
    #[error("ACL has more than {MAX_ENTRIES} entries")]
    TooLong,
}

/// The errno that the kernel returns: EINVAL (`posix_acl_from_xattr`, `posix_acl_valid`), EOPNOTSUPP for
/// another version, and E2BIG for an ACL longer than a page (`fuse_set_acl`).
impl From<AclError> for Errno {
    fn from(error: AclError) -> Self {
        match error {
            AclError::Version => Errno::EOPNOTSUPP,
            AclError::TooLong => Errno::E2BIG,
            _ => Errno::EINVAL,
        }
    }
}
