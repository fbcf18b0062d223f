//! The interface of a transport of requests, and the handling of one request on the thread that read it.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fuse_proto::{Request, Unique};

use crate::error::Error;
use crate::reply::{Reply, Target};

/// Handles one request. All workers call it concurrently; a panic is logged and the reply is EIO. If a
/// request must wait for a long time, the handler moves its [`Reply`] to another thread.
pub type Handler<'h> = dyn Fn(Request<'_>, Reply) + Sync + 'h;

/// A transport of requests and replies.
pub trait Transport {
    /// Serves until the file system is unmounted or aborted. The reply to a malformed request is EIO. If a
    /// worker fails, the others continue. Returns when all workers have ended.
    ///
    /// The handler sees [`fuse_proto::InitFlags::OVER_IO_URING`] in INIT only if this transport is ready for
    /// it, and should then accept the flag.
    ///
    /// # Errors
    /// [`Error::System`] if a worker cannot be started or its device fails.
    fn serve(&self, workers: &Workers, handler: &Handler<'_>) -> Result<(), Error>;
}

/// The threads that serve requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    pub threads: NonZeroUsize,
    /// The longest WRITE that each worker's buffer holds: at least the one that INIT negotiates.
    pub max_write_bytes: u32,
    /// Whether busy threads with a ring run in the class `SCHED_IDLE` if they can, so that callers stay on their CPUs.
    pub idle_class: bool,
}

/// Handles one request. `unique` is the request's id, if the transport reports it besides the request's bytes.
pub(crate) fn answer(target: &Target, unique: Option<Unique>, bytes: &[u8], handler: &Handler<'_>) {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(error) => {
            tracing::error!(%error, len = bytes.len(), "malformed request");
            let wanted = error.opcode.is_none_or(|opcode| target.wants(opcode));
            if let (Some(unique), true) = (unique.or(error.unique), wanted) {
                target.answer(unique, Err(error.errno()));
            }
            return;
        }
    };
    let opcode = request.header.opcode;
    let reply = Reply::new(target.clone(), &request.header);
    // A panic may interrupt the handler anywhere; the handler is responsible for its own state (poisoned
    // locks).
    if catch_unwind(AssertUnwindSafe(|| handler(request, reply))).is_err() {
        tracing::error!(%opcode, "the handler panicked; the reply is EIO");
    }
}
