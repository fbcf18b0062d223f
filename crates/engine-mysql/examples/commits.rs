//! Measures creates per second: `cargo run --release -p engine-mysql --example commits --
//! mysql://user:password@host/database [SECONDS [guarded]]`. With `guarded`, each create has a guard on a
//! session, like those of a mount. The table prefix is `bench_`; the tables are emptied first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine_mysql::MysqlEngine;
use meta::{Effect, Engine, Guard, Inode, Outcome, Session, Txn};
use types::{FileType, Ino, Mode, Name, OpId, SessionId, Time};

const SESSION: SessionId = SessionId(1);

static NEXT: AtomicU64 = AtomicU64::new(1000);

/// A create of a file in directory 2.
fn create(is_guarded: bool) -> Txn {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let parent = Ino(2);
    let name = Name::new(format!("file{number}").as_bytes()).expect("a name");
    let now = Time::now();
    let session = is_guarded.then_some(Guard::Session { session: SESSION, heartbeat: None });
    let guards = [Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }];
    Txn {
        op_id: OpId(1 << 64 | u128::from(number)),
        guards: session.into_iter().chain(guards).collect(),
        effects: vec![
            Effect::PutInode(inode(number, FileType::Regular, now)),
            Effect::PutDirent { parent, name, ino: Ino(number), kind: FileType::Regular },
            Effect::SetTimes { ino: parent, atime: None, mtime: Some(now), ctime: Some(now) },
        ],
    }
}

fn inode(ino: u64, kind: FileType, now: Time) -> Inode {
    Inode {
        uid: 1000,
        gid: 1000,
        nlink: 1,
        access_rev: 0,
        ..Inode::new(Ino(ino), kind, Mode::new(0o644), now)
    }
}

fn session() -> Session {
    Session::new(SESSION, Time::from_nanos(0))
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("a URL");
    let seconds = arguments.next().map_or(3, |seconds| seconds.parse().expect("a number of seconds"));
    let is_guarded = arguments.next().is_some_and(|word| word == "guarded");
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = pool::Url::parse(&format!("{url}{separator}table_prefix=bench_")).expect("a URL");
    let engine = MysqlEngine::open(&url, true).expect("an engine");
    engine.wipe().expect("an empty volume");
    let directory = Effect::PutInode(inode(2, FileType::Directory, Time::now()));
    engine
        .commit(&[Txn {
            op_id: OpId(1),
            guards: Vec::new(),
            effects: vec![directory, Effect::PutSession(session())],
        }])
        .expect("a directory and a session");
    println!("{}", engine.server().expect("a version"));
    for (threads, batch) in [(1, 1), (4, 1), (16, 1), (1, 16), (4, 16), (16, 16)] {
        let begin = Instant::now();
        let end = begin + Duration::from_secs(seconds);
        let work = || {
            let mut done = 0;
            while Instant::now() < end {
                let txns: Vec<Txn> = std::iter::repeat_with(|| create(is_guarded)).take(batch).collect();
                let outcomes = engine.commit(&txns).expect("a commit");
                assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })));
                done += batch;
            }
            done
        };
        let done: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        println!("{threads:>2} threads, batches of {batch:>2}: {rate:>7.0} creates/s");
    }
}
