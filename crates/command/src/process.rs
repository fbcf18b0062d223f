//! Processes of this machine, identified by id and start time, because ids are reused.

use std::fs;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use vfs::process::{may_exist, start_time};

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// The start time, in clock ticks after boot.
    pub started: u64,
}

impl Process {
    pub fn this() -> Self {
        let pid = std::process::id();
        Process { pid, started: start_time(pid).unwrap_or(0) }
    }

    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// As [`Self::is_alive`], but also true if the start time of the process is not known, because `/proc` hides it.
    pub fn may_be_alive(&self) -> bool {
        match start_time(self.pid) {
            Some(started) if self.started > 0 => started == self.started,
            _ => may_exist(self.pid),
        }
    }

    /// Waits until the process has ended, at most for `timeout`. Returns whether it has ended.
    pub fn wait_end(&self, timeout: Duration) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            return !self.is_alive();
        };
        // Check this after the descriptor is open: if the process is alive now, the descriptor refers to it.
        if !self.is_alive() {
            return true;
        }
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
                Ok(1..) => return true,
                Err(rustix::io::Errno::INTR) => {}
                _ => return !self.is_alive(),
            }
        }
    }
}

/// This machine's host name, as it is recorded in sessions.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

/// The CPU time that all threads of this process have used.
pub fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Raises the soft limit of open files to the hard limit. The usual soft limit is low only because of programs
/// that use select(2).
pub fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, calls that need more files fail with EMFILE.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The resident memory of this process in bytes (`statm`, proc(5)).
pub fn own_memory() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_distinguished_by_start_time() {
        let this = Process::this();
        assert!(this.started > 0 && this.is_alive());
        assert!(!Process { started: this.started + 1, ..this }.is_alive());
        assert!(!this.wait_end(Duration::from_millis(1)));
    }

    #[test]
    fn wait_end_returns_when_the_process_ends() {
        let mut child = std::process::Command::new("sleep").arg("0.2").spawn().unwrap();
        let process = Process { pid: child.id(), started: start_time(child.id()).unwrap() };
        assert!(process.wait_end(Duration::from_secs(20)));
        assert!(!process.is_alive(), "it has ended, although it is still a zombie");
        child.wait().unwrap();
        assert!(process.wait_end(Duration::ZERO));
    }

    #[test]
    fn own_cpu_time_increases() {
        let before = own_cpu();
        let sum: u64 = (0..5_000_000_u64).map(std::hint::black_box).sum();
        assert!(sum > 0 && own_cpu() > before);
        assert!(own_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
