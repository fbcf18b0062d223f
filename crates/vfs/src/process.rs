//! Proves that the process of another session has ended, or that a process runs here.

use std::fs;
use std::os::unix::fs::MetadataExt;

use meta::{Process, Session};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The identity of this process.
pub fn this_process() -> Process {
    Process {
        boot_id: host::boot_id(),
        pid_namespace: pid_namespace(),
        start_time: start_time(std::process::id()).unwrap_or_default(),
    }
}

/// Whether the process of this session has certainly ended: it ran on this machine since its last boot, in
/// this PID namespace, and its process id is free or belongs to another process now. A host name proves
/// nothing, because a container or another machine may have the same one. A process that `/proc` does not
/// show proves nothing either, because `/proc` may hide the processes of other users (`hidepid`, proc(5)).
pub fn has_ended(session: &Session) -> bool {
    process_has_ended(session.pid, &session.process)
}

/// As [`has_ended`], for any process.
pub fn process_has_ended(pid: u32, process: &Process) -> bool {
    let here = Process { start_time: process.start_time, ..this_process() };
    let is_known = !process.boot_id.is_empty() && process.pid_namespace != 0 && process.start_time != 0;
    is_known
        && here == *process
        && match Found::of(pid) {
            Found::Ended => true,
            Found::Started(time) => time != process.start_time,
            Found::Unknown => false,
        }
}

/// Whether a process certainly runs now, on this machine and in this PID namespace.
pub fn is_process_here(pid: u32, process: &Process) -> bool {
    let here = Process { start_time: process.start_time, ..this_process() };
    process.start_time != 0 && here == *process && start_time(pid) == Some(process.start_time)
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

/// The facts that are known about the process with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// There is none, or it is a zombie.
    Ended,
    /// It runs, and started at this time, in clock ticks since boot.
    Started(u64),
    /// It may run, but its start time cannot be read.
    Unknown,
}

impl Found {
    fn of(pid: u32) -> Found {
        Found::by(pid, fs::read_to_string(format!("/proc/{pid}/stat")))
    }

    /// `stat` is the content of `/proc/PID/stat`, if it can be read.
    fn by(pid: u32, stat: std::io::Result<String>) -> Found {
        match stat {
            Ok(stat) => Found::in_stat(&stat, boot_offset()),
            // kill(2) also finds a process that belongs to another user or that `/proc` hides.
            Err(_) => match i32::try_from(pid).ok().and_then(Pid::from_raw).map(test_kill_process) {
                Some(Err(Errno::SRCH)) => Found::Ended,
                _ => Found::Unknown,
            },
        }
    }

    /// Field 22 of `/proc/PID/stat` (`proc_pid_stat(5)`), which the kernel moves by the offset of the
    /// reader's time namespace in clock ticks.
    fn in_stat(stat: &str, offset: Option<i64>) -> Found {
        // The second field, the name in parentheses, may hold spaces and parentheses itself.
        let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
        match fields.next() {
            Some("Z" | "X") => Found::Ended,
            _ => match (fields.nth(18).and_then(|field| field.parse::<u64>().ok()), offset) {
                (Some(time), Some(offset)) => Found::Started(time.saturating_add_signed(-offset)),
                _ => Found::Unknown,
            },
        }
    }
}

/// When a process started, in clock ticks since boot; `None` if there is no such process, it is a zombie, or
/// the time cannot be read.
pub fn start_time(pid: u32) -> Option<u64> {
    match Found::of(pid) {
        Found::Started(time) => Some(time),
        Found::Ended | Found::Unknown => None,
    }
}

/// Whether there may be a process with this id: false only if it has certainly ended.
pub fn may_exist(pid: u32) -> bool {
    Found::of(pid) != Found::Ended
}

/// The offset of the boot clock in this time namespace, in clock ticks (`time_namespaces(7)`). `None` if it
/// cannot be read.
fn boot_offset() -> Option<i64> {
    let namespace = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let own = namespace("time");
    // Without `ns/time`, the kernel has no time namespaces.
    if own.is_none() {
        return Some(0);
    }
    // `timens_offsets` shows the offsets of the namespace of new children.
    if own != namespace("time_for_children") {
        return None;
    }
    boot_offset_in(&fs::read_to_string("/proc/self/timens_offsets").ok()?)
}

fn boot_offset_in(offsets: &str) -> Option<i64> {
    let mut fields = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?.split_ascii_whitespace();
    let seconds: i64 = fields.next()?.parse().ok()?;
    let nanos: i64 = fields.next()?.parse().ok()?;
    // The kernel shows times to programs with 100 ticks a second (USER_HZ). It rounds down after it has added
    // the offset, so only an offset of whole ticks can be subtracted exactly.
    (nanos % 10_000_000 == 0).then_some(seconds * 100 + nanos / 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_process_is_not_proven_dead() {
        let hidden = |pid| Found::by(pid, Err(std::io::ErrorKind::NotFound.into()));
        assert_eq!(hidden(std::process::id()), Found::Unknown);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        assert_eq!(hidden(ended), Found::Ended);
    }

    #[test]
    fn start_times_do_not_depend_on_the_time_namespace() {
        let stat = |time: u64| format!("7 (a ) b) S {} {time} 0", ["0"; 18].join(" "));
        assert_eq!(Found::in_stat(&stat(1000), Some(0)), Found::Started(1000));
        assert_eq!(Found::in_stat(&stat(501_000), Some(500_000)), Found::Started(1000));
        assert_eq!(Found::in_stat(&stat(1000), None), Found::Unknown);
        assert_eq!(Found::in_stat("7 (a) Z 1", Some(0)), Found::Ended);
        assert_eq!(Found::in_stat("", Some(0)), Found::Unknown);
        assert_eq!(boot_offset_in("monotonic 1 2\nboottime  5000  10000000\n"), Some(500_001));
        assert_eq!(boot_offset_in("monotonic 1 2\n"), None);
        assert_eq!(boot_offset_in("boottime 5000 1\n"), None);
        assert!(boot_offset().is_some());
    }

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
