//! Between the kernel and a FUSE server: mounting, reading requests, writing replies and notifications.
//!
//! Knows the protocol's frame ([`fuse_proto`]) and nothing of files. A mount goes like this:
//!
//! 1. [`Mount::prepare`] makes the file system, which nobody sees yet, and the [`DevFuse`] that its requests come from.
//! 2. [`Transport::serve`] answers requests, each inline on the thread that read it, until the file system is unmounted.
//! 3. [`Mount::attach`], once requests are served, shows the volume's root at the mount point.
//!
//! **Invariant:** a request that wants an answer gets one: a [`Reply`] that is dropped, by a panic or in error, answers EIO.

mod allocator;
mod device;
mod error;
mod fusermount;
mod mount;
mod mountinfo;
mod mountpoint;
mod notifier;
mod reply;
mod ring;
mod serve;
mod uring;

pub use allocator::return_freed_memory;
pub use error::Error;
pub use mount::{Mount, MountOptions, RootPlacement};
pub use mountpoint::{UnmountMode, clean_stale, unmount};
pub use notifier::{Notifier, NotifyError};
pub use reply::Reply;
pub use ring::{Ring, enable_ring, ring_is_enabled};
pub use serve::{DevFuse, Handler, Transport, Workers};

/// What `mount(8)` and `/proc/self/mountinfo` show as the type.
pub const FS_TYPE: &str = "fuse.limen";

/// The part of [`FS_TYPE`] after the dot.
const SUBTYPE: &str = "limen";
