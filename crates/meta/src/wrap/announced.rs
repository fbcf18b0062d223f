//! An engine whose commits are guarded by the announcement of a tool that has the volume for itself.

use std::sync::Arc;

use crate::engine::{Changes, Engine, EngineError, Outcome};
use crate::maintenance::Maintenance;
use crate::record::{Facts, Page, Record, Scan, Settings, Want};
use crate::txn::Txn;

/// Commits only while a [`Maintenance`] is announced. Once others have ended or replaced it, each commit fails and changes
/// nothing, so a tool that was taken for dead does not work beside mounts.
#[derive(Debug)]
pub struct Announced {
    inner: Arc<dyn Engine>,
    maintenance: Maintenance,
}

impl Announced {
    pub fn new(inner: Arc<dyn Engine>, maintenance: Maintenance) -> Self {
        Announced { inner, maintenance }
    }

    /// Looks whether the tool is still announced, for work that is no commit.
    ///
    /// # Errors
    /// It is not; those of the database.
    pub fn check(&self) -> Result<(), EngineError> {
        match self.inner.read(&[Want::Settings])?.records.first() {
            Some(Record::Settings(settings)) if self.is_announced(settings) => Ok(()),
            _ => Err(self.lost()),
        }
    }

    fn is_announced(&self, settings: &Settings) -> bool {
        Maintenance::announced_in(settings).as_ref() == Some(&self.maintenance)
    }

    fn lost(&self) -> EngineError {
        EngineError::permanent(format!(
            "the volume is no longer reserved for '{}': its maintenance was ended by another command, so it stops",
            self.maintenance.tool
        ))
    }
}

impl Engine for Announced {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        self.inner.read(wants)
    }

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
            Outcome::Conflict(facts) => facts
                .records
                .iter()
                .any(|record| matches!(record, Record::Settings(settings) if !self.is_announced(settings))),
        };
        match outcomes.iter().any(is_lost) {
            // Without one that was committed, because all of them are guarded alike. A tool commits one at a time.
            true if outcomes.iter().all(is_lost) => Err(self.lost()),
            true => Err(EngineError::indeterminate(self.lost().message)),
            false => Ok(outcomes),
        }
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.inner.scan(scan)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.inner.sync()
    }

    /// Is looked at before, and not guarded: the announcement is to be final ([`FinalMaintenance`](crate::FinalMaintenance)).
    fn wipe(&self) -> Result<(), EngineError> {
        self.check()?;
        self.inner.wipe()
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        self.inner.watch()
    }
}
