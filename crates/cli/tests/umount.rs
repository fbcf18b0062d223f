//! umount names the processes that hold a mount, and does not wait for them for ever; as root.

mod common;

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::Place;

/// A new mount namespace holds the mounts of every test that runs at that moment, so that they take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is ended when this is dropped.
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
        assert!(Instant::now() < deadline, "still not so: {what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_mount_that_another_namespace_holds_is_not_waited_for_for_ever() {
    if !skip::is_root() {
        return;
    }
    let _turn = turn();
    let place = Place::formatted();
    place.mount(&[]).ok();
    std::fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
    let mut holder = Helper::start(Command::new("unshare").args(["-m", "sleep", "1000"]));
    soon("the namespace is made", || holder.is_called("sleep"));
    let named = format!("process {} (sleep) still holds it in another mount namespace", holder.0.id());
    let said = place.umount(&["--timeout", "2"]);
    said.failed(3, &["unmounted here", &named, "no data waits to be stored", "nsenter -t", &place.mnt()]);
    assert!(!place.is_mounted());
    // Once more, with nothing mounted here any more.
    place.umount(&["--timeout", "0"]).failed(3, &["unmounted here", &named]);
    holder.end();
    place.umount(&[]);
    assert_eq!(place.status()["sessions"], serde_json::json!([]));
    place.mount(&[]).ok();
    assert_eq!(std::fs::read(place.path("mnt/f")).unwrap(), vec![7; 100_000]);
    place.umount(&[]).ok();
}

#[test]
fn who_uses_a_mount_is_named() {
    if !skip::is_root() {
        return;
    }
    let _turn = turn();
    let place = Place::formatted();
    place.mount(&[]).ok();
    let mut user = Helper::start(Command::new("sleep").arg("1000").current_dir(place.mnt()));
    soon("it is started", || user.is_called("sleep"));
    let named = format!("process {} (sleep) has its working directory there", user.0.id());
    place.umount_once(&[]).failed(1, &["in use", &named, "limen umount -l"]);

    // A program that runs from there has no more of it than a mapping.
    let program = place.text("mnt/napper");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut napper = Helper::start(Command::new(&program).arg("1000").current_dir("/"));
    soon("it runs", || napper.is_called("napper"));
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
fn a_command_that_was_started_in_the_mount_unmounts_it() {
    if !skip::is_root() {
        return;
    }
    let _turn = turn();
    let place = Place::formatted();
    place.mount(&[]).ok();
    let mut command = Command::new(common::LIMEN);
    let said = command.args(["umount", "."]).current_dir(place.path("mnt")).output().unwrap();
    common::Said::from(said).ok();
    assert!(!place.is_mounted());
}
