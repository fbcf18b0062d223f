//! An object store that is missing, belongs to another volume, or is unusable: nothing is read from it or
//! written to it. As root.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use client::Meta;
use common::{Place, limen};
use engine_sqlite::{Options, SqliteEngine};
use ops::{Authority, Configure};
use serde_json::Value;

fn entries(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

fn write(place: &Place) {
    fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
}

#[track_caller]
fn verify(place: &Place) {
    assert_eq!(fs::read(place.path("mnt/f")).unwrap(), vec![7; 100_000]);
}

#[test]
fn missing_or_empty_directory_is_not_used_as_store() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let (data, url) = (place.path("vol.data"), place.url());
    let marker: Value = serde_json::from_slice(&fs::read(data.join("limen-volume")).unwrap()).unwrap();
    assert_eq!((&marker["volume"], &marker["name"]), (&place.status()["uuid"], &"vol".into()));
    place.mount(&[]).ok();
    write(&place);
    place.umount(&[]).ok();

    fs::rename(&data, place.path("kept")).unwrap();
    for options in [&["-o", "rw"], &["-o", "ro"]] {
        place.mount(options).failed(1, &["object store of volume 'vol'", "vol.data", "does not exist"]);
    }
    assert!(!data.exists());
    // The empty directory is like the mount point of a file system that is not mounted yet.
    fs::create_dir(&data).unwrap();
    let absent = ["limen-volume", "vol.data", "--adopt-store"];
    for options in ["rw", "ro", &format!("writeback,cache_dir={}", place.text("cache"))] {
        place.mount(&["-o", options]).failed(1, &absent);
    }
    limen(&["gc", &url]).failed(1, &absent);
    limen(&["gc", "--delete", &url]).failed(1, &absent);
    limen(&["fsck", "--data", &url]).failed(8, &absent);
    limen(&["mdtest", "--files", "1", "--depth", "0", &url, "/x"]).failed(1, &absent);
    limen(&["destroy", "--yes", &url]).failed(1, &["limen-volume", "nothing was removed", "--keep-objects"]);
    assert_eq!(entries(&data), 0);

    fs::remove_dir(&data).unwrap();
    fs::rename(place.path("kept"), &data).unwrap();
    limen(&["fsck", "--data", &url]).ok();
    let found: Value = serde_json::from_str(&limen(&["gc", "--json", &url]).ok()).unwrap();
    assert_eq!((&found["unreferenced"]["objects"], &found["kept_objects"]), (&0.into(), &0.into()));
    place.mount(&[]).ok();
    verify(&place);
    place.umount(&[]).ok();
    assert_eq!(entries(&data.join("tmp")), 0, "the check leaves no files");
    fs::remove_dir_all(&data).unwrap();
    limen(&["destroy", "--yes", &url]).failed(1, &["does not exist", "--keep-objects"]);
    limen(&["destroy", "--yes", "--keep-objects", &url]).ok();
    assert!(!place.path("vol.db").exists());
}

#[test]
fn store_of_another_volume_is_refused() {
    if !skip::is_root() {
        return;
    }
    let (one, two) = (Place::formatted(), Place::formatted());
    let uuids = [&one, &two].map(|place| place.status()["uuid"].as_str().unwrap().to_owned());
    let data = one.path("vol.data");
    fs::remove_dir_all(&data).unwrap();
    std::os::unix::fs::symlink(two.path("vol.data"), &data).unwrap();
    let parts = ["holds volume 'vol'", &uuids[0], &uuids[1]];
    one.mount(&[]).failed(1, &parts);
    limen(&["gc", "--delete", "--grace", "0", &one.url()]).failed(1, &parts);
    limen(&["config", "--adopt-store", &one.url()]).failed(1, &parts);
    limen(&["destroy", "--yes", &one.url()]).failed(1, &["nothing was removed"]);

    let bucket = two.text("vol.data");
    let third = Place::new();
    third.format(&["--bucket", &bucket]).failed(1, &["belongs to volume 'vol'", &uuids[1], "--bucket"]);
    two.mount(&[]).ok();
    write(&two);
    two.umount(&[]).ok();
    limen(&["destroy", "--yes", &two.url()]).ok();
    third.format(&["--bucket", &bucket]).ok();
}

/// Turns the volume into a volume from before markers existed.
fn forget_marker(place: &Place) {
    fs::remove_file(place.path("vol.data/limen-volume")).unwrap();
    let engine = SqliteEngine::open(&place.path("vol.db"), &Options::default()).unwrap();
    let meta = Meta::open(std::sync::Arc::new(engine), 1).unwrap();
    let change = Configure { store_marker: Some(false), ..Configure::default() };
    meta.run(&change, &Authority::Kernel { revisions: None }).unwrap();
}

#[test]
fn older_volume_gets_its_marker_if_its_objects_are_found() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let (data, marker) = (place.path("vol.data"), place.path("vol.data/limen-volume"));
    // The volume has never stored an object, so any directory is accepted.
    forget_marker(&place);
    place.mount(&[]).ok();
    assert!(marker.exists());
    write(&place);
    place.umount(&[]).ok();
    // The objects of the volume are in the store, so the store is accepted.
    forget_marker(&place);
    place.mount(&["-o", "ro"]).ok();
    verify(&place);
    place.umount(&[]).ok();
    assert!(!marker.exists());
    place.mount(&[]).ok();
    verify(&place);
    place.umount(&[]).ok();
    fs::remove_file(&marker).unwrap();
    place.mount(&[]).failed(1, &["limen-volume"]);
    // The objects of the volume are not in the store, so the store is not accepted.
    limen(&["config", "--adopt-store", &place.url()]).ok();
    forget_marker(&place);
    fs::rename(&data, place.path("kept")).unwrap();
    fs::create_dir(&data).unwrap();
    for option in ["rw", "ro"] {
        place.mount(&["-o", option]).failed(1, &["is empty", "--adopt-store"]);
    }
    assert_eq!(entries(&data), 0);
    limen(&["config", "--adopt-store", &place.url()]).ok();
    place.mount(&[]).ok();
    place.umount(&[]).ok();
}

/// A mount over a directory: of the directory itself, to make it read-only, or of a small tmpfs. Unmounted
/// when dropped.
struct Disk(String);

impl Disk {
    fn mount(args: &[&str], path: &str) -> Self {
        let disk = Disk(path.to_owned());
        disk.mount_again(args);
        disk
    }

    fn mount_again(&self, args: &[&str]) {
        assert!(Command::new("mount").args(args).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn read_only_store_makes_the_mount_fail() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let data = place.text("vol.data");
    let disk = Disk::mount(&["--bind", &data], &data);
    disk.mount_again(&["-o", "remount,bind,ro"]);
    place.mount(&[]).failed(1, &["object store of volume 'vol'", "cannot write", &data]);
    assert!(!place.is_mounted());
    place.mount(&["-o", "ro"]).ok();
    place.umount(&[]).ok();
    // With write-back, blocks can wait on the local disk.
    let options = format!("writeback,cache_dir_free=0,cache_dir={}", place.text("cache"));
    let said = place.mount(&["-o", &options]);
    assert!(said.err.contains("stays on the local disk"), "{said:?}");
    said.ok();
    write(&place);
    disk.mount_again(&["-o", "remount,bind,rw"]);
    place.umount(&[]).ok();
    drop(disk);
    place.mount(&[]).ok();
    verify(&place);
    place.umount(&[]).ok();
}

#[test]
fn full_store_can_be_mounted_to_remove_files() {
    if !skip::is_root() {
        return;
    }
    let place = Place::new();
    let data = place.text("vol.data");
    fs::create_dir(&data).unwrap();
    let _disk = Disk::mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], &data);
    place.format(&[]).ok();
    place.mount(&[]).ok();
    write(&place);
    place.umount(&[]).ok();
    fs::write(place.path("vol.data/filler"), vec![0; 1 << 20]).unwrap_err();
    let said = place.mount(&[]);
    assert!(said.err.contains("is full"), "{said:?}");
    said.ok();
    verify(&place);
    fs::remove_file(place.path("mnt/f")).unwrap();
    place.umount(&[]).ok();
}

/// Copies a directory with everything below it.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// The block objects below the directory of a store.
fn objects(store: &Path) -> Vec<PathBuf> {
    let listed = Command::new("find").arg(store.join("chunks")).args(["-type", "f"]).output().unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().map(PathBuf::from).collect()
}

#[test]
fn objects_move_to_a_complete_copy() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let (data, copied, url) = (place.path("vol.data"), place.path("copied"), place.url());
    place.mount(&[]).ok();
    write(&place);
    for n in 0..20 {
        fs::write(place.path(&format!("mnt/g{n}")), vec![n; 5000]).unwrap();
    }
    place.umount(&[]).ok();
    let to = |bucket: &str| limen(&["config", &url, "--bucket", &place.text(bucket)]);
    to("copied").failed(1, &["copied"]);
    fs::create_dir(&copied).unwrap();
    to("copied").failed(1, &["limen-volume is missing", "rclone"]);
    fs::remove_dir(&copied).unwrap();
    copy(&data, &copied);
    let lost = objects(&copied).pop().unwrap();
    let bytes = fs::read(&lost).unwrap();
    fs::remove_file(&lost).unwrap();
    to("copied").failed(1, &["lacks 1 of ", lost.file_name().unwrap().to_str().unwrap()]);
    fs::write(&lost, bytes).unwrap();
    place.mount(&[]).ok();
    to("copied").failed(1, &["mounted"]);
    place.umount(&[]).ok();
    assert_eq!(place.status()["bucket"], place.text("vol.data"));
    assert_eq!(entries(&data.join("tmp")) + entries(&copied.join("tmp")), 0);

    to("copied").ok();
    assert_eq!(place.status()["bucket"], place.text("copied"));
    fs::rename(&data, place.path("old")).unwrap();
    place.mount(&[]).ok();
    verify(&place);
    fs::write(place.path("mnt/new"), vec![9; 70_000]).unwrap();
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &url]).ok();

    // Only a copy of the store is left.
    fs::rename(&copied, place.path("copy of it")).unwrap();
    to("copy of it").failed(1, &["copied", "--old-store-lost"]);
    // An empty directory, as of a file system that is not mounted, is not the store, and nothing is written
    // to it.
    fs::create_dir(&copied).unwrap();
    to("copy of it").failed(1, &["limen-volume is missing", "--old-store-lost"]);
    fs::remove_dir(&copied).unwrap();
    limen(&["config", &url, "--bucket", &place.text("copy of it"), "--old-store-lost"]).ok();
    limen(&["fsck", "--data", &url]).ok();
    limen(&["config", &url, "--force"]).failed(2, &["--adopt-store"]);
    limen(&["config", &url, "--bucket", "/x", "--storage", "memory"]).failed(2, &["memory"]);
    // The directory from before the move lacks the object that was stored afterwards.
    to("old").failed(1, &["lacks 1 of 22 objects"]);
}

#[test]
fn another_address_of_the_store_is_set_while_the_volume_is_mounted() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let url = place.url();
    symlink("vol.data", place.path("link")).unwrap();
    place.mount(&[]).ok();
    write(&place);
    let said = limen(&["config", &place.mnt(), "--bucket", &place.text("link")]);
    assert!(said.err.contains("both addresses lead to the same objects"), "{said:?}");
    // The mount re-reads the settings of the volume every few seconds.
    std::thread::sleep(std::time::Duration::from_secs(12));
    fs::write(place.path("mnt/later"), vec![3; 50_000]).unwrap();
    verify(&place);
    place.umount(&[]).ok();
    assert_eq!(place.status()["bucket"], place.text("link"));
    place.mount(&[]).ok();
    verify(&place);
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &url]).ok();
}
