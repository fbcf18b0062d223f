//! Consistency checks of a volume's records, and repairs, for `limen fsck` and `limen gc`.
//!
//! All reads are in pages through an [`Engine`](meta::Engine), and a bounded number of records is held:
//! inodes and slices are processed in windows of [`WINDOW`], and the records that refer to them are walked
//! once per window. So the memory does not depend on the size of the volume, and a volume of up to a million
//! inodes is walked once.
//!
//! Concurrent changes can look like damage: on a mounted volume, only problems that several checks find are
//! real.

mod acls;
mod circles;
mod paths;
mod problem;
mod repair;
mod slices;
mod totals;
mod tree;
mod walk;

pub use acls::unused_acls;
pub use paths::find_paths;
pub use problem::{Place, Problem};
pub use repair::{LOST_AND_FOUND, repair};
pub use slices::{SliceUse, SliceWindow, for_each_chunk, for_each_slice_window};
pub use totals::{Checked, WINDOW};

use meta::{Counter, Engine, EngineError, Record, RecordKey, Scan};
use types::SessionId;

use crate::totals::Totals;

/// Checks every record, and calls `report` for each problem. `progress` is called with the kind of records
/// and how many have been checked so far.
///
/// # Errors
/// Those of the database; problems that were reported before remain valid.
pub fn check(
    engine: &dyn Engine,
    report: &mut dyn FnMut(Problem),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Checked, EngineError> {
    check_in_windows(engine, WINDOW, report, progress)
}

fn check_in_windows(
    engine: &dyn Engine,
    window: usize,
    report: &mut dyn FnMut(Problem),
    progress: &mut dyn FnMut(&'static str, u64),
) -> Result<Checked, EngineError> {
    let mut totals = Totals::default();
    tree::check(engine, window, &mut totals, report, progress)?;
    circles::check(engine, report)?;
    slices::check(engine, window, &mut totals, report, progress)?;
    check_usage(engine, &totals, report)?;
    check_counters(engine, &mut totals, report)?;
    Ok(totals.checked)
}

fn check_usage(
    engine: &dyn Engine,
    totals: &Totals,
    report: &mut dyn FnMut(Problem),
) -> Result<(), EngineError> {
    if let Some(Record::Usage(says)) = engine.read(&[RecordKey::Usage])?.records.first()
        && *says != totals.usage
    {
        report(Problem::Usage { says: *says, is: totals.usage });
    }
    Ok(())
}

/// Reports counters that are too low, because they would give out a number a second time.
fn check_counters(
    engine: &dyn Engine,
    totals: &mut Totals,
    report: &mut dyn FnMut(Problem),
) -> Result<(), EngineError> {
    let mut after = SessionId(0);
    walk::pages(
        engine,
        |last| {
            if let Some(Record::Session(session, _)) = last {
                after = *session;
            }
            Scan::Sessions { after, limit: walk::PAGE }
        },
        |record| {
            if let Record::Session(session, _) = record {
                totals.last_session = totals.last_session.max(*session);
            }
            Ok(())
        },
    )?;
    let last = |counter| match counter {
        Counter::Ino => totals.last_ino.0,
        Counter::Slice => totals.last_slice.0,
        Counter::Session => totals.last_session.0,
    };
    for record in engine.read(&Counter::ALL.map(RecordKey::Counter))?.records {
        let Record::Counter(counter, says) = record else { continue };
        if says <= last(counter) {
            report(Problem::Counter { counter, says, last: last(counter) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
