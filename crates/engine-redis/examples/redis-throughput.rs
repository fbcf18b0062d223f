//! Measures creates per second: `cargo run --release -p engine-redis --example redis-throughput -- URL`.
//!
//! Each create has two guards, the parent's access revision and the absence of the name, and three effects:
//! an inode, an entry, and the parent's times. The volume at URL is wiped, so use a `table_prefix` that no
//! volume uses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine_redis::RedisEngine;
use meta::{Effect, Engine, Guard, Inode, Outcome, RecordKey, Txn};
use pool::Url;
use types::{FileType, Ino, Mode, Name, OpId, Time};

const SECONDS: u64 = 3;

type Done = Result<(), Box<dyn std::error::Error>>;

fn main() -> Done {
    let url = std::env::args()
        .nth(1)
        .ok_or("usage: redis-throughput URL, such as redis://127.0.0.1?table_prefix=bench_")?;
    let engine = RedisEngine::open(&Url::parse(&url)?, true)?;
    println!("{}", engine.server()?);
    for threads in [1, 4, 16] {
        engine.wipe()?;
        for parent in 0..=threads {
            let effects = vec![Effect::PutInode(inode(1 + parent, FileType::Directory))];
            commit(&engine, &[Txn { op_id: op_id(), guards: vec![], effects }])?;
        }
        run(threads, "creates, one directory", 1, |_| commit(&engine, &[create(1)]))?;
        run(threads, "creates, a directory a thread", 1, |thread| commit(&engine, &[create(2 + thread)]))?;
        run(threads, "creates, one directory, in batches of 16", 16, |_| {
            commit(&engine, &std::array::from_fn::<_, 16, _>(|_| create(1)))
        })?;
        run(threads, "lookups", 1, |_| {
            let name = Name::new(format!("file{}", 2_000 + op_id().0 % 4_000).as_bytes())?;
            engine.read(&[RecordKey::Dirent(Ino(1), name)])?;
            Ok(())
        })?;
    }
    engine.wipe()?;
    Ok(())
}

fn run(threads: u64, what: &str, each: u64, step: impl Fn(u64) -> Done + Sync) -> Done {
    let start = Instant::now();
    let steps = AtomicU64::new(0);
    std::thread::scope(|scope| -> Done {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let (step, steps) = (&step, &steps);
                scope.spawn(move || {
                    while start.elapsed() < Duration::from_secs(SECONDS) {
                        step(thread).map_err(|error| error.to_string())?;
                        steps.fetch_add(each, Ordering::Relaxed);
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })?;
    let rate = steps.into_inner() as f64 / start.elapsed().as_secs_f64();
    println!("{threads:2} threads, {what}: {rate:.0}/s");
    Ok(())
}

/// A new operation ID. It contains the process ID, so that a second run is not treated as a repetition.
fn op_id() -> OpId {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    OpId(u128::from(std::process::id()) << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn create(parent: u64) -> Txn {
    let id = op_id();
    let (parent, number) = (Ino(parent), id.0 as u64);
    let name = Name::new(format!("file{number}").as_bytes()).unwrap_or_else(|_| unreachable!("it is short"));
    let now = Some(Time::now());
    Txn {
        op_id: id,
        guards: vec![
            Guard::Access { ino: parent, rev: 0 },
            Guard::DirentAbsent { parent, name: name.clone() },
        ],
        effects: vec![
            Effect::PutInode(inode(number, FileType::Regular)),
            Effect::PutDirent { parent, name, ino: Ino(number), kind: FileType::Regular },
            Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now },
        ],
    }
}

fn commit(engine: &RedisEngine, txns: &[Txn]) -> Done {
    let outcomes = engine.commit(txns)?;
    let all = outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. }));
    if all { Ok(()) } else { Err(format!("not committed: {outcomes:?}").into()) }
}

fn inode(ino: u64, kind: FileType) -> Inode {
    Inode {
        uid: 1000,
        gid: 1000,
        nlink: 1,
        access_rev: 0,
        ..Inode::new(Ino(ino), kind, Mode::new(0o644), Time::now())
    }
}
