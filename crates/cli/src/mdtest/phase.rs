//! The phases: one kind of operation on the whole tree, between two looks at the counters.

use std::ops::Range;
use std::time::Duration;

use indicatif::ProgressBar;
use meta::Counts;

use super::load::{self, Load};
use super::tree::Tree;
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::network::Counted;
use crate::output::progress_of;
use crate::statistics::own_cpu;

/// What is counted while operations run.
#[derive(Debug)]
pub(super) struct Counters {
    /// What the client asks of the engine.
    pub(super) asked: Counted,
    /// What is sent to a server for it.
    pub(super) sent: Option<Counted>,
}

/// What came of a phase.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) name: &'static str,
    pub(super) count: u64,
    /// From when the first thread began until the last one ended, for each level of directories.
    pub(super) wall: Duration,
    pub(super) median: Duration,
    pub(super) p99: Duration,
    pub(super) longest: Duration,
    /// Of this process.
    pub(super) cpu: Duration,
    pub(super) asked: Counts,
    pub(super) sent: Counts,
}

/// How an operation is done to the directory or the file of a number.
type Operation<'t, 'v> = fn(&'t Tree<'v>, u64) -> Result<(), Fault>;

/// Does all phases in order; with `keep` none that removes. Those that have nothing to do are left out.
///
/// # Errors
/// An operation failed, or the person has interrupted.
pub(super) fn all(
    tree: &Tree<'_>,
    threads: usize,
    keep: bool,
    counters: &Counters,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, Fault> {
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

/// Removes what there is of a tree.
///
/// # Errors
/// Something cannot be removed.
pub(super) fn clear(tree: &Tree<'_>, threads: usize) -> Result<(), Fault> {
    let upwards: Vec<Range<u64>> = tree.levels().rev().collect();
    let bar = progress_of("removing", tree.files_begun().end + tree.dirs().end);
    let go_on = || Ok(());
    each(&[tree.files_begun()], threads, &bar, &go_on, &|file| tree.clear_file(file))?;
    each(&upwards, threads, &bar, &go_on, &|dir| tree.clear_dir(dir))?;
    bar.finish_and_clear();
    Ok(())
}

/// Works on each part after all of the one before it is done.
fn each(
    parts: &[Range<u64>],
    threads: usize,
    bar: &ProgressBar,
    stop: &(dyn Fn() -> Result<(), Fault> + Sync),
    work: &(dyn Fn(u64) -> Result<(), Fault> + Sync),
) -> Result<Load, Fault> {
    let mut all = Load::default();
    for part in parts {
        all.then(&load::run(threads, part.clone(), bar, stop, work)?);
    }
    Ok(all)
}

impl Counters {
    /// What was asked, and what was sent for it.
    fn read(&self) -> (Counts, Counts) {
        let asked = self.asked.counts();
        (asked, self.sent.as_ref().map_or(asked, |sent| sent.counts()))
    }
}
