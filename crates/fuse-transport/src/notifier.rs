//! Notifications. A separate thread writes them, except those of [`Notifier::invalidate_attributes`].
//!
//! To invalidate a name, the kernel takes the lock of the directory, which the caller of a request in flight
//! may hold. If the handler of that request wrote the notification, it would deadlock, and even SIGKILL would
//! not end it.

use std::fmt;
use std::io::IoSlice;
use std::mem;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fuse_proto::{NodeId, Notification};
use rustix::io::Errno;

use crate::device::Device;
use crate::error::Error;

/// How often [`Notifier::wait_for_calls`] checks whether all calls were made.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Queues notifications for the thread that writes them. Sending never waits, so handlers may send. Only
/// [`Notifier::flush`] and [`Notifier::wait_for_calls`] wait.
///
/// The thread ends when the last clone is dropped. Until then it keeps the device open, so drop all clones
/// when serving has ended.
#[derive(Clone, Debug)]
pub struct Notifier {
    queue: SyncSender<Queued>,
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

#[derive(Default)]
struct Shared {
    /// Whether a notification found no room in the queue, so that all names are to be expired.
    overflowed: AtomicBool,
    /// The notifications with calls that found no room. The thread writes them after each message.
    late: Mutex<Vec<(Notification, Call)>>,
    /// How many calls of [`Notifier::send_and_call`] were neither made nor dropped yet.
    pending: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Shared {
    fn take_late(&self) -> Vec<(Notification, Call)> {
        mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Counts one call in [`Shared::pending`] until this value is dropped.
struct Pending(Arc<Shared>);

impl Pending {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.pending.fetch_add(1, Ordering::AcqRel);
        Pending(Arc::clone(shared))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a notification was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The thread expires all names instead ([`Notification::inc_epoch`]), before it writes the next queued
    /// notification. Linux before 6.16 rejects that, so names need short lifetimes there.
    #[error("the queue of notifications is full")]
    Full,
    #[error("the file system is unmounted")]
    Closed,
}

impl Notifier {
    pub(crate) fn start(device: Arc<Device>, capacity: NonZeroUsize) -> Result<Self, Error> {
        let (queue, waiting) = sync_channel(capacity.get());
        let shared = Arc::<Shared>::default();
        let own_shared = Arc::clone(&shared);
        let own = Arc::downgrade(&device);
        thread::Builder::new()
            .name("limen-notify".into())
            .spawn(move || run(&device, &waiting, &own_shared))
            .map_err(|e| Error::system("start the notifier thread", e))?;
        Ok(Notifier { queue, shared, device: own })
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
        let pending = Pending::new(&self.shared);
        let then = Box::new(move || {
            then();
            drop(pending);
        });
        match self.queue.try_send(Queued::NotificationThen(notification, then)) {
            Err(TrySendError::Full(Queued::NotificationThen(notification, then))) => {
                self.shared.late.lock().unwrap_or_else(PoisonError::into_inner).push((notification, then));
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
                self.shared.overflowed.store(true, Ordering::Release);
                // If the thread has emptied the queue meanwhile, this makes it read the flag.
                let _ = self.queue.try_send(Queued::Nothing);
                NotifyError::Full
            }
            TrySendError::Disconnected(_) => NotifyError::Closed,
        })
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
        if shared.overflowed.swap(false, Ordering::AcqRel) {
            tracing::warn!("the queue of notifications overflowed; all names are expired");
            alive &= write(device, &Notification::inc_epoch());
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
