//! The FUSE protocol, ABI 7.45 (Linux 6.18, `include/uapi/linux/fuse.h`), as values. This crate does no I/O.
//!
//! [`Request::parse`] parses the bytes of one request into an [`Operation`] that borrows from them, and
//! checks every length, terminator, name and count. A [`Body`] or a [`DirBuffer`] is the payload of a reply,
//! [`reply_header`] the header before it, and a [`Notification`] a complete message that is not a reply.

mod attr;
mod dir;
mod flags;
mod ids;
mod init;
mod notify;
mod opcode;
mod operation;
mod parse;
mod reply;
mod request;
mod wire;

pub use attr::{Attr, Entry, StatFs};
pub use dir::{DirBuffer, Full};
pub use flags::{InitFlags, OpenFlags, RenameFlags};
pub use ids::{Fh, LockOwner, NodeId, Unique};
pub use init::{InitConfig, InitError, InitIn, InitOut, MIN_MINOR};
pub use notify::Notification;
pub use opcode::Opcode;
pub use operation::{
    CopyRange, Create, FileLock, Forgets, LockRequest, Operation, Read, Release, SetAttr, SetTime, SetXattr,
    Write,
};
pub use reply::{Body, REPLY_HEADER_BYTES, reply_header};
pub use request::{Header, Malformed, ParseError, Request, SuppGroups};

/// The supported major version.
pub const MAJOR: u32 = 7;

/// The newest supported minor version.
pub const MINOR: u32 = 45;

/// The bytes before the data of the largest request: the request header and `fuse_write_in`. A read buffer
/// needs `max_write` bytes more than this, and at least 8 KiB (`fuse_dev_do_read`).
pub const WRITE_PREFIX_BYTES: usize = 80;
