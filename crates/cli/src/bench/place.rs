//! Where a benchmark happens.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::args::Load;
use super::suite::{self, Sample};
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::output;
use crate::registry::{self, Entry};
use crate::rmr;
use crate::statistics::Statistics;

/// Threads that clean up.
const CLEANERS: usize = 8;
/// A mount collects what was removed every three seconds: one that asks its engine for next to nothing in so long has
/// collected it.
const SETTLED_AFTER: Duration = Duration::from_secs(4);
/// A heartbeat, and what is looked for and not found.
const IDLE_ROUND_TRIPS: u64 = 4;
/// Others may be at work on the mount; one does not wait for them.
const PATIENCE: Duration = Duration::from_secs(120);

/// A directory of its own below the path to measure; dropped, it is gone.
#[derive(Debug)]
pub(super) struct Place {
    scratch: PathBuf,
    pub(super) probe: Probe,
}

/// The way to ask the mount that the place is on.
#[derive(Debug)]
pub(super) struct Probe(Option<Entry>);

impl Place {
    /// # Errors
    /// `path` is no directory that one can write in.
    pub(super) fn make(path: &Path) -> Result<Self, Fault> {
        let fail = |error: std::io::Error| {
            Fault::new(format!("cannot work here: {error}"))
                .at(path.display())
                .advise("name a directory that you may write in")
        };
        let path = fs::canonicalize(path).map_err(fail)?;
        let scratch = path.join(format!(".limen-bench.{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&scratch).map_err(fail)?;
        let device = fs::metadata(&scratch).map_err(fail)?.dev();
        Ok(Place { scratch, probe: Probe::find(device) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.scratch
    }

    /// Removes a directory of this place with all that is in it.
    ///
    /// # Errors
    /// Something of it stays.
    pub(super) fn remove(&self, dir: &Path) -> Result<(), Fault> {
        clean(dir)
    }

    /// Waits until the mount does nothing of its own accord, so that what was removed does not slow what is measured next.
    ///
    /// # Errors
    /// The mount told what it does before, and does not any more; the person wants the command to end.
    pub(super) fn settle(&self, interrupt: &Interrupt) -> Result<(), Fault> {
        let until = Instant::now() + PATIENCE;
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

    /// A round in a directory of its own, which `prepare` may change before anything is made in it.
    ///
    /// # Errors
    /// Those of [`suite::round`] and of `prepare`.
    pub(super) fn round(
        &self,
        name: &str,
        load: &Load,
        bar: &ProgressBar,
        interrupt: &Interrupt,
        prepare: impl FnOnce(&Path) -> Result<(), Fault>,
    ) -> Result<Vec<Sample>, Fault> {
        let dir = self.scratch.join(name);
        fs::create_dir(&dir).map_err(|error| Fault::new(error).at(dir.display()))?;
        let samples = prepare(&dir).and_then(|()| suite::round(&dir, load, &self.probe, bar, interrupt));
        bar.inc(1);
        clean(&dir).and(samples)
    }

    /// A small round that is not measured: what a mount and the kernel do once is done then.
    ///
    /// # Errors
    /// Those of [`Place::round`].
    pub(super) fn warm_up(&self, load: &Load, interrupt: &Interrupt) -> Result<(), Fault> {
        let few = Load { files: load.files.min(100 * load.threads), ..load.clone() };
        self.round("warm-up", &few, &ProgressBar::hidden(), interrupt, |_| Ok(())).map(drop)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(fault) = clean(&self.scratch) {
            output::note(fault);
        }
    }
}

impl Probe {
    fn find(device: u64) -> Self {
        let entry = registry::by_device(device);
        let Some(entry) = entry else { return Probe(None) };
        match Statistics::ask(&entry) {
            Ok(_) => Probe(Some(entry)),
            Err(fault) => {
                output::note(fault);
                Probe(None)
            }
        }
    }

    /// The mount, if it is one of limenfs and tells what it does.
    pub(super) fn entry(&self) -> Option<&Entry> {
        self.0.as_ref()
    }

    /// # Errors
    /// The mount told before, and does not any more.
    pub(super) fn ask(&self) -> Result<Option<Statistics>, Fault> {
        self.0.as_ref().map(Statistics::ask).transpose()
    }
}

fn clean(path: &Path) -> Result<(), Fault> {
    let removed = rmr::remove(path, CLEANERS, &ProgressBar::hidden(), &|| false)?;
    match removed.failures.first() {
        None => Ok(()),
        Some((path, error)) => Err(Fault::new(format!("cannot clean up: {error}")).at(path.display())),
    }
}
