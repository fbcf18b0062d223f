//! Two mounts of one volume (`-o shared`), with processes on both: each mount sees the changes of the other,
//! and locks, appended records and SQLite databases stay correct.
//!
//! `shared.py` makes the calls of the programs, and reports the outcome of every call.

mod common;
mod harness;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, Said, limen, until_unused};
use harness::{Mounted, NOBODY, as_user, refused};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// A volume that is mounted twice.
struct Pair {
    first: Mounted,
}

impl Pair {
    fn new() -> Option<Self> {
        if !skip::is_root() {
            return None;
        }
        let place = Place::formatted();
        // Other users need access to the mount points.
        fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(place.path("mnt2")).unwrap();
        place.mount(&["-o", "shared"]).ok();
        let pair = Pair { first: Mounted { place } };
        pair.mount_second().ok();
        Some(pair)
    }

    fn mount_second(&self) -> Said {
        let place = &self.first.place;
        let (log, url, mnt) = (place.text("log2"), place.url(), place.text("mnt2"));
        limen(&["mount", "-d", "-o", "shared", "--log", &log, &url, &mnt])
    }

    fn umount_second(&self, more: &[&str]) -> Said {
        until_unused(|| limen(&[&["umount"], more, &[&self.first.place.text("mnt2")]].concat()))
    }

    fn a(&self, name: &str) -> PathBuf {
        self.first.at(name)
    }

    fn b(&self, name: &str) -> PathBuf {
        self.first.place.path("mnt2").join(name)
    }

    /// The process that serves the second mount.
    fn second_server(&self) -> i32 {
        let status = self.first.place.status();
        let sessions = status["sessions"].as_array().unwrap();
        let second = sessions.iter().find(|s| s["mountpoint"] == self.first.place.text("mnt2").as_str());
        second.unwrap_or_else(|| panic!("{status}"))["pid"].as_i64().unwrap() as i32
    }

    /// Runs a query on the volume's database.
    fn query(&self, sql: &str) -> String {
        Agent::new().ask(&format!("query({:?}, {sql:?})", self.first.place.text("vol.db")))
    }

    /// Unmounts both mounts and checks that the volume is clean.
    fn end_clean(&self) {
        self.umount_second(&[]).ok();
        self.first.place.umount(&[]).ok();
        assert_eq!(
            self.query("SELECT (SELECT count(*) FROM lock) + (SELECT count(*) FROM lock_wait)"),
            "ok 0"
        );
        assert_eq!(
            self.query("SELECT (SELECT count(*) FROM orphan) + (SELECT count(*) FROM session)"),
            "ok 0"
        );
        limen(&["fsck", "--data", &self.first.place.url()]).ok();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.umount_second(&["--force"]);
        let mnt = self.b("");
        let _ = Command::new("umount").arg("-l").arg(mnt).stderr(Stdio::null()).status();
    }
}

/// A process that executes commands and is killed when dropped.
struct Agent {
    child: Child,
    input: ChildStdin,
    said: Receiver<String>,
}

/// Nothing in this file takes this long unless it hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);
/// A lock that is free is granted within this time.
const GRANT_TIME: Duration = Duration::from_millis(300);

impl Agent {
    fn new() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shared.py");
        let mut command = Command::new("python3");
        command.args(["-u", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 is needed");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, said) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Agent { child, input, said }
    }

    /// Starts an agent that has `path` open under the name `f`.
    fn with(path: &Path) -> Self {
        let mut agent = Agent::new();
        assert_eq!(agent.ask(&format!("opened('f', {path:?})")), "ok ");
        agent
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    #[track_caller]
    fn answer(&self) -> String {
        self.said.recv_timeout(HANG_TIMEOUT).expect("the agent does not reply")
    }

    #[track_caller]
    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.answer()
    }

    /// Panics if the agent replies now.
    #[track_caller]
    fn still_waits(&self) {
        let said = self.said.recv_timeout(GRANT_TIME);
        assert_eq!(said, Err(RecvTimeoutError::Timeout));
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills the agent, which must be quick even if it waits for a lock.
    #[track_caller]
    fn kill(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
        let begun = Instant::now();
        self.child.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command on all agents concurrently. Panics unless each replies `ok`; returns the rest of the
/// replies.
#[track_caller]
fn together(agents: &mut [Agent], what: impl Fn(usize) -> String) -> Vec<String> {
    agents.iter_mut().enumerate().for_each(|(at, agent)| agent.tell(&what(at)));
    let answers = agents.iter().map(Agent::answer);
    answers.map(|said| said.strip_prefix("ok ").unwrap_or_else(|| panic!("{said}")).to_owned()).collect()
}

#[track_caller]
fn soon(what: &str, within: Duration, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < within, "not {what} within {within:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn data_closed_on_one_mount_is_read_on_the_other() {
    let Some(pair) = Pair::new() else { return };
    let (a, b) = (pair.a("f"), pair.b("f"));
    let reader = {
        fs::write(&a, "first").unwrap();
        File::open(&b).unwrap()
    };
    let read = |len: usize| {
        let mut bytes = vec![0; len];
        let n = reader.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(n);
        bytes
    };
    // The data is in rows or in blocks. It is read through a new open and through a file that is already
    // open.
    for len in [10, 4_000, 300_000, 5 << 20] {
        for fill in [b'x', b'y'] {
            let bytes = vec![fill; len];
            fs::write(&a, &bytes).unwrap();
            assert!(fs::read(&b).unwrap() == bytes, "{len} bytes of {fill}");
            assert!(read(len + 1) == bytes, "open: {len} bytes of {fill}");
        }
        let file = OpenOptions::new().write(true).open(&a).unwrap();
        file.write_all_at(b"mid", len as u64 / 2).unwrap();
        drop(file);
        assert_eq!(&read(len)[len / 2..len / 2 + 3], b"mid");
        let file = OpenOptions::new().write(true).open(&b).unwrap();
        file.set_len(len as u64 / 2 + 1).unwrap();
        assert_eq!(
            (fs::metadata(&a).unwrap().len(), fs::read(&a).unwrap().len()),
            (len as u64 / 2 + 1, len / 2 + 1)
        );
        file.write_all_at(b"end", len as u64 + 7).unwrap();
        drop(file);
        let grown = fs::read(&a).unwrap();
        assert_eq!(grown.len(), len + 10);
        assert_eq!(grown[len / 2], b'm');
        assert!(grown[len / 2 + 1..len + 7].iter().all(|byte| *byte == 0));
    }
    fs::write(pair.a("new"), "other").unwrap();
    fs::rename(pair.a("new"), &a).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"other");
    // On the mount that did not replace the file, the replaced file is gone, as soon as the other mount has
    // closed it: the kernel sends RELEASE after close(2) has returned.
    let deadline = Instant::now() + Duration::from_secs(20);
    while reader.read_at(&mut [0; 9], 0).is_ok() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    refused(reader.read_at(&mut [0; 9], 0), Errno::STALE);
    drop(reader);
    pair.end_clean();
}

#[test]
fn names_attributes_and_permissions_change_on_both_mounts_at_once() {
    let Some(pair) = Pair::new() else { return };
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    fs::create_dir(pair.a("d")).unwrap();
    fs::set_permissions(pair.a("d"), PermissionsExt::from_mode(0o755)).unwrap();
    for round in 0..20 {
        let name = format!("d/f{round}");
        refused(fs::metadata(pair.b(&name)), Errno::NOENT);
        fs::write(pair.a(&name), "x").unwrap();
        assert_eq!(fs::metadata(pair.b(&name)).unwrap().ino(), fs::metadata(pair.a(&name)).unwrap().ino());
        assert_eq!(names(&pair.b("d")), names(&pair.a("d")));
        assert_eq!(names(&pair.b("d")).len(), 1);
        fs::rename(pair.b(&name), pair.b("d/moved")).unwrap();
        refused(File::open(pair.a(&name)), Errno::NOENT);
        fs::remove_file(pair.a("d/moved")).unwrap();
        assert!(names(&pair.b("d")).is_empty());
    }

    fs::write(pair.a("d/f"), "secret").unwrap();
    let read = |path: PathBuf| as_user(NOBODY, NOBODY, || fs::read(path));
    for _ in 0..20 {
        fs::set_permissions(pair.a("d/f"), PermissionsExt::from_mode(0o604)).unwrap();
        assert_eq!(read(pair.b("d/f")).unwrap(), b"secret");
        fs::set_permissions(pair.a("d/f"), PermissionsExt::from_mode(0o600)).unwrap();
        refused(read(pair.b("d/f")), Errno::ACCESS);
        let setfacl = |spec: &[&str]| {
            assert!(Command::new("setfacl").args(spec).arg(pair.b("d/f")).status().unwrap().success());
        };
        setfacl(&["-m", "u:65534:r"]);
        assert_eq!(read(pair.a("d/f")).unwrap(), b"secret");
        setfacl(&["-b"]);
        refused(read(pair.a("d/f")), Errno::ACCESS);
    }
    // The permission of a directory on the path is revoked.
    fs::set_permissions(pair.a("d/f"), PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(read(pair.b("d/f")).unwrap(), b"secret");
    fs::set_permissions(pair.a("d"), PermissionsExt::from_mode(0o700)).unwrap();
    refused(read(pair.b("d/f")), Errno::ACCESS);
    // The permission is also revoked for a process whose working directory is that directory.
    let mut inside = Agent::new();
    inside.ask(&format!("os.chdir({:?})", pair.b("d")));
    inside.ask("os.setresuid(65534, 65534, 65534)");
    assert_eq!(inside.ask("len(os.listdir('.'))"), "err EACCES");
    fs::set_permissions(pair.a("d"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(inside.ask("len(os.listdir('.'))"), "ok 1");
    drop(inside);

    rustix::fs::setxattr(pair.a("d/f"), "user.k", b"v", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::getxattr(pair.b("d/f"), "user.k", &mut [0u8; 8][..]), Ok(1));
    rustix::fs::removexattr(pair.b("d/f"), "user.k").unwrap();
    assert_eq!(rustix::fs::getxattr(pair.a("d/f"), "user.k", &mut [0u8; 8][..]), Err(Errno::NODATA));
    pair.end_clean();
}

#[test]
fn appends_from_both_mounts_lose_no_record() {
    let Some(pair) = Pair::new() else { return };
    let mut agents: Vec<Agent> = (0..6).map(|_| Agent::new()).collect();
    // The data is in rows, in objects, or across the end of a chunk.
    for (name, width, count, start) in
        [("small", 20, 120u64, 0u64), ("big", 9_000, 40, 0), ("chunks", 4_099, 60, (64 << 20) - 600_000)]
    {
        File::create(pair.a(name)).unwrap().set_len(start).unwrap();
        together(&mut agents, |at| {
            let path = if at % 2 == 0 { pair.a(name) } else { pair.b(name) };
            format!("append({path:?}, {at}, {count}, {width})")
        });
        let text = fs::read(pair.b(name)).unwrap();
        assert_eq!(text.len() as u64, start + 6 * count * width, "{name}");
        assert!(text == fs::read(pair.a(name)).unwrap());
        let mut met = std::collections::BTreeSet::new();
        for record in text[start as usize..].chunks(width as usize) {
            let record = std::str::from_utf8(record).unwrap();
            let mut words = record.split(' ');
            let (tag, number, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            assert!(rest.ends_with('\n') && rest.trim_end().bytes().all(|byte| byte == b'x'), "{record}");
            assert!(met.insert((tag.to_owned(), number.to_owned())), "record {tag} {number} occurs twice");
        }
        assert_eq!(met.len() as u64, 6 * count);
    }
    pair.end_clean();
}

#[test]
fn concurrent_creates_on_both_mounts_make_each_file_once() {
    let Some(pair) = Pair::new() else { return };
    let mut agents: Vec<Agent> = (0..4).map(|_| Agent::new()).collect();
    let run = |agents: &mut [Agent], prefix: &str, flags: &str| {
        together(agents, |at| {
            let root = if at % 2 == 0 { pair.a(prefix) } else { pair.b(prefix) };
            format!("create([{root:?} + str(i) for i in range(150)], {flags})")
        })
    };
    let said = run(&mut agents, "excl", "os.O_EXCL");
    for at in 0..150 {
        let outcomes: Vec<&str> = said.iter().map(|said| said.split(' ').nth(at).unwrap()).collect();
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == "1").count(), 1, "{at}: {outcomes:?}");
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == "EEXIST").count(), 3, "{at}: {outcomes:?}");
    }
    for said in run(&mut agents, "any", "0") {
        assert!(said.split(' ').all(|outcome| outcome == "1"), "{said}");
    }
    assert_eq!(fs::read_dir(pair.a("")).unwrap().count(), 300);
    pair.end_clean();
}

#[test]
fn posix_locks_exclude_across_mounts() {
    let Some(pair) = Pair::new() else { return };
    let (mut a, mut b) = (Agent::with(&pair.a("f")), Agent::with(&pair.b("f")));
    assert_eq!(a.ask("lk('f', SETLK, W, 10, 10)"), "ok ");
    assert_eq!(b.ask("lk('f', SETLK, R, 19, 1)"), "err EAGAIN");
    assert_eq!(b.ask("lk('f', SETLK, W, 20, 0)"), "ok ", "the adjacent range, to the end of the file");
    assert_eq!(b.ask("lk('f', GETLK, R, 0, 0)"), format!("ok w 10 10 {}", a.pid().as_raw_nonzero()));
    assert_eq!(a.ask("lk('f', GETLK, W, 500, 1)"), format!("ok w 20 0 {}", b.pid().as_raw_nonzero()));
    assert_eq!(b.ask("lk('f', GETLK, W, 0, 10)"), "ok free");
    // Locks are upgraded, downgraded and split.
    assert_eq!(a.ask("lk('f', SETLK, R, 12, 3)"), "ok ");
    assert_eq!(b.ask("lk('f', SETLK, R, 12, 3)"), "ok ", "read locks are shared");
    assert_eq!(a.ask("lk('f', SETLK, W, 12, 1)"), "err EAGAIN");
    assert_eq!(a.ask("lk('f', SETLK, U, 12, 3)"), "ok ");
    assert_eq!(b.ask("lk('f', SETLK, W, 12, 3)"), "ok ");
    assert_eq!(b.ask("lk('f', SETLK, W, 15, 1)"), "err EAGAIN");
    // Closing any descriptor of the same file releases all of the process's locks (fcntl(2)).
    assert_eq!(a.ask(&format!("opened('g', {:?})", pair.a("f"))), "ok ");
    assert_eq!(a.ask("closed('g')"), "ok ");
    assert_eq!(b.ask("lk('f', SETLK, W, 15, 5)"), "ok ");
    assert_eq!(a.ask("lk('f', GETLK, W, 0, 10)"), "ok free");
    // The end of a process releases its locks too.
    assert_eq!(a.ask("lk('f', SETLK, W, 15, 1)"), "err EAGAIN");
    b.kill();
    assert_eq!(a.ask("lk('f', SETLK, W, 0, 0)"), "ok ");
    drop(a);
    pair.end_clean();
}

#[test]
fn locks_of_open_file_descriptions_exclude_across_mounts() {
    let Some(pair) = Pair::new() else { return };
    let (mut a, mut b) = (Agent::with(&pair.a("f")), Agent::with(&pair.b("f")));
    for (take, release, refused) in [
        ("lk('f', OFD_SETLK, W, 0, 100)", "lk('f', OFD_SETLK, U, 0, 0)", "err EAGAIN"),
        ("fl('f', EX | NB)", "fl('f', UN)", "err EAGAIN"),
    ] {
        assert_eq!(a.ask(take), "ok ");
        assert_eq!(b.ask(take), refused);
        assert_eq!(a.ask(release), "ok ");
        assert_eq!(b.ask(take), "ok ");
        assert_eq!(a.ask(take), refused);
        // A duplicated descriptor shares the description; only closing the last descriptor releases the lock.
        assert_eq!(b.ask("files.update(g=os.dup(files['f']))"), "ok ");
        assert_eq!(b.ask("closed('f')"), "ok ");
        assert_eq!(a.ask(take), refused);
        assert_eq!(b.ask("closed('g')"), "ok ");
        // The kernel sends RELEASE a little after the last close.
        soon("released", Duration::from_secs(60), || pair.query("SELECT count(*) FROM lock") == "ok 0");
        assert_eq!(a.ask(take), "ok ");
        assert_eq!(a.ask(release), "ok ");
        assert_eq!(b.ask(&format!("opened('f', {:?})", pair.b("f"))), "ok ");
    }
    // Another open file description of the same process neither has the lock nor releases it by closing.
    assert_eq!(a.ask("lk('f', OFD_SETLK, W, 0, 1)"), "ok ");
    assert_eq!(a.ask(&format!("opened('g', {:?})", pair.a("f"))), "ok ");
    assert_eq!(a.ask("lk('g', OFD_SETLK, W, 0, 1)"), "err EAGAIN");
    assert_eq!(a.ask("closed('g')"), "ok ");
    assert_eq!(b.ask("lk('f', OFD_SETLK, R, 0, 1)"), "err EAGAIN");
    // POSIX and flock(2) locks are independent; two flock(2) readers that both upgrade must not deadlock.
    assert_eq!(a.ask("fl('f', SH | NB)"), "ok ");
    assert_eq!(b.ask("fl('f', SH | NB)"), "ok ");
    a.tell("fl('f', EX)");
    a.still_waits();
    assert_eq!(b.ask("fl('f', EX)"), "ok ");
    assert_eq!(b.ask("fl('f', UN)"), "ok ");
    assert_eq!(a.answer(), "ok ");
    drop((a, b));
    soon("released", Duration::from_secs(60), || pair.query("SELECT count(*) FROM lock") == "ok 0");
    pair.end_clean();
}

#[test]
fn waiting_lock_requests_are_granted_interrupted_or_killed() {
    let Some(pair) = Pair::new() else { return };
    let waits = || pair.query("SELECT count(*) FROM lock_wait");
    let all_wait = |count: u32| {
        soon("all waiting", Duration::from_secs(60), || waits() == format!("ok {count}"));
    };
    for (take, release) in [
        ("lk('f', SETLKW, W, 0, 10)", "lk('f', SETLK, U, 0, 0)"),
        ("lk('f', OFD_SETLKW, W, 0, 10)", "lk('f', OFD_SETLK, U, 0, 0)"),
        ("fl('f', EX)", "fl('f', UN)"),
    ] {
        let (mut a, mut b) = (Agent::with(&pair.a("f")), Agent::with(&pair.b("f")));
        let mut near = Agent::with(&pair.a("f"));
        assert_eq!(a.ask(take), "ok ");
        b.tell(take);
        all_wait(1);
        b.still_waits();
        assert_eq!(a.ask(release), "ok ");
        assert_eq!(b.answer(), "ok ");
        assert_eq!(waits(), "ok 0");
        // Two processes wait on the first mount; one of them is interrupted, the other killed.
        a.tell(take);
        near.tell(take);
        all_wait(2);
        a.still_waits();
        near.still_waits();
        kill_process(a.pid(), Signal::USR1).unwrap();
        assert_eq!(a.answer(), "err EINTR");
        near.kill();
        assert_eq!(waits(), "ok 0");
        // A lock is released when its holder dies.
        a.tell(take);
        all_wait(1);
        a.still_waits();
        b.kill();
        assert_eq!(a.answer(), "ok ");
        assert_eq!(waits(), "ok 0");
    }
    // Many agents wait at the same time.
    let mut holder = Agent::with(&pair.a("g"));
    assert_eq!(holder.ask("fl('f', EX)"), "ok ");
    let mut crowd: Vec<Agent> =
        (0..24).map(|at| Agent::with(&if at % 2 == 0 { pair.a("g") } else { pair.b("g") })).collect();
    crowd.iter_mut().for_each(|agent| agent.tell("fl('f', EX)"));
    all_wait(24);
    crowd.iter_mut().take(16).for_each(Agent::kill);
    assert_eq!(waits(), "ok 8");
    assert_eq!(holder.ask("fl('f', UN)"), "ok ");
    for _ in 0..8 {
        // Waiters are granted the lock in any order.
        let at = loop {
            let found = crowd[16..].iter().position(|agent| agent.said.try_recv().is_ok());
            if let Some(at) = found {
                break 16 + at;
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(crowd[at].ask("fl('f', UN)"), "ok ");
    }
    drop((holder, crowd));
    pair.end_clean();
}

#[test]
fn deadlocks_are_found_across_mounts() {
    let Some(pair) = Pair::new() else { return };
    for count in [2, 3] {
        let name = format!("f{count}");
        let mut agents: Vec<Agent> = (0..count)
            .map(|at| Agent::with(&if at % 2 == 0 { pair.a(&name) } else { pair.b(&name) }))
            .collect();
        for round in 0..5 {
            for (at, agent) in agents.iter_mut().enumerate() {
                assert_eq!(agent.ask(&format!("lk('f', SETLKW, W, {at}, 1)")), "ok ", "round {round}");
            }
            // All agents request the next agent's lock at once: exactly one gets EDEADLK, and then the others
            // proceed.
            for (at, agent) in agents.iter_mut().enumerate() {
                agent.tell(&format!("lk('f', SETLKW, W, {}, 1)", (at + 1) % count));
            }
            let mut refused = 0;
            let mut open: Vec<usize> = (0..count).collect();
            let begun = Instant::now();
            while !open.is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(60), "agents {open:?} hang");
                open.retain(|at| match agents[*at].said.try_recv() {
                    Err(_) => true,
                    Ok(said) => {
                        assert!(["ok ", "err EDEADLK"].contains(&&*said), "{said}");
                        refused += u32::from(said == "err EDEADLK");
                        assert_eq!(agents[*at].ask("lk('f', SETLK, U, 0, 0)"), "ok ");
                        false
                    }
                });
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(refused, 1, "{count} agents, round {round}");
            assert_eq!(pair.query("SELECT count(*) FROM lock_wait"), "ok 0");
        }
    }
    pair.end_clean();
}

/// Data written under a lock is seen under the next lock, without fsync and on files that stay open.
#[test]
fn data_written_under_a_lock_is_read_under_the_next_lock() {
    let Some(pair) = Pair::new() else { return };
    let mut agents: Vec<Agent> = (0..4).map(|_| Agent::new()).collect();
    for kind in ["posix", "flock"] {
        together(&mut agents, |at| {
            let path = if at % 2 == 0 { pair.a(kind) } else { pair.b(kind) };
            format!("count_under_lock({path:?}, 60, {kind:?})")
        });
        assert_eq!(fs::read_to_string(pair.a(kind)).unwrap(), format!("{:020}", 240));
    }
    // Closing a file flushes its data before it releases its locks.
    let (mut a, mut b) = (Agent::with(&pair.a("f")), Agent::with(&pair.b("f")));
    for round in 0..20 {
        assert_eq!(a.ask("lk('f', SETLKW, W, 0, 0)"), "ok ");
        b.tell("lk('f', SETLKW, W, 0, 0)");
        assert_eq!(a.ask(&format!("put('f', 0, '{round:04}' * 1000)")), "ok 4000");
        assert_eq!(a.ask("closed('f')"), "ok ");
        assert_eq!(b.answer(), "ok ");
        assert_eq!(b.ask("get('f', 3996, 4)"), format!("ok {round:04}"));
        assert_eq!(b.ask("lk('f', SETLK, U, 0, 0)"), "ok ");
        assert_eq!(a.ask(&format!("opened('f', {:?})", pair.a("f"))), "ok ");
    }
    drop((a, b));
    pair.end_clean();
}

#[test]
fn locks_and_files_of_a_killed_mount_are_cleaned_up_by_the_other() {
    let Some(pair) = Pair::new() else { return };
    fs::write(pair.a("f"), "kept").unwrap();
    let (mut a, mut b) = (Agent::with(&pair.a("f")), Agent::with(&pair.b("f")));
    assert_eq!(b.ask("lk('f', SETLK, W, 0, 10)"), "ok ");
    assert_eq!(b.ask("fl('f', EX)"), "ok ");
    // There is an unlinked file that is open only on the second mount, and a process there waits for a lock.
    assert_eq!(b.ask(&format!("opened('gone', {:?})", pair.b("gone"))), "ok ");
    fs::remove_file(pair.b("gone")).unwrap();
    let mut waiter = Agent::with(&pair.b("g"));
    assert_eq!(a.ask(&format!("opened('g', {:?})", pair.a("g"))), "ok ");
    assert_eq!(a.ask("lk('g', SETLK, W, 0, 1)"), "ok ");
    waiter.tell("lk('f', SETLKW, W, 0, 1)");
    waiter.still_waits();
    assert_eq!(pair.query("SELECT count(*) FROM orphan"), "ok 1");

    kill_process(Pid::from_raw(pair.second_server()).unwrap(), Signal::KILL).unwrap();
    // A process that waits on the surviving mount gets the lock, although nothing is mounted again.
    let begun = Instant::now();
    assert_eq!(a.ask("lk('f', SETLKW, W, 0, 0)"), "ok ");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_eq!(a.ask("fl('f', EX)"), "ok ");
    soon("cleaned up", Duration::from_secs(60), || {
        pair.query("SELECT (SELECT count(*) FROM orphan) + (SELECT count(*) FROM lock_wait)") == "ok 0"
            && pair.first.place.status()["sessions"].as_array().unwrap().len() == 1
    });
    fs::write(pair.a("after"), "alive").unwrap();
    drop((b, waiter));
    pair.mount_second().ok();
    assert_eq!(fs::read(pair.b("after")).unwrap(), b"alive");
    assert_eq!(fs::read(pair.b("f")).unwrap(), b"kept");
    let mut b = Agent::with(&pair.b("f"));
    assert_eq!(b.ask("lk('f', SETLK, R, 0, 1)"), "err EAGAIN", "a live mount keeps its locks");
    drop((a, b));
    pair.end_clean();
}

#[test]
fn terminated_mount_releases_its_locks() {
    let Some(pair) = Pair::new() else { return };
    let (mut a, mut b) = (Agent::with(&pair.a("f")), Agent::with(&pair.b("f")));
    assert_eq!(b.ask("lk('f', SETLK, W, 0, 0)"), "ok ");
    assert_eq!(b.ask("fl('f', EX)"), "ok ");
    let server = pair.second_server();
    kill_process(Pid::from_raw(server).unwrap(), Signal::TERM).unwrap();
    soon("ended", Duration::from_secs(60), || !Path::new(&format!("/proc/{server}")).exists());
    assert_eq!(a.ask("lk('f', SETLK, W, 0, 0)"), "ok ");
    assert_eq!(a.ask("fl('f', EX | NB)"), "ok ");
    // The other mount is not affected.
    fs::write(pair.a("g"), "here").unwrap();
    drop((a, b));
    pair.mount_second().ok();
    assert_eq!(fs::read(pair.b("g")).unwrap(), b"here");
    pair.end_clean();
}

#[test]
fn sqlite_is_correct_with_a_writer_on_each_mount() {
    let Some(pair) = Pair::new() else { return };
    let mut agents = [Agent::new(), Agent::new()];
    assert_eq!(agents[0].ask(&format!("bank({:?}, 0, make=True)", pair.a("db"))), "ok ");
    together(&mut agents, |at| format!("bank({:?}, 60)", if at == 0 { pair.a("db") } else { pair.b("db") }));
    for path in [pair.a("db"), pair.b("db")] {
        assert_eq!(agents[0].ask(&format!("query({path:?}, 'SELECT sum(value) FROM account')")), "ok 120");
        assert_eq!(agents[0].ask(&format!("query({path:?}, 'PRAGMA integrity_check')")), "ok ok");
    }
    drop(agents);
    pair.end_clean();
}

#[test]
fn random_name_changes_on_both_mounts_leave_the_volume_consistent() {
    let Some(pair) = Pair::new() else { return };
    for dir in ["d0", "d1", "d2"] {
        fs::create_dir(pair.a(dir)).unwrap();
    }
    let mut agents: Vec<Agent> = (0..4).map(|_| Agent::new()).collect();
    let said = together(&mut agents, |at| {
        let root = if at % 2 == 0 { pair.a("") } else { pair.b("") };
        format!("storm({root:?}, {at}, 400)")
    });
    // A name may refer to another inode between lookup and use; the kernel retries after ESTALE only once.
    const EXPECTED: [&str; 8] =
        ["EEXIST", "EISDIR", "ENOENT", "ENOTDIR", "ENOTEMPTY", "EINVAL", "EPERM", "ESTALE"];
    for errno in said.iter().flat_map(|said| said.split(' ').filter(|errno| !errno.is_empty())) {
        assert!(EXPECTED.contains(&errno), "{errno}");
    }
    println!("met: {said:?}");
    for dir in ["d0", "d1", "d2"] {
        let list = |root: PathBuf| {
            let mut all: Vec<_> = fs::read_dir(root)
                .unwrap()
                .map(|entry| {
                    let entry = entry.unwrap();
                    let data = entry.metadata().unwrap();
                    (entry.file_name(), data.ino(), data.len(), data.nlink(), data.mode())
                })
                .collect();
            all.sort();
            all
        };
        assert_eq!(list(pair.a(dir)), list(pair.b(dir)));
    }
    drop(agents);
    pair.end_clean();
}

#[test]
fn exclusive_and_shared_mounts_refuse_each_other() {
    let Some(pair) = Pair::new() else { return };
    let place = &pair.first.place;
    fs::create_dir(place.path("mnt3")).unwrap();
    let (url, mnt) = (place.url(), place.text("mnt3"));
    let mount = |more: &[&str]| limen(&[&["mount", "-d"], more, &[&url, &mnt]].concat());
    mount(&[]).failed(1, &["volume 'vol' is already in use", &place.mnt(), "-o shared"]);
    // One mount leaves, the other still holds the volume.
    place.umount(&[]).ok();
    fs::write(pair.b("f"), "here").unwrap();
    mount(&[]).failed(1, &["volume 'vol' is already in use", &place.text("mnt2"), "-o shared"]);
    place.mount(&["-o", "shared"]).ok();
    assert_eq!(fs::read(pair.a("f")).unwrap(), b"here");
    pair.umount_second(&[]).ok();
    place.umount(&[]).ok();
    // The same holds if the other mount leaves first.
    place.mount(&[]).ok();
    let server = place.server().to_string();
    let said = pair.mount_second();
    said.failed(1, &["volume 'vol' is already in use", &place.mnt(), &server, "-o shared"]);
    place.umount(&[]).ok();
    pair.mount_second().ok();
    place.mount(&["-o", "shared"]).ok();
    pair.end_clean();
}

#[test]
fn rows_compacted_on_one_mount_read_correctly_on_the_other() {
    let Some(pair) = Pair::new() else { return };
    const RECORD: usize = 6_000;
    const RECORDS: usize = 400;
    let (stop, reads) = (AtomicBool::new(false), AtomicU32::new(0));
    let rows = || pair.query("SELECT count(*) FROM slice")["ok ".len()..].parse::<usize>().unwrap();
    let writer = File::create(pair.a("f")).unwrap();
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let reader = File::open(pair.b("f")).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let len = reader.metadata().unwrap().len() as usize;
                let mut bytes = vec![0; len];
                reader.read_exact_at(&mut bytes, 0).unwrap();
                for (at, record) in bytes.chunks(RECORD).enumerate() {
                    assert!(record.iter().all(|byte| *byte == at as u8), "record {at}");
                }
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        for at in 0..RECORDS {
            writer.write_all_at(&[at as u8; RECORD], (at * RECORD) as u64).unwrap();
            writer.sync_data().unwrap();
        }
        // Wait until rows were compacted and the file was read several times.
        let until = Instant::now() + Duration::from_secs(60);
        let is_done = || rows() < RECORDS / 2 && reads.load(Ordering::Relaxed) > 5;
        while !is_done() && !reading.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (rows, reads) = (rows(), reads.into_inner());
    assert!(rows < RECORDS / 2, "{rows} rows are left: nothing was compacted");
    assert!(reads > 5, "{reads} reads");
    let expected: Vec<u8> = (0..RECORDS).flat_map(|at| [at as u8; RECORD]).collect();
    assert!(fs::read(pair.b("f")).unwrap() == expected);
    drop(writer);
    pair.end_clean();
}
