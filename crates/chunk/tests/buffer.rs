//! Write buffers together with rows and the store, checked against a plain array of bytes.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use chunk::{
    BlockStore, ChunkError, Cipher, Compression, EncryptionSettings, Fault, Faults, MemoryBudget, Secret,
    Staged, StorageConfig, StoreCall, StoreOptions, WriteBuffer, WriteContext, Written,
};
use proptest::prelude::*;
use tempfile::TempDir;
use types::{BLOCK_BYTES, CHUNK_BYTES, ChunkIndex, Errno, Slice, SliceId, SliceSource};

const BLOCK: usize = BLOCK_BYTES as usize;

fn context_of(storage: &str, bucket: &str, budget_bytes: u64) -> Arc<WriteContext> {
    let config = StorageConfig { storage: storage.into(), bucket: bucket.into() };
    let ids = AtomicU64::new(1);
    Arc::new(WriteContext {
        store: BlockStore::open(&config, 64 << 20).unwrap(),
        budget: MemoryBudget::new(budget_bytes),
        new_id: Box::new(move || Ok(SliceId(ids.fetch_add(1, Relaxed)))),
    })
}

fn context() -> Arc<WriteContext> {
    context_of("memory", "", MemoryBudget::DEFAULT_BYTES)
}

/// A file as in the VFS: committed rows, and a write buffer on top.
struct File {
    context: Arc<WriteContext>,
    rows: BTreeMap<ChunkIndex, Vec<Slice>>,
    buffer: WriteBuffer,
}

impl File {
    fn new(context: &Arc<WriteContext>) -> Self {
        File { context: Arc::clone(context), rows: BTreeMap::new(), buffer: WriteBuffer::new(context) }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        while self.buffer.write(offset, data).unwrap() != Written::Buffered {
            assert!(self.buffer.is_dirty(), "no other buffer uses the budget");
            self.flush(None);
        }
    }

    fn commit(&mut self, staged: &Staged) {
        for (chunk, row) in &staged.rows {
            assert!(u64::from(row.pos) + u64::from(row.len) <= CHUNK_BYTES && row.len > 0);
            self.rows.entry(*chunk).or_default().push(row.clone());
        }
        self.buffer.committed(staged);
    }

    fn flush(&mut self, inline_limit: Option<u32>) {
        let staged = self.buffer.stage(inline_limit).unwrap();
        self.commit(&staged);
    }

    fn truncate(&mut self, len: u64, end: u64) {
        self.buffer.truncate(len);
        let mut at = len;
        while at < end {
            let (chunk, pos) = ChunkIndex::of(at);
            let hole = Slice { pos, len: CHUNK_BYTES as u32 - pos, source: SliceSource::Hole };
            self.rows.entry(chunk).or_default().push(hole);
            at = chunk.start() + CHUNK_BYTES;
        }
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        if self.buffer.covers(offset, len as u64) {
            self.buffer.overlay(offset, &mut bytes).unwrap();
            return bytes;
        }
        let mut done = 0;
        while done < len {
            let (chunk, pos) = ChunkIndex::of(offset + done as u64);
            let part = (len - done).min(CHUNK_BYTES as usize - pos as usize);
            let rows = self.rows.get(&chunk).map_or(&[][..], Vec::as_slice);
            self.context.store.read_chunk(rows, pos, &mut bytes[done..done + part]).unwrap();
            done += part;
        }
        self.buffer.overlay(offset, &mut bytes).unwrap();
        bytes
    }
}

#[derive(Clone, Debug)]
enum Action {
    Write {
        at: usize,
        len: usize,
        seed: u8,
    },
    Append {
        len: usize,
        seed: u8,
    },
    Truncate {
        at: usize,
    },
    Stage {
        inline: Option<u32>,
    },
    Commit {
        succeeds: bool,
    },
    /// The file does not know whether the rows were committed. They were not.
    Restage,
    Read {
        at: usize,
        len: usize,
    },
}

const END: usize = CHUNK_BYTES as usize + 3 * BLOCK;

/// Offsets are near the ends of blocks and chunks, where mistakes are likely.
fn place() -> impl Strategy<Value = usize> {
    let bases = vec![300, BLOCK, 2 * BLOCK, CHUNK_BYTES as usize, CHUNK_BYTES as usize + BLOCK];
    (prop::sample::select(bases), 0usize..600).prop_map(|(base, delta)| base + delta - 300)
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 1usize..500, 1 => BLOCK - 200..BLOCK + 200, 1 => 2 * BLOCK - 100..2 * BLOCK + 100]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (place(), length(), any::<u8>()).prop_map(|(at, len, seed)| Action::Write { at, len, seed }),
        4 => (length(), any::<u8>()).prop_map(|(len, seed)| Action::Append { len, seed }),
        2 => place().prop_map(|at| Action::Truncate { at }),
        2 => prop::option::of(0u32..400).prop_map(|inline| Action::Stage { inline }),
        2 => prop::bool::weighted(0.7).prop_map(|succeeds| Action::Commit { succeeds }),
        1 => Just(Action::Restage),
        4 => (place(), length()).prop_map(|(at, len)| Action::Read { at, len }),
    ]
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(13).wrapping_add(seed) ^ (i >> 9) as u8).collect()
}

/// Many small writes to a few hundred bytes around a chunk's end, so that extents overlap in every way.
fn crowded_action() -> impl Strategy<Value = Action> {
    let place = || CHUNK_BYTES as usize - 150..CHUNK_BYTES as usize + 150;
    prop_oneof![
        12 => (place(), 1usize..80, any::<u8>()).prop_map(|(at, len, seed)| Action::Write { at, len, seed }),
        1 => place().prop_map(|at| Action::Truncate { at }),
        1 => prop::option::of(0u32..80).prop_map(|inline| Action::Stage { inline }),
        1 => prop::bool::weighted(0.7).prop_map(|succeeds| Action::Commit { succeeds }),
        1 => Just(Action::Restage),
        4 => (place(), 1usize..200).prop_map(|(at, len)| Action::Read { at, len }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_file_reads_back_like_an_array_of_bytes(actions in prop::collection::vec(action(), 1..40)) {
        check(actions, 0..END)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn overlapping_small_writes_read_back_like_an_array_of_bytes(actions in prop::collection::vec(crowded_action(), 1..60)) {
        check(actions, CHUNK_BYTES as usize - 1000..CHUNK_BYTES as usize + 1000)?;
    }
}

/// Applies the actions to a file and to a plain array, and compares reads; at the end it compares all of
/// `window`.
fn check(actions: Vec<Action>, window: Range<usize>) -> Result<(), TestCaseError> {
    let context = context();
    let mut file = File::new(&context);
    let mut model = vec![0u8; END];
    let mut end = 0usize;
    let mut staged: Option<Staged> = None;
    for action in actions {
        match action {
            Action::Write { .. } | Action::Append { .. } => {
                let (at, len, seed) = match action {
                    Action::Write { at, len, seed } => (at, len, seed),
                    Action::Append { len, seed } => (end, len, seed),
                    _ => unreachable!(),
                };
                let data = bytes(len.min(END - at), seed);
                prop_assert_eq!(file.buffer.write(at as u64, &data).unwrap(), Written::Buffered);
                model[at..at + data.len()].copy_from_slice(&data);
                end = end.max(at + data.len());
                prop_assert!(file.buffer.covers(at as u64, data.len() as u64));
                prop_assert_eq!(&file.read(at as u64, data.len()), &data);
            }
            Action::Truncate { at } => {
                if let Some(staged) = staged.take() {
                    file.commit(&staged);
                }
                file.truncate(at as u64, END as u64);
                prop_assert!(file.buffer.end() <= at as u64);
                model[at..end.max(at)].fill(0);
                end = at;
            }
            Action::Stage { inline } => {
                let puts = context.store.requests().puts;
                if let Some(earlier) = staged.take() {
                    // The commit failed: the same rows are returned again, before those of later writes.
                    let again = file.buffer.stage(inline).unwrap();
                    prop_assert_eq!(&again.rows[..earlier.rows.len()], &earlier.rows[..]);
                    if again.rows.len() == earlier.rows.len() {
                        prop_assert_eq!(context.store.requests().puts, puts);
                    }
                    staged = Some(again);
                } else {
                    staged = Some(file.buffer.stage(inline).unwrap());
                }
            }
            Action::Commit { succeeds } => {
                if let Some(staged) = staged.take()
                    && succeeds
                {
                    file.commit(&staged);
                }
            }
            Action::Restage => {
                if let Some(earlier) = staged.take() {
                    file.buffer.restage().unwrap();
                    let again = file.buffer.stage(None).unwrap();
                    let old = earlier.slices();
                    prop_assert!(again.slices().iter().all(|id| !old.contains(id)));
                    prop_assert_eq!(again.slices().len() >= old.len(), true);
                    staged = Some(again);
                }
            }
            Action::Read { at, len } => {
                let len = len.min(END - at);
                prop_assert!(file.read(at as u64, len) == model[at..at + len], "read {} {}", at, len);
            }
        }
    }
    file.flush(Some(100));
    prop_assert!(!file.buffer.is_dirty());
    // A block dropped by a truncation holds its memory until its background upload ends.
    let began = Instant::now();
    while context.budget.used_bytes() > 0 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    prop_assert_eq!(context.budget.used_bytes(), 0);
    prop_assert!(file.read(window.start as u64, window.len()) == model[window]);
    Ok(())
}

#[test]
fn a_large_copy_uses_little_memory_and_one_row_per_chunk() {
    let dir = TempDir::new().unwrap();
    let context = context_of("file", dir.path().to_str().unwrap(), 64 << 20);
    let mut file = File::new(&context);
    let total = 160usize << 20;
    let data = bytes(1 << 20, 3);
    let mut peak = 0;
    for at in (0..total).step_by(data.len()) {
        assert_eq!(file.buffer.write(at as u64, &data).unwrap(), Written::Buffered);
        peak = peak.max(context.budget.used_bytes());
    }
    assert!(peak <= 40 << 20, "{peak}");
    assert_eq!(file.buffer.dirty_bytes(), total as u64);
    // Blocks that were uploaded already are read from the store.
    assert_eq!(file.read(5 << 20, data.len()), data);
    file.flush(None);
    assert_eq!(file.rows.values().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(context.store.requests().puts, (total / BLOCK) as u64);
    assert_eq!(context.budget.used_bytes(), 0);
    assert_eq!(file.read((100 << 20) + (1 << 20), data.len()), data);
}

#[test]
fn buffers_share_the_budget() {
    let context = context_of("memory", "", 1000);
    let (mut a, mut b) = (File::new(&context), File::new(&context));
    assert_eq!(a.buffer.write(0, &[1; 900]).unwrap(), Written::Buffered);
    assert_eq!(context.budget.used_bytes(), 900);
    // A file that holds little dirty data reports that other files must be flushed.
    assert_eq!(a.buffer.write(900, &[1; 200]).unwrap(), Written::BudgetUsedByOthers);
    assert_eq!(b.buffer.write(0, &[2; 200]).unwrap(), Written::BudgetUsedByOthers);
    assert_eq!(context.budget.used_bytes(), 900);
    b.buffer.write_beyond(0, &[2; 200]).unwrap();
    assert_eq!(context.budget.used_bytes(), 1100);
    a.flush(None);
    a.write(900, &[1; 200]);
    assert_eq!(context.budget.used_bytes(), 400 + 56, "the tail has a capacity of 256 bytes");
    // Overwriting in place needs no more memory.
    a.write(900, &[3; 200]);
    assert_eq!(context.budget.used_bytes(), 400 + 56);
    assert_eq!(a.read(899, 3), [1, 3, 3]);
    drop((a, b));
    assert_eq!(context.budget.used_bytes(), 0);
}

#[test]
fn a_file_that_fills_the_budget_by_itself_is_full() {
    let context = context_of("memory", "", (BLOCK + 1000) as u64);
    let mut file = File::new(&context);
    file.buffer.write_beyond(0, &bytes(BLOCK - 1, 1)).unwrap();
    assert_eq!(file.buffer.write(9 << 20, &[1; 10]).unwrap(), Written::Buffered);
    assert_eq!(file.buffer.write(10 << 20, &[1; 2000]).unwrap(), Written::Full);
}

#[test]
fn many_scattered_writes_fill_the_buffer() {
    let context = context();
    let mut file = File::new(&context);
    let accepted =
        (0..).take_while(|i| file.buffer.write(i * 10, &[1]).unwrap() == Written::Buffered).count();
    assert_eq!(accepted, 1024);
    file.flush(Some(10));
    assert_eq!(context.store.requests().puts, 0);
    assert_eq!(file.read(0, 11), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

/// `count` offsets in the first three chunks, far apart and not sorted, and `len` bytes for each.
fn scattered(count: usize, len: usize) -> Vec<(u64, Vec<u8>)> {
    let at = |i: usize| (i * 389 % count * (3 * CHUNK_BYTES as usize / count)) as u64;
    (0..count).map(|i| (at(i), bytes(len, i as u8))).collect()
}

fn check_scattered(file: &File, writes: &[(u64, Vec<u8>)]) {
    for (at, data) in writes {
        let mut expected = data.clone();
        expected.push(0);
        assert_eq!(file.read(*at, data.len() + 1), expected, "{at}");
    }
}

#[test]
fn scattered_writes_of_one_flush_share_an_object() {
    let context = context();
    let mut file = File::new(&context);
    let writes = scattered(1000, 8);
    writes.iter().for_each(|(at, data)| file.write(*at, data));
    let staged = file.buffer.stage(None).unwrap();
    assert_eq!((staged.rows.len(), staged.slices().len()), (1000, 1));
    assert_eq!((context.store.requests().puts, blocks(&context)), (1, 1));
    check_scattered(&file, &writes);
    file.commit(&staged);
    assert_eq!(context.budget.used_bytes(), 0);
    check_scattered(&file, &writes);
    // The parts are in the order of the file, so a reader of the file reads the object from front to back.
    let offsets = |rows: &Vec<Slice>| {
        let mut rows = rows.clone();
        rows.sort_by_key(|row| row.pos);
        rows.into_iter()
            .map(|row| match row.source {
                SliceSource::Blocks { offset, size: 8000, .. } => offset,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    let all: Vec<u32> = file.rows.values().flat_map(offsets).collect();
    assert_eq!(all, (0..1000).map(|i| i * 8).collect::<Vec<_>>());
}

#[test]
fn extents_share_objects_only_if_they_are_small() {
    let context = context();
    let mut file = File::new(&context);
    // A long extent, one that is alone in its block, and one that an inline row holds.
    file.write(0, &bytes(BLOCK / 4 + 1, 1));
    file.write(3 * BLOCK as u64, &bytes(300, 2));
    file.write(5 * BLOCK as u64, &bytes(20, 3));
    let staged = file.buffer.stage(Some(20)).unwrap();
    assert_eq!((staged.slices().len(), context.store.requests().puts), (2, 2));
    for (_, row) in &staged.rows {
        let is_own = |row: &Slice| matches!(row.source, SliceSource::Blocks { offset: 0, size, .. } if size == row.len);
        assert!(is_own(row) || matches!(row.source, SliceSource::Inline(_)), "{row:?}");
    }
    file.commit(&staged);
    // Five extents of a quarter of a block: four fill a block, one is left.
    (0..5).for_each(|i| file.write((20 + 2 * i) * BLOCK as u64, &bytes(BLOCK / 4, i as u8)));
    let staged = file.buffer.stage(None).unwrap();
    assert_eq!((staged.rows.len(), staged.slices().len(), context.store.requests().puts), (5, 2, 4));
    // Extents written later do not change the rows of a flush that was not committed.
    file.write(50 * BLOCK as u64, &bytes(7, 1));
    file.write(60 * BLOCK as u64, &bytes(7, 2));
    let again = file.buffer.stage(None).unwrap();
    assert_eq!((&again.rows[..5], again.slices().len()), (&staged.rows[..], 3));
    file.commit(&again);
    (0..5).for_each(|i| {
        let at = (20 + 2 * i) * BLOCK as u64;
        assert!(file.read(at, BLOCK / 4) == bytes(BLOCK / 4, i as u8));
    });
    assert_eq!(context.budget.used_bytes(), 0);
}

#[test]
fn a_shared_block_stays_until_no_extent_has_bytes_in_it() {
    let faults = Faults::new(1);
    let options = StoreOptions { faults: Some(Arc::clone(&faults)), ..StoreOptions::default() };
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    let ids = AtomicU64::new(1);
    let context = Arc::new(WriteContext {
        store: BlockStore::open_with(&config, options).unwrap(),
        budget: MemoryBudget::new(64 << 20),
        new_id: Box::new(move || Ok(SliceId(ids.fetch_add(1, Relaxed)))),
    });
    let mut buffer = WriteBuffer::new(&context);
    let write = |buffer: &mut WriteBuffer, at: u64| {
        assert_eq!(buffer.write(at, &bytes(9, 1)).unwrap(), Written::Buffered);
    };
    [0, 1000, 2000].into_iter().for_each(|at| write(&mut buffer, at));
    faults.add(StoreCall::Put, Fault::DoneThenFail(Errno::EIO), 1000);
    assert!(buffer.stage(None).is_err());
    faults.clear();
    // The block was stored although the store reported a failure. Another extent still needs it.
    buffer.truncate(1500);
    let staged = buffer.stage(None).unwrap();
    assert_eq!((staged.rows.len(), staged.slices(), blocks(&context)), (2, vec![SliceId(1)], 1));
    buffer.committed(&staged);
    // Now all extents of the block are dropped before any row was staged.
    [0, 1000].into_iter().for_each(|at| write(&mut buffer, at));
    faults.add(StoreCall::Put, Fault::DoneThenFail(Errno::EIO), 1000);
    assert!(buffer.stage(None).is_err());
    faults.clear();
    assert_eq!((blocks(&context), context.store.requests().deletes), (2, 0));
    buffer.truncate(0);
    for _ in 0..60_000 {
        if context.store.requests().deletes == 1 && blocks(&context) == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} blocks remain, {:?}", blocks(&context), context.store.requests());
}

#[test]
fn a_small_read_of_a_shared_block_fetches_one_page() {
    let secret = Secret::key_from_text(&"44".repeat(32)).unwrap();
    let sealed = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap().1;
    for (compression, encryption) in [(Compression::None, None), (Compression::Zstd, Some(sealed))] {
        let dir = TempDir::new().unwrap();
        let config =
            StorageConfig { storage: "file".into(), bucket: dir.path().to_str().unwrap().to_owned() };
        let open = || {
            let encryption = encryption.clone();
            let options = StoreOptions { compression, encryption, create: true, ..StoreOptions::default() };
            BlockStore::open_with(&config, options).unwrap()
        };
        let ids = AtomicU64::new(1);
        let context = Arc::new(WriteContext {
            store: open(),
            budget: MemoryBudget::new(64 << 20),
            new_id: Box::new(move || Ok(SliceId(ids.fetch_add(1, Relaxed)))),
        });
        let mut file = File::new(&context);
        // Exactly one block. Bytes that do not compress, so that a page takes its full size.
        let mut state = 7_u64;
        let mut random = |len: usize| -> Vec<u8> {
            (0..len)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect()
        };
        let writes: Vec<(u64, Vec<u8>)> =
            (0..1024_u64).map(|i| (i * 389 % 1024 * 50_000, random(4096))).collect();
        writes.iter().for_each(|(at, data)| file.write(*at, data));
        file.flush(None);
        assert_eq!(context.store.requests().puts, 1);
        let rows = &file.rows[&ChunkIndex(0)];
        let store = open();
        let fetched = || (store.requests().gets, store.meters().get.bytes.summary().sum as u64);
        let read = |at: u64, len: usize| {
            let mut buf = vec![0; len];
            store.read_chunk(rows, at as u32, &mut buf).unwrap();
            buf
        };
        // The first range of the file is at the beginning of the block.
        assert_eq!(read(0, 8), writes[0].1[..8]);
        let (gets, bytes) = fetched();
        assert_eq!(gets, 2, "the checksums and one page");
        assert!(bytes < 70_000, "{bytes} bytes for 8");
        // The next ranges are in the same page, which is cached, until the next page begins.
        let by_place: BTreeMap<u64, &Vec<u8>> = writes.iter().map(|(at, data)| (*at, data)).collect();
        for (at, data) in by_place.iter().take(16) {
            assert_eq!(&read(*at, 4096), *data);
        }
        assert_eq!(fetched().0, 2);
        for (at, data) in by_place.iter().take(64).rev() {
            assert_eq!(&read(*at, 4096), *data);
        }
        assert_eq!(fetched().0, 5);
        // Read-ahead of the ranges in the next three pages fetches these pages.
        store.prefetch(rows, 64 * 50_000, 48 * 50_000);
        while fetched().0 < 8 {
            std::thread::yield_now();
        }
        for (at, data) in by_place.iter().skip(64).take(48) {
            assert_eq!(&read(*at, 4096), *data);
        }
        assert_eq!(fetched().0, 8);
        // A read that needs more than an eighth of the block fetches all of it, and one request is enough.
        let all = read(0, 1023 * 50_000 + 4096);
        assert!(by_place.iter().all(|(at, data)| all[*at as usize..][..4096] == data[..]));
        assert_eq!(fetched().0, 9);
    }
}

#[test]
fn a_read_of_many_shared_blocks_fetches_each_once() {
    const FLUSHES: u64 = 8;
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    // The cache has room for two of the eight blocks.
    let options = StoreOptions { cache_bytes: 2 * BLOCK as u64, ..StoreOptions::default() };
    let ids = AtomicU64::new(1);
    let context = Arc::new(WriteContext {
        store: BlockStore::open_with(&config, options).unwrap(),
        budget: MemoryBudget::new(64 << 20),
        new_id: Box::new(move || Ok(SliceId(ids.fetch_add(1, Relaxed)))),
    });
    let mut file = File::new(&context);
    let mut expected = vec![0; FLUSHES as usize * BLOCK];
    for flush in 0..FLUSHES {
        for at in (flush * 4096..expected.len() as u64).step_by(FLUSHES as usize * 4096) {
            let data = bytes(4096, (at / 4096) as u8 ^ flush as u8);
            file.write(at, &data);
            expected[at as usize..][..4096].copy_from_slice(&data);
        }
        file.flush(None);
    }
    assert_eq!(context.store.requests().puts, FLUSHES);
    assert!(file.read(0, expected.len()) == expected);
    assert_eq!(context.store.requests().gets, FLUSHES);
}

#[test]
fn a_failed_upload_is_reported_once_and_keeps_its_data() {
    let dir = TempDir::new().unwrap();
    let context = context_of("file", dir.path().to_str().unwrap(), 64 << 20);
    let tmp = dir.path().join("tmp");
    fs::remove_dir_all(&tmp).unwrap();
    fs::write(&tmp, b"").unwrap();
    let mut file = File::new(&context);
    let data = bytes(BLOCK, 9);
    assert_eq!(file.buffer.write(0, &data).unwrap(), Written::Buffered);
    let reported = (0..60_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        file.buffer.take_error()
    });
    assert!(matches!(reported, Some(ChunkError::Store { action: "write", .. })));
    assert_eq!(file.buffer.write(BLOCK as u64, &data[..10]).unwrap(), Written::Buffered);
    assert!(matches!(file.buffer.stage(None), Err(ChunkError::Store { .. })));
    assert!(matches!(file.buffer.stage(None), Err(ChunkError::Store { .. })));
    assert_eq!(file.read(0, BLOCK), data);

    fs::remove_file(&tmp).unwrap();
    fs::create_dir(&tmp).unwrap();
    let staged = file.buffer.stage(None).unwrap();
    assert_eq!(staged.slices(), [SliceId(1)]);
    file.commit(&staged);
    context.store.make_durable(&staged.slices()).unwrap();
    assert_eq!(file.read(0, BLOCK), data);
    assert_eq!(file.read(BLOCK as u64, 10), data[..10]);
    assert_eq!(context.budget.used_bytes(), 0);
}

#[test]
fn a_failed_slice_allocation_loses_no_data() {
    let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
    let context = Arc::new(WriteContext {
        store: BlockStore::open(&config, 1 << 20).unwrap(),
        budget: MemoryBudget::new(64 << 20),
        new_id: Box::new(|| Err(Errno::EAGAIN)),
    });
    let mut buffer = WriteBuffer::new(&context);
    assert_eq!(buffer.write(0, &[1; 100]).unwrap(), Written::Buffered);
    assert_eq!(buffer.stage(None).unwrap_err().errno(), Errno::EAGAIN);
    assert_eq!(buffer.stage(Some(100)).unwrap().rows.len(), 1);
    assert!(matches!(buffer.write(200, &vec![1; BLOCK]), Err(ChunkError::SliceId(_))));
    let mut read = [0; 100];
    buffer.overlay(0, &mut read).unwrap();
    assert_eq!(read, [1; 100]);
}

fn blocks(context: &WriteContext) -> usize {
    let mut count = 0;
    context
        .store
        .for_each_block(&mut |_| {
            count += 1;
            Ok(())
        })
        .unwrap();
    count
}

#[test]
fn a_truncation_removes_blocks_beyond_the_new_size() {
    let context = context();
    let mut file = File::new(&context);
    file.write(0, &bytes(3 * BLOCK + 5, 1));
    file.truncate(BLOCK as u64 + 1, 4 * BLOCK as u64);
    // These bytes go into another slice: the cut block must not show its old bytes again.
    file.write(BLOCK as u64 + 9, &bytes(2 * BLOCK, 2));
    file.flush(None);
    let mut expected = bytes(BLOCK + 1, 1);
    expected.extend([0; 8]);
    expected.extend(bytes(2 * BLOCK, 2));
    assert!(file.read(0, expected.len()) == expected);
    for _ in 0..60_000 {
        if context.store.requests().deletes == 1 && blocks(&context) == 4 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} blocks remain, {:?}", blocks(&context), context.store.requests());
}

#[test]
fn blocks_that_no_row_will_name_are_removed() {
    let context = context();
    let mut cut = WriteBuffer::new(&context);
    assert_eq!(cut.write(0, &bytes(2 * BLOCK + 5, 1)).unwrap(), Written::Buffered);
    cut.truncate(0);
    assert!(!cut.is_dirty());
    let mut dropped = WriteBuffer::new(&context);
    assert_eq!(dropped.write(0, &bytes(BLOCK, 1)).unwrap(), Written::Buffered);
    drop(dropped);
    // A commit may have happened although its reply was lost, so staged blocks stay.
    let mut staged = WriteBuffer::new(&context);
    assert_eq!(staged.write(0, &bytes(BLOCK + 1, 1)).unwrap(), Written::Buffered);
    assert_eq!(staged.stage(None).unwrap().rows.len(), 1);
    drop(staged);
    for _ in 0..60_000 {
        if context.store.requests().deletes == 3 && blocks(&context) == 2 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} blocks remain, {:?}", blocks(&context), context.store.requests());
}
