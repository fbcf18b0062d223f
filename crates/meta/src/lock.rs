//! Byte-range and whole-file locks, and which of them conflict.

use serde::{Deserialize, Serialize};
use types::SessionId;

/// The system call that a lock comes from. Locks of different kinds never conflict (`flock(2)`, NOTES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockKind {
    /// `fcntl(2)`: a lock of a process or of an open file description (`F_OFD_SETLK`), on a range of bytes.
    Posix,
    /// `flock(2)`: a lock of an open file description, on the whole file.
    Flock,
}

impl LockKind {
    /// The stored form.
    pub fn number(self) -> u8 {
        match self {
            LockKind::Posix => 0,
            LockKind::Flock => 1,
        }
    }

    /// The kind with this stored form.
    pub fn of(number: u8) -> Option<Self> {
        [LockKind::Posix, LockKind::Flock].into_iter().find(|kind| kind.number() == number)
    }
}

/// The holder of a lock: a session, and the number that the kernel of that mount uses for the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockOwner {
    pub session: SessionId,
    pub owner: u64,
    pub kind: LockKind,
}

/// A lock on the bytes `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lock {
    pub start: u64,
    pub end: u64,
    pub owner: LockOwner,
    /// A write lock; otherwise a read lock, which can be shared.
    pub exclusive: bool,
    /// The PID that `F_GETLK` returns; valid on the holder's machine.
    pub pid: u32,
}

impl Lock {
    /// Whether the two locks cannot be held at the same time. Equivalent to `posix_locks_conflict` and
    /// `flock_locks_conflict` in fs/locks.c.
    pub fn conflicts_with(&self, other: &Lock) -> bool {
        self.owner.kind == other.owner.kind
            && self.owner != other.owner
            && self.start <= other.end
            && other.start <= self.end
            && (self.exclusive || other.exclusive)
    }
}
