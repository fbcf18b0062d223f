//! The parts of an ACL.

use std::fmt;

use crate::identity::Id;

use super::{EntryFlags, Mask};

/// See [`Nfs4Acl::MAX_ENTRIES`](super::Nfs4Acl::MAX_ENTRIES).
pub(super) const MAX_ENTRIES: usize = 8_000;

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

impl Kind {
    /// All types in the order of their numbers, each with its letter in the text form.
    pub(super) const ALL: [(Kind, &str); 4] =
        [(Kind::Allow, "A"), (Kind::Deny, "D"), (Kind::Audit, "U"), (Kind::Alarm, "L")];
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

    /// Whether new children inherit the entry.
    pub fn is_inheritable(&self) -> bool {
        self.flags.has_any(EntryFlags::INHERITABLE)
    }

    pub(super) fn is_allow(&self) -> bool {
        self.kind == Kind::Allow
    }
}

impl Who {
    /// The principal of this name. `id_of` returns the id of a name that is not special.
    pub(super) fn of(name: &str, is_group: bool, id_of: impl FnOnce(&str) -> Option<Id>) -> Option<Self> {
        match name {
            "OWNER@" => Some(Who::Owner),
            "GROUP@" => Some(Who::Group),
            "EVERYONE@" => Some(Who::Everyone),
            _ if is_group => id_of(name).map(Who::NamedGroup),
            _ => id_of(name).map(Who::User),
        }
    }

    /// The id of a named principal.
    pub(super) fn id(self) -> Option<Id> {
        match self {
            Who::User(id) | Who::NamedGroup(id) => Some(id),
            Who::Owner | Who::Group | Who::Everyone => None,
        }
    }

    /// Whether it is `OWNER@`, `GROUP@` or `EVERYONE@`.
    pub fn is_special(self) -> bool {
        self.id().is_none()
    }
}

/// The stored form. It does not show whether an id is a user's or a group's: a flag of the entry does.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Owner => f.write_str("OWNER@"),
            Who::Group => f.write_str("GROUP@"),
            Who::Everyone => f.write_str("EVERYONE@"),
            Who::User(id) | Who::NamedGroup(id) => write!(f, "{id}"),
        }
    }
}
