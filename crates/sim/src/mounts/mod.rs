//! Simulates whole mounts, which share one engine behind a network, and one object store. Each client has the
//! real `Vfs` with all of its threads, a model of its kernel's caches of attributes and names, and programs
//! that use the mount. Tools run beside the clients. Only time decides which thread runs next: see
//! [`scheduler`].

mod engine;
mod journals;
mod kernel;
mod place;
mod places;
mod programs;
mod scheduler;
mod shared;
mod store;
mod tools;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Meta, TakePolicy};
use journal::{Journals, Memory};
use meta::MemEngine;
use ops::AtimeMode;
use types::Ino;
use vfs::{SessionInfo, Vfs, VfsOptions};

use self::shared::{CACHE_RECORDS, CLIENTS, Conditions, FILES, PROGRAMS, Shared};
use crate::cut::{Cut, Kind};
use crate::machine::Clocks;
use crate::mutant::Mutant;
use crate::rng::Rng;
use crate::schedule::{History, volume};
use crate::world::World;

/// Runs the history of whole mounts for a seed.
pub fn run_mounts(seed: u64, mutant: Option<Mutant>) -> History {
    run_cut(seed, mutant, &Cut::default())
}

/// Like [`run_mounts`], without the decisions that `cut` leaves out.
pub(crate) fn run_cut(seed: u64, mutant: Option<Mutant>, cut: &Cut) -> History {
    let mut history = History::new(seed);
    let engine = MemEngine::default();
    if let Err(error) = volume().format(&engine) {
        history.findings.push(error.to_string());
        return history;
    }
    let mut conditions = draw(seed, mutant);
    let store = match store::Store::open(seed, conditions.store) {
        Ok(store) => store,
        Err(error) => {
            history.findings.push(error.to_string());
            return history;
        }
    };
    let mut drawn = [0; Kind::COUNT];
    drawn[Kind::Halt as usize] = conditions.events.halts.len();
    drawn[Kind::Jump as usize] = conditions.events.jumps.len();
    drawn[Kind::Kill as usize] = conditions.events.kills.len();
    keep(&mut conditions.events.halts, cut, Kind::Halt);
    keep(&mut conditions.events.jumps, cut, Kind::Jump);
    keep(&mut conditions.events.kills, cut, Kind::Kill);
    conditions.horizon = cut.until.unwrap_or(conditions.horizon);
    let (horizon, events) = (conditions.horizon, conditions.events.clone());
    let clocks = Arc::new(Clocks::new(CLIENTS, mutant));
    let mut world = World::new(engine, None, mutant, Arc::clone(&clocks));
    world.trace.push(format!("seed {seed}: {conditions:?}"));
    let shared = Arc::new(Shared {
        seed,
        mutant,
        cut: cut.clone(),
        decisions: drawn.map(AtomicUsize::new),
        conditions,
        clocks: Arc::clone(&clocks),
        world: Mutex::new(world),
        store,
        files: Mutex::default(),
        modes: Mutex::default(),
        xattrs: Mutex::default(),
        places: Mutex::default(),
        journals: std::array::from_fn(|_| Memory::default()),
        chmods: AtomicU32::new(0),
    });
    let main = |client| {
        let shared = Arc::clone(&shared);
        let main = move || if client < CLIENTS { mount(&shared, client) } else { tools::run(&shared) };
        Box::new(main) as scheduler::Main
    };
    history.findings =
        scheduler::run(seed, &clocks, &events, horizon, CLIENTS + 1, &main, &|| shared.store.close());
    let mut world = shared.world();
    history.findings.append(&mut world.findings);
    let mut problems = Vec::new();
    match check::check(
        &world.engine,
        &check::CheckScope::Volume,
        &mut |problem| problems.push(problem),
        &mut |_, _| {},
    ) {
        Ok(_) => {}
        Err(error) => history.findings.push(format!("the check failed: {error}")),
    }
    history.findings.extend(problems.iter().map(|problem| format!("the volume is damaged: {problem:?}")));
    history.findings.extend(shared.store.check(&world.engine));
    history.lines = std::mem::take(&mut world.trace);
    history.found_at = world.found_at;
    history.decisions = std::array::from_fn(|kind| shared.decisions[kind].load(Relaxed));
    history
}

/// Removes the events that are cut.
fn keep<T>(events: &mut Vec<T>, cut: &Cut, kind: Kind) {
    let mut number = 0..;
    events.retain(|_| number.next().is_some_and(|number| !cut.has(kind, number)));
}

fn draw(seed: u64, mutant: Option<Mutant>) -> Conditions {
    let mut rng = Rng::of(seed, 9, 0);
    // Some mutants show only in rare cases: only a mount that stands still for long loses its session, only a
    // kill leaves a journal, and few notifications overtake a reply that is then used. These cases are made
    // frequent for their mutants, which would otherwise need several times as many seeds.
    let needs_halts = mutant == Some(Mutant::KeepsLocks);
    let needs_acts = mutant == Some(Mutant::NotRepeated);
    let needs_kills = matches!(mutant, Some(Mutant::NotReplayed | Mutant::ForgetsSent));
    let is_long = !needs_kills && rng.one_in(4) || needs_halts || needs_acts;
    let seconds = if is_long { rng.pick(&[150, 250]) } else { rng.pick(&[5, 20]) };
    let mut halts = Vec::new();
    let mut from = Duration::from_secs(2);
    while from.as_secs() < seconds {
        let length = if is_long { rng.pick(&[1_000, 30_000, 130_000]) } else { rng.pick(&[100, 900, 3_000]) };
        let to = from + Duration::from_millis(length);
        halts.push(scheduler::Halt { client: rng.below(CLIENTS), from, to, is_suspend: rng.one_in(2) });
        from = to + Duration::from_millis(rng.below(40_000) as u64);
    }
    if (rng.one_in(2) || needs_acts) && !needs_halts {
        halts.clear();
    }
    let mut delay = Duration::from_micros(rng.pick(&[200, 5_000, 50_000]));
    let faults = rng.pick(&[0, 100, 20]);
    let mut idle_ms = if needs_acts { 100 } else { rng.pick(&[100, 400]) };
    let mut jumps: Vec<scheduler::Jump> = Vec::new();
    for _ in 0..rng.pick(&[0, 0, 1, 4]) {
        let at = Duration::from_millis(rng.below(seconds as usize * 1000) as u64);
        let seconds = rng.pick(&[-12, -1, 1, 12]) * 3600;
        jumps.push(scheduler::Jump { client: rng.below(CLIENTS), at, seconds });
    }
    jumps.sort_unstable_by_key(|jump| jump.at);
    let mut kills = Vec::new();
    let mut of_kills = Rng::of(seed, 9, 2);
    let has_kills = needs_kills || !is_long && !needs_acts && of_kills.one_in(3);
    if has_kills {
        halts.clear();
        // With these values, most kills find transactions in the queue.
        idle_ms = 40;
        delay = of_kills.pick(&[Duration::from_millis(5), Duration::from_millis(50)]);
        if mutant == Some(Mutant::ForgetsSent) {
            // A kill must come while a request is in flight and other transactions are queued.
            (idle_ms, delay) = (15, Duration::from_millis(50));
        }
        let mut at = Duration::from_secs(4);
        while at.as_secs() < seconds {
            kills.push(scheduler::Kill { client: of_kills.below(CLIENTS), at });
            at += Duration::from_millis(500 + of_kills.below(3000) as u64);
        }
    }
    Conditions {
        horizon: Duration::from_secs(seconds),
        delay,
        faults,
        idle_ms,
        trims: if needs_acts { 0 } else { rng.pick(&[0, 0, 20, 200]) },
        has_tools: rng.one_in(2),
        holds_directories: match mutant {
            Some(Mutant::IgnoresHolder | Mutant::TakesHeld | Mutant::KeepsNames | Mutant::TakesSilently) => {
                true
            }
            _ => has_kills || !needs_acts && Rng::of(seed, 9, 1).one_in(2),
        },
        slow_commits: match mutant {
            Some(Mutant::KeepsNames) => 2,
            _ => Rng::of(seed, 9, 3).pick(&[0, 0, 30]),
        },
        shares_machine: of_kills.one_in(2),
        store: store::StoreConditions::draw(&mut rng),
        events: scheduler::Events { halts, jumps, kills },
    }
}

/// Runs in the main thread of a client: starts the mount and its programs. Their threads run until the
/// history ends or the client is killed.
fn mount(shared: &Arc<Shared>, client: usize) {
    // At the beginning the clients start one after the other. The first one has the oldest session, so it
    // cleans up for all.
    if shared.files().is_empty() {
        host::sleep(Duration::from_secs(client as u64));
    }
    let network = engine::Network { shared: Arc::clone(shared), client };
    let Ok(meta) = Meta::open(Arc::new(network), CACHE_RECORDS) else { return };
    let holds_directories = shared.conditions.holds_directories;
    let journals = Some(Arc::new(shared.journals_of(client)) as Arc<dyn Journals>);
    let options =
        VfsOptions { atime: AtimeMode::Never, holds_directories, journals, ..VfsOptions::default() };
    // Existing directories are taken much more often than by default.
    meta.set_take_policy(TakePolicy { creations: 1, within: Duration::from_secs(60), pauses: 0 });
    let vfs = Arc::new(Vfs::new(Arc::new(meta), Arc::clone(&shared.store.blocks), options));
    let kernel = Arc::new(kernel::Memory::new(shared.mutant));
    kernel.set_mount(&vfs);
    let info = SessionInfo { host: "h".into(), pid: std::process::id(), mountpoint: format!("/m{client}") };
    let started = vfs.lifecycle.begin(info).is_ok()
        && vfs.attributes.getattr(Ino::ROOT).is_ok()
        && vfs.lifecycle.start_threads().is_ok()
        && vfs.caches.start_watching(kernel.clone()).is_ok();
    if !started {
        return;
    }
    if client == 0 && shared.files().is_empty() {
        programs::make_files(shared, &vfs);
    }
    while shared.files().len() < FILES {
        host::sleep(Duration::from_millis(50));
    }
    for number in 0..PROGRAMS {
        let (shared, vfs, kernel) = (Arc::clone(shared), Arc::clone(&vfs), Arc::clone(&kernel));
        let program = programs::Program { shared, client, number, vfs, kernel };
        let _ = host::spawn("program", move || program.run());
    }
}
