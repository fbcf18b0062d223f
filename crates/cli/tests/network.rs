//! Mounts of volumes on real database servers: round trips per operation, the delay until a change is
//! enforced on another mount, and behaviour when a server hangs, dies and restarts.
//!
//! Most cases are functions that run on every kind of server; see the end of this file. The others are tests
//! on one or two kinds.

mod common;
mod harness;
mod history;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMEN, Place, Said, command, limen};
use harness::{NOBODY, Random, as_user, refused};
use history::{Event, Outcome, Program, explain};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Mode, SeekFrom, StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
    flock, seek, statat, statx,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use servers::{Cut, Kind, Proxy, Server};

/// Nothing in this file takes this long unless it hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// At least half of the changes are enforced on the other mount within this time, which is twice the bound
/// that is promised without notifications. On a busy machine, the others may take longer.
const ENFORCED_WITHIN: Duration = Duration::from_secs(2);
/// Every change is enforced within this time. While a mount is notified of changes, its kernel uses cached
/// attributes for three times as long, so a test fails if the mount does not invalidate them.
const ENFORCED_AT_LAST: Duration = Duration::from_secs(20);
/// A mount whose stream works learns of a change within this number of polls. Two polls suffice, but threads
/// that wait for a CPU may see the old state for longer. Within [`ENFORCED_AT_LAST`] there are at least 200
/// polls, so this bound is the stricter one.
const NOTIFIED_WITHIN_POLLS: u64 = 100;

/// A volume that is mounted twice, the second time through a proxy.
struct Pair {
    place: Place,
    proxy: Proxy,
    server: Server,
    _exclusive: MutexGuard<'static, ()>,
}

impl Pair {
    /// Returns `None`, and reports a skip, if the test cannot run: mounting requires root, and the server may
    /// be missing.
    fn new(kind: Kind, durable: bool, options: &[&str]) -> Option<Pair> {
        let pair = Pair::unmounted(kind, durable)?;
        pair.place.mount_url(&pair.url(), options).ok();
        pair.mount_second(options, "");
        pair.wait_until("notified");
        Some(pair)
    }

    /// Formats the volume without mounting it.
    fn unmounted(kind: Kind, durable: bool) -> Option<Pair> {
        static EXCLUSIVE: Mutex<()> = Mutex::new(());
        if !skip::is_root() {
            return None;
        }
        if let Some(what) = kind.missing() {
            skip::missing(&what);
            return None;
        }
        // One test runs at a time, because tests that run at the same time would change the measurements.
        let exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let server = Server::start(kind, durable);
        let proxy = Proxy::to(&server);
        let place = Place::new();
        // Other users need access to the mount points.
        fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(place.path("mnt2")).unwrap();
        let pair = Pair { place, proxy, server, _exclusive: exclusive };
        limen(&["format", &pair.tool_url(), "vol", "--bucket", &pair.place.text("data")]).ok();
        Some(pair)
    }

    /// `session_ms` overrides the session times of the mount (heartbeat, validity and removal, in
    /// milliseconds).
    fn mount_second(&self, options: &[&str], session_ms: &str) {
        let (log, mnt) = (self.place.text("log2"), self.place.text("mnt2"));
        let url = self.server.kind.url(self.proxy.port, "vol");
        let args = [&["mount", "-d", "--log", &log], options, &[&url, &mnt]].concat();
        Said::from(with_times(&args, session_ms).output().unwrap()).ok();
    }

    /// The URL for mounts, which repeat requests that fail.
    fn url(&self) -> String {
        self.server.url()
    }

    /// The URL for tools, which repeat few requests.
    fn tool_url(&self) -> String {
        self.server.url_with_long_timeouts()
    }

    fn a(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    fn b(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place.path("mnt2").join(name)
    }

    fn status(&self) -> Value {
        serde_json::from_str(&limen(&["status", "--json", &self.tool_url()]).ok()).unwrap()
    }

    /// Waits until there are two sessions and the second mount reports this `coherence`.
    fn wait_until(&self, coherence: &str) {
        let deadline = Instant::now() + HANG_TIMEOUT;
        loop {
            let status = self.status();
            let sessions = status["sessions"].as_array().unwrap();
            let second = self.place.text("mnt2");
            let of_second = sessions.iter().find(|session| session["mountpoint"] == second.as_str());
            let is = of_second.is_some_and(|session| session["coherence"] == coherence);
            if sessions.len() == 2 && is {
                return;
            }
            assert!(Instant::now() < deadline, "the second mount is not '{coherence}': {status:#}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn umount_second(&self, more: &[&str]) -> Said {
        limen(&[&["umount"], more, &[&self.place.text("mnt2")]].concat())
    }

    /// Unmounts both mounts and checks that the volume is clean.
    fn end_clean(&self) {
        self.umount_second(&[]).ok();
        self.place.umount(&[]).ok();
        assert_eq!(self.status()["sessions"].as_array().unwrap().len(), 0);
        limen(&["fsck", "--data", &self.tool_url()]).ok();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.server.stop(false);
        self.proxy.cut(Cut::Nothing);
        if thread::panicking() {
            eprintln!("first mount: {}\nsecond mount: {}", self.place.log(), log_of(&self.place, "log2"));
        }
        self.umount_second(&["--force"]);
        let _ = Command::new("umount").arg("-l").arg(self.b("")).stderr(Stdio::null()).status();
    }
}

/// The command `limen` with these arguments. `session_ms` is as for [`Pair::mount_second`]; if it is empty,
/// the session times are not overridden.
fn with_times(args: &[&str], session_ms: &str) -> Command {
    let mut command = command(args);
    if !session_ms.is_empty() {
        command.env("LIMEN_TEST_SESSION_MS", session_ms);
    }
    command
}

fn log_of(place: &Place, name: &str) -> String {
    fs::read_to_string(place.path(name)).unwrap_or_default()
}

/// How often each operation runs: 500 times, or 2,000 times with `LIMEN_LONG`.
fn times() -> u64 {
    if is_long() { 2_000 } else { 500 }
}

fn is_long() -> bool {
    std::env::var_os("LIMEN_LONG").is_some()
}

/// The requests per second that two idle mounts send at most: heartbeats and housekeeping.
const IDLE_REQUESTS_PER_S: f64 = 3.0;

fn each_operation_costs_at_most_one_round_trip(kind: Kind) {
    let Some(pair) = Pair::new(kind, false, &[]) else { return };
    // If a busy machine delays the stream of changes for longer than the lease, a mount reads everything
    // again. But an operation that needs more than one round trip needs them in each attempt, so one cheap
    // attempt suffices.
    let is_cheap = (0..3).any(|attempt| costly_operations(&pair, kind, attempt).is_empty());
    assert!(is_cheap, "{kind:?}: the output names the operations that cost more");
    let status = pair.status();
    assert!(status["server"].as_str().unwrap().starts_with(kind.name()), "{status:#}");
    // Servers that can run without durability do so here, and the status must warn about it.
    let warned = !status["warnings"].as_array().unwrap().is_empty();
    assert_eq!(warned, kind.can_skip_durability(), "{status:#}");
    pair.end_clean();
}

/// Runs each operation in new directories, and returns those that cost more than one round trip. An operation
/// may consist of several requests of the kernel. This counts the requests that reach the server, divided by
/// the number of requests that the server needs for one change.
fn costly_operations(pair: &Pair, kind: Kind, attempt: u32) -> Vec<String> {
    let times = times();
    let costly = RefCell::new(Vec::new());
    let report = |what: &str, most: f64, before: u64, began: Instant| {
        let each = (pair.server.requests() - before) as f64 / (times * kind.requests_a_change()) as f64;
        let idle = began.elapsed().as_secs_f64() * IDLE_REQUESTS_PER_S / times as f64;
        eprintln!("{kind:?}: {what}: {each:.3} round trips, of these at most {idle:.3} by idle mounts");
        if each - idle > most {
            eprintln!("{kind:?}: {what}: more than {most} round trips");
            costly.borrow_mut().push(what.to_owned());
        }
    };
    let count = |what: &str, most: f64, each: &dyn Fn(u64)| {
        let (before, began) = (pair.server.requests(), Instant::now());
        (0..times).for_each(each);
        report(what, most, before, began);
    };
    let theirs = |i: u64| format!("theirs{attempt}/{i}");
    fs::create_dir(pair.b(format!("theirs{attempt}"))).unwrap();
    count("create in a new directory", 1.05, &|i| drop(File::create_new(pair.b(theirs(i))).unwrap()));
    count("lookup of a cold name", 1.05, &|i| {
        assert!(fs::symlink_metadata(pair.a(theirs(i))).unwrap().is_file());
    });
    count("lookup of a name that does not exist", 1.05, &|i| {
        refused(fs::symlink_metadata(pair.a(theirs(times + i))), Errno::NOENT);
    });
    let own = |letter: &str, i: u64| pair.a(format!("own{attempt}/{letter}{i}"));
    fs::create_dir(pair.a(format!("own{attempt}"))).unwrap();
    count("create", 1.05, &|i| drop(File::create_new(own("", i)).unwrap()));
    count("getattr", 0.05, &|i| {
        statx(CWD, own("", i), AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
    });
    count("open and close", 0.05, &|i| drop(File::open(own("", i)).unwrap()));
    count("chmod", 1.05, &|i| fs::set_permissions(own("", i), PermissionsExt::from_mode(0o640)).unwrap());
    count("mkdir", 1.05, &|i| fs::create_dir(own("d", i)).unwrap());
    count("rename", 1.05, &|i| fs::rename(own("", i), own("r", i)).unwrap());
    let (before, began) = (pair.server.requests(), Instant::now());
    let files = (0..times).map(|i| own("r", i));
    let set = Command::new("setfacl").args(["-m", "u:1234:rw"]).args(files).status();
    assert!(set.expect("setfacl is needed").success());
    report("setfacl", 1.05, before, began);
    count("unlink", 1.05, &|i| fs::remove_file(own("r", i)).unwrap());
    count("rmdir", 1.05, &|i| fs::remove_dir(own("d", i)).unwrap());
    costly.into_inner()
}

fn mdtest_counts_one_engine_call_for_each_operation(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, false) else { return };
    let (url, usage) = (pair.tool_url(), pair.status()["usage"].clone());
    let tree = ["--threads", "1", "--depth", "2", "--dirs", "4", "--files", "5"];
    let said = limen(&[&["mdtest", "--json", &url, "/bench"], &tree[..]].concat()).ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    for phase in said["phases"].as_array().unwrap() {
        let calls = phase["engine_round_trips"].as_f64().unwrap();
        let expected = if phase["name"] == "stat" { 0.0..=0.05 } else { 1.0..=1.05 };
        assert!(expected.contains(&calls), "{phase}");
    }
    assert_eq!(pair.status()["usage"], usage);
    limen(&["fsck", "--data", &url]).ok();
}

#[track_caller]
fn until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < HANG_TIMEOUT, "timed out: the change is not visible");
        thread::sleep(Duration::from_micros(100));
    }
}

/// How long the second mount showed the old state: the time and the number of polls of its stream, both from
/// the change to the beginning of the last look that still showed the old state.
#[derive(Clone, Copy, Debug, Default)]
struct Stale {
    time: Duration,
    polls: u64,
}

impl Pair {
    /// Waits until `holds` sees the change that was just made. The last unsuccessful look is measured by its
    /// beginning, so the time that this thread waits for a CPU does not count.
    #[track_caller]
    fn stale_until(&self, holds: impl Fn() -> bool) -> Stale {
        let (changed, before) = (Instant::now(), self.proxy.polls());
        let mut last = Stale::default();
        loop {
            let now = Stale { time: changed.elapsed(), polls: self.proxy.polls() - before };
            if holds() {
                return last;
            }
            last = now;
            assert!(now.time < HANG_TIMEOUT, "timed out: the change is not visible");
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Like [`Pair::stale_until`]: waits until opening the file on the second mount, as a user with only the
    /// permissions of "other", succeeds (`granted`) or fails with EACCES (not `granted`).
    #[track_caller]
    fn stale_until_open(&self, name: &str, granted: bool) -> Stale {
        let path = self.b(name);
        as_user(NOBODY, NOBODY, || {
            self.stale_until(|| match File::open(&path) {
                Ok(_) => granted,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => !granted,
                Err(error) => panic!("{error}"),
            })
        })
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Prints the distribution of the delays and checks that all are bounded; if `notified`, checks the polls
/// too.
#[track_caller]
fn report(what: &str, notified: bool, stale: &[Stale]) {
    let mut times: Vec<Duration> = stale.iter().map(|stale| stale.time).collect();
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    let polls = stale.iter().map(|stale| stale.polls).max().unwrap();
    eprintln!(
        "{what}: median {:?}, p99 {:?}, longest {:?}, {polls} polls, {} times",
        at(50),
        at(99),
        at(100),
        times.len()
    );
    assert!(at(50) < ENFORCED_WITHIN && at(100) < ENFORCED_AT_LAST, "{what}: {times:?}");
    assert!(!notified || polls <= NOTIFIED_WITHIN_POLLS, "{what}: {stale:?}");
}

/// Bounds of the next case. A round takes 17 requests if the second mount is notified of all changes. The
/// bounds are higher because streams restart if the machine is so busy that an answer takes 2 s.
const MAX_REQUESTS: f64 = 40.0;
const MAX_STREAMS_BEGUN: u64 = 3;

fn change_is_enforced_on_the_other_mount(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &[]) else { return };
    let (mut chmods, mut renames, mut unlinks) = (Vec::new(), Vec::new(), Vec::new());
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    File::create(pair.a("f")).unwrap();
    let rounds = if is_long() { 200 } else { 50 };
    let (began, streams, requests) = (Instant::now(), pair.proxy.streams(), pair.server.requests());
    for i in 0..rounds {
        chmod(&pair.a("f"), 0o644);
        pair.stale_until_open("f", true);
        chmod(&pair.a("f"), 0o600);
        chmods.push(pair.stale_until_open("f", false));

        let (old, new) = (format!("o{i}"), format!("n{i}"));
        File::create_new(pair.a(&old)).unwrap();
        until(|| exists(&pair.b(&old)) && !exists(&pair.b(&new)));
        fs::rename(pair.a(&old), pair.a(&new)).unwrap();
        renames.push(pair.stale_until(|| !exists(&pair.b(&old)) && exists(&pair.b(&new))));
        fs::remove_file(pair.a(&new)).unwrap();
        unlinks.push(pair.stale_until(|| !exists(&pair.b(&new))));
    }
    let each =
        (pair.server.requests() - requests) as f64 / f64::from(rounds) / kind.requests_a_change() as f64;
    let idle = began.elapsed().as_secs_f64() * IDLE_REQUESTS_PER_S / f64::from(rounds);
    let begun = pair.proxy.streams() - streams;
    eprintln!("{kind:?}: {each:.2} requests per round, of these {idle:.2} idle; {begun} streams started");
    // The second mount is notified of all changes, and reads nothing that has not changed.
    assert!(streams > 0 && begun <= MAX_STREAMS_BEGUN, "{begun} of {streams}");
    assert!(each - idle <= MAX_REQUESTS, "{each} in {:?}", began.elapsed());
    report(&format!("{kind:?}: chmod that revokes"), true, &chmods);
    report(&format!("{kind:?}: rename"), true, &renames);
    report(&format!("{kind:?}: unlink"), true, &unlinks);
    pair.wait_until("notified");
    pair.end_clean();
}

/// Spins for a random time of at most `most`, to vary how two threads that start together interleave.
fn jitter(random: &mut Random, most: Duration) {
    let (began, wait) = (Instant::now(), Duration::from_nanos(random.below(most.as_nanos() as u64)));
    while began.elapsed() < wait {
        std::hint::spin_loop();
    }
}

/// One mount looks a directory up for the first time while another mount makes it private. The reply may have
/// the old mode, although it arrives after the notification of the change.
fn permission_revoked_during_the_first_lookup_is_enforced(kind: Kind) {
    let Some(pair) = Pair::new(kind, false, &[]) else { return };
    let times = if is_long() { 3_200 } else { 400 };
    let dir = |i: u64| format!("d{i}");
    for i in 0..times {
        fs::create_dir(pair.a(dir(i))).unwrap();
        File::create_new(pair.a(dir(i)).join("f")).unwrap();
    }
    let most = Duration::from_micros(800);
    let start = Barrier::new(2);
    let looked_at = |i: u64| pair.b(dir(i)).join("f").metadata();
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            as_user(NOBODY, NOBODY, || {
                let mut random = Random(7);
                let look = |i| {
                    start.wait();
                    jitter(&mut random, most);
                    looked_at(i).is_ok()
                };
                (0..times).map(look).filter(|granted| *granted).count()
            })
        });
        let mut random = Random(8);
        for i in 0..times {
            start.wait();
            jitter(&mut random, most);
            chmod(&pair.a(dir(i)), 0o700);
        }
        eprintln!("{kind:?}: {} of {times} looks came before the change", looking.join().unwrap());
    });
    // A mount applies changes in their order, so all changes before the marker are applied when it exists.
    File::create_new(pair.a("marker")).unwrap();
    until(|| pair.b("marker").exists());
    let applied = Instant::now();
    let granted = || as_user(NOBODY, NOBODY, || (0..times).filter(|i| looked_at(*i).is_ok()).count());
    while granted() > 0 && applied.elapsed() < ENFORCED_AT_LAST {
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(ENFORCED_WITHIN);
    assert_eq!(granted(), 0, "of {times} are still granted after the change was applied");
    pair.end_clean();
}

/// An operation that a former owner must not do to a file, by a path or by a descriptor, and the expected
/// errno.
type Attempt = (&'static str, Errno, fn(&Path, &File) -> rustix::io::Result<()>);

/// An access ACL that lets user 1000 read and write (`linux/posix_acl_xattr.h`).
const GRANTING_ACL: &[u8] = b"\x02\0\0\0\
    \x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\xe8\x03\0\0\x04\0\0\0\xff\xff\xff\xff\
    \x10\0\x06\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

const ATTEMPTS: [Attempt; 8] = [
    ("chmod", Errno::PERM, |path, _| rustix::fs::chmod(path, Mode::from(0o666))),
    ("fchmod", Errno::PERM, |_, file| rustix::fs::fchmod(file, Mode::from(0o666))),
    ("chown", Errno::PERM, |path, _| rustix::fs::chown(path, None, Some(Gid::from_raw(OLD_OWNER)))),
    ("setfacl", Errno::PERM, |path, _| {
        rustix::fs::setxattr(path, "system.posix_acl_access", GRANTING_ACL, XattrFlags::empty())
    }),
    ("setxattr", Errno::ACCESS, |path, _| rustix::fs::setxattr(path, "user.mine", b"1", XattrFlags::empty())),
    ("fsetxattr", Errno::ACCESS, |_, file| {
        rustix::fs::fsetxattr(file, "user.mine", b"1", XattrFlags::empty())
    }),
    ("utimensat", Errno::PERM, |path, _| {
        let then = Timespec { tv_sec: 1, tv_nsec: 0 };
        let times = Timestamps { last_access: then, last_modification: then };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
    }),
    ("unlink of a sticky directory", Errno::PERM, |path, _| rustix::fs::unlink(path)),
];

const OLD_OWNER: u32 = 1000;
const NEW_OWNER: u32 = 1001;

/// One mount changes the owner of a file; the former owner acts on another mount whose kernel has not yet
/// been notified.
fn former_owner_cannot_change_the_file(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &[]) else { return };
    let rounds = if is_long() { 40 } else { 6 };
    let step = Barrier::new(2);
    // Everybody may write to the directory, so only a file's owner matters.
    fs::create_dir(pair.a("d")).unwrap();
    chmod(&pair.a("d"), 0o1777);
    let names: Vec<String> =
        (0..rounds).flat_map(|round| ATTEMPTS.map(|(what, ..)| format!("{what}-{round}"))).collect();
    let (group, owner) = (|uid| Some(Gid::from_raw(uid)), |uid| Some(Uid::from_raw(uid)));
    for name in &names {
        let path = pair.a("d").join(name);
        File::create_new(&path).unwrap();
        chmod(&path, 0o644);
        rustix::fs::chown(&path, owner(OLD_OWNER), group(OLD_OWNER)).unwrap();
    }
    let outcomes = thread::scope(|scope| {
        let acting = scope.spawn(|| {
            as_user(OLD_OWNER, OLD_OWNER, || {
                let mut outcomes = Vec::new();
                for (name, (.., act)) in names.iter().zip(ATTEMPTS.iter().cycle()) {
                    let path = pair.b("d").join(name);
                    let file = OpenOptions::new().write(true).open(&path).unwrap();
                    step.wait();
                    step.wait();
                    outcomes.push(act(&path, &file));
                }
                outcomes
            })
        });
        for name in &names {
            step.wait();
            rustix::fs::chown(pair.a("d").join(name), owner(NEW_OWNER), group(NEW_OWNER)).unwrap();
            step.wait();
        }
        acting.join().unwrap()
    });
    let mut wrong = Vec::new();
    for ((name, outcome), (_, errno, _)) in names.iter().zip(outcomes).zip(ATTEMPTS.iter().cycle()) {
        let found = fs::symlink_metadata(pair.a("d").join(name)).map(|of| (of.uid(), of.mode() & 0o7777));
        if (outcome, found.as_ref().ok()) != (Err(*errno), Some(&(NEW_OWNER, 0o644))) {
            wrong.push((name, outcome, found));
        }
    }
    assert!(wrong.is_empty(), "{kind:?}: of {}: {wrong:?}", names.len());
    pair.end_clean();
}

fn change_is_enforced_while_the_stream_is_cut(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &[]) else { return };
    let (mut at_cut, mut later) = (Vec::new(), Vec::new());
    File::create(pair.a("f")).unwrap();
    for _ in 0..5 {
        chmod(&pair.a("f"), 0o644);
        pair.wait_until("notified");
        pair.stale_until_open("f", true);
        pair.proxy.cut(Cut::Stream);
        chmod(&pair.a("f"), 0o600);
        at_cut.push(pair.stale_until_open("f", false));
        pair.wait_until("polling");
        for _ in 0..4 {
            chmod(&pair.a("f"), 0o644);
            pair.stale_until_open("f", true);
            chmod(&pair.a("f"), 0o600);
            later.push(pair.stale_until_open("f", false));
        }
        pair.proxy.cut(Cut::Nothing);
    }
    report(&format!("{kind:?}: chmod, stream cut just before"), false, &at_cut);
    report(&format!("{kind:?}: chmod, stream cut for longer"), false, &later);
    pair.wait_until("notified");
    pair.end_clean();
}

/// Opens a file repeatedly as a user with only the permissions of "other", until that fails. Returns when the
/// last successful open began, and the error.
fn last_grant(path: &Path, running: &AtomicBool) -> (Option<Instant>, Errno) {
    as_user(NOBODY, NOBODY, || {
        let mut last = None;
        loop {
            running.store(true, Ordering::SeqCst);
            let began = Instant::now();
            match File::open(path) {
                Ok(_) => last = Some(began),
                Err(error) => return (last, Errno::from_io_error(&error).unwrap()),
            }
            thread::sleep(Duration::from_micros(100));
        }
    })
}

/// How long the database is unreachable. Permissions end with the lease, after 0.6 s; a busy machine may need
/// the rest of the time.
const AWAY: Duration = Duration::from_secs(4);

fn nothing_is_granted_after_the_lease_while_the_database_is_unreachable(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &[]) else { return };
    let file = pair.b("f");
    File::create(pair.a("f")).unwrap();
    // The names that the kernel has cached are looked up again, and a file system that is mounted on one of
    // them stays.
    fs::create_dir(pair.a("below")).unwrap();
    until(|| pair.b("below").exists());
    let below = Below::mount(pair.b("below"));
    for round in 0..6 {
        chmod(&pair.a("f"), 0o644);
        pair.wait_until("notified");
        pair.stale_until_open("f", true);
        let running = AtomicBool::new(false);
        thread::scope(|scope| {
            let opener = scope.spawn(|| last_grant(&file, &running));
            until(|| running.load(Ordering::SeqCst));
            // In even rounds the second mount loses its connection before the change; in odd rounds the
            // server stops after it.
            let cut = round % 2 == 0;
            if cut {
                pair.proxy.cut(Cut::Everything);
            }
            chmod(&pair.a("f"), 0o600);
            let revoked = Instant::now();
            if !cut {
                pair.server.stop(true);
            }
            // The lease expires during this pause.
            thread::sleep(AWAY);
            let back = Instant::now();
            pair.proxy.cut(Cut::Nothing);
            pair.server.stop(false);
            let (last, errno) = opener.join().unwrap();
            assert_eq!(errno, Errno::ACCESS, "round {round}");
            let last = last.map_or(Duration::ZERO, |last| last.saturating_duration_since(revoked));
            eprintln!("{kind:?}: round {round}: last open granted {last:?} after the change");
            // An open that began after the database came back may succeed, because the mount may not have
            // applied the change yet.
            assert!(
                last < AWAY - Duration::from_millis(300) || last >= back - revoked,
                "round {round}: {last:?}"
            );
        });
        assert!(below.is_mounted(), "round {round}");
    }
    drop(below);
    pair.end_clean();
}

/// A file system in memory that is mounted on a directory.
struct Below(PathBuf);

impl Below {
    fn mount(dir: PathBuf) -> Below {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "below"]).arg(&dir).status().unwrap();
        assert!(mounted.success());
        fs::write(dir.join("kept"), "kept").unwrap();
        Below(dir)
    }

    /// Uses the path, so that the kernel looks up its names again.
    fn is_mounted(&self) -> bool {
        fs::read(self.0.join("kept")).is_ok_and(|text| text == b"kept")
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Stops the load, even if the test panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Programs on both mounts change their own names and shared names, while the server is killed and restarted
/// repeatedly.
fn server_killed_under_load_loses_nothing(kind: Kind) {
    server_killed_under_load(kind, &[]);
}

fn server_killed_under_load(kind: Kind, options: &[&str]) {
    let Some(pair) = Pair::new(kind, true, options) else { return };
    let rounds = if is_long() { 20 } else { 3 };
    let tags = ["a0", "b0", "a1", "b1"];
    Program::prepare(&pair.a(""), &tags).unwrap();
    until(|| pair.b("log").exists());
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let programs: Vec<Program> = thread::scope(|scope| {
        let start = |(index, tag): (usize, &&str)| {
            let mnt = if index % 2 == 0 { pair.a("") } else { pair.b("") };
            let program = Program::new(index % 2, mnt, tag);
            scope.spawn(|| program.run(&stop, &steps))
        };
        let running: Vec<_> = tags.iter().enumerate().map(start).collect();
        let stopping = StopAtEnd(&stop);
        for _ in 0..rounds {
            thread::sleep(Duration::from_millis(700));
            pair.server.kill();
            thread::sleep(Duration::from_millis(300));
            pair.server.start_again();
            // The programs continue by themselves.
            let before = steps.load(Ordering::SeqCst);
            let began = Instant::now();
            until(|| steps.load(Ordering::SeqCst) >= before + 8);
            eprintln!("{kind:?}: eight steps within {:?} of the restart", began.elapsed());
        }
        drop(stopping);
        running.into_iter().map(|program| program.join().unwrap().unwrap()).collect()
    });
    let mut registers: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    let mut lines: Vec<(String, Outcome)> = Vec::new();
    for program in programs {
        program
            .events
            .into_iter()
            .for_each(|(name, events)| registers.entry(name).or_default().extend(events));
        lines.extend(program.lines);
    }
    let count = |outcome| registers.values().flatten().filter(|event| event.outcome == outcome).count();
    let [done, refused, maybe] = [Outcome::Done, Outcome::Refused, Outcome::Maybe].map(count);
    eprintln!(
        "{kind:?}: {rounds} kills; {done} done, {refused} refused, {maybe} unknown, {} lines",
        lines.len()
    );
    for mnt in [pair.a(""), pair.b("")] {
        for (register, events) in &registers {
            let last = history::found(&mnt, register).unwrap();
            explain(events, &last).unwrap_or_else(|error| panic!("{register}: {error}\n{events:#?}"));
        }
        // Each directory has only names that a program created, and the log has each line once.
        for tag in tags {
            let of_registers = registers.keys().filter(|name| name.starts_with(&format!("{tag}/"))).count();
            assert!(names_in(&mnt.join(tag)).len() <= of_registers);
        }
        let text = fs::read_to_string(mnt.join("log")).unwrap();
        let mut found: Vec<&str> = text.split_inclusive('\n').collect();
        found.sort_unstable();
        let mut known: Vec<&(String, Outcome)> = lines.iter().collect();
        known.retain(|(line, outcome)| {
            *outcome == Outcome::Done || found.binary_search(&line.as_str()).is_ok()
        });
        let mut known: Vec<&str> = known.iter().map(|(line, _)| line.as_str()).collect();
        known.sort_unstable();
        assert_eq!(found, known);
    }
    pair.end_clean();
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn operations_fail_with_eio_after_the_retry_timeout(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &["-o", "retry_timeout=2"]) else { return };
    pair.server.kill();
    let began = Instant::now();
    refused(File::create_new(pair.a("f")), Errno::IO);
    eprintln!("{kind:?}: EIO after {:?}", began.elapsed());
    assert!(began.elapsed() >= Duration::from_secs(2));
    pair.server.start_again();
    // On a busy machine the first attempts may still fail.
    until(|| File::create(pair.a("g")).is_ok());
    pair.wait_until("notified");
    assert_eq!(names_in(&pair.b("")), BTreeSet::from(["g".to_owned()]));
    let status = pair.status();
    assert_eq!(status["warnings"], serde_json::json!([]), "{status:#}");
    pair.end_clean();
}

/// Programs on both mounts increment a number under a lock, each through a file that stays open. The mount
/// that gets the lock has not been notified of the change yet.
fn data_written_under_a_lock_is_read_under_the_next_lock(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &[]) else { return };
    fs::write(pair.a("f"), "0").unwrap();
    let open = |path: PathBuf| File::options().read(true).write(true).open(path).unwrap();
    let (first, second) = (open(pair.a("f")), open(pair.b("f")));
    let number = |file: &File| -> u64 {
        let mut text = [0; 20];
        let len = file.read_at(&mut text, 0).unwrap();
        str::from_utf8(&text[..len]).unwrap().parse().unwrap()
    };
    let increment = |file: &File| {
        flock(file, FlockOperation::LockExclusive).unwrap();
        let next = number(file) + 1;
        file.write_all_at(next.to_string().as_bytes(), 0).unwrap();
        flock(file, FlockOperation::Unlock).unwrap();
        next
    };
    for expected in [1, 4, 7, 10] {
        assert_eq!(increment(&first), expected);
        until(|| number(&second) == expected);
        pair.proxy.cut(Cut::Stream);
        assert_eq!(increment(&first), expected + 1);
        let here = increment(&second);
        pair.proxy.cut(Cut::Nothing);
        assert_eq!(here, expected + 2, "{kind:?}");
        pair.wait_until("notified");
    }
    drop((first, second));
    pair.end_clean();
}

/// A number at the beginning of a file is incremented under a lock, and a byte is appended, on one mount and
/// then on the other. Another program changes the mode of the file all the time. The notifications of these
/// changes make the kernel drop attributes that it has just received (`fuse_change_attributes`). The kernel
/// then does not notice by itself that its pages and its size are older than the lock.
fn no_increment_under_a_lock_is_lost_beside_other_changes_of_the_file(kind: Kind) {
    const PAUSE: Duration = Duration::from_millis(2);
    const NUMBER: [u8; 20] = [b'0'; 20];
    let Some(pair) = Pair::new(kind, false, &[]) else { return };
    fs::write(pair.a("f"), NUMBER).unwrap();
    let open = |path: PathBuf| File::options().read(true).write(true).open(path).unwrap();
    let (first, second) = (open(pair.a("f")), open(pair.b("f")));
    let ended = AtomicBool::new(false);
    let number = |file: &File| {
        let mut text = NUMBER;
        file.read_exact_at(&mut text, 0).unwrap();
        str::from_utf8(&text).unwrap().parse::<u64>().unwrap()
    };
    thread::scope(|scope| {
        let _stopping = StopAtEnd(&ended);
        scope.spawn(|| {
            let path = pair.a("f");
            for turn in (0..).take_while(|_| !ended.load(Ordering::SeqCst)) {
                fs::set_permissions(&path, PermissionsExt::from_mode(0o600 + turn % 8)).unwrap();
                thread::sleep(PAUSE);
            }
        });
        for expected in 1..=100 {
            let is_first = expected % 2 == 0;
            let file = if is_first { &first } else { &second };
            flock(file, FlockOperation::LockExclusive).unwrap();
            let end = seek(file, SeekFrom::End(0)).unwrap();
            // On the first mount, the reply to a chmod can bring a size from before the lock.
            assert!(
                is_first || end == NUMBER.len() as u64 + expected - 1,
                "{kind:?}: {end} in round {expected}"
            );
            assert_eq!(number(file) + 1, expected, "{kind:?}");
            file.write_all_at(format!("{expected:020}").as_bytes(), 0).unwrap();
            file.write_all_at(b"x", NUMBER.len() as u64 + expected - 1).unwrap();
            flock(file, FlockOperation::Unlock).unwrap();
        }
    });
    drop((first, second));
    pair.end_clean();
}

/// A change is committed, and the other mount deletes the changed file before the answer arrives. If the call
/// then failed with ESTALE, the kernel would repeat it (`retry_estale`), and the change would be made twice.
#[test]
fn change_is_not_repeated_because_its_object_was_deleted_meanwhile() {
    // On these servers, one request commits a change, so the commit does not depend on an earlier answer.
    for kind in [Kind::Redis, Kind::Postgres] {
        let create = |pair: &Pair| {
            let file = File::options().read(true).write(true).create_new(true).open(pair.b("new"))?;
            refused(file.read_at(&mut [0], 0), Errno::STALE);
            Ok(())
        };
        let is_created = |pair: &Pair| pair.a("new").exists();
        overtaken(kind, create, is_created, |pair| fs::remove_file(pair.a("new")).unwrap());
        let change_mode = |pair: &Pair| fs::set_permissions(pair.b("old"), PermissionsExt::from_mode(0o400));
        let is_changed = |pair: &Pair| pair.a("old").metadata().unwrap().mode() & 0o777 == 0o400;
        let replace = |pair: &Pair| {
            fs::remove_file(pair.a("old")).unwrap();
            fs::write(pair.a("old"), "new").unwrap();
            chmod(&pair.a("old"), 0o644);
        };
        overtaken(kind, change_mode, is_changed, replace);
        let link = |pair: &Pair| fs::hard_link(pair.b("old"), pair.b("link"));
        let is_linked = |pair: &Pair| pair.a("link").exists();
        overtaken(kind, link, is_linked, |pair| {
            fs::remove_file(pair.a("link")).unwrap();
            replace(pair);
        });
    }
}

/// Runs `change` on the second mount of a volume with a file `old`. Runs `meanwhile` on the first mount when
/// it sees the change, before the second mount gets its answer.
fn overtaken(
    kind: Kind,
    change: impl Fn(&Pair) -> io::Result<()> + Sync,
    is_changed: impl Fn(&Pair) -> bool,
    meanwhile: impl Fn(&Pair),
) {
    for _ in 0..5 {
        let Some(pair) = Pair::new(kind, true, &[]) else { return };
        // After these calls the second mount has free inode numbers and knows all names, so the change is its
        // next request.
        fs::write(pair.b("old"), "old").unwrap();
        chmod(&pair.b("old"), 0o644);
        ["new", "old", "link"].iter().for_each(|name| _ = pair.b(name).symlink_metadata());
        pair.proxy.cut(Cut::Answers);
        let is_overtaken = thread::scope(|scope| {
            let changing = scope.spawn(|| change(&pair));
            // On a busy machine the second mount may send another request first, because its lease expired.
            let deadline = Instant::now() + Duration::from_secs(2);
            let is_sent = loop {
                match (is_changed(&pair), Instant::now() < deadline) {
                    (false, true) => thread::sleep(Duration::from_millis(5)),
                    (is_sent, _) => break is_sent,
                }
            };
            if is_sent {
                meanwhile(&pair);
                // Let the second mount's lease expire, so that it uses nothing that it has cached.
                thread::sleep(Duration::from_secs(1));
            }
            pair.proxy.cut(Cut::Nothing);
            let changed = changing.join();
            is_sent && changed.unwrap().map(|()| true).unwrap()
        });
        if is_overtaken {
            pair.wait_until("notified");
            assert_eq!(names_in(&pair.b("")), BTreeSet::from(["old".to_owned()]), "{kind:?}");
            assert_eq!(pair.a("old").metadata().unwrap().mode() & 0o777, 0o644, "{kind:?}");
            return pair.end_clean();
        }
    }
    panic!("{kind:?}: the change is never the first request");
}

/// Ten programs wait for a lock while the database is away. Neither the programs that are killed nor the
/// unmount wait for several retry timeouts in succession.
#[test]
fn lock_waits_end_together_while_the_database_is_away() {
    let Some(pair) = Pair::new(Kind::Redis, true, &["-o", "retry_timeout=2"]) else { return };
    let holder = File::create(pair.a("f")).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let wait = || Command::new("flock").arg(pair.b("f")).arg("true").stderr(Stdio::null()).spawn().unwrap();
    let mut waiting: Vec<_> = std::iter::repeat_with(wait).take(10).collect();
    thread::sleep(Duration::from_secs(1));
    pair.server.kill();
    let began = Instant::now();
    let (killed, left) = waiting.split_at_mut(5);
    killed.iter_mut().for_each(|program| program.kill().unwrap());
    killed.iter_mut().for_each(|program| assert!(program.wait().is_ok()));
    let killed_after = began.elapsed();
    pair.umount_second(&["--force"]);
    eprintln!("killed within {killed_after:?}, unmounted after {:?}", began.elapsed());
    assert!(killed_after < Duration::from_secs(8), "{killed_after:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    left.iter_mut().for_each(|program| assert!(program.wait().is_ok()));
    pair.server.start_again();
}

/// The store of a volume is on a file system that does not answer, and a read there cannot be killed.
#[test]
fn status_ends_although_a_read_of_the_store_hangs() {
    let Some(pair) = Pair::new(Kind::Redis, true, &[]) else { return };
    let place = Place::new();
    let bucket = pair.b("store");
    limen(&["format", &place.url(), "other", "--bucket", bucket.to_str().unwrap()]).ok();
    limen(&["status", &place.url()]).ok();
    pair.proxy.cut(Cut::Everything);
    // Until its lease has expired, the mount answers from its cache.
    thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    let said = limen(&["status", &place.url()]);
    let ended_after = began.elapsed();
    pair.proxy.cut(Cut::Nothing);
    assert!(said.ok().contains("does not answer within 5 s"));
    assert!(ended_after < Duration::from_secs(12), "{ended_after:?}");
}

/// Another volume in the same database stays as it is, and a new volume can be formatted at the same URL.
fn destroyed_volume_leaves_nothing_in_the_database(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, false) else { return };
    let (place, url, other) =
        (&pair.place, pair.tool_url(), kind.url_with_long_timeouts(pair.server.port, "vol_x"));
    let format = |url: &str, data: &str| {
        limen(&["format", url, "vol", "--bucket", &place.text(data)]).ok();
        place.mount_url(url, &[]).ok();
        fs::create_dir(pair.a("d")).unwrap();
        fs::write(pair.a("d/f"), vec![7; 100_000]).unwrap();
        fs::write(pair.a("small"), b"text").unwrap();
        rustix::fs::setxattr(pair.a("small"), "user.a", b"b", XattrFlags::empty()).unwrap();
        std::os::unix::fs::symlink("small", pair.a("link")).unwrap();
        flock(File::open(pair.a("small")).unwrap(), FlockOperation::LockShared).unwrap();
        fs::remove_file(pair.a("d/f")).unwrap();
        File::open(pair.a("small")).unwrap().sync_all().unwrap();
        place.umount(&[]).ok();
    };
    let destroy = |url: &str| limen(&["destroy", "--yes", url]).ok();
    let everything = || pair.server.everything();
    destroy(&url);
    let nothing = everything();
    assert!(!nothing.iter().any(|name| name.contains("vol_")), "{nothing:?}");
    format(&other, "other");
    let with_other = everything();
    for _ in 0..2 {
        format(&url, "data");
        assert!(everything().len() > with_other.len());
        destroy(&url);
        assert_eq!(everything(), with_other);
        limen(&["status", &url]).failed(1, &["there is no volume"]);
    }
    limen(&["fsck", "--data", &other]).ok();
    place.mount_url(&other, &[]).ok();
    assert_eq!(fs::read(pair.a("small")).unwrap(), b"text");
    place.umount(&[]).ok();
    destroy(&other);
    assert_eq!(everything(), nothing);
}

/// Times of a session for these tests: heartbeat, validity and removal, in milliseconds.
const SHORT_MS: &str = "200,2000,4000";

/// Takes the lock of the whole file; another mount may still hold it for a while.
fn lock_in_the_end(file: &File) {
    let deadline = Instant::now() + HANG_TIMEOUT;
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(Instant::now() < deadline, "the lock is not released");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Creates a file with content, a mode and a modification time, in a directory that the mount holds.
fn make_held(path: &Path, at: u64) {
    let mut file = File::create_new(path).unwrap();
    file.write_all(format!("{at}").repeat(900).as_bytes()).unwrap();
    file.set_permissions(PermissionsExt::from_mode(0o640)).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000 + at)).unwrap();
}

/// Changes in a directory that the mount has created share round trips, until another mount looks
/// there: it then sees all of them.
fn directory_is_held_until_another_mount_looks(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &[]) else { return };
    let files = times();
    let (before, began) = (pair.server.requests(), Instant::now());
    fs::create_dir_all(pair.a("d/e")).unwrap();
    (0..files).for_each(|at| make_held(&pair.a(format!("d/e/{at}")), at));
    let idle = began.elapsed().as_secs_f64() * IDLE_REQUESTS_PER_S;
    let sent = (pair.server.requests() - before) as f64 / kind.requests_a_change() as f64 - idle;
    eprintln!("{kind:?}: {:.3} round trips for each of {files} files", sent / files as f64);
    // With `-o sync_metadata`, each file costs five round trips.
    assert!(sent < files as f64, "{sent}");
    let looked = Instant::now();
    assert_eq!(names_in(&pair.b("d/e")).len() as u64, files);
    eprintln!("{kind:?}: given back within {:?}", looked.elapsed());
    for at in 0..files {
        let path = pair.b(format!("d/e/{at}"));
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.mtime()), (0o640, 1_000_000 + at as i64));
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{at}").repeat(900));
    }
    // From now on, both mounts use the directory.
    for at in 0..20 {
        fs::write(pair.b(format!("d/e/theirs{at}")), "theirs").unwrap();
        until(|| pair.a(format!("d/e/theirs{at}")).exists());
        fs::rename(pair.a(format!("d/e/theirs{at}")), pair.a(format!("d/ours{at}"))).unwrap();
        until(|| pair.b(format!("d/ours{at}")).exists() && !pair.b(format!("d/e/theirs{at}")).exists());
    }
    let recalls: Vec<Duration> = (0..20)
        .map(|at| {
            // After a mount has given back a directory because another mount looked there (a recall), it
            // holds no new directory for a while. Each recall that follows soon makes this time longer.
            fs::create_dir(pair.a(format!("r{at}"))).unwrap();
            (0..20).for_each(|file| make_held(&pair.a(format!("r{at}/{file}")), file));
            let looked = Instant::now();
            assert!(pair.b(format!("r{at}/19")).exists());
            looked.elapsed()
        })
        .collect();
    eprintln!("{kind:?}: first looks took {:?} at most", recalls.iter().max());
    pair.end_clean();
}

/// Makes a directory that neither mount holds, with the file `old` and the directory `below`.
fn make_shared(pair: &Pair, dir: &str) {
    fs::create_dir_all(pair.b(dir).join("below")).unwrap();
    fs::write(pair.b(dir).join("old"), "old").unwrap();
    // The second mount gives the directory back.
    assert_eq!(names_in(&pair.a(dir)).len(), 2);
}

/// Creates files in an existing directory, and waits until the first mount has taken the directory.
fn take(pair: &Pair, dir: &str) {
    (0..20).for_each(|at| make_held(&pair.a(dir).join(format!("first{at}")), at));
    thread::sleep(Duration::from_millis(500));
}

/// As `directory_is_held_until_another_mount_looks`, but the other mount has created the directory, and its
/// kernel has cached names in it.
fn directory_that_exists_is_taken_until_another_mount_looks(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &["-o", "take_directories"]) else { return };
    make_shared(&pair, "d");
    // The lookups are those of a process whose working directory this is: they do not look up `d` again.
    let cwd = File::open(pair.b("d")).unwrap();
    let look = |name: &str| statat(&cwd, name, AtFlags::SYMLINK_NOFOLLOW).map(|found| found.st_size);
    assert_eq!((look("new"), look("old")), (Err(Errno::NOENT), Ok(3)));
    take(&pair, "d");
    let files = times();
    let (before, began) = (pair.server.requests(), Instant::now());
    (0..files).for_each(|at| make_held(&pair.a(format!("d/{at}")), at));
    let idle = began.elapsed().as_secs_f64() * IDLE_REQUESTS_PER_S;
    let sent = (pair.server.requests() - before) as f64 / kind.requests_a_change() as f64 - idle;
    eprintln!("{kind:?}: {:.3} round trips for each of {files} files", sent / files as f64);
    assert!(sent < files as f64, "{sent}");
    // The inodes that were there before can be used as well.
    fs::rename(pair.a("d/old"), pair.a("d/below/moved")).unwrap();
    fs::rename(pair.a("d/below"), pair.a("d/renamed")).unwrap();
    fs::write(pair.a("d/new"), "text").unwrap();
    // The other mount sees at once what was just answered, although its kernel had cached both names.
    assert_eq!((look("new"), look("old")), (Ok(4), Err(Errno::NOENT)));
    let names = names_in(&pair.b("d"));
    assert_eq!(names.len() as u64, files + 20 + 2);
    assert_eq!(fs::read_to_string(pair.b("d/renamed/moved")).unwrap(), "old");
    for at in 0..files {
        let path = pair.b(format!("d/{at}"));
        assert_eq!(fs::symlink_metadata(&path).unwrap().mtime(), 1_000_000 + at as i64);
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{at}").repeat(900));
    }
    // From now on, both mounts use the directory.
    for at in 0..20 {
        fs::write(pair.b(format!("d/theirs{at}")), "theirs").unwrap();
        until(|| pair.a(format!("d/theirs{at}")).exists());
        fs::remove_file(pair.a(format!("d/theirs{at}"))).unwrap();
        until(|| !pair.b(format!("d/theirs{at}")).exists());
    }
    drop(cwd);
    pair.end_clean();
}

/// The mount that has taken a directory is killed: another mount on this machine replays its journal.
fn killed_taker_loses_nothing(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, true) else { return };
    let (log, mnt, url) = (pair.place.text("log"), pair.place.mnt(), pair.url());
    pair.mount_second(&[], SHORT_MS);
    let args = ["mount", "-d", "-o", "take_directories", "--log", &log, &url, &mnt];
    Said::from(with_times(&args, SHORT_MS).output().unwrap()).ok();
    pair.wait_until("notified");
    make_shared(&pair, "d");
    take(&pair, "d");
    let status = pair.status();
    let mut sessions = status["sessions"].as_array().unwrap().iter();
    let own = sessions.find(|session| session["mountpoint"] == mnt.as_str()).unwrap();
    let server = Pid::from_raw(own["pid"].as_u64().unwrap() as i32).unwrap();
    let files = 300;
    (0..files).for_each(|at| drop(File::create_new(pair.a(format!("d/{at:04}"))).unwrap()));
    fs::remove_file(pair.a("d/first3")).unwrap();
    fs::rename(pair.a("d/0001"), pair.a("d/first4")).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    let _ = Command::new("umount").arg("-l").arg(&mnt).status();
    let found = names_in(&pair.b("d"));
    assert_eq!(found.len() as u64, files - 1 + 19 + 2, "{found:?}");
    assert!(!found.contains("first3") && !found.contains("0001") && found.contains("0299"));
    fs::write(pair.b("d/theirs"), "theirs").unwrap();
    pair.umount_second(&[]).ok();
    limen(&["fsck", "--data", &pair.tool_url()]).ok();
}

/// The mount that holds a directory is killed: everything that it had answered is there, because another
/// mount on this machine, or the next one, replays its journal.
fn killed_holder_loses_nothing(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, true) else { return };
    let (log, mnt, url) = (pair.place.text("log"), pair.place.mnt(), pair.url());
    let rounds = if is_long() { 200 } else { 4 };
    pair.mount_second(&[], SHORT_MS);
    for round in 0..rounds {
        let args = ["mount", "-d", "--log", &log, &url, &mnt];
        Said::from(with_times(&args, SHORT_MS).output().unwrap()).ok();
        pair.wait_until("notified");
        let dir = format!("d{round}");
        fs::create_dir(pair.a(&dir)).unwrap();
        let file = |at: u64| format!("{dir}/{at:04}");
        let synced = 40;
        (0..synced).for_each(|at| make_held(&pair.a(file(at)), at));
        File::open(pair.a(&dir)).unwrap().sync_all().unwrap();
        // A failed close is not reported, so a file counts when the next one is created.
        let made = AtomicU64::new(synced - 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                for at in synced..100_000 {
                    let Ok(mut new) = File::create(pair.a(file(at))) else { break };
                    made.store(at, Ordering::SeqCst);
                    if new.write_all(at.to_string().as_bytes()).is_err() {
                        break;
                    }
                }
            });
            until(|| made.load(Ordering::SeqCst) >= synced + 100 * (round % 4));
            let status = pair.status();
            let mut sessions = status["sessions"].as_array().unwrap().iter();
            let own = sessions.find(|session| session["mountpoint"] == mnt.as_str()).unwrap();
            let server = Pid::from_raw(own["pid"].as_u64().unwrap() as i32).unwrap();
            kill_process(server, Signal::KILL).unwrap();
        });
        let made = made.load(Ordering::SeqCst);
        let _ = Command::new("umount").arg("-l").arg(&mnt).status();
        let found = names_in(&pair.b(&dir));
        eprintln!("{kind:?}: {} files after {made} were made", found.len());
        // The file with the number `made` was created too, and perhaps one more.
        assert!((made + 1..=made + 2).contains(&(found.len() as u64)), "{} after {made}", found.len());
        for (at, name) in found.iter().enumerate() {
            assert_eq!(*name, format!("{at:04}"));
            let (path, at) = (pair.b(file(at as u64)), at as u64);
            if at < synced {
                assert_eq!(path.metadata().unwrap().mtime(), 1_000_000 + at as i64);
            } else if at < made {
                assert_eq!(fs::read_to_string(path).unwrap(), at.to_string());
            }
        }
        // The other mount can use the directory.
        fs::write(pair.b(&dir).join("theirs"), "theirs").unwrap();
    }
    pair.umount_second(&[]).ok();
    limen(&["fsck", "--data", &pair.tool_url()]).ok();
}

fn server_killed_under_load_loses_nothing_with_sync_metadata(kind: Kind) {
    server_killed_under_load(kind, &["-o", "sync_metadata"]);
}

/// A mount is stopped until another mount has removed its session and taken its locks. When it continues,
/// fsync and write on the file that was open fail with EIO, the bytes of the new lock holder stay, and files
/// that are opened anew work.
fn stopped_mount_never_overwrites_data_of_the_next_lock_holder(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, false) else { return };
    let (log, mnt, url) = (pair.place.text("log"), pair.place.mnt(), pair.url());
    Said::from(with_times(&["mount", "-d", "--log", &log, &url, &mnt], SHORT_MS).output().unwrap()).ok();
    pair.mount_second(&[], SHORT_MS);
    pair.wait_until("notified");
    let first = |status: &Value| {
        let sessions = status["sessions"].as_array().unwrap();
        sessions.iter().find(|session| session["mountpoint"] == mnt.as_str()).unwrap().clone()
    };
    let session = first(&pair.status());
    let server = Pid::from_raw(session["pid"].as_u64().unwrap() as i32).unwrap();

    let mut old = File::create(pair.a("f")).unwrap();
    flock(&old, FlockOperation::LockExclusive).unwrap();
    old.write_all(b"old old").unwrap();
    kill_process(server, Signal::STOP).unwrap();
    let mut new = File::options().read(true).write(true).open(pair.b("f")).unwrap();
    lock_in_the_end(&new);
    new.write_all(b"new").unwrap();
    new.sync_all().unwrap();
    kill_process(server, Signal::CONT).unwrap();

    assert_eq!(old.sync_all().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(old.write_all(b"old").unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    drop(old);
    assert_eq!(fs::read(pair.b("f")).unwrap(), b"new");
    // The kernel sends RELEASE after close(2) has returned. Until then, reads of the file fail.
    let deadline = Instant::now() + HANG_TIMEOUT;
    while fs::read(pair.a("f")).is_err() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::read(pair.a("f")).unwrap(), b"new");
    let again = first(&pair.status());
    assert!(again["id"] != session["id"] && again["lost"]["session"] == session["id"], "{again:#}");
    assert_eq!(again["lost"]["files"], 1);
    // The first mount serves again, and its locks work.
    let mut old = File::options().write(true).open(pair.a("f")).unwrap();
    flock(&old, FlockOperation::NonBlockingLockExclusive).unwrap_err();
    drop(new);
    lock_in_the_end(&old);
    old.write_all(b"own").unwrap();
    drop(old);
    assert_eq!(fs::read(pair.b("f")).unwrap(), b"own");
    pair.end_clean();
}

/// A mount that holds a directory is stopped until another mount has removed its session: the other mount can
/// use the directory, and sees a prefix of the changes there. Changes that the stopped mount had not
/// committed do not reappear when it continues, and the program that made them gets an error.
fn stopped_holder_loses_its_directories(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, true) else { return };
    let (log, mnt, url) = (pair.place.text("log"), pair.place.mnt(), pair.url());
    Said::from(with_times(&["mount", "-d", "--log", &log, &url, &mnt], SHORT_MS).output().unwrap()).ok();
    pair.mount_second(&[], SHORT_MS);
    pair.wait_until("notified");
    let status = pair.status();
    let mut sessions = status["sessions"].as_array().unwrap().iter();
    let holder = sessions.find(|session| session["mountpoint"] == mnt.as_str()).unwrap();
    let server = Pid::from_raw(holder["pid"].as_u64().unwrap() as i32).unwrap();
    fs::create_dir(pair.a("d")).unwrap();
    let synced = 20;
    (0..synced).for_each(|at| make_held(&pair.a(format!("d/{at:04}")), at));
    let dir = File::open(pair.a("d")).unwrap();
    dir.sync_all().unwrap();
    let (made, is_over) = (AtomicU64::new(synced), AtomicBool::new(false));
    let found = thread::scope(|scope| {
        // The last call of this thread waits until the mount continues.
        scope.spawn(|| {
            for at in synced.. {
                if is_over.load(Ordering::SeqCst) || File::create_new(pair.a(format!("d/{at:04}"))).is_err() {
                    break;
                }
                made.store(at + 1, Ordering::SeqCst);
            }
        });
        until(|| made.load(Ordering::SeqCst) >= synced + 200);
        kill_process(server, Signal::STOP).unwrap();
        let looked = Instant::now();
        let found = names_in(&pair.b("d"));
        let made = made.load(Ordering::SeqCst);
        eprintln!("{kind:?}: {} of {made} files are there after {:?}", found.len(), looked.elapsed());
        let is_prefix = found.iter().enumerate().all(|(at, name)| *name == format!("{at:04}"));
        assert!(is_prefix && (synced..=made + 1).contains(&(found.len() as u64)), "{found:?}");
        fs::write(pair.b("d/theirs"), "theirs").unwrap();
        fs::remove_file(pair.b("d/0000")).unwrap();
        is_over.store(true, Ordering::SeqCst);
        kill_process(server, Signal::CONT).unwrap();
        found
    });
    let made = made.into_inner();
    // This fsync fails if changes that had been answered were lost.
    let synced = dir.sync_all();
    if (found.len() as u64) < made - 1 {
        assert_eq!(synced.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
    let mut expected = found;
    expected.remove("0000");
    expected.insert("theirs".to_owned());
    // Until the mount has its new session, a listing may fail.
    until(|| fs::read_dir(pair.a("d")).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok())));
    for names in [pair.a("d"), pair.b("d")].map(|dir| names_in(&dir)) {
        // The last call may have been answered after the mount had continued.
        let others: Vec<&String> = names.difference(&expected).collect();
        assert!(
            expected.is_subset(&names) && others.iter().all(|name| **name == format!("{:04}", made - 1)),
            "{others:?}"
        );
    }
    assert_eq!(fs::read(pair.a("d/theirs")).unwrap(), b"theirs");
    drop(dir);
    pair.end_clean();
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// More programs than the other mount has serving threads wait for directories that a stopped mount holds.
fn programs_elsewhere_go_on_while_others_wait_for_a_stopped_holder(kind: Kind) {
    let Some(pair) = Pair::new(kind, true, &[]) else { return };
    let programs = 60;
    fs::create_dir(pair.b("elsewhere")).unwrap();
    // In one directory, the kernel would send only some of the lookups at the same time.
    (0..programs).for_each(|at| fs::create_dir(pair.b(format!("{at}"))).unwrap());
    (0..programs).for_each(|at| fs::create_dir(pair.a(format!("{at}/held"))).unwrap());
    (0..programs).for_each(|at| assert!(pair.b(format!("{at}")).is_dir()));
    let (status, mnt) = (pair.status(), pair.place.mnt());
    let mut sessions = status["sessions"].as_array().unwrap().iter();
    let holder = sessions.find(|session| session["mountpoint"] == mnt.as_str()).unwrap();
    let holder = Pid::from_raw(holder["pid"].as_u64().unwrap() as i32).unwrap();
    kill_process(holder, Signal::STOP).unwrap();
    let stopped = Stopped(holder);
    let waiting: Vec<_> = (0..programs)
        .map(|at| {
            let path = pair.b(format!("{at}/held"));
            thread::spawn(move || names_in(&path).len())
        })
        .collect();
    for at in 0..20 {
        thread::sleep(Duration::from_millis(100));
        let path = pair.b(format!("elsewhere/{at}"));
        fs::write(&path, "text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
    assert_eq!(names_in(&pair.b("elsewhere")).len(), 20);
    assert!(waiting.iter().all(|program| !program.is_finished()));
    drop(stopped);
    assert!(waiting.into_iter().all(|program| program.join().unwrap() == 0));
    pair.end_clean();
}

/// A PID identifies a process only within its PID namespace. So a mount cannot know whether the process of a
/// mount in another PID namespace has ended, and removes that mount's session only if heartbeats are missing.
fn mount_in_another_pid_namespace_keeps_its_lock(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, false) else { return };
    let (mnt, url, log) = (pair.place.mnt(), pair.url(), pair.place.text("log"));
    pair.mount_second(&[], SHORT_MS);
    fs::write(pair.b("f"), b"").unwrap();
    let script = r#""$0" mount -d --log "$3" "$1" "$2" && exec flock "$2/f" sleep 1000"#;
    let mut inside = Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            script,
            LIMEN,
            &url,
            &mnt,
            &log,
        ])
        .env("LIMEN_TEST_SESSION_MS", SHORT_MS)
        .spawn()
        .unwrap();
    let file = File::open(pair.b("f")).unwrap();
    let deadline = Instant::now() + HANG_TIMEOUT;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        flock(&file, FlockOperation::Unlock).unwrap();
        assert!(Instant::now() < deadline, "the file is not locked");
        thread::sleep(Duration::from_millis(50));
    }
    // This takes longer than a session without heartbeats would live.
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap_err();
        assert_eq!(pair.status()["sessions"].as_array().unwrap().len(), 2);
        thread::sleep(Duration::from_millis(200));
    }
    inside.kill().unwrap();
    inside.wait().unwrap();
    lock_in_the_end(&file);
    drop(file);
    pair.umount_second(&[]).ok();
    assert_eq!(pair.status()["sessions"].as_array().unwrap().len(), 0);
}

/// A mount is stopped while the volume moves to a copy of its objects. When it continues, it can change
/// nothing, because it would store new objects in the old store.
fn stopped_mount_changes_nothing_after_the_volume_moved_to_a_copy(kind: Kind) {
    let Some(pair) = Pair::unmounted(kind, false) else { return };
    let (log, mnt, url) = (pair.place.text("log"), pair.place.mnt(), pair.url());
    Said::from(with_times(&["mount", "-d", "--log", &log, &url, &mnt], SHORT_MS).output().unwrap()).ok();
    fs::write(pair.a("before"), vec![1; 50_000]).unwrap();
    File::open(pair.a("before")).unwrap().sync_all().unwrap();
    let server = pair.status()["sessions"][0]["pid"].as_u64().unwrap();
    let server = Pid::from_raw(server as i32).unwrap();
    let (old, new) = (pair.place.text("data"), pair.place.text("copy"));
    let copy = || assert!(Command::new("cp").args(["-a", &old, &new]).status().unwrap().success());
    copy();
    let tool = pair.tool_url();
    let to_copy = |more: &[&str]| {
        let args = [&["config", &tool, "--bucket", &new], more].concat();
        Said::from(with_times(&args, SHORT_MS).output().unwrap())
    };
    to_copy(&[]).failed(1, &["mounted"]);
    kill_process(server, Signal::STOP).unwrap();
    to_copy(&["--force"]).ok();
    kill_process(server, Signal::CONT).unwrap();

    pair.mount_second(&[], SHORT_MS);
    let refused = fs::write(pair.a("after"), vec![2; 50_000]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert!(!pair.b("after").exists());
    assert!(pair.place.log().contains("moved to another object store"), "{}", pair.place.log());
    fs::rename(&old, pair.place.path("old")).unwrap();
    assert_eq!(fs::read(pair.b("before")).unwrap(), vec![1; 50_000]);
    fs::write(pair.b("after"), vec![3; 50_000]).unwrap();
    pair.umount_second(&[]).ok();
    pair.place.umount(&["--force"]);
    limen(&["fsck", "--data", &tool]).ok();
}

/// Defines a module with the cases, on a kind of server. A case runs only if its condition holds.
macro_rules! on {
    ($server:ident, $kind:expr, $($condition:expr => [$($case:ident),+]),+) => {
        mod $server {
            use super::Kind;
            $($(#[test]
            fn $case() {
                if $condition {
                    super::$case($kind);
                }
            })+)+
        }
    };
    ($server:ident, $kind:expr, $outages:expr, $rest:expr) => {
        on!(
            $server,
            $kind,
            true => [
                each_operation_costs_at_most_one_round_trip,
                mdtest_counts_one_engine_call_for_each_operation,
                change_is_enforced_on_the_other_mount,
                former_owner_cannot_change_the_file,
                directory_is_held_until_another_mount_looks,
                directory_that_exists_is_taken_until_another_mount_looks,
                killed_holder_loses_nothing,
                killed_taker_loses_nothing,
                programs_elsewhere_go_on_while_others_wait_for_a_stopped_holder,
                data_written_under_a_lock_is_read_under_the_next_lock,
                destroyed_volume_leaves_nothing_in_the_database
            ],
            $outages => [
                change_is_enforced_while_the_stream_is_cut,
                server_killed_under_load_loses_nothing
            ],
            $rest => [
                no_increment_under_a_lock_is_lost_beside_other_changes_of_the_file,
                permission_revoked_during_the_first_lookup_is_enforced,
                nothing_is_granted_after_the_lease_while_the_database_is_unreachable,
                server_killed_under_load_loses_nothing_with_sync_metadata,
                operations_fail_with_eio_after_the_retry_timeout,
                stopped_mount_never_overwrites_data_of_the_next_lock_holder,
                stopped_holder_loses_its_directories,
                stopped_mount_changes_nothing_after_the_volume_moved_to_a_copy,
                mount_in_another_pid_namespace_keeps_its_lock
            ]
        );
    };
}

on!(redis, Kind::Redis, true, true);
on!(postgres, Kind::Postgres, true, skip::is_long());
on!(mariadb, Kind::Mariadb, skip::is_long(), skip::is_long());
on!(etcd, Kind::Etcd, skip::is_long(), skip::is_long());
#[cfg(feature = "tikv")]
on!(tikv, Kind::Tikv, skip::is_long(), skip::is_long());
