//! The parts of an ACL.

use crate::identity::Id;

use super::{EntryFlags, Mask};

/// What an entry does, `acetype4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Allow,
    Deny,
    /// Asks for a record of the access; limenfs keeps the entry and writes none.
    Audit,
    /// Asks for an alarm; kept like `Audit`.
    Alarm,
}

/// Whom an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// `OWNER@`: the file's owner. Unlike in POSIX ACLs, other entries are for the owner too.
    Owner,
    /// `GROUP@`: the members of the file's owning group.
    Group,
    /// `EVERYONE@`: owner and group included.
    Everyone,
    User(Id),
    NamedGroup(Id),
}

/// One entry, `nfsace4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub kind: Kind,
    pub flags: EntryFlags,
    pub who: Who,
    pub mask: Mask,
}

impl Entry {
    /// An entry without flags that allows.
    pub const fn allow(who: Who, mask: Mask) -> Self {
        Entry { kind: Kind::Allow, flags: EntryFlags::NONE, who, mask }
    }

    /// An entry without flags that denies.
    pub const fn deny(who: Who, mask: Mask) -> Self {
        Entry { kind: Kind::Deny, flags: EntryFlags::NONE, who, mask }
    }

    /// Whether the entry has a say about the file it stands on: it allows or denies, and is not merely there to be
    /// inherited.
    pub fn is_effective(&self) -> bool {
        matches!(self.kind, Kind::Allow | Kind::Deny) && !self.flags.has(EntryFlags::INHERIT_ONLY)
    }

    pub(super) fn is_allow(&self) -> bool {
        self.kind == Kind::Allow
    }
}

impl Who {
    /// Whether it is one of the three that every file has.
    pub fn is_special(self) -> bool {
        matches!(self, Who::Owner | Who::Group | Who::Everyone)
    }
}
