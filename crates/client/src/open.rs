//! Opens a volume, reads its settings again, and makes small changes that need no session.

use std::sync::Arc;

use meta::{Counter, Effect, Engine, EngineError, Record, RecordKey, Volume, VolumeError};
use ops::{Housekeeping, Lease};
use types::{Errno, SessionId, SliceId};

use crate::driver::{BY_KERNEL, Meta};
use crate::failure::Failure;

impl Meta {
    /// Opens a volume. The client is not registered before [`Meta::begin_session`].
    ///
    /// # Errors
    /// Those of [`Volume::load`].
    pub fn open(engine: Arc<dyn Engine>, cache_records: usize) -> Result<Meta, VolumeError> {
        let volume = Volume::load(&*engine)?;
        // Operation ids contain the session number, so even an unregistered client needs a number of its own.
        let unregistered = Meta::new(engine.clone(), volume.clone(), random_session(), 1);
        let id = unregistered.run(&Lease { counter: Counter::Session, count: 1 }, &BY_KERNEL)?;
        Ok(Meta::new(engine, volume, SessionId(id), cache_records))
    }

    /// Reads the settings again, in one read, and uses them from now on if they changed. Returns whether new
    /// settings are in force.
    ///
    /// # Errors
    /// Those of the database; EIO if the settings are damaged or belong to another volume. The current
    /// settings then remain.
    pub fn refresh_settings(&self) -> Result<bool, Failure> {
        let found = match Volume::load(&**self.engine()) {
            Ok(found) => found,
            Err(VolumeError::Failed(error)) => return Err(error.into()),
            Err(error) => {
                tracing::error!(%error, "cannot read the volume's settings; the previous ones remain in force");
                return Err(Errno::EIO.into());
            }
        };
        if found == *self.volume() {
            return Ok(false);
        }
        if !found.is_same_volume(self.volume()) {
            if found.moves != self.volume().moves {
                tracing::error!(
                    bucket = found.bucket,
                    "the volume has moved to another object store; unmount it, and mount it again"
                );
            } else {
                tracing::error!(
                    uuid = found.uuid,
                    "the database holds another volume now; its settings are ignored"
                );
            }
            return Err(Errno::EIO.into());
        }
        if found.acl != self.volume().acl {
            tracing::warn!(
                "POSIX ACLs were turned on: files with an ACL are closed to all but their owners on this mount \
                 until it is unmounted and mounted again"
            );
        }
        let followed = self.settings.replace(found);
        match followed {
            true => tracing::info!("the volume's settings were changed"),
            false => tracing::warn!(
                "the settings changed too often for this mount to follow; remount to apply the change"
            ),
        }
        Ok(followed)
    }

    /// Removes a session's record. If it is this client's session, also removes the journal.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_session(&self, session: SessionId) -> Result<(), Failure> {
        self.run(&Housekeeping(vec![Effect::DropSession { session }]), &BY_KERNEL)?;
        if session == self.session() {
            self.end_journal(&mut host::lock(&self.held.state));
        }
        Ok(())
    }

    /// Removes slices from the garbage after their blocks were deleted, in one commit.
    ///
    /// # Errors
    /// Those of the database.
    pub fn drop_garbage(&self, slices: &[SliceId]) -> Result<(), Failure> {
        let effects = slices.iter().map(|&slice| Effect::DropGarbage { slice }).collect();
        self.run(&Housekeeping(effects), &BY_KERNEL)
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
        self.run(&Lease { counter, count }, &BY_KERNEL)
    }
}

/// A random session number. Its highest bit is set, so it is never one of the numbers that the volume leases.
/// It must not be derived from the time, because two clients that open a volume at the same moment would then
/// share a session number and so operation ids.
pub(crate) fn random_session() -> SessionId {
    SessionId(1 << 63 | host::random())
}
