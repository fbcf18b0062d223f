//! One of the two directories: executes each step as its user, and holds the files that the steps open.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::step::{At, Call, RelativePath, SLOTS, Special, Stamp, Step, USERS, Whence};

/// The result of a call, as far as it must be the same on both sides.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    Names(Vec<Vec<u8>>),
    Failed(Errno),
    /// The call was not made: its slot is empty, or it seeks in a directory.
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) top: PathBuf,
    pub(crate) slots: [Option<OwnedFd>; SLOTS],
}

impl Side {
    /// `top` must exist and be empty.
    pub(crate) fn new(top: PathBuf) -> Self {
        Side { top, slots: Default::default() }
    }

    /// Paths are absolute, so that permissions do not depend on a working directory.
    pub(crate) fn path(&self, rel_path: &RelativePath) -> PathBuf {
        if rel_path.0.is_empty() {
            return self.top.clone();
        }
        let mut bytes = self.top.as_os_str().as_bytes().to_vec();
        bytes.push(b'/');
        bytes.extend_from_slice(&rel_path.0);
        PathBuf::from(OsStr::from_bytes(&bytes))
    }

    /// Makes the call as its user; afterwards this thread is user 0 again.
    pub(crate) fn execute(&mut self, step: &Step) -> Outcome {
        rustix::process::umask(Mode::from_raw_mode(step.umask));
        if become_user(step.user).is_err() {
            // The failure shows up as a difference, or as a failure of the next call as user 0.
            return Outcome::Failed(Errno::PERM);
        }
        let result = self.call(&step.call);
        become_root();
        rustix::process::umask(Mode::empty());
        result.unwrap_or_else(Outcome::Failed)
    }

    fn fd(&self, slot: usize) -> Option<BorrowedFd<'_>> {
        self.slots[slot].as_ref().map(AsFd::as_fd)
    }

    fn call(&mut self, call: &Call) -> Result<Outcome, Errno> {
        if let Call::Open { slot, rel_path, flags, mode } = call {
            let opened =
                rustix::fs::open(self.path(rel_path), *flags | OFlags::CLOEXEC, Mode::from_raw_mode(*mode))?;
            self.slots[*slot] = Some(opened);
            return Ok(Outcome::Done);
        }
        if let Call::Close { slot } = call {
            return Ok(self.slots[*slot].take().map_or(Outcome::Nothing, |_| Outcome::Done));
        }
        match self.call_on_slots(call) {
            Some(outcome) => outcome,
            None => self.call_on_paths(call),
        }
    }

    /// Calls on open files; `None` for all others.
    fn call_on_slots(&self, call: &Call) -> Option<Result<Outcome, Errno>> {
        let (&slot, other) = match call {
            Call::Read { slot, .. }
            | Call::Pread { slot, .. }
            | Call::Write { slot, .. }
            | Call::Pwrite { slot, .. }
            | Call::Truncate { slot, .. }
            | Call::Allocate { slot, .. }
            | Call::Seek { slot, .. }
            | Call::Sync { slot } => (slot, *slot),
            Call::Copy { from, to, .. } => (from, *to),
            _ => return None,
        };
        let (Some(fd), Some(other)) = (self.fd(slot), self.fd(other)) else {
            return Some(Ok(Outcome::Nothing));
        };
        Some(match *call {
            Call::Read { len, .. } => {
                let mut bytes = vec![0; len];
                rustix::io::read(fd, &mut bytes[..]).map(|count| cut(bytes, count))
            }
            Call::Pread { offset, len, .. } => {
                let mut bytes = vec![0; len];
                rustix::io::pread(fd, &mut bytes[..], offset).map(|count| cut(bytes, count))
            }
            Call::Write { len, fill, .. } => rustix::io::write(fd, &pattern(len, fill)).map(count),
            Call::Pwrite { offset, len, fill, .. } => {
                rustix::io::pwrite(fd, &pattern(len, fill), offset).map(count)
            }
            Call::Truncate { len, .. } => rustix::fs::ftruncate(fd, len).map(done),
            Call::Allocate { mode, offset, len, .. } => allocate(fd, mode, offset, len),
            Call::Seek { whence, offset, .. } => seek(fd, whence, offset),
            Call::Sync { .. } => rustix::fs::fsync(fd).map(done),
            Call::Copy { mut from_offset, mut to_offset, len, .. } => {
                rustix::fs::copy_file_range(fd, from_offset.as_mut(), other, to_offset.as_mut(), len)
                    .map(count)
            }
            _ => Ok(Outcome::Nothing),
        })
    }

    fn call_on_paths(&self, call: &Call) -> Result<Outcome, Errno> {
        match call {
            Call::Mkdir { rel_path, mode } => {
                rustix::fs::mkdir(self.path(rel_path), Mode::from_raw_mode(*mode)).map(done)
            }
            Call::Rmdir { rel_path } => rustix::fs::rmdir(self.path(rel_path)).map(done),
            Call::Unlink { rel_path } => rustix::fs::unlink(self.path(rel_path)).map(done),
            Call::Symlink { target, rel_path } => {
                rustix::fs::symlink(OsStr::from_bytes(&target.0), self.path(rel_path)).map(done)
            }
            Call::Readlink { rel_path } => rustix::fs::readlink(self.path(rel_path), Vec::new())
                .map(|target| Outcome::Bytes(target.into_bytes())),
            Call::Rename { from, to, flags } => {
                rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), *flags).map(done)
            }
            Call::Special { rel_path, mode, kind } => {
                let (kind, device) = match kind {
                    Special::Fifo => (FileType::Fifo, 0),
                    Special::Socket => (FileType::Socket, 0),
                    Special::Null => (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
                    Special::Regular => (FileType::RegularFile, 0),
                };
                rustix::fs::mknodat(CWD, self.path(rel_path), kind, Mode::from_raw_mode(*mode), device)
                    .map(done)
            }
            Call::List { rel_path } => list(&self.path(rel_path)).map(Outcome::Names),
            Call::Access { rel_path, mask } => {
                rustix::fs::accessat(CWD, self.path(rel_path), *mask, AtFlags::empty()).map(done)
            }
            Call::Link { from: At::Path(from, follow), to } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                rustix::fs::linkat(CWD, self.path(from), CWD, self.path(to), flags).map(done)
            }
            Call::Link { from: At::Slot(slot), to } => self.with(*slot, |_, link| {
                rustix::fs::linkat(CWD, link, CWD, self.path(to), AtFlags::SYMLINK_FOLLOW).map(done)
            }),
            Call::Stat { at } => self.at(at, |path, flags| rustix::fs::statat(CWD, path, flags).map(done)),
            // The remaining calls read or change attributes, by name or by open file.
            Call::Chmod { at: At::Slot(slot), mode } => {
                self.with(*slot, |fd, _| rustix::fs::fchmod(fd, Mode::from_raw_mode(*mode)).map(done))
            }
            Call::Chmod { at, mode } => self.at(at, |path, _| {
                rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(*mode), AtFlags::empty()).map(done)
            }),
            Call::Chown { at, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                match at {
                    At::Slot(slot) => self.with(*slot, |fd, _| rustix::fs::fchown(fd, uid, gid).map(done)),
                    _ => self.at(at, |path, flags| rustix::fs::chownat(CWD, path, uid, gid, flags).map(done)),
                }
            }
            Call::Times { at, atime, mtime } => {
                let times = Timestamps { last_access: timespec(*atime), last_modification: timespec(*mtime) };
                match at {
                    At::Slot(slot) => self.with(*slot, |fd, _| rustix::fs::futimens(fd, &times).map(done)),
                    _ => self.at(at, |path, flags| rustix::fs::utimensat(CWD, path, &times, flags).map(done)),
                }
            }
            Call::SetXattr { at, name, value, flags } => self.set_xattr(at, name, value, *flags),
            Call::GetXattr { at, name } => self.get_xattr(at, name),
            Call::RemoveXattr { at, name } => match at {
                At::Slot(slot) => self.with(*slot, |fd, _| rustix::fs::fremovexattr(fd, *name).map(done)),
                At::Path(rel_path, true) => rustix::fs::removexattr(self.path(rel_path), *name).map(done),
                At::Path(rel_path, false) => rustix::fs::lremovexattr(self.path(rel_path), *name).map(done),
            },
            Call::ListXattr { at } => {
                let mut buffer = vec![0; 65_536];
                let result = match at {
                    At::Slot(slot) => match self.fd(*slot) {
                        Some(fd) => rustix::fs::flistxattr(fd, &mut buffer[..]),
                        None => return Ok(Outcome::Nothing),
                    },
                    At::Path(rel_path, true) => rustix::fs::listxattr(self.path(rel_path), &mut buffer[..]),
                    At::Path(rel_path, false) => rustix::fs::llistxattr(self.path(rel_path), &mut buffer[..]),
                };
                result.map(|len| Outcome::Names(split_names(&buffer[..len])))
            }
            _ => Ok(Outcome::Nothing),
        }
    }

    fn set_xattr(&self, at: &At, name: &str, value: &[u8], flags: XattrFlags) -> Result<Outcome, Errno> {
        match at {
            At::Slot(slot) => {
                self.with(*slot, |fd, _| rustix::fs::fsetxattr(fd, name, value, flags).map(done))
            }
            At::Path(rel_path, true) => {
                rustix::fs::setxattr(self.path(rel_path), name, value, flags).map(done)
            }
            At::Path(rel_path, false) => {
                rustix::fs::lsetxattr(self.path(rel_path), name, value, flags).map(done)
            }
        }
    }

    fn get_xattr(&self, at: &At, name: &str) -> Result<Outcome, Errno> {
        let mut buffer = vec![0; 65_536];
        let len = match at {
            At::Slot(slot) => match self.fd(*slot) {
                Some(fd) => rustix::fs::fgetxattr(fd, name, &mut buffer[..])?,
                None => return Ok(Outcome::Nothing),
            },
            At::Path(rel_path, true) => rustix::fs::getxattr(self.path(rel_path), name, &mut buffer[..])?,
            At::Path(rel_path, false) => rustix::fs::lgetxattr(self.path(rel_path), name, &mut buffer[..])?,
        };
        Ok(cut(buffer, len))
    }

    fn at(
        &self,
        at: &At,
        call: impl FnOnce(&Path, AtFlags) -> Result<Outcome, Errno>,
    ) -> Result<Outcome, Errno> {
        match at {
            At::Path(rel_path, true) => call(&self.path(rel_path), AtFlags::empty()),
            At::Path(rel_path, false) => call(&self.path(rel_path), AtFlags::SYMLINK_NOFOLLOW),
            At::Slot(slot) => self.with(*slot, |_, link| call(link, AtFlags::empty())),
        }
    }

    /// Calls `call` with an open file, and with the link in /proc that leads to it.
    fn with(
        &self,
        slot: usize,
        call: impl FnOnce(BorrowedFd<'_>, &Path) -> Result<Outcome, Errno>,
    ) -> Result<Outcome, Errno> {
        match self.fd(slot) {
            Some(fd) => call(fd, &proc_link(fd)),
            None => Ok(Outcome::Nothing),
        }
    }
}

pub(crate) fn proc_link(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()))
}

/// The names in a directory, sorted, each with the type from the listing.
pub(crate) fn list(path: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::new(opened)? {
        let entry = entry?;
        names.push(
            format!("{} {:?}", entry.file_name().to_bytes().escape_ascii(), entry.file_type()).into_bytes(),
        );
    }
    names.sort();
    Ok(names)
}

pub(crate) fn split_names(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    names.sort();
    names
}

/// Removes a tree as user 0.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    fs::remove_dir_all(path)
}

thread_local! {
    /// The user whose supplementary groups this thread has.
    static GROUPS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Changes the real and effective IDs. The saved user ID stays 0, which allows the way back. The kernel
/// clears the effective capabilities when the effective user ID leaves 0, and restores them on its return
/// (capabilities(7)).
fn become_user(user: usize) -> Result<(), Errno> {
    let (uid, gid, groups) = USERS[user];
    if GROUPS.get() != Some(user) {
        let groups: Vec<_> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups)?;
        GROUPS.set(Some(user));
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_res_gid(gid, gid, Gid::ROOT)?;
    set_thread_res_uid(uid, uid, Uid::ROOT)
}

fn become_root() {
    let back = set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
        .and_then(|()| set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT));
    // The saved ID is 0, so setresuid(2) cannot fail; if it did, no further result would be valid.
    assert!(back.is_ok(), "cannot become user 0 again");
}

fn seek(fd: BorrowedFd<'_>, whence: Whence, offset: i64) -> Result<Outcome, Errno> {
    // Positions in a directory are specific to the file system.
    if FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::Directory {
        return Ok(Outcome::Nothing);
    }
    let unsigned = u64::try_from(offset).unwrap_or(0);
    let to = match whence {
        Whence::Start => SeekFrom::Start(unsigned),
        Whence::Current => SeekFrom::Current(offset),
        Whence::End => SeekFrom::End(offset),
        Whence::Data => SeekFrom::Data(unsigned),
        Whence::Hole => SeekFrom::Hole(unsigned),
    };
    let found = rustix::fs::seek(fd, to);
    if matches!(whence, Whence::Data | Whence::Hole) {
        // Holes have different granularity on the two sides; the following steps must not depend on it.
        rustix::fs::seek(fd, SeekFrom::Start(unsigned))?;
    }
    found.map(Outcome::Number)
}

/// Whether space is reserved is not compared, only the visible effects.
fn allocate(fd: BorrowedFd<'_>, mode: FallocateFlags, offset: u64, len: u64) -> Result<Outcome, Errno> {
    rustix::fs::fallocate(fd, mode, offset, len).map(done)
}

fn timespec(stamp: Stamp) -> Timespec {
    match stamp {
        Stamp::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Stamp::Omit => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Stamp::Exact(seconds, nanoseconds) => Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) },
    }
}

/// Bytes that identify the write and the position in it; one in sixteen is zero.
fn pattern(len: usize, fill: u8) -> Vec<u8> {
    (0..len)
        .map(|i| ((i as u64).wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ fill)
        .map(|b| if b < 16 { 0 } else { b })
        .collect()
}

fn cut(mut bytes: Vec<u8>, count: usize) -> Outcome {
    bytes.truncate(count);
    Outcome::Bytes(bytes)
}

fn count(count: usize) -> Outcome {
    Outcome::Number(count as u64)
}

fn done<T>(_: T) -> Outcome {
    Outcome::Done
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => write!(f, "done"),
            Outcome::Number(number) => write!(f, "{number}"),
            Outcome::Bytes(bytes) if bytes.len() > 64 => {
                write!(f, "{} bytes {}...", bytes.len(), bytes[..32].escape_ascii())
            }
            Outcome::Bytes(bytes) => write!(f, "{} bytes {}", bytes.len(), bytes.escape_ascii()),
            Outcome::Names(names) => {
                let names: Vec<_> = names.iter().map(|name| name.escape_ascii().to_string()).collect();
                write!(f, "[{}]", names.join(", "))
            }
            Outcome::Failed(errno) => write!(f, "{errno:?}"),
            Outcome::Nothing => write!(f, "nothing"),
        }
    }
}
