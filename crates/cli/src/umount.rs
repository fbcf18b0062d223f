//! `limen umount`: takes a mount away, and returns when its process has stored everything.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use fuse::{Error, UnmountMode};

use crate::args::UmountArgs;
use crate::fault::Fault;
use crate::holders::{self, Holders, How, device_of};
use crate::output;
use crate::paths;
use crate::registry::{self, Entry};
use crate::statistics::Statistics;
use crate::units::show_size;

/// After this the person is told what is being waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked why the process has not ended yet.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// With `--force`, a process that does not end is left to itself after this.
const FORCED_LIMIT: Duration = Duration::from_secs(30);
/// The exit code for a mount that is gone here, but whose process did not end within the limit.
const NOT_ENDED: u8 = 3;

pub(crate) fn run(args: &UmountArgs) -> Result<(), Fault> {
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let entries = registry::by_mountpoint(&mountpoint);
    // A command that was started there would hold the mount itself.
    let _ = std::env::set_current_dir("/");
    // Force and lazy must not ask a mount that may hang, and work on a dead one too.
    if !args.lazy && !args.force && fuse::clean_stale(&mountpoint)? {
        registry::forget_dead(&mountpoint);
        return output::print(&format!(
            "Cleaned up {}, where a mount was left by a process that is gone.\n",
            mountpoint.display()
        ));
    }
    // Before it is gone: what tells this mount from an older one that is still in use somewhere.
    let device = device_of(&mountpoint);
    let serving = |entry: &&Entry| entry.process.is_alive() && Some(entry.device) == device;
    let serving = entries.iter().find(serving);
    match unmount(&mountpoint, args) {
        Ok(()) if args.lazy => {
            output::note("the mount is out of sight; its process ends when no program uses it any more");
            Ok(())
        }
        Ok(()) => match serving {
            Some(entry) => wait(entry, args),
            None => {
                output::note("its process is not known here: it may still be storing data");
                Ok(())
            }
        },
        // Unmounted by other means, or lazily: there may still be something to wait for.
        Err(Error::NotMounted(path)) => match entries.iter().find(|entry| entry.process.is_alive()) {
            Some(entry) => wait(entry, args),
            None => Err(fault(Error::NotMounted(path), None)),
        },
        Err(error) => Err(fault(error, device)),
    }
}

fn unmount(mountpoint: &Path, args: &UmountArgs) -> Result<(), Error> {
    if args.lazy {
        return fuse::unmount(mountpoint, UnmountMode::Lazy);
    }
    if !args.force {
        return fuse::unmount(mountpoint, UnmountMode::Clean);
    }
    match fuse::unmount(mountpoint, UnmountMode::Force) {
        // Its requests have failed by now; programs that still have files open do not hold it.
        Err(Error::Busy(_)) => match fuse::unmount(mountpoint, UnmountMode::Lazy) {
            // The process was faster: it takes its mount away when its requests fail.
            Err(Error::NotMounted(_)) => Ok(()),
            outcome => outcome,
        },
        outcome => outcome,
    }
}

/// Waits for a process that has nothing to serve here any more, and says whether it has stored everything.
fn wait(entry: &Entry, args: &UmountArgs) -> Result<(), Fault> {
    let limit = Duration::from_secs(args.timeout).min(if args.force { FORCED_LIMIT } else { Duration::MAX });
    let begun = Instant::now();
    let (mut still, mut last, mut told) = (begun, None, String::new());
    while !entry.process.wait_end(LOOK_EVERY.min(limit)) {
        let state = State::look(entry);
        // As long as others use the mount, what it stores is theirs and brings its end no nearer.
        if !state.holders.any() && state.progress() != last {
            still = Instant::now();
            last = state.progress();
        }
        if still.elapsed() >= limit {
            return Err(state.fault(entry, args.force));
        }
        let text = state.to_string();
        if told != text && (state.holders.any() || begun.elapsed() >= PATIENCE) {
            let pid = entry.process.pid;
            output::note(if state.holders.any() {
                text.clone()
            } else {
                format!("waiting for process {pid}: {text}")
            });
            told = text;
        }
    }
    // A process that ended as it should has taken its entry away.
    let left = registry::by_mountpoint(&entry.mountpoint);
    let Some(left) = left.into_iter().find(|left| left.process == entry.process) else { return Ok(()) };
    left.remove();
    let what = left
        .failure
        .clone()
        .unwrap_or_else(|| format!("process {} ended before it had stored everything", entry.process.pid));
    Err(Fault::new(what).at(log_of(entry)))
}

/// Why a process that serves has not ended yet.
struct State {
    holders: Holders,
    /// `None` if it does not answer.
    statistics: Option<Statistics>,
}

impl State {
    fn look(entry: &Entry) -> State {
        let mut holders = Holders::find(entry.device);
        // A process that serves never uses its own mount; what it holds on the way down is not worth a word.
        holders.users.retain(|user| user.pid != entry.process.pid && user.pid != std::process::id());
        State { holders, statistics: Statistics::ask(entry).ok() }
    }

    /// What changes as long as data is stored.
    fn progress(&self) -> Option<(u64, u64, u64)> {
        let statistics = self.statistics.as_ref()?;
        let uploads = statistics.pending.clone().unwrap_or_default();
        Some((statistics.unstored_bytes, uploads.blocks, uploads.uploaded))
    }

    /// What is not in the store yet, in words.
    fn pending(&self) -> String {
        let Some(statistics) = &self.statistics else {
            return "it does not say whether data waits to be stored".to_owned();
        };
        let uploads = statistics.pending.clone().unwrap_or_default();
        let mut parts = Vec::new();
        if statistics.unstored_bytes > 0 {
            parts.push(format!("{} are not stored yet", show_size(statistics.unstored_bytes)));
        }
        if uploads.blocks > 0 {
            let size = show_size(uploads.bytes);
            let why = uploads.error.map(|error| format!(" ({error})")).unwrap_or_default();
            parts.push(format!("{} blocks of {size} wait for their upload{why}", uploads.blocks));
        }
        if parts.is_empty() { "no data waits to be stored".to_owned() } else { parts.join(", ") }
    }

    fn fault(&self, entry: &Entry, force: bool) -> Fault {
        let pid = entry.process.pid;
        if let Some(first) = self.holders.first().first() {
            let advice = match &first.how {
                How::Namespace(place) => {
                    format!(
                        "end process {0}, or unmount it there: nsenter -t {0} -m umount {place}",
                        first.pid
                    )
                }
                _ => format!("end process {}; then the mount ends by itself", first.pid),
            };
            return Fault::new(self).at(entry.mountpoint.display()).advise(advice).with_code(NOT_ENDED);
        }
        let what = format!("unmounted here, but process {pid} does not end: {}", self.pending());
        let advice = match force {
            true => format!("look into its log; kill -KILL {pid} ends it for sure"),
            false if self.holders.some_hidden && !rustix::process::geteuid().is_root() => {
                "run limen umount as root to see whether other processes hold the mount; run it again to wait on"
                    .to_owned()
            }
            false => "look into its log, and run limen umount again to wait on".to_owned(),
        };
        Fault::new(what).at(log_of(entry)).advise(advice).with_code(NOT_ENDED)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holders.first() {
            [] => f.write_str(&self.pending()),
            holders => write!(f, "unmounted here; {}; {}", holders::list(holders), self.pending()),
        }
    }
}

fn log_of(entry: &Entry) -> String {
    entry
        .log
        .as_ref()
        .map_or_else(|| entry.mountpoint.display().to_string(), |log| format!("log {}", log.display()))
}

fn fault(error: Error, device: Option<u64>) -> Fault {
    match error {
        Error::Busy(path) => {
            let mut users = device.map(Holders::find).unwrap_or_default().users;
            users.retain(|user| user.pid != std::process::id());
            let (what, end) = match users.as_slice() {
                [] => {
                    ("a program has something open there, or something is mounted below".to_owned(), "end it")
                }
                users => (holders::list(users), "end what uses it"),
            };
            Fault::new(format!("the mount is in use: {what}"))
                .at(path.display())
                .advise(format!("{end}, or take the mount out of its sight with limen umount -l"))
        }
        Error::NotMounted(path) => Fault::new("no limenfs volume is mounted here").at(path.display()),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use chunk::Pending;

    use super::*;
    use crate::holders::Holder;
    use crate::process::Process;

    #[test]
    fn what_is_waited_for_is_said() {
        let entry = Entry {
            device: 1,
            mountpoint: "/mnt".into(),
            url: "sqlite:///v.db".into(),
            volume: "v".into(),
            process: Process { pid: 7, started: 1 },
            log: None,
            failure: None,
        };
        let mut state = State { holders: Holders::default(), statistics: Some(Statistics::default()) };
        let said = state.fault(&entry, false);
        assert!(said.to_string().contains("process 7 does not end: no data waits to be stored"), "{said}");
        assert_eq!(said.exit_code(), 3);
        let pending =
            Pending { blocks: 2, bytes: 5 << 20, error: Some("refused".into()), ..Pending::default() };
        state.statistics =
            Some(Statistics { unstored_bytes: 4096, pending: Some(pending), ..Statistics::default() });
        assert_eq!(
            state.to_string(),
            "4.0 KiB are not stored yet, 2 blocks of 5.0 MiB wait for their upload (refused)"
        );
        let holder = Holder { pid: 9, name: "smbd".into(), how: How::Namespace("/mnt".into()) };
        state.holders.elsewhere.push(holder);
        let said = state.fault(&entry, false);
        let parts =
            ["unmounted here; process 9 (smbd) still holds it", "4.0 KiB", "nsenter -t 9 -m umount /mnt"];
        assert!(parts.iter().all(|part| said.to_string().contains(part)), "{said}");
        state.statistics = None;
        assert!(state.to_string().ends_with("it does not say whether data waits to be stored"));
    }
}
