//! The mode and the ACL are two views of the same permissions: who changes one changes the other.

use types::{Errno, Mode};

use super::project::classes;
use super::{AclError, AclFlags, Decision, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Who};
use crate::evaluate::Class;

/// What a chmod does to the ACL: the volume's `aclmode`, `zfsprops(7)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclMode {
    /// Nothing of the ACL stays but what the mode says.
    Discard,
    /// Entries for named principals stay. If the group bits change, none allows more than the new ones; without `w` also
    /// nothing that no mode speaks of, such as to delete the file and to change its ACL.
    #[default]
    GroupMask,
    /// Entries for named principals stay. They lose only those of the permissions that `r`, `w` and `x` stand for which
    /// the new group bits lack.
    Passthrough,
    /// A chmod of a file whose ACL says more than a mode is refused.
    Restricted,
}

impl AclMode {
    pub const ALL: [AclMode; 4] =
        [AclMode::Discard, AclMode::GroupMask, AclMode::Passthrough, AclMode::Restricted];

    /// As ZFS calls it.
    pub fn name(self) -> &'static str {
        match self {
            AclMode::Discard => "discard",
            AclMode::GroupMask => "groupmask",
            AclMode::Passthrough => "passthrough",
            AclMode::Restricted => "restricted",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// Seeing attributes, named attributes and ACL: what every class of a mode may.
pub(super) const OF_EVERYONE: Mask =
    Mask::READ_ATTRIBUTES.with(Mask::READ_NAMED_ATTRS).with(Mask::READ_ACL).with(Mask::SYNCHRONIZE);
/// What a mode's owner may beyond that.
pub(super) const OF_OWNER: Mask = OF_EVERYONE
    .with(Mask::WRITE_ATTRIBUTES)
    .with(Mask::WRITE_NAMED_ATTRS)
    .with(Mask::WRITE_ACL)
    .with(Mask::WRITE_OWNER);

/// The permissions that three bits rwx stand for. Writing to a directory includes removing from it.
pub(super) fn of_bits(rwx: u32, is_dir: bool) -> Mask {
    let bit = |set: bool, mask: Mask| if set { mask } else { Mask::NONE };
    bit(rwx & 4 != 0, Mask::READ_DATA)
        | bit(rwx & 2 != 0, Mask::WRITE_DATA | Mask::APPEND_DATA)
        | bit(rwx & 2 != 0 && is_dir, Mask::DELETE_CHILD)
        | bit(rwx & 1 != 0, Mask::EXECUTE)
}

/// What a mode without an ACL says: the first class that fits decides, and nothing is denied.
pub(crate) fn decide(mode: Mode, is_dir: bool, class: Class) -> Decision {
    let beside = if class == Class::Owner { OF_OWNER } else { OF_EVERYONE };
    Decision { granted: of_bits(class.rwx(mode), is_dir) | beside, denied: Mask::NONE }
}

/// What a mode without an ACL says to a caller of whom only user and primary group are known; none where it depends on
/// his other groups.
pub fn decide_without_groups(
    mode: Mode,
    is_dir: bool,
    is_owner: bool,
    in_owning_group_by_primary: bool,
) -> Option<Decision> {
    let rwx = mode.rwx();
    let is_known = is_owner || in_owning_group_by_primary || rwx >> 3 & 7 == rwx & 7;
    is_known.then(|| decide(mode, is_dir, Class::of(is_owner, || in_owning_group_by_primary)))
}

/// What the three classes of a mode may.
#[derive(Clone, Copy, Debug)]
struct Rights {
    owner: Mask,
    group: Mask,
    other: Mask,
}

impl Rights {
    fn of(mode: Mode, is_dir: bool) -> Self {
        let rwx = mode.rwx();
        let [owner, group, other] = [6, 3, 0].map(|shift| of_bits(rwx >> shift, is_dir));
        Rights { owner, group, other }
    }

    /// The entries that say so around `middle`: in front of it those which keep an owner or group with fewer rights from
    /// the rights of the classes behind, and at its end the three that every such ACL ends with.
    fn around(self, middle: &Middle) -> impl Iterator<Item = Entry> + '_ {
        let Rights { owner, group, other } = self;
        // The owner may be in the group, or meant by an entry of the middle. A right of the owner that such an entry
        // denies has to be given before.
        let front = [
            Entry::allow(Who::Owner, owner & (other.without(group) | middle.denied_to_owner)),
            Entry::deny(Who::Owner, (group | other | middle.allowed_to_owner).without(owner)),
            Entry::deny(Who::Group, other.without(group)),
        ];
        let end = [
            Entry::allow(Who::Owner, owner | OF_OWNER),
            Entry::allow(Who::Group, group | OF_EVERYONE),
            Entry::allow(Who::Everyone, other | OF_EVERYONE),
        ];
        let front = front.into_iter().filter(|entry| !entry.mask.is_none());
        front.chain(middle.entries.iter().copied()).chain(end)
    }
}

/// The entries of an ACL between those that its mode stands for.
#[derive(Debug, Default)]
struct Middle {
    entries: Vec<Entry>,
    /// What they may allow to the owner and shall not, if the mode does not.
    allowed_to_owner: Mask,
    /// What they may deny to the owner and shall not, if the mode allows it.
    denied_to_owner: Mask,
}

/// The ACL to show for a file that has none, e.g. `A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:rtncy`.
pub fn from_mode(mode: Mode, is_dir: bool) -> Nfs4Acl {
    Nfs4Acl::of_few(AclFlags::NONE, Rights::of(mode, is_dir).around(&Middle::default()))
}

/// Sets the ACL of a file with this mode, and gives the file's new mode and the ACL to store, which is none where the
/// mode alone says the same. `kill_sgid` as in [`crate::posix::set_access`].
pub fn set(mode: Mode, is_dir: bool, acl: &Nfs4Acl, kill_sgid: bool) -> (Mode, Option<Nfs4Acl>) {
    let mode = if kill_sgid { mode.without(Mode::SGID) } else { mode };
    let acl = if is_dir { acl.clone() } else { acl.for_file() };
    (mode.without(0o777).with(acl.mode_bits()), acl.unless_trivial(is_dir))
}

/// A chmod of a file with this ACL, owner and owning group: the mode and the ACL to store. Afterwards the file shows the
/// mode that was asked for ([`project`](super::project)), whatever the policy. Like `zfs_acl_chmod_setattr`, but for the
/// bits that are kept.
///
/// The caller has seen the mode that is shown. A bit that was shown and is asked for is kept: each class has of it what it
/// had. So `chmod u+x`, which sends the bits of group and others along, does not give the owning group what was shown
/// because an entry allows it to a named user. A bit that was not shown is given to its class. A bit that is not asked for
/// is taken from its class, and if it is a group bit, also from named users and groups, as by the mask of a POSIX ACL.
///
/// Entries for named principals stay as the policy says, and stand between those for owner, group and everyone. The latter
/// give way to those of the new mode. On a directory, entries that would be inherited stay for that. Nobody gains a
/// permission but what the mode gives to the caller's class: see the test `nobody_gains_more_than_the_mode_says`.
///
/// # Errors
/// EPERM under [`AclMode::Restricted`] where there is an ACL; E2BIG if the new entries do not fit.
pub fn chmod(
    acl: Option<&Nfs4Acl>,
    asked: Mode,
    (uid, gid): (u32, u32),
    is_dir: bool,
    policy: AclMode,
) -> Result<(Mode, Option<Nfs4Acl>), Errno> {
    let Some(acl) = acl else { return Ok((asked, None)) };
    let before = classes(acl, uid, gid, is_dir);
    match policy {
        AclMode::Restricted => return Err(Errno::EPERM),
        AclMode::Discard => return Ok((asked, None)),
        AclMode::GroupMask | AclMode::Passthrough => {}
    }
    let with = |acl: &Nfs4Acl| asked.without(0o777).with(acl.mode_bits());
    if asked.rwx() == before.rwx {
        return Ok((with(acl), Some(acl.clone())));
    }
    let class = |shift: u32, had: Mask| {
        let (asked, shown) = (asked.rwx() >> shift & 7, before.rwx >> shift & 7);
        had & of_bits(asked, is_dir) | of_bits(asked & !shown, is_dir)
    };
    let rights = Rights {
        owner: class(6, before.owner),
        group: class(3, before.group),
        other: class(0, before.other),
    };
    let bits = asked.rwx() >> 3 & 7;
    let trim = if policy == AclMode::GroupMask && bits != before.rwx >> 3 & 7 {
        group_mask(asked, is_dir)
    } else {
        !of_bits(7, is_dir) | of_bits(bits, is_dir)
    };
    let middle = keep(acl, rights, (uid, gid), is_dir, trim);
    let new = Nfs4Acl::new(acl.flags(), rights.around(&middle))?;
    Ok((with(&new), new.unless_trivial(is_dir)))
}

/// The entries that stay, where no effective one of them is to allow more than `trim`.
///
/// Entries for owner, group and everyone go. If one of them denied something that a later entry allows to a named principal,
/// that would come to life: what everyone was denied, the later entry loses; what members of the owning group were denied,
/// they are denied in front of the later entry, unless the mode gives it to them; what the owner was denied, `OWNER@` is
/// denied in front of all. An entry that denies to the owning group by its number loses what the mode gives to it.
fn keep(acl: &Nfs4Acl, rights: Rights, (uid, gid): (u32, u32), is_dir: bool, trim: Mask) -> Middle {
    let mut middle = Middle::default();
    // What the entries so far have said of everyone, and denied to others.
    let (mut said, mut denied) = (Mask::NONE, Mask::NONE);
    let (mut to_owner, mut to_group) = (Mask::NONE, Mask::NONE);
    let mut group_is_denied = rights.other.without(rights.group);
    for entry in acl.entries() {
        let is_inherited = is_dir && entry.is_inheritable();
        let heir = Entry { flags: entry.flags.with(EntryFlags::INHERIT_ONLY), ..*entry };
        if entry.who.is_special() {
            if entry.is_effective() {
                match (entry.who, entry.is_allow()) {
                    (Who::Owner, false) => to_owner |= entry.mask,
                    (Who::Group, false) => to_group |= entry.mask,
                    (Who::Everyone, is_allow) => {
                        denied |= if is_allow { Mask::NONE } else { entry.mask.without(said) };
                        said |= entry.mask;
                    }
                    _ => {}
                }
            }
            if is_inherited {
                middle.entries.push(heir);
            }
            continue;
        }
        if !entry.is_effective() {
            middle.entries.push(*entry);
            continue;
        }
        let may_be_owner = match entry.who {
            Who::User(id) => id.to_system().is_none_or(|id| id == uid),
            _ => true,
        };
        let rwx = of_bits(7, is_dir);
        let names_group = matches!(entry.who, Who::NamedGroup(id) if id.to_system() == Some(gid));
        let mask = match entry.is_allow() {
            true => entry.mask.without(denied) & trim,
            false if names_group => entry.mask.without(rights.group),
            false => entry.mask,
        };
        if entry.is_allow() {
            let of_group = (to_group & mask).without(rights.group | OF_EVERYONE | group_is_denied);
            if !of_group.is_none() {
                middle.entries.push(Entry::deny(Who::Group, of_group));
                middle.denied_to_owner |= of_group & rwx;
                group_is_denied |= of_group;
            }
            if may_be_owner {
                middle.allowed_to_owner |= mask & (rwx | to_owner.without(OF_OWNER));
            }
        } else if may_be_owner {
            middle.denied_to_owner |= mask & rwx;
        }
        if is_inherited && mask != entry.mask {
            middle.entries.push(Entry {
                flags: entry.flags.without(EntryFlags::OF_DIRECTORIES),
                mask,
                ..*entry
            });
            middle.entries.push(heir);
        } else {
            middle.entries.push(Entry { mask, ..*entry });
        }
    }
    middle
}

/// Entries with those of a mode in front of and behind them; none of those that have a say allows more than `trim`.
pub(super) fn around(
    flags: AclFlags,
    mut entries: Vec<Entry>,
    mode: Mode,
    is_dir: bool,
    trim: Mask,
) -> Result<Nfs4Acl, AclError> {
    for entry in entries.iter_mut().filter(|entry| entry.is_effective() && entry.kind == Kind::Allow) {
        entry.mask &= trim;
    }
    let middle = Middle { entries, ..Middle::default() };
    Nfs4Acl::new(flags, Rights::of(mode, is_dir).around(&middle))
}

/// What entries may allow under a mode with these group bits ([`AclMode::GroupMask`]). Permissions that no mode speaks of, such
/// as to change attributes, to delete and to change the ACL, go with `w`.
pub(super) fn group_mask(mode: Mode, is_dir: bool) -> Mask {
    let group = of_bits(mode.rwx() >> 3, is_dir);
    if mode.has(0o020) { !of_bits(7, is_dir) | group } else { group | OF_EVERYONE }
}

impl Nfs4Acl {
    /// The nine rwx bits of a file with this ACL, RFC 8881 section 6.3.2: what `OWNER@`, `GROUP@` and `EVERYONE@` may,
    /// each considered with everyone's entries only. Writing takes both `WRITE_DATA` and `APPEND_DATA`.
    pub fn mode_bits(&self) -> u32 {
        let class = |who: Who| {
            let granted = self
                .entries()
                .iter()
                .filter(|entry| entry.is_effective() && (entry.who == who || entry.who == Who::Everyone))
                .fold(Decision::default(), Decision::then)
                .granted;
            let bit = |mask: Mask, bit: u32| if granted.has(mask) { bit } else { 0 };
            bit(Mask::READ_DATA, 4) | bit(Mask::WRITE_DATA | Mask::APPEND_DATA, 2) | bit(Mask::EXECUTE, 1)
        };
        class(Who::Owner) << 6 | class(Who::Group) << 3 | class(Who::Everyone)
    }

    /// Whether the ACL says no more than its mode, and so is never stored: it names nobody, has no flags, would not be
    /// inherited, and lets owner, group and others do exactly what the mode does. That the right to delete is denied
    /// rather than not spoken of would make a difference, so that has to agree too; of other permissions it does not.
    pub fn is_trivial(&self, is_dir: bool) -> bool {
        let plain = |entry: &Entry| {
            entry.who.is_special() && entry.flags.is_none() && matches!(entry.kind, Kind::Allow | Kind::Deny)
        };
        if !self.flags().is_none() || !self.entries().iter().all(plain) {
            return false;
        }
        let mode = Mode::new(self.mode_bits());
        [(true, true), (true, false), (false, true), (false, false)].into_iter().all(
            |(is_owner, in_group)| {
                let said = self
                    .entries()
                    .iter()
                    .filter(|entry| match entry.who {
                        Who::Owner => is_owner,
                        Who::Group => in_group,
                        _ => true,
                    })
                    .fold(Decision::default(), Decision::then)
                    .for_owner(is_owner);
                let by_mode = decide(mode, is_dir, Class::of(is_owner, || in_group)).for_owner(is_owner);
                said.granted == by_mode.granted && !said.denied.has(Mask::DELETE)
            },
        )
    }

    /// What to store: none if the mode says the same.
    pub(super) fn unless_trivial(self, is_dir: bool) -> Option<Self> {
        (!self.is_trivial(is_dir)).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> Nfs4Acl {
        Nfs4Acl::from_storage(text).unwrap()
    }

    /// The ACL after a chmod of a file of user 1 and group 10.
    fn chmodded(text: &str, mode: u32, is_dir: bool, policy: AclMode) -> String {
        let (_, new) = chmod(Some(&acl(text)), Mode::new(mode), (1, 10), is_dir, policy).unwrap();
        new.map_or("none".into(), |acl| acl.to_storage())
    }

    #[test]
    fn every_mode_is_a_trivial_acl_and_back() {
        assert!(OF_OWNER.has(super::super::OWNER_RIGHTS));
        for bits in 0..0o1000 {
            for is_dir in [false, true] {
                let acl = from_mode(Mode::new(bits), is_dir);
                assert_eq!(acl.mode_bits(), bits);
                assert!(acl.is_trivial(is_dir), "{acl}");
                assert_eq!(
                    set(Mode::new(0o7000), is_dir, &acl, false),
                    (Mode::new(0o7000 | bits), None),
                    "{acl}"
                );
            }
        }
        assert_eq!(
            from_mode(Mode::new(0o604), false).to_storage(),
            "A::OWNER@:r,D::GROUP@:r,A::OWNER@:rwatTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:rtncy"
        );
    }

    #[test]
    fn groups_matter_only_where_the_classes_differ() {
        let known = |bits, owner, group| decide_without_groups(Mode::new(bits), true, owner, group);
        assert_eq!(known(0o750, false, false), None);
        for (bits, owner, group) in
            [(0o755, false, false), (0o750, true, false), (0o750, false, true), (0o700, false, false)]
        {
            for in_group in [group, true] {
                let full = decide(Mode::new(bits), true, Class::of(owner, || in_group));
                assert_eq!(known(bits, owner, group), Some(full), "{bits:o}");
            }
        }
    }

    #[test]
    fn policies_have_names() {
        assert!(AclMode::ALL.iter().all(|policy| AclMode::from_name(policy.name()) == Some(*policy)));
        assert_eq!(AclMode::from_name("none"), None);
    }

    #[test]
    fn what_says_more_than_a_mode_is_stored() {
        let trivial = from_mode(Mode::new(0o644), false).to_storage();
        for more in [
            trivial.replacen("A::OWNER@", "A:I:OWNER@", 1),
            trivial.replacen("A::OWNER@", "A:f:OWNER@", 1),
            format!("flags:p,{trivial}"),
            format!("{trivial},A::5:r"),
            format!("{trivial},U:S:EVERYONE@:w"),
            format!("D::EVERYONE@:d,{trivial}"),
            format!("A::EVERYONE@:d,{trivial}"),
            format!("D::EVERYONE@:c,{trivial}"),
            trivial.replacen("tncy", "tnc", 1),
        ] {
            assert!(!acl(&more).is_trivial(true), "{more}");
        }
        assert!(acl(&trivial).is_trivial(false));
        // DELETE_CHILD goes with writing to a directory.
        assert!(!acl(&trivial).is_trivial(true));
        // Entries that come too late to decide anything, and what owners may anyway.
        assert!(acl(&format!("{trivial},D::EVERYONE@:r")).is_trivial(false));
        assert!(acl(&trivial.replacen("tTnNcCoy", "nNoy", 1)).is_trivial(false));
    }

    #[test]
    fn the_mode_of_an_acl_counts_special_entries_only() {
        assert_eq!(acl("A::5:rwx,A::OWNER@:rwa,D::GROUP@:r,A::EVERYONE@:rx").mode_bits(), 0o715);
        assert_eq!(acl("A::OWNER@:w,A::GROUP@:a,A::EVERYONE@:r").mode_bits(), 0o444);
        assert_eq!(acl("A:fi:EVERYONE@:rwax").mode_bits(), 0);
    }

    #[test]
    fn setting_an_acl_sets_the_mode() {
        let named = acl("A::5:rwx,A::EVERYONE@:r");
        assert_eq!(set(Mode::new(0o7700), true, &named, true), (Mode::new(0o5444), Some(named)));
        let inherited = acl("A:fdi:5:r,A:d:EVERYONE@:x");
        assert_eq!(
            set(Mode::new(0o700), false, &inherited, false),
            (Mode::new(0o111), Some(acl("A::EVERYONE@:x")))
        );
    }

    #[test]
    fn chmod_follows_the_policy() {
        let old = "flags:a,D::5:w,A:fd:GROUP@:rwx,A::6:rwxd,A:I:EVERYONE@:rwx";
        assert_eq!(chmodded(old, 0o640, false, AclMode::Discard), "none");
        assert_eq!(
            chmodded(old, 0o640, false, AclMode::Passthrough),
            "flags:a,D::5:w,A::6:rd,A::OWNER@:rwtTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:tncy"
        );
        assert_eq!(
            chmodded(old, 0o640, false, AclMode::GroupMask),
            "flags:a,D::5:w,A::6:r,A::OWNER@:rwtTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:tncy"
        );
        assert_eq!(
            chmodded(old, 0o400, true, AclMode::Passthrough),
            "flags:a,D::5:w,A:fdi:GROUP@:rwx,A::6:d,A::OWNER@:rtTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:tncy"
        );
        let by = |acl: Option<&Nfs4Acl>| chmod(acl, Mode::new(0o640), (1, 10), false, AclMode::Restricted);
        assert_eq!(by(Some(&acl(old))), Err(Errno::EPERM));
        assert_eq!(by(None), Ok((Mode::new(0o640), None)));
        let full = Nfs4Acl::new(AclFlags::NONE, vec![acl(old).entries()[2]; Nfs4Acl::MAX_ENTRIES]).unwrap();
        let done = chmod(Some(&full), Mode::new(0o700), (1, 10), false, AclMode::Passthrough);
        assert_eq!(done, Err(Errno::E2BIG));
    }

    /// `chmod u+x` sends all bits that stat(2) showed, with one more.
    #[test]
    fn what_is_shown_of_others_is_not_given_to_the_group() {
        let old = "D::8:r,A::7:rwC,A::OWNER@:rwatTnNcCoy,A::GROUP@:atncy,A::EVERYONE@:tncy";
        let shown = |text: &str| classes(&acl(text), 1, 10, false).rwx;
        assert_eq!(shown(old), 0o660);
        for policy in [AclMode::GroupMask, AclMode::Passthrough] {
            let new = chmodded(old, 0o760, false, policy);
            assert_eq!(new, old.replace("OWNER@:rwatT", "OWNER@:rwaxtT"), "{policy:?}");
            // What was not shown is given, what is not asked for is taken from the named too.
            let new = chmodded(old, 0o651, false, policy);
            let named = if policy == AclMode::GroupMask { "r" } else { "rC" };
            let own = "A::OWNER@:rwatTnNcCoy,A::GROUP@:xtncy,A::EVERYONE@:xtncy";
            assert_eq!(new, format!("D::OWNER@:x,D::8:r,A::7:{named},{own}"), "{policy:?}");
            assert_eq!(shown(&new), 0o651);
            assert_eq!(chmodded(old, 0o660, false, policy), old, "as shown, so nothing changes");
        }
    }

    #[test]
    fn what_is_inherited_stays() {
        assert_eq!(
            chmodded("A:fd:7:rwxC,A::OWNER@:rwaxD", 0o750, true, AclMode::GroupMask),
            "A::7:rx,A:fdi:7:rwxC,A::OWNER@:rwaxDtTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:tncy"
        );
    }

    #[test]
    fn the_owner_has_what_the_mode_says_whoever_else_he_is() {
        let old = "D::1:w,A::1:x,A:g:20:x,A::OWNER@:r,A::EVERYONE@:r";
        let new = "A::OWNER@:rw,D::OWNER@:x,D::GROUP@:r,D::1:w,A::1:x,A:g:20:x,A::OWNER@:rwatTnNcCoy,\
                   A::GROUP@:tncy,A::EVERYONE@:rtncy";
        assert_eq!(chmodded(old, 0o614, false, AclMode::Passthrough), new);
    }

    /// What was denied before an entry allows it does not come to life.
    #[test]
    fn what_was_denied_to_a_class_stays_denied_to_the_named() {
        let old = "D::EVERYONE@:w,D::GROUP@:x,A::7:rwx,A::OWNER@:rwa";
        assert_eq!(
            chmodded(old, 0o670, false, AclMode::Passthrough),
            "D::OWNER@:w,D::GROUP@:x,A::7:rx,A::OWNER@:ratTnNcCoy,A::GROUP@:watncy,A::EVERYONE@:tncy"
        );
    }
}
