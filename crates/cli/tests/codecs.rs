//! Compressed and encrypted volumes on a real mount, and the disk cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// The text that is searched for in the objects.
const SECRET: &str = "the quick brown fox jumps over the lazy dog; ";

#[test]
fn encrypted_volume_is_readable_only_with_its_key() {
    if !skip::is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let url = format!("sqlite://{}", at("v.db"));
    fs::write(at("key"), "00112233445566778899aabbccddeeff".repeat(2)).unwrap();
    fs::write(at("other"), "ffeeddccbbaa99887766554433221100".repeat(2)).unwrap();
    fs::create_dir(at("m")).unwrap();
    let (key, mountpoint) = (at("key"), at("m"));
    let format = ["format", &url, "v", "--compress", "lz4", "--encrypt", "aes-256-gcm"];
    refused(limen(&format), "needs its key");
    refused(limen(&[&format[..], &["--key-file", &key, "--inline", "10"]].concat()), "not encrypted");
    done(limen(&[&format[..], &["--key-file", &key]].concat()));
    refused(limen(&["mount", "-d", &url, &mountpoint]), "needs its key");
    refused(limen(&["mount", "-d", "--key-file", &at("other"), &url, &mountpoint]), "wrong key");

    let mount = ["mount", "-d", "--log", &at("log"), "--key-file", &key, &url, &mountpoint];
    done(limen(&mount));
    let _unmount = Unmount(&mountpoint);
    fs::write(dir.path().join("m/small"), SECRET).unwrap();
    fs::write(dir.path().join("m/large"), SECRET.repeat(200_000)).unwrap();
    done(limen(&["umount", &mountpoint]));
    assert!(!holds_secret(dir.path()), "neither objects nor metadata contain the plaintext");
    let stored: u64 = sizes(&dir.path().join("v.data")).iter().sum();
    assert!(stored < 2_000_000, "9 MB of repeated text is compressed: {stored} bytes are stored");

    done(limen(&mount));
    assert_eq!(fs::read_to_string(dir.path().join("m/small")).unwrap(), SECRET);
    assert_eq!(fs::read_to_string(dir.path().join("m/large")).unwrap(), SECRET.repeat(200_000));
    done(limen(&["umount", &mountpoint]));
    done(limen(&["fsck", "--data", "--key-file", &key, &url]));
}

#[test]
fn disk_cache_serves_blocks_at_the_next_mount() {
    if !skip::is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (url, mountpoint) = (format!("sqlite://{}", at("v.db")), at("m"));
    fs::create_dir(at("m")).unwrap();
    done(limen(&["format", &url, "v"]));
    let cache = format!("cache_dir={},cache_dir_free=0", at("cache"));
    let mount = ["mount", "-d", "--log", &at("log"), "-o", &cache, &url, &mountpoint];
    let _unmount = Unmount(&mountpoint);
    let content = SECRET.repeat(100_000);
    done(limen(&mount));
    fs::write(dir.path().join("m/f"), &content).unwrap();
    done(limen(&["umount", &mountpoint]));
    done(limen(&mount));
    assert_eq!(fs::read_to_string(dir.path().join("m/f")).unwrap(), content);
    done(limen(&["umount", &mountpoint]));
    assert!(sizes(&dir.path().join("cache")).iter().sum::<u64>() >= content.len() as u64);
    // The objects are out of reach now, so reads must be served from the disk cache.
    fs::rename(at("v.data/chunks"), at("away")).unwrap();
    done(limen(&mount));
    assert_eq!(fs::read_to_string(dir.path().join("m/f")).unwrap(), content);
    done(limen(&["umount", &mountpoint]));
}

struct Unmount<'a>(&'a str);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        // The volume is still mounted only if the test failed.
        let _ = limen(&["umount", "--lazy", self.0]);
    }
}

fn limen(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_limen"))
        .args(args)
        .env_remove("LIMEN_KEY")
        .env_remove("LIMEN_PASSPHRASE")
        .output()
        .unwrap()
}

fn done(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

fn refused(output: Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(why), "{output:?}");
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn sizes(dir: &Path) -> Vec<u64> {
    files(dir).iter().map(|path| fs::metadata(path).unwrap().len()).collect()
}

fn holds_secret(dir: &Path) -> bool {
    let secret = SECRET.as_bytes();
    files(dir).iter().any(|path| fs::read(path).unwrap().windows(secret.len()).any(|bytes| bytes == secret))
}
