//! The sessions of a volume, those of them that can still change the volume, and their times.

use std::time::Duration;

use command::error::CliError;
use meta::{Engine, EngineError, Record, Scan, Session};
use types::SessionId;
use vfs::SessionTimes;
use vfs::process::has_ended;

use crate::records;

/// All sessions, in the order of their ids. They include sessions of dead processes until the next mount
/// removes them.
///
/// # Errors
/// Those of the database.
pub(crate) fn sessions(engine: &dyn Engine) -> Result<Vec<Session>, EngineError> {
    let scan = Scan::Sessions { after: SessionId(0), limit: records::PAGE };
    records::all(engine, scan, |record| match record {
        Record::Session(_, session) => session,
        _ => None,
    })
}

/// Sessions that can still change the volume: those whose process is not proven to be dead.
///
/// # Errors
/// Those of the database.
pub(crate) fn living(engine: &dyn Engine) -> Result<Vec<Session>, EngineError> {
    Ok(sessions(engine)?.into_iter().filter(|session| !has_ended(session)).collect())
}

pub(crate) fn list(sessions: &[Session]) -> String {
    sessions.iter().map(describe).collect::<Vec<_>>().join("; ")
}

/// Describes a session in a message.
pub(crate) fn describe(session: &Session) -> String {
    let Session { id, host, pid, mountpoint, since, .. } = session;
    format!("session {id} at {mountpoint} on {host}, process {pid}, since {since}")
}

/// An environment variable for tests, which cannot wait for the real times: heartbeat interval, validity and
/// removal delay of sessions, in milliseconds, separated by commas. All mounts of a volume need the same
/// values.
const SESSION_MS: &str = "LIMEN_TEST_SESSION_MS";

pub(crate) fn session_times() -> Result<SessionTimes, CliError> {
    let Ok(text) = std::env::var(SESSION_MS) else { return Ok(SessionTimes::default()) };
    let times: Vec<u64> = text.split(',').filter_map(|time| time.parse().ok()).collect();
    let &[heartbeat, valid_for, remove_after] = &times[..] else {
        return Err(CliError::usage(format!(
            "{SESSION_MS} needs three numbers of milliseconds, got '{text}'"
        )));
    };
    Ok(SessionTimes {
        heartbeat: Duration::from_millis(heartbeat),
        valid_for: Duration::from_millis(valid_for),
        remove_after: Duration::from_millis(remove_after),
        ..SessionTimes::default()
    })
}
