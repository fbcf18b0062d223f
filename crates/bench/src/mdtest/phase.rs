//! The phases: each runs one kind of operation on the whole tree, and reads the counters before and after.

use std::ops::Range;
use std::time::Duration;

use command::error::CliError;
use command::interrupt::Interrupt;
use command::output::ProgressBar;
use command::output::progress_of;
use command::statistics::own_cpu;
use meta::Counts;

use super::load::{self, Load};
use super::options::Counters;
use super::tree::Tree;

/// The result of a phase.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) name: &'static str,
    pub(super) count: u64,
    /// The time from the start of the first thread to the end of the last one, summed over the levels of
    /// directories.
    pub(super) wall: Duration,
    pub(super) median: Duration,
    pub(super) p99: Duration,
    pub(super) longest: Duration,
    /// The CPU time of this process.
    pub(super) cpu: Duration,
    pub(super) asked: Counts,
    pub(super) sent: Counts,
}

/// An operation on the directory or file with a number.
type Operation<'t, 'v> = fn(&'t Tree<'v>, u64) -> Result<(), CliError>;

/// Runs all phases in order. With `keep`, the phases that remove the tree are skipped. Phases without
/// operations are left out of the result.
///
/// # Errors
/// An operation failed, or the user interrupted the command.
pub(super) fn all(
    tree: &Tree<'_>,
    threads: usize,
    keep: bool,
    counters: &Counters,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, CliError> {
    let levels: Vec<Range<u64>> = tree.levels().collect();
    let upwards: Vec<Range<u64>> = tree.levels().rev().collect();
    let (files, dirs) = (vec![tree.files()], vec![tree.dirs()]);
    let made: [(&str, &[Range<u64>], Operation<'_, '_>); 5] = [
        ("mkdir", &levels, Tree::mkdir),
        ("create", &files, Tree::create),
        ("stat", &files, Tree::stat),
        ("readdirplus", &dirs, Tree::list),
        ("rename", &files, Tree::rename),
    ];
    let removed: [(&str, &[Range<u64>], Operation<'_, '_>); 2] =
        [("unlink", &files, Tree::unlink), ("rmdir", &upwards, Tree::rmdir)];
    let removed = removed.into_iter().filter(|_| !keep);
    let mut samples = Vec::new();
    for (name, parts, operation) in made.into_iter().chain(removed) {
        let count = parts.iter().map(|part| part.end - part.start).sum();
        if count == 0 {
            continue;
        }
        let bar = progress_of(name, count);
        let stop = || interrupt.check();
        let (before, cpu) = (counters.read(), own_cpu());
        let load = each(parts, threads, &bar, &stop, &|number| operation(tree, number))?;
        let (after, cpu) = (counters.read(), own_cpu().saturating_sub(cpu));
        bar.finish_and_clear();
        samples.push(Sample {
            name,
            count: load.times.count(),
            wall: load.wall,
            median: load.times.quantile(0.5),
            p99: load.times.quantile(0.99),
            longest: load.times.longest(),
            cpu,
            asked: after.0 - before.0,
            sent: after.1 - before.1,
        });
    }
    Ok(samples)
}

/// Removes everything that exists of a tree.
///
/// # Errors
/// A file or directory cannot be removed.
pub(super) fn clear(tree: &Tree<'_>, threads: usize) -> Result<(), CliError> {
    let upwards: Vec<Range<u64>> = tree.levels().rev().collect();
    let bar = progress_of("removing", tree.files_begun().end + tree.dirs().end);
    let go_on = || Ok(());
    each(&[tree.files_begun()], threads, &bar, &go_on, &|file| tree.clear_file(file))?;
    each(&upwards, threads, &bar, &go_on, &|dir| tree.clear_dir(dir))?;
    bar.finish_and_clear();
    Ok(())
}

/// Runs the parts one after the other: each begins when the one before it is complete.
fn each(
    parts: &[Range<u64>],
    threads: usize,
    bar: &ProgressBar,
    stop: &(dyn Fn() -> Result<(), CliError> + Sync),
    work: &(dyn Fn(u64) -> Result<(), CliError> + Sync),
) -> Result<Load, CliError> {
    let mut all = Load::default();
    for part in parts {
        all.then(&load::run(threads, part.clone(), bar, stop, work)?);
    }
    Ok(all)
}

impl Counters {
    /// The requests to the engine, and those to the server.
    fn read(&self) -> (Counts, Counts) {
        let asked = self.asked.counts();
        (asked, self.sent.as_ref().map_or(asked, |sent| sent.counts()))
    }
}
