//! `limen mount --take-over`: programs continue to run while another process takes over their mount.

mod common;
mod harness;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, Said, limen};
use harness::{Random, as_user};
use rustix::fs::{Dir, FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use servers::{Kind, Server};

const OWNER: u32 = 1000;
const TIMES: u32 = 10;
/// Nothing in this file takes this long unless it hangs, even on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

/// Requests that wait are still waiting after this time.
const MOMENT: Duration = Duration::from_millis(300);

/// A mounted volume, and the server of its metadata.
struct Mount {
    place: Place,
    url: String,
    options: &'static str,
    _server: Option<Server>,
}

impl Mount {
    /// Returns `None`, and reports a skip, if the test cannot run: mounting requires root, and the server may
    /// be missing.
    fn new(kind: Option<Kind>, options: &'static str) -> Option<Mount> {
        if !skip::is_root() {
            return None;
        }
        if let Some(what) = kind.and_then(Kind::missing) {
            skip::missing(&what);
            return None;
        }
        let server = kind.map(|kind| Server::start(kind, false));
        let place = Place::new();
        let url = server.as_ref().map_or_else(|| place.url(), Server::url);
        limen(&["format", &url, "vol", "--bucket", &place.text("data")]).ok();
        place.mount_url(&url, &["-o", options]).ok();
        Some(Mount { place, url, options, _server: server })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    /// The number and the process of the only session.
    fn session(&self) -> (u64, u32) {
        self.sessions(1)[0]
    }

    /// The numbers and processes of this many sessions, the oldest first.
    fn sessions(&self, count: usize) -> Vec<(u64, u32)> {
        let status = limen(&["status", "--json", &self.url]).ok();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let sessions = status["sessions"].as_array().unwrap();
        assert_eq!(sessions.len(), count, "{status}");
        let numbers =
            |session: &serde_json::Value| Some((session["id"].as_u64()?, session["pid"].as_u64()? as u32));
        sessions.iter().map(|session| numbers(session).unwrap()).collect()
    }

    /// Takes the mount over by a new process, and waits for the end of the old one.
    fn take_over(&self) {
        let (session, old) = self.session();
        let said = self.place.mount_url(&self.url, &["--take-over", "-o", self.options]);
        assert_eq!(said.code, Some(0), "{said:?}\n{}", self.place.log());
        let (same, new) = self.session();
        assert!(same == session && new != old, "the session continues in another process");
        soon("the old process has ended", || !is_running(old));
    }

    fn end(self) {
        self.place.umount(&[]).ok();
        limen(&["fsck", &self.url]).ok();
    }

    /// The socket of the process that serves the mount.
    fn socket(&self) -> PathBuf {
        common::socket_of(self.session().1)
    }
}

#[track_caller]
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Calls `step` until `stop` is set, and returns how often, and the longest time of one call.
fn repeat(stop: &AtomicBool, mut step: impl FnMut(u64)) -> (u64, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        step(count);
        longest = longest.max(began.elapsed());
        count += 1;
    }
    (count, longest)
}

/// Appends to a file and reads it again, through descriptors that stay open.
fn write_and_read(path: &Path, stop: &AtomicBool) -> (u64, Duration) {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    let reader = File::open(path).unwrap();
    repeat(stop, |n| {
        let text = format!("{n:0>4096}");
        file.write_all_at(text.as_bytes(), n * 4096).unwrap();
        if n % 16 == 0 {
            file.sync_all().unwrap();
        }
        let mut found = vec![0; 4096];
        let at = n / 2;
        reader.read_exact_at(&mut found, at * 4096).unwrap();
        assert_eq!(found, format!("{at:0>4096}").as_bytes());
    })
}

/// Creates, renames and removes files, in a directory that it creates.
fn change_names(path: &Path, stop: &AtomicBool) -> (u64, Duration) {
    fs::create_dir(path).unwrap();
    repeat(stop, |n| {
        let (new, kept) = (path.join(format!("new{n}")), path.join(format!("kept{n}")));
        fs::write(&new, n.to_string()).unwrap();
        fs::rename(&new, &kept).unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), n.to_string());
        if let Some(earlier) = n.checked_sub(20) {
            fs::remove_file(path.join(format!("kept{earlier}"))).unwrap();
        }
        let names = fs::read_dir(path).unwrap().count() as u64;
        assert_eq!(names, (n + 1).min(20));
    })
}

/// A program that runs until the file `stop` exists. Then it verifies its work, and prints how many steps it
/// has made.
fn program(name: &str, args: &[&str], directory: &Path) -> Option<Child> {
    let mut command = Command::new(name);
    command.args(args).current_dir(directory).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.env("HOME", directory).env("GIT_CONFIG_NOSYSTEM", "1");
    command.spawn().inspect_err(|_| skip::missing(name)).ok()
}

const GIT: &str = "
set -e
git init -q repo; cd repo; git config user.name t; git config user.email t@t; git config gc.auto 0
n=0
while [ ! -e ../stop ]; do
    n=$((n + 1)); echo $n > file$((n % 7)); git add -A; git commit -q -m $n
done
git fsck --strict > /dev/null 2>&1
[ \"$(git rev-list --count HEAD)\" = $n ]
git status --porcelain | { ! grep -q .; }
echo $n";

const DATABASE: &str = "
import os, sqlite3
db = sqlite3.connect('base.db', timeout=60)
db.execute('CREATE TABLE t (n INTEGER PRIMARY KEY, square INTEGER)')
n = 0
while not os.path.exists('stop'):
    n += 1
    with db:
        db.execute('INSERT INTO t VALUES (?, ?)', (n, n * n))
    assert db.execute('SELECT square FROM t WHERE n = ?', (n // 2 + 1,)).fetchone()[0] == (n // 2 + 1) ** 2
assert db.execute('PRAGMA integrity_check').fetchone()[0] == 'ok'
assert db.execute('SELECT count(*) FROM t').fetchone()[0] == n
print(n)";

/// Each step writes a file at random and verifies what it has written.
const FIO: &str = "
set -e
n=0
while [ ! -e stop ]; do
    fio --name=fio --filename=fio.data --rw=randrw --bsrange=1k-64k --size=8m --verify=crc32c \\
        --verify_fatal=1 --fdatasync=64 --ioengine=psync --output=fio.log >&2
    n=$((n + 1))
done
echo $n";

/// Ends the threads and the programs of a test when it is dropped.
struct Stopper<'a> {
    stop: &'a AtomicBool,
    programs: &'a Path,
}

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Err(error) = fs::write(self.programs.join("stop"), "") {
            eprintln!("cannot end the programs: {error}");
        }
    }
}

/// Each program continues to run while the process that serves the mount is replaced several times.
fn programs_go_on(kind: Option<Kind>, options: &'static str) {
    let Some(mount) = Mount::new(kind, options) else { return };
    let (stop, programs) = (AtomicBool::new(false), mount.at("programs"));
    fs::create_dir(&programs).unwrap();
    let git = program("sh", &["-c", GIT], &programs);
    let database = program("python3", &["-c", DATABASE], &programs);
    let fio = program("sh", &["-c", FIO], &programs);
    let paused = thread::scope(|scope| {
        // If a take-over fails, the threads and programs have to end, so that the test does.
        let stopper = Stopper { stop: &stop, programs: &programs };
        let writer = scope.spawn(|| write_and_read(&mount.at("data"), &stop));
        let names = scope.spawn(|| change_names(&mount.at("names"), &stop));
        for _ in 0..TIMES {
            mount.take_over();
            thread::sleep(MOMENT);
        }
        drop(stopper);
        [("writes", writer), ("names", names)].map(|(what, worker)| (what, worker.join().unwrap()))
    });
    for (what, child, least) in [("git", git, TIMES / 2), ("sqlite", database, TIMES / 2), ("fio", fio, 1)] {
        let Some(child) = child else { continue };
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{what}: {output:?}");
        let count: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert!(count > u64::from(least), "{what} did {count}");
        println!("{what}: {count} steps");
    }
    for (what, (count, longest)) in paused {
        println!("{what}: {count} steps, the longest took {longest:?}");
        assert!(count > u64::from(TIMES));
    }
    mount.end();
}

const WAITERS: usize = 80;

/// Everything that programs have open stays usable: unlinked files, half-read listings, locks, and waits for
/// locks.
fn open_things_stay(kind: Option<Kind>, options: &'static str) {
    let Some(mount) = Mount::new(kind, options) else { return };
    let mut unlinked =
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.at("unlinked")).unwrap();
    unlinked.write_all(b"no name").unwrap();
    fs::remove_file(mount.at("unlinked")).unwrap();

    fs::create_dir(mount.at("many")).unwrap();
    let mut expected: Vec<String> = (0..3000).map(|n| format!("name-{n:0>60}")).collect();
    expected.iter().for_each(|name| drop(File::create(mount.at("many").join(name)).unwrap()));
    let mut listing = Dir::read_from(File::open(mount.at("many")).unwrap()).unwrap();
    let next = |listing: &mut Dir| {
        listing.next().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
    };
    let mut listed: Vec<String> = (0..500).map(|_| next(&mut listing).unwrap()).collect();

    let lock = || {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.at("lock")).unwrap()
    };
    let held = lock();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let removed = File::create(mount.at("removed")).unwrap();
    removed.write_all_at(&vec![7; 5 << 20], 0).unwrap();
    let granted = AtomicBool::new(false);
    thread::scope(|scope| {
        // More than the mount has serving threads, and than it starts for waiting requests.
        let waiting: Vec<_> = (0..WAITERS)
            .map(|_| {
                scope.spawn(|| {
                    let own = lock();
                    flock(&own, FlockOperation::LockExclusive).unwrap();
                    granted.store(true, Ordering::SeqCst);
                    // Unlock explicitly, because a close releases the lock only a moment later.
                    flock(&own, FlockOperation::Unlock).unwrap();
                })
            })
            .collect();
        thread::sleep(MOMENT);
        for _ in 0..2 {
            mount.take_over();
            assert_eq!(flock(lock(), FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
            assert!(!granted.load(Ordering::SeqCst), "the lock is still held");
        }
        flock(&held, FlockOperation::Unlock).unwrap();
        waiting.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();

    unlinked.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    unlinked.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), unlinked.metadata().unwrap().nlink()), ("no name", 0));
    unlinked.write_all(b", and more").unwrap();
    drop(unlinked);

    while let Some(name) = next(&mut listing) {
        listed.push(name);
    }
    listed.retain(|name| !name.starts_with('.'));
    listed.sort();
    expected.sort();
    assert!(listed == expected, "each name is listed once: {} of {}", listed.len(), expected.len());

    assert_eq!(removed.metadata().unwrap().len(), 5 << 20);
    drop((removed, held, listing));
    mount.end();
}

#[test]
fn programs_go_on_with_sqlite() {
    programs_go_on(None, "transport=auto");
}

#[test]
fn programs_go_on_with_postgres() {
    programs_go_on(Some(Kind::Postgres), "transport=auto");
}

#[test]
fn programs_go_on_with_redis() {
    programs_go_on(Some(Kind::Redis), "transport=auto");
}

#[test]
fn open_things_stay_with_sqlite() {
    open_things_stay(None, "transport=auto");
}

#[test]
fn open_things_stay_with_a_shared_sqlite() {
    open_things_stay(None, "transport=auto,shared");
}

#[test]
fn open_things_stay_with_postgres() {
    open_things_stay(Some(Kind::Postgres), "transport=auto");
}

/// Sends a line to the process that serves the mount, and returns its next line.
fn tell(stream: &mut BufReader<UnixStream>, line: &str) -> serde_json::Value {
    stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    stream.get_ref().set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    let mut answer = String::new();
    stream.read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap_or_default()
}

#[test]
fn a_new_process_that_fails_leaves_the_mount_to_the_old_one() {
    let Some(mount) = Mount::new(None, "transport=auto") else { return };
    let (_, server) = mount.session();
    let status = mount.place.status();
    let volume = status["uuid"].as_str().unwrap();
    let mut file = File::create(mount.at("f")).unwrap();
    let answers = |file: &mut File| {
        file.write_all(b"x").unwrap();
        file.sync_all().unwrap();
        fs::write(mount.at("g"), "y").unwrap();
        assert_eq!(mount.session().1, server);
    };
    let wanted = |volume: &str, options: &[&str]| {
        serde_json::json!({ "volume": volume, "options": options }).to_string()
    };
    let connect = || {
        let mut stream = BufReader::new(UnixStream::connect(mount.socket()).unwrap());
        assert!(tell(&mut stream, "hand-over")["format"].is_u64());
        stream
    };
    for (other, why) in [
        (wanted("x", &["allow_other", "atime=never"]), "another volume"),
        (wanted(volume, &["atime=never"]), "allow_other"),
        (wanted(volume, &["allow_other", "ro", "atime=never"]), "ro"),
        ("{}".to_owned(), "unknown message"),
    ] {
        let answer = tell(&mut connect(), &other);
        assert!(answer["error"].as_str().is_some_and(|text| text.contains(why)), "{answer}");
        answers(&mut file);
    }
    for say in [None, Some("it failed\n")] {
        let mut stream = connect();
        let offer = tell(&mut stream, &wanted(volume, &["allow_other", "atime=never"]));
        assert!(offer["devices"].as_u64().unwrap() >= 1 && offer["lock"] == true, "{offer}");
        // The mount is paused now.
        thread::scope(|scope| {
            let call = scope.spawn(|| answers(&mut file));
            thread::sleep(MOMENT);
            assert!(!call.is_finished(), "requests wait");
            if let Some(text) = say {
                stream.get_mut().write_all(text.as_bytes()).unwrap();
            }
            drop(stream);
            call.join().unwrap();
        });
    }
    drop(file);
    mount.take_over();
    assert_eq!(fs::read_to_string(mount.at("g")).unwrap(), "y");
    mount.end();
}

#[test]
fn what_cannot_be_taken_over_says_why_and_goes_on() {
    let Some(mount) = Mount::new(None, "transport=auto") else { return };
    let take_over = |url: &str, mnt: &str, more: &[&str]| {
        limen(&[&["mount", "--take-over", "--log", &mount.place.text("log2")], more, &[url, mnt]].concat())
    };
    let mnt = mount.place.mnt();
    let other = mount.place.text("other");
    fs::create_dir(&other).unwrap();
    take_over(&mount.url, &other, &[]).failed(1, &["nothing to take over", "without --take-over"]);
    take_over("mem://x", &mnt, &[]).failed(1, &[&mount.url, "same META-URL"]);
    take_over(&mount.url, &mnt, &["-o", "ro"]).failed(1, &["serves it as before", "ro", "cannot change"]);
    fs::write(mount.at("f"), "served").unwrap();
    let script = "exec 7< \"$0\"; exec \"$@\"";
    let mut inherits = Command::new("sh");
    inherits.args(["-c", script]).arg(mount.at("f")).args([common::LIMEN, "mount", "-d", "--take-over"]);
    let said = Said::from(inherits.args([&mount.url, &mnt]).output().unwrap());
    said.failed(1, &["descriptor 7", "close it"]);
    assert_eq!(fs::read_to_string(mount.at("f")).unwrap(), "served");
    // A program that uses the mount does not prevent a take-over with -d.
    let _busy = File::open(mount.at("f")).unwrap();
    let said = limen(&["mount", "-d", "--take-over", &mount.url, &mnt]).ok();
    assert!(said.contains("was taken over") && said.contains(&mount.place.text("log")), "{said}");
    drop(_busy);
    mount.end();
}

/// A user other than root mounts through fusermount3(1), which shows the FUSE root itself.
#[test]
fn users_take_over_their_own_mounts_only() {
    if !skip::is_root() {
        return;
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        return skip::missing("fusermount3");
    }
    let place = Place::new();
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
        // Run this test again where users may open the device.
        let script =
            "mknod -m 666 \"$0\" c 10 229 && mount --bind \"$0\" /dev/fuse && exec \"$1\" --exact \"$2\"";
        let mut again = Command::new("unshare");
        again.args(["-m", "--propagation", "private", "sh", "-c", script]).arg(place.path("fuse"));
        again.arg(std::env::current_exe().unwrap()).arg("users_take_over_their_own_mounts_only");
        assert!(again.status().unwrap().success());
        return;
    }
    for directory in ["", "mnt"] {
        std::os::unix::fs::chown(place.path(directory), Some(OWNER), Some(OWNER)).unwrap();
    }
    let by = |uid: u32, args: &[&str]| {
        let mut command = common::command(args);
        command.uid(uid).gid(uid).env("XDG_RUNTIME_DIR", place.path("run")).env("HOME", place.path("home"));
        Said::from(command.output().unwrap())
    };
    let (url, mnt, log) = (place.url(), place.mnt(), place.text("log"));
    let mount = |uid: u32, more: &[&str]| {
        by(uid, &[&["mount", "-d", "--log", &log, "-o", "transport=auto"], more, &[&url, &mnt]].concat())
    };
    by(OWNER, &["format", &url, "vol"]).ok();
    mount(OWNER, &[]).ok();
    let server = || {
        let status: serde_json::Value =
            serde_json::from_str(&by(OWNER, &["status", "--json", &url]).ok()).unwrap();
        status["sessions"][0]["pid"].as_u64().unwrap() as u32
    };
    let (before, file) = (server(), place.path("mnt/f"));
    let mut program = Command::new("sh");
    program.args(["-c", "exec 5> \"$0\"; while read line; do echo $line >&5; done; cat \"$0\""]).arg(&file);
    let mut program =
        program.uid(OWNER).gid(OWNER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = program.stdin.take().unwrap();
    lines.write_all(b"before\n").unwrap();
    mount(OWNER + 1, &["--take-over"]).failed(1, &[]);
    assert_eq!(server(), before);
    mount(OWNER, &["--take-over"]).ok();
    assert_ne!(server(), before);
    lines.write_all(b"after\n").unwrap();
    drop(lines);
    let output = program.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "before\nafter\n", "{output:?}");
    by(OWNER, &["umount", &mnt]).ok();
}

/// The process that takes the mount over tells systemd its process ID before the old one ends, and the port
/// of the metrics stays the same. `limen stats` goes on with the counters of the new process.
#[test]
fn the_service_manager_and_the_metrics_follow() {
    let Some(mount) = Mount::new(None, "transport=auto") else { return };
    let (socket, name) = (mount.place.path("notify"), mount.place.text("notify"));
    let notified = UnixDatagram::bind(&socket).unwrap();
    notified.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    let metrics = || limen(&["status", "--json", &mount.url]).ok();
    let address = |status: &str| {
        let status: serde_json::Value = serde_json::from_str(status).unwrap();
        status["sessions"][0]["metrics"].as_str().unwrap().to_owned()
    };
    let before = address(&metrics());
    let (mnt, log) = (mount.place.mnt(), mount.place.text("log"));
    fs::read_dir(mount.at("")).unwrap().for_each(drop);
    let mut stats = common::command(&["stats", "--json", "--count", "3", &mnt]);
    let mut stats = stats.stdout(Stdio::piped()).spawn().unwrap();
    let mut rows = BufReader::new(stats.stdout.take().unwrap());
    let mut first = String::new();
    rows.read_line(&mut first).unwrap();
    let mut command = common::command(&[
        "mount",
        "-d",
        "--take-over",
        "--log",
        &log,
        "-o",
        "transport=auto",
        &mount.url,
        &mnt,
    ]);
    Said::from(command.env("NOTIFY_SOCKET", &name).output().unwrap()).ok();
    let mut message = [0; 100];
    let len = notified.recv(&mut message).unwrap();
    let message = String::from_utf8_lossy(&message[..len]).into_owned();
    assert!(message.lines().any(|line| line == format!("MAINPID={}", mount.session().1)), "{message}");
    assert_eq!(address(&metrics()), before);
    let mut others = String::new();
    rows.read_to_string(&mut others).unwrap();
    assert!(stats.wait().unwrap().success(), "{others}");
    for row in common::json_lines(&others) {
        let is_rate = |value: &serde_json::Value| value.as_f64().is_none_or(|rate| rate >= 0.0);
        assert!(row.as_object().unwrap().values().all(is_rate), "{row}");
    }
    let mut stream = TcpStream::connect(&before).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("200 OK") && text.contains("limen_"), "{text}");
    mount.end();
}

/// Blocks that wait for upload stay with the old process, which ends when they are uploaded.
#[test]
fn blocks_that_wait_for_upload_are_uploaded_after_the_hand_over() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let options = format!(
        "transport=auto,writeback,upload_limit=2M,cache_dir_free=0,cache_dir={}",
        place.text("cache")
    );
    place.mount(&["-o", &options]).ok();
    let mut content = Random::seeded("TAKE_OVER_SEED").bytes(12 << 20);
    fs::write(place.path("mnt/f"), &content).unwrap();
    let old = place.server();
    place.mount(&["-o", &options, "--take-over"]).ok();
    assert!(is_running(old) && place.server() != old, "the old process uploads");
    assert!(fs::read(place.path("mnt/f")).unwrap() == content);
    content.truncate(5 << 20);
    fs::write(place.path("mnt/g"), &content).unwrap();
    soon("the old process has ended", || !is_running(old));
    assert!(fs::read(place.path("mnt/g")).unwrap() == content);
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &place.url()]).ok();
}

/// A listing that has begun continues to show its caller only the entries that the caller may read.
#[test]
fn filtered_listings_stay_filtered() {
    let Some(mount) = Mount::new(None, "transport=auto,abe") else { return };
    fs::create_dir(mount.at("many")).unwrap();
    for n in 0..2000 {
        let path = mount.at(&format!("many/name-{n:0>60}"));
        File::create(&path).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(if n % 2 == 0 { 0o644 } else { 0o600 }))
            .unwrap();
    }
    fs::set_permissions(mount.place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let ((begun, begins), (go, goes)) = (channel(), channel::<()>());
    let path = mount.at("many");
    let list = move || {
        let mut listing = Dir::read_from(File::open(path).unwrap()).unwrap();
        let before = listing.by_ref().take(302).count() - 2;
        begun.send(()).unwrap();
        goes.recv().unwrap();
        before + listing.map(Result::unwrap).count()
    };
    thread::scope(|scope| {
        let listed = scope.spawn(|| as_user(OWNER, OWNER, list));
        begins.recv().unwrap();
        mount.take_over();
        go.send(()).unwrap();
        assert_eq!(listed.join().unwrap(), 1000);
    });
    mount.end();
}

/// The kernel keeps attributes for 60 seconds, unless it is notified that they have changed.
#[test]
fn changes_of_another_mount_during_the_hand_over_are_not_missed() {
    const FILES: u32 = 300;
    const SEEN_WITHIN: Duration = Duration::from_secs(30);
    let Some(mount) = Mount::new(Some(Kind::Postgres), "transport=auto") else { return };
    let (mnt2, log2) = (mount.place.text("mnt2"), mount.place.text("log2"));
    fs::create_dir(&mnt2).unwrap();
    limen(&["mount", "-d", "--log", &log2, &mount.url, &mnt2]).ok();
    let own = |n: u32| mount.at(&format!("f{n}"));
    let other = |n: u32| Path::new(&mnt2).join(format!("f{n}"));
    (0..FILES).for_each(|n| drop(File::create(own(n)).unwrap()));
    for round in 0..4 {
        let mode = |n: u32| 0o400 + (round * 7 + n) % 0o100;
        (0..FILES).for_each(|n| _ = fs::metadata(own(n)).unwrap());
        thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for n in 0..FILES {
                    fs::set_permissions(other(n), PermissionsExt::from_mode(mode(n))).unwrap();
                }
            });
            let (_, old) = mount.sessions(2)[0];
            mount.place.mount_url(&mount.url, &["--take-over", "-o", mount.options]).ok();
            soon("the old process has ended", || !is_running(old));
            changes.join().unwrap();
        });
        let changed = Instant::now();
        for n in 0..FILES {
            while fs::metadata(own(n)).unwrap().mode() & 0o777 != mode(n) {
                assert!(changed.elapsed() < SEEN_WITHIN, "file {n} in round {round}");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    limen(&["umount", &mnt2]).ok();
    mount.end();
}

/// To pause a mount over io_uring, its process wakes the workers by requests to the mount itself, which stay
/// unanswered until it continues. They must not keep the connection to the kernel open.
#[test]
fn a_mount_ends_if_its_process_is_killed_while_it_is_paused() {
    let Some(mount) = Mount::new(None, "transport=auto") else { return };
    let (_, server) = mount.session();
    let status = mount.place.status();
    let wanted = serde_json::json!({ "volume": status["uuid"], "options": ["allow_other", "atime=never"] });
    let mut stream = BufReader::new(UnixStream::connect(mount.socket()).unwrap());
    tell(&mut stream, "hand-over");
    assert!(tell(&mut stream, &wanted.to_string())["devices"].is_u64());
    let path = mount.at("f");
    let call = thread::spawn(move || File::create(path).map(drop).unwrap_err());
    thread::sleep(MOMENT);
    assert!(!call.is_finished(), "requests wait");
    kill_process(Pid::from_raw(server as i32).unwrap(), Signal::KILL).unwrap();
    // The socket may still hold the devices.
    drop(stream);
    soon("the process has ended", || !Path::new(&format!("/proc/{server}")).exists());
    let error = call.join().unwrap().raw_os_error().map(Errno::from_raw_os_error);
    assert!(matches!(error, Some(Errno::NOTCONN | Errno::CONNABORTED)), "{error:?}");
    mount.place.umount(&[]).ok();
    mount.place.mount_url(&mount.url, &["-o", mount.options]).ok();
    mount.end();
}

/// Reads a line and no byte after it.
fn line_of(mut stream: &UnixStream) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" && stream.read(&mut byte).unwrap() == 1 {
        line.extend(byte);
    }
    String::from_utf8(line).unwrap()
}

/// The test relays the messages between the two processes, and kills the old one when the new one is ready.
#[test]
fn the_new_process_serves_if_the_old_one_is_killed_after_it_has_described_the_mount() {
    let Some(mount) = Mount::new(None, "transport=auto") else { return };
    let ((_, old), socket) = (mount.session(), mount.socket());
    let mut file = File::create(mount.at("f")).unwrap();
    file.write_all(b"before").unwrap();
    let between = || {
        let real = socket.with_extension("test");
        fs::rename(&socket, &real).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        move || {
            let (mut front, _) = listener.accept().unwrap();
            let mut request = line_of(&front);
            // Before the new process opens the database, it asks the mount to commit.
            while request == "commit\n" {
                front.write_all(b"\n").unwrap();
                front = listener.accept().unwrap().0;
                request = line_of(&front);
            }
            let mut behind = UnixStream::connect(&real).unwrap();
            fs::remove_file(real).unwrap();
            // Relay the request, the greeting, and the wanted options.
            behind.write_all(request.as_bytes()).unwrap();
            front.write_all(line_of(&behind).as_bytes()).unwrap();
            behind.write_all(line_of(&front).as_bytes()).unwrap();
            let offer = line_of(&behind);
            front.write_all(offer.as_bytes()).unwrap();
            let offer: serde_json::Value = serde_json::from_str(&offer).unwrap();
            let mut state = vec![0; offer["bytes"].as_u64().unwrap() as usize];
            behind.read_exact(&mut state).unwrap();
            front.write_all(&state).unwrap();
            let more = usize::from(offer["lock"] == true) + usize::from(offer["metrics"] == true);
            let fds = fuse::receive_fds(&behind, offer["devices"].as_u64().unwrap() as usize + more).unwrap();
            fuse::send_fds(&front, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()).unwrap();
            assert_eq!(line_of(&front), "ready\n");
            kill_process(Pid::from_raw(old as i32).unwrap(), Signal::KILL).unwrap();
        }
    };
    let killed = thread::spawn(between());
    let said = mount.place.mount_url(&mount.url, &["--take-over", "-o", mount.options]);
    killed.join().unwrap();
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(!is_running(old) && mount.session().1 != old);
    file.write_all(b" and after").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(mount.at("f")).unwrap(), "before and after");
    mount.end();
}
