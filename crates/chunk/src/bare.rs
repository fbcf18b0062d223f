//! A store without a volume, to measure and test the store itself.

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};

use crate::ChunkError;
use crate::backend::{Backend, StoreError, buckets_of};
use crate::direct::list;
use crate::error::store_error;
use crate::probe;
use crate::services::{self, StorageConfig};

/// A store whose objects are read and written as they are. All methods block.
#[derive(Debug)]
pub struct BareStore {
    backend: Box<dyn Backend>,
    /// Kept until the store is dropped, because the backend runs its requests on this runtime.
    _runtime: Runtime,
}

impl BareStore {
    /// Opens the store that `config` names. With `create`, creates the directory of a `file` store if it is
    /// absent.
    ///
    /// # Errors
    /// As for [`BlockStore::open_with`](crate::BlockStore::open_with).
    pub fn open(config: &StorageConfig, create: bool) -> Result<BareStore, ChunkError> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(|error| {
                ChunkError::Config(format!("cannot start the threads of the store: {error}"))
            })?;
        let backend = services::open(config, create, runtime.handle())?;
        backend.prepare().map_err(|error| store_error("prepare", "the store", error))?;
        Ok(BareStore { backend, _runtime: runtime })
    }

    /// Stores an object, or replaces it.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn put(&self, key: &str, data: Bytes) -> Result<(), ChunkError> {
        self.backend.put(key, data, Vec::new()).map_err(|error| store_error("write", key, error))
    }

    /// Returns `len` bytes of an object from `offset` on, fewer if it ends earlier; `None` if it does not
    /// exist.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn get(&self, key: &str, offset: u64, len: usize) -> Result<Option<Bytes>, ChunkError> {
        match self.backend.get(key, offset, len) {
            Ok(data) => Ok(Some(data)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(store_error("read", key, error)),
        }
    }

    /// Removes an object. An absent object is not an error.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn delete(&self, key: &str) -> Result<(), ChunkError> {
        self.backend.delete(key).map_err(|error| store_error("delete", key, error))
    }

    /// The names directly below `prefix`, which ends with a slash.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn list(&self, prefix: &str) -> Result<Vec<String>, ChunkError> {
        list(&*self.backend, prefix)
    }

    /// The number of buckets.
    pub fn buckets(&self) -> usize {
        buckets_of(&*self.backend).len()
    }

    /// Stores one object, a probe, in each bucket. Its key contains `run` and the index of the bucket. If
    /// [`BareStore::find_probes`] of another store finds a probe, both stores use that bucket.
    ///
    /// # Errors
    /// [`ChunkError::Store`]; [`ChunkError::Config`] if two buckets are the same place.
    pub fn put_probes(&self, run: &str) -> Result<(), ChunkError> {
        let buckets = buckets_of(&*self.backend);
        probe::put(&buckets, run)?;
        let are_apart = if buckets.len() > 1 { probe::require_apart(&buckets, run) } else { Ok(()) };
        are_apart.inspect_err(|_| drop(probe::remove(&buckets, run)))
    }

    /// For each bucket of this store, the indexes of the probes that are in it.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn find_probes(&self, run: &str) -> Result<Vec<Vec<usize>>, ChunkError> {
        probe::find(&buckets_of(&*self.backend), run)
    }

    /// Removes the probes that this store has stored.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn remove_probes(&self, run: &str) -> Result<(), ChunkError> {
        probe::remove(&buckets_of(&*self.backend), run)
    }

    /// Removes the directory `prefix` of a `file` store, if it is empty. Other stores do nothing.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn remove_directory(&self, prefix: &str) -> Result<(), ChunkError> {
        self.backend.remove_directory(prefix).map_err(|error| store_error("delete", prefix, error))
    }
}
