//! The client's session: how it guards the client's changes, and how the client learns of the session's
//! removal.
//!
//! A client that shares a volume is registered by one record. Another client may remove that record if it
//! considers the registered client dead. Each change of such a client carries
//! [`Guard::Term`](meta::Guard::Term), so none of its changes commits after the removal, however late it
//! reaches the database. The client learns of the removal from the conflict
//! ([`Failure::Fenced`](crate::Failure::Fenced)). It then makes no changes until it has a new session
//! ([`Meta::rejoin`](crate::Meta::rejoin)).
//!
//! Answers that need no commit are protected by time: [`Meta::is_current`](crate::Meta::is_current) becomes
//! false some time after the start of the last renewal.
//!
//! A new session number is published only after everything that the loss invalidates is marked as invalid. So
//! a thread that sees the new number sees these marks too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use host::Instant;
use types::{BootInstant, SessionId};

/// The session and its validity; see the module documentation.
#[derive(Debug)]
pub(crate) struct Fence {
    session: AtomicU64,
    /// The session that was found to be removed; 0 if none was.
    lost: AtomicU64,
    /// Until this time the session is assumed to exist, as [`BootInstant::nanos`].
    valid_until: AtomicU64,
    /// Held while `session` or `lost` changes, for the threads that wait for a change.
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

    /// Whether the session, at the moment `now`, was renewed recently enough and is not known to be removed.
    pub(crate) fn is_valid(&self, now: BootInstant) -> bool {
        !self.is_fenced() && now.nanos() < self.valid_until.load(Ordering::Acquire)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        let lost = self.lost.load(Ordering::Acquire);
        lost != 0 && lost == self.session.load(Ordering::Acquire)
    }

    /// Whether this session was found to be removed.
    pub(crate) fn is_lost(&self, session: SessionId) -> bool {
        self.lost.load(Ordering::Acquire) == session.0
    }

    pub(crate) fn set_lost(&self, session: SessionId) {
        self.update(|fence| fence.lost.store(session.0, Ordering::Release));
    }

    pub(crate) fn set_session(&self, session: SessionId) {
        self.update(|fence| fence.session.store(session.0, Ordering::Release));
    }

    pub(crate) fn set_valid_until(&self, until: BootInstant) {
        self.valid_until.store(until.nanos(), Ordering::Release);
    }

    /// As [`BootInstant::nanos`].
    pub(crate) fn valid_until(&self) -> u64 {
        self.valid_until.load(Ordering::Acquire)
    }

    pub(crate) fn set_valid_nanos(&self, until: u64) {
        self.valid_until.store(until, Ordering::Release);
    }

    /// Wakes the waiting threads, so that they check their conditions again.
    pub(crate) fn wake(&self) {
        self.update(|_| ());
    }

    fn update(&self, change: impl FnOnce(&Self)) {
        let _moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        change(self);
        self.changed.notify_all();
    }

    /// Waits until `done` returns true, for at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration, done: impl Fn(&Self) -> bool) {
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
