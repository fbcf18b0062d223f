//! Wrappers: engines that pass each request on to another engine. So batching, counting, and the guard of a
//! tool's commits work with every engine, and no operation contains code for them.

mod announced;
mod batching;
mod counting;

pub use announced::Announced;
pub use batching::Batching;
pub use counting::{Counting, Counts, Measured};

use std::sync::Arc;

use crate::engine::Engine;

/// An `Arc` of an engine is an engine: a wrapper can own it while others use the same engine directly.
impl<E: Engine + ?Sized> Engine for Arc<E> {
    crate::pass_on! { (.as_ref()) read commit scan open_snapshot sync wipe remove watch is_embedded set_reserve_open }
}
