//! The kernel's memory, as the volume tells it what is outdated.

use fuse_proto::{NodeId, Notification};
use fuse_transport::{Notifier, NotifyError};
use types::Ino;
use vfs::Kernel;

/// Notifications that may wait to be written; with more, all names are expired instead.
pub(crate) const MAX_WAITING: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) notifier: Notifier,
    /// The FUSE root is the volume's root, not its parent.
    pub(crate) direct: bool,
}

impl Memory {
    fn node(&self, ino: Ino) -> NodeId {
        if self.direct && ino == Ino::ROOT { NodeId::ROOT } else { NodeId(ino.0) }
    }

    fn send(&self, notification: Notification) {
        match self.notifier.send(notification) {
            // Too many: the notifier expires every name. Or nobody remembers anything any more.
            Ok(()) | Err(NotifyError::Full | NotifyError::Closed) => {}
        }
    }
}

impl Kernel for Memory {
    fn forget_attributes(&self, ino: Ino) {
        self.notifier.forget_attributes(self.node(ino));
    }

    fn forget_inode(&self, ino: Ino, content: bool) {
        let node = self.node(ino);
        self.send(match content {
            true => Notification::inval_inode(node, 0, 0),
            false => Notification::inval_attr(node),
        });
    }

    fn expire_name(&self, parent: Ino, name: &[u8]) {
        self.send(Notification::expire_entry(self.node(parent), name));
    }

    fn expire_all(&self) {
        self.send(Notification::inc_epoch());
    }
}
