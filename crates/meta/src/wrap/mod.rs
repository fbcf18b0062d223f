//! Wrappers around an engine: what is not part of any operation stands around the boundary, never inside.

mod announced;
mod batching;
mod counting;
mod faulty;

pub use announced::Announced;
pub use batching::Batching;
pub use counting::{Counting, Counts};
pub use faulty::{Fault, Faulty, Odds};

use std::sync::Arc;

use crate::engine::{Changes, Engine, EngineError, Outcome};
use crate::record::{Facts, Page, Scan, Want};
use crate::txn::Txn;

/// So that a shared engine can be wrapped, and looked into from outside the wrapper.
impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        (**self).read(wants)
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        (**self).commit(txns)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        (**self).scan(scan)
    }

    fn sync(&self) -> Result<(), EngineError> {
        (**self).sync()
    }

    fn wipe(&self) -> Result<(), EngineError> {
        (**self).wipe()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        (**self).watch()
    }
}
