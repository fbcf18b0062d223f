//! Sets of flags, one type each.

use bitflags::bitflags;

bitflags! {
    /// The flags of INIT; bits 32 to 63 are sent in `flags2`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InitFlags: u64 {
        /// Several READs of one open file may be in flight at the same time.
        const ASYNC_READ = 1 << 0;
        /// The server handles POSIX locks.
        const POSIX_LOCKS = 1 << 1;
        /// OPEN has `O_TRUNC`, and no SETATTR follows.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of `.` and `..` works, so that the mount can be exported by NFS even after the kernel has
        /// forgotten an inode.
        const EXPORT_SUPPORT = 1 << 4;
        /// A WRITE may be longer than a page.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask (or the default ACL instead of it).
        const DONT_MASK = 1 << 6;
        const SPLICE_WRITE = 1 << 7;
        const SPLICE_MOVE = 1 << 8;
        const SPLICE_READ = 1 << 9;
        /// The server handles `flock(2)` locks.
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        /// A changed mtime or size in new attributes invalidates the cached pages.
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel sends READDIRPLUS at the start of a directory and after lookups in it, otherwise
        /// READDIR (`fuse_use_readdirplus`).
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        /// After ENOSYS to OPEN, the kernel never sends OPEN again.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// LOOKUP and READDIR of one directory may run in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        /// The kernel checks POSIX ACLs; forces `default_permissions`.
        const POSIX_ACL = 1 << 20;
        /// After an abort, a read of the device fails with ECONNABORTED, not ENODEV.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` is valid: requests may exceed 128 KiB.
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        /// After ENOSYS to OPENDIR, the kernel never sends OPENDIR again, and caches listings.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Only notifications invalidate cached pages.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const MAP_ALIGNMENT = 1 << 26;
        const SUBMOUNTS = 1 << 27;
        /// The server clears SUID, SGID and capabilities; requests say when.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has `setxattr_flags`; the parser requires this.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        const SECURITY_CTX = 1 << 32;
        const HAS_INODE_DAX = 1 << 33;
        /// If one of the caller's supplementary groups is the parent's group, a request that creates an inode
        /// contains that group.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// The kernel supports [`crate::Notification::expire_entry`].
        const HAS_EXPIRE_ONLY = 1 << 35;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        /// The mount cannot be exported by NFS, and no file can be opened by its file handle.
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        /// Requests are transported by io_uring. Must not be set before the rings are ready.
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
    }
}

bitflags! {
    /// The server's flags for an open file or directory (`FOPEN_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        const DIRECT_IO = 1 << 0;
        /// Cached pages are kept.
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        /// The kernel may cache the listing.
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        /// `close(2)` sends no FLUSH.
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        const PASSTHROUGH = 1 << 7;
    }
}

bitflags! {
    /// The flags of `renameat2(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RenameFlags: u32 {
        const NOREPLACE = 1 << 0;
        const EXCHANGE = 1 << 1;
        const WHITEOUT = 1 << 2;
    }
}
