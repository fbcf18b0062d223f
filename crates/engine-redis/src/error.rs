//! Redis's errors, and what they mean to the caller.

use meta::EngineError;
use redis::{RedisError, ServerError};
use types::Errno;

/// Why a volume could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Url(String),
    #[error("there is no volume at {0}: make one with limen format")]
    Missing(String),
    #[error("what is stored at {0} is not limenfs's: take another table_prefix or database")]
    NotLimenfs(String),
    #[error(
        "{url} has layout version {found}, and this limen knows versions up to {known}: use the limen that wrote it, or a newer one"
    )]
    Newer { url: String, found: u64, known: u64 },
    #[error("{0}")]
    Engine(#[from] EngineError),
}

/// What a request was for: what is not known about it after the connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Look,
    Change,
}

/// The connection broke, or stayed silent for too long, after the request was sent or while it was.
pub(crate) fn broken(place: &str, error: &RedisError, intent: Intent) -> EngineError {
    let message = if error.is_timeout() {
        format!("{place}: the server did not answer in time (op_timeout)")
    } else {
        format!("{place}: {error}")
    };
    match intent {
        Intent::Look => EngineError::transient(message),
        Intent::Change => EngineError::indeterminate(message),
    }
}

/// An answer that no script of ours gives.
pub(crate) fn malformed(place: &str, what: &str, intent: Intent) -> EngineError {
    let message = format!("{place}: the server's answer is damaged: {what}");
    match intent {
        Intent::Look => EngineError::permanent(message),
        Intent::Change => EngineError::indeterminate(message),
    }
}

/// The one table from an error that the server answered with to an [`EngineError`]. A script that was refused did
/// nothing, for its first write changes nothing.
///
/// | Redis says | kind | errno |
/// |---|---|---|
/// | OOM: `maxmemory` is reached; MISCONF with "No space left": its disk is full | will fail again until space is freed | ENOSPC |
/// | LOADING, BUSY, TRYAGAIN, CLUSTERDOWN, MASTERDOWN, NOREPLICAS, MISCONF | transient | EIO |
/// | READONLY, MOVED, ASK, UNBLOCKED: the master is elsewhere by now | transient, on a new connection | EIO |
/// | NOVOLUME: our own, there is nothing of ours any more; NOAUTH, NOPERM, WRONGPASS | permanent | EIO |
/// | all else: a script failed, a key is of another type | permanent for a look, indeterminate for a change | EIO |
pub(crate) fn refused(place: &str, error: &ServerError, intent: Intent) -> EngineError {
    let code = code(error);
    let message = format!("{place}: {}", text(error));
    match code {
        "OOM" => EngineError::permanent(message).with_errno(Errno::ENOSPC),
        "MISCONF" if message.contains("No space left") => {
            EngineError::permanent(message).with_errno(Errno::ENOSPC)
        }
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" => {
            EngineError::transient(message)
        }
        _ if is_elsewhere(error) => EngineError::transient(message),
        "NOVOLUME" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "NOSCRIPT" => EngineError::permanent(message),
        _ => match intent {
            Intent::Look => EngineError::permanent(message),
            Intent::Change => EngineError::indeterminate(message),
        },
    }
}

/// Whether the server is not, or no longer, the one that has the volume.
pub(crate) fn is_elsewhere(error: &ServerError) -> bool {
    matches!(code(error), "READONLY" | "MOVED" | "ASK" | "UNBLOCKED")
}

/// The error's code. Redis 6.2 wraps an error that a script met in one of code ERR: "... @user_script:12: -OOM command
/// not allowed ...".
fn code(error: &ServerError) -> &str {
    const WRAPPED: [&str; 5] = ["OOM", "MISCONF", "NOREPLICAS", "READONLY", "NOPERM"];
    let detail = error.details().unwrap_or_default();
    let wrapped = |code: &&&str| {
        detail.split_once(": -").is_some_and(|(_, rest)| rest.split(' ').next() == Some(**code))
    };
    match error.code() {
        "ERR" => WRAPPED.iter().find(wrapped).copied().unwrap_or("ERR"),
        code => code,
    }
}

fn text(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}
