//! Write-back: staged blocks are read from the local disk, are uploaded in the end, and never become wrong
//! data.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chunk::{
    BlockStore, ChunkError, Cipher, Compression, EncryptionSettings, Fault, Faults, HeldStaging, Secret,
    StorageConfig, StoreCall, StoreCheck, StoreOptions, WritebackOptions, count_staged, object_key,
};
use tempfile::TempDir;
use types::{BLOCK_BYTES, Errno, SliceId};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Longer than any test takes, so that a wait ends only when the work is done.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// A store and a local disk.
struct Bench {
    store: TempDir,
    local: TempDir,
    faults: Arc<Faults>,
}

impl Bench {
    fn new() -> Self {
        Bench { store: TempDir::new().unwrap(), local: TempDir::new().unwrap(), faults: Faults::new(1) }
    }

    fn writeback(&self, max_bytes: u64) -> WritebackOptions {
        WritebackOptions {
            directory: self.local.path().to_owned(),
            volume: "v".into(),
            max_bytes,
            min_free_bytes: 0,
        }
    }

    /// A process that stages up to `max_bytes`; it caches nothing in memory.
    fn open(&self, max_bytes: u64) -> Arc<BlockStore> {
        self.open_with(StoreOptions { writeback: Some(self.writeback(max_bytes)), ..StoreOptions::default() })
    }

    fn open_with(&self, options: StoreOptions) -> Arc<BlockStore> {
        let store = self.open_unchecked(options);
        store.begin_uploads(None).unwrap();
        store
    }

    /// As [`Bench::open_with`], but does not check the store and begins no uploads.
    fn open_unchecked(&self, options: StoreOptions) -> Arc<BlockStore> {
        let bucket = self.store.path().to_str().unwrap().to_owned();
        let faults = Some(Arc::clone(&self.faults));
        let options = StoreOptions { cache_bytes: 0, create: true, faults, ..options };
        BlockStore::open_with(&StorageConfig { storage: "file".into(), bucket }, options).unwrap()
    }

    /// A process that uses only the store.
    fn plain(&self) -> Arc<BlockStore> {
        self.open_with(StoreOptions::default())
    }

    fn down(&self) {
        self.faults.add(StoreCall::Put, Fault::Fail(Errno::EIO), 1000);
    }

    fn staged(&self) -> (u64, u64) {
        count_staged(&[self.place()]).unwrap()
    }

    fn place(&self) -> PathBuf {
        self.writeback(0).place()
    }
}

fn pattern(seed: usize, len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 4093 + seed * 31) as u8).collect::<Vec<u8>>().into()
}

fn read(store: &BlockStore, id: u64, len: usize) -> Result<Vec<u8>, ChunkError> {
    let mut buf = vec![0; len];
    store.read(SliceId(id), len as u32, 0, &mut buf).map(|()| buf)
}

fn drain(store: &BlockStore) {
    store.wait_uploads(FOR_EVER, &mut |_| {}).unwrap();
    assert_eq!(store.pending().unwrap().blocks, 0);
}

/// The number of blocks that `store` lists.
fn blocks(store: &BlockStore) -> usize {
    let mut count = 0;
    store
        .for_each_block(&mut |_| {
            count += 1;
            Ok(())
        })
        .unwrap();
    count
}

#[test]
fn nothing_is_uploaded_before_the_store_was_checked() {
    let bench = Bench::new();
    let data = pattern(1, 1000);
    bench.down();
    bench.open(1 << 30).put_slice(SliceId(1), &data).unwrap();
    bench.faults.clear();
    let options = || StoreOptions { writeback: Some(bench.writeback(1 << 30)), ..StoreOptions::default() };
    let store = bench.open_unchecked(options());
    store.put_slice(SliceId(2), &data).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(bench.staged().0, 2);
    assert!(store.direct().is_empty().unwrap());
    // A mount that fails before its uploads begin changes nothing.
    drop(store);
    assert_eq!(bench.staged().0, 2);
    let store = bench.open_unchecked(options());
    store.begin_uploads(None).unwrap();
    drain(&store);
    assert_eq!((bench.staged().0, blocks(&bench.plain())), (0, 2));
}

#[test]
fn a_store_that_did_not_answer_is_checked_before_it_is_used() {
    let bench = Bench::new();
    let data = pattern(1, 1000);
    bench.plain().put_slice(SliceId(1), &data).unwrap();
    bench.plain().put_markers(&|_, _| "another's".to_owned()).unwrap();
    let open = |max_bytes| {
        let writeback = Some(bench.writeback(max_bytes));
        let store = bench.open_unchecked(StoreOptions { writeback, ..StoreOptions::default() });
        let check = StoreCheck::new(|store| {
            match store.markers().map_err(|error| error.to_string())?[0].text.as_deref() {
                Some(b"mine") => Ok(()),
                _ => Err("it is not mine".to_owned()),
            }
        });
        store.begin_uploads(Some(check)).unwrap();
        store
    };
    let [store, direct] = [open(1 << 30), open(0)];
    store.put_slice(SliceId(2), &data).unwrap();
    assert_eq!(read(&store, 2, data.len()).unwrap(), data);
    while store.pending().unwrap().failures == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(store.pending().unwrap().error.unwrap().contains("it is not mine"));
    let refused = |result: Result<(), ChunkError>| {
        let error = result.unwrap_err();
        assert!(error.errno() == Errno::EIO && error.to_string().contains("it is not mine"), "{error}");
    };
    refused(direct.put_slice(SliceId(3), &data));
    refused(read(&store, 1, data.len()).map(drop));
    refused(store.delete_slice(SliceId(1), data.len() as u32));
    assert_eq!((bench.staged().0, blocks(&bench.plain())), (1, 1));
    bench.plain().put_markers(&|_, _| "mine".to_owned()).unwrap();
    drain(&store);
    assert_eq!(read(&store, 1, data.len()).unwrap(), data);
    direct.put_slice(SliceId(3), &data).unwrap();
    assert_eq!((bench.staged().0, blocks(&bench.plain())), (0, 3));
}

#[test]
fn staged_blocks_are_readable_and_uploaded_when_the_store_works_again() {
    let bench = Bench::new();
    bench.down();
    let store = bench.open(1 << 30);
    let data = pattern(1, 2 * BLOCK + 77);
    store.put_slice(SliceId(1), &data).unwrap();
    assert_eq!(read(&store, 1, data.len()).unwrap(), data);
    let mut middle = vec![0; 100];
    store.read(SliceId(1), data.len() as u32, BLOCK as u32 + 70_000, &mut middle).unwrap();
    assert_eq!(middle, data[BLOCK + 70_000..BLOCK + 70_100]);
    // The local disk makes the slice durable, without a request to the store.
    bench.faults.add(StoreCall::Sync, Fault::Fail(Errno::EIO), 1000);
    store.make_durable(&[SliceId(1)]).unwrap();
    let pending = store.wait_uploads(Duration::ZERO, &mut |_| {}).unwrap_err();
    assert_eq!((pending.blocks, pending.uploaded), (3, 0));
    assert!(pending.bytes > data.len() as u64, "{pending:?}");
    assert_eq!(bench.staged(), (3, pending.bytes));
    assert!(matches!(read(&bench.plain(), 1, data.len()), Err(ChunkError::Missing { .. })));
    bench.faults.clear();
    drain(&store);
    assert_eq!((store.pending().unwrap().uploaded, bench.staged()), (3, (0, 0)));
    assert_eq!(store.pending().unwrap().error, None);
    assert_eq!(read(&store, 1, data.len()).unwrap(), data);
    assert_eq!(read(&bench.plain(), 1, data.len()).unwrap(), data);
}

#[test]
fn a_block_stays_staged_until_the_store_has_synced_it() {
    let bench = Bench::new();
    bench.faults.add(StoreCall::Sync, Fault::Fail(Errno::EIO), 1000);
    let store = bench.open(1 << 30);
    store.put_slice(SliceId(1), &pattern(1, 1000)).unwrap();
    while store.pending().unwrap().failures == 0 {
        std::thread::yield_now();
    }
    assert_eq!(bench.staged().0, 1);
    bench.faults.clear();
    drain(&store);
    assert_eq!(bench.staged().0, 0);
}

#[test]
fn the_next_process_uploads_blocks_left_behind_and_others_read_them() {
    let bench = Bench::new();
    let secret = Secret::key_from_text(&"44".repeat(32)).unwrap();
    let sealed = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap().1;
    let encryption = || Some(sealed.clone());
    let open = |max_bytes| {
        let (compression, writeback) = (Compression::Lz4, Some(bench.writeback(max_bytes)));
        bench.open_with(StoreOptions {
            compression,
            encryption: encryption(),
            writeback,
            ..StoreOptions::default()
        })
    };
    bench.down();
    let data = pattern(2, BLOCK + 5000);
    open(1 << 30).put_slice(SliceId(7), &data).unwrap();
    let place = bench.place();
    let staged = vec![place.clone()];
    let looking =
        bench.open_with(StoreOptions { encryption: encryption(), staged, ..StoreOptions::default() });
    assert_eq!(looking.pending(), None);
    assert_eq!(read(&looking, 7, data.len()).unwrap(), data);
    assert_eq!((blocks(&looking), blocks(&bench.plain())), (2, 0));
    let elsewhere = bench.open_with(StoreOptions { encryption: encryption(), ..StoreOptions::default() });
    assert_eq!(read(&elsewhere, 7, data.len()).unwrap_err().errno(), Errno::EIO);
    // This process stages nothing new, but queues the blocks that it finds. Then it is killed too.
    let next = open(0);
    assert_eq!(read(&next, 7, data.len()).unwrap(), data);
    assert_eq!(next.pending().unwrap().blocks, 2);
    assert!(next.put_slice(SliceId(8), &data).is_err());
    drop(next);
    bench.faults.clear();
    drain(&open(0));
    assert_eq!(read(&elsewhere, 7, data.len()).unwrap(), data);
    assert_eq!(count_staged(&[place]).unwrap(), (0, 0));
}

#[test]
fn without_free_space_blocks_are_written_to_the_store() {
    let bench = Bench::new();
    bench.down();
    let store = bench.open(BLOCK as u64 + 1000);
    store.put_slice(SliceId(1), &pattern(1, BLOCK)).unwrap();
    assert!(store.put_slice(SliceId(2), &pattern(2, BLOCK)).is_err());
    bench.faults.clear();
    drain(&store);
    store.put_slice(SliceId(2), &pattern(2, BLOCK)).unwrap();
    drain(&store);
    drop(store);
    // At first the disk is too full; then it does not work at all.
    let mut options = bench.writeback(1 << 30);
    options.min_free_bytes = u64::MAX;
    let full = bench.open_with(StoreOptions { writeback: Some(options), ..StoreOptions::default() });
    full.put_slice(SliceId(3), &pattern(3, BLOCK)).unwrap();
    assert!(bench.store.path().join(object_key(SliceId(3), 0, BLOCK_BYTES)).exists());
    drop(full);
    let broken = bench.open(1 << 30);
    fs::remove_dir_all(bench.place().join("0/tmp")).unwrap();
    fs::write(bench.place().join("0/tmp"), "in the way").unwrap();
    broken.put_slice(SliceId(4), &pattern(4, BLOCK)).unwrap();
    assert_eq!((broken.pending().unwrap().blocks, bench.staged().0), (0, 0));
    for id in 1..=4 {
        assert_eq!(read(&bench.plain(), id, BLOCK).unwrap(), pattern(id as usize, BLOCK));
    }
}

#[test]
fn a_damaged_block_is_not_uploaded() {
    let bench = Bench::new();
    bench.down();
    bench.open(1 << 30).put_slice(SliceId(1), &pattern(1, 3 * BLOCK)).unwrap();
    let path = |block| bench.place().join("0").join(object_key(SliceId(1), block, BLOCK_BYTES));
    let mut bytes = fs::read(path(0)).unwrap();
    bytes[1_000_000] ^= 1;
    fs::write(path(0), bytes).unwrap();
    fs::File::options().write(true).open(path(1)).unwrap().set_len(0).unwrap();
    bench.faults.clear();
    let store = bench.open(0);
    drain(&store);
    assert_eq!(store.pending().unwrap().uploaded, 1);
    let damaged = fs::read_dir(bench.place().join("0/damaged")).unwrap().count();
    assert_eq!((damaged, blocks(&bench.plain())), (2, 1));
    assert_eq!(read(&bench.plain(), 1, 3 * BLOCK).unwrap_err().errno(), Errno::EIO);
}

#[test]
fn a_flaky_store_ends_up_with_all_blocks_except_deleted_ones() {
    let bench = Bench::new();
    for (fault, per_mille) in [
        (Fault::Fail(Errno::EIO), 200),
        (Fault::DoneThenFail(Errno::ETIMEDOUT), 200),
        (Fault::Slow(Duration::from_millis(2)), 300),
    ] {
        bench.faults.add(StoreCall::Put, fault, per_mille);
    }
    let store = bench.open(1 << 30);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let store = &store;
            scope.spawn(move || {
                for id in (1 + worker..=60).step_by(3) {
                    store.put_slice(SliceId(id), &pattern(id as usize, 10_000)).unwrap();
                    if id % 4 == 0 {
                        store.delete_slice(SliceId(id), 10_000).unwrap();
                    }
                    if id > 6 && (id - 6) % 4 != 0 {
                        let bytes = read(store, id - 6, 10_000).unwrap();
                        assert_eq!(bytes, pattern(id as usize - 6, 10_000));
                    }
                }
            });
        }
    });
    // On a busy machine, the uploads may start only now.
    while bench.faults.injected() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Failures delay the next attempts; without this, the drain could take minutes.
    bench.faults.clear();
    drain(&store);
    let plain = bench.plain();
    for id in 1..=60 {
        match id % 4 {
            0 => assert!(matches!(read(&plain, id, 10_000), Err(ChunkError::Missing { .. })), "{id}"),
            _ => assert_eq!(read(&plain, id, 10_000).unwrap(), pattern(id as usize, 10_000)),
        }
    }
    assert_eq!((blocks(&plain), bench.staged()), (45, (0, 0)));
}

#[test]
fn processes_that_share_a_directory_read_and_remove_each_others_blocks() {
    let bench = Bench::new();
    bench.down();
    let (one, two) = (bench.open(1 << 30), bench.open(1 << 30));
    one.put_slice(SliceId(1), &pattern(1, 5000)).unwrap();
    two.put_slice(SliceId(2), &pattern(2, 5000)).unwrap();
    two.put_slice(SliceId(3), &pattern(3, 5000)).unwrap();
    for store in [&one, &two] {
        assert_eq!(read(store, 1, 5000).unwrap(), pattern(1, 5000));
        assert_eq!(read(store, 2, 5000).unwrap(), pattern(2, 5000));
        assert_eq!(blocks(store), 3);
    }
    one.delete_slice(SliceId(3), 5000).unwrap();
    assert!(matches!(read(&two, 3, 5000), Err(ChunkError::Missing { .. })));
    // One process is gone. The next takes over its area, and leaves that of the live process alone.
    drop(one);
    let next = bench.open(1 << 30);
    assert_eq!(next.pending().unwrap().blocks, 1);
    bench.faults.clear();
    drain(&next);
    drain(&two);
    let plain = bench.plain();
    assert_eq!(read(&plain, 1, 5000).unwrap(), pattern(1, 5000));
    assert_eq!((read(&plain, 2, 5000).unwrap(), blocks(&plain)), (pattern(2, 5000).to_vec(), 2));
    assert!(Path::new(&bench.place().join("1")).is_dir() && !bench.place().join("2").exists());
}

#[test]
fn a_failed_removal_keeps_staged_blocks() {
    let bench = Bench::new();
    let store = bench.open(1 << 30);
    store.put_slice(SliceId(1), &pattern(1, 100)).unwrap();
    drain(&store);
    bench.down();
    let data = pattern(2, 100);
    store.put_slice(SliceId(2), &data).unwrap();
    // The process is killed.
    drop(store);
    let remover = bench.open_with(StoreOptions { staged: vec![bench.place()], ..StoreOptions::default() });
    bench.faults.add(StoreCall::Delete, Fault::Fail(Errno::EIO), 1000);
    remover.remove_blocks::<ChunkError>(&mut |_| Ok(())).unwrap_err();
    assert_eq!(bench.staged().0, 1);
    bench.faults.clear();
    assert_eq!(read(&remover, 2, 100).unwrap(), data);
    let mut count = 0;
    let mut progress = |removed| {
        count = removed;
        Ok(())
    };
    remover.remove_blocks::<ChunkError>(&mut progress).unwrap();
    assert_eq!((count, bench.staged().0, blocks(&remover)), (2, 0, 0));
}

#[test]
fn a_removal_ends_at_an_error_of_its_callback() {
    let bench = Bench::new();
    let store = bench.plain();
    (1..=3).for_each(|id| store.put_slice(SliceId(id), &pattern(1, 100)).unwrap());
    let mut stop = |removed| if removed == 2 { Err(ChunkError::Aborted) } else { Ok(()) };
    store.remove_blocks(&mut stop).unwrap_err();
    assert_eq!(blocks(&store), 1);
}

#[test]
fn staged_blocks_belong_to_one_process_at_a_time() {
    let bench = Bench::new();
    let places = [bench.place()];
    let take = || HeldStaging::take(&places).unwrap();
    assert!(take().is_ok(), "nothing is staged anywhere");
    let store = bench.open(1 << 30);
    assert_eq!(take().err().unwrap().parent(), Some(bench.place().as_path()));
    bench.down();
    store.put_slice(SliceId(1), &pattern(1, 100)).unwrap();
    drop(store);
    let held = take().unwrap();
    bench.faults.clear();
    // The next process does not touch areas that another one has locked.
    let next = bench.open(1 << 30);
    drain(&next);
    assert_eq!(bench.staged().0, 1);
    drop((held, next));
    drain(&bench.open(1 << 30));
    assert_eq!(bench.staged().0, 0);
}
