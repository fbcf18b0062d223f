//! `limen umount`: unmounts a volume, and returns when the process that served it has stored everything.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueHint;
use command::error::CliError;
use command::output;
use command::paths;
use command::registry::{self, Entry};
use command::statistics::Statistics;
use command::units::show_size;
use fuse::{Error, UnmountMode};
use types::{counted, plural};

use crate::holders::{self, Holders, How, device_of};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes: 0 unmounted and all data stored, 1 failure, 2 the command line is wrong, 3 unmounted here, but the process
that serves it did not end within the timeout: another mount namespace or a program still holds the mount, or the object
store takes no data. The message says which. Run the command again to continue to wait.

Examples:
  limen umount /mnt
  limen umount -l /mnt
      detach the mount now although files are open there; it ends when they are closed")]
pub(crate) struct UmountArgs {
    /// Where the volume is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    mountpoint: PathBuf,
    /// Detach the mount at once, even if it is in use, and do not wait
    #[arg(short, long)]
    lazy: bool,
    /// Abort requests in flight; programs that use the mount get errors
    #[arg(short, long, conflicts_with = "lazy")]
    force: bool,
    /// How long to wait while other processes hold the mount, or while storing data makes no progress; 0 to
    /// check once
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    timeout: u64,
}

/// After this time, the command prints what it waits for.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// How often to check why the process has not ended yet.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// With `--force`, the command waits at most this long for the process.
const FORCED_LIMIT: Duration = Duration::from_secs(30);
/// The exit code if the volume is unmounted here, but its process did not end within the limit.
const NOT_ENDED: u8 = 3;

pub(crate) fn run(args: &UmountArgs) -> Result<(), CliError> {
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let entries = registry::by_mountpoint(&mountpoint);
    // If this command was started inside the mount, its working directory would keep the mount busy.
    let _ = std::env::set_current_dir("/");
    // `--force` and `--lazy` must not send requests to a mount that may hang. Both also work on a dead mount.
    if !args.lazy && !args.force && fuse::clean_stale(&mountpoint)? {
        registry::forget_dead(&mountpoint);
        return output::print(&format!(
            "Cleaned up {}: the process that served a mount there no longer exists.\n",
            mountpoint.display()
        ));
    }
    // The device number is read before unmounting. It distinguishes this mount from an older mount that is
    // still in use elsewhere.
    let device = device_of(&mountpoint);
    let serving = |entry: &&Entry| entry.process.is_alive() && Some(entry.device) == device;
    let serving = entries.iter().find(serving);
    match unmount(&mountpoint, args) {
        Ok(()) if args.lazy => {
            output::note("the mount is detached; its process ends when no program uses it any more");
            Ok(())
        }
        Ok(()) => match serving {
            Some(entry) => wait(entry, args),
            None => {
                output::note(
                    "unmounted; the process that served it is not registered here and may still store data",
                );
                Ok(())
            }
        },
        // The mount is already unmounted, lazily or by umount(8). Its process may still store data.
        Err(Error::NotMounted(path)) => match entries.iter().find(|entry| entry.process.is_alive()) {
            Some(entry) => wait(entry, args),
            None => Err(umount_error(Error::NotMounted(path), None)),
        },
        Err(error) => Err(umount_error(error, device)),
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
        // All requests of the mount have failed by now, so open files need not keep the mount.
        Err(Error::Busy(_)) => match fuse::unmount(mountpoint, UnmountMode::Lazy) {
            // The process unmounts by itself when its connection is aborted. Here it was faster than this
            // command.
            Err(Error::NotMounted(_)) => Ok(()),
            outcome => outcome,
        },
        outcome => outcome,
    }
}

/// Waits for the end of the process that served the mount.
///
/// # Errors
/// The process did not store everything, or did not end within the limit.
fn wait(entry: &Entry, args: &UmountArgs) -> Result<(), CliError> {
    let limit = Duration::from_secs(args.timeout).min(if args.force { FORCED_LIMIT } else { Duration::MAX });
    let begun = Instant::now();
    let (mut still, mut last, mut shown) = (begun, None, String::new());
    while !entry.process.wait_end(CHECK_EVERY.min(limit)) {
        let state = State::read(entry);
        // Progress extends the limit, but not while other processes use the mount, because they may write
        // more without end.
        let progress = state.progress().or(last);
        if !state.holders.any() && progress != last {
            still = Instant::now();
            last = progress;
        }
        if still.elapsed() >= limit {
            return Err(state.error(entry, args.force));
        }
        let text = state.to_string();
        if shown != text && (state.holders.any() || begun.elapsed() >= REPORT_AFTER) {
            let pid = entry.process.pid;
            output::note(if state.holders.any() {
                text.clone()
            } else {
                format!("waiting for process {pid}: {text}")
            });
            shown = text;
        }
    }
    // A process that ended cleanly has removed its entry.
    let left = registry::by_mountpoint(&entry.mountpoint);
    let Some(left) = left.into_iter().find(|left| left.process == entry.process) else { return Ok(()) };
    left.remove();
    let what = left
        .failure
        .clone()
        .unwrap_or_else(|| format!("process {} ended before it had stored everything", entry.process.pid));
    Err(CliError::new(what).at(log_of(entry)))
}

/// Why the process has not ended yet.
struct State {
    holders: Holders,
    /// `None` if the process does not answer.
    statistics: Option<Statistics>,
}

impl State {
    fn read(entry: &Entry) -> State {
        let mut holders = Holders::find(entry.device);
        // The serving process is not a holder: while it ends, it closes the files of its own mount that it
        // has open, if any.
        holders.users.retain(|user| user.pid != entry.process.pid && user.pid != std::process::id());
        State { holders, statistics: Statistics::query(entry).ok() }
    }

    /// Numbers that change while data is being stored.
    fn progress(&self) -> Option<(u64, u64, u64)> {
        let statistics = self.statistics.as_ref()?;
        let uploads = statistics.pending.clone().unwrap_or_default();
        Some((statistics.unstored_bytes, uploads.blocks, uploads.uploaded))
    }

    /// Describes the data that is not in the store yet.
    fn pending(&self) -> String {
        let Some(statistics) = &self.statistics else {
            return "it does not answer whether data waits to be stored".to_owned();
        };
        let uploads = statistics.pending.clone().unwrap_or_default();
        let mut parts = Vec::new();
        if statistics.unstored_bytes > 0 {
            parts.push(format!("{} are not stored yet", show_size(statistics.unstored_bytes)));
        }
        if uploads.blocks > 0 {
            let size = show_size(uploads.bytes);
            let why = uploads.error.map(|error| format!(" ({error})")).unwrap_or_default();
            parts.push(format!(
                "{} of {size} {} upload{why}",
                counted(uploads.blocks, "block", "blocks"),
                plural(uploads.blocks, "waits for its", "wait for their")
            ));
        }
        if parts.is_empty() { "no data waits to be stored".to_owned() } else { parts.join(", ") }
    }

    fn error(&self, entry: &Entry, force: bool) -> CliError {
        let pid = entry.process.pid;
        if let Some(first) = self.holders.first().first() {
            let advice = match &first.how {
                How::Namespace(place) => {
                    let place = place.display();
                    format!(
                        "end process {0}, or unmount it there: nsenter -t {0} -m umount {place}",
                        first.pid
                    )
                }
                _ => format!("end process {}; then the mount ends by itself", first.pid),
            };
            return CliError::new(self).at(entry.mountpoint.display()).advise(advice).with_code(NOT_ENDED);
        }
        let what = format!("unmounted here, but process {pid} does not end: {}", self.pending());
        let advice = match force {
            true => format!("read its log; kill -KILL {pid} ends it in any case"),
            false if self.holders.some_hidden && !rustix::process::geteuid().is_root() => {
                "run limen umount as root to see whether other processes hold the mount; run it again to continue to wait"
                    .to_owned()
            }
            false => "read its log, and run limen umount again to continue to wait".to_owned(),
        };
        CliError::new(what).at(log_of(entry)).advise(advice).with_code(NOT_ENDED)
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

fn umount_error(error: Error, device: Option<u64>) -> CliError {
    match error {
        Error::Busy(path) => {
            let mut users = device.map(Holders::find).unwrap_or_default().users;
            users.retain(|user| user.pid != std::process::id());
            let (what, end) = match users.as_slice() {
                [] => (
                    "a program has a file open there, or another file system is mounted below".to_owned(),
                    "end it",
                ),
                users => (holders::list(users), "end the programs that use it"),
            };
            CliError::new(format!("the mount is in use: {what}"))
                .at(path.display())
                .advise(format!("{end}, or detach the mount with limen umount -l"))
        }
        Error::NotMounted(path) => CliError::new("no limenfs volume is mounted here").at(path.display()),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use chunk::Pending;
    use command::process::Process;

    use super::*;
    use crate::holders::Holder;

    #[test]
    fn messages_name_what_umount_waits_for() {
        let entry = Entry {
            device: 1,
            mountpoint: "/mnt".into(),
            url: "sqlite:///v.db".into(),
            volume: "v".into(),
            process: Process { pid: 7, started: 1 },
            registered: 0,
            log: None,
            ids: String::new(),
            failure: None,
        };
        let mut state = State { holders: Holders::default(), statistics: Some(Statistics::default()) };
        let said = state.error(&entry, false);
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
        let said = state.error(&entry, false);
        let parts =
            ["unmounted here; process 9 (smbd) still holds it", "4.0 KiB", "nsenter -t 9 -m umount /mnt"];
        assert!(parts.iter().all(|part| said.to_string().contains(part)), "{said}");
        state.statistics = None;
        assert!(state.to_string().ends_with("it does not answer whether data waits to be stored"));
    }
}
