//! Maps the errors of TiKV's client to engine errors.

use meta::EngineError;
use tikv_client::{Error, ProtoKeyError};
use types::Errno;

use crate::store::CommitError;

/// Maps the error of a read. A failed read has changed nothing.
///
/// | the client says | kind | errno |
/// |---|---|---|
/// | an error for a key, other than that it is locked | permanent | EIO |
/// | anything else: no answer, no leader, a lock that stays | transient | EIO |
pub(crate) fn read_error(error: &Error) -> EngineError {
    let text = format!("TiKV: {error}");
    match error {
        Error::KeyError(key) if key.locked.is_none() && key.retryable.is_empty() => {
            EngineError::permanent(text)
        }
        _ => EngineError::transient(text),
    }
}

/// Maps the error of a commit. The client marks only few errors as indeterminate (client 0.4:
/// `Committer::commit`), so the replies of the servers decide: the transaction did not happen if a reply says
/// so, and may have happened if there is no reply.
///
/// | error | outcome | errno |
/// |---|---|---|
/// | a conflict; a lock that stays; the transaction was rolled back | did not happen: a conflict with another transaction | |
/// | not committed in one phase | did not happen: refused in one phase | |
/// | another error for a key | permanent | EIO |
/// | a region's disk is full | indeterminate, because the request may have been repeated | ENOSPC |
/// | anything else: no answer, no leader | indeterminate | EIO |
pub(crate) fn commit_error(error: &Error) -> CommitError {
    let text = format!("TiKV: {error}");
    match error {
        Error::OnePcFailure => CommitError::OnePhaseRefused,
        Error::ResolveLockError(_) => CommitError::Conflict(text),
        Error::KeyError(key) if is_conflict(key) => CommitError::Conflict(text),
        Error::KeyError(_) => CommitError::Failed(EngineError::permanent(text)),
        Error::MultipleKeyErrors(errors) | Error::ExtractedErrors(errors) => {
            let outcomes: Vec<CommitError> = errors.iter().map(commit_error).collect();
            worst(outcomes).unwrap_or_else(|| CommitError::Failed(EngineError::indeterminate(text)))
        }
        Error::RegionError(region) if region.disk_full.is_some() => {
            CommitError::Failed(EngineError::indeterminate(text).with_errno(Errno::ENOSPC))
        }
        _ => CommitError::Failed(EngineError::indeterminate(text)),
    }
}

/// The least certain of several outcomes.
fn worst(outcomes: Vec<CommitError>) -> Option<CommitError> {
    outcomes.into_iter().max_by_key(|outcome| match outcome {
        CommitError::OnePhaseRefused => 0,
        CommitError::Conflict(_) => 1,
        CommitError::Failed(error) if error.kind != meta::ErrorKind::Indeterminate => 2,
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
    use meta::ErrorKind;
    use tikv_client::ProtoRegionError;

    use super::*;

    fn key(key: ProtoKeyError) -> Error {
        Error::KeyError(Box::new(key))
    }

    fn kind(error: &Error) -> Option<ErrorKind> {
        match commit_error(error) {
            CommitError::Failed(error) => Some(error.kind),
            CommitError::Conflict(_) | CommitError::OnePhaseRefused => None,
        }
    }

    #[test]
    fn errors_are_determinate_only_if_a_server_reported_them() {
        let conflict = || key(ProtoKeyError { conflict: Some(Default::default()), ..Default::default() });
        let gone = key(ProtoKeyError { txn_not_found: Some(Default::default()), ..Default::default() });
        let abort = key(ProtoKeyError { abort: "no".to_owned(), ..Default::default() });
        assert_eq!(commit_error(&Error::OnePcFailure), CommitError::OnePhaseRefused);
        assert!(matches!(commit_error(&conflict()), CommitError::Conflict(_)));
        assert!(matches!(commit_error(&gone), CommitError::Conflict(_)));
        assert_eq!(kind(&abort), Some(ErrorKind::Determinate { transient: false }));
        let lost = || Error::StringError("lost".to_owned());
        assert_eq!(kind(&lost()), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::UndeterminedError(Box::new(conflict()))), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::MultipleKeyErrors(vec![conflict(), lost()])), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::MultipleKeyErrors(Vec::new())), Some(ErrorKind::Indeterminate));
        assert_eq!(kind(&Error::ExtractedErrors(vec![conflict(), conflict()])), None);
    }

    #[test]
    fn full_disk_is_enospc() {
        let disk_full = Some(Default::default());
        let full = Error::RegionError(Box::new(ProtoRegionError { disk_full, ..Default::default() }));
        let CommitError::Failed(error) = commit_error(&full) else { panic!("it failed") };
        assert_eq!(error.errno, Errno::ENOSPC);
    }
}
