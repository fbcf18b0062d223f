//! Commits the changes that mounts of this machine had answered, but not committed, when their processes
//! ended.
//!
//! Each journal is replayed by a client that continues the session of the process that has ended: the journal
//! is its queue. The transactions keep their ids and the guards of their terms, so the database recognizes
//! those that it already has, and rejects all once the session is removed. On an embedded engine, the
//! transactions have no such guards, and the engine has forgotten the ids. There the client looks for the
//! marks of the transactions that were sent last ([`Sent::mark`]). A replay that is interrupted is continued
//! by the next one.

use std::sync::Arc;
use std::time::Duration;

use host::Instant;
use journal::{Abandoned, Journal, Journals, Unfinished, Unusable};
use meta::{EngineError, Guard, Outcome, Record, RecordKey, Session, Txn};
use types::{BootInstant, Errno, OpId, SessionId, Time};

use crate::driver::Meta;
use crate::failure::Failure;
use crate::group::{Queued, Sent, mark_of};
use crate::held::{MakeDurable, State};
use crate::open::random_session;
use crate::ticket::{OpenTerm, Ticket};

/// How long the session counts as valid for answers from memory. A replay gives no such answers.
const VALID_FOR: Duration = Duration::from_secs(60);

impl Meta {
    /// Commits the changes in the journals of this volume whose processes have ended, and removes their
    /// sessions. Returns whether any journal is finished: its session was removed, by this call or earlier.
    ///
    /// # Errors
    /// [`Failure::Engine`]: a journal cannot be read, or is from another version of limen; errors of the
    /// database. The journals that were not replayed remain.
    pub fn replay(&self, journals: &dyn Journals, make_durable: &MakeDurable) -> Result<bool, Failure> {
        let unreadable =
            |error| EngineError::permanent(format!("cannot read the journals of mounts: {error}"));
        let found = journals.abandoned(&self.volume().uuid).map_err(unreadable)?;
        let (mut is_any, mut first_error) = (false, None);
        for abandoned in found {
            let replayed = abandoned
                .map_err(|error| unreadable(error).into())
                .and_then(|abandoned| self.replay_one(abandoned, make_durable));
            // A journal that cannot be replayed must not keep the others from being replayed.
            match replayed {
                Ok(is_removed) => is_any |= is_removed,
                Err(error) => _ = first_error.get_or_insert(error),
            }
        }
        first_error.map_or(Ok(is_any), Err)
    }

    fn replay_one(&self, abandoned: Abandoned, make_durable: &MakeDurable) -> Result<bool, Failure> {
        let Abandoned { session, bytes, storage } = abandoned;
        let place = storage.place();
        let unfinished = match journal::read(&bytes) {
            Ok(unfinished) => unfinished,
            Err(Unusable::OtherFormat(format)) if self.session_of(session)?.is_some() => {
                let message = format!(
                    "{place}, the journal of a mount whose process has ended, has format {format}, and this version of limen reads format {}: mount the volume once with the version that wrote it, or give its changes up with limen fsck --repair --force",
                    journal::FORMAT
                );
                return Err(EngineError::permanent(message).into());
            }
            Err(Unusable::Empty) => {
                journal::remove(storage);
                return Ok(false);
            }
            // Nothing of it can be committed: it cannot be read, or its session was removed. But it may be
            // the only copy of changes that the mount had answered.
            Err(Unusable::Damaged) => {
                let why = "it is damaged, so changes that the mount had answered may be lost";
                journal::set_aside(storage, "damaged", why);
                return Ok(false);
            }
            Err(Unusable::OtherFormat(_)) => {
                let why = "another version of limen wrote it, and its session was removed, so changes that the mount had answered may be lost";
                journal::set_aside(storage, "lost", why);
                return Ok(false);
            }
        };
        if unfinished.header.loaded != self.volume().loaded {
            // The journal belongs to another volume with the same UUID, because one of the two was loaded
            // from a dump.
            return Ok(false);
        }
        if unfinished.is_damaged {
            tracing::error!(
                journal = place,
                at = unfinished.len,
                "the journal of a mount whose process has ended is damaged: changes after this position are lost"
            );
        }
        let (changes, id) = (unfinished.changes(), unfinished.header.session);
        let is_same_boot = unfinished.header.boot_id == host::boot_id();
        let record = self.session_record(&unfinished)?;
        if record.is_some() && !is_same_boot {
            // Parts of the journal may have been lost when the machine stopped. A different boot does not
            // prove that the session has ended, because several machines may share the directory of journals.
            return Ok(false);
        }
        let journal = Journal::resume(storage, &unfinished).map_err(|error| {
            EngineError::permanent(format!(
                "cannot write to {place}, the journal of a mount whose process has ended: {error}"
            ))
        })?;
        let began = Instant::now();
        let replayed = match record {
            None => {
                // If the machine has restarted, the changes were expected to be lost.
                self.end_lost(journal, if is_same_boot { changes } else { 0 });
                Err(Failure::Fenced(id))
            }
            Some(record) => self.continue_session(record, unfinished, journal, &place, make_durable),
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

    /// Ends a journal of which `changes` answered changes are lost: removes it, but keeps that of an embedded
    /// database under another name. There a session is not removed before all changes in its journal are
    /// committed, so the journal may belong to another copy of the database.
    fn end_lost(&self, journal: Journal, changes: usize) {
        match self.is_embedded() && changes > 0 {
            true => journal.set_aside("lost", "its changes do not fit this database"),
            false => journal.remove(),
        }
    }

    /// The record of the journal's session; `None` if the session was removed.
    fn session_record(&self, unfinished: &Unfinished) -> Result<Option<Session>, Failure> {
        let header = &unfinished.header;
        Ok(self.session_of(header.session)?.filter(|session| session.since == header.since))
    }

    /// The record of a session; `None` if it was removed.
    ///
    /// # Errors
    /// Those of the database.
    pub fn session_of(&self, id: SessionId) -> Result<Option<Session>, Failure> {
        let snapshot = self.retry(|| self.engine.read(&[RecordKey::Session(id)]))?;
        Ok(snapshot.records.into_iter().find_map(|record| match record {
            Record::Session(_, session) => session,
            _ => None,
        }))
    }

    /// Commits the queue of a session whose process has ended, and removes the session.
    fn continue_session(
        &self,
        record: Session,
        unfinished: Unfinished,
        journal: Journal,
        place: &str,
        make_durable: &MakeDurable,
    ) -> Result<(), Failure> {
        let id = record.id;
        let client = Meta::new(Arc::clone(&self.engine), self.volume().clone(), id, 1);
        client.set_retry_timeout(self.retry_timeout());
        let _ = client.held.make_durable.set(Arc::clone(make_durable));
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
        // If the queue is empty, the transactions that were sent last were never answered.
        if self.is_embedded() {
            client.drop_marked(&mut state, &unfinished.sent, &unfinished.last, place)?;
        } else if !unfinished.sent.is_empty() && !state.queue.is_empty() {
            let sent = Sent::by_counts(&state.queue, &unfinished.sent).ok_or_else(|| {
                let message = "the journal of a mount whose process has ended contradicts itself, so it is left as it is: mount the volume once with the version of limen that wrote it, or give its changes up with limen fsck --repair --force";
                EngineError::permanent(message)
            })?;
            // No other thread has this client, so the lock order (`held.rs`) does not matter.
            *host::lock(&client.held.sending) = Some(sent);
        }
        client.held.note(&state);
        drop(state);
        // The renewal keeps others from removing the session. It uses ids of another client, because the
        // process that has ended may have used the ids that `client` would use next. The database does
        // nothing for an id that it knows.
        let visitor = Meta::new(Arc::clone(&self.engine), self.volume().clone(), random_session(), 1);
        visitor.set_retry_timeout(self.retry_timeout());
        let began = BootInstant::now();
        visitor.renew_session(Session { heartbeat: Time::now(), ..record }, VALID_FOR)?;
        client.fence.set_valid_until(began + VALID_FOR);
        let mut settled = client.settle_held();
        if matches!(&settled, Err(Failure::Engine(error)) if error.errno == Errno::ENOSPC) {
            self.engine.set_reserve_open(true);
            settled = client.settle_held();
            self.engine.set_reserve_open(false);
        }
        if let Err(failure) = settled {
            if matches!(failure, Failure::Fenced(_)) {
                let journal = host::lock(&client.held.state).journal.take();
                let (changes, _) = client.drop_held();
                journal.into_iter().for_each(|journal| self.end_lost(journal, changes));
            }
            return Err(failure);
        }
        // The changes must be durable before the session and the journal are removed.
        self.retry(|| self.engine.sync())?;
        visitor.drop_session(id)?;
        client.end_journal(&mut host::lock(&client.held.state));
        Ok(())
    }

    /// Drops those transactions of the last request that are marked as committed ([`Sent::mark`]), and those
    /// before them. The others were not committed, so it does not matter how they are merged. `sent` says how
    /// many queued transactions each transaction of the request was made from. Each transaction has the id of
    /// the first of them.
    ///
    /// # Errors
    /// The database has neither one of these nor one of those that were committed before (`last`). So it is
    /// not the database of the journal, but an older copy of it. Errors of the database.
    fn drop_marked(
        &self,
        state: &mut State,
        sent: &[u32],
        last: &[OpId],
        place: &str,
    ) -> Result<(), Failure> {
        let look = |op_id: OpId| {
            let guards = vec![Guard::Term { session: op_id.session(), term: mark_of(op_id) }];
            Txn { op_id, guards, effects: Vec::new() }
        };
        let (mut ends, mut looks, mut begin) = (Vec::new(), Vec::new(), 0);
        for count in sent {
            let Some(first) = state.queue.get(begin) else { break };
            looks.push(look(first.txn.op_id));
            begin += *count as usize;
            ends.push(begin.min(state.queue.len()));
        }
        looks.extend(last.iter().map(|op_id| look(*op_id)));
        let outcomes = self.retry(|| self.engine.commit(&looks))?;
        let is_committed = |outcome: &Outcome| matches!(outcome, Outcome::Committed { .. });
        if !last.is_empty() && !state.queue.is_empty() && !outcomes.iter().any(is_committed) {
            return Err(EngineError::permanent(format!(
                "the database lacks changes that were committed before those in {place}, the journal of a mount whose process has ended: it seems to be an older copy, so the journal is left as it is: put the last database back, or give the changes in the journal up with limen fsck --repair --force"
            ))
            .into());
        }
        let sent = outcomes.get(..ends.len()).unwrap_or_default();
        if let Some(end) = sent.iter().rposition(is_committed).and_then(|last| ends.get(last)) {
            state.pop(*end, &[]);
        }
        Ok(())
    }
}
