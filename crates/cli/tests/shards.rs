//! Volumes whose objects are spread over several buckets. As root.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, Said, limen};
use serde_json::Value;

/// The address of several directories below `place`.
fn shards(place: &Place, name: &str, last: usize) -> String {
    format!("shards:{}{{0..{last}}}", place.text(name))
}

/// A volume with the buckets `disk0` to `disk2`; `None` if this user cannot mount.
fn formatted() -> Option<Place> {
    if !skip::is_root() {
        return None;
    }
    let place = Place::new();
    place.format(&["--bucket", &shards(&place, "disk", 2)]).ok();
    Some(place)
}

fn disks(place: &Place) -> [PathBuf; 3] {
    ["disk0", "disk1", "disk2"].map(|name| place.path(name))
}

/// Exchanges two names.
fn exchange(one: &Path, other: &Path) {
    let kept = one.with_extension("exchanged");
    fs::rename(one, &kept).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(kept, other).unwrap();
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-aT").args([from, to]).status().unwrap().success());
}

/// The paths of all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn blocks(bucket: &Path) -> usize {
    files(&bucket.join("chunks")).len()
}

const FILES: u8 = 40;

fn content(number: u8) -> Vec<u8> {
    vec![number; 20_000 + usize::from(number)]
}

fn write(place: &Place) {
    place.mount(&[]).ok();
    for number in 0..FILES {
        fs::write(place.path(&format!("mnt/f{number}")), content(number)).unwrap();
    }
    place.umount(&[]).ok();
}

#[track_caller]
fn verify(place: &Place) {
    place.mount(&[]).ok();
    for number in 0..FILES {
        assert!(fs::read(place.path(&format!("mnt/f{number}"))).unwrap() == content(number), "{number}");
    }
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &place.url()]).ok();
}

fn gc(place: &Place, more: &[&str]) -> Value {
    let said = limen(&[&["gc", "--json", "--grace", "0"], more, &[&place.url()]].concat());
    serde_json::from_str(&said.ok()).unwrap()
}

#[test]
fn objects_are_spread_over_directories() {
    let Some(place) = formatted() else { return };
    write(&place);
    verify(&place);
    let disks = disks(&place);
    let counts = disks.each_ref().map(|disk| blocks(disk));
    assert!(counts.iter().all(|count| *count >= 3), "{counts:?}");

    // Each object is in the bucket that limen info names.
    place.mount(&["-o", "upload_limit=1G,download_limit=1G"]).ok();
    for number in 0..FILES {
        let path = place.text(&format!("mnt/f{number}"));
        let said: Value = serde_json::from_str(&limen(&["info", "--json", &path]).ok()).unwrap();
        let slice = &said[0]["chunks"][0]["slices"][0];
        let (key, bucket) = (slice["objects"][0].as_str().unwrap(), slice["buckets"][0].as_str().unwrap());
        assert!(Path::new(bucket).join(key).is_file(), "{slice}");
        assert!(limen(&["info", &path]).ok().contains(&format!("{key} in {bucket}\n")));
    }
    // The three directories share the room of one file system.
    let free =
        |path: &Path| rustix::fs::statvfs(path).map(|stat| stat.f_bavail * stat.f_frsize).unwrap() as f64;
    let (here, there) = (free(&place.path("mnt")), free(&disks[0]));
    assert!((0.9..1.1).contains(&(here / there)), "{here} {there}");
    for number in 10..FILES {
        fs::remove_file(place.path(&format!("mnt/f{number}"))).unwrap();
    }
    // gc removes an object that no file has, but only from the bucket to which its key belongs.
    place.umount(&[]).ok();
    let key = "chunks/0/4/4000_0_5";
    let at = disks.iter().map(|disk| disk.join(key));
    for path in at.clone() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "stray").unwrap();
    }
    limen(&["fsck", "--data", &place.url()]).ok();
    let removed = gc(&place, &["--delete"]);
    assert_eq!(gc(&place, &[])["unreferenced"]["objects"].as_u64(), Some(0), "{removed}");
    assert_eq!(at.filter(|path| path.exists()).count(), 2, "only the object in the right bucket is one");
    assert_eq!(disks.iter().map(|disk| blocks(disk)).sum::<usize>(), 10 + 2);

    // Blocks that are staged first are uploaded to their buckets.
    place.mount(&["-o", &format!("writeback,cache_dir={}", place.text("cache"))]).ok();
    for number in 10..FILES {
        fs::write(place.path(&format!("mnt/f{number}")), content(number)).unwrap();
    }
    place.umount(&[]).ok();
    assert_eq!(disks.iter().map(|disk| blocks(disk)).sum::<usize>(), usize::from(FILES) + 2);
    verify(&place);
    limen(&["destroy", "--yes", &place.url()]).ok();
    assert!(disks.iter().all(|disk| !disk.exists()));
}

#[test]
fn missing_exchanged_or_foreign_bucket_is_refused_by_name() {
    let Some(place) = formatted() else { return };
    write(&place);
    let (disks, url) = (disks(&place), place.url());
    let names = disks.each_ref().map(|disk| disk.to_str().unwrap());
    let refused = |parts: &[&str]| {
        let parts = [parts, &["vol"]].concat();
        let before = disks.each_ref().map(|disk| if disk.is_dir() { files(disk) } else { Vec::new() });
        for options in ["rw", "ro", &format!("writeback,cache_dir={}", place.text("cache"))] {
            place.mount(&["-o", options]).failed(1, &parts);
        }
        limen(&["gc", "--delete", "--grace", "0", &url]).failed(1, &parts);
        limen(&["fsck", "--data", &url]).failed(8, &parts);
        limen(&["backup", "create", &url]).failed(1, &parts);
        limen(&["destroy", "--yes", &url]).failed(1, &parts);
        assert!(limen(&["status", &url]).ok().contains(parts[0]));
        assert_eq!(disks.each_ref().map(|disk| if disk.is_dir() { files(disk) } else { Vec::new() }), before);
    };
    fs::rename(&disks[1], place.path("kept")).unwrap();
    refused(&[names[1], "does not exist"]);
    assert!(!disks[1].exists());
    // An empty directory is like the mount point of a file system that is not mounted.
    fs::create_dir(&disks[1]).unwrap();
    refused(&[names[1], "it has no object limen-volume"]);
    assert_eq!(fs::read_dir(&disks[1]).unwrap().count(), 0);

    let other = Place::formatted();
    fs::remove_dir(&disks[1]).unwrap();
    symlink(other.path("vol.data"), &disks[1]).unwrap();
    refused(&[names[1], "holds volume 'vol'"]);
    limen(&["config", "--adopt-store", &url]).failed(1, &[names[1], "holds volume 'vol'"]);
    fs::remove_file(&disks[1]).unwrap();
    fs::rename(place.path("kept"), &disks[1]).unwrap();

    exchange(&disks[0], &disks[2]);
    refused(&[names[0], "the bucket is number 3 of 3 of volume 'vol', not number 1 of 3"]);
    // If one bucket has no marker and others are exchanged, --adopt-store fails and marks no bucket.
    let marker = disks[1].join("limen-volume");
    let text = fs::read(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    limen(&["config", "--adopt-store", &url]).failed(1, &[names[0], "number 3 of 3"]);
    assert!(!marker.exists());
    exchange(&disks[0], &disks[2]);

    // A lost bucket can be replaced; what is in the others is kept.
    limen(&["config", "--adopt-store", &url]).ok();
    assert_eq!(fs::read(&marker).unwrap(), text);
    verify(&place);
    fs::remove_dir_all(&disks[1]).unwrap();
    fs::create_dir(&disks[1]).unwrap();
    limen(&["config", "--adopt-store", &url]).ok();
    let said = limen(&["fsck", "--data", &url]);
    assert!(said.out.contains("missing") && said.code != Some(0), "{said:?}");
    place.mount(&[]).ok();
    let kept = (0..FILES).filter(|number| fs::read(place.path(&format!("mnt/f{number}"))).is_ok()).count();
    assert!((5..usize::from(FILES)).contains(&kept), "{kept}");
    place.umount(&[]).ok();
    limen(&["destroy", "--yes", &url]).ok();
    assert!(disks.iter().all(|disk| !disk.exists()));
}

#[test]
fn wrong_addresses_and_used_buckets_are_refused() {
    let place = Place::new();
    let format = |bucket: &str| place.format(&["--bucket", bucket]);
    let at = |name: &str| place.text(name);
    format(&at("d{0..2}")).failed(2, &["d{0..2}", "write --bucket 'shards:"]);
    format(&format!("shards:{}", at("d"))).failed(2, &["exactly one range"]);
    format(&format!("shards:{}", at("d{2..1}"))).failed(2, &["empty range"]);
    format(&format!("shards:{}", at("d{1..1}"))).failed(2, &["only one bucket"]);
    format(&format!("shards:{}", at("d{0..256}"))).failed(2, &["257 buckets; the maximum is 256"]);
    let remote = ["--storage", "s3", "--bucket"];
    place.format(&[&remote[..], &["s3://b-{0..3}/p"]].concat()).failed(2, &["'shards:s3://b-{0..3}/p'"]);
    place.format(&[&remote[..], &["shards:s3://b-{x}"]].concat()).failed(2, &["not a range"]);
    let bucket = shards(&place, "d", 2);
    fs::create_dir_all(place.path("d1/mine")).unwrap();
    format(&bucket).failed(1, &["the bucket is not empty", "d1/mine"]);
    fs::remove_dir(place.path("d1/mine")).unwrap();
    fs::remove_dir(place.path("d1")).unwrap();
    fs::create_dir(place.path("d0")).unwrap();
    symlink("d0", place.path("d1")).unwrap();
    format(&bucket).failed(1, &[&format!("the buckets {} and {} are the same place", at("d0"), at("d1"))]);
    assert!(!place.path("vol.db").exists() && !place.path("d2").exists());
    fs::remove_file(place.path("d1")).unwrap();
    format(&bucket).ok();
    let other = Place::new();
    other.format(&["--bucket", &at("d1")]).failed(1, &["belongs to volume 'vol'", "d1"]);
    other
        .format(&["--bucket", &format!("shards:{}", at("d{2..3}"))])
        .failed(1, &["belongs to volume 'vol'", "d2"]);
}

/// Earlier versions of limen took braces in the name of a directory literally.
#[test]
fn directory_with_braces_in_its_name_is_one_bucket() {
    if !skip::is_root() {
        return;
    }
    let place = Place::formatted();
    let (name, url) = (place.text("d{0..2}"), place.url());
    fs::rename(place.path("vol.data"), &name).unwrap();
    symlink(&name, place.path("vol.data")).unwrap();
    limen(&["config", &url, "--bucket", &name]).ok();
    fs::remove_file(place.path("vol.data")).unwrap();
    assert_eq!(place.status()["bucket"], name);
    write(&place);
    verify(&place);
    limen(&["backup", "create", &url]).ok();
    assert!(limen(&["backup", "ls", "--bucket", &name]).ok().contains("vol"));
    assert!(blocks(Path::new(&name)) > 0 && !place.path("d0").exists());
    limen(&["destroy", "--yes", &url]).ok();
    assert!(!Path::new(&name).exists());
}

/// Copies all objects of each of the `from` buckets to each of the `to` buckets, including the markers.
fn copy_all(place: &Place, from: &[&str], to: &[&str]) {
    for to in to {
        for from in from {
            copy(&place.path(from), &place.path(to));
        }
    }
}

#[test]
fn number_of_buckets_changes_only_if_each_object_is_in_its_new_bucket() {
    let Some(place) = formatted() else { return };
    write(&place);
    let url = place.url();
    let to = |bucket: &str| -> Said { limen(&["config", &url, "--bucket", bucket]) };
    let old = place.status()["bucket"].clone();
    // Copy each bucket as it is, and add one more: most objects are then in the wrong bucket.
    let four = shards(&place, "new", 3);
    for (from, new) in [("disk0", "new0"), ("disk1", "new1"), ("disk2", "new2")] {
        copy(&place.path(from), &place.path(new));
    }
    to(&four).failed(1, &["new3", "does not exist"]);
    fs::create_dir(place.path("new3")).unwrap();
    to(&four).failed(1, &["new3", "limen-volume is missing"]);
    fs::copy(place.path("disk0/limen-volume"), place.path("new3/limen-volume")).unwrap();
    to(&four).failed(1, &["lacks ", " of 40 objects"]);
    // Name only some of the buckets.
    to(&shards(&place, "disk", 1)).failed(1, &["also one of the volume's present buckets"]);
    to(&place.text("disk0")).failed(1, &["also one of the volume's present buckets"]);
    assert_eq!(place.status()["bucket"], old);
    verify(&place);

    copy_all(&place, &["disk0", "disk1", "disk2"], &["new0", "new1", "new2", "new3"]);
    place.mount(&[]).ok();
    to(&four).failed(1, &["mounted"]);
    place.umount(&[]).ok();
    fs::rename(place.path("disk1"), place.path("kept")).unwrap();
    to(&four).failed(1, &["disk1", "--old-store-lost"]);
    let lost = limen(&["config", &url, "--bucket", &four, "--old-store-lost"]);
    lost.failed(1, &["new0", "the bucket is number", "of 3 of volume 'vol', not number 1 of 4"]);
    fs::rename(place.path("kept"), place.path("disk1")).unwrap();
    verify(&place);
    to(&four).ok();
    assert_eq!(place.status()["bucket"], four);
    for disk in disks(&place) {
        fs::remove_dir_all(disk).unwrap();
    }
    verify(&place);

    // Move to one bucket.
    copy_all(&place, &["new0", "new1", "new2", "new3"], &["one"]);
    to(&place.text("one")).ok();
    for name in ["new0", "new1", "new2", "new3"] {
        fs::remove_dir_all(place.path(name)).unwrap();
    }
    verify(&place);
    // Move to several buckets again.
    copy_all(&place, &["one"], &["disk0", "disk1", "disk2"]);
    to(&shards(&place, "disk", 2)).ok();
    fs::remove_dir_all(place.path("one")).unwrap();
    verify(&place);
    limen(&["destroy", "--yes", &url]).ok();
    assert!(disks(&place).iter().all(|disk| !disk.exists()));
}

#[test]
fn another_address_must_lead_to_the_same_buckets_in_the_same_order() {
    let Some(place) = formatted() else { return };
    write(&place);
    let url = place.url();
    let links = |targets: [&str; 3]| {
        for (number, target) in targets.iter().enumerate() {
            let _ = fs::remove_file(place.path(&format!("link{number}")));
            symlink(target, place.path(&format!("link{number}"))).unwrap();
        }
    };
    let bucket = shards(&place, "link", 2);
    let to = || limen(&["config", &url, "--bucket", &bucket]);
    place.mount(&[]).ok();
    links(["disk0", "disk2", "disk1"]);
    to().failed(1, &["also one of the volume's present buckets"]);
    // One link leads to a copy of a bucket, which the mount would not change.
    copy(&place.path("disk2"), &place.path("copy"));
    links(["disk0", "disk1", "copy"]);
    to().failed(1, &["mounted"]);
    links(["copy", "copy", "disk2"]);
    to().failed(1, &["are the same place"]);
    links(["disk0", "disk1", "disk2"]);
    assert!(to().err.contains("both addresses lead to the same objects"));
    place.umount(&[]).ok();
    assert_eq!(place.status()["bucket"], bucket);
    verify(&place);
    assert!(disks(&place).iter().all(|disk| fs::read_dir(disk.join("tmp")).unwrap().count() == 0));
}

#[test]
fn backups_are_restored_from_all_buckets() {
    let Some(place) = formatted() else { return };
    write(&place);
    let bucket = shards(&place, "disk", 2);
    limen(&["backup", "create", &place.url()]).ok();
    let backups = || {
        disks(&place)
            .iter()
            .flat_map(|disk| files(disk))
            .filter(|path| path.to_str().unwrap().contains("/backups/"))
            .count()
    };
    assert_eq!(backups(), 2, "a part and the manifest");
    assert!(limen(&["backup", "ls", "--bucket", &bucket]).ok().contains("vol"));
    let marker = place.path("disk0/limen-volume");
    let text = fs::read(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    assert!(limen(&["backup", "ls", "--bucket", &bucket]).ok().contains("vol"), "a marker is lost");
    fs::write(&marker, text).unwrap();
    let new = Place::new();
    let restore = |bucket: &str| limen(&["backup", "restore", "--yes", &new.url(), "--bucket", bucket]);
    restore(&shards(&place, "disk", 1))
        .failed(1, &["disk0", "number 1 of 3 of volume 'vol', not number 1 of 2"]);
    restore(&place.text("disk0")).failed(1, &["number 1 of 3 of volume 'vol', not number 1 of 1"]);
    assert!(!new.path("vol.db").exists());
    restore(&bucket).ok();
    verify(&new);
    place.mount(&[]).failed(1, &["another database"]);
    limen(&["destroy", "--yes", &new.url()]).ok();
    assert!(disks(&place).iter().all(|disk| !disk.exists()));
}

#[test]
fn objbench_measures_several_buckets_and_leaves_nothing() {
    let place = Place::new();
    let args = ["--blocks", "8", "--small", "20", "--block-size", "64K", "--threads", "2"];
    let bucket = shards(&place, "d", 2);
    limen(&[&["objbench", "--storage", "file", &bucket], &args[..]].concat()).ok();
    assert!((0..3).all(|number| files(&place.path(&format!("d{number}"))).is_empty()));
    limen(&["objbench", "--storage", "file", &format!("shards:{}", place.text("d"))]).failed(2, &["range"]);
}
