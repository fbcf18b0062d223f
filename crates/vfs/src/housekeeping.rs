//! The background threads of a mount while its session lasts, except those of [`crate::coherence`]. They do
//! not wait for each other.
//!
//! | thread            | does                                                        | waits for       |
//! |-------------------|-------------------------------------------------------------|-----------------|
//! | `limen-heartbeat` | renews the session, removes dead ones, replaces a lost one  | database        |
//! | `limen-flush`     | stores data and access times, releases locks late, syncs    | store, database |
//! |                   | reads settings                                              | database        |
//! | `limen-cleanup`   | replays journals, removes the state of ended sessions       | store, database |
//! |                   | begins terms, logs quotas above their soft limits           | database        |
//! | `limen-trash`     | empties the trash                                           | database        |
//! | `limen-collect`   | removes blocks that no file refers to, compacts             | store, database |
//! | `limen-commit`    | commits changes in held directories, gives these back       | store, database |
//! |                   | takes directories                                           | database        |
//!
//! Only the heartbeat must be on time; the other threads may be late.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use client::Failure;
use host::Instant;
use types::{BootInstant, Errno, Time};

use crate::cleanup::Watch;
use crate::compact;
use crate::lifecycle::{Lifecycle, Thread};
use crate::soft_limits::SoftLimits;

/// How often the embedded engine is synced to disk: as often as ext4 with the mount option `commit=1`. Other
/// threads check this often whether they have work.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long written data may stay only in memory if no program closes or syncs the file.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// How often the settings are read, because `limen config` may have changed them.
const SETTINGS_EVERY: Duration = Duration::from_secs(5);
/// How often the oldest mount removes the state of ended sessions.
const CLEAN_EVERY: Duration = Duration::from_secs(10);
/// How often the oldest mount checks whether directories of the trash, one for each hour, must be deleted.
const EMPTY_TRASH_EVERY: Duration = Duration::from_secs(60);
/// How often the oldest mount checks whether the volume is nearly full, and directories of the trash must be
/// deleted early.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_secs(5);
const COLLECT_EVERY: Duration = Duration::from_secs(3);
/// How often a mount begins a new term of its session, even if it changes little, so that the stored results
/// of its operations are removed (`client/src/terms.rs`).
const TERM_EVERY: Duration = Duration::from_secs(60);
/// How often quotas are compared with their soft limits, for the log.
const LOOK_AT_QUOTAS_EVERY: Duration = Duration::from_secs(60);
/// How long a mount that lost its session waits before it tries again to begin a new one.
const RECOVER_EVERY: Duration = Duration::from_millis(500);

/// The work of one thread, until [`Stop`](crate::stop::Stop) tells it to end.
type Run = fn(&Lifecycle);

const HEARTBEAT: &str = "limen-heartbeat";
const COMMIT: &str = "limen-commit";

const RUNS: [(&str, Run); 6] = [
    (HEARTBEAT, Lifecycle::run_heartbeat),
    ("limen-flush", Lifecycle::run_flusher),
    ("limen-cleanup", Lifecycle::run_cleanup),
    ("limen-trash", Lifecycle::run_trash),
    ("limen-collect", Lifecycle::run_collector),
    (COMMIT, Lifecycle::run_committer),
];

/// How often [`Lifecycle::pause_threads`] checks whether the threads have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

impl Lifecycle {
    /// Starts those background threads of a session that do not run yet. The session must have begun. The
    /// threads end with [`Lifecycle::end`].
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn start_threads(self: &Arc<Self>) -> io::Result<()> {
        let mut threads = host::lock(&self.threads);
        for (name, run) in RUNS {
            let is_running =
                threads.get(name).is_some_and(|thread| !thread.is_ending && !thread.is_finished());
            if is_running || name == COMMIT && !self.base.meta.is_holding() {
                continue;
            }
            let lifecycle = Arc::clone(self);
            let work = move || {
                while !lifecycle.is_thread_ending(name) {
                    run(&lifecycle);
                }
            };
            threads.insert(name, Thread { handle: host::spawn(name, work)?, is_ending: false });
        }
        Ok(())
    }

    /// Whether the thread of this name, which has stopped its work for a pause, must end. If the pause was
    /// given up meanwhile, the thread must continue: [`Lifecycle::start_threads`] has found it running, and
    /// has started no other.
    fn is_thread_ending(&self, name: &str) -> bool {
        let mut threads = host::lock(&self.threads);
        let stop = &self.base.stop;
        let ends = if name == HEARTBEAT { stop.ends_heartbeat() } else { stop.ends_housekeeping() };
        if ends && let Some(thread) = threads.get_mut(name) {
            thread.is_ending = true;
        }
        ends
    }

    /// Tells the threads to end, and waits for them.
    pub(crate) fn stop_threads(&self) {
        self.base.stop.set();
        self.base.meta.wake_waiters();
        let threads = std::mem::take(&mut *host::lock(&self.threads));
        threads.values().for_each(|thread| thread.handle.thread().unpark());
        for thread in threads.into_values() {
            // The thread returns nothing, and a panic is logged.
            let _ = thread.handle.join();
        }
    }

    /// Tells the threads of housekeeping to end, and with `heartbeat` also the heartbeat's thread, and waits
    /// for at most `timeout`. Returns whether they have ended. [`Lifecycle::start_threads`] starts them
    /// again, after [`Stop::unpause`](crate::stop::Stop::unpause).
    pub(crate) fn pause_threads(&self, heartbeat: bool, timeout: Duration) -> bool {
        self.base.stop.pause(heartbeat);
        self.base.meta.wake_waiters();
        let until = Instant::now() + timeout;
        loop {
            let threads = host::lock(&self.threads);
            let ends = |name: &str| name != HEARTBEAT || heartbeat;
            let mut running =
                threads.iter().filter(|(name, thread)| ends(name) && !thread.is_finished()).peekable();
            if running.peek().is_none() {
                return true;
            }
            running.for_each(|(_, thread)| thread.handle.thread().unpark());
            drop(threads);
            if Instant::now() >= until {
                return false;
            }
            host::sleep(POLL_INTERVAL);
        }
    }

    fn run_heartbeat(&self) {
        let mut watch = Watch::default();
        // The session's record was written a moment ago.
        let mut due = BootInstant::now() + self.base.times.heartbeat;
        loop {
            let left = due.saturating_duration_since(BootInstant::now());
            self.base.meta.wait_fenced(left, || self.base.stop.ends_heartbeat());
            if self.base.stop.ends_heartbeat() {
                return;
            }
            if self.base.meta.is_fenced() {
                match self.recover() {
                    Ok(()) => {}
                    Err(Errno::ESTALE) => {
                        tracing::error!(
                            "cannot begin a new session: the volume was removed, restored, or moved to another object \
                             store; unmount this mount, and mount the volume again"
                        );
                        while !self.base.stop.ends_heartbeat() {
                            host::park_timeout(RECOVER_EVERY);
                        }
                        return;
                    }
                    Err(errno) => {
                        tracing::error!(%errno, "cannot begin a new session; retrying");
                        host::park_timeout(RECOVER_EVERY);
                    }
                }
                continue;
            }
            due = BootInstant::now() + self.base.times.heartbeat;
            match self.session.renew() {
                Ok(()) => {}
                Err(Failure::Fenced(_)) => continue,
                Err(error) => tracing::warn!(%error, "cannot renew the session; retrying"),
            }
            // If this mount is exclusive, it holds the volume's lock, and no other session exists.
            if !self.base.meta.is_exclusive()
                && let Err(errno) = self.cleanup.watch_sessions(&mut watch)
            {
                tracing::warn!(%errno, "cannot check for dead sessions; retrying");
            }
        }
    }

    fn run_flusher(&self) {
        let (mut flushed, mut settings_read) = (Instant::now(), Instant::now());
        while !self.base.stop.ends_housekeeping() {
            host::park_timeout(SYNC_EVERY);
            if let Err(errno) = self.locks.clean() {
                tracing::warn!(%errno, "cannot release locks whose owners are gone; retrying");
            }
            let mut done = Ok(());
            if flushed.elapsed() >= FLUSH_EVERY {
                done =
                    self.base.flush_all().and(self.base.pending_atimes.write()).and(self.base.reap_orphans());
                flushed = Instant::now();
            }
            if settings_read.elapsed() >= SETTINGS_EVERY {
                done = done.and(self.read_settings());
                settings_read = Instant::now();
            }
            if let Err(errno) = done.and(self.base.commits.make_durable_if_dirty()) {
                tracing::warn!(%errno, "cannot flush data, write access times, read settings or sync; retrying");
            }
        }
    }

    fn read_settings(&self) -> Result<(), Errno> {
        let before = self.base.meta.volume().sid_rules.version();
        let trash_days = self.base.meta.volume().trash_days;
        self.base.meta.refresh_settings()?;
        if self.base.meta.volume().sync_metadata {
            self.base.meta.give_back_soon();
        }
        if self.base.meta.volume().trash_days != trash_days {
            // A mount that has the volume exclusively may have cached that there is no trash.
            self.base.caches.invalidate_all();
        }
        if self.base.meta.volume().sid_rules.version() != before {
            self.base.caches.invalidate_access();
        }
        Ok(())
    }

    fn run_committer(&self) {
        self.base.meta.commit_queued(&|| self.base.stop.ends_housekeeping());
    }

    fn run_cleanup(&self) {
        let (mut cleaned, mut began_term) = (Instant::now(), Instant::now());
        let (mut limits, mut looked) = (SoftLimits::default(), Instant::now());
        while !self.base.stop.ends_housekeeping() {
            host::park_timeout(SYNC_EVERY);
            if began_term.elapsed() >= TERM_EVERY {
                began_term = Instant::now();
                if let Err(error) = self.base.meta.begin_next_term() {
                    tracing::debug!(%error, "cannot remove stored results of operations; retrying");
                }
            }
            if looked.elapsed() >= LOOK_AT_QUOTAS_EVERY {
                looked = Instant::now();
                if let Err(error) = limits.log_new(&self.base.meta) {
                    tracing::debug!(%error, "cannot read the quotas; retrying");
                }
            }
            // `replay` logs its errors.
            let _ = self.cleanup.replay();
            let is_due = self.cleanup.is_elected()
                && !self.base.meta.is_exclusive()
                && cleaned.elapsed() >= CLEAN_EVERY;
            if !self.cleanup.take_leftovers() && !is_due {
                continue;
            }
            cleaned = Instant::now();
            if let Err(errno) = self.cleanup.clean_leftovers(true) {
                self.cleanup.set_leftovers();
                tracing::warn!(%errno, "cannot remove the state of ended sessions; retrying");
            }
        }
    }

    fn run_trash(&self) {
        let (mut emptied, mut looked) = (Instant::now(), Instant::now());
        let (mut has_more, mut days) = (false, self.base.meta.volume().trash_days);
        while !self.base.stop.ends_housekeeping() {
            host::park_timeout(SYNC_EVERY);
            if !self.cleanup.is_elected() {
                continue;
            }
            let before = std::mem::replace(&mut days, self.base.meta.volume().trash_days);
            let done = if has_more || days != before || emptied.elapsed() >= EMPTY_TRASH_EVERY {
                emptied = Instant::now();
                self.cleanup.empty_trash(Time::now())
            } else if looked.elapsed() >= LOOK_FOR_ROOM_EVERY {
                looked = Instant::now();
                self.cleanup.empty_trash_if_nearly_full().map(|_| false)
            } else {
                continue;
            };
            has_more = done.unwrap_or_else(|errno| {
                tracing::warn!(%errno, "cannot empty the trash; retrying");
                false
            });
        }
    }

    fn run_collector(&self) {
        let mut collected = Instant::now();
        while !self.base.stop.ends_housekeeping() {
            host::park_timeout(SYNC_EVERY);
            compact::compact_candidates(&self.base);
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
    use crate::SessionTimes;
    use crate::cleanup::COLLECTORS;
    use crate::fixture::{NO_WAIT, Shared, make, root};

    #[test]
    fn threads_continue_after_pauses_that_were_given_up() {
        let vfs = Shared::new().mount(NO_WAIT);
        vfs.lifecycle.start_threads().unwrap();
        for round in 0..1_000 {
            vfs.lifecycle.pause_threads(true, Duration::ZERO);
            // Some threads are ending at this moment.
            let until = Instant::now() + Duration::from_micros(round % 200);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            vfs.base.stop.unpause();
            vfs.lifecycle.start_threads().unwrap();
        }
        // Every thread that was going to end has ended.
        std::thread::sleep(Duration::from_millis(100));
        let threads = host::lock(&vfs.lifecycle.threads);
        let ended: Vec<_> = threads.iter().filter(|(_, thread)| thread.is_finished()).collect();
        assert!(threads.len() >= RUNS.len() - 1 && ended.is_empty(), "{ended:?}");
        drop(threads);
        vfs.lifecycle.end().unwrap();
    }

    #[test]
    fn heartbeats_continue_while_the_store_hangs() {
        let shared = Shared::new();
        let times = SessionTimes { heartbeat: Duration::from_millis(20), ..NO_WAIT };
        let vfs = shared.mount(times);
        // There are more slices than are removed in parallel, so more are requested as soon as the store
        // answers.
        for n in 0..2 * COLLECTORS {
            let name = n.to_string();
            let ino = make(&vfs, &name);
            vfs.files.write(ino, 0, &[1; 5000]).unwrap();
            vfs.files.close(ino).unwrap();
            vfs.names.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
        }
        let ino = make(&vfs, "f");
        vfs.files.write(ino, 0, &[1; 5000]).unwrap();
        for call in [StoreCall::Delete, StoreCall::Put] {
            shared.faults.add(call, Fault::Slow(Duration::from_secs(9)), 1000);
        }
        vfs.lifecycle.start_threads().unwrap();
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
        vfs.lifecycle.end().unwrap();
    }
}
