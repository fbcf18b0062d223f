//! Maps the server's errors to engine errors.

use std::io::ErrorKind::{TimedOut, WouldBlock};

use meta::EngineError;
use mysql::{DriverError, Error};
use pool::{ConnectionState, Intent, RequestError};
use tables::Malformed;
use types::Errno;

/// Why a request or a connection attempt failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}", said(.0))]
    Sql(#[from] Error),
    /// Rows that limenfs never writes.
    #[error("{0}: the tables are damaged, or another program writes them")]
    Malformed(#[from] Malformed),
    #[error("a request of {0} bytes is too large for the server: raise its max_allowed_packet")]
    TooLong(usize),
    /// The log lost rows that a stream of changes had not read.
    #[error("changes were removed from the log before this client read them")]
    Missed,
    /// The records or the server are not those with which a stream of changes began.
    #[error("the volume was wiped, or the server has changed")]
    Wiped,
    /// A transaction in the log prevented a stream of changes from being opened.
    #[error("a transaction that writes to the log does not end: see SHOW PROCESSLIST on the server")]
    Endless,
}

fn said(error: &Error) -> String {
    match error {
        // A timeout of the socket appears as these errors.
        Error::IoError(e) if matches!(e.kind(), WouldBlock | TimedOut) => {
            "no answer within op_timeout".to_owned()
        }
        Error::IoError(e) => e.to_string(),
        // "Access denied to database"
        Error::MySqlError(e) if e.code == 1044 => {
            format!("{e}: grant the user ALL on the database; CREATE ROUTINE is needed once")
        }
        error => error.to_string(),
    }
}

impl Failure {
    /// The server's error number.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Failure::Sql(Error::MySqlError(error)) => Some(error.code),
            _ => None,
        }
    }
}

impl RequestError for Failure {
    /// If the server reported an error, the connection is closed, so that the server rolls back any open
    /// transaction: a script commits at its end or not at all.
    fn connection_after(&self) -> ConnectionState {
        match self {
            Failure::Malformed(_)
            | Failure::TooLong(_)
            | Failure::Missed
            | Failure::Wiped
            | Failure::Endless => ConnectionState::Usable,
            Failure::Sql(Error::MySqlError(_)) => ConnectionState::Broken,
            Failure::Sql(_) => ConnectionState::ServerLost,
        }
    }

    /// Maps an error to an [`EngineError`].
    ///
    /// | error | kind | errno |
    /// |---|---|---|
    /// | 1021, 1041, 1114: the server's disk or table space is full | did not happen, and fails until space is freed | ENOSPC |
    /// | 1205, 1213, 3101, 3572: lost against another transaction; 1062 in a commit: a repetition conflicts with its first attempt | did not happen, transient | EIO |
    /// | 1040, 1203, 1226: too many connections; 1152, 1290, 1792, 1836, 3032: the server is read-only or similar; no connection | did not happen, transient | EIO |
    /// | 1053, 1158-1161, 1180, 1317, 1927, 1969, 3024, and all network failures | a commit may have happened; everything else is transient | EIO |
    /// | all other errors that the server reports: wrong password, no such table | did not happen | EIO |
    /// | a malformed reply: damage, an unknown protocol | a commit may have happened | EIO |
    fn engine_error(self, address: &str, intent: Intent) -> EngineError {
        let message = format!("{address}: {self}");
        let error = match self {
            Failure::Malformed(_) => return intent.malformed_reply(message),
            Failure::TooLong(_) | Failure::Missed | Failure::Wiped | Failure::Endless => {
                return EngineError::permanent(message);
            }
            Failure::Sql(error) => error,
        };
        match error {
            Error::MySqlError(error) => match error.code {
                1021 | 1041 | 1114 => EngineError::permanent(message).with_errno(Errno::ENOSPC),
                1062 if intent == Intent::Change => EngineError::transient(message),
                1205 | 1213 | 3101 | 3572 | 1040 | 1203 | 1226 | 1152 | 1290 | 1792 | 1836 | 3032 => {
                    EngineError::transient(message)
                }
                1053 | 1158..=1161 | 1180 | 1317 | 1927 | 1969 | 3024 => intent.unanswered(message),
                _ => EngineError::permanent(message),
            },
            Error::DriverError(DriverError::ConnectTimeout | DriverError::CouldNotConnect(_)) => {
                EngineError::transient(message)
            }
            // Network failures, some of which the codec reports.
            Error::IoError(_)
            | Error::CodecError(_)
            | Error::DriverError(
                DriverError::Timeout | DriverError::PacketOutOfSync | DriverError::UnexpectedPacket,
            ) => intent.unanswered(message),
            _ => intent.malformed_reply(message),
        }
    }
}
