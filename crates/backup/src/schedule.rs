//! The thread of a mount that makes backups.
//!
//! All mounts of a volume look for a due backup. The one that claims it makes it ([`ClaimBackup`]). If that fails, the
//! same mount tries again until the next one is due. If that mount ends, the next backup is made when it is due.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use chunk::{BackupId, BlockStore};
use client::Meta;
use dump::DumpError;
use ops::{Authority, BackupClaim, ClaimBackup, FinishBackup};
use types::Time;

use crate::thin::ABANDONED;
use crate::{create, remove_old};

/// How often to look at the settings, and whether the mount ends.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait after an error.
const RETRY_EVERY: Duration = Duration::from_secs(300);
/// The longest time between two looks at the last backup, which another clock may have dated.
const ASK_EVERY: Duration = Duration::from_secs(3600);
/// A backup that takes longer is given up, long before other mounts remove its parts.
const LONGEST: Duration = Duration::from_nanos(ABANDONED / 2);
/// What nice(1) adds: programs on this machine come first.
const NICENESS: i32 = 10;

/// The automatic backups of a mount, until this value is dropped.
#[derive(Debug)]
pub struct Backups {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Backups {
    /// # Errors
    /// The thread cannot be started.
    pub fn start(meta: Arc<Meta>, store: Arc<BlockStore>) -> io::Result<Backups> {
        let stop = Arc::new(AtomicBool::new(false));
        let schedule = Schedule { meta, store, stop: Arc::clone(&stop) };
        let thread = thread::Builder::new().name("limen-backup".into()).spawn(move || schedule.run())?;
        Ok(Backups { stop, thread: Some(thread) })
    }
}

impl Drop for Backups {
    /// Ends a backup that is being made, after its present request to the database or the store.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread returns nothing, and a panic is logged.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Schedule {
    meta: Arc<Meta>,
    store: Arc<BlockStore>,
    stop: Arc<AtomicBool>,
}

impl Schedule {
    fn run(&self) {
        // For a thread, "process 0" is the thread itself (setpriority(2)). Without this, backups only cost more.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let (mut interval, mut ask_at) = (0, Instant::now());
        while !self.is_stopped() {
            let backup_secs = self.meta.volume().backup_secs;
            if backup_secs != interval {
                (interval, ask_at) = (backup_secs, Instant::now());
            }
            if interval != 0 && Instant::now() >= ask_at && !self.meta.is_fenced() {
                ask_at = Instant::now() + self.claim();
            }
            thread::park_timeout(LOOK_EVERY);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Makes a backup if one is due. Returns when to ask again.
    fn claim(&self) -> Duration {
        match self.meta.run(&ClaimBackup, &Authority::Kernel { revisions: None }) {
            Ok(BackupClaim::Claimed(began)) => {
                self.make(began);
                Duration::ZERO
            }
            Ok(BackupClaim::NotBefore(due)) => {
                let left = due.map_or(0, |due| due.nanos().saturating_sub(Time::now().nanos()));
                Duration::from_nanos(u64::try_from(left).unwrap_or(0)).clamp(LOOK_EVERY, ASK_EVERY)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot ask whether a backup of the metadata is due; retrying");
                RETRY_EVERY
            }
        }
    }

    /// Makes the backup that was claimed at `began`.
    fn make(&self, began: Time) {
        let (claimed, volume) = (Instant::now(), self.meta.volume());
        while !self.is_stopped() {
            let tried = Instant::now();
            let mut progress =
                |_| match self.is_stopped() || self.meta.is_fenced() || tried.elapsed() > LONGEST {
                    true => Err(DumpError::Stopped),
                    false => Ok(()),
                };
            let error = match create(self.meta.engine(), volume, &self.store, &mut progress) {
                Ok((backup, note)) => {
                    let took_secs = tried.elapsed().as_secs();
                    tracing::info!(
                        backup = backup.0,
                        note.inodes,
                        note.bytes,
                        took_secs,
                        "backed up the metadata"
                    );
                    return self.finish(began, took_secs, backup);
                }
                Err(error) => error,
            };
            if self.is_stopped() {
                return;
            }
            tracing::warn!(%error, "cannot back up the metadata; retrying");
            while !self.is_stopped() && tried.elapsed() < RETRY_EVERY {
                thread::park_timeout(LOOK_EVERY);
            }
            if claimed.elapsed() >= Duration::from_secs(self.meta.volume().backup_secs) {
                return;
            }
        }
    }

    fn finish(&self, began: Time, took_secs: u64, backup: BackupId) {
        let finish = FinishBackup { began, took_secs };
        if let Err(error) = self.meta.run(&finish, &Authority::Kernel { revisions: None }) {
            tracing::warn!(%error, "cannot note that the metadata was backed up");
        }
        if let Err(error) = remove_old(&self.store, backup) {
            tracing::warn!(%error, "cannot remove old backups of the metadata; the next backup retries");
        }
    }
}
