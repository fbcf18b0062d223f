//! A differential tester. It makes random system calls as several users, each call in two directories, and
//! compares everything that a program can see. One directory is on the file system under test, the other on a
//! file system of Linux (ext4 or tmpfs, mounted noatime).
//!
//! ```text
//! difftest --tested DIR --reference DIR [--steps N] [--seed N] [--episode N] [--length N]
//! ```
//!
//! Steps run in episodes, each in new directories and from its own seed. If something differs, the seed is
//! printed, and the steps of that episode are reduced to those that matter and printed as a script.
//!
//! - [`step`]: the possible steps, and how they are printed
//! - [`generate`]: the next step, from a seed and the existing names
//! - [`side`]: one directory, in which steps are executed
//! - [`observe`]: the visible state of a file, and how two states differ
//! - [`known`]: the documented differences, each with its reason
//! - [`episode`]: steps on both sides, compared
//! - [`shrink`]: fewer steps that still differ

mod episode;
mod generate;
mod known;
mod observe;
mod random;
mod shrink;
mod side;
mod step;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::StatVfsMountFlags;

use crate::episode::{Difference, Episode, Pair};
use crate::step::Step;

/// The time limit of shrinking. The steps that are left then are printed.
const SHRINK_FOR: Duration = Duration::from_secs(90);

#[derive(Debug)]
struct Options {
    tested: PathBuf,
    reference: PathBuf,
    steps: u64,
    seed: u64,
    /// Runs only this episode of the seed.
    episode: Option<u64>,
    /// Steps per episode.
    length: u64,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!(
                "difftest: {message}\nusage: difftest --tested DIR --reference DIR [--steps N] [--seed N] [--episode N] \
                 [--length N]"
            );
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("difftest: {message}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    let (mut tested, mut reference, mut episode) = (None, None, None);
    let (mut steps, mut seed, mut length) = (20_000, clock % 1_000_000, 1_000);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} takes a number, not {value}"));
        match name.as_str() {
            "--tested" => tested = Some(PathBuf::from(&value)),
            "--reference" => reference = Some(PathBuf::from(&value)),
            "--steps" => steps = number()?,
            "--seed" => seed = number()?,
            "--episode" => episode = Some(number()?),
            "--length" => length = number()?.clamp(1, 100_000),
            _ => return Err(format!("unknown option '{name}'")),
        }
    }
    let tested = tested.ok_or("--tested is missing")?;
    let reference = reference.ok_or("--reference is missing")?;
    Ok(Options { tested, reference, steps, seed, episode, length })
}

/// Whether no difference was found.
fn run(options: &Options) -> Result<bool, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("this must run as root: it acts as several users".to_owned());
    }
    let reference = options.reference.display();
    let stat = rustix::fs::statvfs(&options.reference)
        .map_err(|error| format!("cannot read the mount options of {reference}: {error}"))?;
    if !stat.f_flag.contains(StatVfsMountFlags::NOATIME) {
        return Err(format!("{reference} is not mounted noatime; remount it with -o noatime"));
    }
    let Options { seed, length, .. } = *options;
    let (first, end) = match options.episode {
        Some(episode) => (episode, episode + 1),
        None => (0, options.steps.div_ceil(length)),
    };
    println!("seed {seed}: {} episodes of {length} steps", end - first);
    let started = Instant::now();
    let mut printed = started;
    for number in first..end {
        if let Err(failure) = one_episode(&options.tested, &options.reference, seed, number, length)? {
            report(options, number, &failure)?;
            return Ok(false);
        }
        if printed.elapsed() > Duration::from_secs(60) {
            printed = Instant::now();
            println!("{} steps, {} s", (number + 1 - first) * length, started.elapsed().as_secs());
        }
    }
    let (steps, seconds) = ((end - first) * length, started.elapsed().as_secs_f64());
    println!(
        "seed {seed}: {steps} steps without a difference in {seconds:.1} s, {:.0} steps/s",
        steps as f64 / seconds
    );
    Ok(true)
}

/// The steps up to the one after which something differed.
#[derive(Debug)]
struct Failure {
    steps: Vec<Step>,
    difference: Difference,
}

fn one_episode(
    tested: &Path,
    reference: &Path,
    seed: u64,
    number: u64,
    length: u64,
) -> Result<Result<(), Failure>, String> {
    let mut episode = Episode::new(Pair::create(tested, reference)?, random::mix(seed, number))
        .map_err(|e| e.to_string())?;
    let mut steps = Vec::new();
    for _ in 0..length {
        let step = episode.next();
        steps.push(step.clone());
        if let Err(difference) = episode.step(&step) {
            return Ok(Err(Failure { steps, difference }));
        }
    }
    Ok(episode.compare_everything().map_err(|difference| Failure { steps, difference }))
}

fn report(options: &Options, number: u64, failure: &Failure) -> Result<(), String> {
    let Options { seed, length, .. } = *options;
    println!("DIFFERENCE in seed {seed}, episode {number}, after step {}:", failure.steps.len());
    println!("  {}", failure.difference);
    println!("repeat with: --seed {seed} --episode {number} --length {length}");
    let interval = episode::interval_of(random::mix(seed, number));
    let deadline = Instant::now() + SHRINK_FOR;
    let fails = |steps: &[Step]| -> Result<Option<Difference>, String> {
        if Instant::now() > deadline {
            return Ok(None);
        }
        let pair = Pair::create(&options.tested, &options.reference)?;
        Ok(Episode::replay(pair, steps, interval).err())
    };
    match shrink::shrink(&failure.steps, fails)? {
        None => {
            println!(
                "a replay of the same steps did not differ, so the difference depends on timing. All steps:"
            );
            failure.steps.iter().for_each(|step| println!("  {step}"));
        }
        Some((steps, difference)) => {
            println!("shrunk from {} steps to {}:", failure.steps.len(), steps.len());
            for step in &steps {
                println!("  {step}");
            }
            println!("  # {difference}");
        }
    }
    Ok(())
}
