//! The life of a session, as steps over all parts: begin, recover, sync, end.
//!
//! [`Lifecycle`] holds the background threads, whose work is in [`crate::housekeeping`]. [`crate::cleanup`]
//! handles sessions of other mounts that did not end properly. [`crate::fencing`] handles the open files of a
//! session that this mount has lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;

use client::{Failure, QueueAtExit};
use ops::Reap;
use types::Errno;

use crate::base::Base;
use crate::caller::BY_KERNEL;
use crate::cleanup::{COLLECT_AT_END, Cleanup, Watch};
use crate::locks::Locks;
use crate::session::{Session, SessionInfo};

/// The session of a mount, and its background threads.
#[derive(Debug)]
pub struct Lifecycle {
    pub(crate) base: Arc<Base>,
    pub(crate) session: Session,
    pub(crate) cleanup: Cleanup,
    /// Locked shared by each copy of a tree, compaction and change of a quota that a tool requested. Locked
    /// exclusively during a hand-over, and for a moment at the end of the session, which thereby waits for
    /// these requests.
    pub(crate) tools: RwLock<()>,
    pub(crate) locks: Arc<Locks>,
    /// The background threads, by name.
    pub(crate) threads: Mutex<BTreeMap<&'static str, Thread>>,
}

/// A background thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) handle: JoinHandle<()>,
    /// Whether it has stopped its work and will end.
    pub(crate) is_ending: bool,
}

impl Thread {
    pub(crate) fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl Lifecycle {
    pub(crate) fn new(base: &Arc<Base>, locks: &Arc<Locks>) -> Self {
        Lifecycle {
            base: Arc::clone(base),
            session: Session::new(&base.meta, &base.slices, base.times),
            cleanup: Cleanup::new(base),
            tools: RwLock::default(),
            locks: Arc::clone(locks),
            threads: Mutex::default(),
        }
    }

    /// Begins the session. Before that, commits the changes that ended processes on this machine had answered
    /// but not committed, and removes the sessions of ended processes.
    ///
    /// # Errors
    /// EBUSY if a tool has the volume exclusively; ESTALE if the volume was removed, restored or moved since
    /// it was opened; those of the database.
    pub fn begin(&self, info: SessionInfo) -> Result<(), Errno> {
        self.cleanup.replay()?;
        self.cleanup.watch_sessions(&mut Watch::default())?;
        self.cleanup.clean_leftovers(false)?;
        self.session.begin(info)
    }

    /// Why [`Lifecycle::begin`] could not commit the changes that ended processes had answered.
    pub fn replay_problem(&self) -> Option<String> {
        self.cleanup.replay_problem()
    }

    /// Marks the lost files, then begins a new session in place of the one that other mounts have removed.
    ///
    /// # Errors
    /// As [`Lifecycle::begin`]. The session then stays lost.
    pub(crate) fn recover(&self) -> Result<(), Errno> {
        let lost = self.base.meta.session();
        self.base.caches.invalidate_all();
        self.base.fencing.note_loss(lost);
        let (changes, changed) = self.base.meta.drop_held();
        if changes > 0 {
            tracing::error!(
                changes,
                "changes in held directories were not committed and are lost with the session"
            );
        }
        let locked = self.locks.take_lost();
        let mut files = 0;
        for file in self.base.open.all() {
            let reason = match () {
                () if locked.contains(&file.ino) => "another mount may hold its locks",
                () if file.is_orphan() => "it has no name, and other mounts delete it",
                () if changed.contains(&file.ino) => "changes of it that were not committed are lost",
                () => continue,
            };
            files += u64::from(self.base.fencing.mark_lost(&file, reason));
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

    /// Stores and commits all written data, and makes it durable, as `syncfs(2)` does.
    ///
    /// # Errors
    /// The first error; the remaining steps are done even then.
    pub fn sync(&self) -> Result<(), Errno> {
        let flushed = self.base.flush_all().and(self.base.pending_atimes.write());
        flushed.and(self.base.commits.make_durable())
    }

    /// Ends the background threads, then the session. Before the session ends, all written data is stored and
    /// committed, and the session's locks and unlinked files are removed. The last step makes everything
    /// durable. Blocks that no file refers to may remain: the next session removes them.
    ///
    /// # Errors
    /// The first error; the remaining steps are done even then, except that the session remains if changes
    /// that were answered could not be committed.
    pub fn end(&self) -> Result<(), Errno> {
        self.stop_threads();
        // Wait for the requests of tools. They end early because of the signal to stop.
        drop(host::write(&self.tools));
        let mut done = if self.base.meta.is_fenced() { self.recover() } else { Ok(()) };
        // No thread receives recalls any more, so other mounts would wait in vain for the held directories.
        done = done.and(self.base.meta.give_back().map_err(Errno::from));
        done = done.and(self.base.flush_all()).and(self.base.reap_orphans());
        for file in self.base.open.all().iter().filter(|file| file.is_orphan() && !file.is_fenced()) {
            let reap = Reap { session: self.base.meta.session(), ino: file.ino };
            let Err(failure) = self.base.commits.change_by(&reap, &BY_KERNEL) else { continue };
            let is_of_one = failure.is_of_one();
            done = done.and(Err(failure.into()));
            if !is_of_one {
                break;
            }
        }
        done = done.and(self.base.meta.give_back().map_err(Errno::from));
        if !self.base.meta.is_exclusive() {
            // Files that were still open when the file system was unmounted may have locks.
            let own = self.base.meta.session();
            done = done.and(self.cleanup.drop_locks(|session| Ok(session == own)));
        }
        done =
            done.and(self.base.pending_atimes.write())
                .and(self.cleanup.collect(COLLECT_AT_END, 1, &|| false));
        match self.base.meta.queue_at_exit() {
            QueueAtExit::Empty => {}
            QueueAtExit::Kept => {
                tracing::error!(
                    session = %self.base.meta.session(), seconds = self.base.times.remove_after.as_secs(),
                    "changes that were answered are not committed. They stay in the journal of this mount: mount the volume again on this machine, which commits them, before other mounts remove this session"
                );
                return done;
            }
            QueueAtExit::Lost(changes) => {
                tracing::error!(changes, "changes that were answered could not be committed and are lost");
                done = done.and(Err(Errno::EIO));
            }
        }
        let ended = match self.base.meta.drop_session(self.base.meta.session()) {
            // The session is removed, possibly by an earlier attempt whose answer was lost.
            Ok(()) | Err(Failure::Fenced(_)) => Ok(()),
            Err(error) => Err(error.into()),
        };
        done = done.and(ended);
        done.and(self.base.commits.make_durable())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use journal::{Journals, Memory};
    use meta::MemEngine;
    use suite::{FaultRates, Faulty};
    use types::{BootInstant, Ino, Mode};

    use super::*;
    use crate::fixture::{NO_WAIT, format, mount_with, root};
    use crate::{MakeKind, MakeRequest, VfsOptions};

    #[test]
    fn answered_changes_that_fail_to_commit_at_the_end_are_committed_by_the_next_mount() {
        let rates = FaultRates { before: 1000, ..FaultRates::default() };
        let engine = Arc::new(Faulty::new(MemEngine::default(), 1, rates));
        format(&*engine);
        let journals: Arc<dyn Journals> = Arc::new(Memory::default());
        let options = VfsOptions {
            holds_directories: true,
            journals: Some(journals),
            times: NO_WAIT,
            ..VfsOptions::default()
        };
        let vfs = mount_with(engine.clone(), options.clone());
        vfs.meta().set_current_until(BootInstant::now() + Duration::from_secs(60));
        let make = |parent, name: &[u8], kind| {
            let request = MakeRequest { parent, name, kind, mode: Mode::new(0o755), umask: 0 };
            vfs.names.make(&root(), request).unwrap().ino
        };
        let dir = make(Ino::ROOT, b"d", MakeKind::Directory);
        let file = make(dir, b"f", MakeKind::Regular);
        vfs.meta().set_retry_timeout(Duration::ZERO);
        engine.arm(true);
        assert!(vfs.lifecycle.end().is_err());
        engine.arm(false);
        assert_eq!(vfs.meta().queue_at_exit(), QueueAtExit::Kept);
        drop(vfs);
        let next = mount_with(engine, options);
        assert_eq!(next.names.lookup(&root(), dir, b"f").unwrap().unwrap().ino, file);
    }
}
