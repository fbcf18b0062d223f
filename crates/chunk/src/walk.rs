//! Everything that a store holds: for fsck, and to remove a volume.
//!
//! Keys have two levels of directories with a bounded number of entries each, so that a walk holds one level of names and
//! not the whole listing.

use std::time::SystemTime;

use types::SliceId;

use crate::ChunkError;
use crate::backend::Backend;
use crate::block::parse_name;
use crate::store::{BlockStore, store_error};

const ROOT: &str = "chunks/";

/// A block found in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    pub id: SliceId,
    pub block: u32,
    /// The length of its data in bytes.
    pub len: u32,
    /// The object's key.
    pub key: String,
}

impl BlockStore {
    /// Calls `visit` for every block in the store, in no particular order; objects that are no blocks are passed over.
    ///
    /// # Errors
    /// [`ChunkError::Store`], or the first error that `visit` returns.
    pub fn for_each_block(
        &self,
        visit: &mut dyn FnMut(StoredBlock) -> Result<(), ChunkError>,
    ) -> Result<(), ChunkError> {
        walk(&*self.inner.backend, ROOT, &mut |key| {
            let name = key.rsplit('/').next().unwrap_or_default();
            match parse_name(name) {
                Some((id, block, len)) => visit(StoredBlock { id, block, len, key: key.to_owned() }),
                None => Ok(()),
            }
        })
    }

    /// Whether no block is there; a new volume must not be put where another one is, as slice numbers begin anew.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn is_empty(&self) -> Result<bool, ChunkError> {
        list(&*self.inner.backend, ROOT).map(|names| names.is_empty())
    }

    /// When a block found in the store was written; `None` if it is gone, or the store does not say.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn modified(&self, block: &StoredBlock) -> Result<Option<SystemTime>, ChunkError> {
        let modified = self.inner.backend.modified(&block.key);
        modified.map_err(|refusal| store_error("look at", &block.key, refusal))
    }

    /// Removes all that the store ever wrote, the marker last, and a directory made for it if nothing else is in it.
    /// `progress` is called with the number of objects removed so far. It can be called again after an error.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn destroy(&self, progress: &mut dyn FnMut(u64)) -> Result<(), ChunkError> {
        self.remove_blocks::<ChunkError>(&mut |count| {
            if count > 0 {
                progress(count);
            }
            Ok(())
        })?;
        self.remove_marker()
    }

    /// Removes all blocks of the store, and after these what waits on this machine for its upload: that is the only copy of
    /// its data, so it stays if the store fails. `progress` is called before each object with the number of those removed so
    /// far; its error ends the removal. It can be called again after an error.
    ///
    /// # Errors
    /// [`ChunkError::Store`], or what `progress` returned.
    pub fn remove_blocks<E: From<ChunkError>>(
        &self,
        progress: &mut dyn FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let inner = &self.inner;
        inner.forget_all();
        let mut removed = 0;
        let store = inner.staging().map(|staging| staging.store());
        for backend in store.into_iter().chain([&*inner.backend]) {
            walk::<E>(backend, ROOT, &mut |key| {
                progress(removed)?;
                inner.delete_object(backend, key)?;
                removed += 1;
                Ok(())
            })?;
        }
        remove_directories(&*inner.backend, ROOT)?;
        progress(removed)
    }
}

/// Calls `visit` with the key of every object below `prefix`.
fn walk<E: From<ChunkError>>(
    backend: &dyn Backend,
    prefix: &str,
    visit: &mut dyn FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    for name in list(backend, prefix)? {
        let path = format!("{prefix}{name}");
        if name.ends_with('/') {
            walk(backend, &path, visit)?;
        } else {
            visit(&path)?;
        }
    }
    Ok(())
}

fn remove_directories(backend: &dyn Backend, prefix: &str) -> Result<(), ChunkError> {
    for name in list(backend, prefix)?.iter().filter(|name| name.ends_with('/')) {
        remove_directories(backend, &format!("{prefix}{name}"))?;
    }
    backend.remove_directory(prefix).map_err(|refusal| store_error("remove", prefix, refusal))
}

fn list(backend: &dyn Backend, prefix: &str) -> Result<Vec<String>, ChunkError> {
    backend.list(prefix).map_err(|refusal| store_error("list", prefix, refusal))
}
