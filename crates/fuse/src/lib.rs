//! The FUSE side of a mount: turns requests into calls of the [`vfs`], and their results into replies.
//!
//! The kernel checks permissions (`default_permissions`, and POSIX ACLs by `FUSE_POSIX_ACL`). If that is not
//! enough, the VFS needs the caller's groups and capabilities; see `callers`.

mod callers;
mod counts;
mod dispatch;
mod hand_over;
mod handling;
mod init;
mod kernel;
mod profile;
mod root;
mod serve;
mod slow;
mod translate;
mod waiters;

pub use callers::knows_every_group;
pub use counts::{RequestCounts, RequestMeter};
pub use fuse_proto::Opcode;
pub use fuse_transport::{
    Error, MountInfo, OwnedDevice, UnmountMode, can_enable_ring, clean_stale, receive_fds,
    return_freed_memory, send_fds, unmount,
};
pub use hand_over::{FORMAT as HAND_OVER_FORMAT, Handle, Paused, State, TakenOver};
pub use profile::{NamedProcess, Profile, ProfileKey, Profiled, Profiler, Sums};
pub use serve::{Channel, Mounted, Options, mount};
