//! The side of a running mount in `limen mount --take-over`: it hands itself to the process that asks.
//!
//! The processes talk over the mount's socket, in lines of JSON and, once, bytes and descriptors:
//!
//! | from | sends |
//! |------|-------|
//! | new  | the request `hand-over` |
//! | old  | [`Greeting`] |
//! | new  | [`Wanted`]: the volume and the options that must be the same |
//! | old  | [`Offer`], the bytes of [`fuse::State`], and descriptors: devices, the lock of the database, the metrics' port |
//! | new  | `ready`: it has prepared everything, and has changed nothing |
//! | old  | `go`: it does not serve the mount any more |
//! | new  | `serving` |
//!
//! If the connection fails before `go`, the old process continues. But if the old process has ended while the
//! new one waits for `go`, the new one serves.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backup::Backups;
use chunk::BlockStore;
use command::error::CliError;
use command::exporter::Exporter;
use fuse::{HAND_OVER_FORMAT, Handle, send_fds};
use serde_json::{Value, json};

use crate::options::Options;
use crate::rights::RightsArgs;

/// The time limit of each message, except those that wait for the work of the other process.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the old process may take to store what it has in memory and to pause. Its own limits are shorter.
pub(crate) const PAUSE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long the new process may take to prepare itself. Programs that use the mount wait meanwhile.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the old process waits for the message that the new process serves.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);

const MAX_LINE_BYTES: usize = 1 << 20;

pub(crate) const READY: &str = "ready";
pub(crate) const GO: &str = "go";
pub(crate) const SERVING: &str = "serving";

/// The first message of the old process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The version of the format of [`fuse::State`].
    pub(crate) format: u64,
    pub(crate) version: String,
}

/// The answer of the new process to [`Greeting`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The UUID of the volume.
    pub(crate) volume: String,
    /// The options that the kernel was given, or whose results it may have cached.
    pub(crate) options: Vec<String>,
}

/// Announces what follows: the number of bytes, and the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) bytes: u64,
    pub(crate) devices: u64,
    pub(crate) has_lock: bool,
    pub(crate) has_metrics: bool,
}

impl Greeting {
    fn to_json(&self) -> Value {
        json!({ "format": self.format, "version": self.version })
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        Some(Greeting { format: value["format"].as_u64()?, version: value["version"].as_str()?.to_owned() })
    }
}

impl Wanted {
    pub(crate) fn to_json(&self) -> Value {
        json!({ "volume": self.volume, "options": self.options })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let options = value["options"].as_array()?.iter().map(|option| option.as_str().map(str::to_owned));
        Some(Wanted {
            volume: value["volume"].as_str()?.to_owned(),
            options: options.collect::<Option<_>>()?,
        })
    }
}

impl Offer {
    fn to_json(self) -> Value {
        let Offer { bytes, devices, has_lock, has_metrics } = self;
        json!({ "bytes": bytes, "devices": devices, "lock": has_lock, "metrics": has_metrics })
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        Some(Offer {
            bytes: value["bytes"].as_u64()?,
            devices: value["devices"].as_u64()?,
            has_lock: value["lock"].as_bool()?,
            has_metrics: value["metrics"].as_bool()?,
        })
    }
}

/// The options that must be the same in both processes.
///
/// # Errors
/// A map of ids is invalid.
pub(crate) fn fixed_options(options: &Options, rights: &RightsArgs) -> Result<Vec<String>, CliError> {
    let fuse = &options.fuse;
    let flags = [
        ("ro", fuse.read_only),
        ("allow_other", fuse.allow_other),
        ("nosuid", fuse.nosuid),
        ("nodev", fuse.nodev),
        ("noexec", fuse.noexec),
        ("shared", options.shared),
    ];
    let mut all: Vec<String> =
        flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned()).collect();
    all.push(format!("atime={:?}", options.atime()).to_lowercase());
    all.extend(options.subdir.as_ref().map(|dir| format!("subdir={}", dir.display())));
    all.extend(options.acl_domain.as_ref().map(|domain| format!("acl_domain={domain}")));
    let mut rights_only = std::process::Command::new("limen");
    rights.pass_to(&mut rights_only)?;
    all.extend(rights_only.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    Ok(all)
}

/// Whether the process on the other end belongs to this user, or to root if `or_root`.
pub(crate) fn is_trusted(stream: &UnixStream, or_root: bool) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || or_root && peer.uid.is_root())
}

/// Sends a line.
pub(crate) fn send_line(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

/// Receives a line, and no byte after it, because descriptors may follow. The whole line must come within
/// `timeout`.
pub(crate) fn receive_line(mut stream: &UnixStream, timeout: Duration) -> io::Result<String> {
    let until = Instant::now() + timeout;
    let mut line = Vec::new();
    while line.len() < MAX_LINE_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if byte == *b"\n" => {
                return String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into());
            }
            Ok(_) => line.extend(byte),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// The backups of a mount, which end before it is handed over.
pub(crate) type SharedBackups = Arc<Mutex<Option<Backups>>>;

/// The metrics of a mount, which end as soon as another process serves it.
pub(crate) type SharedExporter = Arc<Mutex<Option<Exporter>>>;

/// Ignores poisoning, because each value is replaced as a whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parts that a running mount needs to hand itself over.
pub(crate) struct OldMount {
    pub(crate) handle: Handle,
    pub(crate) store: Arc<BlockStore>,
    /// The volume and the options that a process must have to take the mount over.
    pub(crate) own: Wanted,
    /// The lock of the database, if it is exclusive.
    pub(crate) lock: Option<File>,
    pub(crate) metrics: Option<TcpListener>,
    pub(crate) backups: SharedBackups,
    pub(crate) start_backups: Box<dyn Fn() -> io::Result<Option<Backups>> + Send + Sync>,
    /// The reason why this mount cannot be handed over, if there is one.
    pub(crate) refusal: Option<String>,
    /// Locked while this mount is being handed over.
    pub(crate) is_running: Mutex<()>,
    /// The signals that unmount.
    pub(crate) signals: signal_hook::iterator::Handle,
    pub(crate) exporter: SharedExporter,
    /// Stores what is left in this process when another one serves the mount.
    pub(crate) finish: Box<dyn Fn(&BlockStore) + Send + Sync>,
}

impl OldMount {
    /// Hands the mount to the process on the other end. If that succeeds, this process ends.
    pub(crate) fn hand_over(&self, stream: &UnixStream) {
        let Ok(_running) = self.is_running.try_lock() else {
            let _ = send_line(stream, &refused("another process is taking the mount over"));
            return;
        };
        tracing::info!("another process asks to take this mount over");
        if let Err(why) = self.try_hand_over(stream) {
            tracing::warn!(why, "the mount was not handed over, and continues here");
            // If the other process is gone, it needs no answer.
            let _ = send_line(stream, &refused(&why));
        }
        let mut backups = lock(&self.backups);
        if backups.is_none() {
            match (self.start_backups)() {
                Ok(started) => *backups = started,
                Err(error) => tracing::error!(%error, "cannot continue the backups of the metadata"),
            }
        }
    }

    fn try_hand_over(&self, stream: &UnixStream) -> Result<(), String> {
        let broken = |error: io::Error| format!("the connection to the other process failed: {error}");
        stream.set_write_timeout(Some(MESSAGE_TIMEOUT)).map_err(broken)?;
        if !is_trusted(stream, true) {
            return Err("only the user that runs the mount, and root, can take it over".into());
        }
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let greeting =
            Greeting { format: HAND_OVER_FORMAT.into(), version: env!("CARGO_PKG_VERSION").to_owned() };
        send_line(stream, &greeting.to_json().to_string()).map_err(broken)?;
        let line = receive_line(stream, MESSAGE_TIMEOUT).map_err(broken)?;
        let wanted = serde_json::from_str(&line).ok().and_then(|value| Wanted::from_json(&value));
        self.require_same(&wanted.ok_or("the other process sent an unknown message")?)?;
        // A backup that is being made ends after its present request.
        drop(lock(&self.backups).take());

        let began = Instant::now();
        let (paused, state) = self.handle.pause()?;
        let bytes = state.to_bytes()?;
        let devices = paused.devices();
        let offer = Offer {
            bytes: bytes.len() as u64,
            devices: devices.len() as u64,
            has_lock: self.lock.is_some(),
            has_metrics: self.metrics.is_some(),
        };
        let fds: Vec<BorrowedFd<'_>> = devices
            .iter()
            .map(AsFd::as_fd)
            .chain(self.lock.as_ref().map(AsFd::as_fd))
            .chain(self.metrics.as_ref().map(AsFd::as_fd))
            .collect();
        send_line(stream, &offer.to_json().to_string()).map_err(broken)?;
        (&*stream).write_all(&bytes).and_then(|()| send_fds(stream, &fds)).map_err(broken)?;
        let answer = receive_line(stream, PREPARE_TIMEOUT).map_err(broken)?;
        if answer != READY {
            return Err(format!("the other process did not take the mount: {answer}"));
        }
        send_line(stream, GO).map_err(broken)?;
        paused.complete();
        // A signal to this process must not unmount any more.
        self.signals.close();
        let served = receive_line(stream, SERVE_TIMEOUT);
        let paused_for = began.elapsed();
        match served.as_deref() {
            Ok(SERVING) => tracing::info!(?paused_for, "handed the mount over to another process"),
            _ => tracing::error!("the process that took the mount over has not said that it serves"),
        }
        drop(lock(&self.exporter).take());
        (self.finish)(&self.store);
        tracing::info!("this process ends; the mount and its session continue");
        // Nothing is unwound: destructors would unmount, and release what the other process uses.
        std::process::exit(0)
    }

    fn require_same(&self, wanted: &Wanted) -> Result<(), String> {
        if wanted.volume != self.own.volume {
            return Err("it serves another volume".into());
        }
        let differing = |left: &[String], right: &[String]| {
            left.iter().filter(|option| !right.contains(option)).cloned().collect::<Vec<_>>().join(", ")
        };
        let (missing, more) =
            (differing(&self.own.options, &wanted.options), differing(&wanted.options, &self.own.options));
        match (missing.as_str(), more.as_str()) {
            ("", "") => Ok(()),
            (missing, "") => Err(format!("it has these options, which cannot change: {missing}")),
            ("", more) => Err(format!("it does not have these options, which cannot change: {more}")),
            (missing, more) => Err(format!("it has the options {missing}, not {more}, which cannot change")),
        }
    }
}

fn refused(why: &str) -> String {
    json!({ "error": why }).to_string()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn messages_survive_writing_and_reading() {
        let greeting = Greeting { format: 65_537, version: "1.2".into() };
        assert_eq!(Greeting::from_json(&greeting.to_json()), Some(greeting));
        let wanted = Wanted { volume: "u".into(), options: vec!["ro".into(), "atime=never".into()] };
        assert_eq!(Wanted::from_json(&wanted.to_json()), Some(wanted));
        let offer = Offer { bytes: 7, devices: 2, has_lock: true, has_metrics: false };
        assert_eq!(Offer::from_json(&offer.to_json()), Some(offer));
        for value in [json!({}), json!([]), json!({"options": [1], "volume": "u", "bytes": -1})] {
            assert!(Wanted::from_json(&value).is_none() && Offer::from_json(&value).is_none());
        }
    }

    #[test]
    fn lines_are_bounded_in_time_and_length() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send_line(&ours, "first").unwrap();
        send_line(&ours, "second").unwrap();
        assert_eq!(receive_line(&theirs, MESSAGE_TIMEOUT).unwrap(), "first");
        assert_eq!(receive_line(&theirs, MESSAGE_TIMEOUT).unwrap(), "second");
        assert!(receive_line(&theirs, Duration::from_millis(10)).is_err());
        assert!(is_trusted(&theirs, false));
        let flood = thread::spawn(move || (&ours).write_all(&vec![b'x'; MAX_LINE_BYTES + 1]));
        assert_eq!(
            receive_line(&theirs, Duration::from_secs(60)).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        drop(theirs);
        let _ = flood.join().unwrap();
    }
}
