//! `limen quota` on a volume whose database serves one process at a time. While the volume is mounted, the
//! mount's process changes the quotas, because it would not see inodes that another process changes.
//!
//! The client sends a line with the change to the mount's socket ([`crate::statistics`]). The mount answers
//! with lines of JSON: how many inodes it has visited, several times a second, and at the end the result. If
//! the client closes the connection, the mount ends the walk. A later request for the same quota begins the
//! walk again.

use std::io::{self, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use client::{Failure, QuotaChange, QuotaError, Retagging};
use meta::QuotaKey;
use ops::QuotaLimits;
use serde_json::{Value, json};
use types::{Errno, Ino, QuotaId};
use vfs::Vfs;

use crate::answers::{Answers, IDLE_EVERY};
use crate::error::CliError;
use crate::registry::Entry;
use crate::running::Running;

/// The beginning of each request.
pub(crate) const REQUEST: &str = "quota ";

/// How many changes one mount makes at the same time.
const MAX_RUNNING: usize = 8;
/// How often progress is sent.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Starts a thread that makes the change of a request.
pub(crate) fn start(stream: UnixStream, request: &str, vfs: &Arc<Vfs>) -> io::Result<()> {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    let change = serde_json::from_str(request).ok().and_then(|value| change_from(&value));
    let change = change.ok_or(ErrorKind::InvalidData)?;
    // Keep a weak reference, because the thread must not keep the mount's parts from being dropped.
    let vfs = Arc::downgrade(vfs);
    let work = move || {
        let served = match Running::begin(&RUNNING, MAX_RUNNING) {
            Some(_running) => serve(&stream, change, &vfs),
            None => send(&stream, &json!({ "error": "too many quotas are being changed", "kind": "failed" })),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "cannot answer the client that changes a quota");
        }
    };
    thread::Builder::new().name("limen-quota".into()).spawn(work).map(drop)
}

fn serve(stream: &UnixStream, change: QuotaChange, vfs: &Weak<Vfs>) -> io::Result<()> {
    let Some(vfs) = vfs.upgrade() else { return Ok(()) };
    let mut last = Instant::now();
    let changed = vfs.change_quota(change, &mut |done| {
        if last.elapsed() < PROGRESS_EVERY {
            return true;
        }
        last = Instant::now();
        send(stream, &json!({ "seen": done.seen })).is_ok()
    });
    drop(vfs);
    let last_line = match changed {
        Ok(key) => {
            let (kind, number) = words_of(key);
            json!({ "done": { "kind": kind, "number": number } })
        }
        Err(error) => error_to_json(&error),
    };
    send(stream, &last_line)
}

fn send(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}

/// Lets the mount that is registered as `entry` change a quota. `progress` is called several times a second
/// with the number of inodes that were visited; if it returns `false`, the mount ends the walk.
///
/// # Errors
/// The mount does not answer, has an older version, makes too many changes at the same time, or its database
/// failed. The inner error is that of the change.
pub fn request(
    entry: &Entry,
    change: QuotaChange,
    progress: &mut dyn FnMut(&Retagging) -> bool,
) -> Result<Result<QuotaKey, QuotaError>, CliError> {
    let stream = entry.connect(&format!("{REQUEST}{}", change_to_json(change)))?;
    stream.set_read_timeout(Some(IDLE_EVERY))?;
    let mut answers = Answers::new(BufReader::new(&stream));
    let mut met = Retagging::default();
    loop {
        let mut goes_on = true;
        let next = answers.next(|| {
            goes_on = progress(&met);
            if goes_on { Ok(()) } else { Err(CliError::new(QuotaError::Interrupted)) }
        });
        if goes_on {
            let value = next?;
            let Some(seen) = value["seen"].as_u64() else { return result_from(&value) };
            met.seen = seen;
            goes_on = progress(&met);
        }
        if !goes_on {
            // The connection is closed, and the mount ends the walk.
            return Ok(Err(QuotaError::Interrupted));
        }
    }
}

fn words_of(key: QuotaKey) -> (&'static str, u64) {
    match key {
        QuotaKey::Directory(id) => ("directory", id.0),
        QuotaKey::User(uid) => ("user", uid.into()),
        QuotaKey::Group(gid) => ("group", gid.into()),
    }
}

fn key_from(kind: &str, number: u64) -> Option<QuotaKey> {
    Some(match kind {
        "directory" => QuotaKey::Directory(QuotaId(number)),
        "user" => QuotaKey::User(u32::try_from(number).ok()?),
        "group" => QuotaKey::Group(u32::try_from(number).ok()?),
        _ => return None,
    })
}

fn change_to_json(change: QuotaChange) -> Value {
    let set = |(kind, number): (&str, u64), limits: QuotaLimits| {
        json!({
            "set": kind,
            "number": number,
            "max_inodes": limits.max_inodes,
            "max_blocks": limits.max_blocks,
            "soft_inodes": limits.soft_inodes,
            "soft_blocks": limits.soft_blocks,
        })
    };
    match change {
        QuotaChange::SetDirectory { dir, limits } => set(("directory", dir.0), limits),
        QuotaChange::SetOwner { key, limits } => set(words_of(key), limits),
        QuotaChange::RemoveDirectory(id) => json!({ "remove": id.0 }),
    }
}

fn change_from(value: &Value) -> Option<QuotaChange> {
    if let Some(id) = value["remove"].as_u64() {
        return Some(QuotaChange::RemoveDirectory(QuotaId(id)));
    }
    let limits = QuotaLimits {
        max_inodes: value["max_inodes"].as_u64(),
        max_blocks: value["max_blocks"].as_u64(),
        soft_inodes: value["soft_inodes"].as_u64(),
        soft_blocks: value["soft_blocks"].as_u64(),
    };
    let number = value["number"].as_u64()?;
    Some(match value["set"].as_str()? {
        "directory" => QuotaChange::SetDirectory { dir: Ino(number), limits },
        kind => QuotaChange::SetOwner { key: key_from(kind, number)?, limits },
    })
}

fn error_to_json(error: &QuotaError) -> Value {
    let (kind, number) = match error {
        QuotaError::Inside { dir } => ("inside", Some(dir.0)),
        QuotaError::NoQuota => ("none", None),
        QuotaError::Removing => ("removing", None),
        QuotaError::Unfinished { dir } => ("unfinished", Some(dir.0)),
        QuotaError::Interrupted => ("interrupted", None),
        QuotaError::Failed(Failure::Operation(errno)) => ("refused", u64::try_from(errno.raw()).ok()),
        QuotaError::Failed(_) => ("failed", None),
    };
    json!({ "error": error.to_string(), "kind": kind, "number": number })
}

/// The result that the last line states.
fn result_from(value: &Value) -> Result<Result<QuotaKey, QuotaError>, CliError> {
    let done = &value["done"];
    if let (Some(kind), Some(number)) = (done["kind"].as_str(), done["number"].as_u64()) {
        return key_from(kind, number).map(Ok).ok_or_else(older);
    }
    let Some(text) = value["error"].as_str() else { return Err(older()) };
    let number = value["number"].as_u64();
    let error = match (value["kind"].as_str(), number) {
        (Some("inside"), Some(dir)) => QuotaError::Inside { dir: Ino(dir) },
        (Some("none"), _) => QuotaError::NoQuota,
        (Some("removing"), _) => QuotaError::Removing,
        (Some("unfinished"), Some(dir)) => QuotaError::Unfinished { dir: Ino(dir) },
        (Some("interrupted"), _) => QuotaError::Interrupted,
        (Some("refused"), Some(raw)) => {
            let errno = i32::try_from(raw).map_or(Errno::EIO, Errno::from_raw);
            QuotaError::Failed(Failure::Operation(errno))
        }
        _ => return Err(CliError::new(text).advise("the log of the mount tells more")),
    };
    Ok(Err(error))
}

/// The error for an answer in another form: an older version ignores the request and sends its statistics.
fn older() -> CliError {
    CliError::new("the mount belongs to an older version of limen").advise("mount it again")
}

#[cfg(test)]
mod tests {
    use meta::{EngineError, QuotaRule};

    use super::*;

    #[test]
    fn requests_carry_each_change() {
        let limits = QuotaLimits {
            max_inodes: Some(0),
            soft_blocks: Some(QuotaRule::NO_LIMIT),
            ..QuotaLimits::default()
        };
        for change in [
            QuotaChange::SetDirectory { dir: Ino(u64::MAX), limits },
            QuotaChange::SetOwner { key: QuotaKey::User(u32::MAX), limits },
            QuotaChange::SetOwner { key: QuotaKey::Group(0), limits: QuotaLimits::default() },
            QuotaChange::RemoveDirectory(QuotaId(7)),
        ] {
            let line = change_to_json(change).to_string();
            assert_eq!(change_from(&serde_json::from_str(&line).unwrap()), Some(change), "{line}");
            assert!(line.len() < 900, "{line}");
        }
        for wrong in
            [json!({}), json!({ "set": "user", "number": 1_u64 << 32 }), json!({ "set": "all", "number": 1 })]
        {
            assert_eq!(change_from(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn results_survive_the_way_to_the_client() {
        for error in [
            QuotaError::Inside { dir: Ino(9) },
            QuotaError::NoQuota,
            QuotaError::Removing,
            QuotaError::Unfinished { dir: Ino(8) },
            QuotaError::Interrupted,
            QuotaError::Failed(Failure::Operation(Errno::ELOOP)),
        ] {
            let found = result_from(&error_to_json(&error)).unwrap().unwrap_err();
            assert_eq!(format!("{found:?}"), format!("{error:?}"));
        }
        let failed = QuotaError::Failed(Failure::Engine(EngineError::permanent("disk on fire")));
        assert!(result_from(&error_to_json(&failed)).unwrap_err().to_string().contains("disk on fire"));
        assert!(result_from(&json!({ "requests": {} })).is_err());
    }
}
