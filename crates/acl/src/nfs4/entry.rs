//! The parts of an ACL.

use crate::identity::Id;

use super::{EntryFlags, Mask};

/// The type of an entry, `acetype4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Allow,
    Deny,
    /// Requests a log record of the access. limenfs keeps the entry and writes no record.
    Audit,
    /// Requests an alarm; kept like `Audit`.
    Alarm,
}

/// The principal that an entry applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// `OWNER@`: the file's owner. Unlike in POSIX ACLs, other entries can apply to the owner too.
    Owner,
    /// `GROUP@`: the members of the file's owning group.
    Group,
    /// `EVERYONE@`: all callers, owner and group included.
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
    /// An allow entry without flags.
    pub const fn allow(who: Who, mask: Mask) -> Self {
        Entry { kind: Kind::Allow, flags: EntryFlags::NONE, who, mask }
    }

    /// A deny entry without flags.
    pub const fn deny(who: Who, mask: Mask) -> Self {
        Entry { kind: Kind::Deny, flags: EntryFlags::NONE, who, mask }
    }

    /// Whether the entry affects access to the file itself: it allows or denies, and is not inherit-only.
    pub fn is_effective(&self) -> bool {
        matches!(self.kind, Kind::Allow | Kind::Deny) && !self.flags.has(EntryFlags::INHERIT_ONLY)
    }

    pub(super) fn is_allow(&self) -> bool {
        self.kind == Kind::Allow
    }
}

impl Who {
    /// Whether it is `OWNER@`, `GROUP@` or `EVERYONE@`.
    pub fn is_special(self) -> bool {
        matches!(self, Who::Owner | Who::Group | Who::Everyone)
    }
}
