//! Tests of the engine through TiKV's own protocol, on a server of `tests/tikv`: the suites, in one region
//! and in several; lost requests and lost answers; regions that are split; answers above the servers' limit;
//! a server that hangs or dies.

mod support;

mod conformance {
    suite::conformance!(if crate::support::is_there, crate::support::empty);
}

/// `make test` runs them on a cluster within the test process (`tests/operations.rs`).
mod operations {
    suite::operations!(if || skip::is_long() && crate::support::is_there(), crate::support::empty);
}

/// Transactions take two phases.
mod divided {
    suite::conformance!(if crate::support::is_there, crate::support::divided);
}

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use engine_tikv::{OpenError, TikvEngine};
use meta::{Effect, Engine, EngineError, ErrorKind, Guard, Record, RecordKey, xattr_blocks};
use suite::files::{
    add_directory, add_file, committed, drop_file, file, files, is_committed, persistently, survive_kills,
    txn, until_done,
};
use support::Server;
use types::{ChunkIndex, Ino, Slice, SliceSource, XattrName};

/// The methods that commit.
const COMMITS: [&str; 3] = ["OnePhase", "KvPrewrite", "KvCommit"];

#[test]
fn a_transaction_in_one_region_takes_one_phase_and_in_several_two() {
    if !support::is_there() {
        return;
    }
    let server = Server::start(false);
    let engine = server.open("v_", true).unwrap();
    add_directory(&engine);
    let before = server.calls(COMMITS);
    committed(&engine, add_file(10));
    let one = server.calls(COMMITS);
    assert_eq!([0, 1, 2].map(|method| one[method] - before[method]), [1, 1, 0]);
    server.split("v_");
    committed(&engine, add_file(11));
    let two = server.calls(COMMITS);
    assert_eq!(two[0], one[0], "none is requested in one phase");
    assert!(two[1] > one[1] + 1 && two[2] > one[2], "{two:?} after {one:?}");
    assert_eq!(files(&engine), BTreeSet::from([10, 11]));
}

#[test]
fn lost_requests_and_answers_of_a_commit_repeat_and_lose_nothing() {
    if !support::is_there() {
        return;
    }
    for divided in [false, true] {
        let server = Server::start(false);
        if divided {
            server.split("v_");
        }
        let engine = server.open("v_", true).unwrap();
        add_directory(&engine);
        let mut made = BTreeSet::new();
        let mut unknown = 0;
        // The client itself repeats a request ten times. If it gives up, the outcome is unknown. It commits
        // in several regions at the same time.
        let prewrites = if divided { 70 } else { 15 };
        for (method, times) in [
            ("KvBatchGet", 1),
            ("KvPrewrite", 1),
            ("KvCommit", 1),
            ("KvPrewrite", prewrites),
            ("KvCommit", 15),
        ] {
            for what in ["request", "answer"] {
                let ino = 100 + made.len() as u64;
                server.lose(method, what, times);
                let batch = [add_file(ino)];
                let outcomes = persistently(|| {
                    let outcomes = engine.commit(&batch);
                    let is_unknown = |error: &EngineError| error.kind == ErrorKind::Indeterminate;
                    unknown += u32::from(outcomes.as_ref().is_err_and(is_unknown));
                    outcomes
                });
                assert!(is_committed(&outcomes[0]), "{method} {what} {times}: {outcomes:?}");
                made.insert(ino);
                server.ask("/lose-nothing");
            }
        }
        assert!(unknown > 0, "no outcome was unknown");
        assert_eq!(files(&engine), made);
        assert_eq!(files(&server.open("v_", false).unwrap()), made, "another client sees the same");
    }
}

/// A client locks keys in several regions at the same time. If it dies before it has locked the primary key,
/// the cluster has no record of the outcome of its transaction.
#[test]
fn transaction_without_a_lock_on_its_primary_key_is_soon_rolled_back() {
    if !support::is_there() {
        return;
    }
    let server = Server::start(false);
    server.split("v_");
    let (dead, other) = (server.open("v_", true).unwrap(), server.open("v_", false).unwrap());
    add_directory(&dead);
    server.lose("PrewritePrimary", "request", 11);
    let error = dead.commit(&[add_file(10)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    committed(&other, add_file(11));
    assert_eq!(files(&other), BTreeSet::from([11]));
}

#[test]
fn regions_split_under_load_lose_nothing() {
    if !support::is_there() {
        return;
    }
    const THREADS: u64 = 4;
    let server = Server::start(false);
    let clients: Vec<TikvEngine> =
        (0..THREADS).map(|client| server.open("v_", client == 0).unwrap()).collect();
    add_directory(&clients[0]);
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let made: BTreeSet<u64> = thread::scope(|scope| {
        let create = |client: u64| {
            let (clients, stop, commits) = (&clients, &stop, &commits);
            scope.spawn(move || {
                let engine = &clients[client as usize];
                let mut made = Vec::new();
                for ino in (1000 + client..).step_by(THREADS as usize) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let batch = [add_file(ino)];
                    assert!(is_committed(&persistently(|| engine.commit(&batch))[0]));
                    commits.fetch_add(1, Ordering::Relaxed);
                    made.push(ino);
                    if ino % 3 == 0 {
                        let batch = [drop_file(ino)];
                        assert!(is_committed(&persistently(|| engine.commit(&batch))[0]));
                        made.pop();
                    }
                }
                made
            })
        };
        let threads: Vec<_> = (0..THREADS).map(create).collect();
        let await_commits = |count: u64| {
            let target = commits.load(Ordering::Relaxed) + count;
            // A thread that has failed stops the others.
            while commits.load(Ordering::Relaxed) < target && !threads.iter().any(|t| t.is_finished()) {
                thread::sleep(Duration::from_millis(1));
            }
        };
        for boundary in ["u", "e", "n", "b", "l", "e%00%00%00%00%00%00%00%02file11", "d"] {
            await_commits(5);
            server.ask(&format!("/split?at=v_/{boundary}"));
        }
        await_commits(20);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.len() > 20, "{}", made.len());
    assert_eq!(files(&clients[1]), made);
    let [commits] = server.calls(["KvCommit"]);
    assert!(commits > 10, "{commits} commits in two phases");
}

#[test]
fn answers_above_the_limit_of_a_server_are_requested_in_parts() {
    if !support::is_there() {
        return;
    }
    let server = Server::start(false);
    let engine = server.open("v_", true).unwrap();
    let ino = Ino(10);
    committed(&engine, txn(Vec::new(), vec![Effect::PutInode(file(10))]));
    let bytes = |number: u64, size: usize| vec![number as u8; size];
    // A file that was written 300 times, each time 64 KiB.
    for number in 0..300 {
        let source = SliceSource::Inline(bytes(number, 64 << 10).into());
        let slice = Slice { pos: 0, len: 64 << 10, source };
        committed(&engine, txn(Vec::new(), vec![Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice }]));
    }
    let records = engine.read(&[RecordKey::Slices(ino, ChunkIndex(0))]).unwrap().records;
    let [Record::Slices(_, _, rows)] = &records[..] else { panic!("{} records", records.len()) };
    assert_eq!(rows.len(), 300);
    // 12 MB of attributes, read as a range and one by one.
    let names = (0..200).map(|number| XattrName::new(format!("user.{number}").as_bytes()).unwrap());
    let mut guards = Vec::new();
    for (name, number) in names.zip(0..) {
        let value: Arc<[u8]> = bytes(number, 60_000).into();
        guards.push(Guard::Xattr { ino, name: name.clone(), blocks: xattr_blocks(value.len()) });
        committed(&engine, txn(Vec::new(), vec![Effect::PutXattr { ino, name, value }]));
    }
    let records = engine.read(&[RecordKey::Xattrs(ino)]).unwrap().records;
    let [Record::Xattrs(_, found)] = &records[..] else { panic!("{} records", records.len()) };
    assert_eq!(found.len(), 200);
    committed(&server.open("v_", false).unwrap(), txn(guards, Vec::new()));
    engine.wipe().unwrap();
}

#[test]
fn an_answer_that_no_server_sends_is_a_permanent_error() {
    if !support::is_there() {
        return;
    }
    let server = Server::start(false);
    let engine = server.open("v_", true).unwrap();
    for name in ["a", "b"] {
        let value = "x".repeat(6 << 20);
        committed(&engine, txn(Vec::new(), vec![Effect::PutSetting { name, value }]));
    }
    let error = engine.read(&[RecordKey::Settings]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Determinate { transient: false }, "{error}");
}

#[test]
fn killed_server_loses_and_repeats_nothing() {
    if !support::is_there() {
        return;
    }
    let server = Server::start(true);
    let engine = server.open("v_", true).unwrap();
    survive_kills(&engine, 3, &|| server.restart());
}

#[test]
fn hanging_server_times_out_after_op_timeout() {
    if !support::is_there() {
        return;
    }
    let server = Server::start(false);
    let patient = server.open("v_", true).unwrap();
    add_directory(&patient);
    committed(&patient, add_file(10));
    // Until the server hangs, requests that exceed these timeouts are repeated: the machine may be busy.
    let url = server.url("v_", "&op_timeout=500ms&connect_timeout=500ms");
    let engine = until_done(|| TikvEngine::open(&url, false));
    let mut changes = persistently(|| engine.watch()).unwrap();
    server.stop(true);
    let read = engine.read(&[RecordKey::Usage]).unwrap_err();
    assert_eq!(read.kind, ErrorKind::Determinate { transient: true }, "{read}");
    // A commit takes its timestamp first, so this one did not happen.
    let commit = engine.commit(&[add_file(11)]).unwrap_err();
    assert_eq!(commit.kind, ErrorKind::Determinate { transient: true }, "{commit}");
    let stream = std::iter::repeat_with(|| changes.next(Duration::from_millis(10))).find_map(Result::err);
    assert!(stream.is_some(), "the stream of a hanging server must fail");
    assert!(matches!(TikvEngine::open(&url, false), Err(OpenError::Engine(_))));
    server.stop(false);
    let batch = [add_file(11)];
    persistently(|| engine.commit(&batch));
    assert_eq!(files(&engine), BTreeSet::from([10, 11]));
}
