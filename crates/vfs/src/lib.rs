//! The file system API: names, attributes, open files and directories, extended attributes, locks and
//! sessions.
//!
//! This crate is between the protocol (`fuse`) and the layers that store metadata ([`meta`]) and file data
//! ([`chunk`]). The rules of POSIX for stored records are in [`meta::ops`], not here.

mod access_check;
mod atime;
mod attr;
mod attrs;
mod caller;
mod cleanup;
mod coherence;
mod compact;
mod dirs;
mod durable;
mod fencing;
mod files;
#[cfg(test)]
mod fixture;
mod housekeeping;
mod in_flight;
mod kernel_cache;
mod locks;
mod names;
mod nfs4;
mod numbers;
mod open;
mod principals;
pub mod process;
mod ranges;
mod readahead;
mod session;
mod space;
mod vfs;
mod xattrs;

pub use access_check::{Perm, SearchCounts};
pub use acl::idmap::Ids;
pub use attr::{Attr, Entry, Lifetimes};
pub use attrs::AttrChange;
pub use caller::{Caller, Identity, IdentitySource};
pub use coherence::{Coherence, Kernel};
pub use dirs::{DirEntry, DirHandle, DirPosition};
pub use fencing::SessionLoss;
pub use in_flight::ReplyGuard;
pub use locks::LockRequest;
pub use meta::ops::{AllocateMode, AtimeMode, Locked, OpenFor, RenameFlags, XattrMode};
pub use meta::{AclKind, Lock, LockKind};
pub use names::{MakeRequest, Special};
pub use ranges::Seek;
pub use session::{SessionInfo, SessionTimes};
pub use vfs::{StatFs, Vfs, VfsOptions};
pub use xattrs::XattrName;
