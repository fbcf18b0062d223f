//! The block store in a real directory and in memory: its requests, the effects of damage, and what it leaves
//! behind.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chunk::{
    BlockFault, BlockStore, BucketMarker, ChunkError, PAGE_BYTES, StorageConfig, StoreOptions, StoredBlock,
    object_key,
};
use tempfile::TempDir;
use types::{BLOCK_BYTES, Errno, Slice, SliceId, SliceSource};

use support::destroy;

const CACHE: u64 = 64 << 20;
const BLOCK: usize = BLOCK_BYTES as usize;
const PAGE: usize = PAGE_BYTES as usize;

fn file_store(dir: &Path) -> Arc<BlockStore> {
    let bucket = dir.to_str().unwrap().to_owned();
    BlockStore::open(&StorageConfig { storage: "file".into(), bucket }, CACHE).unwrap()
}

fn memory_store() -> Arc<BlockStore> {
    BlockStore::open(&StorageConfig { storage: "memory".into(), bucket: String::new() }, CACHE).unwrap()
}

/// The marker of a store with one bucket.
fn marker(store: &BlockStore) -> Option<Vec<u8>> {
    let markers = store.direct().markers().unwrap();
    let [BucketMarker { address, text }] = &markers[..] else { panic!("{markers:?}") };
    assert_eq!(address, "");
    text.clone()
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 4093) as u8).collect::<Vec<u8>>().into()
}

fn object(dir: &Path, id: u64, block: u32, len: u32) -> PathBuf {
    dir.join(object_key(SliceId(id), block, len))
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn slices_read_back_at_any_offset() {
    let dir = TempDir::new().unwrap();
    let data = pattern(2 * BLOCK + 100_000);
    let size = data.len() as u32;
    for writer in [file_store(dir.path()), memory_store()] {
        writer.put_slice(SliceId(5), &data).unwrap();
        for (offset, len) in
            [(0, 10), (BLOCK - 5, 10), (PAGE + 3, PAGE), (2 * BLOCK + 99_990, 10), (0, data.len()), (7, 0)]
        {
            let mut buf = vec![0; len];
            writer.read(SliceId(5), size, offset as u32, &mut buf).unwrap();
            assert_eq!(buf, data[offset..offset + len], "{offset} {len}");
        }
        assert!(matches!(writer.read(SliceId(5), size, size, &mut [0]), Err(ChunkError::Row { .. })));
        writer.delete_slice(SliceId(5), size).unwrap();
        writer.delete_slice(SliceId(5), size).unwrap();
        assert!(matches!(writer.read(SliceId(5), size, 0, &mut [0]), Err(ChunkError::Missing { .. })));
    }
}

#[test]
fn a_sequential_read_of_a_block_is_one_request() {
    let dir = TempDir::new().unwrap();
    let data = pattern(3 * BLOCK);
    file_store(dir.path()).put_slice(SliceId(1), &data).unwrap();
    let store = file_store(dir.path());
    let mut buf = vec![0; 128 << 10];
    for at in (0..BLOCK).step_by(buf.len()) {
        store.read(SliceId(1), BLOCK_BYTES, at as u32, &mut buf).unwrap();
        assert_eq!(buf, data[at..at + buf.len()]);
    }
    assert_eq!(store.requests().gets, 1);

    let store = file_store(dir.path());
    for at in (0..data.len()).step_by(buf.len()) {
        store.read(SliceId(1), data.len() as u32, at as u32, &mut buf).unwrap();
    }
    assert_eq!(store.requests().gets, 3);
}

#[test]
fn prefetched_blocks_are_fetched_once() {
    let dir = TempDir::new().unwrap();
    let data = pattern(16 * BLOCK);
    let size = data.len() as u32;
    file_store(dir.path()).put_slice(SliceId(1), &data).unwrap();
    let config = StorageConfig { storage: "file".into(), bucket: dir.path().to_str().unwrap().into() };
    let store = BlockStore::open(&config, 16 * u64::from(BLOCK_BYTES)).unwrap();
    let source = SliceSource::Blocks { id: SliceId(1), offset: 0, size };
    let rows = [Slice { pos: 0, len: size, source }];
    let mut buf = vec![0; 128 << 10];
    for at in (0..data.len()).step_by(buf.len()) {
        // The range to prefetch may end far beyond the end of the slice.
        store.prefetch(&rows, at as u32, 8 * BLOCK_BYTES);
        store.read_chunk(&rows, at as u32, &mut buf).unwrap();
        assert_eq!(buf, data[at..at + buf.len()]);
    }
    assert_eq!(store.requests().gets, 16);
}

#[test]
fn random_reads_fetch_pages_and_sequential_reads_fetch_the_block() {
    let dir = TempDir::new().unwrap();
    let data = pattern(BLOCK);
    file_store(dir.path()).put_slice(SliceId(1), &data).unwrap();
    let store = file_store(dir.path());
    let mut buf = vec![0; 4096];
    let mut read = |at: usize| {
        store.read(SliceId(1), BLOCK_BYTES, at as u32, &mut buf).unwrap();
        assert_eq!(buf, data[at..at + 4096]);
        store.requests().gets
    };
    assert_eq!(read(PAGE * 3), 2);
    assert_eq!(read(PAGE * 10 + 5), 3);
    assert_eq!(read(PAGE * 10 + 5 + 4096), 4);
    assert_eq!(read(PAGE * 20), 4);
}

#[test]
fn damage_affects_only_its_range() {
    let dir = TempDir::new().unwrap();
    let data = pattern(4 * BLOCK);
    let size = data.len() as u32;
    file_store(dir.path()).put_slice(SliceId(9), &data).unwrap();
    let path = |block| object(dir.path(), 9, block, BLOCK_BYTES);
    let mut bytes = fs::read(path(0)).unwrap();
    bytes[PAGE * 5 + 77] ^= 0x10;
    fs::write(path(0), bytes).unwrap();
    fs::remove_file(path(1)).unwrap();
    fs::OpenOptions::new().write(true).open(path(2)).unwrap().set_len(1_000_000).unwrap();

    let store = file_store(dir.path());
    let read = |offset: usize, len: usize| {
        let mut buf = vec![0; len];
        store
            .read(SliceId(9), size, offset as u32, &mut buf)
            .map(|()| assert_eq!(buf, data[offset..offset + len]))
    };
    for _ in 0..2 {
        read(0, PAGE * 5).unwrap();
        read(PAGE * 6, BLOCK - PAGE * 6).unwrap();
        read(3 * BLOCK, BLOCK).unwrap();
        let corrupt = read(0, BLOCK).unwrap_err();
        assert!(
            matches!(&corrupt, ChunkError::Corrupt { slice: SliceId(9), block: 0, key, fault: BlockFault::Page(at) }
                if *at == PAGE_BYTES * 5 && *key == object_key(SliceId(9), 0, BLOCK_BYTES)),
            "{corrupt}"
        );
        let missing = read(BLOCK + 10, 10).unwrap_err();
        assert!(matches!(missing, ChunkError::Missing { slice: SliceId(9), block: 1, .. }), "{missing}");
        for (from, len) in [(2 * BLOCK, BLOCK), (2 * BLOCK + PAGE, 10)] {
            let short = read(from, len).unwrap_err();
            assert!(matches!(short, ChunkError::Short { slice: SliceId(9), block: 2, .. }), "{short}");
            assert_eq!(short.errno(), Errno::EIO);
        }
        assert_eq!((corrupt.errno(), missing.errno()), (Errno::EIO, Errno::EIO));
    }
}

#[test]
fn a_failed_put_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let store = file_store(dir.path());
    // A directory that is not empty has the third block's key, so that only this rename fails.
    fs::create_dir_all(object(dir.path(), 3, 2, BLOCK_BYTES).join("x")).unwrap();
    let error = store.put_slice(SliceId(3), &pattern(4 * BLOCK)).unwrap_err();
    assert!(
        matches!(&error, ChunkError::Store { action: "write", key, .. } if key.contains("3_2_")),
        "{error}"
    );
    assert_eq!(files_below(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn system_errors_reach_the_program() {
    let full = |errno| ChunkError::Store { action: "write", key: "k".into(), errno, message: "m".into() };
    assert_eq!(full(Errno::ENOSPC).errno(), Errno::ENOSPC);
    assert_eq!(full(Errno::EDQUOT).errno(), Errno::EDQUOT);
    assert_eq!(full(Errno::EACCES).errno(), Errno::EIO);
}

#[test]
fn settings_are_checked() {
    let open = |storage: &str, bucket: &str| {
        BlockStore::open(&StorageConfig { storage: storage.into(), bucket: bucket.into() }, CACHE)
    };
    assert!(matches!(open("tape", ""), Err(ChunkError::Config(_))));
    assert!(matches!(open("file", "relative/path"), Err(ChunkError::Config(_))));
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = open("file", file.path().to_str().unwrap()).unwrap_err();
    assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
}

#[test]
fn the_check_of_a_working_store_leaves_nothing_behind() {
    let dir = TempDir::new().unwrap();
    let store = file_store(dir.path());
    store.check().unwrap();
    assert_eq!(files_below(dir.path()), Vec::<PathBuf>::new());
    fs::remove_dir_all(dir.path().join("tmp")).unwrap();
    fs::write(dir.path().join("tmp"), b"").unwrap();
    assert!(matches!(store.check(), Err(ChunkError::Store { action: "write", .. })));
    memory_store().check().unwrap();
}

/// The directory is like a mount point on which nothing is mounted yet.
#[test]
fn a_missing_or_unmarked_directory_is_not_written_to() {
    let parent = TempDir::new().unwrap();
    let root = parent.path().join("bucket");
    let config = StorageConfig { storage: "file".into(), bucket: root.to_str().unwrap().into() };
    let open = || BlockStore::open_with(&config, StoreOptions::default());
    let error = open().unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
    assert!(!root.exists());

    fs::create_dir(&root).unwrap();
    let store = open().unwrap();
    assert_eq!(marker(&store), None);
    store.check_readable().unwrap();
    store.put_slice(SliceId(1), &pattern(100)).unwrap_err();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    // A caller that knows that the store is the right one prepares it.
    store.check().unwrap();
    store.put_slice(SliceId(1), &pattern(100)).unwrap();
}

#[test]
fn the_marker_is_not_a_block_and_is_removed_last() {
    let parent = TempDir::new().unwrap();
    let root = parent.path().join("bucket");
    for store in [file_store(&root), memory_store()] {
        store.put_markers(&|_, _| "mine".to_owned()).unwrap();
        assert_eq!(marker(&store).unwrap(), b"mine");
        assert!(store.direct().is_empty().unwrap());
        store.put_slice(SliceId(1), &pattern(100)).unwrap();
        let mut blocks = Vec::new();
        let mut visit = |block: StoredBlock| {
            blocks.push(block);
            Ok(())
        };
        store.for_each_block(&mut visit).unwrap();
        assert_eq!(blocks.len(), 1, "{blocks:?}");
        if format!("{store:?}").contains("Dir") {
            let age = store.modified(&blocks[0]).unwrap().unwrap().elapsed().unwrap();
            assert!(age < Duration::from_secs(3600), "{age:?}");
        }
        store.remove_blocks::<ChunkError>(&mut |_| Ok(())).unwrap();
        assert_eq!(store.modified(&blocks[0]).unwrap(), None);
        assert_eq!(marker(&store).unwrap(), b"mine");
        store.remove_markers().unwrap();
        assert_eq!(marker(&store), None);
    }
    assert!(!root.exists());
}

#[test]
fn each_slice_is_made_durable_once() {
    let dir = TempDir::new().unwrap();
    let store = file_store(dir.path());
    store.put_slice(SliceId(1), &pattern(BLOCK + 1)).unwrap();
    store.put_slice(SliceId(2), &pattern(10)).unwrap();
    store.put_slice(SliceId(3), &pattern(10)).unwrap();
    store.make_durable(&[SliceId(1)]).unwrap();
    store.delete_slice(SliceId(2), 10).unwrap();
    store.make_durable(&[SliceId(1), SliceId(2), SliceId(99)]).unwrap();
    fs::remove_file(object(dir.path(), 3, 0, 10)).unwrap();
    store.make_durable(&[SliceId(3)]).unwrap();
}

#[test]
fn destroying_removes_only_blocks() {
    for with_other in [false, true] {
        let parent = TempDir::new().unwrap();
        let root = parent.path().join("bucket");
        let store = file_store(&root);
        for id in [1, 999, 1_000, 5_000_000] {
            store.put_slice(SliceId(id), &pattern(100)).unwrap();
        }
        if with_other {
            fs::write(root.join("mine"), b"keep").unwrap();
        }
        let mut seen = Vec::new();
        store
            .for_each_block(&mut |block| {
                seen.push((block.id.0, block.block, block.len));
                Ok(())
            })
            .unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [(1, 0, 100), (999, 0, 100), (1_000, 0, 100), (5_000_000, 0, 100)]);
        let mut last = 0;
        destroy(&store, &mut |count| last = count).unwrap();
        assert_eq!(last, 4);
        assert_eq!(root.exists(), with_other);
        if with_other {
            assert_eq!(files_below(&root), [root.join("mine")]);
        }
    }
}

#[test]
fn the_store_in_memory_lists_and_destroys() {
    let store = memory_store();
    store.put_slice(SliceId(1), &pattern(BLOCK + 5)).unwrap();
    store.put_slice(SliceId(2_000_000), &pattern(5)).unwrap();
    let mut count = 0;
    store
        .for_each_block(&mut |_| {
            count += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(count, 3);
    assert!(!store.direct().is_empty().unwrap());
    destroy(&store, &mut |_| {}).unwrap();
    assert!(matches!(store.read(SliceId(1), 5, 0, &mut [0; 5]), Err(ChunkError::Missing { .. })));
    destroy(&store, &mut |_| panic!("no block is left")).unwrap();
    assert!(store.direct().is_empty().unwrap());
}

#[test]
fn a_full_disk_is_enospc() {
    let dir = TempDir::new().unwrap();
    let command = |name: &str, args: &[&str]| {
        Command::new(name).args(args).output().is_ok_and(|out| out.status.success())
    };
    let path = dir.path().to_str().unwrap();
    if !skip::is_root() {
        return;
    }
    assert!(command("mount", &["-t", "tmpfs", "-o", "size=1m", "limen-test", path]));
    let store = file_store(dir.path());
    let small = store.put_slice(SliceId(1), &pattern(1000));
    let error = store.put_slice(SliceId(2), &pattern(2 << 20));
    let left = files_below(dir.path());
    drop(store);
    assert!(command("umount", &[path]));
    small.unwrap();
    let error = error.unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC, "{error}");
    assert!(error.to_string().contains("chunks/0/0/2_0_2097152"), "{error}");
    assert_eq!(left.len(), 1, "{left:?}");
}
