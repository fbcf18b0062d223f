//! Why an operation has no result.

use meta::{EngineError, ErrorKind, VolumeError};
use types::{Errno, SessionId};

/// Why an operation did not happen, or why it is not known whether it happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The operation fails by its rules, with this errno.
    #[error(transparent)]
    Operation(#[from] Errno),
    /// The database failed, also in the retries if there were any, or the operation was given up.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The operation did not happen, because the session under which it was planned was removed, usually by
    /// another client.
    #[error("session {0} was removed by another client, which considered this client dead")]
    Fenced(SessionId),
}

impl Failure {
    /// Whether the failure concerns this operation only, so that others may succeed. After any other failure,
    /// for example because the database is down, each would fail in the same way, after all retries.
    pub fn is_of_one(&self) -> bool {
        matches!(self, Failure::Operation(_)) || self.is_refusal()
    }

    /// Whether the operation certainly did not happen, and would fail again: the engine rejects it, or it has
    /// met too many conflicts. A smaller operation may succeed.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Failure::Engine(error) if error.kind == ErrorKind::Determinate { transient: false })
    }
}

impl From<Failure> for VolumeError {
    fn from(failure: Failure) -> VolumeError {
        VolumeError::Failed(match failure {
            Failure::Engine(error) => error,
            failure => EngineError::permanent(failure.to_string()).with_errno(failure.into()),
        })
    }
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Errno {
        match failure {
            Failure::Operation(errno) => errno,
            Failure::Engine(error) => error.errno,
            Failure::Fenced(_) => Errno::EIO,
        }
    }
}
