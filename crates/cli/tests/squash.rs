//! ID mapping (users have other IDs on a mount than in the volume) and squashing (callers are treated as
//! another user).

mod common;
mod harness;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use harness::{Mounted, NOBODY, as_member, as_user, owner, refused};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, XattrFlags, accessat, mknodat, setxattr, utimensat};
use rustix::io::Errno;

const USER: u32 = 4711;

fn give(path: &Path, uid: u32, mode: u32) {
    chown(path, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn file(path: &Path, uid: u32, mode: u32) {
    fs::write(path, "text").unwrap();
    give(path, uid, mode);
}

fn dir(path: &Path, uid: u32, mode: u32) {
    fs::create_dir(path).unwrap();
    give(path, uid, mode);
}

fn setfacl(entry: &str, path: &Path) -> Output {
    Command::new("setfacl").args(["-m", entry]).arg(path).output().unwrap()
}

fn getfacl(path: &Path) -> String {
    let out = Command::new("getfacl").args(["-ncp"]).arg(path).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn ids_are_mapped_both_ways_with_their_permissions() {
    let Some(volume) = Mounted::new(&[]) else { return };
    dir(&volume.at("all"), 0, 0o1777);
    file(&volume.at("mine"), 1000, 0o600);
    file(&volume.at("unmapped"), 2000, 0o664);
    file(&volume.at("acl"), 0, 0o600);
    assert!(setfacl("u:1005:r,g:1006:rw", &volume.at("acl")).status.success());
    file(&volume.at("hidden-acl"), 0, 0o600);
    assert!(setfacl("u:1005:r,u:9999:rw", &volume.at("hidden-acl")).status.success());

    let map = volume.place.path("map");
    fs::write(&map, "# volume here count\n0 0 1\n1000 201000 100\n").unwrap();
    volume.remount_with(&["--uid-map", map.to_str().unwrap(), "--gid-map", "0:0:1,1000:201000:100"]);
    assert_eq!(owner(&volume.at("mine")), (201_000, 201_000));
    assert_eq!(owner(&volume.at("unmapped")), (NOBODY, NOBODY));
    as_user(201_000, 201_000, || {
        assert_eq!(fs::read_to_string(volume.at("mine")).unwrap(), "text");
        fs::write(volume.at("all/new"), "").unwrap();
        fs::set_permissions(volume.at("mine"), Permissions::from_mode(0o640)).unwrap();
    });
    assert_eq!(owner(&volume.at("all/new")), (201_000, 201_000));
    // The ID that the volume stores is not mapped to itself here.
    as_user(1000, 1000, || {
        refused(File::open(volume.at("mine")), Errno::ACCESS);
        refused(File::create(volume.at("all/x")), Errno::OVERFLOW);
        refused(fs::create_dir(volume.at("all/x")), Errno::OVERFLOW);
    });
    // An unmapped owner is shown as nobody, but user nobody does not own the file; and no caller, not even
    // root, can write to it.
    as_user(NOBODY, NOBODY, || {
        assert_eq!(fs::read_to_string(volume.at("unmapped")).unwrap(), "text");
        refused(OpenOptions::new().write(true).open(volume.at("unmapped")), Errno::ACCESS);
    });
    refused(OpenOptions::new().write(true).open(volume.at("unmapped")), Errno::ACCESS);

    assert_eq!(
        getfacl(&volume.at("acl")),
        "user::rw-\nuser:201005:r--\ngroup::---\ngroup:201006:rw-\nmask::rw-\nother::---\n\n"
    );
    assert_eq!(as_user(201_005, 1, || fs::read_to_string(volume.at("acl")).unwrap()), "text");
    as_user(1005, 1, || refused(File::open(volume.at("acl")), Errno::ACCESS));
    as_member(201_007, 1, &[201_006], || {
        drop(OpenOptions::new().append(true).open(volume.at("acl")).unwrap())
    });
    assert!(setfacl("u:201008:r", &volume.at("acl")).status.success());
    assert!(!setfacl("u:5:r", &volume.at("acl")).status.success(), "the user is not mapped");
    assert!(getfacl(&volume.at("hidden-acl")).contains("user:201005:r--\ngroup::"), "user 9999 is not shown");
    let refusal = String::from_utf8(setfacl("u:201008:r", &volume.at("hidden-acl")).stderr).unwrap();
    assert!(refusal.contains("too large"), "the unmapped entry is kept: {refusal}");

    chown(volume.at("all/new"), Some(201_001), Some(201_002)).unwrap();
    refused(chown(volume.at("all/new"), Some(5), None), Errno::OVERFLOW);

    volume.remount();
    assert_eq!(owner(&volume.at("all/new")), (1001, 1002));
    assert!(getfacl(&volume.at("acl")).contains("user:1005:r--\nuser:1008:r--\n"));
    assert!(getfacl(&volume.at("hidden-acl")).contains("user:9999:rw-"));
}

#[test]
fn squashed_root_has_the_permissions_of_other() {
    let Some(volume) = Mounted::new(&[]) else { return };
    dir(&volume.at("open"), 0, 0o777);
    dir(&volume.at("private"), USER, 0o700);
    file(&volume.at("private/in"), USER, 0o644);
    file(&volume.at("secret"), 0, 0o600);
    file(&volume.at("shown"), 0, 0o644);
    file(&volume.at("of-group-0"), USER, 0o640);
    chown(volume.at("of-group-0"), None, Some(0)).unwrap();
    volume.remount_with(&["--root-squash"]);

    refused(fs::read(volume.at("secret")), Errno::ACCESS);
    assert_eq!(fs::read_to_string(volume.at("shown")).unwrap(), "text");
    let shown = volume.at("shown");
    refused(OpenOptions::new().write(true).open(&shown), Errno::ACCESS);
    refused(fs::set_permissions(&shown, Permissions::from_mode(0o777)), Errno::PERM);
    refused(chown(&shown, Some(NOBODY), None), Errno::PERM);
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    refused(utimensat(CWD, &shown, &times, AtFlags::empty()), Errno::ACCESS);
    let set = |name: &str| setxattr(&shown, name, b"v", XattrFlags::empty());
    refused(set("user.a"), Errno::ACCESS);
    refused(set("trusted.a"), Errno::PERM);
    assert!(!setfacl("u:5:rw", &shown).status.success());
    refused(fs::remove_file(&shown), Errno::ACCESS);
    refused(fs::rename(&shown, volume.at("open/x")), Errno::ACCESS);
    refused(fs::hard_link(&shown, volume.at("x")), Errno::ACCESS);
    refused(fs::create_dir(volume.at("x")), Errno::ACCESS);
    refused(fs::read_dir(volume.at("private")).map(drop), Errno::ACCESS);
    let device = |at: &Path| mknodat(CWD, at, FileType::CharacterDevice, Mode::from(0o600), 0x103);
    refused(device(&volume.at("open/null")), Errno::PERM);
    as_member(USER + 1, 1, &[0], || refused(File::open(volume.at("of-group-0")), Errno::ACCESS));
    as_user(USER + 1, 0, || refused(File::open(volume.at("of-group-0")), Errno::ACCESS));

    // New entries belong to the anonymous user, whose permissions apply from then on.
    fs::write(volume.at("open/new"), "text").unwrap();
    assert_eq!(owner(&volume.at("open/new")), (NOBODY, NOBODY));
    fs::set_permissions(volume.at("open/new"), Permissions::from_mode(0o640)).unwrap();
    refused(chown(volume.at("open/new"), Some(USER), None), Errno::PERM);
    fs::remove_file(volume.at("open/new")).unwrap();

    // Names that another user's walk left in the kernel's cache do not bypass the check.
    let inside = as_user(USER, USER, || {
        assert_eq!(fs::read_to_string(volume.at("private/in")).unwrap(), "text");
        let mut file = OpenOptions::new().append(true).open(volume.at("private/in")).unwrap();
        file.write_all(b", more").unwrap();
        file
    });
    refused(fs::metadata(volume.at("private/in")), Errno::ACCESS);
    refused(File::open(volume.at("private/in")), Errno::ACCESS);
    assert_eq!(inside.metadata().unwrap().len(), 10, "an open file stays usable");
    as_user(USER, USER, || {
        assert_eq!(fs::read_to_string(volume.at("private/in")).unwrap(), "text, more");
        fs::set_permissions(volume.at("private/in"), Permissions::from_mode(0o600)).unwrap();
        fs::write(volume.at("private/more"), "").unwrap();
        assert_eq!(owner(&volume.at("private/more")), (USER, USER));
    });
    drop(inside);
}

#[test]
fn all_squash_treats_every_caller_as_the_anonymous_user() {
    let Some(volume) = Mounted::new(&[]) else { return };
    dir(&volume.at("private"), USER, 0o700);
    file(&volume.at("private/in"), USER, 0o600);
    file(&volume.at("secret"), 0, 0o600);
    file(&volume.at("script"), USER, 0o700);
    fs::write(volume.at("script"), "#!/bin/sh\nexit 7\n").unwrap();
    let id = USER.to_string();
    volume.remount_with(&["--all-squash", "--anon-uid", &id, "--anon-gid", &id]);
    let work = || {
        assert_eq!(fs::read_to_string(volume.at("private/in")).unwrap(), "text");
        fs::write(volume.at("private/new"), "text").unwrap();
        assert_eq!(owner(&volume.at("private/new")), (USER, USER));
        fs::set_permissions(volume.at("private/new"), Permissions::from_mode(0o400)).unwrap();
        refused(OpenOptions::new().write(true).open(volume.at("private/new")), Errno::ACCESS);
        fs::rename(volume.at("private/new"), volume.at("private/newer")).unwrap();
        fs::remove_file(volume.at("private/newer")).unwrap();
        refused(File::open(volume.at("secret")), Errno::ACCESS);
        refused(fs::create_dir(volume.at("x")), Errno::ACCESS);
        refused(chown(volume.at("private/in"), Some(0), None), Errno::PERM);
        let access = |name: &str| accessat(CWD, volume.at(name), Access::READ_OK, AtFlags::empty());
        assert_eq!((access("secret"), access("private/in")), (Err(Errno::ACCESS), Ok(())));
        assert_eq!(Command::new(volume.at("script")).status().unwrap().code(), Some(7));
    };
    work();
    as_user(9999, 9999, work);
    as_member(NOBODY, NOBODY, &[1, 2, 3], work);
}

#[test]
fn lookups_in_searchable_directories_skip_the_access_check() {
    let Some(volume) = Mounted::new(&[]) else { return };
    fs::create_dir_all(volume.at("a/b/c")).unwrap();
    dir(&volume.at("a/b/c/closed"), USER, 0o750);
    file(&volume.at("a/b/c/closed/f"), USER, 0o644);
    volume.remount_with(&["--root-squash"]);
    let before = volume.searches();
    const WALKS: u64 = 20;
    for _ in 0..WALKS {
        as_user(USER, USER, || assert!(fs::metadata(volume.at("a/b/c/closed/f")).unwrap().is_file()));
    }
    let after = volume.searches();
    // Four lookups in directories that everybody may search, and one in the directory that is closed.
    assert_eq!(after[0] - before[0], 4 * WALKS);
    assert_eq!(after[1] - before[1], WALKS);
}
