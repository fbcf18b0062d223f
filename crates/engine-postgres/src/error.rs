//! PostgreSQL's errors, and what they mean to the caller.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use meta::EngineError;
use pool::{Asked, Failed, Leaves};
use tables::Malformed;
use tokio_postgres::error::{DbError, Severity, SqlState};
use types::Errno;

/// How far a request had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Connect,
    Prepare,
    /// The server may have got it.
    Sent,
}

/// A request that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Postgres(Stage, tokio_postgres::Error),
    Timeout(Stage, Duration),
    Runtime(io::Error),
    /// The server answered what limenfs never writes.
    Malformed(&'static str),
    /// Rows of the log were removed that a stream of changes has not read.
    Missed,
}

/// What `functions.sql` raises where a run has to be sent in parts, and a single transaction with care.
const IN_PARTS: &str = "LM001";

impl Failure {
    /// What the server said, if it was the server that failed.
    fn code(&self) -> Option<&SqlState> {
        match self {
            Failure::Postgres(_, error) => error.code(),
            _ => None,
        }
    }

    /// The server said that it is the last that it says.
    fn ends_connection(&self) -> bool {
        let Failure::Postgres(_, error) = self else { return false };
        let severity = error.as_db_error().and_then(DbError::parsed_severity);
        matches!(severity, Some(Severity::Fatal | Severity::Panic))
    }

    pub(crate) fn wants_parts(&self) -> bool {
        self.code().is_some_and(|code| code.code() == IN_PARTS)
    }

    fn text(&self) -> String {
        match self {
            Failure::Timeout(Stage::Connect, limit) => {
                format!("no connection within {limit:?} (connect_timeout)")
            }
            Failure::Timeout(_, limit) => format!("no answer within {limit:?} (op_timeout)"),
            Failure::Runtime(error) => format!("no event loop: {error}"),
            Failure::Malformed(what) => format!("the server answered what limenfs never writes: {what}"),
            Failure::Missed => "changes were removed from the log before this client read them".to_owned(),
            Failure::Postgres(_, error) => match (error.as_db_error(), error.source()) {
                (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
                (None, Some(source)) => format!("{error}: {source}"),
                (None, None) => error.to_string(),
            },
        }
    }
}

impl Failed for Failure {
    /// A connection where the server refused this one request, and rolled it back. With its log's disk full it ends.
    fn leaves(&self) -> Leaves {
        let clean = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::UNIQUE_VIOLATION,
            SqlState::QUERY_CANCELED,
            SqlState::DISK_FULL,
        ];
        let is_clean = self.wants_parts() || self.code().is_some_and(|code| clean.contains(code));
        if is_clean && !self.ends_connection() { Leaves::Connection } else { Leaves::NoServer }
    }

    /// The one table from a failure to an [`EngineError`].
    ///
    /// | what | kind |
    /// |---|---|
    /// | nothing, after a request was sent; the server ended the connection (FATAL, PANIC, 57P) or is gone (08, said by a pooler), which it may do after it has committed | indeterminate if it changes, else transient |
    /// | what makes no sense | indeterminate if the request changes, else permanent |
    /// | the disk is full (53100) | ENOSPC |
    /// | a conflict (40), a unique key that another took (23505), a timeout (57014), too many connections (53), a server that stops or starts (57P), a standby (25006), a function or statement that is gone (42883, 42704, 26000), no connection | transient |
    /// | all else: a password, a privilege, rows nobody here writes | permanent |
    fn engine_error(self, place: &str, asked: Asked) -> EngineError {
        let message = format!("{place}: {}", self.text());
        let (stage, error) = match &self {
            Failure::Malformed(_) => return asked.not_understood(message),
            Failure::Runtime(_) | Failure::Missed => return EngineError::permanent(message),
            Failure::Timeout(stage, _) => (*stage, None),
            Failure::Postgres(stage, error) => (*stage, Some(error)),
        };
        let Some(code) = self.code() else {
            return match stage {
                Stage::Sent => asked.unanswered(message),
                Stage::Connect if error.is_some_and(|error| !is_io(error)) => EngineError::permanent(message),
                Stage::Connect | Stage::Prepare => EngineError::transient(message),
            };
        };
        let (code, class) = (code.code(), code.code().get(..2));
        let may_have_committed =
            self.ends_connection() || class == Some("08") || class == Some("57") && code != "57014";
        match class {
            _ if may_have_committed && stage == Stage::Sent => asked.unanswered(message),
            _ if code == "53100" => EngineError::permanent(message).with_errno(Errno::ENOSPC),
            Some("08" | "40" | "53" | "57") => EngineError::transient(message),
            _ if ["23505", "25006", "42883", "42704", "26000", "55P03", IN_PARTS].contains(&code) => {
                EngineError::transient(message)
            }
            _ => EngineError::permanent(message),
        }
    }
}

impl From<Malformed> for Failure {
    fn from(Malformed(what): Malformed) -> Self {
        Failure::Malformed(what)
    }
}

/// Whether the failure is one of the network, which may pass.
fn is_io(error: &tokio_postgres::Error) -> bool {
    error.is_closed() || error.source().is_none_or(|source| source.is::<io::Error>())
}
