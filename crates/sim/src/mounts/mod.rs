//! Whole mounts: the real `Vfs` of several clients with all of its threads, a model of each kernel's
//! attributes, and programs, on one engine behind a network. Only time decides which thread runs next: see
//! [`scheduler`].

mod engine;
mod kernel;
mod programs;
mod scheduler;
mod shared;

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use chunk::{BlockStore, StorageConfig, StoreOptions};
use meta::ops::AtimeMode;
use meta::{MemEngine, Meta};
use types::Ino;
use vfs::{SessionInfo, Vfs, VfsOptions};

use self::shared::{FILES, Shared, Weather};
use crate::cut::Kind;
use crate::dice::Dice;
use crate::machine::Clocks;
use crate::mutant::Mutant;
use crate::schedule::{History, volume};
use crate::world::World;

const CLIENTS: usize = 2;
const PROGRAMS: u64 = 2;
/// The maximum number of records in a client's cache.
const CACHE_RECORDS: usize = 1000;

/// Runs the history of whole mounts for a seed.
pub fn run_mounts(seed: u64, mutant: Option<Mutant>) -> History {
    let mut history = History { seed, findings: Vec::new(), lines: Vec::new(), decisions: [0; Kind::COUNT] };
    let engine = MemEngine::default();
    if let Err(error) = volume().format(&engine) {
        history.findings.push(error.to_string());
        return history;
    }
    let weather = draw(seed);
    let (horizon, halts) = (weather.horizon, weather.halts.clone());
    let clocks = Arc::new(Clocks::new(CLIENTS));
    let mut world = World::new(engine, mutant, Arc::clone(&clocks));
    world.trace.push(format!("seed {seed}: {weather:?}"));
    let shared = Arc::new(Shared {
        mutant,
        weather,
        clocks: Arc::clone(&clocks),
        world: Mutex::new(world),
        files: Mutex::default(),
        modes: Mutex::default(),
        chmods: AtomicU32::new(0),
    });
    let mains = (0..CLIENTS).map(|client| {
        let shared = Arc::clone(&shared);
        Box::new(move || mount(&shared, client)) as Box<dyn FnOnce() + Send>
    });
    history.findings = scheduler::run(seed, &clocks, &halts, horizon, mains.collect());
    let mut world = shared.world();
    history.findings.append(&mut world.findings);
    history.lines = std::mem::take(&mut world.trace);
    history
}

fn draw(seed: u64) -> Weather {
    let mut dice = Dice::of(seed, 9, 0);
    let is_long = dice.one_in(4);
    let seconds = if is_long { dice.pick(&[150, 250]) } else { dice.pick(&[5, 20]) };
    let mut halts = Vec::new();
    let mut from = Duration::from_secs(2);
    while from.as_secs() < seconds {
        let length =
            if is_long { dice.pick(&[1_000, 30_000, 130_000]) } else { dice.pick(&[100, 900, 3_000]) };
        let to = from + Duration::from_millis(length);
        halts.push(scheduler::Halt { client: dice.below(CLIENTS), from, to, is_suspend: dice.one_in(2) });
        from = to + Duration::from_millis(dice.below(40_000) as u64);
    }
    if dice.one_in(2) {
        halts.clear();
    }
    Weather {
        horizon: Duration::from_secs(seconds),
        delay: Duration::from_micros(dice.pick(&[200, 5_000, 50_000])),
        faults: dice.pick(&[0, 100, 20]),
        idle_ms: dice.pick(&[100, 400]),
        halts,
    }
}

/// The main thread of a client: starts the mount and its programs, which run until the end with the mount's
/// threads.
fn mount(shared: &Arc<Shared>, client: usize) {
    // The first client has the oldest session, so it cleans up for all.
    host::sleep(Duration::from_secs(client as u64));
    let network = engine::Network { shared: Arc::clone(shared), client };
    let Ok(meta) = Meta::open(Arc::new(network), CACHE_RECORDS) else { return };
    let options = VfsOptions { atime: AtimeMode::Never, ..VfsOptions::default() };
    let Some(store) = STORE.as_ref() else { return };
    let vfs = Arc::new(Vfs::new(Arc::new(meta), Arc::clone(store), options));
    let kernel = Arc::new(kernel::Memory::new(shared.mutant));
    let info = SessionInfo { host: "h".into(), pid: std::process::id(), mountpoint: format!("/m{client}") };
    let started = vfs.begin(&info).is_ok()
        && vfs.getattr(Ino::ROOT).is_ok()
        && vfs.start_housekeeping(info).is_ok()
        && vfs.start_watching(kernel.clone()).is_ok();
    if !started {
        return;
    }
    if client == 0 {
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

/// No blocks are stored, because all data that the programs write is inline.
static STORE: LazyLock<Option<Arc<BlockStore>>> = LazyLock::new(|| {
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    BlockStore::open_with(&config, StoreOptions::default()).ok()
});
