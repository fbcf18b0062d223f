//! The loss of this mount's session: other mounts have removed it, because this mount seemed dead.
//!
//! [`Fencing`] holds the last loss, and depends on [`Meta`] only. Lock order: an open file's data before
//! `last`. The steps that begin a new session are in [`crate::lifecycle`].
//!
//! Nothing can be committed under the old session any more: see [`Meta::is_fenced`]. The data that this mount
//! holds in memory is treated in two ways:
//!
//! - Files that cannot continue are *lost*: each call on them fails with EIO until they are closed, and their
//!   uncommitted data is dropped. These are files on which this mount held locks (another mount may hold them
//!   now), unlinked inodes (other mounts delete those), files whose changes in held directories were answered
//!   but not committed (those changes are lost), and files with stored blocks that no row names (`limen gc`
//!   may have deleted those blocks, because no session protected them).
//! - The data of all other files is committed under the new session.
//!
//! An operation that depends on the state of an open file must not run under a later session than the one
//! under which that state was read: [`Fencing::session_of`] returns that session, and [`InSession`] restricts
//! the operation to it. Files are marked as lost before the new session is published, so a thread that sees
//! the new session also sees the marks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::Meta;
use ops::{BoundBy, Ctx, Op, Plan, PlanStop, View};
use types::{Errno, SessionId, Time};

use crate::open::{FileData, OpenFile};
use crate::stop::Stop;

/// The loss of this mount's session, for `limen status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLoss {
    /// The last session that was lost.
    pub session: SessionId,
    /// When this mount learned of it.
    pub at: Time,
    /// Files that were lost with it.
    pub files: u64,
}

/// Runs an operation under this session only; under any other it fails with EIO.
#[derive(Debug)]
pub(crate) struct InSession<'a, O>(pub(crate) SessionId, pub(crate) &'a O);

impl<O: Op> Op for InSession<'_, O> {
    type Reply = O::Reply;
    const NAME: &'static str = O::NAME;
    const READ: bool = O::READ;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<O::Reply>, PlanStop> {
        if ctx.session != self.0 {
            return Err(Errno::EIO.into());
        }
        self.1.plan(view, ctx)
    }

    fn bound_by(&self) -> BoundBy {
        self.1.bound_by()
    }
}

#[derive(Debug)]
pub(crate) struct Fencing {
    meta: Arc<Meta>,
    stop: Stop,
    /// How long a call waits for a new session after the old one was lost.
    rejoin: Duration,
    last: Mutex<Option<SessionLoss>>,
}

impl Fencing {
    pub(crate) fn new(meta: &Arc<Meta>, stop: &Stop, rejoin: Duration) -> Self {
        Fencing { meta: Arc::clone(meta), stop: stop.clone(), rejoin, last: Mutex::default() }
    }

    /// The last loss of this mount's session, if there was one.
    pub(crate) fn session_loss(&self) -> Option<SessionLoss> {
        *host::lock(&self.last)
    }

    /// The session under which a call may use an open file. The file's lock is held.
    ///
    /// # Errors
    /// EIO if the file is lost.
    pub(crate) fn session_of(&self, file: &OpenFile, data: &mut FileData) -> Result<SessionId, Errno> {
        let session = self.meta.session();
        if data.session != session {
            // The old session's slice numbers were not protected after its removal.
            if data.buffer.has_slices() {
                self.mark_lost(file, "its blocks that no row names may have been deleted");
            }
            data.session = session;
            data.rows.clear();
        }
        if !file.is_fenced() {
            return Ok(session);
        }
        file.drop_written(data);
        Err(Errno::EIO)
    }

    /// Whether work that failed under `session` may be retried, because that session was lost and there is a
    /// new one. Waits up to `rejoin` for the new session.
    pub(crate) fn is_rejoined(&self, session: SessionId) -> bool {
        if self.meta.session() == session && !self.meta.is_fenced() {
            return false;
        }
        self.meta.wait_rejoined(session, self.rejoin, || self.stop.is_set())
    }

    /// Records the loss of a session, unless an earlier attempt to replace it has recorded that already.
    pub(crate) fn note_loss(&self, session: SessionId) {
        let mut last = host::lock(&self.last);
        if last.is_none_or(|loss| loss.session != session) {
            *last = Some(SessionLoss { session, at: Time::now(), files: 0 });
        }
    }

    /// Marks a file as lost; returns whether it was not marked before.
    pub(crate) fn mark_lost(&self, file: &OpenFile, reason: &str) -> bool {
        let is_new = file.set_fenced();
        if is_new {
            if let Some(loss) = host::lock(&self.last).as_mut() {
                loss.files += 1;
            }
            tracing::error!(ino = %file.ino, reason, "an open file is lost with its session; calls on it fail with EIO until it is closed");
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ops::Locked;
    use types::Ino;

    use super::*;
    use crate::fixture::{NO_WAIT, Shared, make, root};
    use crate::{LockKind, LockRequest, OpenAccess, Vfs};

    const ANY: OpenAccess = OpenAccess { read: true, write: true, execute: false, append: false };

    fn lock(kind: LockKind, owner: u64) -> LockRequest {
        LockRequest { kind, owner, exclusive: true, start: 0, end: u64::MAX, pid: 1 }
    }

    #[test]
    fn mount_that_lost_its_locks_never_overwrites_the_new_holders_data() {
        for kind in [LockKind::Posix, LockKind::Flock] {
            let shared = Shared::new();
            let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
            let ino = make(&old, "f");
            assert_eq!(old.locks.take_lock(ino, 1, lock(kind, 1), false), Ok(Locked::Granted));
            old.files.write(ino, 0, b"old").unwrap();
            // The old mount stops, and its session is removed.
            shared.remove(&new, &old);
            new.files
                .open(&root(), ino, ANY)
                .or_else(|_| new.attributes.getattr(ino).and_then(|_| new.files.open(&root(), ino, ANY)))
                .unwrap();
            assert_eq!(new.locks.take_lock(ino, 1, lock(kind, 1), false), Ok(Locked::Granted));
            new.files.write(ino, 0, b"new").unwrap();
            new.files.flush(ino).unwrap();
            // The old mount continues.
            assert_eq!(old.files.flush(ino), Err(Errno::EIO));
            assert!(old.meta().is_fenced());
            old.lifecycle.recover().unwrap();
            assert_eq!(old.files.flush(ino), Err(Errno::EIO));
            assert_eq!(old.files.write(ino, 0, b"old"), Err(Errno::EIO));
            assert_eq!(old.files.read(ino, 0, 3), Err(Errno::EIO));
            assert_eq!(old.locks.take_lock(ino, 1, lock(kind, 2), false), Err(Errno::EIO));
            old.files.close(ino).unwrap();
            assert_eq!(new.files.read(ino, 0, 10).unwrap(), &b"new"[..]);
            let loss = old.session_loss().unwrap();
            assert_eq!(loss.files, 1);
            // The old mount serves requests again.
            new.locks.unlock(ino, lock(kind, 1)).unwrap();
            old.files.open(&root(), ino, ANY).unwrap();
            assert_eq!(old.files.read(ino, 0, 10).unwrap(), &b"new"[..]);
            assert_eq!(old.locks.take_lock(ino, 1, lock(kind, 1), false), Ok(Locked::Granted));
            old.files.write(ino, 0, b"own").unwrap();
            old.files.close(ino).unwrap();
            assert_eq!(new.files.read(ino, 0, 10).unwrap(), &b"own"[..]);
            // Files that were lost with an earlier session are not counted again.
            old.locks.unlock(ino, lock(kind, 1)).unwrap();
            shared.remove(&new, &old);
            old.base.flush_all().unwrap_or_default();
            assert!(old.mkdir_fails());
            old.lifecycle.recover().unwrap();
            assert_eq!(old.session_loss().unwrap().files, 0);
        }
    }

    #[test]
    fn data_of_files_without_locks_is_committed_under_the_next_session() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let [free, unlocked, stored] = ["a", "b", "c"].map(|name| make(&old, name));
        for kind in [LockKind::Posix, LockKind::Flock] {
            let part = LockRequest { start: 7, end: 9, ..lock(kind, 1) };
            assert_eq!(old.locks.take_lock(unlocked, 1, part, false), Ok(Locked::Granted));
            old.locks.unlock(unlocked, part).unwrap();
        }
        [free, unlocked].iter().for_each(|&ino| old.files.write(ino, 0, b"text").unwrap());
        // The full blocks of this file are uploaded at once. When the session is removed, nothing protects
        // them any more.
        old.files.write(stored, 0, &vec![1; 5 << 20]).unwrap();
        shared.remove(&new, &old);
        assert_eq!(old.files.flush(free), Err(Errno::EIO), "there is no new session yet");
        old.lifecycle.recover().unwrap();
        for ino in [free, unlocked] {
            old.files.close(ino).unwrap();
            assert_eq!(new.attributes.getattr(ino).unwrap().size_bytes, 4);
        }
        assert_eq!(old.files.close(stored), Err(Errno::EIO));
        assert_eq!(new.attributes.getattr(stored).unwrap().size_bytes, 0);
        assert_eq!(old.session_loss().unwrap().files, 1);
    }

    #[test]
    fn flush_waits_for_the_next_session() {
        let shared = Shared::new();
        let times = crate::SessionTimes {
            heartbeat: Duration::from_millis(20),
            rejoin: Duration::from_secs(60),
            ..NO_WAIT
        };
        let [old, new] = [times, NO_WAIT].map(|times| shared.mount(times));
        let ino = make(&old, "f");
        old.files.write(ino, 0, b"text").unwrap();
        let lost = old.meta().session();
        shared.remove(&new, &old);
        old.lifecycle.start_threads().unwrap();
        old.files.close(ino).unwrap();
        assert_eq!(new.attributes.getattr(ino).unwrap().size_bytes, 4);
        assert!(old.meta().session() != lost && shared.session(old.meta().session()).is_some());
        old.lifecycle.end().unwrap();
        assert!(shared.session(old.meta().session()).is_none());
    }

    #[test]
    fn unlinked_inode_is_lost_with_the_session() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let ino = make(&old, "f");
        old.names.unlink(&root(), Ino::ROOT, b"f").unwrap();
        old.files.write(ino, 0, b"text").unwrap();
        assert_eq!(old.files.read(ino, 0, 4).unwrap(), &b"text"[..]);
        shared.remove(&new, &old);
        assert!(old.mkdir_fails());
        old.lifecycle.recover().unwrap();
        assert_eq!(old.files.read(ino, 0, 4), Err(Errno::EIO));
        assert_eq!(old.files.write(ino, 0, b"text"), Err(Errno::EIO));
        // The kernel sends GETATTR before it reads.
        assert_eq!(old.attributes.getattr(ino), Err(Errno::EIO));
        assert_eq!(old.attributes.getattr_for(&root(), ino, true), Err(Errno::EIO));
        old.files.close(ino).unwrap();
        assert_eq!(old.attributes.getattr(ino), Err(Errno::ESTALE));
    }

    impl Vfs {
        fn mkdir_fails(&self) -> bool {
            let request = crate::MakeRequest {
                parent: Ino::ROOT,
                name: b"d",
                kind: crate::MakeKind::Directory,
                mode: types::Mode::new(0o700),
                umask: 0,
            };
            self.names.make(&root(), request) == Err(Errno::EIO)
        }
    }

    #[test]
    fn lock_wait_continues_under_the_next_session() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let ino = make(&new, "f");
        let wanted = lock(LockKind::Flock, 1);
        assert_eq!(new.locks.take_lock(ino, 1, wanted, false), Ok(Locked::Granted));
        assert_eq!(old.locks.take_lock(ino, 1, wanted, true), Ok(Locked::Waiting));
        shared.remove(&new, &old);
        assert_eq!(old.locks.retry_lock(ino, wanted), Ok(Locked::Waiting));
        old.lifecycle.recover().unwrap();
        assert_eq!(old.locks.retry_lock(ino, wanted), Ok(Locked::Waiting));
        new.locks.unlock(ino, wanted).unwrap();
        assert_eq!(old.locks.retry_lock(ino, wanted), Ok(Locked::Granted));
        assert_eq!(new.locks.take_lock(ino, 1, wanted, false), Err(Errno::EAGAIN));
    }

    #[test]
    fn session_record_names_the_first_slice_that_may_lack_a_row() {
        let shared = Shared::new();
        let [own, other] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let first = || {
            own.lifecycle.session.renew().unwrap();
            shared.session(own.meta().session()).unwrap().first_slice
        };
        let ino = make(&own, "f");
        let next = own.meta().read_counter(meta::Counter::Slice).unwrap();
        own.files.write(ino, 0, &vec![1; 5 << 20]).unwrap();
        other.base.slices.take().unwrap();
        assert!(first().0 <= next, "blocks of slice {next} are stored, or will be");
        own.files.flush(ino).unwrap();
        assert!(first().0 > next);
    }
}
