//! What is known of the store's keys, and what has to be read to go on.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;

use bytes::Bytes;

use crate::keys::{PARTS, Span, group, part};
use crate::value::Damaged;

/// A value as it is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub value: Bytes,
    /// Changes with each write of the key.
    pub version: u64,
}

/// What a source knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Unknown,
    Absent,
    Held(Held),
}

/// Something to be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// One key.
    Key(Vec<u8>),
    /// The home of an inode and the parts beside it: one short range, or four keys.
    Group(Vec<u8>),
    Span(Span),
}

impl Access {
    /// The range that holds all of it; for one key `None`.
    pub fn span(&self) -> Option<Span> {
        match self {
            Access::Key(_) => None,
            Access::Group(home) => Some(group(home)),
            Access::Span(span) => Some(span.clone()),
        }
    }

    /// The keys it consists of, where these are few and known.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        match self {
            Access::Key(key) => vec![key.clone()],
            Access::Group(home) => {
                std::iter::once(home.clone()).chain(PARTS.map(|letter| part(home, letter))).collect()
            }
            Access::Span(_) => Vec::new(),
        }
    }
}

/// Who knows values: a snapshot, or what a client remembers.
pub trait Source: Debug {
    fn get(&self, key: &[u8]) -> Known;
    /// `None` if unknown.
    fn span(&self, span: &Span) -> Option<&[(Bytes, Held)]>;
}

/// Why a question cannot be answered yet, or at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Something has to be read first.
    Missing,
    /// The transactions before this one have to be committed first.
    Flush,
    Damaged(Damaged),
}

impl From<Damaged> for Stop {
    fn from(damaged: Damaged) -> Self {
        Stop::Damaged(damaged)
    }
}

/// What to take an unknown key for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presume {
    Nothing,
    /// Most likely it is not there, which is checked when the transaction is committed.
    Absent,
}

/// Looks into a source, and keeps track of what was looked at.
pub(crate) struct Lookup<'a> {
    source: &'a dyn Source,
    pub(crate) accessed: BTreeSet<Access>,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(source: &'a dyn Source) -> Self {
        Lookup { source, accessed: BTreeSet::new() }
    }

    pub(crate) fn key(&mut self, key: &[u8], presume: Presume) -> Result<Option<Held>, Stop> {
        self.accessed.insert(Access::Key(key.to_vec()));
        self.known(key, presume)
    }

    /// The record at a home.
    pub(crate) fn home(&mut self, home: &[u8], presume: Presume) -> Result<Option<Held>, Stop> {
        self.accessed.insert(Access::Group(home.to_vec()));
        self.known(home, presume)
    }

    /// A part beside a home.
    pub(crate) fn part(&mut self, home: &[u8], letter: u8) -> Result<Option<Held>, Stop> {
        self.accessed.insert(Access::Group(home.to_vec()));
        self.known(&part(home, letter), Presume::Nothing)
    }

    pub(crate) fn span(&mut self, span: &Span) -> Result<&'a [(Bytes, Held)], Stop> {
        self.accessed.insert(Access::Span(span.clone()));
        self.source.span(span).ok_or(Stop::Missing)
    }

    fn known(&self, key: &[u8], presume: Presume) -> Result<Option<Held>, Stop> {
        match (self.source.get(key), presume) {
            (Known::Held(held), _) => Ok(Some(held)),
            (Known::Absent, _) | (Known::Unknown, Presume::Absent) => Ok(None),
            (Known::Unknown, Presume::Nothing) => Err(Stop::Missing),
        }
    }
}

/// What was read as of one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    keys: HashMap<Vec<u8>, Option<Held>>,
    spans: HashMap<Span, Vec<(Bytes, Held)>>,
}

impl Snapshot {
    /// Takes in the answer to an access: what was found, in the order of keys.
    pub fn fill(&mut self, access: &Access, found: Vec<(Bytes, Held)>) {
        for key in access.keys() {
            self.keys.insert(key, None);
        }
        match access {
            Access::Span(span) => drop(self.spans.insert(span.clone(), found)),
            _ => self.keys.extend(found.into_iter().map(|(key, held)| (key.to_vec(), Some(held)))),
        }
    }

    /// Takes in what else was read as of the same moment.
    pub fn extend(&mut self, other: Snapshot) {
        self.keys.extend(other.keys);
        self.spans.extend(other.spans);
    }

    pub fn has(&self, access: &Access) -> bool {
        match access {
            Access::Key(key) | Access::Group(key) if !self.keys.contains_key(key) => false,
            Access::Key(_) => true,
            Access::Group(home) => PARTS.iter().all(|letter| self.keys.contains_key(&part(home, *letter))),
            Access::Span(span) => self.spans.contains_key(span),
        }
    }

    /// Every key that was read, and what was found there.
    pub fn keys(&self) -> impl Iterator<Item = (&Vec<u8>, &Option<Held>)> {
        self.keys.iter()
    }

    /// What was found in ranges.
    pub fn found(&self) -> impl Iterator<Item = &(Bytes, Held)> {
        self.spans.values().flatten()
    }
}

impl Source for Snapshot {
    fn get(&self, key: &[u8]) -> Known {
        match self.keys.get(key) {
            None => Known::Unknown,
            Some(None) => Known::Absent,
            Some(Some(held)) => Known::Held(held.clone()),
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, Held)]> {
        self.spans.get(span).map(Vec::as_slice)
    }
}
