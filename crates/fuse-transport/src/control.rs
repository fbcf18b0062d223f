//! Handing the requests of a mount over to another process: the pause of the workers, the devices, and the
//! requests that still wait for a reply.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use fuse_proto::{Opcode, Unique};
use rustix::thread::CpuSet;

use crate::cpus::online_cpus;
use crate::device::Device;
use crate::entry::{Entries, Entry, HeldEntry};
use crate::error::Error;
use crate::gate::{Apart, Gate};
use crate::reply::{Reply, Target};
use crate::wakers::{Destination, Wakers};

/// The devices of a mount, the entries of its rings, and the gate of its workers.
#[derive(Clone, Debug, Default)]
pub struct WorkerControl {
    /// The first one is the device that the file system was created with.
    devices: Arc<Mutex<Vec<Arc<Device>>>>,
    pub(crate) entries: Entries,
    /// The CPUs to which threads of the rings are pinned.
    pub(crate) pinned: Arc<OnceLock<Vec<usize>>>,
    pub(crate) gate: Arc<Gate>,
    /// Whether the file system was unmounted or aborted. Only threads of the rings notice it here.
    have_ended: Arc<AtomicBool>,
    mountpoint: Arc<OnceLock<PathBuf>>,
    /// The threads that [`Self::fetch_waiting`] uses, from its first call on; `None` if they cannot be started.
    fetchers: Arc<OnceLock<Option<Wakers>>>,
}

/// The entries of one queue of the kernel.
#[derive(Clone, Copy, Debug, Default)]
struct QueueCount {
    all: usize,
    /// Those that wait for a request.
    waiting: usize,
}

/// A request that waits for its reply, as one process describes it to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The index of the device to which the reply must be written; `None` if an entry of a ring has the request.
    pub device: Option<u32>,
    pub unique: u64,
    pub opcode: u32,
}

impl WorkerControl {
    pub(crate) fn new(devices: Vec<Arc<Device>>) -> Self {
        WorkerControl { devices: Arc::new(Mutex::new(devices)), ..WorkerControl::default() }
    }

    /// Sets the mount point.
    pub fn set_mountpoint(&self, mountpoint: &Path) {
        // It is set once for each mount.
        let _ = self.mountpoint.set(mountpoint.to_owned());
    }

    /// Makes the kernel fetch the requests that wait in the queue of a CPU although a ring has an entry for them:
    /// another request that is sent from this CPU gets that entry, and its commit fetches the next one. If the file
    /// system is not mounted at its mount point any more, the requests wait for the next commit.
    pub(crate) fn fetch_waiting(&self, cpu: usize) {
        let control = self.clone();
        let wake = move || {
            if let Some(fetchers) = control.fetchers()
                && !fetchers.wake(cpu)
            {
                tracing::warn!(
                    cpu,
                    "cannot fetch the requests that wait in the queue of this CPU: too many fetches are under way"
                );
            }
        };
        match self.fetchers.get() {
            Some(_) => wake(),
            // The calling thread serves requests, so it does not wait for the start.
            None => {
                if let Err(error) = host::spawn("limen-wake", wake) {
                    tracing::warn!(%error, "cannot start a thread, so waiting requests are not fetched");
                }
            }
        }
    }

    fn fetchers(&self) -> Option<&Wakers> {
        let mountpoint = self.mountpoint.get()?;
        let start = || Wakers::start(Destination::Path(mountpoint.clone()));
        let fetchers = self.fetchers.get_or_init(|| {
            start()
                .inspect_err(
                    |error| tracing::warn!(%error, "cannot start the thread that fetches waiting requests"),
                )
                .ok()
        });
        fetchers.as_ref()
    }

    /// Whether [`Self::fetch_waiting`] caused this request.
    pub(crate) fn is_fetching(&self, request: &[u8]) -> bool {
        matches!(self.fetchers.get(), Some(Some(fetchers)) if fetchers.have_sent(request))
    }

    /// Lets the workers end the requests that they are handling, and pauses them. Waits for at most
    /// `timeout`. `root` is a descriptor of the file system. Returns whether all workers are paused; if not,
    /// they continue.
    ///
    /// # Errors
    /// [`Error::System`] if a thread cannot be started, or this process may not run on a CPU from which requests come
    /// through a ring. The workers continue.
    pub fn pause(&self, root: OwnedFd, timeout: Duration) -> Result<bool, Error> {
        match self.has_rings() {
            true => self.pause_rings(root, timeout),
            false => self.pause_devices(root, timeout),
        }
    }

    fn pause_devices(&self, root: OwnedFd, timeout: Duration) -> Result<bool, Error> {
        // The thread below wakes the workers by STATFS requests. If no worker is left to read such a request,
        // the thread waits until the workers continue or another process serves. Its wait does not keep this
        // process from ending: SIGKILL ends the wait for a request that was not read (`request_wait_answer`).
        let (tick, ticks) = sync_channel::<()>(1);
        let gate = Arc::clone(&self.gate);
        let wake = move || {
            gate.set_waker();
            while ticks.recv().is_ok() {
                let _ = rustix::fs::fstatfs(&root);
            }
        };
        thread::Builder::new()
            .name("limen-wake".into())
            .spawn(wake)
            .map_err(|e| Error::system("start a thread", e))?;
        Ok(self.gate.close(timeout, &|| _ = tick.try_send(())))
    }

    /// Gives a request to each entry that waits in a queue of the kernel, because a process cannot take such
    /// an entry back from the kernel. The requests come from threads that run on the CPU of the queue. They
    /// are answered when the workers continue, or by another process.
    fn pause_rings(&self, root: OwnedFd, timeout: Duration) -> Result<bool, Error> {
        let failed = |e| Error::system("pause the workers of the rings", e);
        self.require_same_cpus().map_err(failed)?;
        let wakers = Wakers::start(Destination::Descriptor(root)).map_err(failed)?;
        let sent = RefCell::new(BTreeMap::new());
        let wake = || {
            // These threads get no request.
            self.lock_entries().iter().filter(|entry| entry.is_left()).for_each(|entry| entry.wake_thread());
            for (queue, QueueCount { all, waiting }) in self.count_pinned() {
                let mut sent = sent.borrow_mut();
                let sent = sent.entry(queue).or_insert(0);
                // An entry may get the request of a program instead. Then the request of this process waits, and the next
                // entry of the queue that is committed gets it. So more requests than entries are hardly ever needed.
                let wanted = if *sent == 0 { waiting } else { waiting.min(1) };
                for _ in 0..wanted.min((2 * all + 1).saturating_sub(*sent)) {
                    *sent += usize::from(wakers.wake(queue));
                }
            }
        };
        let is_closed = self.gate.close(timeout, &wake);
        if !is_closed {
            self.wake_rings();
        }
        Ok(is_closed)
    }

    /// Checks that the threads of the rings are pinned to all online CPUs, and that this process may run on
    /// them.
    ///
    /// # Errors
    /// An online CPU has no pinned thread, or this process may not run on a CPU that has one.
    fn require_same_cpus(&self) -> io::Result<()> {
        let own = rustix::thread::sched_getaffinity(None)?;
        let is_own = |cpu: &usize| *cpu < CpuSet::MAX_CPU && own.is_set(*cpu);
        let pinned = self.pinned();
        let foreign = online_cpus()?.into_iter().find(|cpu| !pinned.contains(cpu));
        match foreign.or_else(|| pinned.iter().copied().find(|cpu| !is_own(cpu))) {
            None => Ok(()),
            Some(cpu) => Err(io::Error::other(format!(
                "this process may not run on CPU {cpu}, or CPU {cpu} came online or went offline since the mount began"
            ))),
        }
    }

    /// Ends the threads of the rings, because the file system was unmounted or aborted.
    pub(crate) fn end_rings(&self) {
        if !self.have_ended.swap(true, Ordering::AcqRel) {
            self.wake_rings();
        }
    }

    pub(crate) fn have_rings_ended(&self) -> bool {
        self.have_ended.load(Ordering::Acquire)
    }

    /// Wakes the threads of the rings, so that they check the gate, the requests that they have kept, and
    /// whether the file system has ended.
    fn wake_rings(&self) {
        self.lock_entries().iter().for_each(|entry| entry.wake_thread());
    }

    /// The CPUs to which threads of the rings are pinned.
    fn pinned(&self) -> &[usize] {
        self.pinned.get().map_or(&[], Vec::as_slice)
    }

    fn count_pinned(&self) -> BTreeMap<usize, QueueCount> {
        let mut counts = BTreeMap::<usize, QueueCount>::new();
        for entry in &*self.lock_entries() {
            let count = counts.entry(entry.queue.into()).or_default();
            count.all += 1;
            count.waiting += usize::from(entry.is_waiting());
        }
        counts.retain(|queue, _| self.pinned().contains(queue));
        counts
    }

    /// Runs the rest of a worker's request on a thread of its own. [`Self::pause`] waits for its end. If no
    /// thread can be started, the calling one runs it.
    pub fn run_apart(&self, work: impl FnOnce() + Send + 'static) {
        let apart = Apart::new(&self.gate);
        let work = Box::new(move || {
            work();
            drop(apart);
        }) as Box<dyn FnOnce() + Send>;
        let (send, receive) = sync_channel::<Box<dyn FnOnce() + Send>>(1);
        let run = move || receive.recv().into_iter().for_each(|work| work());
        if let Err(error) = host::spawn("limen-apart", run) {
            tracing::warn!(%error, "cannot start a thread for a request");
        }
        // Without a thread, nothing receives the work.
        if let Err(SendError(work)) = send.send(work) {
            work();
        }
    }

    /// Lets paused workers continue.
    pub fn resume(&self) {
        self.gate.open();
        self.wake_rings();
    }

    /// The devices, to be sent to another process.
    pub fn devices(&self) -> Vec<OwnedDevice> {
        self.lock().iter().cloned().map(OwnedDevice).collect()
    }

    /// Describes the request that waits for `reply`, for another process; `None` if its device is unknown.
    pub fn describe(&self, reply: &Reply) -> Option<Unanswered> {
        let device = match reply.target() {
            Target::Device(own) => Some(self.lock().iter().position(|device| Arc::ptr_eq(own, device))?),
            Target::Ring(_) => None,
        };
        let device = device.map(u32::try_from).transpose().ok()?;
        Some(Unanswered { device, unique: reply.unique().0, opcode: reply.opcode().0 })
    }

    /// The reply to a request that another process has received and described; `None` if there is no such device, or no
    /// entry of a ring has the request.
    pub fn reply_to(&self, request: Unanswered) -> Option<Reply> {
        let target = self.target_of(request)?;
        Some(Reply::to(target, Unique(request.unique), Opcode(request.opcode)))
    }

    /// Whether [`WorkerControl::reply_to`] returns a reply.
    pub fn can_reply_to(&self, request: Unanswered) -> bool {
        self.target_of(request).is_some()
    }

    fn target_of(&self, request: Unanswered) -> Option<Target> {
        let unique = Unique(request.unique);
        Some(match request.device {
            Some(device) => Target::Device(self.lock().get(device as usize).cloned()?),
            None => Target::Ring(self.lock_entries().iter().find(|entry| entry.is_open(unique)).cloned()?),
        })
    }

    /// Whether requests come through rings.
    pub fn has_rings(&self) -> bool {
        !self.lock_entries().is_empty()
    }

    /// Records that requests come through `/dev/fuse` only.
    pub(crate) fn forget_rings(&self) {
        self.lock_entries().clear();
    }

    /// Describes the requests and replies in the entries of the rings for another process, while the workers and all
    /// threads that could reply are paused; `None` if a request is being handled, or an entry of a pinned
    /// thread still waits for a request.
    pub fn held(&self) -> Option<Vec<HeldEntry>> {
        if self.count_pinned().values().any(|count| count.waiting > 0) {
            return None;
        }
        self.lock_entries()
            .iter()
            .filter_map(|entry| entry.describe().transpose())
            .collect::<Result<_, _>>()
            .ok()
    }

    pub(crate) fn get(&self, index: usize) -> Option<Arc<Device>> {
        self.lock().get(index).cloned()
    }

    pub(crate) fn add(&self, device: &Arc<Device>) {
        self.lock().push(Arc::clone(device));
    }

    fn lock_entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device of a mount.
#[derive(Clone, Debug)]
pub struct OwnedDevice(Arc<Device>);

impl AsFd for OwnedDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::num::NonZeroUsize;

    use super::*;
    use crate::handler::Workers;
    use crate::serve::DevFuse;

    #[test]
    fn only_fuse_devices_are_taken_over() {
        let workers = Workers { threads: NonZeroUsize::MIN, max_write_bytes: 4096, idle_class: false };
        assert!(DevFuse::take_over(Vec::new(), None, &workers).is_err());
        for path in ["/dev/null", "/"] {
            let files = vec![File::open(path).unwrap().into()];
            assert!(DevFuse::take_over(files, None, &workers).is_err(), "{path}");
        }
        let control = WorkerControl::default();
        assert!(control.reply_to(Unanswered { device: Some(0), unique: 2, opcode: 3 }).is_none());
        assert!(control.reply_to(Unanswered { device: None, unique: 2, opcode: 3 }).is_none());
    }
}
