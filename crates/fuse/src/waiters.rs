//! Requests that wait for a lock (SETLKW), apart from the threads that serve, which must not wait for so long.
//!
//! The lock may be given up on another machine, so they ask again from time to time; what is unlocked here wakes them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fuse_proto::Unique;
use fuse_transport::Reply;
use types::{Errno, Ino};
use vfs::{LockRequest, Locked, Vfs};

/// How long a lock given up elsewhere may go unnoticed.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Requests that may wait at once; one more is refused (ENOLCK).
const MAX_WAITING: usize = 10_000;
/// And of one user, so that nobody keeps all others from waiting.
const MAX_WAITING_OF_USER: usize = 1_000;

/// Interrupts remembered, as many as may be for requests that wait; almost all are for others.
const MAX_INTERRUPTS: usize = MAX_WAITING;

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    /// How many requests wait of each user, those included that are being asked for.
    by_user: HashMap<u32, usize>,
    /// The last interrupts: one may come before its request does. Numbers are never used again.
    interrupted: VecDeque<Unique>,
    /// Something happened since all were asked for last.
    news: bool,
    ended: bool,
}

#[derive(Debug)]
struct Waiting {
    reply: Reply,
    uid: u32,
    ino: Ino,
    asked: LockRequest,
}

impl State {
    /// Counts one more request of a user, if one more may wait.
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
    /// Lets a request of a user wait until its lock is granted.
    pub(crate) fn add(&self, vfs: &Vfs, reply: Reply, uid: u32, ino: Ino, asked: LockRequest) {
        let mut state = self.lock();
        if !state.admit(uid) {
            drop(state);
            vfs.stop_waiting(asked);
            return reply.error(Errno::ENOLCK);
        }
        state.waiting.push(Waiting { reply, uid, ino, asked });
        state.news = true;
        self.changed.notify_one();
    }

    /// The caller of a request was interrupted: if it waits here it is answered EINTR.
    pub(crate) fn interrupt(&self, unique: Unique) {
        let mut state = self.lock();
        if state.interrupted.len() >= MAX_INTERRUPTS {
            state.interrupted.pop_front();
        }
        state.interrupted.push_back(unique);
        self.tell(state);
    }

    /// A lock was given up here.
    pub(crate) fn wake(&self) {
        self.tell(self.lock());
    }

    /// Nothing waits any more; all requests that do are answered.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.changed.notify_one();
    }

    /// Starts the thread that asks; it ends with [`Waiters::end`].
    pub(crate) fn start(self: &Arc<Self>, vfs: Arc<Vfs>) -> std::io::Result<thread::JoinHandle<()>> {
        let waiters = Arc::clone(self);
        thread::Builder::new().name("limen-locks".into()).spawn(move || waiters.run(&vfs))
    }

    fn run(&self, vfs: &Vfs) {
        let mut state = self.lock();
        while !state.ended {
            if state.waiting.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waiting = std::mem::take(&mut state.waiting);
            let interrupted: HashSet<Unique> = state.interrupted.iter().copied().collect();
            state.news = false;
            drop(state);
            let (mut left, mut done) = (Vec::with_capacity(waiting.len()), Vec::new());
            for waiting in waiting {
                let uid = waiting.uid;
                match ask(vfs, waiting, &interrupted) {
                    Some(waiting) => left.push(waiting),
                    None => done.push(uid),
                }
            }
            state = self.lock();
            done.into_iter().for_each(|uid| state.dismiss(uid));
            state.waiting.splice(..0, left);
            if !state.news {
                let waited = self.changed.wait_timeout(state, ASK_EVERY);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        for waiting in state.waiting.drain(..) {
            vfs.stop_waiting(waiting.asked);
            waiting.reply.error(Errno::EINTR);
        }
    }

    /// Almost every file is closed while nobody waits: then no thread is woken. Those that are being asked for stand in no
    /// list meanwhile; the thread that asks looks for news afterwards.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        state.news = true;
        if !state.waiting.is_empty() {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks once more for what a request waits for; gives it back if it has to go on waiting.
fn ask(vfs: &Vfs, waiting: Waiting, interrupted: &HashSet<Unique>) -> Option<Waiting> {
    let Waiting { ino, asked, .. } = waiting;
    if interrupted.contains(&waiting.reply.unique()) {
        vfs.stop_waiting(asked);
        waiting.reply.error(Errno::EINTR);
        return None;
    }
    match vfs.ask_again(ino, asked) {
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
    fn one_user_cannot_take_all_places_of_waiting_calls() {
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
