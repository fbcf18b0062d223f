//! The options to negotiate with the kernel at INIT.

use fuse_proto::{InitConfig, InitFlags};
use vfs::{AclKind, AtimeMode};

/// The longest READ and WRITE: 1 MiB, the most that `max_pages` allows by default.
pub(crate) const MAX_WRITE_BYTES: u32 = 1 << 20;

/// [`InitFlags`] says what each flag is for. Not requested: `ATOMIC_O_TRUNC`, because OPEN for reading with
/// `O_TRUNC` would truncate a file before the kernel finds that it is a running program (ETXTBSY); and
/// `WRITEBACK_CACHE`, because the page cache, not the daemon, would then decide the file size. If the mount
/// is exclusive, the kernel keeps the locks itself, which is faster. If every read must change the atime,
/// symbolic links are not cached, because following a cached one is not reported.
pub(crate) fn config(acl: AclKind, is_exclusive: bool, atime: AtimeMode) -> InitConfig {
    let always = [
        InitFlags::ASYNC_READ,
        InitFlags::ASYNC_DIO,
        InitFlags::AUTO_INVAL_DATA,
        InitFlags::BIG_WRITES,
        InitFlags::CREATE_SUPP_GROUP,
        InitFlags::DONT_MASK,
        InitFlags::DO_READDIRPLUS,
        InitFlags::EXPORT_SUPPORT,
        InitFlags::HANDLE_KILLPRIV_V2,
        InitFlags::HAS_EXPIRE_ONLY,
        InitFlags::MAX_PAGES,
        InitFlags::OVER_IO_URING,
        InitFlags::PARALLEL_DIROPS,
        InitFlags::READDIRPLUS_AUTO,
    ];
    let mut wanted = InitFlags::from_iter(always);
    if atime != AtimeMode::Always {
        wanted |= InitFlags::CACHE_SYMLINKS;
    }
    if !is_exclusive {
        wanted |= InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS;
    }
    InitConfig {
        wanted: match acl {
            // The kernel gets POSIX ACLs in place of NFSv4 ACLs.
            AclKind::Posix | AclKind::Nfs4 => wanted | InitFlags::POSIX_ACL,
            AclKind::Off => wanted,
        },
        max_readahead_bytes: 1 << 20,
        max_write_bytes: MAX_WRITE_BYTES,
        max_background: 64,
        congestion_threshold: 48,
        time_gran_ns: 1,
    }
}
