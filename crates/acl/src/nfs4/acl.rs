//! The ACL value, validated when it is built.

use std::collections::HashSet;
use std::sync::Arc;

use types::AclId;

use crate::identity::Id;

use super::entry::MAX_ENTRIES;
use super::{AclError, AclFlags, Entry, EntryFlags, Kind, Mask, Who};

/// A valid NFSv4 ACL; cheap to clone. The order of its entries is part of its meaning, so they are never
/// sorted.
///
/// It has 1 to [`Self::MAX_ENTRIES`] entries; only an ACL that is evaluated and never stored may have more
/// ([`Self::mapped`], [`project_for`](super::project_for)). A list without entries grants nothing. It
/// is represented by one entry that allows nothing to everyone, because some forms of an ACL need an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nfs4Acl {
    flags: AclFlags,
    entries: Arc<[Entry]>,
}

impl Nfs4Acl {
    /// More entries than fit in an xattr of 64 KiB. The limit bounds ACLs from other sources, and the entries
    /// that a chmod adds.
    pub const MAX_ENTRIES: usize = MAX_ENTRIES;

    /// # Errors
    /// [`AclError::TooLong`].
    pub fn new(flags: AclFlags, entries: impl IntoIterator<Item = Entry>) -> Result<Self, AclError> {
        let acl = Self::of_few(flags, entries.into_iter().take(Self::MAX_ENTRIES + 1));
        if acl.entries.len() > Self::MAX_ENTRIES { Err(AclError::TooLong) } else { Ok(acl) }
    }

    /// Builds an ACL without a check of the limit. The caller knows that the number of entries is within the
    /// limit, or never stores the ACL.
    pub(super) fn of_few(flags: AclFlags, entries: impl IntoIterator<Item = Entry>) -> Self {
        let entries: Arc<[Entry]> = entries.into_iter().collect();
        let nothing = Entry::allow(Who::Everyone, Mask::NONE);
        Nfs4Acl { flags, entries: if entries.is_empty() { [nothing].into() } else { entries } }
    }

    /// In stored order, which is the order of evaluation.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn flags(&self) -> AclFlags {
        self.flags
    }

    /// Whether new children of a directory with this ACL inherit any entry.
    pub fn is_inheritable(&self) -> bool {
        self.entries.iter().any(Entry::is_inheritable)
    }

    /// Whether anybody may execute the file: an entry allows it, and no entry in front of it denies it to the
    /// same principal or to everyone. If not, no capability grants it ([`overrides`](super::overrides)).
    pub fn lets_anybody_execute(&self) -> bool {
        let mut denied = HashSet::new();
        for entry in self.entries.iter().filter(|entry| entry.is_effective() && entry.mask.has(Mask::EXECUTE))
        {
            // A SID is the same principal with or without the group flag.
            let who = match entry.who {
                Who::NamedGroup(id) if id.to_system().is_none() => Who::User(id),
                who => who,
            };
            if entry.is_allow() && !denied.contains(&who) {
                return true;
            }
            if !entry.is_allow() && entry.who == Who::Everyone {
                return false;
            }
            denied.insert(who);
        }
        false
    }

    /// The same entries with other flags.
    #[must_use]
    pub fn with_flags(&self, flags: AclFlags) -> Self {
        Nfs4Acl { flags, entries: self.entries.clone() }
    }

    /// The ACL in the form for files. Inherit-only entries are removed, because without that flag they would
    /// become effective. Other entries lose the flags that have a meaning only on directories.
    #[must_use]
    pub fn for_file(&self) -> Self {
        if !self.entries.iter().any(|entry| entry.flags.has_any(EntryFlags::OF_DIRECTORIES)) {
            return self.clone();
        }
        let kept = self.entries.iter().filter(|entry| !entry.flags.has(EntryFlags::INHERIT_ONLY));
        let plain =
            kept.map(|entry| Entry { flags: entry.flags.without(EntryFlags::OF_DIRECTORIES), ..*entry });
        Self::of_few(self.flags, plain)
    }

    /// The ACL to store when a program sets `new` through an attribute that holds only part of an ACL.
    /// `system.nfs4_acl` does not hold the flags of the list, and `system.nfs4_dacl` does not hold audit and
    /// alarm entries, so these stay as they are in `self`. ZFS keeps the flags likewise (`zfs_setacl`).
    ///
    /// # Errors
    /// [`AclError::TooLong`].
    pub fn replaced_by(&self, new: Nfs4Acl, scope: Scope) -> Result<Self, AclError> {
        match scope {
            Scope::Entries => Ok(new.with_flags(self.flags)),
            Scope::Access => {
                let kept =
                    self.entries.iter().filter(|entry| matches!(entry.kind, Kind::Audit | Kind::Alarm));
                Self::new(new.flags, new.entries.iter().chain(kept).copied())
            }
        }
    }

    /// This ACL plus the inheritable entries of `other`, as inherit-only entries.
    ///
    /// # Errors
    /// [`AclError::TooLong`].
    pub fn with_heirs_of(&self, other: &Nfs4Acl) -> Result<Self, AclError> {
        let heirs = other.entries.iter().filter(|entry| entry.is_inheritable());
        let heirs = heirs.map(|entry| Entry { flags: entry.flags.with(EntryFlags::INHERIT_ONLY), ..*entry });
        Self::new(self.flags, self.entries.iter().copied().chain(heirs))
    }

    /// The content hash under which the ACL is stored. It is never [`AclId::NONE`].
    pub fn id(&self) -> AclId {
        crate::content_id(b"limenfs nfs4 acl 1\0", &self.to_storage())
    }

    /// The ACL with the named principals mapped by `number`, whose second argument is true for groups.
    /// Entries whose principal has no mapping are removed; the second result is their number.
    pub fn renumbered(&self, mut number: impl FnMut(Id, bool) -> Option<Id>) -> (Self, usize) {
        let renumbered: Vec<Entry> = self
            .entries
            .iter()
            .filter_map(|entry| {
                let who = match entry.who {
                    Who::User(id) => Who::User(number(id, false)?),
                    Who::NamedGroup(id) => Who::NamedGroup(number(id, true)?),
                    special => special,
                };
                Some(Entry { who, ..*entry })
            })
            .collect();
        let left_out = self.entries.len() - renumbered.len();
        (Self::of_few(self.flags, renumbered), left_out)
    }

    /// The highest domain index in the entries; 0 if all principals are users and groups of the system.
    pub fn highest_domain(&self) -> u32 {
        self.named().filter_map(Who::id).map(|id| id.domain().get()).max().unwrap_or(0)
    }

    /// All named principals, in no particular order, possibly with repetitions.
    pub fn named(&self) -> impl Iterator<Item = Who> + '_ {
        self.entries.iter().map(|entry| entry.who).filter(|who| !who.is_special())
    }
}

/// The part of an ACL that an attribute holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All entries, but not the flags of the list: the NFSv4 attribute `acl`.
    Entries,
    /// The allow and deny entries, and the flags of the list: the NFSv4 attribute `dacl`.
    Access,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> Nfs4Acl {
        Nfs4Acl::from_storage(text).unwrap()
    }

    #[test]
    fn lengths_are_bounded() {
        let entry = acl("A::EVERYONE@:r").entries()[0];
        assert_eq!(Nfs4Acl::new(AclFlags::NONE, []), Ok(acl("A::EVERYONE@:")));
        assert_eq!(Nfs4Acl::new(AclFlags::NONE, [entry; 8000]).unwrap().entries().len(), 8000);
        assert_eq!(Nfs4Acl::new(AclFlags::NONE, std::iter::repeat(entry)), Err(AclError::TooLong));
    }

    #[test]
    fn form_for_files_has_no_directory_flags() {
        let mixed = acl("A:fdn:5:r,A:i:6:r,D:fi:7:r,U:dS:8:r,A:I:EVERYONE@:x");
        assert_eq!(mixed.for_file(), acl("A::5:r,U:S:8:r,A:I:EVERYONE@:x"));
        assert_eq!(acl("flags:a,A:fi:5:r").for_file(), acl("flags:a,A::EVERYONE@:"));
    }

    #[test]
    fn allow_behind_a_deny_for_the_same_principal_is_not_execute() {
        for text in [
            "A::EVERYONE@:x",
            "D::5:x,A::6:x",
            "D:g:5:x,A::5:x",
            "D:i:EVERYONE@:x,A::5:x",
            "D::OWNER@:x,A::EVERYONE@:x",
        ] {
            assert!(acl(text).lets_anybody_execute(), "{text}");
        }
        for text in [
            "A::EVERYONE@:r",
            "D::5:x,A::5:x",
            "D:g:1-7:x,A::1-7:x",
            "D::EVERYONE@:x,A::5:x",
            "A:i:5:x",
            "U:S:5:x",
        ] {
            assert!(!acl(text).lets_anybody_execute(), "{text}");
        }
    }

    #[test]
    fn parts_outside_the_scope_are_kept() {
        let old = acl("flags:ap,A::5:r,U:S:6:w");
        let new = acl("flags:d,A::7:x");
        assert_eq!(old.replaced_by(new.clone(), Scope::Entries).unwrap(), acl("flags:ap,A::7:x"));
        assert_eq!(old.replaced_by(new, Scope::Access).unwrap(), acl("flags:d,A::7:x,U:S:6:w"));
    }

    #[test]
    fn named_principals_are_renumbered() {
        let old = acl("flags:a,A::5:r,A:g:5:w,D::1-5:x,U:S:6:w,A::OWNER@:r");
        assert_eq!(old.highest_domain(), 1);
        let shift = |id: Id, is_group: bool| match id.to_system() {
            Some(6) => None,
            Some(id) => Id::system(id + if is_group { 100 } else { 10 }),
            None => Some(id),
        };
        assert_eq!(old.renumbered(shift), (acl("flags:a,A::15:r,A:g:105:w,D::1-5:x,A::OWNER@:r"), 1));
        assert_eq!(acl("A::6:r").renumbered(shift), (acl("A::EVERYONE@:"), 1));
        assert_eq!(acl("A::6:r").highest_domain(), 0);
    }

    #[test]
    fn stored_ids_do_not_change() {
        let stored = acl("flags:a,D:g:1-1105:w,A:fdI:1000:rx,A::OWNER@:rwx,A::EVERYONE@:tc");
        assert_eq!(stored.id().to_string(), "276b0098ff86aa3794c71fb7c2b4f9e0");
        assert_ne!(stored.id(), acl("D:g:1-1105:w,A:fdI:1000:rx,A::OWNER@:rwx,A::EVERYONE@:tc").id());
    }
}
