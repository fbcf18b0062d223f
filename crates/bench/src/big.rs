//! `limen bench --big`: writes and reads one big file sequentially, alternately on the measured mount and on
//! the file system that holds the objects of the mount's volume.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use chunk::{FILE, StorageConfig};
use command::error::CliError;
use command::interrupt::Interrupt;
use command::output::{self, Columns};
use command::statistics::own_cpu;
use command::units::show_size;
use meta::Volume;
use rustix::fs::{Advice, fadvise};
use serde_json::{Value, json};

use crate::figure::figure;
use crate::scratch::Scratch;
use crate::series::Spread;

/// The size of one write(2) or read(2).
const STEP_BYTES: usize = 1 << 20;
/// The length of the data pattern. It is longer than a block, so that no block contains a repetition that
/// compression could use.
const PATTERN_BYTES: usize = 8 << 20;

/// Reads the settings of the volume with a metadata URL; `None` for a volume in memory, which only its own
/// mount can open.
pub type VolumeOf<'a> = &'a dyn Fn(&str) -> Result<Option<Volume>, CliError>;

/// The times of all rounds.
#[derive(Debug)]
pub(crate) struct Big {
    bytes: u64,
    /// The file on the measured mount.
    here: Figures,
    /// The directory to compare with, and the times of the file there.
    store: Option<(PathBuf, Figures)>,
}

/// The times of one file, one element per round.
#[derive(Debug, Default)]
struct Figures {
    write: Vec<Pass>,
    read: Vec<Pass>,
}

/// The times of one write or read of the whole file.
#[derive(Clone, Copy, Debug)]
struct Pass {
    wall: Duration,
    /// The CPU time of this process.
    cpu: Duration,
    /// The CPU time of the process that serves the mount; zero on another file system.
    mount_cpu: Duration,
}

/// Runs all rounds, and compares with a file in the directory `store`; if that is `None`, in the directory
/// that [`parent_of`] returns for the bucket of the mount's volume.
///
/// # Errors
/// The file system fails, or the user interrupted the command.
pub(crate) fn run(
    scratch: &Scratch,
    bytes: u64,
    store: Option<&Path>,
    volume_of: VolumeOf<'_>,
    rounds: usize,
    interrupt: &Interrupt,
) -> Result<Big, CliError> {
    let buckets = buckets(scratch, volume_of)?;
    let other = match (store, buckets.first()) {
        (Some(store), _) => Some(Scratch::make(store)?),
        (None, Some(bucket)) => Some(Scratch::make(&parent_of(bucket))?),
        (None, None) => {
            output::note("there is nothing to compare the big file with: name a directory with --store");
            None
        }
    };
    let mut big = Big { bytes, here: Figures::default(), store: None };
    let mut there = Figures::default();
    let bar = output::steps(rounds as u64 * (1 + u64::from(other.is_some())));
    let pattern = pattern();
    for _ in 0..rounds {
        let begun = SystemTime::now();
        let forget = || buckets.iter().try_for_each(|bucket| forget_objects(bucket, begun));
        bar.set_message("big file");
        pass(scratch, bytes, &pattern, &mut big.here, &forget, interrupt)?;
        bar.inc(1);
        if let Some(other) = &other {
            pass(other, bytes, &pattern, &mut there, &|| Ok(()), interrupt)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    big.store = other.map(|other| (other.path().parent().unwrap_or(other.path()).to_owned(), there));
    Ok(big)
}

/// Writes the file and calls fsync(2), drops the file from the kernel's cache and calls `forget`, then reads
/// and removes the file.
fn pass(
    scratch: &Scratch,
    bytes: u64,
    pattern: &[u8],
    figures: &mut Figures,
    forget: &dyn Fn() -> io::Result<()>,
    interrupt: &Interrupt,
) -> Result<(), CliError> {
    let path = scratch.path().join("big");
    let fail = |error: io::Error| match interrupt.check() {
        Err(failed) => failed,
        Ok(()) => CliError::new(format!("cannot write or read the big file: {error}")).at(path.display()),
    };
    let timed = |work: &mut dyn FnMut() -> io::Result<()>| -> Result<Pass, CliError> {
        let before = (Instant::now(), own_cpu(), scratch.probe.ask()?);
        work().map_err(fail)?;
        let wall = before.0.elapsed();
        let mount = before.2.zip(scratch.probe.ask()?);
        let mount_cpu = mount.map_or(Duration::ZERO, |(before, after)| after.cpu.saturating_sub(before.cpu));
        Ok(Pass { wall, cpu: own_cpu().saturating_sub(before.1), mount_cpu })
    };
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(fail)?;
    figures.write.push(timed(&mut || {
        let mut steps = pattern.chunks_exact(STEP_BYTES).cycle();
        let mut left = bytes;
        while left > 0 && !interrupt.is_set() {
            let step = steps.next().unwrap_or_default();
            let step = &step[..step.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            file.write_all(step)?;
            left -= step.len() as u64;
        }
        file.sync_all()
    })?);
    drop(file);
    let mut file = File::open(&path).map_err(fail)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| fail(error.into()))?;
    forget().map_err(fail)?;
    let mut read = 0;
    let mut buffer = vec![0; STEP_BYTES];
    figures.read.push(timed(&mut || {
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                _ if interrupt.is_set() => return Ok(()),
                some => read += some as u64,
            }
        }
    })?);
    interrupt.check()?;
    if read != bytes {
        return Err(CliError::new(format!("wrote {bytes} bytes, but read {read}")).at(path.display()));
    }
    fs::remove_file(&path).map_err(fail)
}

/// The directories of the objects, if `scratch` is on a limenfs mount and its volume stores them in
/// directories that exist on this machine; otherwise none.
fn buckets(scratch: &Scratch, volume_of: VolumeOf<'_>) -> Result<Vec<PathBuf>, CliError> {
    let Some(entry) = scratch.probe.entry() else { return Ok(Vec::new()) };
    let Some(volume) = volume_of(&entry.url)? else { return Ok(Vec::new()) };
    let store = StorageConfig { storage: volume.storage, bucket: volume.bucket };
    let buckets: Vec<PathBuf> = store.buckets()?.into_iter().map(PathBuf::from).collect();
    let is_here = store.storage == FILE && buckets.iter().all(|bucket| bucket.is_dir());
    Ok(if is_here { buckets } else { Vec::new() })
}

/// The bucket's parent directory, if it is on the same file system; otherwise the bucket itself.
fn parent_of(bucket: &Path) -> PathBuf {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    match bucket.parent() {
        Some(parent) if device(parent) == device(bucket) => parent.to_owned(),
        _ => bucket.to_owned(),
    }
}

/// Drops the objects that were stored since `begun` from the kernel's cache, so that they are read from the
/// disk.
fn forget_objects(dir: &Path, begun: SystemTime) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // The mount has removed the object in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        if metadata.is_dir() {
            forget_objects(&entry.path(), begun)?;
        } else if metadata.is_file() && metadata.modified()? >= begun {
            let Ok(object) = File::open(entry.path()) else { continue };
            fadvise(&object, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// Pseudo-random bytes (xorshift64).
fn pattern() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(PATTERN_BYTES);
    while bytes.len() < PATTERN_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

impl Big {
    pub(crate) fn to_text(&self) -> String {
        let mut columns = Columns::new(
            1,
            &[
                &format!("a file of {}", show_size(self.bytes)),
                "MiB/s",
                "min",
                "max",
                "CPU ms/MiB",
                "mount ms/MiB",
            ],
        );
        let mut line = |label: String, passes: &[Pass]| {
            let Spread { median, min, max } = self.rates(passes);
            let cpu = self.per_mib(passes, |pass| pass.cpu);
            let mount = self.per_mib(passes, |pass| pass.mount_cpu);
            let figures = [median, min, max, cpu, mount].map(figure);
            columns.line(std::iter::once(label).chain(figures));
        };
        line("write and fsync".into(), &self.here.write);
        line("read".into(), &self.here.read);
        if let Some((dir, there)) = &self.store {
            line(format!("write and fsync in {}", dir.display()), &there.write);
            line(format!("read in {}", dir.display()), &there.read);
        }
        let mut text = columns.render();
        if let Some((_, there)) = &self.store {
            let [write, read] = self.shares(there).map(|share| figure(share.median));
            text += &format!("share: write {write} %, read {read} %\n");
        }
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        let figures = |passes: &[Pass]| {
            json!({
                "mib_per_s": self.rates(passes).to_json(),
                "cpu_ms_per_mib": self.per_mib(passes, |pass| pass.cpu),
                "mount_cpu_ms_per_mib": self.per_mib(passes, |pass| pass.mount_cpu),
            })
        };
        let both = |all: &Figures| json!({ "write": figures(&all.write), "read": figures(&all.read) });
        let mut value = both(&self.here);
        value["bytes"] = self.bytes.into();
        if let Some((dir, there)) = &self.store {
            let [write, read] = self.shares(there);
            value["store"] = both(there);
            value["store"]["dir"] = dir.to_string_lossy().into();
            value["share_pct"] = json!({ "write": write.to_json(), "read": read.to_json() });
        }
        value
    }

    fn mib(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20)
    }

    fn rates(&self, passes: &[Pass]) -> Spread {
        Spread::of(passes.iter().map(|pass| self.mib() / pass.wall.as_secs_f64().max(1e-9)))
    }

    fn per_mib(&self, passes: &[Pass], of: impl Fn(&Pass) -> Duration) -> f64 {
        let each = passes.iter().map(|pass| of(pass).as_secs_f64() * 1e3 / self.mib().max(1e-9));
        Spread::of(each).median
    }

    /// The speed here as a percentage of the speed there, round by round: first of the write, then of the
    /// read.
    fn shares(&self, there: &Figures) -> [Spread; 2] {
        let share = |here: &[Pass], there: &[Pass]| {
            let pairs = here.iter().zip(there);
            Spread::of(pairs.map(|(here, there)| 100.0 * there.wall.as_secs_f64() / here.wall.as_secs_f64()))
        };
        [share(&self.here.write, &there.write), share(&self.here.read, &there.read)]
    }
}
