//! A session's life: cleaning up after its predecessors, housekeeping while it lasts, and its orderly end.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use meta::ops::{DropLocks, GetWaits, Reap, StopWaiting};
use meta::{Garbage, Record, Scan, Session};
use types::{Errno, Ino, SessionId, SliceId, Time};

use crate::vfs::{BY_KERNEL, Vfs};

/// Who mounts, for `limen status`.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    pub host: String,
    pub pid: u32,
    pub mountpoint: String,
}

/// How far behind the disk may be on the embedded engine, ext4's contract at its strictest.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long what was written may stay in memory alone, if nobody closes or syncs the file.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);
/// A session that is silent for so long, by the clock of who listens, is taken for dead.
const DEAD_AFTER: Duration = Duration::from_secs(60);
const COLLECT_EVERY: Duration = Duration::from_secs(3);
/// Rows read at a time.
const PAGE: usize = 256;

impl Vfs {
    /// Begins the session, and cleans up after those that are dead.
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin(&self, info: &SessionInfo) -> Result<(), Errno> {
        self.clean_up(info, &mut Pulses::default(), Duty::Arrival)?;
        Ok(self.meta.put_session(self.session(info, Time::now()))?)
    }

    /// Starts the thread that keeps the session alive, the disk at most a second behind, and removes blocks that no
    /// file refers to any more. It ends with [`Vfs::end`].
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start_housekeeping(self: &Arc<Self>, info: SessionInfo) -> std::io::Result<()> {
        let vfs = Arc::clone(self);
        let since = Time::now();
        let house = std::thread::Builder::new().name("limen-house".into()).spawn(move || {
            let mut pulses = Pulses::default();
            // Of several clients the one that has been there longest cleans up for all.
            let mut elected = vfs.is_alone();
            let (mut beat, mut collected, mut flushed) = (Instant::now(), Instant::now(), Instant::now());
            while !vfs.is_stopping() {
                std::thread::park_timeout(SYNC_EVERY);
                let mut done = Ok(());
                if flushed.elapsed() >= FLUSH_EVERY {
                    done = vfs.flush_all().and(vfs.write_accesses());
                    flushed = Instant::now();
                }
                done = done.and(vfs.make_durable_if_dirty());
                vfs.compact_candidates();
                if elected && collected.elapsed() >= COLLECT_EVERY {
                    done = done.and(vfs.collect_garbage());
                    collected = Instant::now();
                }
                if beat.elapsed() >= HEARTBEAT_EVERY {
                    done = done.and(vfs.meta.put_session(vfs.session(&info, since)).map_err(Into::into));
                    if !vfs.is_alone() {
                        let cleaned = vfs.clean_up(&info, &mut pulses, Duty::Routine);
                        done = done.and(cleaned.map(|is_first| elected = is_first));
                    }
                    beat = Instant::now();
                }
                if let Err(errno) = done {
                    tracing::warn!(%errno, "housekeeping failed and will be tried again");
                }
            }
        })?;
        *self.house.lock().unwrap_or_else(PoisonError::into_inner) = Some(house);
        Ok(())
    }

    /// Waits for the housekeeping to end: a heartbeat under way would bring back a session that is off the list.
    fn stop_housekeeping(&self) {
        self.stopping.store(true, Ordering::Release);
        let house = self.house.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(house) = house {
            house.thread().unpark();
            // It has no result, and a panic is in the log.
            let _ = house.join();
        }
    }

    /// Ends the session: all that was written is stored and durable, and nothing of it is left behind.
    ///
    /// # Errors
    /// The first thing that failed; the rest is done even so.
    pub fn end(&self) -> Result<(), Errno> {
        self.stop_housekeeping();
        let mut done = self.flush_all();
        for file in self.files.all().iter().filter(|file| file.is_orphan()) {
            done = done.and(self.change(&Reap { session: self.meta.session(), ino: file.ino }));
        }
        if !self.is_alone() {
            // Of files that were still open when the mount was taken from them.
            let own = self.meta.session();
            done = done.and(self.drop_locks(|session| Ok(session == own)));
        }
        done = done.and(self.write_accesses()).and(self.collect_garbage());
        done = done.and(self.meta.drop_session(self.meta.session()).map_err(Into::into));
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
    fn flush_all(&self) -> Result<(), Errno> {
        let mut done = Ok(());
        for file in self.files.all().iter().filter(|file| !file.is_orphan()) {
            done = done.and(self.flush_locked(file, &mut file.lock()));
        }
        done
    }

    fn session(&self, info: &SessionInfo, since: Time) -> Session {
        Session {
            id: self.meta.session(),
            host: info.host.clone(),
            pid: info.pid,
            mountpoint: info.mountpoint.clone(),
            since,
            heartbeat: Time::now(),
        }
    }

    /// Cleans up after sessions that ended without a word: their orphans and locks go. As a routine that is the duty of
    /// the oldest session alone; says whether that is this one.
    fn clean_up(&self, info: &SessionInfo, pulses: &mut Pulses, duty: Duty) -> Result<bool, Errno> {
        let mut over = HashMap::from([(self.meta.session(), false)]);
        let mut after = SessionId(0);
        let mut dead = Vec::new();
        self.each_page(
            |last| {
                if let Some(Record::Session(session)) = last {
                    after = session.id;
                }
                Scan::Sessions { after, limit: PAGE }
            },
            |record| {
                if let Record::Session(session) = record
                    && session.id != self.meta.session()
                {
                    let is_dead = self.is_dead(session, info, pulses);
                    over.insert(session.id, is_dead);
                    dead.extend(is_dead.then(|| session.clone()));
                }
                Ok(())
            },
        )?;
        pulses.0.retain(|session, _| over.contains_key(session));
        let oldest = over.iter().filter(|(_, is_dead)| !**is_dead).map(|(session, _)| *session).min();
        let is_first = oldest == Some(self.meta.session());
        if duty == Duty::Routine && !is_first {
            return Ok(false);
        }
        self.drop_orphans(|session| self.is_over(session, &mut over))?;
        self.drop_locks(|session| self.is_over(session, &mut over))?;
        for session in dead {
            tracing::info!(session = %session.id, host = session.host, "cleaned up after a session that did not end");
            self.meta.drop_session(session.id)?;
        }
        Ok(is_first)
    }

    /// Whether a session on record is no more. Where this client is alone, no other is.
    fn is_dead(&self, session: &Session, info: &SessionInfo, pulses: &mut Pulses) -> bool {
        let gone = session.host == info.host && !Path::new("/proc").join(session.pid.to_string()).exists();
        self.is_alone() || gone || pulses.silent_for(session) >= DEAD_AFTER
    }

    /// Whether a session that left something behind is no more. One that was not met before may have begun since, but it
    /// is on record before all that it does.
    fn is_over(&self, session: SessionId, over: &mut HashMap<SessionId, bool>) -> Result<bool, Errno> {
        if let Some(&over) = over.get(&session) {
            return Ok(over);
        }
        let after = SessionId(session.0.saturating_sub(1));
        let page = self.meta.scan(&Scan::Sessions { after, limit: 1 })?;
        let there = |record: &Record| matches!(record, Record::Session(found) if found.id == session);
        let is_over = !page.facts.records.iter().any(there);
        over.insert(session, is_over);
        Ok(is_over)
    }

    fn drop_orphans(&self, mut is_over: impl FnMut(SessionId) -> Result<bool, Errno>) -> Result<(), Errno> {
        let mut after = (SessionId(0), Ino(0));
        self.each_page(
            |last| {
                if let Some(Record::Orphan(session, ino)) = last {
                    after = (*session, *ino);
                }
                Scan::Orphans { after, limit: PAGE }
            },
            |record| match record {
                Record::Orphan(session, ino) if is_over(*session)? => {
                    self.change(&Reap { session: *session, ino: *ino })
                }
                _ => Ok(()),
            },
        )
    }

    fn drop_locks(&self, mut is_over: impl FnMut(SessionId) -> Result<bool, Errno>) -> Result<(), Errno> {
        let mut after = Ino(0);
        self.each_page(
            |last| {
                if let Some(Record::Locks(ino, _)) = last {
                    after = *ino;
                }
                Scan::Locks { after, limit: PAGE }
            },
            |record| {
                let Record::Locks(ino, locks) = record else { return Ok(()) };
                let holders: HashSet<SessionId> = locks.iter().map(|lock| lock.owner.session).collect();
                for session in holders {
                    if is_over(session)? {
                        self.change(&DropLocks { ino: *ino, session })?;
                    }
                }
                Ok(())
            },
        )?;
        let waits = self.meta.run(&GetWaits, &BY_KERNEL)?;
        for owner in waits.iter().map(|wait| wait.lock.owner) {
            if is_over(owner.session)? {
                self.change(&StopWaiting(owner))?;
            }
        }
        Ok(())
    }

    fn collect_garbage(&self) -> Result<(), Errno> {
        let mut after = SliceId(0);
        loop {
            let page = self.meta.scan(&Scan::Garbage { after, limit: PAGE })?;
            let mut gone = Vec::with_capacity(page.facts.records.len());
            let mut done = Ok(());
            for record in &page.facts.records {
                let Record::Garbage(Garbage { slice, size }) = record else { continue };
                after = *slice;
                if let Err(error) = self.store.delete_slice(*slice, *size) {
                    tracing::warn!(%error, "blocks that no file refers to could not be removed");
                    done = Err(error.errno());
                    break;
                }
                gone.push(*slice);
            }
            if !gone.is_empty() {
                self.note_change();
                self.meta.drop_garbage(&gone)?;
            }
            if done.is_err() || !page.more || page.facts.records.is_empty() {
                return done;
            }
        }
    }

    /// Does something with every record of a range; `next` says how to go on after the last one.
    fn each_page(
        &self,
        mut next: impl FnMut(Option<&Record>) -> Scan,
        mut each: impl FnMut(&Record) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut last = None;
        loop {
            let page = self.meta.scan(&next(last.as_ref()))?;
            page.facts.records.iter().try_for_each(&mut each)?;
            last = page.facts.records.last().cloned();
            if !page.more || last.is_none() {
                return Ok(());
            }
        }
    }
}

/// Why a client cleans up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// It has come: whatever was left is looked at, for it may be the first one after a crash of all.
    Arrival,
    Routine,
}

/// The last heartbeat seen of each other session, and when it was new. Clocks of other machines, and one that stood still
/// while this machine slept, are not asked.
#[derive(Debug, Default)]
struct Pulses(HashMap<SessionId, (Time, Instant)>);

impl Pulses {
    fn silent_for(&mut self, session: &Session) -> Duration {
        let now = Instant::now();
        let seen = self.0.entry(session.id).or_insert((session.heartbeat, now));
        if seen.0 != session.heartbeat {
            *seen = (session.heartbeat, now);
        }
        now - seen.1
    }
}

#[cfg(test)]
mod tests {
    use meta::Meta;
    use meta::ops::{AtimeMode, GetNode};

    use super::*;
    use crate::fixture::{make, root, volume};

    #[test]
    fn syncfs_brings_what_was_written_to_the_records_and_these_to_the_disk() {
        let (vfs, engine) = volume(AtimeMode::Always);
        let inos = ["a", "b"].map(|name| make(&vfs, name));
        inos.iter().for_each(|&ino| vfs.write(ino, 10, b"text", false).unwrap());
        vfs.accessed(inos[0]);
        let shown = inos.map(|ino| vfs.getattr(ino).unwrap());
        let before = engine.counts();
        vfs.sync().unwrap();
        assert!((engine.counts() - before).syncs > 0);
        let stranger = Meta::open(engine, 1000).unwrap();
        for (ino, shown) in inos.into_iter().zip(shown) {
            let node = stranger.run(&GetNode(ino), &BY_KERNEL).unwrap();
            assert_eq!((node.size, node.mtime, node.atime), (14, shown.mtime, shown.atime));
        }
    }

    #[test]
    fn no_heartbeat_follows_the_end_of_a_session() {
        let vfs = Arc::new(volume(AtimeMode::Never).0);
        let info = SessionInfo { host: "h".into(), pid: 1, mountpoint: "m".into() };
        vfs.begin(&info).unwrap();
        vfs.start_housekeeping(info).unwrap();
        assert_eq!(Arc::strong_count(&vfs), 2);
        vfs.end().unwrap();
        assert_eq!(Arc::strong_count(&vfs), 1);
        let sessions = vfs.meta.scan(&Scan::Sessions { after: SessionId(0), limit: 1 }).unwrap();
        assert!(sessions.facts.records.is_empty());
    }

    #[test]
    fn what_was_removed_is_collected_with_a_read_and_a_commit_for_each_page() {
        let (vfs, engine) = volume(AtimeMode::Always);
        for n in 0..2 * PAGE {
            let name = n.to_string();
            let ino = make(&vfs, &name);
            vfs.write(ino, 0, &[1; 5000], false).unwrap();
            vfs.close(ino).unwrap();
            vfs.unlink(&root(), Ino::ROOT, name.as_bytes()).unwrap();
        }
        let before = engine.counts();
        vfs.collect_garbage().unwrap();
        assert_eq!((engine.counts() - before).round_trips(), 4);
        let rest = vfs.meta.scan(&Scan::Garbage { after: SliceId(0), limit: 1 }).unwrap();
        assert!(rest.facts.records.is_empty());
    }
}
