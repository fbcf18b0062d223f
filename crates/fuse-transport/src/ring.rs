//! FUSE over io_uring (Linux 6.14): a queue a CPU, and a request is served on the CPU that sent it.
//!
//! Each thread has a ring of its own with one entry, so that the kernel gives a request only to a thread that is idle: what
//! waits for the store holds up no one while another thread of that CPU is free. The kernel takes the entry that was
//! used last, so that mostly one thread a CPU is awake, with warm caches.
//!
//! INIT, FORGET and INTERRUPT come through `/dev/fuse` all the same, and everything if the kernel does not offer rings. It
//! waits with all requests for an entry in every queue once the answer to INIT has the flag, so whatever can fail is done before.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::device::Device;
use crate::error::Error;
use crate::reply::Target;
use crate::serve::{DevFuse, Handler, Transport, Workers, answer, pin};
use crate::uring::{Event, NUDGE, Ring as ThreadRing, Scratch};

/// io_uring where the kernel offers it, else as [`DevFuse`], which also is what it begins with.
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
        self.device.serve_with(workers, handler, |device| {
            lanes(device, workers).unwrap_or_else(|error| {
                tracing::warn!(%error, "requests come through /dev/fuse, for io_uring cannot be had");
                Vec::new()
            })
        })
    }
}

/// Whether the kernel offers rings to file systems mounted from now on.
pub fn ring_is_enabled() -> bool {
    fs::read(PARAMETER).is_ok_and(|value| value.starts_with(b"Y"))
}

/// Makes the kernel offer rings to file systems mounted from now on, by whomever.
///
/// # Errors
/// [`Error::System`]: the kernel has none, or the caller is not root.
pub fn enable_ring() -> Result<(), Error> {
    match ring_is_enabled() {
        true => Ok(()),
        false => fs::write(PARAMETER, "Y")
            .map_err(|e| Error::system(format!("switch on io_uring in {PARAMETER}"), e)),
    }
}

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// What one thread is to serve.
pub(crate) struct Lane {
    ring: ThreadRing,
    /// The CPU to stay on.
    cpu: Option<usize>,
}

impl Lane {
    /// Serves until the file system is gone. False if the kernel refused the ring, so that requests come through `/dev/fuse`.
    pub(crate) fn work(mut self, handler: &Handler<'_>) -> Result<bool, Error> {
        let failed = |e| Error::system("go on with io_uring", e);
        self.cpu.inspect(|cpu| pin(*cpu));
        let mut scratch = Scratch::new();
        let mut served = false;
        self.ring.lend().map_err(failed)?;
        while let Some(event) = self.ring.next().map_err(failed)? {
            match event {
                Event::Request(entry) => {
                    served = true;
                    match entry.open(&mut scratch) {
                        (NUDGE, _) => entry.answer(NUDGE, Ok(&[])),
                        (unique, bytes) => {
                            answer(&Target::Ring(Arc::clone(&entry)), Some(unique), bytes, handler);
                        }
                    }
                    if !self.ring.leave(&entry).map_err(failed)? {
                        self.ring.commit(&entry).map_err(failed)?;
                    }
                }
                Event::Late => {
                    for entry in self.ring.late_replies().map_err(failed)? {
                        self.ring.commit(&entry).map_err(failed)?;
                    }
                }
                Event::Returned(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => {
                    if self.ring.is_home() {
                        return Ok(true);
                    }
                    served = true;
                }
                Event::Returned(error) if served => {
                    tracing::error!(%error, "the kernel gave up an entry of a ring");
                }
                Event::Returned(error) => {
                    tracing::warn!(%error, "the kernel refused a ring");
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// More queues than this are not worth their threads.
const MAX_QUEUES: usize = 1024;

/// Rings for every queue: of CPUs that this process may use several, one of all others, which may be there for others or later.
fn lanes(device: &Arc<Device>, workers: &Workers) -> std::io::Result<Vec<Lane>> {
    let queues = possible_cpus()?;
    let ours = rustix::thread::sched_getaffinity(None)?;
    let is_ours = |cpu: usize| cpu < CpuSet::MAX_CPU && ours.is_set(cpu);
    let usable = NonZeroUsize::new(ours.count() as usize).unwrap_or(NonZeroUsize::MIN);
    let threads = workers.threads.get().div_ceil(usable.get());
    let payload_bytes = (workers.max_write_bytes as usize).max(MIN_PAYLOAD_BYTES);
    let mut lanes = Vec::new();
    for cpu in 0..queues {
        let (threads, pinned) = if is_ours(cpu) { (threads, Some(cpu)) } else { (1, None) };
        for _ in 0..threads {
            let ring = ThreadRing::new(Arc::clone(device), cpu as u16, payload_bytes)?;
            lanes.push(Lane { ring, cpu: pinned });
        }
    }
    Ok(lanes)
}

/// `FUSE_DEFAULT_MAX_PAGES_PER_REQ`: what the kernel wants room for where no longer WRITE is agreed.
const MIN_PAYLOAD_BYTES: usize = 128 << 10;

/// `num_possible_cpus`: the kernel has one queue for each.
fn possible_cpus() -> std::io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let count = count_cpus(list.trim()).filter(|count| (1..=MAX_QUEUES).contains(count));
    count.ok_or_else(|| std::io::Error::other(format!("cannot have a queue for each of the CPUs {list}")))
}

/// As in `0-3,8`.
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
    fn cpus_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-1"), Some(2));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        for list in ["", "a", "3-1", "1-", "0,"] {
            assert_eq!(count_cpus(list), None);
        }
    }
}
