//! A session's life: its beginning, its renewals, and its orderly end. What others do about one that ended without a word
//! is in [`crate::cleanup`], and what this mount does about one that it lost in [`crate::fencing`].

use std::sync::PoisonError;
use std::time::Duration;

use meta::ops::Reap;
use meta::{Failure, Session};
use types::{BootInstant, Errno, SessionId, SliceId, Time};

use crate::cleanup::{COLLECT_AT_END, Watch};
use crate::coherence::TOLD;
use crate::process::this_process;
use crate::vfs::Vfs;

/// The process that mounts, for `limen status`.
#[derive(Clone, Debug, Default)]
pub struct SessionInfo {
    pub host: String,
    pub pid: u32,
    pub mountpoint: String,
}

/// The times that sessions live by. All are measured by clocks that go on during a suspend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimes {
    /// How often a session is renewed, and how often others are looked at.
    pub heartbeat: Duration,
    /// How long after the start of its last renewal a mount answers from memory.
    pub valid_for: Duration,
    /// A session that is silent for so long is removed by others.
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

/// When a session is removed, nothing of it serves any more: neither this mount's memory, nor what the kernel was given at
/// the last moment. A tenth is for clocks that do not run alike.
const _: () = {
    let SessionTimes { heartbeat, valid_for, remove_after, .. } = SessionTimes::DEFAULT;
    assert!(heartbeat.as_secs() * 3 < valid_for.as_secs());
    assert!(remove_after.as_secs() * 10 > (valid_for.as_secs() + TOLD.as_secs()) * 11);
};

impl Vfs {
    /// Begins the session, after sessions whose processes are gone were removed.
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin(&self, info: &SessionInfo) -> Result<(), Errno> {
        // The first word counts: a mount has one place.
        let _ = self.info.set(info.clone());
        self.watch_sessions(&mut Watch::default())?;
        self.clean_leftovers()?;
        self.slices.move_on()?;
        self.meta.begin_session(self.session_record(self.meta.session()), self.times.valid_for)?;
        self.set_renewed();
        Ok(())
    }

    /// Renews the session. It is a change like any other: a session that others have removed stays removed.
    pub(crate) fn renew(&self) -> Result<(), Failure> {
        if let Err(errno) = self.slices.move_on() {
            tracing::debug!(%errno, "an old number of slices stays in the session's record");
        }
        let began = BootInstant::now();
        self.meta.renew_session(self.session_record(self.meta.session()), self.times.valid_for)?;
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = began;
        Ok(())
    }

    /// Ends the session: all that was written is stored and durable, and none of its locks and open files is left behind.
    /// Blocks that no file refers to may be: the next session removes them.
    ///
    /// # Errors
    /// The first thing that failed; the rest is done even so.
    pub fn end(&self) -> Result<(), Errno> {
        self.stop_housekeeping();
        let mut done = if self.meta.is_fenced() { self.recover() } else { Ok(()) };
        done = done.and(self.flush_all());
        for file in self.files.all().iter().filter(|file| file.is_orphan() && !file.is_fenced()) {
            done = done.and(self.change(&Reap { session: self.meta.session(), ino: file.ino }));
        }
        if !self.is_alone() {
            // Of files that were still open when the mount was taken from them.
            let own = self.meta.session();
            done = done.and(self.drop_locks(|session| Ok(session == own)));
        }
        done = done.and(self.write_accesses()).and(self.collect(COLLECT_AT_END, 1, &|| false));
        let ended = match self.meta.drop_session(self.meta.session()) {
            // It is gone: by this, if the first answer was lost.
            Ok(()) | Err(Failure::Fenced(_)) => Ok(()),
            Err(error) => Err(error.into()),
        };
        done = done.and(ended);
        done.and(self.make_durable())
    }

    /// Stores and commits all that was written so far, and makes it survive a loss of power, `syncfs(2)`.
    ///
    /// # Errors
    /// The first thing that failed; the rest is done even so.
    pub fn sync(&self) -> Result<(), Errno> {
        let flushed = self.flush_all().and(self.write_accesses());
        flushed.and(self.make_durable())
    }

    /// Flushes every open file that has a name; gives the first error after all were tried.
    pub(crate) fn flush_all(&self) -> Result<(), Errno> {
        let mut done = Ok(());
        for file in self.files.all().iter().filter(|file| !file.is_orphan()) {
            let mut data = file.lock();
            if file.is_fenced() {
                // Its programs have yet to hear of that; the memory is given back now.
                let _ = self.session_of(file, &mut data);
            } else {
                done = done.and(self.flush_locked(file, &mut data));
            }
        }
        done
    }

    /// The record of a session of this mount, as of now.
    pub(crate) fn session_record(&self, id: SessionId) -> Session {
        let info = self.info.get().cloned().unwrap_or_default();
        Session {
            id,
            host: info.host,
            pid: info.pid,
            mountpoint: info.mountpoint,
            since: self.since,
            heartbeat: Time::now(),
            process: this_process(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            first_slice: SliceId(self.slices.first()),
        }
    }

    /// When the last renewal that succeeded began.
    pub(crate) fn renewed(&self) -> BootInstant {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_renewed(&self) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = BootInstant::now();
    }
}
