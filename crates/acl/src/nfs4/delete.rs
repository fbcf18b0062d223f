//! Who may remove a name: a right that can come from the file or from its directory.

use types::{Caps, Cred, Errno, Mode};

use super::{Decision, Mask};

/// A removal: what the caller may do to either end, and who owns what.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// On the directory that the name is in.
    pub parent: Decision,
    /// On the file that has the name.
    pub target: Decision,
    pub parent_mode: Mode,
    pub parent_uid: u32,
    pub target_uid: u32,
}

/// Whether the caller may remove the name. The right to search the directory is not looked at here: without it the
/// name would not have been found. Twin of `zfs_zaccess_delete`, whose rules are those of Windows:
///
/// 1. The file's ACL is asked for `DELETE` first; if it grants or denies that, this is the answer, and a sticky
///    directory does not matter.
/// 2. Otherwise the directory's is asked for `DELETE_CHILD` and `WRITE_DATA`. Either denied refuses; either granted
///    permits, but in a sticky directory only to an owner of the file or of the directory. So writing to a directory
///    includes removing from it, as in POSIX, unless `DELETE_CHILD` is denied.
///
/// `CAP_DAC_OVERRIDE` overcomes the ACLs and `CAP_FOWNER` the sticky bit, as in `may_delete`.
///
/// # Errors
/// EACCES, then EPERM for the sticky bit.
pub fn may_remove(cred: &Cred, removal: &Removal) -> Result<(), Errno> {
    const OF_PARENT: Mask = Mask::DELETE_CHILD.with(Mask::WRITE_DATA);
    let Removal { parent, target, .. } = removal;
    if target.granted.has(Mask::DELETE) {
        return Ok(());
    }
    let by_parent = !target.denied.has(Mask::DELETE)
        && !parent.denied.has_any(OF_PARENT)
        && parent.granted.has_any(OF_PARENT);
    if !by_parent && !cred.caps.has(Caps::DAC_OVERRIDE) {
        return Err(Errno::EACCES);
    }
    let is_free = !removal.parent_mode.has(Mode::STICKY)
        || cred.uid == removal.target_uid
        || cred.uid == removal.parent_uid
        || cred.caps.has(Caps::FOWNER);
    if is_free { Ok(()) } else { Err(Errno::EPERM) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in `zfs_zaccess_delete`: what the directory says, against what the file says of `DELETE`.
    #[test]
    fn the_table_of_zfs() {
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
                let by = |caps| may_remove(&Cred::new(2, 2, &[], caps), &removal);
                let expected = if expected { Ok(()) } else { Err(Errno::EACCES) };
                assert_eq!(by(Caps::NONE), expected, "{removal:?}");
                assert_eq!(by(Caps::DAC_OVERRIDE), Ok(()));
            }
        }
    }

    #[test]
    fn sticky_directories_keep_what_others_own() {
        let granted = |mask| Decision { granted: mask, denied: Mask::NONE };
        let removal = |target| Removal {
            parent: granted(Mask::DELETE_CHILD),
            target,
            parent_mode: Mode::new(0o1777),
            parent_uid: 1,
            target_uid: 2,
        };
        let by = |uid, caps, target| may_remove(&Cred::new(uid, 9, &[], caps), &removal(target));
        for uid in [1, 2] {
            assert_eq!(by(uid, Caps::NONE, granted(Mask::NONE)), Ok(()));
        }
        assert_eq!(by(3, Caps::NONE, granted(Mask::NONE)), Err(Errno::EPERM));
        assert_eq!(by(3, Caps::DAC_OVERRIDE, granted(Mask::NONE)), Err(Errno::EPERM));
        assert_eq!(by(3, Caps::FOWNER, granted(Mask::NONE)), Ok(()));
        assert_eq!(by(3, Caps::NONE, granted(Mask::DELETE)), Ok(()));
    }
}
