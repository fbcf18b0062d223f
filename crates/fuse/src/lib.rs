//! The FUSE side of a mount: requests become calls of the [`vfs`], and its answers replies.
//!
//! The kernel checks permissions (`default_permissions`, and POSIX ACLs by `FUSE_POSIX_ACL`), so no request is decided
//! by who sent it; the caller's ids only become the owner of what is made.

mod counts;
mod dispatch;
mod init;
mod kernel;
mod root;
mod serve;
mod translate;
mod waiters;

pub use counts::RequestCounts;
pub use fuse_transport::{Error, UnmountMode, clean_stale, unmount};
pub use serve::{Channel, Mounted, Options, mount};
