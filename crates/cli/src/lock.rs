//! The lock on the database file of a volume. Only the embedded engine has one.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use command::error::CliError;
use engine_sqlite::{LockError, MountLock};

use crate::url::Database;

/// How long a mount waits for the lock of an earlier mount whose process was killed or is just ending.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Locks the volume: exclusively, or `shared` with other processes that also mount it shared. Waits up to
/// [`LOCK_TIMEOUT`] for a process that is just ending.
///
/// # Errors
/// Another process holds the lock, or the lock file cannot be opened.
pub(crate) fn take_lock(database: &Database, shared: bool) -> Result<Option<MountLock>, LockError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match database.lock(shared) {
            Err(LockError::AlreadyMounted { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

pub(crate) fn lock_error(path: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("cannot lock the volume: {error}")).at(path.display())
}
