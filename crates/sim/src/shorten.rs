//! Shorter histories: the same seed without some of its events.

use crate::cut::{Cut, Kind};
use crate::mutant::Mutant;
use crate::schedule::{History, run_cut};

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
