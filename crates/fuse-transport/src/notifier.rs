//! Notifications, which a separate thread writes.
//!
//! To invalidate a name, the kernel takes the lock of the directory, which the caller of a request in flight
//! may hold. If the handler of that request wrote the notification, it would deadlock, and even SIGKILL would
//! not end it.

use std::fmt;
use std::io::IoSlice;
use std::mem;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use fuse_proto::{NodeId, Notification};
use rustix::io::Errno;

use crate::device::Device;
use crate::error::Error;

/// Queues notifications for the thread that writes them. It never waits, and can be used in handlers.
///
/// The thread ends when the last clone is dropped. Until then it keeps the device open, so drop all clones
/// when serving has ended.
#[derive(Clone, Debug)]
pub struct Notifier {
    queue: SyncSender<Queued>,
    excess: Arc<Excess>,
    device: Weak<Device>,
}

enum Queued {
    Notification(Notification),
    /// Is called when everything before it is written.
    Call(Call),
}

type Call = Box<dyn FnOnce() + Send>;

/// What found no room in the queue. The thread reads this after each message, and a full queue has one.
#[derive(Default)]
struct Excess {
    /// Whether a notification was lost, so that all names are to be expired.
    overflowed: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

impl fmt::Debug for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Excess").field("overflowed", &self.overflowed).finish_non_exhaustive()
    }
}

/// Why a notification was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// All names are expired instead ([`Notification::inc_epoch`]), after the queued notifications.
    #[error("the queue of notifications is full")]
    Full,
    #[error("the file system is unmounted")]
    Closed,
}

impl Notifier {
    pub(crate) fn start(device: Arc<Device>, capacity: NonZeroUsize) -> Result<Self, Error> {
        let (queue, waiting) = sync_channel(capacity.get());
        let excess = Arc::<Excess>::default();
        let shared = Arc::clone(&excess);
        let own = Arc::downgrade(&device);
        thread::Builder::new()
            .name("limen-notify".into())
            .spawn(move || run(&device, &waiting, &shared))
            .map_err(|e| Error::system("start the notifier thread", e))?;
        Ok(Notifier { queue, excess, device: own })
    }

    /// Invalidates the attributes and ACLs of an inode in the kernel before this returns. The caller may hold
    /// a request for the inode: the request keeps the inode in use, and this is the only notification that
    /// takes no lock that a request holds (`fuse_reverse_inval_inode` without a range).
    pub fn forget_attributes(&self, node: NodeId) {
        if let Some(device) = self.device.upgrade() {
            write(&device, &Notification::inval_attr(node));
        }
    }

    /// Waits until all notifications that were queued before are written, for at most `timeout`. Returns whether they are.
    pub fn flush(&self, timeout: Duration) -> bool {
        let (mark, written) = sync_channel(1);
        // If nobody waits any more, this does nothing.
        self.call(Box::new(move || {
            let _ = mark.try_send(());
        }));
        written.recv_timeout(timeout).is_ok()
    }

    /// Writes a notification on the notifier's thread, and then calls `then` there. Does both even if the queue is full;
    /// calls `then` at once if the file system is unmounted. Never waits.
    pub fn send_and_call(&self, notification: Notification, then: impl FnOnce() + Send + 'static) {
        let device = self.device.clone();
        self.call(Box::new(move || {
            if let Some(device) = device.upgrade() {
                write(&device, &notification);
            }
            then();
        }));
    }

    fn call(&self, call: Call) {
        match self.queue.try_send(Queued::Call(call)) {
            Err(TrySendError::Full(Queued::Call(call))) => {
                self.excess.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            }
            Err(TrySendError::Disconnected(Queued::Call(call))) => call(),
            _ => {}
        }
    }

    /// Queues a notification.
    ///
    /// # Errors
    /// [`NotifyError::Full`] if too many notifications wait; [`NotifyError::Closed`] if the thread has ended.
    pub fn send(&self, notification: Notification) -> Result<(), NotifyError> {
        self.queue.try_send(Queued::Notification(notification)).map_err(|error| match error {
            TrySendError::Full(_) => {
                self.excess.overflowed.store(true, Ordering::Release);
                NotifyError::Full
            }
            TrySendError::Disconnected(_) => NotifyError::Closed,
        })
    }
}

fn run(device: &Device, waiting: &Receiver<Queued>, excess: &Excess) {
    while let Ok(queued) = waiting.recv() {
        let mut alive = match queued {
            Queued::Notification(notification) => write(device, &notification),
            Queued::Call(call) => {
                call();
                true
            }
        };
        let calls = mem::take(&mut *excess.calls.lock().unwrap_or_else(PoisonError::into_inner));
        calls.into_iter().for_each(|call| call());
        if excess.overflowed.swap(false, Ordering::AcqRel) {
            tracing::warn!("the queue of notifications overflowed; all names are expired");
            alive = write(device, &Notification::inc_epoch());
        }
        if !alive {
            return;
        }
    }
}

/// Writes a notification; returns whether the file system still exists. ENOENT means that the kernel had
/// nothing to invalidate. ENOTDIR, ENOTEMPTY and EBUSY mean that it could not delete the name, and looks it
/// up again.
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
