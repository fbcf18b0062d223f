//! Runs the histories of whole mounts: by default the first few seeds, and with `LIMEN_SIM_SECONDS` new seeds
//! for that time. `LIMEN_SIM_MOUNTS_SEED` replays one history. If `LIMEN_SIM_MUTANT` names a mutant of
//! `Mutant::OF_MOUNTS`, the search for mutants tries only this one.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sim::{History, Mutant, run_mounts, shorten_mounts};

/// The default time. It is enough for a few seeds, which always begin at 0.
const SECONDS: u64 = 4;
/// The number of seeds tried for each mutant. If none finds it, the simulator has a gap.
const SEEDS_PER_MUTANT: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The maximum number of lines of a history that are shown.
const LINES: usize = 200;

fn show(history: &History) -> String {
    let last = history.lines.len().saturating_sub(LINES).max(1);
    format!(
        "{}\n{}{}\n\nseed {}, digest {:x}, findings:\n{}",
        history.lines[0],
        if last > 1 { "...\n" } else { "" },
        history.lines[last..].join("\n"),
        history.seed,
        history.digest(),
        history.findings.join("\n"),
    )
}

/// A finding, the command that shows it again, and a shorter history with a finding.
fn report(history: History) -> String {
    let (seed, findings) = (history.seed, history.findings.join("\n"));
    let short = shorten_mounts(history, None);
    format!(
        "seed {seed} has a finding:\n{findings}\n\nthe whole history: LIMEN_SIM_MOUNTS_SEED={seed} cargo test -p sim --test \
         mounts whole_mounts -- --nocapture\n\na shorter history with a finding:\n{}",
        show(&short)
    )
}

#[test]
fn whole_mounts_keep_their_guarantees() {
    if let Some(seed) = number("LIMEN_SIM_MOUNTS_SEED") {
        let history = run_mounts(seed, None);
        println!("{}", history.lines.join("\n"));
        assert!(history.findings.is_empty(), "{}", report(history));
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seconds = number("LIMEN_SIM_SECONDS");
    let first = if seconds.is_some() { now.as_nanos() as u64 >> 10 } else { 0 };
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut seed = first;
    while Instant::now() < until {
        let history = run_mounts(seed, None);
        assert!(history.findings.is_empty(), "{}", report(history));
        seed += 1;
    }
    println!("{} histories of whole mounts, of seeds from {first} on", seed - first);
}

#[test]
fn history_of_mounts_with_a_finding_is_shortened() {
    let mutant = Some(Mutant::KeepsXattrBlocks);
    let acts = |history: &History| history.lines.iter().filter(|line| line.contains(" program ")).count();
    // The time for shortening is limited, so take a short history, which runs in less time.
    let histories = (0..SEEDS_PER_MUTANT).map(|seed| run_mounts(seed, mutant));
    let found = histories.filter(|history| !history.findings.is_empty());
    let history = found.take(5).min_by_key(acts).unwrap();
    let before = acts(&history);
    let short = shorten_mounts(history, mutant);
    assert!(!short.findings.is_empty());
    println!("{before} lines of programs, then {}", acts(&short));
    assert!(acts(&short) * 4 < before, "{}", show(&short));
}

#[test]
fn seed_gives_the_same_history_of_mounts_again() {
    for seed in 0..5 {
        let (one, other) = (run_mounts(seed, None), run_mounts(seed, None));
        let differs = one.lines.iter().zip(&other.lines).find(|(one, other)| one != other);
        assert!(differs.is_none() && one.digest() == other.digest(), "seed {seed}: {differs:?}");
    }
}

#[test]
fn every_mutant_of_mounts_is_found() {
    let search = |mutant| {
        let mut histories = (0..SEEDS_PER_MUTANT).map(|seed| run_mounts(seed, Some(mutant)));
        let found = histories.find(|history| !history.findings.is_empty());
        let history = found.unwrap_or_else(|| panic!("no seed finds {mutant:?}"));
        println!("{mutant:?}: seed {}: {}", history.seed, history.findings[0]);
    };
    std::thread::scope(|scope| {
        let only = std::env::var("LIMEN_SIM_MUTANT").ok();
        let is_tried = |mutant: &Mutant| only.as_ref().is_none_or(|only| *only == format!("{mutant:?}"));
        Mutant::OF_MOUNTS
            .into_iter()
            .filter(is_tried)
            .for_each(|mutant| drop(scope.spawn(move || search(mutant))));
    });
}
