//! Worker threads: each reads a request, calls the handler on the same thread, and reads the next.
//!
//! No request is handed to another thread unless it waits for a lock or another mount, because a hand-over
//! across CPUs costs 20 to 60 µs on the measured machines, which is more than most operations take. For the
//! same reason operations are planned synchronously.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};

use fuse_proto::{InitFlags, Opcode, Operation, Request, Unique, WRITE_PREFIX_BYTES};
use types::Errno;

use crate::control::WorkerControl;
use crate::device::{Device, Event};
use crate::entry::HeldEntry;
use crate::error::Error;
use crate::expiry::ListNames;
use crate::gate::Gate;
use crate::handler::{Handler, Transport, Workers, answer};
use crate::idle_class::reset;
use crate::notifier::Notifier;
use crate::reply::Target;
use crate::ring_worker::{RingWorker, ring_workers};

/// The `/dev/fuse` transport: one device per worker.
#[derive(Debug)]
pub struct DevFuse {
    device: Arc<Device>,
    control: WorkerControl,
    /// If the mount was taken over from another process: the workers of its rings; empty if requests come
    /// through `/dev/fuse`. `None` for a new mount, whose INIT must be answered first.
    taken_over: Option<Mutex<Vec<RingWorker>>>,
}

impl DevFuse {
    pub(crate) fn new(device: Device) -> Self {
        let device = Arc::new(device);
        DevFuse { control: WorkerControl::new(vec![Arc::clone(&device)]), device, taken_over: None }
    }

    /// Continues to serve a file system that another process has served: with its devices, in their order, and with the
    /// entries of its rings. `held` is `None` if requests come through `/dev/fuse`.
    ///
    /// # Errors
    /// [`Error::System`] if there is no device, a descriptor is not one, or the entries cannot be taken over. Then the
    /// other process can continue.
    pub fn take_over(
        fds: Vec<OwnedFd>,
        held: Option<&[HeldEntry]>,
        workers: &Workers,
    ) -> Result<Self, Error> {
        let failed = |e| Error::system("take a mount over", e);
        let invalid = || failed(io::Error::from(io::ErrorKind::InvalidInput));
        let devices = fds.into_iter().map(|fd| match Device::is_device(&fd) {
            true => Ok(Arc::new(Device::from(fd))),
            false => Err(invalid()),
        });
        let devices: Vec<Arc<Device>> = devices.collect::<Result<_, _>>()?;
        let device = Arc::clone(devices.first().ok_or_else(invalid)?);
        let control = WorkerControl::new(devices);
        let rings = held.map(|held| ring_workers(&device, workers, held, &control)).transpose();
        let rings =
            rings.map_err(|e| Error::system("take the rings of a mount over", e))?.unwrap_or_default();
        Ok(DevFuse { device, control, taken_over: Some(Mutex::new(rings)) })
    }

    /// The devices and the gate of the workers.
    pub fn control(&self) -> &WorkerControl {
        &self.control
    }

    /// Starts the thread that sends notifications, with a queue of `capacity`. `list` is called when all
    /// names, or those of one directory, are to be expired.
    ///
    /// # Errors
    /// [`Error::System`] if the thread cannot be started.
    pub fn notifier(&self, capacity: NonZeroUsize, list: ListNames) -> Result<Notifier, Error> {
        Notifier::start(Arc::clone(&self.device), capacity, list)
    }
}

impl Transport for DevFuse {
    fn serve(&self, workers: &Workers, handler: &Handler<'_>) -> Result<(), Error> {
        self.serve_with(workers, handler, |_, _| Vec::new())
    }
}

impl DevFuse {
    /// Serves, also from rings if the kernel offers them: `make_workers` creates their workers, or returns
    /// none.
    pub(crate) fn serve_with(
        &self,
        workers: &Workers,
        handler: &Handler<'_>,
        make_workers: impl FnOnce(&Arc<Device>, &WorkerControl) -> Vec<RingWorker>,
    ) -> Result<(), Error> {
        if let Some(rings) = &self.taken_over {
            let rings = std::mem::take(&mut *rings.lock().unwrap_or_else(PoisonError::into_inner));
            return thread::scope(|scope| {
                let mut pool = Pool { scope, running: Vec::new() };
                // With rings, only FORGET and INTERRUPT come through `/dev/fuse`.
                let threads = if rings.is_empty() { workers.threads.get() } else { 1 };
                let mut started = Ok(());
                for (index, ring) in rings.into_iter().enumerate() {
                    let worker = move || self.serve_ring(scope, ring, workers, handler);
                    started = started.and(pool.start(format!("limen-ring-{index}"), worker));
                }
                let started = started.and(self.start_workers(&mut pool, workers, threads, handler));
                started.and(pool.join())
            });
        }
        // The kernel sends INIT first, and nothing else before its answer.
        let mut buffer = RequestBuffer::new(workers.max_write_bytes);
        let Some(init) = buffer.read(&self.device, None)? else { return Ok(()) };
        thread::scope(|scope| {
            let mut pool = Pool { scope, running: Vec::new() };
            let ring_workers =
                if offers_rings(init) { make_workers(&self.device, &self.control) } else { Vec::new() };
            let mut gates = Vec::new();
            for ring_worker in ring_workers {
                let (open, gate) = sync_channel(1);
                let worker = move || match gate.recv() {
                    Ok(()) => self.serve_ring(scope, ring_worker, workers, handler),
                    // The rings are not used, because one of their threads could not be started.
                    Err(_) => Ok(()),
                };
                match pool.start(format!("limen-ring-{}", gates.len()), worker) {
                    Ok(()) => gates.push(open),
                    Err(error) => {
                        tracing::warn!(%error, "cannot start the io_uring workers; requests come through /dev/fuse");
                        gates.clear();
                        break;
                    }
                }
            }
            let ready = !gates.is_empty();
            if !ready {
                self.control.forget_rings();
            }
            let target = Target::Device(Arc::clone(&self.device));
            answer(&target, None, init, &|mut request, reply| {
                if let (Operation::Init(init), false) = (&mut request.operation, ready) {
                    init.flags = init.flags.difference(InitFlags::OVER_IO_URING);
                }
                handler(request, reply);
            });
            for gate in &gates {
                // The thread is waiting for this message.
                let _ = gate.send(());
            }
            // With rings, only FORGET and INTERRUPT come through `/dev/fuse`.
            let threads = if ready { 1 } else { workers.threads.get() };
            let started = self.start_workers(&mut pool, workers, threads, handler);
            started.and(pool.join())
        })
    }

    fn serve_ring<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        ring: RingWorker,
        workers: &'env Workers,
        handler: &'env Handler<'_>,
    ) -> Result<(), Error> {
        let start = |ring| {
            let serve = move || {
                reset();
                let serve = || self.serve_ring(scope, ring, workers, handler);
                match catch_unwind(AssertUnwindSafe(serve)) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "a thread of a ring has ended"),
                    // The panic is in the log.
                    Err(_) => tracing::error!("a thread of a ring has panicked"),
                }
            };
            thread::Builder::new().name("limen-ring-more".into()).spawn_scoped(scope, serve).map(drop)
        };
        match ring.work(handler, &self.control.gate, &start)? {
            true => Ok(()),
            false => {
                self.control.forget_rings();
                work(&self.device, workers, handler, &self.control.gate, None)
            }
        }
    }

    /// Starts the workers that read from `/dev/fuse`.
    fn start_workers<'scope, 'env: 'scope>(
        &'env self,
        pool: &mut Pool<'scope, 'env>,
        workers: &'env Workers,
        threads: usize,
        handler: &'env Handler<'_>,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for index in 0..threads {
            let device = self.control.get(index).unwrap_or_else(|| self.clone_or_share());
            let gate = &self.control.gate;
            let wake = if self.control.has_rings() { gate.wake_fd() } else { None };
            let worker = move || {
                let ended = work(&device, workers, handler, gate, wake);
                if ended.is_ok() {
                    self.control.end_rings();
                }
                ended
            };
            // The running workers continue: fewer workers are slower, but without any worker all callers
            // would hang.
            outcome = outcome.and(pool.start(format!("limen-fuse-{index}"), worker));
        }
        outcome
    }

    /// A separate device for a worker. If that fails, the workers share one, which is slower.
    fn clone_or_share(&self) -> Arc<Device> {
        match self.device.try_clone().map(Arc::new) {
            Ok(device) => {
                self.control.add(&device);
                device
            }
            Err(error) => {
                tracing::warn!(%error, "cannot open another FUSE device; workers share one");
                Arc::clone(&self.device)
            }
        }
    }
}

/// The threads of one `serve`.
struct Pool<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    running: Vec<ScopedJoinHandle<'scope, Result<(), Error>>>,
}

impl<'scope> Pool<'scope, '_> {
    fn start<F>(&mut self, name: String, worker: F) -> Result<(), Error>
    where
        F: FnOnce() -> Result<(), Error> + Send + 'scope,
    {
        let thread = thread::Builder::new().name(name).spawn_scoped(self.scope, worker);
        self.running.push(thread.map_err(|e| Error::system("start a worker thread", e))?);
        Ok(())
    }

    /// Waits for all threads; returns the first error.
    fn join(self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for thread in self.running {
            let ended = thread.join().unwrap_or_else(|_| {
                Err(Error::system("serve requests", std::io::Error::other("a worker thread panicked")))
            });
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// The smallest buffer that `fuse_dev_do_read` accepts.
const MIN_BUFFER_BYTES: usize = 8192;

const PAGE_BYTES: usize = 4096;

/// A buffer for one request, page-aligned so that the kernel copies into as few pages as possible.
struct RequestBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl RequestBuffer {
    fn new(max_write_bytes: u32) -> Self {
        let bytes = (WRITE_PREFIX_BYTES + max_write_bytes as usize).max(MIN_BUFFER_BYTES) + PAGE_BYTES;
        let memory = vec![0; bytes + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        RequestBuffer { memory, start }
    }

    /// The next request, or `None` when the file system has ended. Returns an empty slice if `wake` is readable.
    fn read(&mut self, device: &Device, wake: Option<BorrowedFd<'_>>) -> Result<Option<&[u8]>, Error> {
        let buffer = &mut self.memory[self.start..];
        let event = match wake {
            Some(wake) => device.read_unless(wake, buffer),
            None => device.read(buffer),
        };
        match event.map_err(|e| Error::system("read from /dev/fuse", e))? {
            Event::Request(len) => Ok(Some(&buffer[..len])),
            Event::End => Ok(None),
            Event::Woken => Ok(Some(&[])),
        }
    }
}

/// Serves the requests that come through `/dev/fuse`. `wake` is [`Gate::wake_fd`] if other requests come through rings.
fn work(
    device: &Arc<Device>,
    workers: &Workers,
    handler: &Handler<'_>,
    gate: &Gate,
    wake: Option<BorrowedFd<'_>>,
) -> Result<(), Error> {
    let mut buffer = RequestBuffer::new(workers.max_write_bytes);
    let target = Target::Device(Arc::clone(device));
    let working = gate.enter();
    loop {
        working.pass();
        let Some(request) = buffer.read(device, wake)? else { return Ok(()) };
        if request.is_empty() {
            continue;
        }
        match if gate.is_closed() { waking(request, gate) } else { None } {
            Some(unique) => target.answer(unique, Err(Errno::EAGAIN)),
            None => answer(&target, None, request, handler),
        }
    }
}

/// The id of a request by which this process wakes a worker ([`WorkerControl::pause`]).
fn waking(request: &[u8], gate: &Gate) -> Option<Unique> {
    let header = Request::parse(request).ok()?.header;
    (header.opcode == Opcode::STATFS && gate.is_waker(header.pid)).then_some(header.unique)
}

fn offers_rings(init: &[u8]) -> bool {
    let offers = |init: &fuse_proto::InitIn| init.flags.contains(InitFlags::OVER_IO_URING);
    Request::parse(init)
        .is_ok_and(|request| matches!(request.operation, Operation::Init(init) if offers(&init)))
}
