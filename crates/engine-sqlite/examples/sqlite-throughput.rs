//! Measures creates per second:
//! `cargo run --release -p engine-sqlite --example sqlite-throughput -- DIRECTORY`.
//!
//! Each create has two guards, the parent's access revision and the absence of the name, and three effects:
//! an inode, an entry, and the parent's times.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine_sqlite::{Options, SqliteEngine};
use meta::{Effect, Engine, Guard, Inode, Outcome, RecordKey, Txn};
use types::{FileType, Ino, Mode, Name, OpId, Time};

const SECONDS: u64 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: sqlite-throughput DIRECTORY")?;
    let path = Path::new(&directory).join("throughput.db");
    for threads in [1, 4] {
        SqliteEngine::remove_files(&path)?;
        let engine = SqliteEngine::open(&path, &Options { create: true, ..Options::default() })?;
        for parent in 0..=threads {
            commit(
                &engine,
                Txn {
                    op_id: OpId(parent.into()),
                    guards: vec![],
                    effects: vec![Effect::PutInode(inode(1 + parent, FileType::Directory))],
                },
            )?;
        }
        run(&engine, threads, "creates, one directory", |next, _| create(&engine, 1, next))?;
        run(&engine, threads, "creates, a directory a thread", |next, thread| {
            create(&engine, 2 + thread, next)
        })?;
        run(&engine, threads, "lookups", |next, _| {
            let name = Name::new(format!("file{}", 1_000 + next % 10_000).as_bytes())?;
            engine.read(&[RecordKey::Dirent(Ino(1), name)])?;
            Ok(())
        })?;
        run(&engine, threads, "creates and syncs", |next, _| {
            create(&engine, 1, next)?;
            Ok(engine.sync()?)
        })?;
    }
    SqliteEngine::remove_files(&path)?;
    Ok(())
}

type Done = Result<(), Box<dyn std::error::Error>>;

fn run(engine: &SqliteEngine, threads: u64, what: &str, step: impl Fn(u64, u64) -> Done + Sync) -> Done {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    let before = engine.stats();
    let start = Instant::now();
    let (steps, slowest_us) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (step, steps, slowest_us) = (&step, &steps, &slowest_us);
            scope.spawn(move || {
                while start.elapsed() < Duration::from_secs(SECONDS) {
                    let begin = Instant::now();
                    if let Err(error) = step(NEXT.fetch_add(1, Ordering::Relaxed), thread) {
                        eprintln!("{error}");
                        return;
                    }
                    slowest_us.fetch_max(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let after = engine.stats();
    println!(
        "{threads} threads, {what}: {:.0}/s; {} transactions in {} commits, {} syncs; slowest {} us",
        steps.into_inner() as f64 / start.elapsed().as_secs_f64(),
        after.transactions - before.transactions,
        after.commits - before.commits,
        after.syncs - before.syncs,
        slowest_us.into_inner(),
    );
    Ok(())
}

fn create(engine: &SqliteEngine, parent: u64, number: u64) -> Done {
    let parent = Ino(parent);
    let name = Name::new(format!("file{number}").as_bytes())?;
    let now = Some(Time::now());
    let guards =
        vec![Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }];
    let effects = vec![
        Effect::PutInode(inode(number, FileType::Regular)),
        Effect::PutDirent { parent, name, ino: Ino(number), kind: FileType::Regular },
        Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now },
    ];
    commit(engine, Txn { op_id: OpId((1 << 64) + u128::from(number)), guards, effects })
}

fn commit(engine: &SqliteEngine, txn: Txn) -> Done {
    match engine.commit(&[txn])?.as_slice() {
        [Outcome::Committed { .. }] => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn inode(ino: u64, kind: FileType) -> Inode {
    let now = Time::now();
    Inode { nlink: 1, access_rev: 0, ..Inode::new(Ino(ino), kind, Mode::new(0o644), now) }
}
