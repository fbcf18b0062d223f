//! Write-back: blocks are staged on a local disk before they are uploaded to the store.
//!
//! [`Staging`] is a wrapper around a store. `put` writes the object of a block below `staging/` of the cache
//! directory, and the object counts as stored; it survives a power failure under the same conditions as an
//! object of a `file` store. Separate threads (`uploader.rs`) upload it, and the local file is removed only
//! after the store has the object durably. If the local disk has no room, the object goes to the store at
//! once, as without write-back. So does an object that is not a block.
//!
//! ```text
//! <cache_dir>/<volume>/staging/<n>/lock        held by the process that stages here
//!                                 /chunks/...  objects by their key
//!                                 /damaged/    objects that failed verification and were not uploaded
//! ```
//!
//! A directory `<n>` is an *area*. A process locks every area that no live process holds, so that it also
//! uploads what a killed process left there, and creates one if there is none. In the areas of live
//! processes, and in other configured directories, it only lists, reads and deletes objects.
//!
//! Nothing is uploaded until the caller has checked the store. If the store did not answer the check, each
//! request to the store except a sync runs the check first, until the check succeeds.
//!
//! Lock order: the lock of the queue in `uploader.rs` is taken last. While it is held, no disk and no store
//! is accessed.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use bytes::Bytes;

use crate::ChunkError;
use crate::areas::{STAGING, Shared, areas_below, open_lock, take_areas};
use crate::backend::{Backend, StoreError};
use crate::block::BlockName;
use crate::codec::Codec;
use crate::dir::{CHUNKS, Dir, check_volume};
use crate::direct::StoreCheck;
use crate::error::store_error;
use crate::uploader::{Admission, Uploads};

/// The settings of write-back: blocks are stored on a local disk first, and uploaded in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritebackOptions {
    /// The directory of the local cache; created if absent, accessible only to its owner. Several volumes may
    /// share it.
    pub directory: PathBuf,
    /// The volume's UUID, used as a directory name.
    pub volume: String,
    /// The maximum number of bytes staged. With 0, nothing new is staged, and what an earlier process left is
    /// uploaded.
    pub max_bytes: u64,
    /// How many bytes of the disk stay free.
    pub min_free_bytes: u64,
}

impl WritebackOptions {
    /// The directory of staged blocks, to be listed in [`StoreOptions::staged`](crate::StoreOptions) of other
    /// processes.
    pub fn place(&self) -> PathBuf {
        self.directory.join(&self.volume).join(STAGING)
    }
}

/// The number of blocks staged below these places by any process, and their bytes. A place that is absent or
/// cannot be read counts as empty.
///
/// # Errors
/// Fails if a directory within an area cannot be read.
pub fn count_staged(places: &[PathBuf]) -> io::Result<(u64, u64)> {
    let (mut blocks, mut bytes) = (0, 0);
    for area in places.iter().flat_map(|place| areas_below(place)) {
        Dir::at(&area).each_block(&mut |_, metadata| {
            blocks += 1;
            bytes += metadata.len();
            Ok(())
        })?;
    }
    Ok((blocks, bytes))
}

/// Exclusive access to everything staged, until dropped: no other process uploads it in the meantime.
#[derive(Debug)]
pub struct HeldStaging {
    _locks: Vec<File>,
}

impl HeldStaging {
    /// Locks all areas below these places, except below a place that cannot be read. If another process holds
    /// an area, because it stages or uploads there, returns the path of that area instead.
    ///
    /// # Errors
    /// Fails if an area cannot be locked for another reason.
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
    /// `None` without write-back.
    pub(crate) uploads: Option<Uploads>,
    shared: Arc<Shared>,
}

impl Staging {
    /// Stages objects put into `store` as `options` say, and uploads what is already staged. Without options
    /// it only searches `places`.
    ///
    /// # Errors
    /// [`ChunkError::Config`] if the volume cannot be a directory name; [`ChunkError::Store`] if a directory
    /// cannot be created or read.
    pub(crate) fn open(
        store: Box<dyn Backend>,
        options: Option<&WritebackOptions>,
        mut places: Vec<PathBuf>,
        codec: Codec,
    ) -> Result<Self, ChunkError> {
        let mut areas = Vec::new();
        if let Some(options) = options {
            check_volume(&options.volume)?;
            let place = options.place();
            areas = take_areas(&place).map_err(|error| open_error(&place, error))?;
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let shared = Arc::new(Shared {
            store,
            check: OnceLock::new(),
            is_checked: AtomicBool::new(false),
            areas,
            codec,
            places,
            min_free_bytes: options.map_or(0, |options| options.min_free_bytes),
            disk_failed: AtomicBool::new(false),
        });
        let uploads = options.map(|options| {
            let uploads = Uploads::new(&shared, options.max_bytes);
            uploads.map_err(|error| open_error(&options.place(), error))
        });
        Ok(Staging { uploads: uploads.transpose()?, shared })
    }

    /// See [`BlockStore::begin_uploads`](crate::BlockStore::begin_uploads).
    pub(crate) fn begin_uploads(&self, check: Option<StoreCheck>) -> io::Result<()> {
        match check {
            Some(check) => drop(self.shared.check.set(check)),
            None => self.shared.is_checked.store(true, Relaxed),
        }
        self.uploads.as_ref().map_or(Ok(()), |uploads| uploads.begin(&self.shared))
    }

    /// The store into which everything is uploaded.
    pub(crate) fn store(&self) -> &dyn Backend {
        &*self.shared.store
    }

    /// Writes an object to the local disk, if there is room for it. Returns whether it is staged.
    fn stage(&self, uploads: &Uploads, key: &str, data: &Bytes, trailer: &[u8]) -> bool {
        let len = (data.len() + trailer.len()) as u64;
        let Some(area) = self.shared.areas.first().filter(|_| BlockName::of_key(key).is_some()) else {
            return false;
        };
        if area.dir.free_bytes() < self.shared.min_free_bytes.saturating_add(len) {
            return false;
        }
        match uploads.admit(key, len) {
            Admission::Waits => return true,
            Admission::Refused => return false,
            Admission::Given => {}
        }
        let written = area.dir.put(key, data.clone(), trailer.to_vec());
        let is_staged = written.is_ok();
        uploads.settle(key, is_staged);
        match written {
            Ok(()) => self.shared.disk_failed.store(false, Relaxed),
            Err(error) if !self.shared.disk_failed.swap(true, Relaxed) => {
                tracing::warn!(
                    ?error,
                    key,
                    "cannot stage a block on the local disk; writing it to the store instead"
                );
            }
            Err(_) => {}
        }
        is_staged
    }

    /// Every area, of this process and of others.
    fn all_areas(&self) -> impl Iterator<Item = Dir> {
        self.shared.places.iter().flat_map(|place| areas_below(place)).map(|root| Dir::at(&root))
    }

    /// Queries one area after the other until one has the object.
    fn search_areas(
        &self,
        ask: &dyn Fn(&dyn Backend) -> Result<Bytes, StoreError>,
    ) -> Result<Bytes, StoreError> {
        let mut answers = self.all_areas().map(|dir| ask(&dir));
        answers
            .find(|answer| !matches!(answer, Err(StoreError::NotFound)))
            .unwrap_or(Err(StoreError::NotFound))
    }

    fn fetch(
        &self,
        key: &str,
        ask: &dyn Fn(&dyn Backend) -> Result<Bytes, StoreError>,
    ) -> Result<Bytes, StoreError> {
        let area = self.uploads.as_ref().and_then(|uploads| uploads.area_of(key));
        if let Some(area) = area.and_then(|area| self.shared.areas.get(area)) {
            match ask(&area.dir) {
                // The object was uploaded in the meantime.
                Err(StoreError::NotFound) => {}
                found => return found,
            }
        }
        let store = self.shared.store()?;
        match ask(store) {
            Err(StoreError::NotFound) => match self.search_areas(ask) {
                // The process that staged the object may have uploaded it between the two queries.
                Err(StoreError::NotFound) => ask(store),
                found => found,
            },
            found => found,
        }
    }
}

impl Backend for Staging {
    fn free_bytes(&self) -> Option<u64> {
        self.shared.store().ok()?.free_bytes()
    }

    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        match &self.uploads {
            Some(uploads) if self.stage(uploads, key, &data, &trailer) => Ok(()),
            _ => self.shared.store()?.put(key, data, trailer),
        }
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        self.fetch(key, &|backend| backend.get(key, offset, len))
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        self.fetch(key, &|backend| backend.get_whole(key, at_most))
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        if let Some(uploads) = &self.uploads
            && let Some(withdrawn) = uploads.withdraw(key)
            && !withdrawn.tried
            && let Some(area) = self.shared.areas.get(withdrawn.area)
        {
            // No upload was tried, so the store cannot have the object.
            return area.dir.delete(key);
        }
        self.all_areas().try_for_each(|dir| dir.delete(key))?;
        self.shared.store()?.delete(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let mut names: BTreeSet<String> = self.shared.store()?.list(prefix)?.into_iter().collect();
        // Only the files below `chunks/` of an area are objects.
        for dir in self.all_areas().filter(|_| prefix.starts_with(CHUNKS)) {
            names.extend(dir.list(prefix)?);
        }
        Ok(names.into_iter().collect())
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        match self.shared.store()?.modified(key)? {
            None => self.all_areas().find_map(|dir| dir.modified(key).transpose()).transpose(),
            modified => Ok(modified),
        }
    }

    fn prepare(&self) -> Result<(), StoreError> {
        self.shared.store()?.prepare()
    }

    fn is_volatile(&self) -> bool {
        self.uploads.is_some() || self.shared.store.is_volatile()
    }

    fn sync(&self, keys: &[String]) -> Result<(), StoreError> {
        let Some(uploads) = &self.uploads else { return self.shared.store.sync(keys) };
        let (staged, stored) = uploads.split(keys);
        for (area, keys) in self.shared.areas.iter().zip(&staged) {
            // A key that was uploaded in the meantime is absent here, and durable in the store.
            area.dir.sync(keys)?;
        }
        if stored.is_empty() { Ok(()) } else { self.shared.store.sync(&stored) }
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        // All areas are on one file system.
        self.shared.areas.first().map_or(Ok(()), |area| area.dir.sync_all())?;
        self.shared.store.sync_all()
    }

    fn remove_directory(&self, prefix: &str) -> Result<(), StoreError> {
        self.all_areas().try_for_each(|dir| dir.remove_directory(prefix))?;
        self.shared.store()?.remove_directory(prefix)
    }

    fn remove_root(&self) -> Result<(), StoreError> {
        self.shared.store()?.remove_root()
    }
}

fn open_error(place: &Path, error: io::Error) -> ChunkError {
    store_error("open", &place.display().to_string(), error.into())
}
