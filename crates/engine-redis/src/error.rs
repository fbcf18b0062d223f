//! How requests fail, and what that means to the caller.

use meta::EngineError;
use pool::{Asked, Failed, Leaves};
use redis::RedisError;
use types::Errno;

/// What came back instead of an answer.
pub(crate) enum Failure {
    /// The server refused the request or failed in it, which has a code; or the connection broke or was silent for too
    /// long, and the request may have been heard.
    Redis(RedisError),
    /// The server answered, but is no master, or no more, so what it said may be old.
    Demoted,
    /// An answer that no script of ours gives.
    Malformed(&'static str),
}

/// What an answer holds that no script of ours writes.
#[derive(Debug)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Failure::Redis(error)
    }
}

impl From<Malformed> for Failure {
    fn from(Malformed(what): Malformed) -> Self {
        Failure::Malformed(what)
    }
}

impl Failed for Failure {
    fn leaves(&self) -> Leaves {
        match self {
            Failure::Redis(error) if error.code().is_some() && !is_elsewhere(error) => Leaves::Connection,
            Failure::Malformed(_) => Leaves::Connection,
            Failure::Redis(_) | Failure::Demoted => Leaves::NoServer,
        }
    }

    fn engine_error(self, place: &str, asked: Asked) -> EngineError {
        match self {
            Failure::Redis(error) if error.code().is_some() => refused(place, &error, asked),
            Failure::Redis(error) if error.is_timeout() => {
                asked.unanswered(format!("{place}: the server did not answer in time (op_timeout)"))
            }
            Failure::Redis(error) => asked.unanswered(format!("{place}: {error}")),
            Failure::Demoted => asked.unanswered(format!("{place} is a replica: name its master")),
            Failure::Malformed(what) => {
                asked.not_understood(format!("{place}: the server's answer is damaged: {what}"))
            }
        }
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
fn refused(place: &str, error: &RedisError, asked: Asked) -> EngineError {
    let said = [error.code(), error.detail()].map(Option::unwrap_or_default).join(" ");
    let message = format!("{place}: {said}");
    let full = message.contains("No space left");
    match code(error) {
        "OOM" => EngineError::permanent(message).with_errno(Errno::ENOSPC),
        "MISCONF" if full => EngineError::permanent(message).with_errno(Errno::ENOSPC),
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" => {
            EngineError::transient(message)
        }
        _ if is_elsewhere(error) => EngineError::transient(message),
        "NOVOLUME" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "NOSCRIPT" => EngineError::permanent(message),
        _ => asked.not_understood(message),
    }
}

/// Whether the server is not, or no longer, the one that has the volume.
fn is_elsewhere(error: &RedisError) -> bool {
    matches!(code(error), "READONLY" | "MOVED" | "ASK" | "UNBLOCKED")
}

/// The error's code. Redis 6.2 wraps an error that a script met in one of code ERR: "... @user_script:12: -OOM command
/// not allowed ...".
fn code(error: &RedisError) -> &str {
    const WRAPPED: [&str; 5] = ["OOM", "MISCONF", "NOREPLICAS", "READONLY", "NOPERM"];
    let detail = error.detail().unwrap_or_default();
    let wrapped = |code: &&&str| {
        detail.split_once(": -").is_some_and(|(_, rest)| rest.split(' ').next() == Some(**code))
    };
    match error.code() {
        Some("ERR") => WRAPPED.iter().find(wrapped).copied().unwrap_or("ERR"),
        code => code.unwrap_or_default(),
    }
}
