//! Answers the same question as [`explain`], by trying every order of the operations. [`explain`] places
//! refusals as early as possible and so skips some orders; this search skips none. It is too slow for more
//! than a few operations.

use std::time::{Duration, Instant};

use super::{Event, Outcome, explain, follows, opens};
use crate::harness::Random;

/// Whether there is an order in which each outcome is correct at a moment between the operation's call and
/// its return, and the final value is one of `last`.
fn is_possible(events: &[Event], last: &[u64]) -> bool {
    let mut placed = vec![false; events.len()];
    search(events, last, 0, &mut placed)
}

fn search(events: &[Event], last: &[u64], value: u64, placed: &mut [bool]) -> bool {
    let pending: Vec<usize> =
        (0..events.len()).filter(|&at| !placed[at] && events[at].outcome != Outcome::Maybe).collect();
    if pending.is_empty() && last.contains(&value) {
        return true;
    }
    for (at, event) in events.iter().enumerate() {
        let is_refused = event.outcome == Outcome::Refused;
        // An operation that returned before this call comes first. For a refusal, the operations that its own
        // mount has done before come first too.
        let comes_first = |&other: &usize| {
            other != at
                && (events[other].returned < opens(events, event)
                    || (is_refused && follows(event, &events[other])))
        };
        if placed[at] || is_refused == (value == event.from) || pending.iter().any(comes_first) {
            continue;
        }
        placed[at] = true;
        let is_found = search(events, last, if is_refused { value } else { event.to }, placed);
        placed[at] = false;
        if is_found {
            return true;
        }
    }
    false
}

/// A few operations of two mounts on one register, and the values that it may have at the end. Half of the
/// histories are generated from an order of events, so most of these are possible. Then one operation of
/// every third history gets another outcome or value.
fn random_history(random: &mut Random) -> (Vec<Event>, Vec<u64>) {
    let start = Instant::now() + Duration::from_secs(60);
    let is_generated = random.below(2) == 0;
    let count = 1 + random.below(6);
    let (mut value, mut events) = (0, Vec::new());
    for step in 0..count {
        // Some operations are further apart than the age of the state that a refusal may be based on.
        let moment = step * [10, 10, 1500][random.below(3) as usize] + 100;
        let called = start + Duration::from_millis(moment - random.below(60));
        let returned = start + Duration::from_millis(moment + random.below(60));
        let (from, to) = (random.below(3), random.below(3));
        let mut outcome = [Outcome::Done, Outcome::Refused, Outcome::Maybe][random.below(3) as usize];
        if is_generated {
            outcome = if from == value { Outcome::Done } else { Outcome::Refused };
            if random.below(5) == 0 {
                outcome = Outcome::Maybe;
            }
            if from == value && (outcome == Outcome::Done || random.below(2) == 0) {
                value = to;
            }
        }
        events.push(Event { mount: random.below(2) as usize, from, to, outcome, called, returned });
    }
    if random.below(3) == 0 {
        let changed = random.below(count) as usize;
        match random.below(3) {
            0 => events[changed].outcome = Outcome::Done,
            1 => events[changed].outcome = Outcome::Refused,
            _ => events[changed].to = random.below(3),
        }
    }
    let last = if is_generated { value } else { random.below(3) };
    (events, vec![last])
}

#[test]
fn both_searches_agree_on_random_histories() {
    let mut random = Random::seeded("LIMEN_HISTORY_SEED");
    let mut found = [0, 0];
    for round in 0..20_000 {
        let (events, last) = random_history(&mut random);
        let (explained, is_possible) = (explain(&events, &last), is_possible(&events, &last));
        assert_eq!(explained.is_ok(), is_possible, "round {round}: {explained:?}, {last:?}: {events:#?}");
        found[usize::from(is_possible)] += 1;
    }
    eprintln!("{} impossible histories and {} possible ones", found[0], found[1]);
    assert!(found.iter().all(|&count| count > 4_000), "{found:?}");
}
