//! The parts of an ACL.

use std::fmt;
use std::ops::{BitAnd, BitOr};

/// See [`PosixAcl::MAX_ENTRIES`](super::PosixAcl::MAX_ENTRIES).
pub(super) const MAX_ENTRIES: usize = 511;

/// Read, write and execute, as granted by an entry or requested by a caller: the bits of `S_IRWXO`, which are
/// also those of `access(2)` and of the kernel's `MAY_READ`, `MAY_WRITE` and `MAY_EXEC`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Perm(u8);

impl Perm {
    pub const NONE: Perm = Perm(0);
    pub const EXECUTE: Perm = Perm(1);
    pub const WRITE: Perm = Perm(2);
    pub const READ: Perm = Perm(4);
    pub const ALL: Perm = Perm(7);

    /// Keeps the low three bits.
    pub const fn new(bits: u32) -> Self {
        Perm((bits & 7) as u8)
    }

    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    pub const fn has(self, all_of: Perm) -> bool {
        self.0 & all_of.0 == all_of.0
    }
}

impl BitAnd for Perm {
    type Output = Perm;

    fn bitand(self, other: Perm) -> Perm {
        Perm(self.0 & other.0)
    }
}

impl BitOr for Perm {
    type Output = Perm;

    fn bitor(self, other: Perm) -> Perm {
        Perm(self.0 | other.0)
    }
}

impl fmt::Display for Perm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TEXT: [&str; 8] = ["---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"];
        f.write_str(TEXT[usize::from(self.0)])
    }
}

impl fmt::Debug for Perm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The principal that an entry applies to. The order is the canonical one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// The owner of the file.
    UserObj,
    /// The user with this id.
    User(u32),
    /// The owning group of the file.
    GroupObj,
    /// The group with this id.
    Group(u32),
    /// No principal: the limit of what `User`, `GroupObj` and `Group` grant.
    Mask,
    /// Every caller to which no other entry applies.
    Other,
}

impl Tag {
    /// The name in the long text form.
    pub fn name(self) -> &'static str {
        match self {
            Tag::UserObj | Tag::User(_) => "user",
            Tag::GroupObj | Tag::Group(_) => "group",
            Tag::Mask => "mask",
            Tag::Other => "other",
        }
    }
}

/// One entry of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub tag: Tag,
    pub perm: Perm,
}

/// The long text form, such as `user:1000:r-x`; in the alternate form (`{:#}`), the short one: `u:1000:r-x`.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { tag, perm } = self;
        let name = if f.alternate() { &tag.name()[..1] } else { tag.name() };
        match tag {
            Tag::User(id) | Tag::Group(id) => write!(f, "{name}:{id}:{perm}"),
            Tag::UserObj | Tag::GroupObj | Tag::Mask | Tag::Other => write!(f, "{name}::{perm}"),
        }
    }
}
