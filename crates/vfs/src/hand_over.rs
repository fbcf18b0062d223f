//! The hand-over of a mount from one process to the next, which serves the same kernel from then on.
//!
//! The process that hands over first reduces its state in memory: it stores written data, gives back held
//! directories, and settles operations in doubt. A [`MountState`] describes the rest: the session, open files
//! and directories, locks, and the inodes and names that the kernel holds. The next process begins with
//! empty caches.
//!
//! Nothing that is described changes until the hand-over has succeeded or failed, because no request is
//! handled, and the background threads have ended. Only the threads that receive changes of other clients go
//! on, and invalidate the kernel's caches. The next process begins to receive changes before they end. If it
//! cannot, it invalidates all of the kernel's caches when it begins to serve.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, RwLockWriteGuard};
use std::time::Duration;

use client::SessionState;
use meta::Inode;
use serde::{Deserialize, Serialize};
use types::{Errno, Time};

use crate::coherence::KernelState;
use crate::lifecycle::Lifecycle;
use crate::listings::ListingState;
use crate::locks::LockState;
use crate::open::FileState;
use crate::session::SessionInfo;
use crate::vfs::Vfs;

/// The version of the format of [`MountState`]. Increment it with each change of `MountState` or of anything
/// in it.
pub const FORMAT: u32 = 3;

/// How long the background threads may take to end. They end after their present request.
const THREADS_END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to store everything. That is done twice: while requests are still handled, and again
/// when they wait.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

/// A mount, as one process describes it to the next.
#[derive(Debug, Serialize, Deserialize)]
pub struct MountState {
    session: SessionState,
    since: Time,
    files: Vec<FileState>,
    listings: ListingState,
    locks: LockState,
    kernel: KernelState,
    unlinked: Vec<Inode>,
    is_kernel_without_acls: bool,
}

/// A hand-over by this process. When dropped, the mount continues here.
#[derive(Debug)]
pub struct HandOver<'a> {
    vfs: &'a Arc<Vfs>,
    /// Keeps tools from beginning to copy a tree, to compact a file or to count a quota.
    _tools: RwLockWriteGuard<'a, ()>,
}

impl Vfs {
    /// Begins to hand this mount over. Requests are still served. As much as possible is stored now, so that
    /// requests wait only for a short time later.
    ///
    /// # Errors
    /// Why the mount cannot be handed over now. It continues here.
    pub fn begin_hand_over(self: &Arc<Self>) -> Result<HandOver<'_>, String> {
        let tools = self.lifecycle.tools.try_write();
        let tools = tools.map_err(|_| {
            "a tool copies a tree, compacts a file or counts a quota through this mount".to_owned()
        })?;
        let hand_over = HandOver { vfs: self, _tools: tools };
        hand_over.within(STORE_TIMEOUT, |lifecycle| lifecycle.settle_all())?;
        if !self.lifecycle.pause_threads(false, THREADS_END_TIMEOUT) {
            return Err("the database or the object store does not answer the background threads".into());
        }
        Ok(hand_over)
    }

    /// Continues a mount that another process has described, with empty caches. Nothing is changed in the
    /// database.
    ///
    /// # Errors
    /// The session was removed meanwhile; those of the database.
    pub fn take_over(&self, state: MountState, info: SessionInfo) -> Result<(), String> {
        let MountState { session, since, files, listings, locks, kernel, unlinked, is_kernel_without_acls } =
            state;
        let record = self.meta().session_of(session.session).map_err(|error| error.to_string())?;
        if record.is_none_or(|record| record.since != since) {
            return Err("the session of the mount was removed".into());
        }
        self.meta().take_session(&session);
        self.lifecycle.session.take_over(info, since);
        for file in files {
            self.base.open.restore(file, || self.base.new_buffer());
        }
        self.listings.restore(listings);
        self.locks.restore(locks);
        self.caches.restore(kernel);
        self.attributes.restore(unlinked, is_kernel_without_acls);
        Ok(())
    }

    /// Begins to use the session that this process has taken over. The previous process must not use it any
    /// more.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn continue_session(&self) -> std::io::Result<()> {
        let session = &self.lifecycle.session;
        self.meta().begin_journal(self.meta().session(), session.since());
        if let Err(error) = session.renew() {
            tracing::warn!(%error, "cannot renew the session that was taken over; retrying");
        }
        self.lifecycle.start_threads()
    }
}

impl HandOver<'_> {
    /// Describes the mount. The caller must ensure that no request is handled until the hand-over has
    /// succeeded or failed.
    ///
    /// # Errors
    /// Why the mount cannot be handed over now.
    pub fn describe(&self) -> Result<MountState, String> {
        let base = &self.vfs.base;
        self.within(STORE_TIMEOUT, Lifecycle::settle_all)?;
        // Other mounts of this machine would treat the journal of the ended process as that of an ended
        // mount, but this mount continues in another process.
        if !base.meta.end_empty_journal() {
            return Err("a change is still to be committed".into());
        }
        self.vfs.lifecycle.session.set_leaving(true);
        self.within(STORE_TIMEOUT, |lifecycle| lifecycle.session.renew().map_err(Errno::from))?;
        if !self.vfs.lifecycle.pause_threads(true, THREADS_END_TIMEOUT) {
            return Err("the database does not answer".into());
        }
        let files = base.open.describe().ok_or("data that was written to open files cannot be stored")?;
        let locks = self.vfs.locks.describe().ok_or("a request for a lock is not settled yet")?;
        if !base.commits.in_doubt.is_empty() {
            return Err("an earlier change may still happen".into());
        }
        let (unlinked, is_kernel_without_acls) = self.vfs.attributes.describe();
        Ok(MountState {
            session: self.vfs.meta().session_state()?,
            since: self.vfs.lifecycle.session.since(),
            files,
            listings: self.vfs.listings.describe(),
            locks,
            kernel: self.vfs.caches.describe(),
            unlinked,
            is_kernel_without_acls,
        })
    }

    /// The hand-over has succeeded: the mount continues in another process, and this process must not
    /// continue it.
    pub fn complete(self) {
        std::mem::forget(self);
    }

    /// Runs work that waits for the store and the database, on a thread of its own. If the work takes longer
    /// than `timeout`, this fails, and the thread continues the work.
    fn within(
        &self,
        timeout: Duration,
        work: impl FnOnce(&Lifecycle) -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), String> {
        let (send, receive) = sync_channel(1);
        let lifecycle = Arc::clone(&self.vfs.lifecycle);
        let run = move || _ = send.send(work(&lifecycle));
        host::spawn("limen-settle", run).map_err(|error| format!("cannot start a thread: {error}"))?;
        match receive.recv_timeout(timeout) {
            Ok(done) => done.map_err(|errno| {
                format!("what the mount has in memory cannot be stored: {errno}; its log tells why")
            }),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err("what the mount has in memory was not stored in time".into())
            }
        }
    }
}

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        let (base, session) = (&self.vfs.base, &self.vfs.lifecycle.session);
        session.set_leaving(false);
        if !base.meta.has_journal() {
            base.meta.begin_journal(base.meta.session(), session.since());
        }
        base.stop.unpause();
        if let Err(error) = self.vfs.lifecycle.start_threads() {
            tracing::error!(%error, "cannot start a thread of this mount again");
        }
    }
}

impl Lifecycle {
    /// Stores and commits everything that this process has in memory, including the data of open files
    /// without a name. Gives back held directories, and settles operations in doubt.
    ///
    /// # Errors
    /// The first error; the remaining steps are done even then.
    fn settle_all(&self) -> Result<(), Errno> {
        let mut done = self.base.abandoned.settle(None).and(self.base.commits.settle().map_err(Errno::from));
        for file in self.base.open.all() {
            let mut data = file.lock();
            if file.is_fenced() {
                // This drops the file's written data. It fails with EIO, because the file is lost.
                let _ = self.base.fencing.session_of(&file, &mut data);
            } else if data.lost.is_none() {
                done = done.and(self.base.flush_locked(&file, &mut data));
            }
        }
        done =
            done.and(self.locks.clean()).and(self.base.pending_atimes.write()).and(self.base.reap_orphans());
        done = done.and(self.base.meta.give_back().map_err(Errno::from));
        if self.base.meta.is_in_doubt() {
            // The operation in doubt may be in the current term. The first call only begins the next term,
            // and the second call can then end the earlier one.
            for _ in 0..2 {
                done = done.and(self.base.meta.begin_next_term().map_err(Errno::from));
            }
        }
        done.and(self.base.commits.make_durable_if_dirty())
    }
}

#[cfg(test)]
mod tests {
    use chunk::{Fault, StoreCall};
    use ops::Locked;
    use types::Ino;

    use super::*;
    use crate::attr::NOTIFIED_LIFETIME;
    use crate::fixture::{NO_WAIT, Shared, make, root};
    use crate::{DirHandle, DirPosition, LockKind, LockRequest};

    const LOCK: LockRequest =
        LockRequest { kind: LockKind::Posix, owner: 1, exclusive: true, start: 0, end: u64::MAX, pid: 1 };

    /// Lists at most `count` names, from a position on. Also returns the position after them.
    fn list(vfs: &Vfs, dir: DirHandle, from: DirPosition, count: usize) -> (Vec<String>, DirPosition) {
        let (mut names, mut position) = (Vec::new(), from);
        let mut take = |entry: crate::DirEntry<'_>| {
            if names.len() == count {
                return false;
            }
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            position = entry.next;
            true
        };
        vfs.listings.readdir(dir, from, false, &mut take).unwrap();
        (names, position)
    }

    #[test]
    fn the_next_process_continues_open_files_listings_locks_and_the_session() {
        let shared = Shared::new();
        let [old, other] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let [kept, gone] = ["kept", "gone"].map(|name| make(&old, name));
        assert_eq!(old.locks.take_lock(kept, 7, LOCK, false), Ok(Locked::Granted));
        for ino in [kept, gone] {
            old.files.write(ino, 0, b"text").unwrap();
        }
        old.names.unlink(&root(), Ino::ROOT, b"gone").unwrap();
        let dir = old.listings.opendir(&root(), Ino::ROOT).unwrap();
        let (mut names, position) = list(&old, dir, DirPosition(0), 2);
        assert_eq!(old.caches.name_sent(Ino::ROOT, b"kept", NOTIFIED_LIFETIME), NOTIFIED_LIFETIME);

        let hand_over = old.begin_hand_over().unwrap();
        let state = hand_over.describe().unwrap();
        let next = shared.next_process();
        // The next process does not use records that it read before the take-over.
        next.attributes.getattr(Ino::ROOT).unwrap();
        next.take_over(state, SessionInfo { pid: 99, ..SessionInfo::default() }).unwrap();
        let id = old.meta().session();
        let before = shared.session(id).unwrap();
        assert!(before.process.boot_id.is_empty(), "the end of the old process would end the session");
        hand_over.complete();
        next.continue_session().unwrap();
        let after = shared.session(id).unwrap();
        assert_eq!((next.meta().session(), after.since, after.pid), (id, before.since, 99));
        assert!(!after.process.boot_id.is_empty());

        assert_eq!(next.caches.kernel_names().of(Ino::ROOT), [b"kept"[..].into()]);
        for ino in [kept, gone] {
            assert_eq!(next.files.read(ino, 0, 9).unwrap(), &b"text"[..]);
            next.files.write(ino, 4, b"!").unwrap();
        }
        let (more, _) = list(&next, dir, position, 9);
        names.extend(more);
        assert_eq!(names, [".", "..", "kept"]);
        other.files.open(&root(), kept, crate::OpenAccess { read: true, ..Default::default() }).unwrap();
        assert_eq!(other.locks.take_lock(kept, 7, LOCK, false), Err(Errno::EAGAIN));
        next.locks.unlock_handle(kept, 7, None).unwrap();
        assert_eq!(other.locks.take_lock(kept, 7, LOCK, false), Ok(Locked::Granted));
        next.files.close(gone).unwrap();
        assert_eq!(next.attributes.getattr(gone), Err(Errno::ESTALE));
        next.files.close(kept).unwrap();
        next.lifecycle.end().unwrap();
        assert!(shared.session(id).is_none());
    }

    #[test]
    fn a_hand_over_that_fails_leaves_the_mount_as_it_was() {
        let shared = Shared::new();
        let old = shared.mount(NO_WAIT);
        old.lifecycle.start_threads().unwrap();
        let ino = make(&old, "f");
        old.files.write(ino, 0, &[1; 300_000]).unwrap();
        shared.faults.add(StoreCall::Put, Fault::Fail(Errno::ENOSPC), 1000);
        let why = old.begin_hand_over().map(drop).unwrap_err();
        assert!(why.contains("cannot be stored") && why.contains("ENOSPC"), "{why}");
        shared.faults.clear();
        for describes in [false, true] {
            old.files.write(ino, 0, &[2; 300_000]).unwrap();
            let hand_over = old.begin_hand_over().unwrap();
            if describes {
                hand_over.describe().unwrap();
            }
            assert!(old.begin_hand_over().is_err(), "only one at a time");
            drop(hand_over);
            assert!(host::lock(&old.lifecycle.threads).values().all(|thread| !thread.is_finished()));
            old.files.write(ino, 0, &[3; 300_000]).unwrap();
            old.files.flush(ino).unwrap();
            old.lifecycle.session.renew().unwrap();
            let record = shared.session(old.meta().session()).unwrap();
            assert!(!record.process.boot_id.is_empty());
        }
        old.lifecycle.end().unwrap();
    }

    #[test]
    fn a_mount_without_its_session_is_not_taken_over() {
        let shared = Shared::new();
        let [old, other] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let hand_over = old.begin_hand_over().unwrap();
        let state = hand_over.describe().unwrap();
        shared.remove(&other, &old);
        let taken = shared.next_process().take_over(state, SessionInfo::default());
        assert!(taken.unwrap_err().contains("removed"));
    }
}
