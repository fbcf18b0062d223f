//! The errors of reading and writing slices, and the errno that a program sees for each.

use types::{Errno, SliceId};

use crate::backend::StoreError;
use crate::format::BlockFault;

/// All errors of this crate. [`ChunkError::errno`] is the only table that maps them to errno(3).
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// A block that a row names is not in the store.
    #[error("block {block} of slice {slice} is missing: no object {key}")]
    Missing { slice: SliceId, block: u32, key: String },
    /// An object ends before its block does.
    #[error(
        "block {block} of slice {slice} is cut short: object {key} has {found_bytes} of {wanted_bytes} requested bytes"
    )]
    Short { slice: SliceId, block: u32, key: String, found_bytes: u64, wanted_bytes: u64 },
    /// An object does not match its checksums.
    #[error("block {block} of slice {slice} is corrupt: object {key}: {fault}")]
    Corrupt { slice: SliceId, block: u32, key: String, fault: BlockFault },
    /// A part of a backup of the metadata is missing or damaged.
    #[error("the backup is damaged: object {key}: {what}")]
    Backup { key: String, what: String },
    /// A row refers to bytes that its source does not have.
    #[error("a row refers to {len} bytes at offset {offset} of a source of {size} bytes")]
    Row { offset: u64, len: u64, size: u64 },
    /// A request to the store failed or timed out.
    #[error("cannot {action} {key}: {message}")]
    Store { action: &'static str, key: String, errno: Errno, message: String },
    /// The storage settings are invalid, this build does not have the kind of store, or a thread cannot be
    /// started.
    #[error("{0}")]
    Config(String),
    /// A key or passphrase is not available, or is of the wrong kind. The message never contains any part of
    /// it.
    #[error("{0}")]
    Key(String),
    /// The key or passphrase is not the one with which the volume was created.
    #[error("wrong key or passphrase: the volume was encrypted with a different one")]
    WrongKey,
    /// The number of a new slice could not be allocated.
    #[error("cannot allocate a slice number: {0}")]
    SliceId(Errno),
    /// An upload ended without a result: the store was closed, or the thread of the upload panicked.
    #[error("an upload ended without a result, because the store was closed or a thread panicked")]
    Aborted,
}

impl ChunkError {
    /// The errno for the program. Damage is EIO; a full store is ENOSPC or EDQUOT; other errors of the store
    /// are passed on only if programs can act on them.
    pub fn errno(&self) -> Errno {
        match self {
            ChunkError::Missing { .. }
            | ChunkError::Short { .. }
            | ChunkError::Corrupt { .. }
            | ChunkError::Row { .. }
            | ChunkError::Backup { .. }
            | ChunkError::Aborted => Errno::EIO,
            ChunkError::Store { errno, .. } => match *errno {
                Errno::ENOSPC
                | Errno::EDQUOT
                | Errno::EROFS
                | Errno::ETIMEDOUT
                | Errno::ENOMEM
                | Errno::EFBIG => *errno,
                _ => Errno::EIO,
            },
            ChunkError::Config(_) | ChunkError::Key(_) => Errno::EINVAL,
            ChunkError::WrongKey => Errno::EACCES,
            ChunkError::SliceId(errno) => *errno,
        }
    }
}

impl From<ChunkError> for Errno {
    fn from(error: ChunkError) -> Errno {
        error.errno()
    }
}

/// The error of an object that may be intact, but cannot be decompressed for lack of memory.
pub(crate) fn no_memory(key: &str) -> ChunkError {
    store_error("decompress", key, StoreError::Other(Errno::ENOMEM, Errno::ENOMEM.to_string()))
}

/// The error of a request to the store.
pub(crate) fn store_error(action: &'static str, key: &str, error: StoreError) -> ChunkError {
    let (errno, message) = match error {
        StoreError::NotFound => (Errno::ENOENT, "not found".to_owned()),
        StoreError::Other(errno, message) => (errno, message),
    };
    ChunkError::Store { action, key: key.to_owned(), errno, message }
}
