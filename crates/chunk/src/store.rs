//! The block store: it stores slices and reads bytes of slices.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use types::{BLOCK_BYTES, CHUNK_BYTES, Errno, SliceId};

use crate::ChunkError;
use crate::areas::Pending;
use crate::backend::{Backend, StoreError};
use crate::block::{BlockName, block_count, block_len, encode_trailer, object_key};
use crate::codec::{Codec, Compression};
use crate::direct::StoreCheck;
use crate::disk_cache::{DiskCache, DiskCacheOptions};
use crate::error::store_error;
use crate::faults::{Faults, Faulty};
use crate::format::PAGE_BYTES;
use crate::layout::Layout;
use crate::limited::{Limited, TrafficLimits};
use crate::lru::{CacheUse, Lru};
use crate::metered::{Metered, StoreMeters};
use crate::packed::pack;
use crate::pages::{BlockKey, page_key};
use crate::secret::Encryption;
use crate::services::{self, StorageConfig};
use crate::sharded::{Shard, join};
use crate::staging::{Staging, WritebackOptions};
use crate::uploader::Uploads;

/// The default bound of the block cache: 256 MiB.
pub const DEFAULT_CACHE_BYTES: u64 = 256 << 20;

/// The number of background requests that run at once: uploads and read-ahead.
const BACKGROUND_THREADS: usize = 8;

/// The number of blocks whose trailer or header is kept for reads of single pages. A trailer takes at most
/// 256 bytes of memory, a header some 1,100.
const TRAILERS: u64 = 4096;

/// The number of slices that are tracked one by one until they are durable. If there are more, everything is
/// synced at once.
const VOLATILE_SLICES: usize = 1 << 16;

/// How a store treats the blocks of a volume.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The bound of the cache in memory, in bytes.
    pub cache_bytes: u64,
    /// How new blocks are compressed.
    pub compression: Compression,
    /// The volume's cipher and key, from [`EncryptionSettings`](crate::EncryptionSettings). A volume is
    /// created encrypted or not, and this never changes.
    pub encryption: Option<Encryption>,
    /// Whether to create the directory of a `file` store if it is absent. Must be false for an existing
    /// volume: if its directory is missing, its file system is not mounted.
    pub create: bool,
    /// A cache on a local disk, between memory and the store.
    pub disk_cache: Option<DiskCacheOptions>,
    /// Write-back: blocks are staged on a local disk, and uploaded in the background after
    /// [`BlockStore::begin_uploads`].
    pub writeback: Option<WritebackOptions>,
    /// Other directories that may hold staged blocks of this volume, from [`WritebackOptions::place`]. A
    /// block that the store does not have is searched for there.
    pub staged: Vec<PathBuf>,
    pub limits: TrafficLimits,
    /// For tests: the faults to inject.
    pub faults: Option<Arc<Faults>>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            cache_bytes: DEFAULT_CACHE_BYTES,
            compression: Compression::None,
            encryption: None,
            create: false,
            disk_cache: None,
            writeback: None,
            staged: Vec::new(),
            limits: TrafficLimits::default(),
            faults: None,
        }
    }
}

/// The number of requests sent since the store was opened; a staged block counts when it is staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub puts: u64,
    pub gets: u64,
    pub deletes: u64,
    /// Reads served by the cache on disk, without a request.
    pub disk_hits: u64,
}

/// The blocks of a volume. All methods block and may be called from any thread that is not a thread of an
/// async runtime.
pub struct BlockStore {
    pub(crate) inner: Arc<Inner>,
    runtime: Runtime,
}

impl BlockStore {
    /// Opens the store that `config` names, for tests. The directory of a `file` store is created if absent.
    ///
    /// # Errors
    /// As for [`BlockStore::open_with`].
    pub fn open(config: &StorageConfig, cache_bytes: u64) -> Result<Arc<BlockStore>, ChunkError> {
        Self::open_with(config, StoreOptions { cache_bytes, create: true, ..StoreOptions::default() })
    }

    /// Opens the store that `config` names. Writes nothing to it, unless [`StoreOptions::create`] is set.
    ///
    /// # Errors
    /// [`ChunkError::Config`] if this build does not have the kind of store, for an invalid address or
    /// setting, or if a thread cannot be started; [`ChunkError::Store`] if the directory of the store, of the
    /// cache or of staged blocks is absent, or cannot be created or read.
    pub fn open_with(config: &StorageConfig, options: StoreOptions) -> Result<Arc<BlockStore>, ChunkError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BACKGROUND_THREADS)
            .thread_name("limen-blocks")
            .on_thread_start(host::begin_thread)
            .enable_all()
            .build()
            .map_err(|error| {
                ChunkError::Config(format!("cannot start the threads of the block store: {error}"))
            })?;
        let meters = Arc::new(StoreMeters::default());
        let wrap = |Shard { address, store }| {
            let store = match &options.faults {
                Some(faults) => Box::new(Faulty::new(store, Arc::clone(faults))),
                None => store,
            };
            Shard { address, store: Box::new(Metered::new(store, Arc::clone(&meters))) }
        };
        let buckets = services::open_buckets(config, options.create, runtime.handle())?;
        let mut backend = join(buckets.into_iter().map(wrap).collect());
        if options.limits != TrafficLimits::default() {
            backend = Box::new(Limited::new(backend, options.limits));
        }
        let codec = Codec { compression: options.compression, encryption: options.encryption };
        let (backend, staging): (Arc<dyn Backend>, _) =
            if options.writeback.is_none() && options.staged.is_empty() {
                (Arc::from(backend), None)
            } else {
                let (writeback, staged) = (options.writeback.as_ref(), options.staged);
                let staging = Arc::new(Staging::open(backend, writeback, staged, codec.clone())?);
                (Arc::clone(&staging) as Arc<dyn Backend>, Some(staging))
            };
        let inner = Inner {
            backend,
            staging,
            disk: options.disk_cache.as_ref().map(DiskCache::open).transpose()?,
            codec,
            blocks: Lru::new(options.cache_bytes),
            trailers: Lru::new(TRAILERS),
            counts: Counts::default(),
            meters,
            volatile: Mutex::default(),
            synced_once: AtomicBool::new(false),
        };
        Ok(Arc::new(BlockStore { inner: Arc::new(inner), runtime }))
    }

    /// Stores `data`, at most a chunk's length, as slice `id`, with its blocks in parallel. When it returns,
    /// every block can be read, even by other machines; with write-back, other machines can read a block only
    /// after its upload. The blocks survive a power failure only after [`BlockStore::make_durable`].
    ///
    /// # Errors
    /// [`ChunkError::Row`] if `data` is longer than a chunk. [`ChunkError::Store`] if a block cannot be
    /// stored; the other blocks of the slice are then removed again, as far as the store permits.
    pub fn put_slice(&self, id: SliceId, data: &Bytes) -> Result<(), ChunkError> {
        if data.len() as u64 > CHUNK_BYTES {
            return Err(ChunkError::Row { offset: 0, len: data.len() as u64, size: CHUNK_BYTES });
        }
        let size = data.len() as u32;
        let (sender, results) = mpsc::channel();
        let block = |index: u32| {
            let from = index as usize * BLOCK_BYTES as usize;
            data.slice(from..from + block_len(size, index) as usize)
        };
        for index in 1..block_count(size) {
            let (sender, data) = (sender.clone(), block(index));
            // A send fails only if the receiver is gone, because the calling thread has panicked.
            self.spawn(move |inner| drop(sender.send(inner.put_block(id, index, data))));
        }
        drop(sender);
        let first = if size > 0 { self.inner.put_block(id, 0, block(0)) } else { Ok(()) };
        let mut outcome = first;
        for _ in 1..block_count(size) {
            outcome = outcome.and(host::receive(&results).unwrap_or(Err(ChunkError::Aborted)));
        }
        if outcome.is_err()
            && let Err(error) = self.delete_slice(id, size)
        {
            tracing::warn!(slice = id.0, %error, "blocks of a slice that could not be stored remain");
        }
        outcome
    }

    /// Fills `buf` with the bytes of slice `id` from `offset` on; the slice holds `size` bytes. Every byte
    /// returned was verified.
    ///
    /// # Errors
    /// [`ChunkError::Row`] if the slice does not have these bytes; [`ChunkError::Missing`],
    /// [`ChunkError::Short`] or [`ChunkError::Corrupt`] for the first damaged block or page in the range
    /// (damage outside the range is not noticed); [`ChunkError::Store`] if a request to the store fails.
    pub fn read(&self, id: SliceId, size: u32, offset: u32, buf: &mut [u8]) -> Result<(), ChunkError> {
        self.read_of(id, size, offset, buf, None)
    }

    /// As [`BlockStore::read`]. `shared` is that of [`Inner::read_block`].
    pub(crate) fn read_of(
        &self,
        id: SliceId,
        size: u32,
        offset: u32,
        buf: &mut [u8],
        shared: Option<u64>,
    ) -> Result<(), ChunkError> {
        if u64::from(offset) + buf.len() as u64 > u64::from(size) {
            return Err(ChunkError::Row { offset: offset.into(), len: buf.len() as u64, size: size.into() });
        }
        let (mut offset, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let (index, from) = (offset / BLOCK_BYTES, offset % BLOCK_BYTES);
            let len = block_len(size, index);
            let (part, tail) = rest.split_at_mut(rest.len().min((len - from) as usize));
            self.inner.read_block(BlockName { id, block: index, len }, from, part, shared)?;
            offset += part.len() as u32;
            rest = tail;
        }
        Ok(())
    }

    /// How many bytes of a slice of `size` bytes the caches have, in memory and on the local disk. Single
    /// pages do not count.
    pub fn cached_bytes(&self, id: SliceId, size: u32) -> u64 {
        let is_cached = |name: &BlockName| {
            let on_disk = self.inner.disk.as_ref().is_some_and(|disk| disk.contains(*name));
            on_disk || self.inner.blocks.contains(&(name.id, name.block))
        };
        blocks_of(id, size).filter(is_cached).map(|name| u64::from(name.len)).sum()
    }

    /// Removes a slice of `size` bytes from the caches. Blocks that wait for upload stay.
    pub fn evict(&self, id: SliceId, size: u32) {
        blocks_of(id, size).for_each(|name| self.inner.uncache(name));
    }

    /// The bound of the block cache in memory, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.inner.blocks.capacity()
    }

    /// Fetches block `block` of slice `id`, which holds `size` bytes, past all caches, and verifies all of
    /// it. Outside of this file, only tests call it.
    ///
    /// # Errors
    /// [`ChunkError::Row`] if the slice has no such block; otherwise as for [`BlockStore::read`].
    pub fn verify_block(&self, id: SliceId, size: u32, block: u32) -> Result<(), ChunkError> {
        let len = block_len(size, block);
        if len == 0 {
            let offset = u64::from(block) * u64::from(BLOCK_BYTES);
            return Err(ChunkError::Row { offset, len: 1, size: size.into() });
        }
        self.inner.verify(BlockName { id, block, len })
    }

    /// Fetches all blocks of slice `id`, which holds `size` bytes, past all caches, and verifies them.
    ///
    /// # Errors
    /// As for [`BlockStore::read`].
    pub fn verify_slice(&self, id: SliceId, size: u32) -> Result<(), ChunkError> {
        (0..block_count(size)).try_for_each(|block| self.verify_block(id, size, block))
    }

    /// Removes the blocks of slice `id`, which holds `size` bytes. An absent block is not an error.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if a block cannot be removed. All other blocks were tried then; the call may be
    /// repeated.
    pub fn delete_slice(&self, id: SliceId, size: u32) -> Result<(), ChunkError> {
        let mut outcome = Ok(());
        for index in 0..block_count(size) {
            let name = BlockName { id, block: index, len: block_len(size, index) };
            outcome = outcome.and(self.inner.delete_block(name));
        }
        outcome
    }

    /// Makes the slices survive a power failure. Call it before the rows that name them are made durable: at
    /// fsync(2) or, on a shared volume, before the commit, because other clients can make the rows durable at
    /// any time. A store that acknowledges only durable writes does nothing. A local directory syncs each
    /// object of a slice written since the last call, and its directories, or the whole file system if there
    /// are many objects. The first call for any other slice also syncs the whole file system, because an
    /// earlier process may have written the slice; later such calls cost nothing.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store cannot sync. The slices then stay listed as not durable, and the
    /// next call tries again.
    pub fn make_durable(&self, slices: &[SliceId]) -> Result<(), ChunkError> {
        let mut pending = Volatile::new();
        let mut unknown = false;
        {
            let volatile = self.inner.volatile();
            for id in slices {
                match volatile.get(id) {
                    Some(blocks) => drop(pending.insert(*id, blocks.clone())),
                    None => unknown = true,
                }
            }
        }
        if unknown && self.inner.backend.is_volatile() && !self.inner.synced_once.load(Relaxed) {
            // A process that ended before this store was opened may have written the slice.
            return self.inner.sync_all();
        }
        let key = |(id, blocks): (&SliceId, &Vec<(u32, u32)>)| -> Vec<String> {
            blocks.iter().map(|&(block, len)| object_key(*id, block, len)).collect()
        };
        let keys: Vec<String> = pending.iter().flat_map(key).collect();
        let Some(first) = keys.first() else { return Ok(()) };
        self.inner.backend.sync(&keys).map_err(|error| store_error("sync", first, error))?;
        self.inner.forget_volatile(&pending);
        Ok(())
    }

    /// The requests sent so far, including background requests.
    pub fn requests(&self) -> Requests {
        let counts = &self.inner.counts;
        Requests {
            puts: counts.puts.load(Relaxed),
            gets: counts.gets.load(Relaxed),
            deletes: counts.deletes.load(Relaxed),
            disk_hits: self.inner.disk.as_ref().map_or(0, DiskCache::hits),
        }
    }

    /// Measurements of the requests that the store has answered. Staging a block is not such a request.
    pub fn meters(&self) -> &StoreMeters {
        &self.inner.meters
    }

    /// The use of the cache in memory, and of the one on disk if there is one.
    pub fn caches(&self) -> [CacheUse; 2] {
        let counts = &self.inner.counts;
        let (hits, misses) = (counts.hits.load(Relaxed), counts.misses.load(Relaxed));
        let memory = CacheUse { hits, misses, bytes: self.inner.blocks.charge() };
        [memory, self.inner.disk.as_ref().map_or(CacheUse::default(), DiskCache::used)]
    }

    /// Starts to upload staged blocks. The caller must have checked that the store belongs to the volume. If
    /// the store did not answer, the caller passes `check` instead: each request to the store except a sync
    /// then runs the check first, and fails with its error, until it succeeds once.
    ///
    /// # Errors
    /// [`ChunkError::Config`] if the upload threads cannot be started.
    pub fn begin_uploads(&self, check: Option<StoreCheck>) -> Result<(), ChunkError> {
        let Some(staging) = &self.inner.staging else { return Ok(()) };
        staging
            .begin_uploads(check)
            .map_err(|error| ChunkError::Config(format!("cannot start the upload threads: {error}")))
    }

    /// The bytes that the disk of the store has free; `None` if the store has no such bound, or does not
    /// report it.
    pub fn free_bytes(&self) -> Option<u64> {
        self.inner.backend.free_bytes()
    }

    /// The blocks that wait on the local disk for their upload; `None` without write-back.
    pub fn pending(&self) -> Option<Pending> {
        Some(self.inner.uploads()?.pending())
    }

    /// Whether a staged block was lost: its file was damaged, or removed by another program, before it was
    /// uploaded.
    pub fn has_lost(&self) -> bool {
        self.inner.uploads().is_some_and(Uploads::has_lost)
    }

    /// Whether a staged block of this slice may have been lost. [`BlockStore::verify_slice`] tells whether
    /// the store has it nevertheless.
    pub fn may_have_lost(&self, id: SliceId) -> bool {
        self.inner.uploads().is_some_and(|uploads| uploads.may_have_lost(id))
    }

    /// Waits until everything staged is in the store; calls `progress` every five seconds.
    /// [`BlockStore::begin_uploads`] must have been called before.
    ///
    /// # Errors
    /// The blocks that are still staged, if the store has failed for `timeout` without accepting a block.
    /// They stay on the local disk, and the next store opened with the same [`WritebackOptions`] uploads
    /// them.
    pub fn wait_uploads(&self, timeout: Duration, progress: &mut dyn FnMut(&Pending)) -> Result<(), Pending> {
        self.inner.uploads().map_or(Ok(()), |uploads| uploads.wait(timeout, progress))
    }

    /// Runs `task` on a background thread, after all tasks spawned earlier have started.
    pub(crate) fn spawn(&self, task: impl FnOnce(&Inner) + Send + 'static) {
        let inner = Arc::clone(&self.inner);
        // The task gets only the inner part: the last owner of the store stops these threads, so the last
        // owner must not be one of them.
        if let Err(task) = host::spawn_if_simulated("limen-blocks", move || task(&inner)) {
            drop(self.runtime.spawn_blocking(task));
        }
    }
}

impl Drop for BlockStore {
    fn drop(&mut self) {
        // The uploads must end before the runtime is dropped, because they need it.
        if let Some(uploads) = self.inner.uploads() {
            uploads.close();
        }
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockStore").field("backend", &self.inner.backend).finish_non_exhaustive()
    }
}

/// The state that the background threads share with the store.
pub(crate) struct Inner {
    pub(crate) backend: Arc<dyn Backend>,
    /// The same object as the backend, if blocks may be staged.
    staging: Option<Arc<Staging>>,
    pub(crate) disk: Option<DiskCache>,
    pub(crate) codec: Codec,
    pub(crate) blocks: Lru<BlockKey, Bytes>,
    pub(crate) trailers: Lru<BlockKey, Arc<Pages>>,
    pub(crate) counts: Counts,
    meters: Arc<StoreMeters>,
    volatile: Mutex<Volatile>,
    /// Whether everything that existed when the store was opened was made durable since.
    synced_once: AtomicBool,
}

/// The blocks (index, length) of each slice that a power failure may still lose.
type Volatile = HashMap<SliceId, Vec<(u32, u32)>>;

/// The layout of a block that is read page by page.
pub(crate) struct Pages {
    pub(crate) layout: Layout,
    /// The end of the last read; a read that starts here is sequential.
    pub(crate) end: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) deletes: AtomicU64,
    /// Reads of blocks that were in the cache in memory; `misses` counts the other reads.
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Inner {
    pub(crate) fn put_block(&self, id: SliceId, block: u32, data: Bytes) -> Result<(), ChunkError> {
        let len = data.len() as u32;
        let name = BlockName { id, block, len };
        let key = name.key();
        let (body, trailer) = if self.codec.is_plain() {
            (data.clone(), encode_trailer(&data))
        } else {
            let fail =
                |errno: Errno| store_error("encrypt", &key, StoreError::Other(errno, errno.to_string()));
            (Bytes::from(pack(name, &data, &self.codec).map_err(fail)?), Vec::new())
        };
        self.counts.puts.fetch_add(1, Relaxed);
        let kept = match &self.disk {
            Some(_) if len < BLOCK_BYTES => Some([&body[..], &trailer].concat()),
            _ => None,
        };
        self.backend.put(&key, body, trailer).map_err(|error| store_error("write", &key, error))?;
        if let (Some(disk), Some(object)) = (&self.disk, kept) {
            disk.offer(name, object.into());
        }
        if len < BLOCK_BYTES {
            // Small files are often read soon after they are written; the full blocks of a stream would only
            // evict blocks in use. The bytes are copied, because `data` may be a small part of a large
            // allocation, which the charge would not show.
            self.blocks.insert((id, block), Bytes::copy_from_slice(&data), len.into());
        }
        if self.backend.is_volatile() {
            let known = {
                let mut volatile = self.volatile();
                volatile.entry(id).or_default().push((block, len));
                volatile.len()
            };
            if known > VOLATILE_SLICES {
                self.sync_all()?;
            }
        }
        Ok(())
    }

    /// Removes a block and its pages from the caches.
    fn uncache(&self, name: BlockName) {
        self.blocks.remove(&(name.id, name.block));
        self.trailers.remove(&(name.id, name.block));
        for page in 0..name.len.div_ceil(PAGE_BYTES) {
            self.blocks.remove(&page_key(name, page));
        }
        if let Some(disk) = &self.disk {
            disk.remove(name);
        }
    }

    pub(crate) fn delete_block(&self, name: BlockName) -> Result<(), ChunkError> {
        let BlockName { id, block, len } = name;
        self.uncache(name);
        self.forget_volatile(&Volatile::from([(id, vec![(block, len)])]));
        self.delete_object(&*self.backend, &name.key())
    }

    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.staging.as_deref()
    }

    /// `None` without write-back.
    fn uploads(&self) -> Option<&Uploads> {
        self.staging()?.uploads.as_ref()
    }

    pub(crate) fn delete_object(&self, backend: &dyn Backend, key: &str) -> Result<(), ChunkError> {
        self.counts.deletes.fetch_add(1, Relaxed);
        backend.delete(key).map_err(|error| store_error("delete", key, error))
    }

    pub(crate) fn forget_all(&self) {
        self.blocks.clear();
        self.trailers.clear();
        if let Some(disk) = &self.disk {
            disk.clear();
        }
        self.volatile().clear();
    }

    fn volatile(&self) -> MutexGuard<'_, Volatile> {
        self.volatile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything in the store durable. A slice stays listed until it is durable. Otherwise, a
    /// concurrent fsync of the same slice would find it unlisted and could return before this one has synced
    /// it.
    fn sync_all(&self) -> Result<(), ChunkError> {
        let pending = self.volatile().clone();
        self.backend.sync_all().map_err(|error| store_error("sync", "the store", error))?;
        self.forget_volatile(&pending);
        self.synced_once.store(true, Relaxed);
        Ok(())
    }

    fn forget_volatile(&self, durable: &Volatile) {
        let mut volatile = self.volatile();
        for (id, blocks) in durable {
            if let Some(listed) = volatile.get_mut(id) {
                listed.retain(|block| !blocks.contains(block));
                if listed.is_empty() {
                    volatile.remove(id);
                }
            }
        }
    }
}

/// The blocks of a slice of `size` bytes.
fn blocks_of(id: SliceId, size: u32) -> impl Iterator<Item = BlockName> {
    (0..block_count(size)).map(move |block| BlockName { id, block, len: block_len(size, block) })
}
