//! Requests that wait for a lock (SETLKW). They do not block the threads that serve requests.
//!
//! The lock may be released on another machine, so the requests are retried periodically; a local unlock
//! wakes them at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fuse_proto::Unique;
use fuse_transport::{Reply, Unanswered, WorkerControl};
use serde::{Deserialize, Serialize};
use types::{Errno, Ino};
use vfs::{LockRequest, Locked, Vfs};

/// How often the requests are retried, to notice a lock that was released elsewhere.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// The limit of waiting requests; beyond it a request fails with ENOLCK.
const MAX_WAITING: usize = 10_000;
/// The limit for one user, so that one user cannot take all places.
const MAX_WAITING_OF_USER: usize = 1_000;

/// The limit of stored interrupts: one for each request that may wait. Almost all interrupts are for requests
/// that never wait here, so newer interrupts replace the oldest ones.
const MAX_INTERRUPTS: usize = MAX_WAITING;

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The requests that are due for a retry.
    waiting: VecDeque<Waiting>,
    /// The requests that were retried in the current pass.
    retried: VecDeque<Waiting>,
    /// The request that is being retried, and whether it was interrupted meanwhile.
    retrying: Option<(Unique, bool)>,
    /// The number of waiting requests per user, including the one that is being retried.
    by_user: HashMap<u32, usize>,
    /// The last interrupts, because an interrupt may arrive before its request waits. Request ids are never
    /// reused.
    interrupted: VecDeque<Unique>,
    /// Whether a request was added, or a lock released, since the current pass began.
    has_changed: bool,
    /// Whether records of waits that have ended are to be removed.
    has_ended_waits: bool,
    /// Whether the thread retries a request or removes records now.
    is_busy: bool,
    /// Whether the thread must not begin new work, because another process is about to take the requests
    /// over.
    is_paused: bool,
    ended: bool,
}

#[derive(Debug)]
struct Waiting {
    reply: Reply,
    uid: u32,
    ino: Ino,
    requested: LockRequest,
}

/// The waiting requests of a mount, as one process describes them to the next.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WaiterState {
    waiting: Vec<WaitingState>,
    interrupted: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WaitingState {
    device: Option<u32>,
    unique: u64,
    opcode: u32,
    uid: u32,
    ino: Ino,
    requested: LockRequest,
}

impl WaitingState {
    fn unanswered(&self) -> Unanswered {
        let WaitingState { device, unique, opcode, .. } = *self;
        Unanswered { device, unique, opcode }
    }
}

impl State {
    /// Counts one more request of a user, unless a limit is reached.
    fn admit(&mut self, uid: u32) -> bool {
        let all: usize = self.by_user.values().sum();
        let of_user = self.by_user.get(&uid).copied().unwrap_or_default();
        let fits = !self.ended && all < MAX_WAITING && of_user < MAX_WAITING_OF_USER;
        if fits {
            self.by_user.insert(uid, of_user + 1);
        }
        fits
    }

    /// Takes out the request with this id, unless it does not wait or is being retried.
    fn take(&mut self, unique: Unique) -> Option<Waiting> {
        let is_this = |waiting: &Waiting| waiting.reply.unique() == unique;
        let lists = [&mut self.waiting, &mut self.retried];
        let taken = lists.into_iter().find_map(|list| list.remove(list.iter().position(is_this)?))?;
        self.dismiss(taken.uid);
        Some(taken)
    }

    fn dismiss(&mut self, uid: u32) {
        if let Some(count) = self.by_user.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&uid);
            }
        }
    }
}

impl Waiters {
    /// Adds a request that waits until its lock is granted.
    pub(crate) fn add(&self, vfs: &Vfs, reply: Reply, uid: u32, ino: Ino, requested: LockRequest) {
        let mut state = self.lock();
        let refused = match () {
            () if state.interrupted.contains(&reply.unique()) => Some(Errno::EINTR),
            () if !state.admit(uid) => Some(Errno::ENOLCK),
            () => None,
        };
        let waiting = Waiting { reply, uid, ino, requested };
        if let Some(errno) = refused {
            drop(state);
            return self.end_wait(vfs, waiting, errno);
        }
        state.waiting.push_back(waiting);
        self.notify(state);
    }

    /// Handles INTERRUPT: if the request waits here, it fails with EINTR. This sends no request to the
    /// database, so an interrupt never waits for a database that does not answer.
    pub(crate) fn interrupt(&self, vfs: &Vfs, unique: Unique) {
        let mut state = self.lock();
        if let Some(waiting) = state.take(unique) {
            drop(state);
            return self.end_wait(vfs, waiting, Errno::EINTR);
        }
        if let Some((retrying, is_interrupted)) = &mut state.retrying
            && *retrying == unique
        {
            *is_interrupted = true;
            return;
        }
        if state.interrupted.len() >= MAX_INTERRUPTS {
            state.interrupted.pop_front();
        }
        state.interrupted.push_back(unique);
    }

    /// Retries all requests, because a lock was released here.
    pub(crate) fn wake(&self) {
        self.notify(self.lock());
    }

    /// Pauses the thread. Waits for at most `timeout` until the thread is not busy; returns whether it is
    /// not.
    pub(crate) fn pause(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        state.is_paused = true;
        let waited = self.changed.wait_timeout_while(state, timeout, |state| state.is_busy);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        !state.is_busy
    }

    pub(crate) fn resume(&self) {
        self.lock().is_paused = false;
        self.changed.notify_all();
    }

    /// Describes the requests and the interrupts for another process, while the thread is paused.
    pub(crate) fn describe(&self, control: &WorkerControl) -> Option<WaiterState> {
        let state = self.lock();
        let describe = |waiting: &Waiting| {
            let Unanswered { device, unique, opcode } = control.describe(&waiting.reply)?;
            let Waiting { uid, ino, requested, .. } = *waiting;
            Some(WaitingState { device, unique, opcode, uid, ino, requested })
        };
        let all = state.waiting.iter().chain(&state.retried);
        let waiting = all.map(describe).collect::<Option<_>>()?;
        Some(WaiterState { waiting, interrupted: state.interrupted.iter().map(|unique| unique.0).collect() })
    }

    /// Checks that this process can answer the requests that another process has described.
    ///
    /// # Errors
    /// The device or ring entry of a request was not handed over. The request could never be answered, so the
    /// other process must continue.
    pub(crate) fn check(described: &WaiterState, control: &WorkerControl) -> Result<(), String> {
        match described.waiting.iter().all(|waiting| control.can_reply_to(waiting.unanswered())) {
            true => Ok(()),
            false => Err("a request that waits for a lock is from a device that was not handed over".into()),
        }
    }

    /// Takes over the requests and the interrupts that another process has described, before the thread is
    /// started. The other process must not answer them any more: a reply that is dropped sends EIO.
    pub(crate) fn restore(&self, described: WaiterState, control: &WorkerControl) {
        let mut state = self.lock();
        state.interrupted.extend(described.interrupted.into_iter().map(Unique));
        for described in described.waiting {
            let Some(reply) = control.reply_to(described.unanswered()) else { continue };
            let WaitingState { uid, ino, requested, .. } = described;
            *state.by_user.entry(uid).or_default() += 1;
            state.waiting.push_back(Waiting { reply, uid, ino, requested });
        }
    }

    /// Ends the thread; all waiting requests fail with EINTR.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.changed.notify_all();
    }

    /// Starts the thread that retries the requests; it ends with [`Waiters::end`].
    pub(crate) fn start(self: &Arc<Self>, vfs: Arc<Vfs>) -> std::io::Result<thread::JoinHandle<()>> {
        let waiters = Arc::clone(self);
        thread::Builder::new().name("limen-locks".into()).spawn(move || waiters.run(&vfs))
    }

    /// If the database does not answer, each retry may take the whole retry timeout. So the thread checks the
    /// state after each retry.
    fn run(&self, vfs: &Vfs) {
        let mut state = self.lock();
        while !state.ended {
            if state.is_paused {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if std::mem::take(&mut state.has_ended_waits) {
                state.is_busy = true;
                drop(state);
                vfs.locks.remove_ended_waits();
                state = self.set_idle(self.lock());
            } else if let Some(waiting) = state.waiting.pop_front() {
                state.is_busy = true;
                state = self.set_idle(self.retry(vfs, state, waiting));
            } else if state.retried.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                state.waiting = std::mem::take(&mut state.retried);
                if !std::mem::take(&mut state.has_changed) {
                    let waited = self.changed.wait_timeout(state, RETRY_EVERY);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    state.has_changed = false;
                }
            }
        }
        for Waiting { reply, requested, .. } in
            std::mem::take(&mut state.waiting).into_iter().chain(std::mem::take(&mut state.retried))
        {
            vfs.locks.stop_waiting(requested);
            reply.error(Errno::EINTR);
        }
        drop(state);
        vfs.locks.remove_ended_waits();
    }

    /// Tells [`Waiters::pause`] that the thread is not busy.
    fn set_idle<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.is_busy = false;
        if state.is_paused {
            self.changed.notify_all();
        }
        state
    }

    fn retry<'a>(
        &'a self,
        vfs: &Vfs,
        mut state: MutexGuard<'a, State>,
        waiting: Waiting,
    ) -> MutexGuard<'a, State> {
        let Waiting { uid, ino, requested, .. } = waiting;
        state.retrying = Some((waiting.reply.unique(), false));
        drop(state);
        let outcome = vfs.locks.retry_lock(ino, requested);
        let mut state = self.lock();
        let is_interrupted = state.retrying.take().is_some_and(|(_, is_interrupted)| is_interrupted);
        if outcome == Ok(Locked::Waiting) && !is_interrupted {
            state.retried.push_back(waiting);
            return state;
        }
        state.dismiss(uid);
        drop(state);
        match outcome {
            Ok(Locked::Granted) => vfs.locks.when_current(ino, || waiting.reply.ok(&[])),
            Ok(Locked::Waiting) => self.end_wait(vfs, waiting, Errno::EINTR),
            Err(errno) => waiting.reply.error(errno),
        }
        self.lock()
    }

    /// Fails a request that waits no longer. The thread removes the record of the wait from the database
    /// afterwards, or the VFS does before the owner requests another lock.
    fn end_wait(&self, vfs: &Vfs, Waiting { reply, requested, .. }: Waiting, errno: Errno) {
        vfs.locks.stop_waiting(requested);
        reply.error(errno);
        self.lock().has_ended_waits = true;
        self.changed.notify_all();
    }

    /// Wakes the thread only if a request waits; usually none does when a file is closed. The request that is
    /// being retried is in no list, but the thread reads `has_changed` after each pass.
    fn notify(&self, mut state: MutexGuard<'_, State>) {
        state.has_changed = true;
        if !state.waiting.is_empty() {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use vfs::LockKind;

    use super::*;

    /// Its program would wait until the mount ends.
    #[test]
    fn a_request_that_cannot_be_answered_is_not_taken_over() {
        let kind = LockKind::Flock;
        let requested = LockRequest { kind, owner: 1, exclusive: true, start: 0, end: 9, pid: 1 };
        let lost = WaitingState { device: Some(0), unique: 2, opcode: 33, uid: 3, ino: Ino(4), requested };
        let described = WaiterState { waiting: vec![lost], interrupted: Vec::new() };
        Waiters::check(&described, &WorkerControl::default()).unwrap_err();
    }

    #[test]
    fn one_user_cannot_take_all_places_for_waiting_requests() {
        let mut state = State::default();
        assert!((0..MAX_WAITING_OF_USER).all(|_| state.admit(1)));
        assert!(!state.admit(1) && state.admit(2));
        state.dismiss(1);
        assert!(state.admit(1) && !state.admit(1));
        let others = MAX_WAITING - MAX_WAITING_OF_USER - 1;
        assert!((0..others).all(|n| state.admit(10 + n as u32)));
        assert!(!state.admit(3) && !state.admit(2));
        (0..MAX_WAITING_OF_USER).for_each(|_| state.dismiss(1));
        assert!(state.admit(3) && !state.by_user.contains_key(&1));
        state.ended = true;
        assert!(!state.admit(3));
    }
}
