//! Random operations, compared with the [model](super::model) after each step.
//!
//! Each run prints its seed; `LIMEN_TEST_SEED` replays one run, and `LIMEN_TEST_TIMES` multiplies the number
//! of runs. A run that disagrees is reduced to the steps that matter before it is shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::{Engine, Record, RecordKey};
use ops::{GetInode, GetXattrs, Make, MakeKind, RemoveXattr, RenameFlags, XattrMode};
use types::{Errno, FileType, Ino, Mode};

use super::case::{Case, Factory};
use super::fixture::{Client, EXCHANGE, NO_REPLACE, REPLACE, ROOT, client, n, volume, x};
use super::invariants::{check, inodes};
use super::model::{Act, Model, Shown};
use crate::faulty::{FaultRates, Faulty};
use crate::rng::split_mix;

pub(super) const CASES: &[Case] = &[
    ("an_exclusive_client_agrees_with_the_model", an_exclusive_client_agrees_with_the_model),
    ("faults_do_not_change_results", faults_do_not_change_results),
    ("two_clients_agree_with_the_model", two_clients_agree_with_the_model),
    ("two_clients_with_faults_and_rivals_agree", two_clients_with_faults_and_rivals_agree),
];

/// The number of clients, and the rates of faults.
#[derive(Clone, Copy, Debug)]
struct Setting {
    clients: usize,
    fault_rates: FaultRates,
}

const NO_FAULTS: FaultRates = FaultRates { before: 0, after: 0, delay: 0, rival: 0, delay_us: 0 };
const MANY_FAULTS: FaultRates = FaultRates { before: 60, after: 120, delay: 20, rival: 150, delay_us: 200 };

fn an_exclusive_client_agrees_with_the_model(factory: Factory<'_>) {
    explore(factory, Setting { clients: 1, fault_rates: NO_FAULTS }, 20, 250);
}

fn faults_do_not_change_results(factory: Factory<'_>) {
    let fault_rates = FaultRates { before: 60, after: 150, ..NO_FAULTS };
    explore(factory, Setting { clients: 1, fault_rates }, 3, 200);
}

fn two_clients_agree_with_the_model(factory: Factory<'_>) {
    explore(factory, Setting { clients: 2, fault_rates: NO_FAULTS }, 16, 200);
}

fn two_clients_with_faults_and_rivals_agree(factory: Factory<'_>) {
    explore(factory, Setting { clients: 2, fault_rates: MANY_FAULTS }, 3, 200);
}

/// The minimum number of runs.
const FEWEST_RUNS: u64 = 2;
/// The time after which no more runs are started.
const LONGEST: Duration = Duration::from_secs(20);

fn explore(factory: Factory<'_>, setting: Setting, runs: u64, steps: usize) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("LIMEN_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..runs * number("LIMEN_TEST_TIMES").unwrap_or(1),
    };
    let (first, began) = (seeds.start, Instant::now());
    for seed in seeds {
        // A server that syncs its disk for each commit runs about a hundredth as many operations as memory.
        if seed >= first + FEWEST_RUNS && began.elapsed() > LONGEST {
            println!("skipping seeds from {seed} on: the engine took {:?} so far", began.elapsed());
            return;
        }
        println!("seed {seed}, {setting:?}");
        let acts = acts(seed, steps);
        if let Err(problem) = replay(factory, setting, seed, &acts) {
            let (acts, problem) = shrink(factory, setting, seed, acts, problem);
            panic!("seed {seed}, {setting:?}: {problem}\nafter {acts:#?}");
        }
    }
}

/// Steps that often affect each other: few names, and mostly inodes that exist according to the model.
fn acts(seed: u64, steps: usize) -> Vec<Act> {
    let mut state = seed.wrapping_mul(0x1_0001);
    let mut draw = |below: usize| (split_mix(&mut state) % below as u64) as usize;
    let mut model = Model::new();
    let mut made = vec![ROOT];
    let mut acts = Vec::with_capacity(steps);
    for step in 0..steps {
        let shown = model.show();
        let dirs: Vec<Ino> = shown.iter().filter(|(_, it)| it.kind.is_dir()).map(|(ino, _)| *ino).collect();
        let others: Vec<Ino> = shown.keys().filter(|ino| !dirs.contains(ino)).copied().collect();
        let dir = if draw(20) == 0 { made[draw(made.len())] } else { dirs[draw(dirs.len())] };
        let to = if draw(3) == 0 { dir } else { dirs[draw(dirs.len())] };
        let ino = match draw(10) {
            0 => made[draw(made.len())],
            1 => dirs[draw(dirs.len())],
            _ if others.is_empty() => ROOT,
            _ => others[draw(others.len())],
        };
        let name = ["a", "b", "c", "d"][draw(4)].to_owned();
        let new_name = ["a", "b", "c", "d"][draw(4)].to_owned();
        let xattr = ["user.a", "user.b"][draw(2)].to_owned();
        let mode = [0o644, 0o755, 0o777, 0o1777, 0o4711, 0][draw(6)];
        let act = match draw(100) {
            0..26 => {
                let kinds = [FileType::Regular, FileType::Regular, FileType::Directory, FileType::Symlink];
                let (ino, kind) = (Ino(1_000_000 + step as u64), kinds[draw(4)]);
                made.push(ino);
                Act::Make { dir, name, ino, kind, mode }
            }
            26..36 => Act::Link { ino, dir, name },
            36..46 => Act::Unlink { dir, name },
            46..52 => Act::Rmdir { dir, name },
            52..76 => {
                let flags = match draw(10) {
                    0..6 => REPLACE,
                    6 => NO_REPLACE,
                    7..9 => EXCHANGE,
                    _ => RenameFlags { no_replace: true, exchange: true },
                };
                Act::Rename { dir, name, to, new_name, flags }
            }
            76..81 => Act::Chmod { ino, mode },
            81..87 => Act::Truncate { ino, size: [0, 1, 4096, 4097, 1 << 30][draw(5)] },
            87..95 => {
                let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][draw(3)];
                Act::SetXattr { ino, name: xattr, value: step.to_string(), mode }
            }
            _ => Act::RemoveXattr { ino, name: xattr },
        };
        let _ = model.act(&act);
        acts.push(act);
    }
    acts
}

/// Runs the steps on a new volume and on the model; the first difference is the error.
fn replay(factory: Factory<'_>, setting: Setting, seed: u64, acts: &[Act]) -> Result<(), String> {
    let engine = factory();
    volume().format(&*engine).unwrap();
    let faulty = Arc::new(Faulty::new(engine.clone(), seed, setting.fault_rates));
    let wrapped: Arc<dyn Engine> = faulty.clone();
    let clients: Vec<Client> = (0..setting.clients).map(|_| client(&wrapped)).collect();
    let alone = clients.len() == 1;
    clients[0].meta.set_exclusive(alone);
    let mut rng_state = seed;
    let mut model = Model::new();
    faulty.arm(true);
    for (step, act) in acts.iter().enumerate() {
        let actor = (split_mix(&mut rng_state) % clients.len() as u64) as usize;
        let expected = model.act(act);
        let got = perform(&clients[actor], act);
        if got != expected {
            return Err(format!("step {step} by client {actor}: {act:?} gave {got:?}, not {expected:?}"));
        }
        let (shown, expected) = (show(&engine), model.show());
        if shown != expected {
            return Err(format!(
                "step {step} by client {actor}: {act:?} resulted in {shown:#?}, not {expected:#?}"
            ));
        }
        if alone {
            // Reads are many and run without faults, because their retries would take most of the time.
            faulty.arm(false);
            compare_looks(&clients[0], &model, &expected).map_err(|what| format!("step {step}: {what}"))?;
            faulty.arm(true);
        } else {
            // These reads may be up to a second out of date. They fill the cache with records that are stale
            // in later steps.
            let other = &clients[(actor + 1) % clients.len()];
            for (&ino, it) in &expected {
                let name = ["a", "b", "c", "d"][(split_mix(&mut rng_state) % 4) as usize];
                match split_mix(&mut rng_state) % 4 {
                    0 if it.kind.is_dir() => drop(other.lookup(ino, name)),
                    1 => drop(other.run(&GetInode(ino))),
                    2 => drop(other.run(&GetXattrs(ino))),
                    _ => {}
                }
            }
        }
    }
    faulty.arm(false);
    check(&clients[0]);
    let stranger = client(&engine);
    compare_looks(&stranger, &model, &model.show())
}

fn perform(c: &Client, act: &Act) -> Result<(), Errno> {
    match act.clone() {
        Act::Make { dir, name, ino, kind, mode } => {
            let kind = match kind {
                FileType::Directory => MakeKind::Directory,
                FileType::Symlink => MakeKind::Symlink(b"target".as_slice().into()),
                _ => MakeKind::Regular,
            };
            c.run(&Make { ino, ..c.make_op(dir, &name, kind, mode) }).map(drop)
        }
        Act::Link { ino, dir, name } => c.link(ino, dir, &name),
        Act::Unlink { dir, name } => c.unlink(dir, &name).map(drop),
        Act::Rmdir { dir, name } => c.rmdir(dir, &name).map(drop),
        Act::Rename { dir, name, to, new_name, flags } => {
            c.rename(dir, &name, to, &new_name, flags).map(drop)
        }
        Act::Chmod { ino, mode } => c.chmod(ino, mode),
        Act::Truncate { ino, size } => c.truncate(ino, size),
        Act::SetXattr { ino, name, value, mode } => c.set_xattr(ino, &name, &value, mode),
        Act::RemoveXattr { ino, name } => c.run(&RemoveXattr { ino, name: x(&name) }),
    }
}

/// The state of the engine.
fn show(engine: &Arc<dyn Engine>) -> BTreeMap<Ino, Shown> {
    let inodes = inodes(engine);
    let keys: Vec<RecordKey> = inodes.keys().map(|ino| RecordKey::Xattrs(*ino)).collect();
    let mut xattrs = BTreeMap::new();
    for record in engine.read(&keys).unwrap().records {
        if let Record::Xattrs(ino, all) = record {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let all = all.iter().map(|(name, value)| (text(name.as_bytes()), text(value)));
            xattrs.insert(ino, all.collect());
        }
    }
    let shown = inodes.into_iter().map(|(ino, inode)| {
        let mut entries = BTreeMap::new();
        if inode.kind.is_dir() {
            let scan =
                meta::Scan::Dir { parent: ino, after: None, limit: 100, include: meta::ScanInclude::Nothing };
            for record in engine.scan(&scan).unwrap().snapshot.records {
                if let Record::Dirent(_, name, Some(dirent)) = record {
                    entries.insert(String::from_utf8_lossy(name.as_bytes()).into_owned(), dirent.ino);
                }
            }
        }
        let xattrs = xattrs.remove(&ino).unwrap_or_default();
        let mode = inode.mode.bits();
        (ino, Shown { kind: inode.kind, mode, nlink: inode.nlink, size: inode.size, xattrs, entries })
    });
    shown.collect()
}

/// Compares what a client reads with the model.
fn compare_looks(c: &Client, model: &Model, shown: &BTreeMap<Ino, Shown>) -> Result<(), String> {
    for (&ino, expected) in shown {
        let inode = c.inode(ino);
        let got = (inode.kind, inode.mode, inode.nlink, inode.size);
        if got != (expected.kind, Mode::new(expected.mode), expected.nlink, expected.size) {
            return Err(format!("{ino} looks like {got:?}, not {expected:?}"));
        }
        for name in ["a", "b", "c", "d"] {
            let (got, expected) = (c.lookup(ino, name), model.entry(ino, name));
            if got.map(|inode| inode.map(|inode| inode.ino)) != expected {
                return Err(format!("{name} in {ino} is {got:?}, not {expected:?}"));
            }
        }
        let listed: Vec<_> = c.list(ino).into_iter().map(|(name, dirent, _)| (name, dirent.ino)).collect();
        let expected: Vec<_> = expected.entries.iter().map(|(name, ino)| (n(name), *ino)).collect();
        if listed != expected {
            return Err(format!("{ino} lists {listed:?}, not {expected:?}"));
        }
    }
    Ok(())
}

/// Removes steps, many at once and then fewer, while a difference remains.
fn shrink(
    factory: Factory<'_>,
    setting: Setting,
    seed: u64,
    mut acts: Vec<Act>,
    mut problem: String,
) -> (Vec<Act>, String) {
    let mut chunk = acts.len() / 2;
    while chunk > 0 {
        let mut from = 0;
        while from < acts.len() {
            let mut fewer = acts.clone();
            fewer.drain(from..(from + chunk).min(acts.len()));
            match replay(factory, setting, seed, &fewer) {
                Err(found) => (acts, problem) = (fewer, found),
                Ok(()) => from += chunk,
            }
        }
        chunk /= 2;
    }
    (acts, problem)
}

/// Tests of this random test itself: it must detect broken engines.
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use meta::{Effect, EngineError, Guard, MemEngine, Outcome, Txn};

    /// An engine that changes every transaction.
    #[derive(Debug)]
    struct Broken {
        inner: MemEngine,
        spoil: fn(&mut Txn),
    }

    impl Engine for Broken {
        meta::pass_on! { (.inner) read scan sync wipe }

        fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
            let mut txns = txns.to_vec();
            txns.iter_mut().for_each(self.spoil);
            self.inner.commit(&txns)
        }
    }

    /// The fewest steps in which one of a few runs disagrees; `None` if no run does.
    fn noticed(setting: Setting, spoil: fn(&mut Txn)) -> Option<usize> {
        let factory = || -> Arc<dyn Engine> { Arc::new(Broken { inner: MemEngine::default(), spoil }) };
        (0..5).find_map(|seed| {
            let acts = acts(seed, 120);
            let problem = replay(&factory, setting, seed, &acts).err()?;
            Some(shrink(&factory, setting, seed, acts, problem).0.len())
        })
    }

    fn without(guard: fn(&Guard) -> bool) -> impl Fn(&mut Txn) {
        move |txn| txn.guards.retain(|found| !guard(found))
    }

    #[test]
    fn a_sound_engine_passes() {
        assert_eq!(noticed(Setting { clients: 2, fault_rates: NO_FAULTS }, |_| ()), None);
    }

    #[test]
    fn lost_effects_are_detected_and_minimised() {
        let alone = Setting { clients: 1, fault_rates: NO_FAULTS };
        let spoilers: [fn(&mut Txn); 3] = [
            |txn| txn.effects.retain(|effect| !matches!(effect, Effect::AddLinks { delta: -1, .. })),
            |txn| txn.effects.retain(|effect| !matches!(effect, Effect::DropInode { .. })),
            |txn| txn.effects.retain(|effect| !matches!(effect, Effect::DropXattr { .. })),
        ];
        for (which, spoil) in spoilers.into_iter().enumerate() {
            let steps = noticed(alone, spoil);
            assert!(steps.is_some_and(|steps| steps <= 4), "spoiler {which}: {steps:?} steps");
        }
    }

    #[test]
    fn missing_guards_are_detected() {
        let two = Setting { clients: 2, fault_rates: NO_FAULTS };
        let spoilers: [fn(&mut Txn); 5] = [
            |txn| without(|guard| matches!(guard, Guard::DirentIs { .. }))(txn),
            |txn| without(|guard| matches!(guard, Guard::DirentAbsent { .. }))(txn),
            |txn| without(|guard| matches!(guard, Guard::Links { .. }))(txn),
            |txn| without(|guard| matches!(guard, Guard::Empty { .. }))(txn),
            |txn| without(|guard| matches!(guard, Guard::Xattr { .. }))(txn),
        ];
        for (which, spoil) in spoilers.into_iter().enumerate() {
            assert!(noticed(two, spoil).is_some(), "spoiler {which}");
        }
    }

    #[test]
    fn a_transaction_applied_twice_is_detected() {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let fault_rates = FaultRates { after: 300, ..NO_FAULTS };
        let steps = noticed(Setting { clients: 1, fault_rates }, |txn| {
            txn.op_id = types::OpId(1 << 100 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed)));
        });
        assert!(steps.is_some());
    }
}
