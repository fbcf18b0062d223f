//! The client's records in memory: bounded by what they weigh ([`crate::weight`]), versioned, shared by all threads.
//!
//! Two facts about one record may arrive in any order: a read that took its snapshot before a commit may come back
//! after it. So each slot carries the [`Seq`] it is known at, and only news replace it. What was evicted leaves its
//! version behind as its shard's floor, below which nothing new is taken in.
//!
//! While a client is alone, or told of all that others change, a directory that it has made or listed is known as a whole ([`Value::Listed`]): a name that
//! is not in memory is then not in the directory either, and nobody needs to be asked. That ends when an entry of the
//! directory is lost from memory, by eviction or because the floor kept it out. These are counted for a few directories
//! together, and each mark carries the count from before the moment it speaks of ([`Before`]).
//!
//! What another client changed is heard of some time after it happened, and on some engines under a [`Seq`] below that of a
//! read that missed it. So word of a change ends whatever is known from reads, of the record it names, and bars those that
//! began before it came. What this client's own commits left behind is known in the server's exact order. Where a directory
//! was being read, or made, when word of one of its names came, it is not marked: the reading may have missed the name.
//!
//! [`Cache::clear`] is for when words may have been missed: it also bars whatever was asked for before.
//!
//! Lock order: one shard's lock at a time, held for no call out of this file.

use host::Instant;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use acl::nfs4::{self, Nfs4Acl};
use acl::posix::PosixAcl;
use host::RandomState;
use types::{AclId, FileType, Ino, Name, Slice, XattrName};

use crate::lock::Lock;
use crate::record::{Counter, Edge, Facts, LockWait, Node, Record, Seq, Settings, Usage, XattrBytes, Xattrs};
use crate::volume::AclKind;
use crate::weight::weight;
use types::ChunkIndex;

/// What a record is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Node(Ino),
    Edge(Ino, Name),
    /// Which part of a directory is in memory without a gap.
    Listed(Ino),
    Empty(Ino),
    Xattrs(Ino),
    Symlink(Ino),
    Slices(Ino, ChunkIndex),
    Acl(AclId),
    /// What an ACL to inherit makes of a new file: by the rwx bits of its mode, and by what it is.
    Inherited(AclId, u32, FileType),
    /// What the kernel is shown of an NFSv4 ACL on an inode of this owner and group; whether a directory.
    Projection(AclId, u32, u32, bool),
    /// The same of a directory without an ACL, by its rwx bits, owner and group.
    ModeProjection(u32, u32, u32),
    /// Whether an access ACL lets everybody search.
    Anyone(AclId),
    Settings,
    Counter(Counter),
    Usage,
    Locks(Ino),
    Waits,
}

/// A record as the client holds it, absence included; ACLs parsed.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Node(Option<Node>),
    Edge(Option<Edge>),
    /// Every entry up to this name, all of them with `None`, as long as the directory's losses are these.
    Listed {
        to: Option<Name>,
        losses: u64,
    },
    Empty(bool),
    Xattrs(Arc<Xattrs>),
    /// They changed, and take no more than this.
    XattrsWithin(XattrBytes),
    Symlink(Option<Arc<[u8]>>),
    Slices(Arc<[Slice]>),
    /// `None` also where the stored text is no ACL: access is then refused, never guessed.
    Acl(Option<Acl>),
    /// The ACL, and the rwx bits of the mode that goes with it.
    Inherited(AclId, u32),
    Projection(Arc<nfs4::Projection>),
    Anyone(bool),
    Settings(Arc<Settings>),
    Counter(u64),
    Usage(Usage),
    Locks(Arc<[Lock]>),
    Waits(Arc<[LockWait]>),
    /// It changed, and the new value did not come along.
    Unknown,
}

/// An ACL of the volume's kind.
#[derive(Clone, Debug)]
pub(crate) enum Acl {
    Posix(Arc<PosixAcl>),
    Nfs4(Arc<nfs4::Compiled>),
}

impl Key {
    /// Whether the record may be kept beyond the operation that read it. Chunks are kept by open files, and the rest
    /// is wanted fresh whenever it is wanted.
    fn is_cacheable(&self) -> bool {
        match self {
            Key::Node(_)
            | Key::Edge(..)
            | Key::Listed(_)
            | Key::Xattrs(_)
            | Key::Symlink(_)
            | Key::Acl(_)
            | Key::Inherited(..)
            | Key::Projection(..)
            | Key::ModeProjection(..)
            | Key::Anyone(_) => true,
            Key::Empty(_)
            | Key::Slices(..)
            | Key::Settings
            | Key::Counter(_)
            | Key::Usage
            | Key::Locks(_)
            | Key::Waits => false,
        }
    }
}

impl Key {
    /// Whether the record never changes, once it is there: ACLs go by their content.
    fn is_immutable(&self) -> bool {
        matches!(
            self,
            Key::Acl(_) | Key::Inherited(..) | Key::Projection(..) | Key::ModeProjection(..) | Key::Anyone(_)
        )
    }
}

/// Splits facts into what they are found by and what they say. Rows of scans that no plan looks at fall away.
fn known(record: &Record, kind: AclKind) -> Option<(Key, Value)> {
    Some(match record {
        Record::Node(ino, node) => (Key::Node(*ino), Value::Node(*node)),
        Record::Edge(parent, name, edge) => (Key::Edge(*parent, name.clone()), Value::Edge(*edge)),
        Record::Empty(ino, empty) => (Key::Empty(*ino), Value::Empty(*empty)),
        Record::Xattrs(ino, xattrs) => (Key::Xattrs(*ino), Value::Xattrs(xattrs.clone())),
        Record::Symlink(ino, target) => (Key::Symlink(*ino), Value::Symlink(target.clone())),
        Record::Slices(ino, chunk, rows) => (Key::Slices(*ino, *chunk), Value::Slices(rows.clone())),
        Record::Acl(id, text) => (Key::Acl(*id), Value::Acl(parse_acl(*id, text.as_deref(), kind))),
        Record::Settings(settings) => (Key::Settings, Value::Settings(settings.clone())),
        Record::Counter(counter, value) => (Key::Counter(*counter), Value::Counter(*value)),
        Record::Usage(usage) => (Key::Usage, Value::Usage(*usage)),
        Record::Locks(ino, locks) => (Key::Locks(*ino), Value::Locks(locks.clone())),
        Record::Waits(waits) => (Key::Waits, Value::Waits(waits.clone())),
        Record::Session(..) | Record::Orphan(..) | Record::Garbage(_) | Record::Shared(..) => return None,
    })
}

/// The ACL with this id: a text that reads well and has another hash is another ACL, such as one that lost its first entries,
/// which denied something.
fn parse_acl(id: AclId, text: Option<&str>, kind: AclKind) -> Option<Acl> {
    let Some(text) = text else {
        tracing::error!(acl = %id, "an inode refers to an ACL that is not stored; access to it is refused");
        return None;
    };
    let parsed = match kind {
        AclKind::Nfs4 => Nfs4Acl::from_storage(text)
            .map(|acl| (acl.id(), Acl::Nfs4(Arc::new(nfs4::Compiled::new(acl)))))
            .map_err(|error| error.to_string()),
        AclKind::Posix | AclKind::Off => PosixAcl::from_storage(text)
            .map(|acl| (acl.id(), Acl::Posix(Arc::new(acl))))
            .map_err(|error| error.to_string()),
    };
    parsed
        .and_then(|(is, acl)| if is == id { Ok(acl) } else { Err(format!("it is the ACL {is}")) })
        .inspect_err(|error| {
            tracing::error!(acl = %id, %error, "a stored ACL is corrupt; access by it is refused");
        })
        .ok()
}

const SHARDS: usize = 64;

/// Directories that are counted apart: one in so many suffers from another's losses.
const COUNTERS: usize = 1024;

#[derive(Debug)]
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// By directory.
    counters: Vec<Counters>,
    hasher: RandomState,
    shard_capacity: usize,
    /// What the volume's ACLs are parsed as.
    kind: AclKind,
}

/// Of directories that are counted together.
#[derive(Debug, Default)]
struct Counters {
    /// Entries lost from memory. Counted under the lock of the shard that lost them.
    losses: AtomicU64,
    /// Changes heard of while no part of the directory was marked. Counted under the lock of the mark's shard.
    words: AtomicU64,
}

/// What was counted of a directory before it was read, or before it was there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    losses: u64,
    words: u64,
}

/// Where a record is from.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// A reading that began then.
    Read(Instant),
    /// A commit of this client, with when it began where that is long ago, or what this client worked out.
    Own(Option<Instant>),
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashMap<Key, Slot, RandomState>,
    /// What they weigh together.
    weight: usize,
    /// The keys of `slots` in the order of the eviction clock, and its hand.
    clock: Vec<Key>,
    hand: usize,
    floor: Seq,
    /// When a change was last heard of that concerned a record not in `slots`.
    heard: Option<Instant>,
    /// When all was forgotten.
    cleared: Option<Instant>,
}

#[derive(Debug)]
struct Slot {
    value: Value,
    seq: Seq,
    since: Instant,
    /// Left by a commit of this client, so that `seq` is the record's exact place in the server's order.
    committed: bool,
    /// Used since the clock's hand last passed.
    used: bool,
}

impl Cache {
    /// Holds about `capacity` records of ordinary size, at least one a shard.
    pub(crate) fn new(capacity: usize, kind: AclKind) -> Self {
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            counters: (0..COUNTERS).map(|_| Counters::default()).collect(),
            hasher: RandomState::default(),
            shard_capacity: (capacity / SHARDS).max(1),
            kind,
        }
    }

    /// The record, unless it is older than `oldest`. Without such a bound a name is also known to be absent from the
    /// part of its directory that is in memory as a whole.
    pub(crate) fn get(&self, key: &Key, oldest: Option<Instant>) -> Option<Value> {
        let mut shard = self.shard(key);
        let Some(slot) = shard.slots.get_mut(key) else {
            drop(shard);
            return if oldest.is_none() { self.absence(key) } else { None };
        };
        if oldest.is_some_and(|oldest| slot.since < oldest) && !key.is_immutable() {
            return None;
        }
        slot.used = true;
        match &slot.value {
            Value::Unknown => None,
            value => Some(value.clone()),
        }
    }

    /// What is known of the xattrs of an inode after one more was set, or one was removed.
    pub(crate) fn xattrs_after(&self, ino: Ino, set: Option<(&XattrName, usize)>) -> Value {
        let before = match self.get(&Key::Xattrs(ino), None) {
            Some(Value::Xattrs(xattrs)) => XattrBytes::of(&xattrs),
            Some(Value::XattrsWithin(bytes)) => bytes,
            _ => return Value::Unknown,
        };
        Value::XattrsWithin(set.map_or(before, |(name, value_len)| before.with(name, value_len)))
    }

    /// Nodes of many inodes, in their order; `None` of those that are not known. No shard is locked twice, so that the
    /// processor waits for the memory of several at a time.
    pub(crate) fn nodes(&self, inos: &[Ino]) -> Vec<Option<Node>> {
        let mut places: Vec<(usize, usize)> =
            inos.iter().map(|ino| self.index(&Key::Node(*ino))).zip(0..).collect();
        places.sort_unstable();
        let mut nodes = vec![None; inos.len()];
        for of_one in places.chunk_by(|one, other| one.0 == other.0) {
            let mut shard = self.lock(of_one[0].0);
            for &(_, place) in of_one {
                if let Some(slot) = shard.slots.get_mut(&Key::Node(inos[place]))
                    && let Value::Node(node) = slot.value
                {
                    slot.used = true;
                    nodes[place] = node;
                }
            }
        }
        nodes
    }

    /// That a name is not in its directory, if that is known.
    fn absence(&self, key: &Key) -> Option<Value> {
        let Key::Edge(dir, name) = key else { return None };
        let Some(Value::Listed { to, losses }) = self.get(&Key::Listed(*dir), None) else { return None };
        if to.is_some_and(|to| *name > to) {
            return None;
        }
        // The entry may have come between the first look and the mark's, so it is looked for once more; and if it has
        // gone since, that was counted under this lock.
        let shard = self.shard(key);
        let absent = !shard.slots.contains_key(key) && self.losses(*dir) == losses;
        absent.then_some(Value::Edge(None))
    }

    /// What [`Cache::listed`] is to be told, from before a directory is read, or made.
    pub(crate) fn before(&self, dir: Ino) -> Before {
        Before { losses: self.losses(dir), words: self.words(dir) }
    }

    /// How many entries were lost so far of this directory, and of others that are counted with it.
    fn losses(&self, dir: Ino) -> u64 {
        self.counters(dir).losses.load(Ordering::Acquire)
    }

    fn words(&self, dir: Ino) -> u64 {
        self.counters(dir).words.load(Ordering::Acquire)
    }

    /// Notes that the entries after `after` and up to `to` (`None`: from the first, to the last) were taken in at `seq`,
    /// unless a change was heard of meanwhile. Only a client may say so that is alone or told of all that changes.
    pub(crate) fn listed(&self, dir: Ino, after: Option<&Name>, to: Option<&Name>, before: Before, seq: Seq) {
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
        let mut shard = self.shard(&key);
        // From here on word of a change finds the mark.
        if self.words(dir) == before.words {
            self.insert_into(
                &mut shard,
                key,
                Value::Listed { to: to.cloned(), losses },
                seq,
                Origin::Own(None),
            );
        }
    }

    /// Takes in what was read by a request that began at `began`.
    pub(crate) fn absorb(&self, facts: &Facts, began: Instant) -> Vec<(Key, Value)> {
        let known: Vec<_> = facts.records.iter().filter_map(|record| self.known(record)).collect();
        for (key, value) in &known {
            self.insert(key.clone(), value.clone(), facts.seq, Origin::Read(began));
        }
        known
    }

    /// An ACL comes along with each inode that has it, and is parsed only the first time.
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

    /// Takes in what a commit of this client left behind that began at `began`.
    pub(crate) fn committed(&self, key: Key, value: Value, seq: Seq, began: Instant) {
        self.insert(key, value, seq, Origin::Own(Some(began)));
    }

    /// Takes in what this client knows by itself.
    pub(crate) fn put(&self, key: Key, value: Value, seq: Seq) {
        self.insert(key, value, seq, Origin::Own(None));
    }

    fn insert(&self, key: Key, value: Value, seq: Seq, origin: Origin) {
        if key.is_cacheable() && !matches!(value, Value::Acl(None)) {
            self.insert_into(&mut self.shard(&key), key, value, seq, origin);
        }
    }

    fn insert_into(&self, shard: &mut Shard, key: Key, value: Value, seq: Seq, origin: Origin) {
        let capacity = self.shard_capacity;
        let seq = if key.is_immutable() { shard.floor } else { seq };
        let (read, began) = match origin {
            Origin::Read(began) => (Some(began), Some(began)),
            Origin::Own(began) => (None, began),
        };
        let fresh = Slot { value, seq, since: Instant::now(), committed: read.is_none(), used: true };
        let is_before = |began: Option<Instant>, word: Instant| {
            began.is_some_and(|began| began <= word) && !key.is_immutable()
        };
        if shard.cleared.is_some_and(|cleared| is_before(began, cleared)) {
            self.count_loss(&key, &fresh);
            // A later change may have been missed, so this value does not serve; nor does one from before this commit.
            if read.is_none() {
                shard.pass_over(&key, seq);
            }
        } else if let Some(slot) = shard.slots.get_mut(&key) {
            let is_late =
                matches!(slot.value, Value::Unknown | Value::XattrsWithin(_)) && is_before(read, slot.since);
            if slot.seq <= seq && !is_late {
                let old = std::mem::replace(slot, fresh);
                let new = weight(&slot.value);
                shard.weight = shard.weight - weight(&old.value) + new;
                let gone = shard.make_room(0, capacity, Some(&key));
                gone.iter().for_each(|(key, slot)| self.count_loss(key, slot));
            }
        } else if seq < shard.floor || shard.heard.is_some_and(|heard| is_before(read, heard)) {
            self.count_loss(&key, &fresh);
        } else {
            let gone = shard.insert(key, fresh, capacity);
            gone.iter().for_each(|(key, slot)| self.count_loss(key, slot));
        }
    }

    /// Another client changed the record by the commit `seq`: neither what is in memory of it serves any more, nor what
    /// is read from before that.
    pub(crate) fn outdate(&self, key: Key, seq: Seq) {
        self.outdate_unless(key, seq, |slot| slot.committed && slot.seq >= seq);
    }

    /// This client may have changed the record: as [`Cache::outdate`], whatever is known of it.
    pub(crate) fn doubt(&self, key: Key) {
        self.outdate_unless(key, Seq::default(), |_| false);
    }

    fn outdate_unless(&self, key: Key, seq: Seq, is_newer: impl Fn(&Slot) -> bool) {
        let in_listing = matches!(&key, Key::Edge(dir, _) if self.is_marked(*dir));
        let mut shard = self.shard(&key);
        match shard.slots.get_mut(&key) {
            Some(slot) if is_newer(slot) => {}
            Some(slot) => {
                let old = std::mem::replace(&mut slot.value, Value::Unknown);
                slot.seq = seq.max(slot.seq);
                slot.since = Instant::now();
                slot.committed = false;
                shard.weight = shard.weight - weight(&old) + weight(&Value::Unknown);
            }
            None => {
                shard.floor = shard.floor.max(seq);
                shard.heard = Some(Instant::now());
                drop(shard);
                // In a directory that is in memory as a whole, a name that is unknown has to stand there as such.
                if in_listing {
                    self.put(key, Value::Unknown, seq);
                }
            }
        }
    }

    /// Whether a part of the directory is in memory without a gap. Else none becomes so by what is being read now.
    fn is_marked(&self, dir: Ino) -> bool {
        let mark = Key::Listed(dir);
        let shard = self.shard(&mark);
        let is_marked = shard.slots.contains_key(&mark);
        if !is_marked {
            self.counters(dir).words.fetch_add(1, Ordering::AcqRel);
        }
        is_marked
    }

    /// Forgets everything, as after a gap in what is heard of other clients, and bars what was asked for before.
    pub(crate) fn clear(&self) {
        for counters in &self.counters {
            counters.words.fetch_add(1, Ordering::AcqRel);
        }
        let now = Instant::now();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.cleared = Some(now);
            let newest = shard.slots.values().map(|slot| slot.seq).max();
            shard.floor = shard.floor.max(newest.unwrap_or_default());
            shard.slots.iter().for_each(|(key, slot)| self.count_loss(key, slot));
            shard.slots.clear();
            shard.weight = 0;
            shard.clock.clear();
            shard.hand = 0;
        }
    }

    /// The caller holds the lock of the key's shard, so that who finds the entry missing there finds it counted too.
    fn count_loss(&self, key: &Key, slot: &Slot) {
        if let (Key::Edge(dir, _), Value::Edge(Some(_)) | Value::Unknown) = (key, &slot.value) {
            self.counters(*dir).losses.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn counters(&self, dir: Ino) -> &Counters {
        &self.counters[dir.0 as usize % COUNTERS]
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        self.lock(self.index(key))
    }

    fn index(&self, key: &Key) -> usize {
        self.hasher.hash_one(key) as usize % SHARDS
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    /// A commit of this client changed the record, and its value is not to be kept: older ones are not either.
    fn pass_over(&mut self, key: &Key, seq: Seq) {
        match self.slots.get_mut(key) {
            Some(slot) if slot.seq < seq => {
                let old = std::mem::replace(&mut slot.value, Value::Unknown);
                (slot.seq, slot.committed) = (seq, true);
                self.weight = self.weight - weight(&old) + weight(&Value::Unknown);
            }
            Some(_) => {}
            None => self.floor = self.floor.max(seq),
        }
    }

    /// Returns what had to go.
    fn insert(&mut self, key: Key, slot: Slot, capacity: usize) -> Vec<(Key, Slot)> {
        let weight = weight(&slot.value);
        let gone = self.make_room(weight, capacity, None);
        self.weight += weight;
        // Behind the hand, so that it passes all others first.
        self.clock.push(key.clone());
        if !gone.is_empty() {
            let last = self.clock.len() - 1;
            self.clock.swap(self.hand, last);
            self.hand = (self.hand + 1) % self.clock.len();
        }
        self.slots.insert(key, slot);
        gone
    }

    /// Evicts until so much more fits in, or nothing is left but `keep`, and returns what went.
    fn make_room(&mut self, more: usize, capacity: usize, keep: Option<&Key>) -> Vec<(Key, Slot)> {
        let mut gone = Vec::new();
        while self.weight + more > capacity && self.clock.len() > usize::from(keep.is_some()) {
            self.hand %= self.clock.len();
            let key = &self.clock[self.hand];
            // Two rounds at most: the first one clears every mark.
            if let Some(slot) = self.slots.get_mut(key).filter(|slot| slot.used || keep == Some(key)) {
                slot.used = false;
                self.hand += 1;
                continue;
            }
            let evicted = self.clock.swap_remove(self.hand);
            if let Some((key, slot)) = self.slots.remove_entry(&evicted) {
                self.floor = self.floor.max(slot.seq);
                self.weight -= weight(&slot.value);
                gone.push((key, slot));
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests;
