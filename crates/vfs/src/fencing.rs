//! What becomes of a mount whose session others have removed, because they took it for dead.
//!
//! Nothing of the old session reaches the volume any more: see [`meta::Meta::is_fenced`]. What the mount holds in memory
//! falls in two parts:
//!
//! - Files that cannot go on are *lost*: each call on them fails with EIO until they are closed, and what was written to
//!   them and not yet committed is dropped. These are files on which this mount held locks (others may have them since),
//!   files without a name (others remove those), and files of which blocks are stored that no row names (`limen gc` may
//!   have removed them, because no session protected them any more).
//! - Data of all other files goes on: it is committed under the new session.
//!
//! An operation that rests on the state of an open file must not be carried out under a later session than the one under
//! which that state was looked at: [`Vfs::session_of`] gives that session, and [`Within`] holds the operation to it. Lost files are
//! marked before the new session is published, so a thread that sees the new session sees the marks.

use std::sync::{Mutex, PoisonError};

use meta::{Ctx, Op, Plan, Stop, View};
use types::{BootInstant, Errno, SessionId, Time};

use crate::open::{FileData, OpenFile};
use crate::vfs::Vfs;

/// That this mount lost its session, for `limen status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLoss {
    /// The last one that was lost.
    pub session: SessionId,
    /// When this mount learned of it.
    pub at: Time,
    /// Files that could not go on after that loss.
    pub files: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Losses {
    last: Mutex<Option<SessionLoss>>,
}

impl Losses {
    pub(crate) fn get(&self) -> Option<SessionLoss> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, session: SessionId) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(SessionLoss { session, at: Time::now(), files: 0 });
    }

    fn note_file(&self) {
        if let Some(loss) = self.last.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            loss.files += 1;
        }
    }
}

/// Carries an operation out under one session, and under no other.
#[derive(Debug)]
pub(crate) struct Within<'a, O>(pub(crate) SessionId, pub(crate) &'a O);

impl<O: Op> Op for Within<'_, O> {
    type Reply = O::Reply;
    const NAME: &'static str = O::NAME;
    const READ: bool = O::READ;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<O::Reply>, Stop> {
        if ctx.session != self.0 {
            return Err(Errno::EIO.into());
        }
        self.1.plan(view, ctx)
    }
}

impl Vfs {
    /// That this mount lost its session, if it ever did.
    pub fn session_loss(&self) -> Option<SessionLoss> {
        self.losses.get()
    }

    /// Lets a call go on with an open file, whose lock is held; gives the session that it may go on under.
    ///
    /// # Errors
    /// EIO: the file is lost.
    pub(crate) fn session_of(&self, file: &OpenFile, data: &mut FileData) -> Result<SessionId, Errno> {
        let session = self.meta.session();
        if data.session != session {
            // Numbers of the old session were not protected from its removal on.
            if data.buffer.has_slices() {
                self.lose(file, "blocks of it that nothing names may be gone");
            }
            data.session = session;
            data.rows.clear();
        }
        if !file.is_fenced() {
            return Ok(session);
        }
        data.in_doubt = None;
        data.buffer.truncate(0);
        data.hold = None;
        file.set_clean();
        Err(Errno::EIO)
    }

    /// Whether work that failed under `session` may be done again, because that session was lost and there is a new one.
    /// Waits for it a while.
    pub(crate) fn is_rejoined(&self, session: SessionId) -> bool {
        if self.meta.session() == session && !self.meta.is_fenced() {
            return false;
        }
        self.meta.wait_rejoined(session, self.times.rejoin, || self.is_stopping())
    }

    fn lose(&self, file: &OpenFile, reason: &str) -> bool {
        let is_new = file.set_fenced();
        if is_new {
            self.losses.note_file();
            tracing::error!(ino = %file.ino, reason, "an open file cannot go on after its session was lost");
        }
        is_new
    }

    /// Begins a new session in place of one that others have removed, after what cannot go on is marked.
    ///
    /// # Errors
    /// Those of the database; the session is still lost then.
    pub(crate) fn recover(&self) -> Result<(), Errno> {
        let lost = self.meta.session();
        self.forget_everything();
        // A second try, because the database did not answer the first, has nothing new to say.
        if self.losses.get().is_none_or(|loss| loss.session != lost) {
            self.losses.note(lost);
        }
        let locked = self.held.take_all();
        let mut files = 0;
        for file in self.files.all() {
            let reason = match () {
                () if locked.contains(&file.ino) => "others may hold its locks since",
                () if file.is_orphan() => "it has no name, and others remove it",
                () => continue,
            };
            files += u64::from(self.lose(&file, reason));
        }
        self.askers.clear();
        self.slices.start_anew()?;
        let renewed: BootInstant = self.renewed();
        let session = self
            .meta
            .rejoin(|session| self.session_record(session), self.times.valid_for)
            .map_err(Errno::from)?;
        self.set_renewed();
        tracing::error!(
            %lost,
            %session,
            silent_seconds = renewed.elapsed().as_secs(),
            files,
            "other mounts took this one for dead and removed its session: its locks are gone, open files that cannot go \
             on without them fail with EIO until they are closed, and a new session has begun"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meta::ops::Locked;
    use types::Ino;

    use super::*;
    use crate::fixture::{NO_WAIT, Shared, make, root};
    use crate::{LockKind, LockRequest, OpenFor};

    const ANY: OpenFor = OpenFor { read: true, write: true, execute: false, append: false };

    fn lock(kind: LockKind, owner: u64) -> LockRequest {
        LockRequest { kind, owner, exclusive: true, start: 0, end: u64::MAX, pid: 1 }
    }

    #[test]
    fn a_mount_that_lost_its_locks_never_writes_over_the_new_holders_bytes() {
        for kind in [LockKind::Posix, LockKind::Flock] {
            let shared = Shared::new();
            let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
            let ino = make(&old, "f");
            assert_eq!(old.take_lock(ino, 1, lock(kind, 1), false), Ok(Locked::Granted));
            old.write(ino, 0, b"old").unwrap();
            // It stands still, and is taken for dead.
            shared.remove(&new, &old);
            new.open(&root(), ino, ANY)
                .or_else(|_| new.getattr(ino).and_then(|_| new.open(&root(), ino, ANY)))
                .unwrap();
            assert_eq!(new.take_lock(ino, 1, lock(kind, 1), false), Ok(Locked::Granted));
            new.write(ino, 0, b"new").unwrap();
            new.flush(ino).unwrap();
            // It goes on.
            assert_eq!(old.flush(ino), Err(Errno::EIO));
            assert!(old.meta.is_fenced());
            old.recover().unwrap();
            assert_eq!(old.flush(ino), Err(Errno::EIO));
            assert_eq!(old.write(ino, 0, b"old"), Err(Errno::EIO));
            assert_eq!(old.read(ino, 0, 3), Err(Errno::EIO));
            assert_eq!(old.take_lock(ino, 1, lock(kind, 2), false), Err(Errno::EIO));
            old.close(ino).unwrap();
            assert_eq!(new.read(ino, 0, 10).unwrap(), &b"new"[..]);
            let loss = old.session_loss().unwrap();
            assert_eq!(loss.files, 1);
            // It serves again.
            new.unlock(ino, lock(kind, 1)).unwrap();
            old.open(&root(), ino, ANY).unwrap();
            assert_eq!(old.read(ino, 0, 10).unwrap(), &b"new"[..]);
            assert_eq!(old.take_lock(ino, 1, lock(kind, 1), false), Ok(Locked::Granted));
            old.write(ino, 0, b"own").unwrap();
            old.close(ino).unwrap();
            assert_eq!(new.read(ino, 0, 10).unwrap(), &b"own"[..]);
            // Files that failed after an earlier loss are not counted again.
            old.unlock(ino, lock(kind, 1)).unwrap();
            shared.remove(&new, &old);
            old.flush_all().unwrap_or_default();
            assert!(old.mkdir_fails());
            old.recover().unwrap();
            assert_eq!(old.session_loss().unwrap().files, 0);
        }
    }

    #[test]
    fn data_that_needs_no_lock_is_committed_under_the_next_session() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let [free, unlocked, stored] = ["a", "b", "c"].map(|name| make(&old, name));
        for kind in [LockKind::Posix, LockKind::Flock] {
            let part = LockRequest { start: 7, end: 9, ..lock(kind, 1) };
            assert_eq!(old.take_lock(unlocked, 1, part, false), Ok(Locked::Granted));
            old.unlock(unlocked, part).unwrap();
        }
        [free, unlocked].iter().for_each(|&ino| old.write(ino, 0, b"text").unwrap());
        // Blocks of it leave for the store at once, and nothing protects them once the session is gone.
        old.write(stored, 0, &vec![1; 5 << 20]).unwrap();
        shared.remove(&new, &old);
        assert_eq!(old.flush(free), Err(Errno::EIO), "there is no new session yet");
        old.recover().unwrap();
        for ino in [free, unlocked] {
            old.close(ino).unwrap();
            assert_eq!(new.getattr(ino).unwrap().size_bytes, 4);
        }
        assert_eq!(old.close(stored), Err(Errno::EIO));
        assert_eq!(new.getattr(stored).unwrap().size_bytes, 0);
        assert_eq!(old.session_loss().unwrap().files, 1);
    }

    #[test]
    fn a_flush_waits_for_the_next_session() {
        let shared = Shared::new();
        let times = crate::SessionTimes {
            heartbeat: Duration::from_millis(20),
            rejoin: Duration::from_secs(60),
            ..NO_WAIT
        };
        let [old, new] = [times, NO_WAIT].map(|times| shared.mount(times));
        let ino = make(&old, "f");
        old.write(ino, 0, b"text").unwrap();
        let lost = old.meta.session();
        shared.remove(&new, &old);
        old.start_housekeeping(crate::SessionInfo::default()).unwrap();
        old.close(ino).unwrap();
        assert_eq!(new.getattr(ino).unwrap().size_bytes, 4);
        assert!(old.meta.session() != lost && shared.session(old.meta.session()).is_some());
        old.end().unwrap();
        assert!(shared.session(old.meta.session()).is_none());
    }

    #[test]
    fn a_file_without_a_name_goes_with_the_session() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let ino = make(&old, "f");
        old.unlink(&root(), Ino::ROOT, b"f").unwrap();
        old.write(ino, 0, b"text").unwrap();
        assert_eq!(old.read(ino, 0, 4).unwrap(), &b"text"[..]);
        shared.remove(&new, &old);
        assert!(old.mkdir_fails());
        old.recover().unwrap();
        assert_eq!(old.read(ino, 0, 4), Err(Errno::EIO));
        assert_eq!(old.write(ino, 0, b"text"), Err(Errno::EIO));
        // The kernel asks for the attributes before it reads.
        assert_eq!(old.getattr(ino), Err(Errno::EIO));
        assert_eq!(old.getattr_for(&root(), ino), Err(Errno::EIO));
        old.close(ino).unwrap();
        assert_eq!(old.getattr(ino), Err(Errno::ESTALE));
    }

    impl Vfs {
        fn mkdir_fails(&self) -> bool {
            let request = crate::MakeRequest {
                parent: Ino::ROOT,
                name: b"d",
                what: crate::Special::Directory,
                mode: types::Mode::new(0o700),
                umask: 0,
            };
            self.make(&root(), request) == Err(Errno::EIO)
        }
    }

    #[test]
    fn a_wait_for_a_lock_goes_on_under_the_next_session() {
        let shared = Shared::new();
        let [old, new] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let ino = make(&new, "f");
        let wanted = lock(LockKind::Flock, 1);
        assert_eq!(new.take_lock(ino, 1, wanted, false), Ok(Locked::Granted));
        assert_eq!(old.take_lock(ino, 1, wanted, true), Ok(Locked::Waiting));
        shared.remove(&new, &old);
        assert_eq!(old.ask_again(ino, wanted), Ok(Locked::Waiting));
        old.recover().unwrap();
        assert_eq!(old.ask_again(ino, wanted), Ok(Locked::Waiting));
        new.unlock(ino, wanted).unwrap();
        assert_eq!(old.ask_again(ino, wanted), Ok(Locked::Granted));
        assert_eq!(new.take_lock(ino, 1, wanted, false), Err(Errno::EAGAIN));
    }

    #[test]
    fn the_record_says_which_slices_may_be_stored_before_their_rows() {
        let shared = Shared::new();
        let [own, other] = [(); 2].map(|()| shared.mount(NO_WAIT));
        let first = || {
            own.renew().unwrap();
            shared.session(own.meta.session()).unwrap().first_slice
        };
        let ino = make(&own, "f");
        let next = own.meta.read_counter(meta::Counter::Slice).unwrap();
        own.write(ino, 0, &vec![1; 5 << 20]).unwrap();
        other.slices.take().unwrap();
        assert!(first().0 <= next, "blocks of slice {next} are stored, or about to be");
        own.flush(ino).unwrap();
        assert!(first().0 > next);
    }
}
