//! Linux extensions to POSIX on a mount: whiteouts, file ranges, unnamed files, direct I/O, huge files,
//! statx(2), syncfs(2), locks in /proc, file handles, ACLs through O_PATH descriptors.

mod common;
mod harness;
mod wire;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::limen;
use harness::{Mounted, NOBODY, as_user, refused};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags,
    XattrFlags, copy_file_range, fallocate, fcntl_lock, fgetxattr, ftruncate, linkat, open, renameat_with,
    seek, setxattr, statx, syncfs,
};
use rustix::io::Errno;

const MIB: usize = 1 << 20;

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn bytes_at(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// The number of objects in the bucket.
fn objects(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { objects(&entry.path()) } else { 1 }).sum()
}

#[test]
fn rename_whiteout_leaves_a_whiteout() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let (from, to) = (volume.at("from"), volume.at("to"));
    fs::write(&from, "text").unwrap();
    fs::write(&to, "old").unwrap();
    let rename = |flags| renameat_with(CWD, &from, CWD, &to, flags);
    refused(rename(RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Errno::EXIST);
    refused(rename(RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Errno::INVAL);
    rename(RenameFlags::WHITEOUT).unwrap();
    for round in ["now", "after the next mount"] {
        let left = fs::symlink_metadata(&from).unwrap();
        assert!(left.file_type().is_char_device(), "{round}");
        assert_eq!((left.rdev(), left.nlink(), left.mode() & 0o7777), (0, 1, 0), "{round}");
        assert_eq!(fs::read(&to).unwrap(), b"text", "{round}");
        volume.remount();
    }
    fs::remove_file(&from).unwrap();
    refused(rename(RenameFlags::WHITEOUT), Errno::NOENT);
}

#[test]
fn ranges_are_allocated_punched_and_zeroed() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("file");
    let file = read_write(&path);
    file.write_all_at(&[7; 20_000], 0).unwrap();
    let len = || file.metadata().unwrap().len();
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&file, FallocateFlags::empty(), 10_000, 15_000).unwrap();
    assert_eq!((len(), bytes_at(&file, 19_999, 5_001)), (25_000, [vec![7], vec![0; 5_000]].concat()));
    fallocate(&file, keep, 0, 90_000).unwrap();
    assert_eq!(len(), 25_000);
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 100, 5_000).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE | keep, 10_000, 50_000).unwrap();
    assert_eq!(len(), 25_000);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 24_000, 6_000).unwrap();
    let expected = [vec![7; 100], vec![0; 5_000], vec![7; 4_900], vec![0; 20_000]].concat();
    assert!(bytes_at(&file, 0, 30_000) == expected);
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        refused(fallocate(&file, flags, 0, 4096), Errno::OPNOTSUPP);
    }
    refused(fallocate(&file, FallocateFlags::empty(), 0, 0), Errno::INVAL);
    refused(fallocate(File::open(&path).unwrap(), FallocateFlags::empty(), 0, 1), Errno::BADF);
    assert!(bytes_at(&file, 0, 30_000) == expected);
    drop(file);
    volume.remount();
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn fallocate_by_another_user_clears_suid_and_sgid() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("program");
    let changes = [
        FallocateFlags::empty(),
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE,
    ];
    for flags in changes {
        fs::write(&path, [1; 100]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        as_user(NOBODY, NOBODY, || {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            fallocate(&file, flags, 10, 20).unwrap();
        });
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{flags:?}");
    }
}

#[test]
fn seek_data_and_seek_hole_find_data_and_holes() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let file = read_write(&volume.at("file"));
    let (far, size) = (100 * MIB as u64, 200 * MIB as u64);
    file.write_all_at(&[1; 5], 0).unwrap();
    file.write_all_at(&[2; 9], far).unwrap();
    ftruncate(&file, size).unwrap();
    let data = |from| seek(&file, SeekFrom::Data(from));
    let hole = |from| seek(&file, SeekFrom::Hole(from));
    for round in ["written", "synced"] {
        assert_eq!((data(0), hole(0)), (Ok(0), Ok(5)), "{round}");
        assert_eq!((data(5), hole(5)), (Ok(far), Ok(5)), "{round}");
        assert_eq!((data(far + 3), hole(far + 3)), (Ok(far + 3), Ok(far + 9)), "{round}");
        assert_eq!((data(far + 9), hole(size - 1)), (Err(Errno::NXIO), Ok(size - 1)), "{round}");
        assert_eq!((data(size), hole(size)), (Err(Errno::NXIO), Err(Errno::NXIO)), "{round}");
        file.sync_all().unwrap();
    }
    // A file without a hole ends in an implicit one.
    fs::write(volume.at("full"), [3; 10_000]).unwrap();
    assert_eq!(seek(File::open(volume.at("full")).unwrap(), SeekFrom::Hole(0)), Ok(10_000));
}

#[test]
fn copy_file_range_shares_the_stored_data() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let pattern: Vec<u8> = (0..9 * MIB).map(|at| (at % 251) as u8).collect();
    fs::write(volume.at("from"), &pattern).unwrap();
    let (from, to) = (File::open(volume.at("from")).unwrap(), read_write(&volume.at("to")));
    let stored = objects(&volume.place.path("vol.data"));
    let (mut at_from, mut at_to) = (1_000, 3);
    let mut left = pattern.len() - 1_000;
    while left > 0 {
        let copied = copy_file_range(&from, Some(&mut at_from), &to, Some(&mut at_to), left + 77).unwrap();
        assert!(copied > 0, "{left} bytes are left");
        left -= copied;
    }
    assert_eq!(copy_file_range(&from, Some(&mut at_from), &to, Some(&mut at_to), 1), Ok(0), "the end");
    to.sync_all().unwrap();
    assert_eq!(objects(&volume.place.path("vol.data")), stored, "no object was added");
    let expected = [&[0; 3][..], &pattern[1_000..]].concat();
    assert!(fs::read(volume.at("to")).unwrap() == expected);
    // From now on the files change independently, and the copy survives the removal of its source.
    to.write_all_at(b"changed", 5 * MIB as u64).unwrap();
    assert!(fs::read(volume.at("from")).unwrap() == pattern);
    drop((from, to));
    fs::remove_file(volume.at("from")).unwrap();
    volume.remount();
    let found = fs::read(volume.at("to")).unwrap();
    assert!(found[..5 * MIB] == expected[..5 * MIB] && found[5 * MIB + 7..] == expected[5 * MIB + 7..]);
    let file = read_write(&volume.at("to"));
    refused(copy_file_range(&file, Some(&mut 0), &file, Some(&mut 5), 10), Errno::INVAL);
}

#[test]
fn unnamed_file_is_linked_or_removed() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let empty = volume.inodes();
    let unnamed =
        |flags| File::from(open(volume.at(""), OFlags::TMPFILE | OFlags::RDWR | flags, Mode::RUSR).unwrap());
    let link = |file: &File, name: &str| {
        let here = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, here, CWD, volume.at(name), AtFlags::SYMLINK_FOLLOW)
    };
    let file = unnamed(OFlags::empty());
    file.write_all_at(&[5; 5 * MIB], 0).unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), volume.inodes()), (0, empty + 1));
    assert_eq!(fs::read_dir(volume.at("")).unwrap().count(), 0);
    link(&file, "named").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    refused(link(&unnamed(OFlags::EXCL), "never"), Errno::NOENT);
    drop(file);
    volume.remount();
    assert!(fs::read(volume.at("named")).unwrap() == vec![5; 5 * MIB]);
    // A file that never had a name is removed, even if the server was killed.
    let lost = unnamed(OFlags::empty());
    lost.write_all_at(b"lost", 0).unwrap();
    assert_eq!(volume.inodes(), empty + 2);
    volume.kill_and_remount();
    drop(lost);
    assert_eq!(volume.inodes(), empty + 1);
}

#[test]
fn acls_stay_through_o_path_descriptors_hard_links_and_copies() {
    let posix = [
        "system.posix_acl_access",
        "user::rw-,user:1000:rw-,group::r--,mask::rw-,other::---",
        "user::rw-,user:1000:r--,group::r--,mask::rw-,other::rw-",
    ];
    let nfs4 = [
        wire::NFS4_ACL,
        "A::1000:rwtcy,D::1001:w,A::OWNER@:rwatTnNcCoy,A::EVERYONE@:tcy",
        "A::EVERYONE@:rwatcy",
    ];
    for (format, [name, acl, writable]) in [("posix", posix), ("nfsv4", nfs4)] {
        let Some(volume) = Mounted::new(&["--acl", format]) else { return };
        let at = |file: &str| volume.at(file);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/first"), "text").unwrap();
        set_acl(format, &at("d/first"), acl);
        let expected = wire::value(&at("d/first"), name).unwrap();
        let has =
            |path: &Path| assert_eq!(wire::value(path, name).as_ref(), Ok(&expected), "{format} {path:?}");
        let may_write =
            |path: &Path, uid| as_user(uid, uid, || OpenOptions::new().write(true).open(path)).is_ok();

        // The descriptor names the inode, whatever becomes of the name by which it was opened.
        let held = open(at("d/first"), OFlags::PATH, Mode::empty()).unwrap();
        refused(fgetxattr(&held, name, &mut [0_u8; 8][..]), Errno::BADF);
        let through = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        has(&through);
        fs::hard_link(at("d/first"), at("second")).unwrap();
        fs::rename(at("d/first"), at("moved")).unwrap();
        [at("second"), at("moved"), through.clone()].iter().for_each(|path| has(path));
        fs::remove_file(at("moved")).unwrap();
        linkat(CWD, &through, CWD, at("third"), AtFlags::SYMLINK_FOLLOW).unwrap();
        fs::remove_file(at("second")).unwrap();
        has(&through);
        has(&at("third"));
        fs::set_permissions(at("d"), fs::Permissions::from_mode(0o755)).unwrap();
        for path in [at("third"), through.clone()] {
            assert_eq!([1000, 1001, 1002].map(|uid| may_write(&path, uid)), [true, false, false], "{format}");
        }
        // An ACL that is set through the descriptor applies to the link.
        fs::write(at("writable"), "").unwrap();
        set_acl(format, &at("writable"), writable);
        let set = |value: &[u8]| setxattr(&through, name, value, XattrFlags::empty()).unwrap();
        set(&wire::value(&at("writable"), name).unwrap());
        assert!(may_write(&at("third"), 1002), "{format}");
        set(&expected);
        assert!(!may_write(&at("third"), 1002), "{format}");

        // One copy shares the data, and one does not. FUSE has no FICLONE, so cp calls copy_file_range(2).
        for mode in ["--reflink=auto", "--reflink=never"] {
            let copied = Command::new("cp").args(["-a", mode]).args([at("third"), at(mode)]).status();
            assert!(copied.unwrap().success(), "{format} {mode}");
            has(&at(mode));
        }
        // ACLs that are in use outlive the search for unused ones, and a kill.
        limen(&["gc", &volume.place.url()]).ok();
        volume.kill_and_remount();
        for file in ["third", "--reflink=auto", "--reflink=never"] {
            has(&at(file));
            assert_eq!(fs::read(at(file)).unwrap(), b"text", "{format} {file}");
        }
    }
}

fn set_acl(format: &str, path: &Path, acl: &str) {
    if format == "nfsv4" {
        wire::set(path, acl).unwrap();
        return;
    }
    let status = Command::new("setfacl").arg("--set").arg(acl).arg(path).status().unwrap();
    assert!(status.success(), "{acl} {path:?}");
}

#[test]
fn direct_and_buffered_io_see_each_other() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("file");
    let buffered = read_write(&path);
    let options = |direct: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(direct.bits() as i32);
        options.open(&path).unwrap()
    };
    let direct = options(OFlags::DIRECT);
    buffered.write_all_at(&[1; 10_000], 0).unwrap();
    assert_eq!(bytes_at(&direct, 0, 10_000), [1; 10_000]);
    direct.write_all_at(&[2; 4096], 4096).unwrap();
    assert_eq!(bytes_at(&buffered, 0, 10_000), [vec![1; 4096], vec![2; 4096], vec![1; 1808]].concat());
    // No alignment is required.
    direct.write_all_at(b"odd", 9_999).unwrap();
    assert_eq!(bytes_at(&buffered, 9_998, 4), [1, b'o', b'd', b'd']);
    assert_eq!(buffered.metadata().unwrap().len(), 10_002);
}

#[test]
fn files_reach_the_largest_offset() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("sparse");
    let file = read_write(&path);
    file.write_all_at(b"far", 1 << 62).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 62) + 3);
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(1 << 62));
    assert_eq!(bytes_at(&file, (1 << 62) - 2, 5), b"\0\0far");
    let last = i64::MAX as u64;
    ftruncate(&file, last).unwrap();
    file.write_all_at(b"z", last - 1).unwrap();
    // Like on tmpfs: the kernel rejects a write whose end is not a valid offset.
    refused(file.write_all_at(b"z", last), Errno::INVAL);
    drop(file);
    volume.remount();
    let file = File::open(&path).unwrap();
    assert_eq!((file.metadata().unwrap().len(), bytes_at(&file, last - 1, 1)), (last, b"z".to_vec()));
    assert_eq!(bytes_at(&file, (1 << 62) - 2, 5), b"\0\0far");
    fs::remove_file(&path).unwrap();
}

#[test]
fn fstat_of_a_replaced_file_shows_zero_links_at_once() {
    let Some(volume) = Mounted::new(&[]) else { return };
    fs::write(volume.at("old"), "old").unwrap();
    fs::write(volume.at("new"), "newer").unwrap();
    let (old, new) = (File::open(volume.at("old")).unwrap(), File::open(volume.at("new")).unwrap());
    let before = [old.metadata().unwrap(), new.metadata().unwrap()];
    fs::rename(volume.at("new"), volume.at("old")).unwrap();
    let after = [old.metadata().unwrap(), new.metadata().unwrap()];
    assert_eq!(after.each_ref().map(|m| (m.nlink(), m.len())), [(0, 3), (1, 5)]);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.ino(), after.ino());
        assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
    }
}

#[test]
fn statx_matches_stat_and_has_no_birth_time() {
    let Some(volume) = Mounted::new(&[]) else { return };
    fs::write(volume.at("file"), "text").unwrap();
    fs::write(volume.at("other"), "").unwrap();
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let ask = |name: &str, flags, mask| statx(CWD, volume.at(name), flags, mask).unwrap();
    for flags in [AtFlags::empty(), AtFlags::STATX_FORCE_SYNC, AtFlags::STATX_DONT_SYNC] {
        let found = ask("file", flags, wanted);
        let mask = StatxFlags::from_bits_retain(found.stx_mask);
        assert!(mask.contains(StatxFlags::BASIC_STATS) && !mask.contains(StatxFlags::BTIME), "{mask:?}");
        let stat = fs::metadata(volume.at("file")).unwrap();
        assert_eq!((found.stx_ino, found.stx_size), (stat.ino(), 4));
        assert_eq!((u32::from(found.stx_mode), u64::from(found.stx_nlink)), (stat.mode(), stat.nlink()));
        assert_eq!((found.stx_uid, found.stx_gid, found.stx_blocks), (0, 0, stat.blocks()));
        let times = [found.stx_atime, found.stx_mtime, found.stx_ctime].map(|t| (t.tv_sec, t.tv_nsec.into()));
        let stamps = [
            (stat.atime(), stat.atime_nsec()),
            (stat.mtime(), stat.mtime_nsec()),
            (stat.ctime(), stat.ctime_nsec()),
        ];
        assert_eq!(times, stamps);
    }
    ask("other", AtFlags::empty(), StatxFlags::SIZE);
    ask("other", AtFlags::empty(), wanted);
    // The server reports only once that it has no birth times, and the kernel does not send STATX again.
    let counts = volume.counts_at_unmount();
    assert_eq!(counts.of("STATX"), 1, "{counts:?}");
}

#[test]
fn syncfs_succeeds_without_reaching_the_server() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let file = read_write(&volume.at("file"));
    file.write_all_at(b"text", 0).unwrap();
    syncfs(&file).unwrap();
    drop(file);
    assert_eq!(fs::read(volume.at("file")).unwrap(), b"text");
    // Linux sends SYNCFS to virtiofs and block devices only (`fuse_sync_fs`). If that changes, update
    // SEMANTICS.md.
    assert_eq!(volume.counts_at_unmount().of("SYNCFS"), 0);
}

#[test]
fn locks_show_in_proc() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let file = read_write(&volume.at("file"));
    let (ino, pid) = (file.metadata().unwrap().ino(), std::process::id());
    let shown = |kind: &str| {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let fields = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ours =
            |f: &Vec<&str>| f[1] == kind && f[4] == pid.to_string() && f[5].ends_with(&format!(":{ino}"));
        fields.filter(ours).map(|f| f[3].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((shown("POSIX"), shown("FLOCK")), (vec![], vec![]));
    fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    file.lock_shared().unwrap();
    assert_eq!((shown("POSIX"), shown("FLOCK")), (vec!["WRITE".to_owned()], vec!["READ".to_owned()]));
    drop(file);
    assert_eq!((shown("POSIX"), shown("FLOCK")), (vec![], vec![]));
}

#[test]
fn no_name_is_reserved() {
    let Some(volume) = Mounted::new(&[]) else { return };
    assert_eq!(fs::read_dir(volume.at("")).unwrap().count(), 0);
    let names = [".accesslog", ".config", ".control", ".limen", ".stats", ".trash", "lost+found", "volume"];
    for name in names {
        refused(fs::symlink_metadata(volume.at(name)), Errno::NOENT);
        fs::write(volume.at(name), name).unwrap();
        fs::create_dir(volume.at(&format!("{name}.d"))).unwrap();
    }
    volume.remount();
    assert_eq!(fs::read_dir(volume.at("")).unwrap().count(), 2 * names.len());
    for name in names {
        assert_eq!(fs::read(volume.at(name)).unwrap(), name.as_bytes());
        fs::remove_file(volume.at(name)).unwrap();
    }
}

/// Runs `handles.py` and returns the lines that it prints.
fn handles(command: &str, args: &[&str]) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/handles.py");
    let output = Command::new("python3").args([script, command]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn file_handles_are_valid_while_the_file_exists() {
    for format in [&[][..], &["--acl", "nfsv4"]] {
        let Some(volume) = Mounted::new(format) else { return };
        let at = |name: &str| volume.at(name).to_str().unwrap().to_owned();
        fs::create_dir_all(at("a/b/c/d")).unwrap();
        for name in ["file", "a/b/c/d/deep", "removed", "open", "a/b/moved"] {
            fs::write(at(name), name).unwrap();
        }
        fs::create_dir(at("gone")).unwrap();
        let named = ["file", "a/b/c/d/deep", "a/b/moved", "a/b/c", "", "removed", "gone"].map(at);
        let known = handles("name", &named.each_ref().map(String::as_str));
        let open = |known: &[String]| {
            let mount = at("");
            let args = [mount.as_str()].into_iter().chain(known.iter().map(String::as_str));
            handles("open", &args.collect::<Vec<_>>())
        };
        let (deep, root) = (at("a/b/c"), at(""));
        let root = root.trim_end_matches('/');
        let shown = |root: &str| format!("{root} a file");
        fs::rename(at("a/b/moved"), at("a/moved")).unwrap();
        fs::remove_file(at("removed")).unwrap();
        fs::remove_dir(at("gone")).unwrap();
        // A file without a name exists while it is open.
        let held = File::open(at("open")).unwrap();
        let nameless = handles("name", &[&at("open")]);
        fs::remove_file(at("open")).unwrap();
        assert_eq!(open(&nameless), ["open"]);
        drop(held);
        // The kernel sends RELEASE in the background, so close(2) may return before the file is deleted.
        let closed = Instant::now();
        while open(&nameless) != ["ESTALE"] {
            assert!(closed.elapsed() < Duration::from_secs(60), "the file still exists");
        }
        let expected =
            ["file", "a/b/c/d/deep", "a/b/moved", &format!("{deep} d"), &shown(root), "ESTALE", "ESTALE"];
        assert_eq!(open(&known), expected);
        // After this, the kernel has no inodes of the volume cached.
        volume.remount();
        assert_eq!(open(&known), expected);
        // One handle per mount: no other handle has brought its directories into the cache.
        for (handle, expected) in known.iter().zip(expected) {
            volume.remount();
            assert_eq!(open(std::slice::from_ref(handle)), [expected]);
        }
        fs::write(at("file"), "fresh").unwrap();
        assert_eq!(open(&known[..1]), ["fresh"]);
    }
}
