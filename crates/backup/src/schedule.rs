//! The thread of a mount that makes backups.
//!
//! Each mount of a volume checks whether a backup is due. The mount that claims the backup makes it
//! ([`ClaimBackup`]). If that fails, this mount retries until the next backup is due. If this mount ends
//! before that, no other mount makes the backup in its place. While a mount makes a backup, it renews its
//! claim, so that no other mount begins the next one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use chunk::{BackupId, BlockStore};
use client::Meta;
use dump::DumpError;
use ops::{Authority, BackupClaim, ClaimBackup, FinishBackup, KnownBackup, RenewBackup};
use types::{BootInstant, Time};

use crate::thin::ABANDONED;
use crate::{create, remove_old};

/// How often to check the settings, and whether the mount is ending.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// After an error, the time from the beginning of the failed attempt to the next one, unless the failed
/// attempt took longer.
const RETRY_EVERY: Duration = Duration::from_secs(300);
/// The longest time between two queries for the last backup, which another mount may have made.
const ASK_EVERY: Duration = Duration::from_secs(3600);
/// The longest time that an attempt to make a backup may take, including the time in which the machine is
/// suspended. After that it is given up, long before other mounts would remove its parts as abandoned.
const LONGEST: Duration = Duration::from_nanos(ABANDONED / 2);
/// A claim is renewed this often in the time between two backups.
const RENEWALS: u32 = 4;
/// The shortest time between two renewals.
const MIN_RENEWAL: Duration = Duration::from_secs(10);
/// The nice value of the thread, because programs on this machine come first.
const NICENESS: i32 = 10;

/// Fails if the store belongs to another volume, or to another database of this volume; the text says why.
pub type CheckOwner = dyn Fn() -> Result<(), String> + Send + Sync;

/// The automatic backups of a mount, until this value is dropped.
#[derive(Debug)]
pub struct Backups {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Backups {
    /// `check_owner` is called before and after each backup is written, and before old ones are removed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        meta: Arc<Meta>,
        store: Arc<BlockStore>,
        check_owner: Box<CheckOwner>,
    ) -> io::Result<Backups> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut schedule = Schedule { meta, store, check_owner, stop: Arc::clone(&stop), known: None };
        let thread = thread::Builder::new().name("limen-backup".into()).spawn(move || schedule.run())?;
        Ok(Backups { stop, thread: Some(thread) })
    }
}

impl Drop for Backups {
    /// Stops a backup that is being made, after its current request to the database or the store.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread returns nothing, and a panic is logged.
            let _ = thread.join();
        }
    }
}

struct Schedule {
    meta: Arc<Meta>,
    store: Arc<BlockStore>,
    check_owner: Box<CheckOwner>,
    stop: Arc<AtomicBool>,
    /// The last backup that this mount knows of, with its age, and when it had this age.
    known: Option<(KnownBackup, BootInstant)>,
}

impl Schedule {
    fn run(&mut self) {
        // On Linux, this sets the nice value of this thread only (setpriority(2)). If it fails, backups only
        // slow other programs down more.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let (mut interval, mut ask_at) = (0, BootInstant::now());
        while !self.is_stopped() {
            let backup_secs = self.meta.volume().backup_secs;
            if backup_secs != interval {
                (interval, ask_at) = (backup_secs, BootInstant::now());
            }
            if interval != 0 && BootInstant::now() >= ask_at && !self.meta.is_fenced() {
                ask_at = BootInstant::now() + self.claim();
            }
            thread::park_timeout(POLL_INTERVAL);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Makes a backup if one is due. Returns when to ask again.
    fn claim(&mut self) -> Duration {
        let known = self.known.map(|(known, at)| KnownBackup { age: known.age + at.elapsed(), ..known });
        let mut know = |last| self.known = Some((last, BootInstant::now()));
        match self.meta.run(&ClaimBackup { known }, &Authority::Kernel { revisions: None }) {
            Ok(BackupClaim::Claimed(began)) => {
                know(KnownBackup { began, age: Duration::ZERO });
                self.make(began);
                Duration::ZERO
            }
            Ok(BackupClaim::NotYet { last, left }) => {
                know(last);
                left.clamp(POLL_INTERVAL, ASK_EVERY)
            }
            Ok(BackupClaim::Off) => ASK_EVERY,
            Err(error) => {
                tracing::warn!(%error, "cannot ask whether a backup of the metadata is due; retrying");
                RETRY_EVERY
            }
        }
    }

    /// Makes the backup that was claimed at `began`.
    fn make(&self, began: Time) {
        let (claimed, volume) = (BootInstant::now(), self.meta.volume());
        let (mut renewed, mut is_claimed) = (claimed, true);
        while !self.is_stopped() {
            let tried = BootInstant::now();
            let mut progress = |_| {
                let every = Duration::from_secs(self.meta.volume().backup_secs) / RENEWALS;
                if renewed.elapsed() >= every.max(MIN_RENEWAL) {
                    renewed = BootInstant::now();
                    is_claimed = self.renew(began, claimed.elapsed());
                }
                let must_stop = self.is_stopped() || self.meta.is_fenced() || tried.elapsed() > LONGEST;
                if must_stop || !is_claimed { Err(DumpError::Stopped) } else { Ok(()) }
            };
            let made = create(self.meta.engine(), volume, &self.store, &*self.check_owner, &mut progress);
            let error = match made {
                Ok((backup, manifest)) => {
                    let took_secs = tried.elapsed().as_secs();
                    tracing::info!(
                        backup = backup.0,
                        manifest.inodes,
                        manifest.bytes,
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
            if !is_claimed {
                return tracing::warn!(
                    "stopped a backup of the metadata, because another mount makes the next one"
                );
            }
            tracing::warn!(%error, "cannot back up the metadata; retrying");
            while !self.is_stopped() && tried.elapsed() < RETRY_EVERY {
                thread::park_timeout(POLL_INTERVAL);
            }
            if claimed.elapsed() >= Duration::from_secs(self.meta.volume().backup_secs) {
                return;
            }
        }
    }

    /// Records that the backup is still being made. Returns false if another mount has claimed the next one.
    fn renew(&self, began: Time, ran: Duration) -> bool {
        let renew = RenewBackup { began, ran_secs: ran.as_secs() };
        self.meta.run(&renew, &Authority::Kernel { revisions: None }).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot note that the metadata is being backed up; retrying");
            true
        })
    }

    fn finish(&self, began: Time, took_secs: u64, backup: BackupId) {
        let finish = FinishBackup { began, took_secs };
        if let Err(error) = self.meta.run(&finish, &Authority::Kernel { revisions: None }) {
            tracing::warn!(%error, "cannot note that the metadata was backed up");
        }
        // The change above may have waited for the database, and meanwhile another database may have adopted
        // the store.
        if let Err(error) = (self.check_owner)() {
            tracing::error!(
                error,
                "no old backups are removed, because the object store may not belong to this database"
            );
        } else if let Err(error) = remove_old(&self.store, backup) {
            tracing::warn!(%error, "cannot remove old backups of the metadata; the next backup retries");
        }
    }
}

#[cfg(test)]
mod tests {
    use chunk::{StorageConfig, StoreOptions};
    use meta::{Effect, Engine, LastBackup, MemEngine, Txn, Volume};
    use types::OpId;

    use super::*;

    #[test]
    fn no_backup_is_removed_from_the_store_of_another_database() {
        let engine = Arc::new(MemEngine::default());
        let volume = Volume::in_memory("vol");
        volume.format(&*engine).unwrap();
        let config = StorageConfig { storage: chunk::MEMORY.into(), bucket: String::new() };
        let store = BlockStore::open_with(&config, StoreOptions::default()).unwrap();
        let engine: Arc<dyn Engine> = engine;
        let made = || create(&engine, &volume, &store, &|| Ok(()), &mut |_| Ok(())).unwrap().0;
        let all: Vec<_> = (0..40).map(|_| made()).collect();
        let last = all.into_iter().next_back().unwrap();
        let is_own = Arc::new(AtomicBool::new(false));
        let answer = Arc::clone(&is_own);
        let schedule = Schedule {
            meta: Arc::new(Meta::open(Arc::clone(&engine), 100).unwrap()),
            store: Arc::clone(&store),
            check_owner: Box::new(move || {
                answer.load(Ordering::Relaxed).then_some(()).ok_or_else(|| "another database".to_owned())
            }),
            stop: Arc::default(),
            known: None,
        };
        schedule.finish(Time::now(), 1, last);
        assert_eq!(store.backups().unwrap().len(), 40);
        is_own.store(true, Ordering::Relaxed);
        schedule.finish(Time::now(), 1, last);
        assert!(store.backups().unwrap().len() < 40);
    }

    #[test]
    fn mounts_with_clocks_far_apart_make_one_backup_in_an_interval() {
        let engine = Arc::new(MemEngine::default());
        Volume { created: Time::now(), ..Volume::in_memory("vol") }.format(&*engine).unwrap();
        let config = StorageConfig { storage: chunk::MEMORY.into(), bucket: String::new() };
        let store = BlockStore::open_with(&config, StoreOptions::default()).unwrap();
        let mut schedule = Schedule {
            meta: Arc::new(Meta::open(engine.clone(), 100).unwrap()),
            store: Arc::clone(&store),
            check_owner: Box::new(|| Ok(())),
            stop: Arc::default(),
            known: None,
        };
        assert!(schedule.claim() > Duration::from_secs(3000));
        for round in 0..20 {
            // Another mount makes a backup. Its clock is alternately a day ahead and a day behind.
            let began = Time::new(Time::now().sec() + [86_400, -86_400][round % 2], round as u32);
            let value = LastBackup { took_secs: Some(1), ..LastBackup::begun(began) }.encode();
            let effects = vec![Effect::PutSetting { name: LastBackup::SETTING, value }];
            let op_id = OpId((1 << 90) + round as u128);
            engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
            assert_eq!(schedule.claim(), ASK_EVERY);
        }
        assert_eq!(store.backups().unwrap(), []);
        // No mount has made a backup since.
        let (known, at) = schedule.known.unwrap();
        let hour = Duration::from_secs(3600);
        schedule.known = Some((KnownBackup { age: known.age + hour, ..known }, at));
        assert_eq!(schedule.claim(), Duration::ZERO);
        assert_eq!(store.backups().unwrap().len(), 1);
        assert!(schedule.claim() > Duration::from_secs(3000));
    }
}
