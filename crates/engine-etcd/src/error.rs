//! etcd's errors, and what they mean to the caller.

use meta::EngineError;
use pool::{Asked, Failed, Leaves};
use types::Errno;

use crate::grpc::{CallError, code};

/// The one table from a failed call to an [`EngineError`].
///
/// | etcd says | kind | errno |
/// |---|---|---|
/// | nothing: the request did not leave | transient | EIO |
/// | nothing: no answer in time, a connection that broke | a look: transient; a change: indeterminate | EIO |
/// | RESOURCE_EXHAUSTED, database space exceeded | will fail again until space is freed | ENOSPC |
/// | RESOURCE_EXHAUSTED, otherwise (too many requests) | transient | EIO |
/// | UNAUTHENTICATED (a token that ran out), OUT_OF_RANGE (a revision that is gone) | transient | EIO |
/// | INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED | permanent | EIO |
/// | all else (no leader, timeouts within the cluster) | as no answer | EIO |
impl Failed for CallError {
    fn leaves(&self) -> Leaves {
        if matches!(self, CallError::Status(..)) { Leaves::Broken } else { Leaves::NoServer }
    }

    fn engine_error(self, place: &str, asked: Asked) -> EngineError {
        let (status, message) = match self {
            CallError::NotSent(message) => return EngineError::transient(format!("{place}: {message}")),
            CallError::Lost(message) => return asked.unanswered(format!("{place}: {message}")),
            CallError::Status(status, message) => (status, message),
        };
        let text = format!("{place}: {message}");
        match status {
            code::RESOURCE_EXHAUSTED if message.contains("database space exceeded") => {
                let advice = "compact and defragment it, then disarm its alarm";
                EngineError::permanent(format!("{text}: {advice}")).with_errno(Errno::ENOSPC)
            }
            code::RESOURCE_EXHAUSTED | code::UNAUTHENTICATED | code::OUT_OF_RANGE => {
                EngineError::transient(text)
            }
            code::INVALID_ARGUMENT if message.contains("too many operations in txn") => {
                EngineError::permanent(format!(
                    "{text}: start etcd with --max-txn-ops=128 or more, or say what it has with ?max_txn_ops="
                ))
            }
            code::INVALID_ARGUMENT if message.contains("invalid auth token") => EngineError::transient(text),
            code::INVALID_ARGUMENT
            | code::PERMISSION_DENIED
            | code::FAILED_PRECONDITION
            | code::UNIMPLEMENTED => EngineError::permanent(text),
            _ => asked.unanswered(text),
        }
    }
}
