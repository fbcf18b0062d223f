//! What a batch changed, as writes of keys.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use types::{Ino, Name};

use crate::keys::{CTIME, Home, LINKS, MTIME, PARTS, Span, part};
use crate::source::{Presume, Stop};
use crate::state::{Part, State};
use crate::value::{
    Entry, Lane, Place, decode_lane, encode_entry, encode_lane, encode_links, encode_place, encode_time,
};

/// What must be so for the writes to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The key has this version; `None`: it is not there.
    Key(Vec<u8>, Option<u64>),
    /// Nobody has written the key since the batch was read, whatever stands there.
    Untouched(Vec<u8>),
    /// No key is in the range.
    Empty(Span),
    /// Nothing in the range has changed since it was read.
    Unchanged(Span),
}

/// A change of the store. No two of a batch meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put(Vec<u8>, Bytes),
    /// Only if the key is there and its value is below this one, bytewise.
    PutGreater(Vec<u8>, Bytes),
    PutIfAbsent(Vec<u8>, Bytes),
    Delete(Vec<u8>),
    DeleteSpan(Span),
}

impl Write {
    /// The key, or the first one of the range.
    pub fn key(&self) -> &[u8] {
        match self {
            Write::Put(key, _)
            | Write::PutGreater(key, _)
            | Write::PutIfAbsent(key, _)
            | Write::Delete(key) => key,
            Write::DeleteSpan(span) => &span.start,
        }
    }
}

pub(crate) type Writes = BTreeMap<Vec<u8>, Write>;

impl State<'_> {
    pub(crate) fn claims(&self) -> Vec<Claim> {
        let keys = self.claims.iter().map(|(key, version)| Claim::Key(key.clone(), *version));
        let empty = self.empty.iter().cloned().map(Claim::Empty);
        let untouched = self.untouched.iter().cloned().map(Claim::Untouched);
        keys.chain(untouched)
            .chain(empty)
            .chain(self.unchanged.iter().cloned().map(Claim::Unchanged))
            .collect()
    }

    /// All that has to be written, in the order of keys.
    pub(crate) fn settle(&mut self) -> Result<Vec<Write>, Stop> {
        let homes = self.homes()?;
        let mut deletes = Writes::new();
        let mut puts = Writes::new();
        let mut entries: BTreeSet<(Ino, Name)> = BTreeSet::new();
        entries.extend(self.edges.iter().filter(|(_, state)| state.dirty).map(|(at, _)| at.clone()));
        self.write_nodes(&homes, &mut deletes, &mut puts, &mut entries);
        self.write_entries(&homes, entries, &mut deletes, &mut puts);
        for (key, value) in std::mem::take(&mut self.values) {
            match value {
                Some(value) => put(&mut puts, key, value),
                None => delete(&mut deletes, key),
            }
        }
        for (key, value) in std::mem::take(&mut self.if_absent) {
            puts.insert(key.clone(), Write::PutIfAbsent(key, value));
        }
        self.write_usage(&mut puts)?;
        for span in std::mem::take(&mut self.dropped) {
            delete_between(&mut deletes, &puts, span);
        }
        deletes.extend(puts);
        Ok(deletes.into_values().collect())
    }

    /// Where each inode lives from now on: it stays while the entry that is its home names it, else it moves to another
    /// that does and is written anyway, or under its number.
    fn homes(&mut self) -> Result<BTreeMap<Ino, Home>, Stop> {
        let mut names: BTreeMap<Ino, (Ino, Name)> = BTreeMap::new();
        for (at, state) in self.edges.iter().filter(|(_, state)| state.dirty) {
            if let Some(edge) = state.edge {
                names.insert(edge.ino, at.clone());
            }
        }
        let mut homes = BTreeMap::new();
        let mut moved = Vec::new();
        for (ino, node) in self.nodes.iter().filter(|(_, node)| node.stored.is_some()) {
            let stays = match &node.base {
                Some(Home::At(parent, name)) => {
                    let state = self.edges.get(&(*parent, name.clone()));
                    state.and_then(|state| state.edge).is_some_and(|edge| edge.ino == *ino)
                }
                Some(Home::Here(_)) => !names.contains_key(ino),
                None => false,
            };
            let home = match (&node.base, names.get(ino)) {
                (Some(base), _) if stays => base.clone(),
                (_, Some((parent, name))) => Home::At(*parent, name.clone()),
                _ => Home::Here(*ino),
            };
            if node.base.is_some() && !stays {
                moved.push(*ino);
            }
            homes.insert(*ino, home);
        }
        for ino in moved {
            self.load_links(ino)?;
            self.load_times(ino)?;
        }
        Ok(homes)
    }

    fn write_nodes(
        &self,
        homes: &BTreeMap<Ino, Home>,
        deletes: &mut Writes,
        puts: &mut Writes,
        entries: &mut BTreeSet<(Ino, Name)>,
    ) {
        for (ino, node) in &self.nodes {
            let home = homes.get(ino);
            let moved = node.base.as_ref() != home;
            let place = self.keys.place(*ino);
            match (home, &node.stored) {
                (Some(home @ Home::At(parent, name)), Some(_)) => {
                    if moved {
                        put(puts, place, encode_place(&Place::At(home.clone())));
                    }
                    if moved || node.dirty {
                        entries.insert((*parent, name.clone()));
                    }
                }
                (Some(Home::Here(_)), Some(stored)) if moved || node.dirty => {
                    put(puts, place, encode_place(&Place::Here(*stored)));
                }
                (None, _) if node.base.is_some() => delete(deletes, place),
                _ => {}
            }
            if let Some(Home::At(parent, name)) = node.base.as_ref().filter(|_| moved) {
                entries.insert((*parent, name.clone()));
            }
            let parts = node.stored.filter(|stored| stored.node.kind.is_dir());
            if let Some(base) = node.base.as_ref().filter(|_| node.base_parts && (moved || parts.is_none())) {
                let base = self.keys.home(base);
                PARTS.into_iter().for_each(|letter| delete(deletes, part(&base, letter)));
            }
            if let (Some(stored), Some(home)) = (parts, home) {
                let (home, stored) = (self.keys.home(home), stored.node);
                let written = |part| moved || part == Part::Dirty;
                if written(node.links) {
                    put(puts, part(&home, LINKS), encode_links(stored.nlink, stored.atime));
                }
                match node.mtime {
                    Part::Pending(time) => put(puts, part(&home, MTIME), encode_time(time)),
                    state if written(state) => put(puts, part(&home, MTIME), encode_time(stored.mtime)),
                    _ => {}
                }
                match node.ctime {
                    Part::Pending(time) => {
                        let key = part(&home, CTIME);
                        puts.insert(key.clone(), Write::PutGreater(key, encode_time(time)));
                    }
                    state if written(state) => put(puts, part(&home, CTIME), encode_time(stored.ctime)),
                    _ => {}
                }
            }
        }
    }

    fn write_entries(
        &self,
        homes: &BTreeMap<Ino, Home>,
        entries: BTreeSet<(Ino, Name)>,
        deletes: &mut Writes,
        puts: &mut Writes,
    ) {
        for (parent, name) in entries {
            let Some(state) = self.edges.get(&(parent, name.clone())) else { continue };
            let key = self.keys.entry(parent, &name);
            let Some(edge) = state.edge else {
                if state.existed {
                    delete(deletes, key);
                }
                continue;
            };
            let lives_here = homes.get(&edge.ino) == Some(&Home::At(parent, name));
            let stored = self.nodes.get(&edge.ino).and_then(|node| node.stored).filter(|_| lives_here);
            put(puts, key, encode_entry(&Entry { edge, stored }));
        }
    }

    fn write_usage(&mut self, puts: &mut Writes) -> Result<(), Stop> {
        if (self.inodes, self.blocks) == (0, 0) {
            return Ok(());
        }
        self.write_lane(puts)?;
        let key = self.keys.lane(self.options.lane);
        if self.value(&key, Presume::Absent)?.is_none() && !self.options.blind {
            // Who claims the usage, but not by a range, claims this key, and so hears of a lane that is new.
            let first = self.keys.lane(0);
            let base = self.value(&first, Presume::Nothing)?;
            let base = base.map_or(Ok(Lane::default()), |base| decode_lane(&first, &base))?;
            put(puts, first, encode_lane(base));
        }
        Ok(())
    }
}

pub(crate) fn put(puts: &mut Writes, key: Vec<u8>, value: Bytes) {
    puts.insert(key.clone(), Write::Put(key, value));
}

fn delete(deletes: &mut Writes, key: Vec<u8>) {
    deletes.insert(key.clone(), Write::Delete(key));
}

/// Deletes a range but for the keys that are written.
fn delete_between(deletes: &mut Writes, puts: &Writes, span: Span) {
    let mut start = span.start;
    let kept: Vec<_> = puts.range(start.clone()..span.end.clone()).map(|(key, _)| key.clone()).collect();
    for key in kept {
        let mut after = key.clone();
        after.push(0);
        if start < key {
            let gap = Span { start, end: key, limit: span.limit };
            deletes.insert(gap.start.clone(), Write::DeleteSpan(gap));
        }
        start = after;
    }
    if start < span.end {
        deletes.insert(start.clone(), Write::DeleteSpan(Span { start, end: span.end, limit: span.limit }));
    }
}
