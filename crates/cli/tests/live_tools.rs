//! Tools on mounted volumes: what they may do next to writers, and what they refuse.
//!
//! Each case runs on the embedded engine and on real database servers; see the end of this file.

mod common;
mod harness;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use acl::posix::PosixAcl;
use common::{Place, Said, limen};
use engine_sqlite::{Options, SqliteEngine};
use harness::{Random, refused};
use meta::{Effect, Engine, Process, Txn};
use rustix::fs::{FlockOperation, XattrFlags, copy_file_range, flock, getxattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;
use servers::{Kind, Server};
use types::OpId;
use vfs::process::this_process;

/// Nothing in this file takes this long unless it hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// A mounted volume.
struct Live {
    place: Place,
    url: String,
    /// `None` on the embedded engine.
    _server: Option<Server>,
    _exclusive: MutexGuard<'static, ()>,
}

/// Stops background loops, even if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Live {
    /// Returns `None`, and reports a skip, if the test cannot run: mounting requires root.
    fn new(kind: Option<Kind>) -> Option<Live> {
        if !skip::is_root() {
            return None;
        }
        if let Some(what) = kind.and_then(Kind::missing) {
            skip::missing(&what);
            return None;
        }
        // One test at a time, because servers choose their ports before they listen.
        let exclusive = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let server = kind.map(|kind| Server::start(kind, false));
        let place = Place::new();
        fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        let url = server.as_ref().map_or_else(|| place.url(), Server::url_with_long_timeouts);
        limen(&["format", &url, "vol", "--inline", "0", "--bucket", &place.text("data")]).ok();
        place.mount_url(&url, &[]).ok();
        Some(Live { place, url, _server: server, _exclusive: exclusive })
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    fn run(&self, args: &[&str]) -> Said {
        limen(&[args, &[&self.url]].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args).ok()).unwrap()
    }

    fn sessions(&self) -> usize {
        self.json(&["status", "--json"])["sessions"].as_array().unwrap().len()
    }

    fn end_clean(self) {
        self.place.umount(&[]).ok();
        self.end_clean_unmounted();
    }

    fn end_clean_unmounted(self) {
        assert_eq!(self.sessions(), 0);
        let found = self.json(&["fsck", "--data", "--json"]);
        assert_eq!(found["clean"], true, "{found:#}");
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the mount's log: {}", self.place.log());
        }
        self.place.umount(&["--force"]);
    }
}

fn garbage_collection_next_to_writers_keeps_data_in_use(kind: Option<Kind>) {
    let Some(live) = Live::new(kind) else { return };
    let files = 300;
    let bytes = |number: u64| Random(number + 1).bytes(9_000);
    for number in 0..files {
        fs::write(live.at(format!("{number}.0")), bytes(number)).unwrap();
    }
    // This lock is held as long as the session exists.
    let locked = File::create(live.at("locked")).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    let unlinked = File::create_new(live.at("unlinked")).unwrap();
    fs::remove_file(live.at("unlinked")).unwrap();
    let done = AtomicBool::new(false);
    let collections = thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                let found = live.json(&["gc", "--delete", "--grace", "0", "--json"]);
                assert_eq!(found["sessions"], 0, "{found:#}");
                count += 1;
            }
            count
        });
        let stop = Stop(&done);
        // Each slice moves from inode to inode, while the collector reads all inodes.
        let began = Instant::now();
        let mut round = 0;
        while round < 3 || began.elapsed() < Duration::from_secs(4) {
            for number in 0..files {
                let (from, to) =
                    (live.at(format!("{number}.{round}")), live.at(format!("{number}.{}", round + 1)));
                let source = File::open(&from).unwrap();
                let copied =
                    copy_file_range(&source, None, File::create_new(&to).unwrap(), None, 9_000).unwrap();
                assert_eq!(copied, 9_000);
                fs::remove_file(from).unwrap();
                // The collector must also keep a slice that has just been stored.
                fs::write(live.at(format!("new{}", number % 7)), bytes(number)).unwrap();
            }
            round += 1;
        }
        drop(stop);
        (collector.join().unwrap(), round)
    });
    let (count, round) = collections;
    assert!(count > 1, "the collector ran {count} times");
    assert_eq!(live.sessions(), 1);
    unlinked.metadata().unwrap();
    flock(&locked, FlockOperation::Unlock).unwrap();
    live.place.umount(&["--force"]);
    live.place.mount_url(&live.url, &[]).ok();
    for number in 0..files {
        let found = fs::read(live.at(format!("{number}.{round}")));
        assert!(
            found.is_ok_and(|found| found == bytes(number)),
            "file {number} is damaged after {count} collections"
        );
    }
    live.end_clean();
}

/// Files are created under a default ACL and get ever new ACLs, while ACLs that no file has are removed.
fn unused_acls_are_removed_next_to_writers(kind: Option<Kind>) {
    let Some(live) = Live::new(kind) else { return };
    let acl =
        |uid| PosixAcl::from_text(&format!("u::rwx,u:{uid}:rwx,g::r-x,m::rwx,o::r-x")).unwrap().to_xattr();
    let set = |path: &Path, which: &str, uid: u32| {
        setxattr(path, which, &acl(uid), XattrFlags::empty()).unwrap();
    };
    fs::create_dir(live.at("d")).unwrap();
    set(&live.at("d"), "system.posix_acl_default", 1000);
    fs::write(live.at("many"), b"text").unwrap();
    let done = AtomicBool::new(false);
    let removed = thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let (mut removed, mut rounds) = (0, 0);
            while !done.load(Ordering::Relaxed) || rounds < 3 {
                removed += live.json(&["gc", "--delete", "--json"])["acls"]["removed"].as_u64().unwrap();
                rounds += 1;
            }
            removed
        });
        let _stop = Stop(&done);
        let (began, mut uid) = (Instant::now(), 2000);
        while uid < 2300 || began.elapsed() < Duration::from_secs(4) {
            uid += 1;
            set(&live.at("many"), "system.posix_acl_access", uid);
            let (file, dir) = (live.at("d/file"), live.at("d/dir"));
            fs::write(&file, b"text").unwrap();
            fs::create_dir(&dir).unwrap();
            for (path, which) in [(&file, "system.posix_acl_access"), (&dir, "system.posix_acl_default")] {
                getxattr(path, which, &mut [0; 100][..]).unwrap();
            }
            // Some stay, so that fsck finds an ACL that was removed although a file has it.
            if uid % 50 == 0 {
                fs::rename(&file, live.at(format!("file{uid}"))).unwrap();
                fs::rename(&dir, live.at(format!("dir{uid}"))).unwrap();
            } else {
                fs::remove_file(&file).unwrap();
                fs::remove_dir(&dir).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        collector.join().unwrap()
    });
    // On the embedded engine nothing is removed while the volume is mounted.
    assert_eq!(removed > 100, kind.is_some(), "{removed} ACLs were removed");
    let last = getxattr(live.at("many"), "system.posix_acl_access", &mut [0; 100][..]);
    assert!(last.is_ok());
    live.place.umount(&[]).ok();
    live.run(&["gc", "--delete"]).ok();
    let found = live.json(&["gc", "--json"]);
    assert_eq!(
        (found["acls"]["stored"].as_u64(), found["acls"]["unused"].as_u64()),
        (Some(3), Some(0)),
        "{found:#}"
    );
    live.end_clean_unmounted();
}

fn repair_and_destroy_refuse_a_mounted_volume(kind: Option<Kind>) {
    let Some(live) = Live::new(kind) else { return };
    fs::write(live.at("f"), b"text").unwrap();
    for (args, code) in [(&["fsck", "--repair"][..], 8), (&["destroy", "--yes"], 1)] {
        live.run(args).failed(code, &[&live.place.mnt()]);
        assert_eq!(fs::read(live.at("f")).unwrap(), b"text");
    }
    // A tool that was refused leaves no announcement.
    live.place.umount(&[]).ok();
    live.place.mount_url(&live.url, &[]).ok();
    live.place.umount(&[]).ok();
    live.run(&["fsck", "--repair"]).ok();
    live.run(&["destroy", "--yes"]).ok();
    live.run(&["status"]).failed(1, &["no volume"]);
}

fn fsck_next_to_writers_finds_no_problem(kind: Option<Kind>) {
    let Some(live) = Live::new(kind) else { return };
    for dir in 0..4 {
        fs::create_dir(live.at(format!("d{dir}"))).unwrap();
        (0..50).for_each(|number| fs::write(live.at(format!("d{dir}/{number}")), b"text").unwrap());
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while !done.load(Ordering::Relaxed) {
                for number in 0..50 {
                    let place = |dir| live.at(format!("d{}/{number}", dir % 4));
                    fs::rename(place(at), place(at + 1)).unwrap_or_default();
                    fs::hard_link(place(at + 1), live.at("link")).unwrap();
                    fs::remove_file(live.at("link")).unwrap();
                }
                at += 1;
            }
        });
        let _stop = Stop(&done);
        for _ in 0..5 {
            let found = live.json(&["fsck", "--data", "--json"]);
            assert_eq!(found["clean"], true, "{found:#}");
            let found = live.json(&["fsck", "--json", "--path", "/d1"]);
            assert_eq!(found["clean"], true, "{found:#}");
        }
    });
    live.end_clean();
}

fn changed_settings_reach_running_mounts(kind: Option<Kind>) {
    let Some(live) = Live::new(kind) else { return };
    // With the root there are three inodes, so the limit allows no further inode.
    (0..2).for_each(|number| fs::write(live.at(format!("{number}")), b"text").unwrap());
    live.run_config(&["--inodes", "3"]);
    let deadline = Instant::now() + HANG_TIMEOUT;
    while let Ok(file) = File::create_new(live.at("more")) {
        drop(file);
        fs::remove_file(live.at("more")).unwrap();
        assert!(Instant::now() < deadline, "the limit has not reached the mount");
        thread::sleep(Duration::from_millis(50));
    }
    refused(File::create_new(live.at("more")), Errno::NOSPC);
    live.run_config(&["--inodes", "0"]);
    let deadline = Instant::now() + HANG_TIMEOUT;
    while File::create_new(live.at("more")).is_err() {
        assert!(Instant::now() < deadline, "the end of the limit has not reached the mount");
        thread::sleep(Duration::from_millis(50));
    }
    refused(File::create_new(live.at("more")), Errno::EXIST);
    live.end_clean();
}

impl Live {
    fn run_config(&self, args: &[&str]) {
        limen(&[&["config", &self.url], args].concat()).ok();
    }
}

/// Defines a module with the cases as tests, on the embedded engine or on a kind of server. The tests do
/// nothing unless the condition holds.
macro_rules! on {
    ($engine:ident, $kind:expr, $condition:expr, $($case:ident),+) => {
        mod $engine {
            #[allow(unused_imports, reason = "the embedded engine is no kind of server")]
            use super::Kind;

            $(#[test]
            fn $case() {
                if $condition {
                    super::$case($kind);
                }
            })+
        }
    };
    ($engine:ident, $kind:expr, $condition:expr) => {
        on!(
            $engine,
            $kind,
            $condition,
            garbage_collection_next_to_writers_keeps_data_in_use,
            unused_acls_are_removed_next_to_writers,
            repair_and_destroy_refuse_a_mounted_volume,
            fsck_next_to_writers_finds_no_problem,
            changed_settings_reach_running_mounts
        );
    };
}

on!(embedded, None, true);
on!(redis, Some(Kind::Redis), true);
on!(postgres, Some(Kind::Postgres), true);
on!(mariadb, Some(Kind::Mariadb), skip::is_long());
on!(etcd, Some(Kind::Etcd), skip::is_long());
#[cfg(feature = "tikv")]
on!(tikv, Some(Kind::Tikv), skip::is_long());

/// An announced tool keeps mounts out only if it may still run, or if it was removing the volume.
#[test]
fn killed_tool_is_distinguished_from_a_running_one() {
    let Some(live) = Live::new(None) else { return };
    live.place.umount(&[]).ok();
    let announce = |tool: &str, start_time: u64| {
        let Process { boot_id, pid_namespace, .. } = this_process();
        let pid = std::process::id();
        let value = format!("{tool}\nhost\n{pid}\n{boot_id}\n{pid_namespace}\n{start_time}\n0");
        let effects = vec![Effect::PutSetting { name: "maintenance", value }];
        let engine = SqliteEngine::open(&live.place.path("vol.db"), &Options::default()).unwrap();
        engine.commit(&[Txn { op_id: OpId(start_time.into()), guards: Vec::new(), effects }]).unwrap();
    };
    let mount = || live.place.mount_url(&live.url, &[]);
    let running = this_process().start_time;
    announce("limen fsck --repair", running);
    mount().failed(1, &["limen fsck --repair", "works on the volume"]);
    live.run(&["fsck", "--end-maintenance"]).failed(8, &["still works"]);
    // The process ID belongs to a later process, so the tool is gone.
    announce("limen fsck --repair", running - 1);
    mount().ok();
    live.place.umount(&[]).ok();
    announce("limen destroy", running - 2);
    mount().failed(1, &["removal", "limen destroy"]);
    live.run(&["fsck", "--end-maintenance"]).ok();
    mount().ok();
    live.end_clean();
}
