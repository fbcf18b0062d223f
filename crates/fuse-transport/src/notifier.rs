//! Notifications, from a thread of their own.
//!
//! The kernel takes the directory's lock to drop a name, and the caller of a request under way holds it: written from the
//! handler of that request, the notification would wait for itself for ever, beyond SIGKILL.

use std::io::IoSlice;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use fuse_proto::{NodeId, Notification};
use rustix::io::Errno;

use crate::device::Device;
use crate::error::Error;

/// Hands notifications to the thread that writes them. Never waits, and may be used from handlers.
///
/// The thread ends with the last clone; until then it keeps the device open, so drop them all when serving has ended.
#[derive(Clone, Debug)]
pub struct Notifier {
    queue: SyncSender<Notification>,
    overflowed: Arc<AtomicBool>,
    device: Weak<Device>,
}

/// Why a notification was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// Every name is expired instead ([`Notification::inc_epoch`]), after what waits already.
    #[error("too many notifications wait")]
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

    /// Has the kernel forget the attributes and ACLs of an inode before this returns. Who calls may hold a request for that
    /// inode: it is in use then, and this notification alone takes no lock that a request holds
    /// (`fuse_reverse_inval_inode` without a range).
    pub fn forget_attributes(&self, node: NodeId) {
        if let Some(device) = self.device.upgrade() {
            write(&device, &Notification::inval_attr(node));
        }
    }

    /// # Errors
    /// [`NotifyError::Full`], [`NotifyError::Closed`].
    pub fn send(&self, notification: Notification) -> Result<(), NotifyError> {
        self.queue.try_send(notification).map_err(|error| match error {
            TrySendError::Full(_) => {
                // The queue is full, so that the thread will look at this flag after a later message.
                self.overflowed.store(true, Ordering::Release);
                NotifyError::Full
            }
            TrySendError::Disconnected(_) => NotifyError::Closed,
        })
    }
}

fn run(device: &Device, waiting: &Receiver<Notification>, overflowed: &AtomicBool) {
    while let Ok(notification) = waiting.recv() {
        let mut alive = write(device, &notification);
        if overflowed.swap(false, Ordering::AcqRel) {
            tracing::warn!("notifications overflowed; all names are expired");
            alive = write(device, &Notification::inc_epoch());
        }
        if !alive {
            return;
        }
    }
}

/// Whether the file system is still there. ENOENT says that the kernel held nothing to drop; the errors of a deletion
/// that came too late (ENOTDIR, ENOTEMPTY, EBUSY) leave a name that is asked for anew.
fn write(device: &Device, notification: &Notification) -> bool {
    match device.write(&[IoSlice::new(notification.as_bytes())]) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::BUSY) => true,
        Err(Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => false,
        Err(error) => {
            tracing::warn!(%error, "the kernel refused a notification");
            true
        }
    }
}
