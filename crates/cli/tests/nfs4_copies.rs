//! Programs that copy files with their permissions, on a volume with NFSv4 ACLs: a copy has the ACL of its
//! source, and no caller has more access to the copy than to the source.

mod common;
mod harness;
mod wire;

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::limen;
use harness::{Mounted, as_member, refused};
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use wire::{get, set, value};

const POSIX: &str = "system.posix_acl_access";

/// The owner, a member of the owning group, a named user, a denied user, members of one or both groups that
/// entries name, and a user that no entry names.
const CALLERS: [(u32, u32, &[u32]); 8] = [
    (1, 1, &[]),
    (2, 2, &[1]),
    (7, 7, &[]),
    (8, 8, &[]),
    (9, 20, &[]),
    (9, 30, &[]),
    (9, 20, &[30, 1]),
    (6, 6, &[]),
];

/// A POSIX ACL can express some of these ACLs exactly and others not. Some are shown by a mode only.
const ACLS: [&str; 6] = [
    "D::8:r,A::7:rw,A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:rtncy",
    "A::7:rwaC,A::OWNER@:rwatTnNcCoy",
    "D:g:20:rw,A:g:30:rwa,A::OWNER@:rwatTnNcCoy,A::GROUP@:tncy,A::EVERYONE@:rtncy",
    "D::OWNER@:w,D:g:20:r,A::7:r,A::EVERYONE@:rwatncy",
    "A::OWNER@:rwadtTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:tcy",
    "D::8:r,A::EVERYONE@:rwxtncy",
];

/// The access of each caller (read, write, append), found by opening the file.
fn rights(path: &Path) -> Vec<String> {
    let letters = |read: bool, append: bool| {
        let mut options = OpenOptions::new();
        options.read(read).write(!read && !append).append(append);
        options.open(path).is_ok()
    };
    let of = |(uid, gid, groups): (u32, u32, &[u32])| {
        let granted = as_member(uid, gid, groups, || {
            [letters(true, false), letters(false, false), letters(false, true)]
        });
        granted
            .iter()
            .zip("rwa".chars())
            .map(|(granted, letter)| if *granted { letter } else { '-' })
            .collect::<String>()
    };
    CALLERS.into_iter().map(of).collect()
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program} cannot be run: {error}"))
}

fn done(program: &str, args: &[&str]) {
    let output = run(program, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{program} {args:?}: {} {said}", output.status);
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// A directory with one file of user 1 and group 1 per ACL.
fn sources(volume: &Mounted) -> PathBuf {
    let dir = volume.at("from");
    fs::create_dir(&dir).unwrap();
    for (number, acl) in ACLS.iter().enumerate() {
        let path = dir.join(number.to_string());
        fs::write(&path, "text").unwrap();
        chown(&path, Some(1), Some(1)).unwrap();
        set(&path, acl).unwrap();
    }
    dir
}

/// The ways in which programs copy a directory of files.
fn copy(way: &str, from: &Path, to: &Path, archive: &Path) {
    let files = fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<String> = files.map(|path| text(&path).to_owned()).collect();
    let with = |options: &[&str]| {
        let files = files.iter().map(String::as_str);
        let args: Vec<&str> = options.iter().copied().chain(files).chain([text(to)]).collect();
        done(if way.starts_with("rsync") { "rsync" } else { "cp" }, &args);
    };
    match way {
        "cp -p" => with(&["-p"]),
        "cp -a" => with(&["-a"]),
        "rsync -aA" => with(&["-aA"]),
        "rsync -aAX" => with(&["-aAX"]),
        "tar --acls" => {
            done("tar", &["--acls", "-C", text(from), "-cf", text(archive), "."]);
            done("tar", &["--acls", "-C", text(to), "-xpf", text(archive)]);
        }
        "tar --acls --xattrs" => {
            done("tar", &["--acls", "--xattrs", "-C", text(from), "-cf", text(archive), "."]);
            done("tar", &["--acls", "--xattrs", "-C", text(to), "-xpf", text(archive)]);
        }
        _ => unreachable!("{way}"),
    }
}

const WAYS: [&str; 6] = ["cp -p", "cp -a", "rsync -aA", "rsync -aAX", "tar --acls", "tar --acls --xattrs"];

#[test]
fn copies_have_the_acl_of_their_source() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let from = sources(&volume);
    for way in WAYS {
        let to = volume.at(way);
        fs::create_dir(&to).unwrap();
        copy(way, &from, &to, &volume.place.path("a.tar"));
        for (number, acl) in ACLS.iter().enumerate() {
            let (old, new) = (from.join(number.to_string()), to.join(number.to_string()));
            assert_eq!(get(&new).unwrap(), *acl, "{way}");
            assert_eq!((mode(&new), rights(&new)), (mode(&old), rights(&old)), "{way}: {acl}");
        }
    }
    volume.place.umount(&[]).ok();
    assert_eq!(limen(&["fsck", &volume.place.url()]).code, Some(0));
}

/// A directory has its own ACL, with entries that new files inherit.
#[test]
fn copied_trees_have_the_acls_of_their_source() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let from = volume.at("from");
    let acl = "D::8:x,A:fd:7:rwx,D:fdig:20:w,A::OWNER@:rwaxDtTnNcCoy,A::EVERYONE@:rxtncy";
    fs::create_dir_all(from.join("sub")).unwrap();
    set(&from.join("sub"), acl).unwrap();
    fs::write(from.join("sub/f"), "text").unwrap();
    let inherited = get(&from.join("sub/f")).unwrap();
    for (number, command) in ["cp -a", "rsync -aA"].iter().enumerate() {
        let (program, options) = command.split_once(' ').unwrap();
        let to = volume.at(&format!("to{number}"));
        fs::create_dir(&to).unwrap();
        done(program, &[options, text(&from.join("sub")), text(&to)]);
        assert_eq!(get(&to.join("sub")).unwrap(), acl, "{command}");
        assert_eq!(get(&to.join("sub/f")).unwrap(), inherited, "{command}");
        assert_eq!(mode(&to.join("sub")), mode(&from.join("sub")), "{command}");
    }
}

#[test]
fn move_between_two_mounts_keeps_the_acl() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let place = &volume.place;
    place.umount(&[]).ok();
    place.mount(&["-o", "shared"]).ok();
    let second = place.path("second");
    fs::create_dir(&second).unwrap();
    limen(&["mount", "-d", "--log", &place.text("log2"), "-o", "shared", &place.url(), text(&second)]).ok();
    let from = sources(&volume);
    let to = volume.at("to");
    fs::create_dir(&to).unwrap();
    for (number, acl) in ACLS.iter().enumerate() {
        let name = number.to_string();
        let before = (mode(&from.join(&name)), rights(&from.join(&name)));
        done("mv", &[text(&second.join("from").join(&name)), text(&to)]);
        assert_eq!(get(&to.join(&name)).unwrap(), *acl);
        assert_eq!((mode(&to.join(&name)), rights(&to.join(&name))), before, "{acl}");
    }
    assert_eq!(fs::read_dir(&from).unwrap().count(), 0);
    limen(&["umount", text(&second)]).ok();
}

/// A POSIX ACL from another file system grants the same access here.
#[test]
fn posix_acl_from_another_file_system_is_kept() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let acls = [
        "u::rw,u:7:rw,u:8:-,g::r,g:30:rw,m::rw,o::r",
        "u::rw,u:7:rw,g::rw,m::r,o::-",
        "u::r,g::-,g:20:rw,g:30:r,m::rw,o::rw",
    ];
    let shm = PathBuf::from("/dev/shm").join(format!("limen-copies-{}", std::process::id()));
    for way in ["mv", "cp -p", "cp -a", "rsync -aA"] {
        fs::create_dir(&shm).unwrap();
        fs::set_permissions(&shm, Permissions::from_mode(0o755)).unwrap();
        let to = volume.at(way);
        fs::create_dir(&to).unwrap();
        for (number, acl) in acls.iter().enumerate() {
            let path = shm.join(number.to_string());
            fs::write(&path, "text").unwrap();
            let posix = acl::posix::PosixAcl::from_text(acl).unwrap().to_xattr();
            setxattr(&path, POSIX, &posix, XattrFlags::empty()).unwrap();
            chown(&path, Some(1), Some(1)).unwrap();
            let before = rights(&path);
            if way == "mv" {
                done("mv", &[text(&path), text(&to)]);
            } else {
                copy(way, &shm, &to, Path::new(""));
            }
            assert_eq!(rights(&to.join(number.to_string())), before, "{way}: {acl}");
        }
        fs::remove_dir_all(&shm).unwrap();
    }
}

/// Setting a POSIX ACL fails if the file that it was read from now has another NFSv4 ACL, or if the caller
/// may not read that ACL.
#[test]
fn posix_acl_without_a_known_source_is_refused() {
    let Some(volume) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let make = |name: &str, acl: &str| {
        let path = volume.at(name);
        fs::write(&path, "text").unwrap();
        chown(&path, Some(1), Some(1)).unwrap();
        set(&path, acl).unwrap();
        path
    };
    let source = make("source", "D::8:r,A::7:r,A::3:c,A::OWNER@:rwatTnNcCoy,A::EVERYONE@:r");
    let read = value(&source, POSIX).unwrap();
    let put = |path: &Path, value: &[u8]| setxattr(path, POSIX, value, XattrFlags::empty());
    let plain = make("plain", "A::OWNER@:rwatTnNcCoy");
    let before = get(&plain).unwrap();
    // One entry grants write permission to others, as after `setfacl -m`.
    let mut changed = read.clone();
    *changed.iter_mut().rev().nth(5).unwrap() = 6;
    refused(put(&plain, &changed), Errno::OPNOTSUPP);
    assert!(!run("setfacl", &["-m", "u:5:rwx", text(&source)]).status.success());
    // A caller that may not read the ACL cannot copy it.
    for (uid, granted) in [(3, true), (4, false)] {
        let own = volume.at(&format!("own{uid}"));
        fs::write(&own, "").unwrap();
        chown(&own, Some(uid), Some(uid)).unwrap();
        let put = as_member(uid, uid, &[], || put(&own, &read));
        assert_eq!(put, if granted { Ok(()) } else { Err(Errno::OPNOTSUPP) });
        assert_eq!(get(&own).unwrap().contains(":7:"), granted);
    }
    // The first source now has another ACL, and the second source is removed.
    let (first, second) = (make("first", ACLS[0]), make("second", ACLS[1]));
    let (of_first, of_second) = (value(&first, POSIX).unwrap(), value(&second, POSIX).unwrap());
    set(&first, ACLS[2]).unwrap();
    fs::remove_file(&second).unwrap();
    refused(put(&plain, &of_first), Errno::OPNOTSUPP);
    refused(put(&plain, &of_second), Errno::OPNOTSUPP);
    assert_eq!(get(&plain).unwrap(), before);
    // The POSIX ACL comes from another volume.
    let Some(other) = Mounted::new(&["--acl", "nfsv4"]) else { return };
    let there = other.at("f");
    fs::write(&there, "").unwrap();
    refused(put(&there, &read), Errno::OPNOTSUPP);
    // An ACL that is equivalent to a mode is treated as a mode.
    let mode = acl::posix::PosixAcl::from_text("u::rw,g::r,o::-").unwrap().to_xattr();
    put(&plain, &mode).unwrap();
    assert_eq!(get(&plain).unwrap(), "A::OWNER@:rwatTnNcCoy,A::GROUP@:rtncy,A::EVERYONE@:tncy");
}
