//! The POSIX ACL to show to the kernel, and to `getfacl`, in place of an NFSv4 ACL.
//!
//! The kernel checks path lookups by this ACL without a request to the file system, so it should grant search
//! to exactly the callers to which the NFSv4 ACL grants it. For everything else, limenfs checks the NFSv4 ACL
//! again. There the POSIX ACL may grant too much but never too little, neither for one permission nor for
//! several requested at once.
//!
//! For one permission, an NFSv4 ACL is a decision list: the first entry that applies to the caller decides.
//! Which entries apply depends on the caller's user, which a POSIX ACL distinguishes (owner, named user,
//! anyone else), and on its groups. For groups the two families differ: in an NFSv4 ACL the *first* of
//! several groups decides, in a POSIX ACL *any* of them can grant. So the projection of a permission is exact
//! for these callers:
//!
//! - The owner or a named user, if its groups make no difference: consider the entry that decides if the
//!   caller is in no group; every group entry in front of it must decide the same way. A user for which the
//!   result is always the same as for everyone need not be named.
//! - Anyone else, if the list denies everyone at its end, and no group is allowed after another group was
//!   denied.
//! - Anyone else, if the list allows everyone at its end, each allowed group comes before all denied groups
//!   or after all of them, and the owning group is denied, or is allowed before all denied groups. A group
//!   that is allowed after the denied ones is not named. The owning group always has an entry in a POSIX ACL;
//!   if that entry allowed search only because everyone is allowed, a member of the owning group would be
//!   allowed although another of its groups is denied.
//!
//! A SID counts as a group that the POSIX ACL cannot name. If there is no exact projection, [`project`]
//! returns one that grants more and says so ([`Projection::search_is_exact`]). `tests/projection.rs` checks
//! this by trying all POSIX ACLs of a small world of users and groups.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::Id;
use crate::posix::{self, Perm, PosixAcl, Tag};

use super::{Entry, Mask, Nfs4Acl, Who, reference};

/// The mode and the POSIX ACL that the kernel sees in place of an NFSv4 ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// The nine rwx bits to show, which a chmod sets ([`super::chmod`]). The owner's bits are what the owner
    /// may be granted. The group bits are what members of the owning group are granted, and what entries
    /// allow to other groups and to named users, like the mask of a POSIX ACL. The bits of others are what
    /// `EVERYONE@` is granted at the end of the list.
    ///
    /// If the group bits are all clear, the kernel ignores the POSIX ACL and uses the mode. But then no entry
    /// of the NFSv4 ACL allows anything to a group or user, so the mode does not grant too little.
    pub rwx: u32,
    /// `None` if the mode with these bits grants the same.
    pub acl: Option<PosixAcl>,
    /// Whether execute (search on directories) is granted to exactly the callers to which the NFSv4 ACL
    /// grants it.
    pub search_is_exact: bool,
}

/// Projects the ACL of a file with this owner and owning group. In the POSIX ACL of a directory, each entry
/// that grants search also grants `w`, because the permission to remove a file can come from the file's own
/// ACL, which the directory's ACL does not know. The mode bits do not include this `w`, so that they remain
/// those of the last chmod.
///
/// The result depends on owner and owning group, not on the ACL alone: an entry for `OWNER@` does not
/// exclude entries for the owner's uid or groups, so the set of callers that an entry applies to changes
/// with the owner.
///
/// The kernel checks an owner by the mode bits only, never by the POSIX ACL. So an owner needs `w` in the
/// mode to remove names.
pub fn project(acl: &Nfs4Acl, uid: u32, gid: u32, is_dir: bool) -> Projection {
    Projector::new(acl, uid, gid, is_dir).project()
}

/// The permissions that an ACL gives to the three classes of a mode. The masks contain only permissions of
/// [`BITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classes {
    /// The permissions that the owner may be granted, depending on its groups.
    pub owner: Mask,
    /// The permissions that a member of the owning group is granted if no other entry applies.
    pub group: Mask,
    /// The permissions that a caller is granted if no entry for a user or group applies.
    pub other: Mask,
    /// As [`Projection::rwx`].
    pub rwx: u32,
}

pub(super) fn classes(acl: &Nfs4Acl, uid: u32, gid: u32, is_dir: bool) -> Classes {
    Projector::new(acl, uid, gid, is_dir).classes()
}

/// The permissions that affect rwx. Each has a decision list of its own.
const BITS: [Mask; 5] =
    [Mask::EXECUTE, Mask::READ_DATA, Mask::WRITE_DATA, Mask::APPEND_DATA, Mask::DELETE_CHILD];
/// The index of `EXECUTE` in [`BITS`].
const X: usize = 0;

/// A group, as far as an ACL can distinguish groups: a caller is in it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Gid(u32),
    /// A SID, which a POSIX ACL cannot name.
    Foreign(Id),
}

/// The position of an entry, and whether it allows.
#[derive(Clone, Copy, Debug)]
struct EntryEffect {
    at: usize,
    allow: bool,
}

impl EntryEffect {
    /// A denial behind all entries.
    const NOTHING: EntryEffect = EntryEffect { at: usize::MAX, allow: false };
}

/// The decision list of one permission for callers that no entry names as a user.
#[derive(Debug, Default)]
struct List {
    /// The first entry of each group, in order, up to the first entry for everyone.
    groups: Vec<(Group, EntryEffect)>,
    /// The first entry for everyone.
    everyone: Option<EntryEffect>,
    /// The positions of the first and the last group entry that allows.
    allowed: Option<(usize, usize)>,
    /// The positions of the first and the last group entry that denies.
    denied: Option<(usize, usize)>,
}

impl List {
    /// The entry that decides if no group entry applies.
    fn end(&self) -> EntryEffect {
        self.everyone.unwrap_or(EntryEffect::NOTHING)
    }

    /// The entry that ends the list for a user whose own first entry is `own`: it decides unless a group
    /// entry in front of it does.
    fn end_for(&self, own: Option<EntryEffect>) -> EntryEffect {
        own.filter(|own| own.at < self.end().at).unwrap_or(self.end())
    }

    /// Adds the first entry of a group. Its position is behind those of all groups added before.
    fn push(&mut self, group: Group, effect: EntryEffect) {
        self.groups.push((group, effect));
        let span = if effect.allow { &mut self.allowed } else { &mut self.denied };
        let (first, _) = span.unwrap_or((effect.at, effect.at));
        *span = Some((first, effect.at));
    }

    /// Whether a group entry in front of this position allows (or, with `allow` false, denies).
    fn any_before(&self, at: usize, allow: bool) -> bool {
        let span = if allow { self.allowed } else { self.denied };
        span.is_some_and(|(first, _)| first < at)
    }

    /// Whether a group entry behind this position allows (or, with `allow` false, denies).
    fn any_behind(&self, at: usize, allow: bool) -> bool {
        let span = if allow { self.allowed } else { self.denied };
        span.is_some_and(|(_, last)| last > at)
    }

    /// Whether the permission is granted with at least one set of groups.
    fn is_possible(&self, own: Option<EntryEffect>) -> bool {
        let end = self.end_for(own);
        end.allow || self.any_before(end.at, true)
    }

    /// Whether the result is the same for all sets of groups of the user.
    fn is_constant(&self, own: Option<EntryEffect>) -> bool {
        let end = self.end_for(own);
        !self.any_before(end.at, !end.allow)
    }

    /// Whether the user's own entry makes no difference, for all sets of groups of the user.
    fn is_as_for_all(&self, own: Option<EntryEffect>) -> bool {
        let end = self.end_for(own);
        end.at == self.end().at || end.allow == self.end().allow && !self.any_behind(end.at, !end.allow)
    }
}

/// For each permission, the first entry that names one user.
type Mentions = [Option<EntryEffect>; BITS.len()];

#[derive(Debug)]
struct Projector {
    is_dir: bool,
    own_group: u32,
    lists: [List; BITS.len()],
    owner: Mentions,
    users: BTreeMap<u32, Mentions>,
    /// Every group that entries name, with the permissions of [`BITS`] that a caller in only this group is
    /// granted.
    groups: BTreeMap<Group, Mask>,
}

/// The groups to name so that search is exact.
#[derive(Debug)]
struct Plan {
    named: BTreeSet<u32>,
    /// The NFSv4 ACL grants search to groups that a POSIX ACL cannot name, so everybody gets it.
    all_search: bool,
    is_exact: bool,
}

impl Projector {
    fn new(acl: &Nfs4Acl, owner: u32, gid: u32, is_dir: bool) -> Self {
        let mut projector = Projector {
            is_dir,
            own_group: gid,
            lists: Default::default(),
            owner: Mentions::default(),
            users: BTreeMap::new(),
            groups: BTreeMap::from([(Group::Gid(gid), Mask::NONE)]),
        };
        for (at, entry) in acl.entries().iter().enumerate().filter(|(_, entry)| entry.is_effective()) {
            projector.take(at, entry, owner);
        }
        // Until here, the mask of a group held the permissions that its entries decide. From here on it holds
        // the permissions that a caller in only this group is granted.
        for mask in projector.groups.values_mut() {
            *mask = granted(&projector.lists, |list| list.end().allow);
        }
        for (list, bit) in projector.lists.iter().zip(BITS) {
            for (group, effect) in &list.groups {
                let mask = projector.groups.entry(*group).or_default();
                *mask = if effect.allow { mask.with(bit) } else { mask.without(bit) };
            }
        }
        projector
    }

    /// Adds an entry. Its position is behind those of all entries added before.
    fn take(&mut self, at: usize, entry: &Entry, owner: u32) {
        let effect = EntryEffect { at, allow: entry.is_allow() };
        let group = match entry.who {
            Who::Owner => return mention(&mut self.owner, entry.mask, effect),
            Who::Everyone => {
                for (list, _) in self.lists.iter_mut().zip(BITS).filter(|(_, bit)| entry.mask.has(*bit)) {
                    list.everyone.get_or_insert(effect);
                }
                return;
            }
            Who::Group => Group::Gid(self.own_group),
            Who::User(id) | Who::NamedGroup(id) => match (id.to_system(), entry.who) {
                (None, _) => Group::Foreign(id),
                (Some(gid), Who::NamedGroup(_)) => Group::Gid(gid),
                (Some(uid), _) if uid == owner => return mention(&mut self.owner, entry.mask, effect),
                (Some(uid), _) => return mention(self.users.entry(uid).or_default(), entry.mask, effect),
            },
        };
        let decided = self.groups.entry(group).or_default();
        for (list, bit) in self.lists.iter_mut().zip(BITS) {
            if entry.mask.has(bit) && !decided.has(bit) && list.everyone.is_none() {
                list.push(group, effect);
            }
        }
        *decided |= entry.mask;
    }

    fn project(&self) -> Projection {
        // Try to name every principal that a POSIX ACL can name, then only those needed for search, then
        // none.
        [false, true].into_iter().find_map(|few| self.named(few)).unwrap_or_else(|| self.unnamed())
    }

    /// Selects the groups to name, and finds out whether search is then exact for callers that no entry names
    /// as a user. With `few`, only groups needed for search are named. The module header gives the reasons.
    fn plan(&self, few: bool) -> Plan {
        let list = &self.lists[X];
        let gid = |group: &Group| match group {
            Group::Gid(gid) => Some(*gid),
            Group::Foreign(_) => None,
        };
        let allowed = || list.groups.iter().filter(|(_, effect)| effect.allow);
        let (named, is_exact): (BTreeSet<u32>, bool) = match (list.denied, list.end().allow) {
            // Search is allowed unless a user entry denies it, so groups make no difference.
            (None, true) => (BTreeSet::new(), true),
            // A caller in no allowed group is denied, by a group entry or by the end of the list.
            (denied, false) => {
                let is_exact = allowed().all(|(group, effect)| {
                    gid(group).is_some() && denied.is_none_or(|(first, _)| effect.at < first)
                });
                (allowed().filter_map(|(group, _)| gid(group)).collect(), is_exact)
            }
            (Some((first, last)), true) => {
                let own = Group::Gid(self.own_group);
                let is_listed = |effect: &EntryEffect| !effect.allow || effect.at < first;
                let is_exact = list.groups.iter().any(|(group, effect)| *group == own && is_listed(effect))
                    && list.groups.iter().all(|(group, effect)| match is_listed(effect) {
                        true => gid(group).is_some(),
                        false => effect.at > last,
                    });
                let named = list.groups.iter().filter(|(_, effect)| !is_exact || is_listed(effect));
                (named.filter_map(|(group, _)| gid(group)).collect(), is_exact)
            }
        };
        // More groups can be named for `r` and `w`, unless a group is denied and the end of the list allows.
        let is_free = !few && (list.denied.is_none() || !list.end().allow);
        Plan {
            named: if is_free { self.groups.keys().filter_map(gid).collect() } else { named },
            all_search: !is_exact && allowed().any(|(group, _)| gid(group).is_none()),
            is_exact,
        }
    }

    /// The projection that names the planned groups and users. A user whose own entries do not change its
    /// search permission is not named if that permission depends on groups, or if `few` is set. `None` if the
    /// entries do not fit in a POSIX ACL.
    fn named(&self, few: bool) -> Option<Projection> {
        let plan = self.plan(few);
        let mut is_exact = plan.is_exact && self.lists[X].is_constant(self.owner[X]);
        let mut users = BTreeMap::new();
        // Permissions of users and groups that the projection does not name. All entries for groups and
        // others get them, because any of these entries may apply to such a caller.
        let mut extra = Mask::NONE;
        for (uid, mentions) in &self.users {
            let list = &self.lists[X];
            let is_constant = list.is_constant(mentions[X]);
            if list.is_as_for_all(mentions[X]) && (few || !is_constant) {
                extra |= self.possible(mentions).without(Mask::EXECUTE);
            } else {
                is_exact &= is_constant;
                users.insert(*uid, self.perm(self.possible(mentions)));
            }
        }
        for (group, mask) in &self.groups {
            let is_named = match group {
                Group::Gid(gid) => *gid == self.own_group || plan.named.contains(gid),
                Group::Foreign(_) => false,
            };
            if !is_named {
                extra |= mask.without(Mask::EXECUTE);
            }
        }
        if plan.all_search {
            extra |= Mask::EXECUTE;
        }
        let mut groups: BTreeMap<u32, Perm> = plan
            .named
            .iter()
            .chain([&self.own_group])
            .filter_map(|gid| Some((*gid, self.perm(*self.groups.get(&Group::Gid(*gid))? | extra))))
            .collect();
        widen_to_chain(&mut groups);
        let other = self.perm(granted(&self.lists, |list| list.end().allow) | extra);
        let own_group = groups.remove(&self.own_group).unwrap_or(Perm::ALL);
        self.build(users, own_group, groups, other, is_exact)
    }

    /// The projection that names no principal, for an ACL too long for the others.
    fn unnamed(&self) -> Projection {
        let list = &self.lists[X];
        let users_alike = self
            .users
            .values()
            .all(|user| list.is_constant(user[X]) && list.end_for(user[X]).allow == list.end().allow);
        let everything = self.groups.values().fold(Mask::NONE, |all, mask| all | *mask);
        let everything = self.users.values().fold(everything, |all, user| all | self.possible(user));
        let perm = self.perm(everything);
        let is_exact = users_alike && list.is_constant(None) && list.is_constant(self.owner[X]);
        let named = BTreeMap::new;
        self.build(named(), perm, named(), perm, is_exact).unwrap_or(Projection {
            rwx: self.classes().rwx,
            acl: None,
            search_is_exact: false,
        })
    }

    /// The projection with these entries. `None` if they do not fit in a POSIX ACL together with a reference.
    fn build(
        &self,
        users: BTreeMap<u32, Perm>,
        own_group: Perm,
        groups: BTreeMap<u32, Perm>,
        other: Perm,
        search_is_exact: bool,
    ) -> Option<Projection> {
        let rwx = self.classes().rwx;
        let entry = |tag, perm| posix::Entry { tag, perm };
        let mask = users.values().chain(groups.values()).fold(own_group, |all, perm| all | *perm);
        let names_any = !(users.is_empty() && groups.is_empty());
        let owner = Perm::new(rwx >> 6);
        let entries = users
            .iter()
            .map(|(uid, perm)| entry(Tag::User(*uid), *perm))
            .chain(groups.iter().map(|(gid, perm)| entry(Tag::Group(*gid), *perm)))
            .chain([entry(Tag::UserObj, owner), entry(Tag::GroupObj, own_group), entry(Tag::Other, other)])
            .chain(names_any.then_some(entry(Tag::Mask, mask)));
        let acl = PosixAcl::from_entries(entries).ok()?;
        if acl.entry_count() + reference::ENTRIES > PosixAcl::MAX_ENTRIES {
            return None;
        }
        let acl = if acl.equiv_mode() == (rwx, true) { None } else { Some(acl) };
        let search_is_exact = if rwx & 0o070 == 0 { self.mode_is_exact() } else { search_is_exact };
        Some(Projection { rwx, acl, search_is_exact })
    }

    fn classes(&self) -> Classes {
        let owner = self.possible(&self.owner);
        let group = self.groups[&Group::Gid(self.own_group)];
        let other = granted(&self.lists, |list| list.end().allow);
        let mut named = granted(&self.lists, |list| list.allowed.is_some());
        for user in self.users.values() {
            let mut own = user.iter();
            named |= granted(&self.lists, |list| {
                let own = own.next().copied().flatten();
                own.is_some_and(|own| own.allow && own.at < list.end().at)
            });
        }
        let bits = |mask| self.plain(mask).bits();
        let rwx = bits(owner) << 6 | bits(group | named) << 3 | bits(other);
        Classes { owner, group, other, rwx }
    }

    /// Whether the mode alone grants search to exactly the callers to which the ACL grants it, if the group
    /// bits are clear. If they are clear, no entry allows search to a group, or to a named user other than
    /// the owner.
    fn mode_is_exact(&self) -> bool {
        let list = &self.lists[X];
        let own = Group::Gid(self.own_group);
        let is_denied = list.groups.iter().any(|(group, effect)| *group != own && !effect.allow)
            || self.users.values().any(|user| !list.end_for(user[X]).allow);
        list.is_constant(self.owner[X]) && !(list.end().allow && is_denied)
    }

    /// The permissions that are granted to the user with at least one set of groups.
    fn possible(&self, user: &Mentions) -> Mask {
        let mut own = user.iter();
        granted(&self.lists, |list| list.is_possible(own.next().copied().flatten()))
    }

    /// The permissions of an entry of the POSIX ACL.
    fn perm(&self, mask: Mask) -> Perm {
        let perm = self.plain(mask);
        // See `project` for the reason of this `w`.
        if self.is_dir && perm.has(Perm::EXECUTE) { perm | Perm::WRITE } else { perm }
    }

    /// The bits that a class of the mode shows.
    fn plain(&self, mask: Mask) -> Perm {
        let writes = Mask::WRITE_DATA | Mask::APPEND_DATA;
        let write = mask.has_any(writes) || self.is_dir && mask.has(Mask::DELETE_CHILD);
        let bit = |set: bool, perm: Perm| if set { perm } else { Perm::NONE };
        bit(mask.has(Mask::READ_DATA), Perm::READ)
            | bit(write, Perm::WRITE)
            | bit(mask.has(Mask::EXECUTE), Perm::EXECUTE)
    }
}

/// Records `effect` for each permission of the mask that has no earlier entry.
fn mention(mentions: &mut Mentions, mask: Mask, effect: EntryEffect) {
    for (mentioned, _) in mentions.iter_mut().zip(BITS).filter(|(_, bit)| mask.has(*bit)) {
        mentioned.get_or_insert(effect);
    }
}

/// The permissions whose lists satisfy `is_granted`, which is called in the order of [`BITS`].
fn granted(lists: &[List; BITS.len()], mut is_granted: impl FnMut(&List) -> bool) -> Mask {
    lists.iter().zip(BITS).fold(
        Mask::NONE,
        |mask, (list, bit)| {
            if is_granted(list) { mask.with(bit) } else { mask }
        },
    )
}

/// Widens group entries until, of any two, one includes the other. In a POSIX ACL, one group entry must grant
/// everything that is requested at once, while several entries of an NFSv4 ACL may grant it together. If one
/// of two entries includes the other, it grants what both grant together. If two entries do not compare, all
/// entries get the union of r and w, so that they differ only in x.
fn widen_to_chain(groups: &mut BTreeMap<u32, Perm>) {
    let comparable = |a: Perm, b: Perm| a.has(b) || b.has(a);
    if groups.values().all(|a| groups.values().all(|b| comparable(*a, *b))) {
        return;
    }
    let all = groups.values().fold(Perm::NONE, |all, perm| all | *perm);
    for perm in groups.values_mut() {
        *perm = *perm | all & (Perm::READ | Perm::WRITE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn projected(text: &str) -> (u32, String, bool) {
        let acl = Nfs4Acl::from_storage(text).unwrap();
        let Projection { rwx, acl, search_is_exact } = project(&acl, 1, 10, true);
        (rwx, acl.map_or("none".into(), |acl| acl.to_storage()), search_is_exact)
    }

    #[test]
    fn acl_that_posix_can_express_projects_exactly() {
        for (text, rwx, acl) in [
            ("A::OWNER@:rwax,A::GROUP@:rwa,A::EVERYONE@:r", 0o764, "none"),
            ("A::OWNER@:rwax,A::GROUP@:rx,A::EVERYONE@:r", 0o754, "u::rwx,g::rwx,o::r--"),
            ("A::5:rx,A::OWNER@:rwax,D::5:r", 0o750, "u::rwx,u:5:rwx,g::---,m::rwx,o::---"),
            ("D::5:x,A::EVERYONE@:rx", 0o555, "u::r-x,u:5:r--,g::rwx,m::rwx,o::rwx"),
            // The owner may be in the denied group, but an entry in front of it allows the owner.
            (
                "A::OWNER@:x,A::GROUP@:r,D::GROUP@:x,D:g:20:x,A::EVERYONE@:x",
                0o541,
                "u::r-x,g::r--,g:20:---,m::r--,o::-wx",
            ),
        ] {
            assert_eq!(projected(text), (rwx, acl.to_owned(), true), "{text}");
        }
    }

    /// The group bits are clear only if the ACL allows nothing to any group or named user. The kernel then
    /// uses the mode.
    #[test]
    fn kernel_uses_the_mode_if_group_bits_are_clear() {
        for (text, rwx, exact) in [
            ("A::OWNER@:rx,D::GROUP@:rx,A::EVERYONE@:rx", 0o505, true),
            ("A::OWNER@:rx,D::5:rx,D::GROUP@:rx,A::EVERYONE@:rx", 0o505, false),
            ("A::OWNER@:rx,D:g:20:x,D::GROUP@:rx,A::EVERYONE@:rx", 0o505, false),
            ("A::OWNER@:rx,D::5:rx", 0o500, true),
            ("A::OWNER@:rx,A::5:d", 0o500, true),
        ] {
            let (shown, _, is_exact) = projected(text);
            assert_eq!((shown, is_exact), (rwx, exact), "{text}");
        }
    }

    #[test]
    fn acl_that_posix_cannot_express_projects_wider() {
        for (text, acl) in [
            // The NFSv4 ACL denies a caller in group 20 and in the owning group. In the POSIX ACL, the entry
            // of the owning group grants it.
            ("A::OWNER@:x,D:g:20:x,A::EVERYONE@:x", "u::--x,g::-wx,g:20:---,m::-wx,o::-wx"),
            ("A::OWNER@:x,D:g:20:x,A:g:30:x", "u::--x,g::---,g:20:---,g:30:-wx,m::-wx,o::---"),
            // The user may be in the group that is denied first.
            ("A::OWNER@:x,D:g:20:x,A::5:x", "u::--x,u:5:-wx,g::---,g:20:---,m::-wx,o::---"),
            ("A::OWNER@:x,A:g:1-7:x", "u::--x,g::-wx,o::-wx"),
        ] {
            let (_, got, exact) = projected(text);
            assert_eq!(got, acl, "{text}");
            assert!(!exact, "{text}");
        }
    }

    #[test]
    fn permissions_that_groups_grant_together_are_kept() {
        let (rwx, acl, _) = projected("A::OWNER@:x,A:g:20:r,A:g:30:x");
        assert_eq!((rwx, acl.as_str()), (0o550, "u::r-x,g::rw-,g:20:rw-,g:30:rwx,m::rwx,o::---"));
    }

    #[test]
    fn projection_of_a_long_acl_names_fewer_principals() {
        let many = |entry: &str| {
            let users: Vec<String> = (100..1000).map(|uid| entry.replace("UID", &uid.to_string())).collect();
            projected(&format!("{},A::EVERYONE@:x", users.join(",")))
        };
        assert_eq!(many("A::UID:r"), (0o151, "u::--x,g::rwx,o::rwx".into(), true));
        assert!(!many("D::UID:x").2);
        // Users that are granted search exactly as everybody is are not named, to make room for others.
        let groups: Vec<String> = (100..1000).map(|gid| format!("A:g:{gid}:r")).collect();
        let of_groups = projected(&format!("D::5:x,{},A::EVERYONE@:x", groups.join(",")));
        assert_eq!(of_groups, (0o551, "u::r-x,u:5:r--,g::rwx,m::rwx,o::rwx".into(), true));
        let few = projected(&format!(
            "D::5:x,{},A::EVERYONE@:x",
            (100..1000).map(|uid| format!("A::{uid}:r")).collect::<Vec<_>>().join(",")
        ));
        assert_eq!(few, (0o151, "u::--x,u:5:---,g::rwx,m::rwx,o::rwx".into(), true));
    }
}
