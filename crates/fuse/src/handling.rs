//! Handles and measures requests. Most requests that must wait until another mount gives back a directory are
//! handled on threads of their own.
//!
//! Such a wait usually takes some milliseconds, but 90 seconds or more if the other mount has stopped. If the
//! threads that serve requests waited, a few programs that use the directory would stop all programs that use
//! this mount. So a serving thread gives up a request that would wait, and a new thread handles it from the
//! beginning.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fuse_proto::{Operation, Request};
use fuse_transport::{Reply, WorkerControl};
use vfs::Caches;

use crate::counts::{RequestCounts, RequestMeter};
use crate::dispatch::Dispatch;
use crate::profile::Profile;
use crate::slow::SlowLog;

/// The maximum number of requests on threads of their own. Further ones wait on the serving threads.
const MAX_APART: usize = 256;
/// How often [`Handling::wait_for_apart`] looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What the handling of a request needs.
#[derive(Debug)]
pub(crate) struct Handling {
    pub(crate) dispatch: Dispatch,
    pub(crate) counts: Arc<RequestCounts>,
    pub(crate) slow: SlowLog,
    pub(crate) profile: Arc<Profile>,
    pub(crate) control: WorkerControl,
    /// The number of requests on threads of their own.
    pub(crate) apart: AtomicUsize,
}

impl Handling {
    /// Handles a request that has just arrived.
    pub(crate) fn handle(self: &Arc<Self>, request: &Request<'_>, reply: Reply) {
        let (meter, began) = (self.counts.begin(request.header.opcode), Instant::now());
        let arrival = self.dispatch.vfs.caches.arrival();
        let may_wait =
            !can_begin_again(&request.operation) || self.apart.load(Ordering::Acquire) >= MAX_APART;
        let Some(reply) = self.run(request, meter, reply, may_wait) else {
            return self.measure(request, meter, began.elapsed());
        };
        let (apart, bytes) = (Apart::new(self), request.bytes.to_vec());
        self.control.run_apart(move || {
            let Apart(handling) = &apart;
            // The bytes were parsed before.
            if let Ok(request) = Request::parse(&bytes) {
                let meter = handling.counts.meter(request.header.opcode);
                Caches::handle_since(arrival, || handling.run(&request, meter, reply, true));
                handling.measure(&request, meter, began.elapsed());
            }
        });
    }

    /// Waits until no request is handled on a thread of its own, so that none of them changes anything while
    /// the session ends.
    pub(crate) fn wait_for_apart(&self) {
        while self.apart.load(Ordering::Acquire) > 0 {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the reply if the request would wait for another mount, and `may_wait` is not set.
    fn run(
        &self,
        request: &Request<'_>,
        meter: &RequestMeter,
        reply: Reply,
        may_wait: bool,
    ) -> Option<Reply> {
        metrics::start_waiting();
        span(request).in_scope(|| self.dispatch.handle(request, meter, reply, may_wait))
    }

    fn measure(&self, request: &Request<'_>, meter: &RequestMeter, time: Duration) {
        meter.times.record_time(time);
        self.slow.check(request, time);
        self.profile.record(request, self.dispatch.ino(request.header.nodeid), time);
    }
}

/// A request on a thread of its own, which is counted until this is dropped.
struct Apart(Arc<Handling>);

impl Apart {
    fn new(handling: &Arc<Handling>) -> Self {
        handling.apart.fetch_add(1, Ordering::AcqRel);
        Apart(Arc::clone(handling))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.0.apart.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether a request that fails because it would wait has no lasting effect, so that it can be handled from the
/// beginning. Most requests for a directory that another mount holds are among these.
fn can_begin_again(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Lookup { .. }
            | Operation::GetAttr { .. }
            | Operation::GetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::Open { .. }
            | Operation::OpenDir { .. }
            | Operation::ReadDir(_)
            | Operation::ReadDirPlus(_)
            | Operation::ReadLink
            | Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::MkDir { .. }
            | Operation::Create(_)
    )
}

/// A span around the handling of a request. If no subscriber takes spans, this costs one comparison.
fn span(request: &Request<'_>) -> tracing::Span {
    let header = &request.header;
    tracing::trace_span!(
        target: metrics::SPANS,
        "request",
        otel.name = %header.opcode,
        otel.kind = "server",
        inode = header.nodeid.0,
        uid = header.uid,
        pid = header.pid,
    )
}
