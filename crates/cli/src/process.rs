//! Processes of this machine, told from later ones with the same id by when they began.

use std::fs;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use vfs::process::start_time;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In clock ticks after the machine came up.
    pub(crate) started: u64,
}

impl Process {
    pub(crate) fn this() -> Self {
        let pid = std::process::id();
        Process { pid, started: start_time(pid).unwrap_or(0) }
    }

    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Waits until it has ended, at most for `timeout`; says whether it has.
    pub(crate) fn wait_end(&self, timeout: Duration) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            return !self.is_alive();
        };
        // Asked after the descriptor is open: from here on, the id cannot go to another process unnoticed.
        if !self.is_alive() {
            return true;
        }
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        // Interrupted by a signal it is no later than promised: whoever waits asks again.
        matches!(poll(&mut fds, Some(&timeout)), Ok(1..)) || !self.is_alive()
    }
}

/// This machine's name, as the sessions of a volume show it.
pub(crate) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_told_apart_by_their_start() {
        let this = Process::this();
        assert!(this.started > 0 && this.is_alive());
        assert!(!Process { started: this.started + 1, ..this }.is_alive());
        assert!(!this.wait_end(Duration::from_millis(1)));
    }

    #[test]
    fn the_end_of_a_process_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("0.2").spawn().unwrap();
        let process = Process { pid: child.id(), started: start_time(child.id()).unwrap() };
        assert!(process.wait_end(Duration::from_secs(20)));
        assert!(!process.is_alive(), "it ended, though nobody has collected it yet");
        child.wait().unwrap();
        assert!(process.wait_end(Duration::ZERO));
    }
}
