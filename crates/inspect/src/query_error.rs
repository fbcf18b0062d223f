//! Why a query failed.

use meta::EngineError;
use types::{AclId, Errno};

use crate::path::show;

/// Why a query failed. A denial is a result, not an error.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The ACL of the inode is missing or damaged, so access that depends on it fails with EIO.
    #[error("inode {ino}: its ACL {id} is missing or damaged")]
    Acl { ino: u64, id: AclId },
    /// A name has no inode, a symbolic link has no target, or the parents of a directory do not lead to the
    /// root.
    #[error("inode {ino}: {what}: run limen fsck")]
    Damaged { ino: u64, what: &'static str },
    /// A system call on this machine failed.
    #[error("{}: {errno}", show(.path))]
    System { path: Vec<u8>, errno: Errno },
    /// The symbolic link points outside the volume, so its target depends on where the volume is mounted.
    #[error("{}: the symbolic link points outside the volume, to {}", show(.path), show(.target))]
    LeadsOut { path: Vec<u8>, target: Vec<u8> },
    /// The ACL names SIDs, and the rules of its volume that map them cannot be read.
    #[error("{}: its ACL names SIDs, and the volume's rules for them cannot be read: {why}", show(.path))]
    SidRules { path: Vec<u8>, why: String },
    #[error("{}: {what}", show(.path))]
    Path { path: Vec<u8>, what: &'static str },
}
