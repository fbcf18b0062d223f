//! Notifications: messages to the kernel that are not replies (`enum fuse_notify_code`, `fuse_notify`).
//!
//! Writing a notification may wait for a lock that a request in flight holds. So a handler must not write
//! one, except [`Notification::inval_attr`], which takes no such lock.

use zerocopy::IntoBytes;

use crate::reply::header;
use crate::wire;
use crate::{NodeId, Unique};

/// A complete message, ready to be written.
///
/// The kernel returns ENOENT if it does not have the inode or the name: then there was nothing to invalidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    bytes: Vec<u8>,
}

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const RETRIEVE: i32 = 5;
const INC_EPOCH: i32 = 8;

/// `FUSE_EXPIRE_ONLY`.
const EXPIRE_ONLY: u32 = 1;

impl Notification {
    /// Invalidates the attributes and ACLs of an inode, and `len` bytes of its cached pages from `offset` on.
    /// If `len` is 0, all pages to the end are invalidated; if `offset` is negative, none are.
    pub fn inval_inode(node: NodeId, offset: i64, len: i64) -> Self {
        Self::new(INVAL_INODE, &[wire::NotifyInvalInodeOut { ino: node.0, off: offset, len }.as_bytes()])
    }

    /// Invalidates the attributes and ACLs of an inode, but not its cached pages.
    pub fn inval_attr(node: NodeId) -> Self {
        Self::inval_inode(node, -1, 0)
    }

    /// Invalidates a name that the kernel has cached, and the attributes of its directory. Mounts below the
    /// name are unmounted (`d_invalidate`).
    pub fn inval_entry(parent: NodeId, name: &[u8]) -> Self {
        Self::entry(parent, name, 0)
    }

    /// As [`Self::inval_entry`], but the kernel keeps the name and revalidates it before its next use, and
    /// mounts below it stay. Needs [`crate::InitFlags::HAS_EXPIRE_ONLY`].
    pub fn expire_entry(parent: NodeId, name: &[u8]) -> Self {
        Self::entry(parent, name, EXPIRE_ONLY)
    }

    /// Makes the kernel send a `NOTIFY_REPLY` request with the id `unique` and the cached data of an inode,
    /// at most `size_bytes` from its start.
    pub fn retrieve(unique: Unique, node: NodeId, size_bytes: u32) -> Self {
        let out = wire::NotifyRetrieveOut {
            notify_unique: unique.0,
            nodeid: node.0,
            offset: 0,
            size: size_bytes,
            padding: 0,
        };
        Self::new(RETRIEVE, &[out.as_bytes()])
    }

    /// Makes the kernel revalidate every name before its next use, and then detach all file systems that are
    /// mounted on its directories. Needs ABI 7.44; older kernels return EINVAL.
    pub fn inc_epoch() -> Self {
        Self::new(INC_EPOCH, &[])
    }

    /// The inode whose lock or pages the write of this notification may wait for.
    pub fn node(&self) -> Option<NodeId> {
        let is_about_node = [INVAL_INODE, INVAL_ENTRY].map(i32::to_ne_bytes);
        let node = is_about_node.iter().any(|code| self.bytes[4..8] == *code).then(|| &self.bytes[16..24]);
        Some(NodeId(u64::from_ne_bytes(node?.try_into().ok()?)))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn entry(parent: NodeId, name: &[u8], flags: u32) -> Self {
        let out = wire::NotifyInvalEntryOut { parent: parent.0, namelen: namelen(name), flags };
        Self::new(INVAL_ENTRY, &[out.as_bytes(), name, b"\0"])
    }

    /// A notification is formatted as a reply to request 0, with its code in place of the error.
    fn new(code: i32, parts: &[&[u8]]) -> Self {
        let body = parts.concat();
        let mut bytes = header(body.len(), code, Unique(0)).to_vec();
        bytes.extend_from_slice(&body);
        Notification { bytes }
    }
}

/// The length of a name. It saturates, because the kernel rejects names of `PATH_MAX` bytes or more (older
/// kernels: of more than 1024 bytes) with ENAMETOOLONG anyway.
fn namelen(name: &[u8]) -> u32 {
    u32::try_from(name.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_carry_their_code_and_a_terminated_name() {
        let expire = Notification::expire_entry(NodeId(2), b"abc");
        let b = expire.as_bytes();
        assert_eq!(b.len(), 16 + 16 + 4);
        assert_eq!(b[..4], 36u32.to_ne_bytes());
        assert_eq!(b[4..8], 3i32.to_ne_bytes());
        assert_eq!(b[8..16], [0; 8]);
        assert_eq!(b[16..24], 2u64.to_ne_bytes());
        assert_eq!(b[24..28], 3u32.to_ne_bytes());
        assert_eq!(b[28..32], 1u32.to_ne_bytes());
        assert_eq!(&b[32..], b"abc\0");
        assert_eq!(expire.node(), Some(NodeId(2)));
        assert_eq!(Notification::inval_inode(NodeId(7), 0, 0).node(), Some(NodeId(7)));
        assert_eq!(Notification::inc_epoch().node(), None);
        assert_eq!(Notification::inc_epoch().as_bytes().len(), 16);
        assert_eq!(Notification::inval_attr(NodeId(1)).as_bytes()[24..32], (-1i64).to_ne_bytes());
        assert_eq!(Notification::retrieve(Unique(9), NodeId(1), 0).as_bytes()[16..24], 9u64.to_ne_bytes());
    }
}
