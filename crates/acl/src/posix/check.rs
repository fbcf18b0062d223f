//! Who may do what.
//!
//! A caller is one of: the owner, a named user, a member of the owning or of named groups, or other; the first that
//! fits decides. Only for groups do several entries count, and then *one of them alone* must grant everything wanted:
//! with one group for r and another for w, a caller may read and may write, but may not open for both. That is why a
//! decision is not a mask of three bits, but a set of masks.

use std::cmp::Ordering;

use types::{Caps, Cred, Mode};

use super::acl::Named;
use super::{Entry, Perm, PosixAcl, Tag};
use crate::evaluate::{Class, Denial, Evaluation, Grant};

/// What a permission depends on, of the file it is for.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub uid: u32,
    pub gid: u32,
    pub mode: Mode,
    pub is_dir: bool,
    /// The access ACL; none where the mode says it all.
    pub acl: Option<&'a PosixAcl>,
}

/// Which sets of permissions are granted: for each of the eight, whether all of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision(pub(crate) u8);

/// Whether the caller may do all of `want` at once: by what mode and ACL grant, else by a capability. Twin of
/// `generic_permission`. A read-only volume, immutable files and sticky directories are checked elsewhere.
///
/// - `CAP_DAC_READ_SEARCH` reads anything and searches directories.
/// - `CAP_DAC_OVERRIDE` does anything, but executes only a file that somebody may execute.
///
/// # Errors
/// [`Denial::Acl`].
pub fn check(granted: Decision, caps: Caps, want: Perm, mode: Mode, is_dir: bool) -> Evaluation {
    if granted.allows(want) {
        return Ok(Grant::Acl);
    }
    let read_search = if is_dir { !want.has(Perm::WRITE) } else { want == Perm::READ };
    if read_search && caps.has(Caps::DAC_READ_SEARCH) {
        return Ok(Grant::Capability(Caps::DAC_READ_SEARCH));
    }
    let anything = is_dir || !want.has(Perm::EXECUTE) || mode.rwx() & 0o111 != 0;
    if anything && caps.has(Caps::DAC_OVERRIDE) {
        return Ok(Grant::Capability(Caps::DAC_OVERRIDE));
    }
    Err(Denial::Acl)
}

/// [`check`] for a caller and a file of which everything is known.
///
/// # Errors
/// [`Denial::Acl`].
pub fn permits(cred: &Cred, want: Perm, node: &Node<'_>) -> Evaluation {
    check(decide(cred, node), cred.caps, want, node.mode, node.is_dir)
}

/// Everything that mode and ACL grant the caller, capabilities aside. Twin of `acl_permission_check`.
pub fn decide(cred: &Cred, node: &Node<'_>) -> Decision {
    let in_owning_group = cred.in_group(node.gid);
    match (class(cred.uid == node.uid, || in_owning_group, node.mode, node.acl.is_some()), node.acl) {
        (None, Some(acl)) => acl.decide(cred, in_owning_group),
        (class, _) => Decision::of_class(class.unwrap_or(Class::Other), node.mode),
    }
}

/// The class of the mode that decides about a caller; `None` if the ACL decides.
///
/// The owner's rights are in the mode, whatever the ACL says. If the group bits of the mode are all clear, the ACL is not
/// consulted: they are its mask, so it would grant nothing to anyone named. But then the mode decides about such callers,
/// and they may pass as others, which they would not be under the ACL.
pub(crate) fn class(
    is_owner: bool,
    in_owning_group: impl FnOnce() -> bool,
    mode: Mode,
    has_acl: bool,
) -> Option<Class> {
    if !is_owner && has_acl && mode.rwx() & 0o070 != 0 {
        None
    } else {
        Some(Class::of(is_owner, in_owning_group))
    }
}

/// Whether user and primary group alone show that mode and ACL grant all of `want`, so that nobody has to find out the
/// caller's other groups. If not, they may still be granted.
pub fn is_certain(uid: u32, gid: u32, want: Perm, node: (u32, u32, Mode), has_acl: bool) -> bool {
    let (owner, owning_group, mode) = node;
    let grants = |class: Class| Perm::new(class.rwx(mode)).has(want);
    match class(uid == owner, || gid == owning_group, mode, has_acl) {
        None => false,
        // One of the other groups may be the owning one.
        Some(Class::Other) => grants(Class::Group) && grants(Class::Other),
        Some(class) => grants(class),
    }
}

impl PosixAcl {
    /// What the ACL grants a caller that is not the owner of the file, provided that the mode has group bits; [`decide`]
    /// sees to both. It depends on nothing else, so it may be cached by (ACL, credential, in owning group). Twin of
    /// `posix_acl_permission`.
    pub fn decide(&self, cred: &Cred, in_owning_group: bool) -> Decision {
        let mask = self.mask.unwrap_or(Perm::ALL);
        if let Some(perm) = self.of_user(cred.uid) {
            return Decision::of(perm & mask);
        }
        let most = Decision::of(mask);
        let mut granted = Decision::NOTHING;
        for entry in self.of_groups(cred, in_owning_group) {
            granted = granted.or(Decision::of(entry.perm & mask));
            if granted == most {
                break;
            }
        }
        // A matching entry grants at least the empty set, so "nothing" means that no group matched.
        if granted == Decision::NOTHING { Decision::of(self.other) } else { granted }
    }

    /// The entry that names the user.
    pub(super) fn of_user(&self, uid: u32) -> Option<Perm> {
        find(&self.users, uid)
    }

    /// The entries of the owning group and of named groups that speak to the caller; one may come twice.
    pub(super) fn of_groups<'a>(
        &'a self,
        cred: &'a Cred,
        in_owning_group: bool,
    ) -> impl Iterator<Item = Entry> + 'a {
        let entry = |id, perm| Entry { tag: Tag::Group(id), perm };
        let owning = in_owning_group.then_some(Entry { tag: Tag::GroupObj, perm: self.group_obj });
        let primary = find(&self.groups, cred.gid).map(|perm| entry(cred.gid, perm));
        let others = common(&self.groups, cred.groups()).map(move |named| entry(named.id, named.perm));
        owning.into_iter().chain(primary).chain(others)
    }
}

impl Decision {
    /// Not even the empty set; no decision is this.
    pub(super) const NOTHING: Decision = Decision(0);

    /// What these bits of the mode grant.
    pub(crate) fn of_class(class: Class, mode: Mode) -> Self {
        Decision::of(Perm::new(class.rwx(mode)))
    }

    /// All subsets of `perm`.
    pub(crate) const fn of(perm: Perm) -> Self {
        let mut sets = 0;
        let mut want = 0;
        while want < 8 {
            if perm.has(Perm::new(want)) {
                sets |= 1 << want;
            }
            want += 1;
        }
        Decision(sets)
    }

    /// Whether all of `want` is granted at once.
    pub const fn allows(self, want: Perm) -> bool {
        self.0 & (1 << want.bits()) != 0
    }

    /// The permissions that are granted one by one; not all of them need be granted at once.
    pub fn each(self) -> Perm {
        [Perm::READ, Perm::WRITE, Perm::EXECUTE]
            .into_iter()
            .filter(|&want| self.allows(want))
            .fold(Perm::NONE, |each, want| each | want)
    }

    pub(super) fn or(self, other: Decision) -> Decision {
        Decision(self.0 | other.0)
    }
}

fn find(named: &[Named], id: u32) -> Option<Perm> {
    named.binary_search_by_key(&id, |named| named.id).ok().map(|index| named[index].perm)
}

/// The entries of the named groups that the caller is in. Both lists are sorted, and whichever is behind leaps to
/// where the other stands, in steps that double. So lists of like length are merged, and of a short and a long list
/// only the short one is walked.
fn common<'a>(mut named: &'a [Named], mut groups: &'a [u32]) -> impl Iterator<Item = &'a Named> {
    std::iter::from_fn(move || {
        loop {
            let (first, &group) = (named.first()?, groups.first()?);
            match first.id.cmp(&group) {
                Ordering::Less => named = leap(named, |named| named.id < group),
                Ordering::Greater => groups = leap(groups, |&group| group < first.id),
                Ordering::Equal => {
                    (named, groups) = (&named[1..], &groups[1..]);
                    return Some(first);
                }
            }
        }
    })
}

/// What is left of a sorted list after those of its first items that are `behind`, in steps logarithmic in their number.
fn leap<T>(list: &[T], behind: impl Fn(&T) -> bool) -> &[T] {
    let mut end = 1;
    while end < list.len() && behind(&list[end]) {
        end *= 2;
    }
    let reach = &list[..list.len().min(end)];
    &list[reach.partition_point(behind)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred::new(uid, gid, groups, Caps::NONE)
    }

    fn acl(text: &str) -> PosixAcl {
        PosixAcl::from_storage(text).unwrap()
    }

    fn each(cred: &Cred, mode: u32, acl: Option<&PosixAcl>) -> String {
        let node = Node { uid: 1, gid: 10, mode: Mode::new(mode), is_dir: false, acl };
        decide(cred, &node).each().to_string()
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        assert_eq!(each(&user(1, 10, &[]), 0o077, None), "---");
        assert_eq!(each(&user(2, 10, &[]), 0o707, None), "---");
        assert_eq!(each(&user(2, 11, &[9, 10]), 0o070, None), "rwx");
        assert_eq!(each(&user(2, 11, &[]), 0o004, None), "r--");

        let acl = acl("u::---,u:2:r--,g::-w-,g:20:--x,m::rwx,o::rwx");
        assert_eq!(each(&user(1, 10, &[]), 0o470, Some(&acl)), "r--");
        assert_eq!(each(&user(2, 10, &[20]), 0o077, Some(&acl)), "r--");
        assert_eq!(each(&user(3, 10, &[]), 0o077, Some(&acl)), "-w-");
        assert_eq!(each(&user(3, 20, &[]), 0o077, Some(&acl)), "--x");
        assert_eq!(each(&user(3, 11, &[10, 20]), 0o077, Some(&acl)), "-wx");
        assert_eq!(each(&user(3, 11, &[]), 0o077, Some(&acl)), "rwx");
    }

    #[test]
    fn one_group_must_grant_all() {
        let acl = acl("u::rwx,g::r--,g:20:-w-,g:30:--x,m::rwx,o::rwx");
        let decision = acl.decide(&user(2, 20, &[30]), true);
        assert_eq!(decision.each(), Perm::ALL);
        assert!(decision.allows(Perm::NONE));
        assert!(!decision.allows(Perm::READ | Perm::WRITE));
    }

    #[test]
    fn the_mask_limits_all_but_owner_and_others() {
        let acl = acl("u::rwx,u:2:rwx,g::rwx,g:20:rwx,m::r--,o::rwx");
        assert_eq!(each(&user(2, 0, &[]), 0o747, Some(&acl)), "r--");
        assert_eq!(each(&user(3, 10, &[]), 0o747, Some(&acl)), "r--");
        assert_eq!(each(&user(3, 20, &[]), 0o747, Some(&acl)), "r--");
        assert_eq!(each(&user(3, 0, &[]), 0o747, Some(&acl)), "rwx");
        assert_eq!(each(&user(1, 20, &[]), 0o747, Some(&acl)), "rwx");
    }

    #[test]
    fn clear_group_bits_put_the_acl_aside() {
        let acl = acl("u::rwx,u:2:rwx,g::rwx,g:20:rwx,m::---,o::r-x");
        assert_eq!(each(&user(2, 0, &[]), 0o705, Some(&acl)), "r-x");
        assert_eq!(each(&user(3, 20, &[]), 0o705, Some(&acl)), "r-x");
        assert_eq!(each(&user(3, 10, &[]), 0o705, Some(&acl)), "---");
    }

    #[test]
    fn capabilities_override() {
        let able = |caps, want, mode, is_dir| {
            let node = Node { uid: 1, gid: 10, mode: Mode::new(mode), is_dir, acl: None };
            permits(&Cred::new(2, 20, &[], caps), want, &node).is_ok()
        };
        let (read, write, execute) = (Perm::READ, Perm::WRITE, Perm::EXECUTE);
        for (caps, want, mode, is_dir, expected) in [
            (Caps::DAC_READ_SEARCH, read, 0, false, true),
            (Caps::DAC_READ_SEARCH, read | execute, 0o100, false, false),
            (Caps::DAC_READ_SEARCH, write, 0, false, false),
            (Caps::DAC_READ_SEARCH, read | execute, 0, true, true),
            (Caps::DAC_READ_SEARCH, write, 0, true, false),
            (Caps::DAC_OVERRIDE, read | write, 0, false, true),
            (Caps::DAC_OVERRIDE, execute, 0, false, false),
            (Caps::DAC_OVERRIDE, Perm::ALL, 0o100, false, true),
            (Caps::DAC_OVERRIDE, Perm::ALL, 0, true, true),
            (Caps::NONE, read, 0, true, false),
        ] {
            assert_eq!(able(caps, want, mode, is_dir), expected, "{caps:?} {want} {mode:o} {is_dir}");
        }
    }

    #[test]
    fn lists_are_intersected_whatever_their_lengths() {
        let lists: [Vec<u32>; 6] = [
            vec![],
            vec![500],
            (0..1000).collect(),
            (0..1000).step_by(7).collect(),
            (0..1000).step_by(2).collect(),
            vec![0, 1, 2, 998, 999, 1000],
        ];
        for left in &lists {
            for right in &lists {
                // The permission carries the low bits of the id, which tells which of them were found.
                let named: Vec<Named> = left.iter().map(|&id| Named { id, perm: Perm::new(id) }).collect();
                let expected: Vec<u32> = left.iter().filter(|id| right.contains(id)).copied().collect();
                assert_eq!(common(&named, right).map(|named| named.id).collect::<Vec<_>>(), expected);
            }
        }
    }
}
