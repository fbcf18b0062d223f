//! Worker threads: each reads a request, has it answered inline, and reads the next.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use fuse_proto::{Request, WRITE_PREFIX_BYTES};
use rustix::thread::CpuSet;

use crate::device::{Device, Event};
use crate::error::Error;
use crate::notifier::Notifier;
use crate::reply::Reply;

/// Answers one request. Called by all workers at once; a panic is logged and answered EIO. What must wait for long takes
/// the [`Reply`] to another thread.
pub type Handler<'h> = dyn Fn(Request<'_>, Reply) + Sync + 'h;

/// A way for requests to come and replies to go.
pub trait Transport {
    /// Serves until the file system is unmounted or aborted, or a worker fails; requests that are no requests are answered
    /// EIO. Returns when all workers have ended.
    ///
    /// # Errors
    /// [`Error::System`] where a worker cannot be started or its device fails.
    fn serve(&self, workers: &Workers, handler: &Handler<'_>) -> Result<(), Error>;
}

/// The threads that serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    pub threads: NonZeroUsize,
    /// The longest WRITE that INIT agrees to, at least: what each worker has room for.
    pub max_write_bytes: u32,
    /// The CPUs to pin the workers to, in turn; none for no pinning. A caller and a worker on the same CPU wake each other in
    /// a few microseconds, on virtual machines across CPUs in some tens.
    pub pin_cpus: Vec<usize>,
}

/// `/dev/fuse`: one device a worker.
#[derive(Debug)]
pub struct DevFuse {
    device: Arc<Device>,
}

impl DevFuse {
    pub(crate) fn new(device: Device) -> Self {
        DevFuse { device: Arc::new(device) }
    }

    /// Starts the thread that sends notifications; at most `capacity` wait for it.
    ///
    /// # Errors
    /// [`Error::System`] where the thread cannot be started.
    pub fn notifier(&self, capacity: NonZeroUsize) -> Result<Notifier, Error> {
        Notifier::start(Arc::clone(&self.device), capacity)
    }
}

impl Transport for DevFuse {
    fn serve(&self, workers: &Workers, handler: &Handler<'_>) -> Result<(), Error> {
        thread::scope(|scope| {
            let mut running = Vec::new();
            let mut outcome = Ok(());
            for index in 0..workers.threads.get() {
                let device = match index {
                    0 => Arc::clone(&self.device),
                    _ => self.clone_or_share(),
                };
                let worker = move || work(device, index, workers, handler);
                match thread::Builder::new().name(format!("limen-fuse-{index}")).spawn_scoped(scope, worker) {
                    Ok(thread) => running.push(thread),
                    // The ones that run go on serving: fewer are slower, none would hang every caller.
                    Err(e) => outcome = Err(Error::system("start a worker thread", e)),
                }
            }
            for thread in running {
                let ended = thread.join().unwrap_or_else(|_| {
                    Err(Error::system("go on with a worker thread", std::io::Error::other("it panicked")))
                });
                outcome = outcome.and(ended);
            }
            outcome
        })
    }
}

impl DevFuse {
    /// A device of its own for a worker; sharing one works too, only slower.
    fn clone_or_share(&self) -> Arc<Device> {
        self.device.try_clone().map(Arc::new).unwrap_or_else(|error| {
            tracing::warn!(%error, "workers share one device");
            Arc::clone(&self.device)
        })
    }
}

/// What `fuse_dev_do_read` refuses to go below.
const MIN_BUFFER_BYTES: usize = 8192;

const PAGE_BYTES: usize = 4096;

fn work(device: Arc<Device>, index: usize, workers: &Workers, handler: &Handler<'_>) -> Result<(), Error> {
    pin(index, &workers.pin_cpus);
    let bytes = (WRITE_PREFIX_BYTES + workers.max_write_bytes as usize).max(MIN_BUFFER_BYTES) + PAGE_BYTES;
    // Begun at a page, so that the kernel copies into as few pages as it can.
    let mut buffer = vec![0; bytes + PAGE_BYTES];
    let start = buffer.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
    let buffer = &mut buffer[start..][..bytes];
    loop {
        match device.read(buffer).map_err(|e| Error::system("read from /dev/fuse", e))? {
            Event::Request(len) => answer(&device, &buffer[..len], handler),
            Event::End => return Ok(()),
        }
    }
}

fn answer(device: &Arc<Device>, bytes: &[u8], handler: &Handler<'_>) {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(error) => {
            tracing::error!(%error, len = bytes.len(), "malformed request");
            if let (Some(unique), Some(true)) = (error.unique, error.opcode.map(|o| o.expects_reply())) {
                device.answer(unique, Err(error.errno()));
            }
            return;
        }
    };
    let opcode = request.header.opcode;
    let reply = Reply::new(Arc::clone(device), &request.header);
    // The handler may be left half done by a panic; whether its own state survives that is its own affair (poisoned locks).
    if catch_unwind(AssertUnwindSafe(|| handler(request, reply))).is_err() {
        tracing::error!(%opcode, "the handler panicked; the request is answered EIO");
    }
}

fn pin(index: usize, cpus: &[usize]) {
    let Some(&cpu) = index.checked_rem(cpus.len()).and_then(|turn| cpus.get(turn)) else { return };
    if cpu >= CpuSet::MAX_CPU {
        tracing::warn!(cpu, "no such CPU to pin a worker to");
        return;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a worker could not be pinned");
    }
}
