//! Damaged objects and full disks under a mount, as root: errors are reported, and only the damaged range is
//! lost.

mod common;
mod harness;

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, limen};
use harness::{Mounted, Random, refused};
use rustix::io::Errno;
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4 * MIB;

/// The object that holds the byte in the middle of a new file, and the range of the file that it holds.
fn middle_object(volume: &Mounted, path: &Path) -> (String, Range<usize>) {
    let info: serde_json::Value =
        serde_json::from_str(&limen(&["info", "--json", path.to_str().unwrap()]).ok()).unwrap();
    let middle = info[0]["size"].as_u64().unwrap() as usize / 2;
    for slice in info[0]["chunks"][0]["slices"].as_array().unwrap() {
        assert_eq!(slice["slice"]["offset"], 0, "nothing was overwritten");
        let mut at = slice["pos"].as_u64().unwrap() as usize;
        for key in slice["objects"].as_array().unwrap() {
            let key = key.as_str().unwrap();
            assert!(volume.place.path("vol.data").join(key).exists(), "{key}");
            // The last part of a key is the length of the block.
            let len: usize = key.rsplit('_').next().unwrap().parse().unwrap();
            if (at..at + len).contains(&middle) {
                return (key.to_owned(), at..at + len);
            }
            at += len;
        }
    }
    panic!("no object holds byte {middle}: {info}")
}

/// A file with an object that was damaged while the volume was not mounted.
struct Damaged {
    path: PathBuf,
    bytes: Vec<u8>,
    key: String,
    lost: Range<usize>,
}

impl Damaged {
    /// Writes a file of three blocks and damages its middle object.
    fn new(volume: &Mounted, harm: impl FnOnce(&Path)) -> Self {
        let (path, bytes) = (volume.at("f"), Random(11).bytes(3 * BLOCK));
        fs::write(&path, &bytes).unwrap();
        fs::write(volume.at("neighbour"), &bytes).unwrap();
        let (key, lost) = middle_object(volume, &path);
        assert!(lost.start > 0 && lost.end < bytes.len(), "{lost:?}");
        volume.place.umount(&[]).ok();
        harm(&volume.place.path("vol.data").join(&key));
        volume.place.mount(&[]).ok();
        Damaged { path, bytes, key, lost }
    }
}

#[track_caller]
fn check_that_only_the_range_is_lost(volume: &Mounted, damaged: &Damaged) {
    let Damaged { path, bytes, key, lost } = damaged;
    let file = File::open(path).unwrap();
    let intact = |from: usize, to: usize| {
        let mut found = vec![0; to - from];
        file.read_exact_at(&mut found, from as u64).unwrap();
        assert!(found == bytes[from..to], "{from} to {to}");
    };
    // The bytes next to the lost range can be read, whatever the kernel reads ahead.
    intact(0, lost.start);
    intact(lost.end, bytes.len());
    intact(lost.start - 1, lost.start);
    intact(lost.end, lost.end + 1);
    for at in [lost.start, lost.start + 1, lost.start + lost.len() / 3, lost.end - 1] {
        refused(file.read_exact_at(&mut [0], at as u64), Errno::IO);
    }
    refused(fs::read(path), Errno::IO);
    assert!(fs::read(volume.at("neighbour")).unwrap() == *bytes);
    assert_eq!(file.metadata().unwrap().len(), bytes.len() as u64);

    let log = volume.place.log();
    let inode = file.metadata().unwrap().ino();
    let line = log.lines().find(|line| line.contains(key)).unwrap_or_else(|| panic!("{key} is not in {log}"));
    for part in ["ERROR", &format!("ino={inode} "), "chunk=0 "] {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
}

#[test]
fn flipped_bit_loses_the_range_of_its_checksum() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let mut damaged = Damaged::new(&volume, |object| {
        let mut found = fs::read(object).unwrap();
        found[MIB + 1_000] ^= 0x10;
        fs::write(object, found).unwrap();
    });
    // Each 64 KiB of a block has its own checksum.
    let start = damaged.lost.start + MIB;
    damaged.lost = start..start + (64 << 10);
    check_that_only_the_range_is_lost(&volume, &damaged);
    // Overwriting the range repairs it.
    let file = fs::OpenOptions::new().write(true).open(&damaged.path).unwrap();
    file.write_all_at(&damaged.bytes[damaged.lost.clone()], start as u64).unwrap();
    drop(file);
    assert!(fs::read(&damaged.path).unwrap() == damaged.bytes);
    volume.remount();
    assert!(fs::read(&damaged.path).unwrap() == damaged.bytes);
}

#[test]
fn missing_block_loses_its_range_until_it_is_back() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let aside = volume.place.path("aside");
    let damaged = Damaged::new(&volume, |object| fs::rename(object, &aside).unwrap());
    check_that_only_the_range_is_lost(&volume, &damaged);
    fs::rename(&aside, volume.place.path("vol.data").join(&damaged.key)).unwrap();
    assert!(fs::read(&damaged.path).unwrap() == damaged.bytes, "the missing object is not cached");
}

#[test]
fn block_of_wrong_length_loses_its_range_and_the_file_can_be_removed() {
    let Some(volume) = Mounted::new(&[]) else { return };
    let resize = |object: &Path, len: usize| {
        fs::OpenOptions::new().write(true).open(object).unwrap().set_len(len as u64).unwrap();
    };
    let damaged = Damaged::new(&volume, |object| resize(object, 3 * MIB));
    let object = volume.place.path("vol.data").join(&damaged.key);
    for len in [3 * MIB, 2 * MIB, 100, 1, 0, 5 * MIB] {
        resize(&object, len);
        volume.remount();
        check_that_only_the_range_is_lost(&volume, &damaged);
    }
    let inodes = volume.inodes();
    fs::remove_file(&damaged.path).unwrap();
    volume.remount();
    assert_eq!(volume.inodes(), inodes - 1);
    assert!(!object.exists(), "damaged objects are removed too");
}

/// A tmpfs of a fixed size, unmounted when dropped.
struct Disk {
    dir: TempDir,
}

impl Disk {
    /// Returns `None`, and reports a skip, without root.
    fn new(mib: usize) -> Option<Self> {
        skip::is_root().then(|| {
            let dir = tempfile::tempdir().unwrap();
            let options = format!("size={mib}m,mode=755");
            let status =
                Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir.path()).status();
            assert!(status.unwrap().success());
            Disk { dir }
        })
    }

    fn text(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Fills the disk until `bytes` are free.
    fn fill_but(&self, bytes: u64) {
        let mut filler = File::create(self.text("filler")).unwrap();
        let free = self.free();
        let piece = vec![0; 64 << 10];
        for _ in 0..free.saturating_sub(bytes) / piece.len() as u64 {
            filler.write_all(&piece).unwrap();
        }
    }

    /// Fills the disk completely.
    fn fill(&self) {
        let mut filler = File::options().append(true).create(true).open(self.text("filler")).unwrap();
        while filler.write(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.text("filler")).unwrap();
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.dir.path()).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

#[test]
fn full_object_disk_fails_only_the_writer() {
    let Some(disk) = Disk::new(24) else { return };
    let Some(volume) = Mounted::new(&["--bucket", &disk.text("objects")]) else { return };
    let bytes = Random(5).bytes(6 * MIB);
    fs::write(volume.at("kept"), &bytes).unwrap();
    let write = |name: &str, mib: usize| -> std::io::Result<()> {
        let mut file = File::create(volume.at(name))?;
        (0..mib).try_for_each(|_| file.write_all(&bytes[..MIB]))?;
        file.sync_all()
    };
    refused(write("too-much", 40), Errno::NOSPC);
    assert!(fs::read(volume.at("kept")).unwrap() == bytes);
    // Small files need no object, so they can still be written.
    fs::write(volume.at("small"), "small").unwrap();
    fs::create_dir(volume.at("dir")).unwrap();
    fs::remove_file(volume.at("too-much")).unwrap();
    for _ in 0..1200 {
        if disk.free() >= 17 << 20 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(
        disk.free() >= 17 << 20,
        "the objects of the failed write are removed: {} bytes free",
        disk.free()
    );
    write("fits", 10).unwrap();
    volume.remount();
    assert!(fs::read(volume.at("kept")).unwrap() == bytes);
    assert_eq!(fs::read(volume.at("fits")).unwrap().len(), 10 * MIB);
    assert_eq!(fs::read(volume.at("small")).unwrap(), b"small");
    volume.place.umount(&[]).ok();
}

#[test]
fn fsync_after_a_full_disk_stores_the_data() {
    let Some(disk) = Disk::new(16) else { return };
    let Some(volume) = Mounted::new(&["--bucket", &disk.text("objects")]) else { return };
    let bytes = Random(6).bytes(7 * MIB + 5);
    disk.fill_but(MIB as u64);
    let mut file = File::create(volume.at("f")).unwrap();
    let refusal = file.write_all(&bytes).and_then(|()| file.sync_all());
    refused(refusal, Errno::NOSPC);
    disk.empty();
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    volume.remount();
    assert!(fs::read(volume.at("f")).unwrap() == bytes);
}

#[test]
fn full_database_disk_loses_no_acknowledged_data() {
    let Some(disk) = Disk::new(8) else { return };
    let place = Place::new();
    let url = format!("sqlite://{}", disk.text("vol.db"));
    limen(&["format", &url, "vol", "--bucket", &place.text("objects")]).ok();
    place.mount_url(&url, &[]).ok();
    let path = |n: usize| place.path("mnt").join(n.to_string());
    let text = |n: usize| format!("{n} ").repeat(300).into_bytes();
    fs::create_dir(place.path("mnt/dir")).unwrap();
    let mut made = 0;
    let mut fill = |limit: usize| -> std::io::Result<()> {
        for _ in 0..limit {
            let mut file = File::create_new(path(made))?;
            // From here on the name exists, even if the content is missing.
            file.write_all(&text(made))?;
            file.sync_all()?;
            made += 1;
        }
        Ok(())
    };
    fill(50).unwrap();
    disk.fill_but(512 << 10);
    refused(fill(100_000), Errno::NOSPC);
    let whole =
        |made: usize| (0..made).for_each(|n| assert!(fs::read(path(n)).unwrap() == text(n), "file {n}"));
    whole(made);
    // Repeated failures must not damage anything.
    for _ in 0..20 {
        let _ = fs::create_dir(place.path("mnt/again"));
        let _ = fs::rename(place.path("mnt/dir"), place.path("mnt/renamed"));
        let _ = fs::rename(place.path("mnt/renamed"), place.path("mnt/dir"));
        let _ = fs::remove_dir(place.path("mnt/again"));
    }
    whole(made);
    let log = place.log();
    assert!(log.contains("full"), "the log says why: {log}");

    disk.empty();
    fs::create_dir(place.path("mnt/room")).unwrap();
    fs::write(place.path("mnt/room/file"), "again").unwrap();
    // The file whose write failed can be written now.
    fs::write(path(made), text(made)).unwrap();
    made += 1;
    whole(made);
    place.umount(&[]).ok();
    place.mount_url(&url, &[]).ok();
    whole(made);
    assert_eq!(fs::read(place.path("mnt/room/file")).unwrap(), b"again");
    place.umount(&[]).ok();
}

/// Database and objects share a disk. However full it is, files can be removed through the mount, which frees
/// space.
#[test]
fn files_can_be_removed_and_the_volume_mounted_on_a_full_disk() {
    let Some(disk) = Disk::new(48) else { return };
    let place = Place::new();
    let url = format!("sqlite://{}", disk.text("vol.db"));
    limen(&["format", &url, "vol", "--bucket", &disk.text("objects")]).ok();
    place.mount_url(&url, &[]).ok();
    let small = |n: usize| place.path("mnt").join(format!("small{n}"));
    let large = |n: usize| place.path("mnt").join(format!("large{n}"));
    let store = |path: PathBuf, bytes: &[u8]| -> std::io::Result<()> {
        let mut file = File::create_new(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    let bytes = Random(7).bytes(5 * MIB);
    (0..3).for_each(|n| store(large(n), &bytes).unwrap());
    let mut made = 0;
    while store(small(made), &bytes[..3000]).is_ok() {
        made += 1;
        assert!(made < 100_000, "the disk does not fill up");
        if made == 500 {
            disk.fill_but(2 << 20);
        }
    }
    disk.fill();
    refused(fs::create_dir(place.path("mnt/dir")), Errno::NOSPC);
    let tools =
        |all: &[&[&str]]| all.iter().for_each(|args| drop(limen(&[args, &[&url[..]][..]].concat()).ok()));
    let gc: &[&str] = &["gc", "--delete", "--grace", "0"];
    tools(&[&["status"], &["fsck"], &["fsck", "--data"], gc]);
    for n in 0..made {
        fs::remove_file(small(n)).unwrap_or_else(|error| panic!("{n} of {made}: {error}"));
    }
    place.umount(&[]).ok();
    disk.fill();
    tools(&[&["status"], &["fsck"], gc, &["fsck", "--repair"]]);
    disk.fill();
    place.mount_url(&url, &[]).ok();
    assert!(fs::read(large(0)).unwrap() == bytes);
    (0..3).for_each(|n| fs::remove_file(large(n)).unwrap());
    for _ in 0..1200 {
        if disk.free() >= 12 << 20 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(disk.free() >= 12 << 20, "the objects are removed: {} bytes free", disk.free());
    store(large(3), &bytes).unwrap();
    place.umount(&[]).ok();
    limen(&["fsck", "--data", &url]).ok();
}

/// A file can be truncated even if it has written data that cannot be stored.
#[test]
fn files_are_truncated_on_a_full_disk() {
    for (database, objects) in [(true, false), (false, true), (true, true)] {
        let Some(disk) = Disk::new(48) else { return };
        let place = Place::new();
        let at = |is_full: bool, name: &str| if is_full { disk.text(name) } else { place.text(name) };
        let url = format!("sqlite://{}", at(database, "vol.db"));
        limen(&["format", &url, "vol", "--bucket", &at(objects, "objects")]).ok();
        place.mount_url(&url, &[]).ok();
        let path = |name: &str| place.path("mnt").join(name);
        let bytes = Random(9).bytes(5 * MIB);
        let (old, new) = bytes.split_at(MIB);
        let open = |name: &str| {
            let mut file =
                File::options().read(true).write(true).create(true).truncate(false).open(path(name))?;
            file.write_all(old)?;
            file.sync_all().map(|()| file)
        };
        let files = ["cut", "emptied", "opened", "grown"].map(|name| open(name).unwrap());
        disk.fill();
        // The database's log still has room for some commits. Use it up.
        for n in 0.. {
            let small = File::create(path(&n.to_string()))
                .and_then(|mut small| small.write_all(&old[..3000]).and_then(|()| small.sync_all()));
            if !database || small.is_err() {
                break;
            }
        }
        // Each file gets more data than the reserve has freed, and less than a block, so that no block is
        // stored before the sync.
        for file in &files {
            file.write_all_at(&new[..7 * MIB / 2], MIB as u64 / 2).unwrap();
            refused(file.sync_all(), Errno::NOSPC);
        }
        let mut expected = [old[..MIB / 2].to_vec(), new[..7 * MIB / 2].to_vec()].concat();
        let [cut, emptied, _, grown] = &files;
        cut.set_len(2 * MIB as u64 + 77).unwrap();
        emptied.set_len(0).unwrap();
        drop(File::create(path("opened")).unwrap());
        grown.set_len(6 * MIB as u64).unwrap();
        disk.empty();
        files.iter().for_each(|file| file.sync_all().unwrap());
        drop(files);
        for _ in 0..2 {
            assert!(fs::read(path("cut")).unwrap() == expected[..2 * MIB + 77], "{database} {objects}");
            assert_eq!(fs::read(path("emptied")).unwrap(), b"");
            assert_eq!(fs::read(path("opened")).unwrap(), b"");
            expected.resize(6 * MIB, 0);
            assert!(fs::read(path("grown")).unwrap() == expected, "{database} {objects}");
            place.umount(&[]).ok();
            place.mount_url(&url, &[]).ok();
        }
        place.umount(&[]).ok();
        limen(&["fsck", "--data", &url]).ok();
    }
}
