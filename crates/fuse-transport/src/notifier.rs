//! Notifications. A separate thread writes them, except those of [`Notifier::invalidate_attributes`] and
//! [`Notifier::expire_all`].
//!
//! To invalidate a name, the kernel takes the lock of the directory, which the caller of a request in flight
//! may hold. If the handler of that request wrote the notification, it would deadlock, and even SIGKILL would
//! not end it.
//!
//! So the write of a notification can take as long as a request. If many names are to be expired, several
//! threads write, each those of one directory. While one waits for its directory, the others go on.

use std::fmt;
use std::io::{self, IoSlice};
use std::mem;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fuse_proto::{NodeId, Notification};
use rustix::io::Errno;

use crate::device::Device;
use crate::error::Error;

/// How often [`Notifier::wait_for_calls`] checks whether all calls were made.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// If the threads that expire names write fewer than [`FEW_WRITTEN`] notifications in this time, one more
/// thread starts, up to [`MAX_WRITERS`].
const LOOK_EVERY: Duration = Duration::from_millis(20);
const FEW_WRITTEN: u64 = 1_000;
const MAX_WRITERS: usize = 64;
/// If the names of more directories are to be expired at once, all names are.
const MAX_DIRECTORIES: usize = 1_000;

/// Queues notifications for the thread that writes them. Sending never waits, so handlers may send. Only
/// [`Notifier::flush`] and [`Notifier::wait_for_calls`] wait.
///
/// The threads end when the last clone is dropped. Until then they keep the device open, so drop all clones
/// when serving has ended.
#[derive(Clone, Debug)]
pub struct Notifier {
    queue: SyncSender<Queued>,
    /// Wakes the thread that expires what [`Shared::expiring`] says.
    passes: SyncSender<()>,
    shared: Arc<Shared>,
    device: Weak<Device>,
}

enum Queued {
    Notification(Notification),
    /// The call is made when the notification is written.
    NotificationThen(Notification, Call),
    /// Reports that everything queued before it is written.
    Mark(SyncSender<()>),
    /// Wakes the thread.
    Nothing,
}

type Call = Box<dyn FnOnce() + Send>;

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

#[derive(Default)]
struct Shared {
    expiring: Mutex<Expiring>,
    /// The notifications with calls that found no room. The thread writes them after each message.
    late: Mutex<Vec<(Notification, Call)>>,
    /// How many calls of [`Notifier::send_and_call`] were neither made nor dropped yet.
    pending: Arc<AtomicUsize>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Shared {
    fn take_late(&self) -> Vec<(Notification, Call)> {
        mem::take(&mut *lock(&self.late))
    }
}

/// Counts one until this value is dropped.
struct Count(Arc<AtomicUsize>);

impl Count {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Count(Arc::clone(count))
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a notification was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// All names are expired instead ([`Notifier::expire_all`]).
    #[error("the queue of notifications is full")]
    Full,
    #[error("the file system is unmounted")]
    Closed,
}

impl Notifier {
    pub(crate) fn start(device: Arc<Device>, capacity: NonZeroUsize, list: ListNames) -> Result<Self, Error> {
        let (queue, waiting) = sync_channel(capacity.get());
        let (passes, wanted) = sync_channel(1);
        let shared = Arc::<Shared>::default();
        let own_shared = Arc::clone(&shared);
        let own = Arc::downgrade(&device);
        let failed = |error| Error::system("start the notifier thread", error);
        let (expiring, expiring_shared) = (Arc::clone(&device), Arc::clone(&shared));
        let expire_all = move || {
            let writers = Arc::default();
            while let Ok(()) = wanted.recv() {
                let Expiring { all, directories } = mem::take(&mut *lock(&expiring_shared.expiring));
                match all {
                    true => expire(&expiring, list(None), &writers),
                    false => {
                        let directories = directories.into_iter().flat_map(|node| list(Some(node)));
                        let directories: Vec<_> = directories.collect();
                        expire(&expiring, Box::new(directories.into_iter()), &writers);
                    }
                }
            }
        };
        spawn("limen-expire", expire_all).map_err(failed)?;
        spawn("limen-notify", move || run(&device, &waiting, &own_shared)).map_err(failed)?;
        Ok(Notifier { queue, passes, shared, device: own })
    }

    /// Invalidates the attributes and ACLs of an inode in the kernel before this returns. The caller may hold
    /// a request for the inode: the request keeps the inode in use, and this notification takes no lock that
    /// a request holds (`fuse_reverse_inval_inode` without a range).
    pub fn invalidate_attributes(&self, node: NodeId) {
        if let Some(device) = self.device.upgrade() {
            write(&device, &Notification::inval_attr(node));
        }
    }

    /// Waits until all notifications that were queued before are written, for at most `timeout`. Returns whether they are.
    pub fn flush(&self, timeout: Duration) -> bool {
        let (mark, written) = sync_channel(1);
        self.queue.try_send(Queued::Mark(mark)).is_ok() && written.recv_timeout(timeout).is_ok()
    }

    /// Writes a notification on the notifier's thread, and then calls `then` there. Does both even if the queue is full;
    /// calls `then` at once if the file system is unmounted. Never waits.
    pub fn send_and_call(&self, notification: Notification, then: impl FnOnce() + Send + 'static) {
        let pending = Count::new(&self.shared.pending);
        let then = Box::new(move || {
            then();
            drop(pending);
        });
        match self.queue.try_send(Queued::NotificationThen(notification, then)) {
            Err(TrySendError::Full(Queued::NotificationThen(notification, then))) => {
                lock(&self.shared.late).push((notification, then));
                // The thread may have emptied the queue meanwhile, or ended.
                if let Err(TrySendError::Disconnected(_)) = self.queue.try_send(Queued::Nothing) {
                    self.shared.take_late().into_iter().for_each(|(_, then)| then());
                }
            }
            Err(TrySendError::Disconnected(Queued::NotificationThen(_, then))) => then(),
            _ => {}
        }
    }

    /// Waits until all calls of [`Self::send_and_call`] were made, for at most `timeout`. Returns whether they were.
    pub fn wait_for_calls(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while self.shared.pending.load(Ordering::Acquire) > 0 {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// Queues a notification.
    ///
    /// # Errors
    /// [`NotifyError::Full`] if too many notifications wait; [`NotifyError::Closed`] if the thread has ended.
    pub fn send(&self, notification: Notification) -> Result<(), NotifyError> {
        self.queue.try_send(Queued::Notification(notification)).map_err(|error| match error {
            TrySendError::Full(_) => {
                if self.expire_all() {
                    tracing::warn!("the queue of notifications is full, so all names are expired");
                }
                NotifyError::Full
            }
            TrySendError::Disconnected(_) => NotifyError::Closed,
        })
    }

    /// Expires all names that are listed from now on. Does not wait. Returns false if an earlier call will do
    /// that.
    pub fn expire_all(&self) -> bool {
        let is_first = !mem::replace(&mut lock(&self.shared.expiring).all, true);
        self.start_pass();
        is_first
    }

    /// As [`Self::expire_all`], for the names in one directory.
    pub fn expire_directory(&self, node: NodeId) {
        {
            let mut expiring = lock(&self.shared.expiring);
            if expiring.directories.len() >= MAX_DIRECTORIES {
                expiring.all = true;
            } else if !expiring.directories.contains(&node) {
                expiring.directories.push(node);
            }
        }
        self.start_pass();
    }

    fn start_pass(&self) {
        // If a message waits already, the thread has not read `expiring` yet.
        let (Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(()))) =
            self.passes.try_send(());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
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

fn run(device: &Device, waiting: &Receiver<Queued>, shared: &Shared) {
    let write_then = |(notification, then): (Notification, Call)| {
        let alive = write(device, &notification);
        then();
        alive
    };
    while let Ok(queued) = waiting.recv() {
        let mut alive = match queued {
            Queued::Notification(notification) => write(device, &notification),
            Queued::NotificationThen(notification, then) => write_then((notification, then)),
            // If no thread waits any more, this does nothing.
            Queued::Mark(mark) => {
                let _ = mark.try_send(());
                true
            }
            Queued::Nothing => true,
        };
        for late in shared.take_late() {
            alive &= write_then(late);
        }
        if !alive {
            return;
        }
    }
}

/// Writes a notification; returns whether the file system still exists. ENOENT and ENOTDIR mean that the
/// kernel had nothing to invalidate. ENOTEMPTY and EBUSY mean that it did not remove the name, but looks it
/// up again (`fuse_reverse_inval_entry`).
fn write(device: &Device, notification: &Notification) -> bool {
    match device.write(&[IoSlice::new(notification.as_bytes())]) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::BUSY) => true,
        Err(Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => false,
        Err(error) => {
            tracing::warn!(%error, "the kernel rejected a notification");
            true
        }
    }
}
