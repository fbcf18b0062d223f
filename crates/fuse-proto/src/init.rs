//! INIT, the first request: the negotiation between kernel and server.

use crate::InitFlags;

/// The oldest supported minor version: Linux 5.13, the first with `HANDLE_KILLPRIV_V2` and `SETXATTR_EXT`.
pub const MIN_MINOR: u32 = 33;

/// The kernel's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead_bytes: u32,
    pub flags: InitFlags,
}

/// The server's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitConfig {
    /// The flags to use if the kernel offers them.
    pub wanted: InitFlags,
    pub max_readahead_bytes: u32,
    /// The longest WRITE; reduced to 128 KiB if the kernel has no `MAX_PAGES`.
    pub max_write_bytes: u32,
    /// The limit of asynchronous requests in flight.
    pub max_background: u16,
    pub congestion_threshold: u16,
    /// The unit of timestamps in nanoseconds, 1 to 10^9.
    pub time_gran_ns: u32,
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitOut {
    pub minor: u32,
    pub flags: InitFlags,
    pub max_readahead_bytes: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write_bytes: u32,
    pub time_gran_ns: u32,
    pub max_pages: u16,
}

/// Why the negotiation failed. The reply to INIT is then EPROTO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    #[error("the kernel has FUSE {major}.{minor}; limenfs needs 7.{MIN_MINOR} (Linux 5.13) or newer")]
    Version { major: u32, minor: u32 },
    #[error("the kernel's FUSE lacks {0}, which limenfs needs")]
    Lacks(&'static str),
}

/// The page size that `max_pages` assumes. If the kernel's pages are larger, it allows longer requests than
/// are needed.
const PAGE_BYTES: u32 = 4096;

/// `FUSE_DEFAULT_MAX_PAGES_PER_REQ`, in bytes.
const MAX_WRITE_WITHOUT_MAX_PAGES: u32 = 32 * PAGE_BYTES;

impl InitIn {
    /// Negotiates. `SETXATTR_EXT` is always used, because the parser reads SETXATTR in its extended form;
    /// `INIT_EXT` is used if offered.
    ///
    /// # Errors
    /// [`InitError::Version`] if the kernel's version is not 7.[`MIN_MINOR`] or a later 7.x;
    /// [`InitError::Lacks`] if the kernel does not offer `SETXATTR_EXT`.
    pub fn negotiate(&self, config: &InitConfig) -> Result<InitOut, InitError> {
        if self.major != crate::MAJOR || self.minor < MIN_MINOR {
            return Err(InitError::Version { major: self.major, minor: self.minor });
        }
        if !self.flags.contains(InitFlags::SETXATTR_EXT) {
            return Err(InitError::Lacks("SETXATTR_EXT"));
        }
        let flags = (config.wanted | InitFlags::SETXATTR_EXT | InitFlags::INIT_EXT) & self.flags;
        let max_write_bytes = match flags.contains(InitFlags::MAX_PAGES) {
            true => config.max_write_bytes.max(PAGE_BYTES),
            false => config.max_write_bytes.clamp(PAGE_BYTES, MAX_WRITE_WITHOUT_MAX_PAGES),
        };
        Ok(InitOut {
            minor: self.minor.min(crate::MINOR),
            flags,
            max_readahead_bytes: config.max_readahead_bytes.min(self.max_readahead_bytes),
            max_background: config.max_background,
            congestion_threshold: config.congestion_threshold,
            max_write_bytes,
            time_gran_ns: config.time_gran_ns.clamp(1, 1_000_000_000),
            max_pages: u16::try_from(max_write_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u16::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: InitConfig = InitConfig {
        wanted: InitFlags::MAX_PAGES.union(InitFlags::POSIX_ACL),
        max_readahead_bytes: 1 << 20,
        max_write_bytes: 1 << 20,
        max_background: 12,
        congestion_threshold: 9,
        time_gran_ns: 1,
    };

    fn kernel(minor: u32, flags: InitFlags) -> InitIn {
        InitIn { major: 7, minor, max_readahead_bytes: 1 << 17, flags }
    }

    #[test]
    fn flags_that_are_wanted_and_offered_are_used() {
        let offered = InitFlags::SETXATTR_EXT | InitFlags::MAX_PAGES | InitFlags::OVER_IO_URING;
        let out = kernel(46, offered).negotiate(&CONFIG).unwrap();
        assert_eq!(out.flags, InitFlags::SETXATTR_EXT | InitFlags::MAX_PAGES);
        assert_eq!((out.minor, out.max_readahead_bytes), (45, 1 << 17));
        assert_eq!((out.max_write_bytes, out.max_pages), (1 << 20, 256));
    }

    #[test]
    fn max_write_is_128_kib_without_max_pages() {
        let out = kernel(33, InitFlags::SETXATTR_EXT).negotiate(&CONFIG).unwrap();
        assert_eq!((out.minor, out.max_write_bytes, out.max_pages), (33, 128 << 10, 32));
    }

    #[test]
    fn unsupported_kernel_versions_are_rejected() {
        for (major, minor) in [(7, 32), (6, 99), (8, 0)] {
            let kernel = InitIn { major, ..kernel(minor, InitFlags::SETXATTR_EXT) };
            assert_eq!(kernel.negotiate(&CONFIG), Err(InitError::Version { major, minor }));
        }
        let without = kernel(45, InitFlags::empty());
        assert_eq!(without.negotiate(&CONFIG), Err(InitError::Lacks("SETXATTR_EXT")));
    }
}
