//! Turns the changes of a batch into writes of keys, with the preconditions of these writes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use types::{Ino, Name};

use crate::keys::{CTIME, InodeLocation, Keyspace, LINKS, MTIME, PARTS, Span, part};
use crate::source::{Assume, ReadStop};
use crate::state::{State, StatePart};
use crate::value::{
    InodeRow, StoredDirent, decode_shard, encode_dirent, encode_inode_row, encode_links, encode_shard,
    encode_time,
};

/// A condition for the writes: they are applied only if all preconditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The key has this version; `None`: it is absent.
    Key(Vec<u8>, Option<u64>),
    /// No other commit has written the key since the batch was read. The key may be absent.
    Untouched(Vec<u8>),
    /// No key is in the range.
    Empty(Span),
    /// No key of the range was put since the range was read. A deletion may go unnoticed (on etcd). This
    /// suffices for usage shards, because a merge that deletes some of them also puts shard 0.
    Unchanged(Span),
}

/// A change of the store. No two writes of a batch have the same [`KeyWrite::key`], and none deletes a key
/// that another one puts. Deletions may overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyWrite {
    Put(Vec<u8>, Bytes),
    /// Puts the value only if the key exists and its present value is less, compared bytewise.
    PutGreater(Vec<u8>, Bytes),
    Delete(Vec<u8>),
    DeleteSpan(Span),
}

impl KeyWrite {
    /// The key, or the first one of the range.
    pub fn key(&self) -> &[u8] {
        match self {
            KeyWrite::Put(key, _) | KeyWrite::PutGreater(key, _) | KeyWrite::Delete(key) => key,
            KeyWrite::DeleteSpan(span) => &span.start,
        }
    }
}

impl Keyspace {
    /// Replaces all preconditions on the counts of shared slices by a single one. Each change of a count also
    /// writes the key [`Keyspace::any_shared`], so it suffices that this key is untouched since the counts
    /// were read. All counts must have been read as of the moment to which [`Precondition::Untouched`]
    /// refers.
    pub fn join_shared_counts(&self, preconditions: Vec<Precondition>) -> Vec<Precondition> {
        let is_count = |precondition: &Precondition| matches!(precondition, Precondition::Key(key, _) if self.is_shared(key));
        let (counts, mut others): (Vec<_>, Vec<_>) = preconditions.into_iter().partition(is_count);
        if !counts.is_empty() {
            others.push(Precondition::Untouched(self.any_shared()));
        }
        others
    }
}

pub(crate) type Writes = BTreeMap<Vec<u8>, KeyWrite>;

impl State<'_> {
    pub(crate) fn preconditions(&self) -> Vec<Precondition> {
        let keys = self.preconditions.iter().map(|(key, version)| Precondition::Key(key.clone(), *version));
        let empty = self.empty.iter().cloned().map(Precondition::Empty);
        let untouched = self.untouched.iter().cloned().map(Precondition::Untouched);
        keys.chain(untouched)
            .chain(empty)
            .chain(self.unchanged.iter().cloned().map(Precondition::Unchanged))
            .collect()
    }

    /// Everything that must be written, in the order of keys.
    pub(crate) fn build_writes(&mut self) -> Result<Vec<KeyWrite>, ReadStop> {
        let locations = self.locations()?;
        let mut deletes = Writes::new();
        let mut puts = Writes::new();
        let mut dirents: BTreeSet<(Ino, Name)> = BTreeSet::new();
        dirents.extend(self.dirents.iter().filter(|(_, state)| state.dirty).map(|(at, _)| at.clone()));
        self.write_inodes(&locations, &mut deletes, &mut puts, &mut dirents);
        self.write_dirents(&locations, dirents, &mut deletes, &mut puts);
        for (key, value) in std::mem::take(&mut self.values) {
            match value {
                Some(value) => put(&mut puts, key, value),
                None => delete(&mut deletes, key),
            }
        }
        self.write_usage(&mut puts)?;
        for span in std::mem::take(&mut self.dropped) {
            delete_between(&mut deletes, &puts, span);
        }
        deletes.extend(puts);
        Ok(deletes.into_values().collect())
    }

    /// The new location of each inode. An inode stays where it is while the dirent at its location names it.
    /// Otherwise it moves to another dirent that names it and that the batch writes anyway. If there is none,
    /// it moves to the key with its number.
    fn locations(&mut self) -> Result<BTreeMap<Ino, InodeLocation>, ReadStop> {
        let mut names: BTreeMap<Ino, (Ino, Name)> = BTreeMap::new();
        for (at, state) in self.dirents.iter().filter(|(_, state)| state.dirty) {
            if let Some(dirent) = state.dirent {
                names.insert(dirent.ino, at.clone());
            }
        }
        let mut locations = BTreeMap::new();
        let mut moved = Vec::new();
        for (ino, inode) in self.inode_states.iter().filter(|(_, inode)| inode.stored.is_some()) {
            let stays = match &inode.base {
                Some(InodeLocation::At(parent, name)) => {
                    let state = self.dirents.get(&(*parent, name.clone()));
                    state.and_then(|state| state.dirent).is_some_and(|dirent| dirent.ino == *ino)
                }
                Some(InodeLocation::Here(_)) => !names.contains_key(ino),
                None => false,
            };
            let location = match (&inode.base, names.get(ino)) {
                (Some(base), _) if stays => base.clone(),
                (_, Some((parent, name))) => InodeLocation::At(*parent, name.clone()),
                _ => InodeLocation::Here(*ino),
            };
            if inode.base.is_some() && !stays {
                moved.push(*ino);
            }
            locations.insert(*ino, location);
        }
        for ino in moved {
            self.load_links(ino)?;
            self.load_times(ino)?;
        }
        Ok(locations)
    }

    fn write_inodes(
        &self,
        locations: &BTreeMap<Ino, InodeLocation>,
        deletes: &mut Writes,
        puts: &mut Writes,
        dirents: &mut BTreeSet<(Ino, Name)>,
    ) {
        for (ino, inode) in &self.inode_states {
            let location = locations.get(ino);
            let moved = inode.base.as_ref() != location;
            let place = self.keys.inode_row(*ino);
            match (location, &inode.stored) {
                (Some(location @ InodeLocation::At(parent, name)), Some(_)) => {
                    if moved {
                        put(puts, place, encode_inode_row(&InodeRow::At(location.clone())));
                    }
                    if moved || inode.dirty {
                        dirents.insert((*parent, name.clone()));
                    }
                }
                (Some(InodeLocation::Here(_)), Some(stored)) if moved || inode.dirty => {
                    put(puts, place, encode_inode_row(&InodeRow::Here(*stored)));
                }
                (None, _) if inode.base.is_some() => delete(deletes, place),
                _ => {}
            }
            if let Some(InodeLocation::At(parent, name)) = inode.base.as_ref().filter(|_| moved) {
                dirents.insert((*parent, name.clone()));
            }
            let parts = inode.stored.filter(|stored| stored.inode.kind.is_dir());
            if let Some(base) = inode.base.as_ref().filter(|_| inode.base_parts && (moved || parts.is_none()))
            {
                let base = self.keys.location(base);
                PARTS.into_iter().for_each(|letter| delete(deletes, part(&base, letter)));
            }
            if let (Some(stored), Some(location)) = (parts, location) {
                let (location, stored) = (self.keys.location(location), stored.inode);
                let written = |part| moved || part == StatePart::Dirty;
                if written(inode.links) {
                    put(puts, part(&location, LINKS), encode_links(stored.nlink, stored.atime));
                }
                match inode.mtime {
                    StatePart::Pending(time) => put(puts, part(&location, MTIME), encode_time(time)),
                    state if written(state) => put(puts, part(&location, MTIME), encode_time(stored.mtime)),
                    _ => {}
                }
                match inode.ctime {
                    StatePart::Pending(time) => {
                        let key = part(&location, CTIME);
                        puts.insert(key.clone(), KeyWrite::PutGreater(key, encode_time(time)));
                    }
                    state if written(state) => put(puts, part(&location, CTIME), encode_time(stored.ctime)),
                    _ => {}
                }
            }
        }
    }

    fn write_dirents(
        &self,
        locations: &BTreeMap<Ino, InodeLocation>,
        dirents: BTreeSet<(Ino, Name)>,
        deletes: &mut Writes,
        puts: &mut Writes,
    ) {
        for (parent, name) in dirents {
            let Some(state) = self.dirents.get(&(parent, name.clone())) else { continue };
            let key = self.keys.dirent(parent, &name);
            let Some(dirent) = state.dirent else {
                if state.existed {
                    delete(deletes, key);
                }
                continue;
            };
            let lives_here = locations.get(&dirent.ino) == Some(&InodeLocation::At(parent, name));
            let stored =
                self.inode_states.get(&dirent.ino).and_then(|inode| inode.stored).filter(|_| lives_here);
            put(puts, key, encode_dirent(&StoredDirent { dirent, stored }));
        }
    }

    fn write_usage(&mut self, puts: &mut Writes) -> Result<(), ReadStop> {
        if (self.inodes, self.blocks) == (0, 0) {
            return Ok(());
        }
        self.write_shard(puts)?;
        let key = self.keys.usage_shard(self.options.shard);
        if self.value(&key, Assume::Absent)?.is_none() && !self.options.blind {
            // This commit adds a shard. On a store without preconditions on ranges, a commit that depends on
            // the usage has a precondition on shard 0. So this commit writes shard 0 too, and conflicts with
            // such commits.
            let first = self.keys.usage_shard(0);
            let base = self.decoded(first.clone(), Assume::Nothing, decode_shard)?;
            put(puts, first, encode_shard(base.unwrap_or_default()));
        }
        Ok(())
    }
}

pub(crate) fn put(puts: &mut Writes, key: Vec<u8>, value: Bytes) {
    puts.insert(key.clone(), KeyWrite::Put(key, value));
}

fn delete(deletes: &mut Writes, key: Vec<u8>) {
    deletes.insert(key.clone(), KeyWrite::Delete(key));
}

/// Deletes a range, except the keys of `puts`, because etcd rejects a transaction that deletes and puts the
/// same key.
fn delete_between(deletes: &mut Writes, puts: &Writes, span: Span) {
    let mut start = span.start;
    let kept: Vec<_> = puts.range(start.clone()..span.end.clone()).map(|(key, _)| key.clone()).collect();
    for key in kept {
        let mut after = key.clone();
        after.push(0);
        if start < key {
            delete_span(deletes, Span { start, end: key, limit: span.limit });
        }
        start = after;
    }
    if start < span.end {
        delete_span(deletes, Span { start, end: span.end, limit: span.limit });
    }
}

/// Deletes a range. If two ranges have the same start, only the longer one is kept.
fn delete_span(deletes: &mut Writes, span: Span) {
    let is_shorter = |known: &KeyWrite| matches!(known, KeyWrite::DeleteSpan(known) if known.end >= span.end);
    if !deletes.get(&span.start).is_some_and(is_shorter) {
        deletes.insert(span.start.clone(), KeyWrite::DeleteSpan(span));
    }
}
