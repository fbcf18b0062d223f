//! Maps failed requests to engine errors.

use meta::EngineError;
use pool::{ConnectionState, Intent, RequestError};
use redis::RedisError;
use types::Errno;

/// The reason why a request got no usable answer.
pub(crate) enum Failure {
    /// The server returned an error, which has a code; or the connection broke or timed out, and the request
    /// may have been executed.
    Redis(RedisError),
    /// The server answered but is not (or no longer) a master, so its answer may be old.
    Demoted,
    /// The server is a Sentinel, but the URL does not say so.
    Sentinel,
    /// The answer does not have the form that the scripts produce.
    Malformed(&'static str),
    /// The stream lost changes that its reader had not read.
    Missed,
    /// The records were removed while the stream was open.
    Wiped,
}

/// The reason why an answer cannot be decoded.
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

impl RequestError for Failure {
    fn connection_after(&self) -> ConnectionState {
        match self {
            Failure::Redis(error) if error.code().is_some() && !is_elsewhere(error) => {
                ConnectionState::Usable
            }
            Failure::Malformed(_) | Failure::Missed | Failure::Wiped => ConnectionState::Usable,
            Failure::Redis(_) | Failure::Demoted | Failure::Sentinel => ConnectionState::ServerLost,
        }
    }

    fn engine_error(self, address: &str, intent: Intent) -> EngineError {
        match self {
            Failure::Redis(error) if error.code().is_some() => refused(address, &error, intent),
            Failure::Redis(error) if error.is_timeout() => {
                intent.unanswered(format!("{address}: the server did not answer within op_timeout"))
            }
            Failure::Redis(error) => intent.unanswered(format!("{address}: {error}")),
            Failure::Demoted => {
                intent.unanswered(format!("{address} is a replica: use the address of its master"))
            }
            Failure::Sentinel => EngineError::permanent(format!(
                "{address} is a Sentinel: add master=NAME to the URL, with the name of the master that it monitors"
            )),
            Failure::Missed => EngineError::permanent(format!(
                "{address}: changes were removed from the stream before this client read them"
            )),
            Failure::Wiped => EngineError::permanent(format!("{address}: the volume was wiped")),
            Failure::Malformed(what) => {
                intent.malformed_reply(format!("{address}: cannot decode the server's answer: {what}"))
            }
        }
    }
}

/// Maps an error reply of the server to an [`EngineError`]. A script that the server rejected for lack of
/// memory or disk space did nothing, because the server checks for space only at the first write of a script.
///
/// | Redis error | kind | errno |
/// |---|---|---|
/// | OOM: `maxmemory` is reached; MISCONF with "No space left": the server's disk is full | permanent: fails until space is freed | ENOSPC |
/// | LOADING, BUSY, TRYAGAIN, CLUSTERDOWN, MASTERDOWN, NOREPLICAS, MISCONF | transient | EIO |
/// | READONLY, MOVED, ASK, UNBLOCKED: another server is now the master | transient, on a new connection | EIO |
/// | NOVOLUME: from our scripts, the volume's keys are gone; NOAUTH, NOPERM, WRONGPASS, NOSCRIPT | permanent | EIO |
/// | anything else: a script failed, a key has another type | permanent for a read, indeterminate for a change | EIO |
fn refused(address: &str, error: &RedisError, intent: Intent) -> EngineError {
    let said = [error.code(), error.detail()].map(Option::unwrap_or_default).join(" ");
    let message = format!("{address}: {said}");
    let full = message.contains("No space left");
    match code(error) {
        "OOM" => EngineError::permanent(message).with_errno(Errno::ENOSPC),
        "MISCONF" if full => EngineError::permanent(message).with_errno(Errno::ENOSPC),
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" => {
            EngineError::transient(message)
        }
        _ if is_elsewhere(error) => EngineError::transient(message),
        "NOVOLUME" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "NOSCRIPT" => EngineError::permanent(message),
        _ => intent.malformed_reply(message),
    }
}

/// True if the error says that another server is the master now.
fn is_elsewhere(error: &RedisError) -> bool {
    matches!(code(error), "READONLY" | "MOVED" | "ASK" | "UNBLOCKED")
}

/// The error's code. Redis 6.2 wraps an error that occurs inside a script in one with code ERR: "...
/// @user_script:12: -OOM command not allowed ...".
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
