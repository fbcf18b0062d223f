//! `limen bench`, `rmr`, `warmup` and `config`: what they count and what they leave behind, not how long they
//! take.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Place, Said, command, limen};
use serde_json::Value;

const OPERATIONS: [&str; 12] = [
    "mkdir", "create", "open", "stat", "ls -lR", "ls", "chmod", "setxattr", "hardlink", "symlink", "rename",
    "delete",
];

fn json(said: Said) -> Value {
    serde_json::from_str(&said.ok()).unwrap()
}

fn operation<'a>(value: &'a Value, name: &str) -> &'a Value {
    let all = value["operations"].as_array().unwrap();
    all.iter().find(|operation| operation["name"] == name).unwrap_or_else(|| panic!("no {name}: {value}"))
}

fn names(path: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Asserts that a figure per operation is at most `most`.
#[track_caller]
fn at_most(operation: &Value, figure: &Value, most: f64) {
    let figure = figure.as_f64().unwrap();
    assert!(figure <= most, "{figure} is more than {most}: {operation:#}");
}

#[test]
fn operations_on_a_mount_cost_the_expected_requests() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let value = json(limen(&["bench", "--json", "--files", "300", "--rounds", "2", &place.mnt()]));
    assert_eq!((&value["threads"], &value["volume"]), (&1.into(), &"vol".into()));
    for name in OPERATIONS {
        let operation = operation(&value, name);
        let each = match name {
            "stat" => 6000,
            "ls" => 60,
            _ => 600,
        };
        assert_eq!(operation["count"], each, "{operation:#}");
        assert!(operation["ops_per_s"]["min"].as_f64().unwrap() > 0.0, "{operation:#}");
        let mount = &operation["mount"];
        let (engine, requests) = (&mount["engine"], &mount["fuse_requests_by_opcode"]);
        // The 0.01 allows for heartbeats, and for numbers that are allocated from the engine in batches.
        match name {
            // An exclusive mount has the entries in its cache once they were listed or looked up.
            "open" | "stat" | "ls" => at_most(operation, &mount["engine_round_trips"], 0.01),
            "ls -lR" => at_most(operation, &mount["engine_round_trips"], 0.05),
            // This mount created the directory, so it knows that the name is new without a read.
            "mkdir" | "create" | "hardlink" | "symlink" | "rename" => {
                at_most(operation, &engine["commits"], 1.05);
                at_most(operation, &engine["reads"], 0.05);
                at_most(operation, &mount["engine_round_trips"], 1.05);
            }
            _ => at_most(operation, &mount["engine_round_trips"], 1.05),
        }
        match name {
            "stat" => at_most(operation, &mount["fuse_requests"], 0.1),
            "ls" => {
                assert!(requests["READDIRPLUS"].is_null() && requests["READDIR"].is_null(), "{operation:#}")
            }
            "create" => assert_eq!(requests["CREATE"], 1.0, "{operation:#}"),
            "delete" => assert_eq!(requests["UNLINK"], 1.0, "{operation:#}"),
            _ => {}
        }
    }
    assert!(names(place.mnt()).is_empty(), "the scratch directory is removed");
}

#[test]
fn bench_runs_selected_operations_with_threads_and_a_floor() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let args = ["bench", "--floor", "--json", "--files", "205", "--threads", "3", "--rounds", "2"];
    let value = json(limen(&[&args[..], &["--ops", "rename,ls", &place.mnt()]].concat()));
    let listed: Vec<_> = value["operations"].as_array().unwrap().iter().map(|o| o["name"].as_str()).collect();
    assert_eq!(listed, [Some("ls"), Some("rename")]);
    let rename = operation(&value, "rename");
    assert_eq!((&rename["count"], &rename["floor"]["count"]), (&410.into(), &410.into()));
    assert!(rename["share_pct"]["median"].as_f64().unwrap() > 0.0, "{rename:#}");
    assert_eq!(rename["floor"]["mount"]["fuse_requests_by_opcode"]["RENAME"], 1.0, "{rename:#}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("limen-floor."), "{mounts}");
    assert!(names(place.mnt()).is_empty());
}

#[test]
fn bench_measures_any_directory() {
    let place = Place::new();
    let value = json(limen(&["bench", "--json", "--files", "50", "--rounds", "1", &place.mnt()]));
    assert_eq!(value["volume"], Value::Null);
    let create = operation(&value, "create");
    assert_eq!((&create["count"], &create["mount"]), (&50.into(), &Value::Null));
    let text = limen(&["bench", "--files", "50", "--rounds", "1", &place.mnt()]).ok();
    assert!(text.contains("ops/s") && text.contains("\nls -lR "), "{text}");
    assert!(names(place.mnt()).is_empty());
    limen(&["bench", &place.text("absent")]).failed(1, &["absent", "directory"]);
    limen(&["bench"]).failed(2, &["PATH"]);
    limen(&["bench", "--ops", "fly", "/"]).failed(2, &["fly", "ls-lR"]);
}

#[test]
fn acls_cost_no_request() {
    for (kind, expected) in [("posix", [0, 3, 454]), ("nfsv4", [0, 3, 453])] {
        acls_of_a_kind_cost_no_request(kind, expected);
    }
}

fn acls_of_a_kind_cost_no_request(kind: &str, expected: [u64; 3]) {
    let place = Place::new();
    place.format(&["--acl", kind]).ok();
    // Without this option, the number of commits depends on how fast the operations follow each other.
    place.mount(&["-o", "sync_metadata"]).ok();
    let args = ["bench", "acl", "--json", "--files", "200", "--rounds", "2", &place.mnt()];
    let value = json(limen(&args));
    let variants = value["variants"].as_array().unwrap();
    let entries: Vec<_> = variants.iter().map(|variant| variant["entries"].as_u64().unwrap()).collect();
    assert_eq!(entries, expected);
    for name in OPERATIONS {
        let [none, minimal, named] = [0, 1, 2].map(|n| operation(&variants[n], name));
        for with in [minimal, named] {
            assert!(with["loss_pct"]["median"].is_number(), "{with:#}");
            let figure = |of: &Value| of["mount"]["engine_round_trips"].as_f64().unwrap();
            at_most(with, &with["mount"]["engine_round_trips"], figure(none) + 0.05);
            let without = &none["mount"]["fuse_requests_by_opcode"];
            for (opcode, count) in with["mount"]["fuse_requests_by_opcode"].as_object().unwrap() {
                // The kernel forgets inodes at any time, one by one or in batches, and sends RELEASE after
                // close(2) has returned.
                if !opcode.ends_with("FORGET") && !opcode.starts_with("RELEASE") {
                    at_most(with, count, without[opcode].as_f64().unwrap_or(0.0) + 0.05);
                }
            }
        }
    }
    assert!(names(place.mnt()).is_empty());
}

#[test]
fn bench_abe_measures_few_and_many_groups() {
    let place = Place::formatted();
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    place.mount(&["--abe"]).ok();
    let measure = |cases: &str| {
        let args = ["bench", "abe", "--json", "--scale", "0.01", "--rounds", "2", "--cases", cases];
        json(limen(&[&args[..], &[&place.mnt()]].concat()))
    };
    let value = measure("1000,21000,500,500-spread");
    let shown: Vec<_> = value["cases"].as_array().unwrap().iter().map(|case| &case["readable"]).collect();
    assert_eq!(shown, [20, 20, 205, 15]);
    for case in value["cases"].as_array().unwrap() {
        assert_eq!((&case["rights"], &case["cold"]), (&"acl".into(), &Value::Null));
        for groups in ["few_groups", "many_groups"] {
            let walk = &case["warm"][groups];
            assert_eq!((&walk["shown"], &walk["refused"]), (&case["readable"], &0.into()), "{case:#}");
            // Housekeeping sends a request now and then.
            assert!(walk["mount"]["engine_round_trips"].as_f64().unwrap() <= 2.0, "{case:#}");
        }
    }
    assert!(names(place.mnt()).is_empty(), "the scratch directory is removed");

    // A mount without --abe also shows entries that then cannot be listed.
    place.umount(&[]).ok();
    place.mount(&[]).ok();
    let walk = &measure("21000")["cases"][0]["warm"]["many_groups"];
    assert_eq!((&walk["shown"], &walk["refused"]), (&220.into(), &200.into()), "{walk:#}");
    limen(&["bench", "abe", "--scale", "2", &place.mnt()]).failed(2, &["at most 1"]);
}

#[test]
fn bench_big_compares_the_mount_with_the_object_directory() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let args = ["bench", "--json", "--big", "9M", "--rounds", "1", "--files", "10", "--ops", "open"];
    let value = json(limen(&[&args[..], &[&place.mnt()]].concat()));
    let big = &value["big"];
    assert_eq!(big["bytes"], 9 << 20);
    for figure in [&big["share_pct"]["write"], &big["share_pct"]["read"], &big["store"]["read"]["mib_per_s"]]
    {
        assert!(figure["median"].as_f64().unwrap() > 0.0, "{big:#}");
    }
    assert!(names(place.mnt()).is_empty());
    assert!(!names(place.path(".")).iter().any(|name| name.starts_with(".limen-bench")));
}

#[test]
fn interrupted_benchmark_leaves_nothing() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let args = ["bench", "--floor", "--files", "100000", "--threads", "2", &place.mnt()];
    let mut child = command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while names(place.mnt()).is_empty() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(names(place.mnt()).is_empty());
    let floor = format!("limen-floor.{}", child.id());
    assert!(!std::env::temp_dir().join(floor).exists());
}

#[test]
fn statistics_socket_is_open_to_its_user_only() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let socket = place.socket();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let query = || {
        let mut text = String::new();
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let before = query();
    fs::create_dir(place.path("mnt/d")).unwrap();
    let after = query();
    let more = |value: &Value| value["requests"]["MKDIR"].as_u64().unwrap_or(0);
    assert_eq!(more(&after), more(&before) + 1);
    assert!(after["engine"]["commits"].as_u64() > before["engine"]["commits"].as_u64());
    assert!(after["cpu_ns"].as_u64() > before["cpu_ns"].as_u64());
    place.umount(&[]).ok();
    assert!(!socket.exists());
}

#[test]
fn rmr_counts_removed_files_and_follows_no_link() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    let outside = place.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    for tree in ["mnt/a", "mnt/b"] {
        for n in 0..30 {
            let dir = place.path(tree).join(format!("{n}/x"));
            fs::create_dir_all(&dir).unwrap();
            (0..70).for_each(|f| fs::write(dir.join(f.to_string()), "x").unwrap());
            symlink(&outside, dir.join("link")).unwrap();
        }
    }
    let value = json(limen(&["rmr", "--json", &place.text("mnt/a"), &place.text("mnt/absent")]));
    assert_eq!((&value["files"], &value["directories"]), (&(30 * 71).into(), &61.into()));
    let said = limen(&["rmr", "--threads", "1", &place.text("mnt/b")]).ok();
    assert_eq!(said, "Removed 2130 files and 61 directories.\n");
    assert!(names(place.mnt()).is_empty() && outside.join("kept").exists());
    // rmr refuses a mount point, and a directory that contains one.
    for path in ["/".to_owned(), place.mnt(), place.text("mnt/.."), place.text(".")] {
        limen(&["rmr", &place.text("outside"), &path]).failed(2, &[""]);
    }
    let holder = place.path(".").canonicalize().unwrap();
    limen(&["rmr", holder.to_str().unwrap()]).failed(2, &["mounted", "unmount it first"]);
    assert!(outside.join("kept").exists(), "all paths are checked before anything is removed");

    if !skip::is_root() {
        return;
    }
    let locked = outside.join("locked");
    fs::create_dir_all(locked.join("full")).unwrap();
    fs::create_dir(outside.join("locked-empty")).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(&place.path(""), 0o755);
    mode(&outside, 0o777);
    mode(&locked, 0o711);
    mode(&outside.join("locked-empty"), 0o711);
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", common::LIMEN, "rmr"];
    let mut rmr = Command::new("setpriv");
    rmr.args(user).args([&locked, &outside.join("locked-empty")]);
    let said = Said::from(rmr.output().unwrap());
    assert_eq!(said.out, "Removed 0 files and 1 directory.\n");
    said.failed(1, &["/outside/locked: Permission denied", "1 file or directory could not be removed"]);
}

#[test]
fn warmup_reads_everything_once() {
    let place = Place::formatted();
    place.mount(&[]).ok();
    for n in 0..10 {
        let dir = place.path(&format!("mnt/{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("small"), vec![1; 1000]).unwrap();
        fs::write(dir.join("large"), vec![2; 100_000]).unwrap();
        symlink("/nowhere", dir.join("link")).unwrap();
    }
    let value = json(limen(&["warmup", "--json", &place.mnt()]));
    let counts = ["directories", "files", "bytes", "failed"].map(|key| value[key].as_u64().unwrap());
    assert_eq!(counts, [11, 30, 1_010_000, 0]);
    let value = json(limen(&["warmup", "--json", "--metadata", &place.text("mnt/1")]));
    assert_eq!((&value["files"], &value["bytes"]), (&3.into(), &0.into()));
    limen(&["warmup", &place.text("mnt/absent")]).failed(1, &["absent"]);
}

#[test]
fn config_changes_mutable_settings_only() {
    let place = Place::formatted();
    let url = place.url();
    let value =
        json(limen(&["config", &url, "--json", "--capacity", "1M", "--inodes", "5", "--inline", "0"]));
    assert_eq!((&value["capacity_bytes"], &value["max_inodes"]), (&(1 << 20).into(), &5.into()));
    assert_eq!(json(limen(&["config", &url, "--json"])), value);
    let status = place.status();
    assert_eq!((&status["inline_bytes"], &status["max_inodes"]), (&0.into(), &5.into()));
    limen(&["config", &url, "--acl=off"]).failed(2, &["cannot be changed", "ACLs", "limen format"]);
    limen(&["config", &url, "--storage=memory"]).failed(2, &["--bucket"]);
    limen(&["config", &url, "--acl=posix"]).ok();

    place.mount(&[]).ok();
    let outcomes = (0..6).map(|n| fs::write(place.path(&format!("mnt/{n}")), "")).filter(Result::is_ok);
    assert_eq!(outcomes.count(), 4, "the root directory counts as an inode");
    // live_tools.rs tests that a running mount applies changed settings.
    let said = limen(&["config", &url, "--inodes", "2"]);
    assert_eq!(place.status()["max_inodes"], 2);
    place.umount(&[]).ok();
    assert!(said.err.contains("5 inodes already"), "{said:?}");
    assert!(limen(&["config", &url, "--inodes", "0"]).ok().contains("unlimited"));
    place.mount(&[]).ok();
    fs::write(place.path("mnt/9"), "").unwrap();
}
