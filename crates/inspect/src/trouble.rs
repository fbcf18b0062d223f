//! Why a question has no answer.

use meta::EngineError;
use types::{AclId, Errno};

use crate::route::show;

/// Why a question has no answer. That somebody is refused is an answer.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Access through it is refused with EIO, to everybody.
    #[error("inode {ino}: its ACL {id} is missing or damaged")]
    Acl { ino: u64, id: AclId },
    /// A name that leads nowhere, or a symbolic link without a target.
    #[error("inode {ino}: {what}: see limen fsck")]
    Damaged { ino: u64, what: &'static str },
    /// Of a system call on this machine.
    #[error("{}: {errno}", show(.path))]
    System { path: Vec<u8>, errno: Errno },
    /// Where the volume is mounted decides what is there.
    #[error("{}: the symbolic link leads out of the volume, to {}", show(.path), show(.target))]
    LeadsOut { path: Vec<u8>, target: Vec<u8> },
    #[error("{}: {what}", show(.path))]
    Path { path: Vec<u8>, what: &'static str },
}
