//! The block store: slices in, bytes of slices out.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use types::{BLOCK_BYTES, CHUNK_BYTES, Errno, Slice, SliceId};

use crate::ChunkError;
use crate::backend::{Backend, Refusal};
use crate::block::{block_count, block_len, encode_trailer, object_key};
use crate::codec::{Codec, Compression};
use crate::disk_cache::{DiskCache, DiskCacheOptions};
use crate::faults::{Faults, Faulty};
use crate::layout::Layout;
use crate::lru::Lru;
use crate::packed::{BlockName, pack};
use crate::resolve::{Piece, PieceSource, resolve};
use crate::secret::Encryption;
use crate::services;
use crate::staging::{Pending, Staging, WritebackOptions};

/// The bound of the cache of blocks in bytes unless told otherwise: 256 MiB.
pub const DEFAULT_CACHE_BYTES: u64 = 256 << 20;

/// How many background requests run at once: uploads and blocks read ahead.
const BACKGROUND_THREADS: usize = 8;

/// How many trailers are remembered for reads of single pages, each at most 272 bytes.
const TRAILERS: u64 = 4096;

/// How many slices not known to be durable are remembered one by one; beyond that, all are synced at once.
const VOLATILE_SLICES: usize = 1 << 16;

/// Where a volume keeps its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// The kind of store, one of [`STORAGES`](crate::STORAGES).
    pub storage: String,
    /// Where it is; never a secret, as settings are no place for one. By kind:
    ///
    /// - `file`: the absolute path of a directory.
    /// - `memory`: ignored.
    /// - `s3`: `s3://BUCKET[/PREFIX]`, `https://HOST[:PORT]/BUCKET[/PREFIX]` (path-style), or
    ///   `https://BUCKET.s3.REGION.amazonaws.com[/PREFIX]`. Credentials come from `AWS_ACCESS_KEY_ID`,
    ///   `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, the profile that `AWS_PROFILE` names, or the machine's role; the
    ///   region from the host, `AWS_REGION` or `AWS_DEFAULT_REGION`; the host of `s3://` from `AWS_ENDPOINT_URL`.
    /// - `gcs`: `gs://BUCKET[/PREFIX]`, with Google's default credentials.
    /// - `azblob`: `https://ACCOUNT.blob.core.windows.net/CONTAINER[/PREFIX]`, with the key in `AZURE_STORAGE_KEY`.
    /// - `webdav`: `https://HOST[:PORT]/PATH`, with `WEBDAV_USERNAME` and `WEBDAV_PASSWORD`.
    /// - `sftp`: `sftp://[USER@]HOST[:PORT]/PATH`, through the `ssh` command and its configuration.
    pub bucket: String,
}

/// How a store treats the blocks of a volume.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The bound in bytes of the cache in memory.
    pub cache_bytes: u64,
    /// How blocks are compressed from now on.
    pub compression: Compression,
    /// The volume's cipher and key, from [`EncryptionSettings`](crate::EncryptionSettings). Whether a volume is encrypted
    /// is settled when it is made.
    pub encryption: Option<Encryption>,
    /// Whether the directory of a `file` store is made if it is absent. Not for a volume that is there already: where its
    /// directory is missing, its file system is not mounted.
    pub create: bool,
    /// A cache on a local disk, between memory and the store.
    pub disk_cache: Option<DiskCacheOptions>,
    /// Write-back: blocks wait on a local disk and are uploaded in the background.
    pub writeback: Option<WritebackOptions>,
    /// Where else blocks of this volume may wait for their upload, by [`WritebackOptions::place`]: what the store does not
    /// have is looked for there.
    pub staged: Vec<PathBuf>,
    /// For tests: what the store does wrong.
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
            faults: None,
        }
    }
}

/// How many requests a store was sent since it was opened; a block that is staged counts when it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub puts: u64,
    pub gets: u64,
    pub deletes: u64,
    /// Reads answered by the cache on disk, which are no requests.
    pub disk_hits: u64,
}

/// The blocks of a volume. All methods may be called from any thread that is not one of an async runtime, and block.
pub struct BlockStore {
    pub(crate) inner: Arc<Inner>,
    runtime: Runtime,
}

impl BlockStore {
    /// Opens the store that `config` names, for tests. A `file` store's directory is created if absent.
    ///
    /// # Errors
    /// As [`BlockStore::open_with`].
    pub fn open(config: &StorageConfig, cache_bytes: u64) -> Result<Arc<BlockStore>, ChunkError> {
        Self::open_with(config, StoreOptions { cache_bytes, create: true, ..StoreOptions::default() })
    }

    /// Opens the store that `config` names, as `options` say. Nothing is written there but by [`StoreOptions::create`].
    ///
    /// # Errors
    /// [`ChunkError::Config`] for a kind that this build does not have or a relative path; [`ChunkError::Store`] if
    /// the directory is absent, or cannot be made or read.
    pub fn open_with(config: &StorageConfig, options: StoreOptions) -> Result<Arc<BlockStore>, ChunkError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BACKGROUND_THREADS)
            .thread_name("limen-blocks")
            .enable_all()
            .build()
            .map_err(|error| {
                ChunkError::Config(format!("cannot start the threads of the block store: {error}"))
            })?;
        let backend = services::open(config, options.create, runtime.handle())?;
        let backend = match options.faults {
            Some(faults) => Box::new(Faulty::new(backend, faults)),
            None => backend,
        };
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
            volatile: Mutex::default(),
            synced_once: AtomicBool::new(false),
        };
        Ok(Arc::new(BlockStore { inner: Arc::new(inner), runtime }))
    }

    /// Stores `data`, at most a chunk's length, as slice `id`, blocks in parallel. When it returns, every block can be
    /// read, also by other machines; it survives a power failure only after [`BlockStore::make_durable`].
    ///
    /// # Errors
    /// [`ChunkError::Row`] if `data` is longer than a chunk; [`ChunkError::Store`]; then what was stored of the slice has been removed again, as far as the store let it.
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
            // The receiver outlives the loop below, and whoever no longer listens has an error already.
            self.spawn(move |inner| drop(sender.send(inner.put_block(id, index, data))));
        }
        drop(sender);
        let first = if size > 0 { self.inner.put_block(id, 0, block(0)) } else { Ok(()) };
        let mut outcome = first;
        for _ in 1..block_count(size) {
            outcome = outcome.and(results.recv().unwrap_or(Err(ChunkError::Aborted)));
        }
        if outcome.is_err()
            && let Err(error) = self.delete_slice(id, size)
        {
            tracing::warn!(slice = id.0, %error, "blocks of a slice that could not be stored remain");
        }
        outcome
    }

    /// Fills `buf` with the bytes from `offset` on of slice `id`, which holds `size` bytes. Every byte returned was
    /// verified.
    ///
    /// # Errors
    /// [`ChunkError::Row`] if the slice has no such bytes; [`ChunkError::Missing`], [`ChunkError::Short`],
    /// [`ChunkError::Corrupt`] for the first damaged block or page that the range touches, and only these;
    /// [`ChunkError::Store`].
    pub fn read(&self, id: SliceId, size: u32, offset: u32, buf: &mut [u8]) -> Result<(), ChunkError> {
        if u64::from(offset) + buf.len() as u64 > u64::from(size) {
            return Err(ChunkError::Row { offset: offset.into(), len: buf.len() as u64, size: size.into() });
        }
        let (mut offset, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let (index, from) = (offset / BLOCK_BYTES, offset % BLOCK_BYTES);
            let len = block_len(size, index);
            let (part, tail) = rest.split_at_mut(rest.len().min((len - from) as usize));
            self.inner.read_block(BlockName { id, block: index, len }, from, part)?;
            offset += part.len() as u32;
            rest = tail;
        }
        Ok(())
    }

    /// Fills `buf` with the bytes from `pos` on of a chunk whose rows, in commit order, are `rows`.
    ///
    /// # Errors
    /// As [`BlockStore::read`]; [`ChunkError::Row`] also for an inline row with fewer bytes than it says.
    pub fn read_chunk(&self, rows: &[Slice], pos: u32, buf: &mut [u8]) -> Result<(), ChunkError> {
        for piece in resolve(rows, pos, buf.len() as u32) {
            let from = (piece.pos - pos) as usize;
            let part = &mut buf[from..from + piece.len as usize];
            match piece.source {
                PieceSource::Zeros => part.fill(0),
                PieceSource::Inline(bytes) if bytes.len() == part.len() => part.copy_from_slice(bytes),
                PieceSource::Inline(bytes) => {
                    return Err(ChunkError::Row {
                        offset: 0,
                        len: piece.len.into(),
                        size: bytes.len() as u64,
                    });
                }
                PieceSource::Blocks { id, offset, size } => self.read(id, size, offset, part)?,
            }
        }
        Ok(())
    }

    /// The `len` bytes from `pos` on of a chunk; as [`BlockStore::read_chunk`], but bytes of one cached block are not copied.
    ///
    /// # Errors
    /// As [`BlockStore::read_chunk`].
    pub fn chunk_bytes(&self, rows: &[Slice], pos: u32, len: u32) -> Result<Bytes, ChunkError> {
        if let [Piece { source: PieceSource::Blocks { id, offset, .. }, .. }] = *resolve(rows, pos, len)
            && let (index, from) = (offset / BLOCK_BYTES, offset % BLOCK_BYTES)
            && let Some(block) = self.inner.blocks.get(&(id, index))
            && u64::from(from) + u64::from(len) <= block.len() as u64
        {
            return Ok(block.slice(from as usize..(from + len) as usize));
        }
        let mut buf = vec![0; len as usize];
        self.read_chunk(rows, pos, &mut buf)?;
        Ok(buf.into())
    }

    /// Fetches in the background what is not cached of the blocks with the `len` bytes from `pos` on of a chunk. Errors are
    /// left to whoever reads them.
    pub fn prefetch(&self, rows: &[Slice], pos: u32, len: u32) {
        for piece in resolve(rows, pos, len) {
            let PieceSource::Blocks { id, offset, size } = piece.source else { continue };
            for block in offset / BLOCK_BYTES..offset.saturating_add(piece.len).div_ceil(BLOCK_BYTES) {
                let name = BlockName { id, block, len: block_len(size, block) };
                if name.len > 0 && self.inner.blocks.plan((id, block)) {
                    self.spawn(move |inner| {
                        if let Err(error) = inner.load_planned_block(name) {
                            tracing::debug!(%error, "a block could not be read ahead");
                        }
                    });
                }
            }
        }
    }

    /// The bound of the cache of blocks in memory.
    pub fn cache_bytes(&self) -> u64 {
        self.inner.blocks.capacity()
    }

    /// Fetches block `block` of slice `id`, which holds `size` bytes, from the store itself whatever is cached, and
    /// verifies all of it; for fsck.
    ///
    /// # Errors
    /// [`ChunkError::Row`] if the slice has no such block; else as [`BlockStore::read`].
    pub fn verify_block(&self, id: SliceId, size: u32, block: u32) -> Result<(), ChunkError> {
        let len = block_len(size, block);
        if len == 0 {
            let offset = u64::from(block) * u64::from(BLOCK_BYTES);
            return Err(ChunkError::Row { offset, len: 1, size: size.into() });
        }
        self.inner.verify(BlockName { id, block, len })
    }

    /// Removes the blocks of slice `id`, which holds `size` bytes. Blocks that are not there are fine.
    ///
    /// # Errors
    /// [`ChunkError::Store`], after the other blocks have been tried; call it again.
    pub fn delete_slice(&self, id: SliceId, size: u32) -> Result<(), ChunkError> {
        let mut outcome = Ok(());
        for index in 0..block_count(size) {
            outcome = outcome.and(self.inner.delete_block(id, index, block_len(size, index)));
        }
        outcome
    }

    /// Makes the slices survive a power failure: what fsync(2) and, on a shared volume, close(2) promise, to be called
    /// before the rows are made durable. Costs nothing for slices already durable and for stores that keep what they
    /// acknowledge; a local directory syncs each object of a slice written since the last call, and its directories.
    ///
    /// # Errors
    /// [`ChunkError::Store`]; nothing is forgotten, and the next call tries again.
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
            // It may have been written by a process that ended before this store was opened.
            return self.inner.sync_all();
        }
        let key = |(id, blocks): (&SliceId, &Vec<(u32, u32)>)| -> Vec<String> {
            blocks.iter().map(|&(block, len)| object_key(*id, block, len)).collect()
        };
        let keys: Vec<String> = pending.iter().flat_map(key).collect();
        let Some(first) = keys.first() else { return Ok(()) };
        self.inner.backend.sync(&keys).map_err(|refusal| store_error("sync", first, refusal))?;
        self.inner.forget_volatile(&pending);
        Ok(())
    }

    /// Makes everything stored so far survive a power failure, with one syncfs(2): for a periodic flush, and for slices
    /// that another process wrote to the same directory.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn make_all_durable(&self) -> Result<(), ChunkError> {
        self.inner.sync_all()
    }

    /// The requests sent so far, those of the background included.
    pub fn requests(&self) -> Requests {
        let counts = &self.inner.counts;
        Requests {
            puts: counts.puts.load(Relaxed),
            gets: counts.gets.load(Relaxed),
            deletes: counts.deletes.load(Relaxed),
            disk_hits: self.inner.disk.as_ref().map_or(0, DiskCache::hits),
        }
    }

    /// What waits on the local disk for its upload; `None` without write-back.
    pub fn pending(&self) -> Option<Pending> {
        self.inner.staging.as_ref().and_then(|staging| staging.pending())
    }

    /// Waits until everything staged is in the store; `progress` is called every five seconds meanwhile.
    ///
    /// # Errors
    /// What still waits, when the store has failed for `patience` without taking a block. It stays on the local disk, and
    /// the next store opened with the same [`WritebackOptions`] uploads it.
    pub fn wait_uploads(
        &self,
        patience: Duration,
        progress: &mut dyn FnMut(&Pending),
    ) -> Result<(), Pending> {
        self.inner.staging.as_ref().map_or(Ok(()), |staging| staging.wait(patience, progress))
    }

    /// Runs `task` on a background thread, after those that were spawned before it have begun.
    pub(crate) fn spawn(&self, task: impl FnOnce(&Inner) + Send + 'static) {
        let inner = Arc::clone(&self.inner);
        // Not the store itself: its last owner stops these threads, and must not be one of them.
        drop(self.runtime.spawn_blocking(move || task(&inner)));
    }
}

impl Drop for BlockStore {
    fn drop(&mut self) {
        // While there is a runtime: uploads that are under way need it.
        if let Some(staging) = &self.inner.staging {
            staging.close();
        }
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockStore").field("backend", &self.inner.backend).finish_non_exhaustive()
    }
}

pub(crate) type BlockKey = (SliceId, u32);

/// What the background threads share with the store.
pub(crate) struct Inner {
    pub(crate) backend: Arc<dyn Backend>,
    /// The same as the backend, where blocks may be staged.
    staging: Option<Arc<Staging>>,
    pub(crate) disk: Option<DiskCache>,
    pub(crate) codec: Codec,
    pub(crate) blocks: Lru<BlockKey, Bytes>,
    pub(crate) trailers: Lru<BlockKey, Arc<Pages>>,
    pub(crate) counts: Counts,
    volatile: Mutex<Volatile>,
    /// Whether all that was there when the store was opened has been made durable.
    synced_once: AtomicBool,
}

/// The blocks (index, length) of each slice that a power failure may still take.
type Volatile = HashMap<SliceId, Vec<(u32, u32)>>;

/// What is known of a block that is read page by page.
pub(crate) struct Pages {
    pub(crate) layout: Layout,
    /// Where the last read ended; one that goes on from there is sequential.
    pub(crate) end: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) deletes: AtomicU64,
}

impl Inner {
    pub(crate) fn put_block(&self, id: SliceId, block: u32, data: Bytes) -> Result<(), ChunkError> {
        let len = data.len() as u32;
        let key = object_key(id, block, len);
        let (body, trailer) = if self.codec.is_plain() {
            (data.clone(), encode_trailer(&data))
        } else {
            let fail = |errno: Errno| store_error("encrypt", &key, Refusal::Other(errno, errno.to_string()));
            (Bytes::from(pack(BlockName { id, block, len }, &data, &self.codec).map_err(fail)?), Vec::new())
        };
        self.counts.puts.fetch_add(1, Relaxed);
        let kept = match &self.disk {
            Some(_) if len < BLOCK_BYTES => Some([&body[..], &trailer].concat()),
            _ => None,
        };
        self.backend.put(&key, body, trailer).map_err(|refusal| store_error("write", &key, refusal))?;
        if let (Some(disk), Some(object)) = (&self.disk, kept) {
            disk.offer(BlockName { id, block, len }, object.into());
        }
        if len < BLOCK_BYTES {
            // Small files are read soon after; the full blocks of a stream would only push out what is in use.
            // A copy, because `data` may be a small part of a large allocation that the weight would not show.
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

    pub(crate) fn delete_block(&self, id: SliceId, block: u32, len: u32) -> Result<(), ChunkError> {
        let key = object_key(id, block, len);
        self.blocks.remove(&(id, block));
        self.trailers.remove(&(id, block));
        if let Some(disk) = &self.disk {
            disk.remove(BlockName { id, block, len });
        }
        self.forget_volatile(&Volatile::from([(id, vec![(block, len)])]));
        self.delete_object(&*self.backend, &key)
    }

    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.staging.as_deref()
    }

    pub(crate) fn delete_object(&self, backend: &dyn Backend, key: &str) -> Result<(), ChunkError> {
        self.counts.deletes.fetch_add(1, Relaxed);
        backend.delete(key).map_err(|refusal| store_error("delete", key, refusal))
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

    /// A slice stays listed until it *is* durable, lest a second fsync at the same time return before the first has done
    /// the work for both.
    fn sync_all(&self) -> Result<(), ChunkError> {
        let pending = self.volatile().clone();
        self.backend.sync_all().map_err(|refusal| store_error("sync", "the store", refusal))?;
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

pub(crate) fn store_error(action: &'static str, key: &str, refusal: Refusal) -> ChunkError {
    let (errno, message) = match refusal {
        Refusal::NotFound => (Errno::ENOENT, "not found".to_owned()),
        Refusal::Other(errno, message) => (errno, message),
    };
    ChunkError::Store { action, key: key.to_owned(), errno, message }
}
