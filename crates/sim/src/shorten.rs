//! Shorter histories: the same seed without some decisions of the scheduler.

use std::time::{Duration, Instant};

use crate::cut::{Cut, Kind};
use crate::mounts;
use crate::mutant::Mutant;
use crate::schedule::{History, run_cut};

/// The maximum number of histories that are run to shorten one.
const MAX_RUNS: usize = 500;
/// The time after which no further history is run.
const MAX_TIME: Duration = Duration::from_secs(60);

/// Shortens a history that has findings: leaves out decisions of the scheduler as long as at least one
/// finding remains. Returns the given history if no decision can be left out.
pub fn shorten(history: History, mutant: Option<Mutant>) -> History {
    let seed = history.seed;
    shorten_by(history, |cut| run_cut(seed, mutant, cut))
}

/// Like [`shorten`], for a history of whole mounts. The result also ends at the moment of the finding.
pub fn shorten_mounts(history: History, mutant: Option<Mutant>) -> History {
    let seed = history.seed;
    shorten_by(history, |cut| mounts::run_cut(seed, mutant, cut))
}

fn shorten_by(history: History, run: impl Fn(&Cut) -> History) -> History {
    let began = Instant::now();
    let end = |history: &History| history.found_at.map(|at| at + Duration::from_nanos(1));
    let mut shortest = history;
    let mut cut = Cut::default();
    let bounded = Cut { until: end(&shortest), ..Cut::default() };
    let found = run(&bounded);
    if !found.findings.is_empty() {
        (shortest, cut) = (found, bounded);
    }
    cut.limits = Some(shortest.decisions);
    let mut runs = 0;
    for kind in Kind::ALL {
        let count = shortest.decisions[kind as usize];
        // Try to leave out all decisions of this kind, then halves of them, and so on down to single ones.
        let mut size = count;
        while size > 0 {
            for first in (0..count).step_by(size) {
                let numbers = first..(first + size).min(count);
                let more = numbers.map(|number| (kind, number)).filter(|it| !cut.left_out.contains(it));
                let mut shorter = cut.clone();
                shorter.left_out.extend(more);
                let is_over = runs == MAX_RUNS || began.elapsed() > MAX_TIME;
                if shorter.left_out.len() == cut.left_out.len() || is_over {
                    continue;
                }
                runs += 1;
                let found = run(&shorter);
                if !found.findings.is_empty() {
                    shorter.until = end(&found).or(shorter.until);
                    shorter.limits = Some(found.decisions);
                    (shortest, cut) = (found, shorter);
                }
            }
            size /= 2;
        }
    }
    shortest
}
