//! The life of a mount: prepare, serve, attach, unmount.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use fuse_proto::{InitFlags, InitOut};
use fuse_transport::{
    DevFuse, Error, Handler, Mount, MountOptions, Notifier, Ring, RootPlacement, Transport, UnmountMode,
    WorkerControl, Workers, enable_ring,
};
use types::Ino;
use vfs::{AtimeMode, Vfs};

use crate::callers::Callers;
use crate::counts::RequestCounts;
use crate::dispatch::Dispatch;
use crate::handling::Handling;
use crate::init::MAX_WRITE_BYTES;
use crate::kernel::{self, KernelCaches};
use crate::profile::Profile;
use crate::root;
use crate::slow::SlowLog;
use crate::waiters::Waiters;

/// The kernel's readahead, which only root can set: one READ of the maximum size.
const READ_AHEAD_BYTES: u32 = 1 << 20;

/// The options of a mount.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The directory of the volume to mount; `None` for its root.
    pub root: Option<Ino>,
    pub allow_other: bool,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    /// Whether to mount over a directory that has entries.
    pub allow_nonempty: bool,
    /// Threads that serve requests; `None` for four per CPU, because a request may wait for the object store.
    pub workers: Option<NonZeroUsize>,
    pub channel: Channel,
    /// Whether the threads that serve a ring always stay in their ordinary scheduling class.
    pub no_idle_class: bool,
    /// Requests that take at least this long are logged; with `None`, none are.
    pub slow: Option<Duration>,
}

impl Options {
    pub(crate) fn workers(&self) -> Workers {
        Workers {
            threads: self.workers.unwrap_or_else(default_workers),
            max_write_bytes: MAX_WRITE_BYTES,
            idle_class: !self.no_idle_class,
        }
    }
}

/// The transport of requests from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// io_uring if the kernel offers it, otherwise `/dev/fuse`.
    #[default]
    Auto,
    /// As [`Channel::Auto`], but first enables io_uring in the kernel, for all FUSE file systems mounted from
    /// now on.
    Ring,
    Device,
}

/// A volume that is mounted and served.
#[derive(Debug)]
pub struct Mounted {
    pub(crate) mount: Mount,
    pub(crate) serving: Serving,
}

/// Mounts a volume and serves it on new threads. When this returns, the mount point answers.
///
/// # Errors
/// [`Error`] if io_uring for FUSE cannot be enabled and [`Channel::Ring`] requires it, the mount point is
/// unsuitable, the kernel refuses the mount, or a thread cannot be started.
pub fn mount(vfs: &Arc<Vfs>, mountpoint: &Path, options: &Options) -> Result<Mounted, Error> {
    let mount_options = MountOptions {
        child: Some(root::CHILD.to_owned()),
        allow_other: options.allow_other,
        read_only: options.read_only,
        nosuid: options.nosuid,
        nodev: options.nodev,
        noexec: options.noexec,
        noatime: vfs.atime_mode() == AtimeMode::Never,
        strictatime: vfs.atime_mode() == AtimeMode::Always,
        allow_nonempty: options.allow_nonempty,
        default_permissions: !vfs.access.is_squashing_all(),
        ..MountOptions::new(&vfs.meta().volume().name)
    };
    if options.channel == Channel::Ring {
        enable_ring()?;
    }
    let (mut mount, device) = Mount::prepare(mountpoint, &mount_options)?;
    let root = options.root.unwrap_or(Ino::ROOT);
    let direct = *mount.placement() == RootPlacement::Direct;
    let server = Server::new(vfs, device, root, direct, None)?;
    server.control().set_mountpoint(mount.mountpoint());
    let serving = server.start(options)?;
    mount.attach()?;
    if let Err(error) = mount.set_read_ahead(READ_AHEAD_BYTES) {
        tracing::debug!(%error, "cannot set the kernel's readahead; it keeps its default");
    }
    Ok(Mounted { mount, serving })
}

/// The parts of a mount that serve requests, before the first request.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) dispatch: Dispatch,
    device: DevFuse,
    notifier: Notifier,
}

/// The threads that serve requests, and the state that they share with the rest of the mount.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) next_handle: Arc<AtomicU64>,
    pub(crate) negotiated: Arc<OnceLock<InitOut>>,
    pub(crate) control: WorkerControl,
    pub(crate) notifier: Notifier,
    pub(crate) root: Ino,
    pub(crate) direct: bool,
    server: JoinHandle<Result<(), Error>>,
    counts: Arc<RequestCounts>,
    profile: Arc<Profile>,
}

fn starting(source: std::io::Error) -> Error {
    Error::System { what: "start a serving thread".into(), source }
}

impl Server {
    /// Prepares to serve, and begins to receive changes by other clients. `negotiated` is the result of INIT,
    /// if the kernel has sent it already.
    pub(crate) fn new(
        vfs: &Arc<Vfs>,
        device: DevFuse,
        root: Ino,
        direct: bool,
        negotiated: Option<InitOut>,
    ) -> Result<Self, Error> {
        let dispatch = Dispatch {
            vfs: Arc::clone(vfs),
            waiters: Arc::default(),
            callers: Callers::new(vfs.access.ids.clone()),
            next_handle: Arc::new(AtomicU64::new(1)),
            root,
            direct,
            negotiated: Arc::new(negotiated.map_or_else(OnceLock::new, OnceLock::from)),
        };
        // The notifier lives as long as the `Vfs`, so beyond the last request. It is also needed if this
        // mount is exclusive, for changes that the kernel does not notice itself: a write that cleared SUID,
        // or the mode that results from an NFSv4 ACL.
        let capacity = const { NonZeroUsize::new(kernel::MAX_WAITING).unwrap() };
        let negotiated = Arc::clone(&dispatch.negotiated);
        let notifier = device.notifier(capacity, kernel::list_names(vfs, &negotiated, root, direct))?;
        let caches = Arc::new(KernelCaches { notifier: notifier.clone(), root, direct, negotiated });
        vfs.caches.start_watching(caches).map_err(starting)?;
        Ok(Server { dispatch, device, notifier })
    }

    pub(crate) fn control(&self) -> &WorkerControl {
        self.device.control()
    }

    /// Starts the threads.
    pub(crate) fn start(self, options: &Options) -> Result<Serving, Error> {
        let Server { dispatch, device, notifier } = self;
        let (vfs, waiters) = (Arc::clone(&dispatch.vfs), Arc::clone(&dispatch.waiters));
        let (next_handle, negotiated) = (Arc::clone(&dispatch.next_handle), Arc::clone(&dispatch.negotiated));
        let (root, direct, control) = (dispatch.root, dispatch.direct, device.control().clone());
        let retrying = waiters.start(Arc::clone(&vfs)).map_err(starting)?;
        let workers = options.workers();
        let counts = Arc::new(RequestCounts::new());
        let channel = options.channel;
        let profile = Arc::new(Profile::default());
        let handling = Arc::new(Handling {
            dispatch,
            counts: Arc::clone(&counts),
            slow: SlowLog::new(options.slow),
            profile: Arc::clone(&profile),
            control: control.clone(),
            apart: AtomicUsize::new(0),
        });
        let waiting = Arc::clone(&waiters);
        let serve = move || {
            let handler: &Handler<'_> = &|request, reply| handling.handle(&request, reply);
            let served = match channel {
                Channel::Device => device.serve(&workers, handler),
                Channel::Auto | Channel::Ring => Ring::from(device).serve(&workers, handler),
            };
            waiting.end();
            handling.wait_for_apart();
            // The thread returns nothing, and a panic is logged.
            let _ = retrying.join();
            served
        };
        let server = std::thread::Builder::new().name("limen-serve".into()).spawn(serve).map_err(starting)?;
        Ok(Serving {
            vfs,
            waiters,
            next_handle,
            negotiated,
            control,
            notifier,
            root,
            direct,
            server,
            counts,
            profile,
        })
    }
}

impl Serving {
    /// Whether requests come through io_uring, not `/dev/fuse`, unless the kernel rejects the rings after
    /// INIT. Known after INIT.
    pub(crate) fn uses_ring(&self) -> bool {
        let negotiated = self.negotiated.get();
        negotiated.is_some_and(|negotiated| negotiated.flags.contains(InitFlags::OVER_IO_URING))
    }
}

impl Mounted {
    /// The mount point, absolute and without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        self.mount.mountpoint()
    }

    /// The counts of requests, which continue to be updated.
    pub fn counts(&self) -> &Arc<RequestCounts> {
        &self.serving.counts
    }

    /// The profilers of the mount.
    pub fn profile(&self) -> &Arc<Profile> {
        &self.serving.profile
    }

    /// Whether requests come through io_uring, not `/dev/fuse`. This is known when [`mount`] has returned.
    pub fn uses_ring(&self) -> bool {
        self.serving.uses_ring()
    }

    /// Asks the kernel to unmount. Requests are served until the file system is unmounted.
    ///
    /// # Errors
    /// [`Error::Busy`] if a process uses the file system, unless `mode` is [`UnmountMode::Lazy`];
    /// [`Error::System`] if the kernel does not unmount for another reason.
    pub fn unmount(&mut self, mode: UnmountMode) -> Result<(), Error> {
        self.mount.unmount(mode)
    }

    /// Waits until the volume is unmounted, by this process or another; returns the counts of requests.
    ///
    /// # Errors
    /// [`Error::System`] if the device failed.
    pub fn wait(self) -> Result<Arc<RequestCounts>, Error> {
        let ended = self.serving.server.join().unwrap_or_else(|_| {
            Err(Error::System {
                what: "serve requests".into(),
                source: std::io::Error::other("the serving thread panicked"),
            })
        });
        ended.map(|()| self.serving.counts)
    }
}

fn default_workers() -> NonZeroUsize {
    let cpus = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    cpus.saturating_mul(const { NonZeroUsize::new(4).unwrap() })
}
