//! A store that fails, is slow or returns wrong data: a program gets an error, and never wrong data.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chunk::{
    BlockStore, Cipher, Compression, DiskCacheOptions, EncryptionSettings, Fault, Faults, MemoryBudget,
    PAGE_BYTES, Secret, StorageConfig, StoreCall, StoreOptions, WriteBuffer, WriteContext, Written,
};
use tempfile::TempDir;
use types::{BLOCK_BYTES, Errno, SliceId};

use support::destroy;

const BLOCK: usize = BLOCK_BYTES as usize;
const PAGE: usize = PAGE_BYTES as usize;

fn open(dir: &TempDir, options: StoreOptions) -> Arc<BlockStore> {
    let bucket = dir.path().to_str().unwrap().to_owned();
    let options = StoreOptions { create: true, ..options };
    BlockStore::open_with(&StorageConfig { storage: "file".into(), bucket }, options).unwrap()
}

fn faulty(faults: &Arc<Faults>) -> StoreOptions {
    StoreOptions { cache_bytes: 0, faults: Some(Arc::clone(faults)), ..StoreOptions::default() }
}

fn pattern(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 4093) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn wrong_data_from_the_store_is_an_error() {
    let secret = Secret::key_from_text(&"44".repeat(32)).unwrap();
    let sealed = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap().1;
    let data = pattern(2 * BLOCK + 3 * PAGE + 5);
    let settings = [(Compression::None, None), (Compression::Zstd, None), (Compression::Lz4, Some(sealed))];
    for (seed, (compression, encryption)) in settings.into_iter().enumerate() {
        for with_cache in [false, true] {
            let (dir, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
            let faults = Faults::new(seed as u64);
            let disk_cache = with_cache.then(|| DiskCacheOptions {
                directory: cache.path().to_owned(),
                volume: "v".into(),
                max_bytes: 1 << 30,
                min_free_bytes: 0,
            });
            let options = || {
                let (encryption, disk_cache) = (encryption.clone(), disk_cache.clone());
                StoreOptions { compression, encryption, disk_cache, ..faulty(&faults) }
            };
            open(&dir, options()).put_slice(SliceId(1), &data).unwrap();
            for fault in [Fault::Flip, Fault::Short, Fault::Absent, Fault::Fail(Errno::EIO)] {
                faults.add(StoreCall::Get, fault, 150);
            }
            let (mut right, mut wrong) = (0, 0);
            for round in 0..40_usize {
                let store = open(&dir, options());
                for step in 0..5 {
                    let offset = (round * 5 + step) * 1_234_567 % (data.len() - 1);
                    let len = [1, 4096, PAGE, BLOCK][(round + step) % 4].min(data.len() - offset);
                    let mut buf = vec![0; len];
                    match store.read(SliceId(1), data.len() as u32, offset as u32, &mut buf) {
                        Ok(()) => {
                            assert_eq!(buf, data[offset..offset + len], "seed {seed}: {offset} {len}");
                            right += 1;
                        }
                        Err(error) => {
                            assert_eq!(error.errno(), Errno::EIO, "{error}");
                            wrong += 1;
                        }
                    }
                }
            }
            // A block cached on disk is not read from the store, so fewer faults are injected.
            let (least, injected) = (if with_cache { 1 } else { 20 }, faults.injected());
            assert!(right > 20 && wrong >= least && injected >= wrong, "{right} {wrong} {injected}");
            // Without faults everything is read correctly: no wrong data was cached.
            faults.clear();
            let mut buf = vec![0; data.len()];
            open(&dir, options()).read(SliceId(1), data.len() as u32, 0, &mut buf).unwrap();
            assert_eq!(buf, data);
        }
    }
}

#[test]
fn failed_puts_are_reported_and_retried() {
    for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::ETIMEDOUT, Errno::EIO] {
        for fault in [Fault::Fail(errno), Fault::DoneThenFail(errno)] {
            let (dir, faults) = (TempDir::new().unwrap(), Faults::new(1));
            let ids = AtomicU64::new(1);
            let context = Arc::new(WriteContext {
                store: open(&dir, faulty(&faults)),
                budget: MemoryBudget::new(MemoryBudget::DEFAULT_BYTES),
                new_id: Box::new(move || Ok(SliceId(ids.fetch_add(1, Relaxed)))),
            });
            let mut buffer = WriteBuffer::new(&context);
            let data = pattern(2 * BLOCK + 1000);
            faults.add(StoreCall::Put, fault, 1000);
            // The upload of the first block may fail before the rest is written.
            let mut reported = 0;
            for part in [0..BLOCK, BLOCK..data.len()] {
                loop {
                    match buffer.write(part.start as u64, &data[part.clone()]) {
                        Ok(written) => break assert_eq!(written, Written::Buffered),
                        Err(error) => {
                            assert_eq!(error.errno(), errno, "{error}");
                            reported += 1;
                        }
                    }
                }
            }
            assert!(reported <= 2);
            assert_eq!(buffer.stage(None).unwrap_err().errno(), errno);
            let mut seen = vec![0; data.len()];
            buffer.overlay(0, &mut seen).unwrap();
            assert_eq!(seen, data, "bytes that are not stored are still read");
            faults.clear();
            let staged = buffer.stage(None).unwrap();
            context.store.make_durable(&staged.slices()).unwrap();
            let rows: Vec<_> = staged.rows.iter().map(|(_, row)| row.clone()).collect();
            buffer.committed(&staged);
            let mut stored = vec![0; data.len()];
            context.store.read_chunk(&rows, 0, &mut stored).unwrap();
            assert_eq!(stored, data);
        }
    }
}

#[test]
fn a_failed_sync_is_retried() {
    let (dir, faults) = (TempDir::new().unwrap(), Faults::new(1));
    let store = open(&dir, faulty(&faults));
    // The first call for an unknown slice syncs everything, so that later calls sync single slices.
    store.make_durable(&[SliceId(99)]).unwrap();
    store.put_slice(SliceId(1), &pattern(100)).unwrap();
    faults.add(StoreCall::Sync, Fault::Fail(Errno::EIO), 1000);
    for _ in 0..2 {
        assert_eq!(store.make_durable(&[SliceId(1)]).unwrap_err().errno(), Errno::EIO);
    }
    faults.clear();
    store.make_durable(&[SliceId(1)]).unwrap();
    faults.add(StoreCall::Sync, Fault::Fail(Errno::EIO), 1000);
    store.make_durable(&[SliceId(1)]).unwrap();
}

#[test]
fn a_slow_store_is_accessed_in_parallel() {
    let (dir, faults) = (TempDir::new().unwrap(), Faults::new(1));
    let (store, data) = (open(&dir, faulty(&faults)), pattern(8 * BLOCK));
    faults.add(StoreCall::Put, Fault::Slow(Duration::from_secs(1)), 1000);
    let started = Instant::now();
    store.put_slice(SliceId(1), &data).unwrap();
    // Eight sequential blocks would take 8 s. The bound leaves a busy machine some seconds.
    assert!((1000..7000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[test]
fn an_incomplete_list_is_a_subset() {
    let (dir, faults) = (TempDir::new().unwrap(), Faults::new(7));
    let store = open(&dir, faulty(&faults));
    for id in 0..50 {
        store.put_slice(SliceId(id), &pattern(10)).unwrap();
    }
    let count = |store: &BlockStore| {
        let mut seen = Vec::new();
        store
            .for_each_block(&mut |block| {
                seen.push(block.id);
                Ok(())
            })
            .unwrap();
        assert!(seen.iter().all(|id| id.0 < 50));
        seen.len()
    };
    faults.add(StoreCall::List, Fault::Short, 1000);
    assert!(count(&store) < 50);
    faults.clear();
    faults.add(StoreCall::List, Fault::Fail(Errno::EIO), 1000);
    assert_eq!(store.for_each_block(&mut |_| Ok(())).unwrap_err().errno(), Errno::EIO);
    assert!(destroy(&store, &mut |_| {}).is_err());
    faults.clear();
    assert_eq!(count(&store), 50);
    // A removal that fails halfway can be continued.
    faults.add(StoreCall::Delete, Fault::DoneThenFail(Errno::EIO), 100);
    let mut rounds = 0;
    while destroy(&store, &mut |_| {}).is_err() {
        rounds += 1;
        assert!(rounds < 50);
    }
    assert!(rounds > 0);
}
