//! Histories of fresh seeds. `LIMEN_SIM_SEED` replays one, and `LIMEN_SIM_HISTORIES` says how many there are.

use std::time::{SystemTime, UNIX_EPOCH};

use sim::{History, Mutant, run};

const HISTORIES: u64 = 150;
/// A mutant that none of so many seeds finds is a hole in the simulator.
const SEEDS_A_MUTANT: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn show(history: &History) -> String {
    let History { seed, findings, lines } = history;
    format!(
        "LIMEN_SIM_SEED={seed}, digest {:x}\n{}\n\nfindings:\n{}",
        history.digest(),
        lines.join("\n"),
        findings.join("\n")
    )
}

#[test]
fn every_history_agrees_with_the_model() {
    if let Some(seed) = number("LIMEN_SIM_SEED") {
        let history = run(seed, None);
        println!("{}", show(&history));
        assert!(history.findings.is_empty());
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = now.as_nanos() as u64 >> 10;
    let histories = number("LIMEN_SIM_HISTORIES").unwrap_or(HISTORIES);
    println!("LIMEN_SIM_SEED={first} and the {histories} seeds from there");
    for seed in first..first + histories {
        let history = run(seed, None);
        assert!(history.findings.is_empty(), "{}", show(&history));
    }
}

#[test]
fn a_seed_gives_the_same_history_again() {
    for seed in 0..25 {
        let (first, second) = (run(seed, None), run(seed, None));
        for (one, other) in first.lines.iter().zip(&second.lines) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(first.digest(), second.digest(), "seed {seed}");
    }
}

#[test]
fn every_broken_rule_is_found() {
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let found =
            (0..SEEDS_A_MUTANT).map(|seed| run(seed, Some(mutant))).find(|it| !it.findings.is_empty());
        match found {
            Some(history) => println!("{mutant:?}: seed {}: {}", history.seed, history.findings[0]),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "no seed finds {missed:?}");
}
