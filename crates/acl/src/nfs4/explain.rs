//! The reason for a decision: which entry decided each permission.

use types::Cred;

use crate::evaluate::Class;
use crate::identity::Id;

use super::Mask;
use super::decide::{Caller, FileAttrs, OWNER_RIGHTS, decide_by_mode};

/// The reason for the decision on a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The entry at this index of [`Nfs4Acl::entries`](super::Nfs4Acl::entries).
    Entry(usize),
    /// The caller owns the file, and owners always have this permission.
    OwnerRight,
    /// No entry that applies to the caller contains the permission, so it is not granted.
    NotMentioned,
    /// The file has no ACL; the mode's bits of this class decide.
    Mode(Class),
}

/// One permission, whether it is granted, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// A single bit.
    pub permission: Mask,
    pub granted: bool,
    pub reason: Reason,
}

/// Explains each permission of `want`, in the order of the permission letters. The verdicts agree with
/// [`decide`](super::decide). Capabilities are not considered; `sids` must be sorted.
pub fn explain(cred: &Cred, sids: &[Id], file: &FileAttrs<'_>, want: Mask) -> Vec<Verdict> {
    let caller = Caller::new(cred, sids, file);
    want.each().map(|permission| verdict(permission, &caller, file)).collect()
}

fn verdict(permission: Mask, caller: &Caller<'_>, file: &FileAttrs<'_>) -> Verdict {
    let Some(acl) = file.acl else {
        let class = caller.class();
        let granted = decide_by_mode(file.mode, file.is_dir, class).allows(permission);
        return Verdict { permission, granted, reason: Reason::Mode(class) };
    };
    if caller.is_owner && OWNER_RIGHTS.has(permission) {
        return Verdict { permission, granted: true, reason: Reason::OwnerRight };
    }
    match acl.entries_for(caller).find(|(_, entry)| entry.mask.has(permission)) {
        Some((index, entry)) => {
            Verdict { permission, granted: entry.is_allow(), reason: Reason::Entry(index) }
        }
        None => Verdict { permission, granted: false, reason: Reason::NotMentioned },
    }
}

#[cfg(test)]
mod tests {
    use types::{Caps, Mode};

    use super::super::Nfs4Acl;
    use super::*;

    #[test]
    fn explain_names_the_deciding_entry() {
        let acl = Nfs4Acl::from_storage("A:i:2:r,D::3:r,A:g:20:rw,D::OWNER@:xc,A::EVERYONE@:rx").unwrap();
        let why = |uid, groups: &[u32], acl| {
            let cred = Cred::new(uid, 100, groups, Caps::NONE);
            let file = FileAttrs { uid: 1, gid: 10, mode: Mode::new(0o640), is_dir: false, acl };
            let want = Mask::READ_DATA | Mask::WRITE_DATA | Mask::EXECUTE | Mask::READ_ACL;
            explain(&cred, &[], &file, want)
                .into_iter()
                .map(|verdict| (verdict.granted, verdict.reason))
                .collect::<Vec<_>>()
        };
        let (entry, unsaid) = (Reason::Entry, Reason::NotMentioned);
        assert_eq!(
            why(3, &[20], Some(&acl)),
            [(false, entry(1)), (true, entry(2)), (true, entry(4)), (false, unsaid)]
        );
        assert_eq!(
            why(1, &[], Some(&acl)),
            [(true, entry(4)), (false, unsaid), (false, entry(3)), (true, Reason::OwnerRight)]
        );
        let class = |class| Reason::Mode(class);
        assert_eq!(why(1, &[], None)[1], (true, class(Class::Owner)));
        assert_eq!(why(2, &[10], None)[..2], [(true, class(Class::Group)), (false, class(Class::Group))]);
        assert_eq!(why(2, &[], None)[0], (false, class(Class::Other)));
    }
}
