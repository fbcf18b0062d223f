//! Blocks that wait on a local disk for the store: write-back.
//!
//! A wrapper around a store. An object that is put is written below `staging/` of the cache's directory and counts as
//! stored; what makes it survive a power failure is what does so for a local directory. Threads of its own
//! (`uploader.rs`) bring it to the store, and only when the store keeps it does the local file go. Where there is no room,
//! an object goes to the store at once, as without all this.
//!
//! ```text
//! <cache_dir>/<volume>/staging/<n>/lock        held by the process that stages here
//!                                 /chunks/...  objects by their key
//!                                 /damaged/    what did not pass its checksums and was not uploaded
//! ```
//!
//! A process takes the first place `n` that nobody holds, and all that others left behind when they were killed. In the
//! places of processes that live, and wherever else it is told, it only looks for what the store does not have.
//!
//! Lock order: the state below; nothing is locked, and no disk or store asked, while it is held.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use types::Errno;

use crate::ChunkError;
use crate::backend::{Backend, Refusal};
use crate::block::parse_name;
use crate::codec::Codec;
use crate::dir::Dir;
use crate::packed::BlockName;
use crate::store::store_error;
use crate::uploader::{Claim, Uploads};

const STAGING: &str = "staging";
const CHUNKS: &str = "chunks";
const DAMAGED: &str = "damaged";

/// How many processes may stage blocks of one volume in one directory.
const MAX_PLACES: u32 = 1024;

/// Write-back: blocks are stored on a local disk first, and uploaded in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritebackOptions {
    /// The directory of the local cache; made if absent, readable by its owner only. Several volumes may share it.
    pub directory: PathBuf,
    /// The volume's UUID, which becomes a directory's name.
    pub volume: String,
    /// How many bytes may wait. With 0 nothing new does, and what an earlier process left is uploaded.
    pub max_bytes: u64,
    /// How many bytes of the disk are left free.
    pub min_free_bytes: u64,
}

impl WritebackOptions {
    /// Where the blocks wait: what [`StoreOptions::staged`](crate::StoreOptions) of other processes is to name.
    pub fn place(&self) -> PathBuf {
        self.directory.join(&self.volume).join(STAGING)
    }
}

/// What waits to be uploaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub blocks: u64,
    pub bytes: u64,
    /// Blocks uploaded since the store was opened.
    pub uploaded: u64,
    /// Uploads that failed since then, each of which is tried again.
    pub failures: u64,
    /// Why the last one failed, until one succeeds.
    pub error: Option<String>,
}

/// How many blocks wait below these places, and their bytes, whatever process staged them; for one that is not there, none.
///
/// # Errors
/// A directory cannot be read.
pub fn count_staged(places: &[PathBuf]) -> io::Result<(u64, u64)> {
    let (mut blocks, mut bytes) = (0, 0);
    for area in places.iter().flat_map(|place| areas_below(place)) {
        each_object(&area, &mut |_, len| {
            blocks += 1;
            bytes += len;
        })?;
    }
    Ok((blocks, bytes))
}

/// The right to be the only process that touches what is staged, until dropped: no other uploads it meanwhile.
#[derive(Debug)]
pub struct HeldStaging {
    _locks: Vec<File>,
}

impl HeldStaging {
    /// Takes all areas below these places; else says which one a process holds, which stages or uploads there.
    ///
    /// # Errors
    /// An area cannot be locked.
    pub fn take(places: &[PathBuf]) -> io::Result<Result<HeldStaging, PathBuf>> {
        let mut locks = Vec::new();
        for area in places.iter().flat_map(|place| areas_below(place)).filter(|area| area.is_dir()) {
            let lock = open_lock(&area)?;
            match lock.try_lock() {
                Ok(()) => locks.push(lock),
                Err(TryLockError::WouldBlock) => return Ok(Err(area)),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(Ok(HeldStaging { _locks: locks }))
    }
}

#[derive(Debug)]
pub(crate) struct Staging {
    uploads: Option<Uploads>,
    shared: Arc<Shared>,
}

/// What the uploading threads share with the wrapper.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Box<dyn Backend>,
    pub(crate) areas: Vec<Area>,
    pub(crate) codec: Codec,
    /// Where processes stage, or did; this one among them.
    places: Vec<PathBuf>,
    min_free_bytes: u64,
    /// Whether the local disk failed to take an object the last time.
    disk_failed: AtomicBool,
}

/// The directory of one process's staged objects.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) dir: Dir,
    pub(crate) root: PathBuf,
    _lock: File,
}

impl Staging {
    /// Stages what is put into `store` as `options` say, and takes up what waits there already; without options it only
    /// looks into `places`.
    ///
    /// # Errors
    /// [`ChunkError::Config`] for a volume that is no name of a directory, or no threads to be had;
    /// [`ChunkError::Store`] where a directory cannot be made or read.
    pub(crate) fn open(
        store: Box<dyn Backend>,
        options: Option<&WritebackOptions>,
        mut places: Vec<PathBuf>,
        codec: Codec,
    ) -> Result<Self, ChunkError> {
        let mut areas = Vec::new();
        if let Some(options) = options {
            let volume = options.volume.as_str();
            if volume.is_empty() || volume.starts_with('.') || volume.contains(['/', '\0']) {
                return Err(ChunkError::Config(format!(
                    "{volume:?} cannot name the staging area of a volume"
                )));
            }
            let place = options.place();
            let fail = |error: io::Error| {
                let refusal = Refusal::Other(Errno::from(&error), error.to_string());
                store_error("open", &place.display().to_string(), refusal)
            };
            areas = take_areas(&place).map_err(fail)?;
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let shared = Arc::new(Shared {
            store,
            areas,
            codec,
            places,
            min_free_bytes: options.map_or(0, |options| options.min_free_bytes),
            disk_failed: AtomicBool::new(false),
        });
        let uploads = match options {
            Some(options) => {
                let uploads = Uploads::start(&shared, options.max_bytes).map_err(|error| {
                    ChunkError::Config(format!("cannot start the threads that upload: {error}"))
                })?;
                Some(uploads)
            }
            None => None,
        };
        Ok(Staging { uploads, shared })
    }

    /// What is put to in the end.
    pub(crate) fn store(&self) -> &dyn Backend {
        &*self.shared.store
    }

    /// What waits; `None` where nothing is staged here.
    pub(crate) fn pending(&self) -> Option<Pending> {
        self.uploads.as_ref().map(Uploads::pending)
    }

    /// See [`BlockStore::wait_uploads`](crate::BlockStore::wait_uploads).
    pub(crate) fn wait(&self, patience: Duration, progress: &mut dyn FnMut(&Pending)) -> Result<(), Pending> {
        self.uploads.as_ref().map_or(Ok(()), |uploads| uploads.wait(patience, progress))
    }

    /// Writes an object to the local disk, if there is room for it. Returns whether it is there.
    fn stage(&self, uploads: &Uploads, key: &str, data: &Bytes, trailer: &[u8]) -> bool {
        let len = (data.len() + trailer.len()) as u64;
        let Some(area) = self.shared.areas.first().filter(|_| name_of(key).is_some()) else { return false };
        if area.free_bytes() < self.shared.min_free_bytes.saturating_add(len) {
            return false;
        }
        match uploads.claim(key, len) {
            Claim::Waits => return true,
            Claim::Refused => return false,
            Claim::Given => {}
        }
        let written = area.dir.put(key, data.clone(), trailer.to_vec());
        let is_staged = written.is_ok();
        uploads.settle(key, is_staged);
        match written {
            Ok(()) => self.shared.disk_failed.store(false, Relaxed),
            Err(refusal) if !self.shared.disk_failed.swap(true, Relaxed) => {
                tracing::warn!(
                    ?refusal,
                    key,
                    "the local disk does not take a block: it goes to the store at once"
                );
            }
            Err(_) => {}
        }
        is_staged
    }

    /// Every area that is known of, this process's own and those of others.
    fn all_areas(&self) -> impl Iterator<Item = Dir> {
        self.shared.places.iter().flat_map(|place| areas_below(place)).map(|root| Dir::at(&root))
    }

    /// Asks one area after the other, until one has it.
    fn look_around(&self, ask: &dyn Fn(&dyn Backend) -> Result<Bytes, Refusal>) -> Result<Bytes, Refusal> {
        let mut answers = self.all_areas().map(|dir| ask(&dir));
        answers.find(|answer| !matches!(answer, Err(Refusal::NotFound))).unwrap_or(Err(Refusal::NotFound))
    }

    /// Ends the threads that upload, each after the block it is at.
    pub(crate) fn close(&self) {
        if let Some(uploads) = &self.uploads {
            uploads.close();
        }
    }

    fn fetch(
        &self,
        key: &str,
        ask: &dyn Fn(&dyn Backend) -> Result<Bytes, Refusal>,
    ) -> Result<Bytes, Refusal> {
        let area = self.uploads.as_ref().and_then(|uploads| uploads.area_of(key));
        if let Some(area) = area.and_then(|area| self.shared.areas.get(area)) {
            match ask(&area.dir) {
                // It was uploaded meanwhile.
                Err(Refusal::NotFound) => {}
                found => return found,
            }
        }
        match ask(&*self.shared.store) {
            Err(Refusal::NotFound) => match self.look_around(ask) {
                // The process that staged it may have uploaded it between the two looks.
                Err(Refusal::NotFound) => ask(&*self.shared.store),
                found => found,
            },
            found => found,
        }
    }
}

impl Backend for Staging {
    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), Refusal> {
        match &self.uploads {
            Some(uploads) if self.stage(uploads, key, &data, &trailer) => Ok(()),
            _ => self.shared.store.put(key, data, trailer),
        }
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, Refusal> {
        self.fetch(key, &|backend| backend.get(key, offset, len))
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, Refusal> {
        self.fetch(key, &|backend| backend.get_whole(key, at_most))
    }

    fn delete(&self, key: &str) -> Result<(), Refusal> {
        if let Some(uploads) = &self.uploads
            && let Some(withdrawn) = uploads.withdraw(key)
            && !withdrawn.tried
            && let Some(area) = self.shared.areas.get(withdrawn.area)
        {
            // The store never heard of it.
            return area.dir.delete(key);
        }
        self.all_areas().try_for_each(|dir| dir.delete(key))?;
        self.shared.store.delete(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, Refusal> {
        let mut names: BTreeSet<String> = self.shared.store.list(prefix)?.into_iter().collect();
        // What else is in an area is no object.
        for dir in self.all_areas().filter(|_| prefix.starts_with(CHUNKS)) {
            names.extend(dir.list(prefix)?);
        }
        Ok(names.into_iter().collect())
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, Refusal> {
        match self.shared.store.modified(key)? {
            None => self.all_areas().find_map(|dir| dir.modified(key).transpose()).transpose(),
            modified => Ok(modified),
        }
    }

    fn prepare(&self) -> Result<(), Refusal> {
        self.shared.store.prepare()
    }

    fn is_volatile(&self) -> bool {
        self.uploads.is_some() || self.shared.store.is_volatile()
    }

    fn sync(&self, keys: &[String]) -> Result<(), Refusal> {
        let Some(uploads) = &self.uploads else { return self.shared.store.sync(keys) };
        let (staged, stored) = uploads.split(keys);
        for (area, keys) in self.shared.areas.iter().zip(&staged) {
            // One that was uploaded meanwhile is gone from here, and survives in the store.
            area.dir.sync(keys)?;
        }
        if stored.is_empty() { Ok(()) } else { self.shared.store.sync(&stored) }
    }

    fn sync_all(&self) -> Result<(), Refusal> {
        // All areas are on one file system.
        self.shared.areas.first().map_or(Ok(()), |area| area.dir.sync_all())?;
        self.shared.store.sync_all()
    }

    fn remove_directory(&self, prefix: &str) -> Result<(), Refusal> {
        self.all_areas().try_for_each(|dir| dir.remove_directory(prefix))?;
        self.shared.store.remove_directory(prefix)
    }

    fn remove_root(&self) -> Result<(), Refusal> {
        self.shared.store.remove_root()
    }
}

impl Area {
    /// What the disk has free; all of it where the system does not say.
    fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.root).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Calls `found` with the key and length of everything staged here.
    pub(crate) fn each(&self, found: &mut dyn FnMut(String, u64)) -> io::Result<()> {
        each_object(&self.root, found)
    }

    /// Takes an object that is damaged out of the way.
    pub(crate) fn set_aside(&self, key: &str) -> io::Result<PathBuf> {
        let damaged = self.root.join(DAMAGED);
        fs::create_dir_all(&damaged)?;
        let target = damaged.join(key.rsplit('/').next().unwrap_or(key));
        fs::rename(self.root.join(key), &target).map(|()| target)
    }
}

/// Which block the object under `key` is; `None` if it is none, which is never staged.
pub(crate) fn name_of(key: &str) -> Option<BlockName> {
    let (id, block, len) = parse_name(key.rsplit('/').next()?)?;
    Some(BlockName { id, block, len })
}

/// Locks the areas below `place` that nobody holds, at least one.
fn take_areas(place: &Path) -> io::Result<Vec<Area>> {
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
        return Err(io::Error::other("too many processes stage blocks here"));
    }
    // What is synced below an area is found again only if the directories above are there.
    for directory in areas.iter().take(1).flat_map(|area| area.root.ancestors().take(5)) {
        match File::open(directory) {
            // It is another user's, and was made long ago.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            opened => opened?.sync_all()?,
        }
    }
    Ok(areas)
}

fn open_lock(area: &Path) -> io::Result<File> {
    File::options().create(true).write(true).truncate(false).open(area.join("lock"))
}

/// The areas of all processes below a place; none where it is not there or not to be read.
fn areas_below(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let mut areas: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    areas.sort();
    areas
}

fn each_object(area: &Path, found: &mut dyn FnMut(String, u64)) -> io::Result<()> {
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
