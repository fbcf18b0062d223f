//! The file system as its callers see it: names, attributes, open files and directories, xattrs, a session's life.
//!
//! It stands between the protocol that brings requests and the layers that keep records ([`meta`]) and bytes
//! ([`chunk`]). It decides nothing about semantics that a record shows: that is [`meta::ops`].

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
mod gate;
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

pub use acl::idmap::Ids;
pub use attr::{Attr, Entry, Lifetimes};
pub use attrs::AttrChange;
pub use caller::{Caller, Identify, Identity};
pub use coherence::{Coherence, Kernel};
pub use dirs::{DirEntry, DirHandle, DirPosition};
pub use fencing::SessionLoss;
pub use gate::{Perm, SearchCounts};
pub use in_flight::ReplyGuard;
pub use locks::LockRequest;
pub use meta::ops::{AllocateMode, AtimeMode, Locked, OpenFor, RenameFlags, XattrMode};
pub use meta::{AclKind, Lock, LockKind};
pub use names::{MakeRequest, Special};
pub use ranges::Seek;
pub use session::{SessionInfo, SessionTimes};
pub use vfs::{StatFs, Vfs, VfsOptions};
pub use xattrs::XattrName;
