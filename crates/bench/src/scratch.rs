//! The scratch directory of a benchmark, and the mount that it is on.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output;
use command::output::ProgressBar;
use command::remove::remove;
use command::statistics::Statistics;

use crate::load::Load;
use crate::probe::Probe;
use crate::suite::{self, Sample};

/// Threads that remove the scratch directory.
const CLEANERS: usize = 8;
/// A mount collects the garbage of removed files every three seconds. If the mount makes almost no requests
/// to its engine for longer than that, it has finished.
const SETTLED_AFTER: Duration = Duration::from_secs(4);
/// The maximum number of round trips of an idle mount in [`SETTLED_AFTER`]: a heartbeat, and queries of
/// housekeeping that find nothing.
const IDLE_ROUND_TRIPS: u64 = 4;
/// The maximum time to wait for the mount to be idle. Other programs may use the mount all the time.
const MAX_SETTLE: Duration = Duration::from_secs(120);

/// A scratch directory below the path to measure. Dropping it removes the directory.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
    pub(crate) probe: Probe,
}

impl Scratch {
    /// Creates a scratch directory in `path`.
    ///
    /// # Errors
    /// `path` is not a directory, or not writable.
    pub(crate) fn make(path: &Path) -> Result<Self, CliError> {
        let make = || {
            let scratch = fs::canonicalize(path)?.join(format!(".limen-bench.{}", std::process::id()));
            fs::DirBuilder::new().mode(0o700).create(&scratch)?;
            let device = fs::metadata(&scratch)?.dev();
            Ok::<_, std::io::Error>((scratch, device))
        };
        let (scratch, device) = make()
            .what("cannot create a directory here")
            .at(path.display())
            .advise("name a directory that you can write to")?;
        Ok(Scratch { dir: scratch, probe: Probe::find(device) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Removes a tree in the scratch directory.
    ///
    /// # Errors
    /// A file or directory cannot be removed.
    pub(crate) fn remove(&self, dir: &Path) -> Result<(), CliError> {
        clean(dir)
    }

    /// Waits until the mount is idle, because removing earlier data would slow down the next measurement.
    ///
    /// # Errors
    /// The mount no longer answers; the user interrupted the command.
    pub(crate) fn settle(&self, interrupt: &Interrupt) -> Result<(), CliError> {
        let until = Instant::now() + MAX_SETTLE;
        while let Some(before) = self.probe.ask()? {
            let asked = Instant::now();
            while asked.elapsed() < SETTLED_AFTER {
                interrupt.check()?;
                thread::sleep(Duration::from_millis(50));
            }
            let is_idle = |after: Statistics| (&after - &before).engine.round_trips() <= IDLE_ROUND_TRIPS;
            if Instant::now() >= until || self.probe.ask()?.is_none_or(is_idle) {
                break;
            }
        }
        Ok(())
    }

    /// Runs a round in a new directory. `prepare` is called with the directory while it is empty.
    ///
    /// # Errors
    /// Those of [`suite::round`] and of `prepare`.
    pub(crate) fn round(
        &self,
        name: &str,
        load: &Load,
        bar: &ProgressBar,
        interrupt: &Interrupt,
        prepare: impl FnOnce(&Path) -> Result<(), CliError>,
    ) -> Result<Vec<Sample>, CliError> {
        let dir = self.dir.join(name);
        fs::create_dir(&dir).at(dir.display())?;
        let samples = prepare(&dir).and_then(|()| suite::round(&dir, load, &self.probe, bar, interrupt));
        bar.inc(1);
        clean(&dir).and(samples)
    }

    /// Runs a small round that is not measured, so that the mount and the kernel do their one-time work
    /// before the measurement.
    ///
    /// # Errors
    /// Those of [`Scratch::round`].
    pub(crate) fn warm_up(&self, load: &Load, interrupt: &Interrupt) -> Result<(), CliError> {
        let few = Load { files: load.files.min(100 * load.threads), ..load.clone() };
        self.round("warm-up", &few, &ProgressBar::hidden(), interrupt, |_| Ok(())).map(drop)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = clean(&self.dir) {
            output::note(error);
        }
    }
}

fn clean(path: &Path) -> Result<(), CliError> {
    let removed = remove(path, CLEANERS, &ProgressBar::hidden(), &|| false)?;
    match removed.failures.first() {
        None => Ok(()),
        Some((path, error)) => Err(CliError::new(format!("cannot clean up: {error}")).at(path.display())),
    }
}
