//! The threads that serve requests from rings (see `ring.rs`), for each queue of the kernel.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use fuse_proto::NodeId;
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
use crate::uring::{Event, Left, MAX_THREADS, Ring as ThreadRing, is_wake_up};

/// The work of one thread.
pub(crate) struct RingWorker {
    ring: ThreadRing,
    /// The CPU to pin the thread to. `None` if this process cannot run on the CPU of the queue: then no request of this
    /// process can wake the thread.
    cpu: Option<usize>,
    control: WorkerControl,
    /// How many threads of the queue must be free to serve, which means that they do not wait for replies.
    threads: usize,
    /// If requests may have found no entry in the queue before the thread begins: an inode for the RETRIEVE
    /// that makes the kernel fetch them.
    fetches_for: Option<NodeId>,
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
    ///
    /// `start` starts a thread for another worker.
    pub(crate) fn work(
        mut self,
        handler: &Handler<'_>,
        gate: &Gate,
        start: &dyn Fn(RingWorker) -> io::Result<()>,
    ) -> Result<bool, Error> {
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
        let idle_class = self.idle_class.take();
        let mut counted = idle_class.as_ref().map(|(idle_class, index)| idle_class.count(*index));
        let mut scratch = Scratch::new();
        // Whether the kernel has accepted an entry of the ring.
        let mut served = self.ring.has_adopted() || self.fetches_for.is_some();
        self.ring.begin().map_err(failed)?;
        if let Some(node) = self.fetches_for {
            self.fetch_waiting(node);
        }
        loop {
            if self.ring.are_all_returned() && self.control.have_rings_ended() {
                return Ok(true);
            }
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
                    match self.ring.leave(&entry, self.threads).map_err(failed)? {
                        Left::Answered => self.ring.commit(&entry).map_err(failed)?,
                        Left::Waits => {}
                        Left::TooManyWait => self.replace(entry.node(), start),
                    }
                }
                Event::Deferred => {
                    for entry in self.ring.deferred_replies().map_err(failed)? {
                        self.ring.commit(&entry).map_err(failed)?;
                    }
                }
                Event::Returned(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => {
                    // The kernel does not tell this to threads whose entries wait for replies.
                    self.control.end_rings();
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

impl RingWorker {
    /// Starts another thread of the queue, because this one waits for the reply to a request about `node`.
    ///
    /// The number of requests that wait for a lock or another mount is not bounded by the number of threads.
    fn replace(&mut self, node: NodeId, start: &dyn Fn(RingWorker) -> io::Result<()>) {
        let (cpu, control, threads) = (self.cpu, self.control.clone(), self.threads);
        let fetches_for = Some(node);
        let worker = |ring| RingWorker { ring, cpu, control, threads, fetches_for, idle_class: None };
        if let Err(error) = self.ring.another().map(worker).and_then(start) {
            tracing::debug!(%error, "cannot start another thread of a ring; this one gets another entry");
            match self.ring.lend_another() {
                Ok(()) => self.fetch_waiting(node),
                // This thread must stay, because the request still waits for its reply.
                Err(error) => {
                    tracing::warn!(%error, "cannot serve more requests while others wait for replies")
                }
            }
        }
    }

    /// Makes the kernel fetch the requests that wait although the queue has an entry now. If this process
    /// cannot run on the CPU of the queue, they may wait until the next reply there.
    fn fetch_waiting(&self, node: NodeId) {
        if !self.ring.fetch_waiting(node)
            && let Some(cpu) = self.cpu
        {
            self.control.fetch_waiting(cpu);
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
    let new_worker = |cpu: usize| {
        let (threads, cpu_to_pin) = if is_ours(cpu) { (threads, Some(cpu)) } else { (1, None) };
        Ok::<_, io::Error>(RingWorker {
            ring: ThreadRing::new(Arc::clone(device), cpu as u16, payload_bytes, &control.entries)?,
            cpu: cpu_to_pin,
            control: control.clone(),
            threads,
            fetches_for: None,
            idle_class: None,
        })
    };
    for cpu in 0..queues {
        let first = new_worker(cpu)?;
        let more = (1..first.threads).map(|_| new_worker(cpu)).collect::<Result<Vec<_>, _>>()?;
        ring_workers.push(first);
        ring_workers.extend(more);
    }
    let mut waiting = Vec::new();
    for entry in held {
        let of_queue = |worker: &&mut RingWorker| worker.ring.queue() == entry.queue;
        // Until the reply comes, a thread whose entry waits for it serves no other request.
        if entry.waits() && waiting.iter_mut().filter(of_queue).count() < MAX_THREADS {
            waiting.push(new_worker(entry.queue.into())?);
        }
        let candidates = if entry.waits() { &mut waiting } else { &mut ring_workers };
        let least = candidates.iter_mut().filter(of_queue).min_by_key(|worker| worker.ring.len());
        least.ok_or(io::ErrorKind::InvalidInput)?.ring.adopt(entry)?;
    }
    ring_workers.extend(waiting);
    // While the mount was paused, requests may have found no entry.
    for worker in ring_workers.iter_mut().filter(|worker| worker.ring.len() == 0 && !held.is_empty()) {
        worker.fetches_for = Some(NodeId::ROOT);
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
