//! Replies: a header, then a body.

use std::fmt;
use std::time::Duration;

use types::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::wire;
use crate::{Attr, Entry, Fh, FileLock, InitOut, OpenFlags, StatFs, Unique};

/// The length of a reply's header in bytes.
pub const REPLY_HEADER_BYTES: usize = size_of::<wire::OutHeader>();

/// The header of the reply to `unique`: an error, or success followed by `body_bytes`.
///
/// If the error is 512 or more, the kernel never completes the request (`fuse_dev_do_write`), so such an
/// error is sent as EIO.
pub fn reply_header(unique: Unique, outcome: Result<usize, Errno>) -> [u8; REPLY_HEADER_BYTES] {
    let (body_bytes, error) = match outcome {
        Ok(body_bytes) => (body_bytes, 0),
        Err(errno) if (1..512).contains(&errno.raw()) => (0, -errno.raw()),
        Err(_) => (0, -Errno::EIO.raw()),
    };
    header(body_bytes, error, unique)
}

/// The length in the header saturates: the kernel rejects a reply longer than 4 GiB, rather than truncating
/// it.
pub(crate) fn header(body_bytes: usize, error: i32, unique: Unique) -> [u8; REPLY_HEADER_BYTES] {
    let len = u32::try_from(REPLY_HEADER_BYTES.saturating_add(body_bytes)).unwrap_or(u32::MAX);
    let mut bytes = [0; REPLY_HEADER_BYTES];
    put(&mut bytes, &wire::OutHeader { len, error, unique: unique.0 });
    bytes
}

/// The longest body of fixed size: that of CREATE.
const MAX_BYTES: usize = size_of::<wire::EntryOut>() + size_of::<wire::OpenOut>();

/// A reply body of fixed size, on the stack. Bodies of other sizes (READ, READLINK, GETXATTR, LISTXATTR) are
/// plain bytes, and those of READDIR and READDIRPLUS are a [`crate::DirBuffer`].
#[derive(Clone)]
pub struct Body {
    len: usize,
    bytes: [u8; MAX_BYTES],
}

impl Body {
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The reply to UNLINK, RMDIR, RENAME, RELEASE, FSYNC, SETXATTR and all other operations without a
    /// result.
    pub fn empty() -> Self {
        Body { len: 0, bytes: [0; MAX_BYTES] }
    }

    pub fn init(init: &InitOut) -> Self {
        Body::of(&wire::InitOut::from(init))
    }

    /// The reply to LOOKUP, MKNOD, MKDIR, SYMLINK and LINK.
    pub fn entry(entry: &Entry) -> Self {
        Body::of(&wire::EntryOut::from(entry))
    }

    /// The reply to CREATE and TMPFILE.
    pub fn create(entry: &Entry, fh: Fh, flags: OpenFlags) -> Self {
        Body::entry(entry).and(&wire::OpenOut::new(fh, flags))
    }

    /// The reply to GETATTR and SETATTR.
    pub fn attr(attr: &Attr, ttl: Duration) -> Self {
        Body::of(&wire::AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            padding: 0,
            attr: attr.into(),
        })
    }

    /// The reply to OPEN and OPENDIR.
    pub fn open(fh: Fh, flags: OpenFlags) -> Self {
        Body::of(&wire::OpenOut::new(fh, flags))
    }

    /// The reply to WRITE and COPY_FILE_RANGE: the number of bytes written.
    pub fn written(size_bytes: u32) -> Self {
        Body::of(&[size_bytes, 0])
    }

    /// The reply to COPY_FILE_RANGE_64: the number of bytes written.
    pub fn copied_64(size_bytes: u64) -> Self {
        Body::of(&size_bytes)
    }

    pub fn statfs(st: &StatFs) -> Self {
        Body::of(&wire::StatfsOut::from(st))
    }

    /// The reply to GETXATTR and LISTXATTR with size 0: the length of the value or list.
    pub fn xattr_size(size_bytes: u32) -> Self {
        Body::of(&[size_bytes, 0])
    }

    pub fn lseek(offset: u64) -> Self {
        Body::of(&offset)
    }

    /// The reply to GETLK: the conflicting lock, or a lock of type `F_UNLCK` if there is none.
    pub fn lock(lock: &FileLock) -> Self {
        Body::of(&wire::FileLock::from(lock))
    }

    fn of<T: IntoBytes + Immutable>(value: &T) -> Self {
        Body::empty().and(value)
    }

    /// Appends `value`. All callers are above, and no result is longer than `MAX_BYTES`, which a test checks.
    fn and<T: IntoBytes + Immutable>(mut self, value: &T) -> Self {
        put(&mut self.bytes[self.len..], value);
        self.len += size_of::<T>();
        self
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Body").field(&self.as_bytes()).finish()
    }
}

/// Writes `value` to the front of `to`, which has room for it.
fn put<T: IntoBytes + Immutable>(to: &mut [u8], value: &T) {
    to[..size_of::<T>()].copy_from_slice(value.as_bytes());
}

impl From<&FileLock> for wire::FileLock {
    fn from(lock: &FileLock) -> Self {
        wire::FileLock { start: lock.start, end: lock.end, kind: lock.kind, pid: lock.pid }
    }
}

impl From<&InitOut> for wire::InitOut {
    fn from(init: &InitOut) -> Self {
        wire::InitOut {
            major: crate::MAJOR,
            minor: init.minor,
            max_readahead: init.max_readahead_bytes,
            flags: init.flags.bits() as u32,
            flags2: (init.flags.bits() >> 32) as u32,
            max_background: init.max_background,
            congestion_threshold: init.congestion_threshold,
            max_write: init.max_write_bytes,
            time_gran: init.time_gran_ns,
            max_pages: init.max_pages,
            ..wire::InitOut::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use types::Time;

    use super::*;
    use crate::{InitFlags, NodeId};

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn headers_carry_the_whole_length_and_a_negative_errno() {
        let ok = reply_header(Unique(7), Ok(100));
        assert_eq!((u32_at(&ok, 0), u32_at(&ok, 4), u64_at(&ok, 8)), (116, 0, 7));
        let err = reply_header(Unique(8), Err(Errno::ENOENT));
        assert_eq!((u32_at(&err, 0), u32_at(&err, 4) as i32, u64_at(&err, 8)), (16, -2, 8));
    }

    #[test]
    fn errors_that_the_kernel_ignores_become_eio() {
        let err = reply_header(Unique(1), Err(Errno::from_raw(512)));
        assert_eq!(u32_at(&err, 4) as i32, -5);
    }

    #[test]
    fn entry_has_the_kernels_layout() {
        let attr = Attr {
            ino: 11,
            size_bytes: 22,
            blocks: 33,
            atime: Time::new(-1, 1),
            mtime: Time::new(2, 3),
            ctime: Time::new(4, 5),
            mode: 0o100644,
            nlink: 6,
            uid: 7,
            gid: 8,
            rdev: 9,
            blksize_bytes: 10,
        };
        let entry = Entry {
            nodeid: NodeId(5),
            generation: 6,
            attr,
            entry_ttl: Duration::new(1, 2),
            attr_ttl: Duration::new(3, 4),
        };
        let body = Body::create(&entry, Fh(77), OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH);
        let b = body.as_bytes();
        assert_eq!(b.len(), 144);
        assert_eq!([0, 8, 16, 24].map(|at| u64_at(b, at)), [5, 6, 1, 3]);
        assert_eq!([32, 36].map(|at| u32_at(b, at)), [2, 4]);
        assert_eq!([40, 48, 56, 64, 72, 80].map(|at| u64_at(b, at)), [11, 22, 33, u64::MAX, 2, 4]);
        assert_eq!([88, 92, 96].map(|at| u32_at(b, at)), [1, 3, 5]);
        assert_eq!(
            [100, 104, 108, 112, 116, 120, 124].map(|at| u32_at(b, at)),
            [0o100644, 6, 7, 8, 9, 10, 0]
        );
        assert_eq!((u64_at(b, 128), u32_at(b, 136), u32_at(b, 140)), (77, 0b100010, 0));
    }

    #[test]
    fn every_fixed_body_has_the_kernels_length() {
        let lock = FileLock { start: 0, end: 1, kind: 2, pid: 3 };
        let init = InitOut {
            minor: 45,
            flags: InitFlags::OVER_IO_URING | InitFlags::INIT_EXT,
            max_readahead_bytes: 1,
            max_background: 2,
            congestion_threshold: 3,
            max_write_bytes: 4,
            time_gran_ns: 1,
            max_pages: 5,
        };
        let lengths = [
            (Body::empty(), 0),
            (Body::init(&init), 64),
            (Body::entry(&Entry::negative(Duration::from_secs(1))), 128),
            (Body::attr(&Attr::default(), Duration::ZERO), 104),
            (Body::create(&Entry::default(), Fh(1), OpenFlags::empty()), 144),
            (Body::open(Fh(1), OpenFlags::empty()), 16),
            (Body::written(1), 8),
            (Body::copied_64(1), 8),
            (Body::statfs(&StatFs::default()), 80),
            (Body::xattr_size(1), 8),
            (Body::lseek(1), 8),
            (Body::lock(&lock), 24),
        ];
        for (body, len) in lengths {
            assert_eq!(body.as_bytes().len(), len);
        }
        let init = Body::init(&init);
        assert_eq!((u32_at(init.as_bytes(), 12), u32_at(init.as_bytes(), 32)), (1 << 30, 1 << 9));
    }
}
