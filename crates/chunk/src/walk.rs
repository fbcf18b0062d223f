//! Everything that a store holds: for fsck, and to remove a volume.
//!
//! Keys have two levels of directories with a bounded number of entries each, so that a walk holds one level of names and
//! not the whole listing.

use std::time::SystemTime;

use types::SliceId;

use crate::ChunkError;
use crate::block::parse_name;
use crate::store::{BlockStore, Inner, store_error};

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
        walk(&self.inner, ROOT, &mut |_, key| {
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
        list(&self.inner, ROOT).map(|names| names.is_empty())
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
        self.remove_blocks(progress)?;
        self.remove_marker()
    }

    /// Removes all blocks. `progress` is called with the number of objects removed so far. It can be called again after
    /// an error.
    ///
    /// # Errors
    /// [`ChunkError::Store`].
    pub fn remove_blocks(&self, progress: &mut dyn FnMut(u64)) -> Result<(), ChunkError> {
        self.inner.forget_all();
        let mut removed = 0;
        walk(&self.inner, ROOT, &mut |inner, key| {
            inner.delete_object(key)?;
            removed += 1;
            progress(removed);
            Ok(())
        })?;
        remove_directories(&self.inner, ROOT)
    }
}

type Visit<'a> = &'a mut dyn FnMut(&Inner, &str) -> Result<(), ChunkError>;

/// Calls `visit` with the key of every object below `prefix`.
fn walk(inner: &Inner, prefix: &str, visit: Visit<'_>) -> Result<(), ChunkError> {
    for name in list(inner, prefix)? {
        let path = format!("{prefix}{name}");
        if name.ends_with('/') {
            walk(inner, &path, visit)?;
        } else {
            visit(inner, &path)?;
        }
    }
    Ok(())
}

fn remove_directories(inner: &Inner, prefix: &str) -> Result<(), ChunkError> {
    for name in list(inner, prefix)?.iter().filter(|name| name.ends_with('/')) {
        remove_directories(inner, &format!("{prefix}{name}"))?;
    }
    inner.backend.remove_directory(prefix).map_err(|refusal| store_error("remove", prefix, refusal))
}

fn list(inner: &Inner, prefix: &str) -> Result<Vec<String>, ChunkError> {
    inner.backend.list(prefix).map_err(|refusal| store_error("list", prefix, refusal))
}
