//! Lists the blocks of a store, for fsck; removes its blocks and backups, to remove a volume.
//!
//! Keys have two levels of directories, so a walk holds only the names in the directories of one path in
//! memory, not the whole listing (see `block.rs` for their sizes).

use std::time::SystemTime;

use types::SliceId;

use crate::ChunkError;
use crate::backend::Backend;
use crate::block::BlockName;
use crate::direct::{BACKUPS, ROOT, list};
use crate::error::store_error;
use crate::store::BlockStore;

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
    /// Calls `visit` for every block in the store or staged on this machine, in no particular order; other
    /// objects are skipped.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store cannot be listed; otherwise the first error that `visit` returns.
    pub fn for_each_block(
        &self,
        visit: &mut dyn FnMut(StoredBlock) -> Result<(), ChunkError>,
    ) -> Result<(), ChunkError> {
        walk(&*self.inner.backend, ROOT, &mut |key| {
            let Some(BlockName { id, block, len }) = BlockName::of_key(key) else { return Ok(()) };
            visit(StoredBlock { id, block, len, key: key.to_owned() })
        })
    }

    /// The time at which a block found in the store was written; `None` if the block no longer exists, or
    /// the store does not report times.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store cannot be queried.
    pub fn modified(&self, block: &StoredBlock) -> Result<Option<SystemTime>, ChunkError> {
        let modified = self.inner.backend.modified(&block.key);
        modified.map_err(|error| store_error("query", &block.key, error))
    }

    /// Removes all blocks and backups of the store, and after that the blocks staged on this machine. A
    /// staged block may be the only copy of its data, so staged blocks remain if the store fails. `progress`
    /// is called before each object and at the end, with the number removed so far; its error ends the
    /// removal. After an error, the call may be repeated.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if a request to the store fails; the first error that `progress` returns.
    pub fn remove_blocks<E: From<ChunkError>>(
        &self,
        progress: &mut dyn FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let inner = &self.inner;
        inner.forget_all();
        let mut removed = 0;
        // Each bucket is walked by itself, because a request to the whole store does not reach objects that
        // are in a wrong bucket, for example after a copy.
        let buckets = self.direct().buckets().into_iter().map(|bucket| bucket.store);
        let staged = inner.staging().map(|_| &*inner.backend);
        for backend in buckets.chain(staged) {
            for prefix in [ROOT, BACKUPS] {
                walk::<E>(backend, prefix, &mut |key| {
                    progress(removed)?;
                    inner.delete_object(backend, key)?;
                    removed += 1;
                    Ok(())
                })?;
            }
        }
        remove_directories(&*inner.backend, ROOT)?;
        remove_directories(&*inner.backend, BACKUPS)?;
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
    backend.remove_directory(prefix).map_err(|error| store_error("remove", prefix, error))
}
