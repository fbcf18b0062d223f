//! Maps the errors of TiKV's client to engine errors.

use meta::{EngineError, ErrorKind};
use tikv_client::{Error, ProtoKeyError};
use types::Errno;

use crate::store::CommitError;

/// Codes of gRPC (statuscodes.md).
const RESOURCE_EXHAUSTED: i32 = 8;
const OUT_OF_RANGE: i32 = 11;

/// Maps the error of a read. A failed read has changed nothing. `cluster` names the cluster; the client does
/// not say which of its servers has failed.
///
/// | the client says | kind | errno |
/// |---|---|---|
/// | an error for a key, other than a conflict, a lock or an unknown transaction | permanent | EIO |
/// | the answer is larger than the server sends or the client accepts | permanent | EIO |
/// | anything else: no answer, no leader, a lock that stays | transient | EIO |
pub(crate) fn read_error(cluster: &str, error: &Error) -> EngineError {
    let text = format!("{cluster}: {error}");
    match error {
        Error::KeyError(key) if !is_conflict(key) => EngineError::permanent(text),
        Error::GrpcAPI(status) if is_too_large(status.code() as i32, status.message()) => {
            EngineError::permanent(text)
        }
        Error::MultipleKeyErrors(errors) | Error::ExtractedErrors(errors) => {
            let is_permanent =
                |error: &EngineError| error.kind == ErrorKind::Determinate { transient: false };
            errors
                .iter()
                .map(|error| read_error(cluster, error))
                .find(is_permanent)
                .unwrap_or_else(|| EngineError::transient(text))
        }
        _ => EngineError::transient(text),
    }
}

/// The start timestamp of the transaction that blocks a read, if it has locked a key but not its primary key.
pub(crate) fn begun_only(error: &Error) -> Option<u64> {
    match error {
        Error::TxnNotFound(found) => Some(found.start_ts),
        Error::KeyError(key) => key.txn_not_found.as_ref().map(|found| found.start_ts),
        Error::MultipleKeyErrors(errors) | Error::ExtractedErrors(errors) => {
            errors.iter().find_map(begun_only)
        }
        _ => None,
    }
}

/// Whether an answer or a request exceeds a limit of the client or the server, so that a retry would fail
/// too. The code alone does not tell: a server also returns RESOURCE_EXHAUSTED if its memory is used up.
fn is_too_large(code: i32, message: &str) -> bool {
    // The gRPC library of this client reports the same with another code and text.
    code == RESOURCE_EXHAUSTED && message.contains("message larger than max")
        || code == OUT_OF_RANGE && message.contains("message length too large")
}

/// Whether a server has rejected a request, unread, because of its size.
fn is_request_too_large(code: i32, message: &str) -> bool {
    code == RESOURCE_EXHAUSTED && message.contains("eceived message larger than max")
}

/// Maps the error of a commit. The client marks only few errors as indeterminate (client 0.4:
/// `Committer::commit`). So this table goes by the replies of the servers: if a reply says that the
/// transaction was not committed, it did not happen; without a reply it may have happened.
///
/// | error | outcome | errno |
/// |---|---|---|
/// | a conflict; a lock that stays, or whose transaction has no trace; the transaction was rolled back | did not happen: a conflict with another transaction | |
/// | not committed in one phase | did not happen: refused in one phase | |
/// | another error for a key; the request is larger than the server accepts | permanent | EIO |
/// | a region's disk is full | indeterminate, because the request may have been repeated | ENOSPC |
/// | anything else: no answer, no leader | indeterminate | EIO |
pub(crate) fn commit_error(cluster: &str, error: &Error) -> CommitError {
    let text = format!("{cluster}: {error}");
    match error {
        Error::OnePcFailure => CommitError::OnePhaseRefused,
        Error::ResolveLockError(_) | Error::TxnNotFound(_) => CommitError::Conflict(text),
        Error::KeyError(key) if is_conflict(key) => CommitError::Conflict(text),
        Error::KeyError(_) => CommitError::Failed(EngineError::permanent(text)),
        Error::GrpcAPI(status) if is_request_too_large(status.code() as i32, status.message()) => {
            CommitError::Failed(EngineError::permanent(text))
        }
        Error::MultipleKeyErrors(errors) | Error::ExtractedErrors(errors) => {
            let outcomes: Vec<CommitError> =
                errors.iter().map(|error| commit_error(cluster, error)).collect();
            worst(outcomes).unwrap_or_else(|| CommitError::Failed(EngineError::indeterminate(text)))
        }
        Error::RegionError(region) if region.disk_full.is_some() => {
            CommitError::Failed(EngineError::indeterminate(text).with_errno(Errno::ENOSPC))
        }
        _ => CommitError::Failed(EngineError::indeterminate(text)),
    }
}

/// The outcome of several errors: a failure outweighs a conflict, and an indeterminate failure all others.
fn worst(outcomes: Vec<CommitError>) -> Option<CommitError> {
    outcomes.into_iter().max_by_key(|outcome| match outcome {
        CommitError::OnePhaseRefused => 0,
        CommitError::Conflict(_) => 1,
        CommitError::Failed(error) if error.kind != ErrorKind::Indeterminate => 2,
        CommitError::Failed(_) => 3,
    })
}

fn is_conflict(key: &ProtoKeyError) -> bool {
    key.conflict.is_some()
        || key.locked.is_some()
        || key.txn_not_found.is_some()
        || key.commit_ts_expired.is_some()
        || key.commit_ts_too_large.is_some()
        || !key.retryable.is_empty()
}

#[cfg(test)]
mod tests {
    use tikv_client::ProtoRegionError;

    use super::*;

    const CLUSTER: &str = "TiKV by pd:2379";

    fn key(key: ProtoKeyError) -> Error {
        Error::KeyError(Box::new(key))
    }

    fn kind(error: &Error) -> Option<ErrorKind> {
        match commit_error(CLUSTER, error) {
            CommitError::Failed(error) => Some(error.kind),
            CommitError::Conflict(_) | CommitError::OnePhaseRefused => None,
        }
    }

    #[test]
    fn errors_are_determinate_only_if_a_server_reported_them() {
        let conflict = || key(ProtoKeyError { conflict: Some(Default::default()), ..Default::default() });
        let gone = key(ProtoKeyError { txn_not_found: Some(Default::default()), ..Default::default() });
        let abort = key(ProtoKeyError { abort: "no".to_owned(), ..Default::default() });
        assert_eq!(commit_error(CLUSTER, &Error::OnePcFailure), CommitError::OnePhaseRefused);
        assert!(matches!(commit_error(CLUSTER, &conflict()), CommitError::Conflict(_)));
        assert!(matches!(commit_error(CLUSTER, &gone), CommitError::Conflict(_)));
        let gone = Error::TxnNotFound(Default::default());
        assert!(matches!(commit_error(CLUSTER, &gone), CommitError::Conflict(_)));
        assert_eq!(kind(&abort), Some(ErrorKind::Determinate { transient: false }));
        let lost = || Error::StringError("lost".to_owned());
        assert_eq!(kind(&lost()), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::UndeterminedError(Box::new(conflict()))), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::MultipleKeyErrors(vec![conflict(), lost()])), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::MultipleKeyErrors(Vec::new())), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::ExtractedErrors(vec![conflict(), conflict()])), None);
    }

    #[test]
    fn read_error_is_permanent_only_if_a_repetition_would_fail_too() {
        let kind = |error| read_error(CLUSTER, &error).kind;
        let (permanent, transient) =
            (ErrorKind::Determinate { transient: false }, ErrorKind::Determinate { transient: true });
        let abort = || key(ProtoKeyError { abort: "no".to_owned(), ..Default::default() });
        let gone = || {
            let mut gone = ProtoKeyError { txn_not_found: Some(Default::default()), ..Default::default() };
            gone.txn_not_found.as_mut().unwrap().start_ts = 7;
            key(gone)
        };
        assert_eq!(kind(abort()), permanent);
        assert_eq!(kind(gone()), transient);
        assert_eq!(kind(Error::MultipleKeyErrors(vec![gone(), gone()])), transient);
        assert_eq!(kind(Error::ExtractedErrors(vec![gone(), abort()])), permanent);
        assert_eq!(kind(Error::StringError("lost".to_owned())), transient);
        assert_eq!(begun_only(&Error::MultipleKeyErrors(vec![abort(), gone()])), Some(7));
        assert_eq!(begun_only(&abort()), None);
        let text = read_error(CLUSTER, &gone()).to_string();
        assert!(text.starts_with("TiKV by pd:2379: "), "{text}");
    }

    #[test]
    fn sizes_beyond_a_limit_are_recognised() {
        let (sent, received) = (
            "trying to send message larger than max (12583077 vs. 10485760)",
            "grpc: received message larger than max (6291600 vs. 4194304)",
        );
        let decoded = "Error, message length too large: found 5242987 bytes, the limit is: 4194304 bytes";
        assert!(is_too_large(RESOURCE_EXHAUSTED, sent) && is_too_large(OUT_OF_RANGE, decoded));
        assert!(is_too_large(RESOURCE_EXHAUSTED, received) && !is_too_large(RESOURCE_EXHAUSTED, "memory"));
        // A request whose answer was not accepted may have been executed.
        assert!(is_request_too_large(RESOURCE_EXHAUSTED, received));
        assert!(
            !is_request_too_large(RESOURCE_EXHAUSTED, sent) && !is_request_too_large(OUT_OF_RANGE, decoded)
        );
    }

    #[test]
    fn full_disk_is_enospc() {
        let disk_full = Some(Default::default());
        let full = Error::RegionError(Box::new(ProtoRegionError { disk_full, ..Default::default() }));
        let CommitError::Failed(error) = commit_error(CLUSTER, &full) else { panic!("it failed") };
        assert_eq!(error.errno, Errno::ENOSPC);
    }
}
