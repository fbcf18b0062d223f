//! Access decisions.
//!
//! A caller is one of these: the owner, a named user, a member of the owning group or of named groups, or
//! other. The first that applies decides. Only for groups can several entries apply, and then *one of them
//! alone* must grant everything that is requested. With one group for r and another for w, a caller may open
//! for reading and may open for writing, but not for both. That is why a decision is not a mask of three
//! bits, but a set of masks.

use std::cmp::Ordering;

use types::{Caps, Cred, Mode};

use super::acl::Named;
use super::{Entry, Perm, PosixAcl, Tag};
use crate::evaluate::{Class, Denial, Evaluation, Grant};

/// The attributes of a file that its permissions depend on.
#[derive(Clone, Copy, Debug)]
pub struct FileAttrs<'a> {
    pub uid: u32,
    pub gid: u32,
    pub mode: Mode,
    pub is_dir: bool,
    /// The access ACL; None if the mode alone decides.
    pub acl: Option<&'a PosixAcl>,
}

/// The sets of permissions that are granted: one bit for each of the eight sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision(pub(crate) u8);

/// Checks that the caller has every permission of `want` at once: mode and ACL grant them all (`granted`), or
/// a capability does. Equivalent to `generic_permission`. Sticky directories are checked by
/// [`sticky`](crate::evaluate::sticky).
///
/// - `CAP_DAC_READ_SEARCH` grants reading of any file, and reading and search of any directory.
/// - `CAP_DAC_OVERRIDE` grants everything, but execution only of a file that somebody may execute.
///
/// # Errors
/// [`Denial::Acl`] if neither grants them.
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

/// [`check`] with the decision of [`decide`].
///
/// # Errors
/// [`Denial::Acl`].
pub fn permits(cred: &Cred, want: Perm, file: &FileAttrs<'_>) -> Evaluation {
    check(decide(cred, file), cred.caps, want, file.mode, file.is_dir)
}

/// The permissions that mode and ACL grant to the caller, without capabilities. Equivalent to
/// `acl_permission_check`.
pub fn decide(cred: &Cred, file: &FileAttrs<'_>) -> Decision {
    let in_owning_group = cred.in_group(file.gid);
    match (class(cred.uid == file.uid, || in_owning_group, file.mode, file.acl.is_some()), file.acl) {
        (None, Some(acl)) => acl.decide(cred, in_owning_group),
        (class, _) => Decision::of_class(class.unwrap_or(Class::Other), file.mode),
    }
}

/// The class of the mode that decides for a caller; `None` if the ACL decides.
///
/// The mode decides for the owner, whatever the ACL says. If the group bits of the mode are all clear, Linux
/// ignores the ACL: these bits are the mask of the ACL, which would therefore grant nothing to a named
/// principal. But then the bits of others decide for named principals, and may grant what the ACL would not.
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

/// Whether the caller's user and primary group are enough to show that mode and ACL grant every permission of
/// `want`. If this is false, the ACL, which is not read here, or a supplementary group may still grant them.
pub fn is_certain(uid: u32, gid: u32, want: Perm, file: (u32, u32, Mode), has_acl: bool) -> bool {
    let (owner, owning_group, mode) = file;
    let grants = |class: Class| Perm::new(class.rwx(mode)).has(want);
    match class(uid == owner, || gid == owning_group, mode, has_acl) {
        None => false,
        // A supplementary group may be the owning group.
        Some(Class::Other) => grants(Class::Group) && grants(Class::Other),
        Some(class) => grants(class),
    }
}

impl PosixAcl {
    /// The permissions that the ACL grants to a caller. The caller must not be the owner of the file, and the
    /// mode must have group bits; [`decide`] checks both. Equivalent to `posix_acl_permission`.
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

    /// The permissions of the entry that names the user.
    pub(super) fn of_user(&self, uid: u32) -> Option<Perm> {
        find(&self.users, uid)
    }

    /// The entries of the owning group and of named groups that apply to the caller; one may occur twice.
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
    /// Does not even grant the empty set. No decision has this value; it means that no entry applied.
    pub(super) const NOTHING: Decision = Decision(0);

    /// The permissions that the mode's bits of this class grant.
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

    /// Whether every permission of `want` is granted at once.
    pub const fn allows(self, want: Perm) -> bool {
        self.0 & (1 << want.bits()) != 0
    }

    /// The permissions that are granted individually; they need not all be granted at once.
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

/// The entries of the named groups that the caller is in. Both lists are sorted. A galloping search, whose
/// step doubles, advances the list that is behind to the position of the other. So lists of similar length
/// are merged, and if one list is much shorter, only that one is walked.
fn common<'a>(mut named: &'a [Named], mut groups: &'a [u32]) -> impl Iterator<Item = &'a Named> {
    std::iter::from_fn(move || {
        loop {
            let (first, &group) = (named.first()?, groups.first()?);
            match first.id.cmp(&group) {
                Ordering::Less => named = gallop_past(named, |named| named.id < group),
                Ordering::Greater => groups = gallop_past(groups, |&group| group < first.id),
                Ordering::Equal => {
                    (named, groups) = (&named[1..], &groups[1..]);
                    return Some(first);
                }
            }
        }
    })
}

/// The rest of a sorted list after its first items for which `behind` is true. The number of steps is
/// logarithmic in the number of these items.
fn gallop_past<T>(list: &[T], behind: impl Fn(&T) -> bool) -> &[T] {
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
        let file = FileAttrs { uid: 1, gid: 10, mode: Mode::new(mode), is_dir: false, acl };
        decide(cred, &file).each().to_string()
    }

    #[test]
    fn first_class_that_applies_decides() {
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
    fn one_group_must_grant_everything() {
        let acl = acl("u::rwx,g::r--,g:20:-w-,g:30:--x,m::rwx,o::rwx");
        let decision = acl.decide(&user(2, 20, &[30]), true);
        assert_eq!(decision.each(), Perm::ALL);
        assert!(decision.allows(Perm::NONE));
        assert!(!decision.allows(Perm::READ | Perm::WRITE));
    }

    #[test]
    fn mask_limits_all_except_owner_and_others() {
        let acl = acl("u::rwx,u:2:rwx,g::rwx,g:20:rwx,m::r--,o::rwx");
        assert_eq!(each(&user(2, 0, &[]), 0o747, Some(&acl)), "r--");
        assert_eq!(each(&user(3, 10, &[]), 0o747, Some(&acl)), "r--");
        assert_eq!(each(&user(3, 20, &[]), 0o747, Some(&acl)), "r--");
        assert_eq!(each(&user(3, 0, &[]), 0o747, Some(&acl)), "rwx");
        assert_eq!(each(&user(1, 20, &[]), 0o747, Some(&acl)), "rwx");
    }

    #[test]
    fn acl_is_ignored_if_group_bits_are_clear() {
        let acl = acl("u::rwx,u:2:rwx,g::rwx,g:20:rwx,m::---,o::r-x");
        assert_eq!(each(&user(2, 0, &[]), 0o705, Some(&acl)), "r-x");
        assert_eq!(each(&user(3, 20, &[]), 0o705, Some(&acl)), "r-x");
        assert_eq!(each(&user(3, 10, &[]), 0o705, Some(&acl)), "---");
    }

    #[test]
    fn capabilities_add_permissions() {
        let able = |caps, want, mode, is_dir| {
            let file = FileAttrs { uid: 1, gid: 10, mode: Mode::new(mode), is_dir, acl: None };
            permits(&Cred::new(2, 20, &[], caps), want, &file).is_ok()
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
    fn intersection_works_for_lists_of_any_length() {
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
                // The permission holds the low bits of the id, so it shows which entries were found.
                let named: Vec<Named> = left.iter().map(|&id| Named { id, perm: Perm::new(id) }).collect();
                let expected: Vec<u32> = left.iter().filter(|id| right.contains(id)).copied().collect();
                assert_eq!(common(&named, right).map(|named| named.id).collect::<Vec<_>>(), expected);
            }
        }
    }
}
