//! Listings that show a caller only the entries that it may read (access-based enumeration): what they show,
//! what they cost, and what does not change.

mod common;
mod harness;
mod wire;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use common::limen;
use harness::{Mounted, as_member, as_user, refused};
use rustix::io::Errno;
use serde_json::Value;

const USER: u32 = 4711;
const TEAM: u32 = 5000;

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The names that `ls -l` shows. The kernel then requests attributes too, with READDIRPLUS.
fn long_names(path: &Path) -> Vec<String> {
    let out = Command::new("ls").arg("-l").arg(path).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().skip(1).map(|line| line.split_whitespace().last().unwrap().to_owned()).collect()
}

fn give(path: &Path, uid: u32, gid: u32, mode: u32) {
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn fill(volume: &Mounted) {
    fs::set_permissions(volume.at("."), Permissions::from_mode(0o755)).unwrap();
    for (name, uid, gid, mode) in
        [("all", 1, 1, 0o644), ("closed", 1, 1, 0o600), ("mine", USER, 1, 0o400), ("team", 1, TEAM, 0o640)]
    {
        fs::write(volume.at(name), "text").unwrap();
        give(&volume.at(name), uid, gid, mode);
    }
    for (name, mode) in [("open-dir", 0o755), ("passage", 0o711), ("wall", 0o700)] {
        fs::create_dir(volume.at(name)).unwrap();
        fs::write(volume.at(name).join("in"), "text").unwrap();
        give(&volume.at(name), 1, 1, mode);
    }
    std::os::unix::fs::symlink("nowhere", volume.at("link")).unwrap();
}

fn lists(volume: &Mounted) {
    let root = volume.at(".");
    // The users list in turns: if the kernel cached a listing, it would show the listing of one user to
    // another.
    for _ in 0..3 {
        assert_eq!(names(&root).len(), 8);
        assert_eq!(as_user(USER, USER, || names(&root)), ["all", "link", "mine", "open-dir"]);
        assert_eq!(as_member(USER + 1, USER, &[TEAM], || names(&root)), ["all", "link", "open-dir", "team"]);
        let many: Vec<u32> = (TEAM - 200..TEAM + 200).collect();
        assert_eq!(
            as_member(USER, USER, &many, || names(&root)),
            ["all", "link", "mine", "open-dir", "team"]
        );
        assert_eq!(long_names(&root).len(), 8);
    }
}

#[test]
fn abe_hides_unreadable_entries_from_listings_only() {
    let Some(volume) = Mounted::new(&[]) else { return };
    fill(&volume);
    assert_eq!(as_user(USER, USER, || names(&volume.at("."))).len(), 8, "--abe is off by default");
    volume.remount_with(&["--abe"]);
    lists(&volume);

    // A user that knows a name can use it as far as the permissions allow.
    as_user(USER, USER, || {
        assert_eq!(fs::read_to_string(volume.at("passage/in")).unwrap(), "text");
        assert_eq!(fs::metadata(volume.at("closed")).unwrap().len(), 4);
        refused(File::open(volume.at("closed")), Errno::ACCESS);
        refused(fs::metadata(volume.at("wall/in")), Errno::ACCESS);
        refused(fs::read_dir(volume.at("passage")).map(drop), Errno::ACCESS);
    });
    // Hidden entries still exist: a directory that contains only hidden entries is not empty.
    fs::create_dir(volume.at("mixed")).unwrap();
    fs::write(volume.at("mixed/closed"), "").unwrap();
    fs::set_permissions(volume.at("mixed/closed"), Permissions::from_mode(0o600)).unwrap();
    give(&volume.at("mixed"), USER, USER, 0o755);
    give(&volume.at("."), USER, USER, 0o755);
    as_user(USER, USER, || {
        assert_eq!(names(&volume.at("mixed")), [""; 0]);
        refused(fs::remove_dir(volume.at("mixed")), Errno::NOTEMPTY);
    });

    // Changes of permissions, names and groups take effect at once.
    fs::set_permissions(volume.at("closed"), Permissions::from_mode(0o604)).unwrap();
    fs::set_permissions(volume.at("all"), Permissions::from_mode(0o600)).unwrap();
    fs::rename(volume.at("mine"), volume.at("moved")).unwrap();
    assert_eq!(
        as_user(USER, USER, || names(&volume.at("."))),
        ["closed", "link", "mixed", "moved", "open-dir"]
    );
}

#[test]
fn posix_acls_decide_what_abe_shows() {
    let Some(volume) = Mounted::new(&[]) else { return };
    volume.remount_with(&["--abe"]);
    for (name, acl) in [
        ("by-user", "u:4711:r"),
        ("by-group", "g:5000:r"),
        ("masked", "u:4711:r,m::-"),
        ("not", "u:4711:x,g:5000:r"),
    ] {
        fs::write(volume.at(name), "").unwrap();
        fs::set_permissions(volume.at(name), Permissions::from_mode(0o600)).unwrap();
        assert!(Command::new("setfacl").args(["-m", acl]).arg(volume.at(name)).status().unwrap().success());
    }
    let root = volume.at(".");
    assert_eq!(as_user(USER, USER, || names(&root)), ["by-user"]);
    // If an entry names the user, only that entry counts, whatever the user's groups may do.
    assert_eq!(as_member(USER, USER, &[TEAM], || names(&root)), ["by-group", "by-user"]);
    assert_eq!(as_member(USER + 1, USER, &[TEAM], || names(&root)), ["by-group", "not"]);
}

#[test]
fn nfs4_acls_decide_what_abe_shows() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    volume.remount_with(&["--abe"]);
    for (name, acl) in [
        ("by-user", "A::4711:r,A::OWNER@:rw"),
        ("by-group", "A:g:5000:r,A::OWNER@:rw"),
        ("denied", "D::4711:r,A::EVERYONE@:r"),
        ("executable", "A::EVERYONE@:x"),
    ] {
        fs::write(volume.at(name), "").unwrap();
        wire::set(&volume.at(name), acl).unwrap();
    }
    fs::create_dir(volume.at("dir")).unwrap();
    wire::set(&volume.at("dir"), "A::4711:x,A:g:5000:rx,A::OWNER@:rwx").unwrap();
    fs::write(volume.at("plain"), "").unwrap();
    let root = volume.at(".");
    let many: Vec<u32> = (TEAM..TEAM + 400).collect();
    for _ in 0..2 {
        assert_eq!(as_user(USER, USER, || names(&root)), ["by-user", "plain"]);
        assert_eq!(as_member(USER, USER, &many, || names(&root)), ["by-group", "by-user", "dir", "plain"]);
        assert_eq!(as_member(USER + 1, USER, &many, || names(&root)), ["by-group", "denied", "dir", "plain"]);
        assert_eq!(names(&root).len(), 6);
    }
}

#[test]
fn abe_is_a_setting_of_the_volume() {
    let Some(volume) = Mounted::new(&["--acl", "off"]) else { return };
    fill(&volume);
    volume.place.umount(&[]).ok();
    let url = volume.place.url();
    limen(&["config", "--abe", "perhaps", &url]).failed(2, &["on or off"]);
    let said: Value = serde_json::from_str(&limen(&["config", "--json", "--abe", "on", &url]).ok()).unwrap();
    assert_eq!(said["abe"], true);
    volume.place.mount(&[]).ok();
    lists(&volume);
    assert!(limen(&["status", &url]).ok().contains("what it may read"));
    volume.place.umount(&[]).ok();
    limen(&["config", "--abe", "off", &url]).ok();
    volume.place.mount(&[]).ok();
    assert_eq!(as_user(USER, USER, || names(&volume.at("."))).len(), 8);
}

#[test]
fn cached_listing_costs_no_engine_request_for_any_number_of_groups() {
    let Some(volume) = Mounted::new(&[]) else { return };
    for n in 0..2500 {
        let path = volume.at(&format!("{n:04}"));
        File::create(&path).unwrap();
        give(&path, 1, if n % 50 == 0 { TEAM } else { 1 }, 0o640);
    }
    volume.remount_with(&["--abe"]);
    let root = volume.at(".");
    let groups: Vec<u32> = (TEAM..TEAM + 400).collect();
    let engine = || {
        let said = volume.place.statistics();
        ["reads", "scans", "commits"].map(|kind| said["engine"][kind].as_u64().unwrap()).iter().sum::<u64>()
    };
    let cost = |groups: &[u32]| {
        let before = engine();
        let shown = as_member(USER, USER, groups, || names(&root));
        assert_eq!(shown.len(), 50);
        engine() - before
    };
    let cold = cost(&groups);
    assert!((3..10).contains(&cold), "{cold} requests for 2,500 entries");
    for groups in [&groups[..4], &groups, &groups[..4], &groups] {
        // The bound is not 0, because housekeeping sends a request now and then. Reading a listing would cost
        // more.
        assert!(cost(groups) < 3);
    }
    // The kernel caches no listing.
    let asked = |said: &Value| {
        ["READDIR", "READDIRPLUS"]
            .map(|name| said["requests"][name].as_u64().unwrap_or(0))
            .iter()
            .sum::<u64>()
    };
    let before = asked(&volume.place.statistics());
    cost(&groups);
    assert!(asked(&volume.place.statistics()) > before);
}
