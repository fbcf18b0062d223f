//! The bytes of files: slices cut into blocks, the object store that keeps them, what a read resolves to, and the
//! bounded buffers of data not yet written.
//!
//! The interface is synchronous; it knows nothing of metadata. Whoever writes puts the blocks first ([`BlockStore`],
//! [`WriteBuffer::stage`]) and commits the rows afterwards, so that no row ever names a block that is not stored.
//!
//! Lock order: a [`WriteBuffer`] is guarded by its owner; below it, one upload's state, then nothing. No lock is held
//! while the store is asked.

#[cfg(feature = "remote")]
mod address;
mod backend;
mod block;
mod budget;
mod buffer;
mod codec;
mod dir;
mod disk_cache;
mod error;
mod extent;
mod faults;
mod layout;
mod lru;
mod marker;
#[cfg(any(feature = "gcs", feature = "azblob", feature = "webdav", feature = "sftp"))]
mod others;
mod packed;
#[cfg(feature = "remote")]
mod patience;
mod pool;
mod read;
mod remote;
mod resolve;
#[cfg(feature = "s3")]
mod s3;
mod secret;
mod services;
mod staging;
mod store;
mod upload;
mod uploader;
mod walk;

pub use block::{BLOCK_FORMAT, BlockFault, PAGE_BYTES, object_key};
pub use budget::MemoryBudget;
pub use buffer::{NewSliceId, Staged, WriteBuffer, WriteContext, Written};
pub use codec::{Cipher, Compression};
pub use disk_cache::DiskCacheOptions;
pub use error::ChunkError;
pub use faults::{Fault, Faults, StoreCall};
pub use marker::MARKER;
pub use resolve::{Piece, PieceSource, resolve};
pub use secret::{Encryption, EncryptionSettings, Secret};
pub use services::STORAGES;
pub use staging::{HeldStaging, Pending, WritebackOptions, count_staged};
pub use store::{BlockStore, DEFAULT_CACHE_BYTES, Requests, StorageConfig, StoreOptions};
pub use walk::StoredBlock;
