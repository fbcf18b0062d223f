//! One round: all threads run each operation together; clocks and counters are read before and after it.

use std::ops::Range;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output::ProgressBar;
use command::remove::remove;
use command::statistics::Statistics;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::load::Load;
use crate::ops::{Op, Share};
use crate::probe::Probe;

/// The result of one operation in one round.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) op: Op,
    pub(crate) count: u64,
    /// The time from the start of the first thread to the end of the last one.
    pub(crate) wall: Duration,
    /// The CPU time of the threads.
    pub(crate) cpu: Duration,
    /// The mount's statistics for that time, if it serves them.
    pub(crate) mount: Option<Statistics>,
}

/// Runs a round in `dir`. Operations that fail with EOPNOTSUPP are left out.
///
/// # Errors
/// An operation failed, or the user interrupted the command.
pub(crate) fn round(
    dir: &Path,
    load: &Load,
    probe: &Probe,
    bar: &ProgressBar,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, CliError> {
    let mut shares = Vec::with_capacity(load.threads);
    for thread in 0..load.threads {
        // The first threads take the remainder, one file each.
        let files = load.files / load.threads + usize::from(thread < load.files % load.threads);
        shares.push(Share::prepare(dir.join(thread.to_string()), files).at(dir.display())?);
    }
    let asked = load.ops();
    let mut samples = Vec::with_capacity(asked.len());
    let mut renamed = false;
    for &op in Op::value_variants() {
        if !asked.contains(&op) && !op.is_needed_by(&asked) {
            continue;
        }
        interrupt.check()?;
        bar.set_message(op.name());
        if op == Op::Delete && asked.contains(&Op::Hardlink) {
            remove_links(&shares, interrupt)?;
        }
        let sample = phase(op, &shares, renamed, probe, interrupt);
        interrupt.check()?;
        samples.extend(sample.at(dir.display())?.filter(|_| asked.contains(&op)));
        renamed |= op == Op::Rename;
    }
    Ok(samples)
}

/// Runs an operation with all threads; `None` if it fails with EOPNOTSUPP.
fn phase(
    op: Op,
    shares: &[Share],
    renamed: bool,
    probe: &Probe,
    interrupt: &Interrupt,
) -> Result<Option<Sample>, CliError> {
    let barrier = Barrier::new(shares.len());
    let work = |share: &Share| {
        barrier.wait();
        let (begun, cpu) = (Instant::now(), thread_cpu());
        let outcome = share.run(op, renamed, &|| interrupt.is_set());
        (begun..Instant::now(), thread_cpu().saturating_sub(cpu), outcome)
    };
    let before = probe.ask()?;
    let done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = shares.iter().map(|share| scope.spawn(|| work(share))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let after = probe.ask()?;

    let mut count = 0;
    for (_, _, outcome) in &done {
        count += match outcome {
            Err(Errno::OPNOTSUPP) => return Ok(None),
            outcome => outcome.what(format!("cannot {}", op.name()))?,
        };
    }
    let wall = wall(done.iter().map(|(time, ..)| time));
    let cpu = done.iter().map(|(_, cpu, _)| *cpu).sum();
    let mount = before.zip(after).map(|(before, after)| &after - &before);
    Ok(Some(Sample { op, count, wall, cpu, mount }))
}

/// The time from the start of the first thread to the end of the last thread.
pub(crate) fn wall<'t>(threads: impl Iterator<Item = &'t Range<Instant>> + Clone) -> Duration {
    let begun = threads.clone().map(|time| time.start).min();
    let ended = threads.map(|time| time.end).max();
    begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun)
}

fn remove_links(shares: &[Share], interrupt: &Interrupt) -> Result<(), CliError> {
    for share in shares {
        let hidden = ProgressBar::hidden();
        let removed = remove(&share.links(), shares.len(), &hidden, &|| interrupt.is_set())?;
        if let Some((path, error)) = removed.failures.first() {
            return Err(CliError::new(format!("cannot remove a link: {error}")).at(path.display()));
        }
    }
    Ok(())
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
