//! Invalidates the kernel's caches by notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuse_proto::{NodeId, Notification};
use fuse_transport::{Notifier, NotifyError};
use types::Ino;
use vfs::Kernel;

/// The limit of notifications that wait to be written; see [`NotifyError::Full`].
pub(crate) const MAX_WAITING: usize = 65_536;

#[derive(Debug)]
pub(crate) struct KernelCaches {
    pub(crate) notifier: Notifier,
    /// The directory of the volume that is mounted.
    pub(crate) root: Ino,
    /// Whether the FUSE root is that directory, not its parent.
    pub(crate) direct: bool,
    pub(crate) epochs: Epochs,
}

/// Whether the kernel can expire all names at once, as negotiated at INIT. Before INIT it holds no names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs(Arc<AtomicBool>);

/// The first minor version with `FUSE_NOTIFY_INC_EPOCH`, of Linux 6.16.
const EPOCH_MINOR: u32 = 44;

impl Epochs {
    /// Sets the minor version that INIT negotiated.
    pub(crate) fn set_minor(&self, minor: u32) {
        self.0.store(minor >= EPOCH_MINOR, Ordering::Release);
    }

    fn are_supported(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl KernelCaches {
    fn node(&self, ino: Ino) -> NodeId {
        if self.direct && ino == self.root { NodeId::ROOT } else { NodeId(ino.0) }
    }

    fn send(&self, notification: Notification) {
        // If the queue is full, the notifier expires all names, if the kernel can; if the mount has ended, no
        // cache is left.
        let (Ok(()) | Err(NotifyError::Full | NotifyError::Closed)) = self.notifier.send(notification);
    }
}

impl Kernel for KernelCaches {
    fn invalidate_attributes(&self, ino: Ino) {
        self.notifier.invalidate_attributes(self.node(ino));
    }

    fn invalidate_content(&self, ino: Ino) {
        self.invalidate_attributes(ino);
        // The notifier's thread sends this, because the kernel waits for pages that are being read, which are
        // locked.
        self.send(Notification::inval_inode(self.node(ino), 0, 0));
    }

    fn invalidate_content_then(&self, ino: Ino, then: Box<dyn FnOnce() + Send>) {
        self.notifier.send_and_call(Notification::inval_inode(self.node(ino), 0, 0), then);
    }

    fn invalidate_range(&self, ino: Ino, offset: u64, len: u64) {
        let [offset, len] = [offset, len].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        self.send(Notification::inval_inode(self.node(ino), offset, len));
    }

    fn expire_name(&self, parent: Ino, name: &[u8]) {
        self.send(Notification::expire_entry(self.node(parent), name));
    }

    fn expire_all(&self) {
        if self.can_expire_all() {
            self.send(Notification::inc_epoch());
        }
    }

    fn can_expire_all(&self) -> bool {
        self.epochs.are_supported()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_used_from_linux_6_16_on() {
        let epochs = Epochs::default();
        assert!(!epochs.are_supported());
        epochs.set_minor(43);
        assert!(!epochs.are_supported());
        epochs.set_minor(44);
        assert!(epochs.are_supported());
    }
}
