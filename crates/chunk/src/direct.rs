//! The store itself, without blocks that are staged on this machine: its markers, and whether it has blocks.

use std::fmt;

use crate::ChunkError;
use crate::backend::{Backend, Bucket, StoreError, buckets_of};
use crate::error::store_error;
use crate::parallel::on_each;

/// The key of the marker. The marker is never compressed or encrypted, and is not a block.
pub const MARKER: &str = "limen-volume";

/// At most this many bytes of a marker are read. A marker is one line of text.
const MAX_MARKER_BYTES: usize = 4096;

/// The prefix of the keys of blocks.
pub(crate) const ROOT: &str = "chunks/";

/// The prefix of the keys of backups of the metadata.
pub(crate) const BACKUPS: &str = "backups/";

/// The store itself, without blocks that are staged on this machine.
#[derive(Clone, Copy, Debug)]
pub struct DirectStore<'a>(pub(crate) &'a dyn Backend);

/// A bucket of a store, and its marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketMarker {
    /// The address of the bucket; empty if the store is one bucket.
    pub address: String,
    /// The text of the marker; `None` if the bucket has no marker.
    pub text: Option<Vec<u8>>,
}

impl<'a> DirectStore<'a> {
    /// The markers of all buckets, in the order of the store's address.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if a marker cannot be read.
    pub fn markers(&self) -> Result<Vec<BucketMarker>, ChunkError> {
        let read = |_, store: &dyn Backend| match store.get_whole(MARKER, MAX_MARKER_BYTES) {
            Ok(text) => Ok(Some(text.to_vec())),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(store_error("read", MARKER, error)),
        };
        let buckets = self.buckets();
        let texts = on_each(&buckets, read).into_iter().zip(&buckets);
        texts
            .map(|(text, bucket)| Ok(BucketMarker { address: bucket.address.to_owned(), text: text? }))
            .collect()
    }

    /// Whether the store has no block and no backup. A new volume must not share a store with another one,
    /// because both would give the same numbers to different slices.
    ///
    /// # Errors
    /// [`ChunkError::Store`] if the store cannot be listed.
    pub fn is_empty(&self) -> Result<bool, ChunkError> {
        Ok(list(self.0, ROOT)?.is_empty() && list(self.0, BACKUPS)?.is_empty())
    }

    pub(crate) fn buckets(&self) -> Vec<Bucket<'a>> {
        buckets_of(self.0)
    }
}

/// Decides whether a store may be used; if not, says why.
pub struct StoreCheck(Box<DynCheck>);

type DynCheck = dyn Fn(&DirectStore<'_>) -> Result<(), String> + Send + Sync;

impl StoreCheck {
    /// `check` runs on any thread that needs the store.
    pub fn new(check: impl Fn(&DirectStore<'_>) -> Result<(), String> + Send + Sync + 'static) -> Self {
        StoreCheck(Box::new(check))
    }

    pub(crate) fn run(&self, store: &DirectStore<'_>) -> Result<(), String> {
        (self.0)(store)
    }
}

impl fmt::Debug for StoreCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreCheck").finish_non_exhaustive()
    }
}

pub(crate) fn list(backend: &dyn Backend, prefix: &str) -> Result<Vec<String>, ChunkError> {
    backend.list(prefix).map_err(|error| store_error("list", prefix, error))
}
