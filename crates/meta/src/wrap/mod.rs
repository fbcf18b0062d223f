//! Wrappers: engines that pass each request on to another engine. So batching, counting, faults and the check of
//! exclusive tools work the same on every engine, and no operation contains them.

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

/// A wrapper owns its inner engine. Through an `Arc`, the caller can also use that engine directly.
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
