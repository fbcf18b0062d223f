//! Detects sessions that ended without unmounting, and removes their state.
//!
//! [`Cleanup`] holds whether this mount cleans up for all mounts, and whether there is something to clean up.
//! Each of its locks is held alone.
//!
//! The record of a dead session is removed first, guarded by the heartbeat that was read last. From then on
//! nothing can be committed under that session. Only then are its locks and its unlinked inodes removed, so
//! none can be added after the removal. The mount that removed the record may stop before it finishes: any
//! mount that finds state of an unknown session removes it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use client::{Failure, MARK_NEEDED};
use meta::{Garbage, LockOwner, LockWait, Record, Scan, Session};
use ops::{DropLocks, GetWaits, Reap, StopWaiting};
use types::{BootInstant, Errno, Ino, SessionId, SliceId, Time};

use crate::activity::Event;
use crate::base::Base;
use crate::caller::BY_KERNEL;
use crate::process::has_ended;

/// The maximum number of slices without a row whose blocks are removed at the end of a session. It is small,
/// because umount waits for that, and each slice takes requests to the store. The next mount removes the rest
/// while it serves requests.
pub(crate) const COLLECT_AT_END: usize = 64;
/// Rows read at a time.
pub(crate) const PAGE: usize = 256;
/// Unlinked inodes that one commit removes.
const REAPED_AT_ONCE: usize = 16;
/// Slices whose blocks are removed in parallel.
pub(crate) const COLLECTORS: usize = 4;

/// The heartbeats of other sessions, as read by one mount.
///
/// Clocks of other machines are not used: a session is silent while its heartbeat is unchanged between two
/// reads by this mount. The time between two reads counts as at most two heartbeat intervals. So a mount that
/// was itself stopped, or whose machine was suspended together with the others, does not treat all others as
/// dead.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When the last read returned.
    last_read: Option<BootInstant>,
    /// For each session, its last heartbeat, and for how long this heartbeat has been unchanged.
    silent: HashMap<SessionId, (Time, Duration)>,
}

impl Watch {
    /// Records the result of a read that began at `began`.
    fn update<'a>(
        &mut self,
        sessions: impl Iterator<Item = &'a Session>,
        began: BootInstant,
        max_gap: Duration,
    ) {
        // The time from the end of the last read to the start of this one: the heartbeat was unchanged for at
        // least that long.
        let gap = self
            .last_read
            .map_or(Duration::ZERO, |last_read| began.saturating_duration_since(last_read))
            .min(max_gap);
        let before = std::mem::take(&mut self.silent);
        for session in sessions {
            let silent = match before.get(&session.id) {
                Some((heartbeat, silent)) if *heartbeat == session.heartbeat => *silent + gap,
                _ => Duration::ZERO,
            };
            self.silent.insert(session.id, (session.heartbeat, silent));
        }
        self.last_read = Some(BootInstant::now());
    }

    fn silent_for(&self, session: SessionId) -> Duration {
        self.silent.get(&session).map_or(Duration::ZERO, |(_, silent)| *silent)
    }
}

/// Fails if the object store does not belong to this volume's database, or if that cannot be determined.
pub type OwnerCheck = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The check before objects are removed. None are removed while it fails: a restored copy of the metadata may
/// refer to objects that this database no longer needs.
#[derive(Default)]
pub(crate) struct StoreOwner {
    check: OnceLock<OwnerCheck>,
    has_failed: AtomicBool,
}

impl StoreOwner {
    pub(crate) fn set(&self, check: OwnerCheck) {
        let _ = self.check.set(check);
    }

    fn is_this_database(&self) -> bool {
        match self.check.get().map_or(Ok(()), |check| check()) {
            Ok(()) => self.has_failed.store(false, Ordering::Relaxed),
            Err(error) => {
                if !self.has_failed.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        error,
                        "this mount removes no objects, because the object store may not belong to its database"
                    );
                }
                return false;
            }
        }
        true
    }
}

impl fmt::Debug for StoreOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOwner").field("has_failed", &self.has_failed).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) base: Arc<Base>,
    pub(crate) store_owner: StoreOwner,
    /// Whether this mount cleans up for all mounts.
    elected: AtomicBool,
    /// The number of other sessions when they were last read.
    others: AtomicU64,
    pub(crate) removed: Event,
    pub(crate) failed: Event,
    /// Entries of the trash that this mount has deleted.
    pub(crate) trash_deleted: Event,
    /// Whether the state of a removed session may still have to be cleaned up.
    leftovers: AtomicBool,
    /// The marks of operations that no term guards ([`client::is_mark_without_term`]), and when this mount
    /// first saw each.
    marks: Mutex<HashMap<LockOwner, BootInstant>>,
    /// Why the last replay failed.
    replay_problem: Mutex<Option<String>>,
}

impl Cleanup {
    pub(crate) fn new(base: &Arc<Base>) -> Self {
        Cleanup {
            base: Arc::clone(base),
            store_owner: StoreOwner::default(),
            elected: AtomicBool::default(),
            others: AtomicU64::default(),
            removed: Event::default(),
            failed: Event::default(),
            trash_deleted: Event::default(),
            leftovers: AtomicBool::default(),
            marks: Mutex::default(),
            replay_problem: Mutex::default(),
        }
    }

    /// Commits the changes that mounts of this machine had answered but not committed when their processes
    /// ended.
    ///
    /// # Errors
    /// Those of [`Meta::replay`](client::Meta::replay).
    pub(crate) fn replay(&self) -> Result<(), Errno> {
        let Some(journals) = &self.base.journals else { return Ok(()) };
        let replayed = self.base.meta.replay(&**journals, &self.base.commits.make_durable_by_client());
        let problem = replayed.as_ref().err().map(ToString::to_string);
        // The replay is tried each second, so a problem is logged only when it is new.
        let before = std::mem::replace(&mut *host::lock(&self.replay_problem), problem.clone());
        if let Some(error) = problem.filter(|problem| before.as_ref() != Some(problem)) {
            tracing::warn!(error, "cannot replay the journal of a mount whose process has ended; retrying");
        }
        if replayed? {
            self.base.commits.note_change();
            self.set_leftovers();
        }
        Ok(())
    }

    /// Why the last replay failed.
    pub(crate) fn replay_problem(&self) -> Option<String> {
        host::lock(&self.replay_problem).clone()
    }

    /// Whether this mount has the oldest session, and so cleans up for all mounts.
    pub(crate) fn is_elected(&self) -> bool {
        self.base.meta.is_exclusive() || self.elected.load(Ordering::Acquire)
    }

    /// The number of sessions, including this one, when they were last read.
    pub(crate) fn sessions(&self) -> u64 {
        1 + self.others.load(Ordering::Relaxed)
    }

    /// Reads all other sessions, and removes those that are dead.
    pub(crate) fn watch_sessions(&self, watch: &mut Watch) -> Result<(), Errno> {
        let own = self.base.meta.session();
        let began = BootInstant::now();
        let mut sessions = Vec::new();
        self.each_record(Scan::Sessions { after: SessionId(0), limit: PAGE }, |record| {
            if let Record::Session(_, Some(session)) = record {
                sessions.extend((session.id != own).then(|| session.clone()));
            }
            Ok(())
        })?;
        self.others.store(sessions.len() as u64, Ordering::Relaxed);
        watch.update(sessions.iter(), began, self.base.times.heartbeat * 2);
        let is_silent = |session: &Session| watch.silent_for(session.id) >= self.base.times.remove_after;
        let live = |session: &&Session| !is_silent(session) && !has_ended(session);
        let is_oldest = sessions.iter().filter(live).all(|session| session.id > own);
        self.elected.store(is_oldest, Ordering::Release);
        for session in &sessions {
            let reason = match () {
                () if self.base.meta.is_exclusive() => "no other mount is possible",
                () if has_ended(session) => "its process has ended",
                () if is_oldest && is_silent(session) => "its heartbeat stopped",
                () => continue,
            };
            if self.base.meta.remove_session(session.id, session.heartbeat)? {
                self.base.commits.note_change();
                self.set_leftovers();
                let Session { id, host, pid, mountpoint, .. } = session;
                tracing::warn!(session = %id, host, pid, mountpoint, reason, "removed the session of a mount that has stopped");
            }
        }
        Ok(())
    }

    /// Whether the state of a removed session may have to be removed now. Clears the flag that says so.
    pub(crate) fn take_leftovers(&self) -> bool {
        self.leftovers.swap(false, Ordering::AcqRel)
    }

    /// Sets the flag that the state of a removed session may have to be removed.
    pub(crate) fn set_leftovers(&self) {
        self.leftovers.store(true, Ordering::Release);
    }

    /// Removes the state of sessions that have no record: locks, waits for locks, unlinked inodes, and, with
    /// `trees`, unfinished copies of trees.
    pub(crate) fn clean_leftovers(&self, trees: bool) -> Result<(), Errno> {
        let mut over = HashMap::from([(self.base.meta.session(), false)]);
        // Locks first: other mounts may wait for them, and the removal of unfinished copies may take long.
        self.drop_locks(|session| self.is_over(session, &mut over))?;
        self.drop_orphans(trees, |session| self.is_over(session, &mut over))
    }

    /// Whether a session whose state was found has ended. If so, it has no record, because a session's record
    /// exists before any of its state, and is removed first.
    fn is_over(&self, session: SessionId, over: &mut HashMap<SessionId, bool>) -> Result<bool, Errno> {
        if let Some(&over) = over.get(&session) {
            return Ok(over);
        }
        let after = SessionId(session.0.saturating_sub(1));
        let page = self.base.meta.scan(&Scan::Sessions { after, limit: 1 })?;
        let there = |record: &Record| matches!(record, Record::Session(found, Some(_)) if *found == session);
        let is_over = !page.snapshot.records.iter().any(there);
        over.insert(session, is_over);
        Ok(is_over)
    }

    fn drop_orphans(
        &self,
        trees: bool,
        mut is_over: impl FnMut(SessionId) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let mut gone: Vec<Reap> = Vec::with_capacity(REAPED_AT_ONCE);
        self.each_record(Scan::Orphans { after: (SessionId(0), Ino(0)), limit: PAGE }, |record| {
            if let Record::Orphan(session, ino) = record
                && is_over(*session)?
            {
                gone.push(Reap { session: *session, ino: *ino });
                if gone.len() == REAPED_AT_ONCE {
                    self.reap(&std::mem::take(&mut gone), trees)?;
                }
            }
            Ok(())
        })?;
        self.reap(&gone, trees)
    }

    /// Removes unlinked inodes. Unfinished copies of trees are removed only by the thread of
    /// [`crate::housekeeping`], because that may take long.
    fn reap(&self, gone: &[Reap], trees: bool) -> Result<(), Errno> {
        if gone.is_empty() {
            return Ok(());
        }
        let reaped = self.base.meta.reap(gone, &|| !trees || self.base.stop.ends_housekeeping());
        self.base.commits.note_change();
        match reaped {
            Err(Failure::Operation(Errno::ENOTEMPTY)) => {
                self.set_leftovers();
                Ok(())
            }
            reaped => Ok(reaped?),
        }
    }

    pub(crate) fn drop_locks(
        &self,
        mut is_over: impl FnMut(SessionId) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        self.each_record(Scan::Locks { after: Ino(0), limit: PAGE }, |record| {
            let Record::Locks(ino, locks) = record else { return Ok(()) };
            let holders: BTreeSet<SessionId> = locks.iter().map(|lock| lock.owner.session).collect();
            for session in holders {
                if is_over(session)? {
                    self.base.commits.change(&DropLocks { ino: *ino, session })?;
                }
            }
            Ok(())
        })?;
        let waits = self.base.meta.run(&GetWaits, &BY_KERNEL)?;
        let needed = self.needed_marks(&waits, BootInstant::now());
        for owner in waits.iter().map(|wait| wait.lock.owner) {
            if !needed.contains(&owner) && is_over(owner.session)? {
                self.base.commits.change(&StopWaiting(owner))?;
            }
        }
        Ok(())
    }

    /// The marks that operations without a term may still have to read at `now`.
    fn needed_marks(&self, waits: &[LockWait], now: BootInstant) -> BTreeSet<LockOwner> {
        let owner = |wait: &LockWait| wait.lock.owner;
        let there: BTreeSet<LockOwner> =
            waits.iter().filter(|wait| client::is_mark_without_term(wait)).map(owner).collect();
        let mut marks = host::lock(&self.marks);
        marks.retain(|owner, _| there.contains(owner));
        let mut is_needed = |owner: &LockOwner| {
            now.saturating_duration_since(*marks.entry(*owner).or_insert(now)) < MARK_NEEDED
        };
        there.into_iter().filter(|owner| is_needed(owner)).collect()
    }

    /// Removes the blocks of all slices that no file refers to. Stops early when the session ends, because
    /// umount waits for this.
    pub(crate) fn collect_garbage(&self) -> Result<(), Errno> {
        self.collect(usize::MAX, COLLECTORS, &|| self.base.stop.ends_housekeeping())
    }

    /// Removes the blocks of at most `most` slices that no file refers to, `at_once` of them in parallel.
    /// Stops early if `stop` returns true.
    pub(crate) fn collect(
        &self,
        most: usize,
        at_once: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Errno> {
        let (mut after, mut left) = (SliceId(0), most);
        while left > 0 && !stop() {
            let page = self.base.meta.scan(&Scan::Garbage { after, limit: PAGE.min(left) })?;
            let garbage = page.snapshot.records.iter().filter_map(|record| match record {
                Record::Garbage(garbage) => Some(garbage),
                _ => None,
            });
            let garbage: Vec<&Garbage> = garbage.collect();
            if !garbage.is_empty() {
                if !self.store_owner.is_this_database() {
                    return Ok(());
                }
                // This mount, or another one on this machine, may have removed the rows just before. That
                // must be durable before the blocks are removed: a loss of power would bring the rows back,
                // and their blocks would be gone.
                self.base.commits.sync()?;
            }
            let results = each_at_once(&garbage, at_once, &|Garbage { slice, size }| {
                (!stop()).then(|| self.base.store.delete_slice(*slice, *size).map(|()| *slice))
            });
            let mut gone = Vec::with_capacity(results.len());
            let mut done = Ok(());
            for result in results {
                match result {
                    Ok(slice) => gone.push(slice),
                    Err(error) => {
                        self.failed.add(1);
                        tracing::warn!(%error, "cannot remove blocks that no file refers to");
                        done = Err(error.errno());
                    }
                }
            }
            after = garbage.last().map_or(after, |garbage| garbage.slice);
            if !gone.is_empty() {
                self.base.commits.note_change();
                self.base.meta.drop_garbage(&gone)?;
                self.removed.add(gone.len());
            }
            if done.is_err() || !page.more || page.snapshot.records.is_empty() {
                return done;
            }
            left = left.saturating_sub(page.snapshot.records.len());
        }
        Ok(())
    }

    /// Calls `each` for every record of a scan, and of the scans that continue it.
    fn each_record(
        &self,
        scan: Scan,
        mut each: impl FnMut(&Record) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        for page in scan.pages(|scan| self.base.meta.scan(scan)) {
            page?.iter().try_for_each(&mut each)?;
        }
        Ok(())
    }
}

/// Calls `each` for the items on at most `at_once` threads, until a call fails or returns `None`. Returns the
/// results.
fn each_at_once<T: Sync, R: Send, E: Send>(
    items: &[T],
    at_once: usize,
    each: &(dyn Fn(&T) -> Option<Result<R, E>> + Sync),
) -> Vec<Result<R, E>> {
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut results = Vec::new();
        while !is_over.load(Ordering::Acquire)
            && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let result = each(item);
            if !matches!(result, Some(Ok(_))) {
                is_over.store(true, Ordering::Release);
            }
            results.extend(result);
        }
        results
    };
    let helpers = at_once.min(items.len()).saturating_sub(1);
    host::with_helpers("limen-collector", helpers, &work).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use client::Meta;
    use ops::{AtimeMode, GetInode, Housekeeping};

    use std::sync::Condvar;
    use std::time::Instant;

    use meta::{Effect, Engine, Lock, LockKind, MemEngine, Process, Txn};
    use suite::{Fault, FaultRates, Faulty};
    use types::{OpId, Term};

    use super::*;
    use crate::fixture::{NO_WAIT, Shared, format, make, mount, root, volume};
    use crate::process::this_process;
    use crate::{SessionInfo, Vfs, VfsOptions};

    #[test]
    fn syncfs_commits_written_data_and_syncs_the_database() {
        let (vfs, engine) = volume(AtimeMode::Always);
        let inos = ["a", "b"].map(|name| make(&vfs, name));
        inos.iter().for_each(|&ino| vfs.files.write(ino, 10, b"text").unwrap());
        vfs.attributes.note_atime(inos[0]);
        let shown = inos.map(|ino| vfs.attributes.getattr(ino).unwrap());
        let before = engine.counts();
        vfs.lifecycle.sync().unwrap();
        assert!((engine.counts() - before).syncs > 0);
        let stranger = Meta::open(engine, 1000).unwrap();
        for (ino, shown) in inos.into_iter().zip(shown) {
            let inode = stranger.run(&GetInode(ino), &BY_KERNEL).unwrap();
            assert_eq!((inode.size, inode.mtime, inode.atime), (14, shown.mtime, shown.atime));
        }
    }

    #[test]
    fn heartbeats_stop_at_the_end_of_a_session() {
        let vfs = Arc::new(volume(AtimeMode::Never).0);
        let info = SessionInfo { host: "h".into(), pid: 1, mountpoint: "m".into() };
        vfs.lifecycle.begin(info).unwrap();
        vfs.lifecycle.start_threads().unwrap();
        assert!(Arc::strong_count(&vfs.lifecycle) > 1);
        vfs.lifecycle.end().unwrap();
        assert_eq!(Arc::strong_count(&vfs.lifecycle), 1);
        let sessions = vfs.meta().scan(&Scan::Sessions { after: SessionId(0), limit: 1 }).unwrap();
        assert!(sessions.snapshot.records.is_empty());
    }

    #[test]
    fn no_block_is_removed_before_the_removal_of_its_row_is_durable() {
        let engine = Arc::new(Faulty::new(MemEngine::default(), 1, FaultRates::default()));
        format(&*engine);
        let vfs = mount(engine.clone());
        remove_files(&vfs, 1);
        vfs.meta().set_retry_timeout(Duration::ZERO);
        engine.arm(true);
        // The sync fails.
        engine.script([Fault::None, Fault::Before]);
        assert_eq!(vfs.lifecycle.cleanup.collect_garbage(), Err(Errno::EIO));
        assert_eq!(vfs.base.store.requests().deletes, 0);
        engine.script([]);
        vfs.lifecycle.cleanup.collect_garbage().unwrap();
        assert_eq!(vfs.base.store.requests().deletes, 1);
    }

    #[test]
    fn garbage_is_collected_with_one_read_one_sync_and_one_commit_per_page() {
        let (vfs, engine) = volume(AtimeMode::Always);
        remove_files(&vfs, 2 * PAGE);
        let before = engine.counts();
        vfs.lifecycle.cleanup.collect_garbage().unwrap();
        assert_eq!((engine.counts() - before).round_trips(), 6);
        let rest = vfs.meta().scan(&Scan::Garbage { after: SliceId(0), limit: 1 }).unwrap();
        assert!(rest.snapshot.records.is_empty());
    }

    fn remove_files(vfs: &Vfs, count: usize) {
        for n in 0..count {
            let name = n.to_string();
            let ino = make(vfs, &name);
            vfs.files.write(ino, 0, &[1; 5000]).unwrap();
            vfs.files.close(ino).unwrap();
            vfs.names.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
        }
    }

    #[test]
    fn end_and_begin_of_a_session_do_not_wait_for_all_garbage() {
        let (vfs, engine) = volume(AtimeMode::Never);
        let info = SessionInfo { host: "h".into(), pid: 1, mountpoint: "m".into() };
        vfs.lifecycle.begin(info.clone()).unwrap();
        let count = COLLECT_AT_END + 2 * PAGE;
        remove_files(&vfs, count);
        let deletes = || vfs.base.store.requests().deletes as usize;
        assert_eq!(deletes(), 0);
        vfs.lifecycle.end().unwrap();
        assert_eq!(deletes(), COLLECT_AT_END);

        let meta = Meta::open(engine, 1000).unwrap();
        meta.set_exclusive(true);
        let next = Arc::new(Vfs::new(Arc::new(meta), Arc::clone(&vfs.base.store), VfsOptions::default()));
        next.lifecycle.begin(info).unwrap();
        assert_eq!(deletes(), COLLECT_AT_END);
        next.lifecycle.start_threads().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while deletes() < count && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        next.lifecycle.end().unwrap();
        assert_eq!(deletes(), count);
        let rest = next.meta().scan(&Scan::Garbage { after: SliceId(0), limit: 1 }).unwrap();
        assert!(rest.snapshot.records.is_empty());
    }

    #[test]
    fn garbage_collection_stops_when_the_session_ends() {
        let vfs = volume(AtimeMode::Never).0;
        remove_files(&vfs, 10);
        let deletes = || vfs.base.store.requests().deletes;
        vfs.lifecycle.cleanup.collect(usize::MAX, 1, &|| deletes() == 3).unwrap();
        assert_eq!(deletes(), 3);
        vfs.base.stop.set();
        vfs.lifecycle.cleanup.collect_garbage().unwrap();
        assert_eq!(deletes(), 3);
        let rest = vfs.meta().scan(&Scan::Garbage { after: SliceId(0), limit: PAGE }).unwrap();
        assert_eq!(rest.snapshot.records.len(), 7);
    }

    #[test]
    fn slices_are_collected_in_parallel_and_none_after_a_failure() {
        let (inside, came) = (Mutex::new(0), Condvar::new());
        // Each call waits until `COLLECTORS` calls have begun.
        let meet = |item: &usize| {
            let mut inside = inside.lock().unwrap();
            *inside += 1;
            came.notify_all();
            let wait =
                came.wait_timeout_while(inside, Duration::from_secs(60), |inside| *inside < COLLECTORS);
            (!wait.unwrap().1.timed_out()).then_some(Ok::<usize, ()>(*item))
        };
        let items: Vec<usize> = (0..100).collect();
        let mut met = each_at_once(&items, COLLECTORS, &meet);
        met.sort_unstable();
        assert_eq!(met, items.iter().map(|item| Ok(*item)).collect::<Vec<_>>());
        let fails = |item: &usize| Some(if *item == 5 { Err(()) } else { Ok(*item) });
        assert_eq!(each_at_once(&items, 1, &fails).len(), 6);
        assert!(each_at_once(&items, COLLECTORS, &fails).len() < 100);
    }

    #[test]
    fn no_object_is_removed_from_the_store_of_another_database() {
        let shared = Shared::new();
        let vfs = shared.mount(NO_WAIT);
        let is_own = Arc::new(AtomicBool::new(false));
        let answer = Arc::clone(&is_own);
        vfs.set_store_owner_check(Box::new(move || {
            answer.load(Ordering::Relaxed).then_some(()).ok_or_else(|| "another database".to_owned())
        }));
        let ino = make(&vfs, "f");
        vfs.files.write(ino, 0, &[1; 100_000]).unwrap();
        vfs.files.close(ino).unwrap();
        vfs.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        let cleanup = &vfs.lifecycle.cleanup;
        cleanup.collect_garbage().unwrap();
        assert_eq!(cleanup.removed.count(), 0);
        is_own.store(true, Ordering::Relaxed);
        cleanup.collect_garbage().unwrap();
        assert_eq!(cleanup.removed.count(), 1);
    }

    #[test]
    fn the_mark_of_a_tool_is_kept_while_the_tool_may_read_it() {
        let shared = Shared::new();
        let vfs = shared.mount(NO_WAIT);
        // `mark` is that of an operation that no term guards. The other two waits, of ended sessions, are
        // removed.
        let wait = |session, owner, end| {
            let owner = LockOwner { session: SessionId(session), owner, kind: LockKind::Flock };
            LockWait { ino: Ino::ROOT, lock: Lock { start: 0, end, owner, exclusive: false, pid: 0 } }
        };
        let (mark, other) = (wait(999, 1, 0), wait(999, 2, u64::MAX));
        let of_session = wait(998, 1 << 32, 0);
        let effects = [mark, other, of_session].map(Effect::PutWait).to_vec();
        let op_id = OpId::new(SessionId(999), Term::NONE, 7);
        shared.engine.commit(&[Txn { op_id, guards: Vec::new(), effects }]).unwrap();
        let cleanup = &vfs.lifecycle.cleanup;
        (0..2).for_each(|_| cleanup.clean_leftovers(true).unwrap());
        assert_eq!(vfs.meta().run(&GetWaits, &BY_KERNEL).unwrap()[..], [mark]);
        let seen = BootInstant::now();
        assert_eq!(cleanup.needed_marks(&[mark], seen).len(), 1);
        assert!(cleanup.needed_marks(&[mark], seen + MARK_NEEDED).is_empty());
        // A mark that was removed needs no entry.
        assert!(cleanup.needed_marks(&[], seen).is_empty());
        assert!(host::lock(&cleanup.marks).is_empty());
    }

    #[test]
    fn one_commit_removes_several_unlinked_inodes() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let count = 3 * REAPED_AT_ONCE + 1;
        for n in 0..count {
            make(&old, &n.to_string());
            old.names.unlink(&root(), Ino::ROOT, n.to_string().as_bytes()).unwrap();
        }
        let session = shared.session(old.meta().session()).unwrap();
        assert!(new.meta().remove_session(session.id, session.heartbeat).unwrap());
        let before = shared.engine.counts();
        new.lifecycle.cleanup.clean_leftovers(true).unwrap();
        assert_eq!((shared.engine.counts() - before).commits, 4);
        let left = new.meta().scan(&Scan::Orphans { after: (SessionId(0), Ino(0)), limit: 1 }).unwrap();
        assert!(left.snapshot.records.is_empty());
    }

    #[test]
    fn silence_counts_only_between_two_reads_of_the_sessions() {
        let shared = Shared::new();
        let vfs = shared.mount(NO_WAIT);
        let session = shared.session(vfs.meta().session()).unwrap();
        let most = Duration::from_secs(10);
        let mut watch = Watch::default();
        let silent = |watch: &Watch| watch.silent_for(session.id);
        watch.update([&session].into_iter(), BootInstant::now(), most);
        assert_eq!(silent(&watch), Duration::ZERO);
        watch.update([&session].into_iter(), BootInstant::now() + Duration::from_secs(4), most);
        let once = silent(&watch);
        assert!(once >= Duration::from_secs(4) && once < most);
        // This mount, or its whole machine, was stopped for an hour.
        watch.update([&session].into_iter(), BootInstant::now() + Duration::from_secs(3600), most);
        assert_eq!(silent(&watch), once + most);
        let renewed =
            Session { heartbeat: Time::from_nanos(session.heartbeat.nanos() + 1), ..session.clone() };
        watch.update([&renewed].into_iter(), BootInstant::now() + Duration::from_secs(4), most);
        assert_eq!(silent(&watch), Duration::ZERO);
    }

    #[test]
    fn session_is_removed_at_once_only_if_its_process_is_proven_dead() {
        let shared = Shared::new();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let here = this_process();
        let gone = Process { start_time: here.start_time + 1, ..here.clone() };
        let processes = [
            gone.clone(),
            Process { pid_namespace: here.pid_namespace + 1, ..gone.clone() },
            Process { boot_id: "another".into(), ..gone },
            Process::default(),
        ];
        let first = shared.mount(NO_WAIT);
        let ids = processes.map(|process| {
            let id = SessionId(first.meta().lease(meta::Counter::Session, 1).unwrap());
            let own = shared.session(first.meta().session()).unwrap();
            let put = Effect::PutSession(Session { id, pid, process, ..own });
            first.meta().run(&Housekeeping(vec![put]), &BY_KERNEL).unwrap();
            id
        });
        let second = shared.mount(NO_WAIT);
        second.lifecycle.cleanup.watch_sessions(&mut Watch::default()).unwrap();
        assert_eq!(ids.map(|id| shared.session(id).is_some()), [false, true, true, true]);
        assert!(shared.session(first.meta().session()).is_some());
    }

    #[test]
    fn only_the_oldest_mount_removes_a_silent_session() {
        let shared = Shared::new();
        let [oldest, silent, youngest] = [(); 3].map(|()| shared.mount(NO_WAIT));
        let id = silent.meta().session();
        let own = shared.session(id).unwrap();
        for (vfs, is_removed) in [(&youngest, false), (&oldest, true)] {
            let mut watch = Watch::default();
            let long = (own.heartbeat, Duration::MAX);
            // The session has been silent for longer than any limit.
            watch.silent.insert(id, long);
            vfs.lifecycle.cleanup.watch_sessions(&mut watch).unwrap();
            assert_eq!(shared.session(id).is_none(), is_removed);
        }
        assert!(oldest.lifecycle.cleanup.is_elected() && !youngest.lifecycle.cleanup.is_elected());
    }
}
