//! The life of a session, as steps over all parts: begin, recover, sync, end.
//!
//! Holds nothing of its own. [`crate::cleanup`] handles sessions of other mounts that did not end properly,
//! [`crate::fencing`] the files that a lost session leaves behind.

use std::sync::Arc;

use client::{Failure, Meta};
use ops::Reap;
use types::Errno;

use crate::atime::Accesses;
use crate::cleanup::{COLLECT_AT_END, Cleanup, Watch};
use crate::coherence::Caches;
use crate::commits::Commits;
use crate::fencing::Fencing;
use crate::flush::Flusher;
use crate::locks::Locks;
use crate::open::OpenTable;
use crate::session::{Session, SessionInfo};

#[derive(Debug)]
pub(crate) struct Lifecycle {
    pub(crate) meta: Arc<Meta>,
    pub(crate) session: Arc<Session>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) accesses: Arc<Accesses>,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) fencing: Arc<Fencing>,
    pub(crate) locks: Arc<Locks>,
    pub(crate) cleanup: Arc<Cleanup>,
}

impl Lifecycle {
    /// Begins the session, after removing sessions whose processes have ended.
    ///
    /// # Errors
    /// Those of the database.
    pub(crate) fn begin(&self, info: &SessionInfo) -> Result<(), Errno> {
        self.session.set_info(info);
        self.cleanup.watch_sessions(&mut Watch::default())?;
        self.cleanup.clean_leftovers()?;
        self.session.begin()
    }

    /// Begins a new session in place of one that other mounts have removed, after it has marked the lost
    /// files.
    ///
    /// # Errors
    /// Those of the database; the session is still lost then.
    pub(crate) fn recover(&self) -> Result<(), Errno> {
        let lost = self.meta.session();
        self.caches.forget_everything();
        self.fencing.note_loss(lost);
        let locked = self.locks.take_lost();
        let mut files = 0;
        for file in self.open.all() {
            let reason = match () {
                () if locked.contains(&file.ino) => "another mount may hold its locks",
                () if file.is_orphan() => "it has no name, and other mounts delete it",
                () => continue,
            };
            files += u64::from(self.fencing.mark_lost(&file, reason));
        }
        self.locks.forget_owners();
        let renewed = self.session.renewed();
        let session = self.session.begin_next()?;
        tracing::error!(
            %lost,
            %session,
            silent_seconds = renewed.elapsed().as_secs(),
            files,
            "other mounts removed the session of this mount because its heartbeats stopped: its locks are lost, open \
             files that depend on them fail with EIO until they are closed, and a new session has begun"
        );
        Ok(())
    }

    /// Stores and commits all written data, and makes it durable, `syncfs(2)`.
    ///
    /// # Errors
    /// The first error; the remaining steps are done even then.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        let flushed = self.flusher.flush_all().and(self.accesses.write());
        flushed.and(self.commits.make_durable())
    }

    /// Ends the session. All written data is stored and durable, and the session's locks and open files are
    /// removed. Blocks that no file refers to may remain: the next session removes them.
    ///
    /// # Errors
    /// The first error; the remaining steps are done even then.
    pub(crate) fn end(&self) -> Result<(), Errno> {
        let mut done = if self.meta.is_fenced() { self.recover() } else { Ok(()) };
        done = done.and(self.flusher.flush_all());
        for file in self.open.all().iter().filter(|file| file.is_orphan() && !file.is_fenced()) {
            done = done.and(self.commits.change(&Reap { session: self.meta.session(), ino: file.ino }));
        }
        if !self.meta.is_exclusive() {
            // Locks on files that were still open when the file system was unmounted.
            let own = self.meta.session();
            done = done.and(self.cleanup.drop_locks(|session| Ok(session == own)));
        }
        done = done.and(self.accesses.write()).and(self.cleanup.collect(COLLECT_AT_END, 1, &|| false));
        let ended = match self.meta.drop_session(self.meta.session()) {
            // The session is removed, possibly by an earlier attempt whose answer was lost.
            Ok(()) | Err(Failure::Fenced(_)) => Ok(()),
            Err(error) => Err(error.into()),
        };
        done = done.and(ended);
        done.and(self.commits.make_durable())
    }
}
