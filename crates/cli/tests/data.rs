//! File data on a mount, as root: reads return what was written, before and after a remount.

mod common;
mod harness;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::limen;
use engine_sqlite::{Options, SqliteEngine};
use harness::{Mounted, NOBODY, Random, as_user, refused};
use meta::{Engine, Scan, ScanInclude};
use rustix::fs::{StatVfsMountFlags, XattrFlags, getxattr_query, setxattr};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

const MIB: usize = 1 << 20;

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn appends_through_two_descriptors_never_overlap() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("log");
    let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (one, two) = (open(), open());
    for (mut file, letter) in [(&one, 'a'), (&two, 'b'), (&two, 'c'), (&one, 'd')] {
        write!(file, "{letter}").unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), b"abcd");
    std::thread::scope(|scope| {
        for (mut file, letter) in [(&one, b'1'), (&two, b'2')] {
            scope.spawn(move || (0..300).for_each(|_| file.write_all(&[letter; 77]).unwrap()));
        }
    });
    let verify = || {
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 4 + 600 * 77);
        let records: Vec<_> = bytes[4..].chunks(77).collect();
        assert!(records.iter().all(|record| record.iter().all(|byte| byte == &record[0])), "a torn record");
        assert_eq!(records.iter().filter(|record| record[0] == b'1').count(), 300);
    };
    verify();
    drop((one, two));
    volume.remount();
    verify();
}

/// Compiles a C program next to the volume.
fn tool(volume: &Mounted, name: &str) -> impl Fn(&[&str]) -> String {
    let tool = volume.place.text(name);
    let source = format!("{}/tests/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let options = ["-O1", "-Wall", "-pthread", "-o", &tool, &source];
    assert!(Command::new("cc").args(options).status().unwrap().success());
    move |args| {
        let output = Command::new(&tool).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Does what the test generic/451 of xfstests does.
#[test]
fn asynchronous_direct_writes_leave_no_outdated_pages_to_readers() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let aio = tool(&volume, "aio");
    assert_eq!(aio(&[volume.at("f").to_str().unwrap(), "300"]), "0 0\n");
}

#[test]
fn shared_mappings_read_and_write_the_file() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let mmap = tool(&volume, "mmap");
    let path = volume.at("mapped");
    let text = path.to_str().unwrap();
    // A file that is stored in a row, and one of several blocks.
    for len in [3_000, 9 * MIB + 17] {
        let mut shadow = Random(7).bytes(len);
        shadow[10..14].copy_from_slice(b"mark");
        fs::write(&path, &shadow).unwrap();
        assert_eq!(mmap(&["read", text, "10", "4"]), "mark");
        let end = (len - 9).to_string();
        mmap(&["write", text, "100", "synced"]);
        mmap(&["leave", text, &end, "written"]);
        shadow[100..106].copy_from_slice(b"synced");
        shadow[len - 9..len - 2].copy_from_slice(b"written");
        assert!(fs::read(&path).unwrap() == shadow, "read(2) sees what a mapping wrote");
        // A mapping sees what write(2) wrote.
        read_write(&path).write_all_at(b"by write", 50).unwrap();
        shadow[50..58].copy_from_slice(b"by write");
        assert_eq!(mmap(&["read", text, "50", "8"]), "by write");
        volume.remount();
        assert!(fs::read(&path).unwrap() == shadow, "{len} bytes after the next mount");
        assert_eq!(mmap(&["read", text, &end, "7"]), "written");
    }
}

#[test]
fn data_written_by_mmap_and_msync_survives_a_kill() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let mmap = tool(&volume, "mmap");
    let path = volume.at("mapped");
    let text = path.to_str().unwrap();
    fs::write(&path, vec![b'.'; 6 * MIB]).unwrap();
    mmap(&["write", text, "5000000", "kept"]);
    volume.kill_and_remount();
    let mut expected = vec![b'.'; 6 * MIB];
    expected[5_000_000..5_000_004].copy_from_slice(b"kept");
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn large_file_written_in_random_pieces_equals_its_shadow_copy() {
    let Some(volume) = Mounted::new(&[]) else { return };
    const LEN: usize = 100 * MIB;
    let path = volume.at("large");
    let mut random = Random(0x5eed);
    let source = random.bytes(LEN);
    let mut shadow = source.clone();
    let file = read_write(&path);
    let mut at = 0;
    while at < LEN {
        let len = (1 + random.below(3 * MIB as u64) as usize).min(LEN - at);
        file.write_all_at(&source[at..at + len], at as u64).unwrap();
        at += len;
        // In one of three rounds, some bytes of the source also overwrite a random range.
        if random.below(3) == 0 {
            let len = 1 + random.below(700_000) as usize;
            let (from, to) = (random.below((LEN - len) as u64), random.below((LEN - len) as u64));
            let piece = &source[from as usize..from as usize + len];
            file.write_all_at(piece, to).unwrap();
            let to = to as usize;
            // The sequential writer overwrites everything from `at` on later, so `shadow` changes only before
            // `at`.
            shadow[to..(to + len).min(at.max(to))].copy_from_slice(&piece[..(to + len).min(at.max(to)) - to]);
        }
        if random.below(9) == 0 {
            file.sync_data().unwrap();
        }
    }
    for round in 0..2 {
        for _ in 0..40 {
            let len = 1 + random.below(200_000) as usize;
            let to = random.below((LEN - len) as u64) as usize;
            let piece = random.bytes(len);
            file.write_all_at(&piece, to as u64).unwrap();
            shadow[to..to + len].copy_from_slice(&piece);
        }
        for _ in 0..20 {
            let from = random.below(LEN as u64) as usize;
            let mut found = vec![0; (random.below(500_000) as usize).min(LEN - from)];
            file.read_exact_at(&mut found, from as u64).unwrap();
            assert!(found == shadow[from..from + found.len()], "round {round}, {from}");
        }
        if round == 0 {
            file.sync_all().unwrap();
        }
    }
    drop(file);
    volume.remount();
    assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64);
    let found = fs::read(&path).unwrap();
    let differs = found.iter().zip(&shadow).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the first byte that differs, if any");
}

#[test]
fn holes_and_truncated_ranges_read_as_zeros() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let zeros = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    // The end of the file is in a row, beyond the size of a row, beyond a block, or beyond a chunk (64 MiB).
    for (name, far) in [("row", 2_000), ("object", 100_000), ("blocks", 9 << 20), ("chunks", 130 << 20)] {
        let path = volume.at(name);
        let file = read_write(&path);
        file.write_all_at(b"end", far).unwrap();
        assert_eq!(file.metadata().unwrap().len(), far + 3);
        let mut found = vec![1; 1_000];
        file.read_exact_at(&mut found, far - 1_000).unwrap();
        assert!(zeros(&found), "{name}: before the first write");
        file.write_all_at(&[7; 1_500], 0).unwrap();
        // Truncate into the data and extend again, with the data flushed and not flushed.
        for flush in [false, true] {
            file.write_all_at(&[7; 1_500], 0).unwrap();
            if flush {
                file.sync_all().unwrap();
            }
            file.set_len(700).unwrap();
            file.set_len(far).unwrap();
            file.set_len(far + 10).unwrap();
            let mut found = vec![1; 1_500];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(
                found[..700] == [7; 700] && zeros(&found[700..]),
                "{name}: extended again, flushed {flush}"
            );
            let mut found = vec![1; 500];
            file.read_exact_at(&mut found, far - 490).unwrap();
            assert!(zeros(&found), "{name}: the old end, flushed {flush}");
        }
        drop(file);
    }
    volume.remount();
    for (name, far) in [("row", 2_000), ("object", 100_000), ("blocks", 9 << 20)] {
        let bytes = fs::read(volume.at(name)).unwrap();
        assert_eq!(bytes.len() as u64, far + 10);
        assert!(bytes[..700] == [7; 700] && zeros(&bytes[700..]), "{name}");
    }
    let mut sparse = File::open(volume.at("chunks")).unwrap();
    sparse.seek(SeekFrom::End(-100)).unwrap();
    let mut end = Vec::new();
    sparse.read_to_end(&mut end).unwrap();
    assert!(end.len() == 100 && zeros(&end));
    // Write far beyond the end, at 16 TiB.
    let file = read_write(&volume.at("far"));
    file.write_all_at(b"x", 1 << 44).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(volume.at("far")).unwrap().len(), (1 << 44) + 1);
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1 << 44).unwrap();
    assert_eq!(&byte, b"x");
}

#[test]
fn o_trunc_empties_the_file_and_updates_its_times() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("f");
    for len in [100, 5 * MIB] {
        fs::write(&path, vec![1; len]).unwrap();
        let before = fs::metadata(&path).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let file = File::create(&path).unwrap();
        let after = file.metadata().unwrap();
        assert_eq!((after.len(), after.blocks()), (0, 0));
        assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
        assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        drop(file);
        assert_eq!(volume.bytes(), 0, "space is freed at once");
    }
    // A descriptor that was open before sees the truncation, and its next write leaves a hole.
    let held = read_write(&path);
    held.write_all_at(&[1; 5_000], 0).unwrap();
    File::create(&path).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 0);
    held.write_all_at(b"x", 10).unwrap();
    held.set_len(0).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 0, "ftruncate of unflushed data");
    held.write_all_at(b"x", 10).unwrap();
    drop(held);
    assert_eq!(fs::read(&path).unwrap(), b"\0\0\0\0\0\0\0\0\0\0x");
}

#[test]
fn all_forms_of_fsync_keep_data_and_names_over_a_kill() {
    let Some(volume) = Mounted::new(&[]) else { return };
    for (name, data_only) in [("fsync", false), ("fdatasync", true)] {
        let mut file = File::create(volume.at(name)).unwrap();
        file.write_all(&vec![3; 5 * MIB]).unwrap();
        if data_only { file.sync_data() } else { file.sync_all() }.unwrap();
        // The file stays open until after the kill, so that close does not store the data.
        std::mem::forget(file);
    }
    fs::create_dir(volume.at("dir")).unwrap();
    fs::write(volume.at("dir/closed"), vec![4; 5 * MIB]).unwrap();
    File::open(volume.at("dir")).unwrap().sync_all().unwrap();
    rustix::fs::syncfs(File::open(volume.at("")).unwrap()).unwrap();
    volume.kill_and_remount();
    for (name, byte) in [("fsync", 3), ("fdatasync", 3), ("dir/closed", 4)] {
        assert!(fs::read(volume.at(name)).unwrap() == vec![byte; 5 * MIB], "{name}");
    }
}

/// A command that reads the database asks for this, because it must see what the mount has answered.
#[test]
fn mount_commits_what_it_has_answered_when_it_is_asked() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let engine = SqliteEngine::open(&volume.place.path("vol.db"), &Options::default()).unwrap();
    for round in 0..20 {
        let dir = volume.at(&format!("d{round}"));
        fs::create_dir(&dir).unwrap();
        (0..100).for_each(|number| fs::write(dir.join(number.to_string()), "").unwrap());
        let mut answer = volume.place.ask("commit");
        while answer.starts_with('{') {
            // This test got no CPU for so long that the mount did not wait for its request.
            answer = volume.place.ask("commit");
        }
        assert_eq!(answer, "\n");
        let parent = types::Ino(fs::metadata(&dir).unwrap().ino());
        let scan = Scan::Dir { parent, after: None, limit: 1000, include: ScanInclude::Nothing };
        assert_eq!(engine.scan(&scan).unwrap().snapshot.records.len(), 100);
    }
}

/// A mount answers changes in directories that it has created before it commits them. It also writes them to
/// a journal beside its database. After a kill, the next mount, or a tool that changes the volume, commits
/// them.
#[test]
fn killed_mount_loses_no_change_that_it_has_answered() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let place = &volume.place;
    let rounds = if std::env::var_os("LIMEN_LONG").is_some() { 200 } else { 6 };
    let journals = place.path("vol.db.journals");
    for round in 0..rounds {
        let at = |name: &str| volume.at(&format!("d{round}/{name}"));
        fs::create_dir(at("")).unwrap();
        let made = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..100_000 {
                    let (new, name) = (at(&format!("new{number}")), at(&format!("{number}")));
                    // fs::write does not report a failed close, so a file counts only after its rename.
                    let done = fs::write(&new, number.to_string()).and_then(|()| fs::rename(&new, &name));
                    let gone = at(&format!("{}", number - number % 10));
                    let done =
                        done.and_then(|()| if number % 10 == 9 { fs::remove_file(gone) } else { Ok(()) });
                    if done.is_err() {
                        break;
                    }
                    made.store(number + 1, Ordering::SeqCst);
                }
            });
            while made.load(Ordering::SeqCst) < 50 + 400 * (round % 3) {
                thread::yield_now();
            }
            kill_process(Pid::from_raw(place.server() as i32).unwrap(), Signal::KILL).unwrap();
        });
        let made = made.load(Ordering::SeqCst);
        assert!(journals.is_dir(), "nothing was held");
        if round % 2 == 1 {
            let _ = Command::new("umount").arg("-l").arg(place.mnt()).status();
            match round % 4 {
                1 => limen(&["gc", "--delete", "--grace", "0", &place.url()]).ok(),
                _ => limen(&["quota", "set", "--inodes", "1000000", &format!("{}:/d{round}", place.url())])
                    .ok(),
            };
            assert!(!journals.exists(), "the command has committed the changes");
        }
        place.mount(&[]).ok();
        for number in 0..made {
            // The removal that was in progress when the mount was killed may or may not have happened.
            let is_gone = number % 10 == 0 && number + 9 < made;
            let found = fs::read_to_string(at(&format!("{number}")));
            match found {
                Ok(text) => assert!(!is_gone && text == number.to_string(), "{number} of {made}: {text:?}"),
                Err(_) => assert!(is_gone || number % 10 == 0 && number + 9 == made, "{number} of {made}"),
            }
        }
        let names = fs::read_dir(at("")).unwrap().count() as u64;
        let expected = made - made / 10;
        assert!((expected..=expected + 1).contains(&names), "{names} names after {made} files");
        fs::write(at("more"), "more").unwrap();
    }
    place.umount(&[]).ok();
    assert!(!journals.exists());
    limen(&["fsck", "--data", &place.url()]).ok();
}

#[test]
fn removed_file_exists_while_it_is_open() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let empty = volume.inodes();
    for len in [1_000, 6 * MIB] {
        let path = volume.at("f");
        fs::write(&path, vec![5; len]).unwrap();
        let file = read_write(&path);
        let second = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        refused(fs::metadata(&path), Errno::NOENT);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all_at(b"more", len as u64).unwrap();
        file.sync_all().unwrap();
        let mut found = vec![0; len + 4];
        second.read_exact_at(&mut found, 0).unwrap();
        assert!(found[..len] == vec![5; len] && &found[len..] == b"more");
        // The name can be used for another file.
        fs::write(&path, "new").unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), file.metadata().unwrap().ino());
        // The inode stays while any descriptor is open.
        drop(file);
        second.read_exact_at(&mut found[..4], 0).unwrap();
        assert_eq!(volume.inodes(), empty + 2, "the second descriptor keeps the inode");
        drop(second);
        fs::remove_file(&path).unwrap();
        soon("the inode is gone", || volume.inodes() == empty);
        soon("its space is freed", || volume.bytes() == 0);
    }
    soon("its blocks are gone", || objects(&volume) == 0);
}

/// Objects in the bucket, except the marker.
fn objects(volume: &Mounted) -> usize {
    fn count(dir: &Path) -> usize {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| if entry.file_type().unwrap().is_dir() { count(&entry.path()) } else { 1 }).sum()
    }
    count(&volume.place.path("vol.data")) - 1
}

/// Waits until `holds`: the kernel sends RELEASE after close(2) has returned.
#[track_caller]
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("timed out waiting until {what}");
}

#[test]
fn removed_open_file_is_cleaned_up_after_a_kill() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let empty = volume.inodes();
    let path = volume.at("f");
    fs::write(&path, vec![5; 6 * MIB]).unwrap();
    let file = read_write(&path);
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(volume.inodes(), empty + 1, "the file is still open");
    volume.kill_and_remount();
    refused(file.write_at(b"x", 0), Errno::NOTCONN);
    soon("the inode is gone", || volume.inodes() == empty);
    assert_eq!(volume.bytes(), 0);
    soon("its blocks are gone", || objects(&volume) == 0);
}

#[test]
fn file_replaced_by_rename_stays_readable_while_open() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let empty = volume.inodes();
    fs::write(volume.at("old"), vec![1; 5 * MIB]).unwrap();
    fs::write(volume.at("new"), "new").unwrap();
    let held = read_write(&volume.at("old"));
    fs::rename(volume.at("new"), volume.at("old")).unwrap();
    assert_eq!(fs::read(volume.at("old")).unwrap(), b"new");
    assert_eq!(held.metadata().unwrap().nlink(), 0);
    held.write_all_at(b"tail", 5 * MIB as u64).unwrap();
    let mut found = vec![0; 5 * MIB + 4];
    held.read_exact_at(&mut found, 0).unwrap();
    assert!(found[..5 * MIB] == vec![1; 5 * MIB] && found.ends_with(b"tail"));
    drop(held);
    soon("the inode is gone", || volume.inodes() == empty + 1);
}

#[test]
fn inline_size_decides_only_where_data_is_stored() {
    for (setting, in_objects) in [("0", true), ("4096", false), ("64K", false)] {
        let Some(volume) = Mounted::new(&["--inline", setting]) else { return };
        let mut random = Random(3);
        let sizes = [0, 1, 4_095, 4_096, 4_097, 65_536, 65_537];
        let files = sizes.map(|size| (volume.at(&format!("{size}")), random.bytes(size)));
        for (path, bytes) in &files {
            fs::write(path, bytes).unwrap();
        }
        let (one, first) = &files[1];
        assert_eq!(first.len(), 1);
        // The file grows out of its row into objects.
        OpenOptions::new().append(true).open(one).unwrap().write_all(&[9; 70_000]).unwrap();
        volume.remount();
        for (path, bytes) in files.iter().filter(|(path, _)| path != one) {
            assert!(&fs::read(path).unwrap() == bytes, "{setting}: {path:?}");
        }
        assert!(fs::read(one).unwrap() == [&first[..], &[9; 70_000]].concat());
        fs::remove_file(one).unwrap();
        soon("only large files are in objects", || {
            let large = match setting {
                "0" => sizes.len() - 2,
                "4096" => 3,
                _ => 1,
            };
            objects(&volume) == large
        });
        assert_eq!(objects(&volume) > 3, in_objects);
    }
}

#[test]
fn capacity_limit_fails_with_enospc_until_space_is_freed() {
    let Some(volume) = Mounted::new(&["--capacity", "8M"]) else { return };
    fs::write(volume.at("kept"), vec![1; MIB]).unwrap();
    let fill = || -> std::io::Result<()> {
        let mut file = File::create(volume.at("big"))?;
        for _ in 0..16 {
            file.write_all(&vec![2; MIB])?;
        }
        file.sync_all()
    };
    refused(fill(), Errno::NOSPC);
    assert!(volume.bytes() <= 8 << 20, "{}", volume.bytes());
    assert!(fs::read(volume.at("kept")).unwrap() == vec![1; MIB], "existing data is untouched");
    fs::remove_file(volume.at("big")).unwrap();
    let write = || {
        let mut file = File::create(volume.at("fits"))?;
        file.write_all(&vec![3; 6 * MIB])?;
        file.sync_all()
    };
    write().unwrap();
    let stat = rustix::fs::statvfs(volume.at("")).unwrap();
    assert_eq!(stat.f_blocks * stat.f_frsize, 8 << 20);
    assert_eq!(stat.f_bavail * stat.f_frsize, 1 << 20, "7 of 8 MiB are used");
    assert!(!stat.f_flag.contains(StatVfsMountFlags::RDONLY));
    volume.remount();
    assert!(fs::read(volume.at("fits")).unwrap() == vec![3; 6 * MIB]);
}

#[test]
fn extended_attributes_count_against_the_capacity() {
    let Some(volume) = Mounted::new(&["--capacity", "20M"]) else { return };
    let own = volume.at("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let value = vec![7; 65_536];
    let set =
        |file: &Path, n: usize, value: &[u8]| setxattr(file, format!("user.{n}"), value, XattrFlags::empty());
    as_user(NOBODY, NOBODY, || {
        for n in 0..20 {
            let file = own.join(n.to_string());
            fs::write(&file, "").unwrap();
            (0..16).for_each(|n| set(&file, n, &value).unwrap());
            assert_eq!(set(&file, 16, b""), Err(Errno::NOSPC), "an inode has no room for more");
        }
        refused(fs::write(own.join("20"), "x"), Errno::NOSPC);
        assert_eq!(set(&own, 0, b""), Err(Errno::NOSPC));
        set(&own.join("0"), 3, &value[1..]).expect("a smaller value needs no room");
        let stat = rustix::fs::statvfs(&own).unwrap();
        assert_eq!((stat.f_blocks * stat.f_frsize, stat.f_bavail), (20 << 20, 0));
        // The room of a removed attribute and of a removed file is free at once.
        rustix::fs::removexattr(own.join("0"), "user.3").unwrap();
        fs::remove_file(own.join("7")).unwrap();
        let stat = rustix::fs::statvfs(&own).unwrap();
        assert_eq!(stat.f_bavail * stat.f_frsize, (1 << 20) + 65_536);
        fs::write(own.join("7"), "x").unwrap();
        set(&own.join("7"), 0, &value).unwrap();
    });
    volume.place.umount(&[]).ok();
    limen(&["fsck", &volume.place.url()]).ok();
}

#[test]
fn write_by_another_user_clears_suid_sgid_and_capabilities() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let path = volume.at("program");
    let capability = capability();
    let has_capability = || match getxattr_query(&path, "security.capability") {
        Ok(len) => len == capability.len(),
        Err(errno) => {
            assert_eq!(errno, Errno::NODATA);
            false
        }
    };
    let arm = || {
        fs::write(&path, "0123456789").unwrap();
        let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o6777);
        fs::set_permissions(&path, mode).unwrap();
        setxattr(&path, "security.capability", &capability, XattrFlags::empty()).unwrap();
        assert!(has_capability());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    };
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("write", |path| OpenOptions::new().write(true).open(path).unwrap().write_all(b"x").unwrap()),
        ("append", |path| OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap()),
        ("ftruncate", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(3).unwrap()),
        ("ftruncate to more", |path| {
            rustix::fs::ftruncate(OpenOptions::new().write(true).open(path).unwrap(), 20).unwrap()
        }),
        ("O_TRUNC", |path| drop(File::create(path).unwrap())),
    ];
    for (name, change) in changes {
        arm();
        as_user(NOBODY, NOBODY, || change(&path));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{name} by another user");
        assert!(!has_capability(), "{name} by another user");
        // Root may set these bits, so its writes keep them; a file capability is cleared by any writer.
        arm();
        change(&path);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777, "{name} by root");
        assert!(!has_capability(), "{name} by root");
    }
    // chown clears all of them, for every caller.
    arm();
    std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    assert!(!has_capability());
    volume.remount();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
}

/// `cap_net_raw=ep`: `struct vfs_cap_data`, revision 2, effective (capabilities(7)).
fn capability() -> Vec<u8> {
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}
