//! What any store of objects must do.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use types::Errno;

/// A store of objects: a local directory with plain system calls, or anything opendal speaks to.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Stores `data` followed by `trailer` under `key`: all of it or nothing. An object that is there is replaced.
    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), Refusal>;

    /// `len` bytes of the object from `offset` on; fewer, perhaps none, where it ends before.
    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, Refusal>;

    /// The object from its beginning to its end, but no more than `at_most` bytes of it.
    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, Refusal>;

    /// Removes an object; one that is not there is fine.
    fn delete(&self, key: &str) -> Result<(), Refusal>;

    /// The names directly below `prefix`, which ends with a slash; those of directories end with a slash too. A prefix
    /// without any is empty, not an error.
    fn list(&self, prefix: &str) -> Result<Vec<String>, Refusal>;

    /// When the object was written; `None` if there is none, or the store does not say.
    fn modified(&self, key: &str) -> Result<Option<SystemTime>, Refusal>;

    /// Makes what the store needs for itself and does not have. Only for a store that is known to be the right one: in a
    /// directory where a file system is not mounted yet, nothing may be written.
    fn prepare(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Whether an object may be lost by a power failure after [`Backend::put`] returned.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Makes the objects under `keys` survive a power failure.
    fn sync(&self, _keys: &[String]) -> Result<(), Refusal> {
        Ok(())
    }

    /// Makes every object survive a power failure.
    fn sync_all(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Removes the empty directories that objects leave behind, where the store has such.
    fn remove_directory(&self, _prefix: &str) -> Result<(), Refusal> {
        Ok(())
    }

    /// Removes what the store made for itself, once no object is left.
    fn remove_root(&self) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Refusal {
    NotFound,
    Other(Errno, String),
}
