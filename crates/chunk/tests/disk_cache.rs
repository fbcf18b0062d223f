//! The cache on a local disk: the requests it saves, damage, and its bounds.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use chunk::{
    BlockStore, ChunkError, Cipher, Compression, DiskCacheOptions, Encryption, EncryptionSettings,
    PAGE_BYTES, Secret, StorageConfig, StoreOptions, object_key,
};
use tempfile::TempDir;
use types::{BLOCK_BYTES, SliceId};

use support::destroy;

const BLOCK: usize = BLOCK_BYTES as usize;
const PAGE: usize = PAGE_BYTES as usize;
const MIB: u64 = 1 << 20;

struct Setup {
    bucket: TempDir,
    cache: TempDir,
    encryption: Option<Encryption>,
    compression: Compression,
}

impl Setup {
    fn new() -> Self {
        let (bucket, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        Setup { bucket, cache, encryption: None, compression: Compression::None }
    }

    fn options(&self) -> DiskCacheOptions {
        DiskCacheOptions {
            directory: self.cache.path().join("cache"),
            volume: "volume".into(),
            max_bytes: 64 * MIB,
            min_free_bytes: 0,
        }
    }

    /// A store without a cache in memory.
    fn open(&self, disk_cache: Option<DiskCacheOptions>) -> Arc<BlockStore> {
        let bucket = self.bucket.path().to_str().unwrap().to_owned();
        let (compression, encryption) = (self.compression, self.encryption.clone());
        let options = StoreOptions { cache_bytes: 0, create: true, ..StoreOptions::default() };
        let options = StoreOptions { compression, encryption, disk_cache, ..options };
        BlockStore::open_with(&StorageConfig { storage: "file".into(), bucket }, options).unwrap()
    }

    fn cached(&self, id: u64, len: usize) -> PathBuf {
        self.cache.path().join("cache/volume").join(object_key(SliceId(id), 0, len as u32))
    }

    fn files(&self) -> Vec<PathBuf> {
        files_below(&self.cache.path().join("cache"))
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 4093) as u8).collect::<Vec<u8>>().into()
}

fn read(store: &BlockStore, id: u64, size: usize, offset: usize, len: usize) -> Result<Vec<u8>, ChunkError> {
    let mut buf = vec![0; len];
    store.read(SliceId(id), size as u32, offset as u32, &mut buf).map(|()| buf)
}

#[test]
fn cached_blocks_need_no_request_after_a_restart() {
    let (setup, data) = (Setup::new(), pattern(BLOCK));
    setup.open(None).put_slice(SliceId(1), &data).unwrap();
    let store = setup.open(Some(setup.options()));
    assert_eq!(read(&store, 1, BLOCK, 0, BLOCK).unwrap(), data);
    // A small block is cached when it is written.
    store.put_slice(SliceId(2), &data.slice(..100)).unwrap();
    drop(store);
    assert_eq!(setup.files().len(), 2);

    let store = setup.open(Some(setup.options()));
    for (offset, len) in [(0, BLOCK), (PAGE * 7 + 1, 4096), (BLOCK - 10, 10)] {
        assert_eq!(read(&store, 1, BLOCK, offset, len).unwrap(), data[offset..offset + len]);
    }
    assert_eq!(read(&store, 2, 100, 0, 100).unwrap(), data[..100]);
    let requests = store.requests();
    assert_eq!((requests.gets, requests.disk_hits), (0, 5));
    let mode = fs::metadata(setup.cache.path().join("cache/volume")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_damaged_file_is_removed_and_fetched_from_the_store() {
    let secret = Secret::key_from_text(&"33".repeat(32)).unwrap();
    let (_, encryption) = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap();
    for (compression, encryption) in [(Compression::None, None), (Compression::Lz4, Some(encryption))] {
        let (setup, data) = (Setup { encryption, compression, ..Setup::new() }, pattern(BLOCK));
        setup.open(None).put_slice(SliceId(1), &data).unwrap();
        let damages: [fn(&mut Vec<u8>); 5] = [
            |bytes| bytes[100] ^= 1,
            |bytes| *bytes.last_mut().unwrap() ^= 0x80,
            |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0x55),
            |bytes| bytes.truncate(1000),
            Vec::clear,
        ];
        for damage in damages {
            for (offset, len) in [(0, BLOCK), (10, 100), (BLOCK - 5000, 4096), (PAGE + 3, 4096)] {
                drop(setup.open(Some(setup.options())).read(SliceId(1), BLOCK_BYTES, 0, &mut vec![0; BLOCK]));
                let path = setup.cached(1, BLOCK);
                let mut bytes = fs::read(&path).unwrap();
                damage(&mut bytes);
                fs::write(&path, bytes).unwrap();
                let store = setup.open(Some(setup.options()));
                assert_eq!(read(&store, 1, BLOCK, offset, len).unwrap(), data[offset..offset + len]);
                // A second read returns the same data, whatever the first read left in the cache.
                assert_eq!(read(&store, 1, BLOCK, 0, BLOCK).unwrap(), data);
                drop(store);
                let store = setup.open(Some(setup.options()));
                assert_eq!(read(&store, 1, BLOCK, 0, BLOCK).unwrap(), data);
                assert_eq!(store.requests().gets, 0);
            }
        }
    }
}

#[test]
fn the_cache_keeps_its_bound_and_evicts_least_recently_used() {
    let setup = Setup::new();
    let len = MIB as usize / 2;
    let bounded = |max_bytes| Some(DiskCacheOptions { max_bytes, ..setup.options() });
    let writer = setup.open(None);
    for id in 0..20 {
        writer.put_slice(SliceId(id), &pattern(len)).unwrap();
    }
    let store = setup.open(bounded(5 * MIB));
    let is_cached = |id| setup.cached(id, len).exists();
    for id in 0..20 {
        read(&store, id, len, 0, len).unwrap();
        // In this test, the cache's thread must keep up.
        while !is_cached(id) {
            std::thread::yield_now();
        }
        read(&store, 0, len, 0, len).unwrap();
    }
    drop(store);
    let bytes: u64 = setup.files().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!((3 * MIB..=5 * MIB).contains(&bytes), "{bytes}");
    assert!(is_cached(0) && is_cached(19) && !is_cached(1) && !is_cached(5));
    // When the cache is opened with a smaller bound, its scan removes the excess.
    let store = setup.open(bounded(2 * MIB));
    while setup.files().len() > 3 {
        std::thread::yield_now();
    }
    drop(store);
    // A block larger than the cache is not cached.
    drop(setup.open(bounded(1000)).read(SliceId(3), len as u32, 0, &mut vec![0; len]));
    assert!(!is_cached(3));
}

#[test]
fn the_cache_leaves_free_space_on_the_disk() {
    let setup = Setup::new();
    let options = DiskCacheOptions { min_free_bytes: u64::MAX, ..setup.options() };
    let store = setup.open(Some(options));
    store.put_slice(SliceId(1), &pattern(1000)).unwrap();
    assert_eq!(read(&store, 1, 1000, 0, 1000).unwrap(), pattern(1000));
    drop(store);
    assert_eq!(setup.files(), Vec::<PathBuf>::new());
}

#[test]
fn temporary_and_foreign_files_are_ignored() {
    let setup = Setup::new();
    let root = setup.cache.path().join("cache/volume");
    fs::create_dir_all(root.join("chunks/0/0/deep")).unwrap();
    fs::create_dir_all(root.join("tmp")).unwrap();
    let strange = [
        "tmp/1_0_1000.77.0",
        "chunks/0/0/note",
        "chunks/9_0_10",
        "chunks/0/0/deep/1_0_10",
        "chunks/0/0/1_0_0_0",
    ];
    for name in strange {
        fs::write(root.join(name), b"half").unwrap();
    }
    let store = setup.open(Some(setup.options()));
    store.put_slice(SliceId(1), &pattern(1000)).unwrap();
    drop(store);
    let store = setup.open(Some(setup.options()));
    assert_eq!(read(&store, 1, 1000, 0, 1000).unwrap(), pattern(1000));
    assert_eq!(store.requests().gets, 0);
    assert_eq!(setup.files().len(), strange.len() + 1);
}

#[test]
fn deleted_blocks_and_destroyed_volumes_are_removed_from_the_cache() {
    let setup = Setup::new();
    let store = setup.open(Some(setup.options()));
    for id in 1..4 {
        store.put_slice(SliceId(id), &pattern(1000)).unwrap();
    }
    drop(store);
    let store = setup.open(Some(setup.options()));
    store.delete_slice(SliceId(1), 1000).unwrap();
    assert!(!setup.cached(1, 1000).exists() && setup.cached(2, 1000).exists());
    assert!(matches!(read(&store, 1, 1000, 0, 10), Err(ChunkError::Missing { .. })));
    destroy(&store, &mut |_| {}).unwrap();
    assert_eq!(setup.files(), Vec::<PathBuf>::new());
}

#[test]
fn volumes_are_separate_and_cached_blocks_are_encrypted() {
    let secret = Secret::key_from_text(&"33".repeat(32)).unwrap();
    let encryption = Some(EncryptionSettings::new(Cipher::XChaCha20Poly1305, &secret).unwrap().1);
    let setup = Setup { encryption, ..Setup::new() };
    let store = setup.open(Some(setup.options()));
    store.put_slice(SliceId(1), &pattern(1000)).unwrap();
    drop(store);
    let stored = fs::read(setup.cached(1, 1000)).unwrap();
    assert!(!stored.windows(16).any(|window| window == &pattern(1000)[..16]));

    let other = Setup { bucket: TempDir::new().unwrap(), encryption: None, ..setup };
    let options = || DiskCacheOptions { volume: "other".into(), ..other.options() };
    let store = other.open(Some(options()));
    assert!(matches!(read(&store, 1, 1000, 0, 10), Err(ChunkError::Missing { .. })));
    for volume in ["", "..", "a/b"] {
        let disk_cache = Some(DiskCacheOptions { volume: volume.into(), ..other.options() });
        let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
        let opened = BlockStore::open_with(&config, StoreOptions { disk_cache, ..StoreOptions::default() });
        assert!(matches!(opened, Err(ChunkError::Config(_))), "{volume:?}");
    }
}
