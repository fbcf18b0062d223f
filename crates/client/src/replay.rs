//! Commits what mounts of this machine had answered when their processes ended.
//!
//! Each journal is replayed by a client that continues the session of the process that has ended: the journal is its
//! queue. The transactions keep their ids and the guards of their terms, so the database recognizes those that it has, and
//! rejects all once the session is removed. A replay that is interrupted is continued by the next one.

use std::sync::Arc;
use std::time::Duration;

use host::Instant;
use journal::{Abandoned, Journal, Journals, Unfinished, Unusable};
use meta::{EngineError, Record, RecordKey, Session};
use types::Time;

use crate::driver::Meta;
use crate::failure::Failure;
use crate::held::{MakeDurable, Queued};
use crate::ticket::{OpenTerm, Ticket};

/// A replay takes a few seconds at most. Its client reads nothing from its cache.
const VALID_FOR: Duration = Duration::from_secs(60);

impl Meta {
    /// Commits what is in the journals of this volume whose processes have ended, and removes their sessions. Returns
    /// whether a session was removed.
    ///
    /// # Errors
    /// [`Failure::Engine`]: a journal cannot be read, or is from another version of limen; errors of the database. The
    /// journals that were not replayed remain.
    pub fn replay(&self, journals: &dyn Journals, make_durable: &MakeDurable) -> Result<bool, Failure> {
        let unreadable =
            |error| EngineError::permanent(format!("cannot read the journals of mounts: {error}"));
        let found = journals.abandoned(&self.volume().uuid).map_err(unreadable)?;
        let mut is_any = false;
        for abandoned in found {
            is_any |= self.replay_one(abandoned, make_durable)?;
        }
        Ok(is_any)
    }

    fn replay_one(&self, abandoned: Abandoned, make_durable: &MakeDurable) -> Result<bool, Failure> {
        let Abandoned { bytes, mut storage } = abandoned;
        let unfinished = match journal::read(&bytes) {
            Ok(unfinished) => unfinished,
            Err(Unusable::Empty) => {
                if let Err(error) = storage.remove() {
                    tracing::warn!(%error, journal = ?storage, "cannot remove a journal");
                }
                return Ok(false);
            }
            Err(Unusable::OtherFormat(format)) => {
                let message = format!(
                    "the journal of a mount that was killed has format {format}, and this version of limen reads format {}: mount the volume once with the version that wrote it ({storage:?})",
                    journal::FORMAT
                );
                return Err(EngineError::permanent(message).into());
            }
        };
        let (changes, id) = (unfinished.changes(), unfinished.header.session);
        let is_same_boot = unfinished.header.boot_id == host::boot_id();
        let record = self.session_record(&unfinished)?;
        if record.is_some() && !is_same_boot {
            // Parts of the journal may have been lost with the machine. That the boot differs does not prove that the
            // session has ended, because machines may share the directory.
            return Ok(false);
        }
        let journal = Journal::resume(storage, &unfinished.header, unfinished.len).map_err(|error| {
            EngineError::permanent(format!("cannot write to the journal of a mount: {error}"))
        })?;
        let began = Instant::now();
        let replayed = match record {
            None => {
                journal.remove();
                Err(Failure::Fenced(id))
            }
            Some(record) => self.continue_session(record, unfinished, journal, make_durable),
        };
        match replayed {
            Ok(()) if changes > 0 => tracing::warn!(
                session = %id, changes, time = ?began.elapsed(),
                "committed the changes that a mount of this machine had answered before its process ended"
            ),
            Ok(()) => {}
            Err(Failure::Fenced(_)) if changes > 0 => tracing::error!(
                session = %id, changes, is_same_boot,
                "changes that a mount of this machine had answered before its process ended are lost, because its session was removed, or the machine has restarted since"
            ),
            Err(Failure::Fenced(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// The record of the journal's session; `None` if the session was removed.
    fn session_record(&self, unfinished: &Unfinished) -> Result<Option<Session>, Failure> {
        let header = &unfinished.header;
        let snapshot = self.retry(|| self.engine.read(&[RecordKey::Session(header.session)]))?;
        Ok(snapshot.records.into_iter().find_map(|record| match record {
            Record::Session(_, session) => session.filter(|session| session.since == header.since),
            _ => None,
        }))
    }

    /// Commits the queue of a session whose process has ended, and removes the session.
    fn continue_session(
        &self,
        record: Session,
        unfinished: Unfinished,
        journal: Journal,
        make_durable: &MakeDurable,
    ) -> Result<(), Failure> {
        let id = record.id;
        let client = Meta::new(Arc::clone(&self.engine), self.volume().clone(), id, 1);
        client.set_retry_timeout(self.retry_timeout());
        let _ = client.held.make_durable.set(Arc::clone(make_durable));
        // Others do not remove the session meanwhile.
        client.renew_session(Session { heartbeat: Time::now(), ..record }, VALID_FOR)?;
        let mut state = host::lock(&client.held.state);
        state.journal = Some(journal);
        state.queued = unfinished.queue.len() as u64;
        state.queue = unfinished
            .queue
            .into_iter()
            .map(|(txn, is_optional)| {
                let ticket = Ticket { id: txn.op_id, term: OpenTerm::new(id, txn.op_id.term()) };
                Queued { txn, _ticket: ticket, is_optional }
            })
            .collect();
        if !unfinished.sent.is_empty() {
            let sent = state.group_of(&unfinished.sent).ok_or_else(|| {
                EngineError::permanent("the journal of a mount contradicts itself, so it is left as it is")
            })?;
            *host::lock(&client.held.sending) = Some(sent);
        }
        client.held.note(&state);
        drop(state);
        if let Err(failure) = client.settle_held() {
            if matches!(failure, Failure::Fenced(_)) {
                client.drop_held();
            }
            return Err(failure);
        }
        client.drop_session(id)
    }
}
