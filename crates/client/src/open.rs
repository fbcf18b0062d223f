//! How a client opens a volume, and changes of records that need no session.

use std::sync::Arc;

use meta::{Counter, Effect, Engine, EngineError, Record, RecordKey, Session, Volume, VolumeError};
use ops::{Authority, Housekeeping, Lease};
use types::{SessionId, SliceId};

use crate::driver::{Failure, Meta};

impl Meta {
    /// Opens a volume for reading and for work that needs no session.
    ///
    /// # Errors
    /// Those of [`Volume::load`].
    pub fn open(engine: Arc<dyn Engine>, cache_records: usize) -> Result<Meta, VolumeError> {
        let volume = Volume::load(&*engine)?;
        // Operation ids contain the session number, so even an unregistered client needs a number of its own.
        let visitor = Meta::new(engine.clone(), volume.clone(), random_session(), 1);
        let id =
            visitor.run(&Lease { counter: Counter::Session, count: 1 }, &Authority::Kernel { told: None })?;
        Ok(Meta::new(engine, volume, SessionId(id), cache_records))
    }

    /// Creates or replaces the session record of any client. For this client's own session, see
    /// [`Meta::begin_session`].
    ///
    /// # Errors
    /// Those of the database.
    pub fn put_session(&self, session: Session) -> Result<(), Failure> {
        self.run(&Housekeeping(vec![Effect::PutSession(session)]), &Authority::Kernel { told: None })
    }

    /// Removes a session's record.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_session(&self, session: SessionId) -> Result<(), Failure> {
        self.run(&Housekeeping(vec![Effect::DropSession { session }]), &Authority::Kernel { told: None })
    }

    /// Removes slices from the garbage after their blocks were deleted, in one commit.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_garbage(&self, slices: &[SliceId]) -> Result<(), Failure> {
        let effects = slices.iter().map(|&slice| Effect::DropGarbage { slice }).collect();
        self.run(&Housekeeping(effects), &Authority::Kernel { told: None })
    }

    /// The next unused number of a counter, as stored in the database.
    ///
    /// # Errors
    /// Those of the database.
    pub fn read_counter(&self, counter: Counter) -> Result<u64, Failure> {
        let snapshot = self.retry(|| self.engine().read(&[RecordKey::Counter(counter)]))?;
        match snapshot.records.first() {
            Some(Record::Counter(_, value)) => Ok(*value),
            _ => Err(EngineError::permanent("the engine did not return the counter").into()),
        }
    }

    /// Reserves `count` numbers that no client had before, and returns the first.
    ///
    /// # Errors
    /// Those of the database.
    pub fn lease(&self, counter: Counter, count: u64) -> Result<u64, Failure> {
        self.run(&Lease { counter, count }, &Authority::Kernel { told: None })
    }
}

/// A random session number that is not leased; its highest bit is set. It must not be derived from the time,
/// because two clients that open a volume at the same moment would then share a session number and so
/// operation ids.
pub(crate) fn random_session() -> SessionId {
    SessionId(1 << 63 | host::random())
}
