//! Identifiers, one newtype each, so that none can be mistaken for another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// An inode number. Never reused within a volume; at most `i64::MAX`, so that every engine can store it.
    Ino(u64)
}
id! {
    /// A slice: one contiguous write to one chunk, stored as one or more block objects.
    SliceId(u64)
}
id! {
    /// The position of a 64 MiB chunk within a file.
    ChunkIndex(u64)
}
id! {
    /// One mounted client.
    SessionId(u64)
}
id! {
    /// One transaction, across all its retries: what makes a retry exactly-once.
    OpId(u128)
}

impl Ino {
    /// The volume's root directory. Inode 1 is left to the root that FUSE itself creates.
    pub const ROOT: Ino = Ino(2);
}

/// The content hash of a canonical ACL; [`AclId::NONE`] where a file has only its mode.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AclId(pub u128);

impl AclId {
    pub const NONE: AclId = AclId(0);

    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        AclId(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for AclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for AclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AclId({self})")
    }
}
