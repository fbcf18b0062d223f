//! The cost of `ls -lR` on a mount, in FUSE requests (see docs/benchmarks.md for times).
//!
//! A user lists 10,000 files in 100 directories and owns none of them, so the kernel checks each directory by
//! its ACL. The cost of the n-th listing is the difference between two mounts: one with n listings, and one
//! with n - 1.

mod common;
mod harness;

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread;

use harness::{Counts, Mounted, NOBODY};

const DIRECTORIES: i64 = 100;
const FILES: i64 = 10_000;
const RUNS: usize = 4;

/// Requests that the kernel sends at times of its own.
const UNRELATED: [&str; 4] = ["FORGET", "BATCH_FORGET", "INTERRUPT", "DESTROY"];

fn fill(volume: &Mounted, prepare: &[&str]) {
    let tree = volume.at("tree");
    fs::create_dir(&tree).unwrap();
    if let [command, rest @ ..] = prepare {
        assert!(Command::new(command).args(rest).arg(&tree).status().unwrap().success());
    }
    let half = |from: i64| {
        for d in (from..DIRECTORIES).step_by(2) {
            let dir = tree.join(format!("directory-{d:03}"));
            fs::create_dir(&dir).unwrap();
            (0..FILES / DIRECTORIES)
                .for_each(|f| drop(File::create(dir.join(format!("file-{f:03}"))).unwrap()));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| half(0));
        half(1);
    });
}

fn list(volume: &Mounted) {
    let id = NOBODY.to_string();
    let status = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "ls", "-lR"])
        .arg(volume.at("tree"))
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

/// The requests of each listing after a mount, in order.
fn requests_by_run(volume: &Mounted) -> Vec<Counts> {
    volume.place.umount(&[]).ok();
    let mut totals: Vec<Counts> = Vec::new();
    for runs in 0..=RUNS {
        totals.push(measured_twice(|| requests(volume, runs)));
    }
    totals.windows(2).map(|pair| pair[1].since(&pair[0])).collect()
}

/// The requests of a mount whose tree is listed `runs` times.
fn requests(volume: &Mounted, runs: usize) -> Counts {
    volume.place.mount(&[]).ok();
    // Every mount begins with the same lookups on the path to the tree.
    fs::metadata(volume.at("tree")).unwrap();
    (0..runs).for_each(|_| list(volume));
    let mut counts = volume.counts_at_unmount();
    counts.0.retain(|name, _| !UNRELATED.contains(&name.as_str()));
    counts
}

/// Under memory pressure the kernel drops cached listings and reads them again. So a measurement counts only
/// if two runs agree.
fn measured_twice(measure: impl Fn() -> Counts) -> Counts {
    let mut seen: Vec<Counts> = Vec::new();
    for _ in 0..8 {
        let counts = measure();
        if seen.iter().any(|before| before.0 == counts.0) {
            return counts;
        }
        seen.push(counts);
    }
    panic!("no two measurements agree: {seen:?}");
}

#[test]
fn acls_cost_one_request_per_inode_in_the_first_listing_only() {
    let Some(off) = Mounted::new(&["--acl", "off"]) else { return };
    fill(&off, &[]);
    let off = requests_by_run(&off);
    let Some(plain) = Mounted::new(&[]) else { return };
    fill(&plain, &[]);
    let plain = requests_by_run(&plain);
    let Some(all) = Mounted::new(&[]) else { return };
    // Every file and directory has an access ACL, inherited from one default ACL.
    fill(&all, &["setfacl", "-m", "u:1:rwX,u:65534:rX", "-m", "d:u:1:rwX,d:u:65534:rX"]);
    let all = requests_by_run(&all);

    println!("requests of ls -lR, {FILES} files in {DIRECTORIES} directories, by uid {NOBODY}");
    let kinds = [("--acl off", &off), ("ACLs on, none set", &plain), ("ACLs on, set on all", &all)];
    for (kind, runs) in kinds {
        for (run, counts) in runs.iter().enumerate() {
            println!("{kind:20} run {}: {:6}  {:?}", run + 1, counts.total(), counts.0);
        }
    }

    // The protocol cannot report "no ACL" with a new inode, so the kernel queries each inode once. ls also
    // queries the default ACL of each directory that has no access ACL.
    let inodes = FILES + 2 * DIRECTORIES + 6;
    for (kind, runs) in &kinds[1..] {
        let first = &runs[0];
        assert!(first.of("GETXATTR") <= inodes, "{kind}: {first:?}");
        let besides = first.total() - first.of("GETXATTR");
        assert!(besides <= off[0].total() + 4, "{kind}: {first:?} against {:?}", off[0]);
        for (run, counts) in runs.iter().enumerate().skip(1) {
            // After READDIRPLUS the kernel considers the atime of a directory stale. The fstat of the next
            // opendir then sends GETATTR, and the reply makes the kernel drop the directory's cached ACL.
            // Files are not affected.
            assert!(counts.of("GETXATTR") <= DIRECTORIES + 2, "{kind}, run {}: {counts:?}", run + 1);
            let limit = off[run].total() + if run + 1 < RUNS { DIRECTORIES + 4 } else { 4 };
            assert!(counts.total() <= limit, "{kind}, run {}: {counts:?} against {:?}", run + 1, off[run]);
        }
        let last = &runs[RUNS - 1];
        assert!(last.of("GETXATTR") <= 4, "{kind}: {last:?}");
    }
    // A listing that is in the kernel's cache is not read again.
    assert!(off[1].total() <= 3 * DIRECTORIES + 10, "{:?}", off[1]);
}
