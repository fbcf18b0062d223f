//! Names, attributes and extended attributes on a mount, as root: behaviour that programs rely on and
//! pjdfstest does not test.

mod common;
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Place, limen};
use harness::{Mounted, NOBODY, as_user, refused};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags, SeekFrom, StatxFlags,
    Timespec, Timestamps, XattrFlags, fallocate, getxattr, getxattr_query, listxattr, makedev, mkdirat,
    mknodat, openat, removexattr, renameat_with, seek, setxattr, statat, statx, utimensat,
};
use rustix::io::Errno;

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Runs a line of shell in `dir`.
#[track_caller]
fn shell(dir: &Path, line: &str) -> String {
    let output = Command::new("sh").current_dir(dir).args(["-euc", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_supported_fuse_request_is_exercised() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let at = |name: &str| volume.at(name);
    fs::write(at("file"), "te").unwrap();
    volume.remount(); // INIT; nothing is cached
    let mut file = File::create(at("written")).unwrap(); // LOOKUP, CREATE
    file.write_all(b"text").unwrap(); // WRITE
    file.sync_all().unwrap(); // FSYNC
    file.set_len(2).unwrap(); // SETATTR
    drop(file); // FLUSH, RELEASE
    assert_eq!(fs::read(at("file")).unwrap(), b"te"); // OPEN, READ, GETATTR
    symlink("file", at("link")).unwrap(); // SYMLINK
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("file")); // READLINK
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap(); // MKNOD
    fs::create_dir(at("dir")).unwrap(); // MKDIR
    fs::hard_link(at("file"), at("dir/second")).unwrap(); // LINK
    fs::rename(at("dir/second"), at("third")).unwrap(); // RENAME
    renameat_with(CWD, at("third"), CWD, at("fourth"), RenameFlags::NOREPLACE).unwrap(); // RENAME2
    fs::remove_file(at("fourth")).unwrap(); // UNLINK
    setxattr(at("file"), "user.a", b"1", XattrFlags::empty()).unwrap(); // SETXATTR
    assert_eq!(getxattr_query(at("file"), "user.a"), Ok(1)); // GETXATTR
    assert_eq!(listxattr(at("file"), &mut [0; 100][..]), Ok(7)); // LISTXATTR
    removexattr(at("file"), "user.a").unwrap(); // REMOVEXATTR
    let entries = fs::read_dir(at("")).unwrap(); // OPENDIR, READDIRPLUS
    assert_eq!(entries.filter(|entry| entry.as_ref().unwrap().metadata().is_ok()).count(), 5);
    File::open(at("dir")).unwrap().sync_all().unwrap(); // FSYNCDIR, RELEASEDIR
    fs::remove_dir(at("dir")).unwrap(); // RMDIR
    rustix::fs::statvfs(at("")).unwrap(); // STATFS
    // READDIR: with READDIRPLUS_AUTO the kernel stops requesting attributes if nothing reads them.
    fs::create_dir(at("many")).unwrap();
    (0..200).for_each(|n| drop(File::create(at(&format!("many/a-rather-long-name-{n:0100}"))).unwrap()));
    fs::read_dir(at("many")).unwrap().for_each(|entry| drop(entry.unwrap()));
    let counts = volume.counts_at_unmount();
    let expected = [
        "LOOKUP",
        "CREATE",
        "OPEN",
        "READ",
        "WRITE",
        "FSYNC",
        "FLUSH",
        "RELEASE",
        "GETATTR",
        "SETATTR",
        "SYMLINK",
        "READLINK",
        "MKNOD",
        "MKDIR",
        "LINK",
        "RENAME2",
        "UNLINK",
        "SETXATTR",
        "GETXATTR",
        "LISTXATTR",
        "REMOVEXATTR",
        "OPENDIR",
        "READDIRPLUS",
        "READDIR",
        "FSYNCDIR",
        "RELEASEDIR",
        "RMDIR",
        "STATFS",
        "INIT",
    ];
    let missing: Vec<_> = expected.into_iter().filter(|name| counts.of(name) == 0).collect();
    assert_eq!(missing, [""; 0], "{counts:?}");
}

#[test]
fn rename_exchange_and_noreplace_work() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let at = |name: &str| volume.at(name);
    let rename = |old: &str, new: &str, flags| renameat_with(CWD, at(old), CWD, at(new), flags);
    for dir in ["p", "p/dir", "q", "q/tree"] {
        fs::create_dir(at(dir)).unwrap();
    }
    fs::write(at("p/file"), "one").unwrap();
    fs::write(at("q/file"), "two").unwrap();
    fs::write(at("q/tree/leaf"), "leaf").unwrap();
    let ino = |name: &str| fs::symlink_metadata(at(name)).unwrap().ino();
    let links = |name: &str| fs::symlink_metadata(at(name)).unwrap().nlink();

    rename("p/file", "q/file", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(at("p/file")).unwrap(), fs::read(at("q/file")).unwrap()),
        (b"two".into(), b"one".into())
    );
    // Two directories with different parents are exchanged: ".." and the paths below them follow the move.
    let before = (ino("p/dir"), ino("q/tree"));
    rename("p/dir", "q/tree", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((ino("q/tree"), ino("p/dir")), before);
    assert_eq!(fs::read(at("p/dir/leaf")).unwrap(), b"leaf");
    assert_eq!(ino("p/dir/.."), ino("p"));
    // A directory and a file are exchanged: the parents' link counts follow.
    assert_eq!((links("p"), links("q")), (3, 3));
    rename("p/dir", "q/file", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((links("p"), links("q")), (2, 4));
    assert_eq!(fs::read(at("q/file/leaf")).unwrap(), b"leaf");
    refused(rename("q", "q/tree", RenameFlags::EXCHANGE), Errno::INVAL);
    refused(rename("q/tree", "q", RenameFlags::EXCHANGE), Errno::INVAL);
    refused(rename("p/dir", "p/none", RenameFlags::EXCHANGE), Errno::NOENT);

    refused(rename("p/file", "p/dir", RenameFlags::NOREPLACE), Errno::EXIST);
    rename("p/file", "p/free", RenameFlags::NOREPLACE).unwrap();
    volume.remount();
    assert_eq!(fs::read(at("p/free")).unwrap(), b"two");
    assert_eq!(fs::read(at("p/dir")).unwrap(), b"one");
    assert_eq!(ino("q/file/.."), ino("q"));
    assert_eq!((links("p"), links("q")), (2, 4));
}

#[test]
fn removed_directory_is_empty_and_refuses_new_entries() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("dir");
    fs::create_dir(&path).unwrap();
    let said = shell(&path, "rmdir ../dir; stat -c %h .; mkdir new 2>&1 || true; ls -a | wc -l");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "0", "{said}");
    assert!(lines[1].contains("No such file"), "{said}");

    fs::create_dir(&path).unwrap();
    let dir = File::open(&path).unwrap();
    fs::remove_dir(&path).unwrap();
    assert_eq!(statat(&dir, "", AtFlags::EMPTY_PATH).unwrap().st_nlink, 0);
    refused(mkdirat(&dir, "sub", Mode::RWXU), Errno::NOENT);
    refused(openat(&dir, "new", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU), Errno::NOENT);
    // A create in a directory that a rename has replaced fails in the same way.
    for name in ["dir", "other"] {
        fs::create_dir(volume.at(name)).unwrap();
    }
    let dir = File::open(&path).unwrap();
    fs::rename(volume.at("other"), &path).unwrap();
    assert_eq!(dir.metadata().unwrap().nlink(), 0);
    refused(mkdirat(&dir, "sub", Mode::RWXU), Errno::NOENT);
    fs::create_dir(path.join("sub")).unwrap();
}

#[test]
fn readdir_returns_each_permanent_name_once_during_changes() {
    const LASTING: usize = 10_000;
    let Some(volume) = Mounted::new(&[]) else { return };
    let dir = volume.at("dir");
    fs::create_dir(&dir).unwrap();
    let half =
        |range: std::ops::Range<usize>| range.for_each(|n| drop(File::create(dir.join(format!("p{n:05}")))));
    thread::scope(|scope| {
        scope.spawn(|| half(0..LASTING / 2));
        half(LASTING / 2..LASTING);
    });
    let done = AtomicBool::new(false);
    let churned = thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                // Names that sort before, between and after the permanent ones.
                let names = ["a", "p00500x", "p05000x", "p09998x", "z"]
                    .map(|name| dir.join(format!("{name}{rounds}")));
                names.iter().for_each(|name| drop(File::create(name).unwrap()));
                fs::rename(&names[0], dir.join(format!("q{rounds}"))).unwrap();
                names[1..].iter().for_each(|name| fs::remove_file(name).unwrap());
                fs::remove_file(dir.join(format!("q{rounds}"))).unwrap();
                rounds += 1;
            }
            rounds
        });
        for round in 0..6 {
            let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            for entry in fs::read_dir(&dir).unwrap() {
                let entry = entry.unwrap();
                if round % 2 == 1 {
                    // Like `ls -l`: the kernel then requests attributes too.
                    let _ = entry.metadata();
                }
                *seen.entry(entry.file_name().as_bytes().to_vec()).or_default() += 1;
            }
            let lasting: Vec<_> =
                seen.iter().filter(|(name, _)| name.len() == 6 && name[0] == b'p').collect();
            assert_eq!(lasting.len(), LASTING, "round {round}");
            let twice = seen.iter().find(|(_, times)| **times > 1);
            assert_eq!(twice, None, "round {round}");
        }
        done.store(true, Ordering::Relaxed);
        churn.join().unwrap()
    });
    assert!(churned > 0, "no entry changed during the listings");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), LASTING);
}

/// Reads names from the directory's current position; with each name comes the offset of the next entry.
fn names_of(dir: &File, limit: usize) -> Vec<(Vec<u8>, u64)> {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while names.len() < limit
        && let Some(entry) = raw.next()
    {
        let entry = entry.unwrap();
        names.push((entry.file_name().to_bytes().to_vec(), entry.next_entry_cookie()));
    }
    names
}

#[test]
fn readdir_resumes_from_any_returned_offset() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("dir");
    fs::create_dir(&path).unwrap();
    (0..3_000).for_each(|n| drop(File::create(path.join(format!("{n}"))).unwrap()));
    for warm in [false, true] {
        let dir = File::open(&path).unwrap();
        let all = names_of(&dir, usize::MAX);
        assert_eq!(all.len(), 3_002, "with . and ..");
        for at in [0, 1, 2, 17, 1_023, 1_024, 1_025, 2_500, 3_000] {
            seek(&dir, SeekFrom::Start(all[at].1)).unwrap();
            let next = names_of(&dir, 1);
            assert_eq!(next[0].0, all[at + 1].0, "after entry {at}, in the cache: {warm}");
        }
        seek(&dir, SeekFrom::Start(all[3_001].1)).unwrap();
        assert_eq!(names_of(&dir, 1), [], "after the last entry");
        // Removing entries that were returned must not shift those that were not.
        seek(&dir, SeekFrom::Start(all[100].1)).unwrap();
        for (name, _) in all[50..90].iter().filter(|(name, _)| name != b"." && name != b"..") {
            fs::remove_file(path.join(OsStr::from_bytes(name))).unwrap();
        }
        let rest: BTreeSet<_> = names_of(&dir, usize::MAX).into_iter().map(|(name, _)| name).collect();
        let expected: BTreeSet<_> = all[101..].iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(rest.difference(&expected).count() + expected.difference(&rest).count(), 0);
        for (name, _) in all[50..90].iter().filter(|(name, _)| name != b"." && name != b"..") {
            File::create(path.join(OsStr::from_bytes(name))).unwrap();
        }
        // rewinddir(3) shows the directory as it is now.
        seek(&dir, SeekFrom::Start(0)).unwrap();
        assert_eq!(names_of(&dir, usize::MAX).len(), 3_002);
    }
}

#[test]
fn names_may_be_any_bytes_up_to_255() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let longest = [b'n'; 255];
    let every_byte: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    let odd: [&[u8]; 8] =
        [&longest, &every_byte, b"\xff\xfe", b" ", b"\n", b"...", b"-rf", "ä\u{301}\u{10ffff}".as_bytes()];
    for name in odd {
        let path = volume.at("").join(OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
    }
    let too_long = volume.at(&"n".repeat(256));
    refused(File::create(&too_long), Errno::NAMETOOLONG);
    refused(fs::metadata(&too_long), Errno::NAMETOOLONG);
    refused(fs::create_dir(&too_long), Errno::NAMETOOLONG);
    refused(symlink("x", &too_long), Errno::NAMETOOLONG);
    refused(fs::rename(volume.at("").join(OsStr::from_bytes(&longest)), &too_long), Errno::NAMETOOLONG);
    volume.remount();
    let listed: BTreeSet<Vec<u8>> = fs::read_dir(volume.at(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    assert_eq!(listed, odd.iter().map(|name| name.to_vec()).collect());
    for name in odd {
        assert_eq!(fs::read(volume.at("").join(OsStr::from_bytes(name))).unwrap(), name);
    }
}

#[test]
fn directories_nest_deeper_than_path_max() {
    let Some(volume) = Mounted::new(&[]) else { return };
    const DEPTH: usize = 300;
    // The tree is deeper than a path can name, so each step is relative to the previous directory.
    let name = "d".repeat(200);
    let mut dir = File::open(volume.at("")).unwrap();
    for _ in 0..DEPTH {
        mkdirat(&dir, &*name, Mode::RWXU).unwrap();
        dir = openat(&dir, &*name, OFlags::DIRECTORY, Mode::empty()).unwrap().into();
    }
    let deepest = dir.metadata().unwrap().ino();
    drop(dir);
    volume.remount();
    let mut dir = File::open(volume.at("")).unwrap();
    for _ in 0..DEPTH {
        dir = openat(&dir, &*name, OFlags::DIRECTORY, Mode::empty()).unwrap().into();
    }
    assert_eq!(dir.metadata().unwrap().ino(), deepest);
    for _ in 0..DEPTH {
        dir = openat(&dir, "..", OFlags::DIRECTORY, Mode::empty()).unwrap().into();
    }
    assert_eq!(dir.metadata().unwrap().ino(), fs::metadata(volume.at("")).unwrap().ino());
}

#[test]
fn symbolic_links_hold_up_to_4095_bytes() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let targets = ["x".to_owned(), "t/".repeat(2_047) + "t", "../dangling \u{e4}\n".to_owned()];
    for (n, target) in targets.iter().enumerate() {
        symlink(target, volume.at(&n.to_string())).unwrap();
    }
    assert_eq!(targets[1].len(), 4_095);
    refused(symlink("t".repeat(4_096), volume.at("long")), Errno::NAMETOOLONG);
    refused(symlink("", volume.at("empty")), Errno::NOENT);
    volume.remount();
    for (n, target) in targets.iter().enumerate() {
        let path = volume.at(&n.to_string());
        assert_eq!(fs::read_link(&path).unwrap(), Path::new(target));
        assert_eq!(fs::symlink_metadata(&path).unwrap().len(), target.len() as u64);
        assert_eq!(mode_of(&path), 0o777);
    }
    symlink("loop", volume.at("loop")).unwrap();
    refused(File::open(volume.at("loop")), Errno::LOOP);
}

#[test]
fn mknod_creates_every_file_type() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let at = |name: &str| volume.at(name);
    let device = makedev(259, 1_048_575);
    let kinds = [
        ("regular", FileType::RegularFile, 0),
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("char", FileType::CharacterDevice, makedev(1, 3)),
        ("block", FileType::BlockDevice, device),
    ];
    for (name, kind, device) in kinds {
        mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
        refused(mknodat(CWD, at(name), kind, Mode::RWXU, device), Errno::EXIST);
    }
    refused(
        as_user(NOBODY, NOBODY, || mknodat(CWD, at("c"), FileType::CharacterDevice, Mode::RWXU, 0)),
        Errno::ACCESS,
    );
    volume.remount();
    for (name, kind, device) in kinds {
        let found = fs::symlink_metadata(at(name)).unwrap();
        assert_eq!(FileType::from_raw_mode(found.mode()), kind, "{name}");
        assert_eq!((found.rdev(), mode_of(&at(name)), found.nlink()), (device, 0o640, 1), "{name}");
    }
    // The special files work: the null device accepts bytes, a fifo passes them on, a socket can be bound and
    // connected to.
    File::options().write(true).open(at("char")).unwrap().write_all(b"gone").unwrap();
    assert_eq!(shell(&at(""), "echo through >fifo & cat fifo"), "through\n");
    let listener = UnixListener::bind(at("bound")).unwrap();
    std::os::unix::net::UnixStream::connect(at("bound")).unwrap();
    drop(listener);
    assert!(fs::metadata(at("bound")).unwrap().file_type().is_socket());
}

#[test]
fn hard_links_are_one_inode() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let at = |name: &str| volume.at(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("a"), "1").unwrap();
    for n in 0..50 {
        fs::hard_link(at("a"), at(&format!("dir/{n}"))).unwrap();
    }
    symlink("a", at("sym")).unwrap();
    fs::hard_link(at("sym"), at("sym2")).unwrap();
    refused(fs::hard_link(at("dir"), at("dir2")), Errno::PERM);
    refused(fs::hard_link(at("a"), at("dir/7")), Errno::EXIST);
    OpenOptions::new().append(true).open(at("dir/49")).unwrap().write_all(b"2").unwrap();
    chmod(&at("dir/3"), 0o604);
    volume.remount();
    let inode = fs::metadata(at("a")).unwrap();
    assert_eq!((inode.nlink(), mode_of(&at("a")), inode.len()), (51, 0o604, 2));
    assert_eq!(fs::metadata(at("dir/0")).unwrap().ino(), inode.ino());
    assert_eq!(fs::symlink_metadata(at("sym2")).unwrap().nlink(), 2);
    // rename of one link onto another does nothing, rename(2).
    fs::rename(at("dir/1"), at("dir/2")).unwrap();
    assert_eq!(fs::metadata(at("dir/1")).unwrap().nlink(), 51);
    fs::remove_file(at("a")).unwrap();
    for n in 0..49 {
        fs::remove_file(at(&format!("dir/{n}"))).unwrap();
    }
    assert_eq!(
        (fs::read(at("dir/49")).unwrap(), fs::metadata(at("dir/49")).unwrap().nlink()),
        (b"12".into(), 1)
    );
}

#[test]
fn times_are_kept_to_the_nanosecond_far_from_today() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("f");
    fs::write(&path, "x").unwrap();
    symlink("f", volume.at("link")).unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let cases = [
        ("recent", time(1_700_000_000, 123_456_789)),
        ("before 1970", time(-1_000_000_000, 1)),
        ("just before 1970", time(-1, 999_999_999)),
        ("2100", time(4_102_444_800, 999_999_999)),
        ("2200", time(7_258_118_400, 7)),
    ];
    for (name, at) in cases {
        let later = time(at.tv_sec + 1, at.tv_nsec);
        let times = Timestamps { last_access: at, last_modification: later };
        let before = fs::metadata(&path).unwrap();
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        utimensat(CWD, volume.at("link"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        for round in ["now", "after the next mount"] {
            for path in [&path, &volume.at("link")] {
                let found = fs::symlink_metadata(path).unwrap();
                assert_eq!((found.atime(), found.atime_nsec()), (at.tv_sec, at.tv_nsec), "{name} {round}");
                assert_eq!(
                    (found.mtime(), found.mtime_nsec()),
                    (later.tv_sec, later.tv_nsec),
                    "{name} {round}"
                );
                let ctime = (found.ctime(), found.ctime_nsec());
                assert!(ctime >= (before.ctime(), before.ctime_nsec()), "{name} {round}");
            }
            if round == "now" {
                volume.remount();
            }
        }
    }
    // UTIME_OMIT leaves a time unchanged, UTIME_NOW sets the current time. Callers other than the owner may
    // only set the current time, and only with write permission.
    let omit = time(0, rustix::fs::UTIME_OMIT);
    let now = time(0, rustix::fs::UTIME_NOW);
    utimensat(CWD, &path, &Timestamps { last_access: omit, last_modification: now }, AtFlags::empty())
        .unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.atime(), found.atime_nsec()), (7_258_118_400, 7));
    assert!(found.modified().unwrap().elapsed().unwrap().as_secs() < 60);
    let set = |at| {
        let times = Timestamps { last_access: at, last_modification: at };
        as_user(NOBODY, NOBODY, || utimensat(CWD, &path, &times, AtFlags::empty()))
    };
    refused(set(time(1, 1)), Errno::PERM);
    refused(set(now), Errno::ACCESS);
    chmod(&path, 0o666);
    refused(set(time(1, 1)), Errno::PERM);
    set(now).unwrap();
}

#[test]
fn owner_group_and_mode_change_only_with_permission() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("f");
    fs::write(&path, "x").unwrap();
    let ids = || {
        let found = fs::metadata(&path).unwrap();
        (found.uid(), found.gid())
    };
    let chown = std::os::unix::fs::chown::<&Path>;
    chown(&path, Some(NOBODY), Some(4_000_000_000)).unwrap();
    assert_eq!(ids(), (NOBODY, 4_000_000_000));
    as_user(NOBODY, 7, || {
        refused(chown(&path, Some(1), None), Errno::PERM);
        refused(chown(&path, None, Some(8)), Errno::PERM);
        chown(&path, None, Some(7)).unwrap();
        chmod(&path, 0o2755);
    });
    assert_eq!((ids(), mode_of(&path)), ((NOBODY, 7), 0o2755));
    // chmod by a caller that is not in the file's group clears SGID, chmod(2).
    as_user(NOBODY, 8, || chmod(&path, 0o2755));
    assert_eq!(mode_of(&path), 0o755);
    as_user(1, 1, || {
        refused(fs::set_permissions(&path, Permissions::from_mode(0o777)), Errno::PERM);
        refused(OpenOptions::new().write(true).open(&path), Errno::ACCESS);
        refused(rustix::fs::access(&path, rustix::fs::Access::WRITE_OK), Errno::ACCESS);
        rustix::fs::access(&path, rustix::fs::Access::READ_OK).unwrap();
    });
    chmod(&path, 0o6755);
    chown(&path, Some(NOBODY), None).unwrap();
    assert_eq!(mode_of(&path), 0o755, "chown clears SUID and SGID");
    volume.remount();
    assert_eq!((ids(), mode_of(&path)), ((NOBODY, 7), 0o755));
}

#[test]
fn writes_by_other_users_clear_suid_and_sgid_at_once() {
    let Some(volume) = Mounted::new(&[]) else { return };
    type Way = (&'static str, OFlags, fn(&File));
    let ways: [Way; 7] = [
        ("write", OFlags::empty(), |file| file.write_all_at(b"x", 0).unwrap()),
        ("append", OFlags::APPEND, |mut file| file.write_all(b"x").unwrap()),
        ("direct write", OFlags::DIRECT, |file| file.write_all_at(&[1; 4096], 0).unwrap()),
        ("ftruncate", OFlags::empty(), |file| file.set_len(5000).unwrap()),
        ("open to truncate", OFlags::TRUNC, |_| {}),
        ("fallocate", OFlags::empty(), |file| {
            fallocate(file, FallocateFlags::empty(), 0, 10_000).unwrap();
        }),
        ("punch a hole", OFlags::empty(), |file| {
            fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).unwrap();
        }),
    ];
    // (mode, the writer's group, mode after the write); files have group 0.
    let modes =
        [(0o6777, 7, 0o777), (0o4777, 7, 0o777), (0o2777, 0, 0o777), (0o6767, 0, 0o2767), (0o666, 7, 0o666)];
    let write = |path: &Path, flags: OFlags, way: fn(&File), gid: u32| {
        as_user(NOBODY, gid, || {
            let options = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path);
            let file = options.unwrap();
            way(&file);
            // A statx for the mode alone, as by `stat -c %A`, is answered from the kernel's cache.
            let alone = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
            [u32::from(alone.stx_mode) & 0o7777, mode_of(path)]
        })
    };
    // The host's file system and the mount must agree.
    for place in [volume.place.path(""), volume.at("")] {
        for (name, flags, way) in ways {
            // The host's file system requires aligned buffers for O_DIRECT.
            if flags == OFlags::DIRECT && place != volume.at("") {
                continue;
            }
            for (mode, gid, left) in modes {
                let path = place.join("f");
                fs::write(&path, vec![b'-'; 8192]).unwrap();
                chmod(&path, mode);
                assert_eq!(mode_of(&path), mode);
                let shown = write(&path, flags, way, gid);
                assert_eq!(shown, [left; 2], "mode {mode:o}, {name} by group {gid} at {}", place.display());
            }
        }
    }
    // A write by root keeps SUID and SGID.
    let path = volume.at("f");
    chmod(&path, 0o6777);
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all(b"x").unwrap();
    assert_eq!(mode_of(&path), 0o6777);
}

#[test]
fn sticky_directory_protects_entries_of_other_owners() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let tmp = volume.at("tmp");
    fs::create_dir(&tmp).unwrap();
    chmod(&tmp, 0o1777);
    as_user(1, 1, || {
        fs::write(tmp.join("a"), "").unwrap();
        fs::create_dir(tmp.join("d")).unwrap();
    });
    as_user(2, 2, || {
        fs::write(tmp.join("b"), "").unwrap();
        refused(fs::remove_file(tmp.join("a")), Errno::PERM);
        refused(fs::remove_dir(tmp.join("d")), Errno::PERM);
        refused(fs::rename(tmp.join("a"), tmp.join("c")), Errno::PERM);
        refused(fs::rename(tmp.join("b"), tmp.join("a")), Errno::PERM);
        fs::rename(tmp.join("b"), tmp.join("c")).unwrap();
    });
    as_user(1, 1, || fs::remove_file(tmp.join("a")).unwrap());
    chmod(&tmp, 0o777);
    as_user(1, 1, || fs::remove_file(tmp.join("c")).unwrap());
    // In a directory with SGID, new entries get the directory's group, and new directories SGID too.
    chown(&tmp, None, Some(77)).unwrap();
    chmod(&tmp, 0o2777);
    as_user(2, 2, || {
        fs::write(tmp.join("g"), "").unwrap();
        fs::create_dir(tmp.join("h")).unwrap();
    });
    assert_eq!(fs::metadata(tmp.join("g")).unwrap().gid(), 77);
    assert_eq!((fs::metadata(tmp.join("h")).unwrap().gid(), mode_of(&tmp.join("h")) & 0o2000), (77, 0o2000));
}

#[test]
fn umask_applies_unless_there_is_a_default_acl() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let dir = volume.at("dir");
    fs::create_dir(&dir).unwrap();
    let make = "umask 027; : >f$1; mkdir d$1; mkfifo p$1";
    let make = |n: &str| shell(&dir, &make.replace("$1", n));
    let modes = |n: &str| ["f", "d", "p"].map(|kind| mode_of(&dir.join(format!("{kind}{n}"))));
    make("1");
    assert_eq!(modes("1"), [0o640, 0o750, 0o640]);
    shell(&dir, "setfacl -d -m u::rwx,g::rwx,o::rx .");
    make("2");
    assert_eq!(modes("2"), [0o664, 0o775, 0o664], "a default ACL without named users");
    shell(&dir, "setfacl -d -m u:1234:rwx,m::rw .");
    make("3");
    assert_eq!(modes("3"), [0o664, 0o765, 0o664]);
    assert!(
        shell(&dir, "getfacl -cn f3").contains("user:1234:rwx\t#effective:rw-"),
        "{}",
        shell(&dir, "getfacl -cn f3")
    );
    assert!(shell(&dir, "getfacl -cnd d3").contains("user:1234:rwx"));
    shell(&dir, "setfacl -k .");
    make("4");
    assert_eq!(modes("4"), [0o640, 0o750, 0o640]);
}

#[test]
fn extended_attributes_are_stored_within_their_limits() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let file = volume.at("f");
    let dir = volume.at("d");
    fs::write(&file, "").unwrap();
    fs::create_dir(&dir).unwrap();
    let set = |name: &str, value: &[u8], flags| setxattr(&file, name, value, flags);
    let get = |name: &str| -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; 65_536];
        let len = getxattr(&file, name, &mut value[..])?;
        value.truncate(len);
        Ok(value)
    };
    let any = XattrFlags::empty();
    refused(set("user.a", b"1", XattrFlags::REPLACE), Errno::NODATA);
    set("user.a", b"1", XattrFlags::CREATE).unwrap();
    refused(set("user.a", b"2", XattrFlags::CREATE), Errno::EXIST);
    set("user.a", b"22", XattrFlags::REPLACE).unwrap();
    assert_eq!(get("user.a").unwrap(), b"22");
    set("user.a", b"", any).unwrap();
    assert_eq!(get("user.a").unwrap(), b"", "an empty value is a value");
    let large: Vec<u8> = (0..65_536u32).map(|n| (n / 7) as u8).collect();
    set("user.large", &large, any).unwrap();
    refused(set("user.large", &[0; 65_537], any), Errno::TOOBIG);
    let longest = format!("user.{}", "n".repeat(250));
    set(&longest, b"long", any).unwrap();
    refused(set(&format!("{longest}n"), b"", any), Errno::RANGE);
    set("trusted.t", b"root", any).unwrap();
    set("security.test", b"s", any).unwrap();
    refused(getxattr(&file, "user.large", &mut [0; 100][..]), Errno::RANGE);
    assert_eq!(getxattr_query(&file, "user.large"), Ok(65_536));
    refused(listxattr(&file, &mut [0; 10][..]), Errno::RANGE);
    let list = || {
        let mut names = vec![0; 65_536];
        let len = listxattr(&file, &mut names[..]).unwrap();
        let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect::<BTreeSet<_>>()
    };
    let names = ["user.a", "user.large", &longest, "trusted.t", "security.test"].map(str::to_owned);
    volume.remount();
    assert_eq!(list(), BTreeSet::from(names));
    assert!(get("user.large").unwrap() == large);
    as_user(NOBODY, NOBODY, || {
        assert!(!list().contains("trusted.t"), "trusted attributes are visible to root only");
        refused(get("trusted.t"), Errno::NODATA);
        refused(set("user.b", b"", any), Errno::ACCESS);
        assert_eq!(get("security.test").unwrap(), b"s");
    });
    for name in list() {
        removexattr(&file, &*name).unwrap();
    }
    refused(removexattr(&file, "user.a"), Errno::NODATA);
    refused(get("user.large"), Errno::NODATA);
    assert_eq!(list(), BTreeSet::new());
    setxattr(&dir, "user.on-directories", b"too", any).unwrap();
    // Only files and directories may have user attributes, xattr(7).
    mknodat(CWD, volume.at("p"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    refused(setxattr(volume.at("p"), "user.a", b"", any), Errno::PERM);
}

#[test]
fn threads_share_a_directory_without_losing_a_name() {
    const THREADS: usize = 8;
    const EACH: usize = 150;
    let Some(volume) = Mounted::new(&[]) else { return };
    let dir = volume.at("dir");
    fs::create_dir(&dir).unwrap();
    let before = volume.inodes();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let dir = &dir;
            scope.spawn(move || {
                for n in 0..EACH {
                    let path = dir.join(format!("{thread}-{n}"));
                    fs::write(&path, format!("{thread} {n}")).unwrap();
                    match n % 3 {
                        0 => fs::remove_file(&path).unwrap(),
                        1 => fs::rename(&path, dir.join(format!("{thread}-{n}-moved"))).unwrap(),
                        _ => {}
                    }
                }
            });
        }
        // All threads also compete for one name: each call either succeeds or fails with EEXIST or ENOENT.
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let made = fs::create_dir(dir.join("contended"));
                    if let Err(error) = made {
                        assert_eq!(error.raw_os_error(), Some(Errno::EXIST.raw_os_error()));
                    }
                    if let Err(error) = fs::remove_dir(dir.join("contended")) {
                        assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
                    }
                }
            });
        }
    });
    let _ = fs::remove_dir(dir.join("contended"));
    let kept = (THREADS * EACH * 2 / 3) as u64;
    assert_eq!(volume.inodes(), before + kept);
    volume.remount();
    assert_eq!(fs::read_dir(&dir).unwrap().count() as u64, kept);
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 2);
    for thread in 0..THREADS {
        assert_eq!(fs::read(dir.join(format!("{thread}-2"))).unwrap(), format!("{thread} 2").as_bytes());
        assert_eq!(
            fs::read(dir.join(format!("{thread}-1-moved"))).unwrap(),
            format!("{thread} 1").as_bytes()
        );
    }
}

#[test]
fn inode_limit_fails_with_enospc_until_an_inode_is_removed() {
    let Some(volume) = Mounted::new(&["--inodes", "10"]) else { return };
    let mut made = 0;
    let error = loop {
        match File::create(volume.at(&format!("{made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(made, 9, "the root directory counts as an inode");
    refused(fs::create_dir(volume.at("d")), Errno::NOSPC);
    refused(symlink("x", volume.at("s")), Errno::NOSPC);
    // Operations that need no new inode still succeed.
    fs::hard_link(volume.at("0"), volume.at("link")).unwrap();
    fs::write(volume.at("0"), "data").unwrap();
    let stat = rustix::fs::statvfs(volume.at("")).unwrap();
    assert_eq!((stat.f_files, stat.f_ffree), (10, 0));
    fs::remove_file(volume.at("1")).unwrap();
    fs::create_dir(volume.at("d")).unwrap();
    volume.remount();
    refused(fs::create_dir(volume.at("e")), Errno::NOSPC);
    assert_eq!(fs::read(volume.at("link")).unwrap(), b"data");
}

#[test]
fn volume_without_acls_fails_with_eopnotsupp() {
    let Some(volume) = Mounted::new(&["--acl", "off"]) else { return };
    let path = volume.at("d");
    fs::create_dir(&path).unwrap();
    // A minimal ACL, which every file system with ACLs accepts: version 2, then USER_OBJ, GROUP_OBJ, OTHER.
    let words: [u16; 14] = [2, 0, 1, 7, !0, !0, 4, 5, !0, !0, 0x20, 5, !0, !0];
    let acl: Vec<u8> = words.into_iter().flat_map(u16::to_le_bytes).collect();
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        refused(setxattr(&path, name, &acl, XattrFlags::empty()), Errno::OPNOTSUPP);
        refused(getxattr_query(&path, name), Errno::OPNOTSUPP);
        refused(removexattr(&path, name), Errno::OPNOTSUPP);
    }
    assert_eq!(listxattr(&path, &mut [0; 100][..]).unwrap(), 0);
    // Mode bits, the umask and other extended attributes work as usual.
    shell(&path, "umask 077; : >f");
    assert_eq!(mode_of(&path.join("f")), 0o600);
    refused(as_user(NOBODY, NOBODY, || File::open(path.join("f"))), Errno::ACCESS);
    setxattr(&path, "user.a", b"1", XattrFlags::empty()).unwrap();
    volume.remount();
    assert_eq!(getxattr_query(&path, "user.a"), Ok(1));
}

/// The kernel of a mount from before ACLs were turned on evaluates mode bits only, so it must not see the
/// mask of an ACL as the permissions of the group.
#[test]
fn acls_turned_on_never_grant_more_on_a_mount_from_before() {
    let Some(volume) = Mounted::new(&["--acl", "off"]) else { return };
    volume.remount_with(&["-o", "shared"]);
    let (group, member, named) = (1000, 1001, 1002);
    let before = |name: &str| volume.at(name);
    fs::write(before("f"), "x").unwrap();
    chown(before("f"), Some(NOBODY), Some(group)).unwrap();
    chmod(&before("f"), 0o600);
    fs::create_dir(before("d")).unwrap();
    let url = volume.place.url();
    limen(&["config", &url, "--acl", "nfsv4"]).failed(2, &["only POSIX ACLs"]);
    assert!(limen(&["config", &url, "--acl", "posix"]).ok().contains("posix (fixed)"));
    limen(&["config", &url, "--acl", "off"]).failed(2, &["cannot be changed"]);
    let place = Place::new();
    chmod(&place.path(""), 0o755);
    place.mount_url(&url, &["-o", "shared"]).ok();
    let after = |name: &str| Path::new(&place.mnt()).join(name);
    shell(&after(""), &format!("setfacl -m u:{named}:rw,g::- f; setfacl -d -m u:{named}:rwx,g::-,o::- d"));
    let open = |path: &Path, uid, gid| {
        let path = path.to_owned();
        as_user(uid, gid, move || OpenOptions::new().read(true).write(true).open(path)).is_ok()
    };
    // On the new mount, the ACL decides.
    assert_eq!(mode_of(&after("f")), 0o660);
    assert!(open(&after("f"), named, named) && open(&after("f"), NOBODY, NOBODY));
    assert!(!open(&after("f"), member, group));
    // On the mount from before, the owner has access, and no caller that lacks access by the ACL has any.
    let deadline = Instant::now() + Duration::from_secs(60);
    while mode_of(&before("f")) != 0o600 {
        assert!(Instant::now() < deadline, "mode {:o}", mode_of(&before("f")));
        thread::sleep(Duration::from_millis(10));
    }
    assert!(open(&before("f"), NOBODY, NOBODY));
    assert!(!open(&before("f"), named, named) && !open(&before("f"), member, group));
    // New files on that mount inherit at once, although the mount may not have read the settings yet.
    shell(&before(""), "umask 022; : >d/new");
    assert!(shell(&after(""), "getfacl -c d/new").contains(&format!("user:{named}:rwx\t#effective:rw-")));
    assert_eq!(mode_of(&before("d/new")), 0o600);
    // Even after the mount has read the settings, it sets no ACL.
    while !volume.place.log().contains("POSIX ACLs were turned on") {
        assert!(Instant::now() < deadline, "{}", volume.place.log());
        thread::sleep(Duration::from_millis(100));
    }
    let mut acl = [0; 100];
    let len = getxattr(after("f"), "system.posix_acl_access", &mut acl[..]).unwrap();
    refused(
        setxattr(before("f"), "system.posix_acl_access", &acl[..len], XattrFlags::empty()),
        Errno::OPNOTSUPP,
    );
    refused(removexattr(before("f"), "system.posix_acl_access"), Errno::OPNOTSUPP);
    place.umount(&[]).ok();
    volume.remount();
    assert!(open(&before("f"), named, named) && !open(&before("f"), member, group));
    assert_eq!(mode_of(&before("d/new")), 0o660);
}

#[test]
fn flock_works_between_programs_on_one_mount() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("f");
    fs::write(&path, "x").unwrap();
    let (one, two) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    one.lock().unwrap();
    assert!(two.try_lock().is_err());
    one.unlock().unwrap();
    two.try_lock().unwrap();
    // Locks are advisory: a locked file can be read.
    assert_eq!(one.read_at(&mut [0], 0).unwrap(), 1);
}
