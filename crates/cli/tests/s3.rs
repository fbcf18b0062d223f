//! Mounts of a volume on a real S3 server, as root. `tests/s3/run.sh` starts the server and sets
//! `LIMEN_TEST_S3` to a bucket and `LIMEN_TEST_S3_DIR` to the directory in which the server stores the
//! bucket. With `LIMEN_TEST_S3=later`, the tests are skipped, because a later step runs them.

mod common;

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chunk::object_key;
use common::{Place, Said, command, limen};
use serde_json::Value;
use types::SliceId;

/// The URL of a prefix for this test, and the directory of its objects.
fn bucket(prefix: &str) -> Option<(String, PathBuf)> {
    if env::var("LIMEN_TEST_S3").as_deref() == Ok("later") {
        skip::later("tests/s3/run.sh");
        return None;
    }
    let (Ok(bucket), Ok(dir)) = (env::var("LIMEN_TEST_S3"), env::var("LIMEN_TEST_S3_DIR")) else {
        skip::missing("an S3 server; run tests/s3/run.sh");
        return None;
    };
    if !skip::is_root() {
        return None;
    }
    Some((format!("{bucket}/{prefix}"), PathBuf::from(dir).join(prefix)))
}

fn formatted(bucket: &str) -> Place {
    let place = Place::new();
    place.format(&["--storage", "s3", "--bucket", bucket]).ok();
    place
}

#[test]
fn mount_with_wrong_credentials_fails() {
    let Some((bucket, _)) = bucket("mount-credentials") else { return };
    let place = formatted(&bucket);
    let mount = |change: &dyn Fn(&mut std::process::Command)| -> Said {
        let mut mount = command(&["mount", "-d", "--log", &place.text("log"), &place.url(), &place.mnt()]);
        change(&mut mount);
        mount.output().unwrap().into()
    };
    let wrong = mount(&|mount| {
        mount.env("AWS_SECRET_ACCESS_KEY", "wrong");
    });
    let none = mount(&|mount| {
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"] {
            mount.env_remove(name);
        }
        mount.env("HOME", place.mnt());
    });
    for said in [wrong, none] {
        said.failed(1, &["object store of volume 'vol'", &bucket, "AWS_ACCESS_KEY_ID"]);
        assert!(!place.is_mounted());
    }
    place.mount(&[]).ok();
    fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
    place.umount(&[]).ok();
    limen(&["destroy", "--yes", &place.url()]).ok();
}

#[test]
fn bucket_with_a_foreign_or_missing_marker_is_refused() {
    let Some((bucket, dir)) = bucket("mount-marker") else { return };
    let place = formatted(&bucket);
    let again = Place::new();
    again.format(&["--storage", "s3", "--bucket", &bucket]).failed(1, &["belongs to volume 'vol'"]);
    let marker = dir.join("limen-volume");
    let text = fs::read_to_string(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    place.mount(&[]).failed(1, &["limen-volume", "--adopt-store"]);
    fs::write(&marker, text.replace(place.status()["uuid"].as_str().unwrap(), "other")).unwrap();
    place.mount(&[]).failed(1, &["holds volume 'vol' (other)"]);
    fs::write(&marker, text).unwrap();
    place.mount(&[]).ok();
    place.umount(&[]).ok();
    limen(&["destroy", "--yes", &place.url()]).ok();
    assert!(!marker.exists());
    again.format(&["--storage", "s3", "--bucket", &bucket]).ok();
}

#[test]
fn volume_moves_from_a_directory_to_a_bucket_and_to_another_endpoint() {
    let Some((bucket, dir)) = bucket("mount-moved") else { return };
    let place = Place::formatted();
    place.mount(&[]).ok();
    fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
    place.umount(&[]).ok();
    let to = |bucket: &str| limen(&["config", &place.url(), "--storage", "s3", "--bucket", bucket]);
    to(&bucket).failed(1, &["limen-volume is missing"]);
    let copied = std::process::Command::new("cp").arg("-r").arg(place.path("vol.data")).arg(&dir).status();
    assert!(copied.unwrap().success());
    to(&bucket).ok();
    fs::remove_dir_all(place.path("vol.data")).unwrap();
    place.mount(&[]).ok();
    let other = bucket.replace("127.0.0.1", "localhost");
    assert_ne!(bucket, other);
    assert!(to(&other).err.contains("both addresses lead to the same objects"));
    fs::write(place.path("mnt/g"), vec![8; 100_000]).unwrap();
    place.umount(&[]).ok();
    assert_eq!(place.status()["bucket"], other);
    limen(&["fsck", "--data", &place.url()]).ok();
    place.mount(&[]).ok();
    assert_eq!(fs::read(place.path("mnt/f")).unwrap(), vec![7; 100_000]);
    place.umount(&[]).ok();
    limen(&["destroy", "--yes", &place.url()]).ok();
}

#[test]
fn unreferenced_objects_are_removed_after_the_grace_period() {
    let Some((bucket, dir)) = bucket("mount-strays") else { return };
    let place = formatted(&bucket);
    place.mount(&[]).ok();
    fs::write(place.path("mnt/f"), vec![7; 100_000]).unwrap();
    // This object has a slice number that was allocated, but that no file uses.
    let stray = dir.join(object_key(SliceId(7), 0, 100));
    fs::create_dir_all(stray.parent().unwrap()).unwrap();
    fs::write(&stray, vec![0; 132]).unwrap();
    let gc = |args: &[&str]| -> (u64, u64) {
        let url = place.url();
        let found = limen(&[&["gc", "--json"], args, &[&url]].concat()).ok();
        let found: Value = serde_json::from_str(&found).unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        (number(&found["unreferenced"]["objects"]), number(&found["kept_objects"]))
    };
    assert_eq!(gc(&[]), (0, 1), "the object is younger than the grace period");
    let old = SystemTime::now() - Duration::from_secs(7200);
    File::options().write(true).open(&stray).unwrap().set_modified(old).unwrap();
    assert_eq!(gc(&[]), (0, 1), "the session may still use this slice number");
    place.umount(&[]).ok();
    place.mount(&[]).ok();
    assert_eq!(gc(&[]), (1, 0), "on a mounted volume too");
    place.umount(&[]).ok();
    assert_eq!(gc(&["--delete", "--grace", "1d"]), (0, 1));
    assert!(stray.exists());
    assert_eq!(gc(&["--delete"]), (1, 0));
    assert!(!stray.exists());
    limen(&["fsck", "--data", &place.url()]).ok();
    limen(&["destroy", "--yes", &place.url()]).ok();
}

#[test]
fn objects_are_spread_over_several_buckets() {
    let Some((bucket, dir)) = bucket("") else { return };
    // The server has a bucket for each directory beside that of the other tests.
    let bucket = format!("shards:{}-{{0..2}}/home", bucket.trim_end_matches('/'));
    let name = dir.file_name().unwrap().to_str().unwrap();
    let buckets = [0, 1, 2].map(|number| dir.with_file_name(format!("{name}-{number}")));
    for bucket in &buckets {
        fs::create_dir_all(bucket).unwrap();
    }
    let place = formatted(&bucket);
    place.mount(&[]).ok();
    for number in 0..40 {
        fs::write(place.path(&format!("mnt/f{number}")), vec![number; 20_000]).unwrap();
    }
    place.umount(&[]).ok();
    assert!(buckets.iter().all(|bucket| bucket.join("home/limen-volume").is_file()));
    assert!(buckets.iter().all(|bucket| bucket.join("home/chunks").is_dir()));
    fs::rename(&buckets[2], dir.with_file_name("kept")).unwrap();
    place.mount(&[]).failed(1, &["the object store", &format!("{name}-2/home")]);
    fs::rename(dir.with_file_name("kept"), &buckets[2]).unwrap();
    place.mount(&[]).ok();
    for number in 0..40 {
        assert_eq!(fs::read(place.path(&format!("mnt/f{number}"))).unwrap(), vec![number; 20_000]);
    }
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &place.url()]).ok();
    limen(&["destroy", "--yes", &place.url()]).ok();
    assert_eq!(buckets.iter().map(|bucket| files(bucket)).sum::<usize>(), 0);
}

/// The number of files below a directory.
fn files(directory: &Path) -> usize {
    let count = |path: &Path| if path.is_dir() { files(path) } else { 1 };
    fs::read_dir(directory).unwrap().map(|entry| count(&entry.unwrap().path())).sum()
}
