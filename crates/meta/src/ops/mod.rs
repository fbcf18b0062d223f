//! The POSIX operations. Each rule is written once, with one family of operations in each file.
//!
//! An operation is a struct of its arguments. Its [`plan`](crate::Op::plan) checks in the same order as
//! Linux. The docs list errors in the order in which they are checked.

mod access;
mod accessed;
mod acl;
mod domains;
mod link;
mod lock;
mod look;
mod make;
mod nfs4;
mod nfs4_copy;
mod range;
mod remove;
mod rename;
mod setattr;
mod write;
mod xattr;

pub use accessed::{Accessed, AtimeMode};
pub use acl::{AclType, SetAcl};
pub(crate) use domains::reserve;
pub use domains::{GetDomains, Numbering, domains_in};
pub use link::Link;
pub use lock::{DropLocks, FindLock, GetWaits, Locked, StopWaiting, TakeLock, Unlock};
pub use look::{GetAcl, GetByHandle, GetInode, GetParent, GetSlices, GetUsage, GetXattrs, Lookup, ReadLink};
pub use make::{Make, MakeKind, MakeOrphan};
pub use nfs4::{Admit, GetCompiled, GetNfs4Acl, GetProjection, Open, OpenFor, Opened, SetNfs4Acl};
pub use nfs4_copy::{CopiedAcl, CopyAcl};
pub use range::{Allocate, AllocateMode, Compact, CopyRange};
pub use remove::{Fate, Reap, ReapAll, Rmdir, Unlink, Unlinked};
pub use rename::{Rename, RenameFlags, Renamed, Whiteout};
pub use setattr::SetAttr;
pub use write::{Append, KillPriv, Write};
pub use xattr::{RemoveXattr, SetXattr, XattrMode};

use types::{Ino, Time};

use crate::txn::Effect;

/// Sets a directory's times after a change of its entries.
fn touch_dir(ino: Ino, now: Time) -> Effect {
    Effect::SetTimes { ino, atime: None, mtime: Some(now), ctime: Some(now) }
}

/// Sets an inode's ctime after a change of its attributes.
fn touch_ctime(ino: Ino, now: Time) -> Effect {
    Effect::SetTimes { ino, atime: None, mtime: None, ctime: Some(now) }
}
