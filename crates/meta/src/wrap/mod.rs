//! Wrappers around an engine, for everything that is not part of an operation.

mod announced;
mod batching;
mod counting;
mod faulty;

pub use announced::Announced;
pub use batching::Batching;
pub use counting::{Counting, Counts};
pub use faulty::{Fault, FaultRates, Faulty};

use std::sync::Arc;

use crate::engine::{Changes, Engine, EngineError, Outcome};
use crate::record::{Page, RecordKey, Scan, Snapshot};
use crate::txn::Txn;

/// Lets a shared engine be wrapped and still be used from outside the wrapper.
impl<E: Engine + ?Sized> Engine for Arc<E> {
    fn read(&self, wants: &[RecordKey]) -> Result<Snapshot, EngineError> {
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

    fn remove(&self) -> Result<(), EngineError> {
        (**self).remove()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        (**self).watch()
    }
}
