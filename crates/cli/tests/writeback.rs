//! `-o writeback` on a mount, as root: nothing is lost if the store is full or the server is killed.

mod common;
mod harness;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, limen};
use harness::{Random, refused};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A volume with its objects on a small tmpfs, and a directory for staged blocks.
struct Staged {
    place: Place,
    /// The disk is dropped last, after the mount.
    disk: TempDir,
}

impl Staged {
    /// Returns `None`, and reports a skip, without root. `disk_size` is in the format of tmpfs(5).
    fn new(disk_size: &str) -> Option<Self> {
        if !skip::is_root() {
            return None;
        }
        let staged = Staged { place: Place::new(), disk: tempfile::tempdir().unwrap() };
        staged.mount_disk(&["-t", "tmpfs", "-o", &format!("size={disk_size}"), "tmpfs"]);
        let bucket = staged.disk.path().join("objects");
        staged.place.format(&["--storage", "file", "--bucket", bucket.to_str().unwrap()]).ok();
        Some(staged)
    }

    fn mount_disk(&self, args: &[&str]) {
        assert!(Command::new("mount").args(args).arg(self.disk.path()).status().unwrap().success());
    }

    fn mount(&self) {
        let options = format!("writeback,cache_dir_free=0,cache_dir={}", self.place.text("cache"));
        self.place.mount(&["-o", &options]).ok();
    }

    fn kill(&self) {
        kill_process(Pid::from_raw(self.place.server() as i32).unwrap(), Signal::KILL).unwrap();
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let mut file = File::create(self.at(name)).unwrap();
        file.write_all(bytes).unwrap();
        file.sync_all().unwrap();
    }

    fn staged_blocks(&self) -> u64 {
        self.place.status()["staged"]["blocks"].as_u64().unwrap()
    }

    /// Checks that fsck and gc find nothing, whether mounted or not.
    fn check(&self) {
        limen(&["fsck", "--data", &self.place.url()]).ok();
        let found = limen(&["gc", "--json", &self.place.url()]).ok();
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["garbage"]["slices"], 0, "{found}");
        assert_eq!(found["unreferenced"]["objects"], 0, "{found}");
    }

    fn note(&self) -> PathBuf {
        let status = self.place.status();
        PathBuf::from("/var/lib/limen/staging").join(status["uuid"].as_str().unwrap())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let note = self.note();
        self.place.umount(&["--force"]);
        let _ = fs::remove_file(note);
        let _ = Command::new("umount").arg("-l").arg(self.disk.path()).status();
    }
}

#[test]
fn blocks_staged_for_a_full_store_are_uploaded_later() {
    let Some(volume) = Staged::new("64k") else { return };
    let (big, small) = (Random(3).bytes(9 * MIB + 5), Random(4).bytes(90_000));
    volume.mount();
    volume.write("big", &big);
    volume.write("small", &small);
    let out = limen(&["status", &volume.place.url()]).ok();
    // On a busy machine a slow write may be stored in more blocks, because data is also flushed by age.
    let blocks = volume.staged_blocks();
    assert!(blocks >= 4, "{out}");
    assert!(out.contains(&format!("{blocks} blocks")) && out.contains("wait on this machine"), "{out}");
    volume.check();
    volume.kill();
    volume.check();
    volume.mount();
    assert_eq!(
        (fs::read(volume.at("big")).unwrap(), fs::read(volume.at("small")).unwrap()),
        (big.clone(), small)
    );
    // A removed file is never uploaded.
    fs::remove_file(volume.at("small")).unwrap();
    while volume.staged_blocks() >= blocks {
        thread::sleep(Duration::from_millis(50));
    }
    volume.kill();
    // A mount that does not know the staging directory fails with EIO and never returns other data.
    let note = fs::read(volume.note()).unwrap();
    fs::remove_file(volume.note()).unwrap();
    volume.place.mount(&[]).ok();
    refused(fs::read(volume.at("big")), Errno::IO);
    volume.place.umount(&[]).ok();
    // This mount knows the directory, but neither stages nor uploads blocks.
    fs::write(volume.note(), note).unwrap();
    volume.place.mount(&[]).ok();
    assert_eq!(fs::read(volume.at("big")).unwrap(), big);
    volume.place.umount(&[]).ok();

    volume.mount_disk(&["-o", "remount,size=64m"]);
    volume.mount();
    volume.place.umount(&[]).ok();
    assert_eq!(volume.staged_blocks(), 0);
    fs::remove_dir_all(volume.place.path("cache")).unwrap();
    volume.place.mount(&[]).ok();
    assert_eq!(fs::read(volume.at("big")).unwrap(), big);
    volume.check();
}

#[test]
fn blocks_are_not_uploaded_to_the_store_of_another_volume() {
    let Some(volume) = Staged::new("64k") else { return };
    let bytes = Random(6).bytes(9 * MIB + 5);
    volume.mount();
    volume.write("f", &bytes);
    volume.kill();
    let staged = volume.staged_blocks();
    assert!(staged >= 3);
    volume.mount_disk(&["-o", "remount,size=256m"]);
    let (own, aside) = (volume.disk.path().join("objects"), volume.disk.path().join("aside"));
    let other = format!("sqlite://{}", volume.place.text("other.db"));
    let options = format!("writeback,cache_dir_free=0,cache_dir={}", volume.place.text("cache"));
    // Puts the objects of another volume in the place of this volume's objects, or puts them back.
    let swap = |is_other: bool| {
        fs::rename(&own, volume.disk.path().join("swap")).unwrap();
        fs::rename(&aside, &own).unwrap();
        fs::rename(volume.disk.path().join("swap"), &aside).unwrap();
        assert_eq!(own.join("chunks").exists(), !is_other);
    };
    fs::rename(&own, &aside).unwrap();
    limen(&["format", &other, "other", "--storage", "file", "--bucket", own.to_str().unwrap()]).ok();
    // The store has the directory tmp, like one in use, so that objects could be written to it.
    fs::create_dir_all(own.join("tmp")).unwrap();
    fs::create_dir_all(aside.join("chunks")).unwrap();
    for _ in 0..5 {
        volume.place.mount(&["-o", &options]).failed(1, &["holds volume 'other'"]);
    }
    assert!(!own.join("chunks").exists());
    assert_eq!(volume.staged_blocks(), staged);

    // The marker cannot be read when the volume is mounted. When it can be read again, it is the marker of
    // the other volume.
    swap(false);
    let marker = own.join("limen-volume");
    fs::rename(&marker, own.join("marker")).unwrap();
    fs::create_dir(&marker).unwrap();
    volume.mount();
    assert!(fs::read(volume.at("f")).unwrap() == bytes);
    swap(true);
    let until = Instant::now() + Duration::from_secs(60);
    while !volume.place.log().contains("holds volume 'other'") {
        assert!(Instant::now() < until, "{}", volume.place.log());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!own.join("chunks").exists());
    assert_eq!(volume.staged_blocks(), staged);
    swap(false);
    fs::remove_dir(&marker).unwrap();
    fs::rename(own.join("marker"), &marker).unwrap();
    volume.place.umount(&[]).ok();
    assert_eq!(volume.staged_blocks(), 0);
    fs::remove_dir_all(volume.place.path("cache")).unwrap();
    volume.place.mount(&[]).ok();
    assert!(fs::read(volume.at("f")).unwrap() == bytes);
    volume.check();
}

#[test]
fn server_killed_during_upload_loses_nothing() {
    let Some(volume) = Staged::new("512m") else { return };
    let mut random = Random(9);
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..6 {
        volume.mount();
        for (name, bytes) in &files {
            assert_eq!(&fs::read(volume.at(name)).unwrap(), bytes, "{name}");
        }
        for file in 0..8 {
            let len = if file == 0 { 17 * MIB } else { 10_000 + random.below(300_000) as usize };
            let (name, bytes) = (format!("{round}.{file}"), random.bytes(len));
            volume.write(&name, &bytes);
            files.push((name, bytes));
        }
        volume.kill();
        limen(&["fsck", "--data", &volume.place.url()]).ok();
    }
    volume.mount();
    volume.place.umount(&[]).ok();
    assert_eq!(volume.staged_blocks(), 0);
    fs::remove_file(volume.note()).unwrap();
    volume.check();
    volume.place.mount(&[]).ok();
    for (name, bytes) in &files {
        assert_eq!(&fs::read(volume.at(name)).unwrap(), bytes, "{name}");
    }
}

#[test]
fn writeback_requires_a_cache_dir() {
    let Some(volume) = Staged::new("64m") else { return };
    volume.place.mount(&["-o", "writeback"]).failed(2, &["writeback", "cache_dir"]);
    volume.place.mount(&["-o", &format!("cache_dir={}", volume.place.text("cache"))]).ok();
    volume.write("f", &Random(1).bytes(5 * MIB));
    assert_eq!(volume.staged_blocks(), 0);
    assert!(!volume.note().exists());
    volume.place.umount(&[]).ok();
    volume.check();
}

#[test]
fn session_is_kept_until_the_blocks_are_uploaded() {
    let Some(volume) = Staged::new("64k") else { return };
    volume.mount();
    volume.write("big", &Random(3).bytes(5 * MIB));
    thread::scope(|scope| {
        let umount = scope.spawn(|| volume.place.umount(&[]));
        while volume.place.is_mounted() {
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_secs(1));
        let status = volume.place.status();
        assert_eq!(status["sessions"].as_array().unwrap().len(), 1, "{status}");
        assert!(status["staged"]["blocks"].as_u64().unwrap() > 0, "{status}");
        volume.mount_disk(&["-o", "remount,size=64m"]);
        umount.join().unwrap().ok();
    });
    assert_eq!(volume.place.status()["sessions"], serde_json::json!([]));
    assert_eq!(volume.staged_blocks(), 0);
    volume.check();
}
