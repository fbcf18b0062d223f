//! The threads that serve requests from rings (see `ring.rs`), for each queue of the kernel.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::control::WorkerControl;
use crate::cpus::{pin, possible_cpus};
use crate::device::Device;
use crate::entry::{HeldEntry, Scratch};
use crate::error::Error;
use crate::gate::Gate;
use crate::handler::{Handler, Workers, answer};
use crate::idle_class::{IdleClass, reset};
use crate::reply::Target;
use crate::uring::{Event, Left, Ring as ThreadRing, is_wake_up};

/// The work of one thread.
pub(crate) struct RingWorker {
    ring: ThreadRing,
    /// The CPU to pin the thread to. `None` if this process cannot run on the CPU of the queue: then no request of this
    /// process can wake the thread.
    cpu: Option<usize>,
    control: WorkerControl,
    /// The watcher of the pinned threads, and the index of this one among them.
    idle_class: Option<(Arc<IdleClass>, usize)>,
}

impl std::fmt::Debug for RingWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingWorker").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

impl RingWorker {
    /// Serves until the file system is unmounted. Returns false if the kernel rejected the ring: requests
    /// then come through `/dev/fuse`.
    ///
    /// While the gate is closed, the thread handles no request. It keeps the requests that it receives, and waits when
    /// the kernel holds none of its entries.
    pub(crate) fn work(mut self, handler: &Handler<'_>, gate: &Gate) -> Result<bool, Error> {
        let failed = |e| Error::system("use io_uring", e);
        if let Some(Err(error)) = self.cpu.map(pin) {
            tracing::warn!(cpu = self.cpu, %error, "cannot pin a worker");
        }
        let working = self.cpu.map(|_| gate.enter());
        let pass = || match &working {
            Some(working) => working.pass(),
            None => gate.wait_open(),
        };
        pass();
        let mut counted = self.idle_class.as_ref().map(|(idle_class, index)| idle_class.count(*index));
        let mut scratch = Scratch::new();
        // Whether the kernel has accepted an entry of the ring.
        let mut served = self.ring.has_adopted();
        self.ring.begin().map_err(failed)?;
        loop {
            let is_closed = gate.is_closed();
            if is_closed && self.ring.are_all_returned() {
                pass();
                continue;
            }
            let held = if is_closed { None } else { self.ring.next_held().map_err(failed)? };
            let event = match held {
                Some(entry) => Some(Event::Request(entry)),
                None => self.ring.next().map_err(failed)?,
            };
            let Some(event) = event else { return Ok(true) };
            match event {
                Event::Request(entry) if gate.is_closed() => self.ring.hold(entry).map_err(failed)?,
                Event::Request(entry) => {
                    served = true;
                    if let Some(counted) = &mut counted {
                        counted.request();
                    }
                    match entry.open(&mut scratch) {
                        (unique, _) if is_wake_up(unique) => entry.answer(unique, Ok(&[])),
                        (unique, bytes) if self.control.is_fetching(bytes) => {
                            entry.answer(unique, Err(::types::Errno::EAGAIN));
                        }
                        (unique, bytes) => {
                            answer(&Target::Ring(Arc::clone(&entry)), Some(unique), bytes, handler);
                        }
                    }
                    match (self.ring.leave(&entry).map_err(failed)?, self.cpu) {
                        (Left::Answered, _) => self.ring.commit(&entry).map_err(failed)?,
                        (Left::MustFetch, Some(cpu)) => self.control.fetch_waiting(cpu),
                        (Left::MustFetch, None) | (Left::Waits, _) => {}
                    }
                }
                Event::Deferred => {
                    for entry in self.ring.deferred_replies().map_err(failed)? {
                        self.ring.commit(&entry).map_err(failed)?;
                    }
                }
                Event::Returned(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => {
                    if self.ring.are_all_returned() {
                        return Ok(true);
                    }
                    served = true;
                }
                Event::Returned(error) if served => {
                    tracing::error!(%error, "the kernel returned an io_uring entry with an error");
                }
                Event::Returned(error) => {
                    tracing::warn!(%error, "the kernel rejected an io_uring entry");
                    return Ok(false);
                }
            }
        }
    }
}

/// Creates the rings of all queues: the threads of `workers`, spread over the CPUs that this process may use,
/// and one thread for each other CPU, because other processes may use it. The rings take over the entries
/// `held`, if another process has described any.
///
/// # Errors
/// io_uring is missing or not allowed; there is no memory; or an entry cannot be taken over.
pub(crate) fn ring_workers(
    device: &Arc<Device>,
    workers: &Workers,
    held: &[HeldEntry],
    control: &WorkerControl,
) -> io::Result<Vec<RingWorker>> {
    let queues = possible_cpus()?;
    let ours = rustix::thread::sched_getaffinity(None)?;
    host::set_thread_start(reset);
    let is_ours = |cpu: usize| cpu < CpuSet::MAX_CPU && ours.is_set(cpu);
    let usable = NonZeroUsize::new(ours.count() as usize).unwrap_or(NonZeroUsize::MIN);
    let threads = workers.threads.get().div_ceil(usable.get());
    let payload_bytes = (workers.max_write_bytes as usize).max(MIN_PAYLOAD_BYTES);
    let mut ring_workers = Vec::new();
    for cpu in 0..queues {
        let (threads, pinned) = if is_ours(cpu) { (threads, Some(cpu)) } else { (1, None) };
        for _ in 0..threads {
            let ring = ThreadRing::new(Arc::clone(device), cpu as u16, payload_bytes, &control.entries)?;
            ring_workers.push(RingWorker { ring, cpu: pinned, control: control.clone(), idle_class: None });
        }
    }
    for entry in held {
        let of_queue = ring_workers.iter_mut().filter(|worker| worker.ring.queue() == entry.queue);
        let worker = of_queue.min_by_key(|worker| worker.ring.len()).ok_or(io::ErrorKind::InvalidInput)?;
        worker.ring.adopt(entry)?;
    }
    if workers.idle_class {
        watch(&mut ring_workers);
    }
    // Nothing may fail any more once the kernel waits for the entries.
    for worker in ring_workers.iter_mut().filter(|worker| worker.ring.len() == 0) {
        worker.ring.add()?;
    }
    control.gate.make_wake_fd()?;
    device.set_nonblocking()?;
    let _ = control.pinned.set((0..queues).filter(|cpu| is_ours(*cpu)).collect());
    Ok(ring_workers)
}

/// Starts the watcher of the pinned threads.
fn watch(ring_workers: &mut [RingWorker]) {
    let cpus: Vec<usize> = ring_workers.iter().filter_map(|worker| worker.cpu).collect();
    let Some(idle_class) = IdleClass::start(&cpus).map(Arc::new) else { return };
    let pinned = ring_workers.iter_mut().filter(|worker| worker.cpu.is_some());
    for (index, worker) in pinned.enumerate() {
        worker.idle_class = Some((Arc::clone(&idle_class), index));
    }
}

/// `FUSE_DEFAULT_MAX_PAGES_PER_REQ`: the payload size that the kernel requires if no larger WRITE is
/// negotiated.
const MIN_PAYLOAD_BYTES: usize = 128 << 10;
