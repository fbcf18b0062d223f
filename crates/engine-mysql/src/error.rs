//! The server's errors, and what they mean to the caller.

use std::io;

use meta::{EngineError, ErrorKind};
use mysql::{DriverError, Error};
use tables::Malformed;
use types::Errno;

/// What went wrong with a request.
#[derive(Debug)]
pub(crate) enum Fault {
    Sql(Error),
    /// Rows that nobody here writes.
    Malformed(&'static str),
    /// The request is longer than the server takes (`max_allowed_packet`, in bytes).
    TooLong(usize),
    /// It came after an earlier part of the same batch was committed.
    Partly(Box<Fault>),
}

impl Fault {
    pub(crate) fn malformed(what: &'static str) -> Self {
        Fault::Malformed(what)
    }

    /// The server's number for the error.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Fault::Sql(Error::MySqlError(error)) => Some(error.code),
            Fault::Partly(fault) => fault.code(),
            _ => None,
        }
    }

    /// Whether the connection still does what it is told.
    pub(crate) fn leaves_connection(&self) -> bool {
        match self {
            Fault::Malformed(_) | Fault::TooLong(_) => true,
            Fault::Partly(fault) => fault.leaves_connection(),
            Fault::Sql(_) => false,
        }
    }
}

impl From<Malformed> for Fault {
    fn from(Malformed(what): Malformed) -> Self {
        Fault::Malformed(what)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Sql(error)
    }
}

/// What the request was that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Connect,
    /// It changes nothing.
    Read,
    Commit,
}

/// The one table from an error to an [`EngineError`]. A connection that had one is closed, so that the server ends what
/// was open on it: a script commits at its end or not at all.
///
/// | what happened | kind | errno |
/// |---|---|---|
/// | 1021, 1041, 1114: the server's disk or table space is full | did not happen, will again until space is freed | ENOSPC |
/// | 1205, 1213, 3101, 3572: lost against another transaction; 1062 in a commit: a repetition met its first attempt | did not happen, transient | EIO |
/// | 1040, 1203, 1226: too many connections; 1053, 1152, 1290, 1792, 1836, 3032: shutting down or read-only | did not happen, transient | EIO |
/// | 1158-1161, 1180, 1317, 1927, 1969, 3024, and all failures of the network after a commit was sent | may have happened | EIO |
/// | failures of the network else | did not happen, transient | EIO |
/// | any of these, after a part of the batch was committed | may have happened | as above |
/// | all else: wrong password, no such table, damage | did not happen | EIO |
pub(crate) fn engine_error(place: &str, fault: Fault, stage: Stage) -> EngineError {
    let unsure = |message: String| match stage {
        Stage::Commit => EngineError::indeterminate(message),
        Stage::Connect | Stage::Read => EngineError::transient(message),
    };
    match fault {
        Fault::Partly(fault) => {
            EngineError { kind: ErrorKind::Indeterminate, ..engine_error(place, *fault, stage) }
        }
        Fault::Malformed(what) => {
            let message = format!("{place}: {what}: the tables are damaged, or another program writes them");
            match stage {
                Stage::Commit => EngineError::indeterminate(message),
                Stage::Connect | Stage::Read => EngineError::permanent(message),
            }
        }
        Fault::TooLong(bytes) => EngineError::permanent(format!(
            "{place}: a request of {bytes} bytes is longer than the server takes: raise its max_allowed_packet"
        )),
        Fault::Sql(Error::MySqlError(error)) => {
            let message = format!("{place}: {error}");
            match error.code {
                1021 | 1041 | 1114 => EngineError::permanent(message).with_errno(Errno::ENOSPC),
                1062 if stage == Stage::Commit => EngineError::transient(message),
                1205 | 1213 | 3101 | 3572 | 1040 | 1203 | 1226 | 1152 | 1290 | 1792 | 1836 | 3032 => {
                    EngineError::transient(message)
                }
                1053 | 1158..=1161 | 1180 | 1317 | 1927 | 1969 | 3024 => unsure(message),
                _ => EngineError::permanent(message),
            }
        }
        Fault::Sql(Error::IoError(error)) => {
            let why = match error.kind() {
                // What a socket's timeout reads as.
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
                _ => error.to_string(),
            };
            unsure(format!("{place}: {why}"))
        }
        Fault::Sql(Error::DriverError(
            error @ (DriverError::ConnectTimeout | DriverError::CouldNotConnect(_) | DriverError::Timeout),
        )) => EngineError::transient(format!("{place}: {error}")),
        // The network, as the codec saw it.
        Fault::Sql(error @ Error::CodecError(_)) => unsure(format!("{place}: {error}")),
        Fault::Sql(error @ Error::DriverError(_)) if stage != Stage::Connect => {
            unsure(format!("{place}: {error}"))
        }
        Fault::Sql(error) => EngineError::permanent(format!("{place}: {error}")),
    }
}
