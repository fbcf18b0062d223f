//! Shorter histories: the same seed without some of its events.

use std::collections::BTreeSet;

use crate::mutant::Mutant;
use crate::schedule::{History, run_cut};

/// The kinds of decisions of the scheduler. Each decision has its own random numbers, so it does not change
/// if others are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Order,
    Gc,
    Fault,
    Kill,
    Halt,
    Pause,
}

impl Kind {
    pub(crate) const COUNT: usize = 6;
    const ALL: [Kind; Kind::COUNT] =
        [Kind::Fault, Kind::Kill, Kind::Halt, Kind::Pause, Kind::Gc, Kind::Order];
}

/// The decisions that are left out, each by its number among those of its kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut(BTreeSet<(Kind, usize)>);

impl Cut {
    pub(crate) fn has(&self, kind: Kind, number: usize) -> bool {
        self.0.contains(&(kind, number))
    }
}

/// The maximum number of histories that are run to shorten one.
const MOST_RUNS: usize = 500;

/// Shortens the history of a seed with a finding: removes decisions as long as some finding remains. Returns
/// the given history if nothing can be removed.
pub fn shorten(history: History, mutant: Option<Mutant>) -> History {
    let seed = history.seed;
    let mut shortest = history;
    let mut cut = Cut::default();
    let mut runs = 0;
    for kind in Kind::ALL {
        let count = shortest.decisions[kind as usize];
        // Try to remove all of them, then halves, and so on down to single ones.
        let mut size = count;
        while size > 0 {
            for first in (0..count).step_by(size) {
                let numbers = first..(first + size).min(count);
                let more = numbers.map(|number| (kind, number)).filter(|it| !cut.0.contains(it));
                let mut shorter = cut.clone();
                shorter.0.extend(more);
                if shorter.0.len() == cut.0.len() || runs == MOST_RUNS {
                    continue;
                }
                runs += 1;
                let found = run_cut(seed, mutant, &shorter);
                if !found.findings.is_empty() {
                    (shortest, cut) = (found, shorter);
                }
            }
            size /= 2;
        }
    }
    shortest
}
