//! Expires many names: all, or those in some directories.
//!
//! Several threads write, each the notifications of one directory. While one waits for a request that holds
//! the lock of its directory, the others go on.

use std::io::{self, IoSlice};
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fuse_proto::{NodeId, Notification};
use rustix::io::Errno;

use crate::device::Device;
use crate::entry::lock;

/// If the threads that expire names write fewer than [`FEW_WRITTEN`] notifications in this time, one more
/// thread starts, up to [`MAX_WRITERS`].
const LOOK_EVERY: Duration = Duration::from_millis(20);
const FEW_WRITTEN: u64 = 1_000;
const MAX_WRITERS: usize = 64;
/// If the names of more directories are to be expired at once, all names are.
const MAX_DIRECTORIES: usize = 1_000;

/// Notifications that expire the names in one directory.
pub type Notifications = Box<dyn Iterator<Item = Notification> + Send>;
/// Lists the directories that the kernel may hold names in, or only one of them.
pub type ListNames = Box<dyn Fn(Option<NodeId>) -> Box<dyn Iterator<Item = Notifications> + Send> + Send>;

/// The names that are to be expired.
#[derive(Debug, Default)]
struct Expiring {
    all: bool,
    /// Those in these directories.
    directories: Vec<NodeId>,
}

/// Starts passes over the names that are to be expired.
#[derive(Clone, Debug)]
pub(crate) struct Passes {
    expiring: Arc<Mutex<Expiring>>,
    /// Wakes the thread that expires them.
    start: SyncSender<()>,
}

impl Passes {
    /// Starts the thread. It ends when all copies of the result are dropped.
    pub(crate) fn start(device: Arc<Device>, list: ListNames) -> io::Result<Self> {
        let (start, wanted) = sync_channel(1);
        let passes = Passes { expiring: Arc::default(), start };
        let expiring = Arc::clone(&passes.expiring);
        let run = move || {
            let writers = Arc::default();
            while let Ok(()) = wanted.recv() {
                let Expiring { all, directories } = mem::take(&mut *lock(&expiring));
                match all {
                    true => expire(&device, list(None), &writers),
                    false => {
                        let directories = directories.into_iter().flat_map(|node| list(Some(node)));
                        let directories: Vec<_> = directories.collect();
                        expire(&device, Box::new(directories.into_iter()), &writers);
                    }
                }
            }
        };
        spawn("limen-expire", run)?;
        Ok(passes)
    }

    /// Expires all names that are listed from now on. Does not wait. Returns false if an earlier call will do
    /// that.
    pub(crate) fn expire_all(&self) -> bool {
        let is_first = !mem::replace(&mut lock(&self.expiring).all, true);
        self.wake();
        is_first
    }

    /// As [`Self::expire_all`], for the names in one directory.
    pub(crate) fn expire_directory(&self, node: NodeId) {
        {
            let mut expiring = lock(&self.expiring);
            if expiring.directories.len() >= MAX_DIRECTORIES {
                expiring.all = true;
            } else if !expiring.directories.contains(&node) {
                expiring.directories.push(node);
            }
        }
        self.wake();
    }

    fn wake(&self) {
        // If a message waits already, the thread has not read `expiring` yet.
        let (Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(()))) = self.start.try_send(());
    }
}

/// Counts one until this value is dropped.
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Count(Arc::clone(count))
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

/// The names that are being expired.
struct Pass {
    directories: Mutex<Box<dyn Iterator<Item = Notifications> + Send>>,
    /// How many notifications were written.
    written: AtomicU64,
}

/// Writes the notifications about the names in directories. Returns when a thread has taken the last
/// directory; some threads may still be writing.
fn expire(
    device: &Arc<Device>,
    directories: Box<dyn Iterator<Item = Notifications> + Send>,
    writers: &Arc<AtomicUsize>,
) {
    let pass = Arc::new(Pass { directories: Mutex::new(directories), written: AtomicU64::new(0) });
    let (end, ended) = sync_channel(1);
    let mut before = None;
    loop {
        let written = pass.written.load(Ordering::Acquire);
        let is_slow = before.replace(written).is_none_or(|before| written - before < FEW_WRITTEN);
        if is_slow && writers.load(Ordering::Acquire) < MAX_WRITERS {
            let (device, pass, end) = (Arc::clone(device), Arc::clone(&pass), end.clone());
            let writer = Count::new(writers);
            let write_names = move || {
                let _writer = writer;
                let next = || lock(&pass.directories).next();
                let write = |notification| {
                    pass.written.fetch_add(1, Ordering::AcqRel);
                    write(&device, &notification)
                };
                while let Some(mut names) = next()
                    && names.all(write)
                {}
                let _ = end.try_send(());
            };
            if let Err(error) = spawn("limen-expire", write_names) {
                tracing::warn!(%error, "cannot start a thread that expires names; retrying");
            }
        }
        if ended.recv_timeout(LOOK_EVERY).is_ok() {
            return;
        }
    }
}

/// Writes a notification; returns whether the file system still exists. ENOENT and ENOTDIR mean that the
/// kernel had nothing to invalidate. ENOTEMPTY and EBUSY mean that it did not remove the name, but looks it
/// up again (`fuse_reverse_inval_entry`).
pub(crate) fn write(device: &Device, notification: &Notification) -> bool {
    match device.write(&[IoSlice::new(notification.as_bytes())]) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::BUSY) => true,
        Err(Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => false,
        Err(error) => {
            tracing::warn!(%error, "the kernel rejected a notification");
            true
        }
    }
}
