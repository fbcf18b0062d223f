//! Measures creates per second: `load URL SECONDS [guarded]`, with 1, 4 and 16 threads, one by one and in
//! batches of 16. With `guarded`, each create has a guard on a session. The table prefix is `load_` unless
//! the URL names one; the tables are emptied first.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine_postgres::PostgresEngine;
use meta::{Effect, Engine, Guard, Inode, Outcome, Session, Txn};
use pool::Url;
use types::{FileType, Ino, Mode, Name, OpId, SessionId, Time};

const SESSION: SessionId = SessionId(9);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (url, seconds, is_guarded) = match &args[..] {
        [_, url, seconds] => (url, seconds, false),
        [_, url, seconds, guarded] if guarded == "guarded" => (url, seconds, true),
        _ => return Err("usage: load URL SECONDS [guarded]".into()),
    };
    let seconds = seconds.parse().map_err(|error| format!("SECONDS '{seconds}': {error}"))?;
    let mut url = Url::parse(url)?;
    url.query.entry("table_prefix".into()).or_insert_with(|| "load_".into());
    let engine = PostgresEngine::open(&url, true)?;
    engine.wipe()?;
    println!("{}", engine.server()?);
    let next = AtomicU64::new(1_000_000);
    for ino in 0..16 {
        let effects = vec![Effect::PutInode(inode(100 + ino, FileType::Directory))];
        engine.commit(&[Txn { op_id: OpId(u128::from(ino)), guards: Vec::new(), effects }])?;
    }
    let effects = vec![Effect::PutSession(session())];
    engine.commit(&[Txn { op_id: OpId(16), guards: Vec::new(), effects }])?;
    for batch in [1, 16] {
        for threads in [1, 4, 16] {
            let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
            let began = Instant::now();
            std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
                let workers: Vec<_> = (0..threads)
                    .map(|thread| {
                        let (engine, next, stop, done) = (&engine, &next, &stop, &done);
                        scope.spawn(move || {
                            while !stop.load(Ordering::Relaxed) {
                                let first = next.fetch_add(batch, Ordering::Relaxed);
                                let txns =
                                    (first..first + batch).map(|ino| create(100 + thread, ino, is_guarded));
                                let outcomes = engine.commit(&txns.collect::<Vec<_>>())?;
                                if !outcomes.iter().all(|o| matches!(o, Outcome::Committed { .. })) {
                                    return Err(meta::EngineError::permanent("a create conflicted"));
                                }
                                done.fetch_add(batch, Ordering::Relaxed);
                            }
                            Ok(())
                        })
                    })
                    .collect();
                std::thread::sleep(Duration::from_secs(seconds));
                stop.store(true, Ordering::Relaxed);
                for worker in workers {
                    worker.join().map_err(|_| "a thread panicked")??;
                }
                Ok(())
            })?;
            let rate = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
            println!("{threads:2} threads, batches of {batch:2}: {rate:6.0} creates/s");
        }
    }
    Ok(())
}

fn session() -> Session {
    Session::new(SESSION, Time::from_nanos(0))
}

fn inode(ino: u64, kind: FileType) -> Inode {
    Inode { nlink: 1, access_rev: 0, ..Inode::new(Ino(ino), kind, Mode::new(0o644), Time::from_nanos(0)) }
}

fn create(parent: u64, ino: u64, is_guarded: bool) -> Txn {
    let text = format!("file-{ino:012}");
    // A text of letters and digits is a valid name.
    let name = Name::new(text.as_bytes()).unwrap_or_else(|_| unreachable!("{text}"));
    let (parent, now) = (Ino(parent), Some(Time::from_nanos(ino as i64)));
    let session = is_guarded.then_some(Guard::Session { session: SESSION, heartbeat: None });
    let guards = [Guard::Access { ino: parent, rev: 0 }, Guard::DirentAbsent { parent, name: name.clone() }];
    Txn {
        op_id: OpId(u128::from(ino) | 9 << 64),
        guards: session.into_iter().chain(guards).collect(),
        effects: vec![
            Effect::PutInode(inode(ino, FileType::Regular)),
            Effect::PutDirent { parent, name, ino: Ino(ino), kind: FileType::Regular },
            Effect::SetTimes { ino: parent, atime: None, mtime: now, ctime: now },
        ],
    }
}
