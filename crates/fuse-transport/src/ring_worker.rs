//! The threads that serve requests from rings (see `ring.rs`), and the queues of the kernel.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::device::Device;
use crate::error::Error;
use crate::handler::{Handler, Workers, answer};
use crate::reply::Target;
use crate::uring::{Event, Ring as ThreadRing, Scratch, is_wake_up};

/// The work of one thread.
pub(crate) struct RingWorker {
    ring: ThreadRing,
    /// The CPU to pin the thread to.
    cpu: Option<usize>,
}

impl RingWorker {
    /// Serves until the file system is unmounted. Returns false if the kernel rejected the ring: requests
    /// then come through `/dev/fuse`.
    pub(crate) fn work(mut self, handler: &Handler<'_>) -> Result<bool, Error> {
        let failed = |e| Error::system("use io_uring", e);
        self.cpu.inspect(|cpu| pin(*cpu));
        let mut scratch = Scratch::new();
        let mut served = false;
        self.ring.lend().map_err(failed)?;
        while let Some(event) = self.ring.next().map_err(failed)? {
            match event {
                Event::Request(entry) => {
                    served = true;
                    match entry.open(&mut scratch) {
                        (unique, _) if is_wake_up(unique) => entry.answer(unique, Ok(&[])),
                        (unique, bytes) => {
                            answer(&Target::Ring(Arc::clone(&entry)), Some(unique), bytes, handler);
                        }
                    }
                    if !self.ring.leave(&entry).map_err(failed)? {
                        self.ring.commit(&entry).map_err(failed)?;
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
        Ok(true)
    }
}

/// Pins the calling thread to one CPU. A wake-up between a caller and a worker takes a few microseconds on the same CPU,
/// and some tens of microseconds across CPUs of a virtual machine.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "cannot pin a worker");
    }
}

/// With more queues than this, their threads would cost too much.
const MAX_QUEUES: usize = 1024;

/// Creates the rings of all queues: several for each CPU that this process may use, and one for each other
/// CPU, which other processes may use, or this one later.
pub(crate) fn ring_workers(device: &Arc<Device>, workers: &Workers) -> std::io::Result<Vec<RingWorker>> {
    let queues = possible_cpus()?;
    let ours = rustix::thread::sched_getaffinity(None)?;
    let is_ours = |cpu: usize| cpu < CpuSet::MAX_CPU && ours.is_set(cpu);
    let usable = NonZeroUsize::new(ours.count() as usize).unwrap_or(NonZeroUsize::MIN);
    let threads = workers.threads.get().div_ceil(usable.get());
    let payload_bytes = (workers.max_write_bytes as usize).max(MIN_PAYLOAD_BYTES);
    let mut ring_workers = Vec::new();
    for cpu in 0..queues {
        let (threads, pinned) = if is_ours(cpu) { (threads, Some(cpu)) } else { (1, None) };
        for _ in 0..threads {
            let ring = ThreadRing::new(Arc::clone(device), cpu as u16, payload_bytes)?;
            ring_workers.push(RingWorker { ring, cpu: pinned });
        }
    }
    Ok(ring_workers)
}

/// `FUSE_DEFAULT_MAX_PAGES_PER_REQ`: the payload size that the kernel requires if no larger WRITE is
/// negotiated.
const MIN_PAYLOAD_BYTES: usize = 128 << 10;

/// The number of possible CPUs (`num_possible_cpus`): the kernel has one queue for each.
fn possible_cpus() -> std::io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let count = count_cpus(list.trim()).filter(|count| (1..=MAX_QUEUES).contains(count));
    count.ok_or_else(|| {
        std::io::Error::other(format!(
            "cannot parse the list of CPUs, or there are more than {MAX_QUEUES}: {list}"
        ))
    })
}

/// Counts the CPUs in a list like `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    list.split(',').try_fold(0usize, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-1"), Some(2));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        for list in ["", "a", "3-1", "1-", "0,"] {
            assert_eq!(count_cpus(list), None);
        }
    }
}
