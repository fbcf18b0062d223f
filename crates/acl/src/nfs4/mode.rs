//! The mode and the ACL are two views of the same permissions: who changes one changes the other.

use types::{Errno, Mode};

use super::{AclError, AclFlags, Decision, Entry, EntryFlags, Kind, Mask, Nfs4Acl, Who};

/// What a chmod does to the ACL: the volume's `aclmode`, `zfsprops(7)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AclMode {
    /// Nothing of the ACL stays but what the mode says.
    #[default]
    Discard,
    /// Entries stay, and none allows more than the new mode's group bits.
    GroupMask,
    /// Entries for named principals stay as they are.
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
const OF_EVERYONE: Mask =
    Mask::READ_ATTRIBUTES.with(Mask::READ_NAMED_ATTRS).with(Mask::READ_ACL).with(Mask::SYNCHRONIZE);
/// What a mode's owner may beyond that.
const OF_OWNER: Mask = OF_EVERYONE
    .with(Mask::WRITE_ATTRIBUTES)
    .with(Mask::WRITE_NAMED_ATTRS)
    .with(Mask::WRITE_ACL)
    .with(Mask::WRITE_OWNER);

/// The permissions that three bits rwx stand for. Writing to a directory includes removing from it.
fn of_bits(rwx: u32, is_dir: bool) -> Mask {
    let bit = |set: bool, mask: Mask| if set { mask } else { Mask::NONE };
    bit(rwx & 4 != 0, Mask::READ_DATA)
        | bit(rwx & 2 != 0, Mask::WRITE_DATA | Mask::APPEND_DATA)
        | bit(rwx & 2 != 0 && is_dir, Mask::DELETE_CHILD)
        | bit(rwx & 1 != 0, Mask::EXECUTE)
}

/// What a mode without an ACL says: the first class that fits decides, and nothing is denied.
pub(crate) fn decide(mode: Mode, is_dir: bool, is_owner: bool, in_owning_group: bool) -> Decision {
    let rwx = mode.rwx();
    let granted = if is_owner {
        of_bits(rwx >> 6, is_dir) | OF_OWNER
    } else if in_owning_group {
        of_bits(rwx >> 3, is_dir) | OF_EVERYONE
    } else {
        of_bits(rwx, is_dir) | OF_EVERYONE
    };
    Decision { granted, denied: Mask::NONE }
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
    is_known.then(|| decide(mode, is_dir, is_owner, in_owning_group_by_primary))
}

/// The entries that say what a mode says: those in front, which keep an owner or group with fewer rights from those of
/// the classes behind, and the three that every such ACL ends with.
fn entries_of(mode: Mode, is_dir: bool) -> (Vec<Entry>, [Entry; 3]) {
    let rwx = mode.rwx();
    let [owner, group, other] = [6, 3, 0].map(|shift| of_bits(rwx >> shift, is_dir));
    // An owner's right that the group lacks but others have has to be given before the group is denied it, for the
    // owner may be in the group.
    let front = [
        Entry::allow(Who::Owner, owner & other.without(group)),
        Entry::deny(Who::Owner, (group | other).without(owner)),
        Entry::deny(Who::Group, other.without(group)),
    ];
    let front = front.into_iter().filter(|entry| !entry.mask.is_none()).collect();
    let end = [
        Entry::allow(Who::Owner, owner | OF_OWNER),
        Entry::allow(Who::Group, group | OF_EVERYONE),
        Entry::allow(Who::Everyone, other | OF_EVERYONE),
    ];
    (front, end)
}

/// The ACL to show for a file that has none, e.g. `A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:rtncy`.
pub fn from_mode(mode: Mode, is_dir: bool) -> Nfs4Acl {
    let (front, end) = entries_of(mode, is_dir);
    Nfs4Acl::of_few(AclFlags::NONE, front.into_iter().chain(end))
}

/// Sets the ACL of a file with this mode, and gives the file's new mode and the ACL to store, which is none where the
/// mode alone says the same. `kill_sgid` as in [`crate::posix::set_access`].
pub fn set(mode: Mode, is_dir: bool, acl: &Nfs4Acl, kill_sgid: bool) -> (Mode, Option<Nfs4Acl>) {
    let mode = if kill_sgid { mode.without(Mode::SGID) } else { mode };
    let acl = if is_dir { acl.clone() } else { acl.for_file() };
    (mode.without(0o777).with(acl.mode_bits()), acl.unless_trivial(is_dir))
}

/// A chmod of a file with this ACL: the ACL to store with the new mode. Twin of `zfs_acl_chmod_setattr`.
///
/// The entries for owner, group and everyone give way to those of the new mode; where they would be inherited, they
/// stay for that alone. Named entries and the flags of the list stay as the policy says.
///
/// # Errors
/// EPERM under [`AclMode::Restricted`] where there is an ACL; E2BIG if the new entries do not fit.
pub fn chmod(
    acl: Option<&Nfs4Acl>,
    mode: Mode,
    is_dir: bool,
    policy: AclMode,
) -> Result<Option<Nfs4Acl>, Errno> {
    let Some(acl) = acl else { return Ok(None) };
    let kept = match policy {
        AclMode::Restricted => return Err(Errno::EPERM),
        AclMode::Discard => Vec::new(),
        AclMode::GroupMask | AclMode::Passthrough => acl
            .entries()
            .iter()
            .filter(|entry| !entry.who.is_special() || is_dir && entry.is_inheritable())
            .map(|entry| match entry.who.is_special() {
                true => Entry { flags: entry.flags.with(EntryFlags::INHERIT_ONLY), ..*entry },
                false => *entry,
            })
            .collect(),
    };
    let flags = if policy == AclMode::Discard { AclFlags::NONE } else { acl.flags() };
    let new = around(flags, kept, mode, is_dir, policy == AclMode::GroupMask)?;
    Ok(new.unless_trivial(is_dir))
}

/// Entries with those of a mode in front of and behind them; with `trim`, none of them allows more than the mode's
/// group bits. Twin of `zfs_acl_chmod`.
pub(super) fn around(
    flags: AclFlags,
    mut entries: Vec<Entry>,
    mode: Mode,
    is_dir: bool,
    trim: bool,
) -> Result<Nfs4Acl, AclError> {
    let (front, end) = entries_of(mode, is_dir);
    if trim {
        let [_, group, _] = end;
        for entry in entries.iter_mut().filter(|entry| entry.is_effective() && entry.kind == Kind::Allow) {
            entry.mask &= group.mask;
        }
    }
    Nfs4Acl::new(flags, front.into_iter().chain(entries).chain(end))
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
                let by_mode = decide(mode, is_dir, is_owner, in_group).for_owner(is_owner);
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

    fn chmodded(text: &str, mode: u32, is_dir: bool, policy: AclMode) -> String {
        let new = chmod(Some(&acl(text)), Mode::new(mode), is_dir, policy).unwrap();
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
                let full = decide(Mode::new(bits), true, owner, in_group);
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

    const OWN: &str = "A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:tncy";

    #[test]
    fn chmod_follows_the_policy() {
        let old = "flags:a,D::5:w,A:fd:GROUP@:rwx,A::6:rwx,A:I:EVERYONE@:rwx";
        assert_eq!(chmodded(old, 0o640, false, AclMode::Discard), "none");
        assert_eq!(
            chmodded(old, 0o640, false, AclMode::Passthrough),
            format!("flags:a,D::5:w,A::6:rwx,{OWN}")
        );
        assert_eq!(chmodded(old, 0o640, false, AclMode::GroupMask), format!("flags:a,D::5:w,A::6:r,{OWN}"));
        assert_eq!(
            chmodded(old, 0o400, true, AclMode::Passthrough),
            "flags:a,D::5:w,A:fdi:GROUP@:rwx,A::6:rwx,A::OWNER@:rtTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:tncy"
        );
        assert_eq!(chmod(Some(&acl(old)), Mode::new(0o640), false, AclMode::Restricted), Err(Errno::EPERM));
        assert_eq!(chmod(None, Mode::new(0o640), false, AclMode::Restricted), Ok(None));
    }

    #[test]
    fn chmod_sets_the_mode_it_was_given() {
        let old = acl("D::EVERYONE@:rwx,A::6:rwx,A:fd:OWNER@:rwaxD");
        for policy in [AclMode::Passthrough, AclMode::GroupMask] {
            for bits in 0..0o1000 {
                let new = chmod(Some(&old), Mode::new(bits), true, policy).unwrap().unwrap();
                assert_eq!(new.mode_bits(), bits, "{new}");
            }
        }
        let full = Nfs4Acl::new(AclFlags::NONE, vec![old.entries()[1]; Nfs4Acl::MAX_ENTRIES]).unwrap();
        assert_eq!(chmod(Some(&full), Mode::new(0o700), false, AclMode::Passthrough), Err(Errno::E2BIG));
    }
}
