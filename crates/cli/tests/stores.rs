//! Volumes on kinds of object stores other than directories and S3: WebDAV, SFTP, Azure Blob Storage and Google Cloud
//! Storage. Each test starts a server or an emulator (crate `servers`).

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use common::{Place, Said, command, until_unused};
use serde_json::Value;
use servers::{Store, StoreKind};

/// A volume whose data is in this store.
struct Volume {
    store: Store,
    place: Place,
}

impl Volume {
    /// `None` if this machine cannot run the server.
    fn new(kind: StoreKind) -> Option<Volume> {
        if !skip::is_root() {
            return None;
        }
        if let Some(what) = kind.missing() {
            skip::missing(&what);
            return None;
        }
        let volume = Volume { store: Store::start(kind), place: Place::new() };
        let (url, bucket) = (volume.place.url(), volume.store.bucket());
        let options = ["--storage", kind.name(), "--bucket", &bucket, "--compress", "lz4"];
        volume.limen(&[&["format", &url, "vol"], &options[..]].concat()).ok();
        Some(volume)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.envs(self.store.login());
        command
    }

    fn limen(&self, args: &[&str]) -> Said {
        self.command(args).output().unwrap().into()
    }

    fn mount_command(&self) -> Command {
        let (log, url, mnt) = (self.place.text("log"), self.place.url(), self.place.mnt());
        // Without a cache directory, a new mount reads file data only from the store.
        self.command(&["mount", "-d", "--log", &log, &url, &mnt])
    }

    fn mount(&self) {
        Said::from(self.mount_command().output().unwrap()).ok();
    }

    fn umount(&self) {
        until_unused(|| self.limen(&["umount", &self.place.mnt()])).ok();
    }

    fn gc(&self, more: &[&str]) -> Value {
        let url = self.place.url();
        serde_json::from_str(&self.limen(&[&["gc", "--json"], more, &[&url]].concat()).ok()).unwrap()
    }
}

/// Bytes that do not compress well, different for each seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn data_is_kept_and_removed(kind: StoreKind) {
    let Some(mut volume) = Volume::new(kind) else { return };
    let at = |name: &str| volume.place.path(&format!("mnt/{name}"));
    volume.mount();
    // Inline, one block, several blocks, and many objects.
    let sizes = [100, 300_000, 9 << 20];
    for (seed, len) in sizes.into_iter().enumerate() {
        fs::write(at(&format!("f{len}")), bytes(seed as u64, len)).unwrap();
    }
    fs::create_dir(at("many")).unwrap();
    for number in 0..40 {
        fs::write(at(&format!("many/{number}")), bytes(number, 70_000)).unwrap();
    }
    // A part is replaced, and a hole is left.
    let file = OpenOptions::new().write(true).open(at("f9437184")).unwrap();
    file.write_all_at(&bytes(7, 5000), (4 << 20) - 2500).unwrap();
    file.write_all_at(b"end", 20 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    volume.umount();

    volume.mount();
    assert_eq!(fs::read(at("f100")).unwrap(), bytes(0, 100));
    assert_eq!(fs::read(at("f300000")).unwrap(), bytes(1, 300_000));
    let mut whole = bytes(2, 9 << 20);
    whole[(4 << 20) - 2500..][..5000].copy_from_slice(&bytes(7, 5000));
    whole.resize(20 << 20, 0);
    whole.extend(b"end");
    assert!(fs::read(at("f9437184")).unwrap() == whole);
    // Random access fetches a part of an object.
    let mut part = [0; 100];
    File::open(at("many/3")).unwrap().read_exact_at(&mut part, 50_000).unwrap();
    assert_eq!(part, bytes(3, 70_000)[50_000..50_100]);
    for number in 0..40 {
        assert!(fs::read(at(&format!("many/{number}"))).unwrap() == bytes(number, 70_000), "{number}");
    }
    assert!(volume.store.objects().is_none_or(|objects| objects.len() > 40));

    // While the server is down, nothing that was stored is lost.
    volume.umount();
    volume.mount();
    volume.store.kill();
    let error = fs::read(volume.place.path("mnt/many/1")).unwrap_err();
    assert!(error.raw_os_error().is_some(), "{error}");
    volume.store.start_again();
    let at = |name: &str| volume.place.path(&format!("mnt/{name}"));
    assert!(fs::read(at("many/1")).unwrap() == bytes(1, 70_000));
    fs::write(at("after"), bytes(8, 200_000)).unwrap();

    for number in 0..39 {
        fs::remove_file(at(&format!("many/{number}"))).unwrap();
    }
    volume.umount();
    volume.limen(&["fsck", "--data", &volume.place.url()]).ok();
    volume.mount();
    assert!(fs::read(at("after")).unwrap() == bytes(8, 200_000));
    volume.umount();
    volume.gc(&["--delete", "--grace", "0"]);
    let left = volume.gc(&["--grace", "0"]);
    assert_eq!(left["unreferenced"]["objects"].as_u64(), Some(0), "{left}");
    volume.limen(&["fsck", "--data", &volume.place.url()]).ok();
    volume.limen(&["destroy", "--yes", &volume.place.url()]).ok();
    assert!(volume.store.objects().is_none_or(|objects| objects.is_empty()), "{:?}", volume.store.objects());
}

/// A mount without the login, or with a wrong one, fails with advice and without a secret.
fn wrong_login_is_reported(kind: StoreKind, wrong: &[(&str, &str)], parts: &[&str]) {
    let Some(volume) = Volume::new(kind) else { return };
    let mut mount = volume.mount_command();
    mount.envs(wrong.iter().copied());
    let said = Said::from(mount.output().unwrap());
    said.failed(1, &["the object store of volume 'vol'"]);
    said.failed(1, parts);
    assert!(!volume.place.is_mounted());
    assert!(!said.err.contains("hunter2"), "{said:?}");
    volume.mount();
    fs::write(volume.place.path("mnt/f"), bytes(1, 100_000)).unwrap();
    volume.umount();
}

/// Format and mount fail with the address while the server is down.
fn missing_server_is_reported(kind: StoreKind) {
    let Some(mut volume) = Volume::new(kind) else { return };
    volume.store.kill();
    let said = Said::from(volume.mount_command().output().unwrap());
    said.failed(1, &["the object store of volume 'vol'", &volume.store.bucket()]);
    let other = Place::new();
    let (url, bucket) = (other.url(), volume.store.bucket());
    let said = volume.limen(&["format", &url, "other", "--storage", kind.name(), "--bucket", &bucket]);
    said.failed(1, &[&bucket]);
    assert!(!other.path("vol.db").exists(), "a failed format leaves no volume");
}

macro_rules! on {
    ($kind:ident, $value:expr, $wrong:expr, $parts:expr) => {
        mod $kind {
            use super::*;

            #[test]
            fn data_is_kept_and_removed() {
                super::data_is_kept_and_removed($value);
            }

            #[test]
            fn wrong_login_is_reported() {
                super::wrong_login_is_reported($value, $wrong, $parts);
            }

            #[test]
            fn missing_server_is_reported() {
                super::missing_server_is_reported($value);
            }
        }
    };
}

on!(webdav, StoreKind::Webdav, &[("WEBDAV_PASSWORD", "hunter2")], &["login"]);
// The user's own configuration has no key for this server.
on!(sftp, StoreKind::Sftp, &[("PATH", "/usr/bin:/bin")], &["login"]);
on!(azblob, StoreKind::Azblob, &[("AZURE_STORAGE_KEY", "aHVudGVyMg==")], &["login"]);
// The emulator checks no credentials; this address is one at which no server listens.
on!(gcs, StoreKind::Gcs, &[("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")], &["login"]);
