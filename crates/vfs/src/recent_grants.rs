//! The files on which locks were granted a short time ago, and the notifications about them that wait.
//!
//! After a lock was granted, the program's next call usually makes the kernel request the attributes of the
//! file (read(2), lseek(2)). If the kernel is notified about the inode before it has applied the reply, it
//! ignores the attributes in the reply, including the new size (`fuse_change_attributes`). So notifications
//! about the file wait for [`GRANT_SETTLES`], or for the next lock. If a notification still waits then,
//! everything about the file is invalidated before the request for this lock is answered.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use host::{HashMap, Instant};
use types::Ino;

/// The time for which notifications about a file wait after a lock on it was granted.
pub(crate) const GRANT_SETTLES: Duration = Duration::from_millis(20);
/// The longest time for which a grant waits until a notification about its file is written.
const WRITE_TIMEOUT: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct RecentGrants {
    state: Mutex<State>,
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    grants: HashMap<Ino, Grant>,
    /// The files about which the kernel is being notified.
    notifying: Vec<Ino>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    at: Instant,
    /// The notification that waits.
    waiting: Option<Part>,
}

/// The part of the kernel's caches of a file that a notification invalidates. `Content` includes
/// `Attributes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Attributes,
    Content,
}

impl RecentGrants {
    /// Makes notifications about the file wait from now on. If a notification is being written, first waits
    /// for that, but at most for [`WRITE_TIMEOUT`]. Returns whether a notification waited already: it is
    /// dropped, and the caller must send one in its place.
    pub(crate) fn begin(&self, ino: Ino) -> bool {
        let until = Instant::now() + WRITE_TIMEOUT;
        let mut state = host::lock(&self.state);
        loop {
            let now = Instant::now();
            if !state.notifying.contains(&ino) || now >= until {
                let before = state.grants.insert(ino, Grant { at: now, waiting: None });
                return before.is_some_and(|grant| grant.waiting.is_some());
            }
            state = host::wait_timeout(&self.written, &self.state, state, until - now);
        }
    }

    /// Makes notifications about the file wait for another [`GRANT_SETTLES`] from now on.
    pub(crate) fn renew(&self, ino: Ino) {
        let at = Instant::now();
        host::lock(&self.state).grants.entry(ino).or_insert(Grant { at, waiting: None }).at = at;
    }

    /// Notifies the kernel now, unless the notification has to wait.
    pub(crate) fn notify(&self, ino: Ino, part: Part, notify: impl FnOnce()) {
        let mut state = host::lock(&self.state);
        if let Some(grant) = state.grants.get_mut(&ino).filter(|grant| !grant.is_settled(Instant::now())) {
            grant.waiting = grant.waiting.max(Some(part));
            return;
        }
        state.notifying.push(ino);
        drop(state);
        notify();
        self.note_written(ino);
    }

    /// Sends the notifications that have waited for long enough.
    pub(crate) fn notify_settled(&self, notify: impl Fn(Ino, Part)) {
        let mut state = host::lock(&self.state);
        let now = Instant::now();
        let settled: Vec<(Ino, Part)> = state
            .grants
            .extract_if(|_, grant| grant.is_settled(now))
            .filter_map(|(ino, grant)| Some((ino, grant.waiting?)))
            .collect();
        state.notifying.extend(settled.iter().map(|(ino, _)| *ino));
        drop(state);
        for (ino, part) in settled {
            notify(ino, part);
            self.note_written(ino);
        }
    }

    fn note_written(&self, ino: Ino) {
        let mut state = host::lock(&self.state);
        if let Some(at) = state.notifying.iter().position(|one| *one == ino) {
            state.notifying.swap_remove(at);
        }
        drop(state);
        self.written.notify_all();
    }
}

impl Grant {
    fn is_settled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= GRANT_SETTLES
    }
}
