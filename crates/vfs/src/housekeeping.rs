//! The background threads of a mount while its session lasts. They do not wait for each other.
//!
//! | thread            | does                                                        | waits for       |
//! |-------------------|-------------------------------------------------------------|-----------------|
//! | `limen-heartbeat` | renews the session, removes dead ones, replaces a lost one  | database        |
//! | `limen-flush`     | flushes written data, makes it durable, writes access times | store, database |
//! | `limen-cleanup`   | removes state of ended sessions, and results of operations  | database        |
//! | `limen-collect`   | removes blocks that no file refers to, compacts             | store, database |
//!
//! Holds the threads. Each has its own reference to the parts that it works with, and none to the facade.
//!
//! Only the heartbeat must be on time; the other threads may be late.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use client::{Failure, Meta};
use host::Instant;
use types::BootInstant;

use crate::atime::Accesses;
use crate::cleanup::{Cleanup, Watch};
use crate::commits::Commits;
use crate::compact::Compactor;
use crate::flush::Flusher;
use crate::lifecycle::Lifecycle;
use crate::session::Session;
use crate::stop::Stop;

/// How often the embedded engine is synced to disk: the strictest contract of ext4.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long written data may stay only in memory if no program closes or syncs the file.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// How often the settings are read, because `limen config` may have changed them.
const SETTINGS_EVERY: Duration = Duration::from_secs(5);
/// How often the oldest mount removes the state of ended sessions.
const CLEAN_EVERY: Duration = Duration::from_secs(10);
const COLLECT_EVERY: Duration = Duration::from_secs(3);
/// How long the results of operations stay stored if a mount changes little.
const TERM_EVERY: Duration = Duration::from_secs(60);
/// How long a mount that lost its session waits before it tries again to begin a new one.
const RECOVER_EVERY: Duration = Duration::from_millis(500);

/// The work of one thread, until the session ends.
type Run = fn(&Work);

/// What the threads work with.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) meta: Arc<Meta>,
    pub(crate) session: Arc<Session>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) cleanup: Arc<Cleanup>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) accesses: Arc<Accesses>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) compactor: Compactor,
    pub(crate) stop: Stop,
}

#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) work: Arc<Work>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Housekeeping {
    pub(crate) fn new(work: Work) -> Self {
        Housekeeping { work: Arc::new(work), threads: Mutex::default() }
    }

    /// Starts the background threads. They end with [`Housekeeping::stop`].
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub(crate) fn start(&self) -> io::Result<()> {
        let runs: [(&str, Run); 4] = [
            ("limen-heartbeat", Work::run_heartbeat),
            ("limen-flush", Work::run_flusher),
            ("limen-cleanup", Work::run_cleanup),
            ("limen-collect", Work::run_collector),
        ];
        for (name, run) in runs {
            let work = Arc::clone(&self.work);
            let started = host::spawn(name, move || run(&work))?;
            self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(started);
        }
        Ok(())
    }

    /// Waits for the threads to end.
    pub(crate) fn stop(&self) {
        self.work.stop.set();
        self.work.meta.wake_waiters();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.iter().for_each(|thread| thread.thread().unpark());
        for thread in threads {
            // The thread returns nothing, and a panic is logged.
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run_heartbeat(&self) {
        let mut watch = Watch::default();
        // The session's record was written a moment ago.
        let mut due = BootInstant::now() + self.session.times.heartbeat;
        loop {
            let left = due.saturating_duration_since(BootInstant::now());
            self.meta.wait_fenced(left, || self.stop.is_set());
            if self.stop.is_set() {
                return;
            }
            if self.meta.is_fenced() {
                if let Err(errno) = self.lifecycle.recover() {
                    tracing::error!(%errno, "cannot begin a new session; retrying");
                    host::park_timeout(RECOVER_EVERY);
                }
                continue;
            }
            due = BootInstant::now() + self.session.times.heartbeat;
            match self.session.renew() {
                Ok(()) => {}
                Err(Failure::Fenced(_)) => continue,
                Err(error) => tracing::warn!(%error, "cannot renew the session; retrying"),
            }
            // If this client is alone, it holds the volume's lock, and no other session exists.
            if !self.meta.is_exclusive()
                && let Err(errno) = self.cleanup.watch_sessions(&mut watch)
            {
                tracing::warn!(%errno, "cannot check for dead sessions; retrying");
            }
        }
    }

    fn run_flusher(&self) {
        let (mut flushed, mut settings_read) = (Instant::now(), Instant::now());
        while !self.stop.is_set() {
            host::park_timeout(SYNC_EVERY);
            let mut done = Ok(());
            if flushed.elapsed() >= FLUSH_EVERY {
                done = self.flusher.flush_all().and(self.accesses.write());
                flushed = Instant::now();
            }
            if settings_read.elapsed() >= SETTINGS_EVERY {
                done = done.and(self.meta.refresh_settings().map(drop).map_err(Into::into));
                settings_read = Instant::now();
            }
            if let Err(errno) = done.and(self.commits.make_durable_if_dirty()) {
                tracing::warn!(%errno, "cannot flush data, write access times, read settings or sync; retrying");
            }
        }
    }

    fn run_cleanup(&self) {
        let (mut cleaned, mut began_term) = (Instant::now(), Instant::now());
        while !self.stop.is_set() {
            host::park_timeout(SYNC_EVERY);
            if began_term.elapsed() >= TERM_EVERY {
                began_term = Instant::now();
                if let Err(error) = self.meta.begin_next_term() {
                    tracing::debug!(%error, "cannot remove stored results of operations; retrying");
                }
            }
            let is_due =
                self.cleanup.is_elected() && !self.meta.is_exclusive() && cleaned.elapsed() >= CLEAN_EVERY;
            if !self.cleanup.take_leftovers() && !is_due {
                continue;
            }
            cleaned = Instant::now();
            if let Err(errno) = self.cleanup.clean_leftovers() {
                self.cleanup.set_leftovers();
                tracing::warn!(%errno, "cannot remove the state of ended sessions; retrying");
            }
        }
    }

    fn run_collector(&self) {
        let mut collected = Instant::now();
        while !self.stop.is_set() {
            host::park_timeout(SYNC_EVERY);
            self.compactor.compact_candidates();
            if self.cleanup.is_elected() && collected.elapsed() >= COLLECT_EVERY {
                if let Err(errno) = self.cleanup.collect_garbage() {
                    tracing::warn!(%errno, "cannot remove all blocks that no file refers to; retrying");
                }
                collected = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chunk::{Fault, StoreCall};
    use types::Ino;

    use super::*;
    use crate::cleanup::COLLECTORS;
    use crate::fixture::{NO_WAIT, Shared, make, root};
    use crate::{SessionInfo, SessionTimes};

    #[test]
    fn heartbeats_continue_while_the_store_hangs() {
        let shared = Shared::new();
        let times = SessionTimes { heartbeat: Duration::from_millis(20), ..NO_WAIT };
        let vfs = shared.mount(times);
        // More slices than are removed in parallel, so more are requested as soon as the store answers.
        for n in 0..2 * COLLECTORS {
            let name = n.to_string();
            let ino = make(&vfs, &name);
            vfs.write(ino, 0, &[1; 5000]).unwrap();
            vfs.close(ino).unwrap();
            vfs.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
        }
        let ino = make(&vfs, "f");
        vfs.write(ino, 0, &[1; 5000]).unwrap();
        for call in [StoreCall::Delete, StoreCall::Put] {
            shared.faults.add(call, Fault::Slow(Duration::from_secs(9)), 1000);
        }
        vfs.start_housekeeping(SessionInfo::default()).unwrap();
        let injected = COLLECTORS as u64 + 1;
        while shared.faults.injected() < injected {
            std::thread::sleep(Duration::from_millis(20));
        }
        // The store has received requests to delete and to store blocks, and does not answer.
        let heartbeat = || shared.session(vfs.meta().session()).unwrap().heartbeat;
        for _ in 0..5 {
            let before = heartbeat();
            while heartbeat() == before {
                assert_eq!(shared.faults.injected(), injected, "the store has answered");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        shared.faults.clear();
        vfs.end().unwrap();
    }
}
