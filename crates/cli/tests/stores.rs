//! Volumes on kinds of object stores other than directories and S3: WebDAV, SFTP, Azure Blob Storage, Google
//! Cloud Storage and HDFS. Each test starts a server or an emulator (crate `servers`). One test has two
//! mounts whose object store stops answering.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, Said, command, until_unused};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use servers::{Cut, Kind, Proxy, Server, Store, StoreKind};

/// A volume whose data is in this store.
struct Volume {
    store: Store,
    place: Place,
}

impl Volume {
    /// `None` if this machine cannot run the server.
    fn new(kind: StoreKind) -> Option<Volume> {
        Volume::at(kind, str::to_owned)
    }

    /// As [`Volume::new`]. `place` derives the volume's bucket from the store's.
    fn at(kind: StoreKind, place: impl Fn(&str) -> String) -> Option<Volume> {
        if !skip::is_root() {
            return None;
        }
        if let Some(what) = kind.missing() {
            skip::missing(&what);
            return None;
        }
        let volume = Volume { store: Store::start(kind), place: Place::new() };
        let (url, bucket) = (volume.place.url(), place(&volume.store.bucket()));
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

fn data_is_kept_and_removed(volume: Option<Volume>) {
    let Some(mut volume) = volume else { return };
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

/// A volume on PostgreSQL that is mounted twice, with its data in a store behind a proxy.
struct Pair {
    place: Place,
    proxy: Proxy,
    store: Store,
    server: Server,
}

/// Times of a session: heartbeat, validity and removal, in milliseconds. They are so short that the session
/// of a mount that sent no heartbeats would be removed while the store is silent.
const SHORT_MS: &str = "200,2000,4000";

/// How long the store is silent: longer than a session without heartbeats lives.
const SILENT: Duration = Duration::from_secs(8);

/// How long a call that does not need the store may take.
const PROMPT: Duration = Duration::from_secs(5);

impl Pair {
    /// `None` if this machine cannot run the servers.
    fn new() -> Option<Pair> {
        if !skip::is_root() {
            return None;
        }
        if let Some(what) = StoreKind::Webdav.missing() {
            skip::missing(&what);
            return None;
        }
        let (server, store) = (Server::start(Kind::Postgres, false), Store::start(StoreKind::Webdav));
        let pair = Pair { place: Place::new(), proxy: Proxy::to_store(&store), store, server };
        fs::create_dir(pair.place.path("mnt2")).unwrap();
        let bucket = pair.store.bucket_at(pair.proxy.port);
        let options = ["--storage", "webdav", "--bucket", &bucket];
        pair.limen(&[&["format", &pair.server.url_with_long_timeouts(), "vol"], &options[..]].concat()).ok();
        for name in ["mnt", "mnt2"] {
            let (log, mnt) = (pair.place.text(&format!("{name}.log")), pair.place.text(name));
            pair.limen(&["mount", "-d", "--log", &log, &pair.server.url(), &mnt]).ok();
        }
        Some(pair)
    }

    fn limen(&self, args: &[&str]) -> Said {
        let mut command = command(args);
        command.envs(self.store.login()).env("LIMEN_TEST_SESSION_MS", SHORT_MS);
        command.output().unwrap().into()
    }

    /// The path of a file on each mount.
    fn both(&self, name: &str) -> [PathBuf; 2] {
        ["mnt", "mnt2"].map(|mnt| self.place.path(mnt).join(name))
    }

    /// The session of each mount, and its last heartbeat.
    fn heartbeats(&self) -> Vec<(u64, String)> {
        let said = self.limen(&["status", "--json", &self.server.url_with_long_timeouts()]).ok();
        let status: Value = serde_json::from_str(&said).unwrap();
        let of = |session: &Value| {
            (session["id"].as_u64().unwrap(), session["heartbeat"].as_str().unwrap().to_owned())
        };
        status["sessions"].as_array().unwrap().iter().map(of).collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = |name: &str| fs::read_to_string(self.place.path(name)).unwrap_or_default();
            eprintln!("first mount: {}\nsecond mount: {}", log("mnt.log"), log("mnt2.log"));
        }
        for mnt in ["mnt", "mnt2"].map(|name| self.place.text(name)) {
            self.limen(&["umount", "--force", &mnt]);
            let _ = Command::new("umount").args(["-l", &mnt]).stderr(Stdio::null()).status();
        }
    }
}

/// Repeats `each` until it succeeds, because changes of the other mount are seen a little later. Each call
/// must return soon, because it needs no object store.
#[track_caller]
fn promptly<T>(what: &str, mut each: impl FnMut() -> io::Result<T>) -> T {
    let began = Instant::now();
    loop {
        let done = each();
        assert!(began.elapsed() < PROMPT, "{what} took {:?}: {:?}", began.elapsed(), done.err());
        if let Ok(done) = done {
            return done;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes changes on each mount that need no object store, and checks that the other mount sees them.
fn change_metadata(pair: &Pair, round: u32) {
    for (own, other) in [(0, 1), (1, 0)] {
        let at = |name: &str, mount: usize| pair.both(&format!("d{round}-{own}/{name}"))[mount].clone();
        promptly("mkdir", || fs::create_dir(at("", own)));
        promptly("a small file", || fs::write(at("small", own), "inline"));
        assert_eq!(promptly("a read", || fs::read(at("small", other))), b"inline");
        promptly("rename", || fs::rename(at("small", other), at("renamed", other)));
        promptly("stat", || fs::metadata(at("renamed", own)));
        assert_eq!(promptly("readdir", || fs::read_dir(at("", own))).count(), 1);
        promptly("unlink", || fs::remove_file(at("renamed", own)));
    }
    let [first, second] = pair.both("lock").map(|path| promptly("open", || File::open(&path)));
    let lock = |file: &File, how| flock(file, how).map_err(io::Error::from);
    for (holder, other) in [(&first, &second), (&second, &first)] {
        promptly("lock", || lock(holder, FlockOperation::NonBlockingLockExclusive));
        lock(other, FlockOperation::NonBlockingLockExclusive).unwrap_err();
        promptly("unlock", || lock(holder, FlockOperation::Unlock));
    }
}

/// When dropped, even after a panic, lets the proxy relay again, so that calls that wait for the store end.
struct Silent<'a>(&'a Proxy);

impl<'a> Silent<'a> {
    fn begin(proxy: &'a Proxy) -> Self {
        proxy.cut(Cut::Everything);
        Silent(proxy)
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        self.0.cut(Cut::Nothing);
    }
}

/// The files that are written while the store is silent, with the mounts that write them.
const WRITTEN: [(usize, &str); 2] = [(0, "first"), (1, "second")];

#[test]
fn mounts_with_a_silent_store_keep_their_metadata_locks_and_sessions() {
    let Some(pair) = Pair::new() else { return };
    let [first, second] = pair.both("before");
    fs::write(&first, bytes(1, 300_000)).unwrap();
    assert!(fs::read(&second).unwrap() == bytes(1, 300_000));
    File::create(&pair.both("lock")[0]).unwrap();
    let before = pair.heartbeats();
    assert_eq!(before.len(), 2);

    fs::write(pair.place.path("written"), bytes(2, 9 << 20)).unwrap();
    let began = Instant::now();
    let silent = Silent::begin(&pair.proxy);
    // Each mount has a file whose data cannot be stored. Other processes write these files: if this process
    // had them open, each command that it starts would inherit and close them, and wait for the close.
    let mut writers = WRITTEN.map(|(mount, name)| {
        let (source, file) = (pair.place.path("written"), &pair.both(name)[mount]);
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", source.display())).arg(format!("of={}", file.display()));
        dd.args(["bs=1M", "conv=fsync", "status=none"]).spawn().unwrap()
    });
    let mut rounds = 0;
    while began.elapsed() < SILENT {
        change_metadata(&pair, rounds);
        rounds += 1;
    }
    for mnt in pair.both("") {
        let said = pair.limen(&["status", mnt.to_str().unwrap()]).ok();
        assert!(said.contains("the object store of volume 'vol' does not answer within 5 s"), "{said}");
    }
    let now = pair.heartbeats();
    for (before, now) in before.iter().zip(&now) {
        assert!(before.0 == now.0 && before.1 < now.1, "{before:?} {now:?}");
    }
    assert!(writers.iter_mut().all(|writer| writer.try_wait().unwrap().is_none()), "nothing can be stored");
    drop(silent);
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    eprintln!("{rounds} rounds, and the data was stored {:?} after the store had stopped", began.elapsed());

    for path in WRITTEN.iter().flat_map(|(_, name)| pair.both(name)) {
        assert!(fs::read(&path).unwrap() == bytes(2, 9 << 20), "{}", path.display());
    }
    for (own, other, seed) in [(0, 1, 3), (1, 0, 4)] {
        let paths = pair.both(&format!("after{own}"));
        fs::write(&paths[own], bytes(seed, 200_000)).unwrap();
        assert!(fs::read(&paths[other]).unwrap() == bytes(seed, 200_000));
    }
    for mnt in ["mnt", "mnt2"].map(|name| pair.place.text(name)) {
        until_unused(|| pair.limen(&["umount", &mnt])).ok();
    }
    pair.limen(&["fsck", "--data", &pair.server.url_with_long_timeouts()]).ok();
}

#[test]
fn data_is_kept_and_removed_in_several_buckets() {
    data_is_kept_and_removed(Volume::at(StoreKind::Webdav, |bucket| format!("shards:{bucket}{{0..2}}")));
}

macro_rules! on {
    ($kind:ident, $value:expr, $wrong:expr, $parts:expr) => {
        mod $kind {
            use super::*;

            #[test]
            fn data_is_kept_and_removed() {
                super::data_is_kept_and_removed(Volume::new($value));
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
// This PATH does not find the test's ssh, and the user's own configuration has no key for the server.
on!(sftp, StoreKind::Sftp, &[("PATH", "/usr/bin:/bin")], &["login"]);
on!(azblob, StoreKind::Azblob, &[("AZURE_STORAGE_KEY", "aHVudGVyMg==")], &["login"]);
// The emulator checks no credentials; this address is one at which no server listens.
on!(gcs, StoreKind::Gcs, &[("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")], &["login"]);
on!(hdfs, StoreKind::Hdfs, &[("HADOOP_USER_NAME", "hunter3")], &["login", "Permission denied: user=hunter3"]);
