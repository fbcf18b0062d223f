//! `limen umount` names the processes that keep a mount in use, and does not wait for them forever. Runs as
//! root.

mod common;

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::Place;

/// Returns a lock so that the tests run one at a time: a new mount namespace holds the mounts of all tests
/// that run when it is created.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is killed when dropped.
struct Helper(Child);

impl Helper {
    fn start(command: &mut Command) -> Self {
        Helper(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn is_called(&self, name: &str) -> bool {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", self.0.id())).unwrap_or_default();
        comm.trim_end() == name
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn umount_times_out_if_another_mount_namespace_holds_the_mount() {
    if !skip::is_root() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::formatted();
    place.mount(&[]).ok();
    std::fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
    let mut holder = Helper::start(Command::new("unshare").args(["-m", "sleep", "1000"]));
    soon("the namespace exists", || holder.is_called("sleep"));
    let named = format!("process {} (sleep) still holds it in another mount namespace", holder.0.id());
    let said = place.umount(&["--timeout", "2"]);
    said.failed(3, &["unmounted here", &named, "no data waits to be stored", "nsenter -t", &place.mnt()]);
    assert!(!place.is_mounted());
    // Run umount again when nothing is mounted here any more.
    place.umount(&["--timeout", "0"]).failed(3, &["unmounted here", &named]);
    holder.end();
    place.umount(&[]);
    assert_eq!(place.status()["sessions"], serde_json::json!([]));
    place.mount(&[]).ok();
    assert_eq!(std::fs::read(place.path("mnt/f")).unwrap(), vec![7; 100_000]);
    place.umount(&[]).ok();
}

#[test]
fn processes_that_use_a_mount_are_named() {
    if !skip::is_root() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::formatted();
    place.mount(&[]).ok();
    let mut user = Helper::start(Command::new("sleep").arg("1000").current_dir(place.mnt()));
    soon("the process has started", || user.is_called("sleep"));
    let named = format!("process {} (sleep) has its working directory there", user.0.id());
    place.umount_once(&[]).failed(1, &["in use", &named, "limen umount -l"]);

    // A program on the mount keeps it in use only by a mapping.
    let program = place.text("mnt/napper");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut napper = Helper::start(Command::new(&program).arg("1000").current_dir("/"));
    soon("the program runs", || napper.is_called("napper"));
    let mapping = format!("process {} (napper) has {program} mapped", napper.0.id());
    place.umount_once(&[]).failed(1, &[&named, &mapping]);
    napper.end();
    place.umount(&["-l"]).ok();
    place.umount(&["--timeout", "1"]).failed(3, &["unmounted here", &named]);
    user.end();
    place.umount(&[]);
    assert_eq!(place.status()["sessions"], serde_json::json!([]));
}

#[test]
fn umount_started_inside_the_mount_succeeds() {
    if !skip::is_root() {
        return;
    }
    let _lock = one_at_a_time();
    let place = Place::formatted();
    place.mount(&[]).ok();
    let mut command = Command::new(common::LIMEN);
    let said = command.args(["umount", "."]).current_dir(place.path("mnt")).output().unwrap();
    common::Said::from(said).ok();
    assert!(!place.is_mounted());
}
