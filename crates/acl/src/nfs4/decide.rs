//! Decides which permissions the entries of an ACL, or a mode without an ACL, grant to a caller.
//!
//! The entries are read in stored order. For each permission, the first entry that applies to the caller and
//! contains the permission decides (RFC 8881 section 6.2.1). Several entries can apply to one caller: an
//! entry for `OWNER@` does not exclude entries for the owner's uid, for groups, or for everyone. A permission
//! that no entry contains is not granted, but it is not *denied* either. The difference matters for the
//! removal of a file, which the ACL of the file or that of its directory can grant (see `delete`).

use types::{Caps, Cred, Mode};

use crate::evaluate::{Class, Denial, Evaluation, Grant};
use crate::identity::Id;

use super::bits::{OF_EVERYONE, OF_OWNER, of_bits};
use super::{Entry, Kind, Mask, Nfs4Acl, Who};

/// The attributes of a file that its permissions depend on.
#[derive(Clone, Copy, Debug)]
pub struct FileAttrs<'a> {
    pub uid: u32,
    pub gid: u32,
    pub mode: Mode,
    pub is_dir: bool,
    /// `None` if the mode alone decides.
    pub acl: Option<&'a Nfs4Acl>,
}

/// The decision on each permission: granted, denied, or undecided. An undecided permission is in neither set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decision {
    pub granted: Mask,
    /// Permissions that a deny entry decided. No permission is both here and in `granted`.
    pub denied: Mask,
}

/// The caller, with everything that decides which entries apply to it.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub cred: &'a Cred,
    /// The caller's SIDs of Windows domains, sorted. A user and a group never have the same SID, so an entry
    /// for a SID applies to the caller whether the entry is for a user or for a group.
    pub sids: &'a [Id],
    pub is_owner: bool,
    pub in_owning_group: bool,
}

/// The permissions that an owner always has, even if an entry denies them, so that an owner can always repair
/// the ACL: to read and change the ACL (ZFS: `zfs_zaccess` and `secpolicy_vnode_setdac`), and to read and set
/// the attributes (ZFS: `secpolicy_vnode_setattr`; Linux: `setattr_prepare` lets owners set times).
pub const OWNER_RIGHTS: Mask =
    Mask::READ_ACL.with(Mask::WRITE_ACL).with(Mask::READ_ATTRIBUTES).with(Mask::WRITE_ATTRIBUTES);

/// The decision of the ACL, or of the mode if there is no ACL, on every permission. Capabilities are not
/// considered. `sids` are the caller's SIDs of Windows domains, sorted.
pub fn decide(cred: &Cred, sids: &[Id], file: &FileAttrs<'_>) -> Decision {
    let caller = Caller::new(cred, sids, file);
    match file.acl {
        Some(acl) => acl.decide(&caller),
        None => decide_by_mode(file.mode, file.is_dir, caller.class()),
    }
}

/// The decision of a mode without an ACL: the first class that applies decides, and nothing is denied.
pub(crate) fn decide_by_mode(mode: Mode, is_dir: bool, class: Class) -> Decision {
    let beside = if class == Class::Owner { OF_OWNER } else { OF_EVERYONE };
    Decision { granted: of_bits(class.rwx(mode), is_dir) | beside, denied: Mask::NONE }
}

/// The decision of a mode without an ACL, if only the caller's uid and primary group are known. `None` if the
/// decision depends on the caller's supplementary groups.
pub fn decide_without_groups(
    mode: Mode,
    is_dir: bool,
    is_owner: bool,
    in_owning_group_by_primary: bool,
) -> Option<Decision> {
    let rwx = mode.rwx();
    let is_known = is_owner || in_owning_group_by_primary || rwx >> 3 & 7 == rwx & 7;
    is_known.then(|| decide_by_mode(mode, is_dir, Class::of(is_owner, || in_owning_group_by_primary)))
}

impl Nfs4Acl {
    /// The decision of the entries, read one after the other, with [`OWNER_RIGHTS`] added for an owner.
    /// Equivalent to `zfs_zaccess_aces_check`. [`Compiled`](super::Compiled) gives the same decision faster.
    pub fn decide(&self, caller: &Caller<'_>) -> Decision {
        self.decision_for(|who| caller.matches(who)).for_owner(caller.is_owner)
    }

    /// The decision of the entries for the principals that `applies_to` accepts, read one after the other.
    pub(super) fn decision_for(&self, applies_to: impl Fn(Who) -> bool) -> Decision {
        let entries = self.entries().iter().filter(|entry| entry.is_effective() && applies_to(entry.who));
        entries.fold(Decision::default(), Decision::then)
    }

    /// The entries that apply to the caller, in stored order, with their indexes. The first one that contains
    /// a permission decides it.
    pub(super) fn entries_for<'a>(
        &'a self,
        caller: &'a Caller<'_>,
    ) -> impl Iterator<Item = (usize, &'a Entry)> {
        let applies = |entry: &Entry| entry.is_effective() && caller.matches(entry.who);
        self.entries().iter().enumerate().filter(move |(_, entry)| applies(entry))
    }
}

impl<'a> Caller<'a> {
    pub(super) fn new(cred: &'a Cred, sids: &'a [Id], file: &FileAttrs<'_>) -> Self {
        let (is_owner, in_owning_group) = (cred.uid == file.uid, cred.in_group(file.gid));
        Caller { cred, sids, is_owner, in_owning_group }
    }

    pub(super) fn class(&self) -> Class {
        Class::of(self.is_owner, || self.in_owning_group)
    }

    /// Whether entries for `who` apply to this caller.
    pub fn matches(&self, who: Who) -> bool {
        match who {
            Who::Owner => self.is_owner,
            Who::Group => self.in_owning_group,
            Who::Everyone => true,
            Who::User(id) | Who::NamedGroup(id) => match (id.to_system(), who) {
                (None, _) => self.sids.binary_search(&id).is_ok(),
                (Some(gid), Who::NamedGroup(_)) => self.cred.in_group(gid),
                (Some(uid), _) => self.cred.uid == uid,
            },
        }
    }
}

impl Decision {
    /// Whether every permission of `want` is granted.
    pub const fn allows(self, want: Mask) -> bool {
        self.granted.has(want)
    }

    /// The decision after the next entry, which must apply to the caller.
    pub(super) fn then(self, entry: &Entry) -> Self {
        self.then_mask(entry.mask, entry.is_allow())
    }

    /// As `then`, for an entry with this mask. The decisions of earlier entries stay.
    pub(super) fn then_mask(self, mask: Mask, is_allow: bool) -> Self {
        let open = mask.without(self.granted | self.denied);
        if is_allow {
            Decision { granted: self.granted | open, ..self }
        } else {
            Decision { denied: self.denied | open, ..self }
        }
    }

    /// Adds [`OWNER_RIGHTS`] if the caller is the owner.
    pub(super) fn for_owner(self, is_owner: bool) -> Self {
        if !is_owner {
            return self;
        }
        Decision { granted: self.granted | OWNER_RIGHTS, denied: self.denied.without(OWNER_RIGHTS) }
    }
}

/// Checks that the caller has every permission of `want`. `granted` are the permissions that mode, ACL and
/// ownership grant; capabilities can add the others. [`overrides`] explains `any_execute`.
///
/// # Errors
/// [`Denial::Acl`] if a permission is missing.
pub fn check(granted: Mask, caps: Caps, want: Mask, is_dir: bool, any_execute: bool) -> Evaluation {
    if granted.has(want) {
        return Ok(Grant::Acl);
    }
    let left = want.without(granted);
    if !overrides(caps, is_dir, any_execute).has(left) {
        return Err(Denial::Acl);
    }
    // `limen access explain` shows the result. If one capability is enough, return that one; otherwise all
    // capabilities of the caller.
    let known = [Caps::DAC_READ_SEARCH, Caps::DAC_OVERRIDE, Caps::FOWNER, Caps::CHOWN];
    let alone =
        known.into_iter().find(|one| caps.has(*one) && overrides(*one, is_dir, any_execute).has(left));
    Ok(Grant::Capability(alone.unwrap_or(caps)))
}

/// The permissions that capabilities add to the decision. `any_execute` says whether anybody may execute the
/// file; if not, no capability grants execution (`generic_permission`).
///
/// `CAP_DAC_OVERRIDE` grants reading, writing, execution, search and removal; `CAP_DAC_READ_SEARCH` grants
/// reading and search; `CAP_FOWNER` grants [`OWNER_RIGHTS`]; `CAP_CHOWN` grants the change of owner.
/// [`may_remove`](super::may_remove) handles the sticky bit.
pub fn overrides(caps: Caps, is_dir: bool, any_execute: bool) -> Mask {
    const READ: Mask =
        Mask::READ_DATA.with(Mask::READ_NAMED_ATTRS).with(Mask::READ_ATTRIBUTES).with(Mask::READ_ACL);
    const WRITE: Mask = Mask::WRITE_DATA
        .with(Mask::APPEND_DATA)
        .with(Mask::WRITE_NAMED_ATTRS)
        .with(Mask::DELETE)
        .with(Mask::DELETE_CHILD);
    let mut granted = Mask::NONE;
    if caps.has(Caps::DAC_READ_SEARCH) {
        granted |= if is_dir { READ | Mask::SEARCH } else { READ };
    }
    if caps.has(Caps::DAC_OVERRIDE) {
        granted |= READ | WRITE | Mask::SYNCHRONIZE;
        if is_dir || any_execute {
            granted |= Mask::EXECUTE;
        }
    }
    if caps.has(Caps::FOWNER) {
        granted |= OWNER_RIGHTS;
    }
    if caps.has(Caps::CHOWN) {
        granted |= Mask::WRITE_OWNER;
    }
    granted
}

/// Whether a file may be opened with this access. `APPEND_DATA` without `WRITE_DATA` permits only an open
/// with `O_APPEND`, as on ZFS (`zfs_zaccess_append`). All other writing needs `WRITE_DATA`, truncation
/// included.
pub fn may_open(granted: Mask, read: bool, write: bool, append: bool) -> bool {
    let may_write = granted.has(Mask::WRITE_DATA) || append && granted.has(Mask::APPEND_DATA);
    (!read || granted.has(Mask::READ_DATA)) && (!write || may_write)
}

/// Whether every caller may search a directory with this mode and ACL. With an ACL, an entry must allow the
/// search to everyone, and no entry before it may deny the search to anybody. The result is cached for each
/// ACL. If it is true, a search of a directory with this ACL needs no check of the caller.
pub fn anyone_may_traverse(mode: Mode, acl: Option<&Nfs4Acl>) -> bool {
    let Some(acl) = acl else { return mode.has(0o111) };
    let mut relevant =
        acl.entries().iter().filter(|entry| entry.is_effective() && entry.mask.has(Mask::SEARCH));
    let decisive = relevant.find(|entry| entry.kind == Kind::Deny || entry.who == Who::Everyone);
    decisive.is_some_and(|entry| entry.kind == Kind::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cred(uid: u32, groups: &[u32]) -> Cred {
        Cred::new(uid, 100, groups, Caps::NONE)
    }

    fn acl(text: &str) -> Nfs4Acl {
        Nfs4Acl::from_text(text).unwrap()
    }

    fn ask(text: &str, cred: &Cred) -> String {
        let acl = acl(text);
        let file = FileAttrs { uid: 1, gid: 10, mode: Mode::new(0), is_dir: false, acl: Some(&acl) };
        let Decision { granted, denied } = decide(cred, &["1-7".parse().unwrap()], &file);
        format!("{granted}-{denied}")
    }

    #[test]
    fn first_entry_with_the_permission_decides() {
        let stranger = cred(2, &[]);
        assert_eq!(ask("A::2:r,D::2:rw,A::EVERYONE@:rwx", &stranger), "rx-w");
        assert_eq!(ask("D::EVERYONE@:r,A::2:rw", &stranger), "w-r");
        assert_eq!(ask("A::3:r,A::EVERYONE@:x", &stranger), "x-");
    }

    #[test]
    fn every_entry_that_applies_counts() {
        assert_eq!(ask("A::OWNER@:w,A::1:r,A:g:10:x,A::EVERYONE@:a", &cred(1, &[10])), "rwaxtTcC-");
        assert_eq!(ask("A:g:5:r,D:g:6:r,A:g:6:w", &cred(2, &[5, 6])), "rw-");
        assert_eq!(ask("D:g:6:r,A:g:5:r", &cred(2, &[5, 6])), "-r");
        assert_eq!(ask("A::GROUP@:r,A:g:100:w", &cred(2, &[10])), "rw-");
    }

    #[test]
    fn uid_gid_and_rid_of_the_same_number_are_different_principals() {
        let text = "A::7:r,A:g:7:w,A::1-7:x,A:g:1-7:a,A::2-7:n";
        assert_eq!(ask(text, &cred(7, &[])), "rax-");
        assert_eq!(ask(text, &cred(2, &[7])), "wax-");
        assert_eq!(ask(text, &cred(2, &[])), "ax-");
    }

    #[test]
    fn inherit_only_audit_and_alarm_entries_decide_nothing() {
        assert_eq!(
            ask("D:fi:EVERYONE@:r,U:S:EVERYONE@:r,L:F:EVERYONE@:r,A::EVERYONE@:r", &cred(2, &[])),
            "r-"
        );
    }

    #[test]
    fn owners_keep_their_rights_against_deny_entries() {
        assert_eq!(ask("D::EVERYONE@:rwxcCtT", &cred(1, &[])), "tTcC-rwx");
        assert_eq!(ask("D::EVERYONE@:rwxcCtT", &cred(2, &[])), "-rwxtTcC");
    }

    #[test]
    fn append_permission_opens_only_for_append() {
        let (append, write) = (Mask::APPEND_DATA, Mask::WRITE_DATA);
        assert!(may_open(append, false, true, true) && !may_open(append, false, true, false));
        assert!(may_open(write, false, true, true) && may_open(write, false, true, false));
        assert!(!may_open(write, true, true, false) && may_open(Mask::READ_DATA, true, false, true));
    }

    #[test]
    fn capabilities_add_permissions() {
        assert!(!overrides(Caps::DAC_OVERRIDE, false, false).has(Mask::EXECUTE));
        assert!(overrides(Caps::DAC_OVERRIDE, true, false).has(Mask::SEARCH | Mask::DELETE_CHILD));
        assert!(!overrides(Caps::DAC_READ_SEARCH, false, true).has_any(Mask::EXECUTE | Mask::WRITE_DATA));
        assert!(overrides(Caps::DAC_READ_SEARCH, true, true).has(Mask::SEARCH));
        assert_eq!(overrides(Caps::CHOWN, false, true), Mask::WRITE_OWNER);
        assert_eq!(overrides(Caps::FOWNER, false, true), OWNER_RIGHTS);
        assert_eq!(overrides(Caps::NONE, true, true), Mask::NONE);
    }

    #[test]
    fn anyone_may_traverse_unless_an_entry_might_deny() {
        let anyone = |text| anyone_may_traverse(Mode::new(0o700), Some(&acl(text)));
        assert!(anyone("A::5:rwx,A::EVERYONE@:x,D::6:x"));
        assert!(anyone("D::6:w,A::EVERYONE@:rx"));
        assert!(anyone("D:fi:6:x,A::EVERYONE@:rx"));
        assert!(!anyone("D::6:x,A::EVERYONE@:rx"));
        assert!(!anyone("A::OWNER@:x,A::GROUP@:x"));
        assert!(!anyone("A:fi:EVERYONE@:x"));
        assert!(anyone_may_traverse(Mode::new(0o711), None));
        assert!(!anyone_may_traverse(Mode::new(0o710), None));
    }

    #[test]
    fn groups_matter_only_if_group_and_other_bits_differ() {
        let known = |bits, owner, group| decide_without_groups(Mode::new(bits), true, owner, group);
        assert_eq!(known(0o750, false, false), None);
        for (bits, owner, group) in
            [(0o755, false, false), (0o750, true, false), (0o750, false, true), (0o700, false, false)]
        {
            for in_group in [group, true] {
                let full = decide_by_mode(Mode::new(bits), true, Class::of(owner, || in_group));
                assert_eq!(known(bits, owner, group), Some(full), "{bits:o}");
            }
        }
    }
}
