//! A cache of blocks on a local disk, so that a block is fetched once per machine, not once per mount.
//!
//! A cached block is a file with the object exactly as the store has it: compressed, encrypted and with its
//! checksums. Reads from the cache are verified like reads from the store. A file is written under a
//! temporary name and renamed. A file that fails verification is removed, and the block is fetched from the
//! store. Nothing is synced: after a power failure, the checksums show which files are intact.
//!
//! One thread does all writes, from a bounded queue. If it cannot keep up, fewer blocks are cached, and no
//! reader waits for it. The thread first scans the files that an earlier mount left; until it is done, reads
//! already find these files by name.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::SystemTime;

use bytes::Bytes;

use crate::ChunkError;
use crate::backend::{Backend, StoreError};
use crate::block::BlockName;
use crate::dir::{Dir, check_volume, create_private};
use crate::error::store_error;
use crate::lru::{CacheUse, Lru};

/// The number of blocks that may wait to be written; more are dropped. 64 MiB if all are full blocks.
const QUEUE: usize = 16;

/// The maximum number of cached blocks. Small blocks are charged at least `max_bytes / ENTRIES`, so that this
/// holds.
const ENTRIES: u64 = 1 << 20;

/// The unit in which file systems usually allocate disk space to a file, in bytes.
const FILE_BYTES: u64 = 4096;

/// The settings of a cache of blocks on a local disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheOptions {
    /// The directory; created if absent, accessible only to its owner. Several volumes may share it.
    pub directory: PathBuf,
    /// The volume's UUID, used as a directory name. A new volume at the address of a destroyed one has
    /// another UUID, so it never finds the old blocks.
    pub volume: String,
    /// How many bytes of disk the blocks of this volume may take.
    pub max_bytes: u64,
    /// How many bytes of the disk stay free. Before the cache writes a block, it removes the least recently
    /// used blocks until this holds, even if other programs took the space.
    pub min_free_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct DiskCache {
    shared: Arc<Shared>,
    /// `None` once the cache is being dropped.
    queue: Option<SyncSender<(BlockName, Bytes)>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    dir: Dir,
    options: DiskCacheOptions,
    index: Lru<BlockName, ()>,
    hits: AtomicU64,
    misses: AtomicU64,
    is_closing: AtomicBool,
}

impl DiskCache {
    /// # Errors
    /// [`ChunkError::Config`] if the volume cannot be a directory name or the thread cannot be started;
    /// [`ChunkError::Store`] if the directory cannot be created or read.
    pub(crate) fn open(options: &DiskCacheOptions) -> Result<Self, ChunkError> {
        check_volume(&options.volume)?;
        let root = options.directory.join(&options.volume);
        let fail = |error| store_error("open", &root.display().to_string(), error);
        create_private(&root).map_err(|error| fail(error.into()))?;
        let dir = Dir::create(&root).map_err(fail)?;
        let index = Lru::new(options.max_bytes);
        let shared = Arc::new(Shared {
            dir,
            options: options.clone(),
            index,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        });
        let (queue, blocks) = sync_channel(QUEUE);
        let writer = {
            let shared = Arc::clone(&shared);
            Builder::new().name("limen-cache".to_owned()).spawn(move || shared.run(&blocks))
        };
        let writer = writer
            .map_err(|error| ChunkError::Config(format!("cannot start the thread of the cache: {error}")))?;
        Ok(DiskCache { shared, queue: Some(queue), writer: Mutex::new(Some(writer)) })
    }

    /// The object of a block, if cached; at most `at_most` bytes of it.
    pub(crate) fn get_whole(&self, name: BlockName, at_most: usize) -> Option<Bytes> {
        self.found(name, self.shared.dir.get_whole(&name.key(), at_most))
    }

    /// If a block is cached, exactly `len` bytes of its object from `offset` on.
    pub(crate) fn get(&self, name: BlockName, offset: u64, len: usize) -> Option<Bytes> {
        let found = self.shared.dir.get(&name.key(), offset, len);
        self.found(name, found).filter(|bytes| bytes.len() == len)
    }

    pub(crate) fn contains(&self, name: BlockName) -> bool {
        self.shared.index.contains(&name)
    }

    /// Caches the object of a block, unless the queue is full.
    pub(crate) fn offer(&self, name: BlockName, object: Bytes) {
        if let Some(queue) = &self.queue {
            drop(queue.try_send((name, object)));
        }
    }

    /// Removes a block, because it was deleted or is damaged. Returns whether it was cached.
    pub(crate) fn remove(&self, name: BlockName) -> bool {
        self.shared.index.remove(&name);
        fs::remove_file(self.shared.dir.root.join(name.key())).is_ok()
    }

    /// Removes everything, because the volume was destroyed.
    pub(crate) fn clear(&self) {
        self.shared.index.clear();
        if let Err(error) = fs::remove_dir_all(self.shared.dir.root.join("chunks"))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, directory = %self.shared.dir.root.display(), "cannot empty the cache");
        }
    }

    /// The number of reads served from this cache.
    pub(crate) fn hits(&self) -> u64 {
        self.shared.hits.load(Relaxed)
    }

    /// The use of this cache since it was opened.
    pub(crate) fn used(&self) -> CacheUse {
        let misses = self.shared.misses.load(Relaxed);
        CacheUse { hits: self.hits(), misses, bytes: self.shared.index.charge() }
    }

    fn found(&self, name: BlockName, found: Result<Bytes, StoreError>) -> Option<Bytes> {
        match found {
            Ok(bytes) => {
                self.shared.index.get(&name);
                self.shared.hits.fetch_add(1, Relaxed);
                Some(bytes)
            }
            Err(StoreError::NotFound) => {
                self.shared.misses.fetch_add(1, Relaxed);
                None
            }
            Err(StoreError::Other(_, message)) => {
                tracing::warn!(message, block = name.key(), "cannot read a cached block");
                self.remove(name);
                None
            }
        }
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Relaxed);
        self.queue = None;
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::warn!("the thread of the cache panicked");
        }
    }
}

impl Shared {
    fn run(&self, blocks: &Receiver<(BlockName, Bytes)>) {
        self.scan();
        while let Ok((name, object)) = blocks.recv() {
            self.keep(name, &object);
        }
    }

    /// Indexes the existing files; the oldest modification time counts as the least recent use.
    fn scan(&self) {
        let mut found = Vec::new();
        let scanned = self.dir.each_block(&mut |key, metadata| {
            if self.is_closing.load(Relaxed) {
                return Err(ErrorKind::Interrupted.into());
            }
            let name = BlockName::of_key(&key).filter(|name| name.key() == key);
            let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.extend(name.map(|name| (written, name, metadata.len())));
            Ok(())
        });
        if let Err(error) = scanned
            && !self.is_closing.load(Relaxed)
        {
            tracing::warn!(%error, directory = %self.dir.root.display(), "cannot scan the whole cache");
        }
        found.sort_unstable_by_key(|(written, _, _)| *written);
        for (_, name, len) in found {
            if !self.index.contains(&name) {
                self.evict(self.index.insert(name, (), self.charge(len)));
            }
        }
    }

    fn keep(&self, name: BlockName, object: &Bytes) {
        let (len, key) = (object.len() as u64, name.key());
        let is_kept = self.index.contains(&name) && self.dir.root.join(&key).exists();
        if self.charge(len) > self.options.max_bytes || is_kept {
            return;
        }
        while self.dir.free_bytes() < self.options.min_free_bytes.saturating_add(len) {
            let Some(oldest) = self.index.pop_oldest() else { return };
            self.evict(vec![oldest]);
        }
        match self.dir.put(&key, object.clone(), Vec::new()) {
            Ok(()) => self.evict(self.index.insert(name, (), self.charge(len))),
            Err(error) => tracing::debug!(?error, key, "cannot cache a block"),
        }
    }

    fn evict(&self, names: Vec<BlockName>) {
        for name in names {
            let path = self.dir.root.join(name.key());
            // The file may be gone already, and the directory may not be empty; neither matters.
            drop(fs::remove_file(&path));
            drop(path.parent().map(fs::remove_dir));
        }
    }

    /// The charge of a file of `len` bytes.
    fn charge(&self, len: u64) -> u64 {
        len.next_multiple_of(FILE_BYTES).max(FILE_BYTES).max(self.options.max_bytes / ENTRIES)
    }
}
