//! Users and groups that may search every directory, whatever its ACL says: the privilege that Windows calls
//! "Bypass traverse checking".
//!
//! It has the effect of entries at the front of each directory's ACL that allow these users and groups to
//! search, and nothing else. Decisions add the search permission, and the kernel sees the projection of the
//! ACL with these entries.
//!
//! The ACL that the kernel sees has entries for these users and groups, so the kernel itself applies the
//! privilege, even when it resolves a path from its caches. Otherwise, the kernel could not be allowed to
//! cache the attributes of directories.

use types::{Cred, Mode};

use crate::identity::Id;

use super::{Entry, Mask, Nfs4Acl, Projection, Who, anyone_may_traverse, from_mode, project};

/// The users and groups that have the privilege.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traversers {
    users: Box<[u32]>,
    groups: Box<[u32]>,
}

impl Traversers {
    /// The maximum number of users and groups together. Each takes an entry of the POSIX ACL that the kernel
    /// sees for every directory that not everybody may search.
    pub const MAX: usize = 64;

    /// `None` for more than [`Self::MAX`], and for the id -1, which is not valid.
    pub fn new(users: &[u32], groups: &[u32]) -> Option<Self> {
        let sorted = |ids: &[u32]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        let (users, groups) = (sorted(users), sorted(groups));
        let is_nobody = |ids: &[u32]| ids.last() == Some(&u32::MAX);
        if users.len() + groups.len() > Self::MAX || is_nobody(&users) || is_nobody(&groups) {
            return None;
        }
        Some(Traversers { users: users.into(), groups: groups.into() })
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// Whether the caller has the privilege, from its uid and primary gid only. `None` if that depends on its
    /// supplementary groups.
    pub fn holds_without_groups(&self, uid: u32, gid: u32) -> Option<bool> {
        let holds = self.users.binary_search(&uid).is_ok() || self.groups.binary_search(&gid).is_ok();
        (holds || self.groups.is_empty()).then_some(holds)
    }

    pub fn holds(&self, cred: &Cred) -> bool {
        self.users.binary_search(&cred.uid).is_ok() || self.groups.iter().any(|gid| cred.in_group(*gid))
    }

    /// The ACL with entries for the privilege in front.
    fn before(&self, acl: &Nfs4Acl) -> Nfs4Acl {
        let users = self.users.iter().filter_map(|uid| Some(Who::User(Id::system(*uid)?)));
        let groups = self.groups.iter().filter_map(|gid| Some(Who::NamedGroup(Id::system(*gid)?)));
        let added = users.chain(groups).map(|who| Entry::allow(who, Mask::SEARCH));
        Nfs4Acl::of_few(acl.flags(), added.chain(acl.entries().iter().copied()))
    }
}

/// Like [`project`], for a file with or without an ACL, if `traversers` may search every directory. `None` if
/// the mode alone grants the same.
///
/// A directory that everybody may search is shown as if there were no traversers. In a directory without an
/// ACL, `w` is not added to `x`, so removal needs the `w` of the mode.
pub fn project_for(
    acl: Option<&Nfs4Acl>,
    mode: Mode,
    (uid, gid): (u32, u32),
    is_dir: bool,
    traversers: &Traversers,
) -> Option<Projection> {
    if !is_dir || traversers.is_empty() || anyone_may_traverse(mode, acl) {
        return acl.map(|acl| project(acl, uid, gid, is_dir));
    }
    Some(match acl {
        Some(acl) => project(&traversers.before(acl), uid, gid, true),
        None => project(&traversers.before(&from_mode(mode, true)), uid, gid, false),
    })
}

/// The mode that a chmod should set. The requested mode may contain bits that were shown only because of
/// traversers: `shown` has these bits, `own` does not. If the requested bits of a class are those that were
/// shown, the class keeps only its own bits.
pub fn without_traverser_bits(asked: Mode, shown: u32, own: u32) -> Mode {
    [0o700, 0o070, 0o007].into_iter().fold(asked, |mode, class| {
        let is_as_shown = asked.rwx() & class == shown & class;
        if is_as_shown { mode.without(shown & !own & class) } else { mode }
    })
}

#[cfg(test)]
mod tests {
    use types::Caps;

    use crate::posix::{self, Perm};

    use super::*;

    fn traversers() -> Traversers {
        Traversers::new(&[7, 7], &[70]).unwrap()
    }

    fn shown(acl: Option<&str>, mode: u32) -> (u32, String, bool) {
        let acl = acl.map(|text| Nfs4Acl::from_storage(text).unwrap());
        match project_for(acl.as_ref(), Mode::new(mode), (1, 10), true, &traversers()) {
            None => (mode, "none".into(), true),
            Some(Projection { rwx, acl, search_is_exact }) => {
                (rwx, acl.map_or("none".into(), |acl| acl.to_storage()), search_is_exact)
            }
        }
    }

    #[test]
    fn closed_directory_shows_the_traversers() {
        for (mode, rwx, acl) in [
            (0o755, 0o755, "none"),
            (0o711, 0o711, "none"),
            (0o700, 0o710, "u::rwx,u:7:--x,g::---,g:70:--x,m::--x,o::---"),
            (0o750, 0o750, "u::rwx,u:7:r-x,g::r-x,g:70:--x,m::r-x,o::---"),
            // A named principal is no longer in the class of others.
            (0o704, 0o714, "u::rwx,u:7:r-x,g::---,g:70:r-x,m::r-x,o::r--"),
        ] {
            assert_eq!(shown(None, mode), (rwx, acl.to_owned(), true), "{mode:o}");
        }
        let private = Some("A::OWNER@:rwaxD,A::5:rx");
        let acl = "u::rwx,u:5:rwx,u:7:-wx,g::---,g:70:-wx,m::rwx,o::---";
        assert_eq!(shown(private, 0o700), (0o750, acl.to_owned(), true));
        let open = "u::r-x,g::rwx,o::rwx";
        assert_eq!(shown(Some("A::EVERYONE@:rx"), 0o555), (0o555, open.into(), true));
        // An owner without search permission may be a member of the group that has it.
        assert!(!shown(None, 0o600).2);
        let file = project_for(None, Mode::new(0o600), (1, 10), false, &traversers());
        assert_eq!(file, None);
        let nobody = Traversers::default();
        assert_eq!(project_for(None, Mode::new(0o700), (1, 10), true, &nobody), None);
    }

    /// Checks each mode with callers that differ in everything relevant: the kernel grants search if the mode
    /// or the privilege grants it, and grants everything else that the mode grants.
    #[test]
    fn projected_modes_are_exact_or_marked_inexact() {
        let traversers = traversers();
        for mode in (0..0o1000).map(Mode::new) {
            let shown = project_for(None, mode, (1, 10), true, &traversers);
            let (rwx, acl, exact) =
                shown.map_or((mode.rwx(), None, true), |of| (of.rwx, of.acl, of.search_is_exact));
            let inode = |mode, acl| posix::FileAttrs { uid: 1, gid: 10, mode, is_dir: true, acl };
            for uid in [1, 7, 8] {
                for groups in [&[][..], &[10], &[70], &[10, 70], &[11]] {
                    let cred = Cred::new(uid, 99, groups, Caps::NONE);
                    let by_mode = posix::decide(&cred, &inode(mode, None));
                    let by_shown = posix::decide(&cred, &inode(Mode::new(rwx), acl.as_ref()));
                    let search = by_mode.allows(Perm::EXECUTE) || traversers.holds(&cred);
                    let context = || format!("{mode} {cred:?} {acl:?}");
                    assert!(by_shown.allows(by_mode.each()), "{}", context());
                    assert!(!exact || by_shown.allows(Perm::EXECUTE) == search, "{}", context());
                    assert!(!search || by_shown.allows(Perm::EXECUTE), "{}", context());
                }
            }
            let owner_passes = mode.has(0o100);
            assert!(exact || !owner_passes, "{mode}: inexact for another reason than the owner");
        }
    }

    #[test]
    fn chmod_drops_bits_shown_only_for_traversers() {
        let (shown, own) = (0o710, 0o700);
        for (asked, meant) in
            [(0o710, 0o700), (0o2710, 0o2700), (0o750, 0o750), (0o755, 0o755), (0o510, 0o500), (0o711, 0o701)]
        {
            assert_eq!(without_traverser_bits(Mode::new(asked), shown, own), Mode::new(meant), "{asked:o}");
        }
    }

    #[test]
    fn traversers_are_users_and_group_members() {
        let traversers = traversers();
        let holds = |uid, gid, groups: &[u32]| traversers.holds(&Cred::new(uid, gid, groups, Caps::NONE));
        assert!(holds(7, 1, &[]) && holds(8, 70, &[]) && holds(8, 1, &(0..400).collect::<Vec<_>>()));
        assert!(!holds(70, 7, &[7]));
        assert_eq!(traversers.holds_without_groups(7, 1), Some(true));
        assert_eq!(traversers.holds_without_groups(8, 70), Some(true));
        assert_eq!(traversers.holds_without_groups(8, 1), None);
        assert_eq!(Traversers::new(&[7], &[]).unwrap().holds_without_groups(8, 1), Some(false));
        assert_eq!(Traversers::new(&[u32::MAX], &[]), None);
        assert_eq!(Traversers::new(&(0..40).collect::<Vec<_>>(), &(0..25).collect::<Vec<_>>()), None);
    }
}
