//! Conversions between the values of the protocol and those of the VFS.

use std::time::Duration;

use fuse_proto::{Entry, FileLock, NodeId, SetAttr, SetTime, StatFs};
use types::{Errno, FileType, Mode, Time};
use vfs::{
    AllocateMode, Attr, AttrChange, Lifetimes, Lock, LockKind, LockRequest, MakeKind, OpenAccess, Seek,
};

/// Flags of `open(2)`.
pub(crate) const O_ACCMODE: u32 = 0o3;
pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_WRONLY: u32 = 1;
pub(crate) const O_APPEND: u32 = 0o2000;

/// Lock types of `fcntl(2)`.
const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
pub(crate) const F_UNLCK: u32 = 2;

/// A flag of the kernel (`linux/fs.h`) in the same word as the flags of `open(2)`.
const FMODE_EXEC: u32 = 0x20;

/// The preferred size of reads and writes (`st_blksize`).
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn attr(attr: &Attr) -> fuse_proto::Attr {
    fuse_proto::Attr {
        ino: attr.ino.0,
        size_bytes: attr.size_bytes,
        blocks: attr.blocks(),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        mode: attr.kind.to_ifmt() | attr.mode.bits(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize_bytes: BLOCK_BYTES,
    }
}

/// Inode numbers are never reused, so they serve as node ids, and all generations are 0. So a file handle
/// (`open_by_handle_at(2)`, NFS) needs no state in the kernel or in this process: LOOKUP of `.` and `..`
/// resolves it from the records.
pub(crate) fn entry(of: &Attr, lifetimes: Lifetimes) -> Entry {
    Entry {
        nodeid: NodeId(of.ino.0),
        generation: 0,
        attr: attr(of),
        entry_ttl: if of.is_in_trash { Duration::ZERO } else { lifetimes.name },
        attr_ttl: attr_ttl(of, lifetimes),
    }
}

/// How long the kernel may cache attributes: not at all if they are for this caller only, or of an inode in
/// the trash.
pub(crate) fn attr_ttl(of: &Attr, lifetimes: Lifetimes) -> Duration {
    if of.per_caller || of.is_in_trash { Duration::ZERO } else { lifetimes.attributes }
}

/// The access that OPEN requests. `flags` are those of `open(2)`. The kernel adds `FMODE_EXEC` when it opens
/// a program to run it, which needs no read permission. User space cannot set this bit: `build_open_how`
/// clears it, and openat2(2) fails with EINVAL.
pub(crate) fn open_access(flags: u32) -> OpenAccess {
    let access = flags & O_ACCMODE;
    let execute = flags & FMODE_EXEC != 0 && access == O_RDONLY;
    OpenAccess {
        read: access != O_WRONLY && !execute,
        write: access != O_RDONLY,
        append: flags & O_APPEND != 0,
        execute,
    }
}

pub(crate) fn change(requested: &SetAttr) -> AttrChange {
    let time = |time: SetTime| match time {
        SetTime::Now => Time::now(),
        SetTime::At(time) => time,
    };
    // If only one time is set, even to the present time, the caller must own the file (`ATTR_TIMES_SET` in
    // `vfs_utimes`).
    let is_now = |time: Option<SetTime>| time == Some(SetTime::Now);
    AttrChange {
        mode: requested.mode.map(Mode::new),
        uid: requested.uid,
        gid: requested.gid,
        size_bytes: requested.size_bytes,
        atime: requested.atime.map(time),
        mtime: requested.mtime.map(time),
        sets_times_to_now: is_now(requested.atime) && is_now(requested.mtime),
        is_open: requested.fh.is_some(),
        kill_suidgid: requested.kill_suidgid,
    }
}

/// The type in the mode of mknod(2).
///
/// # Errors
/// EPERM for types that mknod does not create.
pub(crate) fn make_kind(mode: u32, rdev: u32) -> Result<MakeKind, Errno> {
    match FileType::from_ifmt(mode) {
        // A mode without a type means a regular file.
        None if mode & 0o170000 == 0 => Ok(MakeKind::Regular),
        Some(FileType::Regular) => Ok(MakeKind::Regular),
        Some(FileType::Fifo) => Ok(MakeKind::Fifo),
        Some(FileType::Socket) => Ok(MakeKind::Socket),
        Some(FileType::CharDevice) => Ok(MakeKind::CharDevice(rdev)),
        Some(FileType::BlockDevice) => Ok(MakeKind::BlockDevice(rdev)),
        _ => Err(Errno::EPERM),
    }
}

/// Converts the mode of `fallocate(2)`.
///
/// # Errors
/// EOPNOTSUPP for modes that move data (`FALLOC_FL_COLLAPSE_RANGE`, `FALLOC_FL_INSERT_RANGE`) and for unknown
/// modes.
pub(crate) fn allocate_mode(mode: u32) -> Result<AllocateMode, Errno> {
    const KEEP_SIZE: u32 = 0x01;
    const PUNCH_HOLE: u32 = 0x02;
    const ZERO_RANGE: u32 = 0x10;
    const BOTH: u32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEPT: u32 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 => Ok(AllocateMode::Extend),
        KEEP_SIZE => Ok(AllocateMode::Reserve),
        BOTH => Ok(AllocateMode::PunchHole),
        ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size: false }),
        ZERO_KEPT => Ok(AllocateMode::ZeroRange { keep_size: true }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Converts the whence of `lseek(2)`, `SEEK_DATA` or `SEEK_HOLE`. The kernel handles all other values itself.
///
/// # Errors
/// EINVAL for any other value.
pub(crate) fn seek(whence: u32) -> Result<Seek, Errno> {
    match whence {
        3 => Ok(Seek::Data),
        4 => Ok(Seek::Hole),
        _ => Err(Errno::EINVAL),
    }
}

/// Converts a requested lock.
///
/// # Errors
/// EINVAL for an invalid type or range, which the kernel never sends.
pub(crate) fn lock(requested: &fuse_proto::LockRequest) -> Result<LockRequest, Errno> {
    if requested.lock.kind > F_UNLCK || requested.lock.start > requested.lock.end {
        return Err(Errno::EINVAL);
    }
    Ok(LockRequest {
        kind: if requested.flock { LockKind::Flock } else { LockKind::Posix },
        owner: requested.owner.0,
        exclusive: requested.lock.kind == F_WRLCK,
        start: requested.lock.start,
        end: requested.lock.end,
        pid: requested.lock.pid,
    })
}

/// The reply to `F_GETLK`: the conflicting lock, or `F_UNLCK`.
pub(crate) fn found_lock(requested: &FileLock, found: Option<Lock>) -> FileLock {
    match found {
        None => FileLock { kind: F_UNLCK, ..*requested },
        Some(lock) => FileLock {
            start: lock.start,
            end: lock.end,
            kind: if lock.exclusive { F_WRLCK } else { F_RDLCK },
            pid: lock.pid,
        },
    }
}

pub(crate) fn statfs(st: &vfs::StatFs) -> StatFs {
    StatFs {
        blocks: st.blocks,
        bfree: st.free_blocks,
        bavail: st.free_blocks,
        files: st.inodes,
        ffree: st.free_inodes,
        bsize_bytes: st.block_bytes as u32,
        frsize_bytes: st.block_bytes as u32,
        namelen_bytes: types::Name::MAX_BYTES as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `vfs_utimes` sets `ATTR_TOUCH` only if both times are `UTIME_NOW`; otherwise it sets `ATTR_TIMES_SET`,
    /// for which `setattr_prepare` requires the owner.
    #[test]
    fn only_both_times_together_are_set_to_now_by_a_caller_that_may_write() {
        let (now, at) = (Some(SetTime::Now), Some(SetTime::At(Time::now())));
        let of = |atime, mtime| {
            let requested = SetAttr {
                mode: None,
                uid: None,
                gid: None,
                size_bytes: None,
                atime,
                mtime,
                ctime: None,
                fh: None,
                kill_suidgid: false,
            };
            change(&requested).sets_times_to_now
        };
        assert!(of(now, now));
        for (atime, mtime) in [(now, None), (None, now), (now, at), (at, now), (at, at), (at, None)] {
            assert!(!of(atime, mtime), "{atime:?} {mtime:?}");
        }
    }
}
