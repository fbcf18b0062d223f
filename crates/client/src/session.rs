//! The life of the client's session: how it begins, is renewed, lost and replaced, and the guard that each
//! change carries. See `fence.rs` and `terms.rs`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use host::Instant;
use meta::{Counter, Guard, Maintenance, Record, Session, Snapshot};
use ops::{BeginSession, Lease, RemoveSession, RenewSession};
use types::{BootInstant, Errno, OpId, SessionId, Term, Time};

use crate::driver::{BY_KERNEL, Meta};
use crate::failure::Failure;
use crate::open::random_session;

impl Meta {
    /// The session of operations that begin now.
    pub fn session(&self) -> SessionId {
        self.fence.session()
    }

    /// Whether the session was found to be removed. Changes then fail until [`Meta::rejoin`].
    pub fn is_fenced(&self) -> bool {
        self.fence.is_fenced()
    }

    /// The guard that an operation must carry: that the term of its id is still open. `None` if this client
    /// has the volume exclusively, because the database's own lock then excludes others, and `None` if the
    /// client is not registered.
    ///
    /// # Errors
    /// [`Failure::Fenced`]: the session is known to be removed.
    pub(crate) fn own_guard(&self, id: OpId) -> Result<Option<Guard>, Failure> {
        let (session, term) = (id.session(), id.term());
        if self.is_exclusive() || term == Term::NONE {
            return Ok(None);
        }
        if self.fence.is_lost(session) {
            return Err(Failure::Fenced(session));
        }
        Ok(Some(Guard::Term { session, term }))
    }

    /// The guards of a change, including [`Meta::own_guard`].
    ///
    /// # Errors
    /// As [`Meta::own_guard`].
    pub(crate) fn with_own_guard(&self, mut guards: Vec<Guard>, id: OpId) -> Result<Vec<Guard>, Failure> {
        let own = self.own_guard(id)?;
        guards.extend(own.filter(|own| !guards.contains(own)));
        Ok(guards)
    }

    /// Checks whether a conflict was caused by the removal of the session that guarded the transaction.
    ///
    /// # Errors
    /// [`Failure::Fenced`]: the session was removed.
    pub(crate) fn check_own(&self, guards: &[Guard], snapshot: &Snapshot) -> Result<(), Failure> {
        for guard in guards {
            let (Guard::Session { session, heartbeat: None } | Guard::Term { session, .. }) = guard else {
                continue;
            };
            let is_removed = |record: &Record| matches!(record, Record::Session(id, None) if id == session);
            if snapshot.records.iter().any(is_removed) {
                if *session == self.session() {
                    self.fence.set_lost(*session);
                }
                return Err(Failure::Fenced(*session));
            }
        }
        Ok(())
    }

    /// Registers this client among the volume's sessions. The session counts as valid for `valid_for` from
    /// the start of this call; cached records are not used longer without a renewal.
    ///
    /// # Errors
    /// [`Failure::Operation`] with EBUSY: a tool has the volume exclusively; those of the database.
    pub fn begin_session(&self, session: Session, valid_for: Duration) -> Result<(), Failure> {
        let began = BootInstant::now();
        let id = session.id;
        register(self, session)?;
        self.terms.begin(id);
        self.fence.set_valid_until(began + valid_for);
        Ok(())
    }

    /// Renews the session's record, but never creates it: a session that was removed stays removed.
    ///
    /// # Errors
    /// [`Failure::Fenced`]; those of the database.
    pub fn renew_session(&self, session: Session, valid_for: Duration) -> Result<(), Failure> {
        let began = BootInstant::now();
        let id = session.id;
        self.run(&RenewSession(session), &BY_KERNEL)?;
        if id == self.session() {
            self.fence.set_valid_until(began + valid_for);
        }
        Ok(())
    }

    /// Begins a new session in place of one that was lost. `record` returns the record for the new session's
    /// number.
    ///
    /// # Errors
    /// As [`Meta::begin_session`].
    pub fn rejoin(
        &self,
        record: impl FnOnce(SessionId) -> Session,
        valid_for: Duration,
    ) -> Result<SessionId, Failure> {
        let began = BootInstant::now();
        // Changes under the old session fail, so the new one is created as by an unregistered client.
        let visitor = Meta::new(self.engine().clone(), self.volume().clone(), random_session(), 1);
        let id = SessionId(visitor.run(&Lease { counter: Counter::Session, count: 1 }, &BY_KERNEL)?);
        register(&visitor, record(id))?;
        self.fence.set_valid_until(began + valid_for);
        // The term must exist before the session is published: an operation that is planned under the new
        // session gets its id from this term.
        self.terms.begin(id);
        self.fence.set_session(id);
        Ok(id)
    }

    /// Removes the session of a client that is considered dead, if its heartbeat is still `heartbeat`. After
    /// that, no change under the session commits. Returns whether it was removed.
    ///
    /// # Errors
    /// [`Failure::Fenced`]: this client's own session was removed; those of the database.
    pub fn remove_session(&self, session: SessionId, heartbeat: Time) -> Result<bool, Failure> {
        match self.run(&RemoveSession::new(session, heartbeat), &BY_KERNEL) {
            Ok(()) => Ok(true),
            Err(Failure::Operation(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Waits until the session is found to be removed or `stop` returns true, for at most `timeout`.
    pub fn wait_fenced(&self, timeout: Duration, stop: impl Fn() -> bool) {
        self.fence.wait(timeout, |fence| fence.is_fenced() || stop());
    }

    /// Wakes the waiting threads, so that they check their conditions again.
    pub fn wake_waiters(&self) {
        self.fence.wake();
    }

    /// Waits until there is another session than `lost` or `stop` returns true, for at most `timeout`.
    /// Returns whether there is another session.
    pub fn wait_rejoined(&self, lost: SessionId, timeout: Duration, stop: impl Fn() -> bool) -> bool {
        self.fence.wait(timeout, |fence| fence.session() != lost || stop());
        self.session() != lost
    }

    /// Begins the next term if it is due. A failure here fails no operation: a later call tries again.
    pub(crate) fn begin_term_if_due(&self) {
        if self.terms.take_due()
            && let Err(error) = self.begin_next_term()
        {
            tracing::debug!(%error, "cannot begin the next term; results of operations remain stored");
        }
    }

    /// Begins the next term of the session, and ends the terms whose operations all have answers. Does
    /// nothing if this client is not registered or has the volume exclusively, or if another thread is
    /// already doing it. Also does nothing if no open term has had more than one operation and no operation
    /// was given up in doubt. Call it about once a minute, so that the results of a mostly idle client are
    /// dropped too.
    ///
    /// # Errors
    /// [`Failure::Fenced`]; those of the database.
    pub fn begin_next_term(&self) -> Result<(), Failure> {
        if self.is_exclusive() {
            return Ok(());
        }
        let Some((op, mut in_doubt)) = self.terms.next_term() else { return Ok(()) };
        let done = self.run_once(&op, &BY_KERNEL, &mut in_doubt);
        self.terms.note(op, in_doubt, done.is_ok(), || {
            // Changes of the ended terms were committed before this moment, if at all. `in_doubt_until` lets
            // this client apply them when they are delivered.
            self.in_doubt_until.fetch_max(self.nanos_of(Instant::now()), Ordering::AcqRel);
        });
        done
    }
}

/// Creates a session's record, unless a tool has the volume exclusively.
fn register(meta: &Meta, session: Session) -> Result<(), Failure> {
    match meta.run(&BeginSession(session), &BY_KERNEL)? {
        None => Ok(()),
        Some(Maintenance { tool, host, pid, .. }) => {
            tracing::error!(
                tool,
                host,
                pid,
                "cannot begin a session while a tool has exclusive use of the volume"
            );
            Err(Errno::EBUSY.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use meta::{Counting, Engine, MemEngine, RecordKey, Volume};
    use ops::{Configure, GetInode};
    use types::Ino;

    const LONG: Duration = Duration::from_secs(3600);

    fn volume() -> Arc<Counting<MemEngine>> {
        let engine = Arc::new(Counting::new(MemEngine::default()));
        Volume::in_memory("test").format(&*engine).unwrap();
        engine
    }

    fn record(id: SessionId, heartbeat: i64) -> Session {
        Session::new(id, Time::from_nanos(heartbeat))
    }

    fn on_record(engine: &dyn Engine, id: SessionId) -> Option<Session> {
        match engine.read(&[RecordKey::Session(id)]).unwrap().records.pop() {
            Some(Record::Session(_, found)) => found,
            other => panic!("{other:?}"),
        }
    }

    fn change(meta: &Meta, abe: bool) -> Result<(), Failure> {
        meta.run(&Configure { abe: Some(abe), ..Configure::default() }, &BY_KERNEL)
    }

    #[test]
    fn a_client_whose_session_was_removed_cannot_change_anything_until_it_rejoins() {
        let engine = volume();
        let [own, other] = [0; 2].map(|_| Meta::open(engine.clone(), 1000).unwrap());
        let lost = own.session();
        own.begin_session(record(lost, 1), LONG).unwrap();
        other.begin_session(record(other.session(), 1), LONG).unwrap();
        change(&own, true).unwrap();
        assert!(other.remove_session(lost, Time::from_nanos(1)).unwrap());
        assert!(!own.is_fenced());

        let before = engine.counts();
        assert_eq!(change(&own, false), Err(Failure::Fenced(lost)));
        assert_eq!((engine.counts() - before).commits, 1, "it is not retried");
        assert!(own.is_fenced() && !own.is_current());
        assert_eq!(change(&own, false), Err(Failure::Fenced(lost)));
        assert_eq!(
            (engine.counts() - before).commits,
            1,
            "a session that is known to be lost is not read again"
        );
        assert!(Volume::load(&*engine).unwrap().abe);
        own.run(&GetInode(Ino::ROOT), &BY_KERNEL).unwrap();

        let new = own.rejoin(|id| record(id, 2), LONG).unwrap();
        assert!(new != lost && own.session() == new && !own.is_fenced());
        assert!(on_record(&*engine, new).is_some() && on_record(&*engine, lost).is_none());
        change(&own, false).unwrap();
        assert!(!Volume::load(&*engine).unwrap().abe);
    }

    #[test]
    fn a_renewal_never_recreates_a_removed_session() {
        let engine = volume();
        for exclusive in [false, true] {
            let meta = Meta::open(engine.clone(), 1000).unwrap();
            let id = meta.session();
            meta.begin_session(record(id, 1), LONG).unwrap();
            meta.renew_session(record(id, 2), LONG).unwrap();
            assert_eq!(on_record(&*engine, id).map(|found| found.heartbeat), Some(Time::from_nanos(2)));
            meta.set_exclusive(exclusive);
            let visitor = Meta::open(engine.clone(), 1000).unwrap();
            assert!(visitor.remove_session(id, Time::from_nanos(2)).unwrap());
            assert_eq!(meta.renew_session(record(id, 3), LONG), Err(Failure::Fenced(id)));
            assert!(on_record(&*engine, id).is_none());
        }
    }

    #[test]
    fn a_session_is_removed_only_if_its_heartbeat_is_unchanged() {
        let engine = volume();
        let [own, other] = [0; 2].map(|_| Meta::open(engine.clone(), 1000).unwrap());
        let id = own.session();
        own.begin_session(record(id, 1), LONG).unwrap();
        own.renew_session(record(id, 2), LONG).unwrap();
        assert!(!other.remove_session(id, Time::from_nanos(1)).unwrap());
        assert!(on_record(&*engine, id).is_some());
        change(&own, true).unwrap();
    }

    #[test]
    fn cached_records_expire_with_the_session() {
        let engine = volume();
        let meta = Meta::open(engine, 1000).unwrap();
        meta.set_current_until(BootInstant::now() + LONG);
        meta.begin_session(record(meta.session(), 1), LONG).unwrap();
        assert!(meta.is_current());
        meta.renew_session(record(meta.session(), 2), Duration::ZERO).unwrap();
        assert!(!meta.is_current());
        meta.renew_session(record(meta.session(), 3), LONG).unwrap();
        assert!(meta.is_current());
    }
}
