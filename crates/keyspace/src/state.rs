//! The records after each transaction of a batch, on top of the values that a source knows.
//!
//! Every value on which a decision depends has a precondition: it must be unchanged when the batch is
//! committed. The links and times of a directory usually decide nothing, so they are read only if needed: if
//! the store can, [`State::image`] reads them without a precondition, and an effect that sets times writes
//! them without a read.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meta::{Dirent, Inode};
use types::{Ino, Name, Time};

use crate::keys::{CTIME, InodeLocation, Keyspace, LINKS, MTIME, Span};
use crate::source::{Assume, Lookup, ReadStop, Source, StoredValue};
use crate::value::{
    Amount, Damaged, InodeRow, Stored, decode_dirent, decode_inode_row, decode_links, decode_shard,
    decode_time,
};

/// The abilities of a store, and the options of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether the store can delete ranges, check that a range is empty or unchanged, and put a value only if
    /// it is greater than the stored one. If so, values that decide nothing need not be read.
    pub blind: bool,
    /// The usage shard that this batch changes; no other commit should use it at the same time. Not 0.
    pub shard: u64,
    /// The moment as of which the source has read its ranges, if its keys may be newer; otherwise `u64::MAX`.
    /// It is compared with the versions of keys.
    pub read_at: u64,
    /// The maximum number of preconditions of a batch. A batch of one transaction may have more.
    pub max_preconditions: usize,
    /// Whether to return the changed inodes. If set, the values that only they need must be known before the
    /// batch is decided.
    pub show: bool,
}

pub(crate) struct State<'a> {
    pub(crate) keys: &'a Keyspace,
    pub(crate) lookup: Lookup<'a>,
    pub(crate) options: Options,
    /// The version that each key must have; `None` if it must be absent.
    pub(crate) preconditions: BTreeMap<Vec<u8>, Option<u64>>,
    /// Keys that no other commit may write in the meantime
    /// ([`Precondition::Untouched`](crate::Precondition::Untouched)).
    pub(crate) untouched: BTreeSet<Vec<u8>>,
    /// Ranges that must be empty.
    pub(crate) empty: BTreeSet<Span>,
    /// Ranges in which nothing may change in the meantime.
    pub(crate) unchanged: BTreeSet<Span>,
    pub(crate) inode_states: BTreeMap<Ino, InodeState>,
    pub(crate) dirents: BTreeMap<(Ino, Name), DirentState>,
    /// Keys that are neither inodes nor dirents.
    pub(crate) values: BTreeMap<Vec<u8>, Option<Bytes>>,
    /// Ranges of the store that are deleted.
    pub(crate) dropped: Vec<Span>,
    /// The amounts that the batch adds to the usage.
    pub(crate) inodes: i64,
    pub(crate) blocks: i64,
    /// The lowest limits among the guards [`Guard::Room`](meta::Guard::Room) of the batch.
    pub(crate) room: Option<Amount>,
}

/// An inode that was accessed.
#[derive(Clone, Debug, Default)]
pub(crate) struct InodeState {
    pub(crate) stored: Option<Stored>,
    /// Its location in the store.
    pub(crate) base: Option<InodeLocation>,
    /// The version of the key at this location; 0 if there is none.
    pub(crate) base_version: u64,
    /// Whether the store has the inode as a directory, with its parts next to its location.
    pub(crate) base_parts: bool,
    pub(crate) dirty: bool,
    pub(crate) links: StatePart,
    pub(crate) mtime: StatePart,
    pub(crate) ctime: StatePart,
}

/// The state of a directory's links and atime, of its mtime, or of its ctime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StatePart {
    /// It was not read.
    #[default]
    Unknown,
    /// As in the store.
    Clean,
    /// Changed, to be written.
    Dirty,
    /// It was not read, and this time is to be written; for a ctime, only if it is later than the stored one.
    Pending(Time),
}

impl StatePart {
    /// Whether the value in the inode is valid.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, StatePart::Clean | StatePart::Dirty)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct DirentState {
    pub(crate) dirent: Option<Dirent>,
    pub(crate) existed: bool,
    pub(crate) dirty: bool,
}

impl<'a> State<'a> {
    pub(crate) fn new(keys: &'a Keyspace, source: &'a dyn Source, options: Options) -> Self {
        State {
            keys,
            lookup: Lookup::new(source),
            options,
            preconditions: BTreeMap::new(),
            untouched: BTreeSet::new(),
            empty: BTreeSet::new(),
            unchanged: BTreeSet::new(),
            inode_states: BTreeMap::new(),
            dirents: BTreeMap::new(),
            values: BTreeMap::new(),
            dropped: Vec::new(),
            inodes: 0,
            blocks: 0,
            room: None,
        }
    }

    fn require_version(&mut self, key: Vec<u8>, held: Option<&StoredValue>) {
        self.preconditions.insert(key, held.map(|held| held.version));
    }

    /// Loads an inode into `inode_states`.
    pub(crate) fn load(&mut self, ino: Ino, assume: Assume) -> Result<&mut InodeState, ReadStop> {
        if !self.inode_states.contains_key(&ino) {
            let key = self.keys.inode_row(ino);
            let held = self.lookup.location(&key, assume)?;
            match held.as_ref().map(|held| decode_inode_row(&key, &held.value)).transpose()? {
                Some(InodeRow::At(InodeLocation::At(parent, name))) => {
                    // A precondition on the dirent suffices: as long as the dirent stores the inode, the
                    // location record names the dirent.
                    self.dirent(parent, &name, Assume::Nothing)?;
                }
                Some(InodeRow::Here(stored)) => {
                    let version = held.as_ref().map_or(0, |held| held.version);
                    self.require_version(key, held.as_ref());
                    let found = InodeState::found(InodeLocation::Here(ino), version, stored);
                    self.inode_states.insert(ino, found);
                }
                Some(InodeRow::At(InodeLocation::Here(_))) | None => {
                    self.require_version(key, held.as_ref());
                    self.inode_states.insert(ino, InodeState::default());
                }
            }
        }
        // If the dirent does not store the inode, the dirent and the location record were not read as of the
        // same moment.
        self.inode_states.get_mut(&ino).ok_or(ReadStop::Missing)
    }

    /// The inode. The links and times of a directory are valid only if their [`StatePart`] is known.
    pub(crate) fn inode(&mut self, ino: Ino) -> Result<Option<&Inode>, ReadStop> {
        Ok(self.load(ino, Assume::Nothing)?.stored.as_ref().map(|stored| &stored.inode))
    }

    pub(crate) fn exists(&mut self, ino: Ino) -> Result<bool, ReadStop> {
        Ok(self.inode(ino)?.is_some())
    }

    pub(crate) fn dirent(
        &mut self,
        parent: Ino,
        name: &Name,
        assume: Assume,
    ) -> Result<Option<Dirent>, ReadStop> {
        if let Some(state) = self.dirents.get(&(parent, name.clone())) {
            return Ok(state.dirent);
        }
        let key = self.keys.dirent(parent, name);
        let held = self.lookup.location(&key, assume)?;
        let entry = held.as_ref().map(|held| decode_dirent(&key, &held.value)).transpose()?;
        self.require_version(key, held.as_ref());
        let dirent = entry.map(|entry| entry.dirent);
        if let Some(stored) = entry.and_then(|entry| entry.stored) {
            let location = InodeLocation::At(parent, name.clone());
            let ino = stored.inode.ino;
            let version = held.as_ref().map_or(0, |held| held.version);
            let known = self
                .inode_states
                .entry(ino)
                .or_insert_with(|| InodeState::found(location.clone(), version, stored));
            if known.base.as_ref() != Some(&location) {
                return Err(ReadStop::Missing);
            }
        }
        let state = DirentState { dirent, existed: dirent.is_some(), dirty: false };
        self.dirents.insert((parent, name.clone()), state);
        Ok(dirent)
    }

    /// The key of a directory's location in the store; the keys of its parts begin with it.
    fn base_key(&self, ino: Ino) -> Option<Vec<u8>> {
        Some(self.keys.location(self.inode_states.get(&ino)?.base.as_ref()?))
    }

    fn part(
        &mut self,
        ino: Ino,
        letter: u8,
        with_precondition: bool,
    ) -> Result<(Vec<u8>, StoredValue), ReadStop> {
        let base = self.base_key(ino).ok_or(ReadStop::Missing)?;
        let held = self.lookup.part(&base, letter)?;
        let key = crate::keys::part(&base, letter);
        if with_precondition {
            self.require_version(key.clone(), held.as_ref());
        }
        let held = held.ok_or_else(|| Damaged::new("a part of a directory is missing", &key))?;
        Ok((key, held))
    }

    /// Loads a directory's links and atime, with a precondition.
    pub(crate) fn load_links(&mut self, ino: Ino) -> Result<(), ReadStop> {
        let is_unknown = |inode: &InodeState| inode.stored.is_some() && inode.links == StatePart::Unknown;
        if !self.inode_states.get(&ino).is_some_and(is_unknown) {
            return Ok(());
        }
        let (key, held) = self.part(ino, LINKS, true)?;
        let (nlink, atime) = decode_links(&key, &held.value)?;
        if let Some(inode) = self.inode_states.get_mut(&ino)
            && let Some(stored) = &mut inode.stored
        {
            (stored.inode.nlink, stored.inode.atime) = (nlink, atime);
            inode.links = StatePart::Clean;
        }
        Ok(())
    }

    /// Loads a directory's mtime and ctime, with a precondition.
    pub(crate) fn load_times(&mut self, ino: Ino) -> Result<(), ReadStop> {
        for letter in [MTIME, CTIME] {
            let Some(inode) = self.inode_states.get(&ino).filter(|inode| inode.stored.is_some()) else {
                return Ok(());
            };
            let part = if letter == MTIME { inode.mtime } else { inode.ctime };
            if part.is_known() {
                continue;
            }
            let time = self.time(ino, letter, part, true)?;
            let part = if part == StatePart::Unknown { StatePart::Clean } else { StatePart::Dirty };
            if let Some(InodeState { stored: Some(Stored { inode, .. }), mtime, ctime, .. }) =
                self.inode_states.get_mut(&ino)
            {
                match letter {
                    MTIME => (inode.mtime, *mtime) = (time, part),
                    _ => (inode.ctime, *ctime) = (time, part),
                }
            }
        }
        Ok(())
    }

    /// The stored time after the pending change.
    fn time(
        &mut self,
        ino: Ino,
        letter: u8,
        part: StatePart,
        with_precondition: bool,
    ) -> Result<Time, ReadStop> {
        let (key, held) = self.part(ino, letter, with_precondition)?;
        let base = decode_time(&key, &held.value)?;
        Ok(match part {
            StatePart::Pending(time) if letter == CTIME => time.max(base),
            StatePart::Pending(time) => time,
            _ => base,
        })
    }

    /// The whole inode in its current state. A value that is only returned has no precondition if the store
    /// returns it with the commit. On other stores, which read before they commit, the value has a
    /// precondition, because it must not change between the read and the commit.
    pub(crate) fn image(&mut self, ino: Ino) -> Result<Option<Inode>, ReadStop> {
        let Some(state) = self.inode_states.get(&ino).cloned() else { return Ok(None) };
        let Some(mut inode) = state.stored.map(|stored| stored.inode) else { return Ok(None) };
        let with_precondition = !self.options.blind;
        if state.links == StatePart::Unknown {
            let (key, held) = self.part(ino, LINKS, with_precondition)?;
            (inode.nlink, inode.atime) = decode_links(&key, &held.value)?;
        }
        if !state.mtime.is_known() {
            inode.mtime = self.time(ino, MTIME, state.mtime, with_precondition)?;
        }
        if !state.ctime.is_known() {
            inode.ctime = self.time(ino, CTIME, state.ctime, with_precondition)?;
        }
        Ok(Some(inode))
    }

    /// The value of a key that is neither an inode nor a dirent.
    pub(crate) fn value(&mut self, key: &[u8], assume: Assume) -> Result<Option<Bytes>, ReadStop> {
        if let Some(value) = self.values.get(key) {
            return Ok(value.clone());
        }
        if self.is_dropped(key) {
            return Ok(None);
        }
        let held = self.lookup.key(key, assume)?;
        self.require_version(key.to_vec(), held.as_ref());
        Ok(held.map(|held| held.value))
    }

    /// Like [`State::value`], decoded.
    pub(crate) fn decoded<T>(
        &mut self,
        key: Vec<u8>,
        assume: Assume,
        decode: impl FnOnce(&[u8], &[u8]) -> Result<T, Damaged>,
    ) -> Result<Option<T>, ReadStop> {
        Ok(self.value(&key, assume)?.map(|value| decode(&key, &value)).transpose()?)
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: Bytes) {
        self.values.insert(key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.values.insert(key, None);
    }

    /// All rows of the inode in a range, without a precondition on them: each change of the rows also changes
    /// the inode's record, which has a precondition. This suffices only if the record is not newer than the
    /// moment as of which the rows were read. If the record is newer, both must be read again.
    pub(crate) fn rows_in(&mut self, ino: Ino, span: &Span) -> Result<BTreeMap<Vec<u8>, Bytes>, ReadStop> {
        let stored = self.lookup.span(span)?;
        if self.load(ino, Assume::Nothing)?.base_version > self.options.read_at {
            return Err(ReadStop::Missing);
        }
        let mut found = BTreeMap::new();
        for (key, held) in stored {
            if !self.is_dropped(key) {
                found.insert(key.to_vec(), held.value.clone());
            }
        }
        for (key, value) in self.values.range(span.start.clone()..span.end.clone()) {
            match value {
                Some(value) => drop(found.insert(key.clone(), value.clone())),
                None => drop(found.remove(key)),
            }
        }
        Ok(found)
    }

    /// Deletes a range.
    pub(crate) fn drop_span(&mut self, span: Span) -> Result<(), ReadStop> {
        if !self.options.blind {
            let keys: Vec<_> = self.lookup.span(&span)?.iter().map(|(key, _)| key.to_vec()).collect();
            keys.into_iter().for_each(|key| self.delete(key));
        }
        let here: Vec<_> =
            self.values.range(span.start.clone()..span.end.clone()).map(|(key, _)| key.clone()).collect();
        if self.options.blind {
            here.iter().for_each(|key| drop(self.values.remove(key)));
            self.dropped.push(span);
        } else {
            here.into_iter().for_each(|key| self.delete(key));
        }
        Ok(())
    }

    fn is_dropped(&self, key: &[u8]) -> bool {
        self.dropped.iter().any(|span| (span.start.as_slice()..span.end.as_slice()).contains(&key))
    }

    /// The current usage of the volume.
    pub(crate) fn usage(&mut self) -> Result<Amount, ReadStop> {
        let span = self.keys.usage_shards();
        let mut used = Amount { inodes: self.inodes, blocks: self.blocks };
        for (key, held) in self.lookup.span(&span)? {
            used = used.plus(decode_shard(key, &held.value)?.used);
            if !self.options.blind {
                self.preconditions.insert(key.to_vec(), Some(held.version));
            }
        }
        if !self.options.blind {
            // A commit that adds a shard also writes shard 0 (`write_usage`).
            let first = self.keys.usage_shard(0);
            let held = self.lookup.key(&first, Assume::Nothing)?;
            self.require_version(first, held.as_ref());
        }
        self.unchanged.insert(span);
        Ok(Amount { inodes: used.inodes.max(0), blocks: used.blocks.max(0) })
    }
}

impl InodeState {
    fn found(location: InodeLocation, version: u64, stored: Stored) -> Self {
        let parts = stored.inode.kind.is_dir();
        let part = if parts { StatePart::Unknown } else { StatePart::Clean };
        let stored = Some(stored);
        InodeState {
            stored,
            base: Some(location),
            base_version: version,
            base_parts: parts,
            dirty: false,
            links: part,
            mtime: part,
            ctime: part,
        }
    }
}
