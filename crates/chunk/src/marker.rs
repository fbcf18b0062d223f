//! The markers, one object in each bucket, which say to which volume the store belongs; and a check that the
//! store works.
//!
//! The marker is read and the store is checked before a volume is served. Otherwise, a directory whose file
//! system is not mounted yet, the bucket of another volume, or a store that rejects writes would be noticed
//! only when data is lost.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;

use crate::ChunkError;
use crate::backend::Backend;
use crate::direct::{DirectStore, MARKER};
use crate::error::store_error;
use crate::parallel::on_each;
use crate::probe;
use crate::store::BlockStore;

impl BlockStore {
    /// The store itself, without blocks that are staged on this machine.
    pub fn direct(&self) -> DirectStore<'_> {
        DirectStore(self.inner.staging().map_or(&*self.inner.backend, |staging| staging.store()))
    }

    /// Writes the marker of each bucket. `text` returns the marker's text for the index of the bucket and the
    /// number of buckets. The markers survive a power failure once this returns.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if a marker cannot be written.
    pub fn put_markers(&self, text: &(dyn Fn(usize, usize) -> String + Sync)) -> Result<(), ChunkError> {
        let buckets = self.direct().buckets();
        let put = |index, store: &dyn Backend| {
            store.prepare().map_err(|error| store_error("prepare", "the store", error))?;
            let text = Bytes::from(text(index, buckets.len()));
            let put = store.put(MARKER, text, Vec::new()).and_then(|()| store.sync(&[MARKER.to_owned()]));
            put.map_err(|error| store_error("write", MARKER, error))
        };
        on_each(&buckets, put).into_iter().collect()
    }

    /// Removes the markers, and the store's own directories and temporary objects. Call it only when no block
    /// is left.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if a marker or the directories cannot be removed.
    pub fn remove_markers(&self) -> Result<(), ChunkError> {
        let remove = |_, store: &dyn Backend| {
            store.delete(MARKER).map_err(|error| store_error("delete", MARKER, error))?;
            store.remove_root().map_err(|error| store_error("remove", "the store", error))
        };
        on_each(&self.direct().buckets(), remove).into_iter().collect()
    }

    /// Writes, reads, lists and removes one object in each bucket, to verify that the store supports all
    /// four, and that the buckets are different places.
    ///
    /// # Errors
    /// [`ChunkError::Store`] for the first call that fails; [`ChunkError::Config`] if two buckets are the
    /// same place.
    pub fn check(&self) -> Result<(), ChunkError> {
        // Several mounts may check one store at the same time.
        let run = format!("check.{}.{:016x}", std::process::id(), RandomState::new().hash_one(()));
        let buckets = self.direct().buckets();
        probe::put(&buckets, &run)?;
        let checked = probe::read(&buckets, &run).and_then(|()| probe::require_apart(&buckets, &run));
        let removed = probe::remove(&buckets, &run);
        checked.and(removed)
    }

    /// Lists the blocks, to verify that the store can be read.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store cannot be listed.
    pub fn check_readable(&self) -> Result<(), ChunkError> {
        self.direct().is_empty().map(drop)
    }
}
