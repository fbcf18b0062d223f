//! What the kernel is believed to hold: its inodes, each with the access revision that it was given last.
//!
//! The kernel checks permissions by what it was given. A change that it let through is compared with that
//! ([`Vfs::held_by_kernel`]), so that one that rests on an outdated revision is noticed.
//!
//! Not all that is given is kept. If a notification about an inode, or another reply, comes between the beginning of a request
//! and its reply, the kernel drops the attributes in the reply (`fuse_change_attributes`, `attr_version`) and goes on by the ones
//! that it has. So a revision that replaces another one counts only if neither came for [`CALM`]; else the kernel counts as
//! holding none, and the daemon checks.

use host::Instant;
use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::HashMap;
use meta::{KernelRevisions, Node};
use types::Ino;

use crate::attr::Attr;
use crate::vfs::Vfs;

const SHARDS: usize = 64;

/// Each reply looks an inode up, so the hash is a fast one.
type Shard = HashMap<Ino, KernelInode>;

/// Longer than a request waits in the kernel, is answered, and its reply is taken in, unless the database hangs.
const CALM: Duration = Duration::from_secs(1);

/// The inodes that the kernel holds.
#[derive(Debug)]
pub(crate) struct KernelCache {
    shards: [Mutex<Shard>; SHARDS],
    /// Counts the revisions that were given.
    moment: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct KernelInode {
    access_rev: u64,
    /// The kernel has this revision, and not an older one.
    is_sure: bool,
    /// The moment from which it counts.
    since: u64,
    /// When this revision was given first.
    changed: Instant,
    /// Another one was given before.
    is_replaced: bool,
    /// When the kernel was last told to forget its attributes.
    forgotten: Option<Instant>,
    /// How many replies gave the kernel a reference. FORGET says how many of these it gives back.
    lookups: u64,
}

impl KernelInode {
    fn is_calm(&self, now: Instant) -> bool {
        let is_past = |moment: Instant| now.saturating_duration_since(moment) > CALM;
        is_past(self.changed) && self.forgotten.is_none_or(is_past)
    }
}

impl Default for KernelCache {
    fn default() -> Self {
        KernelCache { shards: array::from_fn(|_| Mutex::default()), moment: AtomicU64::new(0) }
    }
}

impl KernelCache {
    fn give(&self, ino: Ino, access_rev: u64, lookups: u64, now: Instant) {
        let mut shard = self.shard(ino);
        // The kernel makes an inode of the first reply, whatever came meanwhile.
        let inode = shard.entry(ino).or_insert_with(|| self.first(access_rev, now));
        let (was_calm, is_other) = (inode.is_calm(now), inode.access_rev != access_rev);
        if is_other {
            (inode.access_rev, inode.changed, inode.is_replaced) = (access_rev, now, true);
        }
        if is_other || !inode.is_sure && was_calm {
            (inode.is_sure, inode.since) = (was_calm, self.next_moment());
        }
        inode.lookups = inode.lookups.saturating_add(lookups);
    }

    /// As [`KernelCache::give`] in a reply that the kernel always takes in (`fuse_do_setattr`).
    fn give_for_sure(&self, ino: Ino, access_rev: u64, now: Instant) {
        let mut shard = self.shard(ino);
        let inode = shard.entry(ino).or_insert_with(|| self.first(access_rev, now));
        if inode.access_rev != access_rev || !inode.is_sure {
            let since = self.next_moment();
            *inode = KernelInode { lookups: inode.lookups, since, ..self.first(access_rev, now) };
        }
    }

    fn first(&self, access_rev: u64, now: Instant) -> KernelInode {
        let since = self.next_moment();
        KernelInode {
            access_rev,
            is_sure: true,
            since,
            changed: now,
            is_replaced: false,
            forgotten: None,
            lookups: 0,
        }
    }

    fn next_moment(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The kernel is about to be told to forget the attributes.
    pub(crate) fn note_forgotten(&self, ino: Ino, now: Instant) {
        if let Some(inode) = self.shard(ino).get_mut(&ino) {
            if inode.is_replaced && now.saturating_duration_since(inode.changed) <= CALM {
                // The reply that gave this revision may not have been taken in yet.
                inode.is_sure = false;
            }
            inode.forgotten = Some(now);
        }
    }

    /// Whether the kernel was told so a short time ago.
    pub(crate) fn is_forgotten(&self, ino: Ino, now: Instant) -> bool {
        let forgotten = self.shard(ino).get(&ino).and_then(|inode| inode.forgotten);
        forgotten.is_some_and(|moment| now.saturating_duration_since(moment) <= CALM)
    }

    /// Takes references back; true if the kernel does not hold the inode any more.
    fn take_back(&self, ino: Ino, lookups: u64) -> bool {
        let mut shard = self.shard(ino);
        match shard.get_mut(&ino) {
            // A reply under way gives the kernel another reference: it may have been counted already.
            Some(inode) if inode.lookups > lookups => {
                inode.lookups -= lookups;
                false
            }
            _ => {
                shard.remove(&ino);
                true
            }
        }
    }

    /// The revision that the kernel has, if that is sure.
    pub(crate) fn revision(&self, ino: Ino) -> Option<u64> {
        self.shard(ino).get(&ino).filter(|inode| inode.is_sure).map(|inode| inode.access_rev)
    }

    pub(crate) fn all(&self) -> Vec<Ino> {
        let shards = self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.flat_map(|shard| shard.keys().copied().collect::<Vec<_>>()).collect()
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        self.shards[ino.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the kernel held when a request came. What other requests give it later does not count: it checked before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    cache: &'a KernelCache,
    moment: u64,
}

impl KernelRevisions for Held<'_> {
    fn revision(&self, ino: Ino) -> Option<u64> {
        let inode = self.cache.shard(ino).get(&ino).copied();
        inode.filter(|inode| inode.is_sure && inode.since <= self.moment).map(|inode| inode.access_rev)
    }
}

impl Vfs {
    /// To be asked before a request waits for anything.
    pub(crate) fn held_by_kernel(&self) -> Held<'_> {
        let cache = &self.neighbour.cache;
        Held { cache, moment: cache.moment.load(Ordering::Acquire) }
    }

    /// Notes what the kernel is about to be given of an inode.
    pub(crate) fn tell(&self, node: &Node) {
        if !self.is_alone() {
            self.neighbour.cache.give(node.ino, node.access_rev, 0, Instant::now());
        }
    }

    /// As [`Vfs::tell`], in the reply to SETATTR.
    pub(crate) fn tell_for_sure(&self, attr: &Attr) {
        if !self.is_alone() {
            self.neighbour.cache.give_for_sure(attr.ino, attr.access_rev, Instant::now());
        }
    }

    /// Notes that a reply gives the kernel a reference to the inode, beside its attributes. Called before the reply is written.
    pub fn looked_up(&self, attr: &Attr) {
        if !self.is_alone() {
            self.neighbour.cache.give(attr.ino, attr.access_rev, 1, Instant::now());
        }
    }

    /// The kernel gives references to an inode back, as many as `lookups` replies gave it.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        if self.is_alone() || self.neighbour.cache.take_back(ino, lookups) {
            self.ghosts().remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    fn held(cache: &KernelCache) -> Held<'_> {
        Held { cache, moment: cache.moment.load(Ordering::Acquire) }
    }

    #[test]
    fn an_inode_is_held_until_every_lookup_is_taken_back() {
        let (cache, now) = (KernelCache::default(), Instant::now());
        cache.give(INO, 1, 1, now);
        cache.give(INO, 1, 0, now);
        cache.give(INO, 1, 1, now);
        assert!(!cache.take_back(INO, 1));
        assert_eq!(cache.revision(INO), Some(1));
        // A lookup is answered while FORGET of all earlier ones is under way.
        cache.give(INO, 1, 1, now);
        assert!(!cache.take_back(INO, 1));
        assert_eq!((cache.revision(INO), cache.all()), (Some(1), vec![INO]));
        assert!(cache.take_back(INO, 1));
        assert_eq!((cache.revision(INO), cache.all()), (None, vec![]));
        assert!(cache.take_back(INO, 1), "of what it was not given, too");
    }

    #[test]
    fn what_is_given_later_does_not_count() {
        let (cache, now) = (KernelCache::default(), Instant::now());
        let before = held(&cache);
        cache.give(INO, 1, 1, now);
        let first = held(&cache);
        assert_eq!((before.revision(INO), first.revision(INO)), (None, Some(1)));
        cache.give(INO, 1, 0, now);
        assert_eq!(first.revision(INO), Some(1), "the same revision once more");
        cache.give_for_sure(INO, 2, now);
        assert_eq!((first.revision(INO), held(&cache).revision(INO)), (None, Some(2)));
    }

    #[test]
    fn what_the_kernel_may_have_dropped_does_not_count() {
        let (cache, born) = (KernelCache::default(), Instant::now());
        let after = |times: u32| born + CALM * times + Duration::from_millis(u64::from(times));
        cache.give(INO, 1, 1, born);
        assert!(!cache.is_forgotten(INO, after(2)));
        cache.note_forgotten(INO, after(2));
        assert_eq!(cache.revision(INO), Some(1), "it goes by this, valid or not");
        // The reply may have begun before the notification.
        cache.give(INO, 2, 0, after(2));
        assert_eq!(cache.revision(INO), None);
        assert!(cache.is_forgotten(INO, after(2)), "it is to ask again already");
        cache.give(INO, 2, 0, after(2));
        assert_eq!(cache.revision(INO), None);
        cache.give(INO, 2, 0, after(4));
        assert_eq!(cache.revision(INO), Some(2));
        // A notification comes between a reply and the kernel's taking it in.
        cache.give(INO, 3, 0, after(6));
        assert_eq!(cache.revision(INO), Some(3));
        cache.note_forgotten(INO, after(6));
        assert_eq!(cache.revision(INO), None);
        cache.give_for_sure(INO, 4, after(6));
        assert_eq!(cache.revision(INO), Some(4));
        cache.note_forgotten(INO, after(6));
        assert_eq!(cache.revision(INO), Some(4));
    }
}
