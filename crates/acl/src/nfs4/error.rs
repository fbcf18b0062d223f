//! Why something is not an NFSv4 ACL.

use std::fmt;

use types::Errno;

/// Why bytes, text or entries were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclError {
    /// The xattr ends within an entry, or goes on after the last.
    Size,
    /// The text is not of the form `type:flags:who:permissions`.
    Text,
    /// A type other than allow, deny, audit and alarm; or audit and alarm where only access is spoken of.
    Kind,
    /// A flag that RFC 8881 does not define.
    Flags,
    /// A permission that RFC 8881 does not define.
    Mask,
    /// A principal that this system or volume does not know, the id -1 included.
    Who,
    /// Text without any entry; who means a list that allows nothing writes `A::EVERYONE@:`.
    Empty,
    /// More than [`MAX_ENTRIES`](super::Nfs4Acl::MAX_ENTRIES) entries, or more than fit the 64 KiB of an xattr.
    TooLong,
}

impl AclError {
    /// EINVAL, as the Linux NFS client has it for what a server does not accept (`NFS4ERR_INVAL`, `NFS4ERR_BADOWNER`);
    /// E2BIG for what is too long, as for any xattr.
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
            AclError::Size => "an ACL attribute that is cut short or too long for its entries",
            AclError::Text => "ACL text not of the form type:flags:who:permissions",
            AclError::Kind => "an ACL entry of an unknown or unsuitable type",
            AclError::Flags => "an ACL entry with unknown flags",
            AclError::Mask => "an ACL entry with unknown permissions",
            AclError::Who => "an ACL entry for an unknown principal",
            AclError::Empty => "ACL text without entries",
            AclError::TooLong => "an ACL of more than 8000 entries or 64 KiB",
        })
    }
}

impl std::error::Error for AclError {}
