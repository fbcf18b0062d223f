//! Identifiers. Each is a newtype, so that they cannot be confused.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
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
    /// The session of a client. Operation ids contain it.
    SessionId(u64)
}
id! {
    /// A term: a series of operations of one session. The engine keeps the results of these operations until
    /// the term ends. The number is 0 for operations that no session guards.
    Term(u32)
}
id! {
    /// A directory quota; 0 for none. Never reused within a volume.
    QuotaId(u64)
}
id! {
    /// The id of one transaction, the same in all its retries, so that it is applied at most once. From the
    /// highest bits down: session (64), term (32), count within the term (32).
    OpId(u128)
}

impl Term {
    /// The term of operations that no session guards.
    pub const NONE: Term = Term(0);
    /// The first term of a session.
    pub const FIRST: Term = Term(1);

    /// The bytes with which all operation ids of the term begin, in big-endian order.
    pub fn key(self, session: SessionId) -> [u8; 12] {
        let mut key = [0; 12];
        key[..8].copy_from_slice(&session.0.to_be_bytes());
        key[8..].copy_from_slice(&self.0.to_be_bytes());
        key
    }
}

impl OpId {
    pub fn new(session: SessionId, term: Term, count: u32) -> OpId {
        OpId(u128::from(session.0) << 64 | u128::from(term.0) << 32 | u128::from(count))
    }

    pub fn session(self) -> SessionId {
        SessionId((self.0 >> 64) as u64)
    }

    pub fn term(self) -> Term {
        Term((self.0 >> 32) as u32)
    }

    /// All operation ids of a term.
    pub fn range(session: SessionId, term: Term) -> std::ops::RangeInclusive<OpId> {
        OpId::new(session, term, 0)..=OpId::new(session, term, u32::MAX)
    }
}

impl Ino {
    /// The volume's root directory. Inode 1 is reserved for the root that FUSE itself creates.
    pub const ROOT: Ino = Ino(2);

    /// The root of the trash, on volumes that have one. No counter reaches this number. Every server stores
    /// it exactly, even if its numbers are floating point (Redis scripts).
    pub const TRASH: Ino = Ino(1 << 52);
}

impl QuotaId {
    /// The directory quota of everything in the trash. It has no limits. An inode is in the trash if its tag
    /// names this quota.
    pub const TRASH: QuotaId = QuotaId(1 << 51);
}

/// The content hash of a canonical ACL; [`AclId::NONE`] for an inode that has only a mode.
///
/// It is aligned like a `u64`, because the alignment of a `u128` would make each cached inode and each cache
/// key larger.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[repr(Rust, packed(8))]
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
        write!(f, "{:032x}", { self.0 })
    }
}

impl fmt::Debug for AclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AclId({self})")
    }
}
