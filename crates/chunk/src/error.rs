//! What can go wrong between a slice and its blocks, and the errno that a program sees for it.

use types::{Errno, SliceId};

use crate::block::BlockFault;

/// Every way in which this crate fails. [`ChunkError::errno`] is the only table from here to errno(3).
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// A block that a row names is not in the store.
    #[error("block {block} of slice {slice} is missing: no object {key}")]
    Missing { slice: SliceId, block: u32, key: String },
    /// An object ends before its block does.
    #[error(
        "block {block} of slice {slice} is cut short: object {key} has {found_bytes} of {wanted_bytes} bytes asked for"
    )]
    Short { slice: SliceId, block: u32, key: String, found_bytes: u64, wanted_bytes: u64 },
    /// An object does not match its checksums.
    #[error("block {block} of slice {slice} is corrupt: of object {key}, {fault}")]
    Corrupt { slice: SliceId, block: u32, key: String, fault: BlockFault },
    /// A row shows bytes that its source does not have.
    #[error("a row shows {len} bytes from {offset} on of a source of {size} bytes")]
    Row { offset: u64, len: u64, size: u64 },
    /// The store refused a request, or did not answer.
    #[error("cannot {action} {key}: {message}")]
    Store { action: &'static str, key: String, errno: Errno, message: String },
    /// The storage settings name no store that this build has.
    #[error("{0}")]
    Config(String),
    /// A key or passphrase cannot be had, or is of the wrong kind. The message never holds any of it.
    #[error("{0}")]
    Key(String),
    /// The key or passphrase is not the one that the volume was made with.
    #[error("wrong key or passphrase: the volume was encrypted with another")]
    WrongKey,
    /// No number for a new slice could be had.
    #[error("cannot allocate a slice number: {0}")]
    SliceId(Errno),
    /// An upload was given up, because the store was closed under it.
    #[error("an upload was given up")]
    Aborted,
}

impl ChunkError {
    /// The errno for the program. Damage is EIO; a store without room is ENOSPC or EDQUOT; what else a store answers is
    /// passed on only where programs can act on it.
    pub fn errno(&self) -> Errno {
        match self {
            ChunkError::Missing { .. }
            | ChunkError::Short { .. }
            | ChunkError::Corrupt { .. }
            | ChunkError::Row { .. }
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
