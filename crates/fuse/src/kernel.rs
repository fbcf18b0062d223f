//! Invalidates the kernel's caches by notifications.

use std::iter;
use std::sync::{Arc, OnceLock};

use fuse_proto::{InitFlags, InitOut, NodeId, Notification};
use fuse_transport::{ListNames, Notifications, Notifier, NotifyError};
use types::Ino;
use vfs::{Kernel, Vfs};

/// The limit of notifications that wait to be written; see [`NotifyError::Full`].
pub(crate) const MAX_WAITING: usize = 65_536;

#[derive(Debug)]
pub(crate) struct KernelCaches {
    pub(crate) notifier: Notifier,
    /// The directory of the volume that is mounted.
    pub(crate) root: Ino,
    /// Whether the FUSE root is that directory, not its parent.
    pub(crate) direct: bool,
    /// The result of INIT. Before INIT, the kernel holds no names.
    pub(crate) negotiated: Arc<OnceLock<InitOut>>,
}

/// The node id of an inode. The FUSE root is the mounted directory if the mount is `direct`.
pub(crate) fn node(root: Ino, direct: bool, ino: Ino) -> NodeId {
    if direct && ino == root { NodeId::ROOT } else { NodeId(ino.0) }
}

/// The reverse of [`node`].
pub(crate) fn ino(root: Ino, direct: bool, node: NodeId) -> Ino {
    if direct && node == NodeId::ROOT { root } else { Ino(node.0) }
}

/// The first minor version with `FUSE_NOTIFY_INC_EPOCH`, of Linux 6.16.
const EPOCH_MINOR: u32 = 44;

/// Lists the notifications that expire names. An exclusive mount does not record its names, because they
/// expire only if the volume's settings change, if a session is lost, or if the queue of notifications is
/// full. So that mount expires all names at once, which detaches file systems that are mounted on its
/// directories.
pub(crate) fn list_names(
    vfs: &Vfs,
    negotiated: &Arc<OnceLock<InitOut>>,
    root: Ino,
    direct: bool,
) -> ListNames {
    let (names, negotiated) = (Arc::clone(vfs.caches.kernel_names()), Arc::clone(negotiated));
    let is_exclusive = vfs.is_exclusive();
    let expire = move |(dir, names): (Ino, Vec<Box<[u8]>>)| {
        let node = node(root, direct, dir);
        let expire = move |name: Box<[u8]>| Notification::expire_entry(node, &name);
        Box::new(names.into_iter().map(expire)) as Notifications
    };
    Box::new(move |only| match (negotiated.get(), only) {
        (Some(InitOut { minor: EPOCH_MINOR.., .. }), None) if is_exclusive => {
            let all: Notifications = Box::new(iter::once(Notification::inc_epoch()));
            Box::new(iter::once(all))
        }
        (Some(negotiated), _) if is_exclusive || !expires_names(negotiated) => Box::new(iter::empty()),
        (Some(_), None) => Box::new(names.all().map(expire)),
        (Some(_), Some(node)) => {
            let dir = ino(root, direct, node);
            Box::new(iter::once(expire((dir, names.of(dir)))))
        }
        (None, _) => Box::new(iter::empty()),
    })
}

/// Whether the kernel can expire single names.
fn expires_names(negotiated: &InitOut) -> bool {
    negotiated.flags.contains(InitFlags::HAS_EXPIRE_ONLY)
}

impl KernelCaches {
    fn node(&self, ino: Ino) -> NodeId {
        node(self.root, self.direct, ino)
    }

    fn send(&self, notification: Notification) {
        // If the queue is full, the notifier expires all names instead. Cached data then stays until its
        // attributes, which were invalidated before, are read again. If the mount has ended, no cache is
        // left.
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

    fn expire_directory(&self, dir: Ino) {
        self.notifier.expire_directory(self.node(dir));
    }

    fn expire_all(&self) {
        self.notifier.expire_all();
    }

    fn can_expire_names(&self) -> bool {
        self.negotiated.get().is_some_and(expires_names)
    }
}
