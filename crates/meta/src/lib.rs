//! Metadata: records, transactions of guards and effects, the POSIX operations as pure plans over them, and
//! the one loop that runs a plan against an engine.

mod cache;
mod change;
mod charge;
pub mod check;
mod climb;
mod credential_source;
mod doubt;
mod driver;
mod engine;
mod fence;
mod groups;
mod listing;
mod lock;
mod maintenance;
mod mem;
pub mod ops;
mod order;
mod record;
mod results;
mod settings;
mod terms;
mod txn;
mod view;
mod volume;
mod wrap;

pub use change::{Change, Invalidation};
pub use credential_source::CredentialSource;
pub use doubt::Doubt;
pub use driver::{Authority, Ctx, Failure, KernelRevisions, Meta, Op, Plan};
pub use engine::{Changes, Engine, EngineError, ErrorKind, Outcome};
pub use groups::{ahead_of_room, conflict_free_groups, most_added};
pub use listing::{Generation, ListedEntry, Listing, WholeListing};
pub use lock::{Lock, LockKind, LockOwner};
pub use maintenance::{
    BeginMaintenance, BeginSession, EndMaintenance, FinalMaintenance, GetMaintenance, Maintenance,
};
pub use mem::MemEngine;
pub use order::Order;
pub use record::{
    Beside, Counter, Dirent, Garbage, Inode, LockWait, Page, Process, Record, RecordKey, Scan, Seq, Session,
    Settings, Snapshot, Usage, Xattrs, blocks_of, xattr_blocks,
};
pub use results::Results;
pub use txn::{Access, Effect, Guard, Txn};
pub use view::{PlanStop, View};
pub use volume::{AclKind, Configure, DIR_BYTES, FORMAT_VERSION, Volume, VolumeError};
pub use wrap::{Announced, Batching, Counting, Counts, Fault, FaultRates, Faulty};
