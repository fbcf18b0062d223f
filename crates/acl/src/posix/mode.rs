//! An access ACL and the mode are two views of the same permissions: a change of one changes the other.

use types::Mode;

use super::{Perm, PosixAcl};

/// Sets or removes the access ACL of a file with this mode. Returns the file's new mode and the ACL to store,
/// which is None if the mode alone says the same. Equivalent to `posix_acl_update_mode`.
///
/// `kill_sgid` says that the caller is not in the owning group and lacks `CAP_FSETID`, so that the SGID bit
/// is cleared, as with chmod (`in_group_or_capable`; `FUSE_SETXATTR_ACL_KILL_SGID`). Removal of an ACL keeps
/// the mode: the mask becomes the permissions of the owning group.
pub fn set_access(mode: Mode, acl: Option<PosixAcl>, kill_sgid: bool) -> (Mode, Option<PosixAcl>) {
    let mode = if kill_sgid { mode.without(Mode::SGID) } else { mode };
    match acl {
        None => (mode, None),
        Some(acl) => {
            let (rwx, minimal) = acl.equiv_mode();
            (mode.without(0o777).with(rwx), if minimal { None } else { Some(acl) })
        }
    }
}

impl PosixAcl {
    /// The nine rwx bits that a file with this access ACL shows, and whether they say the same as the ACL. If
    /// there is a mask, the group bits are the mask. Equivalent to `posix_acl_equiv_mode`.
    pub fn equiv_mode(&self) -> (u32, bool) {
        let group = self.mask.unwrap_or(self.group_obj);
        (self.user_obj.bits() << 6 | group.bits() << 3 | self.other.bits(), self.is_minimal())
    }

    /// Whether the ACL has only the three entries that a mode has. Such an access ACL is never stored. Such a
    /// default ACL is stored, because it replaces the umask. An ACL with a mask is not minimal, even without
    /// named entries.
    pub fn is_minimal(&self) -> bool {
        // Named entries always come with a mask, so the mask is enough to check.
        self.mask.is_none()
    }

    /// The access ACL after a chmod: owner and others get the new bits. The group bits go to the mask if
    /// there is one, so that chmod 700 disables every named entry. Equivalent to `__posix_acl_chmod`.
    #[must_use]
    pub fn chmod(&self, mode: Mode) -> PosixAcl {
        self.with_rwx(mode.rwx())
    }

    /// The same ACL with these nine bits as its mode.
    pub(super) fn with_rwx(&self, rwx: u32) -> PosixAcl {
        let mut acl = PosixAcl { user_obj: Perm::new(rwx >> 6), other: Perm::new(rwx), ..self.clone() };
        *acl.mask.as_mut().unwrap_or(&mut acl.group_obj) = Perm::new(rwx >> 3);
        acl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> PosixAcl {
        PosixAcl::from_storage(text).unwrap()
    }

    const MINIMAL: &str = "u::rw-,g::r--,o::---";
    const MASKED: &str = "u::rw-,g::rwx,m::r--,o::---";
    const NAMED: &str = "u::rw-,u:5:rwx,g::r-x,m::-w-,o::--x";

    #[test]
    fn group_bits_are_the_mask() {
        assert_eq!(acl(MINIMAL).equiv_mode(), (0o640, true));
        assert_eq!(acl(MASKED).equiv_mode(), (0o640, false));
        assert_eq!(acl(NAMED).equiv_mode(), (0o621, false));
    }

    #[test]
    fn setting_an_acl_sets_the_mode() {
        let old = Mode::new(0o7755);
        assert_eq!(set_access(old, Some(acl(MINIMAL)), false), (Mode::new(0o7640), None));
        assert_eq!(set_access(old, Some(acl(MASKED)), false), (Mode::new(0o7640), Some(acl(MASKED))));
        assert_eq!(set_access(old, Some(acl(NAMED)), true), (Mode::new(0o5621), Some(acl(NAMED))));
        assert_eq!(set_access(old, None, false), (old, None));
        assert_eq!(set_access(old, None, true), (Mode::new(0o5755), None));
    }

    #[test]
    fn chmod_changes_the_mask_or_else_the_group() {
        assert_eq!(acl(NAMED).chmod(Mode::new(0o7705)), acl("u::rwx,u:5:rwx,g::r-x,m::---,o::r-x"));
        assert_eq!(acl(MASKED).chmod(Mode::new(0o070)), acl("u::---,g::rwx,m::rwx,o::---"));
        assert_eq!(acl(MINIMAL).chmod(Mode::new(0o070)), acl("u::---,g::rwx,o::---"));
    }
}
