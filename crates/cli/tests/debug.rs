//! `limen debug`: what its archive contains, and that it contains no secret.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, Said, Server, command, limen};

const PASSWORD: &str = "p@ss-7319";
const PASSWORD_IN_URL: &str = "p%40ss-7319";
const KEY: &str = "8f1c6f0a5b2d4e3790a1b2c3d4e5f60718293a4b5c6d7e8f9001122334455667";
const S3_KEY: &str = "AKIATESTTEST7319";
const S3_SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYtest7319";
const PASSPHRASE: &str = "correct-horse-7319";

fn redis(place: &Place) -> Server {
    let server = Command::new("redis-server")
        .args(["--port", "0", "--unixsocket", &place.text("redis.sock"), "--save", "", "--appendonly", "yes"])
        .args(["--requirepass", PASSWORD, "--dir", &place.text("")])
        .stdout(Stdio::null())
        .spawn();
    Server(server.unwrap())
}

/// The parts of an archive, with their texts.
fn parts(place: &Place, archive: &str) -> BTreeMap<String, String> {
    let top = place.path("archive");
    fs::create_dir(&top).unwrap();
    assert!(Command::new("tar").args(["-xzf", archive, "-C"]).arg(&top).status().unwrap().success());
    let mut found = BTreeMap::new();
    let mut waiting = vec![top.clone()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
                found.insert(name, String::from_utf8(fs::read(&path).unwrap()).unwrap());
            }
        }
    }
    fs::remove_dir_all(top).unwrap();
    found
}

/// Runs `limen` with the S3 credentials and the passphrase in its environment.
fn with_secrets(args: &[&str]) -> Said {
    let mut command = command(args);
    command.env("AWS_ACCESS_KEY_ID", S3_KEY).env("AWS_SECRET_ACCESS_KEY", S3_SECRET);
    command.env("MY_PASSPHRASE", PASSPHRASE).output().unwrap().into()
}

#[test]
fn no_secret_is_in_the_archive() {
    if !skip::is_root() {
        return;
    }
    if Command::new("redis-server").arg("--version").output().is_err() {
        return skip::missing("redis-server");
    }
    let place = Place::new();
    let server = redis(&place);
    let (key, bucket, mnt, log) = (place.text("key"), place.text("data"), place.mnt(), place.text("log"));
    fs::write(&key, format!("{KEY}\n")).unwrap();
    let url = format!("redis+unix://:{PASSWORD_IN_URL}@{}", place.text("redis.sock"));
    let format = ["format", &url, "vol", "--bucket", &bucket, "--encrypt", "aes-256-gcm", "--key-file", &key];
    let until = Instant::now() + Duration::from_secs(30);
    while limen(&format).code != Some(0) {
        assert!(Instant::now() < until, "no volume on Redis: {:?}", limen(&format));
        thread::sleep(Duration::from_millis(50));
    }
    with_secrets(&["mount", "-d", "--log", &log, "--key-file", &key, &url, &mnt]).ok();
    // Write all secrets into the log, as if an error message contained them.
    let mut file = OpenOptions::new().append(true).open(&log).unwrap();
    writeln!(
        file,
        "marker {url} '{PASSWORD}' key={KEY} {S3_KEY}:{S3_SECRET} {PASSPHRASE:?} {PASSWORD_IN_URL}?"
    )
    .unwrap();
    fs::write(place.path("mnt/name-of-a-file"), "content-of-a-file").unwrap();
    let archive = place.text("a.tar.gz");
    // This command does not get the mount's secrets, except the password in the URL.
    let said = limen(&["debug", &url, "-o", &archive]);
    let text = said.ok();
    assert!(text.contains(&archive) && text.contains("names of files"), "{text}");
    let found = parts(&place, &archive);
    for name in [
        "versions.txt",
        "system.txt",
        "kernel.txt",
        "mounts.txt",
        "volume-1/status.txt",
        "volume-1/status.json",
        "volume-1/settings.json",
        "volume-1/space.txt",
        "mount-1/command.txt",
        "mount-1/limits.txt",
        "mount-1/descriptors.txt",
        "mount-1/threads.txt",
        "mount-1/statistics.json",
        "mount-1/metrics.txt",
        "mount-1/stats.json",
        "mount-1/space.txt",
        "mount-1/log.txt",
    ] {
        assert!(found.get(name).is_some_and(|text| !text.is_empty()), "{name}: {:?}", found["index.txt"]);
        assert!(found["index.txt"].contains(&format!("{name}: ")));
    }
    assert!(found["mount-1/threads.txt"].contains("limen-"), "{}", found["mount-1/threads.txt"]);
    assert!(found["mount-1/command.txt"].contains(&format!("--key-file\n{key}\n")));
    assert!(found["volume-1/status.json"].contains("\"sessions\""));
    assert!(found["mount-1/log.txt"].contains("marker redis+unix://"), "{}", found["mount-1/log.txt"]);
    for (name, text) in &found {
        for secret in [PASSWORD, PASSWORD_IN_URL, KEY, S3_KEY, S3_SECRET, PASSPHRASE, "content-of-a-file"] {
            assert!(!text.contains(secret), "{secret} is in {name}: {text}");
        }
    }
    // Name the volume by its mount point, without the password, while its database is down: the command
    // succeeds, but parts are missing.
    drop(server);
    let archive = place.text("b.tar.gz");
    limen(&["debug", &mnt, "--no-logs", "-o", &archive]).ok();
    let found = parts(&place, &archive);
    let index = &found["index.txt"];
    assert!(index.contains("volume-1/status.txt: missing: "), "{index}");
    assert!(index.contains("mount-1/space.txt: missing: no answer within 5 s"), "{index}");
    assert!(found.contains_key("mount-1/metrics.txt") && !found.contains_key("mount-1/log.txt"), "{index}");
    assert!(
        found.values().all(|text| !text.contains(PASSWORD) && !text.contains("name-of-a-file")),
        "{index}"
    );
    let server = redis(&place);
    place.umount(&["--force"]);
    drop(server);
}

#[test]
fn an_archive_is_private_and_replaces_no_file() {
    let place = Place::formatted();
    let archive = place.text("a.tar.gz");
    limen(&["debug", &place.url(), "-o", &archive]).ok();
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&archive).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    limen(&["debug", &place.url(), "-o", &archive]).failed(1, &["cannot create the archive", &archive, "-o"]);
    limen(&["debug", &place.text("none")]).failed(1, &["none"]);
    let left = fs::read_dir(".")
        .unwrap()
        .flatten()
        .filter(|entry| Path::new(&entry.file_name()).to_string_lossy().starts_with("limen-debug-"));
    assert_eq!(left.count(), 0);
}
