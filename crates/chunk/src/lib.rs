//! File data: slices and the blocks that they are cut into, the object store that holds the blocks, the
//! search for the slice that holds each byte of a read, and bounded buffers for dirty data.
//!
//! The interface is synchronous and knows nothing of metadata. The metadata has *rows* ([`types::Slice`]):
//! each says which bytes of a slice are at which position of a file's chunk. A writer stores the blocks first
//! ([`BlockStore`], [`WriteBuffer::stage`]) and commits the rows afterwards, so that no row ever names a
//! block that is not stored.
//!
//! Lock order: first the lock by which the owner of a [`WriteBuffer`] protects it, then one lock of this
//! crate, then the lock of the free buffers in `pool.rs`. No lock of this crate is held during a request to
//! the store.

#[cfg(feature = "remote")]
mod address;
mod areas;
mod backend;
mod backups;
mod bare;
mod block;
mod budget;
mod buffer;
mod cipher;
mod codec;
mod dir;
mod direct;
mod disk_cache;
mod error;
mod extent;
mod faults;
mod format;
#[cfg(feature = "hdfs")]
mod hdfs;
mod kinds;
mod layout;
mod limited;
mod lru;
mod marker;
mod metered;
#[cfg(any(feature = "gcs", feature = "azblob", feature = "webdav", feature = "sftp"))]
mod others;
mod packed;
mod pages;
mod parallel;
mod pieces;
mod plain;
mod pool;
mod probe;
mod read;
mod remote;
mod resolve;
#[cfg(feature = "remote")]
mod retry;
#[cfg(feature = "s3")]
mod s3;
mod secret;
mod services;
mod sharded;
mod shards;
mod sharing;
mod staging;
mod store;
mod upload;
mod uploader;
mod walk;

pub use areas::Pending;
pub use backups::{BACKUP_PART_BYTES, BackupId, StoredBackup};
pub use bare::BareStore;
pub use block::object_key;
pub use budget::MemoryBudget;
pub use buffer::{NewSliceId, Staged, WriteBuffer, WriteContext, Written};
pub use cipher::Cipher;
pub use codec::Compression;
pub use direct::{BucketMarker, DirectStore, MARKER, StoreCheck};
pub use disk_cache::DiskCacheOptions;
pub use error::ChunkError;
pub use faults::{Fault, Faults, StoreCall};
pub use format::{BLOCK_FORMAT, BlockFault, PAGE_BYTES};
pub use kinds::{FILE, MEMORY, STORES, StoreKind};
pub use limited::TrafficLimits;
pub use lru::CacheUse;
pub use metered::{RequestMeter, StoreMeters};
pub use pieces::PieceReader;
pub use resolve::{Piece, PieceSource, resolve};
pub use secret::{Encryption, EncryptionSettings, Secret};
pub use services::StorageConfig;
pub use shards::{SHARDS, bucket_of, has_range};
pub use sharing::share_slices;
pub use staging::{HeldStaging, WritebackOptions, count_staged};
pub use store::{BlockStore, DEFAULT_CACHE_BYTES, Requests, StoreOptions};
pub use walk::StoredBlock;
