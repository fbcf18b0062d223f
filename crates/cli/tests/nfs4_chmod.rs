//! chmod on a volume with NFSv4 ACLs: the mode that stat(2) shows afterwards, and the access of each caller.

mod common;
mod harness;
mod wire;

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use common::limen;
use harness::{Mounted, as_user};
use wire::{get, set};

const POLICIES: [&str; 3] = ["groupmask", "passthrough", "discard"];

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The access (`r`, `w`) with which this user and group can open a file.
fn rights(path: &Path, uid: u32, gid: u32) -> String {
    let can_open =
        |read: bool| as_user(uid, gid, || OpenOptions::new().read(read).write(!read).open(path).is_ok());
    [(can_open(true), 'r'), (can_open(false), 'w')]
        .iter()
        .map(|(can, letter)| if *can { *letter } else { '-' })
        .collect()
}

/// A file of user 1 and group 1 in a directory that everybody may search.
fn file(volume: &Mounted, name: &str, text: &str) -> std::path::PathBuf {
    let path = volume.at(name);
    fs::write(&path, "text").unwrap();
    chown(&path, Some(1), Some(1)).unwrap();
    set(&path, text).unwrap();
    path
}

fn with_policy(volume: &Mounted, policy: &str) {
    volume.place.umount(&[]).ok();
    limen(&["config", &volume.place.url(), "--aclmode", policy]).ok();
    volume.place.mount(&[]).ok();
}

#[test]
fn stat_shows_the_mode_that_chmod_set() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let texts = [
        // User 7 and everyone give the group bit `r`.
        "A::7:r,A::OWNER@:rwatTnNcCoy,A::EVERYONE@:rtncy",
        "D::8:r,D:g:20:w,A::7:rw,A:g:30:rwax,A::OWNER@:rwatTnNcCoy,A::GROUP@:r",
        "A::1:rwx,D::OWNER@:w,A::EVERYONE@:rax",
    ];
    for policy in POLICIES {
        with_policy(&volume, policy);
        for (number, text) in texts.iter().enumerate() {
            for asked in [0o664, 0o644, 0o640, 0o600, 0o604, 0o755, 0o4711, 0] {
                let f = file(&volume, &format!("f-{policy}-{number}-{asked:o}"), text);
                chmod(&f, asked);
                assert_eq!(mode(&f), asked, "{policy} {text}");
                chmod(&f, 0o664);
                assert_eq!(mode(&f), 0o664, "{policy} {text}");
                let d = volume.at(&format!("d-{policy}-{number}-{asked:o}"));
                fs::create_dir(&d).unwrap();
                set(&d, text).unwrap();
                chmod(&d, asked | 0o2000);
                assert_eq!(mode(&d), asked | 0o2000, "{policy} {text}");
            }
        }
    }
    volume.place.umount(&[]).ok();
    assert_eq!(limen(&["fsck", &volume.place.url()]).code, Some(0));
}

/// A program sets the mode of a new file, in a directory with inheritable entries.
#[test]
fn mode_set_right_after_creation_is_shown() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    for policy in POLICIES {
        with_policy(&volume, policy);
        let d = volume.at(policy);
        fs::create_dir(&d).unwrap();
        set(&d, "A:fd:7:rwx,D:fd:8:r,A::OWNER@:rwaxDtTnNcCoy,A::EVERYONE@:rx").unwrap();
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(d.join("made")).unwrap();
        made.set_permissions(Permissions::from_mode(0o660)).unwrap();
        assert_eq!(mode(&d.join("made")), 0o660, "{policy}");
        let source = volume.place.path("source");
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join("f"), "text").unwrap();
        chmod(&source.join("f"), 0o664);
        let run = |program: &str, args: &[&str]| {
            let done = Command::new(program).args(args).output().unwrap();
            assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
        };
        let (from, to) = (source.to_str().unwrap(), d.to_str().unwrap());
        let archive = volume.place.path("a.tar");
        run("tar", &["-C", from, "-cf", archive.to_str().unwrap(), "f"]);
        run("tar", &["-C", to, "-xpf", archive.to_str().unwrap()]);
        assert_eq!(mode(&d.join("f")), 0o664, "tar xp, {policy}");
        run("cp", &["-p", &format!("{from}/f"), &format!("{to}/g")]);
        assert_eq!(mode(&d.join("g")), 0o664, "cp -p, {policy}");
    }
}

/// By default the group bits are a mask: they limit the entries of named users and groups, and the owning
/// group does not gain a bit that comes only from another entry.
#[test]
fn group_bits_are_a_mask() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let text = "D::8:r,A::7:rw,A:g:30:r,A::OWNER@:rwatTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:rtncy";
    let f = file(&volume, "f", text);
    let all = || [rights(&f, 1, 1), rights(&f, 2, 1), rights(&f, 7, 7), rights(&f, 8, 8), rights(&f, 9, 30)];
    assert_eq!(mode(&f), 0o664);
    assert_eq!(all(), ["rw", "r-", "rw", "--", "r-"]);
    chmod(&f, 0o764);
    assert_eq!(all(), ["rw", "r-", "rw", "--", "r-"], "the group may not write");
    assert!(get(&f).unwrap().starts_with("D::8:r,A::7:rw,A:g:30:r,"));
    chmod(&f, 0o744);
    assert_eq!((mode(&f), all()), (0o744, ["rw", "r-", "r-", "--", "r-"].map(str::to_owned)));
    chmod(&f, 0o760);
    assert_eq!((mode(&f), all()), (0o760, ["rw", "rw", "r-", "--", "r-"].map(str::to_owned)));
    chmod(&f, 0o700);
    assert_eq!((mode(&f), all()), (0o700, ["rw", "--", "--", "--", "--"].map(str::to_owned)));
    chmod(&f, 0o666);
    assert_eq!(
        (mode(&f), all()),
        (0o666, ["rw", "rw", "rw", "-w", "rw"].map(str::to_owned)),
        "a DENY entry stays effective"
    );
}
