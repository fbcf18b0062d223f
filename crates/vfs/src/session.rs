//! The session of this mount: its record, its times and its renewal.
//!
//! [`Session`] holds the identity of the mount, and the time of the last renewal. It depends on [`Meta`] and
//! on the slice numbers, because the record contains the lowest number that a slice without a row may have.
//! [`crate::lifecycle`] begins and ends a session with all other parts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use client::{Failure, Meta};
use meta::Process;
use types::{BootInstant, Errno, SessionId, SliceId, Time};

use crate::attr::NOTIFIED_LIFETIME;
use crate::numbers::NumberAllocator;
use crate::process::this_process;

/// The process of a mount, for `limen status`.
#[derive(Clone, Debug, Default)]
pub struct SessionInfo {
    pub host: String,
    pub pid: u32,
    pub mountpoint: String,
}

/// The times of a session. `valid_for` includes the time during which this machine is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimes {
    /// How often a session is renewed, and how often the other sessions are read.
    pub heartbeat: Duration,
    /// How long after the start of its last renewal a mount may answer from its cache.
    pub valid_for: Duration,
    /// Other mounts remove a session that was not renewed for this long.
    pub remove_after: Duration,
    /// How long a call waits for a new session after the old one was lost.
    pub rejoin: Duration,
}

impl SessionTimes {
    const DEFAULT: SessionTimes = SessionTimes {
        heartbeat: Duration::from_secs(5),
        valid_for: Duration::from_secs(20),
        remove_after: Duration::from_secs(90),
        rejoin: Duration::from_secs(20),
    };
}

impl Default for SessionTimes {
    fn default() -> Self {
        SessionTimes::DEFAULT
    }
}

/// At least three renewals are tried before a mount's cache expires. When a session is removed, no cache that
/// depends on it is valid any more: neither the cache of its mount, nor the records that the mount gave the
/// kernel at the last moment. One tenth is added for clocks that run at different speeds.
const _: () = {
    let SessionTimes { heartbeat, valid_for, remove_after, .. } = SessionTimes::DEFAULT;
    assert!(heartbeat.as_secs() * 3 < valid_for.as_secs());
    assert!(remove_after.as_secs() * 10 > (valid_for.as_secs() + NOTIFIED_LIFETIME.as_secs()) * 11);
};

#[derive(Debug)]
pub(crate) struct Session {
    meta: Arc<Meta>,
    slices: Arc<NumberAllocator>,
    times: SessionTimes,
    info: OnceLock<SessionInfo>,
    since: Mutex<Time>,
    /// When the last successful renewal began.
    renewed: Mutex<BootInstant>,
    /// Whether the session is being handed over: the end of this process does not prove that the mount has
    /// ended.
    is_leaving: AtomicBool,
}

impl Session {
    pub(crate) fn new(meta: &Arc<Meta>, slices: &Arc<NumberAllocator>, times: SessionTimes) -> Self {
        Session {
            meta: Arc::clone(meta),
            slices: Arc::clone(slices),
            times,
            info: OnceLock::new(),
            since: Mutex::new(Time::now()),
            renewed: Mutex::new(BootInstant::now()),
            is_leaving: AtomicBool::new(false),
        }
    }

    /// Begins the session. Only the first `info` counts, because a mount has one mount point.
    pub(crate) fn begin(&self, info: SessionInfo) -> Result<(), Errno> {
        let _ = self.info.set(info);
        self.slices.advance()?;
        let id = self.meta.session();
        self.meta.begin_journal(id, self.since());
        self.meta.begin_session(self.record(id), self.times.valid_for)?;
        *host::lock(&self.renewed) = BootInstant::now();
        Ok(())
    }

    /// Begins a new session in place of the one that was lost; returns its id.
    pub(crate) fn begin_next(&self) -> Result<SessionId, Errno> {
        self.slices.discard_lease()?;
        let record = |session| {
            self.meta.begin_journal(session, self.since());
            self.record(session)
        };
        let session = self.meta.rejoin(record, self.times.valid_for)?;
        *host::lock(&self.renewed) = BootInstant::now();
        Ok(session)
    }

    /// Renews the session. A renewal never creates a session: one that other mounts have removed stays
    /// removed.
    pub(crate) fn renew(&self) -> Result<(), Failure> {
        if let Err(errno) = self.slices.advance() {
            tracing::debug!(%errno, "cannot advance the first slice number in the session's record");
        }
        let began = BootInstant::now();
        self.meta.renew_session(self.record(self.meta.session()), self.times.valid_for)?;
        *host::lock(&self.renewed) = began;
        Ok(())
    }

    /// When this mount began.
    pub(crate) fn since(&self) -> Time {
        *host::lock(&self.since)
    }

    /// Notes whether the session is being handed over. From the next renewal on, others do not take the end
    /// of this process for the end of the mount.
    pub(crate) fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::Release);
    }

    /// Continues the session that another process has begun at `since`.
    pub(crate) fn take_over(&self, info: SessionInfo, since: Time) {
        let _ = self.info.set(info);
        *host::lock(&self.since) = since;
        *host::lock(&self.renewed) = BootInstant::now();
    }

    /// When the last successful renewal began.
    pub(crate) fn renewed(&self) -> BootInstant {
        *host::lock(&self.renewed)
    }

    /// The current record of a session of this mount.
    fn record(&self, id: SessionId) -> meta::Session {
        let info = self.info.get().cloned().unwrap_or_default();
        meta::Session {
            id,
            host: info.host,
            pid: info.pid,
            mountpoint: info.mountpoint,
            since: self.since(),
            heartbeat: Time::now(),
            // With the boot id, other mounts could prove that this process has ended, and would remove the
            // session before its journal is replayed. A replay does not need this boot id: if the lock of the
            // journal is free, the process has ended.
            process: match self.meta.has_journal() && !self.meta.is_exclusive()
                || self.is_leaving.load(Ordering::Acquire)
            {
                true => Process { boot_id: String::new(), ..this_process() },
                false => this_process(),
            },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            first_slice: SliceId(self.slices.first()),
        }
    }
}
