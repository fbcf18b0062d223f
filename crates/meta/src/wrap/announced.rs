//! An engine whose commits are guarded by the announcement of a tool with exclusive use of the volume.

use std::sync::Arc;

use crate::engine::{Engine, EngineError, Outcome};
use crate::maintenance::Maintenance;
use crate::record::{Record, RecordKey, Settings};
use crate::txn::Txn;

/// Commits only while its [`Maintenance`] is announced. If another command has ended or replaced the
/// announcement, no transaction is committed any more. So a tool that was considered dead cannot change the
/// volume while mounts use it.
#[derive(Debug)]
pub struct Announced {
    inner: Arc<dyn Engine>,
    maintenance: Maintenance,
}

impl Announced {
    pub fn new(inner: Arc<dyn Engine>, maintenance: Maintenance) -> Self {
        Announced { inner, maintenance }
    }

    /// Checks that the tool is still announced, before work that is not a commit.
    ///
    /// # Errors
    /// The tool is no longer announced, or the database failed.
    pub fn check(&self) -> Result<(), EngineError> {
        match self.inner.read(&[RecordKey::Settings])?.records.first() {
            Some(Record::Settings(settings)) if self.is_announced(settings) => Ok(()),
            _ => Err(self.lost()),
        }
    }

    fn is_announced(&self, settings: &Settings) -> bool {
        Maintenance::announced_in(settings).as_ref() == Some(&self.maintenance)
    }

    fn lost(&self) -> EngineError {
        EngineError::permanent(format!(
            "the volume is no longer reserved for '{0}': another command has ended its maintenance, so '{0}' stops",
            self.maintenance.tool
        ))
    }
}

impl Engine for Announced {
    crate::pass_on! { (.inner) read scan open_snapshot sync remove watch is_embedded set_reserve_open }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let guard = self.maintenance.guard();
        let mut guarded = txns.to_vec();
        for txn in &mut guarded {
            if !txn.guards.contains(&guard) {
                txn.guards.push(guard.clone());
            }
        }
        let outcomes = self.inner.commit(&guarded)?;
        let is_lost = |outcome: &Outcome| match outcome {
            Outcome::Committed { .. } => false,
            Outcome::Conflict(snapshot) => snapshot
                .records
                .iter()
                .any(|record| matches!(record, Record::Settings(settings) if !self.is_announced(settings))),
        };
        match outcomes.iter().any(is_lost) {
            // If the guard failed for only some transactions, others may have been committed, so the error is
            // indeterminate. This is rare, because tools commit one transaction at a time.
            true if outcomes.iter().all(is_lost) => Err(self.lost()),
            true => Err(EngineError::indeterminate(self.lost().message)),
            false => Ok(outcomes),
        }
    }

    /// The announcement is checked before the wipe. The wipe itself carries no guard, so the announcement
    /// must be final ([`Maintenance::is_final`]).
    fn wipe(&self) -> Result<(), EngineError> {
        self.check()?;
        self.inner.wipe()
    }
}
