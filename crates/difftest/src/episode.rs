//! Executes steps on both sides. After each step, compares what the step affects; after a number of steps,
//! compares everything.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::generate::Generator;
use crate::known::{self, Abilities};
use crate::observe::{self, Clock, Observation};
use crate::random::Random;
use crate::side::{self, Outcome, Side};
use crate::step::{At, Call, RelativePath, SLOTS, Step};

/// The content of files up to this size is compared after each step; larger files wait for the full
/// comparison.
const AT_ONCE_BYTES: i64 = 64 << 10;

/// New directories, one on each file system; removed at the end.
#[derive(Debug)]
pub(crate) struct Pair {
    tested: Side,
    reference: Side,
    parents: [PathBuf; 2],
    abilities: Abilities,
}

impl Pair {
    pub(crate) fn create(tested: &Path, reference: &Path) -> Result<Self, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("difftest-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        rustix::process::umask(Mode::empty());
        let make = |parent: &Path| -> Result<(PathBuf, Side), String> {
            let outer = parent.join(&name);
            // A path may lead one level above the top: `a/..` does if `a` is a symbolic link to `.`. It then
            // ends in the outer directory.
            for (path, mode) in [(outer.clone(), 0o755), (outer.join("top"), 0o777)] {
                rustix::fs::mkdir(&path, Mode::from_raw_mode(mode))
                    .map_err(|error| format!("cannot create directory {}: {error}", path.display()))?;
            }
            Ok((outer.clone(), Side::new(outer.join("top"))))
        };
        let ((tested_outer, tested), (reference_outer, reference)) = (make(tested)?, make(reference)?);
        let abilities = Abilities::of(&tested_outer, &reference_outer).map_err(|error| {
            format!("cannot probe {} and {}: {error}", tested_outer.display(), reference_outer.display())
        })?;
        Ok(Pair { tested, reference, parents: [tested_outer, reference_outer], abilities })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.tested.slots = Default::default();
        self.reference.slots = Default::default();
        for parent in &self.parents {
            if let Err(error) = side::remove(parent) {
                eprintln!("difftest: cannot remove {}: {error}", parent.display());
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Difference {
    what: String,
    step: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some(step) => write!(f, "{step}: {}", self.what),
            None => write!(f, "{}", self.what),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Episode {
    pair: Pair,
    generator: Generator,
    /// Steps between two full comparisons.
    interval: u64,
    made: u64,
    live: Vec<RelativePath>,
    /// The times of each file when it was last compared, by its inode numbers on both sides.
    seen: HashMap<(u64, u64), Observation>,
    /// Whether the last step may update ctime on one side only: see [`known::ctime_is_free`].
    ctime_is_free: bool,
    clock: Clock,
}

/// The number of steps between two full comparisons, 5 to 80. They are frequent enough to tell which steps
/// cause a difference, and rare enough that the caches of the tested side matter.
pub(crate) fn interval_of(seed: u64) -> u64 {
    5 << Random::new(seed).below(5)
}

impl Episode {
    pub(crate) fn new(pair: Pair, seed: u64) -> Result<Self, Errno> {
        let generator = Generator::new(seed, pair.abilities);
        let clock = Clock { began: (now_ns() / 1_000_000_000) as i64, grain_ns: pair.abilities.grain_ns };
        let live = Vec::new();
        Ok(Episode {
            pair,
            generator,
            interval: interval_of(seed),
            made: 0,
            live,
            seen: HashMap::new(),
            ctime_is_free: false,
            clock,
        })
    }

    /// Executes these steps on new directories.
    pub(crate) fn replay(pair: Pair, steps: &[Step], interval: u64) -> Result<(), Difference> {
        let fresh = |error: Errno| Difference { what: error.to_string(), step: None };
        let mut episode = Episode::new(pair, 0).map_err(fresh)?;
        episode.interval = interval;
        for step in steps {
            episode.step(step)?;
        }
        episode.compare_everything()
    }

    pub(crate) fn next(&mut self) -> Step {
        self.generator.step(&self.live)
    }

    /// Executes one step on both sides and compares the results, and the files that it affects.
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), Difference> {
        self.made += 1;
        self.compare_step(step).map_err(|what| Difference { what, step: Some(step.to_string()) })?;
        if self.made.is_multiple_of(self.interval) {
            self.compare_everything().map_err(|mut difference| {
                difference.step = Some(format!("full comparison after {step}"));
                difference
            })?;
        }
        Ok(())
    }

    fn compare_step(&mut self, step: &Step) -> Result<(), String> {
        self.ctime_is_free = known::ctime_is_free(&step.call);
        let reference = &self.pair.reference;
        if known::avoid(step, |at| stat_of(reference, at)) {
            return Ok(());
        }
        let expected = self.pair.reference.execute(step);
        let tested = self.pair.tested.execute(step);
        let content = |slot: usize, offset: u64| content_from(&self.pair.reference, slot, offset);
        if !known::same(&step.call, &tested, &expected, content) {
            return Err(format!("returned {tested:?}, expected {expected:?}"));
        }
        if expected == Outcome::Nothing {
            return Ok(());
        }
        for rel_path in step.call.rel_paths() {
            self.compare_path(rel_path)?;
            if let Some(slash) = rel_path.0.iter().rposition(|byte| *byte == b'/') {
                self.compare_path(&RelativePath(rel_path.0[..slash].to_vec()))?;
            } else {
                self.compare_path(&RelativePath(Vec::new()))?;
            }
            if expected == Outcome::Done
                && !self.live.contains(rel_path)
                && self.live.len() < 200
                && rel_path.0.len() < 300
            {
                self.live.push(rel_path.clone());
            }
        }
        (0..SLOTS).try_for_each(|slot| self.compare_slot(slot, may_change(&step.call, slot)))
    }

    /// Compares everything below the top, and every open file.
    pub(crate) fn compare_everything(&mut self) -> Result<(), Difference> {
        self.walk().map_err(|what| Difference { what, step: None })
    }

    fn walk(&mut self) -> Result<(), String> {
        self.live.clear();
        let mut read = HashSet::new();
        let mut left = vec![RelativePath(Vec::new())];
        while let Some(rel_path) = left.pop() {
            self.compare_path(&rel_path)?;
            let (tested, reference) = (self.pair.tested.path(&rel_path), self.pair.reference.path(&rel_path));
            let here = |what: String| format!("{rel_path}: {what}");
            let stat = rustix::fs::lstat(&reference).map_err(|error| here(error.to_string()))?;
            if let Some(what) = observe::compare_xattrs(&tested, &reference, false) {
                return Err(here(what));
            }
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let (tested, reference) = (side::list(&tested), side::list(&reference));
                    if tested != reference {
                        let show = |list| format!("{:?}", outcome(list));
                        return Err(here(format!("lists {}, expected {}", show(tested), show(reference))));
                    }
                    let names = std::fs::read_dir(self.pair.reference.path(&rel_path))
                        .map_err(|e| here(e.to_string()))?;
                    for name in names {
                        let name = name.map_err(|error| here(error.to_string()))?.file_name();
                        let mut below = rel_path.0.clone();
                        if !below.is_empty() {
                            below.push(b'/');
                        }
                        below.extend_from_slice(std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str()));
                        left.push(RelativePath(below));
                    }
                }
                FileType::Symlink => {
                    let target = |path| rustix::fs::readlink(path, Vec::new());
                    let (tested, reference) = (target(&tested), target(&reference));
                    if tested != reference {
                        return Err(here(format!("points to {tested:?}, expected {reference:?}")));
                    }
                }
                // A file with several names is read once.
                FileType::RegularFile if read.insert(stat.st_ino) => {
                    if let Some(what) = observe::compare_content(&tested, &reference) {
                        return Err(here(what));
                    }
                }
                _ => {}
            }
            if !rel_path.0.is_empty() {
                self.live.push(rel_path);
            }
        }
        (0..SLOTS).try_for_each(|slot| self.compare_slot(slot, true))
    }

    /// Compares the attributes of a name, without and with following symbolic links.
    fn compare_path(&mut self, rel_path: &RelativePath) -> Result<(), String> {
        for flags in [AtFlags::SYMLINK_NOFOLLOW, AtFlags::empty()] {
            let stat = |side: &Side| rustix::fs::statat(CWD, side.path(rel_path), flags);
            let (tested, reference) = (stat(&self.pair.tested), stat(&self.pair.reference));
            match (tested, reference) {
                (Ok(tested), Ok(reference)) => {
                    self.compare_stats(&tested, &reference).map_err(|what| format!("{rel_path}: {what}"))?;
                    if FileType::from_raw_mode(reference.st_mode) != FileType::Symlink {
                        break;
                    }
                }
                (Err(tested), Err(reference)) if tested == reference => {}
                (tested, reference) => {
                    return Err(format!(
                        "{rel_path}: stat fails with {:?}, expected {:?}",
                        tested.err(),
                        reference.err()
                    ));
                }
            }
        }
        Ok(())
    }

    fn compare_slot(&mut self, slot: usize, deep: bool) -> Result<(), String> {
        let here = |what: String| format!("fd{slot}: {what}");
        let (tested, reference) = match (&self.pair.tested.slots[slot], &self.pair.reference.slots[slot]) {
            (Some(tested), Some(reference)) => (tested, reference),
            (None, None) => return Ok(()),
            (tested, _) => {
                return Err(here(if tested.is_some() { "is open" } else { "is not open" }.to_owned()));
            }
        };
        let stats = (rustix::fs::fstat(tested), rustix::fs::fstat(reference));
        let (Ok(tested_stat), Ok(reference_stat)) = stats else {
            return Err(here(format!("fstat fails with {:?}, expected {:?}", stats.0.err(), stats.1.err())));
        };
        let links = [side::proc_link(tested.as_fd()), side::proc_link(reference.as_fd())];
        if deep
            && known::has_content(&reference_stat)
            && reference_stat.st_size <= AT_ONCE_BYTES
            && let Some(what) = observe::compare_content(&links[0], &links[1])
        {
            return Err(here(what));
        }
        if deep
            && !known::is_unlinked(&reference_stat)
            && let Some(what) = observe::compare_xattrs(&links[0], &links[1], true)
        {
            return Err(here(what));
        }
        self.compare_stats(&tested_stat, &reference_stat).map_err(here)
    }

    fn compare_stats(&mut self, tested: &Stat, reference: &Stat) -> Result<(), String> {
        if let Some(what) = observe::attributes(tested, reference) {
            return Err(what);
        }
        let now = Observation {
            tested: observe::times(tested),
            reference: observe::times(reference),
            at_ns: now_ns(),
        };
        let then = self.seen.insert((tested.st_ino, reference.st_ino), now);
        if !known::has_times(reference) {
            return Ok(());
        }
        observe::moved(then, now, self.clock, self.ctime_is_free).map_or(Ok(()), Err)
    }
}

/// Whether a call may have changed the file in a slot.
fn may_change(call: &Call, slot: usize) -> bool {
    match call {
        Call::Open { slot: one, .. }
        | Call::Write { slot: one, .. }
        | Call::Pwrite { slot: one, .. }
        | Call::Truncate { slot: one, .. }
        | Call::Allocate { slot: one, .. }
        | Call::Copy { to: one, .. }
        | Call::Chmod { at: At::Slot(one), .. }
        | Call::Chown { at: At::Slot(one), .. }
        | Call::SetXattr { at: At::Slot(one), .. }
        | Call::RemoveXattr { at: At::Slot(one), .. } => *one == slot,
        _ => false,
    }
}

fn stat_of(side: &Side, at: &At) -> Option<Stat> {
    match at {
        At::Slot(slot) => rustix::fs::fstat(side.slots[*slot].as_ref()?).ok(),
        At::Path(rel_path, true) => rustix::fs::stat(side.path(rel_path)).ok(),
        At::Path(rel_path, false) => rustix::fs::lstat(side.path(rel_path)).ok(),
    }
}

/// The bytes of the file in a slot from `offset` on, however it was opened, and its size.
fn content_from(side: &Side, slot: usize, offset: u64) -> Option<(Vec<u8>, u64)> {
    let link = side::proc_link(side.slots[slot].as_ref()?.as_fd());
    let file =
        rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).ok()?;
    let size = rustix::fs::fstat(&file).ok()?.st_size as u64;
    let bytes = observe::read_at(file.as_fd(), offset, size.saturating_sub(offset) as usize).ok()?;
    Some((bytes, size))
}

fn now_ns() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}

fn outcome(names: Result<Vec<Vec<u8>>, Errno>) -> Outcome {
    names.map_or_else(Outcome::Failed, Outcome::Names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two directories of one file system do not differ. A change that was not made by a step is found.
    #[test]
    fn only_a_planted_difference_is_found() {
        if !skip::is_root() {
            return;
        }
        // Use a tmpfs, because it does not reuse inode numbers, by which the times are tracked.
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(place.path(), open).unwrap();
        let sides = [place.path().join("tested"), place.path().join("reference")];
        sides.iter().for_each(|side| std::fs::create_dir(side).unwrap());
        let mut episode = Episode::new(Pair::create(&sides[0], &sides[1]).unwrap(), 7).unwrap();
        for _ in 0..2_000 {
            let step = episode.next();
            episode.step(&step).unwrap();
        }
        episode.compare_everything().unwrap();
        let top = episode.pair.tested.path(&RelativePath(Vec::new()));
        std::fs::write(top.join("planted"), "x").unwrap();
        assert!(episode.compare_everything().is_err());
    }
}
