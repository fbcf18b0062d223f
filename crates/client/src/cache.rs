//! The client's record cache: bounded by size ([`crate::charge`]), versioned, shared by all threads.
//!
//! Two values of one record may arrive in any order: a read whose snapshot is from before a commit may return
//! after the commit. So each slot has the [`Seq`] of its value, and an older value never replaces it. When a
//! record is evicted, the floor of its shard rises at least to the record's `Seq`. A shard accepts no new
//! record with a `Seq` below its floor.
//!
//! While a client has the volume exclusively, or is notified of all changes by others, it knows a directory
//! completely after it has created or listed it: a name that is not in the cache is not in the directory, and
//! no read is needed. A mark says so ([`Value::Listed`]). The mark becomes invalid when the cache loses an
//! entry of the directory, by eviction or because the floor rejects the entry. A counter, which several
//! directories share, counts these losses. Each mark stores the count from before the read or creation that
//! it describes ([`DirCounters`]), and is valid while the counter still has that value.
//!
//! A change by another client is delivered some time after its commit and, on some engines, with a [`Seq`]
//! below that of a read that did not see it. So an invalidation drops any value of the record that came from
//! a read, and bars all reads of it that began earlier: their answers are not cached. It does not drop a
//! value from a later commit of this client, because the `Seq` of a commit is its exact position in the
//! server's order. A directory is not marked if an invalidation of one of its names arrives while it is read
//! or created, because the read may have missed that name.
//!
//! [`Cache::drop_names`] drops all names of a directory when a client takes it or has given it back, because
//! changes in a held directory are answered before they are committed. It does not search for the slots.
//! Instead, each lookup and each insertion compares the beginning of the read with the moment of the drop.
//!
//! [`Cache::clear`] is for the case that invalidations may have been missed: it also bars the reads that
//! began earlier.
//!
//! Lock order: a thread locks one shard at a time. Under this lock, it calls no code outside this file that
//! can block.

mod key;
mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use host::{Instant, RandomState};
use meta::{AclKind, Inode, Record, Seq, Snapshot, xattr_blocks};
use metrics::ShardedCounter;
use ops::{Key, KnownRecords, Value, known};
use types::{Ino, Name, XattrName};

use crate::charge::{RECORD_BYTES, charge};
use slots::{Moment, Slot, Slots};

const SHARDS: usize = 64;

/// The number of counters for directories. If directories share one, a loss in one of them invalidates the
/// marks of all.
const COUNTERS: usize = 1024;

#[derive(Debug)]
pub(crate) struct Cache {
    /// When the cache was created.
    origin: Instant,
    shards: Vec<Mutex<Shard>>,
    /// Indexed by directory number modulo [`COUNTERS`].
    counters: Vec<Counters>,
    hasher: RandomState,
    shard_capacity: usize,
    /// The kind of ACLs that the volume stores.
    kind: AclKind,
    /// Lookups by operations that found the record, and those that did not.
    hits: ShardedCounter,
    misses: ShardedCounter,
}

/// Counters that several directories share.
#[derive(Debug, Default)]
struct Counters {
    /// Entries lost from the cache. Counted under the lock of the shard that lost them.
    losses: AtomicU64,
    /// Invalidations of names that were received while the directory had no mark, counted under the lock of
    /// the mark's shard. Each clear of the cache also counts.
    invalidations: AtomicU64,
    /// One more than the last moment at which all names of one of the directories were dropped; 0 if that has
    /// not happened. A name is not used if its read or commit began before this.
    dropped: AtomicU64,
}

/// The counters of a directory from before it was read or created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirCounters {
    losses: u64,
    invalidations: u64,
}

/// How a value came into the cache.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// A read that began at this time.
    Read(Moment),
    /// A commit of this client, or (`None`) a value that this client computed.
    Own(Option<CommitTimes>),
}

/// When a commit of this client was sent and answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitTimes(Moment, Moment);

#[derive(Debug, Default)]
struct Shard {
    slots: Slots,
    /// The sum of the charges of all slots ([`crate::charge`]).
    charge: usize,
    floor: Seq,
    /// When the last invalidation of a record that is not in `slots` was received.
    invalidated: Option<Moment>,
    /// When the shard was last cleared.
    cleared: Option<Moment>,
}

impl Cache {
    /// A cache for about `capacity` records of ordinary size, and at least one per shard.
    pub(crate) fn new(capacity: usize, kind: AclKind) -> Self {
        Cache {
            origin: Instant::now(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            counters: (0..COUNTERS).map(|_| Counters::default()).collect(),
            hasher: RandomState::default(),
            shard_capacity: (capacity / SHARDS).max(1),
            kind,
            hits: ShardedCounter::default(),
            misses: ShardedCounter::default(),
        }
    }

    /// The moment of `instant`; the first moment if `instant` is before the creation of the cache.
    fn moment(&self, instant: Instant) -> Moment {
        let nanos = instant.saturating_duration_since(self.origin).as_nanos();
        Moment(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn now(&self) -> Moment {
        self.moment(Instant::now())
    }

    /// The record, unless its value is older than `oldest`. If `oldest` is `None`, an uncached name in the
    /// completely cached part of its directory is known to be absent.
    pub(crate) fn get(&self, key: &Key, oldest: Option<Instant>) -> Option<Value> {
        let (mut shard, hash) = self.shard(key);
        let Some(slot) = shard.slots.get_mut(hash, key) else {
            drop(shard);
            return if oldest.is_none() { self.absence(key) } else { None };
        };
        if oldest.is_some_and(|oldest| slot.began < self.moment(oldest)) && !key.is_immutable()
            || self.is_dropped(key, slot.began)
        {
            return None;
        }
        slot.used = true;
        match &slot.value {
            Value::Unknown => None,
            value => Some(value.clone()),
        }
    }

    /// The value to cache for an inode's xattrs after one was set to `value` or removed (`None`).
    pub(crate) fn xattrs_after(&self, ino: Ino, name: &XattrName, value: Option<&[u8]>) -> Value {
        let blocks = |value: &[u8]| xattr_blocks(value.len());
        let mut sizes = match self.get(&Key::Xattrs(ino), None) {
            Some(Value::Xattrs(all)) => {
                all.iter().map(|(name, value)| (name.clone(), blocks(value))).collect()
            }
            Some(Value::XattrSizes(sizes)) => Arc::unwrap_or_clone(sizes),
            _ => BTreeMap::new(),
        };
        match value {
            Some(value) => drop(sizes.insert(name.clone(), blocks(value))),
            None => drop(sizes.remove(name)),
        }
        // Other clients may have removed some of the xattrs, so the map could otherwise grow without a bound.
        let is_possible = sizes.len() <= usize::from(Inode::MAX_XATTR_BLOCKS);
        if is_possible { Value::XattrSizes(Arc::new(sizes)) } else { Value::Unknown }
    }

    /// Many inodes, in the order of `inos`; `None` for those that are not cached. Each shard is locked once,
    /// so that the processor can overlap several memory accesses.
    pub(crate) fn inodes(&self, inos: &[Ino]) -> Vec<Option<Inode>> {
        let place = |(place, ino): (usize, &Ino)| {
            let hash = self.hasher.hash_one(Key::Inode(*ino));
            (shard_of(hash), hash, place)
        };
        let mut places: Vec<(usize, u64, usize)> = inos.iter().enumerate().map(place).collect();
        places.sort_unstable();
        let mut inodes = vec![None; inos.len()];
        for of_one in places.chunk_by(|one, other| one.0 == other.0) {
            let mut shard = self.lock(of_one[0].0);
            for &(_, hash, place) in of_one {
                if let Some(slot) = shard.slots.get_mut(hash, &Key::Inode(inos[place]))
                    && let Value::Inode(inode) = slot.value
                {
                    slot.used = true;
                    inodes[place] = inode;
                }
            }
        }
        inodes
    }

    /// Returns `Dirent(None)` if the name is known to be absent from its directory.
    fn absence(&self, key: &Key) -> Option<Value> {
        let Key::Dirent(dir, name) = key else { return None };
        let Some(Value::Listed { to, losses }) = self.get(&Key::Listed(*dir), None) else { return None };
        if to.is_some_and(|to| *name > to) {
            return None;
        }
        // The entry may have been inserted after the lookup of the name and before that of the mark, so look
        // it up again. If it has been evicted since, the loss was counted under this lock.
        let (shard, hash) = self.shard(key);
        let absent = !shard.slots.contains(hash, key) && self.losses(*dir) == losses;
        absent.then_some(Value::Dirent(None))
    }

    /// The cached names of these inodes, each with its directory. Reads the whole cache.
    pub(crate) fn names_of(&self, inos: &BTreeSet<Ino>) -> BTreeMap<Ino, (Ino, Name)> {
        let mut names = BTreeMap::new();
        for index in 0..SHARDS {
            for (key, slot) in self.lock(index).slots.iter() {
                if let (Key::Dirent(parent, name), Value::Dirent(Some(dirent))) = (key, &slot.value)
                    && inos.contains(&dirent.ino)
                {
                    names.insert(dirent.ino, (*parent, name.clone()));
                }
            }
        }
        names
    }

    /// How many lookups by operations found the record, and how many did not.
    pub(crate) fn lookups(&self) -> [u64; 2] {
        [self.hits.get(), self.misses.get()]
    }

    /// The memory of all records, estimated by their charges.
    pub(crate) fn bytes(&self) -> u64 {
        (0..SHARDS).map(|index| self.lock(index).charge as u64).sum::<u64>() * RECORD_BYTES as u64
    }

    /// The counters to pass to [`Cache::listed`], taken before a directory is read or created.
    pub(crate) fn before(&self, dir: Ino) -> DirCounters {
        DirCounters { losses: self.losses(dir), invalidations: self.invalidations(dir) }
    }

    /// How many entries of this directory, and of those that share its counter, were lost so far.
    fn losses(&self, dir: Ino) -> u64 {
        self.counters(dir).losses.load(Ordering::Acquire)
    }

    fn invalidations(&self, dir: Ino) -> u64 {
        self.counters(dir).invalidations.load(Ordering::Acquire)
    }

    /// Marks the entries after `after` (`None`: from the first) up to `to` (`None`: to the last) as
    /// completely cached at `seq`, unless an invalidation arrived since `before`. Only a client that has the
    /// volume exclusively or is notified of all changes may call this.
    pub(crate) fn listed(
        &self,
        dir: Ino,
        after: Option<&Name>,
        to: Option<&Name>,
        before: DirCounters,
        seq: Seq,
    ) {
        let key = Key::Listed(dir);
        let mark = match self.get(&key, None) {
            Some(Value::Listed { to, losses }) if losses == self.losses(dir) => Some((to, losses)),
            _ => None,
        };
        let reaches = |name: Option<&Name>| {
            let to = mark.as_ref().map(|(to, _)| to.as_ref());
            to.is_some_and(|to| to.is_none() || (name.is_some() && to >= name))
        };
        let losses = match (after, &mark) {
            _ if reaches(to) => return,
            (None, _) => before.losses,
            (Some(_), Some((_, losses))) if reaches(after) => *losses,
            (Some(_), _) => return,
        };
        let (mut shard, hash) = self.shard(&key);
        // An invalidation takes this lock too: an earlier one has been counted, and a later one finds the
        // mark.
        if self.invalidations(dir) == before.invalidations {
            self.insert_into(
                &mut shard,
                hash,
                key,
                Value::Listed { to: to.cloned(), losses },
                seq,
                Origin::Own(None),
            );
        }
    }

    /// Stores the records of a read that began at `began`.
    pub(crate) fn absorb(&self, snapshot: &Snapshot, began: Instant) {
        let origin = Origin::Read(self.moment(began));
        for (key, value) in snapshot.records.iter().filter_map(|record| self.known(record)) {
            self.insert(key, value, snapshot.seq, origin);
        }
    }

    /// As [`Cache::absorb`], and returns the records.
    pub(crate) fn absorb_and_return(&self, snapshot: &Snapshot, began: Instant) -> Vec<(Key, Value)> {
        let known: Vec<_> = snapshot.records.iter().filter_map(|record| self.known(record)).collect();
        let origin = Origin::Read(self.moment(began));
        for (key, value) in &known {
            self.insert(key.clone(), value.clone(), snapshot.seq, origin);
        }
        known
    }

    /// As [`Cache::absorb_and_return`], but stores only records that never change.
    pub(crate) fn pass(&self, snapshot: &Snapshot, began: Instant) -> Vec<(Key, Value)> {
        let known: Vec<_> = snapshot.records.iter().filter_map(|record| self.known(record)).collect();
        let origin = Origin::Read(self.moment(began));
        for (key, value) in known.iter().filter(|(key, _)| key.is_immutable()) {
            self.insert(key.clone(), value.clone(), snapshot.seq, origin);
        }
        known
    }

    /// Splits a record as [`known`] does. An inode's ACLs come with each read of it, and are parsed only the
    /// first time.
    fn known(&self, record: &Record) -> Option<(Key, Value)> {
        match record {
            Record::Acl(id, Some(_)) => {
                let key = Key::Acl(*id);
                match self.get(&key, None) {
                    Some(value) => Some((key, value)),
                    None => known(record, self.kind),
                }
            }
            _ => known(record, self.kind),
        }
    }

    /// The times of a commit that was sent at `began` and answered at `answered`, for [`Cache::committed`].
    pub(crate) fn commit_times(&self, began: Instant, answered: Instant) -> CommitTimes {
        CommitTimes(self.moment(began), self.moment(answered))
    }

    /// Stores a value that a commit of this client left.
    pub(crate) fn committed(&self, key: Key, value: Value, seq: Seq, times: CommitTimes) {
        self.insert(key, value, seq, Origin::Own(Some(times)));
    }

    /// Stores a value that this client computed.
    pub(crate) fn put(&self, key: Key, value: Value, seq: Seq) {
        self.insert(key, value, seq, Origin::Own(None));
    }

    fn insert(&self, key: Key, value: Value, seq: Seq, origin: Origin) {
        if key::is_cacheable(&key) && !matches!(value, Value::Acl(None)) {
            let (mut shard, hash) = self.shard(&key);
            self.insert_into(&mut shard, hash, key, value, seq, origin);
        }
    }

    fn insert_into(&self, shard: &mut Shard, hash: u64, key: Key, value: Value, seq: Seq, origin: Origin) {
        let capacity = self.shard_capacity;
        let seq = if key.is_immutable() { shard.floor } else { seq };
        // The clock is read only if it has to be: several records may be stored for each request.
        let (read, began, since) = match origin {
            Origin::Read(began) => (Some(began), Some(began), began),
            Origin::Own(Some(CommitTimes(began, answered))) => (None, Some(began), answered),
            Origin::Own(None) => (None, None, self.now()),
        };
        let fresh =
            Slot { value, seq, since, began: began.unwrap_or(since), committed: read.is_none(), used: true };
        let is_before = |began: Option<Moment>, event: Moment| {
            began.is_some_and(|began| began <= event) && !key.is_immutable()
        };
        if shard.cleared.is_some_and(|cleared| is_before(began, cleared))
            || began.is_some_and(|began| self.is_dropped(&key, began))
        {
            self.count_loss(&key, &fresh);
            // A later change may have been missed, so neither this value nor an older one may be cached.
            if read.is_none() {
                shard.pass_over(hash, &key, seq);
            }
        } else if let Some(slot) = shard.slots.get_mut(hash, &key) {
            let is_late =
                matches!(slot.value, Value::Unknown | Value::XattrSizes(_)) && is_before(read, slot.since);
            if slot.seq <= seq && !is_late {
                let old = std::mem::replace(slot, fresh);
                let new = charge(&slot.value);
                shard.charge = shard.charge - charge(&old.value) + new;
                shard.make_room(0, capacity, Some(&key), |key, slot| self.count_loss(key, slot));
            }
        } else if seq < shard.floor
            || shard.invalidated.is_some_and(|invalidated| is_before(read, invalidated))
        {
            self.count_loss(&key, &fresh);
        } else {
            let new = charge(&fresh.value);
            shard.make_room(new, capacity, None, |key, slot| self.count_loss(key, slot));
            shard.charge += new;
            shard.slots.insert(hash, key, fresh);
        }
    }

    /// Another client changed the record in commit `seq`: drops the cached value, and bars the reads that
    /// began earlier.
    pub(crate) fn invalidate(&self, key: Key, seq: Seq) {
        self.invalidate_unless(key, seq, |slot| slot.committed && slot.seq >= seq);
    }

    /// As [`Cache::invalidate`], for a change whose `Seq` is not known. Drops every cached value of the
    /// record.
    pub(crate) fn invalidate_any_seq(&self, key: Key) {
        self.invalidate_unless(key, Seq::default(), |_| false);
    }

    fn invalidate_unless(&self, key: Key, seq: Seq, is_newer: impl Fn(&Slot) -> bool) {
        let in_listing = matches!(&key, Key::Dirent(dir, _) if self.is_marked(*dir));
        let (mut shard, hash) = self.shard(&key);
        match shard.slots.get_mut(hash, &key) {
            Some(slot) if is_newer(slot) => {}
            Some(slot) => {
                let old = std::mem::replace(&mut slot.value, Value::Unknown);
                slot.seq = seq.max(slot.seq);
                slot.since = self.now();
                slot.committed = false;
                shard.charge = shard.charge - charge(&old) + charge(&Value::Unknown);
            }
            None => {
                shard.floor = shard.floor.max(seq);
                shard.invalidated = Some(self.now());
                drop(shard);
                // In a completely cached directory, a name without a slot counts as absent. So the name is
                // stored as unknown.
                if in_listing {
                    self.put(key, Value::Unknown, seq);
                }
            }
        }
    }

    /// Whether a part of the directory is marked as complete. If not, counts the invalidation, so that a read
    /// in progress does not mark the directory.
    fn is_marked(&self, dir: Ino) -> bool {
        let mark = Key::Listed(dir);
        let (shard, hash) = self.shard(&mark);
        let is_marked = shard.slots.contains(hash, &mark);
        if !is_marked {
            self.counters(dir).invalidations.fetch_add(1, Ordering::AcqRel);
        }
        is_marked
    }

    /// Drops all names in a directory, and bars the reads and commits that began earlier.
    pub(crate) fn drop_names(&self, dir: Ino) {
        let counters = self.counters(dir);
        counters.dropped.fetch_max(self.now().0.saturating_add(1), Ordering::AcqRel);
        // The mark becomes invalid, so a name without a slot is not known to be absent any more.
        counters.losses.fetch_add(1, Ordering::AcqRel);
        counters.invalidations.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the key is a name whose value, from a read or commit that began at this time, was dropped.
    fn is_dropped(&self, key: &Key, began: Moment) -> bool {
        let Key::Dirent(dir, _) = key else { return false };
        began.0 < self.counters(*dir).dropped.load(Ordering::Acquire)
    }

    /// Clears the cache after invalidations may have been missed, and bars the reads that began earlier.
    pub(crate) fn clear(&self) {
        for counters in &self.counters {
            counters.invalidations.fetch_add(1, Ordering::AcqRel);
        }
        let now = self.now();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.cleared = Some(now);
            let newest = shard.slots.iter().map(|(_, slot)| slot.seq).max();
            shard.floor = shard.floor.max(newest.unwrap_or_default());
            shard.slots.iter().for_each(|(key, slot)| self.count_loss(key, slot));
            shard.slots.clear();
            shard.charge = 0;
        }
    }

    /// Counts the loss of a directory entry. The caller holds the lock of the key's shard, so a thread that
    /// finds the entry missing there also finds it counted.
    fn count_loss(&self, key: &Key, slot: &Slot) {
        if let (Key::Dirent(dir, _), Value::Dirent(Some(_)) | Value::Unknown) = (key, &slot.value) {
            self.counters(*dir).losses.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn counters(&self, dir: Ino) -> &Counters {
        &self.counters[dir.0 as usize % COUNTERS]
    }

    /// The shard of a key, locked, and the hash of the key.
    fn shard(&self, key: &Key) -> (MutexGuard<'_, Shard>, u64) {
        let hash = self.hasher.hash_one(key);
        (self.lock(shard_of(hash)), hash)
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index of the shard of a key with this hash. The tables of the shards use the other bits of the hash.
fn shard_of(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}

impl KnownRecords for Cache {
    fn get(&self, key: &Key, oldest: Option<Instant>) -> Option<Value> {
        let found = Cache::get(self, key, oldest);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.add(1);
        found
    }

    fn put(&self, key: Key, value: Value) {
        // The cache gives an immutable record the oldest `Seq` that it accepts.
        Cache::put(self, key, value, Seq::default());
    }
}

impl Shard {
    /// Handles a commit of this client that changed the record in `seq` to a value that must not be cached:
    /// drops older values, and accepts none any more.
    fn pass_over(&mut self, hash: u64, key: &Key, seq: Seq) {
        match self.slots.get_mut(hash, key) {
            Some(slot) if slot.seq < seq => {
                let old = std::mem::replace(&mut slot.value, Value::Unknown);
                (slot.seq, slot.committed) = (seq, true);
                self.charge = self.charge - charge(&old) + charge(&Value::Unknown);
            }
            Some(_) => {}
            None => self.floor = self.floor.max(seq),
        }
    }

    /// Evicts until `more` fits within `capacity` or only `keep` is left. Calls `lose` with each evicted
    /// slot.
    fn make_room(&mut self, more: usize, capacity: usize, keep: Option<&Key>, lose: impl Fn(&Key, &Slot)) {
        while self.charge + more > capacity
            && let Some((key, slot)) = self.slots.evict(keep)
        {
            self.floor = self.floor.max(slot.seq);
            self.charge -= charge(&slot.value);
            lose(&key, &slot);
        }
    }
}

#[cfg(test)]
mod tests;
