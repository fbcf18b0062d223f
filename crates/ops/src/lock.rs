//! Locks: `fcntl(2)` and `flock(2)`, across all mounts of a volume.

use host::HashSet;
use meta::{Effect, Lock, LockKind, LockOwner, LockWait, RecordKey};
use types::{Errno, Ino};

use crate::lock_ranges;
use crate::op::{Ctx, Op, Plan};
use crate::view::{PlanStop, View};

/// The largest number of locks of an inode. All locks of an inode are one record, which each change of a lock
/// reads and writes.
const MAX_LOCKS: usize = 8192;

/// The result of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    Granted,
    /// Other owners hold conflicting locks. The wait is recorded, and the caller must try again.
    Waiting,
}

/// Takes a lock. It replaces the locks that its owner holds in that range. Equivalent to `posix_lock_inode`
/// and `flock_lock_inode`.
///
/// With `wait`, the caller must run the operation again until the lock is granted or the operation fails.
/// After a failure, or if the lock is no longer wanted, the caller must run [`StopWaiting`]. If a `flock` has
/// to wait for the conversion of a lock, it first releases the lock that it holds (`flock(2)`: the conversion
/// is not atomic). Otherwise two owners that both convert to exclusive would wait for each other.
///
/// # Errors
/// - ESTALE: the inode does not exist.
/// - ENOLCK: the lock could be granted, but the inode would have more than 8,192 locks.
/// - EAGAIN: another owner holds a conflicting lock, and `wait` is not set.
/// - EDEADLK: one of the owners of conflicting locks waits, directly or through others, for a lock of this
///   owner (`posix_locks_deadlock`; not for `flock`). If several owners begin to wait in a cycle at the same
///   moment, one of them gets the error.
#[derive(Debug)]
pub struct TakeLock {
    pub ino: Ino,
    pub lock: Lock,
    pub wait: bool,
}

impl Op for TakeLock {
    type Reply = Locked;
    const NAME: &'static str = "setlk";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Locked>, PlanStop> {
        view.prefetch([RecordKey::Inode(self.ino), RecordKey::Locks(self.ino)])?;
        view.inode(self.ino)?;
        let locks = view.locks(self.ino)?;
        let owner = self.lock.owner;
        if !locks.iter().any(|held| held.conflicts_with(&self.lock)) {
            let mut effects = Vec::with_capacity(2);
            if self.wait {
                effects.push(Effect::DropWait { owner });
            }
            let held = within_bound(&locks, lock_ranges::lock(&locks, self.lock))?;
            effects.push(Effect::PutLocks { ino: self.ino, locks: held.into() });
            return Ok(Plan { reply: Locked::Granted, effects });
        }
        if !self.wait {
            return Err(Errno::EAGAIN.into());
        }
        let wait = LockWait { ino: self.ino, lock: self.lock };
        let known = view.waits()?.contains(&wait);
        let mut effects = Vec::with_capacity(2);
        match owner.kind {
            LockKind::Posix if self.would_deadlock(view, known)? => return Err(Errno::EDEADLK.into()),
            LockKind::Flock if locks.iter().any(|held| held.owner == owner) => {
                let left = lock_ranges::unlock(&locks, owner, 0, u64::MAX);
                effects.push(Effect::PutLocks { ino: self.ino, locks: left.into() });
            }
            _ => {}
        }
        if !known {
            effects.push(Effect::PutWait(wait));
        }
        Ok(Plan { reply: Locked::Waiting, effects })
    }
}

impl TakeLock {
    /// Whether waiting would deadlock. Follows each owner of a conflicting lock to the locks that this owner
    /// waits for, and so on.
    ///
    /// If two owners begin to wait for each other at the same moment, neither sees the wait of the other;
    /// later both do. So an owner whose wait is already recorded (`known`) follows only lower owners. In any
    /// cycle, exactly one owner then detects the deadlock.
    ///
    /// No guard confirms the waits. If one of them is interrupted while the chain is read, the function may
    /// report a deadlock that does not exist. So may the kernel (`fcntl_locking(2)`).
    fn would_deadlock(&self, view: &mut View<'_>, known: bool) -> Result<bool, PlanStop> {
        let waits = view.waits()?;
        let mut visited: HashSet<LockOwner> = HashSet::default();
        let mut next = vec![(self.ino, self.lock)];
        while let Some((ino, wanted)) = next.pop() {
            view.prefetch([RecordKey::Inode(ino), RecordKey::Locks(ino)])?;
            // The inode was removed, and the owner that waits for a lock on it has not noticed that yet.
            if view.find_inode(ino)?.is_none() {
                continue;
            }
            for holder in view.locks(ino)?.iter().filter(|held| held.conflicts_with(&wanted)) {
                if holder.owner == self.lock.owner {
                    return Ok(true);
                }
                if known && holder.owner > self.lock.owner {
                    continue;
                }
                if visited.insert(holder.owner) {
                    let theirs = waits.iter().filter(|wait| wait.lock.owner == holder.owner);
                    next.extend(theirs.map(|wait| (wait.ino, wait.lock)));
                }
            }
        }
        Ok(false)
    }
}

/// Fails with ENOLCK if `after` has too many locks and more than `before`.
fn within_bound(before: &[Lock], after: Vec<Lock>) -> Result<Vec<Lock>, PlanStop> {
    if after.len() > MAX_LOCKS.max(before.len()) { Err(Errno::ENOLCK.into()) } else { Ok(after) }
}

/// Releases the locks that an owner holds in a range, if there are any.
///
/// # Errors
/// ENOLCK if that splits a lock and the inode would have more than 8,192 locks.
#[derive(Debug)]
pub struct Unlock {
    pub ino: Ino,
    pub owner: LockOwner,
    pub start: u64,
    pub end: u64,
}

impl Op for Unlock {
    type Reply = ();
    const NAME: &'static str = "unlock";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        change(view, self.ino, |locks| lock_ranges::unlock(locks, self.owner, self.start, self.end))
    }
}

/// Replaces the locks on an inode by those that `left` returns for them. Does nothing if the inode does not
/// exist.
///
/// # Errors
/// ENOLCK if the number of locks increases above the limit.
fn change(
    view: &mut View<'_>,
    ino: Ino,
    left: impl FnOnce(&[Lock]) -> Vec<Lock>,
) -> Result<Plan<()>, PlanStop> {
    view.prefetch([RecordKey::Inode(ino), RecordKey::Locks(ino)])?;
    if view.find_inode(ino)?.is_none() {
        return Ok(Plan::answer(()));
    }
    let locks = view.locks(ino)?;
    let left = left(&locks);
    if left[..] == locks[..] {
        return Ok(Plan::answer(()));
    }
    let locks = within_bound(&locks, left)?.into();
    Ok(Plan { reply: (), effects: vec![Effect::PutLocks { ino, locks }] })
}

/// Removes the record of an owner's wait.
#[derive(Debug)]
pub struct StopWaiting(pub LockOwner);

impl Op for StopWaiting {
    type Reply = ();
    const NAME: &'static str = "interrupt";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        Ok(Plan { reply: (), effects: vec![Effect::DropWait { owner: self.0 }] })
    }
}

/// Finds a lock that conflicts with the given one: `F_GETLK`.
///
/// # Errors
/// Only those of the database.
#[derive(Debug)]
pub struct FindLock {
    pub ino: Ino,
    pub lock: Lock,
}

impl Op for FindLock {
    type Reply = Option<Lock>;
    const NAME: &'static str = "getlk";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Option<Lock>>, PlanStop> {
        let locks = view.locks(self.ino)?;
        Ok(Plan::answer(locks.iter().find(|held| held.conflicts_with(&self.lock)).copied()))
    }
}

/// Reads all waits for locks.
#[derive(Debug)]
pub struct GetWaits;

impl Op for GetWaits {
    type Reply = std::sync::Arc<[LockWait]>;
    const NAME: &'static str = "getwaits";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        Ok(Plan::answer(view.waits()?))
    }
}

/// Removes all locks of a session on an inode, as part of the cleanup of a dead session.
#[derive(Debug)]
pub struct DropLocks {
    pub ino: Ino,
    pub session: types::SessionId,
}

impl Op for DropLocks {
    type Reply = ();
    const NAME: &'static str = "droplocks";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        change(view, self.ino, |locks| {
            locks.iter().filter(|lock| lock.owner.session != self.session).copied().collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use types::SessionId;

    use super::*;
    use crate::testing::Direct;
    use meta::{Engine, Txn};

    #[test]
    fn the_locks_of_an_inode_are_bounded() {
        let direct = Direct::new();
        let owner = |owner| LockOwner { session: SessionId(1), owner, kind: LockKind::Posix };
        let take = |number, start, end| {
            let lock = Lock { start, end, owner: owner(number), exclusive: false, pid: 1 };
            direct.run(&TakeLock { ino: Ino::ROOT, lock, wait: false })
        };
        let most = MAX_LOCKS as u64;
        // Taking each lock by an operation would write the record thousands of times, so all but the last few
        // locks are stored by one effect.
        let lock = |n| Lock { start: 3 * n, end: 3 * n + 1, owner: owner(1), exclusive: false, pid: 1 };
        let locks: Arc<[Lock]> = (0..most - 1).map(lock).collect();
        let op_id = types::OpId(7);
        let effects = vec![Effect::PutLocks { ino: Ino::ROOT, locks }];
        direct.engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
        assert_eq!(take(1, 3 * most, 3 * most + 2), Ok(Locked::Granted));
        assert_eq!(take(1, 3 * most + 9, 3 * most + 9), Err(Errno::ENOLCK));
        assert_eq!(take(2, 0, 0), Err(Errno::ENOLCK));
        let unlock = |start, end| direct.run(&Unlock { ino: Ino::ROOT, owner: owner(1), start, end });
        // This unlock would split one lock into two.
        assert_eq!(unlock(3 * most + 1, 3 * most + 1), Err(Errno::ENOLCK));
        // A change that does not increase the number of locks is granted: a lock that merges with an adjacent
        // one, or that replaces a part of one.
        assert_eq!(take(1, 3 * most + 3, 3 * most + 3), Ok(Locked::Granted));
        assert_eq!(unlock(0, 1), Ok(()));
        assert_eq!(take(2, 0, 0), Ok(Locked::Granted));
        assert_eq!(unlock(0, u64::MAX), Ok(()));
    }
}
