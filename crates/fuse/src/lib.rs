//! The FUSE side of a mount: requests become calls of the [`vfs`], and its answers replies.
//!
//! The kernel checks permissions (`default_permissions`, and POSIX ACLs by `FUSE_POSIX_ACL`). Where that is not enough, the
//! VFS asks who the caller is, groups and capabilities included; see `callers`.

mod callers;
mod counts;
mod dispatch;
mod init;
mod kernel;
mod root;
mod serve;
mod translate;
mod waiters;

pub use callers::knows_every_group;
pub use counts::RequestCounts;
pub use fuse_transport::{Error, UnmountMode, clean_stale, return_freed_memory, unmount};
pub use serve::{Channel, Mounted, Options, mount};
