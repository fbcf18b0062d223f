//! The areas, which are the directories of staged blocks on a local disk (see `staging.rs`), and the state
//! that the upload threads share with the wrapper around the store.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use types::Errno;

use crate::backend::{Backend, StoreError};
use crate::codec::Codec;
use crate::dir::{Dir, create_private};
use crate::direct::{DirectStore, StoreCheck};

pub(crate) const STAGING: &str = "staging";
const DAMAGED: &str = "damaged";

/// The maximum number of areas in one directory, and so of processes that may stage blocks there.
const MAX_AREAS: u32 = 1024;

/// The state of the uploads of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Blocks on the local disk that are not in the store yet.
    pub blocks: u64,
    /// The total size of the objects of these blocks.
    pub bytes: u64,
    /// Blocks uploaded since the store was opened.
    pub uploaded: u64,
    /// Uploads that failed since then; each is retried.
    pub failures: u64,
    /// Why the last upload failed; `None` after one succeeds.
    pub error: Option<String>,
}

/// The state that the upload threads share with the wrapper.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Box<dyn Backend>,
    /// Runs before requests to the store, until it succeeds.
    pub(crate) check: OnceLock<StoreCheck>,
    pub(crate) is_checked: AtomicBool,
    pub(crate) areas: Vec<Area>,
    pub(crate) codec: Codec,
    /// The directories below which this process and others stage blocks, or have staged them.
    pub(crate) places: Vec<PathBuf>,
    pub(crate) min_free_bytes: u64,
    /// Whether the last write to the local disk failed.
    pub(crate) disk_failed: AtomicBool,
}

/// A directory of staged objects, which this process has locked.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) dir: Dir,
    _lock: File,
}

impl Shared {
    /// The store that receives the staged objects.
    ///
    /// # Errors
    /// EIO if the store was never checked successfully, and the check fails now.
    pub(crate) fn store(&self) -> Result<&dyn Backend, StoreError> {
        if !self.is_checked.load(Relaxed)
            && let Some(check) = self.check.get()
        {
            check.run(&DirectStore(&*self.store)).map_err(|reason| StoreError::Other(Errno::EIO, reason))?;
            self.is_checked.store(true, Relaxed);
        }
        Ok(&*self.store)
    }
}

impl Area {
    /// Moves a damaged object to `damaged/`.
    pub(crate) fn set_aside(&self, key: &str) -> io::Result<PathBuf> {
        let damaged = self.dir.root.join(DAMAGED);
        fs::create_dir_all(&damaged)?;
        let target = damaged.join(key.rsplit('/').next().unwrap_or(key));
        fs::rename(self.dir.root.join(key), &target).map(|()| target)
    }
}

/// Locks all areas below `place` that no other process holds. If there is no such area, creates one. The
/// numbers of the areas have no gaps.
pub(crate) fn take_areas(place: &Path) -> io::Result<Vec<Area>> {
    create_private(place)?;
    let mut areas = Vec::new();
    for number in 0..MAX_AREAS {
        let root = place.join(number.to_string());
        if !root.is_dir() && !areas.is_empty() {
            break;
        }
        fs::create_dir_all(&root)?;
        let lock = open_lock(&root)?;
        match lock.try_lock() {
            Ok(()) => {
                let dir = Dir::create(&root).map_err(|error| io::Error::other(format!("{error:?}")))?;
                areas.push(Area { dir, _lock: lock });
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    if areas.is_empty() {
        return Err(io::Error::other(format!(
            "too many processes ({MAX_AREAS}) stage blocks in this directory"
        )));
    }
    // A synced object survives a power failure only if the path of its area is durable too. So this syncs the
    // area and the directories above it, up to the parent of the cache directory.
    for directory in areas.iter().take(1).flat_map(|area| area.dir.root.ancestors().take(5)) {
        match File::open(directory) {
            // Another user owns the directory, so this process did not create it just now.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            opened => opened?.sync_all()?,
        }
    }
    Ok(areas)
}

pub(crate) fn open_lock(area: &Path) -> io::Result<File> {
    File::options().create(true).write(true).truncate(false).open(area.join("lock"))
}

/// The areas of all processes below a place; none if it is absent or not readable.
pub(crate) fn areas_below(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let mut areas: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    areas.sort();
    areas
}
