//! The contract between a client and a metadata engine: records, and transactions of guards and effects.
//!
//! An engine implements [`Engine`] and depends on this crate alone. It knows no operation, and chooses no errno.
//! [`MemEngine`] is the executable specification. The wrappers around engines ([`Batching`], [`Counting`],
//! [`Faulty`], [`Announced`]) are here because they know no more than the contract.

mod change;
mod engine;
mod footprint;
mod groups;
mod lock;
mod maintenance;
mod mem;
mod order;
mod record;
mod results;
mod txn;
mod volume;
mod wrap;

pub use change::{Change, Invalidation};
pub use engine::{Changes, Engine, EngineError, ErrorKind, Outcome};
pub use footprint::{Footprint, Part};
pub use groups::{ahead_of_room, conflict_free_groups, most_added};
pub use lock::{Lock, LockKind, LockOwner};
pub use maintenance::Maintenance;
pub use mem::MemEngine;
pub use order::{LOST_FOR, Order};
pub use record::{
    Beside, Counter, Dirent, Garbage, Inode, LockWait, Page, Process, Record, RecordKey, Scan, Seq, Session,
    Settings, Snapshot, Usage, Xattrs, blocks_of, xattr_blocks,
};
pub use results::Results;
pub use txn::{Access, Effect, Guard, Txn};
pub use volume::{AclKind, DEFAULT_INLINE_BYTES, DIR_BYTES, FORMAT_VERSION, Volume, VolumeError};
pub use wrap::{Announced, Batching, Counting, Counts, Fault, FaultRates, Faulty};
