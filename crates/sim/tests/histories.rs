//! Runs the histories of new seeds. `LIMEN_SIM_SEED` replays one history. `LIMEN_SIM_HISTORIES` sets the
//! number of histories, or `LIMEN_SIM_SECONDS` the time for which new ones are run.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sim::{History, Mutant, run, shorten};

const HISTORIES: u64 = 300;
/// The number of seeds tried for each mutant. If none finds it, the simulator has a gap.
const SEEDS_PER_MUTANT: u64 = 5000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn show(history: &History) -> String {
    format!(
        "seed {}, digest {:x}\n{}\n\nfindings:\n{}",
        history.seed,
        history.digest(),
        history.lines.join("\n"),
        history.findings.join("\n")
    )
}

/// A finding, the command that shows it again, and a shorter history with a finding.
fn report(history: History) -> String {
    let (seed, findings) = (history.seed, history.findings.join("\n"));
    let short = shorten(history, None);
    format!(
        "seed {seed} has a finding:\n{findings}\n\nthe whole history: LIMEN_SIM_SEED={seed} cargo test -p sim --test \
         histories every_history -- --nocapture\n\na shorter history with a finding:\n{}",
        show(&short)
    )
}

#[test]
fn every_history_agrees_with_the_model() {
    if let Some(seed) = number("LIMEN_SIM_SEED") {
        let history = run(seed, None);
        println!("{}", show(&history));
        assert!(history.findings.is_empty(), "{}", report(history));
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = now.as_nanos() as u64 >> 10;
    let until = number("LIMEN_SIM_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let histories = match until {
        Some(_) => u64::MAX - first,
        None => number("LIMEN_SIM_HISTORIES").unwrap_or(HISTORIES),
    };
    let (next, found) = (AtomicU64::new(first), Mutex::new(None));
    let is_over = AtomicBool::new(false);
    let search = || {
        while !is_over.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + histories {
                next.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let history = run(seed, None);
            if !history.findings.is_empty() {
                is_over.store(true, Ordering::Relaxed);
                *found.lock().unwrap() = Some(history);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(search))));
    let count = next.into_inner() - first;
    println!("{count} histories, of seeds from {first} on");
    if let Some(history) = found.into_inner().unwrap() {
        panic!("{}", report(history));
    }
}

#[test]
fn seed_gives_the_same_history_again() {
    for seed in 0..40 {
        let (first, second) = (run(seed, None), run(seed, None));
        for (one, other) in first.lines.iter().zip(&second.lines) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(first.digest(), second.digest(), "seed {seed}");
    }
}

#[test]
fn every_mutant_is_found() {
    let (next, missed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let search = || {
        while let Some(&mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let mut histories = (0..SEEDS_PER_MUTANT).map(|seed| run(seed, Some(mutant)));
            match histories.find(|it| !it.findings.is_empty()) {
                Some(history) => println!("{mutant:?}: seed {}: {}", history.seed, history.findings[0]),
                None => missed.lock().unwrap().push(mutant),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(search))));
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "no seed finds {missed:?}");
}

#[test]
fn history_with_a_finding_is_shortened() {
    let mutant = Some(Mutant::NoDirentAbsent);
    let history = (0..).map(|seed| run(seed, mutant)).find(|history| !history.findings.is_empty()).unwrap();
    let steps = |history: &History| history.lines.iter().filter(|line| line.contains(" begins ")).count();
    let before = steps(&history);
    let short = shorten(history, mutant);
    assert!(!short.findings.is_empty());
    assert!(steps(&short) <= 12 && steps(&short) < before, "{}", show(&short));
}
