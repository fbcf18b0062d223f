//! The names that the kernel may use without asking: those that it was given a short time ago.
//!
//! If changes of other clients may have been missed, each name must be looked up again. The kernel can expire
//! all names of a mount at once (`FUSE_NOTIFY_INC_EPOCH`), but it then detaches every file system that is
//! mounted on a directory of the mount (`fuse_dentry_revalidate` returns 0, so `d_invalidate` follows). If a
//! single name is expired, the kernel sends LOOKUP and keeps such file systems. So each name with a long
//! lifetime is recorded here, also names that do not exist, and is expired by itself.
//!
//! A name is dropped some time after its lifetime has certainly ended. If there are too many names, further
//! ones must get a short lifetime. On an exclusive mount, nothing is recorded.

use std::array;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use host::{HashMap, HashSet, Instant};
use types::Ino;

use crate::attr::NOTIFIED_LIFETIME;
use crate::in_flight::REPLY_TRUSTED;

const SHARDS: usize = 64;
/// The maximum number of names: 40 MiB if they are short and in few directories. The kernel expires so many in
/// about a second, unless programs use their directories.
const MAX_NAMES: usize = 1 << 19;
/// For how long a name is kept at least after it was recorded. Its lifetime begins later, when the kernel
/// applies the reply.
const KEPT_FOR: Duration = NOTIFIED_LIFETIME.saturating_add(REPLY_TRUSTED.saturating_mul(4));

/// Names with their directories. No lock is held while the kernel is called.
#[derive(Debug)]
pub struct KernelNames {
    /// By directory.
    shards: [Mutex<Shard>; SHARDS],
    count: AtomicUsize,
    max: usize,
}

/// The names of two periods of at least [`KEPT_FOR`]. A name that is recorded again moves to the present
/// period.
#[derive(Debug, Default)]
struct Shard {
    young: Names,
    old: Names,
    /// When the present period began; `None` if there are no names.
    began: Option<Instant>,
}

#[derive(Debug, Default)]
struct Names {
    by_dir: HashMap<Ino, HashSet<Box<[u8]>>>,
    count: usize,
}

impl Default for KernelNames {
    fn default() -> Self {
        KernelNames::with_max(MAX_NAMES)
    }
}

impl KernelNames {
    fn with_max(max: usize) -> Self {
        let shards = array::from_fn(|_| Mutex::default());
        KernelNames { shards, count: AtomicUsize::new(0), max }
    }

    /// Records a name that a reply gives the kernel, before the reply is written. Returns false if there are
    /// too many names.
    pub(crate) fn record(&self, dir: Ino, name: &[u8], now: Instant) -> bool {
        self.record_up_to(self.max, dir, name, now)
    }

    /// As [`Self::record`], for a name that the kernel has already, so that it is recorded even if there are
    /// too many.
    pub(crate) fn record_always(&self, dir: Ino, name: &[u8], now: Instant) {
        self.record_up_to(usize::MAX, dir, name, now);
    }

    /// Removes a name that the kernel does not use any more.
    pub(crate) fn remove(&self, dir: Ino, name: &[u8]) {
        let mut shard = self.shard(dir);
        let is_removed = shard.young.remove(dir, name) || shard.old.remove(dir, name);
        self.count.fetch_sub(usize::from(is_removed), Ordering::AcqRel);
    }

    fn record_up_to(&self, max: usize, dir: Ino, name: &[u8], now: Instant) -> bool {
        let mut shard = self.shard(dir);
        if shard.young.contains(dir, name) {
            return true;
        }
        if !shard.old.remove(dir, name) {
            if self.count.fetch_add(1, Ordering::AcqRel) >= max {
                self.count.fetch_sub(1, Ordering::AcqRel);
                return false;
            }
            shard.began.get_or_insert(now);
        }
        shard.young.insert(dir, name);
        true
    }

    /// Drops names whose lifetime has certainly ended. To be called regularly.
    pub(crate) fn drop_old(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = host::lock(shard);
            if shard.began.is_some_and(|began| now.saturating_duration_since(began) > KEPT_FOR) {
                let old = std::mem::take(&mut shard.young);
                let began = (old.count > 0).then_some(now);
                let ended = std::mem::replace(&mut *shard, Shard { young: Names::default(), old, began });
                drop(shard);
                self.count.fetch_sub(ended.old.count, Ordering::AcqRel);
            }
        }
    }

    /// The names in a directory.
    pub fn of(&self, dir: Ino) -> Vec<Box<[u8]>> {
        let shard = self.shard(dir);
        let names = [&shard.young, &shard.old].into_iter().filter_map(|names| names.by_dir.get(&dir));
        names.flatten().cloned().collect()
    }

    /// All directories with their names, each copied when it is reached.
    pub fn all(self: &Arc<Self>) -> impl Iterator<Item = (Ino, Vec<Box<[u8]>>)> + Send + use<> {
        let names = Arc::clone(self);
        (0..SHARDS).flat_map(move |index| {
            let shard = host::lock(&names.shards[index]);
            let dirs = shard.young.by_dir.keys().chain(shard.old.by_dir.keys()).copied();
            let dirs: HashSet<Ino> = dirs.collect();
            drop(shard);
            let names = Arc::clone(&names);
            dirs.into_iter().map(move |dir| (dir, names.of(dir)))
        })
    }

    fn shard(&self, dir: Ino) -> MutexGuard<'_, Shard> {
        host::lock(&self.shards[dir.0 as usize % SHARDS])
    }
}

impl Names {
    fn contains(&self, dir: Ino, name: &[u8]) -> bool {
        self.by_dir.get(&dir).is_some_and(|names| names.contains(name))
    }

    fn insert(&mut self, dir: Ino, name: &[u8]) {
        self.by_dir.entry(dir).or_default().insert(name.into());
        self.count += 1;
    }

    /// Returns whether the name was there.
    fn remove(&mut self, dir: Ino, name: &[u8]) -> bool {
        let Some(names) = self.by_dir.get_mut(&dir) else { return false };
        let is_removed = names.remove(name);
        if names.is_empty() {
            self.by_dir.remove(&dir);
        }
        self.count -= usize::from(is_removed);
        is_removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);
    const STEP: Duration = Duration::from_millis(1);

    fn sorted(names: &Arc<KernelNames>) -> Vec<(u64, Vec<u8>)> {
        let of =
            |(dir, names): (Ino, Vec<Box<[u8]>>)| names.into_iter().map(move |name| (dir.0, name.to_vec()));
        let mut all: Vec<_> = names.all().flat_map(of).collect();
        all.sort();
        all
    }

    #[test]
    fn names_are_kept_for_their_whole_lifetime() {
        let (names, born) = (Arc::<KernelNames>::default(), Instant::now());
        assert!(names.record(DIR, b"first", born) && names.record(DIR, b"again", born));
        let late = born + KEPT_FOR;
        names.drop_old(late);
        assert!(names.record(DIR, b"late", late));
        let turned = late + STEP;
        names.drop_old(turned);
        assert!(names.record(DIR, b"again", turned));
        names.drop_old(late + KEPT_FOR);
        assert_eq!(sorted(&names).len(), 3, "'late' may still be valid");
        names.drop_old(turned + KEPT_FOR + STEP);
        assert_eq!((sorted(&names), names.count.load(Ordering::Acquire)), (vec![(7, b"again".to_vec())], 1));
        names.drop_old(turned + KEPT_FOR * 2 + STEP * 2);
        assert_eq!((sorted(&names), names.count.load(Ordering::Acquire)), (vec![], 0));
        assert!(names.shards.iter().all(|shard| host::lock(shard).began.is_none()));
    }

    #[test]
    fn all_names_of_all_directories_are_listed_once() {
        let (names, born) = (Arc::<KernelNames>::default(), Instant::now());
        let mut expected = Vec::new();
        for dir in 1..200 {
            for name in [&b"a"[..], b"b"] {
                assert!(names.record(Ino(dir), name, born));
                expected.push((dir, name.to_vec()));
            }
        }
        let later = born + KEPT_FOR + STEP;
        names.drop_old(later);
        assert!(names.record(Ino(1), b"a", later));
        assert_eq!(sorted(&names), expected);
        assert_eq!(names.of(Ino(1)).len(), 2);
    }

    #[test]
    fn too_many_names_are_rejected_until_old_ones_are_dropped() {
        let (names, born) = (KernelNames::with_max(2), Instant::now());
        assert!(names.record(Ino(1), b"a", born) && names.record(Ino(2), b"a", born));
        assert!(!names.record(Ino(3), b"a", born));
        assert!(names.record(Ino(1), b"a", born), "it is recorded already");
        let later = born + KEPT_FOR + STEP;
        names.drop_old(later);
        assert!(names.record(Ino(1), b"a", later), "it moves to the present period");
        assert!(!names.record(Ino(3), b"a", later), "the name in 2 may still be valid");
        names.record_always(Ino(4), b"renamed", later);
        names.drop_old(later + KEPT_FOR + STEP);
        assert!(!names.record(Ino(3), b"a", later), "1 and 4 are left");
        names.drop_old(later + (KEPT_FOR + STEP) * 2);
        assert!(names.record(Ino(3), b"a", later) && names.record(Ino(3), b"b", later));
        assert!(!names.record(Ino(3), b"c", later));
        names.remove(Ino(3), b"never");
        names.remove(Ino(3), b"a");
        assert!(names.record(Ino(3), b"c", later));
    }
}
