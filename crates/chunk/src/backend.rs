//! The interface of an object store.

use std::time::SystemTime;
use std::{fmt, io};

use bytes::Bytes;
use types::Errno;

/// An object store: a local directory accessed with plain system calls, or any service of opendal.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Stores `data` followed by `trailer` under `key`, atomically. An existing object is replaced.
    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError>;

    /// Returns `len` bytes of the object from `offset` on; fewer or none if the object ends earlier.
    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError>;

    /// Returns the whole object, but at most `at_most` bytes of it.
    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError>;

    /// Removes an object. An absent object is not an error.
    fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// Returns the names directly below `prefix`, which ends with a slash; the names of directories end with
    /// a slash too. A prefix without objects is empty, not an error.
    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError>;

    /// The time at which the object was written; `None` if there is no such object, or the store does not
    /// report times.
    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError>;

    /// The bytes that the disk of the store has free for unprivileged processes; `None` if the store has no
    /// such bound, or does not report it.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// The device number of the store's file system (`st_dev`), which is the same for all stores on one file
    /// system; `None` if the store is not a local directory.
    fn device(&self) -> Option<u64> {
        None
    }

    /// The buckets over which the objects are spread, in the order of the store's address; empty if the store
    /// is one bucket. See [`buckets_of`].
    fn buckets(&self) -> Vec<Bucket<'_>> {
        Vec::new()
    }

    /// Creates the directories that the store itself needs, if they are missing. Call it only for a
    /// store that is known to be the right one, because nothing may be written into a directory whose file
    /// system is not mounted yet.
    fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether an object may be lost by a power failure after [`Backend::put`] returned.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Makes the objects under `keys` survive a power failure.
    fn sync(&self, _keys: &[String]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes every object survive a power failure.
    fn sync_all(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Removes the directory `prefix`, if it is empty. A store that is not a local directory does nothing.
    fn remove_directory(&self, _prefix: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Removes the store's own directories and temporary objects. Call it only when no other object is left.
    fn remove_root(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A bucket of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket<'a> {
    /// Empty if the store is one bucket.
    pub(crate) address: &'a str,
    pub(crate) store: &'a dyn Backend,
}

/// The buckets of a store, at least one. Requests to them reach all objects there, including objects that
/// belong in another bucket.
pub(crate) fn buckets_of(store: &dyn Backend) -> Vec<Bucket<'_>> {
    let buckets = store.buckets();
    if buckets.is_empty() { vec![Bucket { address: "", store }] } else { buckets }
}

/// Why a request to a store failed.
#[derive(Debug)]
pub(crate) enum StoreError {
    NotFound,
    Other(Errno, String),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => StoreError::NotFound,
            _ => StoreError::Other(Errno::from(&error), error.to_string()),
        }
    }
}
