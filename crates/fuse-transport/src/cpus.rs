//! The CPUs of the machine. For FUSE over io_uring, the kernel has one queue of requests for each CPU.

use std::fs;
use std::io;
use std::ops::RangeInclusive;

use rustix::io::Errno;
use rustix::thread::CpuSet;

/// Pins the calling thread to one CPU. A wake-up between a caller and a worker takes a few microseconds on
/// the same CPU, and tens of microseconds between CPUs of a virtual machine.
pub(crate) fn pin(cpu: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
}

/// With more queues than this, their threads would cost too much.
const MAX_QUEUES: usize = 1024;

/// The CPUs that are online. The kernel sends no request to the queues of the others.
pub(crate) fn online_cpus() -> io::Result<Vec<usize>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let ranges = cpu_ranges(list.trim()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(ranges.into_iter().flatten().collect())
}

/// The number of possible CPUs (`num_possible_cpus`). The kernel has one queue for each.
pub(crate) fn possible_cpus() -> io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let count = count_cpus(list.trim()).filter(|count| (1..=MAX_QUEUES).contains(count));
    count.ok_or_else(|| {
        io::Error::other(format!(
            "cannot parse the list of CPUs, or there are more than {MAX_QUEUES}: {list}"
        ))
    })
}

/// Counts the CPUs in a list like `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    cpu_ranges(list)?
        .iter()
        .try_fold(0usize, |count, range| count.checked_add(range.end() - range.start() + 1))
}

/// Parses a list like `0-3,8`.
fn cpu_ranges(list: &str) -> Option<Vec<RangeInclusive<usize>>> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < usize::MAX).then_some(first..=last)
    };
    list.split(',').map(range).collect()
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
