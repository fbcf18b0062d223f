//! The reason for a decision: which part of the mode or which entry of the ACL decided.

use types::Cred;

use super::check::class;
use super::{Entry, FileAttrs, Perm, PosixAcl, Tag, decide};
use crate::evaluate::Class;

/// The reason for the decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The mode's bits of this class decided. The file has no ACL, or the caller is the owner, or Linux
    /// ignores the ACL because the mode's group bits are clear.
    Mode(Class),
    /// The entry with this tag decided. For a granted request, it grants everything that is requested. For a
    /// denied request, it is the only entry that applies, or the first of several group entries. `masked`
    /// says that only the mask denies the request: the entry without the mask would grant it.
    Entry { tag: Tag, masked: bool },
}

/// Whether the caller has every permission of `want` at once, and the reason; agrees with [`decide`].
/// Capabilities are not considered.
pub fn explain(cred: &Cred, want: Perm, file: &FileAttrs<'_>) -> (bool, Reason) {
    let granted = decide(cred, file).allows(want);
    let in_owning_group = cred.in_group(file.gid);
    let class = class(cred.uid == file.uid, || in_owning_group, file.mode, file.acl.is_some());
    let reason = match (class, file.acl) {
        (None, Some(acl)) => deciding_entry(acl, cred, in_owning_group, want),
        (class, _) => Reason::Mode(class.unwrap_or(Class::Other)),
    };
    (granted, reason)
}

fn deciding_entry(acl: &PosixAcl, cred: &Cred, in_owning_group: bool, want: Perm) -> Reason {
    let mask = acl.mask.unwrap_or(Perm::ALL);
    let reason =
        |entry: Entry| Reason::Entry { tag: entry.tag, masked: entry.perm.has(want) && !mask.has(want) };
    if let Some(perm) = acl.of_user(cred.uid) {
        return reason(Entry { tag: Tag::User(cred.uid), perm });
    }
    // The first entry in the order in which the ACL is shown: the owning group, then named groups by id.
    let first = |entries: &mut dyn Iterator<Item = Entry>| {
        entries.min_by_key(|entry| match entry.tag {
            Tag::Group(gid) => Some(gid),
            _ => None,
        })
    };
    let groups = || acl.of_groups(cred, in_owning_group);
    match first(&mut groups().filter(|entry| entry.perm.has(want))).or_else(|| first(&mut groups())) {
        Some(group) => reason(group),
        None => Reason::Entry { tag: Tag::Other, masked: false },
    }
}

#[cfg(test)]
mod tests {
    use types::{Caps, Mode};

    use super::*;

    #[test]
    fn explain_names_the_deciding_entry() {
        let acl = PosixAcl::from_storage("u::r--,u:2:rw-,g::r--,g:20:-wx,g:30:--x,m::r-x,o::r--").unwrap();
        let why = |uid, groups: &[u32], want: Perm, mode: u32, acl| {
            let file = FileAttrs { uid: 1, gid: 10, mode: Mode::new(mode), is_dir: false, acl };
            explain(&Cred::new(uid, 100, groups, Caps::NONE), want, &file)
        };
        let entry = |tag, masked| Reason::Entry { tag, masked };
        let (read, write, execute) = (Perm::READ, Perm::WRITE, Perm::EXECUTE);
        assert_eq!(why(1, &[20], write, 0o454, Some(&acl)), (false, Reason::Mode(Class::Owner)));
        assert_eq!(why(2, &[30], write, 0o454, Some(&acl)), (false, entry(Tag::User(2), true)));
        assert_eq!(why(2, &[30], execute, 0o454, Some(&acl)), (false, entry(Tag::User(2), false)));
        assert_eq!(why(3, &[10, 30], execute, 0o454, Some(&acl)), (true, entry(Tag::Group(30), false)));
        assert_eq!(why(3, &[20, 30], write, 0o454, Some(&acl)), (false, entry(Tag::Group(20), true)));
        assert_eq!(why(3, &[20], read, 0o454, Some(&acl)), (false, entry(Tag::Group(20), false)));
        assert_eq!(why(3, &[], read, 0o454, Some(&acl)), (true, entry(Tag::Other, false)));
        assert_eq!(why(2, &[], read, 0o404, Some(&acl)), (true, Reason::Mode(Class::Other)));
        assert_eq!(why(3, &[10], read, 0o404, None), (false, Reason::Mode(Class::Group)));
        assert_eq!(why(3, &[], read, 0o404, None), (true, Reason::Mode(Class::Other)));
    }
}
