//! FUSE over io_uring (Linux 6.14): one queue per CPU, and a request is served on the CPU that sent it.
//!
//! Each thread has its own ring with one entry. So the kernel gives a request only to an idle thread: a request
//! that waits for the object store delays no other while another thread of that CPU is idle. If the
//! request of a thread waits for a lock or another mount, another thread replaces it, so that a fixed number
//! is free to serve. The kernel uses the entry that was used last, so usually one
//! thread per CPU is active, with warm caches.
//!
//! INIT, FORGET and INTERRUPT always come through `/dev/fuse`, and so do all requests if the kernel does not
//! offer rings. If the reply to INIT has the flag `OVER_IO_URING`, the kernel holds back all requests until
//! every queue has an entry, so all steps that can fail are done before that reply.
//!
//! A thread with many entries would need a hand-over to another thread whenever a request waits for the
//! store. Threads with one entry each need none. Every CPU has at least one of them.

use std::fs;

use rustix::fs::Access;

use crate::error::Error;
use crate::handler::{Handler, Transport, Workers};
use crate::ring_worker::ring_workers;
use crate::serve::DevFuse;

/// The io_uring transport, if the kernel offers it; otherwise [`DevFuse`], which it also uses to start.
#[derive(Debug)]
pub struct Ring {
    device: DevFuse,
}

impl From<DevFuse> for Ring {
    fn from(device: DevFuse) -> Self {
        Ring { device }
    }
}

impl Transport for Ring {
    fn serve(&self, workers: &Workers, handler: &Handler<'_>) -> Result<(), Error> {
        self.device.serve_with(workers, handler, |device, control| {
            ring_workers(device, workers, &[], control).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot set up io_uring; requests come through /dev/fuse");
                Vec::new()
            })
        })
    }
}

/// Whether the kernel offers rings to FUSE file systems mounted from now on.
pub fn ring_is_enabled() -> bool {
    fs::read(PARAMETER).is_ok_and(|value| value.starts_with(b"Y"))
}

/// Whether the kernel has rings that are off, and this process may turn them on with [`enable_ring`].
pub fn can_enable_ring() -> bool {
    !ring_is_enabled() && rustix::fs::access(PARAMETER, Access::WRITE_OK).is_ok()
}

/// Makes the kernel offer rings to all FUSE file systems mounted from now on, by any process.
///
/// # Errors
/// [`Error::System`] if the kernel has no rings, or the caller is not root.
pub fn enable_ring() -> Result<(), Error> {
    match ring_is_enabled() {
        true => Ok(()),
        false => fs::write(PARAMETER, "Y")
            .map_err(|e| Error::system(format!("enable FUSE over io_uring in {PARAMETER}"), e)),
    }
}

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
