//! Settings of the C library's allocator.

/// Makes the allocator return freed blocks of 1 MiB and more to the system at once.
///
/// Each time that a large block is freed, glibc raises its threshold for returning blocks, up to 32 MiB.
/// Blocks below the threshold come from a heap that cannot shrink while something above them is in use, so
/// the process keeps about twice the memory that it uses. Does nothing with other C libraries.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if glibc::mallopt(glibc::M_MMAP_THRESHOLD, 1 << 20) == 0 {
        tracing::warn!("cannot set the allocator's threshold (mallopt); the process may keep freed memory");
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
mod glibc {
    use std::ffi::c_int;

    /// `malloc.h`
    pub(super) const M_MMAP_THRESHOLD: c_int = -3;

    // SAFETY: the declaration is that of `malloc.h`. mallopt(3) takes and returns integers, holds the
    // allocator's lock while it changes a setting, and ignores values that it does not know.
    unsafe extern "C" {
        pub(super) safe fn mallopt(param: c_int, value: c_int) -> c_int;
    }
}
