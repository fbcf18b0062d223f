//! The transport between the kernel and a FUSE server: mounts, reads requests, writes replies and
//! notifications.
//!
//! This crate uses the messages of [`fuse_proto`] and implements no file operation. The steps of a mount are:
//!
//! 1. [`Mount::prepare`] creates the file system, which is not visible yet (unless fusermount3 mounts it),
//!    and the [`DevFuse`] that its requests come from.
//! 2. [`Transport::serve`] handles each request on the thread that read it, until the file system is
//!    unmounted.
//! 3. [`Mount::attach`], called when requests are served, attaches the volume's root to the mount point.
//!
//! A mount can be handed to another process ([`WorkerControl`]).
//!
//! **Invariant:** each request that needs a reply gets one: a [`Reply`] that is dropped, because of a panic
//! or a bug, sends EIO.

mod allocator;
mod area;
mod control;
mod cpus;
mod device;
mod entry;
mod error;
mod expiry;
mod fd_passing;
mod fusermount;
mod gate;
mod handler;
mod idle_class;
mod mount;
mod mountinfo;
mod mountpoint;
mod notifier;
mod notify_queue;
mod options;
mod reply;
mod ring;
mod ring_worker;
mod serve;
mod uring;
mod wakers;

pub use allocator::return_freed_memory;
pub use control::{OwnedDevice, Unanswered, WorkerControl};
pub use entry::HeldEntry;
pub use error::Error;
pub use expiry::{ListNames, Notifications};
pub use fd_passing::{receive_fds, send_fds};
pub use handler::{Handler, Transport, Workers};
pub use mount::{Mount, RootPlacement};
pub use mountinfo::MountInfo;
pub use mountpoint::{clean_stale, unmount};
pub use notifier::{Notifier, NotifyError};
pub use options::{MountOptions, UnmountMode};
pub use reply::Reply;
pub use ring::{Ring, can_enable_ring, enable_ring, ring_is_enabled};
pub use serve::DevFuse;

/// The file system type in `mount(8)` and `/proc/self/mountinfo`.
pub const FS_TYPE: &str = "fuse.limen";

/// The part of [`FS_TYPE`] after the dot.
const SUBTYPE: &str = "limen";
