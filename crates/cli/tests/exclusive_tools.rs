//! Tools that need exclusive use of a volume: their errors name the session or tool that uses it, `--force`
//! removes silent sessions, and an interrupted `destroy` can be finished.
//!
//! Most tests mount, which requires root.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};

use common::{Place, command, limen};
use engine_redis::RedisEngine;
use engine_sqlite::{Options, SqliteEngine};
use meta::{Effect, Engine, Process, Record, RecordKey, Scan, Session, Txn};
use rustix::process::geteuid;
use servers::{Kind, Server};
use types::{OpId, SessionId, SliceId, Time};
use vfs::process::this_process;

fn commit(engine: &dyn Engine, effect: Effect) {
    static OPS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let op_id = OpId((77 << 64) + u128::from(OPS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
    engine.commit(&[Txn { op_id, guards: Vec::new(), effects: vec![effect] }]).unwrap();
}

/// Announces a tool with the process ID of this process and a start time, on this machine or on another one.
fn announce(engine: &dyn Engine, tool: &str, start_time: u64, is_here: bool, is_final: bool) {
    let Process { boot_id, pid_namespace, .. } = this_process();
    let boot_id = if is_here { boot_id } else { "another".to_owned() };
    let last = if is_final { "\nfinal" } else { "" };
    let pid = std::process::id();
    let value = format!("{tool}\nfar\n{pid}\n{boot_id}\n{pid_namespace}\n{start_time}\n0{last}");
    commit(engine, Effect::PutSetting { name: "maintenance", value });
}

fn sqlite(place: &Place) -> SqliteEngine {
    SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap()
}

/// A session on another machine, so nothing is known about its process.
fn session(id: u64, heartbeat: i64) -> Session {
    Session {
        id: SessionId(id),
        host: "far".into(),
        pid: 1,
        mountpoint: format!("/far{id}"),
        since: Time::from_nanos(0),
        heartbeat: Time::from_nanos(heartbeat),
        process: Process { boot_id: "another".into(), pid_namespace: 1, start_time: 1 },
        version: String::new(),
        first_slice: SliceId(1),
    }
}

#[test]
fn blocking_mounts_are_named_with_advice_that_can_help() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let (url, other) = (place.url(), place.text("other"));
    fs::create_dir(&other).unwrap();
    place.mount(&["-o", "shared"]).ok();
    limen(&["mount", "-d", "--log", &place.text("log2"), "-o", "shared", &url, &other]).ok();
    let tools: [(&[&str], i32); 3] =
        [(&["fsck", "--repair"], 8), (&["destroy", "--yes"], 1), (&["config", "--adopt-store"], 1)];
    for (args, code) in tools {
        let said = limen(&[args, &[&url]].concat());
        said.failed(code, &[&place.mnt(), &other, "unmount it there first"]);
        assert!(!said.err.contains("shared") && !said.err.contains("--force"), "{said:?}");
    }
    // A mount without the option names both mounts, and the option.
    let third = place.text("third");
    fs::create_dir(&third).unwrap();
    limen(&["mount", "-d", "--log", &place.text("log3"), &url, &third])
        .failed(1, &[&place.mnt(), &other, "-o shared here too"]);
    limen(&["umount", &other]).ok();
    place.umount(&[]).ok();
    place.mount(&[]).ok();
    limen(&["mount", "-d", "--log", &place.text("log3"), "-o", "shared", &url, &third])
        .failed(1, &[&place.mnt(), "everywhere"]);
    place.umount(&[]).ok();
    limen(&["fsck", "--repair", &url]).ok();
}

#[test]
fn running_tool_is_shown_by_status_and_named_to_other_tools() {
    let place = Place::formatted();
    assert_eq!(place.status()["maintenance"], serde_json::Value::Null);
    let engine = sqlite(&place);
    announce(&engine, "limen fsck --repair", this_process().start_time, true, false);
    let shown = place.status()["maintenance"].clone();
    assert_eq!((&shown["tool"], &shown["host"]), (&"limen fsck --repair".into(), &"far".into()));
    assert_eq!((&shown["alive"], &shown["pid"]), (&true.into(), &std::process::id().into()));
    let out = limen(&["status", &place.url()]).ok();
    assert!(out.contains("limen fsck --repair on far, process"), "{out}");
    // This test holds the lock of the embedded engine, like a tool in another process.
    let lock = engine.lock_exclusive().unwrap();
    for (args, code) in [(&["fsck", "--repair"][..], 8), (&["destroy", "--yes"], 1)] {
        let said = limen(&[args, &[&place.url()]].concat());
        said.failed(code, &["'limen fsck --repair' works on the volume", "on far", "wait until it is done"]);
        assert!(!said.err.contains("shared"), "{said:?}");
    }
    drop(lock);
}

#[test]
fn removal_that_reached_the_records_can_only_be_finished() {
    let place = Place::formatted();
    let engine = sqlite(&place);
    let running = this_process().start_time;
    let destroy = |more: &[&str]| limen(&[&["destroy", "--yes", &place.url()], more].concat());
    // A tool that may still run on another machine.
    announce(&engine, "limen destroy", running, false, true);
    limen(&["fsck", "--end-maintenance", &place.url()]).failed(8, &["records are gone", "limen destroy"]);
    limen(&["fsck", "--repair", &place.url()]).failed(8, &["limen destroy --force"]);
    destroy(&[]).failed(1, &["works on the volume", "limen destroy --force"]);
    // A tool on this machine whose process is gone.
    announce(&engine, "limen destroy", running - 1, true, true);
    limen(&["fsck", "--end-maintenance", &place.url()]).failed(8, &["records are gone"]);
    limen(&["fsck", "--repair", &place.url()]).failed(8, &["works on the volume"]);
    if geteuid().is_root() {
        place.mount(&[]).failed(1, &["records are gone", "limen destroy again"]);
    }
    announce(&engine, "limen destroy", running, false, true);
    drop(engine);
    destroy(&["--force"]).ok();
    let names = fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("vol")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn force_removes_silent_sessions_but_not_renewed_ones() {
    let place = Place::new();
    let server = Server::start(Kind::Redis, false);
    let url = server.url();
    limen(&["format", &url, "vol", "--bucket", &place.text("data")]).ok();
    let engine = RedisEngine::open(&pool::Url::parse(&url).unwrap(), false).unwrap();
    let sessions = || -> BTreeSet<u64> {
        let page = engine.scan(&Scan::Sessions { after: SessionId(0), limit: 9 }).unwrap();
        let id = |record: &Record| match record {
            Record::Session(id, Some(_)) => Some(id.0),
            _ => None,
        };
        page.snapshot.records.iter().filter_map(id).collect()
    };
    let put = |id, heartbeat| commit(&engine, Effect::PutSession(session(id, heartbeat)));
    put(1001, 1);
    put(1002, 1);
    let run = |args: &[&str], silence_ms: u64| {
        let mut command = command(&[args, &[&url]].concat());
        command.env("LIMEN_TEST_SESSION_MS", format!("10,20,{silence_ms}"));
        common::Said::from(command.output().unwrap())
    };
    for (args, code) in [(&["fsck", "--repair"][..], 8), (&["destroy", "--yes"], 1)] {
        run(args, 90_000).failed(code, &["/far1001", "/far1002", "90 s", "--force"]);
    }
    // One of the sessions is renewed while the tool waits, which ends the wait.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for heartbeat in 2.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                put(1002, heartbeat);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        });
        let said = run(&["fsck", "--repair", "--force"], 600_000);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        said.failed(8, &["/far1002", "renewed"]);
    });
    assert_eq!(sessions(), BTreeSet::from([1001, 1002]));
    // A tool that was refused leaves no announcement.
    let Some(Record::Settings(settings)) = engine.read(&[RecordKey::Settings]).unwrap().records.pop() else {
        panic!()
    };
    assert_eq!(meta::Maintenance::announced_in(&settings), None);
    run(&["fsck", "--repair", "--force"], 100).ok();
    assert_eq!(sessions(), BTreeSet::new());
    put(1003, 1);
    run(&["destroy", "--yes", "--force"], 100).ok();
    limen(&["status", &url]).failed(1, &["no volume"]);
}

#[test]
fn volume_is_not_removed_while_a_process_uploads_its_blocks() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let options = format!("writeback,cache_dir_free=0,cache_dir={}", place.text("cache"));
    place.mount(&["-o", &options]).ok();
    fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
    place.umount(&[]).ok();
    let uuid = place.status()["uuid"].as_str().unwrap().to_owned();
    let area = place.path("cache").join(uuid).join("staging/0");
    // This test holds the lock, like a process that uploads.
    let lock = File::options().write(true).open(area.join("lock")).unwrap();
    lock.try_lock().unwrap();
    limen(&["destroy", "--yes", &place.url()]).failed(1, &["still uploading", area.to_str().unwrap()]);
    place.mount(&[]).ok();
    assert_eq!(fs::read(place.path("mnt/f")).unwrap(), vec![7; 100_000]);
    place.umount(&[]).ok();
    drop(lock);
    limen(&["destroy", "--yes", &place.url()]).ok();
    assert!(!area.parent().unwrap().exists());
}
