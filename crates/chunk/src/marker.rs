//! The object that says whose store this is, and whether the store works at all.
//!
//! Both are looked at before a volume is served: a directory in which no file system is mounted yet, another volume's
//! bucket, or a store that takes no writes would else be found out by the first data that is lost.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use types::Errno;

use crate::ChunkError;
use crate::backend::Refusal;
use crate::store::{BlockStore, store_error};

/// The key of the marker. It is never compressed or encrypted, and it is no block.
pub const MARKER: &str = "limen-volume";

/// A marker is a line of text.
const MAX_MARKER_BYTES: usize = 4096;

/// Where an object is written, looked for and removed again. A directory's `tmp/` is swept if a check is interrupted.
const CHECK: &str = "tmp/";

impl BlockStore {
    /// What the store says of whose it is; `None` if it says nothing.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn marker(&self) -> Result<Option<Vec<u8>>, ChunkError> {
        match self.inner.backend.get_whole(MARKER, MAX_MARKER_BYTES) {
            Ok(text) => Ok(Some(text.to_vec())),
            Err(Refusal::NotFound) => Ok(None),
            Err(refusal) => Err(store_error("read", MARKER, refusal)),
        }
    }

    /// Writes down whose store this is. It survives a power failure when this returns.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn put_marker(&self, text: &str) -> Result<(), ChunkError> {
        let backend = &self.inner.backend;
        backend.prepare().map_err(|refusal| store_error("prepare", "the store", refusal))?;
        let text = Bytes::copy_from_slice(text.as_bytes());
        let put = backend.put(MARKER, text, Vec::new()).and_then(|()| backend.sync(&[MARKER.to_owned()]));
        put.map_err(|refusal| store_error("write", MARKER, refusal))
    }

    /// Removes the marker and what the store made for itself, once no block is left.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn remove_marker(&self) -> Result<(), ChunkError> {
        let backend = &self.inner.backend;
        backend.delete(MARKER).map_err(|refusal| store_error("delete", MARKER, refusal))?;
        backend.remove_root().map_err(|refusal| store_error("remove", "the store", refusal))
    }

    /// Writes, reads, lists and removes one object, to see that the store can do all four.
    ///
    /// # Errors
    /// [`ChunkError::Store`] for the first that it cannot.
    pub fn check(&self) -> Result<(), ChunkError> {
        // Several mounts may check one store at the same moment.
        let name = format!("check.{}.{:016x}", std::process::id(), RandomState::new().hash_one(()));
        let key = format!("{CHECK}{name}");
        let backend = &self.inner.backend;
        let fail = |action| {
            let key = &key;
            move |refusal| store_error(action, key, refusal)
        };
        let data = Bytes::from_static(b"limen");
        backend.prepare().map_err(fail("write"))?;
        backend.put(&key, data.clone(), Vec::new()).map_err(fail("write"))?;
        let looked = (|| {
            let read = backend.get(&key, 0, data.len()).map_err(fail("read"))?;
            let listed = backend.list(CHECK).map_err(fail("list"))?;
            let wrong = |what: &str| Refusal::Other(Errno::EIO, what.to_owned());
            if read != data {
                return Err(fail("read")(wrong("it holds other bytes than were written")));
            }
            match listed.contains(&name) {
                true => Ok(()),
                false => Err(fail("list")(wrong("the list lacks an object that was just written"))),
            }
        })();
        let deleted = backend.delete(&key).map_err(fail("delete"));
        looked.and(deleted)
    }

    /// Lists what there is, to see that the store can be read.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn check_readable(&self) -> Result<(), ChunkError> {
        self.is_empty().map(drop)
    }
}
