//! The areas of staged blocks on a local disk (see `staging.rs`), and the state that the threads that upload them
//! share with the wrapper.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use types::Errno;

use crate::backend::{Backend, Refusal};
use crate::block::parse_name;
use crate::codec::Codec;
use crate::dir::Dir;
use crate::look::{StoreCheck, StoreLook};
use crate::packed::BlockName;

pub(crate) const STAGING: &str = "staging";
pub(crate) const CHUNKS: &str = "chunks";
const DAMAGED: &str = "damaged";

/// The maximum number of processes that may stage blocks of one volume in one directory.
const MAX_PLACES: u32 = 1024;

/// The state of the uploads of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub blocks: u64,
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
    /// The directories below which processes stage, or did, including this one.
    pub(crate) places: Vec<PathBuf>,
    pub(crate) min_free_bytes: u64,
    /// Whether the last write to the local disk failed.
    pub(crate) disk_failed: AtomicBool,
}

/// The directory of one process's staged objects.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) dir: Dir,
    pub(crate) root: PathBuf,
    _lock: File,
}

impl Shared {
    /// What is put to in the end, for a request to it.
    ///
    /// # Errors
    /// The check of the store failed, and has not succeeded since.
    pub(crate) fn store(&self) -> Result<&dyn Backend, Refusal> {
        if !self.is_checked.load(Relaxed)
            && let Some(check) = self.check.get()
        {
            check.run(&StoreLook(&*self.store)).map_err(|reason| Refusal::Other(Errno::EIO, reason))?;
            self.is_checked.store(true, Relaxed);
        }
        Ok(&*self.store)
    }
}

impl Area {
    /// The free bytes of the disk; `u64::MAX` if statvfs(3) fails.
    pub(crate) fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.root).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Calls `found` with the key and length of every object staged here.
    pub(crate) fn each(&self, found: &mut dyn FnMut(String, u64)) -> io::Result<()> {
        each_object(&self.root, found)
    }

    /// Moves a damaged object to `damaged/`.
    pub(crate) fn set_aside(&self, key: &str) -> io::Result<PathBuf> {
        let damaged = self.root.join(DAMAGED);
        fs::create_dir_all(&damaged)?;
        let target = damaged.join(key.rsplit('/').next().unwrap_or(key));
        fs::rename(self.root.join(key), &target).map(|()| target)
    }
}

/// The block that the object under `key` holds; `None` if the key is not a block's. Such objects are never
/// staged.
pub(crate) fn name_of(key: &str) -> Option<BlockName> {
    let (id, block, len) = parse_name(key.rsplit('/').next()?)?;
    Some(BlockName { id, block, len })
}

/// Locks all areas below `place` that no other process holds, at least one.
pub(crate) fn take_areas(place: &Path) -> io::Result<Vec<Area>> {
    DirBuilder::new().recursive(true).mode(0o700).create(place)?;
    let mut areas = Vec::new();
    for number in 0..MAX_PLACES {
        let root = place.join(number.to_string());
        if !root.is_dir() && !areas.is_empty() {
            break;
        }
        fs::create_dir_all(&root)?;
        let lock = open_lock(&root)?;
        match lock.try_lock() {
            Ok(()) => {
                let dir = Dir::create(&root).map_err(|refusal| io::Error::other(format!("{refusal:?}")))?;
                areas.push(Area { dir, root, _lock: lock });
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    if areas.is_empty() {
        return Err(io::Error::other(format!(
            "too many processes ({MAX_PLACES}) stage blocks in this directory"
        )));
    }
    // A synced area survives a power failure only if its parent directories are durable too.
    for directory in areas.iter().take(1).flat_map(|area| area.root.ancestors().take(5)) {
        match File::open(directory) {
            // Another user owns it, so it was created long ago.
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

pub(crate) fn each_object(area: &Path, found: &mut dyn FnMut(String, u64)) -> io::Result<()> {
    each_below(&area.join(CHUNKS), CHUNKS, 0, found)
}

fn each_below(path: &Path, key: &str, depth: u32, found: &mut dyn FnMut(String, u64)) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let key = format!("{key}/{}", entry.file_name().to_string_lossy());
        // Keys have two levels of directories.
        if entry.file_type()?.is_dir() && depth < 2 {
            each_below(&entry.path(), &key, depth + 1, found)?;
        } else if name_of(&key).is_some()
            && let Ok(metadata) = entry.metadata()
        {
            found(key, metadata.len());
        }
    }
    Ok(())
}
