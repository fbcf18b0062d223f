//! The three bit sets of an NFSv4 ACL: permissions, entry flags, and flags of the whole list.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Not};

macro_rules! bits {
    ($(#[$doc:meta])* $name:ident { $($(#[$bit_doc:meta])* $bit:ident = $value:literal $letter:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            pub const NONE: $name = $name(0);
            $($(#[$bit_doc])* pub const $bit: $name = $name($value);)*
            /// Every defined bit.
            pub const ALL: $name = $name(0 $(| $value)*);

            /// Every bit with its letter, in the order of the text form.
            pub(super) const LETTERS: &[($name, char)] = &[$(($name::$bit, $letter)),*];

            /// None if an undefined bit is set.
            pub const fn from_bits(bits: u32) -> Option<Self> {
                if bits & !Self::ALL.0 == 0 { Some($name(bits)) } else { None }
            }

            pub const fn bits(self) -> u32 {
                self.0
            }

            pub const fn has(self, all_of: $name) -> bool {
                self.0 & all_of.0 == all_of.0
            }

            pub const fn has_any(self, of: $name) -> bool {
                self.0 & of.0 != 0
            }

            pub const fn is_none(self) -> bool {
                self.0 == 0
            }

            #[must_use]
            pub const fn with(self, more: $name) -> Self {
                $name(self.0 | more.0)
            }

            #[must_use]
            pub const fn without(self, less: $name) -> Self {
                $name(self.0 & !less.0)
            }

            /// The bits that are set, one at a time, in the order of the text form.
            pub fn each(self) -> impl Iterator<Item = $name> {
                Self::LETTERS.iter().map(|(bit, _)| *bit).filter(move |bit| self.has(*bit))
            }

            /// None for a letter that is unknown or repeated.
            pub(super) fn from_letters(letters: &str) -> Option<Self> {
                letters.chars().try_fold(Self::NONE, |bits, letter| {
                    let (bit, _) = Self::LETTERS.iter().find(|(_, known)| *known == letter)?;
                    if bits.has(*bit) { None } else { Some(bits.with(*bit)) }
                })
            }
        }

        impl BitAnd for $name {
            type Output = $name;

            fn bitand(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }
        }

        impl BitAndAssign for $name {
            fn bitand_assign(&mut self, other: $name) {
                self.0 &= other.0;
            }
        }

        impl BitOr for $name {
            type Output = $name;

            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                self.0 |= other.0;
            }
        }

        /// The complement within the defined bits.
        impl Not for $name {
            type Output = $name;

            fn not(self) -> $name {
                $name(!self.0 & Self::ALL.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                use fmt::Write as _;
                Self::LETTERS.iter().filter(|(bit, _)| self.has(*bit)).try_for_each(|(_, letter)| f.write_char(*letter))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

bits! {
    /// `acemask4`, RFC 8881 section 6.2.1.3, with the letters of `nfs4_acl(5)`. That page has no letters for
    /// the two retention permissions, which are `h` and `H` here.
    Mask {
        READ_DATA = 0x0000_0001 'r';
        WRITE_DATA = 0x0000_0002 'w';
        APPEND_DATA = 0x0000_0004 'a';
        EXECUTE = 0x0000_0020 'x';
        DELETE = 0x0001_0000 'd';
        DELETE_CHILD = 0x0000_0040 'D';
        READ_ATTRIBUTES = 0x0000_0080 't';
        WRITE_ATTRIBUTES = 0x0000_0100 'T';
        READ_NAMED_ATTRS = 0x0000_0008 'n';
        WRITE_NAMED_ATTRS = 0x0000_0010 'N';
        READ_ACL = 0x0002_0000 'c';
        WRITE_ACL = 0x0004_0000 'C';
        WRITE_OWNER = 0x0008_0000 'o';
        SYNCHRONIZE = 0x0010_0000 'y';
        WRITE_RETENTION = 0x0000_0200 'h';
        WRITE_RETENTION_HOLD = 0x0000_0400 'H';
    }
}

bits! {
    /// `aceflag4`, RFC 8881 section 6.2.1.4, with the letters of `nfs4_acl(5)`. `ACE4_IDENTIFIER_GROUP` is
    /// missing, because it is part of the entry's principal here.
    EntryFlags {
        FILE_INHERIT = 0x01 'f';
        DIRECTORY_INHERIT = 0x02 'd';
        NO_PROPAGATE_INHERIT = 0x04 'n';
        INHERIT_ONLY = 0x08 'i';
        SUCCESSFUL_ACCESS = 0x10 'S';
        FAILED_ACCESS = 0x20 'F';
        INHERITED = 0x80 'I';
    }
}

bits! {
    /// `aclflag4`, RFC 8881 section 6.2.2: for tools that propagate changes down a tree. They do not affect
    /// access.
    AclFlags {
        AUTO_INHERIT = 0x1 'a';
        PROTECTED = 0x2 'p';
        DEFAULTED = 0x4 'd';
    }
}

impl Mask {
    // The names of some bits on directories.
    pub const LIST_DIRECTORY: Mask = Mask::READ_DATA;
    pub const ADD_FILE: Mask = Mask::WRITE_DATA;
    pub const ADD_SUBDIRECTORY: Mask = Mask::APPEND_DATA;
    pub const SEARCH: Mask = Mask::EXECUTE;

    /// The sixteen defined bits without gaps, for the decision cache.
    pub(crate) const fn pack(self) -> u16 {
        (self.0 & 0x7ff | (self.0 >> 16 & 0x1f) << 11) as u16
    }

    /// The inverse of [`Self::pack`].
    pub(crate) const fn unpack(packed: u16) -> Self {
        let packed = packed as u32;
        Mask(packed & 0x7ff | (packed >> 11) << 16)
    }
}

impl EntryFlags {
    /// The flags by which new children inherit an entry.
    pub const INHERITABLE: EntryFlags = EntryFlags::FILE_INHERIT.with(EntryFlags::DIRECTORY_INHERIT);
    /// The four flags that have a meaning only on directories.
    pub const OF_DIRECTORIES: EntryFlags =
        EntryFlags::INHERITABLE.with(EntryFlags::NO_PROPAGATE_INHERIT).with(EntryFlags::INHERIT_ONLY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pack_and_unpack_keep_every_bit() {
        assert_eq!(Mask::ALL.pack(), u16::MAX);
        assert_eq!(Mask::unpack(u16::MAX), Mask::ALL);
        for bit in Mask::ALL.each() {
            assert_eq!(bit.pack().count_ones(), 1);
            assert_eq!(Mask::unpack(bit.pack()), bit);
        }
        assert_eq!(Mask::ALL.each().count(), 16);
    }

    #[test]
    fn letters_name_bits() {
        assert_eq!(Mask::ALL.to_string(), "rwaxdDtTnNcCoyhH");
        assert_eq!(Mask::from_letters("Dr"), Some(Mask::READ_DATA | Mask::DELETE_CHILD));
        assert_eq!(Mask::from_letters("rr"), None);
        assert_eq!(Mask::from_letters("z"), None);
        assert_eq!(EntryFlags::ALL.to_string(), "fdniSFI");
        assert_eq!(AclFlags::ALL.to_string(), "apd");
        assert_eq!(EntryFlags::from_bits(0x40), None);
        assert_eq!(Mask::from_bits(0x8000_0000), None);
    }
}
