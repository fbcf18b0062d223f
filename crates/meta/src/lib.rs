//! Metadata: records, transactions of guards and effects, the operations of POSIX as pure plans over them, and the one
//! loop that drives a plan against an engine.

mod cache;
mod change;
pub mod check;
mod climb;
mod doubt;
mod driver;
mod engine;
mod fence;
mod listing;
mod lock;
mod maintenance;
mod mem;
pub mod ops;
mod order;
mod record;
mod results;
mod runs;
mod settings;
mod subject;
mod terms;
mod txn;
mod view;
mod volume;
mod weight;
mod wrap;

pub use change::{Change, Touched};
pub use doubt::Doubt;
pub use driver::{Ctx, Failure, KernelRevisions, Meta, Op, Plan, Vouch};
pub use engine::{Changes, Engine, EngineError, ErrorKind, Outcome};
pub use listing::{ListedEntry, Listing, Turn, WholeListing};
pub use lock::{Lock, LockKind, LockOwner};
pub use maintenance::{
    BeginMaintenance, BeginSession, EndMaintenance, FinalMaintenance, GetMaintenance, Maintenance,
};
pub use mem::MemEngine;
pub use order::Order;
pub use record::{
    Beside, Counter, Edge, Facts, Garbage, LockWait, Node, Page, Process, Record, Scan, Seq, Session,
    Settings, Usage, Want, Xattrs, blocks_of,
};
pub use results::Results;
pub use runs::{ahead_of_room, most_added, runs};
pub use subject::Subject;
pub use txn::{Access, Effect, Guard, Txn};
pub use view::{Stop, View};
pub use volume::{AclKind, Configure, DIR_BYTES, FORMAT_VERSION, Volume, VolumeError};
pub use wrap::{Announced, Batching, Counting, Counts, Fault, Faulty, Odds};
