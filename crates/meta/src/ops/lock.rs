//! Locks: `fcntl(2)` and `flock(2)`, across all mounts of a volume.

use std::collections::HashSet;

use types::{Errno, Ino};

use crate::driver::{Ctx, Op, Plan};
use crate::lock::{self, Lock, LockKind, LockOwner};
use crate::record::{LockWait, Want};
use crate::txn::Effect;
use crate::view::{Stop, View};

/// The locks that an inode may have. They are one record, which each change of a lock reads and writes.
const MAX_LOCKS: usize = 8192;

/// What becomes of a lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    Granted,
    /// Others hold what conflicts. It is noted that the caller waits; to be asked again.
    Waiting,
}

/// Takes a lock, in the place of what its owner holds on that range. Twin of `posix_lock_inode`, `flock_lock_inode`.
///
/// With `wait` it is to be run again until granted or refused; once refused, or no longer wanted, [`StopWaiting`] is to
/// be run. A `flock` that waits to become another one is given up first (`flock(2)`: the conversion is not atomic), or
/// two that both want to be exclusive would wait for each other.
///
/// # Errors
/// ESTALE where the inode is gone; EAGAIN without `wait` where others hold what conflicts; EDEADLK where one of these
/// waits, over however many others, for a lock of this owner (`posix_locks_deadlock`; not with `flock`). Of several that
/// came to wait in a circle at the same moment, one is refused. ENOLCK if the inode would have more than 8,192 locks.
#[derive(Debug)]
pub struct TakeLock {
    pub ino: Ino,
    pub lock: Lock,
    pub wait: bool,
}

impl Op for TakeLock {
    type Reply = Locked;
    const NAME: &'static str = "setlk";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Locked>, Stop> {
        view.prefetch([Want::Node(self.ino), Want::Locks(self.ino)])?;
        view.inode(self.ino)?;
        let locks = view.locks(self.ino)?;
        let owner = self.lock.owner;
        if !locks.iter().any(|held| held.conflicts_with(&self.lock)) {
            let mut effects = Vec::with_capacity(2);
            if self.wait {
                effects.push(Effect::DropWait { owner });
            }
            let held = within_bound(&locks, lock::lock(&locks, self.lock))?;
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
            LockKind::Posix if self.closes_circle(view, known)? => return Err(Errno::EDEADLK.into()),
            LockKind::Flock if locks.iter().any(|held| held.owner == owner) => {
                let left = lock::unlock(&locks, owner, 0, u64::MAX);
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
    /// Walks from each holder that is in the way to what it waits for itself, and so on.
    ///
    /// Nobody sees that two begin to wait for each other at the same moment, and later both do. So an owner that is on record as
    /// waiting (`known`) looks for circles among lower owners only: of any circle, that is one.
    fn closes_circle(&self, view: &mut View<'_>, known: bool) -> Result<bool, Stop> {
        let waits = view.waits()?;
        let mut met: HashSet<LockOwner> = HashSet::new();
        let mut next = vec![(self.ino, self.lock)];
        while let Some((ino, wanted)) = next.pop() {
            view.prefetch([Want::Node(ino), Want::Locks(ino)])?;
            // An owner that waits for a lock on what is gone has yet to hear so.
            if view.node(ino)?.is_none() {
                continue;
            }
            for holder in view.locks(ino)?.iter().filter(|held| held.conflicts_with(&wanted)) {
                if holder.owner == self.lock.owner {
                    return Ok(true);
                }
                if known && holder.owner > self.lock.owner {
                    continue;
                }
                if met.insert(holder.owner) {
                    let theirs = waits.iter().filter(|wait| wait.lock.owner == holder.owner);
                    next.extend(theirs.map(|wait| (wait.ino, wait.lock)));
                }
            }
        }
        Ok(false)
    }
}

/// Refuses more locks than an inode may have, but for a change that leaves no more than before.
fn within_bound(before: &[Lock], after: Vec<Lock>) -> Result<Vec<Lock>, Stop> {
    if after.len() > MAX_LOCKS.max(before.len()) { Err(Errno::ENOLCK.into()) } else { Ok(after) }
}

/// Gives up what an owner holds on a range; it need hold nothing there.
///
/// # Errors
/// ENOLCK if that divides a lock, and the inode would have more than 8,192.
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

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.ino), Want::Locks(self.ino)])?;
        if view.node(self.ino)?.is_none() {
            return Ok(Plan::answer(()));
        }
        let locks = view.locks(self.ino)?;
        let left = lock::unlock(&locks, self.owner, self.start, self.end);
        if left[..] == locks[..] {
            return Ok(Plan::answer(()));
        }
        let left = within_bound(&locks, left)?;
        Ok(Plan { reply: (), effects: vec![Effect::PutLocks { ino: self.ino, locks: left.into() }] })
    }
}

/// An owner no longer waits.
#[derive(Debug)]
pub struct StopWaiting(pub LockOwner);

impl Op for StopWaiting {
    type Reply = ();
    const NAME: &'static str = "interrupt";

    fn plan(&self, _: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        Ok(Plan { reply: (), effects: vec![Effect::DropWait { owner: self.0 }] })
    }
}

/// Finds a lock that conflicts with one that could be asked for, `F_GETLK`.
///
/// # Errors
/// None but those of the database.
#[derive(Debug)]
pub struct FindLock {
    pub ino: Ino,
    pub lock: Lock,
}

impl Op for FindLock {
    type Reply = Option<Lock>;
    const NAME: &'static str = "getlk";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Option<Lock>>, Stop> {
        let locks = view.locks(self.ino)?;
        Ok(Plan::answer(locks.iter().find(|held| held.conflicts_with(&self.lock)).copied()))
    }
}

/// Reads the waits for locks.
#[derive(Debug)]
pub struct GetWaits;

impl Op for GetWaits {
    type Reply = std::sync::Arc<[LockWait]>;
    const NAME: &'static str = "getwaits";
    const READ: bool = true;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<Self::Reply>, Stop> {
        Ok(Plan::answer(view.waits()?))
    }
}

/// Removes all locks that a session holds on an inode: what is left to do for a session that died.
#[derive(Debug)]
pub struct DropLocks {
    pub ino: Ino,
    pub session: types::SessionId,
}

impl Op for DropLocks {
    type Reply = ();
    const NAME: &'static str = "droplocks";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.prefetch([Want::Node(self.ino), Want::Locks(self.ino)])?;
        if view.node(self.ino)?.is_none() {
            return Ok(Plan::answer(()));
        }
        let locks = view.locks(self.ino)?;
        let left: Vec<Lock> = locks.iter().filter(|l| l.owner.session != self.session).copied().collect();
        if left.len() == locks.len() {
            return Ok(Plan::answer(()));
        }
        Ok(Plan { reply: (), effects: vec![Effect::PutLocks { ino: self.ino, locks: left.into() }] })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use types::SessionId;

    use super::*;
    use crate::{MemEngine, Meta, Vouch};

    #[test]
    fn an_inode_has_no_more_locks_than_its_record_may_hold() {
        let engine = Arc::new(MemEngine::default());
        crate::check::test_volume().format(&*engine).unwrap();
        let meta = Meta::open(engine, 100).unwrap();
        let by_kernel = Vouch::Kernel { told: None };
        let owner = |owner| LockOwner { session: SessionId(1), owner, kind: LockKind::Posix };
        let take = |number, start, end| {
            let lock = Lock { start, end, owner: owner(number), exclusive: false, pid: 1 };
            meta.run(&TakeLock { ino: Ino::ROOT, lock, wait: false }, &by_kernel)
        };
        let most = MAX_LOCKS as u64;
        // One call for each would write the record thousands of times: all but the last few are put at once.
        let lock = |n| Lock { start: 3 * n, end: 3 * n + 1, owner: owner(1), exclusive: false, pid: 1 };
        let locks: Arc<[Lock]> = (0..most - 1).map(lock).collect();
        let op_id = types::OpId(7);
        let effects = vec![Effect::PutLocks { ino: Ino::ROOT, locks }];
        meta.engine().commit(&[crate::Txn { op_id, guards: Vec::new(), effects }]).unwrap();
        assert_eq!(take(1, 3 * most, 3 * most + 2), Ok(Locked::Granted));
        assert_eq!(take(1, 3 * most + 9, 3 * most + 9), Err(Errno::ENOLCK.into()));
        assert_eq!(take(2, 0, 0), Err(Errno::ENOLCK.into()));
        let unlock =
            |start, end| meta.run(&Unlock { ino: Ino::ROOT, owner: owner(1), start, end }, &by_kernel);
        // It would leave two in the place of one.
        assert_eq!(unlock(3 * most + 1, 3 * most + 1), Err(Errno::ENOLCK.into()));
        // What adds none is granted: joined with its neighbour, or in place of a part.
        assert_eq!(take(1, 3 * most + 3, 3 * most + 3), Ok(Locked::Granted));
        assert_eq!(unlock(0, 1), Ok(()));
        assert_eq!(take(2, 0, 0), Ok(Locked::Granted));
        assert_eq!(unlock(0, u64::MAX), Ok(()));
    }
}
