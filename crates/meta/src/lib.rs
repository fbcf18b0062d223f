//! Metadata: records, transactions of guards and effects, the operations of POSIX as pure plans over them, and the one
//! loop that drives a plan against an engine.

mod engine;
mod mem;
mod record;
mod txn;

pub use engine::{Engine, EngineError, ErrorKind, Outcome};
pub use mem::MemEngine;
pub use record::{
    Counter, Edge, Facts, Garbage, Node, Page, Record, Scan, Seq, Session, Settings, Usage, Want, Xattrs,
    blocks_of,
};
pub use txn::{Access, Effect, Guard, Txn};
