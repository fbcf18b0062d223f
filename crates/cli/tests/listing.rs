//! What `ls -lR` costs on a mount, in FUSE requests: counted, not timed (see docs/benchmarks.md for times).
//!
//! 10,000 files in 100 directories are listed by a user who owns none of them, so that the kernel checks every
//! directory by its ACL. Mounts that list n and n - 1 times are compared: the difference is the n-th listing.

mod common;
mod harness;

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread;

use harness::{Counts, Mounted, NOBODY};

const DIRECTORIES: i64 = 100;
const FILES: i64 = 10_000;
const RUNS: usize = 4;

/// Requests that come when the kernel pleases, not when a program asks.
const UNASKED: [&str; 4] = ["FORGET", "BATCH_FORGET", "INTERRUPT", "DESTROY"];

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

/// What each listing after a mount asks for, the first one first.
fn requests_by_run(volume: &Mounted) -> Vec<Counts> {
    volume.place.umount(&[]).ok();
    let mut totals: Vec<Counts> = Vec::new();
    for runs in 0..=RUNS {
        totals.push(undisturbed(|| requests(volume, runs)));
    }
    totals.windows(2).map(|pair| pair[1].since(&pair[0])).collect()
}

/// What a mount is asked for whose tree is listed so many times.
fn requests(volume: &Mounted, runs: usize) -> Counts {
    volume.place.mount(&[]).ok();
    // So that every mount begins with the same walk to the tree.
    fs::metadata(volume.at("tree")).unwrap();
    (0..runs).for_each(|_| list(volume));
    let mut counts = volume.counts_at_unmount();
    counts.0.retain(|name, _| !UNASKED.contains(&name.as_str()));
    counts
}

/// A kernel that runs short of memory takes back what it held of a listing, and asks again: so what is measured counts
/// when it came out the same twice.
fn undisturbed(measure: impl Fn() -> Counts) -> Counts {
    let mut seen: Vec<Counts> = Vec::new();
    for _ in 0..8 {
        let counts = measure();
        if seen.iter().any(|before| before.0 == counts.0) {
            return counts;
        }
        seen.push(counts);
    }
    panic!("no two of these are the same: {seen:?}");
}

#[test]
fn acls_cost_a_listing_one_request_an_inode_once_and_nothing_later() {
    let Some(off) = Mounted::new(&["--acl", "off"]) else { return };
    fill(&off, &[]);
    let off = requests_by_run(&off);
    let Some(plain) = Mounted::new(&[]) else { return };
    fill(&plain, &[]);
    let plain = requests_by_run(&plain);
    let Some(all) = Mounted::new(&[]) else { return };
    // Every file and directory has an access ACL, and inherits it from one default ACL.
    fill(&all, &["setfacl", "-m", "u:1:rwX,u:65534:rX", "-m", "d:u:1:rwX,d:u:65534:rX"]);
    let all = requests_by_run(&all);

    println!("requests of ls -lR, {FILES} files in {DIRECTORIES} directories, by uid {NOBODY}");
    let kinds = [("--acl off", &off), ("ACLs on, none set", &plain), ("ACLs on, set on all", &all)];
    for (kind, runs) in kinds {
        for (run, counts) in runs.iter().enumerate() {
            println!("{kind:20} run {}: {:6}  {:?}", run + 1, counts.total(), counts.0);
        }
    }

    // The protocol has no way to say "no ACL" with a new inode, so each is asked for, once; ls itself also asks for the
    // default ACL of each directory that has no access ACL.
    let inodes = FILES + 2 * DIRECTORIES + 6;
    for (kind, runs) in &kinds[1..] {
        let first = &runs[0];
        assert!(first.of("GETXATTR") <= inodes, "{kind}: {first:?}");
        let besides = first.total() - first.of("GETXATTR");
        assert!(besides <= off[0].total() + 4, "{kind}: {first:?} against {:?}", off[0]);
        for (run, counts) in runs.iter().enumerate().skip(1) {
            // After READDIRPLUS the kernel takes a directory's atime for out of date; the fstat of the next opendir
            // sends GETATTR for it, and the answer makes the kernel forget the directory's ACL. Files are not concerned.
            assert!(counts.of("GETXATTR") <= DIRECTORIES + 2, "{kind}, run {}: {counts:?}", run + 1);
            let limit = off[run].total() + if run + 1 < RUNS { DIRECTORIES + 4 } else { 4 };
            assert!(counts.total() <= limit, "{kind}, run {}: {counts:?} against {:?}", run + 1, off[run]);
        }
        let last = &runs[RUNS - 1];
        assert!(last.of("GETXATTR") <= 4, "{kind}: {last:?}");
    }
    // Nor is anything listed again whose listing the kernel holds.
    assert!(off[1].total() <= 3 * DIRECTORIES + 10, "{:?}", off[1]);
}
