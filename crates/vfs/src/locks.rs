//! Locks on open files, held across mounts. Where this client is alone the kernel keeps them by itself.

use meta::ops::{FindLock, StopWaiting, TakeLock, Unlock};
use meta::{Lock, LockKind, LockOwner};
use types::{Errno, Ino};

use crate::vfs::{BY_KERNEL, Vfs};

/// A lock as a request asks for it: bytes `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    pub kind: LockKind,
    /// The kernel's number for the holder.
    pub owner: u64,
    pub exclusive: bool,
    pub start: u64,
    pub end: u64,
    pub pid: u32,
}

impl Vfs {
    /// # Errors
    /// Those of [`TakeLock`].
    pub fn take_lock(&self, ino: Ino, asked: LockRequest, wait: bool) -> Result<meta::ops::Locked, Errno> {
        self.change(&TakeLock { ino, lock: self.lock_of(asked), wait })
    }

    /// No longer waits for what [`Vfs::take_lock`] said to wait for.
    ///
    /// # Errors
    /// Those of the database.
    pub fn stop_waiting(&self, asked: LockRequest) -> Result<(), Errno> {
        self.change(&StopWaiting(self.lock_of(asked).owner))
    }

    /// Unlocks a range; of a whole file with 0 and `u64::MAX`.
    ///
    /// # Errors
    /// Those of the database.
    pub fn unlock(&self, ino: Ino, asked: LockRequest) -> Result<(), Errno> {
        let Lock { owner, start, end, .. } = self.lock_of(asked);
        self.change(&Unlock { ino, owner, start, end })
    }

    /// Unlocks all that an owner holds on a file that it closes; costs nothing where the kernel keeps the locks.
    ///
    /// # Errors
    /// Those of the database.
    pub fn unlock_all(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<(), Errno> {
        if self.is_alone() {
            return Ok(());
        }
        self.unlock(ino, LockRequest { kind, owner, exclusive: false, start: 0, end: u64::MAX, pid: 0 })
    }

    /// A lock that is in the way of this one.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find_lock(&self, ino: Ino, asked: LockRequest) -> Result<Option<Lock>, Errno> {
        Ok(self.meta.run(&FindLock { ino, lock: self.lock_of(asked) }, &BY_KERNEL)?)
    }

    fn lock_of(&self, asked: LockRequest) -> Lock {
        let owner = LockOwner { session: self.meta.session(), owner: asked.owner, kind: asked.kind };
        let LockRequest { exclusive, start, end, pid, .. } = asked;
        Lock { start, end, owner, exclusive, pid }
    }
}
