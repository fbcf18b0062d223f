//! The object that records to which volume a store belongs, and a check that the store works.
//!
//! The marker is read and the store is checked before a volume is served. Otherwise, a directory whose file
//! system is not mounted yet, the bucket of another volume, or a store that rejects writes would be noticed
//! only when data is lost.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use types::Errno;

use crate::ChunkError;
use crate::backend::StoreError;
use crate::direct::{DirectStore, MARKER};
use crate::error::store_error;
use crate::store::BlockStore;

/// The prefix of the object that a check writes, reads and removes. If a check is interrupted, the object
/// remains. If the store is a directory, a later mount removes the object.
const CHECK: &str = "tmp/";

impl BlockStore {
    /// The store itself, without blocks that are staged on this machine.
    pub fn direct(&self) -> DirectStore<'_> {
        DirectStore(self.inner.staging().map_or(&*self.inner.backend, |staging| staging.store()))
    }

    /// Writes the marker. It survives a power failure once this returns.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the marker cannot be written.
    pub fn put_marker(&self, text: &str) -> Result<(), ChunkError> {
        let backend = &self.inner.backend;
        backend.prepare().map_err(|error| store_error("prepare", "the store", error))?;
        let text = Bytes::copy_from_slice(text.as_bytes());
        let put = backend.put(MARKER, text, Vec::new()).and_then(|()| backend.sync(&[MARKER.to_owned()]));
        put.map_err(|error| store_error("write", MARKER, error))
    }

    /// Removes the marker, and the store's own directories and temporary objects. Call it only when no block
    /// is left.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the marker or the directories cannot be removed.
    pub fn remove_marker(&self) -> Result<(), ChunkError> {
        let backend = &self.inner.backend;
        backend.delete(MARKER).map_err(|error| store_error("delete", MARKER, error))?;
        backend.remove_root().map_err(|error| store_error("remove", "the store", error))
    }

    /// Writes, reads, lists and removes one object, to verify that the store supports all four.
    ///
    /// # Errors
    /// [`ChunkError::Store`] for the first call that fails.
    pub fn check(&self) -> Result<(), ChunkError> {
        // Several mounts may check one store at the same time.
        let name = format!("check.{}.{:016x}", std::process::id(), RandomState::new().hash_one(()));
        let key = format!("{CHECK}{name}");
        let backend = &self.inner.backend;
        let fail = |action| {
            let key = &key;
            move |error| store_error(action, key, error)
        };
        let data = Bytes::from_static(b"limen");
        backend.prepare().map_err(fail("write"))?;
        backend.put(&key, data.clone(), Vec::new()).map_err(fail("write"))?;
        let checked = (|| {
            let read = backend.get(&key, 0, data.len()).map_err(fail("read"))?;
            let listed = backend.list(CHECK).map_err(fail("list"))?;
            let wrong = |what: &str| StoreError::Other(Errno::EIO, what.to_owned());
            if read != data {
                return Err(fail("read")(wrong("it does not hold the bytes that were written")));
            }
            match listed.contains(&name) {
                true => Ok(()),
                false => {
                    Err(fail("list")(wrong("the list does not contain an object that was just written")))
                }
            }
        })();
        let deleted = backend.delete(&key).map_err(fail("delete"));
        checked.and(deleted)
    }

    /// Lists the blocks, to verify that the store can be read.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store cannot be listed.
    pub fn check_readable(&self) -> Result<(), ChunkError> {
        self.direct().is_empty().map(drop)
    }
}
