//! Locks on open files, across all mounts of a volume. If this mount is exclusive, the kernel keeps the locks
//! itself.
//!
//! [`Locks`] holds the owners that requested locks, the locks that were granted, and the leftovers of failed
//! calls. Lock order: no two of `owners`, `granted` and `leftovers` are locked at the same time. A
//! [`Leftover`]'s `todo` is locked before `granted`, and never at the same time as `leftovers`.
//!
//! Locks end with the session that holds them, so they need not be durable.
//!
//! A call that failed leaves something behind ([`Todo`]): a request in doubt may still be granted, even after
//! its owner has released its locks and closed the file; a lock that was not released stays with an owner
//! that no longer exists; and the record of a wait that has ended can look like a deadlock. Before this mount
//! requests or releases a lock of the same owner, it removes these leftovers. The thread that flushes files
//! also tries to, until it succeeds or the session ends.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use client::{Failure, InDoubtTxn};
use meta::{Lock, LockKind, LockOwner};
use ops::{FindLock, Locked, StopWaiting, TakeLock, Unlock};
use serde::{Deserialize, Serialize};
use types::{Errno, Ino};

use crate::base::Base;
use crate::caller::BY_KERNEL;
use crate::fencing::InSession;
use crate::granted::{Granted, LockRequest};
use crate::open::{DataVersion, OpenFile};

/// The locks of a mount, as one process describes them to the next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LockState {
    /// Inode, handle and owner.
    owners: Vec<(Ino, u64, u64)>,
    granted: Vec<(Ino, LockRequest)>,
}

/// The owners that requested `fcntl(2)` locks on an inode, and the handles they used.
///
/// A process releases its locks when it closes any descriptor of the file, and the kernel reports that
/// (FLUSH). Locks of an open file description (`F_OFD_SETLK`) stay until the description is closed, but the
/// kernel neither marks these locks nor reports their release. So the locks that are left when a handle is
/// released are treated as locks of its open file description. An inode that is not in this map has no
/// `fcntl(2)` locks of this mount, so most files are closed without a request to the database.
#[derive(Debug, Default)]
struct LockOwners(Mutex<HashMap<Ino, HashSet<Requester>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Requester {
    handle: u64,
    owner: u64,
}

impl LockOwners {
    fn note(&self, ino: Ino, requester: Requester) {
        host::lock(&self.0).entry(ino).or_default().insert(requester);
    }

    /// Removes the entries that `which` selects, and returns their owners.
    fn take(&self, ino: Ino, mut which: impl FnMut(&Requester) -> bool) -> HashSet<u64> {
        let mut all = host::lock(&self.0);
        let Some(lock_owners) = all.get_mut(&ino) else { return HashSet::new() };
        let owners =
            lock_owners.extract_if(|requester| which(requester)).map(|requester| requester.owner).collect();
        if lock_owners.is_empty() {
            all.remove(&ino);
        }
        owners
    }
}

/// The work that a failed call of an owner has left behind.
#[derive(Debug)]
struct Leftover {
    owner: LockOwner,
    /// Locked while the work is done. The owner's next request waits for that ([`Locks::settle`]): if it were
    /// granted a lock meanwhile, the work would release this lock.
    todo: Mutex<Todo>,
}

/// The steps that are left to be done for a call that failed.
#[derive(Debug, Default)]
struct Todo {
    /// The request to cancel ([`Meta::cancel`](client::Meta::cancel)): it may still be granted, or release
    /// locks. The cancellation is the first step.
    in_doubt: Option<InDoubtTxn>,
    follow_up: FollowUp,
}

/// The step after the cancellation.
#[derive(Clone, Copy, Debug, Default)]
enum FollowUp {
    #[default]
    Nothing,
    /// Release all locks of the owner on this file.
    Release(Ino),
    /// Remove the record of the owner's wait.
    StopWaiting,
}

/// Locks on open files.
#[derive(Debug)]
pub struct Locks {
    base: Arc<Base>,
    owners: LockOwners,
    granted: Granted,
    leftovers: Mutex<Vec<Arc<Leftover>>>,
}

impl Locks {
    pub(crate) fn new(base: &Arc<Base>) -> Self {
        let base = Arc::clone(base);
        Locks {
            base,
            owners: LockOwners::default(),
            granted: Granted::default(),
            leftovers: Mutex::default(),
        }
    }

    /// The files on which locks were held, or may have been granted: all locks were lost with the session.
    pub(crate) fn take_lost(&self) -> HashSet<Ino> {
        self.granted.take_all()
    }

    /// Forgets all lock owners and all leftovers of failed calls: all locks were lost with the session, and
    /// nothing can be granted to that session any more.
    pub(crate) fn forget_owners(&self) {
        host::lock(&self.owners.0).clear();
        host::lock(&self.leftovers).clear();
    }

    /// Describes the locks for another process; `None` if a request is in flight, or a failed one has left
    /// something behind.
    pub(crate) fn describe(&self) -> Option<LockState> {
        if !host::lock(&self.leftovers).is_empty() {
            return None;
        }
        let owners = host::lock(&self.owners.0)
            .iter()
            .flat_map(|(ino, all)| all.iter().map(|requester| (*ino, requester.handle, requester.owner)))
            .collect();
        Some(LockState { owners, granted: self.granted.describe()? })
    }

    /// Takes the locks that another process has described.
    pub(crate) fn restore(&self, state: LockState) {
        for (ino, handle, owner) in state.owners {
            self.owners.note(ino, Requester { handle, owner });
        }
        self.granted.restore(state.granted);
    }

    /// Tries again to remove what failed calls have left behind. Goes on after an error, with other owners,
    /// until the mount ends.
    ///
    /// # Errors
    /// The first error.
    pub(crate) fn clean(&self) -> Result<(), Errno> {
        let owners: BTreeSet<LockOwner> = host::lock(&self.leftovers).iter().map(|left| left.owner).collect();
        let mut done = Ok(());
        for owner in owners.into_iter().take_while(|_| !self.base.stop.is_set()) {
            done = done.and(self.settle(owner));
        }
        done
    }

    /// Takes a lock through a handle. Data that was written under another lock is committed first, so that
    /// other clients see it. If the lock is granted, the caller answers the request by
    /// [`Self::when_current`].
    ///
    /// # Errors
    /// Those of a flush if an exclusive lock would become a shared one (the lock then remains exclusive); EIO
    /// if the file was lost with the session; those of [`TakeLock`].
    pub fn take_lock(
        &self,
        ino: Ino,
        handle: u64,
        request: LockRequest,
        wait: bool,
    ) -> Result<Locked, Errno> {
        let stored = self.commit_written(ino);
        // An error matters only if an exclusive lock becomes a shared one, because other mounts can then get
        // a shared lock too, and would read old data. Otherwise the lock under which the data was written
        // remains until the data is stored, or is dropped because the owner closes the file.
        if self.granted.shares(ino, request) && !self.base.meta.is_exclusive() {
            stored?;
        }
        if request.kind == LockKind::Posix {
            self.owners.note(ino, Requester { handle, owner: request.owner });
        }
        self.request_lock(ino, request, wait)
    }

    /// Retries a request for which [`Self::take_lock`] returned [`Locked::Waiting`]. If the lock is granted,
    /// the caller answers the request by [`Self::when_current`].
    ///
    /// # Errors
    /// EIO if the file was lost with the session; those of [`TakeLock`]. After an error the request is no
    /// longer waiting.
    pub fn retry_lock(&self, ino: Ino, request: LockRequest) -> Result<Locked, Errno> {
        self.request_lock(ino, request, true)
    }

    /// Calls `answer` when the kernel has no data of the file from before the lock. `answer` answers the
    /// request for a lock that was granted. This function reads the inode, but does not wait for the kernel.
    /// `answer` may be called later on another thread: before the kernel drops its pages, it waits for pages
    /// that are being read.
    ///
    /// The kernel drops its pages by itself if a reply contains another mtime or size. But it ignores the
    /// attributes in a reply if it received other attributes or a notification, or wrote to the file, since
    /// it sent the request (`fuse_change_attributes`).
    pub fn when_current(&self, ino: Ino, answer: impl FnOnce() + Send + 'static) {
        let caches = &self.base.caches;
        if self.base.meta.is_exclusive() {
            return answer();
        }
        // The last holder may have changed the file on another mount, and this mount may not be notified yet.
        self.base.meta.invalidate(ino);
        // A directory has no pages.
        let Some(file) = self.base.open.get(ino) else {
            caches.invalidate_attributes(ino);
            return answer();
        };
        let before = file.dropped();
        let version = self.base.attributes.inode(ino).ok().map(|inode| DataVersion::of(&inode));
        let has_waited = caches.grants.begin(ino);
        if version.is_some() && before.version == version && !has_waited {
            return answer();
        }
        let all = Arc::clone(caches);
        let answer = move || {
            file.note_dropped(version, before);
            all.grants.renew(ino);
            answer();
        };
        caches.invalidate_content_then(ino, Box::new(answer));
    }

    /// Cancels a request for which [`Self::take_lock`] returned [`Locked::Waiting`], without a request to the
    /// database. The record of the wait is removed by [`Self::remove_ended_waits`], or before the owner
    /// requests a lock.
    pub fn stop_waiting(&self, request: LockRequest) {
        self.leave(self.lock_of(request).owner, Todo { in_doubt: None, follow_up: FollowUp::StopWaiting });
    }

    /// Removes the records of waits that have ended, and the other leftovers of failed calls, until a request
    /// fails. So if the database does not answer, this waits for one request only. The thread that flushes
    /// files tries again.
    pub fn remove_ended_waits(&self) {
        if let Err(errno) = self.settle_all() {
            tracing::warn!(%errno, "cannot remove the record of a lock wait that has ended; retrying");
        }
    }

    /// Unlocks a range, after it has committed the data that was written under the lock, so that other
    /// clients see it. If the data cannot be stored and other mounts are possible, the lock remains.
    ///
    /// # Errors
    /// Those of a flush; those of the database.
    pub fn unlock(&self, ino: Ino, request: LockRequest) -> Result<(), Errno> {
        let stored = self.commit_written(ino);
        // If this mount is exclusive, the next holder sees the data in memory, so an error does not matter
        // here.
        if !self.base.meta.is_exclusive() {
            stored?;
        }
        self.release(ino, request)
    }

    /// Releases all locks of a process on a file, because the process has closed a descriptor of the file.
    /// The file was flushed before. Data that could not be stored is dropped if it may have been written
    /// under such a lock: if it were stored later, it would overwrite the data that the next holder of the
    /// lock writes.
    ///
    /// # Errors
    /// Those of the database. The locks are then released later.
    pub fn unlock_process(&self, ino: Ino, owner: u64) -> Result<(), Errno> {
        let owners = self.owners.take(ino, |requester| requester.owner == owner);
        self.drop_unstored(ino, &owners, None);
        self.unlock_owners(ino, owners)
    }

    /// Releases all locks of an open file description that was closed. The file was flushed before. `flock`
    /// is the owner of its `flock(2)` lock, if it ever had one. Data that could not be stored is dropped as
    /// by [`Self::unlock_process`].
    ///
    /// # Errors
    /// As [`Self::unlock_process`].
    pub fn unlock_handle(&self, ino: Ino, handle: u64, flock: Option<u64>) -> Result<(), Errno> {
        let owners = self.owners.take(ino, |requester| requester.handle == handle);
        self.drop_unstored(ino, &owners, flock);
        let posix = self.unlock_owners(ino, owners);
        let flock = flock.filter(|_| !self.base.meta.is_exclusive());
        posix.and(flock.map_or(Ok(()), |owner| self.unlock_all(ino, LockKind::Flock, owner)))
    }

    /// Finds a lock that conflicts with this request.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find_lock(&self, ino: Ino, request: LockRequest) -> Result<Option<Lock>, Errno> {
        Ok(self.base.meta.run(&FindLock { ino, lock: self.lock_of(request) }, &BY_KERNEL)?)
    }

    /// Releases all POSIX locks of these owners; returns the first error after all were tried.
    fn unlock_owners(&self, ino: Ino, owners: HashSet<u64>) -> Result<(), Errno> {
        let release = |done: Result<(), Errno>, owner| done.and(self.unlock_all(ino, LockKind::Posix, owner));
        owners.into_iter().fold(Ok(()), release)
    }

    /// Releases all locks of an owner that has closed the file. If that fails, it is tried again later.
    fn unlock_all(&self, ino: Ino, kind: LockKind, owner: u64) -> Result<(), Errno> {
        let owner = self.lock_of(all_of(kind, owner)).owner;
        self.leave(owner, Todo { in_doubt: None, follow_up: FollowUp::Release(ino) });
        self.settle(owner)
    }

    fn release(&self, ino: Ino, request: LockRequest) -> Result<(), Errno> {
        let Lock { owner, start, end, .. } = self.lock_of(request);
        self.settle(owner)?;
        let mut in_doubt = None;
        let released =
            self.base.meta.run_cancelable(&Unlock { ino, owner, start, end }, &BY_KERNEL, &mut in_doubt);
        match released {
            // The locks were lost with the session.
            Ok(()) | Err(Failure::Fenced(_)) => {
                self.granted.note_released(ino, request);
                Ok(())
            }
            Err(failure) => {
                self.leave(owner, Todo { in_doubt, follow_up: FollowUp::Nothing });
                Err(failure.into())
            }
        }
    }

    fn leave(&self, owner: LockOwner, todo: Todo) {
        host::lock(&self.leftovers).push(Arc::new(Leftover { owner, todo: Mutex::new(todo) }));
    }

    /// Removes what failed calls of an owner have left behind, in the order of the calls.
    ///
    /// # Errors
    /// Those of the database; something may then still be left.
    fn settle(&self, owner: LockOwner) -> Result<(), Errno> {
        let is_of = |left: &&Arc<Leftover>| left.owner == owner;
        let wanted: Vec<Arc<Leftover>> = host::lock(&self.leftovers).iter().filter(is_of).cloned().collect();
        for left in wanted {
            self.undo(owner, &mut host::lock(&left.todo))?;
            host::lock(&self.leftovers).retain(|other| !Arc::ptr_eq(other, &left));
        }
        Ok(())
    }

    /// Removes what failed calls have left behind. Returns whether there was anything.
    ///
    /// # Errors
    /// The first error; leftovers of other owners may then remain.
    fn settle_all(&self) -> Result<bool, Errno> {
        let owners: BTreeSet<LockOwner> = host::lock(&self.leftovers).iter().map(|left| left.owner).collect();
        owners.iter().try_for_each(|owner| self.settle(*owner))?;
        Ok(!owners.is_empty())
    }

    fn undo(&self, owner: LockOwner, todo: &mut Todo) -> Result<(), Errno> {
        let meta = &self.base.meta;
        meta.cancel(&mut todo.in_doubt)?;
        let done = match todo.follow_up {
            FollowUp::Nothing => return Ok(()),
            FollowUp::Release(ino) => {
                self.settle_changes(ino)?;
                let unlock = Unlock { ino, owner, start: 0, end: u64::MAX };
                meta.run_cancelable(&unlock, &BY_KERNEL, &mut todo.in_doubt)
            }
            FollowUp::StopWaiting => meta.run_cancelable(&StopWaiting(owner), &BY_KERNEL, &mut todo.in_doubt),
        };
        match (done, todo.follow_up) {
            // The locks and waits were lost with the session.
            (Ok(()) | Err(Failure::Fenced(_)), FollowUp::Release(ino)) => {
                self.granted.note_released(ino, all_of(owner.kind, owner.owner));
            }
            (Ok(()) | Err(Failure::Fenced(_)), _) => {}
            (Err(failure), _) => return Err(failure.into()),
        }
        *todo = Todo::default();
        Ok(())
    }

    fn request_lock(&self, ino: Ino, request: LockRequest, wait: bool) -> Result<Locked, Errno> {
        let _in_flight = self.granted.in_flight(ino);
        // The file lost its locks, which others may hold now: it gets no new ones.
        let (session, file) = (self.base.meta.session(), self.base.open.get(ino));
        if file.is_some_and(|file| file.is_fenced()) {
            return Err(Errno::EIO);
        }
        let lock = self.lock_of(request);
        let lock = Lock { owner: LockOwner { session, ..lock.owner }, ..lock };
        if let Err(errno) = self.settle(lock.owner) {
            if wait {
                self.leave(lock.owner, Todo { in_doubt: None, follow_up: FollowUp::StopWaiting });
            }
            return Err(errno);
        }
        let take = InSession(session, &TakeLock { ino, lock, wait });
        let mut in_doubt = None;
        let mut outcome = self.base.meta.run_cancelable(&take, &BY_KERNEL, &mut in_doubt);
        // The record of a wait that has ended here can look like a deadlock.
        if matches!(outcome, Err(Failure::Operation(Errno::EDEADLK))) && self.settle_all() == Ok(true) {
            outcome = self.base.meta.run_cancelable(&take, &BY_KERNEL, &mut in_doubt);
        }
        let is_doubtful = outcome.is_err() && in_doubt.is_some();
        if is_doubtful {
            let follow_up = if wait { FollowUp::StopWaiting } else { FollowUp::Nothing };
            self.leave(lock.owner, Todo { in_doubt, follow_up });
        }
        let outcome = match outcome {
            // The wait continues under the next session.
            Err(Failure::Fenced(_)) if wait => return Ok(Locked::Waiting),
            outcome => outcome.map_err(Errno::from),
        };
        match (&outcome, request.kind) {
            (Ok(Locked::Granted), _) => {
                self.granted.note_granted(ino, request);
                // A lock granted before the session was lost is lost with it.
                if self.base.meta.session() != session || self.base.meta.is_fenced() {
                    self.granted.note_released(ino, request);
                    return Err(Errno::EIO);
                }
            }
            (Err(errno), _) if wait && !is_doubtful => {
                self.stop_waiting(request);
                // After EIO, the database probably does not answer yet.
                if *errno != Errno::EIO {
                    self.remove_ended_waits();
                }
            }
            // A failed conversion releases the old lock, like `flock_lock_inode`.
            (Err(Errno::EAGAIN), LockKind::Flock) => {
                self.release(ino, all_of(request.kind, request.owner))?
            }
            _ => {}
        }
        outcome
    }

    /// Commits the data written to a file. Data that cannot be stored stays in memory, and the next flush
    /// reports the error.
    ///
    /// # Errors
    /// Those of a flush.
    fn commit_written(&self, ino: Ino) -> Result<(), Errno> {
        self.settle_changes(ino)?;
        let Some(file) = self.base.open.get(ino) else { return Ok(()) };
        let mut data = file.lock();
        if !data.buffer.is_dirty() {
            return Ok(());
        }
        self.base.flush_locked(&file, &mut data).inspect_err(|errno| {
            tracing::warn!(%ino, %errno, "cannot store data written under a lock; it stays in memory");
        })
    }

    /// Cancels failed changes of a file that may still happen, so that they do not happen under the lock of
    /// the next holder.
    fn settle_changes(&self, ino: Ino) -> Result<(), Errno> {
        self.base.abandoned.settle(Some(ino))?;
        Ok(self.base.commits.settle()?)
    }

    /// Drops written data that cannot be stored, if one of these owners holds an exclusive lock on the file,
    /// because another mount may take that lock next. Data that others wrote without a lock is dropped too,
    /// because the buffer does not record the writer. Calls that store data then fail until the file is
    /// closed. A flush in doubt is canceled.
    fn drop_unstored(&self, ino: Ino, owners: &HashSet<u64>, flock: Option<u64>) {
        if self.base.meta.is_exclusive() {
            return;
        }
        if self.granted.is_held(ino, owners, flock)
            && let Some(file) = self.base.open.get(ino).filter(|file| !file.is_orphan() && !file.is_fenced())
        {
            self.store_or_drop(&file);
        }
    }

    fn store_or_drop(&self, file: &OpenFile) {
        let ino = file.ino;
        let mut data = file.lock();
        if !data.buffer.is_dirty() {
            return;
        }
        if let Err(errno) = self.base.flush_locked(file, &mut data) {
            let bytes = data.buffer.dirty_bytes();
            tracing::error!(%ino, %errno, bytes, "data written under a lock could not be stored before the lock was released; the data is lost");
            self.base.abandoned.drop_written(file, &mut data);
            data.rows.clear();
            data.lost = Some(errno);
        }
    }

    fn lock_of(&self, request: LockRequest) -> Lock {
        let owner = LockOwner { session: self.base.meta.session(), owner: request.owner, kind: request.kind };
        let LockRequest { exclusive, start, end, pid, .. } = request;
        Lock { start, end, owner, exclusive, pid }
    }
}

/// Selects all locks of an owner on a file.
fn all_of(kind: LockKind, owner: u64) -> LockRequest {
    LockRequest { kind, owner, exclusive: false, start: 0, end: u64::MAX, pid: 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chunk::{Fault, StoreCall};
    use meta::{Engine, MemEngine};
    use suite::{Fault as FaultOf, FaultRates, Faulty};

    use super::*;
    use crate::fixture::{self, NO_WAIT, Shared, make, root};
    use crate::{OpenAccess, Vfs};

    const ANY: OpenAccess = OpenAccess { read: true, write: true, execute: false, append: false };

    #[test]
    fn data_that_could_not_be_stored_under_a_lock_never_overwrites_that_of_its_next_holder() {
        type Release = fn(&Vfs, Ino, LockRequest);
        let releases: [(LockKind, Release); 3] = [
            (LockKind::Posix, |vfs, ino, lock| {
                assert_eq!(vfs.locks.unlock(ino, lock), Err(Errno::ENOSPC), "the lock remains");
                assert_eq!(vfs.files.flush(ino), Err(Errno::ENOSPC));
                vfs.locks.unlock_process(ino, 1).unwrap();
            }),
            (LockKind::Posix, |vfs, ino, _| vfs.locks.unlock_handle(ino, 1, None).unwrap()),
            (LockKind::Flock, |vfs, ino, _| vfs.locks.unlock_handle(ino, 1, Some(1)).unwrap()),
        ];
        for (kind, release) in releases {
            let shared = Shared::new();
            let [first, next] = [(); 2].map(|()| shared.mount(NO_WAIT));
            let ino = make(&first, "f");
            let lock = LockRequest { kind, owner: 1, exclusive: true, start: 0, end: u64::MAX, pid: 1 };
            assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
            first.files.write(ino, 0, &vec![b'o'; 300_000]).unwrap();
            shared.faults.add(StoreCall::Put, Fault::Fail(Errno::ENOSPC), 1000);
            release(&first, ino, lock);
            // Another descriptor of the first mount stays open.
            shared.faults.clear();
            next.attributes.getattr(ino).unwrap();
            next.files.open(&root(), ino, ANY).unwrap();
            assert_eq!(next.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted), "{kind:?}");
            next.files.write(ino, 0, b"new").unwrap();
            next.files.flush(ino).unwrap();
            assert_eq!(first.files.flush(ino), Err(Errno::ENOSPC));
            assert_eq!(first.files.close(ino), Err(Errno::ENOSPC));
            assert_eq!(next.files.read(ino, 0, 10).unwrap(), &b"new"[..], "{kind:?}");
        }
    }

    #[test]
    fn an_exclusive_lock_is_not_shared_before_its_data_is_stored() {
        for kind in [LockKind::Posix, LockKind::Flock] {
            let shared = Shared::new();
            let [first, next] = [(); 2].map(|()| shared.mount(NO_WAIT));
            let ino = make(&first, "f");
            let exclusive = whole(kind);
            let wanted = LockRequest { exclusive: false, ..exclusive };
            assert_eq!(first.locks.take_lock(ino, 1, exclusive, false), Ok(Locked::Granted));
            first.files.write(ino, 0, &vec![b'n'; 300_000]).unwrap();
            shared.faults.add(StoreCall::Put, Fault::Fail(Errno::ENOSPC), 1000);
            assert_eq!(first.locks.take_lock(ino, 1, wanted, false), Err(Errno::ENOSPC), "{kind:?}");
            next.attributes.getattr(ino).unwrap();
            next.files.open(&root(), ino, ANY).unwrap();
            assert_eq!(next.locks.take_lock(ino, 1, wanted, false), Err(Errno::EAGAIN), "{kind:?}");
            shared.faults.clear();
            assert_eq!(first.locks.take_lock(ino, 1, wanted, false), Ok(Locked::Granted));
            assert_eq!(next.locks.take_lock(ino, 1, wanted, false), Ok(Locked::Granted));
            assert_eq!(next.files.read(ino, 0, 1).unwrap(), &b"n"[..], "{kind:?}");
        }
    }

    #[test]
    fn flush_in_doubt_under_a_lock_never_overwrites_the_data_of_its_next_holder() {
        // The file is closed before the lock is released, or another descriptor stays open.
        for stays_open in [false, true] {
            let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
            fixture::format(&*engine);
            let faulty = Arc::new(Faulty::new(Arc::clone(&engine), 1, FaultRates::default()));
            let (first, next) = (fixture::mount(faulty.clone()), fixture::mount(Arc::clone(&engine)));
            let ino = make(&first, "f");
            if stays_open {
                first.files.open(&root(), ino, ANY).unwrap();
            }
            let kind = LockKind::Flock;
            let lock = LockRequest { kind, owner: 1, exclusive: true, start: 0, end: u64::MAX, pid: 1 };
            assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
            first.files.write(ino, 0, b"old").unwrap();
            first.meta().set_retry_timeout(Duration::ZERO);
            faulty.arm(true);
            faulty.script([FaultOf::Late, FaultOf::Before]);
            assert_eq!(first.files.flush(ino), Err(Errno::EIO));
            assert_eq!(first.files.close(ino), Err(Errno::EIO));
            faulty.script([FaultOf::Before]);
            if !stays_open {
                faulty.script([]);
            }
            first.locks.unlock_handle(ino, 1, Some(1)).unwrap();
            faulty.script([]);
            next.files.open(&root(), ino, ANY).unwrap();
            assert_eq!(next.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
            next.files.write(ino, 0, b"new").unwrap();
            next.files.flush(ino).unwrap();
            faulty.deliver().unwrap();
            let later = fixture::mount(engine);
            later.files.open(&root(), ino, ANY).unwrap();
            assert_eq!(later.files.read(ino, 0, 10).unwrap(), &b"new"[..], "{stays_open}");
        }
    }

    #[test]
    fn a_lock_request_in_doubt_is_never_granted_after_its_owner_has_released_all_locks() {
        type Release = fn(&Vfs, Ino, LockRequest);
        let releases: [(LockKind, Release); 3] = [
            (LockKind::Posix, |vfs, ino, _| vfs.locks.unlock_process(ino, 1).unwrap()),
            (LockKind::Posix, |vfs, ino, lock| vfs.locks.unlock(ino, lock).unwrap()),
            (LockKind::Flock, |vfs, ino, _| vfs.locks.unlock_handle(ino, 1, Some(1)).unwrap()),
        ];
        for ((kind, release), arrives_first) in
            releases.into_iter().flat_map(|each| [(each, false), (each, true)])
        {
            let ((faulty, first, next, ino), lock) = (two_mounts(), whole(kind));
            // The locks are read first.
            faulty.script([FaultOf::None, FaultOf::Late]);
            assert_eq!(first.locks.take_lock(ino, 1, lock, false), Err(Errno::EIO));
            faulty.script([]);
            if arrives_first {
                faulty.deliver().unwrap();
            }
            release(&first, ino, lock);
            faulty.deliver().unwrap();
            let taken = next.locks.take_lock(ino, 1, lock, false);
            assert_eq!(taken, Ok(Locked::Granted), "{kind:?}, {arrives_first}");
            assert!(host::lock(&first.locks.leftovers).is_empty());
        }
    }

    type FaultyEngine = Arc<Faulty<Arc<dyn Engine>>>;

    /// A file on two mounts of a volume. The requests of the first mount can be lost, and it does not repeat
    /// them.
    fn two_mounts() -> (FaultyEngine, Arc<Vfs>, Arc<Vfs>, Ino) {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        fixture::format(&*engine);
        let faulty = Arc::new(Faulty::new(Arc::clone(&engine), 1, FaultRates::default()));
        let (first, next) = (fixture::mount(faulty.clone()), fixture::mount(engine));
        let ino = make(&first, "f");
        next.attributes.getattr(ino).unwrap();
        next.files.open(&root(), ino, ANY).unwrap();
        first.meta().set_retry_timeout(Duration::ZERO);
        faulty.arm(true);
        (faulty, first, next, ino)
    }

    fn whole(kind: LockKind) -> LockRequest {
        LockRequest { kind, owner: 1, exclusive: true, start: 0, end: u64::MAX, pid: 1 }
    }

    #[test]
    fn locks_that_could_not_be_released_at_the_close_are_released_later() {
        type Close = fn(&Vfs, Ino) -> Result<(), Errno>;
        let closes: [(LockKind, Close); 3] = [
            (LockKind::Posix, |vfs, ino| vfs.locks.unlock_process(ino, 1)),
            (LockKind::Posix, |vfs, ino| vfs.locks.unlock_handle(ino, 1, None)),
            (LockKind::Flock, |vfs, ino| vfs.locks.unlock_handle(ino, 1, Some(1))),
        ];
        for (kind, close) in closes {
            for fault in [FaultOf::Before, FaultOf::Late] {
                let ((faulty, first, next, ino), lock) = (two_mounts(), whole(kind));
                assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
                // The locks are read first.
                faulty.script([FaultOf::None, fault]);
                assert_eq!(close(&first, ino), Err(Errno::EIO));
                assert_eq!(next.locks.take_lock(ino, 1, lock, false), Err(Errno::EAGAIN));
                faulty.script([FaultOf::Before]);
                assert_eq!(first.locks.clean(), Err(Errno::EIO), "the database still fails");
                faulty.script([]);
                first.locks.clean().unwrap();
                assert_eq!(next.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted), "{kind:?}");
                first.locks.clean().unwrap();
                faulty.deliver().unwrap();
                let wanted = LockRequest { owner: 2, ..lock };
                assert_eq!(first.locks.take_lock(ino, 2, wanted, false), Err(Errno::EAGAIN));
            }
        }
    }

    #[test]
    fn a_lock_request_that_cannot_be_canceled_at_the_close_is_canceled_later() {
        for arrives_first in [true, false] {
            let ((faulty, first, next, ino), lock) = (two_mounts(), whole(LockKind::Posix));
            faulty.script([FaultOf::None, FaultOf::Late]);
            assert_eq!(first.locks.take_lock(ino, 1, lock, false), Err(Errno::EIO));
            if arrives_first {
                faulty.deliver().unwrap();
            }
            faulty.script([FaultOf::Before]);
            assert_eq!(first.locks.unlock_process(ino, 1), Err(Errno::EIO));
            faulty.script([]);
            first.locks.clean().unwrap();
            faulty.deliver().unwrap();
            assert_eq!(next.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted), "{arrives_first}");
        }
    }

    #[test]
    fn a_late_release_never_releases_a_lock_that_the_owner_was_granted_since() {
        let ((faulty, first, next, ino), lock) = (two_mounts(), whole(LockKind::Posix));
        assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        faulty.script([FaultOf::None, FaultOf::Late]);
        assert_eq!(first.locks.unlock_process(ino, 1), Err(Errno::EIO));
        faulty.script([]);
        assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        first.locks.clean().unwrap();
        faulty.deliver().unwrap();
        assert_eq!(next.locks.take_lock(ino, 1, lock, false), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_lock_is_not_released_while_a_change_in_doubt_may_still_happen() {
        let ((faulty, first, next, ino), lock) = (two_mounts(), whole(LockKind::Posix));
        assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        let cut = crate::AttrChange { size_bytes: Some(0), is_open: true, ..Default::default() };
        faulty.script([FaultOf::Late]);
        assert_eq!(first.setattr(&root(), ino, cut).map(drop), Err(Errno::EIO));
        faulty.script([FaultOf::Before]);
        assert_eq!(first.locks.unlock_process(ino, 1), Err(Errno::EIO));
        faulty.script([]);
        assert_eq!(next.locks.take_lock(ino, 1, lock, false), Err(Errno::EAGAIN));
        first.locks.clean().unwrap();
        assert_eq!(next.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        next.files.write(ino, 0, b"new").unwrap();
        next.files.flush(ino).unwrap();
        faulty.deliver().unwrap();
        next.meta().set_lifetime(Duration::ZERO);
        assert_eq!(next.files.read(ino, 0, 10).unwrap(), &b"new"[..]);
    }

    #[test]
    fn a_wait_that_has_ended_does_not_look_like_a_deadlock() {
        enum Fault {
            /// The record of the wait cannot be removed.
            Removal,
            /// The request that makes the record is late.
            Late,
            /// An earlier lock of the owner must be released, and this fails when the owner requests the lock
            /// again.
            Release,
        }
        for fault in [Fault::Removal, Fault::Late, Fault::Release] {
            let ((faulty, first, next, ino), lock) = (two_mounts(), whole(LockKind::Posix));
            let other = make(&next, "g");
            first.attributes.getattr(other).unwrap();
            first.files.open(&root(), other, ANY).unwrap();
            assert_eq!(next.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
            assert_eq!(first.locks.take_lock(other, 1, lock, false), Ok(Locked::Granted));
            if let Fault::Late = fault {
                // The locks and the waits are read first.
                faulty.script([FaultOf::None, FaultOf::None, FaultOf::Late]);
                assert_eq!(first.locks.take_lock(ino, 1, lock, true), Err(Errno::EIO));
            } else {
                assert_eq!(first.locks.take_lock(ino, 1, lock, true), Ok(Locked::Waiting));
            }
            faulty.script([FaultOf::Before]);
            match fault {
                Fault::Removal => {
                    first.locks.stop_waiting(lock);
                    first.locks.remove_ended_waits();
                }
                Fault::Late => {}
                Fault::Release => {
                    assert_eq!(first.locks.unlock_process(other, 1), Err(Errno::EIO));
                    faulty.script([FaultOf::Before]);
                    assert_eq!(first.locks.retry_lock(ino, lock), Err(Errno::EIO));
                }
            }
            faulty.script([]);
            first.locks.clean().unwrap();
            faulty.deliver().unwrap();
            let waits = next.meta().run(&ops::GetWaits, &BY_KERNEL).unwrap();
            assert!(waits.is_empty(), "{waits:?}");
            if !matches!(fault, Fault::Release) {
                assert_eq!(next.locks.take_lock(other, 1, lock, true), Ok(Locked::Waiting));
            }
        }
    }

    #[test]
    fn a_wait_that_has_ended_here_is_removed_before_it_looks_like_a_deadlock() {
        let ((faulty, first, _, ino), lock) = (two_mounts(), whole(LockKind::Posix));
        let other = make(&first, "g");
        let (one, two) = (lock, LockRequest { owner: 2, ..lock });
        assert_eq!(first.locks.take_lock(other, 1, one, false), Ok(Locked::Granted));
        assert_eq!(first.locks.take_lock(ino, 2, two, false), Ok(Locked::Granted));
        assert_eq!(first.locks.take_lock(ino, 1, one, true), Ok(Locked::Waiting));
        first.locks.stop_waiting(one);
        faulty.script([FaultOf::Before]);
        first.locks.remove_ended_waits();
        faulty.script([]);
        assert_eq!(first.locks.take_lock(other, 2, two, true), Ok(Locked::Waiting));
        // A real deadlock is still found.
        assert_eq!(first.locks.take_lock(ino, 1, one, true), Err(Errno::EDEADLK));
    }

    #[test]
    fn late_releases_end_when_the_mount_ends() {
        let ((faulty, first, _, ino), lock) = (two_mounts(), whole(LockKind::Posix));
        for owner in [1, 2] {
            let lock = LockRequest { owner, exclusive: false, ..lock };
            assert_eq!(first.locks.take_lock(ino, owner, lock, false), Ok(Locked::Granted));
            faulty.script([FaultOf::None, FaultOf::Before]);
            assert_eq!(first.locks.unlock_process(ino, owner), Err(Errno::EIO));
            faulty.script([]);
        }
        let stop = first.locks.base.stop.clone();
        faulty.set_rival(move |_| stop.set());
        faulty.script([FaultOf::RivalOfRead]);
        first.locks.clean().unwrap();
        assert_eq!(host::lock(&first.locks.leftovers).len(), 1, "the second lock ends with the session");
    }

    #[test]
    fn an_unlock_in_doubt_never_releases_a_lock_that_was_granted_later() {
        let (faulty, first, next, ino) = two_mounts();
        let lock = whole(LockKind::Posix);
        assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        // The locks are read first.
        faulty.script([FaultOf::None, FaultOf::Late]);
        assert_eq!(first.locks.unlock(ino, lock), Err(Errno::EIO));
        faulty.script([]);
        assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        faulty.deliver().unwrap();
        assert_eq!(next.locks.take_lock(ino, 1, lock, false), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_flush_in_doubt_before_a_lock_never_overwrites_the_data_of_its_next_holder() {
        let (faulty, first, next, ino) = two_mounts();
        let lock = whole(LockKind::Posix);
        first.files.write(ino, 0, b"old").unwrap();
        faulty.script([FaultOf::Late, FaultOf::Before]);
        assert_eq!(first.files.flush(ino), Err(Errno::EIO));
        assert_eq!(first.files.close(ino), Err(Errno::EIO));
        faulty.script([]);
        first.files.open(&root(), ino, ANY).unwrap();
        assert_eq!(first.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        first.locks.unlock(ino, lock).unwrap();
        assert_eq!(next.locks.take_lock(ino, 1, lock, false), Ok(Locked::Granted));
        next.files.write(ino, 0, b"new").unwrap();
        next.files.flush(ino).unwrap();
        faulty.deliver().unwrap();
        let later = fixture::mount(faulty.clone());
        later.files.open(&root(), ino, ANY).unwrap();
        assert_eq!(later.files.read(ino, 0, 10).unwrap(), &b"new"[..]);
    }

    #[test]
    fn lock_owners_are_removed_by_owner_and_by_handle() {
        let lock_owners = LockOwners::default();
        let ino = Ino(7);
        for (handle, owner) in [(1, 10), (2, 10), (2, 11), (2, 11)] {
            lock_owners.note(ino, Requester { handle, owner });
        }
        assert!(lock_owners.take(Ino(8), |_| true).is_empty());
        assert_eq!(lock_owners.take(ino, |requester| requester.owner == 10), HashSet::from([10]));
        assert!(
            lock_owners.take(ino, |requester| requester.handle == 1).is_empty(),
            "its entry was removed before"
        );
        assert_eq!(lock_owners.take(ino, |requester| requester.handle == 2), HashSet::from([11]));
        assert!(host::lock(&lock_owners.0).is_empty());
    }
}
