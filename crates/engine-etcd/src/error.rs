//! Maps etcd errors to engine errors.

use meta::EngineError;
use pool::{ConnectionState, Intent, RequestError};
use types::Errno;

use crate::grpc::{CallError, code};

/// Maps a failed call to an [`EngineError`]. No other code of this engine does so.
///
/// | etcd error | kind | errno |
/// |---|---|---|
/// | none: the request was not sent | transient | EIO |
/// | none: timeout, or the connection broke | transient for a read, indeterminate for a change | EIO |
/// | RESOURCE_EXHAUSTED, database space exceeded | permanent: fails until space is freed | ENOSPC |
/// | INVALID_ARGUMENT or RESOURCE_EXHAUSTED because of the size of the request | permanent | EIO |
/// | RESOURCE_EXHAUSTED, otherwise (too many requests) | transient | EIO |
/// | UNAUTHENTICATED or "invalid auth token" (the token has expired), OUT_OF_RANGE (revision compacted) | transient | EIO |
/// | INVALID_ARGUMENT otherwise, PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED | permanent | EIO |
/// | anything else (no leader, timeouts within the cluster) | like a timeout | EIO |
impl RequestError for CallError {
    fn connection_after(&self) -> ConnectionState {
        if matches!(self, CallError::Status(..)) {
            ConnectionState::Broken
        } else {
            ConnectionState::ServerLost
        }
    }

    fn engine_error(self, address: &str, intent: Intent) -> EngineError {
        let (status, message) = match self {
            CallError::NotSent(message) => return EngineError::transient(format!("{address}: {message}")),
            CallError::Lost(message) => return intent.unanswered(format!("{address}: {message}")),
            CallError::Status(status, message) => (status, message),
        };
        let text = format!("{address}: {message}");
        match status {
            code::RESOURCE_EXHAUSTED if message.contains("database space exceeded") => {
                let advice = "compact and defragment it, then disarm its alarm";
                EngineError::permanent(format!("{text}: {advice}")).with_errno(Errno::ENOSPC)
            }
            code::INVALID_ARGUMENT | code::RESOURCE_EXHAUSTED if is_too_large(&message) => {
                EngineError::permanent(format!("{text}: start etcd with a larger --max-request-bytes"))
            }
            code::RESOURCE_EXHAUSTED | code::UNAUTHENTICATED | code::OUT_OF_RANGE => {
                EngineError::transient(text)
            }
            code::INVALID_ARGUMENT if message.contains("too many operations in txn") => {
                EngineError::permanent(format!(
                    "{text}: start etcd with --max-txn-ops=128 or more, or set ?max_txn_ops= to its value"
                ))
            }
            code::INVALID_ARGUMENT if message.contains("invalid auth token") => EngineError::transient(text),
            code::INVALID_ARGUMENT
            | code::PERMISSION_DENIED
            | code::FAILED_PRECONDITION
            | code::UNIMPLEMENTED => EngineError::permanent(text),
            _ => intent.unanswered(text),
        }
    }
}

/// Whether the server has rejected a request, unread, because of its size: etcd itself, or its gRPC library
/// if the request is larger still.
fn is_too_large(message: &str) -> bool {
    message.contains("request is too large")
        || message.contains("received message") && message.contains("larger than max")
}
