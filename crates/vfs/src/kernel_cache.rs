//! The inodes that the kernel holds, each with the access revision of the attributes that it was given last.
//! If a session takes a directory, these attributes count as those of the directory's next revision.
//!
//! The kernel checks permissions with the attributes that it was given. If it lets a change through, the
//! operation compares the revision of these attributes ([`KernelCache::held_since`]) with the present one. So it
//! detects a change that the kernel checked with outdated attributes.
//!
//! The kernel does not keep all attributes that it is given. If a notification about an inode, or another
//! reply, arrives between the start of a request and its reply, the kernel drops the attributes in the reply
//! (`fuse_change_attributes`, `attr_version`) and keeps the old ones. So a revision that replaces another one
//! counts only if no notification and no other revision came in the time [`SETTLE_TIME`] before it, and no
//! notification comes in the same time after it. Otherwise the daemon assumes that the kernel has no
//! revision, and checks permissions itself.

use host::Instant;
use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use host::HashMap;
use ops::KernelRevisions;
use types::Ino;

const SHARDS: usize = 64;

/// Each reply looks up an inode, so this map uses a fast hash.
type Shard = HashMap<Ino, KernelInode>;

/// A request is assumed to take less time than this, from its start in the kernel until the kernel has
/// applied the reply. It takes longer only if the database hangs.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The inodes that the kernel holds.
#[derive(Debug)]
pub(crate) struct KernelCache {
    shards: [Mutex<Shard>; SHARDS],
    /// Counts the revisions that the kernel was given.
    moment: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct KernelInode {
    access_rev: u64,
    /// Whether the kernel certainly has this revision, not an older one.
    is_certain: bool,
    /// The value of [`KernelCache::moment`] from which this revision counts.
    since: u64,
    /// When the kernel was first given this revision.
    changed: Instant,
    /// Whether the kernel was given another revision before this one.
    is_replaced: bool,
    /// When the kernel was last told to invalidate the attributes.
    invalidated: Option<Instant>,
    /// The kernel's lookup count: how many replies gave it a reference. FORGET gives references back.
    lookups: u64,
}

impl KernelInode {
    fn is_stable(&self, now: Instant) -> bool {
        let is_past = |moment: Instant| now.saturating_duration_since(moment) > SETTLE_TIME;
        is_past(self.changed) && self.invalidated.is_none_or(is_past)
    }
}

impl Default for KernelCache {
    fn default() -> Self {
        KernelCache { shards: array::from_fn(|_| Mutex::default()), moment: AtomicU64::new(0) }
    }
}

impl KernelCache {
    /// Records that a reply gives the kernel a revision, and `lookups` references to the inode.
    pub(crate) fn record_sent(&self, ino: Ino, access_rev: u64, lookups: u64, now: Instant) {
        let mut shard = self.shard(ino);
        // The kernel creates its inode from the first reply, even if a notification arrived before that
        // reply.
        let inode = shard.entry(ino).or_insert_with(|| self.first(access_rev, now));
        let (was_stable, is_other) = (inode.is_stable(now), inode.access_rev != access_rev);
        if is_other {
            (inode.access_rev, inode.changed, inode.is_replaced) = (access_rev, now, true);
        }
        if is_other || !inode.is_certain && was_stable {
            (inode.is_certain, inode.since) = (was_stable, self.next_moment());
        }
        inode.lookups = inode.lookups.saturating_add(lookups);
    }

    /// As [`KernelCache::record_sent`], for a reply whose attributes the kernel always applies
    /// (`fuse_do_setattr`).
    pub(crate) fn record_applied(&self, ino: Ino, access_rev: u64, now: Instant) {
        let mut shard = self.shard(ino);
        let inode = shard.entry(ino).or_insert_with(|| self.first(access_rev, now));
        if inode.access_rev != access_rev || !inode.is_certain {
            let since = self.next_moment();
            *inode = KernelInode { lookups: inode.lookups, since, ..self.first(access_rev, now) };
        }
    }

    /// Notes that a take has incremented the access revision of a directory to `access_rev`. Attributes of
    /// the previous revision then count as those of the new one, because the take has changed nothing that
    /// access depends on.
    pub(crate) fn move_revision(&self, ino: Ino, access_rev: u64) {
        if let Some(inode) = self.shard(ino).get_mut(&ino)
            && inode.access_rev.checked_add(1) == Some(access_rev)
        {
            inode.access_rev = access_rev;
        }
    }

    fn first(&self, access_rev: u64, now: Instant) -> KernelInode {
        let since = self.next_moment();
        KernelInode {
            access_rev,
            is_certain: true,
            since,
            changed: now,
            is_replaced: false,
            invalidated: None,
            lookups: 0,
        }
    }

    fn next_moment(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Called before the kernel is told to invalidate the attributes.
    pub(crate) fn note_invalidated(&self, ino: Ino, now: Instant) {
        if let Some(inode) = self.shard(ino).get_mut(&ino) {
            if inode.is_replaced && now.saturating_duration_since(inode.changed) <= SETTLE_TIME {
                // The kernel may not have applied the reply with this revision yet.
                inode.is_certain = false;
            }
            inode.invalidated = Some(now);
        }
    }

    /// Whether the kernel was told to invalidate the attributes a short time ago.
    pub(crate) fn was_invalidated(&self, ino: Ino, now: Instant) -> bool {
        let invalidated = self.shard(ino).get(&ino).and_then(|inode| inode.invalidated);
        invalidated.is_some_and(|moment| now.saturating_duration_since(moment) <= SETTLE_TIME)
    }

    /// Takes references back; true if the kernel no longer holds the inode.
    pub(crate) fn forget_lookups(&self, ino: Ino, lookups: u64) -> bool {
        let mut shard = self.shard(ino);
        match shard.get_mut(&ino) {
            // A reply in flight may already have been counted as a further reference.
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

    /// The revision that the kernel has, if that is certain.
    #[cfg(test)]
    pub(crate) fn revision(&self, ino: Ino) -> Option<u64> {
        self.shard(ino).get(&ino).filter(|inode| inode.is_certain).map(|inode| inode.access_rev)
    }

    /// The moment of a request that arrives now.
    pub(crate) fn arrival(&self) -> Arrival {
        Arrival(self.moment.load(Ordering::Acquire))
    }

    /// The revisions that the kernel had at a moment; by default, those that it has now.
    pub(crate) fn held_since(&self, arrival: Option<Arrival>) -> RevisionsAsOf<'_> {
        let Arrival(moment) = arrival.unwrap_or_else(|| self.arrival());
        RevisionsAsOf { cache: self, moment }
    }

    /// All inodes with their lookup counts.
    pub(crate) fn lookups(&self) -> Vec<(Ino, u64)> {
        let shards = self.shards.iter().map(|shard| host::lock(shard));
        let lookups = |shard: MutexGuard<'_, Shard>| {
            shard.iter().map(|(ino, inode)| (*ino, inode.lookups)).collect::<Vec<_>>()
        };
        shards.flat_map(lookups).collect()
    }

    /// Adds an inode that another process has looked up for the kernel. Which revision the kernel has is not
    /// known.
    pub(crate) fn restore(&self, ino: Ino, lookups: u64, now: Instant) {
        let unknown =
            KernelInode { is_certain: false, is_replaced: true, lookups, ..self.first(u64::MAX, now) };
        self.shard(ino).insert(ino, unknown);
    }

    pub(crate) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| host::lock(shard).len() as u64).sum()
    }

    pub(crate) fn all(&self) -> Vec<Ino> {
        let shards = self.shards.iter().map(|shard| host::lock(shard));
        shards.flat_map(|shard| shard.keys().copied().collect::<Vec<_>>()).collect()
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        host::lock(&self.shards[ino.0 as usize % SHARDS])
    }
}

/// When a request has arrived: a value of [`KernelCache::moment`].
#[derive(Clone, Copy, Debug)]
pub struct Arrival(u64);

/// The revisions that the kernel had when a request arrived. Revisions that later replies bring do not count,
/// because the kernel had checked permissions before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RevisionsAsOf<'a> {
    cache: &'a KernelCache,
    moment: u64,
}

impl KernelRevisions for RevisionsAsOf<'_> {
    fn revision(&self, ino: Ino) -> Option<u64> {
        let inode = self.cache.shard(ino).get(&ino).copied();
        inode.filter(|inode| inode.is_certain && inode.since <= self.moment).map(|inode| inode.access_rev)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    fn held(cache: &KernelCache) -> RevisionsAsOf<'_> {
        RevisionsAsOf { cache, moment: cache.moment.load(Ordering::Acquire) }
    }

    #[test]
    fn attributes_count_after_a_take_as_before() {
        let cache = KernelCache::default();
        cache.record_sent(INO, 4, 1, Instant::now());
        let held = cache.held_since(None);
        cache.move_revision(INO, 7);
        assert_eq!(held.revision(INO), Some(4), "there was a change in between");
        cache.move_revision(INO, 5);
        assert_eq!(held.revision(INO), Some(5), "also for requests that have arrived before");
        cache.move_revision(INO, 5);
        assert_eq!(cache.revision(INO), Some(5));
    }

    #[test]
    fn inode_is_held_until_every_lookup_is_forgotten() {
        let (cache, now) = (KernelCache::default(), Instant::now());
        cache.record_sent(INO, 1, 1, now);
        cache.record_sent(INO, 1, 0, now);
        cache.record_sent(INO, 1, 1, now);
        assert!(!cache.forget_lookups(INO, 1));
        assert_eq!(cache.revision(INO), Some(1));
        // A lookup is answered while FORGET for all earlier ones is in flight.
        cache.record_sent(INO, 1, 1, now);
        assert!(!cache.forget_lookups(INO, 1));
        assert_eq!((cache.revision(INO), cache.all()), (Some(1), vec![INO]));
        assert!(cache.forget_lookups(INO, 1));
        assert_eq!((cache.revision(INO), cache.all()), (None, vec![]));
        assert!(cache.forget_lookups(INO, 1), "even for an unknown inode");
    }

    #[test]
    fn revisions_given_after_the_request_do_not_count() {
        let (cache, now) = (KernelCache::default(), Instant::now());
        let before = held(&cache);
        cache.record_sent(INO, 1, 1, now);
        let first = held(&cache);
        assert_eq!((before.revision(INO), first.revision(INO)), (None, Some(1)));
        cache.record_sent(INO, 1, 0, now);
        assert_eq!(first.revision(INO), Some(1), "the same revision once more");
        cache.record_applied(INO, 2, now);
        assert_eq!((first.revision(INO), held(&cache).revision(INO)), (None, Some(2)));
        // A request that is handled late: its arrival counts.
        let arrival = cache.arrival();
        cache.record_applied(INO, 3, now);
        assert_eq!(cache.held_since(Some(arrival)).revision(INO), None);
        assert_eq!(cache.held_since(None).revision(INO), Some(3));
    }

    #[test]
    fn revisions_that_the_kernel_may_have_dropped_do_not_count() {
        let (cache, born) = (KernelCache::default(), Instant::now());
        let after = |times: u32| born + SETTLE_TIME * times + Duration::from_millis(u64::from(times));
        cache.record_sent(INO, 1, 1, born);
        assert!(!cache.was_invalidated(INO, after(2)));
        cache.note_invalidated(INO, after(2));
        assert_eq!(cache.revision(INO), Some(1), "the kernel uses this revision even after the invalidation");
        // The request may have begun before the notification.
        cache.record_sent(INO, 2, 0, after(2));
        assert_eq!(cache.revision(INO), None);
        assert!(cache.was_invalidated(INO, after(2)), "the attributes were invalidated just before");
        cache.record_sent(INO, 2, 0, after(2));
        assert_eq!(cache.revision(INO), None);
        cache.record_sent(INO, 2, 0, after(4));
        assert_eq!(cache.revision(INO), Some(2));
        // A notification arrives between a reply and the moment when the kernel applies it.
        cache.record_sent(INO, 3, 0, after(6));
        assert_eq!(cache.revision(INO), Some(3));
        cache.note_invalidated(INO, after(6));
        assert_eq!(cache.revision(INO), None);
        cache.record_applied(INO, 4, after(6));
        assert_eq!(cache.revision(INO), Some(4));
        cache.note_invalidated(INO, after(6));
        assert_eq!(cache.revision(INO), Some(4));
    }
}
