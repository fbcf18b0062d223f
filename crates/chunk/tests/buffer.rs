//! Write buffers together with rows and the store, checked against a plain array of bytes.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use chunk::{
    BlockStore, ChunkError, MemoryBudget, Staged, StorageConfig, WriteBuffer, WriteContext, Written,
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
    Write { at: usize, len: usize, seed: u8 },
    Append { len: usize, seed: u8 },
    Truncate { at: usize },
    Stage { inline: Option<u32> },
    Commit { succeeds: bool },
    Read { at: usize, len: usize },
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
    assert_eq!(a.buffer.write(900, &[1; 200]).unwrap(), Written::Crowded);
    assert_eq!(b.buffer.write(0, &[2; 200]).unwrap(), Written::Crowded);
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
    // The rest of the block that was cut, and the blocks after it, belong to other bytes now.
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
