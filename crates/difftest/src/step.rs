//! The possible steps. A step contains everything that its system call needs, so that steps can be left out
//! and replayed.

use std::fmt;

use rustix::fs::{Access, FallocateFlags, OFlags, RenameFlags, XattrFlags};

/// The maximum number of open files that an episode holds on each side.
pub(crate) const SLOTS: usize = 6;

/// The callers: (uid, gid, supplementary groups).
pub(crate) const USERS: [(u32, u32, &[u32]); 4] =
    [(0, 0, &[]), (1001, 1001, &[2000]), (1002, 1002, &[2000, 1001]), (1003, 2000, &[])];

/// The xattrs of POSIX ACLs.
pub(crate) const ACL_NAMES: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// A path below the top of a side, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RelativePath(pub(crate) Vec<u8>);

/// The target of a call, by name or by open file.
#[derive(Clone, Debug)]
pub(crate) enum At {
    /// A path; true if symbolic links are followed.
    Path(RelativePath, bool),
    Slot(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stamp {
    Now,
    Omit,
    /// Seconds and nanoseconds.
    Exact(i64, u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Whence {
    Start,
    Current,
    End,
    Data,
    Hole,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Special {
    Fifo,
    Socket,
    /// Character device 1:3.
    Null,
    Regular,
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Index in [`USERS`].
    pub(crate) user: usize,
    pub(crate) umask: u32,
    pub(crate) call: Call,
}

#[derive(Clone, Debug)]
pub(crate) enum Call {
    Open { slot: usize, rel_path: RelativePath, flags: OFlags, mode: u32 },
    Close { slot: usize },
    Read { slot: usize, len: usize },
    Pread { slot: usize, offset: u64, len: usize },
    Write { slot: usize, len: usize, fill: u8 },
    Pwrite { slot: usize, offset: u64, len: usize, fill: u8 },
    Truncate { slot: usize, len: u64 },
    Allocate { slot: usize, mode: FallocateFlags, offset: u64, len: u64 },
    Seek { slot: usize, whence: Whence, offset: i64 },
    Copy { from: usize, from_offset: Option<u64>, to: usize, to_offset: Option<u64>, len: usize },
    Sync { slot: usize },
    Stat { at: At },
    Mkdir { rel_path: RelativePath, mode: u32 },
    Rmdir { rel_path: RelativePath },
    Unlink { rel_path: RelativePath },
    Link { from: At, to: RelativePath },
    Symlink { target: RelativePath, rel_path: RelativePath },
    Readlink { rel_path: RelativePath },
    Rename { from: RelativePath, to: RelativePath, flags: RenameFlags },
    Special { rel_path: RelativePath, mode: u32, kind: Special },
    List { rel_path: RelativePath },
    Access { rel_path: RelativePath, mask: Access },
    Chmod { at: At, mode: u32 },
    Chown { at: At, uid: Option<u32>, gid: Option<u32> },
    Times { at: At, atime: Stamp, mtime: Stamp },
    SetXattr { at: At, name: &'static str, value: Vec<u8>, flags: XattrFlags },
    GetXattr { at: At, name: &'static str },
    RemoveXattr { at: At, name: &'static str },
    ListXattr { at: At },
}

impl Call {
    /// The target of a call that accepts a name or an open file.
    pub(crate) fn at(&self) -> Option<&At> {
        match self {
            Call::Link { from: at, .. }
            | Call::Stat { at }
            | Call::Chmod { at, .. }
            | Call::Chown { at, .. }
            | Call::Times { at, .. }
            | Call::SetXattr { at, .. }
            | Call::GetXattr { at, .. }
            | Call::RemoveXattr { at, .. }
            | Call::ListXattr { at } => Some(at),
            _ => None,
        }
    }

    /// The paths that a call names; they are compared right after it.
    pub(crate) fn rel_paths(&self) -> Vec<&RelativePath> {
        match self {
            Call::Open { rel_path, .. }
            | Call::Mkdir { rel_path, .. }
            | Call::Rmdir { rel_path }
            | Call::Unlink { rel_path }
            | Call::Symlink { rel_path, .. }
            | Call::Readlink { rel_path }
            | Call::Special { rel_path, .. }
            | Call::List { rel_path }
            | Call::Access { rel_path, .. } => vec![rel_path],
            Call::Rename { from, to, .. } => vec![from, to],
            Call::Link { from: At::Path(from, _), to } => vec![from, to],
            Call::Link { to, .. } => vec![to],
            _ => match self.at() {
                Some(At::Path(rel_path, _)) => vec![rel_path],
                _ => vec![],
            },
        }
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > 120 {
            return write!(f, "\"{}...\" ({} bytes)", self.0[..20].escape_ascii(), self.0.len());
        }
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Path(rel_path, true) => write!(f, "{rel_path}"),
            At::Path(rel_path, false) => write!(f, "{rel_path} NOFOLLOW"),
            At::Slot(slot) => write!(f, "fd{slot}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{} umask {:03o}: {}", USERS[self.user].0, self.umask, self.call)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Open { slot, rel_path, flags, mode } => {
                write!(f, "fd{slot} = open({rel_path}, {}, {mode:04o})", names(flags))
            }
            Call::Close { slot } => write!(f, "close(fd{slot})"),
            Call::Read { slot, len } => write!(f, "read(fd{slot}, {len})"),
            Call::Pread { slot, offset, len } => write!(f, "pread(fd{slot}, {len}, at {offset})"),
            Call::Write { slot, len, fill } => write!(f, "write(fd{slot}, {len} bytes of {fill})"),
            Call::Pwrite { slot, offset, len, fill } => {
                write!(f, "pwrite(fd{slot}, {len} bytes of {fill}, at {offset})")
            }
            Call::Truncate { slot, len } => write!(f, "ftruncate(fd{slot}, {len})"),
            Call::Allocate { slot, mode, offset, len } => {
                write!(f, "fallocate(fd{slot}, {}, at {offset}, {len})", names(mode))
            }
            Call::Seek { slot, whence, offset } => write!(f, "lseek(fd{slot}, {offset}, {whence:?})"),
            Call::Copy { from, from_offset, to, to_offset, len } => {
                write!(f, "copy_file_range(fd{from}, {from_offset:?}, fd{to}, {to_offset:?}, {len})")
            }
            Call::Sync { slot } => write!(f, "fsync(fd{slot})"),
            Call::Stat { at } => write!(f, "stat({at})"),
            Call::Mkdir { rel_path, mode } => write!(f, "mkdir({rel_path}, {mode:04o})"),
            Call::Rmdir { rel_path } => write!(f, "rmdir({rel_path})"),
            Call::Unlink { rel_path } => write!(f, "unlink({rel_path})"),
            Call::Link { from, to } => write!(f, "link({from}, {to})"),
            Call::Symlink { target, rel_path } => write!(f, "symlink({target}, {rel_path})"),
            Call::Readlink { rel_path } => write!(f, "readlink({rel_path})"),
            Call::Rename { from, to, flags } => write!(f, "rename({from}, {to}, {})", names(flags)),
            Call::Special { rel_path, mode, kind } => write!(f, "mknod({rel_path}, {kind:?}, {mode:04o})"),
            Call::List { rel_path } => write!(f, "list({rel_path})"),
            Call::Access { rel_path, mask } => write!(f, "access({rel_path}, {})", names(mask)),
            Call::Chmod { at, mode } => write!(f, "chmod({at}, {mode:04o})"),
            Call::Chown { at, uid, gid } => write!(f, "chown({at}, {uid:?}, {gid:?})"),
            Call::Times { at, atime, mtime } => write!(f, "utimensat({at}, {atime:?}, {mtime:?})"),
            Call::SetXattr { at, name, value, flags } => {
                let shown = if value.len() > 200 { "..." } else { &value.escape_ascii().to_string() };
                write!(f, "setxattr({at}, {name}, \"{shown}\" ({} bytes), {})", value.len(), names(flags))
            }
            Call::GetXattr { at, name } => write!(f, "getxattr({at}, {name})"),
            Call::RemoveXattr { at, name } => write!(f, "removexattr({at}, {name})"),
            Call::ListXattr { at } => write!(f, "listxattr({at})"),
        }
    }
}

/// Prints `OFlags(CREATE | RDWR)` as `CREATE|RDWR`.
fn names(flags: &impl fmt::Debug) -> String {
    let text = format!("{flags:?}");
    let inner = text.split_once('(').map_or(text.as_str(), |(_, rest)| rest.trim_end_matches(')'));
    inner.replace(' ', "")
}
