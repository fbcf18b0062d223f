//! The records as the transactions of a batch leave them, one after another, over what a source knows.
//!
//! Whatever decides something is claimed: it must still be so when the batch is committed. What a directory's links and
//! times are decides nothing as a rule, so they are not looked at unless somebody asks: [`State::image`] looks without a
//! claim, and a touch goes to the store without a look.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meta::{Edge, Node};
use types::{Ino, Name, Time};

use crate::batch::Options;
use crate::keys::{CTIME, Home, Keyspace, LINKS, MTIME, Span};
use crate::source::{Held, Lookup, Presume, Source, Stop};
use crate::value::{
    Amount, Damaged, Place, Stored, decode_entry, decode_lane, decode_links, decode_place, decode_time,
};

pub(crate) struct State<'a> {
    pub(crate) keys: &'a Keyspace,
    pub(crate) look: Lookup<'a>,
    pub(crate) options: Options,
    /// The version that each key must have; `None` where it must be absent.
    pub(crate) claims: BTreeMap<Vec<u8>, Option<u64>>,
    /// Keys that nobody else writes meanwhile.
    pub(crate) untouched: BTreeSet<Vec<u8>>,
    pub(crate) empty: BTreeSet<Span>,
    pub(crate) unchanged: BTreeSet<Span>,
    pub(crate) nodes: BTreeMap<Ino, NodeState>,
    pub(crate) edges: BTreeMap<(Ino, Name), EdgeState>,
    /// Keys that hold neither inodes nor entries.
    pub(crate) values: BTreeMap<Vec<u8>, Option<Bytes>>,
    /// Those that are written only if they are not there.
    pub(crate) if_absent: BTreeMap<Vec<u8>, Bytes>,
    /// What lay there in the store is gone.
    pub(crate) dropped: Vec<Span>,
    /// What was added to the usage.
    pub(crate) inodes: i64,
    pub(crate) blocks: i64,
    /// The least limits below which guards ask for room.
    pub(crate) room: Option<Amount>,
}

/// An inode that was looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeState {
    pub(crate) stored: Option<Stored>,
    /// Where it is in the store.
    pub(crate) base: Option<Home>,
    /// In the store, parts of it lie beside that.
    pub(crate) base_parts: bool,
    pub(crate) dirty: bool,
    pub(crate) links: Part,
    pub(crate) mtime: Part,
    pub(crate) ctime: Part,
}

/// Whether a directory's links and atime, its mtime, or its ctime, stand in its record here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// As in the store.
    Clean,
    /// To be written.
    Dirty,
    /// Nobody has looked; this time is to be taken over: as it is, or for a ctime, if it is later.
    Pending(Time),
}

#[derive(Clone, Debug)]
pub(crate) struct EdgeState {
    pub(crate) edge: Option<Edge>,
    pub(crate) existed: bool,
    pub(crate) dirty: bool,
}

impl<'a> State<'a> {
    pub(crate) fn new(keys: &'a Keyspace, source: &'a dyn Source, options: Options) -> Self {
        State {
            keys,
            look: Lookup::new(source),
            options,
            claims: BTreeMap::new(),
            untouched: BTreeSet::new(),
            empty: BTreeSet::new(),
            unchanged: BTreeSet::new(),
            nodes: BTreeMap::new(),
            edges: BTreeMap::new(),
            values: BTreeMap::new(),
            if_absent: BTreeMap::new(),
            dropped: Vec::new(),
            inodes: 0,
            blocks: 0,
            room: None,
        }
    }

    fn claim(&mut self, key: Vec<u8>, held: Option<&Held>) {
        self.claims.insert(key, held.map(|held| held.version));
    }

    /// Looks an inode up, so that it is in `nodes`.
    pub(crate) fn load(&mut self, ino: Ino, presume: Presume) -> Result<&mut NodeState, Stop> {
        if !self.nodes.contains_key(&ino) {
            let key = self.keys.place(ino);
            let held = self.look.home(&key, presume)?;
            match held.as_ref().map(|held| decode_place(&key, &held.value)).transpose()? {
                Some(Place::At(Home::At(parent, name))) => {
                    // The entry is what is claimed: as long as the inode is in it, the place says so too.
                    self.edge(parent, &name, Presume::Nothing)?;
                }
                Some(Place::Here(stored)) => {
                    self.claim(key, held.as_ref());
                    self.nodes.insert(ino, NodeState::found(Home::Here(ino), stored));
                }
                Some(Place::At(Home::Here(_))) | None => {
                    self.claim(key, held.as_ref());
                    self.nodes.insert(ino, NodeState::default());
                }
            }
        }
        // Not there means that place and entry were not read at one moment.
        self.nodes.get_mut(&ino).ok_or(Stop::Missing)
    }

    /// The inode, of which a directory may lack links and times.
    pub(crate) fn node(&mut self, ino: Ino) -> Result<Option<&Node>, Stop> {
        Ok(self.load(ino, Presume::Nothing)?.stored.as_ref().map(|stored| &stored.node))
    }

    pub(crate) fn exists(&mut self, ino: Ino) -> Result<bool, Stop> {
        Ok(self.node(ino)?.is_some())
    }

    pub(crate) fn edge(&mut self, parent: Ino, name: &Name, presume: Presume) -> Result<Option<Edge>, Stop> {
        if let Some(state) = self.edges.get(&(parent, name.clone())) {
            return Ok(state.edge);
        }
        let key = self.keys.entry(parent, name);
        let held = self.look.home(&key, presume)?;
        let entry = held.as_ref().map(|held| decode_entry(&key, &held.value)).transpose()?;
        self.claim(key, held.as_ref());
        let edge = entry.map(|entry| entry.edge);
        if let Some(stored) = entry.and_then(|entry| entry.stored) {
            let home = Home::At(parent, name.clone());
            let ino = stored.node.ino;
            let known = self.nodes.entry(ino).or_insert_with(|| NodeState::found(home.clone(), stored));
            if known.base.as_ref() != Some(&home) {
                return Err(Stop::Missing);
            }
        }
        let state = EdgeState { edge, existed: edge.is_some(), dirty: false };
        self.edges.insert((parent, name.clone()), state);
        Ok(edge)
    }

    /// The key of a directory's home, beside which its parts are.
    fn base_key(&self, ino: Ino) -> Option<Vec<u8>> {
        Some(self.keys.home(self.nodes.get(&ino)?.base.as_ref()?))
    }

    fn part(&mut self, ino: Ino, letter: u8, claim: bool) -> Result<(Vec<u8>, Held), Stop> {
        let base = self.base_key(ino).ok_or(Stop::Missing)?;
        let held = self.look.part(&base, letter)?;
        let key = crate::keys::part(&base, letter);
        if claim {
            self.claim(key.clone(), held.as_ref());
        }
        let held = held.ok_or_else(|| Damaged::new("a part of a directory is not there", &key))?;
        Ok((key, held))
    }

    /// Looks up a directory's links and atime, with a claim.
    pub(crate) fn load_links(&mut self, ino: Ino) -> Result<(), Stop> {
        if self.nodes.get(&ino).is_none_or(|node| node.stored.is_none() || node.links != Part::Unknown) {
            return Ok(());
        }
        let (key, held) = self.part(ino, LINKS, true)?;
        let (nlink, atime) = decode_links(&key, &held.value)?;
        if let Some(node) = self.nodes.get_mut(&ino)
            && let Some(stored) = &mut node.stored
        {
            (stored.node.nlink, stored.node.atime) = (nlink, atime);
            node.links = Part::Clean;
        }
        Ok(())
    }

    /// Looks up a directory's mtime and ctime, with a claim.
    pub(crate) fn load_times(&mut self, ino: Ino) -> Result<(), Stop> {
        for letter in [MTIME, CTIME] {
            let Some(node) = self.nodes.get(&ino).filter(|node| node.stored.is_some()) else { return Ok(()) };
            let part = if letter == MTIME { node.mtime } else { node.ctime };
            if !matches!(part, Part::Unknown | Part::Pending(_)) {
                continue;
            }
            let (key, held) = self.part(ino, letter, true)?;
            let base = decode_time(&key, &held.value)?;
            if let Some(node) = self.nodes.get_mut(&ino) {
                node.take_time(letter, base, part);
            }
        }
        Ok(())
    }

    /// The whole inode as it is now. What is only shown is not claimed, but on a store where a transaction sees one
    /// moment and is committed at another: there nothing may happen in between.
    pub(crate) fn image(&mut self, ino: Ino) -> Result<Option<Node>, Stop> {
        let Some(state) = self.nodes.get(&ino).cloned() else { return Ok(None) };
        let Some(mut node) = state.stored.map(|stored| stored.node) else { return Ok(None) };
        let claim = !self.options.blind;
        if state.links == Part::Unknown {
            let (key, held) = self.part(ino, LINKS, claim)?;
            (node.nlink, node.atime) = decode_links(&key, &held.value)?;
        }
        if matches!(state.mtime, Part::Unknown | Part::Pending(_)) {
            let (key, held) = self.part(ino, MTIME, claim)?;
            let base = decode_time(&key, &held.value)?;
            node.mtime = if let Part::Pending(time) = state.mtime { time } else { base };
        }
        if matches!(state.ctime, Part::Unknown | Part::Pending(_)) {
            let (key, held) = self.part(ino, CTIME, claim)?;
            let base = decode_time(&key, &held.value)?;
            node.ctime = if let Part::Pending(time) = state.ctime { time.max(base) } else { base };
        }
        Ok(Some(node))
    }

    /// Another key's value.
    pub(crate) fn value(&mut self, key: &[u8], presume: Presume) -> Result<Option<Bytes>, Stop> {
        if let Some(value) = self.values.get(key) {
            return Ok(value.clone());
        }
        if self.is_dropped(key) {
            return Ok(None);
        }
        let held = self.look.key(key, presume)?;
        self.claim(key.to_vec(), held.as_ref());
        Ok(held.map(|held| held.value))
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: Bytes) {
        self.values.insert(key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.values.insert(key, None);
    }

    /// All of a range, which nothing claims: what changes it changes the inode that it belongs to, too.
    pub(crate) fn values_in(&mut self, span: &Span) -> Result<BTreeMap<Vec<u8>, Bytes>, Stop> {
        let mut found = BTreeMap::new();
        for (key, held) in self.look.span(span)? {
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

    /// Removes all of a range.
    pub(crate) fn drop_span(&mut self, span: Span) -> Result<(), Stop> {
        if !self.options.blind {
            let keys: Vec<_> = self.look.span(&span)?.iter().map(|(key, _)| key.to_vec()).collect();
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

    /// What the volume holds now.
    pub(crate) fn usage(&mut self) -> Result<Amount, Stop> {
        let span = self.keys.lanes();
        let mut used = Amount { inodes: self.inodes, blocks: self.blocks };
        for (key, held) in self.look.span(&span)? {
            used = used.plus(decode_lane(key, &held.value)?.used);
            if !self.options.blind {
                self.claims.insert(key.to_vec(), Some(held.version));
            }
        }
        if !self.options.blind {
            // Whoever adds a lane writes this one.
            let first = self.keys.lane(0);
            let held = self.look.key(&first, Presume::Nothing)?;
            self.claim(first, held.as_ref());
        }
        self.unchanged.insert(span);
        Ok(Amount { inodes: used.inodes.max(0), blocks: used.blocks.max(0) })
    }
}

impl NodeState {
    fn found(home: Home, stored: Stored) -> Self {
        let parts = stored.node.kind.is_dir();
        let part = if parts { Part::Unknown } else { Part::Clean };
        let stored = Some(stored);
        NodeState {
            stored,
            base: Some(home),
            base_parts: parts,
            dirty: false,
            links: part,
            mtime: part,
            ctime: part,
        }
    }

    /// Takes over the time that was found in the store, under what was to be done to it.
    fn take_time(&mut self, letter: u8, base: Time, before: Part) {
        let Some(stored) = &mut self.stored else { return };
        let (time, part) = match before {
            Part::Pending(time) if letter == CTIME => (time.max(base), Part::Dirty),
            Part::Pending(time) => (time, Part::Dirty),
            _ => (base, Part::Clean),
        };
        if letter == CTIME {
            (stored.node.ctime, self.ctime) = (time, part);
        } else {
            (stored.node.mtime, self.mtime) = (time, part);
        }
    }
}
