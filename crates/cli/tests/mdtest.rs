//! `limen mdtest`: its operation counts, their cost in round trips, and that it leaves nothing behind.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{LIMEN, Place, limen};
use serde_json::Value;

/// 1 + 9 + 81 directories, 3 files in each.
const TREE: [&str; 6] = ["--depth", "2", "--dirs", "9", "--files", "3"];

fn mdtest(args: &[&str]) -> Value {
    serde_json::from_str(&limen(&[&["mdtest", "--json"], args].concat()).ok()).unwrap()
}

/// Checks the counts against the tree, and the costs that do not depend on time.
fn assert_counts(said: &Value, expected: &[(&str, u64)]) {
    let phases = said["phases"].as_array().unwrap();
    let counts: Vec<(&str, u64)> = phases
        .iter()
        .map(|phase| (phase["name"].as_str().unwrap(), phase["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(counts, expected);
    for phase in phases {
        for figure in ["seconds", "ops_per_s", "p50_us", "p99_us", "max_us", "cpu_us"] {
            assert!(phase[figure].as_f64().unwrap() > 0.0, "{figure} in {phase}");
        }
        let times = ["p50_us", "p99_us", "max_us"].map(|figure| phase[figure].as_f64().unwrap());
        assert!(times.is_sorted(), "{phase}");
        let trips = phase["engine_round_trips"].as_f64().unwrap();
        match phase["name"].as_str().unwrap() {
            "stat" => assert!(trips <= 0.05, "{phase}"),
            "readdirplus" => assert!((1.0..=1.05).contains(&trips), "{phase}"),
            _ => {
                assert!((1.0..=1.05).contains(&trips), "{phase}");
                assert!(phase["round_trips"]["transactions"].as_f64().unwrap() >= 1.0, "{phase}");
            }
        }
    }
}

const ALL: [(&str, u64); 7] = [
    ("mkdir", 90),
    ("create", 273),
    ("stat", 273),
    ("readdirplus", 91),
    ("rename", 273),
    ("unlink", 273),
    ("rmdir", 90),
];

#[test]
fn each_operation_is_one_round_trip_in_memory() {
    for threads in ["1", "5"] {
        let said = mdtest(&[&["mem://", "/bench", "--threads", threads], &TREE[..]].concat());
        assert_counts(&said, &ALL);
        assert_eq!((&said["engine"], &said["server"]), (&"mem".into(), &Value::Null));
    }
}

#[test]
fn each_operation_is_one_round_trip_on_sqlite() {
    let place = Place::formatted();
    let before = place.status()["usage"].clone();
    for threads in ["1", "5"] {
        let said = mdtest(&[&[&place.url(), "bench", "--threads", threads], &TREE[..]].concat());
        assert_counts(&said, &ALL);
    }
    let after = place.status();
    assert_eq!(after["usage"], before);
    assert_eq!(after["sessions"], serde_json::json!([]));
    limen(&["fsck", "--data", &place.url()]).ok();
}

#[test]
fn files_with_data_and_empty_phases() {
    let place = Place::formatted();
    let before = place.status()["usage"].clone();
    let url = place.url();
    // The files are larger than inline data, and writing one takes more than one request of the kernel.
    let said = mdtest(&[&url, "/", "--depth", "0", "--files", "20", "--write", "200K"]);
    let names: Vec<&str> =
        said["phases"].as_array().unwrap().iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["create", "stat", "readdirplus", "rename", "unlink"]);
    assert_eq!(said["write_bytes"], 200 << 10);
    let said = mdtest(&[&url, "/", "--depth", "1", "--dirs", "2", "--files", "0"]);
    let counts: Vec<u64> =
        said["phases"].as_array().unwrap().iter().map(|phase| phase["count"].as_u64().unwrap()).collect();
    assert_eq!(counts, [2, 3, 2], "mkdir, readdirplus and rmdir");
    assert_eq!(place.status()["usage"], before);
    limen(&["fsck", "--data", &url]).ok();
}

#[test]
fn kept_tree_makes_the_next_run_fail() {
    let place = Place::formatted();
    let url = place.url();
    let said = mdtest(&[&[&url, "/kept", "--keep"], &TREE[..]].concat());
    assert_counts(&said, &ALL[..5]);
    assert_eq!(place.status()["usage"]["inodes"], 1 + 91 + 273);
    limen(&["mdtest", &url, "/kept"]).failed(1, &["the directory is not empty", "/kept"]);
    limen(&["mdtest", &url, "/kept/renamed.0"]).failed(1, &["not a directory", "/kept/renamed.0"]);
    assert_eq!(place.status()["usage"]["inodes"], 1 + 91 + 273);
    limen(&["fsck", "--data", &url]).ok();
}

#[test]
fn wrong_arguments_and_failures_are_reported() {
    let place = Place::new();
    let url = place.url();
    limen(&["mdtest", &url, "/x"]).failed(1, &["no volume here yet", "limen format"]);
    place.format(&["--inodes", "50"]).ok();
    let wrong: [(&[&str], &str); 6] = [
        (&[&url], "DIR"),
        (&["nonsense", "/x"], "write sqlite:///"),
        (&[&url, "/x", "--threads", "0"], "1 to 1024"),
        (&[&url, "/x", "--write", "lots"], "10G"),
        (&[&url, "/x", "--depth", "40", "--dirs", "10"], "--depth"),
        (&[&url, "/x/../y"], "'..'"),
    ];
    for (args, part) in wrong {
        limen(&[&["mdtest"], args].concat()).failed(2, &[part]);
    }
    limen(&["mdtest", &url, "/no/such"]).failed(1, &["does not exist on the volume", "/no"]);
    // A failed run leaves nothing behind either.
    limen(&["mdtest", &url, "/x", "--threads", "3"]).failed(1, &["cannot create", "ENOSPC", "/x/"]);
    assert_eq!(place.status()["usage"]["inodes"], 1);
    limen(&["fsck", "--data", &url]).ok();

    let text = limen(&["mdtest", &url, "/x", "--files", "2"]).ok();
    for part in ["volume 'vol'", "readdirplus", "trips/op"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

#[test]
fn mdtest_refuses_a_volume_in_use_and_sigint_leaves_nothing() {
    let place = Place::formatted();
    let url = place.url();
    let first = Command::new(LIMEN)
        .args(["mdtest", &url, "/long", "--depth", "0", "--files", "10000000"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while place.status()["usage"]["inodes"].as_u64().unwrap() < 10 {
        assert!(begun.elapsed() < Duration::from_secs(60), "mdtest does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    limen(&["mdtest", &url, "/x"]).failed(1, &["'vol' is already in use", "/long"]);
    let pid = first.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let ended = first.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("interrupted"), "{ended:?}");
    assert_eq!(place.status()["usage"]["inodes"], 1);
    limen(&["fsck", "--data", &url]).ok();
}
