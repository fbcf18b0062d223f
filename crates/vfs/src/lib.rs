//! The file system API: names, attributes, open files and directories, extended attributes, locks and
//! sessions.
//!
//! This crate is between the protocol (`fuse`) and the layers that store metadata ([`client`]) and file data
//! ([`chunk`]). The rules of POSIX for stored records are in [`ops`], not here.
//!
//! The fields of [`Vfs`] are its parts. The fields of `Base` are parts too, which all others share. Each part
//! is a struct in a file of its own; the header of the file says what the part holds, and its lock order.

// The volume, and the state that its parts share.
mod base;
mod vfs;

// Modules that several parts use.
mod activity;
mod attr;
mod caller;
mod numbers;
mod open;
mod stop;

// Access, and coherence with other clients and with the kernel's caches.
mod access_check;
mod changes;
mod coherence;
mod in_flight;
mod kernel_cache;
mod kernel_names;

// Attributes.
mod atime;
mod attributes;
mod setattr;
mod statfs;

// Open files and their data.
mod abandoned;
mod candidates;
mod commits;
mod compact;
mod doubts;
mod fencing;
mod files;
mod flush;
mod ranges;
mod readahead;
mod recent_grants;
mod rows;
mod space;

// Names, listings, extended attributes.
mod acl_ids;
mod listings;
mod name_service;
mod names;
mod nfs4;
mod principals;
mod xattrs;

// Locks, sessions, background work, and requests of tools.
mod cleanup;
mod clone;
mod granted;
mod hand_over;
mod housekeeping;
mod lifecycle;
mod locks;
pub mod process;
mod quotas;
mod session;
mod soft_limits;
mod tools;
mod trash;

#[cfg(test)]
mod fixture;

pub use access_check::{Perm, SearchCounts};
pub use activity::Activity;
pub use attr::{Attr, Lifetimes};
pub use base::VfsOptions;
pub use caller::{Caller, Identity, IdentitySource};
pub use cleanup::OwnerCheck;
pub use client::without_recalls;
pub use coherence::{Caches, Coherence, Kernel};
pub use compact::Compacted;
pub use fencing::SessionLoss;
pub use granted::LockRequest;
pub use hand_over::{FORMAT as HAND_OVER_FORMAT, HandOver, MountState};
pub use in_flight::ReplyGuard;
pub use kernel_cache::Arrival;
pub use kernel_names::KernelNames;
pub use listings::{DirEntry, DirHandle, DirPosition};
pub use meta::{AclKind, Lock, LockKind};
pub use names::MakeRequest;
pub use ops::{AllocateMode, AtimeMode, Locked, MakeKind, OpenAccess, RenameFlags, XattrMode};
pub use ranges::Seek;
pub use session::{SessionInfo, SessionTimes};
pub use setattr::AttrChange;
pub use statfs::StatFs;
pub use tools::CachedBytes;
pub use vfs::Vfs;
