//! The client's session: how its changes are guarded by it, and how the client learns that it lost it.
//!
//! A client that shares a volume is registered by one record. Others may remove that record when they take the client for
//! dead. Each change of a registered client carries [`Guard::Term`], so after the removal none of its changes happens,
//! however late it reaches the database. The client learns of it from the conflict: [`Failure::Fenced`]. It then changes
//! nothing any more until it has a new session ([`Meta::rejoin`]).
//!
//! What needs no commit is protected by time: [`Meta::is_current`] ends a while after the start of the last renewal.
//!
//! A new session number is published after everything that the loss invalidates is marked, so a thread that sees the new
//! number sees the marks.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use host::Instant;
use types::{BootInstant, Errno, OpId, SessionId, Term, Time};

use crate::driver::{Ctx, Failure, Meta, Op, Plan, Vouch};
use crate::maintenance::{BeginSession, Maintenance};
use crate::record::{Counter, Facts, Record, Session};
use crate::txn::{Effect, Guard};
use crate::view::{Stop, View};
use crate::volume::{Lease, random_session};

/// See the module.
#[derive(Debug)]
pub(crate) struct Fence {
    session: AtomicU64,
    /// The session that was found to be gone; 0 if none was.
    lost: AtomicU64,
    /// Until when the session is known to be on record, as [`BootInstant::nanos`].
    valid_until: AtomicU64,
    /// Held while `session` or `lost` change, for threads that wait for that.
    moved: Mutex<()>,
    changed: Condvar,
}

impl Fence {
    pub(crate) fn new(session: SessionId) -> Self {
        Fence {
            session: AtomicU64::new(session.0),
            lost: AtomicU64::new(0),
            valid_until: AtomicU64::new(u64::MAX),
            moved: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn session(&self) -> SessionId {
        SessionId(self.session.load(Ordering::Acquire))
    }

    /// Whether the session is on record as far as is known, and was there a short time ago.
    pub(crate) fn is_valid(&self) -> bool {
        !self.is_fenced() && BootInstant::now().nanos() < self.valid_until.load(Ordering::Acquire)
    }

    fn is_fenced(&self) -> bool {
        let lost = self.lost.load(Ordering::Acquire);
        lost != 0 && lost == self.session.load(Ordering::Acquire)
    }

    fn update(&self, change: impl FnOnce(&Self)) {
        let _moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        change(self);
        self.changed.notify_all();
    }

    /// Waits until `done`, at most for `timeout`.
    fn wait(&self, timeout: Duration, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + timeout;
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        while !done(self) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            moved = host::wait_timeout(&self.changed, &self.moved, moved, left);
        }
    }
}

impl Meta {
    /// The session that operations which begin now belong to.
    pub fn session(&self) -> SessionId {
        self.fence.session()
    }

    /// Whether the session was found to be gone. Changes then fail, until [`Meta::rejoin`].
    pub fn is_fenced(&self) -> bool {
        self.fence.is_fenced()
    }

    /// The guard that an operation carries: the session's term that its id names. None if nobody else can change the volume,
    /// because the database's own lock sees to that, and none for a visitor.
    ///
    /// # Errors
    /// [`Failure::Fenced`]: it is known to be gone.
    pub(crate) fn own_guard(&self, id: OpId) -> Result<Option<Guard>, Failure> {
        let (session, term) = (id.session(), id.term());
        if self.is_alone() || term == Term::NONE {
            return Ok(None);
        }
        if self.fence.lost.load(Ordering::Acquire) == session.0 {
            return Err(Failure::Fenced(session));
        }
        Ok(Some(Guard::Term { session, term }))
    }

    /// The guards of a change, with [`Meta::own_guard`] among them.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn with_own_guard(&self, mut guards: Vec<Guard>, id: OpId) -> Result<Vec<Guard>, Failure> {
        let own = self.own_guard(id)?;
        guards.extend(own.filter(|own| !guards.contains(own)));
        Ok(guards)
    }

    /// What a conflict says about the session that guarded the transaction.
    ///
    /// # Errors
    /// [`Failure::Fenced`]: it is gone.
    pub(crate) fn check_own(&self, guards: &[Guard], facts: &Facts) -> Result<(), Failure> {
        for guard in guards {
            let (Guard::Session { session, heartbeat: None } | Guard::Term { session, .. }) = guard else {
                continue;
            };
            let gone = |record: &Record| matches!(record, Record::Session(id, None) if id == session);
            if facts.records.iter().any(gone) {
                if *session == self.session() {
                    self.fence.update(|fence| fence.lost.store(session.0, Ordering::Release));
                }
                return Err(Failure::Fenced(*session));
            }
        }
        Ok(())
    }

    /// Registers this client among the volume's sessions. What is in memory serves for `valid_for` from now on, as far as
    /// the session decides that.
    ///
    /// # Errors
    /// [`Failure::Refused`] with EBUSY: a tool has the volume for itself; those of the database.
    pub fn begin_session(&self, session: Session, valid_for: Duration) -> Result<(), Failure> {
        let began = BootInstant::now();
        let id = session.id;
        register(self, session)?;
        self.terms.begin(id);
        self.extend(began, valid_for);
        Ok(())
    }

    /// Renews the session's record. It is never created: a session that was removed stays so.
    ///
    /// # Errors
    /// [`Failure::Fenced`]; those of the database.
    pub fn renew_session(&self, session: Session, valid_for: Duration) -> Result<(), Failure> {
        let began = BootInstant::now();
        let id = session.id;
        self.run(&Renew(session), &BY_NOBODY)?;
        if id == self.session() {
            self.extend(began, valid_for);
        }
        Ok(())
    }

    /// Begins a new session in place of one that was lost. `record` makes its record out of its number.
    ///
    /// # Errors
    /// As [`Meta::begin_session`].
    pub fn rejoin(
        &self,
        record: impl FnOnce(SessionId) -> Session,
        valid_for: Duration,
    ) -> Result<SessionId, Failure> {
        let began = BootInstant::now();
        // Changes of the old session are refused, so the new one is made as if by another client.
        let visitor = Meta::new(self.engine().clone(), self.volume().clone(), random_session(), 1);
        let id = SessionId(visitor.run(&Lease { counter: Counter::Session, count: 1 }, &BY_NOBODY)?);
        register(&visitor, record(id))?;
        self.extend(began, valid_for);
        // First, so that an operation that is planned under the new session finds its term.
        self.terms.begin(id);
        self.fence.update(|fence| fence.session.store(id.0, Ordering::Release));
        Ok(id)
    }

    /// Removes the session of a client that is gone, if its heartbeat is still the one that was seen last. From then on no
    /// change of it happens. Says whether it was removed.
    ///
    /// # Errors
    /// [`Failure::Fenced`]: this client's own session is gone; those of the database.
    pub fn remove_session(&self, session: SessionId, heartbeat: Time) -> Result<bool, Failure> {
        match self.run(&Remove { session, heartbeat, is_planned: Cell::new(false) }, &BY_NOBODY) {
            Ok(()) => Ok(true),
            Err(Failure::Refused(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Waits until the session is found to be gone or `stop` says so, at most for `timeout`.
    pub fn wait_fenced(&self, timeout: Duration, stop: impl Fn() -> bool) {
        self.fence.wait(timeout, |fence| fence.is_fenced() || stop());
    }

    /// Has waiting threads check again what ends their wait.
    pub fn wake_waiters(&self) {
        self.fence.update(|_| ());
    }

    /// Waits until there is another session than this one or `stop` says so, at most for `timeout`; says whether there is.
    pub fn wait_rejoined(&self, lost: SessionId, timeout: Duration, stop: impl Fn() -> bool) -> bool {
        self.fence.wait(timeout, |fence| fence.session() != lost || stop());
        self.session() != lost
    }

    fn extend(&self, began: BootInstant, valid_for: Duration) {
        self.fence.valid_until.store((began + valid_for).nanos(), Ordering::Release);
    }
}

/// No caller's rights bear on it.
const BY_NOBODY: Vouch<'_> = Vouch::Kernel { told: None };

struct Renew(Session);

impl Op for Renew {
    type Reply = ();
    const NAME: &'static str = "renew";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        view.guard(Guard::Session { session: self.0.id, heartbeat: None });
        Ok(Plan { reply: (), effects: vec![Effect::PutSession(self.0.clone())] })
    }
}

struct Remove {
    session: SessionId,
    heartbeat: Time,
    is_planned: Cell<bool>,
}

impl Op for Remove {
    type Reply = ();
    const NAME: &'static str = "remove session";

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, Stop> {
        // After a conflict the caller looks at the session again.
        if self.is_planned.replace(true) {
            return Err(Errno::EAGAIN.into());
        }
        view.guard(Guard::Session { session: self.session, heartbeat: Some(self.heartbeat) });
        Ok(Plan { reply: (), effects: vec![Effect::DropSession { session: self.session }] })
    }
}

/// Puts a session on record, unless a tool has the volume for itself.
fn register(meta: &Meta, session: Session) -> Result<(), Failure> {
    match meta.run(&BeginSession(session), &BY_NOBODY)? {
        None => Ok(()),
        Some(Maintenance { tool, host, pid, .. }) => {
            tracing::error!(tool, host, pid, "no session begins while a tool has the volume for itself");
            Err(Errno::EBUSY.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mem::MemEngine;
    use crate::ops::GetNode;
    use crate::record::{Process, Want};
    use crate::volume::Configure;
    use crate::wrap::Counting;
    use crate::{AclKind, Engine, Volume};
    use types::{Ino, SliceId};

    const LONG: Duration = Duration::from_secs(3600);

    fn volume() -> Arc<Counting<MemEngine>> {
        let engine = Arc::new(Counting::new(MemEngine::default()));
        let volume = Volume {
            name: "test".into(),
            uuid: "u".into(),
            storage: "memory".into(),
            bucket: String::new(),
            acl: AclKind::Posix,
            policy: Default::default(),
            compression: "none".into(),
            encryption: String::new(),
            inline_bytes: 4096,
            capacity_bytes: 0,
            max_inodes: 0,
            abe: false,
            store_marker: false,
            created: Time::from_nanos(0),
        };
        volume.format(&*engine).unwrap();
        engine
    }

    fn record(id: SessionId, heartbeat: i64) -> Session {
        Session {
            id,
            host: String::new(),
            pid: 1,
            mountpoint: String::new(),
            since: Time::from_nanos(0),
            heartbeat: Time::from_nanos(heartbeat),
            process: Process::default(),
            version: String::new(),
            first_slice: SliceId(0),
        }
    }

    fn on_record(engine: &dyn Engine, id: SessionId) -> Option<Session> {
        match engine.read(&[Want::Session(id)]).unwrap().records.pop() {
            Some(Record::Session(_, found)) => found,
            other => panic!("{other:?}"),
        }
    }

    fn change(meta: &Meta, abe: bool) -> Result<(), Failure> {
        meta.run(&Configure { abe: Some(abe), ..Configure::default() }, &BY_NOBODY)
    }

    #[test]
    fn a_client_whose_session_was_removed_changes_nothing_until_it_has_a_new_one() {
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
        assert_eq!((engine.counts() - before).commits, 1, "it is not tried again");
        assert!(own.is_fenced() && !own.is_current());
        assert_eq!(change(&own, false), Err(Failure::Fenced(lost)));
        assert_eq!((engine.counts() - before).commits, 1, "what is known is not asked for");
        assert!(Volume::load(&*engine).unwrap().abe);
        own.run(&GetNode(Ino::ROOT), &BY_NOBODY).unwrap();

        let new = own.rejoin(|id| record(id, 2), LONG).unwrap();
        assert!(new != lost && own.session() == new && !own.is_fenced());
        assert!(on_record(&*engine, new).is_some() && on_record(&*engine, lost).is_none());
        change(&own, false).unwrap();
        assert!(!Volume::load(&*engine).unwrap().abe);
    }

    #[test]
    fn a_renewal_never_brings_back_a_session() {
        let engine = volume();
        for alone in [false, true] {
            let meta = Meta::open(engine.clone(), 1000).unwrap();
            let id = meta.session();
            meta.begin_session(record(id, 1), LONG).unwrap();
            meta.renew_session(record(id, 2), LONG).unwrap();
            assert_eq!(on_record(&*engine, id).map(|found| found.heartbeat), Some(Time::from_nanos(2)));
            meta.set_alone(alone);
            let visitor = Meta::open(engine.clone(), 1000).unwrap();
            assert!(visitor.remove_session(id, Time::from_nanos(2)).unwrap());
            assert_eq!(meta.renew_session(record(id, 3), LONG), Err(Failure::Fenced(id)));
            assert!(on_record(&*engine, id).is_none());
        }
    }

    #[test]
    fn a_session_is_removed_only_by_the_heartbeat_that_was_seen() {
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
    fn memory_serves_no_longer_than_the_session_is_known_to_be_there() {
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
