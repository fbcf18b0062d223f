//! `limen compact`, `limen warmup --check` and `--evict`, `limen objbench`, `--subdir`, and limits of the
//! traffic to the store.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Place, Said, command, limen};
use serde_json::Value;

fn json(said: Said) -> Value {
    serde_json::from_str(&said.ok()).unwrap()
}

/// The numbers in these fields.
fn counts<const N: usize>(value: &Value, fields: [&str; N]) -> [u64; N] {
    fields.map(|field| value[field].as_u64().unwrap_or_else(|| panic!("{field}: {value}")))
}

/// Writes a file in parts that are stored one by one: each adds a row to its chunk.
fn write_in_parts(path: &Path, parts: u64) -> Vec<u8> {
    let file = File::create(path).unwrap();
    let mut content = vec![0; 20_000 + 5000 * (parts as usize - 1)];
    for part in 0..parts {
        let (at, bytes) = (part * 5000, vec![part as u8 + 1; 20_000]);
        file.write_all_at(&bytes, at).unwrap();
        file.sync_all().unwrap();
        content[at as usize..][..20_000].copy_from_slice(&bytes);
    }
    content
}

fn rows(path: &Path) -> usize {
    let value = json(limen(&["info", "--json", path.to_str().unwrap()]));
    let chunks = value[0]["chunks"].as_array().unwrap();
    chunks.iter().map(|chunk| chunk["slices"].as_array().unwrap().len()).sum()
}

#[test]
fn compact_stores_files_again_with_one_row() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let dir = place.path("mnt/dir");
    fs::create_dir_all(dir.join("sub")).unwrap();
    let content = write_in_parts(&dir.join("sub/parts"), 9);
    fs::write(dir.join("whole"), vec![1; 50_000]).unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    symlink("sub/parts", dir.join("link")).unwrap();
    assert_eq!(rows(&dir.join("sub/parts")), 9);
    let value = json(limen(&["compact", "--json", &place.text("mnt/dir")]));
    let fields = ["files", "compacted", "rows_before", "rows_after", "bytes", "failed"];
    assert_eq!(counts(&value, fields), [2, 1, 10, 2, content.len() as u64, 0]);
    assert_eq!(rows(&dir.join("sub/parts")), 1);
    let value = json(limen(&["compact", "--json", &place.text("mnt/dir")]));
    assert_eq!(counts(&value, fields), [2, 0, 2, 2, 0, 0]);
    limen(&["warmup", "--evict", &place.text("mnt/dir")]).ok();
    assert!(fs::read(dir.join("sub/parts")).unwrap() == content);
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &place.url()]).ok();
    place.mount(&["-o", "ro"]).ok();
    limen(&["compact", &place.text("mnt/dir")]).failed(1, &["read-only"]);
    assert!(fs::read(dir.join("sub/parts")).unwrap() == content);
    limen(&["compact", &place.text("vol.data")]).failed(1, &["not on a limenfs volume"]);
    limen(&["compact", &place.text("mnt/absent")]).failed(1, &["absent"]);
}

/// Compaction while a program writes: no byte is lost.
#[test]
fn compact_is_safe_beside_a_writer() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let path = place.path("mnt/f");
    let content = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_in_parts(&path, 120));
        while !writer.is_finished() {
            if path.exists() {
                limen(&["compact", path.to_str().unwrap()]).ok();
            }
        }
        writer.join().unwrap()
    });
    limen(&["warmup", "--evict", path.to_str().unwrap()]).ok();
    assert!(fs::read(&path).unwrap() == content);
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &place.url()]).ok();
}

#[test]
fn warmup_shows_and_removes_what_is_cached() {
    let place = Place::formatted();
    let cache = format!("cache_dir={}", place.text("cache"));
    place.mount(&["-o", &cache]).ok();
    let dir = place.path("mnt/dir");
    fs::create_dir(&dir).unwrap();
    for n in 0..3 {
        fs::write(dir.join(n.to_string()), vec![n; 100_000]).unwrap();
    }
    fs::write(dir.join("inline"), "in the metadata").unwrap();
    let list = place.path("list");
    fs::write(&list, format!("{0}/0\n{0}/1\n", dir.display())).unwrap();
    let from = ["--from", list.to_str().unwrap()];
    let ask = |args: &[&str]| {
        let value = json(limen(&[&["warmup", "--json"], args].concat()));
        counts(&value, ["files", "stored", "cached", "failed"])
    };
    let all = dir.to_str().unwrap();
    assert_eq!(ask(&["--check", all]), [4, 300_000, 300_000, 0]);
    assert_eq!(ask(&[&["--evict"], &from[..]].concat()), [2, 200_000, 200_000, 0]);
    assert_eq!(ask(&["--check", all]), [4, 300_000, 100_000, 0]);
    let text = limen(&["warmup", "--check", all]).ok();
    assert!(text.contains("33 %"), "{text}");
    // The kernel may drop the pages of evicted files only after the command has ended. Until then, warmup
    // reads them from the page cache and fetches nothing.
    let deadline = Instant::now() + Duration::from_secs(60);
    while ask(&["--check", all])[2] < 300_000 {
        assert!(Instant::now() < deadline);
        json(limen(&[&["warmup", "--json"], &from[..]].concat()));
    }
    let from_input =
        command(&["warmup", "--json", "-f", "-"]).stdin(Stdio::from(File::open(&list).unwrap())).output();
    let value: Value = serde_json::from_slice(&from_input.unwrap().stdout).unwrap();
    assert_eq!(counts(&value, ["files", "bytes"]), [2, 200_000]);
    // A mount serves fewer connections than there are threads.
    fs::create_dir(place.path("mnt/many")).unwrap();
    (0..400).for_each(|n| fs::write(place.path(&format!("mnt/many/{n}")), "x").unwrap());
    assert_eq!(ask(&["--check", "--threads", "1000", &place.text("mnt/many")]), [400, 0, 0, 0]);
    limen(&["warmup", "--check", &place.text("vol.data")]).failed(1, &["not on a limenfs volume"]);
    limen(&["warmup", "--check", "--evict", all]).failed(2, &["--evict"]);
    limen(&["warmup"]).failed(2, &["PATH"]);
}

#[test]
fn objbench_measures_a_store_and_leaves_nothing() {
    let place = Place::formatted();
    let few = ["--blocks", "3", "--block-size", "300K", "--small", "4", "--json"];
    let bucket = place.text("vol.data");
    let before = names(&place.path("vol.data"));
    let value = json(limen(&[&["objbench", "--storage", "file", &bucket], &few[..]].concat()));
    let phases = value["phases"].as_array().unwrap();
    let found: Vec<_> =
        phases.iter().map(|phase| (phase["name"].as_str().unwrap(), &phase["count"])).collect();
    assert_eq!(
        found.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["put", "get", "get part", "put", "get", "list", "delete", "delete"]
    );
    assert!(phases.iter().all(|phase| phase["requests_per_s"].as_f64().unwrap() > 0.0), "{value}");
    assert_eq!(names(&place.path("vol.data")), before);
    // The store of a volume, by its URL and by its mount.
    json(limen(&[&["objbench", &place.url()], &few[..]].concat()));
    place.mount(&[]).ok();
    json(limen(&[&["objbench", &place.mnt()], &few[..]].concat()));
    let text = limen(&[&["objbench", &place.mnt()], &few[..few.len() - 1]].concat()).ok();
    assert!(text.contains("MiB/s"), "{text}");
    limen(&["objbench", "/nothing/here"]).failed(2, &["--storage"]);
    limen(&["objbench", "--storage", "s3", "s3://"]).failed(1, &["s3://"]);
    limen(&["objbench", &place.mnt(), "--block-size", "0"]).failed(2, &["--block-size"]);
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A second mount point, which is unmounted even if the test fails.
struct Other(PathBuf);

impl Drop for Other {
    fn drop(&mut self) {
        if std::thread::panicking() {
            limen(&["umount", "--force", self.0.to_str().unwrap()]);
        }
    }
}

#[test]
fn a_directory_of_a_volume_is_mounted_alone() {
    let place = Place::formatted();
    place.mount(&["-o", "shared"]).ok();
    let dir = place.path("mnt/a/b");
    fs::create_dir_all(dir.join("below")).unwrap();
    fs::write(dir.join("f"), "content").unwrap();
    fs::write(place.path("mnt/a/outside"), "").unwrap();
    let guard = Other(place.path("other"));
    let at = guard.0.as_path();
    fs::create_dir(at).unwrap();
    let other = at.to_str().unwrap();
    let mount =
        |subdir: &[&str]| limen(&[&["mount", "-d", "-o", "shared"], subdir, &[&place.url(), other]].concat());
    mount(&["--subdir", "/a/absent"]).failed(1, &["/a/absent", "limen ls"]);
    mount(&["--subdir", "a/b/f"]).failed(1, &["a/b/f", "Not a directory"]);
    mount(&["--subdir", ".."]).failed(2, &["--subdir"]);
    for subdir in [&["--subdir", "a/b"][..], &["-o", "subdir=/a/b/"]] {
        mount(subdir).ok();
        assert_eq!(names(at), ["below", "f"]);
        assert_eq!(fs::metadata(at).unwrap().ino(), fs::metadata(&dir).unwrap().ino());
        assert_eq!(fs::read(at.join("f")).unwrap(), b"content");
        // The directory above the mount is the parent of the mount point.
        assert_eq!(
            fs::canonicalize(at.join("below/../..")).unwrap(),
            fs::canonicalize(place.path(".")).unwrap()
        );
        fs::write(at.join("new"), "n").unwrap();
        fs::rename(at.join("new"), at.join("below/new")).unwrap();
        fs::create_dir(at.join("made")).unwrap();
        fs::remove_dir(at.join("made")).unwrap();
        // Changes by the other mount are seen, even in the root of this one.
        fs::write(dir.join("late"), "l").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !names(at).contains(&"late".to_owned()) {
            assert!(Instant::now() < deadline, "{:?}", names(at));
            std::thread::sleep(Duration::from_millis(10));
        }
        let summary = json(limen(&["summary", "--json", other]));
        assert!(summary.to_string().contains("below"), "{summary}");
        limen(&["umount", other]).ok();
        assert_eq!(fs::read(dir.join("below/new")).unwrap(), b"n");
        fs::remove_file(dir.join("late")).unwrap();
    }
}

/// The crate `chunk` tests that requests wait as the limits require, without a clock.
#[test]
fn a_mount_with_limits_stores_and_reads() {
    let place = Place::formatted();
    place.mount(&["-o", "upload_limit=100M,download_limit=200M,cache=4M"]).ok();
    let content: Vec<u8> = (0..9_000_000_u32).map(|n| (n / 7) as u8).collect();
    let path = place.path("mnt/f");
    fs::write(&path, &content).unwrap();
    limen(&["warmup", "--evict", path.to_str().unwrap()]).ok();
    assert!(fs::read(&path).unwrap() == content);
}
