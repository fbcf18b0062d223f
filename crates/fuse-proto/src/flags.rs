//! Sets of flags, one newtype each.

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident($int:ty) { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name($int);

        impl $name {
            pub const NONE: $name = $name(0);
            $($(#[$flag_doc])* pub const $flag: $name = $name(1 << $bit);)*

            pub const fn from_bits(bits: $int) -> Self {
                $name(bits)
            }

            pub const fn bits(self) -> $int {
                self.0
            }

            /// Whether every flag of `other` is set.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            #[must_use]
            pub const fn union(self, other: $name) -> Self {
                $name(self.0 | other.0)
            }

            #[must_use]
            pub const fn intersection(self, other: $name) -> Self {
                $name(self.0 & other.0)
            }

            #[must_use]
            pub const fn without(self, other: $name) -> Self {
                $name(self.0 & !other.0)
            }

            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = $name;

            fn bitor(self, other: $name) -> $name {
                self.union(other)
            }
        }

        impl std::ops::BitAnd for $name {
            type Output = $name;

            fn bitand(self, other: $name) -> $name {
                self.intersection(other)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut unnamed = *self;
                let mut set = f.debug_set();
                $(if self.contains($name::$flag) {
                    set.entry(&format_args!("{}", stringify!($flag)));
                    unnamed = unnamed.without($name::$flag);
                })*
                if !unnamed.is_empty() {
                    set.entry(&format_args!("{:#x}", unnamed.0));
                }
                set.finish()
            }
        }
    };
}

flags! {
    /// The flags of INIT; bits 32 to 63 are sent in `flags2`.
    InitFlags(u64) {
        /// Several READs of one open file may be in flight at the same time.
        ASYNC_READ = 0,
        /// The server handles POSIX locks.
        POSIX_LOCKS = 1,
        /// OPEN has `O_TRUNC`, and no SETATTR follows.
        ATOMIC_O_TRUNC = 3,
        /// LOOKUP of `.` and `..` works, so that the mount can be exported by NFS even after the kernel has
        /// forgotten an inode.
        EXPORT_SUPPORT = 4,
        /// A WRITE may be longer than a page.
        BIG_WRITES = 5,
        /// The server applies the umask (or the default ACL instead of it).
        DONT_MASK = 6,
        SPLICE_WRITE = 7,
        SPLICE_MOVE = 8,
        SPLICE_READ = 9,
        /// The server handles `flock(2)` locks.
        FLOCK_LOCKS = 10,
        HAS_IOCTL_DIR = 11,
        /// A changed mtime or size in new attributes invalidates the cached pages.
        AUTO_INVAL_DATA = 12,
        DO_READDIRPLUS = 13,
        /// The kernel chooses READDIR or READDIRPLUS by use.
        READDIRPLUS_AUTO = 14,
        ASYNC_DIO = 15,
        WRITEBACK_CACHE = 16,
        /// After ENOSYS to OPEN, the kernel never sends OPEN again.
        NO_OPEN_SUPPORT = 17,
        /// LOOKUP and READDIR of one directory may run in parallel.
        PARALLEL_DIROPS = 18,
        HANDLE_KILLPRIV = 19,
        /// The kernel checks POSIX ACLs; forces `default_permissions`.
        POSIX_ACL = 20,
        /// After an abort, a read of the device fails with ECONNABORTED, not ENODEV.
        ABORT_ERROR = 21,
        /// `max_pages` is valid: requests may exceed 128 KiB.
        MAX_PAGES = 22,
        CACHE_SYMLINKS = 23,
        /// After ENOSYS to OPENDIR, the kernel never sends OPENDIR again, and caches listings.
        NO_OPENDIR_SUPPORT = 24,
        /// Only notifications invalidate cached pages.
        EXPLICIT_INVAL_DATA = 25,
        MAP_ALIGNMENT = 26,
        SUBMOUNTS = 27,
        /// The server clears SUID, SGID and capabilities; requests say when.
        HANDLE_KILLPRIV_V2 = 28,
        /// SETXATTR has flags; the parser requires this.
        SETXATTR_EXT = 29,
        /// `flags2` is valid.
        INIT_EXT = 30,
        SECURITY_CTX = 32,
        HAS_INODE_DAX = 33,
        /// Requests that create inodes have the caller's group that equals the parent's group.
        CREATE_SUPP_GROUP = 34,
        /// The kernel supports [`crate::Notification::expire_entry`].
        HAS_EXPIRE_ONLY = 35,
        DIRECT_IO_ALLOW_MMAP = 36,
        PASSTHROUGH = 37,
        /// File handles never outlive the kernel's inode.
        NO_EXPORT_SUPPORT = 38,
        HAS_RESEND = 39,
        ALLOW_IDMAP = 40,
        /// Requests are transported by io_uring. Must not be set before the rings are ready.
        OVER_IO_URING = 41,
        REQUEST_TIMEOUT = 42,
    }
}

flags! {
    /// The server's flags for an open file or directory (`FOPEN_*`).
    OpenFlags(u32) {
        DIRECT_IO = 0,
        /// Cached pages are kept.
        KEEP_CACHE = 1,
        NONSEEKABLE = 2,
        /// The kernel may cache the listing.
        CACHE_DIR = 3,
        STREAM = 4,
        /// `close(2)` sends no FLUSH.
        NOFLUSH = 5,
        PARALLEL_DIRECT_WRITES = 6,
        PASSTHROUGH = 7,
    }
}

flags! {
    /// `renameat2(2)`.
    RenameFlags(u32) {
        NOREPLACE = 0,
        EXCHANGE = 1,
        WHITEOUT = 2,
    }
}
