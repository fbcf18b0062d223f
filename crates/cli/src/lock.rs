//! The lock on the database file of a volume. Only the embedded engine has one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
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
    let failed = CliError::new(format!("cannot lock the volume: {error}")).at(path.display());
    match fs::metadata(path) {
        Ok(file) if error.kind() == io::ErrorKind::PermissionDenied => failed.advise(format!(
            "the file belongs to the user with uid {}, who has mounted the volume before: if that mount was killed, mount the volume once as that user; then give this file the owner of the database (chown)",
            file.uid()
        )),
        _ => failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_of_another_user_is_named_with_its_owner() {
        let path = std::env::temp_dir().join(format!("limen-lock-{}", std::process::id()));
        fs::write(&path, []).unwrap();
        let text = lock_error(&path, &io::ErrorKind::PermissionDenied.into()).to_string();
        fs::remove_file(&path).unwrap();
        let owner = format!("uid {}", rustix::process::geteuid().as_raw());
        assert!(text.contains(&owner) && text.contains("chown"), "{text}");
    }
}
