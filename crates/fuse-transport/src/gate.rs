//! Pauses the workers of a mount between two requests, so that another process can take the mount over.
//!
//! A worker that waits for a request does not see that the gate is closed. It is woken by a request of this
//! process ([`Gate::close`]). A worker that reads from `/dev/fuse` answers this request with an error; one
//! with a ring keeps it. If requests come through rings, no such request reaches the worker that reads from
//! `/dev/fuse`, so this worker also polls [`Gate::wake_fd`]. No signal is used, because a signal could also
//! interrupt a call of a client library.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

/// How long [`Gate::close`] waits for workers before it wakes the next one.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Whether the workers must not begin another request.
    is_closed: AtomicBool,
    /// The id of the thread whose requests wake the workers.
    waker: AtomicU32,
    /// An eventfd that is signaled while the gate is closed.
    wake: OnceLock<OwnedFd>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The workers that read or handle requests, and the requests that other threads handle ([`Apart`]).
    working: usize,
}

/// A worker that may read requests.
#[derive(Debug)]
pub(crate) struct Working<'a>(&'a Gate);

/// A request that a thread of its own handles. It counts as a worker.
#[derive(Debug)]
pub(crate) struct Apart(Arc<Gate>);

impl Apart {
    pub(crate) fn new(gate: &Arc<Gate>) -> Self {
        gate.lock().working += 1;
        Apart(Arc::clone(gate))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.0.lock().working -= 1;
        self.0.changed.notify_all();
    }
}

impl Gate {
    /// Counts a worker as one that may read requests. Must be called before its first read.
    pub(crate) fn enter(&self) -> Working<'_> {
        self.lock().working += 1;
        Working(self)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Creates the descriptor for [`Gate::wake_fd`].
    pub(crate) fn make_wake_fd(&self) -> Result<(), Errno> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let _ = self.wake.set(wake);
        Ok(())
    }

    /// A descriptor that is readable while the gate is closed; `None` without [`Gate::make_wake_fd`].
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.get().map(AsFd::as_fd)
    }

    /// Declares that the requests of this thread wake the workers.
    pub(crate) fn set_waker(&self) {
        self.waker.store(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::Release);
    }

    /// Whether a request of this thread only wakes a worker.
    pub(crate) fn is_waker(&self, tid: u32) -> bool {
        // 0 stands for every caller in another PID namespace.
        tid != 0 && self.waker.load(Ordering::Acquire) == tid
    }

    /// Closes the gate, and waits until no worker reads or handles a request, for at most `timeout`. `wake`
    /// makes the kernel send requests, and must not wait for their replies, because a reply may not come
    /// before the gate is open. Returns whether all workers are paused; if not, the gate is open again.
    pub(crate) fn close(&self, timeout: Duration, wake: &dyn Fn()) -> bool {
        let until = Instant::now() + timeout;
        self.is_closed.store(true, Ordering::Release);
        if let Some(wake) = self.wake_fd() {
            // This fails only if the counter is at its maximum, and then the descriptor is readable already.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
        loop {
            let state = self.lock();
            if state.working == 0 {
                return true;
            }
            let (state, _) =
                self.changed.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner);
            let is_paused = state.working == 0;
            drop(state);
            if is_paused {
                return true;
            }
            if Instant::now() >= until {
                self.open();
                return false;
            }
            wake();
        }
    }

    /// Lets the workers continue.
    pub(crate) fn open(&self) {
        let _state = self.lock();
        if let Some(wake) = self.wake_fd() {
            // This fails if the gate is open already.
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        self.is_closed.store(false, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until the gate is open. [`Gate::close`] does not wait for the calling thread.
    pub(crate) fn wait_open(&self) {
        let state = self.lock();
        let _state =
            self.changed.wait_while(state, |_| self.is_closed()).unwrap_or_else(PoisonError::into_inner);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Working<'_> {
    /// Waits while the gate is closed.
    pub(crate) fn pass(&self) {
        let Working(gate) = self;
        if !gate.is_closed() {
            return;
        }
        let mut state = gate.lock();
        state.working -= 1;
        gate.changed.notify_all();
        while gate.is_closed() {
            state = gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.working += 1;
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.lock().working -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn workers_pause_between_requests_and_continue() {
        let (gate, handled) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        let (send, requests) = channel::<()>();
        let requests = Mutex::new(requests);
        thread::scope(|scope| {
            let work = || {
                let working = gate.enter();
                loop {
                    working.pass();
                    if requests.lock().unwrap().recv().is_err() {
                        return;
                    }
                    handled.fetch_add(1, Ordering::SeqCst);
                }
            };
            (0..3).for_each(|_| _ = scope.spawn(work));
            let wake = || send.send(()).unwrap();
            assert!(gate.close(Duration::from_secs(60), &wake));
            let before = handled.load(Ordering::SeqCst);
            (0..50).for_each(|_| send.send(()).unwrap());
            thread::sleep(Duration::from_millis(20));
            assert_eq!(handled.load(Ordering::SeqCst), before, "paused workers handle nothing");
            gate.open();
            while handled.load(Ordering::SeqCst) < before + 50 {
                thread::yield_now();
            }
            assert!(!gate.close(Duration::from_millis(20), &|| ()), "workers that wait are not paused");
            drop(send);
        });
    }
}
