//! Whether every caller may search a directory.

use types::Mode;

use super::{Perm, PosixAcl, Tag};

/// Whether every caller may search a directory with this mode and ACL. If so, callers need not be checked one
/// by one.
pub fn anyone_may_traverse(mode: Mode, acl: Option<&PosixAcl>) -> bool {
    // With clear group bits the kernel ignores the ACL, and the mode denies search to the owning group.
    if !mode.has(0o101) || mode.rwx() & 0o070 == 0 {
        return false;
    }
    match acl {
        None => mode.has(0o010),
        Some(acl) => {
            let mask = acl.mask.unwrap_or(Perm::ALL);
            acl.entries().all(|entry| match entry.tag {
                // The owner's permissions are in the mode.
                Tag::UserObj | Tag::Mask => true,
                Tag::Other => entry.perm.has(Perm::EXECUTE),
                Tag::User(_) | Tag::GroupObj | Tag::Group(_) => (entry.perm & mask).has(Perm::EXECUTE),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anyone_may_traverse_unless_an_entry_might_deny() {
        let anyone = |mode, acl: Option<&str>| {
            anyone_may_traverse(
                Mode::new(mode),
                acl.map(|text| PosixAcl::from_storage(text).unwrap()).as_ref(),
            )
        };
        assert!(anyone(0o711, None) && !anyone(0o701, None) && !anyone(0o770, None) && !anyone(0o611, None));
        let all = "u::rwx,u:5:--x,g::--x,g:6:r-x,m::r-x,o::--x";
        assert!(anyone(0o751, Some(all)));
        assert!(!anyone(0o651, Some(all)) && !anyone(0o750, Some(all)) && !anyone(0o701, Some(all)));
        assert!(!anyone(0o741, Some(&all.replace("m::r-x", "m::r--"))));
        assert!(!anyone(0o751, Some(&all.replace("u:5:--x", "u:5:rw-"))));
        assert!(!anyone(0o751, Some(&all.replace("g:6:r-x", "g:6:---"))));
        assert!(!anyone(0o751, Some(&all.replace("g::--x", "g::r--"))));
    }
}
