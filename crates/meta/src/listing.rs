//! Directories that were listed as a whole, kept for whoever lists them next.
//!
//! A listing is of one *turn* of its directory, the count of changes to its entries that this client made or heard of. It
//! serves as long as that count stands, and no longer than records in memory do. Counts are shared by a few
//! directories each: a change elsewhere then costs a reading, never a wrong answer.
//!
//! The order is what makes it safe: a turn is noted before the directory is read, and counted on after a change was
//! committed, before anyone is told that it was. So a listing that missed a change is of an older turn by the time
//! somebody could know of it.

use host::Instant;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use types::{Ino, Name};

use crate::driver::{Failure, Meta};
use crate::record::{Beside, Edge, Node, Page, Record, Scan};

/// All entries of a directory, in the order of names.
pub type WholeListing = Arc<[(Name, Edge)]>;

/// Which state of a directory's entries a reading is of. See [`Meta::turn`](crate::Meta::turn).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(u64);

/// Entries kept in memory, of all directories together, some 60 bytes each.
const MAX_ENTRIES: usize = 400_000;
/// What a directory counts for besides its entries.
const ENTRIES_A_DIRECTORY: usize = 2;
/// Directories whose changes are counted apart.
const COUNTERS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Listings {
    kept: RwLock<Kept>,
    turns: Vec<AtomicU64>,
    max_entries: usize,
}

#[derive(Debug, Default)]
struct Kept {
    of: HashMap<Ino, (Turn, WholeListing)>,
    entries: usize,
}

impl Default for Listings {
    fn default() -> Self {
        Listings::with_room(MAX_ENTRIES)
    }
}

impl Listings {
    fn with_room(max_entries: usize) -> Self {
        let turns = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Listings { kept: RwLock::default(), turns, max_entries }
    }

    pub(crate) fn turn(&self, dir: Ino) -> Turn {
        Turn(self.counter(dir).load(Ordering::Acquire))
    }

    /// An entry of the directory is, or may be, another than before.
    pub(crate) fn changed(&self, dir: Ino) {
        self.counter(dir).fetch_add(1, Ordering::AcqRel);
    }

    /// Anything may have changed.
    pub(crate) fn clear(&self) {
        for turn in &self.turns {
            turn.fetch_add(1, Ordering::AcqRel);
        }
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }

    /// Keeps what was read since `turn`, unless the directory has changed meanwhile. When there is no more room, all
    /// that is kept makes place.
    pub(crate) fn keep(&self, dir: Ino, turn: Turn, whole: WholeListing) {
        let size = whole.len() + ENTRIES_A_DIRECTORY;
        if self.turn(dir) != turn || size > self.max_entries {
            return;
        }
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.entries + size > self.max_entries {
            *kept = Kept::default();
        }
        kept.entries += size;
        if let Some((_, old)) = kept.of.insert(dir, (turn, whole)) {
            kept.entries = kept.entries.saturating_sub(old.len() + ENTRIES_A_DIRECTORY);
        }
    }

    pub(crate) fn get(&self, dir: Ino) -> Option<WholeListing> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let (turn, whole) = kept.of.get(&dir)?;
        (*turn == self.turn(dir)).then(|| Arc::clone(whole))
    }

    fn counter(&self, dir: Ino) -> &AtomicU64 {
        &self.turns[dir.0 as usize % COUNTERS]
    }
}

impl Meta {
    /// A part of a directory in the order of names, from after `after` on: each name, its edge, and, if `nodes`, its
    /// inode. ACLs met on the way are remembered.
    ///
    /// # Errors
    /// Those of the database.
    pub fn list(
        &self,
        parent: Ino,
        after: Option<Name>,
        limit: usize,
        nodes: bool,
    ) -> Result<Listing, Failure> {
        let current = self.is_current();
        let before = self.cache.before(parent);
        let began = Instant::now();
        let beside = if nodes { Beside::NodesWithAcls } else { Beside::Nothing };
        let Page { facts, more } = self.scan(&Scan::Dir { parent, after: after.clone(), limit, beside })?;
        self.cache.absorb(&facts, began);
        let mut entries: Vec<ListedEntry> = Vec::with_capacity(limit.min(facts.records.len()));
        for record in facts.records {
            match record {
                Record::Edge(_, name, Some(edge)) => entries.push((name, edge, None)),
                Record::Node(ino, node) => {
                    if let Some(last) = entries.last_mut().filter(|(_, edge, _)| edge.ino == ino) {
                        last.2 = node;
                    }
                }
                _ => {}
            }
        }
        // A page that ends early without an entry says nothing of how far it got.
        let last = entries.last().map(|(name, ..)| name);
        if current && (last.is_some() || !more) {
            self.cache.listed(parent, after.as_ref(), last.filter(|_| more), before, facts.seq);
        }
        Ok(Listing { entries, more })
    }

    /// Which state of a directory is read from now on, if a reading of it can be kept: while records in memory serve.
    pub fn turn(&self, dir: Ino) -> Option<Turn> {
        self.is_current().then(|| self.listings.turn(dir))
    }

    /// Keeps all entries of a directory, read since `turn`, for as long as it does not change.
    pub fn keep_listing(&self, dir: Ino, turn: Turn, whole: WholeListing) {
        if self.is_current() {
            self.listings.keep(dir, turn, whole);
        }
    }

    /// All entries of a directory, if they are known.
    pub fn known_listing(&self, dir: Ino) -> Option<WholeListing> {
        if self.is_current() { self.listings.get(dir) } else { None }
    }

    /// Inodes, in their order; `None` of those that are not known.
    pub fn known_nodes(&self, inos: &[Ino]) -> Vec<Option<Node>> {
        if self.is_current() { self.cache.nodes(inos) } else { vec![None; inos.len()] }
    }
}

/// A name in a directory, what it refers to, and the inode if it was asked for.
pub type ListedEntry = (Name, Edge, Option<Node>);

/// A part of a directory.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<ListedEntry>,
    /// Whether entries may follow.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use types::FileType;

    use super::*;

    fn listing(entries: u64) -> WholeListing {
        let entry = |n: u64| {
            let name = Name::new(format!("{n:04}").as_bytes()).unwrap();
            (name, Edge { ino: Ino(100 + n), kind: FileType::Regular })
        };
        (0..entries).map(entry).collect()
    }

    #[test]
    fn a_listing_serves_until_its_directory_changes() {
        let listings = Listings::default();
        let dir = Ino(7);
        let turn = listings.turn(dir);
        assert_eq!(listings.get(dir), None);
        listings.keep(dir, turn, listing(3));
        assert_eq!(listings.get(dir), Some(listing(3)));
        listings.changed(Ino(8));
        assert!(listings.get(dir).is_some(), "another directory's changes are no matter");
        listings.changed(dir);
        assert_eq!(listings.get(dir), None);
        listings.keep(dir, turn, listing(3));
        assert_eq!(listings.get(dir), None, "what was read before the change");
        listings.keep(dir, listings.turn(dir), listing(4));
        assert_eq!(listings.get(dir), Some(listing(4)));
        listings.clear();
        assert_eq!(listings.get(dir), None);
    }

    #[test]
    fn memory_is_bounded() {
        let listings = Listings::with_room(20);
        for dir in (1..50).map(Ino) {
            listings.keep(dir, listings.turn(dir), listing(6));
            assert!(listings.get(dir).is_some());
            let kept = listings.kept.read().unwrap();
            let size: usize = kept.of.values().map(|(_, of)| of.len() + ENTRIES_A_DIRECTORY).sum();
            assert_eq!(size, kept.entries);
            assert!(kept.entries <= 20);
        }
        let (dir, newest) = (Ino(49), listing(7));
        listings.keep(dir, listings.turn(dir), newest.clone());
        assert_eq!(listings.get(dir), Some(newest));
        listings.keep(dir, listings.turn(dir), listing(30));
        assert_eq!(listings.get(dir), Some(listing(7)), "one that has no room replaces nothing");
    }
}
