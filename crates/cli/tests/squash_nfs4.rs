//! ID mapping and squashing on volumes with NFSv4 ACLs.

mod common;
mod harness;
mod wire;

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Mounted, NOBODY, as_member, as_user, owner, refused};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, XattrFlags, accessat, mknodat, removexattr, setxattr,
};
use rustix::io::Errno;
use wire::{get, set};

const USER: u32 = 4711;
const ALL: &str = "rwaxdDtTnNcCoy";

fn nfs4() -> Option<Mounted> {
    Mounted::new(&["--acl", "nfsv4"])
}

fn owned(path: PathBuf, uid: u32, acl: &str) -> PathBuf {
    chown(&path, Some(uid), Some(uid)).unwrap();
    set(&path, acl).unwrap();
    path
}

fn file(volume: &Mounted, name: &str, uid: u32, acl: &str) -> PathBuf {
    fs::write(volume.at(name), "text").unwrap();
    owned(volume.at(name), uid, acl)
}

fn dir(volume: &Mounted, name: &str, uid: u32, acl: &str) -> PathBuf {
    fs::create_dir(volume.at(name)).unwrap();
    owned(volume.at(name), uid, acl)
}

fn writes(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

#[test]
fn ids_are_mapped_both_ways_with_their_permissions() {
    let Some(volume) = nfs4() else { return };
    let d = dir(&volume, "d", 1000, &format!("A::OWNER@:{ALL},A::1005:x,A:g:1006:wx,D::9999:rwx,A::1007:rx"));
    let f = file(&volume, "d/f", 1000, "D:g:1008:r,A::1005:rC,A:g:1006:r,A::OWNER@:rwaC");
    let hidden = file(&volume, "d/hidden", 1000, "A::9999:r,A::1005:r,A::OWNER@:rwaC");
    let shown = format!("A::OWNER@:{ALL},A::201005:x,A:g:201006:wx,A::201007:rx");
    for options in [
        &["--uid-map", "0:0:1,1000:201000:100", "--gid-map", "0:0:1,1000:201000:100"][..],
        &["-o", "uid_map=0:0:1,uid_map=1000:201000:100,gid_map=0:0:1,gid_map=1000:201000:100"],
    ] {
        volume.remount_with(options);
        assert_eq!(owner(&f), (201_000, 201_000));
        assert_eq!(get(&d).unwrap(), shown);
        assert_eq!(get(&hidden).unwrap(), "A::201005:r,A::OWNER@:rwaC", "user 9999 is not mapped");
        as_user(201_000, 201_000, || drop(writes(&f).unwrap()));
        as_user(201_005, 1, || {
            assert_eq!(fs::read(&f).unwrap(), b"text");
            refused(fs::read_dir(&d).map(drop), Errno::ACCESS);
        });
        as_user(201_007, 1, || assert_eq!(fs::read_dir(&d).unwrap().count(), 2));
        as_member(201_009, 1, &[201_006], || assert_eq!(fs::read(&f).unwrap(), b"text"));
        as_member(201_005, 1, &[201_008], || refused(fs::read(&f), Errno::ACCESS));
        // IDs of the volume are not mapped to themselves here.
        for uid in [1000, 1005, 9999, NOBODY] {
            as_member(uid, uid, &[1006], || refused(fs::metadata(&f), Errno::ACCESS));
        }
        // An entry that is not shown is not lost: callers that cannot see it cannot replace the ACL.
        refused(set(&hidden, "A::OWNER@:rwaC"), Errno::OVERFLOW);
        refused(removexattr(&hidden, wire::NFS4_ACL), Errno::OVERFLOW);
        refused(set(&f, "A::5:r"), Errno::INVAL);
        refused(set(&f, "A:g:1006:r"), Errno::INVAL);
        as_user(201_005, 1, || set(&f, "A:g:201006:r,A::201005:rC,A::OWNER@:rwaC").unwrap());
        assert_eq!(get(&f).unwrap(), "A:g:201006:r,A::201005:rC,A::OWNER@:rwaC");
        refused(chown(&f, Some(5), None), Errno::OVERFLOW);
        volume.remount();
        assert_eq!(get(&f).unwrap(), "A:g:1006:r,A::1005:rC,A::OWNER@:rwaC");
        assert!(get(&hidden).unwrap().starts_with("A::9999:r,"));
        set(&f, "D:g:1008:r,A::1005:rC,A:g:1006:r,A::OWNER@:rwaC").unwrap();
    }
    // --bypass-traverse takes the ID on this mount.
    volume.remount_with(&["--uid-map", "0:0:1,1000:201000:100", "--bypass-traverse", "201050"]);
    as_user(201_050, 7, || assert!(fs::metadata(&f).unwrap().is_file()));
    as_user(1050, 7, || refused(fs::metadata(&f), Errno::ACCESS));
}

#[test]
fn squashed_root_has_the_permissions_of_the_anonymous_user() {
    let Some(volume) = nfs4() else { return };
    let open = dir(&volume, "open", 0, &format!("A::{NOBODY}:rwaxtTnNcy,A::OWNER@:{ALL},A::EVERYONE@:rx"));
    let private = dir(&volume, "private", USER, &format!("A::OWNER@:{ALL}"));
    let inside = file(&volume, "private/in", USER, "A::EVERYONE@:rx,A::OWNER@:rwa");
    let secret = file(&volume, "secret", 0, "A::OWNER@:rwaxC");
    let shown = file(&volume, "shown", 0, &format!("A::{NOBODY}:r,A::OWNER@:rwaxC"));
    let of_group = file(&volume, "of-group-0", USER, "A:g:0:rw,A::OWNER@:rw");
    for options in [&["--root-squash"][..], &["-o", "root_squash"]] {
        volume.remount_with(options);
        refused(fs::read(&secret), Errno::ACCESS);
        assert_eq!(fs::read(&shown).unwrap(), b"text");
        refused(writes(&shown), Errno::ACCESS);
        refused(fs::set_permissions(&shown, Permissions::from_mode(0o777)), Errno::PERM);
        refused(chown(&shown, Some(NOBODY), None), Errno::PERM);
        refused(set(&shown, "A::EVERYONE@:rwa"), Errno::PERM);
        refused(get(&secret), Errno::ACCESS);
        refused(fs::remove_file(&shown), Errno::ACCESS);
        refused(fs::rename(&shown, open.join("x")), Errno::ACCESS);
        refused(fs::create_dir(volume.at("x")), Errno::ACCESS);
        refused(fs::read_dir(&private).map(drop), Errno::ACCESS);
        let put = |name: &str| setxattr(&shown, name, b"v", XattrFlags::empty());
        refused(put("user.a"), Errno::ACCESS);
        refused(put("trusted.a"), Errno::PERM);
        refused(put("security.a"), Errno::PERM);
        let device = mknodat(CWD, open.join("null"), FileType::CharacterDevice, Mode::from(0o600), 0x103);
        refused(device, Errno::PERM);
        as_member(USER + 1, 1, &[0], || refused(File::open(&of_group), Errno::ACCESS));
        // New entries belong to the anonymous user.
        fs::write(open.join("new"), "text").unwrap();
        assert_eq!(owner(&open.join("new")), (NOBODY, NOBODY));
        fs::set_permissions(open.join("new"), Permissions::from_mode(0o640)).unwrap();
        fs::remove_file(open.join("new")).unwrap();
        // Names that another user's walk left in the kernel's cache do not bypass the check.
        for _ in 0..3 {
            as_user(USER, USER, || assert_eq!(fs::read(&inside).unwrap(), b"text"));
            refused(fs::metadata(&inside), Errno::ACCESS);
            refused(fs::read(&inside), Errno::ACCESS);
            as_user(USER + 1, 1, || refused(fs::read(&inside), Errno::ACCESS));
        }
    }
}

#[test]
fn all_squash_treats_every_caller_as_the_anonymous_user() {
    let Some(volume) = nfs4() else { return };
    let private = dir(&volume, "private", USER, &format!("A::OWNER@:{ALL}"));
    let inside = file(&volume, "private/in", USER, "A::OWNER@:rwaC");
    let secret = file(&volume, "secret", 0, "A::OWNER@:rwaC");
    let lent = file(&volume, "lent", 0, &format!("A::{USER}:r,A::OWNER@:rwaC"));
    let script = file(&volume, "script", USER, "A::OWNER@:rwaxC");
    fs::write(&script, "#!/bin/sh\nexit 7\n").unwrap();
    let id = USER.to_string();
    for options in [
        &["--all-squash", "--anon-uid", &id, "--anon-gid", &id][..],
        &["-o", "all_squash,anon_uid=4711,anon_gid=4711"],
    ] {
        volume.remount_with(options);
        let work = || {
            assert_eq!(fs::read(&inside).unwrap(), b"text");
            assert_eq!(fs::read(&lent).unwrap(), b"text");
            refused(writes(&lent), Errno::ACCESS);
            fs::write(private.join("new"), "text").unwrap();
            assert_eq!(owner(&private.join("new")), (USER, USER));
            fs::set_permissions(private.join("new"), Permissions::from_mode(0o400)).unwrap();
            refused(writes(&private.join("new")), Errno::ACCESS);
            fs::rename(private.join("new"), private.join("newer")).unwrap();
            fs::remove_file(private.join("newer")).unwrap();
            refused(File::open(&secret), Errno::ACCESS);
            refused(fs::create_dir(volume.at("x")), Errno::ACCESS);
            refused(chown(&inside, Some(0), None), Errno::PERM);
            refused(set(&lent, "A::EVERYONE@:rwa"), Errno::PERM);
            refused(setxattr(&lent, "trusted.a", b"v", XattrFlags::empty()), Errno::PERM);
            set(&inside, "A::OWNER@:rwaC,A::9:r").unwrap();
            set(&inside, "A::OWNER@:rwaC").unwrap();
            let access = |path: &Path| accessat(CWD, path, Access::READ_OK, AtFlags::empty());
            assert_eq!((access(&secret), access(&inside)), (Err(Errno::ACCESS), Ok(())));
            assert_eq!(Command::new(&script).status().unwrap().code(), Some(7));
        };
        // Only root's request for `trusted.*` reaches the daemon: the kernel refuses other users.
        work();
        as_user(9999, 9999, work);
        as_member(NOBODY, NOBODY, &[1, 2, 3], work);
    }
}

#[test]
fn lookups_in_searchable_directories_skip_the_access_check() {
    let Some(volume) = nfs4() else { return };
    dir(&volume, "a", 0, "A::5:rwx,A::OWNER@:rwaxD,A::EVERYONE@:x");
    fs::create_dir(volume.at("a/b")).unwrap();
    dir(&volume, "a/b/closed", USER, "A::OWNER@:rwaxD,A::6:x");
    file(&volume, "a/b/closed/f", USER, "A::EVERYONE@:r");
    volume.remount_with(&["--root-squash"]);
    let before = volume.searches();
    const WALKS: u64 = 20;
    for _ in 0..WALKS {
        as_user(USER, USER, || assert!(fs::metadata(volume.at("a/b/closed/f")).unwrap().is_file()));
    }
    let after = volume.searches();
    // Three lookups in directories that everybody may search, and one in the directory that is closed.
    assert_eq!(after[0] - before[0], 3 * WALKS);
    assert_eq!(after[1] - before[1], WALKS);
}
