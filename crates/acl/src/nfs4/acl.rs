//! The value: validated once, then shared.

use std::collections::HashSet;
use std::sync::Arc;

use types::AclId;

use crate::identity::Id;

use super::{AclError, AclFlags, Entry, EntryFlags, Kind, Mask, Who};

/// A valid NFSv4 ACL; cheap to clone. The order of its entries is part of its meaning, so that there is nothing to sort.
///
/// What holds by construction: there are 1 to [`Self::MAX_ENTRIES`] entries. A list without any, which lets nobody do
/// anything, is kept as one entry that allows everyone nothing, so that every form of an ACL has something to say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nfs4Acl {
    flags: AclFlags,
    entries: Arc<[Entry]>,
}

impl Nfs4Acl {
    /// More than fit an xattr of 64 KiB; a bound for ACLs that come by other ways, and for what chmod adds.
    pub const MAX_ENTRIES: usize = 8_000;

    /// # Errors
    /// [`AclError::TooLong`].
    pub fn new(flags: AclFlags, entries: impl IntoIterator<Item = Entry>) -> Result<Self, AclError> {
        let acl = Self::of_few(flags, entries.into_iter().take(Self::MAX_ENTRIES + 1));
        if acl.entries.len() > Self::MAX_ENTRIES { Err(AclError::TooLong) } else { Ok(acl) }
    }

    /// For entries that are known not to be too many.
    pub(super) fn of_few(flags: AclFlags, entries: impl IntoIterator<Item = Entry>) -> Self {
        let entries: Arc<[Entry]> = entries.into_iter().collect();
        let nothing = Entry::allow(Who::Everyone, Mask::NONE);
        Nfs4Acl { flags, entries: if entries.is_empty() { [nothing].into() } else { entries } }
    }

    /// In stored order, which decides.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn flags(&self) -> AclFlags {
        self.flags
    }

    /// Whether new children of a directory with this ACL inherit anything.
    pub fn is_inheritable(&self) -> bool {
        self.entries.iter().any(|entry| entry.flags.has_any(EntryFlags::INHERITABLE))
    }

    /// Whether anybody at all is allowed to execute the file, which decides whether capabilities help
    /// ([`overrides`](super::overrides)): by an entry that none before it denies to the same principal or to everyone.
    pub fn lets_anybody_execute(&self) -> bool {
        let mut denied = HashSet::new();
        for entry in self.entries.iter().filter(|entry| entry.is_effective() && entry.mask.has(Mask::EXECUTE))
        {
            if entry.is_allow() && !denied.contains(&entry.who) {
                return true;
            }
            if !entry.is_allow() && entry.who == Who::Everyone {
                return false;
            }
            denied.insert(entry.who);
        }
        false
    }

    /// The same entries under other flags.
    #[must_use]
    pub fn with_flags(&self, flags: AclFlags) -> Self {
        Nfs4Acl { flags, entries: self.entries.clone() }
    }

    /// The ACL as a file can have it. What only means something on directories is taken away: an entry that is merely
    /// there to be inherited goes (to keep it without that flag would give it effect), others lose the flags.
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

    /// What to store when somebody who sees only part of an ACL has set `new`: who set a `system.nfs4_acl` said
    /// nothing of the list's flags, and who set a `system.nfs4_dacl` nothing of audit and alarm entries, so these stay
    /// as they are in `self`. ZFS keeps the flags likewise (`zfs_setacl`).
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

    /// The ACL with what another one has for new files, for that alone.
    ///
    /// # Errors
    /// [`AclError::TooLong`].
    pub fn with_heirs_of(&self, other: &Nfs4Acl) -> Result<Self, AclError> {
        let heirs = other.entries.iter().filter(|entry| entry.flags.has_any(EntryFlags::INHERITABLE));
        let heirs = heirs.map(|entry| Entry { flags: entry.flags.with(EntryFlags::INHERIT_ONLY), ..*entry });
        Self::new(self.flags, self.entries.iter().copied().chain(heirs))
    }

    /// The content hash under which the ACL is stored: never [`AclId::NONE`].
    pub fn id(&self) -> AclId {
        crate::content_id(b"limenfs nfs4 acl 1\0", &self.to_storage())
    }

    /// The ACL with those whom entries name renumbered, groups (`true`) and others, and how many entries were left out
    /// because they name somebody who has no other number.
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

    /// The highest index of a domain that entries name; 0 where all are users and groups of the system.
    pub fn highest_domain(&self) -> u32 {
        let index = |who| match who {
            Who::User(id) | Who::NamedGroup(id) => id.domain().get(),
            _ => 0,
        };
        self.named().map(index).max().unwrap_or(0)
    }

    /// Everyone whom entries name, in no order and perhaps repeatedly.
    pub fn named(&self) -> impl Iterator<Item = Who> + '_ {
        self.entries.iter().map(|entry| entry.who).filter(|who| !who.is_special())
    }
}

/// Which part of an ACL was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All entries, but not the flags of the list: the attribute `acl`.
    Entries,
    /// The entries that allow and deny, and the flags: the attribute `dacl`.
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
    fn files_have_no_flags_of_directories() {
        let mixed = acl("A:fdn:5:r,A:i:6:r,D:fi:7:r,U:dS:8:r,A:I:EVERYONE@:x");
        assert_eq!(mixed.for_file(), acl("A::5:r,U:S:8:r,A:I:EVERYONE@:x"));
        assert_eq!(acl("flags:a,A:fi:5:r").for_file(), acl("flags:a,A::EVERYONE@:"));
    }

    #[test]
    fn who_is_denied_before_is_nobody_who_may_execute() {
        for text in [
            "A::EVERYONE@:x",
            "D::5:x,A::6:x",
            "D:g:5:x,A::5:x",
            "D:i:EVERYONE@:x,A::5:x",
            "D::OWNER@:x,A::EVERYONE@:x",
        ] {
            assert!(acl(text).lets_anybody_execute(), "{text}");
        }
        for text in ["A::EVERYONE@:r", "D::5:x,A::5:x", "D::EVERYONE@:x,A::5:x", "A:i:5:x", "U:S:5:x"] {
            assert!(!acl(text).lets_anybody_execute(), "{text}");
        }
    }

    #[test]
    fn what_was_not_spoken_of_stays() {
        let old = acl("flags:ap,A::5:r,U:S:6:w");
        let new = acl("flags:d,A::7:x");
        assert_eq!(old.replaced_by(new.clone(), Scope::Entries).unwrap(), acl("flags:ap,A::7:x"));
        assert_eq!(old.replaced_by(new, Scope::Access).unwrap(), acl("flags:d,A::7:x,U:S:6:w"));
    }

    #[test]
    fn the_named_are_renumbered() {
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
    fn ids_are_pinned_for_they_are_stored() {
        let stored = acl("flags:a,D:g:1-1105:w,A:fdI:1000:rx,A::OWNER@:rwx,A::EVERYONE@:tc");
        assert_eq!(stored.id().to_string(), "276b0098ff86aa3794c71fb7c2b4f9e0");
        assert_ne!(stored.id(), acl("D:g:1-1105:w,A:fdI:1000:rx,A::OWNER@:rwx,A::EVERYONE@:tc").id());
    }
}
