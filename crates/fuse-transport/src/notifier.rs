//! Notifications. Separate threads write them, except those of [`Notifier::invalidate_attributes`].
//!
//! To invalidate a name, the kernel takes the lock of the directory, which the caller of a request in flight
//! may hold. If the handler of that request wrote the notification, it would deadlock, and even SIGKILL would
//! not end it.
//!
//! So the write of a notification can take as long as a request. Several threads write, so a notification that
//! waits for one directory does not delay those about others (`notify_queue.rs`, `expiry.rs`).

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fuse_proto::{NodeId, Notification};

use crate::device::Device;
use crate::error::Error;
use crate::expiry::{Count, ListNames, Passes, write};
use crate::notify_queue::{Late, Queued, Writers};

/// How often [`Notifier::wait_for_calls`] checks whether all calls were made.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Queues notifications for the threads that write them. Sending never waits, so handlers may send. Only
/// [`Notifier::flush`] and [`Notifier::wait_for_calls`] wait.
///
/// The threads end when the last clone is dropped. Until then they keep the device open, so drop all clones
/// when serving has ended.
#[derive(Clone, Debug)]
pub struct Notifier {
    queue: SyncSender<Queued>,
    passes: Passes,
    late: Late,
    /// How many calls of [`Notifier::send_and_call`] were neither made nor dropped yet.
    pending: Arc<AtomicUsize>,
    device: Weak<Device>,
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
        let failed = |error| Error::system("start a thread for notifications", error);
        let passes = Passes::start(Arc::clone(&device), list).map_err(failed)?;
        let late = Late::default();
        let own = Arc::downgrade(&device);
        Writers::start(device, waiting, late.clone(), passes.clone()).map_err(failed)?;
        Ok(Notifier { queue, passes, late, pending: Arc::default(), device: own })
    }

    /// Invalidates the attributes and ACLs of an inode in the kernel before this returns. The caller may hold
    /// a request for the inode: the request keeps the inode in use, and this notification takes no lock that
    /// a request holds (`fuse_reverse_inval_inode` without a range).
    pub fn invalidate_attributes(&self, node: NodeId) {
        if let Some(device) = self.device.upgrade() {
            write(&device, &Notification::inval_attr(node));
        }
    }

    /// Waits until all notifications that were queued before are written, or the file system is unmounted, for at
    /// most `timeout`. Returns whether that is so.
    pub fn flush(&self, timeout: Duration) -> bool {
        let (mark, written) = sync_channel(0);
        match self.queue.try_send(Queued::Mark(mark)) {
            Ok(()) => matches!(written.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected)),
            Err(error) => matches!(error, TrySendError::Disconnected(_)),
        }
    }

    /// Writes a notification on a thread of the notifier, and then calls `then` there. Does both even if the queue is
    /// full; calls `then` at once if the file system is unmounted. Never waits.
    pub fn send_and_call(&self, notification: Notification, then: impl FnOnce() + Send + 'static) {
        let pending = Count::new(&self.pending);
        let then = Box::new(move || {
            then();
            drop(pending);
        });
        match self.queue.try_send(Queued::Notification(notification, Some(then))) {
            Err(TrySendError::Full(Queued::Notification(notification, Some(then)))) => {
                self.late.push(notification, then);
                // The threads may have emptied the queue meanwhile, or ended.
                if let Err(TrySendError::Disconnected(_)) = self.queue.try_send(Queued::Nothing) {
                    while let Some((_, then)) = self.late.take_first() {
                        then();
                    }
                }
            }
            Err(TrySendError::Disconnected(Queued::Notification(_, Some(then)))) => then(),
            _ => {}
        }
    }

    /// Waits until all calls of [`Self::send_and_call`] were made, for at most `timeout`. Returns whether they were.
    pub fn wait_for_calls(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while self.pending.load(Ordering::Acquire) > 0 {
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
    /// [`NotifyError::Full`] if too many notifications wait; [`NotifyError::Closed`] if the file system is
    /// unmounted.
    pub fn send(&self, notification: Notification) -> Result<(), NotifyError> {
        self.queue.try_send(Queued::Notification(notification, None)).map_err(|error| match error {
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
        self.passes.expire_all()
    }

    /// As [`Self::expire_all`], for the names in one directory.
    pub fn expire_directory(&self, node: NodeId) {
        self.passes.expire_directory(node);
    }
}
