//! What any store of objects must do, and which there are.

use bytes::Bytes;
use opendal::Operator;
use tokio::runtime::Handle;
use types::Errno;

use crate::{dir, remote};

/// A store of objects: a local directory with plain system calls, or anything opendal speaks to.
#[derive(Debug)]
pub(crate) enum Backend {
    Dir(dir::Dir),
    Remote(remote::Remote),
}

/// Why a store did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Refusal {
    NotFound,
    Other(Errno, String),
}

impl Backend {
    pub(crate) fn remote(operator: Operator, runtime: Handle) -> Self {
        Backend::Remote(remote::Remote::new(operator, runtime))
    }

    /// Stores `data` followed by `trailer` under `key`: all of it or nothing. An object that is there is replaced.
    pub(crate) fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), Refusal> {
        match self {
            Backend::Dir(dir) => dir.put(key, &data, &trailer),
            Backend::Remote(remote) => remote.put(key, data, trailer),
        }
    }

    /// `len` bytes of the object from `offset` on; fewer, perhaps none, where it ends before.
    pub(crate) fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, Refusal> {
        match self {
            Backend::Dir(dir) => dir.get(key, offset, len),
            Backend::Remote(remote) => remote.get(key, offset, len),
        }
    }

    /// The object from its beginning to its end, but no more than `at_most` bytes of it.
    pub(crate) fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, Refusal> {
        match self {
            Backend::Dir(dir) => dir.get_whole(key, at_most),
            Backend::Remote(remote) => remote.get_whole(key, at_most),
        }
    }

    /// Removes an object; one that is not there is fine.
    pub(crate) fn delete(&self, key: &str) -> Result<(), Refusal> {
        match self {
            Backend::Dir(dir) => dir.delete(key),
            Backend::Remote(remote) => remote.delete(key),
        }
    }

    /// The names directly below `prefix`, which ends with a slash; those of directories end with a slash too. A prefix
    /// without any is empty, not an error.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<String>, Refusal> {
        match self {
            Backend::Dir(dir) => dir.list(prefix),
            Backend::Remote(remote) => remote.list(prefix),
        }
    }

    /// Whether an object may be lost by a power failure after [`Backend::put`] returned.
    pub(crate) fn is_volatile(&self) -> bool {
        matches!(self, Backend::Dir(_))
    }

    /// Makes the objects under `keys` survive a power failure.
    pub(crate) fn sync(&self, keys: &[String]) -> Result<(), Refusal> {
        match self {
            Backend::Dir(dir) => dir.sync(keys),
            Backend::Remote(_) => Ok(()),
        }
    }

    /// Makes every object survive a power failure.
    pub(crate) fn sync_all(&self) -> Result<(), Refusal> {
        match self {
            Backend::Dir(dir) => dir.sync_all(),
            Backend::Remote(_) => Ok(()),
        }
    }

    /// Removes the empty directories that objects leave behind, where the store has such.
    pub(crate) fn remove_directory(&self, prefix: &str) -> Result<(), Refusal> {
        match self {
            Backend::Dir(dir) => dir.remove_directory(prefix),
            Backend::Remote(_) => Ok(()),
        }
    }
}
