//! Requests that wait for a lock (SETLKW). They do not block the threads that serve requests.
//!
//! The lock may be released on another machine, so the requests are retried periodically; a local unlock
//! wakes them at once.

use std::collections::{HashMap, HashSet, VecDeque};
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

/// The limit of stored interrupts, which covers all waiting requests. Almost all interrupts are for other
/// requests.
const MAX_INTERRUPTS: usize = MAX_WAITING;

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    /// The number of waiting requests per user, including those that are being retried.
    by_user: HashMap<u32, usize>,
    /// The last interrupts, because an interrupt may arrive before its request waits. Request ids are never
    /// reused.
    interrupted: VecDeque<Unique>,
    /// Whether a request was added or interrupted, or a lock released, since the last retry.
    has_changed: bool,
    /// Whether the thread retries requests now, which are not in `waiting` meanwhile.
    is_retrying: bool,
    /// Whether the thread begins no retry, because another process is about to take the requests over.
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
    device: u32,
    unique: u64,
    opcode: u32,
    uid: u32,
    ino: Ino,
    requested: LockRequest,
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
        if !state.admit(uid) {
            drop(state);
            vfs.locks.stop_waiting(requested);
            return reply.error(Errno::ENOLCK);
        }
        state.waiting.push(Waiting { reply, uid, ino, requested });
        state.has_changed = true;
        self.changed.notify_all();
    }

    /// Handles INTERRUPT: if the request waits here, it fails with EINTR.
    pub(crate) fn interrupt(&self, unique: Unique) {
        let mut state = self.lock();
        if state.interrupted.len() >= MAX_INTERRUPTS {
            state.interrupted.pop_front();
        }
        state.interrupted.push_back(unique);
        self.notify(state);
    }

    /// Retries all requests, because a lock was released here.
    pub(crate) fn wake(&self) {
        self.notify(self.lock());
    }

    /// Pauses the retries. Waits for the present one, for at most `timeout`; returns whether it has ended.
    pub(crate) fn pause(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        state.is_paused = true;
        let waited = self.changed.wait_timeout_while(state, timeout, |state| state.is_retrying);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        !state.is_retrying
    }

    pub(crate) fn resume(&self) {
        self.lock().is_paused = false;
        self.changed.notify_all();
    }

    /// Describes the requests and the interrupts for another process, while the retries are paused.
    pub(crate) fn describe(&self, control: &WorkerControl) -> Option<WaiterState> {
        let state = self.lock();
        let describe = |waiting: &Waiting| {
            let Unanswered { device, unique, opcode } = control.describe(&waiting.reply)?;
            let Waiting { uid, ino, requested, .. } = *waiting;
            Some(WaitingState { device, unique, opcode, uid, ino, requested })
        };
        let waiting = state.waiting.iter().map(describe).collect::<Option<_>>()?;
        Some(WaiterState { waiting, interrupted: state.interrupted.iter().map(|unique| unique.0).collect() })
    }

    /// Takes what another process has described, before the thread is started.
    pub(crate) fn restore(&self, described: WaiterState, control: &WorkerControl) {
        let mut state = self.lock();
        state.interrupted.extend(described.interrupted.into_iter().map(Unique));
        for WaitingState { device, unique, opcode, uid, ino, requested } in described.waiting {
            if let Some(reply) = control.reply_to(Unanswered { device, unique, opcode }) {
                *state.by_user.entry(uid).or_default() += 1;
                state.waiting.push(Waiting { reply, uid, ino, requested });
            }
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

    fn run(&self, vfs: &Vfs) {
        let mut state = self.lock();
        while !state.ended {
            if state.waiting.is_empty() || state.is_paused {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waiting = std::mem::take(&mut state.waiting);
            let interrupted: HashSet<Unique> = state.interrupted.iter().copied().collect();
            state.has_changed = false;
            state.is_retrying = true;
            drop(state);
            let (mut left, mut done) = (Vec::with_capacity(waiting.len()), Vec::new());
            for waiting in waiting {
                let uid = waiting.uid;
                match retry(vfs, waiting, &interrupted) {
                    Some(waiting) => left.push(waiting),
                    None => done.push(uid),
                }
            }
            state = self.lock();
            done.into_iter().for_each(|uid| state.dismiss(uid));
            state.waiting.splice(..0, left);
            state.is_retrying = false;
            if state.is_paused {
                self.changed.notify_all();
                continue;
            }
            if !state.has_changed {
                let waited = self.changed.wait_timeout(state, RETRY_EVERY);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        for waiting in state.waiting.drain(..) {
            vfs.locks.stop_waiting(waiting.requested);
            waiting.reply.error(Errno::EINTR);
        }
    }

    /// Wakes the thread only if a request waits; usually none does when a file is closed. Requests that are
    /// being retried are not in the list, but the thread reads `has_changed` after it has retried them.
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

/// Retries a request; returns it if it must continue to wait.
fn retry(vfs: &Vfs, waiting: Waiting, interrupted: &HashSet<Unique>) -> Option<Waiting> {
    let Waiting { ino, requested, .. } = waiting;
    if interrupted.contains(&waiting.reply.unique()) {
        vfs.locks.stop_waiting(requested);
        waiting.reply.error(Errno::EINTR);
        return None;
    }
    match vfs.locks.retry_lock(ino, requested) {
        Ok(Locked::Waiting) => return Some(waiting),
        Ok(Locked::Granted) => waiting.reply.ok(&[]),
        Err(errno) => waiting.reply.error(errno),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

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
