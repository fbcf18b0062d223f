//! Notifications, which a separate thread writes.
//!
//! To invalidate a name, the kernel takes the lock of the directory, which the caller of a request in flight
//! may hold. If the handler of that request wrote the notification, it would deadlock, and even SIGKILL would
//! not end it.

use std::io::IoSlice;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
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
    overflowed: Arc<AtomicBool>,
    device: Weak<Device>,
}

#[derive(Debug)]
enum Queued {
    Notification(Notification),
    /// Everything before this is written.
    Mark(SyncSender<()>),
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
        let overflowed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&overflowed);
        let own = Arc::downgrade(&device);
        thread::Builder::new()
            .name("limen-notify".into())
            .spawn(move || run(&device, &waiting, &flag))
            .map_err(|e| Error::system("start the notifier thread", e))?;
        Ok(Notifier { queue, overflowed, device: own })
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
        self.queue.try_send(Queued::Mark(mark)).is_ok() && written.recv_timeout(timeout).is_ok()
    }

    /// Queues a notification.
    ///
    /// # Errors
    /// [`NotifyError::Full`] if too many notifications wait; [`NotifyError::Closed`] if the thread has ended.
    pub fn send(&self, notification: Notification) -> Result<(), NotifyError> {
        self.queue.try_send(Queued::Notification(notification)).map_err(|error| match error {
            TrySendError::Full(_) => {
                // Because the queue is full, the thread will read this flag after a later message.
                self.overflowed.store(true, Ordering::Release);
                NotifyError::Full
            }
            TrySendError::Disconnected(_) => NotifyError::Closed,
        })
    }
}

fn run(device: &Device, waiting: &Receiver<Queued>, overflowed: &AtomicBool) {
    while let Ok(queued) = waiting.recv() {
        let mut alive = match queued {
            Queued::Notification(notification) => write(device, &notification),
            // If nobody waits any more, this does nothing.
            Queued::Mark(mark) => {
                let _ = mark.try_send(());
                true
            }
        };
        if overflowed.swap(false, Ordering::AcqRel) {
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
