//! Maps SQLite errors to engine errors.

use std::io;
use std::path::{Path, PathBuf};

use meta::EngineError;
use rusqlite::{ErrorCode, ffi};
use types::Errno;

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no volume at {0}: create one with limen format")]
    Missing(PathBuf),
    #[error("{0} is not a limenfs database")]
    NotLimenfs(PathBuf),
    #[error(
        "{path} has schema version {found}, and this limen supports versions up to {known}: use the limen that wrote it, or a newer one"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path}: {error}")]
    Sqlite { path: PathBuf, error: rusqlite::Error },
}

impl OpenError {
    /// Converts an `error` that occurred while the database at `path` was being opened.
    pub(crate) fn new(path: &Path, error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => OpenError::NotLimenfs(path.to_owned()),
            _ => OpenError::Sqlite { path: path.to_owned(), error },
        }
    }
}

impl OpenError {
    /// True if the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            OpenError::Io { error, .. } => error.kind() == io::ErrorKind::StorageFull,
            OpenError::Sqlite { error, .. } => is_full(error),
            _ => false,
        }
    }
}

/// The error for a transaction that would add something while the reserve is given up.
pub(crate) fn full() -> rusqlite::Error {
    let what = "the disk is full: remove files from the volume, or free space on the disk";
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), Some(what.to_owned()))
}

/// Maps an SQLite error to an [`EngineError`]. All errors are determinate: a transaction whose COMMIT failed
/// is rolled back before any caller gets an answer, and a read changes nothing.
///
/// | SQLite error | kind | errno |
/// |---|---|---|
/// | FULL, no space for the shared-memory index | permanent: fails until space is freed | ENOSPC |
/// | BUSY, LOCKED: another process holds the lock for longer than the busy timeout | transient | EIO |
/// | anything else: I/O errors, corruption, rows that limenfs never writes | permanent | EIO |
pub(crate) fn engine_error(path: &Path, error: &rusqlite::Error) -> EngineError {
    let message = format!("{}: {error}", path.display());
    match error.sqlite_error_code() {
        _ if is_full(error) => EngineError::permanent(message).with_errno(Errno::ENOSPC),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => EngineError::transient(message),
        _ => EngineError::permanent(message),
    }
}

/// True if the write failed because the disk is full.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    let extended = error.sqlite_error().map(|e| e.extended_code);
    error.sqlite_error_code() == Some(ErrorCode::DiskFull) || extended == Some(ffi::SQLITE_IOERR_SHMSIZE)
}
