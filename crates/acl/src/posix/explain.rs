//! Which part of the mode or which entry of the ACL decided.

use types::Cred;

use super::check::class;
use super::{Entry, Node, Perm, PosixAcl, Tag, decide};
use crate::evaluate::Class;

/// What decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The mode's bits of this class: there is no ACL, or the mode's group bits are clear and put it aside, or the caller is
    /// the owner, whose entry the bits are.
    Mode(Class),
    /// The entry with this tag: of a granted request, one that grants all of it; of a refused one, the only one that
    /// counts, or of several groups' the first. `masked` says that the entry itself would grant what the mask keeps.
    Entry { tag: Tag, masked: bool },
}

/// Whether the caller may do all of `want` at once, and what decided that; agrees with [`decide`]. Capabilities are not
/// considered.
pub fn explain(cred: &Cred, want: Perm, node: &Node<'_>) -> (bool, Reason) {
    let granted = decide(cred, node).allows(want);
    let in_owning_group = cred.in_group(node.gid);
    let class = class(cred.uid == node.uid, || in_owning_group, node.mode, node.acl.is_some());
    let reason = match (class, node.acl) {
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
    // In the order in which the ACL is shown.
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
    fn the_deciding_entry_is_named() {
        let acl = PosixAcl::from_storage("u::r--,u:2:rw-,g::r--,g:20:-wx,g:30:--x,m::r-x,o::r--").unwrap();
        let why = |uid, groups: &[u32], want: Perm, mode: u32, acl| {
            let node = Node { uid: 1, gid: 10, mode: Mode::new(mode), is_dir: false, acl };
            explain(&Cred::new(uid, 100, groups, Caps::NONE), want, &node)
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
