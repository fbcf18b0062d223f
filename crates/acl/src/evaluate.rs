//! Permission checks that do not depend on ACL entries: ownership, the sticky bit and capabilities, each with
//! its reason.
//!
//! Operations, squashing, filtered listings and `limen access` all decide by these functions, by
//! [`posix::check`](crate::posix::check), and by the decisions and capabilities of [`nfs4`](crate::nfs4)
//! ([`overrides`](crate::nfs4::overrides)), so they cannot disagree. Reports for people also need the ACL
//! entry that decided: [`posix::explain`](crate::posix::explain) and [`nfs4::explain`](crate::nfs4::explain)
//! find it.

use types::{Caps, Errno, Mode};

/// The result of a check, with its reason.
pub type Evaluation = Result<Grant, Denial>;

/// Why a check is granted. If several reasons apply, the one that needs the least privilege is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The mode or the ACL grants it.
    Acl,
    /// For a removal: the file's own ACL grants DELETE.
    FileAcl,
    /// The caller owns the file.
    Owner,
    /// The caller owns the sticky directory.
    DirectoryOwner,
    /// This capability grants what mode, ACL and ownership do not.
    Capability(Caps),
}

/// Why a check is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The mode or the ACL does not grant it: EACCES.
    Acl,
    /// For a removal: the file's own ACL denies DELETE: EACCES.
    FileAcl,
    /// The caller does not own the file: EPERM.
    NotOwner,
    /// The directory is sticky, and the caller owns neither it nor the file: EPERM.
    Sticky,
    /// Only this capability grants it: EPERM.
    NeedsCapability(Caps),
}

impl Denial {
    pub fn errno(self) -> Errno {
        match self {
            Denial::Acl | Denial::FileAcl => Errno::EACCES,
            Denial::NotOwner | Denial::Sticky | Denial::NeedsCapability(_) => Errno::EPERM,
        }
    }
}

impl From<Denial> for Errno {
    fn from(denial: Denial) -> Errno {
        denial.errno()
    }
}

/// The class of a mode that a caller belongs to. The first class that applies decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Owner,
    Group,
    Other,
}

impl Class {
    pub(crate) fn of(is_owner: bool, in_owning_group: impl FnOnce() -> bool) -> Self {
        match is_owner {
            true => Class::Owner,
            false if in_owning_group() => Class::Group,
            false => Class::Other,
        }
    }

    /// The three bits of the mode for this class.
    pub fn rwx(self, mode: Mode) -> u32 {
        match self {
            Class::Owner => mode.rwx() >> 6,
            Class::Group => mode.rwx() >> 3 & 7,
            Class::Other => mode.rwx() & 7,
        }
    }
}

/// Whether the caller owns the file or may act as its owner. Equivalent to `inode_owner_or_capable`,
/// fs/inode.c.
///
/// # Errors
/// [`Denial::NotOwner`].
pub fn owner(uid: u32, caps: Caps, owner: u32) -> Evaluation {
    if uid == owner { Ok(Grant::Owner) } else { capability(caps, Caps::FOWNER).map_err(|_| Denial::NotOwner) }
}

/// Whether the sticky bit of the directory lets the caller remove a file of `file_owner`. Equivalent to
/// `__check_sticky`, fs/namei.c.
///
/// # Errors
/// [`Denial::Sticky`].
pub fn sticky(uid: u32, caps: Caps, dir_mode: Mode, dir_owner: u32, file_owner: u32) -> Evaluation {
    if !dir_mode.has(Mode::STICKY) {
        // Without the sticky bit, write permission on the directory decides. The calling code has checked
        // that permission.
        return Ok(Grant::Acl);
    }
    match owner(uid, caps, file_owner) {
        Ok(Grant::Owner) => Ok(Grant::Owner),
        _ if uid == dir_owner => Ok(Grant::DirectoryOwner),
        by_capability => by_capability.map_err(|_| Denial::Sticky),
    }
}

/// Whether the caller has a capability that this check requires.
///
/// # Errors
/// [`Denial::NeedsCapability`].
pub fn capability(caps: Caps, needed: Caps) -> Evaluation {
    if caps.has(needed) { Ok(Grant::Capability(needed)) } else { Err(Denial::NeedsCapability(needed)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_cap_fowner_pass() {
        assert_eq!(owner(1, Caps::ALL, 1), Ok(Grant::Owner));
        assert_eq!(owner(2, Caps::FOWNER, 1), Ok(Grant::Capability(Caps::FOWNER)));
        assert_eq!(owner(2, Caps::DAC_OVERRIDE, 1), Err(Denial::NotOwner));
        assert_eq!(Denial::NotOwner.errno(), Errno::EPERM);
    }

    #[test]
    fn sticky_directory_requires_an_owner() {
        let of = |uid, caps, mode| sticky(uid, caps, Mode::new(mode), 1, 2);
        assert_eq!(of(3, Caps::NONE, 0o777), Ok(Grant::Acl));
        assert_eq!(of(1, Caps::ALL, 0o1777), Ok(Grant::DirectoryOwner));
        assert_eq!(of(2, Caps::ALL, 0o1777), Ok(Grant::Owner));
        assert_eq!(of(3, Caps::FOWNER, 0o1777), Ok(Grant::Capability(Caps::FOWNER)));
        assert_eq!(of(3, Caps::DAC_OVERRIDE, 0o1777), Err(Denial::Sticky));
    }
}
