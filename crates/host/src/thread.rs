//! Threads, and waiting for each other.
//!
//! Threads of simulated machines run one at a time. One that waited for another in the usual way would stop them all, so it
//! looks again after a moment of simulated time instead. Locks that are never held while a thread asks or sleeps need none of
//! this.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a simulated thread waits at most before it looks again.
#[cfg(feature = "sim")]
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Starts a thread.
///
/// # Errors
/// Those of [`Builder::spawn`].
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        return machine.spawn(name, Box::new(work));
    }
    Builder::new().name(name.into()).spawn(work)
}

/// As [`std::thread::park_timeout`].
pub fn park_timeout(time: Duration) {
    #[cfg(feature = "sim")]
    if crate::sim::with(|machine| machine.sleep(time)).is_some() {
        return;
    }
    std::thread::park_timeout(time);
}

/// Locks what may be locked for as long as a request takes. A panic of another thread is no matter.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(feature = "sim")]
    while is_contended(mutex.try_lock().err()) {
        crate::sim::with(|machine| machine.sleep(LOOK_EVERY / 20));
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`].
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    #[cfg(feature = "sim")]
    while is_contended(lock.try_read().err()) {
        crate::sim::with(|machine| machine.sleep(LOOK_EVERY / 20));
    }
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`].
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    #[cfg(feature = "sim")]
    while is_contended(lock.try_write().err()) {
        crate::sim::with(|machine| machine.sleep(LOOK_EVERY / 20));
    }
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a simulated thread has to wait for the lock.
#[cfg(feature = "sim")]
fn is_contended<G>(error: Option<std::sync::TryLockError<G>>) -> bool {
    matches!(error, Some(std::sync::TryLockError::WouldBlock)) && crate::sim::machine().is_some()
}

/// Waits to be notified, at most for `timeout`; it may also return before that. `guard` is of `mutex`.
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> MutexGuard<'a, T> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        drop(guard);
        machine.sleep(timeout.min(LOOK_EVERY));
        return lock(mutex);
    }
    let _ = mutex;
    condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
}

/// Waits to be notified; it may also return before that. `guard` is of `mutex`.
pub fn wait<'a, T>(condvar: &Condvar, mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    #[cfg(feature = "sim")]
    if let Some(machine) = crate::sim::machine() {
        drop(guard);
        machine.sleep(LOOK_EVERY);
        return lock(mutex);
    }
    let _ = mutex;
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
