//! An access ACL and the mode are two views of the same permissions: who changes one changes the other.

use types::Mode;

use super::{Perm, PosixAcl};

/// Sets or removes the access ACL of a file with this mode, and gives the file's new mode and the ACL to store, which
/// is none where the mode alone says the same. Twin of `posix_acl_update_mode`.
///
/// `kill_sgid` says that the caller is neither in the owning group nor capable of `CAP_FSETID`, and so loses the SGID
/// bit, as with chmod (`in_group_or_capable`; `FUSE_SETXATTR_ACL_KILL_SGID`). Removing an ACL leaves the mode: what was
/// the mask becomes the right of the owning group.
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
    /// The nine rwx bits that a file with this access ACL shows, and whether they say all that the ACL says. The group
    /// bits are the mask where there is one. Twin of `posix_acl_equiv_mode`.
    pub fn equiv_mode(&self) -> (u32, bool) {
        let group = self.mask.unwrap_or(self.group_obj);
        (self.user_obj.bits() << 6 | group.bits() << 3 | self.other.bits(), self.is_minimal())
    }

    /// Whether there are just the three entries that a mode has. Such an access ACL is never stored; such a default
    /// ACL is, for it takes the place of the umask. A mask makes an ACL more than minimal, even without named entries.
    pub fn is_minimal(&self) -> bool {
        // Named entries need no look, because they never come without a mask.
        self.mask.is_none()
    }

    /// The access ACL after a chmod: owner and others get the new bits, and the group bits become the mask where there
    /// is one, so that chmod 700 silences every named entry. Twin of `__posix_acl_chmod`.
    #[must_use]
    pub fn chmod(&self, mode: Mode) -> PosixAcl {
        self.with_rwx(mode.rwx())
    }

    /// The same ACL, showing these nine bits.
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
    fn the_mask_is_the_group_bits() {
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
    fn chmod_moves_the_mask_or_else_the_group() {
        assert_eq!(acl(NAMED).chmod(Mode::new(0o7705)), acl("u::rwx,u:5:rwx,g::r-x,m::---,o::r-x"));
        assert_eq!(acl(MASKED).chmod(Mode::new(0o070)), acl("u::---,g::rwx,m::rwx,o::---"));
        assert_eq!(acl(MINIMAL).chmod(Mode::new(0o070)), acl("u::---,g::rwx,o::---"));
    }
}
