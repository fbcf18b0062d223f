//! A tree with many kinds of files and attributes, and a description of what programs see of it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

pub(crate) const MIB: u64 = 1 << 20;

/// Runs a tool that must succeed.
#[track_caller]
fn run(tool: &str, args: &[&str]) {
    let done = Command::new(tool).args(args).output().unwrap();
    assert!(done.status.success(), "{tool} {args:?}: {done:?}");
}

/// Creates a tree with many kinds of files and attributes. Its ACLs are NFSv4 ACLs if `nfs4` is set, else
/// POSIX ACLs.
pub(crate) fn make_tree(top: &Path, nfs4: bool) {
    let at = |name: &str| top.join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/small"), b"inline data \0\xff").unwrap();
    fs::write(at("a/empty"), b"").unwrap();
    let large: Vec<u8> = (0..9 * MIB).map(|at| (at * at / 7) as u8).collect();
    fs::write(at("a/large"), &large).unwrap();
    let sparse = File::create(at("a/sparse")).unwrap();
    for place in [0, 70 * MIB, 900 * MIB] {
        sparse.write_all_at(b"written", place).unwrap();
    }
    sparse.set_len(1000 * MIB).unwrap();
    let rewritten = File::create(at("a/rewritten")).unwrap();
    for round in 0..40_u64 {
        rewritten.write_all_at(&[round as u8; 5000], round * 3000).unwrap();
        rewritten.sync_all().unwrap();
    }
    fs::hard_link(at("a/large"), at("a/b/hard link")).unwrap();
    symlink("../small\n\"quoted\"", at("a/b/symlink")).unwrap();
    let odd: [&[u8]; 5] =
        [b"\xff\xfe", b"new\nline", b"base64:QQ==", &[b'x'; 255], " \u{e4} \\ \"".as_bytes()];
    for name in odd {
        fs::write(at("a/b").join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    for count in 0..300 {
        fs::write(at("a/b/c").join(format!("file {count}")), count.to_string()).unwrap();
    }
    mknodat(CWD, at("a/fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    mknodat(CWD, at("a/device"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), 0x0501).unwrap();
    fs::set_permissions(at("a/small"), PermissionsExt::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(at("a/small"), Some(4711), Some(815)).unwrap();
    setxattr(at("a/small"), "user.long", &[7; 60_000], XattrFlags::empty()).unwrap();
    setxattr(at("a/b"), "user.\u{e4}", b"\xff", XattrFlags::empty()).unwrap();
    if nfs4 {
        run("nfs4_setfacl", &["-a", "A::4711:rwx", &text("a/small")]);
        run("nfs4_setfacl", &["-a", "A:fdg:815:rx", &text("a/b/c")]);
    } else {
        run("setfacl", &["-m", "u:4711:rw,g:815:r,m::rwx", &text("a/small"), &text("a/large")]);
        run("setfacl", &["-d", "-m", "u:4712:rwx", &text("a/b")]);
        fs::create_dir(at("a/b/inherits")).unwrap();
    }
    // The copy shares slices with `a/large`.
    let copied = Command::new("cp").args(["--reflink=auto", &text("a/large"), &text("a/copy")]).status();
    assert!(copied.unwrap().success());
}

/// Describes each file below `top`, by its relative path, as programs see it: its attributes without the
/// access time and the number of blocks, its extended attributes, and its content or target.
pub(crate) fn walk(top: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut seen = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let mut state = format!(
            "{} {:o} {} {} {} {} {} {}.{} {}.{}",
            metadata.ino(),
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.nlink(),
            metadata.rdev(),
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        );
        let mut names = vec![0; 65536];
        let len = rustix::fs::llistxattr(&path, &mut names[..]).unwrap();
        let mut names: Vec<&[u8]> =
            names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        for name in names {
            let mut value = vec![0; 65536];
            let len = rustix::fs::lgetxattr(&path, name, &mut value[..]).unwrap();
            state += &format!(" {}={}", name.escape_ascii(), sum_of(&value[..len]));
        }
        if metadata.is_symlink() {
            state += &format!(" -> {:?}", fs::read_link(&path).unwrap());
        } else if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if metadata.is_file() {
            state += &format!(" {}", content_sum(&path, metadata.size()));
        }
        if path == top {
            continue;
        }
        let below = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
        assert_eq!(seen.insert(below, state), None);
    }
    seen
}

/// A checksum of a file's content. Only some parts of a large file are read.
fn content_sum(path: &Path, size: u64) -> u64 {
    let mut file = File::open(path).unwrap();
    let mut sum: u64 = 0;
    for start in (0..size).step_by(10 * MIB as usize) {
        file.seek(SeekFrom::Start(start)).unwrap();
        let mut bytes = Vec::new();
        (&file).take(if size > 20 * MIB { MIB } else { 10 * MIB }).read_to_end(&mut bytes).unwrap();
        sum = sum.wrapping_mul(31).wrapping_add(sum_of(&bytes));
    }
    sum
}

pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(5381, |sum: u64, byte| sum.wrapping_mul(33) ^ u64::from(*byte)) >> 8
}
