//! Permission to remove a name: it can come from the file's ACL or from the directory's.

use types::{Caps, Mode};

use super::{Decision, Mask};
use crate::evaluate::{Denial, Evaluation, Grant, capability, sticky};

/// A removal: the decisions on both inodes, and their owners.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// The decision on the directory that contains the name.
    pub parent: Decision,
    /// The decision on the file that the name refers to.
    pub target: Decision,
    pub parent_mode: Mode,
    pub parent_uid: u32,
    pub target_uid: u32,
}

/// Whether the caller may remove the name. This does not check search on the directory: the lookup of the
/// name has checked it. Equivalent to `zfs_zaccess_delete`, whose rules are those of Windows:
///
/// 1. If the file's ACL grants or denies `DELETE`, it decides. If it grants `DELETE`, the sticky bit of the
///    directory does not apply.
/// 2. Otherwise the directory's ACL decides by `DELETE_CHILD` and `WRITE_DATA`. If either is denied, the
///    removal is denied. If either is granted, the removal is permitted, but in a sticky directory only to
///    the owner of the file or of the directory. So write permission on a directory includes removal, as in
///    POSIX, unless `DELETE_CHILD` is denied.
///
/// `CAP_DAC_OVERRIDE` overrides the ACLs and `CAP_FOWNER` the sticky bit, as in `may_delete`.
///
/// # Errors
/// [`Denial::FileAcl`], [`Denial::Acl`] of the directory, then [`Denial::Sticky`].
pub fn may_remove(uid: u32, caps: Caps, removal: &Removal) -> Evaluation {
    const OF_PARENT: Mask = Mask::DELETE_CHILD.with(Mask::WRITE_DATA);
    let Removal { parent, target, .. } = removal;
    if target.granted.has(Mask::DELETE) {
        return Ok(Grant::FileAcl);
    }
    let by_acl = if target.denied.has(Mask::DELETE) {
        Err(Denial::FileAcl)
    } else if parent.granted.has_any(OF_PARENT) && !parent.denied.has_any(OF_PARENT) {
        Ok(Grant::Acl)
    } else {
        Err(Denial::Acl)
    };
    let overridden = |denial| capability(caps, Caps::DAC_OVERRIDE).map_err(|_| denial);
    let grant = by_acl.or_else(overridden)?;
    let free = sticky(uid, caps, removal.parent_mode, removal.parent_uid, removal.target_uid)?;
    // If both capabilities were needed, report the one for the check that comes first.
    Ok(if matches!((grant, free), (Grant::Acl, Grant::Capability(_))) { free } else { grant })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in `zfs_zaccess_delete`: the directory's decision, against the file's decision on `DELETE`.
    #[test]
    fn removal_follows_the_table_of_zfs() {
        let (none, delete) = (Mask::NONE, Mask::DELETE);
        let (child, write) = (Mask::DELETE_CHILD, Mask::WRITE_DATA);
        let files = [(delete, none), (none, delete), (none, none)];
        for (granted, denied, permitted) in [
            (child, none, [true, false, true]),
            (none, child, [true, false, false]),
            (write, none, [true, false, true]),
            (none, write | child, [true, false, false]),
            (write, child, [true, false, false]),
            (child, write, [true, false, false]),
            (none, none, [true, false, false]),
        ] {
            for ((file_granted, file_denied), expected) in files.into_iter().zip(permitted) {
                let removal = Removal {
                    parent: Decision { granted, denied },
                    target: Decision { granted: file_granted, denied: file_denied },
                    parent_mode: Mode::new(0o755),
                    parent_uid: 1,
                    target_uid: 1,
                };
                let by = |caps| may_remove(2, caps, &removal);
                let by_file = file_granted | file_denied == delete;
                let expected = match (expected, by_file) {
                    (true, true) => Ok(Grant::FileAcl),
                    (true, false) => Ok(Grant::Acl),
                    (false, true) => Err(Denial::FileAcl),
                    (false, false) => Err(Denial::Acl),
                };
                assert_eq!(by(Caps::NONE), expected, "{removal:?}");
                let overridden = expected.unwrap_or(Grant::Capability(Caps::DAC_OVERRIDE));
                assert_eq!(by(Caps::DAC_OVERRIDE | Caps::FOWNER), Ok(overridden));
            }
        }
    }

    #[test]
    fn sticky_directory_denies_removal_of_files_of_others() {
        let granted = |mask| Decision { granted: mask, denied: Mask::NONE };
        let removal = |target| Removal {
            parent: granted(Mask::DELETE_CHILD),
            target,
            parent_mode: Mode::new(0o1777),
            parent_uid: 1,
            target_uid: 2,
        };
        let by = |uid, caps, target| may_remove(uid, caps, &removal(target));
        for uid in [1, 2] {
            assert_eq!(by(uid, Caps::NONE, granted(Mask::NONE)), Ok(Grant::Acl));
        }
        assert_eq!(by(3, Caps::NONE, granted(Mask::NONE)), Err(Denial::Sticky));
        assert_eq!(by(3, Caps::DAC_OVERRIDE, granted(Mask::NONE)), Err(Denial::Sticky));
        assert_eq!(by(3, Caps::FOWNER, granted(Mask::NONE)), Ok(Grant::Capability(Caps::FOWNER)));
        assert_eq!(by(3, Caps::NONE, granted(Mask::DELETE)), Ok(Grant::FileAcl));
    }
}
