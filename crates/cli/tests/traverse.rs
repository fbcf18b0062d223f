//! Callers that may search every directory of a mounted volume (`--bypass-traverse`), and others that may
//! not.

mod common;
mod harness;
mod wire;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use common::limen;
use harness::{Mounted, as_member, as_user, refused};
use rustix::io::Errno;
use wire::set;

const HOLDER: u32 = 4711;
const GROUP: u32 = 4712;
const OWNER: u32 = 4713;
const OTHER: u32 = 4714;

const RIGHT: [&str; 4] = ["--bypass-traverse", "u:4711", "-o", "bypass_traverse=g:4712"];

/// A directory of OWNER that contains a directory and a file.
fn closed(volume: &Mounted, name: &str, mode: u32, acl: Option<&str>) -> PathBuf {
    let path = volume.at(name);
    fs::create_dir_all(path.join("sub")).unwrap();
    for file in ["f", "sub/f"] {
        fs::write(path.join(file), "text").unwrap();
        fs::set_permissions(path.join(file), fs::Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(path.join("sub"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    for owned in [&path, &path.join("sub")] {
        chown(owned, Some(OWNER), Some(OWNER)).unwrap();
    }
    if let Some(acl) = acl {
        set(&path, acl).unwrap();
    }
    path
}

/// Runs `work` as each kind of holder of the privilege: by user id, by primary group, by one of 401
/// supplementary groups, and by the only supplementary group.
fn as_holders(work: impl Fn() + Sync) {
    let many: Vec<u32> = (10_000..10_400).chain([GROUP]).collect();
    as_user(HOLDER, HOLDER, &work);
    as_user(OTHER, GROUP, &work);
    as_member(OTHER, OTHER, &many, &work);
    as_member(OTHER, OTHER, &[GROUP], &work);
}

fn reads(path: &Path) -> io::Result<()> {
    fs::read(path).map(|text| assert_eq!(text, b"text"))
}

#[test]
fn holders_may_search_and_nothing_else() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    volume.remount_with(&RIGHT);
    let dirs = [
        closed(&volume, "mode", 0o700, None),
        closed(&volume, "group", 0o750, None),
        closed(&volume, "acl", 0o700, Some("A::OWNER@:rwaxD,A::5:rx,A::6:r")),
        closed(&volume, "denied", 0o700, Some("A::OWNER@:rwaxD,D::EVERYONE@:x")),
        // No POSIX ACL can express the search permission of this directory, so every check goes to the
        // daemon.
        closed(&volume, "inexact", 0o700, Some("A::OWNER@:rwaxD,D:g:20:x,A:g:30:x")),
    ];
    for d in &dirs {
        let at = |name: &str| d.join(name);
        for round in 0..3 {
            // The owner's walk leaves the names in the kernel's cache.
            as_user(OWNER, OWNER, || reads(&at("sub/f")).unwrap());
            as_holders(|| {
                reads(&at("f")).unwrap();
                reads(&at("sub/f")).unwrap();
                assert!(fs::metadata(at("sub")).unwrap().is_dir());
                refused(fs::metadata(at("none")), Errno::NOENT);
                refused(fs::read_dir(d).map(drop), Errno::ACCESS);
                refused(fs::read_dir(at("sub")).map(drop), Errno::ACCESS);
                refused(fs::write(at("f"), "x"), Errno::ACCESS);
                refused(fs::write(at("new"), ""), Errno::ACCESS);
                refused(fs::create_dir(at("new")), Errno::ACCESS);
                refused(symlink("f", at("new")), Errno::ACCESS);
                refused(fs::remove_file(at("f")), Errno::ACCESS);
                refused(fs::rename(at("f"), at("g")), Errno::ACCESS);
                refused(fs::set_permissions(d, fs::Permissions::from_mode(0o777)), Errno::PERM);
            });
            let others = || {
                for name in ["f", "sub", "sub/f", "none"] {
                    refused(fs::metadata(at(name)), Errno::ACCESS);
                }
                refused(reads(&at("sub/f")), Errno::ACCESS);
                refused(fs::read_dir(d).map(drop), Errno::ACCESS);
            };
            as_user(OTHER, OTHER, others);
            as_member(GROUP, OTHER, &[HOLDER], others);
            as_member(OTHER, OTHER, &(10_000..10_400).collect::<Vec<_>>(), others);
            as_user(OWNER, OWNER, || {
                fs::write(at("mine"), format!("{round}")).unwrap();
                fs::remove_file(at("mine")).unwrap();
            });
        }
    }
    // If search permission is revoked, this takes effect at once, but not for holders.
    let d = closed(&volume, "later", 0o755, None);
    as_user(OTHER, OTHER, || reads(&d.join("f")).unwrap());
    fs::set_permissions(&d, fs::Permissions::from_mode(0o700)).unwrap();
    as_user(OTHER, OTHER, || refused(reads(&d.join("f")), Errno::ACCESS));
    as_holders(|| reads(&d.join("f")).unwrap());
    // A mount without the option does not give the privilege.
    volume.remount();
    for d in dirs.iter().chain([&d]) {
        as_holders(|| refused(reads(&d.join("f")), Errno::ACCESS));
    }
}

#[test]
fn mode_shown_for_holders_is_not_stored() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    volume.remount_with(&RIGHT);
    let d = closed(&volume, "d", 0o700, None);
    let mode = || fs::metadata(&d).unwrap().mode() & 0o7777;
    let chmod = |mode: u32| fs::set_permissions(&d, fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(mode(), 0o710, "the group bits show the access of the holders");
    chmod(0o2710);
    volume.remount();
    assert_eq!(mode(), 0o2700);
    volume.remount_with(&RIGHT);
    chmod(0o750);
    volume.remount();
    assert_eq!(mode(), 0o750);
}

#[test]
fn abe_hides_entries_from_holders_too() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let d = closed(&volume, "d", 0o755, None);
    fs::set_permissions(d.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(d.join("open"), "").unwrap();
    volume.remount_with(&[&RIGHT[..], &["--abe"]].concat());
    as_holders(|| {
        let names = fs::read_dir(&d).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["open"], "search permission does not make an entry readable");
        reads(&d.join("sub/f")).unwrap();
    });
}

#[test]
fn bypass_traverse_fails_without_nfs4_acls_or_for_unknown_names() {
    let Some(volume) = Mounted::new(&[]) else { return };
    volume.place.umount(&[]).ok();
    for options in [&["--bypass-traverse", "root"][..], &["-o", "bypass_traverse=u:5"]] {
        volume.place.mount(options).failed(1, &["NFSv4", "--acl nfsv4"]);
    }
    volume.place.mount(&["--bypass-traverse", "no-such-group"]).failed(2, &["no-such-group"]);
    volume.place.mount(&["-o", "bypass_traverse=u:no-such-user"]).failed(2, &["no-such-user"]);
}

#[test]
fn lookups_in_directories_that_everybody_may_search_are_counted() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    for (name, acl) in
        [("open", "A::OWNER@:rwaxD,A::5:rx,A::EVERYONE@:x"), ("closed", "A::OWNER@:rwaxD,A::5:x")]
    {
        fs::create_dir(volume.at(name)).unwrap();
        (0..20).for_each(|n| fs::write(volume.at(&format!("{name}/{n}")), "text").unwrap());
        set(&volume.at(name), acl).unwrap();
    }
    volume.remount();
    let stat = |name: &str, count: usize| {
        (0..count).for_each(|n| assert!(fs::metadata(volume.at(&format!("{name}/{n}"))).unwrap().is_file()));
    };
    let before = volume.searches();
    stat("open", 20);
    stat("closed", 5);
    let counted = |after: [u64; 2]| [after[0] - before[0], after[1] - before[1]];
    // The directories themselves are in the root, which everybody may search.
    assert_eq!(counted(volume.searches()), [22, 5]);
    // The counters follow the permissions.
    set(&volume.at("closed"), "A::OWNER@:rwaxD,A::EVERYONE@:x").unwrap();
    (5..10).for_each(|n| assert!(fs::metadata(volume.at(&format!("closed/{n}"))).unwrap().is_file()));
    set(&volume.at("closed"), "A::OWNER@:rwaxD,D::7:x,A::EVERYONE@:x").unwrap();
    (10..13).for_each(|n| assert!(fs::metadata(volume.at(&format!("closed/{n}"))).unwrap().is_file()));
    let [skipped, checked] = counted(volume.searches());
    assert!(skipped >= 27 && checked == 8, "{skipped} and {checked}");
    let status = limen(&["status", &volume.place.url()]).ok();
    assert!(status.contains("lookups needed no access check"), "{status}");
}
