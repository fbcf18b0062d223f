//! Threads, and waiting for other threads.
//!
//! The threads of simulated machines run one at a time. If one of them blocked in the usual way, it would
//! block all. So instead of blocking, a thread polls in simulated time. A lock that is never held during a
//! request or a sleep does not need the functions of this file.

use std::io;
#[cfg(feature = "sim")]
use std::sync::mpsc::TryRecvError;
use std::sync::mpsc::{Receiver, RecvError};
use std::sync::{
    Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The longest time between two polls of a simulated thread.
#[cfg(feature = "sim")]
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What each new thread does first.
static THREAD_START: OnceLock<fn()> = OnceLock::new();

/// Sets what each thread does first that [`spawn`] starts, or that calls [`begin_thread`]. Only the first call of this
/// function has an effect.
pub fn set_thread_start(start: fn()) {
    let _ = THREAD_START.set(start);
}

/// Must be called first by a thread that was not started by [`spawn`], but may have been started by a thread that serves
/// requests of the kernel: it has inherited that thread's CPU and scheduling class.
pub fn begin_thread() {
    if let Some(start) = THREAD_START.get() {
        start();
    }
}

/// Starts a thread.
///
/// # Errors
/// Those of [`Builder::spawn`].
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        return machine.spawn(name, Box::new(work));
    }
    Builder::new().name(name.into()).spawn(move || {
        begin_thread();
        work();
    })
}

/// Starts a thread if the calling one belongs to a simulated machine; otherwise returns the work. Crates that
/// have a pool of threads call this before they use the pool.
///
/// # Errors
/// Returns the work if the thread was not started.
pub fn spawn_if_simulated<W: FnOnce() + Send + 'static>(name: &str, work: W) -> Result<(), W> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        // A simulated machine can always start a thread.
        let _ = machine.spawn(name, Box::new(work));
        return Ok(());
    }
    let _ = name;
    Err(work)
}

/// As [`Receiver::recv`].
///
/// # Errors
/// [`RecvError`] if no message is left and all senders are gone.
pub fn receive<T>(receiver: &Receiver<T>) -> Result<T, RecvError> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        loop {
            match receiver.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => machine.sleep(POLL_INTERVAL),
            }
        }
    }
    receiver.recv()
}

/// Runs `work` on this thread and on up to `helpers` more, and returns all results. The threads take their
/// tasks from a common source, so if a thread cannot be started or panics, its result is missing, and the
/// others do its tasks. On a simulated machine there are no helpers, because its threads cannot borrow.
pub fn with_helpers<R: Send>(name: &str, helpers: usize, work: &(dyn Fn() -> R + Sync)) -> Vec<R> {
    #[cfg(feature = "sim")]
    if crate::sim::machine().is_some() {
        return vec![work()];
    }
    std::thread::scope(|scope| {
        let begin_and_work = || {
            begin_thread();
            work()
        };
        let start = |_| Builder::new().name(name.into()).spawn_scoped(scope, begin_and_work).ok();
        let helpers: Vec<_> = (0..helpers).filter_map(start).collect();
        let own = work();
        helpers.into_iter().filter_map(|helper| helper.join().ok()).chain([own]).collect()
    })
}

/// As [`std::thread::park_timeout`].
pub fn park_timeout(time: Duration) {
    #[cfg(feature = "sim")]
    if crate::sim::with(|machine| machine.sleep(time)).is_some() {
        return;
    }
    std::thread::park_timeout(time);
}

/// Locks a mutex that may be held during a request. Ignores poisoning.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(feature = "sim")]
    while is_contended(mutex.try_lock().err()) {
        crate::sim::with(|machine| machine.sleep(POLL_INTERVAL / 20));
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], for reading.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    #[cfg(feature = "sim")]
    while is_contended(lock.try_read().err()) {
        crate::sim::with(|machine| machine.sleep(POLL_INTERVAL / 20));
    }
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], for writing.
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    #[cfg(feature = "sim")]
    while is_contended(lock.try_write().err()) {
        crate::sim::with(|machine| machine.sleep(POLL_INTERVAL / 20));
    }
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the lock is held by another thread and this thread belongs to a simulated machine.
#[cfg(feature = "sim")]
fn is_contended<G>(error: Option<std::sync::TryLockError<G>>) -> bool {
    matches!(error, Some(std::sync::TryLockError::WouldBlock)) && crate::sim::machine().is_some()
}

/// Waits for a notification, for at most `timeout`; spurious wake-ups are possible. `guard` belongs to
/// `mutex`.
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> MutexGuard<'a, T> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        drop(guard);
        machine.sleep(timeout.min(POLL_INTERVAL));
        return lock(mutex);
    }
    let _ = mutex;
    condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
}

/// Waits for a notification; spurious wake-ups are possible. `guard` belongs to `mutex`.
pub fn wait<'a, T>(condvar: &Condvar, mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        drop(guard);
        machine.sleep(POLL_INTERVAL);
        return lock(mutex);
    }
    let _ = mutex;
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
