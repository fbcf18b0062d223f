//! Proves that the process of another session has ended, or that a process runs here.

use std::fs;
use std::os::unix::fs::MetadataExt;

use meta::{Process, Session};

/// The identity of this process.
pub fn this_process() -> Process {
    Process {
        boot_id: boot_id(),
        pid_namespace: pid_namespace(),
        start_time: start_time_in("/proc/self/stat").unwrap_or_default(),
    }
}

/// Whether the process of this session has certainly ended: it ran on this machine since its last boot, in
/// this PID namespace, and its process id is free or belongs to another process now. A host name proves
/// nothing, because a container or another machine may have the same one.
pub fn has_ended(session: &Session) -> bool {
    process_has_ended(session.pid, &session.process)
}

/// As [`has_ended`], for any process.
pub fn process_has_ended(pid: u32, process: &Process) -> bool {
    let here = Process { start_time: process.start_time, ..this_process() };
    let is_known = !process.boot_id.is_empty() && process.pid_namespace != 0 && process.start_time != 0;
    is_known && here == *process && start_time(pid) != Some(process.start_time)
}

/// Whether a process certainly runs now, on this machine and in this PID namespace.
pub fn is_process_here(pid: u32, process: &Process) -> bool {
    let here = Process { start_time: process.start_time, ..this_process() };
    process.start_time != 0 && here == *process && start_time(pid) == Some(process.start_time)
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The inode number of this PID namespace. 0 if it is unknown, or if `/proc` shows the processes of another
/// namespace, whose process ids do not apply here.
fn pid_namespace() -> u64 {
    let own = std::process::id().to_string();
    if fs::read_link("/proc/self").is_ok_and(|number| number.as_os_str() == own.as_str()) {
        fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
    } else {
        0
    }
}

/// Field 22 of `/proc/PID/stat` (`proc_pid_stat(5)`), in clock ticks since boot; `None` if there is no such
/// process, or it is a zombie.
pub fn start_time(pid: u32) -> Option<u64> {
    start_time_in(&format!("/proc/{pid}/stat"))
}

fn start_time_in(path: &str) -> Option<u64> {
    let stat = fs::read_to_string(path).ok()?;
    // The second field, the name in parentheses, may hold spaces and parentheses itself.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_proven_dead_only_in_the_same_boot_and_namespace() {
        let this = this_process();
        let pid = std::process::id();
        assert!(!this.boot_id.is_empty() && this.pid_namespace != 0 && this.start_time != 0);
        assert!(!process_has_ended(pid, &this));
        // A later process has the same process id.
        let earlier = Process { start_time: this.start_time - 1, ..this.clone() };
        assert!(process_has_ended(pid, &earlier));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        assert!(process_has_ended(ended, &earlier));
        // Nothing is known about processes elsewhere, whatever their ids.
        for elsewhere in [
            Process { boot_id: "another".into(), ..earlier.clone() },
            Process { boot_id: String::new(), ..earlier.clone() },
            Process { pid_namespace: this.pid_namespace + 1, ..earlier.clone() },
            Process { start_time: 0, ..this },
        ] {
            assert!(!process_has_ended(ended, &elsewhere), "{elsewhere:?}");
        }
    }
}
