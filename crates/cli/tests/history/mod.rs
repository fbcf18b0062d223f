//! Records the operations of several programs on several mounts, and checks whether one order of events
//! explains the results.
//!
//! Each object that the programs share is a register: a name that exists or not, or a file whose name counts
//! up. An operation changes the register from one value to another. The operation is done if the register had
//! the first value at that moment; otherwise it is refused. An operation that was done happened between its
//! call and its return. A refusal may be based on state that is a little old, as SEMANTICS.md allows, but not
//! on state before the same mount's own changes. An operation that failed with EIO may have happened at any
//! time after its call, or never. A history is possible if moments can be chosen such that all of this holds
//! and the register ends with the value that was found. Then no acknowledged operation was lost, and none was
//! done twice.
//!
//! The search is that of G. Lowe, "Testing for linearizability" (2017): it processes calls and returns in
//! their order and keeps the set of all possible states, each with the pending operations that have happened
//! in it.

#![allow(dead_code, reason = "each test program uses a part of it")]

mod exhaustive;
mod program;

use std::collections::HashSet;
use std::time::{Duration, Instant};

pub(crate) use program::{Program, found};

/// The maximum age of the state that a refusal is based on: twice what SEMANTICS.md promises, because the
/// machine may be busy.
const OLDEST: Duration = Duration::from_secs(2);

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The register had another value.
    Refused,
    /// The operation may or may not have happened.
    Maybe,
}

/// An operation on a register: set its value to `to` if it is `from`.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) mount: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) outcome: Outcome,
    pub(crate) called: Instant,
    pub(crate) returned: Instant,
}

/// A possible value of the register, and the pending operations that have happened.
type Possible = (u64, Vec<usize>);

/// Whether a register that was 0 can have gone through these operations and have one of the values `last`
/// now.
///
/// # Errors
/// The first operation that nothing explains, or the final value.
pub(crate) fn explain(events: &[Event], last: &[u64]) -> Result<(), String> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Point {
        Opens,
        Closes,
    }
    let mut points = Vec::new();
    for (index, event) in events.iter().enumerate() {
        points.push((opens(events, event), Point::Opens, index));
        if event.outcome != Outcome::Maybe {
            points.push((event.returned, Point::Closes, index));
        }
    }
    points.sort();
    let mut open: Vec<usize> = Vec::new();
    let mut possible: HashSet<Possible> = HashSet::from([(0, Vec::new())]);
    for (_, point, index) in points {
        if point == Point::Opens {
            open.push(index);
            continue;
        }
        possible = reachable(events, &open, possible, Some(index));
        open.retain(|other| *other != index);
        possible.retain(|(_, happened)| happened.contains(&index));
        for (value, mut happened) in std::mem::take(&mut possible) {
            happened.retain(|other| *other != index);
            possible.insert((value, happened));
        }
        if possible.is_empty() {
            return Err(format!("operation {index} is impossible: {:?}", events[index]));
        }
    }
    let ends = reachable(events, &open, possible, None);
    let values: HashSet<u64> = ends.iter().map(|(value, _)| *value).collect();
    match last.iter().any(|value| values.contains(value)) {
        true => Ok(()),
        false => Err(format!("the final value is one of {last:?}, but only {values:?} are possible")),
    }
}

/// The earliest moment at which the operation may have happened.
fn opens(events: &[Event], event: &Event) -> Instant {
    if event.outcome != Outcome::Refused {
        return event.called;
    }
    let before = event.called.checked_sub(OLDEST).unwrap_or(event.called);
    let own = events.iter().filter(|other| follows(event, other)).map(|other| other.called);
    own.fold(before, Instant::max)
}

/// Whether `event` was called after the same mount had done `other`.
fn follows(event: &Event, other: &Event) -> bool {
    other.outcome == Outcome::Done && other.mount == event.mount && other.returned <= event.called
}

/// All states that are reachable by pending operations, up to and including operation `until`.
fn reachable(
    events: &[Event],
    open: &[usize],
    from: HashSet<Possible>,
    until: Option<usize>,
) -> HashSet<Possible> {
    let mut all: HashSet<Possible> = from.into_iter().map(|state| settled(events, open, state)).collect();
    let mut queue: Vec<Possible> = all.iter().cloned().collect();
    while let Some((value, happened)) = queue.pop() {
        if until.is_some_and(|until| happened.contains(&until)) {
            continue;
        }
        let changes = |next: &&usize| {
            let event = &events[**next];
            event.outcome != Outcome::Refused && event.from == value && !happened.contains(next)
        };
        for next in open.iter().filter(changes) {
            let happened = happened.iter().copied().chain([*next]).collect();
            let state = settled(events, open, (events[*next].to, happened));
            if all.insert(state.clone()) {
                queue.push(state);
            }
        }
    }
    all
}

/// The state in which every operation that can be refused is refused. A refusal does not change the value, so
/// placing it later gains nothing, and the number of states does not grow with the subsets of refusals.
fn settled(events: &[Event], open: &[usize], (value, mut happened): Possible) -> Possible {
    let can_be_refused = |index: &&usize| {
        let event = &events[**index];
        let is_first = |other: &usize| !happened.contains(other) && follows(event, &events[*other]);
        event.outcome == Outcome::Refused
            && event.from != value
            && !happened.contains(index)
            && !open.iter().any(is_first)
    };
    let refused: Vec<usize> = open.iter().filter(can_be_refused).copied().collect();
    happened.extend(refused);
    happened.sort_unstable();
    (value, happened)
}

mod tests {
    use super::*;

    /// Operations with their mount, and their times in ms.
    fn history(of: &[(usize, [u64; 2], Outcome, [u64; 2])]) -> Vec<Event> {
        let start = Instant::now() + Duration::from_secs(60);
        let at = |ms: &u64| start + Duration::from_millis(*ms);
        of.iter()
            .map(|(mount, [from, to], outcome, [called, returned])| Event {
                mount: *mount,
                from: *from,
                to: *to,
                outcome: *outcome,
                called: at(called),
                returned: at(returned),
            })
            .collect()
    }

    use Outcome::{Done, Maybe, Refused};

    #[test]
    fn possible_histories_are_explained() {
        // Two concurrent operations; the refused one came second.
        let two = history(&[(0, [0, 1], Done, [0, 10]), (1, [0, 1], Refused, [1, 9])]);
        assert_eq!(explain(&two, &[1]), Ok(()));
        // The operation that was called first happened second.
        let turned =
            history(&[(0, [1, 0], Done, [0, 20]), (1, [0, 1], Done, [5, 10]), (1, [0, 1], Done, [11, 30])]);
        assert_eq!(explain(&turned, &[1]), Ok(()));
        // A refusal may be based on the state of a second ago.
        let old = history(&[(0, [0, 1], Done, [0, 10]), (1, [1, 0], Refused, [1000, 1001])]);
        assert_eq!(explain(&old, &[1]), Ok(()));
        // An operation with an unknown outcome happened late.
        let late = history(&[(0, [0, 1], Maybe, [0, 10]), (1, [1, 0], Refused, [5000, 5001])]);
        assert_eq!(explain(&late, &[1]), Ok(()));
        assert_eq!(explain(&late, &[0]), Ok(()));
    }

    /// Trying every subset of the refusals would not finish.
    #[test]
    fn many_refusals_at_once_are_explained() {
        let mut of = Vec::new();
        for step in 0..100 {
            let ms = 10 * step;
            let (from, to) = (step % 2, (step + 1) % 2);
            of.push((0, [from, to], Done, [ms, ms + 5]));
            of.push((1, [to, from], Refused, [ms + 500, ms + 1500]));
        }
        assert_eq!(explain(&history(&of), &[0]), Ok(()));
    }

    #[test]
    fn lost_operations_are_found() {
        let lost = history(&[(0, [0, 1], Done, [0, 10])]);
        assert!(explain(&lost, &[0]).is_err());
        let lost = history(&[(0, [0, 1], Done, [0, 10]), (1, [0, 1], Done, [20, 30])]);
        assert!(explain(&lost, &[1]).is_err());
        let lost = history(&[(0, [0, 1], Done, [0, 10]), (1, [1, 0], Refused, [5000, 5001])]);
        assert!(explain(&lost, &[1]).is_err());
        // A mount sees its own changes at once.
        let lost = history(&[(0, [0, 1], Done, [0, 10]), (0, [1, 0], Refused, [20, 30])]);
        assert!(explain(&lost, &[1]).is_err());
    }

    #[test]
    fn repeated_operations_are_found() {
        // A create that was repeated is refused because of its own first attempt.
        let create = history(&[(0, [0, 1], Refused, [0, 10])]);
        assert!(explain(&create, &[1]).is_err());
        // An unlink that is repeated removes what another program created in between.
        let remove =
            history(&[(0, [0, 1], Done, [0, 10]), (0, [1, 0], Done, [20, 90]), (1, [0, 1], Done, [30, 40])]);
        assert_eq!(explain(&remove, &[1]), Ok(()));
        assert!(explain(&remove, &[0]).is_err());
    }
}
