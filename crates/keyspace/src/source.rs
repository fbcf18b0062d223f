//! Sources, which know the values of some keys and ranges of the store, and queries, which are the keys and
//! ranges to read.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;

use bytes::Bytes;

use crate::keys::{PARTS, Span, group, part};
use crate::value::Damaged;

/// A value in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    pub value: Bytes,
    /// A number that changes with each write of the key.
    pub version: u64,
}

/// The state of a key, as a source knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    Unknown,
    Absent,
    StoredValue(StoredValue),
}

/// A key or range to be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyQuery {
    /// One key.
    Key(Vec<u8>),
    /// The location of an inode and the parts next to it: one short range, or four keys.
    Group(Vec<u8>),
    Span(Span),
}

impl KeyQuery {
    /// The range that contains all its keys; `None` for one key.
    pub fn span(&self) -> Option<Span> {
        match self {
            KeyQuery::Key(_) => None,
            KeyQuery::Group(location) => Some(group(location)),
            KeyQuery::Span(span) => Some(span.clone()),
        }
    }

    /// Its keys; none for a range, whose keys are not known in advance.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        match self {
            KeyQuery::Key(key) => vec![key.clone()],
            KeyQuery::Group(location) => {
                std::iter::once(location.clone()).chain(PARTS.map(|letter| part(location, letter))).collect()
            }
            KeyQuery::Span(_) => Vec::new(),
        }
    }
}

/// A source of values: values that were read as of one moment, or a client's cache.
pub trait Source: Debug {
    fn get(&self, key: &[u8]) -> KeyState;
    /// `None` if unknown.
    fn span(&self, span: &Span) -> Option<&[(Bytes, StoredValue)]>;
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStop {
    /// A key or range must be read first.
    Missing,
    /// The earlier transactions of the batch must be committed first.
    Flush,
    Damaged(Damaged),
}

impl From<Damaged> for ReadStop {
    fn from(damaged: Damaged) -> Self {
        ReadStop::Damaged(damaged)
    }
}

/// The assumption about a key that the source does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assume {
    Nothing,
    /// The key is absent, which is probable; a precondition checks it when the transaction is committed.
    Absent,
}

/// Reads from a source, and records the queries.
pub(crate) struct Lookup<'a> {
    source: &'a dyn Source,
    pub(crate) queried: BTreeSet<KeyQuery>,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(source: &'a dyn Source) -> Self {
        Lookup { source, queried: BTreeSet::new() }
    }

    pub(crate) fn key(&mut self, key: &[u8], assume: Assume) -> Result<Option<StoredValue>, ReadStop> {
        self.queried.insert(KeyQuery::Key(key.to_vec()));
        self.known(key, assume)
    }

    /// The record at a location.
    pub(crate) fn location(
        &mut self,
        location: &[u8],
        assume: Assume,
    ) -> Result<Option<StoredValue>, ReadStop> {
        self.queried.insert(KeyQuery::Group(location.to_vec()));
        self.known(location, assume)
    }

    /// A part next to a location.
    pub(crate) fn part(&mut self, location: &[u8], letter: u8) -> Result<Option<StoredValue>, ReadStop> {
        self.queried.insert(KeyQuery::Group(location.to_vec()));
        self.known(&part(location, letter), Assume::Nothing)
    }

    pub(crate) fn span(&mut self, span: &Span) -> Result<&'a [(Bytes, StoredValue)], ReadStop> {
        self.queried.insert(KeyQuery::Span(span.clone()));
        self.source.span(span).ok_or(ReadStop::Missing)
    }

    fn known(&self, key: &[u8], assume: Assume) -> Result<Option<StoredValue>, ReadStop> {
        match (self.source.get(key), assume) {
            (KeyState::StoredValue(held), _) => Ok(Some(held)),
            (KeyState::Absent, _) | (KeyState::Unknown, Assume::Absent) => Ok(None),
            (KeyState::Unknown, Assume::Nothing) => Err(ReadStop::Missing),
        }
    }
}

/// Values that were read as of one moment.
#[derive(Clone, Debug, Default)]
pub struct ReadSet {
    keys: HashMap<Vec<u8>, Option<StoredValue>>,
    spans: HashMap<Span, Vec<(Bytes, StoredValue)>>,
}

impl ReadSet {
    /// Adds the result of a query: the keys found, in order.
    pub fn fill(&mut self, query: &KeyQuery, found: Vec<(Bytes, StoredValue)>) {
        for key in query.keys() {
            self.keys.insert(key, None);
        }
        match query {
            KeyQuery::Span(span) => drop(self.spans.insert(span.clone(), found)),
            _ => self.keys.extend(found.into_iter().map(|(key, held)| (key.to_vec(), Some(held)))),
        }
    }

    /// Adds values that were read as of the same moment.
    pub fn extend(&mut self, other: ReadSet) {
        self.keys.extend(other.keys);
        self.spans.extend(other.spans);
    }

    pub fn has(&self, query: &KeyQuery) -> bool {
        match query {
            KeyQuery::Key(key) | KeyQuery::Group(key) if !self.keys.contains_key(key) => false,
            KeyQuery::Key(_) => true,
            KeyQuery::Group(location) => {
                PARTS.iter().all(|letter| self.keys.contains_key(&part(location, *letter)))
            }
            KeyQuery::Span(span) => self.spans.contains_key(span),
        }
    }

    /// Every key that was read by itself, and its value.
    pub fn keys(&self) -> impl Iterator<Item = (&Vec<u8>, &Option<StoredValue>)> {
        self.keys.iter()
    }

    /// The keys that were found in ranges.
    pub fn found(&self) -> impl Iterator<Item = &(Bytes, StoredValue)> {
        self.spans.values().flatten()
    }
}

impl Source for ReadSet {
    fn get(&self, key: &[u8]) -> KeyState {
        match self.keys.get(key) {
            None => KeyState::Unknown,
            Some(None) => KeyState::Absent,
            Some(Some(held)) => KeyState::StoredValue(held.clone()),
        }
    }

    fn span(&self, span: &Span) -> Option<&[(Bytes, StoredValue)]> {
        self.spans.get(span).map(Vec::as_slice)
    }
}
