//! Locks on open files, held across mounts. Where this client is alone the kernel keeps them by itself.
//!
//! Locks end with the session that holds them, so nothing about them needs to survive a loss of power.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use meta::ops::{FindLock, Locked, StopWaiting, TakeLock, Unlock};
use meta::{Failure, Lock, LockKind, LockOwner, Op};
use types::{Errno, Ino};

use crate::fencing::Within;
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

/// Who asked for `fcntl(2)` locks on an inode, and through which handle.
///
/// A process gives its locks up with the first descriptor it closes, and the kernel says so (FLUSH). But the kernel says
/// nothing of locks of an open file description (`F_OFD_SETLK`), and does not tell them from others: they are those
/// that are left when the handle is released. What is not in here holds no lock, so that most files are closed
/// without a question.
#[derive(Debug, Default)]
pub(crate) struct Askers(Mutex<HashMap<Ino, HashSet<Asker>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asker {
    handle: u64,
    owner: u64,
}

impl Askers {
    fn note(&self, ino: Ino, asker: Asker) {
        self.lock().entry(ino).or_default().insert(asker);
    }

    /// Removes some of those who asked, and gives their owners.
    fn take(&self, ino: Ino, mut which: impl FnMut(&Asker) -> bool) -> HashSet<u64> {
        let mut all = self.lock();
        let Some(askers) = all.get_mut(&ino) else { return HashSet::new() };
        let owners = askers.extract_if(|asker| which(asker)).map(|asker| asker.owner).collect();
        if askers.is_empty() {
            all.remove(&ino);
        }
        owners
    }

    /// Nobody holds anything any more.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, HashSet<Asker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks that this session was granted and did not give up: what is lost with it. Of each file the owners' ranges, and how
/// many requests are under way, of which it is not known yet whether they were granted.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<HashMap<Ino, HeldOn>>);

#[derive(Debug, Default)]
struct HeldOn {
    asking: u64,
    ranges: Vec<(LockKind, u64, u64, u64)>,
}

/// A request for a lock is under way.
struct Asking<'a>(&'a Held, Ino);

impl Held {
    fn asking(&self, ino: Ino) -> Asking<'_> {
        self.lock().entry(ino).or_default().asking += 1;
        Asking(self, ino)
    }

    fn granted(&self, ino: Ino, asked: LockRequest) {
        self.given_up(ino, asked.kind, asked.owner, (asked.start, asked.end));
        self.lock().entry(ino).or_default().ranges.push((asked.kind, asked.owner, asked.start, asked.end));
    }

    fn given_up(&self, ino: Ino, kind: LockKind, owner: u64, (start, end): (u64, u64)) {
        let mut all = self.lock();
        let Some(held) = all.get_mut(&ino) else { return };
        let met = |range: &mut (LockKind, u64, u64, u64)| {
            (range.0, range.1) == (kind, owner) && range.2 <= end && start <= range.3
        };
        let cut: Vec<_> = held.ranges.extract_if(.., met).collect();
        for (_, _, first, last) in cut {
            if first < start {
                held.ranges.push((kind, owner, first, start - 1));
            }
            if last > end {
                held.ranges.push((kind, owner, end + 1, last));
            }
        }
        if held.is_over() {
            all.remove(&ino);
        }
    }

    /// The files on which locks are held, or may have been granted; none is held from now on.
    pub(crate) fn take_all(&self) -> HashSet<Ino> {
        let mut all = self.lock();
        let inos = all.keys().copied().collect();
        all.values_mut().for_each(|held| held.ranges.clear());
        all.retain(|_, held| !held.is_over());
        inos
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, HeldOn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldOn {
    fn is_over(&self) -> bool {
        self.asking == 0 && self.ranges.is_empty()
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut all = self.0.lock();
        if let Some(held) = all.get_mut(&self.1) {
            held.asking -= 1;
            if held.is_over() {
                all.remove(&self.1);
            }
        }
    }
}

impl Vfs {
    /// Takes a lock through a handle. What was written here under another lock is there for others first.
    ///
    /// # Errors
    /// Those of [`TakeLock`].
    pub fn take_lock(&self, ino: Ino, handle: u64, asked: LockRequest, wait: bool) -> Result<Locked, Errno> {
        self.share_written(ino);
        if asked.kind == LockKind::Posix {
            self.askers.note(ino, Asker { handle, owner: asked.owner });
        }
        self.ask_for_lock(ino, asked, wait)
    }

    /// Asks once more for what [`Vfs::take_lock`] said to wait for.
    ///
    /// # Errors
    /// Those of [`TakeLock`]; it then waits no longer.
    pub fn ask_again(&self, ino: Ino, asked: LockRequest) -> Result<Locked, Errno> {
        self.ask_for_lock(ino, asked, true)
    }

    /// No longer waits for what [`Vfs::take_lock`] said to wait for.
    pub fn stop_waiting(&self, asked: LockRequest) {
        if let Err(errno) = self.run_lock(&StopWaiting(self.lock_of(asked).owner)) {
            tracing::warn!(%errno, "a wait for a lock that has ended is still on record");
        }
    }

    /// Unlocks a range, after what was written under the lock is there for others.
    ///
    /// # Errors
    /// Those of the database.
    pub fn unlock(&self, ino: Ino, asked: LockRequest) -> Result<(), Errno> {
        self.share_written(ino);
        let Lock { owner, start, end, .. } = self.lock_of(asked);
        self.unlock_range(ino, owner, (start, end))
    }

    /// Unlocks all that a process holds on a file of which it closes a descriptor, and that was flushed.
    ///
    /// # Errors
    /// Those of the database.
    pub fn unlock_process(&self, ino: Ino, owner: u64) -> Result<(), Errno> {
        let owners = self.askers.take(ino, |asker| asker.owner == owner);
        owners.into_iter().try_for_each(|owner| self.unlock_all(ino, LockKind::Posix, owner))
    }

    /// Unlocks all that is held by an open file description that is no more, and that was flushed; `flock` is its number
    /// if it ever held such a lock.
    ///
    /// # Errors
    /// Those of the database.
    pub fn unlock_handle(&self, ino: Ino, handle: u64, flock: Option<u64>) -> Result<(), Errno> {
        let owners = self.askers.take(ino, |asker| asker.handle == handle);
        let posix = owners.into_iter().try_for_each(|owner| self.unlock_all(ino, LockKind::Posix, owner));
        let flock = flock.filter(|_| !self.is_alone());
        posix.and(flock.map_or(Ok(()), |owner| self.unlock_all(ino, LockKind::Flock, owner)))
    }

    /// A lock that is in the way of this one.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find_lock(&self, ino: Ino, asked: LockRequest) -> Result<Option<Lock>, Errno> {
        self.run_lock(&FindLock { ino, lock: self.lock_of(asked) })
    }

    fn unlock_all(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<(), Errno> {
        self.unlock_range(ino, LockOwner { session: self.meta.session(), owner, kind }, (0, u64::MAX))
    }

    fn unlock_range(&self, ino: Ino, owner: LockOwner, (start, end): (u64, u64)) -> Result<(), Errno> {
        match self.meta.run(&Unlock { ino, owner, start, end }, &BY_KERNEL) {
            // Its locks went with the session.
            Ok(()) | Err(Failure::Fenced(_)) => {
                self.held.given_up(ino, owner.kind, owner.owner, (start, end));
                Ok(())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    fn ask_for_lock(&self, ino: Ino, asked: LockRequest, wait: bool) -> Result<Locked, Errno> {
        let _asking = self.held.asking(ino);
        // The locks that a file had are given to others already, maybe: it gets no more.
        let (session, file) = (self.meta.session(), self.files.get(ino));
        if file.is_some_and(|file| file.is_fenced()) {
            return Err(Errno::EIO);
        }
        let lock = Lock { owner: LockOwner { session, ..self.lock_of(asked).owner }, ..self.lock_of(asked) };
        let outcome = match self.meta.run(&Within(session, &TakeLock { ino, lock, wait }), &BY_KERNEL) {
            // It waits on under the next session.
            Err(Failure::Fenced(_)) if wait => return Ok(Locked::Waiting),
            outcome => outcome.map_err(Errno::from),
        };
        match (&outcome, asked.kind) {
            (Ok(Locked::Granted), _) => {
                self.held.granted(ino, asked);
                // What was granted before the session was lost went with it.
                if self.meta.session() != session || self.meta.is_fenced() {
                    self.held.given_up(ino, asked.kind, asked.owner, (asked.start, asked.end));
                    return Err(Errno::EIO);
                }
            }
            (Err(_), _) if wait => self.stop_waiting(asked),
            // The old lock is given up before the new one is found to be taken, as by `flock_lock_inode`.
            (Err(Errno::EAGAIN), LockKind::Flock) => self.unlock_all(ino, LockKind::Flock, asked.owner)?,
            _ => {}
        }
        outcome
    }

    /// Commits what was written to a file. What cannot be stored stays, and the next flush reports it.
    fn share_written(&self, ino: Ino) {
        let Some(file) = self.files.get(ino) else { return };
        let mut data = file.lock();
        if data.buffer.is_dirty()
            && let Err(errno) = self.flush_locked(&file, &mut data)
        {
            tracing::warn!(%ino, %errno, "what was written under a lock is not stored yet");
        }
    }

    fn run_lock<O: Op>(&self, op: &O) -> Result<O::Reply, Errno> {
        self.meta.run(op, &BY_KERNEL).map_err(Failure::into)
    }

    fn lock_of(&self, asked: LockRequest) -> Lock {
        let owner = LockOwner { session: self.meta.session(), owner: asked.owner, kind: asked.kind };
        let LockRequest { exclusive, start, end, pid, .. } = asked;
        Lock { start, end, owner, exclusive, pid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn askers_leave_by_owner_and_by_handle() {
        let askers = Askers::default();
        let ino = Ino(7);
        for (handle, owner) in [(1, 10), (2, 10), (2, 11), (2, 11)] {
            askers.note(ino, Asker { handle, owner });
        }
        assert!(askers.take(Ino(8), |_| true).is_empty());
        assert_eq!(askers.take(ino, |asker| asker.owner == 10), HashSet::from([10]));
        assert!(askers.take(ino, |asker| asker.handle == 1).is_empty(), "it was closed before");
        assert_eq!(askers.take(ino, |asker| asker.handle == 2), HashSet::from([11]));
        assert!(askers.lock().is_empty());
    }
}
