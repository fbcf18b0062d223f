//! The hand-over of a mount to another process, and the side that takes it over.
//!
//! One process pauses its workers, describes the mount ([`Handle::pause`]), and sends the description and its
//! devices. The other one prepares everything ([`TakenOver::prepare`]), and serves as soon as the first one
//! has promised not to continue ([`TakenOver::serve`]). A request that waits for a lock is answered by the
//! next process, through the device or the ring entry that the request came from.
//!
//! If requests come through io_uring, the first process lets each entry of the kernel's queues receive a
//! request before it describes the mount, because a process cannot take a waiting entry back from the kernel.
//! The description has the requests that are not handled and the replies that are not committed, which the
//! next process takes over ([`HeldEntry`]). Requests that arrive in the meantime wait in the kernel until an
//! entry of their queue is committed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuse_proto::{InitFlags, InitOut};
use fuse_transport::{DevFuse, Error, HeldEntry, Mount, Notifier, OwnedDevice, RootPlacement, WorkerControl};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use serde::{Deserialize, Serialize};
use types::Ino;
use vfs::{HandOver, MountState, SessionInfo, Vfs};

use crate::init::MAX_WRITE_BYTES;
use crate::serve::{Mounted, Options, Server};
use crate::waiters::{WaiterState, Waiters};
use crate::{Channel, root};

/// The version of the format of [`State`]. Increment it with each change of `State` or of anything in it.
pub const FORMAT: u32 = 2 << 16 | vfs::HAND_OVER_FORMAT;

/// How long a pause waits for the requests that are being handled. New requests wait meanwhile.
const REQUESTS_END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a hand-over waits for queued notifications to be written, before the workers pause.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);
/// The same while the workers are paused.
const PAUSED_NOTIFY_TIMEOUT: Duration = Duration::from_millis(500);
/// How often the workers are paused if the kernel does not take the notifications in that time.
const PAUSE_ATTEMPTS: u32 = 4;
/// How long the next process waits for the stream of other clients' changes. Then it serves without the
/// stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(2);

/// A mount, as one process describes it to the next.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    vfs: MountState,
    negotiated: Negotiated,
    dev: (u32, u32),
    mountpoint: PathBuf,
    root: Ino,
    direct: bool,
    next_handle: u64,
    waiters: WaiterState,
    /// The entries of the rings; `None` if requests come through `/dev/fuse`.
    held: Option<Vec<HeldEntry>>,
}

/// The fields of [`InitOut`] that still matter after INIT.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Negotiated {
    minor: u32,
    flags: u64,
    max_write_bytes: u32,
}

impl State {
    /// The state in the format of `postcard`.
    ///
    /// # Errors
    /// The state cannot be encoded.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        postcard::to_allocvec(self).map_err(|error| error.to_string())
    }

    /// Reads a state from its bytes.
    ///
    /// # Errors
    /// The bytes are not those of [`State::to_bytes`], of the same [`FORMAT`].
    pub fn from_bytes(bytes: &[u8]) -> Result<State, String> {
        postcard::from_bytes(bytes).map_err(|error| error.to_string())
    }
}

/// The parts of a served mount that are needed to hand it over to another process.
#[derive(Clone, Debug)]
pub struct Handle {
    vfs: Arc<Vfs>,
    waiters: Arc<Waiters>,
    next_handle: Arc<AtomicU64>,
    negotiated: Arc<OnceLock<InitOut>>,
    control: WorkerControl,
    notifier: Notifier,
    root: Ino,
    direct: bool,
    dev: (u32, u32),
    mountpoint: PathBuf,
}

/// A mount that is paused, so that another process can take it over. When dropped, the mount continues here.
#[derive(Debug)]
pub struct Paused<'a> {
    handle: &'a Handle,
    hand_over: Option<HandOver<'a>>,
}

impl Handle {
    /// The handle of `mounted`.
    pub fn of(mounted: &Mounted) -> Self {
        let Mounted { mount, serving } = mounted;
        Handle {
            vfs: Arc::clone(&serving.vfs),
            waiters: Arc::clone(&serving.waiters),
            next_handle: Arc::clone(&serving.next_handle),
            negotiated: Arc::clone(&serving.negotiated),
            control: serving.control.clone(),
            notifier: serving.notifier.clone(),
            root: serving.root,
            direct: serving.direct,
            dev: mount.device(),
            mountpoint: mount.mountpoint().to_owned(),
        }
    }

    /// Stores the data that the mount has in memory, pauses the mount, and describes it.
    ///
    /// # Errors
    /// Why the mount cannot be handed over now. It continues here.
    pub fn pause(&self) -> Result<(Paused<'_>, State), String> {
        for _ in 0..PAUSE_ATTEMPTS {
            if let Some(paused) = self.try_pause()? {
                return Ok(paused);
            }
            tracing::debug!(
                "the kernel did not take the notifications; the mount continues before the next attempt"
            );
        }
        Err("the kernel did not take the notifications in time".into())
    }

    /// `None` if the kernel does not take a notification while the mount is paused: it waits for a page or a name that
    /// a program has locked, whose request is not answered because of the pause. The mount continues then, so another
    /// attempt can succeed.
    fn try_pause(&self) -> Result<Option<(Paused<'_>, State)>, String> {
        let negotiated = *self.negotiated.get().ok_or("the kernel has not sent its first request yet")?;
        if negotiated.flags.contains(InitFlags::OVER_IO_URING) && !self.control.has_rings() {
            return Err("the kernel has rejected its io_uring".into());
        }
        let root = self.open_root()?;
        let hand_over = self.vfs.begin_hand_over()?;
        // A notification can wait for a page or a name that a request in flight has locked. So most are
        // written before requests have to wait; the rest is checked below.
        self.notifier.flush(NOTIFY_TIMEOUT);
        if !self.control.pause(root, REQUESTS_END_TIMEOUT).map_err(|error| error.to_string())? {
            return Err("a request did not end in time".into());
        }
        let paused = Paused { handle: self, hand_over: Some(hand_over) };
        if !self.waiters.pause(REQUESTS_END_TIMEOUT) {
            return Err("a request for a lock did not end in time".into());
        }
        // If the mount is not exclusive, only notifications with a call matter: the call answers a request
        // for a lock. The others need not be written, because the next process invalidates everything.
        let are_written = !self.vfs.is_exclusive() || self.notifier.flush(PAUSED_NOTIFY_TIMEOUT);
        let are_notified = are_written && self.notifier.wait_for_calls(PAUSED_NOTIFY_TIMEOUT);
        if !are_notified {
            return Ok(None);
        }
        let vfs = match &paused.hand_over {
            Some(hand_over) => hand_over.describe()?,
            None => return Err("the hand-over has ended".into()),
        };
        let waiters = self.waiters.describe(&self.control).ok_or("a request cannot be described")?;
        let held = match self.control.has_rings() {
            true => Some(self.control.held().ok_or("a request did not end in time")?),
            false => None,
        };
        let state = State {
            vfs,
            negotiated: Negotiated {
                minor: negotiated.minor,
                flags: negotiated.flags.bits(),
                max_write_bytes: negotiated.max_write_bytes,
            },
            dev: self.dev,
            mountpoint: self.mountpoint.clone(),
            root: self.root,
            direct: self.direct,
            next_handle: self.next_handle.load(Ordering::Relaxed),
            waiters,
            held,
        };
        Ok(Some((paused, state)))
    }

    /// A descriptor of the file system, opened without a request to it.
    fn open_root(&self) -> Result<OwnedFd, String> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || {
            let root = rustix::fs::open(&self.mountpoint, flags, Mode::empty())?;
            let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let stat = rustix::fs::statx(&root, "", at, StatxFlags::TYPE)?;
            Ok::<_, rustix::io::Errno>((root, (stat.stx_dev_major, stat.stx_dev_minor)))
        };
        match open() {
            Ok((root, dev)) if dev == self.dev => Ok(root),
            Ok(_) => Err("it is not mounted there any more, or something else is mounted over it".into()),
            Err(error) => Err(format!("cannot open its mount point: {error}")),
        }
    }
}

impl Paused<'_> {
    /// The devices, which the next process needs.
    pub fn devices(&self) -> Vec<OwnedDevice> {
        self.handle.control.devices()
    }

    /// Completes the hand-over, because another process serves the mount. Nothing here may continue, and this
    /// process must end without unwinding: no destructor may unmount or end the session.
    pub fn complete(mut self) {
        if let Some(hand_over) = self.hand_over.take() {
            hand_over.complete();
        }
        std::mem::forget(self);
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        // This starts the threads of the session again. They come first, because requests may wait for them.
        self.hand_over = None;
        self.handle.waiters.resume();
        self.handle.control.resume();
    }
}

/// A mount that is taken over from another process, before it is served.
#[derive(Debug)]
pub struct TakenOver {
    server: Server,
    /// The requests that wait for locks. No reply to them exists before this process serves, because a reply
    /// that is dropped sends EIO.
    waiters: WaiterState,
    mount: (PathBuf, (u32, u32)),
    has_stream: bool,
    options: Options,
}

impl TakenOver {
    /// Prepares to serve a mount that another process has described. The volume is not changed, and no
    /// request is read.
    ///
    /// # Errors
    /// Why the mount cannot be taken over.
    pub fn prepare(
        vfs: &Arc<Vfs>,
        state: State,
        devices: Vec<OwnedFd>,
        info: SessionInfo,
        options: &Options,
    ) -> Result<TakenOver, String> {
        let State { vfs: mount, negotiated, dev, mountpoint, root, direct, next_handle, waiters, held } =
            state;
        if negotiated.max_write_bytes > MAX_WRITE_BYTES {
            return Err("its requests are longer than this version of limen reads".into());
        }
        vfs.take_over(mount, info)?;
        let device = DevFuse::take_over(devices, held.as_deref(), &options.workers())
            .map_err(|error| error.to_string())?;
        let negotiated = InitOut {
            minor: negotiated.minor,
            flags: InitFlags::from_bits_retain(negotiated.flags),
            max_write_bytes: negotiated.max_write_bytes,
            max_readahead_bytes: 0,
            max_background: 0,
            congestion_threshold: 0,
            time_gran_ns: 1,
            max_pages: 0,
        };
        let server =
            Server::new(vfs, device, root, direct, Some(negotiated)).map_err(|error| error.to_string())?;
        let unknown = negotiated.flags.difference(server.dispatch.init_config().wanted | ALWAYS);
        if !unknown.is_empty() {
            return Err(format!(
                "it negotiated {unknown:?} with the kernel, which this process does not use"
            ));
        }
        server.dispatch.next_handle.store(next_handle, Ordering::Relaxed);
        Waiters::check(&waiters, server.control())?;
        let has_stream = vfs.is_exclusive() || vfs.caches.wait_stream(STREAM_TIMEOUT);
        let options = Options { channel: Channel::Device, ..options.clone() };
        Ok(TakenOver { server, waiters, mount: (mountpoint, dev), has_stream, options })
    }

    /// Serves: the other process has promised not to continue.
    ///
    /// # Errors
    /// [`Error::System`] if a thread cannot be started.
    pub fn serve(self) -> Result<Mounted, Error> {
        let TakenOver { server, waiters, mount: (mountpoint, dev), has_stream, options } = self;
        let vfs = Arc::clone(&server.dispatch.vfs);
        let placement = match server.dispatch.direct {
            true => RootPlacement::Direct,
            false => RootPlacement::Child(root::CHILD.to_owned()),
        };
        vfs.continue_session()
            .map_err(|source| Error::System { what: "start a thread of the session".into(), source })?;
        server.dispatch.waiters.restore(waiters, server.control());
        server.control().set_mountpoint(&mountpoint);
        let serving = server.start(&options)?;
        if !has_stream {
            // The kernel may have cached records that other clients have changed meanwhile.
            vfs.caches.invalidate_all();
        }
        Ok(Mounted { mount: Mount::take_over(&mountpoint, dev, placement), serving })
    }
}

/// The flags that [`fuse_proto::InitIn::negotiate`] adds.
const ALWAYS: InitFlags = InitFlags::SETXATTR_EXT.union(InitFlags::INIT_EXT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_state_are_refused() {
        let numbers = (0..2000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8);
        let random: Vec<u8> = numbers.collect();
        for bytes in [&[][..], &[0; 3], &[0xff; 64], &random] {
            assert!(State::from_bytes(bytes).is_err());
        }
    }
}
