//! Complete listings of directories, cached for the next caller.
//!
//! A listing belongs to one *generation* of its directory: the number of changes to its entries that this
//! client made or was notified of. It is valid as long as that number is unchanged, and no longer than cached
//! records are. Several directories share a counter: a change in another directory can cost a read, but never
//! gives a wrong answer.
//!
//! The order of steps makes this safe. A reader notes the generation before it reads the directory. A change
//! increments the generation after its commit and before its caller gets the reply. So as soon as a caller
//! can see the change, a listing without it has an older generation.
//!
//! The cache of records also knows directories completely (`cache.rs`), for another purpose. Its mark answers
//! a lookup of a name that does not exist, and becomes invalid as soon as one of the directory's entries is
//! evicted. A listing answers readdir without a search in the cache for each name, at about 60 bytes an
//! entry, and outlives the records. If both were one, each readdir would have to sort the names, or each
//! eviction would have to copy the listing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use host::HashMap;
use meta::Dirent;
use types::{Ino, Name};

/// All entries of a directory, sorted by name.
pub type WholeListing = Arc<[(Name, Dirent)]>;

/// A generation of a directory's entries. See [`Meta::generation`](crate::Meta::generation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

/// The memory of an entry, estimated.
const ENTRY_BYTES: u64 = 60;
/// The maximum number of cached entries, of all directories together.
const MAX_ENTRIES: usize = 400_000;
/// The charge of a directory in addition to its entries, in entries.
const ENTRIES_PER_DIRECTORY: usize = 2;
/// The number of generation counters. Directories share them.
const COUNTERS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Listings {
    kept: RwLock<Kept>,
    generations: Vec<AtomicU64>,
    max_entries: usize,
}

#[derive(Debug, Default)]
struct Kept {
    of: HashMap<Ino, (Generation, WholeListing)>,
    entries: usize,
}

impl Default for Listings {
    fn default() -> Self {
        Listings::with_room(MAX_ENTRIES)
    }
}

impl Listings {
    fn with_room(max_entries: usize) -> Self {
        let generations = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Listings { kept: RwLock::default(), generations, max_entries }
    }

    pub(crate) fn generation(&self, dir: Ino) -> Generation {
        Generation(self.counter(dir).load(Ordering::Acquire))
    }

    /// Increments the generation, because an entry of the directory has changed or may have changed.
    pub(crate) fn changed(&self, dir: Ino) {
        self.counter(dir).fetch_add(1, Ordering::AcqRel);
    }

    /// Drops everything, because anything may have changed.
    pub(crate) fn clear(&self) {
        for generation in &self.generations {
            generation.fetch_add(1, Ordering::AcqRel);
        }
        *self.kept.write().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }

    /// Caches a listing that was read in generation `generation`, unless the directory has changed since, or
    /// the listing alone exceeds the bound. If it does not fit beside the others, they are dropped.
    pub(crate) fn keep(&self, dir: Ino, generation: Generation, whole: WholeListing) {
        let size = whole.len() + ENTRIES_PER_DIRECTORY;
        if self.generation(dir) != generation || size > self.max_entries {
            return;
        }
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.entries + size > self.max_entries {
            *kept = Kept::default();
        }
        kept.entries += size;
        if let Some((_, old)) = kept.of.insert(dir, (generation, whole)) {
            kept.entries = kept.entries.saturating_sub(old.len() + ENTRIES_PER_DIRECTORY);
        }
    }

    pub(crate) fn get(&self, dir: Ino) -> Option<WholeListing> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let (generation, whole) = kept.of.get(&dir)?;
        (*generation == self.generation(dir)).then(|| Arc::clone(whole))
    }

    /// The memory of all listings, estimated.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).entries as u64 * ENTRY_BYTES
    }

    fn counter(&self, dir: Ino) -> &AtomicU64 {
        &self.generations[dir.0 as usize % COUNTERS]
    }
}

#[cfg(test)]
mod tests {
    use types::FileType;

    use super::*;

    fn listing(entries: u64) -> WholeListing {
        let entry = |n: u64| {
            let name = Name::new(format!("{n:04}").as_bytes()).unwrap();
            (name, Dirent { ino: Ino(100 + n), kind: FileType::Regular })
        };
        (0..entries).map(entry).collect()
    }

    #[test]
    fn a_listing_is_valid_until_its_directory_changes() {
        let listings = Listings::default();
        let dir = Ino(7);
        let generation = listings.generation(dir);
        assert_eq!(listings.get(dir), None);
        listings.keep(dir, generation, listing(3));
        assert_eq!(listings.get(dir), Some(listing(3)));
        listings.changed(Ino(8));
        assert!(listings.get(dir).is_some(), "changes of another directory do not matter");
        listings.changed(dir);
        assert_eq!(listings.get(dir), None);
        listings.keep(dir, generation, listing(3));
        assert_eq!(listings.get(dir), None, "a listing from before the change is not kept");
        listings.keep(dir, listings.generation(dir), listing(4));
        assert_eq!(listings.get(dir), Some(listing(4)));
        listings.clear();
        assert_eq!(listings.get(dir), None);
    }

    #[test]
    fn memory_is_bounded() {
        let listings = Listings::with_room(20);
        for dir in (1..50).map(Ino) {
            listings.keep(dir, listings.generation(dir), listing(6));
            assert!(listings.get(dir).is_some());
            let kept = listings.kept.read().unwrap();
            let size: usize = kept.of.values().map(|(_, of)| of.len() + ENTRIES_PER_DIRECTORY).sum();
            assert_eq!(size, kept.entries);
            assert!(kept.entries <= 20);
        }
        let (dir, newest) = (Ino(49), listing(7));
        listings.keep(dir, listings.generation(dir), newest.clone());
        assert_eq!(listings.get(dir), Some(newest));
        listings.keep(dir, listings.generation(dir), listing(30));
        assert_eq!(listings.get(dir), Some(listing(7)), "a listing that does not fit replaces nothing");
    }
}
