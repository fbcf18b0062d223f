//! The POSIX ACL to show to the kernel, and to `getfacl`, in place of an NFSv4 ACL.
//!
//! The kernel checks path walks by it, unasked, so it should search exactly the directories that the NFSv4 ACL lets
//! callers search. All else is checked again by the NFSv4 ACL, so there it must only never be narrower: not for one
//! permission, nor for several wanted at once.
//!
//! For one permission, an NFSv4 ACL is a decision list: the first entry that is for the caller decides. Which entries
//! are for somebody depends on who he is, which a POSIX ACL tells apart (owner, named user, anyone else), and on which
//! groups he is in, which is where the two differ: of several groups the NFSv4 ACL lets the *first* decide, the POSIX
//! ACL lets *any* grant. So the projection of a permission is exact
//!
//! - for the owner and for a named user, if whatever group entries come first say the same as what decides without
//!   them, so that groups make no difference (or, for a user, if he fares exactly as everybody does, and so need not
//!   be named);
//! - for anyone else, if everyone is refused in the end, when no group is allowed after another was denied; and if
//!   everyone is allowed in the end, when each group that is allowed comes before all that are denied, or after all
//!   and is left out, and members of the owning group are not allowed by default past a denial of another group.
//!
//! Identities of domains count as groups that the POSIX ACL cannot name. Where there is no exact projection, this one
//! takes the wider side and says so. `tests/projection.rs` compares it with a search of all POSIX ACLs.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::Id;
use crate::posix::{self, Perm, PosixAcl, Tag};

use super::{Entry, Mask, Nfs4Acl, Who, reference};

/// What stands for an NFSv4 ACL before the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// The nine rwx bits to show, which a chmod sets ([`super::chmod`]). The owner's bits are what the owner may be granted.
    /// The group bits are what members of the owning group are granted, and what entries allow to other groups and to
    /// named users, like the mask of a POSIX ACL. The bits of others are what `EVERYONE@` is granted in the end.
    ///
    /// If the group bits are all clear, the kernel puts the ACL aside. Then no entry allows anything to a group or user, so
    /// that the mode alone is not narrower.
    pub rwx: u32,
    /// None where these bits say it all.
    pub acl: Option<PosixAcl>,
    /// Whether execution, which is search on directories, is granted to exactly those to whom the NFSv4 ACL grants it.
    pub search_is_exact: bool,
}

/// Projects the ACL of a file with this owner and owning group. In the POSIX ACL of a directory, each entry that grants
/// search grants `w` as well: the right to remove a file can come from the file's own ACL, of which the directory's knows
/// nothing. The mode bits do not, so that they are those of the last chmod.
pub fn project(acl: &Nfs4Acl, uid: u32, gid: u32, is_dir: bool) -> Projection {
    Projector::new(acl, uid, gid, is_dir).project()
}

/// What an ACL says of the three classes of a mode, in terms of [`BITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classes {
    /// What the owner may be granted, in some set of groups.
    pub owner: Mask,
    /// What a member of the owning group is granted if no other entry applies.
    pub group: Mask,
    /// What a caller is granted if no entry for a user or group applies.
    pub other: Mask,
    /// As [`Projection::rwx`].
    pub rwx: u32,
}

pub(super) fn classes(acl: &Nfs4Acl, uid: u32, gid: u32, is_dir: bool) -> Classes {
    Projector::new(acl, uid, gid, is_dir).classes()
}

/// The permissions that bear on rwx, each a decision list of its own.
const BITS: [Mask; 5] =
    [Mask::EXECUTE, Mask::READ_DATA, Mask::WRITE_DATA, Mask::APPEND_DATA, Mask::DELETE_CHILD];
/// The index of `EXECUTE` in [`BITS`].
const X: usize = 0;

/// What callers may be in or not, as far as an ACL can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Gid(u32),
    /// An identity of a domain, which no POSIX ACL names.
    Foreign(Id),
}

/// Where an entry stands, and what it says.
#[derive(Clone, Copy, Debug)]
struct Said {
    at: usize,
    allow: bool,
}

impl Said {
    /// A refusal behind all entries.
    const NOTHING: Said = Said { at: usize::MAX, allow: false };
}

/// The decision list of one permission for callers whom no entry names.
#[derive(Debug, Default)]
struct List {
    /// The first entry of each group, in order, up to the end.
    groups: Vec<(Group, Said)>,
    /// The first entry for everyone.
    everyone: Option<Said>,
    /// Where the first and the last of the groups' entries stand that allow.
    allowed: Option<(usize, usize)>,
    /// The same of those that deny.
    denied: Option<(usize, usize)>,
}

impl List {
    fn end(&self) -> Said {
        self.everyone.unwrap_or(Said::NOTHING)
    }

    /// What ends the list for somebody of whom another entry speaks, whatever groups he is in.
    fn end_for(&self, own: Option<Said>) -> Said {
        own.filter(|own| own.at < self.end().at).unwrap_or(self.end())
    }

    /// Adds the first entry of a group, which stands behind all those of other groups so far.
    fn push(&mut self, group: Group, said: Said) {
        self.groups.push((group, said));
        let span = if said.allow { &mut self.allowed } else { &mut self.denied };
        let (first, _) = span.unwrap_or((said.at, said.at));
        *span = Some((first, said.at));
    }

    /// Whether a group's entry in front of this place allows, or denies.
    fn any_before(&self, at: usize, allow: bool) -> bool {
        let span = if allow { self.allowed } else { self.denied };
        span.is_some_and(|(first, _)| first < at)
    }

    /// Whether a group's entry behind this place allows, or denies.
    fn any_behind(&self, at: usize, allow: bool) -> bool {
        let span = if allow { self.allowed } else { self.denied };
        span.is_some_and(|(_, last)| last > at)
    }

    /// Whether the caller may be granted it, in some set of groups.
    fn is_possible(&self, own: Option<Said>) -> bool {
        let end = self.end_for(own);
        end.allow || self.any_before(end.at, true)
    }

    /// Whether it is the same in any set of groups.
    fn is_constant(&self, own: Option<Said>) -> bool {
        let end = self.end_for(own);
        !self.any_before(end.at, !end.allow)
    }

    /// Whether the entry that speaks of him makes no difference, in any set of groups.
    fn is_as_for_all(&self, own: Option<Said>) -> bool {
        let end = self.end_for(own);
        end.at == self.end().at || end.allow == self.end().allow && !self.any_behind(end.at, !end.allow)
    }
}

/// The first entry on each permission that speaks of one user.
type Mentions = [Option<Said>; BITS.len()];

#[derive(Debug)]
struct Projector {
    is_dir: bool,
    own_group: u32,
    lists: [List; BITS.len()],
    owner: Mentions,
    users: BTreeMap<u32, Mentions>,
    /// Every group that entries name, with what a member of no other is granted, in the order of [`BITS`].
    groups: BTreeMap<Group, Mask>,
}

/// The groups to name for the sake of search.
#[derive(Debug)]
struct Plan {
    named: BTreeSet<u32>,
    /// Some of whom the NFSv4 ACL grants search could not be told apart, so everybody gets it.
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
        // Until here the masks told which permissions a group's entries had spoken of; now they tell what it has.
        for mask in projector.groups.values_mut() {
            *mask = granted(&projector.lists, |list| list.end().allow);
        }
        for (list, bit) in projector.lists.iter().zip(BITS) {
            for (group, said) in &list.groups {
                let mask = projector.groups.entry(*group).or_default();
                *mask = if said.allow { mask.with(bit) } else { mask.without(bit) };
            }
        }
        projector
    }

    /// Adds an entry that stands behind all those taken so far.
    fn take(&mut self, at: usize, entry: &Entry, owner: u32) {
        let said = Said { at, allow: entry.is_allow() };
        let group = match entry.who {
            Who::Owner => return mention(&mut self.owner, entry.mask, said),
            Who::Everyone => {
                for (list, _) in self.lists.iter_mut().zip(BITS).filter(|(_, bit)| entry.mask.has(*bit)) {
                    list.everyone.get_or_insert(said);
                }
                return;
            }
            Who::Group => Group::Gid(self.own_group),
            Who::User(id) | Who::NamedGroup(id) => match (id.to_system(), entry.who) {
                (None, _) => Group::Foreign(id),
                (Some(gid), Who::NamedGroup(_)) => Group::Gid(gid),
                (Some(uid), _) if uid == owner => return mention(&mut self.owner, entry.mask, said),
                (Some(uid), _) => return mention(self.users.entry(uid).or_default(), entry.mask, said),
            },
        };
        let spoken = self.groups.entry(group).or_default();
        for (list, bit) in self.lists.iter_mut().zip(BITS) {
            if entry.mask.has(bit) && !spoken.has(bit) && list.everyone.is_none() {
                list.push(group, said);
            }
        }
        *spoken |= entry.mask;
    }

    fn project(&self) -> Projection {
        // First all whom a POSIX ACL can tell apart by name, then only those whom search takes, then nobody.
        [false, true].into_iter().find_map(|few| self.named(few)).unwrap_or_else(|| self.unnamed())
    }

    /// Which groups to name, and whether search is then exact for callers whom no entry names. With `few`, groups are
    /// named for the sake of search alone. The module's header has the reasons.
    fn plan(&self, few: bool) -> Plan {
        let list = &self.lists[X];
        let gid = |group: &Group| match group {
            Group::Gid(gid) => Some(*gid),
            Group::Foreign(_) => None,
        };
        let allowed = || list.groups.iter().filter(|(_, said)| said.allow);
        let (named, is_exact): (BTreeSet<u32>, bool) = match (list.denied, list.end().allow) {
            // All who are not refused by name may, so that groups make no difference.
            (None, true) => (BTreeSet::new(), true),
            // Who is in no group that is allowed is refused, whether by another group or in the end.
            (denied, false) => {
                let is_exact = allowed().all(|(group, said)| {
                    gid(group).is_some() && denied.is_none_or(|(first, _)| said.at < first)
                });
                (allowed().filter_map(|(group, _)| gid(group)).collect(), is_exact)
            }
            (Some((first, last)), true) => {
                let own = Group::Gid(self.own_group);
                let is_told = |said: &Said| !said.allow || said.at < first;
                let is_exact = list.groups.iter().any(|(group, said)| *group == own && is_told(said))
                    && list.groups.iter().all(|(group, said)| match is_told(said) {
                        true => gid(group).is_some(),
                        false => said.at > last,
                    });
                let named = list.groups.iter().filter(|(_, said)| !is_exact || is_told(said));
                (named.filter_map(|(group, _)| gid(group)).collect(), is_exact)
            }
        };
        // Where nobody is allowed past a denial of another group, other groups can be named for reading and writing.
        let is_free = !few && (list.denied.is_none() || !list.end().allow);
        Plan {
            named: if is_free { self.groups.keys().filter_map(gid).collect() } else { named },
            all_search: !is_exact && allowed().any(|(group, _)| gid(group).is_none()),
            is_exact,
        }
    }

    /// The projection that names the planned groups, and of the users those whose right to search depends on no group,
    /// or with `few`, only those who fare unlike everybody. None if that is more than a POSIX ACL holds.
    fn named(&self, few: bool) -> Option<Projection> {
        let plan = self.plan(few);
        let mut is_exact = plan.is_exact && self.lists[X].is_constant(self.owner[X]);
        let mut users = BTreeMap::new();
        // What callers may be granted for whom the ACL has no entry of their own, and so any entry may have to stand.
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

    /// The projection that names nobody, for an ACL too long for any other.
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

    /// None if it is more than a POSIX ACL holds that programs can copy.
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
        let search_is_exact = if rwx & 0o070 == 0 { self.is_exact_aside() } else { search_is_exact };
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

    /// Whether the mode alone, without group bits, lets exactly those callers search that may. No entry allows it to anybody but
    /// the owner and everyone.
    fn is_exact_aside(&self) -> bool {
        let list = &self.lists[X];
        let own = Group::Gid(self.own_group);
        let is_denied = list.groups.iter().any(|(group, said)| *group != own && !said.allow)
            || self.users.values().any(|user| !list.end_for(user[X]).allow);
        list.is_constant(self.owner[X]) && !(list.end().allow && is_denied)
    }

    /// What the user may be granted, in some set of groups.
    fn possible(&self, user: &Mentions) -> Mask {
        let mut own = user.iter();
        granted(&self.lists, |list| list.is_possible(own.next().copied().flatten()))
    }

    /// What an entry of the POSIX ACL grants.
    fn perm(&self, mask: Mask) -> Perm {
        let perm = self.plain(mask);
        // See `project` for the right to remove.
        if self.is_dir && perm.has(Perm::EXECUTE) { perm | Perm::WRITE } else { perm }
    }

    /// What a class of the mode shows.
    fn plain(&self, mask: Mask) -> Perm {
        let writes = Mask::WRITE_DATA | Mask::APPEND_DATA;
        let write = mask.has_any(writes) || self.is_dir && mask.has(Mask::DELETE_CHILD);
        let bit = |set: bool, perm: Perm| if set { perm } else { Perm::NONE };
        bit(mask.has(Mask::READ_DATA), Perm::READ)
            | bit(write, Perm::WRITE)
            | bit(mask.has(Mask::EXECUTE), Perm::EXECUTE)
    }
}

/// Remembers what is said of each permission of the mask that nothing was said of before.
fn mention(mentions: &mut Mentions, mask: Mask, said: Said) {
    for (mentioned, _) in mentions.iter_mut().zip(BITS).filter(|(_, bit)| mask.has(*bit)) {
        mentioned.get_or_insert(said);
    }
}

/// The permissions whose lists fit, asked in the order of [`BITS`].
fn granted(lists: &[List; BITS.len()], mut is_granted: impl FnMut(&List) -> bool) -> Mask {
    lists.iter().zip(BITS).fold(
        Mask::NONE,
        |mask, (list, bit)| {
            if is_granted(list) { mask.with(bit) } else { mask }
        },
    )
}

/// One POSIX group entry must grant all that is wanted at once, while an NFSv4 ACL may grant it by several. Where for
/// any two entries one holds all that the other does, the larger grants what both do; else all get the union of r and
/// w, which leaves only x to differ.
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
    fn what_posix_can_say_is_exact() {
        for (text, rwx, acl) in [
            ("A::OWNER@:rwax,A::GROUP@:rwa,A::EVERYONE@:r", 0o764, "none"),
            ("A::OWNER@:rwax,A::GROUP@:rx,A::EVERYONE@:r", 0o754, "u::rwx,g::rwx,o::r--"),
            ("A::5:rx,A::OWNER@:rwax,D::5:r", 0o750, "u::rwx,u:5:rwx,g::---,m::rwx,o::---"),
            ("D::5:x,A::EVERYONE@:rx", 0o555, "u::r-x,u:5:r--,g::rwx,m::rwx,o::rwx"),
            // The owner may be in the group that is denied, but is allowed before.
            (
                "A::OWNER@:x,A::GROUP@:r,D::GROUP@:x,D:g:20:x,A::EVERYONE@:x",
                0o541,
                "u::r-x,g::r--,g:20:---,m::r--,o::-wx",
            ),
        ] {
            assert_eq!(projected(text), (rwx, acl.to_owned(), true), "{text}");
        }
    }

    /// The group bits are clear only if the ACL allows no group or user anything. The kernel then goes by the mode.
    #[test]
    fn clear_group_bits_put_the_acl_aside() {
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
    fn what_posix_cannot_say_is_wider() {
        for (text, acl) in [
            // Members of the owning group and of 20 are refused, but POSIX lets any of the groups grant.
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
    fn groups_that_grant_together_do_so_here() {
        let (rwx, acl, _) = projected("A::OWNER@:x,A:g:20:r,A:g:30:x");
        assert_eq!((rwx, acl.as_str()), (0o550, "u::r-x,g::rw-,g:20:rw-,g:30:rwx,m::rwx,o::---"));
    }

    #[test]
    fn what_is_too_long_names_nobody() {
        let many = |entry: &str| {
            let users: Vec<String> = (100..1000).map(|uid| entry.replace("UID", &uid.to_string())).collect();
            projected(&format!("{},A::EVERYONE@:x", users.join(",")))
        };
        assert_eq!(many("A::UID:r"), (0o151, "u::--x,g::rwx,o::rwx".into(), true));
        assert!(!many("D::UID:x").2);
        // Users who fare as everybody does in search give way to those who do not.
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
