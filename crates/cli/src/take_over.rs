//! The side of the new process in `limen mount --take-over`: it takes a live mount over from the process that
//! serves it.
//!
//! Up to [`Taken`] nothing is changed, in the volume or on this machine, so the old process can continue at
//! any time.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use command::error::CliError;
use command::exporter::MetricsAddress;
use command::registry::{self, Entry};
use command::statistics::HAND_OVER;
use engine_sqlite::MountLock;
use fuse::{HAND_OVER_FORMAT, State, TakenOver, receive_fds};
use serde_json::Value;
use vfs::{SessionInfo, Vfs};

use crate::hand_over::{
    GO, Greeting, MESSAGE_TIMEOUT, Offer, PAUSE_TIMEOUT, READY, SERVING, Wanted, is_trusted, receive_line,
    send_line,
};
use crate::holders::device_of;
use crate::url::{Database, MetaUrl};

/// The maximum size of a [`State`], in bytes: about 10 million inodes that the kernel holds, and 512 requests
/// of 1 MiB.
const MAX_STATE_BYTES: u64 = 1 << 30;
const MAX_DEVICES: u64 = 4096;
/// How long to wait for the end of the old process if it does not answer any more.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the old process may take to say `go`.
const GO_TIMEOUT: Duration = Duration::from_secs(20);

/// A mount that was taken over, and is not served yet. The old process does not continue it.
#[derive(Debug)]
pub(crate) struct Taken {
    prepared: TakenOver,
    stream: UnixStream,
    /// The lock of the embedded engine.
    pub(crate) lock: Option<MountLock>,
    pub(crate) metrics: Option<TcpListener>,
}

/// The live mount of a volume at a mount point.
///
/// # Errors
/// There is no such mount, another volume is mounted there, or this process has inherited a descriptor of a
/// file on the mount.
pub(crate) fn find(url: &MetaUrl, mountpoint: &Path) -> Result<Entry, CliError> {
    let is_live = |entry: &Entry| entry.process.is_alive() && device_of(mountpoint) == Some(entry.device);
    let entry = registry::by_mountpoint(mountpoint).into_iter().find(is_live).ok_or_else(|| {
        CliError::new("no mount of this user is served there, so there is nothing to take over")
            .at(mountpoint.display())
            .advise("mount the volume without --take-over")
    })?;
    if entry.url != url.to_string() {
        return Err(CliError::new(format!("the volume that is mounted there is {}", entry.url))
            .at(mountpoint.display())
            .advise("--take-over needs the same META-URL"));
    }
    match inherited(mountpoint) {
        None => Ok(entry),
        Some((number, file)) => {
            let what = format!(
                "descriptor {number} of this command is a file of the mount, so the mount could never end"
            );
            Err(CliError::new(what)
                .at(file.display())
                .advise("close it in the program that starts this command"))
        }
    }
}

/// A descriptor of a file of the mount that this process has inherited, besides the standard ones.
fn inherited(mountpoint: &Path) -> Option<(u32, PathBuf)> {
    let all = fs::read_dir("/proc/self/fd").ok()?.filter_map(Result::ok);
    let numbered = all.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    let mut files = numbered.filter_map(|(number, link)| Some((number, fs::read_link(link).ok()?)));
    files.find(|(number, file)| *number > 2 && file.starts_with(mountpoint))
}

/// Takes a live mount over.
///
/// # Errors
/// The mount cannot be taken over; the message says why. The old process continues to serve it.
pub(crate) fn take(
    entry: &Entry,
    vfs: &Arc<Vfs>,
    database: &Database,
    metrics: MetricsAddress,
    wanted: Vec<String>,
    info: SessionInfo,
    options: &fuse::Options,
) -> Result<Taken, CliError> {
    let failed = |why: String| {
        CliError::new(format!(
            "cannot take the mount over, so process {} serves it as before: {why}",
            entry.process.pid
        ))
        .at(entry.mountpoint.display())
    };
    let broken = |error: io::Error| failed(format!("the connection to it failed: {error}"));
    let stream = entry.connect(HAND_OVER).map_err(|error| failed(error.to_string()))?;
    if !is_trusted(&stream, false) {
        return Err(failed("it belongs to another user".into()));
    }
    let greeting = message(&stream, MESSAGE_TIMEOUT).map_err(failed)?;
    let Some(Greeting { format, version }) = Greeting::from_json(&greeting) else {
        return Err(
            failed("its version of limen cannot hand a mount over".into()).advise("unmount and mount again")
        );
    };
    if format != u64::from(HAND_OVER_FORMAT) {
        let why = format!("its version, {version}, describes a mount in another form than this one");
        return Err(failed(why).advise("unmount and mount again"));
    }
    let wanted = Wanted { volume: vfs.meta().volume().uuid.clone(), options: wanted };
    send_line(&stream, &wanted.to_json().to_string()).map_err(broken)?;
    let offer = message(&stream, PAUSE_TIMEOUT).map_err(failed)?;
    let offer = Offer::from_json(&offer)
        .filter(|offer| offer.bytes <= MAX_STATE_BYTES && (1..=MAX_DEVICES).contains(&offer.devices));
    let offer = offer.ok_or_else(|| failed("it sent an unknown message".into()))?;
    let (state, fds) = receive(&stream, offer).map_err(broken)?;
    let mut fds = fds.into_iter();
    let devices = fds.by_ref().take(offer.devices as usize).collect();
    let lock_file = if offer.has_lock { fds.next() } else { None };
    let listener = if offer.has_metrics { fds.next() } else { None };
    let prepare = || {
        let state = State::from_bytes(&state)?;
        TakenOver::prepare(vfs, state, devices, info, options)
    };
    let take_lock = || match lock_file {
        Some(file) => database.take_over_lock(File::from(file)).map_err(|error| error.to_string()),
        None => Ok(None),
    };
    let prepared = prepare().and_then(|prepared| Ok((prepared, listen(metrics, listener)?, take_lock()?)));
    let (prepared, metrics, lock) = prepared.map_err(|why| {
        // If the connection is broken, the old process continues too.
        let _ = send_line(&stream, &why);
        failed(why)
    })?;
    let agreed = send_line(&stream, READY).and_then(|()| receive_line(&stream, GO_TIMEOUT));
    match agreed {
        Ok(line) if line == GO => {}
        // The old process sends `go` before it exits. If it ended without `go`, it was killed, and cannot
        // continue to serve.
        Err(_) if entry.process.wait_end(END_TIMEOUT) => {
            tracing::warn!(
                "the process that served the mount has ended during the hand-over; this one serves it"
            );
        }
        Ok(line) => return Err(failed(parse(&line).err().unwrap_or(line))),
        Err(error) => return Err(broken(error)),
    }
    Ok(Taken { prepared, stream, lock, metrics })
}

impl Taken {
    /// Serves the mount.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn serve(self) -> Result<(fuse::Mounted, UnixStream), CliError> {
        Ok((self.prepared.serve()?, self.stream))
    }
}

/// Tells the old process that this one serves, so that it can end.
pub(crate) fn tell_served(stream: &UnixStream) {
    if let Err(error) = send_line(stream, SERVING) {
        tracing::debug!(%error, "cannot tell the process that served before that it can end");
    }
}

/// Tells systemd that this process serves the unit's mount from now on (`MAINPID`, sd_notify(3)). Does
/// nothing outside of a unit with `NotifyAccess`.
pub(crate) fn tell_manager() {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let tell = || {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        let message = format!("MAINPID={}\nSTATUS=took the mount over", std::process::id());
        UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)
    };
    if let Err(error) = tell() {
        tracing::warn!(%error, "cannot tell the service manager which process serves the mount now");
    }
}

fn message(stream: &UnixStream, timeout: Duration) -> Result<Value, String> {
    parse(&receive_line(stream, timeout).map_err(|error| format!("it does not answer: {error}"))?)
}

/// # Errors
/// The old process sent a refusal, or something unknown.
fn parse(line: &str) -> Result<Value, String> {
    let value: Value =
        serde_json::from_str(line).map_err(|error| format!("it sent an unknown message: {error}"))?;
    match value["error"].as_str() {
        Some(why) => Err(why.to_owned()),
        None => Ok(value),
    }
}

fn receive(stream: &UnixStream, offer: Offer) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let Offer { bytes, devices, has_lock, has_metrics } = offer;
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    let mut state = Vec::new();
    stream.take(bytes).read_to_end(&mut state)?;
    if state.len() as u64 != bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let fds = devices as usize + usize::from(has_lock) + usize::from(has_metrics);
    Ok((state, receive_fds(stream, fds)?))
}

/// The port of the old process, unless this one is to serve metrics at another address, or not at all.
fn listen(wanted: MetricsAddress, received: Option<OwnedFd>) -> Result<Option<TcpListener>, String> {
    let received = received.map(TcpListener::from);
    let address = received.as_ref().and_then(|listener| listener.local_addr().ok());
    match (wanted, address) {
        (MetricsAddress::Default, Some(_)) => Ok(received),
        (MetricsAddress::At(at), Some(address)) if at == address => Ok(received),
        _ => wanted.listen().map_err(|error| error.to_string()),
    }
}
