//! Who may do what.
//!
//! The entries are read in stored order, and for each permission the first that is for the caller and speaks of it
//! decides (RFC 8881 section 6.2.1). Several entries are for the same caller: `OWNER@` takes nothing away from the
//! entries for the owner's name, groups, and everyone. What no entry speaks of is refused, but not *denied*: the two
//! differ where a permission can come from two places, as that to delete does.

use types::{Caps, Cred, Mode};

use crate::evaluate::{Class, Denial, Evaluation, Grant};
use crate::identity::Id;

use super::{Entry, EntryFlags, Kind, Mask, Nfs4Acl, Who, mode};

/// What a permission depends on, of the file it is for.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub uid: u32,
    pub gid: u32,
    pub mode: Mode,
    pub is_dir: bool,
    /// None where the mode says it all.
    pub acl: Option<&'a Nfs4Acl>,
}

/// What the entries say: granted, denied, or (in neither set) nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decision {
    pub granted: Mask,
    /// By an entry that denies. Disjoint from `granted`.
    pub denied: Mask,
}

/// The caller as entries see it.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub cred: &'a Cred,
    /// What else the caller is, of any domain, sorted. A SID says of itself whether it is a user's or a group's, so an
    /// entry for it holds whichever of the two the entry takes it for.
    pub sids: &'a [Id],
    pub is_owner: bool,
    pub in_owning_group: bool,
}

/// What an owner may do whatever the entries say, so that nobody shuts himself out for good: see and change the ACL
/// (ZFS: `zfs_zaccess` and `secpolicy_vnode_setdac`), see the attributes, and set them (`secpolicy_vnode_setattr`; the
/// Linux kernel lets owners set times too, `setattr_prepare`).
pub const OWNER_RIGHTS: Mask =
    Mask::READ_ACL.with(Mask::WRITE_ACL).with(Mask::READ_ATTRIBUTES).with(Mask::WRITE_ATTRIBUTES);

/// Everything that mode or ACL say to the caller, capabilities aside. `sids` are the caller's identities of domains,
/// sorted.
pub fn decide(cred: &Cred, sids: &[Id], node: &Node<'_>) -> Decision {
    let caller = Caller::new(cred, sids, node);
    match node.acl {
        Some(acl) => acl.decide(&caller),
        None => mode::decide(node.mode, node.is_dir, caller.class()),
    }
}

impl Nfs4Acl {
    /// What the entries say to the caller, read one after the other; the rights of owners are in it. Twin of
    /// `zfs_zaccess_aces_check`. The compiled form gives the same answers faster.
    pub fn decide(&self, caller: &Caller<'_>) -> Decision {
        self.entries_for(caller)
            .fold(Decision::default(), |decision, (_, entry)| decision.then(entry))
            .for_owner(caller.is_owner)
    }

    /// The entries that speak to the caller, in stored order, with their indexes. The first that has a permission decides
    /// it.
    pub(super) fn entries_for<'a>(
        &'a self,
        caller: &'a Caller<'_>,
    ) -> impl Iterator<Item = (usize, &'a Entry)> {
        let speaks = |entry: &Entry| entry.is_effective() && caller.is_meant(entry.who);
        self.entries().iter().enumerate().filter(move |(_, entry)| speaks(entry))
    }
}

impl<'a> Caller<'a> {
    pub(super) fn new(cred: &'a Cred, sids: &'a [Id], node: &Node<'_>) -> Self {
        let (is_owner, in_owning_group) = (cred.uid == node.uid, cred.in_group(node.gid));
        Caller { cred, sids, is_owner, in_owning_group }
    }

    pub(super) fn class(&self) -> Class {
        Class::of(self.is_owner, || self.in_owning_group)
    }

    /// Whether entries for `who` are for this caller.
    pub fn is_meant(&self, who: Who) -> bool {
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
    /// Whether all of `want` is granted.
    pub const fn allows(self, want: Mask) -> bool {
        self.granted.has(want)
    }

    /// Takes in an entry for the caller that stands behind all those taken in so far.
    pub(super) fn then(self, entry: &Entry) -> Self {
        self.then_mask(entry.mask, entry.is_allow())
    }

    pub(super) fn then_mask(self, mask: Mask, is_allow: bool) -> Self {
        let open = mask.without(self.granted | self.denied);
        if is_allow {
            Decision { granted: self.granted | open, ..self }
        } else {
            Decision { denied: self.denied | open, ..self }
        }
    }

    pub(super) fn for_owner(self, is_owner: bool) -> Self {
        if !is_owner {
            return self;
        }
        Decision { granted: self.granted | OWNER_RIGHTS, denied: self.denied.without(OWNER_RIGHTS) }
    }
}

/// Whether the caller may do all of `want`: by what mode, ACL and ownership grant, else by a capability.
///
/// # Errors
/// [`Denial::Acl`].
pub fn check(granted: Mask, caps: Caps, want: Mask, is_dir: bool, any_execute: bool) -> Evaluation {
    if granted.has(want) {
        return Ok(Grant::Acl);
    }
    let left = want.without(granted);
    if !overrides(caps, is_dir, any_execute).has(left) {
        return Err(Denial::Acl);
    }
    let known = [Caps::DAC_READ_SEARCH, Caps::DAC_OVERRIDE, Caps::FOWNER, Caps::CHOWN];
    let alone =
        known.into_iter().find(|one| caps.has(*one) && overrides(*one, is_dir, any_execute).has(left));
    Ok(Grant::Capability(alone.unwrap_or(caps)))
}

/// What capabilities let the caller do beyond the decision. `any_execute` says whether anybody may execute the file;
/// if not, nobody's capability helps (`generic_permission`).
///
/// `CAP_DAC_OVERRIDE` is for the contents, names and removal, `CAP_DAC_READ_SEARCH` for reading, `CAP_FOWNER` for what
/// owners may do, `CAP_CHOWN` for giving away. The sticky bit is a matter of
/// [`may_remove`](super::may_remove).
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

/// Whether a file may be opened so. Whoever may only append (`APPEND_DATA` without `WRITE_DATA`) may open with
/// `O_APPEND`, as on ZFS (`zfs_zaccess_append`); all other writing needs `WRITE_DATA`, truncation included.
pub fn may_open(granted: Mask, read: bool, write: bool, append: bool) -> bool {
    let may_write = granted.has(Mask::WRITE_DATA) || append && granted.has(Mask::APPEND_DATA);
    (!read || granted.has(Mask::READ_DATA)) && (!write || may_write)
}

/// Whether every caller at all may search a directory with this mode and ACL: nobody is denied it before everyone is
/// allowed it. Worked out once for an inode, it spares every later check (requirement C).
pub fn anyone_may_traverse(mode: Mode, acl: Option<&Nfs4Acl>) -> bool {
    let Some(acl) = acl else { return mode.has(0o111) };
    let mut speaking =
        acl.entries().iter().filter(|entry| entry.is_effective() && entry.mask.has(Mask::SEARCH));
    let decisive = speaking.find(|entry| entry.kind == Kind::Deny || entry.who == Who::Everyone);
    decisive.is_some_and(|entry| entry.kind == Kind::Allow)
}

impl Entry {
    /// Whether the entry passes to new children at all.
    pub fn is_inheritable(&self) -> bool {
        self.flags.has_any(EntryFlags::INHERITABLE)
    }
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
        let node = Node { uid: 1, gid: 10, mode: Mode::new(0), is_dir: false, acl: Some(&acl) };
        let Decision { granted, denied } = decide(cred, &["1-7".parse().unwrap()], &node);
        format!("{granted}-{denied}")
    }

    #[test]
    fn the_first_entry_that_speaks_of_a_permission_decides() {
        let stranger = cred(2, &[]);
        assert_eq!(ask("A::2:r,D::2:rw,A::EVERYONE@:rwx", &stranger), "rx-w");
        assert_eq!(ask("D::EVERYONE@:r,A::2:rw", &stranger), "w-r");
        assert_eq!(ask("A::3:r,A::EVERYONE@:x", &stranger), "x-");
    }

    #[test]
    fn every_entry_that_fits_counts() {
        assert_eq!(ask("A::OWNER@:w,A::1:r,A:g:10:x,A::EVERYONE@:a", &cred(1, &[10])), "rwaxtTcC-");
        assert_eq!(ask("A:g:5:r,D:g:6:r,A:g:6:w", &cred(2, &[5, 6])), "rw-");
        assert_eq!(ask("D:g:6:r,A:g:5:r", &cred(2, &[5, 6])), "-r");
        assert_eq!(ask("A::GROUP@:r,A:g:100:w", &cred(2, &[10])), "rw-");
    }

    #[test]
    fn users_groups_and_sids_of_one_number_differ() {
        let text = "A::7:r,A:g:7:w,A::1-7:x,A:g:1-7:a,A::2-7:n";
        assert_eq!(ask(text, &cred(7, &[])), "rax-");
        assert_eq!(ask(text, &cred(2, &[7])), "wax-");
        assert_eq!(ask(text, &cred(2, &[])), "ax-");
    }

    #[test]
    fn what_is_only_inherited_or_logged_decides_nothing() {
        assert_eq!(
            ask("D:fi:EVERYONE@:r,U:S:EVERYONE@:r,L:F:EVERYONE@:r,A::EVERYONE@:r", &cred(2, &[])),
            "r-"
        );
    }

    #[test]
    fn owners_are_never_shut_out() {
        assert_eq!(ask("D::EVERYONE@:rwxcCtT", &cred(1, &[])), "tTcC-rwx");
        assert_eq!(ask("D::EVERYONE@:rwxcCtT", &cred(2, &[])), "-rwxtTcC");
    }

    #[test]
    fn appending_is_less_than_writing() {
        let (append, write) = (Mask::APPEND_DATA, Mask::WRITE_DATA);
        assert!(may_open(append, false, true, true) && !may_open(append, false, true, false));
        assert!(may_open(write, false, true, true) && may_open(write, false, true, false));
        assert!(!may_open(write, true, true, false) && may_open(Mask::READ_DATA, true, false, true));
    }

    #[test]
    fn capabilities_override() {
        assert!(!overrides(Caps::DAC_OVERRIDE, false, false).has(Mask::EXECUTE));
        assert!(overrides(Caps::DAC_OVERRIDE, true, false).has(Mask::SEARCH | Mask::DELETE_CHILD));
        assert!(!overrides(Caps::DAC_READ_SEARCH, false, true).has_any(Mask::EXECUTE | Mask::WRITE_DATA));
        assert!(overrides(Caps::DAC_READ_SEARCH, true, true).has(Mask::SEARCH));
        assert_eq!(overrides(Caps::CHOWN, false, true), Mask::WRITE_OWNER);
        assert_eq!(overrides(Caps::FOWNER, false, true), OWNER_RIGHTS);
        assert_eq!(overrides(Caps::NONE, true, true), Mask::NONE);
    }

    #[test]
    fn anyone_passes_unless_somebody_might_not() {
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
}
