//! The mode and the ACL are two views of the same permissions: a change of one changes the other.

use types::{Errno, Mode};

use super::bits::{OF_EVERYONE, OF_OWNER, of_bits};
use super::compiled::applies_to;
use super::decide::decide_by_mode;
use super::project::classes;
use super::{AclError, AclFlags, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Who};
use crate::evaluate::Class;

/// The effect of a chmod on the ACL: the volume's `aclmode`, see `zfsprops(7)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AclMode {
    /// The ACL is removed. The mode alone decides.
    Discard,
    /// Entries for named principals stay. If the group bits change, these entries allow no more than the new
    /// group bits. If the new group bits lack `w`, they also lose the permissions that no mode expresses,
    /// such as to delete the file or to change its ACL.
    #[default]
    GroupMask,
    /// Entries for named principals stay. If the new group bits lack `r`, `w` or `x`, these entries lose the
    /// permissions that the letter stands for.
    Passthrough,
    /// A chmod fails with EPERM if the file has an ACL that says more than a mode.
    Restricted,
}

impl AclMode {
    pub const ALL: [AclMode; 4] =
        [AclMode::Discard, AclMode::GroupMask, AclMode::Passthrough, AclMode::Restricted];

    /// The value of the ZFS property.
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

/// The permissions of the three classes of a mode.
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

    /// The entries of an ACL that grants these permissions to the classes and contains `middle`. An NFSv4
    /// caller also gets what later entries allow. For example, the owner also gets what entries for the group
    /// and for everyone allow. So entries in front of `middle` deny to owner and group what their class
    /// lacks. Before these, an entry allows the owner what a denial to the group would take away. Behind
    /// `middle`, three entries grant the classes their permissions.
    fn around(self, middle: &Middle) -> impl Iterator<Item = Entry> + '_ {
        let Rights { owner, group, other } = self;
        // An entry of the middle may apply to the owner, for example because the owner is a member of a
        // group. If it denies a permission that the owner has, an entry in front of it must allow that
        // permission.
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

/// The entries in the middle of an ACL, between those that express its mode.
#[derive(Debug, Default)]
struct Middle {
    entries: Vec<Entry>,
    /// Permissions that these entries may allow to the owner. Those that the mode does not give the owner
    /// must be denied first.
    allowed_to_owner: Mask,
    /// Permissions that these entries may deny to the owner. Those that the mode gives the owner must be
    /// allowed first.
    denied_to_owner: Mask,
}

/// The ACL to show for a file without one, e.g. `A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:rtncy`.
pub fn from_mode(mode: Mode, is_dir: bool) -> Nfs4Acl {
    Nfs4Acl::of_few(AclFlags::NONE, Rights::of(mode, is_dir).around(&Middle::default()))
}

/// Sets the ACL of a file with this mode. Returns the new mode and the ACL to store, which is None if the
/// mode alone says the same. `kill_sgid` as in [`crate::posix::set_access`].
pub fn set(mode: Mode, is_dir: bool, acl: &Nfs4Acl, kill_sgid: bool) -> (Mode, Option<Nfs4Acl>) {
    let mode = if kill_sgid { mode.without(Mode::SGID) } else { mode };
    let acl = if is_dir { acl.clone() } else { acl.for_file() };
    (mode.without(0o777).with(acl.mode_bits()), acl.unless_trivial(is_dir))
}

/// Applies a chmod to a file with this ACL, owner and owning group. Returns the mode and the ACL to store.
/// Afterwards the file shows the requested mode ([`project`](super::project)), whatever the policy. Like
/// `zfs_acl_chmod_setattr`, except for bits that were already shown, as the next paragraph explains.
///
/// The caller has seen the mode that is shown. If a bit was shown and is requested, each class keeps exactly
/// the permissions of that bit that it had. So `chmod u+x`, which also sends the bits of group and others,
/// does not give the owning group a bit that was shown because an entry allows it to a named user. If a bit
/// was not shown and is requested, its class gets it. If a bit is not requested, its class loses it; if it is
/// a group bit, named users and groups lose it too, as by the mask of a POSIX ACL. No mask is stored: the
/// permissions that are kept and those that are added together show the requested mode.
///
/// Entries for named principals stay as the policy says, between the entries for owner, group and everyone.
/// The latter are replaced by those of the new mode. On a directory, inheritable entries stay for
/// inheritance. Nobody gains a permission except what the mode gives to the caller's class: see the test
/// `nobody_gains_more_than_the_mode_says`.
///
/// # Errors
/// EPERM under [`AclMode::Restricted`] if the file has an ACL; E2BIG if the new ACL has too many entries.
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

/// The entries that stay after a chmod. No effective entry allows more than `trim`.
///
/// Entries for owner, group and everyone are removed. If one of them denied a permission that a later entry
/// allows to a named principal, its removal must not make the later entry effective:
///
/// - If it denied the permission to everyone, the later entry loses it.
/// - If it denied the permission to the owning group, an entry in front of the later one denies it to the
///   owning group, unless the mode grants it to the group.
/// - If it denied the permission to the owner, an entry in front of all others denies it to `OWNER@`.
///
/// If an entry denies permissions to the owning group by its gid, it loses those that the mode grants to the
/// group.
fn keep(acl: &Nfs4Acl, rights: Rights, (uid, gid): (u32, u32), is_dir: bool, trim: Mask) -> Middle {
    let mut middle = Middle::default();
    // The permissions that the entries so far have decided for everyone, and those denied to everyone.
    let (mut decided, mut denied) = (Mask::NONE, Mask::NONE);
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
                        denied |= if is_allow { Mask::NONE } else { entry.mask.without(decided) };
                        decided |= entry.mask;
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

/// Puts the entries of a mode in front of and behind `entries`. Effective entries in `entries` allow no more
/// than `trim`.
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

/// The permissions that entries may allow under a mode with these group bits ([`AclMode::GroupMask`]).
/// Permissions that no mode expresses, such as to change attributes, to delete and to change the ACL, require
/// `w`.
pub(super) fn group_mask(mode: Mode, is_dir: bool) -> Mask {
    let group = of_bits(mode.rwx() >> 3, is_dir);
    if mode.has(0o020) { !of_bits(7, is_dir) | group } else { group | OF_EVERYONE }
}

impl Nfs4Acl {
    /// The nine rwx bits of a file with this ACL, RFC 8881 section 6.3.2: the permissions of `OWNER@`,
    /// `GROUP@` and `EVERYONE@`, each evaluated with its own entries and those for `EVERYONE@` only. `w`
    /// requires both `WRITE_DATA` and `APPEND_DATA`.
    pub fn mode_bits(&self) -> u32 {
        let class = |who: Who| {
            let granted = self.decision_for(|of| of == who || of == Who::Everyone).granted;
            let bit = |mask: Mask, bit: u32| if granted.has(mask) { bit } else { 0 };
            bit(Mask::READ_DATA, 4) | bit(Mask::WRITE_DATA | Mask::APPEND_DATA, 2) | bit(Mask::EXECUTE, 1)
        };
        class(Who::Owner) << 6 | class(Who::Group) << 3 | class(Who::Everyone)
    }

    /// Whether the ACL says no more than its mode, so that it is never stored: it names no user or group, has
    /// no flags, is not inheritable, and grants owner, group and others exactly what the mode grants. It must
    /// not deny DELETE either, because such a denial has priority over what the directory grants. Denials of
    /// other permissions make no difference.
    ///
    /// Decisions are compared, not entries, because tools write the same permissions in many ways.
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
                let by_acl = self.decision_for(|who| applies_to(who, is_owner, in_group)).for_owner(is_owner);
                let by_mode =
                    decide_by_mode(mode, is_dir, Class::of(is_owner, || in_group)).for_owner(is_owner);
                by_acl.granted == by_mode.granted && !by_acl.denied.has(Mask::DELETE)
            },
        )
    }

    /// The ACL to store: None if the mode says the same.
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
    fn every_mode_converts_to_a_trivial_acl_and_back() {
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
    fn policies_have_names() {
        assert!(AclMode::ALL.iter().all(|policy| AclMode::from_name(policy.name()) == Some(*policy)));
        assert_eq!(AclMode::from_name("none"), None);
    }

    #[test]
    fn acl_that_says_more_than_a_mode_is_not_trivial() {
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
        // DELETE_CHILD comes with `w` on a directory.
        assert!(!acl(&trivial).is_trivial(true));
        // Entries that come too late to decide anything make no difference, nor does the lack of permissions
        // that an owner always has.
        assert!(acl(&format!("{trivial},D::EVERYONE@:r")).is_trivial(false));
        assert!(acl(&trivial.replacen("tTnNcCoy", "nNoy", 1)).is_trivial(false));
    }

    #[test]
    fn mode_bits_count_special_entries_only() {
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

    /// `chmod u+x` sends all bits that stat(2) showed, and one more.
    #[test]
    fn chmod_does_not_give_the_group_the_bits_of_named_users() {
        let old = "D::8:r,A::7:rwC,A::OWNER@:rwatTnNcCoy,A::GROUP@:atncy,A::EVERYONE@:tncy";
        let shown = |text: &str| classes(&acl(text), 1, 10, false).rwx;
        assert_eq!(shown(old), 0o660);
        for policy in [AclMode::GroupMask, AclMode::Passthrough] {
            let new = chmodded(old, 0o760, false, policy);
            assert_eq!(new, old.replace("OWNER@:rwatT", "OWNER@:rwaxtT"), "{policy:?}");
            // A new bit is given to its class; a removed group bit is taken from named users too.
            let new = chmodded(old, 0o651, false, policy);
            let named = if policy == AclMode::GroupMask { "r" } else { "rC" };
            let own = "A::OWNER@:rwatTnNcCoy,A::GROUP@:xtncy,A::EVERYONE@:xtncy";
            assert_eq!(new, format!("D::OWNER@:x,D::8:r,A::7:{named},{own}"), "{policy:?}");
            assert_eq!(shown(&new), 0o651);
            assert_eq!(chmodded(old, 0o660, false, policy), old, "a chmod to the mode shown changes nothing");
        }
    }

    #[test]
    fn chmod_keeps_inheritable_entries() {
        assert_eq!(
            chmodded("A:fd:7:rwxC,A::OWNER@:rwaxD", 0o750, true, AclMode::GroupMask),
            "A::7:rx,A:fdi:7:rwxC,A::OWNER@:rwaxDtTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:tncy"
        );
    }

    #[test]
    fn chmod_gives_an_owner_named_by_entries_exactly_the_owner_bits() {
        let old = "D::1:w,A::1:x,A:g:20:x,A::OWNER@:r,A::EVERYONE@:r";
        let new = "A::OWNER@:rw,D::OWNER@:x,D::GROUP@:r,D::1:w,A::1:x,A:g:20:x,A::OWNER@:rwatTnNcCoy,\
                   A::GROUP@:tncy,A::EVERYONE@:rtncy";
        assert_eq!(chmodded(old, 0o614, false, AclMode::Passthrough), new);
    }

    /// A denial in front of an entry keeps its effect on that entry.
    #[test]
    fn chmod_keeps_denials_of_classes_for_named_principals() {
        let old = "D::EVERYONE@:w,D::GROUP@:x,A::7:rwx,A::OWNER@:rwa";
        assert_eq!(
            chmodded(old, 0o670, false, AclMode::Passthrough),
            "D::OWNER@:w,D::GROUP@:x,A::7:rx,A::OWNER@:ratTnNcCoy,A::GROUP@:watncy,A::EVERYONE@:tncy"
        );
    }
}
