//! `limen umount`: takes a mount away, and returns when its process has stored everything.

use std::path::Path;
use std::time::{Duration, Instant};

use fuse::{Error, UnmountMode};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::args::UmountArgs;
use crate::fault::Fault;
use crate::output;
use crate::paths;
use crate::registry::{self, Entry};

/// After this the person is told what is being waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// With `--force`, a process that does not end is left to itself after this.
const FORCED_PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(args: &UmountArgs) -> Result<(), Fault> {
    let mountpoint = paths::mountpoint(&args.mountpoint)?;
    let entries = registry::by_mountpoint(&mountpoint);
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
            Some(entry) => wait(entry, args.force),
            None => {
                output::note("its process is not known here: it may still be storing data");
                Ok(())
            }
        },
        // Unmounted by other means, or lazily: there may still be something to wait for.
        Err(Error::NotMounted(path)) => match entries.iter().find(|entry| entry.process.is_alive()) {
            Some(entry) => wait(entry, args.force),
            None => Err(fault(Error::NotMounted(path))),
        },
        Err(error) => Err(fault(error)),
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

/// Waits for a process that has nothing to serve any more, and says whether it has stored everything.
fn wait(entry: &Entry, force: bool) -> Result<(), Fault> {
    let begun = Instant::now();
    let pid = entry.process.pid;
    let mut told = false;
    while !entry.process.wait_end(PATIENCE) {
        if force && begun.elapsed() >= FORCED_PATIENCE {
            return Err(Fault::new(format!(
                "process {pid} does not end, and may not have stored everything"
            ))
            .at(log_of(entry))
            .advise(format!("look into its log; kill -KILL {pid} ends it for sure")));
        }
        if !told && begun.elapsed() >= PATIENCE {
            output::note(format!("waiting for process {pid} to store the rest"));
            told = true;
        }
    }
    // A process that ended as it should has taken its entry away.
    let left = registry::by_mountpoint(&entry.mountpoint);
    let Some(left) = left.into_iter().find(|left| left.process == entry.process) else { return Ok(()) };
    left.remove();
    let what = left
        .failure
        .clone()
        .unwrap_or_else(|| format!("process {pid} ended before it had stored everything"));
    Err(Fault::new(what).at(log_of(entry)))
}

fn log_of(entry: &Entry) -> String {
    entry
        .log
        .as_ref()
        .map_or_else(|| entry.mountpoint.display().to_string(), |log| format!("log {}", log.display()))
}

fn fault(error: Error) -> Fault {
    match error {
        Error::Busy(path) => {
            Fault::new("the mount is in use: a program has a file open or its directory there")
                .at(path.display())
                .advise(
                    "end it (fuser -vm shows it), or take the mount out of its sight with limen umount -l",
                )
        }
        Error::NotMounted(path) => Fault::new("no limenfs volume is mounted here").at(path.display()),
        error => error.into(),
    }
}

/// `st_dev` of what is mounted at `path`, without asking its server.
fn device_of(path: &Path) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE).ok()?;
    Some(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor))
}
