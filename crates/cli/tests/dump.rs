//! Dumps and loads of volumes, between all engines, on real servers and mounts.
//!
//! Most tests mount, which requires root.

mod common;
mod tree;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{Place, command, killed_at, limen, loaded_lines, make_many};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use servers::{Kind, Server};
use tree::{MIB, make_tree, walk};
use types::CHUNK_BYTES;

fn is_clean(url: &str) {
    let said = limen(&["fsck", url]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

/// Moves a volume to another database: dumps it, loads it, and lets the new database adopt the object store.
fn move_to(place: &Place, from: &str, to: &str, json: bool) {
    let file = place.text("dump");
    let json: &[&str] = if json { &["--json"] } else { &[] };
    limen(&[&["dump"], json, &[from, &file]].concat()).ok();
    limen(&["load", "--verify", to, &file]).ok();
    limen(&["config", "--adopt-store", to]).ok();
    is_clean(to);
}

const DOMAIN: &str = "S-1-5-21-1004336348-1177238915-682003330";

/// [`make_tree`] creates more files than this.
const FILES_OF_TREE: usize = 300;

/// Moves a volume from engine to engine, and compares what programs see. The volume has at least `files`
/// files.
fn goes_through_all_engines(format: &[&str], kinds: &[Kind], files: usize) {
    if !skip::is_root() {
        return;
    }
    let place = Place::new();
    let mut url = place.url();
    limen(&[&["format", &url, "vol", "--bucket", &place.text("objects")], format].concat()).ok();
    if files > FILES_OF_TREE {
        let files = files.div_ceil(10).to_string();
        limen(&["mdtest", &url, "/t", "--depth", "1", "--dirs", "10", "--files", &files, "--keep"]).ok();
    }
    place.mount_url(&url, &[]).ok();
    let mnt = place.path("mnt");
    let nfs4 = format.contains(&"nfsv4");
    make_tree(&mnt, nfs4);
    if nfs4 {
        let entry = format!("A:g:{DOMAIN}-513:r");
        let file = place.text("mnt/a/b/c/file 7");
        let done = Command::new("nfs4_setfacl").args(["-a", &entry, &file]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        limen(&["sid", "set", &url, DOMAIN, "--range", "100000-199999"]).ok();
    }
    place.umount(&[]).ok();
    place.mount_url(&url, &[]).ok();
    let before = walk(&mnt);
    let sids = |url: &str| if nfs4 { limen(&["sid", "list", "--json", url]).ok() } else { String::new() };
    let domains = sids(&url);
    assert_eq!(domains.contains(DOMAIN), nfs4, "{domains}");
    assert!(before.len() > files);
    place.umount(&[]).ok();
    let servers: Vec<Server> = kinds.iter().map(|kind| Server::start(*kind, false)).collect();
    let back = format!("sqlite://{}", place.text("back.db"));
    let urls = servers.iter().map(Server::url_with_long_timeouts).chain([back.clone()]);
    for (count, next) in urls.enumerate() {
        move_to(&place, &url, &next, count % 2 == 1);
        url = next;
        place.mount_url(&url, &[]).ok();
        let after = walk(&mnt);
        for (path, says) in &before {
            assert_eq!(after.get(path), Some(says), "{} in {url}", path.escape_ascii());
        }
        assert_eq!(after.len(), before.len());
        assert_eq!(sids(&url), domains);
        // A new inode gets a number that no old inode has.
        let new = mnt.join("new");
        fs::write(&new, vec![count as u8; 5 * MIB as usize]).unwrap();
        assert!(
            before.values().all(|says| !says.starts_with(&format!("{} ", fs::metadata(&new).unwrap().ino())))
        );
        fs::remove_file(&new).unwrap();
        place.umount(&[]).ok();
    }
    let data = limen(&["fsck", "--data", &back]);
    assert_eq!(data.code, Some(0), "{data:?}");
}

#[test]
fn posix_volume_goes_through_all_engines() {
    let kinds = [Kind::Postgres, Kind::Redis, Kind::Etcd, Kind::Mariadb];
    goes_through_all_engines(&["--acl", "posix"], &kinds, FILES_OF_TREE);
}

#[test]
fn volume_of_many_files_goes_through_all_engines() {
    if skip::is_long() {
        let kinds = [Kind::Postgres, Kind::Redis, Kind::Etcd, Kind::Mariadb];
        goes_through_all_engines(&["--acl", "posix"], &kinds, 30_000);
    }
}

#[test]
fn nfs4_volume_goes_through_engines() {
    goes_through_all_engines(&["--acl", "nfsv4"], &[Kind::Mariadb, Kind::Postgres], FILES_OF_TREE);
}

#[cfg(feature = "tikv")]
#[test]
fn nfs4_volume_goes_through_tikv() {
    if let Some(what) = Kind::Tikv.missing() {
        return skip::missing(&what);
    }
    goes_through_all_engines(&["--acl", "nfsv4"], &[Kind::Tikv], FILES_OF_TREE);
}

/// Moves a volume with quotas for nested directories, a user and a group from engine to engine, and compares
/// the quotas.
fn quotas_go_through(kinds: &[Kind]) {
    if !skip::is_root() {
        return;
    }
    let place = Place::new();
    let mut url = place.url();
    limen(&["format", &url, "vol", "--bucket", &place.text("objects")]).ok();
    place.mount_url(&url, &[]).ok();
    make_tree(&place.path("mnt"), false);
    place.umount(&[]).ok();
    let at = |url: &str, path: &str| format!("{url}:{path}");
    limen(&["quota", "set", &at(&url, "/a"), "--inodes", "400", "--soft-bytes", "1M"]).ok();
    limen(&["quota", "set", &at(&url, "/a/b/c"), "--bytes", "100M"]).ok();
    limen(&["quota", "set", &url, "--user", "4711", "--inodes", "1"]).ok();
    limen(&["quota", "set", &url, "--group", "0", "--bytes", "9G"]).ok();
    let quotas = |url: &str| limen(&["quota", "list", "--json", url]).ok();
    let before: Value = serde_json::from_str(&quotas(&url)).unwrap();
    // The other owners of files are counted too.
    assert!(before["quotas"].as_array().unwrap().len() > 4, "{before:#}");
    let servers: Vec<Server> = kinds.iter().map(|kind| Server::start(*kind, false)).collect();
    let back = format!("sqlite://{}", place.text("back.db"));
    for next in servers.iter().map(Server::url).chain([back]) {
        move_to(&place, &url, &next, false);
        url = next;
        let after: Value = serde_json::from_str(&quotas(&url)).unwrap();
        assert_eq!(after["quotas"], before["quotas"], "{url}");
        place.mount_url(&url, &[]).ok();
        let new = |count: u64| fs::write(place.path(&format!("mnt/a/b/c/new {count}")), b"");
        let created = (0..).take_while(|count| new(*count).is_ok()).count() as u64;
        // The outer quota limits the new files, and its count is exact.
        let outer = before["quotas"].as_array().unwrap().iter().find(|quota| quota["path"] == "/a").unwrap();
        assert_eq!(created, 400 - outer["inodes"].as_u64().unwrap(), "{url}");
        (0..created)
            .for_each(|count| fs::remove_file(place.path(&format!("mnt/a/b/c/new {count}"))).unwrap());
        place.umount(&[]).ok();
    }
}

#[test]
fn quotas_go_through_engines() {
    quotas_go_through(&[Kind::Postgres, Kind::Redis, Kind::Mariadb, Kind::Etcd]);
}

/// The chunks of a large file: almost as many as a dump reads with one request.
const LARGE_CHUNKS: u64 = 4000;

/// Runs `work` while other threads change files below `top`. The runs end when there have been at least two
/// and a file has changed meanwhile. Three threads create, rename, link, write and remove files, with a
/// `pause` after each round; one more thread writes to a large file without a pause.
fn beside_writers(top: &Path, pause: Duration, work: impl Fn(u32)) {
    let (running, done) = (AtomicBool::new(true), AtomicU64::new(0));
    let write = |thread: u64| {
        let dir = top.join(format!("writer {thread}"));
        fs::create_dir(&dir).unwrap();
        let at = |name: String| dir.join(name);
        for round in 0.. {
            if !running.load(Ordering::Relaxed) {
                break;
            }
            let (file, link) = (at(format!("file {round}")), at(format!("link {round}")));
            fs::write(&file, vec![1; round as usize % 9000]).unwrap();
            fs::hard_link(&file, &link).unwrap();
            fs::create_dir(at(format!("dir {round}"))).unwrap();
            fs::rename(&file, at(format!("dir {round}/moved"))).unwrap();
            if round >= 5 {
                fs::remove_file(at(format!("link {}", round - 5))).unwrap();
                fs::remove_file(at(format!("dir {}/moved", round - 5))).unwrap();
                fs::remove_dir(at(format!("dir {}", round - 5))).unwrap();
            }
            done.fetch_add(1, Ordering::Relaxed);
            thread::sleep(pause);
        }
    };
    let write_large = || {
        let file = File::create(top.join("large")).unwrap();
        file.set_len(LARGE_CHUNKS * CHUNK_BYTES).unwrap();
        for round in 0.. {
            if !running.load(Ordering::Relaxed) {
                break;
            }
            file.write_all_at(b"x", round % LARGE_CHUNKS * CHUNK_BYTES).unwrap();
            file.sync_data().unwrap();
        }
    };
    thread::scope(|scope| {
        let _stop = Stop(&running);
        let small = (0..3).map(|thread| scope.spawn(move || write(thread)));
        let writers: Vec<_> = small.chain([scope.spawn(write_large)]).collect();
        let are_writing = || assert!(writers.iter().all(|writer| !writer.is_finished()));
        while done.load(Ordering::Relaxed) < 30 {
            are_writing();
            thread::yield_now();
        }
        let before = done.load(Ordering::Relaxed);
        for round in 0.. {
            work(round);
            are_writing();
            if round > 0 && done.load(Ordering::Relaxed) > before {
                break;
            }
            assert!(round < 100, "no writer changed anything meanwhile");
        }
    })
}

/// Ends the writers, even after a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn dump_beside_writers_shows_one_moment(url: &str, place: &Place) {
    // Redis shows only the present moment, so it needs a time without changes: see the header of
    // `dump/src/live.rs`.
    let pause = Duration::from_millis(if url.starts_with("redis") { 100 } else { 1 });
    let bucket = place.text("objects");
    limen(&["format", url, "vol", "--bucket", &bucket]).ok();
    place.mount_url(url, &[]).ok();
    let mnt = place.path("mnt");
    for dir in 0..30 {
        let dir = mnt.join(format!("dir {dir}"));
        fs::create_dir(&dir).unwrap();
        (0..50).for_each(|file| fs::write(dir.join(file.to_string()), b"data").unwrap());
    }
    beside_writers(&mnt, pause, |round| {
        let (file, copy) =
            (place.text("dump"), format!("sqlite://{}", place.text(&format!("copy{round}.db"))));
        limen(&["dump", url, &file]).ok();
        limen(&["load", "--verify", &copy, &file]).ok();
        is_clean(&copy);
    });
    place.umount(&[]).ok();
}

#[test]
fn dump_beside_writers_shows_one_moment_on_sqlite() {
    if skip::is_root() {
        let place = Place::new();
        dump_beside_writers_shows_one_moment(&place.url(), &place);
    }
}

#[test]
fn dump_beside_writers_shows_one_moment_on_postgres() {
    if skip::is_root() {
        dump_beside_writers_shows_one_moment(
            &Server::start(Kind::Postgres, false).url_with_long_timeouts(),
            &Place::new(),
        );
    }
}

#[test]
fn dump_beside_writers_shows_one_moment_on_mariadb() {
    if skip::is_root() {
        dump_beside_writers_shows_one_moment(
            &Server::start(Kind::Mariadb, false).url_with_long_timeouts(),
            &Place::new(),
        );
    }
}

#[test]
fn dump_beside_writers_shows_one_moment_on_redis() {
    if skip::is_root() {
        dump_beside_writers_shows_one_moment(
            &Server::start(Kind::Redis, false).url_with_long_timeouts(),
            &Place::new(),
        );
    }
}

#[test]
fn dump_beside_writers_shows_one_moment_on_etcd() {
    if skip::is_root() {
        dump_beside_writers_shows_one_moment(
            &Server::start(Kind::Etcd, false).url_with_long_timeouts(),
            &Place::new(),
        );
    }
}

#[test]
fn killed_load_goes_on() {
    let place = Place::formatted();
    make_many(&place);
    let (file, url) = (place.text("dump"), format!("sqlite://{}", place.text("new.db")));
    limen(&["dump", &place.url(), &file]).ok();
    let mut stored = 0;
    for _ in 0..3 {
        // The log has this size when about a fifth of the dump is stored.
        killed_at(256 << 10, &place.path("new.db"), &["load", &url, &file]);
        let now = loaded_lines(&place.path("new.db"));
        assert!(now > stored, "{now} lines, {stored} before");
        stored = now;
        for refused in [&["mount", &url, &place.mnt()][..], &["fsck", &url], &["destroy", "--yes", &url]] {
            limen(refused)
                .failed(if refused[0] == "fsck" { 8 } else { 1 }, &["only in part", "limen load --discard"]);
        }
    }
    limen(&["load", "--verify", &url, &file]).ok();
    is_clean(&url);
    let other = format!("sqlite://{}", place.text("other.db"));
    killed_at(256 << 10, &place.path("other.db"), &["load", &other, &file]);
    limen(&["load", "--discard", &other]).ok();
    assert!(!place.path("other.db").exists());
}

/// Kills a load of `dump` at the same place on a slow and on a fast machine: the load reads from a pipe, into
/// which only three fourths of the dump are written.
fn killed_in_the_middle(place: &Place, url: &str, dump: &[u8]) {
    let (pipe, second) = (place.path("pipe"), place.path("second pipe"));
    for path in [&pipe, &second] {
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }
    let open = || File::options().write(true).open(&pipe).unwrap();
    let mut load = command(&["load", url, &place.text("pipe")]).spawn().unwrap();
    // A load reads a dump twice: first to check it, then to store its records. It opens the dump the second
    // time only after it has read the last byte.
    let (last, dump_without) = dump.split_last().unwrap();
    let mut check = open();
    check.write_all(dump_without).unwrap();
    fs::rename(&second, &pipe).unwrap();
    check.write_all(&[*last]).unwrap();
    drop(check);
    // When this write returns, the load has read all these bytes, except what fits into a pipe and a buffer.
    let mut records = open();
    records.write_all(&dump[..dump.len() / 4 * 3]).unwrap();
    load.kill().unwrap();
    assert!(!load.wait().unwrap().success());
    fs::remove_file(&pipe).unwrap();
}

/// Kills a load into each kind of server and continues it. Each load uses one connection.
fn killed_load_goes_on_over_one_connection(kinds: &[Kind]) {
    let place = Place::formatted();
    make_many(&place);
    let file = place.text("dump");
    limen(&["dump", "--json", &place.url(), &file]).ok();
    let dump = fs::read(&file).unwrap();
    assert!(dump.len() as u64 > 2 * MIB, "{}", dump.len());
    for kind in kinds {
        let server = Server::start(*kind, false);
        let url = match kind {
            // TiKV's client has one connection to each server.
            Kind::Tikv => server.url_with_long_timeouts(),
            _ => format!("{}&max_open_conns=1", server.url_with_long_timeouts()),
        };
        killed_in_the_middle(&place, &url, &dump);
        limen(&["fsck", &url]).failed(8, &["only in part", "limen load --discard"]);
        limen(&["load", "--verify", &url, &file]).ok();
        is_clean(&url);
        let copy = place.text("copy");
        limen(&["dump", "--json", &url, &copy]).ok();
        let lines = |file: &str| fs::read_to_string(file).unwrap().lines().count();
        assert_eq!(lines(&copy), lines(&file));
    }
}

#[test]
fn killed_load_goes_on_on_servers() {
    killed_load_goes_on_over_one_connection(&[Kind::Postgres, Kind::Redis, Kind::Etcd, Kind::Mariadb]);
}

#[cfg(feature = "tikv")]
#[test]
fn killed_load_goes_on_on_tikv() {
    match Kind::Tikv.missing() {
        Some(what) => skip::missing(&what),
        None => killed_load_goes_on_over_one_connection(&[Kind::Tikv]),
    }
}

#[test]
fn discarded_load_leaves_an_empty_database() {
    let place = Place::formatted();
    let (file, url) = (place.text("dump"), format!("sqlite://{}", place.text("new.db")));
    limen(&["dump", &place.url(), &file]).ok();
    limen(&["load", "--discard", &url]).failed(1, &["no volume"]);
    limen(&["load", &url, &file]).ok();
    limen(&["load", "--discard", &url]).failed(1, &["is complete", "--keep-objects"]);
    limen(&["destroy", "--yes", "--keep-objects", &url]).ok();
    assert!(!place.path("new.db").exists());
    is_clean(&place.url());
}

#[test]
fn dump_replaces_neither_a_pipe_nor_the_database() {
    let place = Place::formatted();
    let pipe = place.text("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    limen(&["dump", &place.url(), &pipe]).failed(2, &["not a regular file", "standard output"]);
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    limen(&["dump", &place.url(), &place.text("vol.db")]).failed(2, &["the volume's database"]);
    is_clean(&place.url());
}

#[test]
fn damaged_dumps_are_refused_and_nothing_is_created() {
    let place = Place::formatted();
    let (good, bad, url) =
        (place.text("good"), place.text("bad"), format!("sqlite://{}", place.text("new.db")));
    limen(&["dump", &place.url(), &good]).ok();
    let whole = fs::read(&good).unwrap();
    let mut altered = whole.clone();
    *altered.last_mut().unwrap() ^= 1;
    let newer = [&whole[..8], &[9, 0, 0, 0], &whole[12..]].concat();
    for (bytes, says) in [
        (&whole[..whole.len() - 1], "cut off"),
        (&whole[..3], "cut off"),
        (&altered[..], "the checksum of a frame is wrong"),
        (&newer[..], "newer limen (version 9"),
        (&b"something else"[..], "not a dump"),
    ] {
        fs::write(&bad, bytes).unwrap();
        limen(&["load", &url, &bad]).failed(1, &[says, &bad]);
        assert!(!place.path("new.db").exists(), "{says}");
    }
    limen(&["load", &place.url(), &good]).failed(1, &["holds a volume already", "nothing was changed"]);
    is_clean(&place.url());
    // The dump is passed through standard output and standard input.
    let mut load = command(&["load", "--verify", &url]);
    let mut load = load.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let out = command(&["dump", "--json", &place.url()]).output().unwrap();
    load.stdin.take().unwrap().write_all(&out.stdout).unwrap();
    assert!(load.wait().unwrap().success());
}

#[test]
fn only_one_of_two_databases_uses_the_objects() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    place.mount(&[]).ok();
    let data = vec![7; 5 * MIB as usize];
    fs::write(place.path("mnt/file"), &data).unwrap();
    place.umount(&[]).ok();
    let (file, old, new) = (place.text("dump"), place.url(), format!("sqlite://{}", place.text("new.db")));
    limen(&["dump", &old, &file]).ok();
    // This file is written after the dump.
    place.mount(&[]).ok();
    fs::write(place.path("mnt/later"), &data).unwrap();
    place.umount(&[]).ok();
    limen(&["load", &new, &file]).ok();
    let cannot_use = |url: &str| {
        place.mount_url(url, &[]).failed(1, &["belongs to another database", "limen config --adopt-store"]);
        limen(&["gc", "--delete", "--grace", "0", url]).failed(1, &["belongs to another database"]);
        limen(&["destroy", "--yes", url]).failed(1, &["belongs to another database", "nothing was removed"]);
    };
    cannot_use(&new);
    limen(&["config", "--adopt-store", &new]).ok();
    cannot_use(&old);
    place.mount_url(&new, &[]).ok();
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), data);
    assert!(!place.path("mnt/later").exists());
    // The numbers of objects that the other database stored after the dump are not used again.
    fs::write(place.path("mnt/new"), vec![8; 5 * MIB as usize]).unwrap();
    place.umount(&[]).ok();
    limen(&["destroy", "--yes", "--keep-objects", &old]).ok();
    assert!(!place.path("vol.db").exists());
    let data = limen(&["fsck", "--data", &new]);
    assert_eq!(data.code, Some(0), "{data:?}");
    assert!(data.out.contains("unreferenced"), "{data:?}");
    limen(&["destroy", "--yes", &new]).ok();
}
