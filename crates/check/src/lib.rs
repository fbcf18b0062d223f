//! Consistency checks of a volume's records, and repairs, for `limen fsck` and `limen gc`.
//!
//! All reads are in pages through an [`Engine`](meta::Engine), and a bounded number of records is held:
//! inodes and slices are processed in windows of [`WINDOW`], and the records that refer to them are walked
//! once per window. So the memory does not depend on the number of files, and one window suffices for up to a
//! million inodes or slices.
//!
//! Concurrent changes can look like damage: on a mounted volume, a problem is real only if several checks
//! find it.

mod acls;
mod below;
mod cycles;
mod paths;
mod problem;
mod quotas;
mod recount;
mod repair;
mod scope;
mod slices;
mod totals;
mod tree;
mod walk;

pub use acls::{AclCounts, drop_unused_acls, unused_acls};
pub use paths::find_paths;
pub use problem::{Location, Problem};
pub use quotas::Difference;
pub use recount::{Recount, RecountError, recount};
pub use repair::{LOST_AND_FOUND, repair};
pub use scope::{CheckScope, Top};
pub use slices::{SliceUse, SliceWindow, for_each_chunk, for_each_slice_window};
pub use totals::{Checked, WINDOW};

use meta::{Counter, Engine, EngineError, Record, RecordKey};

use crate::totals::{Run, Totals};

/// Checks every record of `scope`, and calls `report` for each problem. `progress` is called with the kind of
/// records and how many have been checked so far.
///
/// Below a path, a problem is reported only if the records there prove it. So inodes without a name, the
/// usage and the quotas are not checked. The link count of a file or the share count of a slice may be higher
/// than the names or rows there account for, because other names or rows may be elsewhere.
///
/// # Errors
/// Those of the database; problems that were reported before remain valid.
pub fn check(
    engine: &dyn Engine,
    scope: &CheckScope,
    report: &mut dyn FnMut(Problem),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Checked, EngineError> {
    check_in_windows(engine, scope, WINDOW, report, progress)
}

fn check_in_windows(
    engine: &dyn Engine,
    scope: &CheckScope,
    window: usize,
    report: &mut dyn FnMut(Problem),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Checked, EngineError> {
    let mut run = Run { engine, scope, window, totals: Totals::default(), report, progress };
    match scope {
        CheckScope::Volume => {
            tree::check(&mut run)?;
            cycles::check(engine, run.report)?;
            slices::check(&mut run)?;
            check_usage(&mut run)?;
            quotas::check(engine, &run.totals.quotas, run.report)?;
        }
        CheckScope::Below(top) => {
            below::check(&mut run, top)?;
            slices::check(&mut run)?;
        }
    }
    check_counters(&mut run)?;
    Ok(run.totals.checked)
}

fn check_usage(run: &mut Run<'_>) -> Result<(), EngineError> {
    let actual = run.totals.usage;
    if let Some(Record::Usage(stored)) = run.engine.read(&[RecordKey::Usage])?.records.first()
        && *stored != actual
    {
        (run.report)(Problem::Usage { stored: *stored, actual });
    }
    Ok(())
}

/// Reports counters that are too low, because they would give out a number a second time.
fn check_counters(run: &mut Run<'_>) -> Result<(), EngineError> {
    let Run { engine, totals, report, .. } = run;
    walk::sessions(*engine, |session| totals.last_session = totals.last_session.max(session))?;
    for record in engine.read(&Counter::ALL.map(RecordKey::Counter))?.records {
        let Record::Counter(counter, stored) = record else { continue };
        let last = match counter {
            Counter::Ino => totals.last_ino.0,
            Counter::Slice => totals.last_slice.0,
            Counter::Session => totals.last_session.0,
        };
        if stored <= last {
            report(Problem::Counter { counter, stored, last });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
