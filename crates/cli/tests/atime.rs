//! Access times on a mount, by mount option: which operations set them, and how many requests that takes.

mod common;
mod harness;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use harness::Mounted;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, open, utimensat};

type Stamp = (i64, i64);

fn atime(path: &Path) -> Stamp {
    let found = fs::symlink_metadata(path).unwrap();
    (found.atime(), found.atime_nsec())
}

fn ctime(path: &Path) -> Stamp {
    let found = fs::symlink_metadata(path).unwrap();
    (found.ctime(), found.ctime_nsec())
}

fn set_times(path: &Path, atime_sec: i64, mtime_sec: i64) {
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let times = Timestamps { last_access: time(atime_sec), last_modification: time(mtime_sec) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn list(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

/// A volume with a file, a directory that has an entry, and a symbolic link, mounted with this option.
fn mounted(option: &str) -> Option<Mounted> {
    let volume = Mounted::new(&[])?;
    fs::write(volume.at("file"), "text").unwrap();
    fs::create_dir(volume.at("dir")).unwrap();
    fs::write(volume.at("dir/entry"), "").unwrap();
    symlink("file", volume.at("link")).unwrap();
    remount(&volume, option);
    Some(volume)
}

fn remount(volume: &Mounted, option: &str) {
    volume.place.umount(&[]).ok();
    volume.place.mount(&["-o", option]).ok();
}

/// The options of the mount in /proc/self/mountinfo.
fn shown(volume: &Mounted) -> Vec<String> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mnt = volume.place.mnt();
    let line = mountinfo.lines().find(|line| line.split(' ').nth(4) == Some(&mnt)).unwrap();
    line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect()
}

fn is_shown(volume: &Mounted, option: &str) -> bool {
    shown(volume).iter().any(|shown| shown == option)
}

#[test]
fn reads_leave_atime_alone_by_default() {
    for option in ["defaults", "noatime", "strictatime,ro"] {
        let Some(volume) = mounted(option) else { return };
        let paths = ["file", "dir", "link"].map(|name| volume.at(name));
        let before = paths.each_ref().map(|path| atime(path));
        assert_eq!(fs::read(&paths[0]).unwrap(), b"text");
        assert_eq!(list(&paths[1]), 1);
        assert_eq!(fs::read(&paths[2]).unwrap(), b"text");
        assert_eq!(paths.each_ref().map(|path| atime(path)), before, "{option}");
        assert!(is_shown(&volume, "noatime"), "{option}: {:?}", shown(&volume));
        remount(&volume, "noatime");
        assert_eq!(paths.each_ref().map(|path| atime(path)), before, "{option}");
    }
}

#[test]
fn relatime_updates_atime_once_after_each_change() {
    let Some(volume) = mounted("relatime") else { return };
    assert!(is_shown(&volume, "relatime"), "{:?}", shown(&volume));
    let (file, dir, link) = (volume.at("file"), volume.at("dir"), volume.at("link"));
    let read = |path: &Path| {
        match path == dir {
            true => assert_eq!(list(path), 1),
            false => assert!(fs::read(path).unwrap().starts_with(b"text")),
        }
        atime(path)
    };
    for path in [&file, &dir, &link] {
        set_times(path, 1_000, 2_000);
        let set = ctime(path);
        assert_eq!(atime(path), (1_000, 0), "{path:?}");
        let moved = read(path);
        assert!(moved > set, "{path:?}: {moved:?} {set:?}");
        assert_eq!((read(path), read(path)), (moved, moved), "{path:?}: a second read changes nothing");
        assert_eq!(ctime(path), set, "{path:?}: reading does not change ctime");
    }
    // The kernel has the written page in its cache. The next read must set the access time nevertheless.
    let moved = atime(&file);
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b", more").unwrap();
    assert_eq!(atime(&file), moved);
    let after_write = read(&file);
    assert!(after_write > moved);
    let moved = atime(&dir);
    fs::rename(volume.at("dir/entry"), volume.at("dir/renamed")).unwrap();
    assert_eq!(atime(&dir), moved);
    assert!(read(&dir) > moved);
    // O_NOATIME is honoured even if a read would update the access time.
    set_times(&file, 3_000, 4_000);
    let mut quiet = File::from(open(&file, OFlags::RDONLY | OFlags::NOATIME, Mode::empty()).unwrap());
    let mut text = String::new();
    quiet.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), atime(&file)), ("text, more", (3_000, 0)));
    drop(quiet);
    // Opening a file does not update its access time.
    drop(File::open(&file).unwrap());
    OpenOptions::new().write(true).open(&file).unwrap().sync_all().unwrap();
    assert_eq!(atime(&file), (3_000, 0));
    // Access times from reads survive a remount, unless utimensat(2) sets others after the read.
    let kept = [read(&file), atime(&dir), atime(&link)];
    remount(&volume, "relatime");
    assert_eq!([atime(&file), atime(&dir), atime(&link)], kept);
    set_times(&file, 5_000, 6_000);
    read(&file);
    set_times(&file, 5_000, 6_000);
    assert_eq!(atime(&file), (5_000, 0));
    remount(&volume, "relatime");
    assert_eq!(atime(&file), (5_000, 0));
}

#[test]
fn relatime_costs_no_request_if_nothing_changes() {
    let Some(volume) = mounted("relatime") else { return };
    for round in 0..11 {
        assert_eq!(fs::read(volume.at("file")).unwrap(), b"text", "{round}");
        assert_eq!(list(&volume.at("dir")), 1, "{round}");
    }
    let counts = volume.counts_at_unmount();
    assert_eq!((counts.of("OPEN"), counts.of("READ")), (11, 1), "{counts:?}");
    assert_eq!(counts.of("OPENDIR"), 11, "{counts:?}");
    // One request reads the entries, and one finds the end.
    assert!(counts.of("READDIR") + counts.of("READDIRPLUS") <= 2, "{counts:?}");
}

#[test]
fn strictatime_updates_atime_on_each_read() {
    let Some(volume) = mounted("strictatime") else { return };
    assert!(!is_shown(&volume, "relatime") && !is_shown(&volume, "noatime"), "{:?}", shown(&volume));
    let (file, dir, link) = (volume.at("file"), volume.at("dir"), volume.at("link"));
    let mut last = [atime(&file), atime(&dir), atime(&link)];
    for round in 0..3 {
        assert_eq!(fs::read(&file).unwrap(), b"text");
        assert_eq!(list(&dir), 1);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("file"));
        let now = [atime(&file), atime(&dir), atime(&link)];
        assert!(now.iter().zip(&last).all(|(now, last)| now > last), "{round}: {now:?} {last:?}");
        last = now;
    }
    // With O_DIRECT each read updates the access time, even through the same descriptor.
    let direct = File::from(open(&file, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap());
    for _ in 0..2 {
        let before = atime(&file);
        assert_eq!(direct.read_at(&mut [0; 4], 0).unwrap(), 4);
        assert!(atime(&file) > before);
    }
    drop(direct);
    let kept = [atime(&file), atime(&dir), atime(&link)];
    remount(&volume, "noatime");
    assert_eq!([atime(&file), atime(&dir), atime(&link)], kept);
}
