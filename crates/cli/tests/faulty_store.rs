//! A mount on an object store that fails, is slow and returns wrong data, as root: programs get errors, never
//! wrong data. The test process serves the mount itself, so that it can wrap the store.

mod common;
mod harness;

use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chunk::{BlockStore, Fault, Faults, StorageConfig, StoreCall, StoreOptions};
use client::Meta;
use harness::Random;
use meta::{MemEngine, Volume};
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use types::Errno;
use vfs::{SessionInfo, Vfs, VfsOptions};

const MIB: usize = 1 << 20;

/// A volume mounted by this process, with a store whose faults can change.
struct Served {
    dir: TempDir,
    engine: Arc<MemEngine>,
    faults: Arc<Faults>,
    store: Option<Arc<BlockStore>>,
    mount: Option<(Arc<Vfs>, fuse::Mounted)>,
}

impl Served {
    /// Returns `None`, and reports a skip, without root.
    fn new(seed: u64) -> Option<Self> {
        if !skip::is_root() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let engine = Arc::new(MemEngine::default());
        let volume = Volume {
            storage: "file".into(),
            bucket: dir.path().join("objects").to_str().unwrap().into(),
            ..Volume::in_memory("vol")
        };
        volume.format(&*engine).unwrap();
        let mut served = Served { dir, engine, faults: Faults::new(seed), store: None, mount: None };
        served.mount();
        Some(served)
    }

    /// Mounts without a block cache, so that every read is answered by the store.
    fn mount(&mut self) {
        let meta = Meta::open(self.engine.clone(), 10_000).unwrap();
        meta.set_exclusive(true);
        let config =
            StorageConfig { storage: meta.volume().storage.clone(), bucket: meta.volume().bucket.clone() };
        let faults = Some(Arc::clone(&self.faults));
        let options = StoreOptions { cache_bytes: 0, create: true, faults, ..StoreOptions::default() };
        let store = BlockStore::open_with(&config, options).unwrap();
        self.store = Some(Arc::clone(&store));
        let vfs = Arc::new(Vfs::new(Arc::new(meta), store, VfsOptions::default()));
        let mountpoint = self.dir.path().join("mnt");
        let info = SessionInfo { host: "here".into(), pid: std::process::id(), mountpoint: String::new() };
        vfs.lifecycle.begin(info).unwrap();
        let options = fuse::Options { workers: NonZeroUsize::new(4), ..fuse::Options::default() };
        let mounted = fuse::mount(&vfs, &mountpoint, &options).unwrap();
        self.mount = Some((vfs, mounted));
    }

    fn remount(&mut self) {
        self.umount();
        self.mount();
    }

    fn umount(&mut self) {
        let (vfs, mut mounted) = self.mount.take().unwrap();
        mounted.unmount(fuse::UnmountMode::Clean).unwrap();
        mounted.wait().unwrap();
        vfs.lifecycle.end().unwrap();
    }

    /// The number of deletions that the store of the last mount received.
    fn deletes(&self) -> u64 {
        self.store.as_ref().unwrap().requests().deletes
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some((_, mut mounted)) = self.mount.take() {
            // Unmount lazily, because a failed test may have left files open.
            let _ = mounted.unmount(fuse::UnmountMode::Lazy);
        }
    }
}

#[test]
fn wrong_data_from_the_store_is_an_error_and_never_returned() {
    let Some(mut served) = Served::new(5) else { return };
    let bytes = Random(1).bytes(13 * MIB + 777);
    fs::write(served.at("f"), &bytes).unwrap();
    served.remount();
    for fault in [Fault::Flip, Fault::Short, Fault::Absent, Fault::Fail(Errno::EIO)] {
        served.faults.add(StoreCall::Get, fault, 100);
    }
    let file = File::open(served.at("f")).unwrap();
    let mut random = Random(2);
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..300 {
        let offset = random.below(bytes.len() as u64) as usize;
        let len = ([100, 5000, 100_000, 3 * MIB][random.below(4) as usize]).min(bytes.len() - offset);
        let mut buf = vec![0; len];
        match file.read_exact_at(&mut buf, offset as u64) {
            Ok(()) => {
                assert!(buf == bytes[offset..offset + len], "wrong data at {offset}+{len}");
                right += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::EIO.raw()), "{offset}+{len}: {error}");
                wrong += 1;
            }
        }
        // Make the kernel read the data again.
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
    assert!(right > 30 && wrong > 30, "{right} {wrong} {}", served.faults.injected());
    served.faults.clear();
    assert!(fs::read(served.at("f")).unwrap() == bytes);
}

#[test]
fn data_acknowledged_by_a_failing_store_is_kept() {
    let Some(mut served) = Served::new(6) else { return };
    for (fault, per_mille) in [
        (Fault::Fail(Errno::EIO), 200),
        (Fault::DoneThenFail(Errno::ETIMEDOUT), 100),
        (Fault::Slow(Duration::from_millis(3)), 300),
    ] {
        served.faults.add(StoreCall::Put, fault, per_mille);
        served.faults.add(StoreCall::Sync, fault, per_mille / 4);
        served.faults.add(StoreCall::Delete, fault, per_mille);
    }
    let mut random = Random(3);
    let mut refused = 0;
    let mut files = Vec::new();
    for number in 0..25 {
        let name = format!("f{}", number % 15);
        let len = 5000 + random.below(6 * MIB as u64) as usize;
        let bytes = random.bytes(len);
        let mut file = File::create(served.at(&name)).unwrap();
        // A write or fsync reports an error once; close does not report it again.
        let mut write = || -> io::Result<()> {
            file.set_len(0)?;
            io::Seek::rewind(&mut file)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        while write().is_err() {
            refused += 1;
        }
        files.retain(|(other, _)| *other != name);
        files.push((name, bytes));
    }
    assert!(refused > 5 && served.faults.injected() > refused, "{refused}");
    served.faults.clear();
    served.remount();
    for (name, bytes) in &files {
        assert!(&fs::read(served.at(name)).unwrap() == bytes, "{name}");
    }
}

/// Each write is synced by itself, so it becomes a slice with an object of its own.
#[test]
fn umount_and_mount_do_not_wait_for_object_removal() {
    let Some(mut served) = Served::new(7) else { return };
    let slices = 1500;
    let file = File::create(served.at("f")).unwrap();
    file.set_len(slices * 20_000).unwrap();
    for n in 0..slices {
        file.write_all_at(&[1; 8], n * 20_000).unwrap();
        file.sync_data().unwrap();
    }
    drop(file);
    fs::remove_file(served.at("f")).unwrap();
    assert_eq!(served.deletes(), 0);
    served.umount();
    let at_end = served.deletes();
    assert!(at_end <= 64, "umount waited for the removal of {at_end} objects");

    served.mount();
    assert_eq!(served.deletes(), 0, "the next mount serves before it removes anything");
    let vfs = Arc::clone(&served.mount.as_ref().unwrap().0);
    vfs.lifecycle.start_threads().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while served.deletes() + at_end < slices && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(served.deletes() + at_end, slices);
    served.umount();
}
