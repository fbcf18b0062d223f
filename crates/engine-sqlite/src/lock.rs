//! Mount locks: one process mounts a volume exclusively, or several processes share it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Why a volume could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{path} is already mounted by process {holder}")]
    AlreadyMounted { path: PathBuf, holder: String },
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

/// The right to mount a volume. Dropping it, or the death of the process, releases it.
///
/// The lock is a `flock(2)` on a separate file beside the database. It cannot be on the database file,
/// because SQLite locks that file with POSIX record locks, and a process that closes any descriptor of a file
/// loses all its record locks on that file.
#[derive(Debug)]
pub struct MountLock {
    file: Arc<File>,
}

/// Whether other processes may mount the volume at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Exclusive,
    Shared,
}

impl MountLock {
    pub(crate) fn take(database: &Path, sharing: Sharing) -> Result<Self, LockError> {
        let path = with_suffix(database, ".lock");
        let io = |error| LockError::Io { path: path.clone(), error };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        let taken = match sharing {
            Sharing::Exclusive => file.try_lock(),
            Sharing::Shared => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The holder is only for the message, and may not have been written yet.
                let _ = (&file).take(20).read_to_string(&mut holder);
                let holder = if holder.is_empty() { "(unknown)".to_owned() } else { holder };
                return Err(LockError::AlreadyMounted { path: database.to_owned(), holder });
            }
        }
        file.set_len(0).map_err(io)?;
        if sharing == Sharing::Exclusive {
            write!(file, "{}", std::process::id()).map_err(io)?;
        }
        Ok(MountLock { file: Arc::new(file) })
    }

    /// Continues to hold the exclusive lock of another process, which has passed a descriptor of its lock
    /// file. The lock is held as long as one of the two processes has that file open.
    pub(crate) fn take_over(database: &Path, mut file: File) -> Result<Self, LockError> {
        let path = with_suffix(database, ".lock");
        let mut written = || {
            let (given, named) = (file.metadata()?, std::fs::metadata(&path)?);
            if (given.dev(), given.ino()) != (named.dev(), named.ino()) {
                return Err(io::Error::other("the file passed by the other process is not this lock file"));
            }
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "{}", std::process::id())
        };
        written().map_err(|error| LockError::Io { path: path.clone(), error })?;
        Ok(MountLock { file: Arc::new(file) })
    }

    /// The lock file. A process that receives a descriptor of it can take the lock over
    /// ([`SqliteEngine::take_over_lock`](crate::SqliteEngine)).
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A reference that shows whether the lock is still held.
    pub(crate) fn watch(&self) -> Weak<File> {
        Arc::downgrade(&self.file)
    }
}

/// The path of a file beside the database.
pub(crate) fn with_suffix(database: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(suffix);
    path.into()
}
