//! What a mount does by itself while its session lasts, in threads that do not wait for each other.
//!
//! | thread            | does                                                              | waits for       |
//! |-------------------|-------------------------------------------------------------------|-----------------|
//! | `limen-heartbeat` | renews the session, removes silent ones, begins a new one if lost | database        |
//! | `limen-house`     | flushes what was written, makes it durable, writes access times   | store, database |
//! | `limen-cleanup`   | removes what ended sessions left, and results of operations       | database        |
//! | `limen-collect`   | removes blocks that no file refers to, compacts                   | store, database |
//!
//! Only the heartbeat has to be in time; the others may be late without harm.

use host::Instant;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use meta::Failure;
use types::BootInstant;

use crate::cleanup::Watch;
use crate::session::SessionInfo;
use crate::vfs::Vfs;

/// How far behind the disk may be on the embedded engine, ext4's contract at its strictest.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long what was written may stay in memory alone, if nobody closes or syncs the file.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// How often the settings are read again, which `limen config` may have changed.
const SETTINGS_EVERY: Duration = Duration::from_secs(5);
/// How often the oldest mount looks for what ended sessions left.
const CLEAN_EVERY: Duration = Duration::from_secs(10);
const COLLECT_EVERY: Duration = Duration::from_secs(3);
/// How long the results of operations stay stored on a mount that does little.
const TERM_EVERY: Duration = Duration::from_secs(60);
/// How long a lost session's mount waits before it tries again to begin a new one.
const RECOVER_EVERY: Duration = Duration::from_millis(500);

/// What one thread does until the session ends.
type Work = fn(&Vfs);

impl Vfs {
    /// Starts the threads that keep the session alive and the volume tidy. They end with [`Vfs::end`].
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start_housekeeping(self: &Arc<Self>, info: SessionInfo) -> io::Result<()> {
        let _ = self.info.set(info);
        let works: [(&str, Work); 4] = [
            ("limen-heartbeat", Vfs::beat),
            ("limen-house", Vfs::keep_house),
            ("limen-cleanup", Vfs::keep_clean),
            ("limen-collect", Vfs::keep_collecting),
        ];
        for (name, work) in works {
            let vfs = Arc::clone(self);
            let started = host::spawn(name, move || work(&vfs))?;
            self.house.lock().unwrap_or_else(PoisonError::into_inner).push(started);
        }
        Ok(())
    }

    /// Waits for the threads to end.
    pub(crate) fn stop_housekeeping(&self) {
        self.stopping.store(true, Ordering::Release);
        self.meta.wake_waiters();
        let threads = std::mem::take(&mut *self.house.lock().unwrap_or_else(PoisonError::into_inner));
        threads.iter().for_each(|thread| thread.thread().unpark());
        for thread in threads {
            // It has no result, and a panic is in the log.
            let _ = thread.join();
        }
    }

    fn beat(&self) {
        let mut watch = Watch::default();
        // The session was put on record a moment ago.
        let mut due = BootInstant::now() + self.times.heartbeat;
        loop {
            let left = due.saturating_duration_since(BootInstant::now());
            self.meta.wait_fenced(left, || self.is_stopping());
            if self.is_stopping() {
                return;
            }
            if self.meta.is_fenced() {
                if let Err(errno) = self.recover() {
                    tracing::error!(%errno, "cannot begin a new session; trying again");
                    host::park_timeout(RECOVER_EVERY);
                }
                continue;
            }
            due = BootInstant::now() + self.times.heartbeat;
            match self.renew() {
                Ok(()) => {}
                Err(Failure::Fenced(_)) => continue,
                Err(error) => tracing::warn!(%error, "the session could not be renewed; trying again"),
            }
            // If the volume is another's, its lock is: nobody else has a session.
            if !self.is_alone()
                && let Err(errno) = self.watch_sessions(&mut watch)
            {
                tracing::warn!(%errno, "cannot look for mounts that are gone; trying again");
            }
        }
    }

    fn keep_house(&self) {
        let (mut flushed, mut settings_read) = (Instant::now(), Instant::now());
        while !self.is_stopping() {
            host::park_timeout(SYNC_EVERY);
            let mut done = Ok(());
            if flushed.elapsed() >= FLUSH_EVERY {
                done = self.flush_all().and(self.write_accesses());
                flushed = Instant::now();
            }
            if settings_read.elapsed() >= SETTINGS_EVERY {
                done = done.and(self.meta.refresh_settings().map(drop).map_err(Into::into));
                settings_read = Instant::now();
            }
            if let Err(errno) = done.and(self.make_durable_if_dirty()) {
                tracing::warn!(%errno, "housekeeping failed and will be tried again");
            }
        }
    }

    fn keep_clean(&self) {
        let (mut cleaned, mut began_term) = (Instant::now(), Instant::now());
        while !self.is_stopping() {
            host::park_timeout(SYNC_EVERY);
            if began_term.elapsed() >= TERM_EVERY {
                began_term = Instant::now();
                if let Err(error) = self.meta.begin_next_term() {
                    tracing::debug!(%error, "results of operations stay stored");
                }
            }
            let is_due = self.is_elected() && !self.is_alone() && cleaned.elapsed() >= CLEAN_EVERY;
            if !self.leftovers.swap(false, Ordering::AcqRel) && !is_due {
                continue;
            }
            cleaned = Instant::now();
            if let Err(errno) = self.clean_leftovers() {
                self.leftovers.store(true, Ordering::Release);
                tracing::warn!(%errno, "what ended sessions left could not be removed; trying again");
            }
        }
    }

    fn keep_collecting(&self) {
        let mut collected = Instant::now();
        while !self.is_stopping() {
            host::park_timeout(SYNC_EVERY);
            self.compact_candidates();
            if self.is_elected() && collected.elapsed() >= COLLECT_EVERY {
                if let Err(errno) = self.collect_garbage() {
                    tracing::warn!(%errno, "blocks that no file refers to remain; trying again");
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
    fn heartbeats_go_on_while_the_store_hangs() {
        let shared = Shared::new();
        let times = SessionTimes { heartbeat: Duration::from_millis(20), ..NO_WAIT };
        let vfs = shared.mount(times);
        // More than are removed at the same time, so the next ones are asked for as soon as the store answers.
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
        let asked = COLLECTORS as u64 + 1;
        while shared.faults.injected() < asked {
            std::thread::sleep(Duration::from_millis(20));
        }
        // The store has been asked to remove blocks and to take some, and does not answer.
        let beat = || shared.session(vfs.meta().session()).unwrap().heartbeat;
        for _ in 0..5 {
            let before = beat();
            while beat() == before {
                assert_eq!(shared.faults.injected(), asked, "the store has answered");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        shared.faults.clear();
        vfs.end().unwrap();
    }
}
