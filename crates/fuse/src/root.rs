//! The FUSE root, if it is not the mounted directory but its parent.
//!
//! The kernel creates the inode of the FUSE root before INIT, and never caches its ACL: every path walk
//! through it by a caller other than its owner would send GETXATTR. So the FUSE root is not shown to
//! programs. Its only purpose is that the mounted directory, which is usually the volume's root, can be
//! looked up below it.

use std::time::Duration;

use fuse_proto::{Attr, Body, Operation};
use fuse_transport::Reply;
use types::{Errno, Ino};
use vfs::Vfs;

use crate::translate;

/// The name of the mounted directory below the FUSE root.
pub(crate) const CHILD: &str = "volume";

const TTL: Duration = Duration::from_secs(86_400);

pub(crate) fn answer(vfs: &Vfs, root: Ino, operation: &Operation<'_>, reply: Reply) {
    let guard = vfs.caches.begin_reply();
    match operation {
        Operation::Lookup { name } if *name == CHILD.as_bytes() => match vfs.attributes.getattr(root) {
            Ok(attr) => {
                vfs.caches.looked_up(&attr);
                reply.ok(Body::entry(&translate::entry(&attr, guard.lifetimes())).as_bytes());
            }
            Err(errno) => reply.error(errno),
        },
        Operation::Lookup { .. } => reply.error(Errno::ENOENT),
        Operation::GetAttr { .. } => {
            let attr = Attr { ino: 1, mode: 0o040755, nlink: 3, blksize_bytes: 4096, ..Attr::default() };
            reply.ok(Body::attr(&attr, TTL).as_bytes());
        }
        Operation::GetXattr { .. } => reply.error(Errno::ENODATA),
        _ => reply.error(Errno::EACCES),
    }
}
