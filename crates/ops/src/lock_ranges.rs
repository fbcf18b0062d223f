//! Computes the locks of an inode after a lock or an unlock.

use meta::{Lock, LockOwner};

/// The locks of an inode after `owner` unlocks `start` to `end`: its locks lose that range, and keep what is
/// outside it.
pub(crate) fn unlock(locks: &[Lock], owner: LockOwner, start: u64, end: u64) -> Vec<Lock> {
    let mut left = Vec::with_capacity(locks.len() + 1);
    for lock in locks {
        if lock.owner != owner || lock.end < start || lock.start > end {
            left.push(*lock);
            continue;
        }
        if lock.start < start {
            left.push(Lock { end: start - 1, ..*lock });
        }
        if lock.end > end {
            left.push(Lock { start: end + 1, ..*lock });
        }
    }
    left.sort_unstable();
    left
}

/// The locks of an inode after `new` is granted. `new` replaces the locks of its owner in that range, and
/// merges with the owner's adjacent locks of the same type and PID (`posix_lock_inode`, which ignores the
/// PID).
pub(crate) fn lock(locks: &[Lock], new: Lock) -> Vec<Lock> {
    let mut left = unlock(locks, new.owner, new.start, new.end);
    let mut new = new;
    left.retain(|other| {
        let joined = merge(&new, other);
        if joined {
            new.start = new.start.min(other.start);
            new.end = new.end.max(other.end);
        }
        !joined
    });
    left.push(new);
    left.sort_unstable();
    left
}

fn merge(one: &Lock, other: &Lock) -> bool {
    one.owner == other.owner
        && one.exclusive == other.exclusive
        && one.pid == other.pid
        && other.start <= one.end.saturating_add(1)
        && one.start <= other.end.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use meta::LockKind;
    use types::SessionId;

    use super::*;

    fn held(owner: u64, start: u64, end: u64, exclusive: bool) -> Lock {
        let owner = LockOwner { session: SessionId(1), owner, kind: LockKind::Posix };
        Lock { start, end, owner, exclusive, pid: 9 }
    }

    #[test]
    fn overlapping_locks_of_two_owners_conflict_if_one_is_exclusive() {
        let a = held(1, 10, 19, true);
        assert!(a.conflicts_with(&held(2, 19, 30, false)));
        assert!(held(2, 0, 10, false).conflicts_with(&a));
        assert!(!a.conflicts_with(&held(2, 20, 30, true)), "they do not touch");
        assert!(!a.conflicts_with(&held(1, 0, u64::MAX, true)), "its own");
        assert!(!held(1, 0, 9, false).conflicts_with(&held(2, 0, 9, false)), "both read");
        let mut other = held(2, 10, 19, true);
        other.owner.kind = LockKind::Flock;
        assert!(!a.conflicts_with(&other), "another kind");
    }

    #[test]
    fn every_byte_is_locked_as_the_last_call_set_it() {
        // A byte array is the model: each byte has at most one lock of an owner.
        const BYTES: u64 = 12;
        let mut seed = 1u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut locks: Vec<Lock> = Vec::new();
        let mut model = [[None; BYTES as usize]; 2];
        for _ in 0..20_000 {
            let (a, b) = (draw(BYTES), draw(BYTES));
            let (start, end) = (a.min(b), a.max(b));
            let owner = draw(2);
            let new = held(owner, start, end, draw(2) == 0);
            let release = draw(3) == 0;
            locks = if release { unlock(&locks, new.owner, start, end) } else { lock(&locks, new) };
            for byte in start..=end {
                model[owner as usize][byte as usize] = (!release).then_some(new.exclusive);
            }
            for owner in 0..2 {
                for byte in 0..BYTES {
                    let mine = |l: &&Lock| l.owner.owner == owner && (l.start..=l.end).contains(&byte);
                    let found: Vec<bool> = locks.iter().filter(mine).map(|l| l.exclusive).collect();
                    let expected: Vec<bool> = model[owner as usize][byte as usize].into_iter().collect();
                    assert_eq!(found, expected, "byte {byte} of owner {owner} in {locks:?}");
                }
            }
            let mergeable = locks.iter().any(|a| locks.iter().any(|b| a != b && merge(a, b)));
            assert!(!mergeable, "locks that touch are one: {locks:?}");
        }
    }
}
