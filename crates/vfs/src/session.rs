//! The life of a session: begin, renew, end. [`crate::cleanup`] handles sessions of other mounts that did not
//! end properly, [`crate::fencing`] the loss of this mount's own session.

use std::sync::PoisonError;
use std::time::Duration;

use meta::ops::Reap;
use meta::{Failure, Session};
use types::{BootInstant, Errno, SessionId, SliceId, Time};

use crate::cleanup::{COLLECT_AT_END, Watch};
use crate::coherence::TOLD;
use crate::process::this_process;
use crate::vfs::Vfs;

/// The process of a mount, for `limen status`.
#[derive(Clone, Debug, Default)]
pub struct SessionInfo {
    pub host: String,
    pub pid: u32,
    pub mountpoint: String,
}

/// The times of a session. All are measured by clocks that continue during a suspend.
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

/// When a session is removed, no cache that depends on it is valid any more: neither this mount's cache, nor
/// what it gave the kernel at the last moment. One tenth is added for clocks that run at different speeds.
const _: () = {
    let SessionTimes { heartbeat, valid_for, remove_after, .. } = SessionTimes::DEFAULT;
    assert!(heartbeat.as_secs() * 3 < valid_for.as_secs());
    assert!(remove_after.as_secs() * 10 > (valid_for.as_secs() + TOLD.as_secs()) * 11);
};

impl Vfs {
    /// Begins the session, after removing sessions whose processes have ended.
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin(&self, info: &SessionInfo) -> Result<(), Errno> {
        // Only the first call counts, because a mount has one mount point.
        let _ = self.info.set(info.clone());
        self.watch_sessions(&mut Watch::default())?;
        self.clean_leftovers()?;
        self.slices.advance()?;
        self.meta.begin_session(self.session_record(self.meta.session()), self.times.valid_for)?;
        self.set_renewed();
        Ok(())
    }

    /// Renews the session. A renewal never creates a session: one that other mounts have removed stays
    /// removed.
    pub(crate) fn renew(&self) -> Result<(), Failure> {
        if let Err(errno) = self.slices.advance() {
            tracing::debug!(%errno, "cannot advance the first slice number in the session's record");
        }
        let began = BootInstant::now();
        self.meta.renew_session(self.session_record(self.meta.session()), self.times.valid_for)?;
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = began;
        Ok(())
    }

    /// Ends the session. All written data is stored and durable, and the session's locks and open files are
    /// removed. Blocks that no file refers to may remain: the next session removes them.
    ///
    /// # Errors
    /// The first error; the remaining steps are done even then.
    pub fn end(&self) -> Result<(), Errno> {
        self.stop_housekeeping();
        let mut done = if self.meta.is_fenced() { self.recover() } else { Ok(()) };
        done = done.and(self.flush_all());
        for file in self.files.all().iter().filter(|file| file.is_orphan() && !file.is_fenced()) {
            done = done.and(self.change(&Reap { session: self.meta.session(), ino: file.ino }));
        }
        if !self.is_exclusive() {
            // Locks on files that were still open when the file system was unmounted.
            let own = self.meta.session();
            done = done.and(self.drop_locks(|session| Ok(session == own)));
        }
        done = done.and(self.write_accesses()).and(self.collect(COLLECT_AT_END, 1, &|| false));
        let ended = match self.meta.drop_session(self.meta.session()) {
            // The session is removed, possibly by an earlier attempt whose answer was lost.
            Ok(()) | Err(Failure::Fenced(_)) => Ok(()),
            Err(error) => Err(error.into()),
        };
        done = done.and(ended);
        done.and(self.make_durable())
    }

    /// Stores and commits all written data, and makes it durable, `syncfs(2)`.
    ///
    /// # Errors
    /// The first error; the remaining steps are done even then.
    pub fn sync(&self) -> Result<(), Errno> {
        let flushed = self.flush_all().and(self.write_accesses());
        flushed.and(self.make_durable())
    }

    /// Flushes every open file that has a name; returns the first error after all were tried.
    pub(crate) fn flush_all(&self) -> Result<(), Errno> {
        let mut done = Ok(());
        for file in self.files.all().iter().filter(|file| !file.is_orphan()) {
            let mut data = file.lock();
            if file.is_fenced() {
                // The file's users get EIO later; this releases its memory now.
                let _ = self.session_of(file, &mut data);
            } else {
                done = done.and(self.flush_locked(file, &mut data));
            }
        }
        done
    }

    /// The current record of a session of this mount.
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

    /// When the last successful renewal began.
    pub(crate) fn renewed(&self) -> BootInstant {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_renewed(&self) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = BootInstant::now();
    }
}
