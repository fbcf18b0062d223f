//! Measures creates per second on a running server: `cargo run --release -p engine-etcd --example
//! etcd-throughput -- URL`, with a URL such as `etcd://127.0.0.1:2379/?table_prefix=bench_`.
//!
//! Each create has two guards, the parent's access revision and the absence of the name, and three effects:
//! an inode, an entry, and the parent's times. All data under the prefix is removed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine_etcd::EtcdEngine;
use meta::{Effect, Engine, Guard, Inode, Outcome, RecordKey, Txn};
use pool::Url;
use types::{FileType, Ino, Mode, Name, OpId, Time};

const SECONDS: u64 = 3;

type Done = Result<(), Box<dyn std::error::Error>>;

fn main() -> Done {
    let url = std::env::args().nth(1).ok_or("usage: etcd-throughput URL")?;
    let engine = EtcdEngine::open(&Url::parse(&url)?, true)?;
    engine.wipe()?;
    println!("{}", engine.server()?);
    let directory = Effect::PutInode(inode(2, FileType::Directory));
    commit(&engine, &[Txn { op_id: OpId(1 << 64), guards: Vec::new(), effects: vec![directory] }])?;
    for batch in [1, 16] {
        for threads in [1, 4, 16] {
            run(threads, batch, &format!("creates in one directory, batches of {batch}"), |next| {
                let txns: Vec<Txn> = (next..next + batch).map(create).collect::<Result<_, _>>()?;
                commit(&engine, &txns)
            })?;
        }
    }
    for threads in [1, 4, 16] {
        run(threads, 1, "lookups", |next| {
            let name = Name::new(format!("file{}", 1_000 + next % 1_000).as_bytes())?;
            engine.read(&[RecordKey::Dirent(Ino(2), name)])?;
            Ok(())
        })?;
    }
    engine.wipe()?;
    Ok(())
}

fn run(threads: u64, batch: u64, what: &str, step: impl Fn(u64) -> Done + Sync) -> Done {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    let start = Instant::now();
    let (steps, slowest_us) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while start.elapsed() < Duration::from_secs(SECONDS) {
                    let begin = Instant::now();
                    if let Err(error) = step(NEXT.fetch_add(batch, Ordering::Relaxed)) {
                        eprintln!("{error}");
                        return;
                    }
                    slowest_us.fetch_max(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
                    steps.fetch_add(batch, Ordering::Relaxed);
                }
            });
        }
    });
    let rate = steps.into_inner() as f64 / start.elapsed().as_secs_f64();
    println!("{threads} threads, {what}: {rate:.0}/s; slowest {} us", slowest_us.into_inner());
    Ok(())
}

fn create(number: u64) -> Result<Txn, Box<dyn std::error::Error>> {
    let parent = Ino(2);
    let name = Name::new(format!("file{number}").as_bytes())?;
    let now = Some(Time::now());
    let guards =
        vec![Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }];
    let effects = vec![
        Effect::PutInode(inode(number, FileType::Regular)),
        Effect::PutDirent { parent, name, ino: Ino(number), kind: FileType::Regular },
        Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now },
    ];
    Ok(Txn { op_id: OpId((1 << 64) + u128::from(number)), guards, effects })
}

fn commit(engine: &EtcdEngine, txns: &[Txn]) -> Done {
    let outcomes = engine.commit(txns)?;
    match outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Committed { .. })) {
        None => Ok(()),
        Some(other) => Err(format!("{other:?}").into()),
    }
}

fn inode(ino: u64, kind: FileType) -> Inode {
    let now = Time::now();
    Inode { nlink: 1, access_rev: 0, ..Inode::new(Ino(ino), kind, Mode::new(0o644), now) }
}
