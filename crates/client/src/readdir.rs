//! Reads and caches the entries of directories.

use host::Instant;
use meta::{Dirent, Inode, Page, Record, Scan, ScanInclude};
use ops::GetInode;
use types::{Errno, Ino, Name};

use crate::driver::{BY_KERNEL, Meta};
use crate::failure::Failure;
use crate::listing::{Generation, WholeListing};

impl Meta {
    /// One page of a directory in the order of names, beginning after `after`: for each name its entry and,
    /// if `inodes`, its inode. ACLs that the engine returns with the inodes are cached. A directory that this
    /// client holds is listed from memory.
    ///
    /// # Errors
    /// Those of the database.
    pub fn list(
        &self,
        parent: Ino,
        after: Option<Name>,
        limit: usize,
        inodes: bool,
    ) -> Result<Listing, Failure> {
        let current = self.is_current();
        let before = self.cache.before(parent);
        let began = Instant::now();
        if let Some(page) = self.list_held(parent, after.as_ref(), limit, inodes) {
            return Ok(Listing::of(page));
        }
        self.require_not_held(parent)?;
        let include = if inodes { ScanInclude::InodesWithAcls } else { ScanInclude::Nothing };
        let page = self.scan(&Scan::Dir { parent, after: after.clone(), limit, include })?;
        self.cache.absorb(&page.snapshot, began);
        let seq = page.snapshot.seq;
        let listing = Listing::of(page);
        // A page without entries, after which more may follow, does not tell how far it reaches.
        let last = listing.entries.last().map(|(name, ..)| name);
        if current && (last.is_some() || !listing.more) {
            self.cache.listed(parent, after.as_ref(), last.filter(|_| listing.more), before, seq);
        }
        Ok(listing)
    }

    /// Makes another session that holds the directory give it back. The directory may have been open when that
    /// session took it.
    fn require_not_held(&self, dir: Ino) -> Result<(), Failure> {
        match self.is_embedded() {
            true => Ok(()),
            // A directory that was removed has no entries.
            false => match self.run(&GetInode(dir), &BY_KERNEL) {
                Ok(_) | Err(Failure::Operation(Errno::ENOENT | Errno::ESTALE)) => Ok(()),
                Err(failure) => Err(failure),
            },
        }
    }

    /// The generation of a directory for a read that begins now. `None` if a listing cannot be cached,
    /// because cached records are not kept current or because this client holds the directory. A held
    /// directory is listed from memory anyway. Its listing must not be cached, because a change that the
    /// engine commits increments the generation before `State::apply` changes the held records.
    pub fn generation(&self, dir: Ino) -> Option<Generation> {
        (self.is_current() && !self.is_held_here(dir)).then(|| self.listings.generation(dir))
    }

    /// Caches all entries of a directory, which were read in this generation, until the directory changes.
    pub fn keep_listing(&self, dir: Ino, generation: Generation, whole: WholeListing) {
        if self.is_current() {
            self.listings.keep(dir, generation, whole);
        }
    }

    /// All entries of a directory, if they are cached.
    pub fn known_listing(&self, dir: Ino) -> Option<WholeListing> {
        if self.is_current() { self.listings.get(dir) } else { None }
    }

    /// Whether another session holds this directory, according to the cache. Its stored records may then be
    /// out of date.
    pub fn is_held_elsewhere(&self, ino: Ino) -> bool {
        let [inode] = self.known_inodes(&[ino])[..] else { return false };
        !self.is_embedded()
            && inode.as_ref().and_then(Inode::holder).is_some_and(|holder| holder != self.session())
    }

    /// The inodes in the order of `inos`; `None` for those that are not cached.
    pub fn known_inodes(&self, inos: &[Ino]) -> Vec<Option<Inode>> {
        if self.is_current() { self.cache.inodes(inos) } else { vec![None; inos.len()] }
    }
}

/// A name in a directory, its entry, and the inode if it was requested.
pub type ListedEntry = (Name, Dirent, Option<Inode>);

/// One page of a directory.
#[derive(Debug)]
pub struct Listing {
    pub entries: Vec<ListedEntry>,
    /// Whether entries may follow the last one.
    pub more: bool,
}

impl Listing {
    fn of(page: Page) -> Listing {
        let mut entries: Vec<ListedEntry> = Vec::with_capacity(page.snapshot.records.len());
        for record in page.snapshot.records {
            match record {
                Record::Dirent(_, name, Some(dirent)) => entries.push((name, dirent, None)),
                Record::Inode(ino, inode) => {
                    if let Some(last) = entries.last_mut().filter(|(_, dirent, _)| dirent.ino == ino) {
                        last.2 = inode;
                    }
                }
                _ => {}
            }
        }
        Listing { entries, more: page.more }
    }
}
