//! Ranges of files: fallocate, copies by reference, compaction, unnamed files, whiteouts.
//!
//! The content of a file is computed by applying its rows in order. The random test is in `ranges_random.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meta::{Engine, Record, Scan, Volume};
use ops::{
    Allocate, AllocateMode, Authority, Compact, CopyRange, MakeKind, MakeOrphan, Reap, Rename, RenameFlags,
    Whiteout, Write,
};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice, SliceId, SliceSource, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, KERNEL, REPLACE, ROOT, blocks, client, fresh, fresh_with, n, volume};
use super::invariants::check;
use super::races::Race;

pub(super) const CASES: &[Case] = &[
    ("allocate_checks_errors_in_order", allocate_checks_errors_in_order),
    ("allocations_change_size_and_times", allocations_change_size_and_times),
    ("holes_cover_parts_and_drop_whole_chunks", holes_cover_parts_and_drop_whole_chunks),
    ("copy_checks_errors_in_order", copy_checks_errors_in_order),
    ("copies_equal_the_source", copies_equal_the_source),
    ("copies_end_at_the_source_end_or_after_some_chunks", copies_end_at_the_source_end_or_after_some_chunks),
    ("a_shared_slice_is_garbage_after_its_last_row", a_shared_slice_is_garbage_after_its_last_row),
    ("rows_of_one_write_or_compaction_share_a_slice", rows_of_one_write_or_compaction_share_a_slice),
    ("a_copy_has_the_source_data_of_its_commit", a_copy_has_the_source_data_of_its_commit),
    ("a_copy_ends_at_the_source_size_of_its_commit", a_copy_ends_at_the_source_size_of_its_commit),
    ("a_copy_is_of_one_moment", a_copy_is_of_one_moment),
    ("compaction_replaces_only_the_rows_it_read", compaction_replaces_only_the_rows_it_read),
    ("unnamed_files_are_linked_or_removed", unnamed_files_are_linked_or_removed),
    ("a_whiteout_takes_the_old_name", a_whiteout_takes_the_old_name),
];

pub(super) const CHUNK: u64 = CHUNK_BYTES;
const PUNCH: AllocateMode = AllocateMode::PunchHole;
pub(super) const ZERO: AllocateMode = AllocateMode::ZeroRange { keep_size: false };
const ZERO_KEEP: AllocateMode = AllocateMode::ZeroRange { keep_size: true };
pub(super) const MODES: [AllocateMode; 5] =
    [AllocateMode::Extend, AllocateMode::Reserve, PUNCH, ZERO, ZERO_KEEP];

/// The bytes of a file that are not zero, by their offset.
pub(super) type Bytes = BTreeMap<u64, u8>;

pub(super) fn allocate(c: &Client, ino: Ino, offset: u64, len: u64, mode: AllocateMode) -> Result<(), Errno> {
    c.run(&Allocate { ino, offset, len, mode })
}

pub(super) fn copy(c: &Client, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, Errno> {
    c.run(&CopyRange { from: from.0, offset: from.1, to: to.0, to_offset: to.1, len })
}

/// The byte at `offset` of a slice: never zero, and different in each slice.
pub(super) fn content(id: SliceId, offset: u32) -> u8 {
    (id.0 as u32).wrapping_mul(37).wrapping_add(offset) as u8 | 1
}

/// Writes `len` bytes of new slices at `offset`, one slice per chunk, numbered from `id` on.
pub(super) fn put(c: &Client, ino: Ino, offset: u64, len: u64, id: u64) {
    let (mut at, mut id, mut slices) = (offset, id, Vec::new());
    while at < offset + len {
        let (chunk, pos) = ChunkIndex::of(at);
        let part = (offset + len - at).min(CHUNK - u64::from(pos)) as u32;
        slices.push((chunk, blocks(pos, part, id)));
        (at, id) = (at + u64::from(part), id + 1);
    }
    c.run(&Write { ino, slices, end: offset + len, mtime: Time::now() }).unwrap();
}

/// Writes slice `id` in parts: each place, an offset and a length, gets the next bytes of the slice.
pub(super) fn put_scattered(c: &Client, ino: Ino, places: &[(u64, u32)], id: u64) {
    let size = places.iter().map(|(_, len)| len).sum();
    let (mut skip, mut slices) = (0, Vec::new());
    for &(at, len) in places {
        let (chunk, pos) = ChunkIndex::of(at);
        slices.push((
            chunk,
            Slice { pos, len, source: SliceSource::Blocks { id: SliceId(id), offset: skip, size } },
        ));
        skip += len;
    }
    let end = places.iter().map(|(at, len)| at + u64::from(*len)).max().unwrap_or(0);
    c.run(&Write { ino, slices, end, mtime: Time::now() }).unwrap();
}

fn put_inline(c: &Client, ino: Ino, pos: u32, data: &[u8]) {
    let slice = Slice { pos, len: data.len() as u32, source: SliceSource::Inline(data.into()) };
    let end = u64::from(pos) + data.len() as u64;
    c.run(&Write { ino, slices: vec![(ChunkIndex(0), slice)], end, mtime: Time::now() }).unwrap();
}

/// The rows of all chunks that have any.
pub(super) fn rows(engine: &dyn Engine, ino: Ino) -> Vec<(ChunkIndex, Arc<[Slice]>)> {
    let page = engine.scan(&Scan::Slices { ino, from: ChunkIndex(0), limit: 1000 }).unwrap();
    assert!(!page.more);
    let rows = page.snapshot.records.into_iter().map(|record| match record {
        Record::Slices(_, chunk, rows) => (chunk, rows),
        other => panic!("not the rows of a chunk: {other:?}"),
    });
    rows.collect()
}

pub(super) fn chunk_rows(c: &Client, ino: Ino, chunk: u64) -> Arc<[Slice]> {
    let rows = rows(&**c.engine(), ino).into_iter().find(|(index, _)| index.0 == chunk);
    rows.map(|(_, rows)| rows).unwrap_or_default()
}

pub(super) fn fill_zeros(bytes: &mut Bytes, from: u64, to: u64) {
    let mut rest = bytes.split_off(&from);
    bytes.append(&mut rest.split_off(&to.max(from)));
}

/// The content of a file: its rows applied in order.
pub(super) fn paint(engine: &dyn Engine, ino: Ino) -> Bytes {
    let mut bytes = Bytes::new();
    for (chunk, rows) in rows(engine, ino) {
        bytes.extend(paint_rows(&rows).into_iter().map(|(pos, byte)| (chunk.start() + pos, byte)));
    }
    bytes
}

/// The content of a chunk, by position.
pub(super) fn paint_rows(rows: &[Slice]) -> Bytes {
    let mut bytes = Bytes::new();
    for row in rows {
        let start = u64::from(row.pos);
        assert!(row.len > 0 && start + u64::from(row.len) <= CHUNK, "{row:?}");
        fill_zeros(&mut bytes, start, start + u64::from(row.len));
        match &row.source {
            SliceSource::Hole => {}
            SliceSource::Inline(data) => {
                assert_eq!(data.len(), row.len as usize);
                bytes.extend((start..).zip(data.iter().copied()));
            }
            SliceSource::Blocks { id, offset, size } => {
                assert!(offset + row.len <= *size, "{row:?}");
                bytes.extend((start..).zip((0..row.len).map(|at| content(*id, offset + at))));
            }
        }
    }
    bytes
}

/// A few bytes of a file from `offset` on.
fn read(c: &Client, ino: Ino, offset: u64, len: u64) -> Vec<u8> {
    let bytes = paint(&**c.engine(), ino);
    (offset..offset + len).map(|at| bytes.get(&at).copied().unwrap_or(0)).collect()
}

/// A few bytes of a slice.
fn of_slice(id: u64, offset: u32, len: u32) -> Vec<u8> {
    (offset..offset + len).map(|at| content(SliceId(id), at)).collect()
}

pub(super) fn garbage(engine: &dyn Engine) -> BTreeSet<u64> {
    let page = engine.scan(&Scan::Garbage { after: SliceId(0), limit: 100_000 }).unwrap();
    let garbage = page.snapshot.records.iter().map(|record| match record {
        Record::Garbage(garbage) => garbage.slice.0,
        other => panic!("not garbage: {other:?}"),
    });
    garbage.collect()
}

fn allocate_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { capacity_bytes: 8192, ..volume() });
    let ino = c.create(ROOT, "f").unwrap();
    let dir = c.mkdir(ROOT, "d").unwrap();
    let link = c.symlink(ROOT, "l", "t").unwrap();
    let fifo = c.make(ROOT, "p", MakeKind::Fifo, 0o644).unwrap().ino;
    let absent = Ino(1 << 40);
    let most = i64::MAX as u64;
    for mode in MODES {
        assert_eq!(allocate(&c, absent, u64::MAX, 0, mode), Err(Errno::EINVAL));
        assert_eq!(allocate(&c, absent, most, 1, mode), Err(Errno::EFBIG));
        assert_eq!(allocate(&c, absent, u64::MAX, 2, mode), Err(Errno::EFBIG));
        assert_eq!(allocate(&c, absent, 0, 1, mode), Err(Errno::ESTALE));
        for other in [dir, link, fifo] {
            assert_eq!(allocate(&c, other, 0, 1 << 40, mode), Err(Errno::ENODEV));
        }
        let grows = matches!(mode, AllocateMode::Extend | ZERO);
        let expected = if grows { Err(Errno::ENOSPC) } else { Ok(()) };
        assert_eq!(allocate(&c, ino, 8192, 1, mode), expected, "{mode:?}");
        assert_eq!(c.inode(ino).size, 0);
    }
    assert_eq!(allocate(&c, ino, 8191, 1, AllocateMode::Extend), Ok(()));
    assert_eq!(allocate(&c, ino, 0, 8192, ZERO), Ok(()), "without growth no space is needed");
    check(&c);
}

fn allocations_change_size_and_times(factory: Factory<'_>) {
    let c = fresh(factory);
    for (at, mode) in MODES.into_iter().enumerate() {
        let ino = c.create(ROOT, &format!("f{at}")).unwrap();
        put(&c, ino, 0, 10, 100 + at as u64);
        let before = c.inode(ino);
        allocate(&c, ino, 5, 10, mode).unwrap();
        let after = c.inode(ino);
        let grows = matches!(mode, AllocateMode::Extend | ZERO);
        assert_eq!(after.size, if grows { 15 } else { 10 }, "{mode:?}");
        assert!(after.mtime > before.mtime && after.ctime > before.ctime && after.atime == before.atime);
        let zeroes = !matches!(mode, AllocateMode::Extend | AllocateMode::Reserve);
        let mut expected = of_slice(100 + at as u64, 0, 10);
        expected[5..].iter_mut().filter(|_| zeroes).for_each(|byte| *byte = 0);
        assert_eq!(read(&c, ino, 0, 10), expected, "{mode:?}");
    }
    check(&c);
}

fn holes_cover_parts_and_drop_whole_chunks(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    for chunk in 0..4 {
        put(&c, ino, chunk * CHUNK, 8, 1 + 2 * chunk);
        put(&c, ino, (chunk + 1) * CHUNK - 8, 8, 2 + 2 * chunk);
    }
    allocate(&c, ino, CHUNK - 4, 2 * CHUNK + 8, PUNCH).unwrap();
    assert_eq!(garbage(&**c.engine()), BTreeSet::from([3, 4, 5, 6]), "the range covers two whole chunks");
    assert!(chunk_rows(&c, ino, 1).is_empty() && chunk_rows(&c, ino, 2).is_empty());
    let mut expected = of_slice(2, 0, 4);
    expected.resize(8, 0);
    assert_eq!(read(&c, ino, CHUNK - 8, 8), expected);
    let mut expected = vec![0; 4];
    expected.extend(of_slice(7, 4, 4));
    assert_eq!(read(&c, ino, 3 * CHUNK, 8), expected);
    assert_eq!(c.inode(ino).size, 4 * CHUNK);
    // First a range of exactly one chunk, then one that ends with the chunk.
    allocate(&c, ino, 3 * CHUNK, CHUNK, ZERO_KEEP).unwrap();
    assert!(chunk_rows(&c, ino, 3).is_empty());
    allocate(&c, ino, 4, CHUNK - 4, PUNCH).unwrap();
    assert_eq!(read(&c, ino, 0, 8)[..4], of_slice(1, 0, 4));
    assert_eq!(paint(&**c.engine(), ino).len(), 4);
    allocate(&c, ino, 0, i64::MAX as u64, PUNCH).unwrap();
    assert!(paint(&**c.engine(), ino).is_empty());
    assert_eq!(garbage(&**c.engine()), (1..=8).collect());
    check(&c);
}

fn copy_checks_errors_in_order(factory: Factory<'_>) {
    let c = fresh_with(factory, &Volume { capacity_bytes: 8192, ..volume() });
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    let dir = c.mkdir(ROOT, "d").unwrap();
    let absent = Ino(1 << 40);
    put(&c, a, 0, 4096, 1);
    let most = i64::MAX as u64;
    assert_eq!(copy(&c, (absent, most), (absent, 0), 1), Err(Errno::EFBIG));
    assert_eq!(copy(&c, (absent, 0), (absent, u64::MAX), 1), Err(Errno::EFBIG));
    assert_eq!(copy(&c, (absent, 0), (dir, 0), 1), Err(Errno::ESTALE));
    assert_eq!(copy(&c, (dir, 0), (absent, 0), 1), Err(Errno::ESTALE));
    assert_eq!(copy(&c, (dir, 0), (b, 0), 1), Err(Errno::EINVAL));
    assert_eq!(copy(&c, (a, 0), (dir, 0), 1), Err(Errno::EINVAL));
    assert_eq!(copy(&c, (a, 0), (a, 9), 10), Err(Errno::EINVAL), "the ranges overlap");
    assert_eq!(copy(&c, (a, 9), (a, 0), 10), Err(Errno::EINVAL));
    assert_eq!(copy(&c, (a, 5), (a, 5), 1), Err(Errno::EINVAL));
    assert_eq!(copy(&c, (a, 0), (b, 4096), 4096), Err(Errno::ENOSPC));
    assert_eq!(copy(&c, (a, 0), (a, 10), 10), Ok(10), "adjacent ranges are valid");
    assert_eq!(copy(&c, (a, 4096), (b, 0), 10), Ok(0), "the offset is at the end of the source");
    assert_eq!(copy(&c, (a, 0), (b, 0), 0), Ok(0));
    assert_eq!(copy(&c, (a, most), (b, 0), 0), Ok(0));
    assert_eq!((c.inode(b).size, rows(&**c.engine(), b).len()), (0, 0));
    assert_eq!(copy(&c, (a, 0), (b, 0), 4096), Ok(4096));
    check(&c);
}

fn copies_equal_the_source(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    put(&c, a, 0, 20, 1);
    put_inline(&c, a, 5, b"inline");
    allocate(&c, a, 14, 2, PUNCH).unwrap();
    let whole = read(&c, a, 0, 20);
    put(&c, b, 0, 30, 2);
    let before = c.inode(b);
    assert_eq!(copy(&c, (a, 3), (b, 1), 14), Ok(14));
    let mut expected = of_slice(2, 0, 30);
    expected[1..15].copy_from_slice(&whole[3..17]);
    assert_eq!(read(&c, b, 0, 30), expected);
    let after = c.inode(b);
    assert!(after.size == 30 && after.mtime > before.mtime && after.ctime > before.ctime);
    assert_eq!(after.atime, before.atime);
    // Holes are copied as holes, over existing data; the target grows to the end of the copy.
    let holes = c.create(ROOT, "holes").unwrap();
    c.truncate(holes, 50).unwrap();
    assert_eq!(copy(&c, (holes, 0), (b, 10), 100), Ok(50));
    expected.truncate(10);
    expected.resize(60, 0);
    assert_eq!((read(&c, b, 0, 60), c.inode(b).size), (expected, 60));
    // The source range and the target range each cross the end of a chunk, mostly at different positions
    // within the range. In one case, both ranges are in the same file.
    put(&c, a, CHUNK - 6, 12, 10);
    let source = read(&c, a, CHUNK - 6, 12);
    assert_eq!(source, [of_slice(10, 0, 6), of_slice(11, 0, 6)].concat());
    for (to, at) in [(b, 3 * CHUNK - 2), (a, 2 * CHUNK - 9), (b, 7 * CHUNK - 6)] {
        assert_eq!(copy(&c, (a, CHUNK - 6), (to, at), 12), Ok(12));
        assert_eq!(read(&c, to, at, 12), source);
        assert_eq!(c.inode(to).size, at + 12);
    }
    assert!(garbage(&**c.engine()).is_empty());
    check(&c);
}

fn copies_end_at_the_source_end_or_after_some_chunks(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    put(&c, a, 0, 8, 1);
    put(&c, a, 6 * CHUNK, 8, 2);
    assert_eq!(copy(&c, (a, 6 * CHUNK + 4), (b, 0), 100), Ok(4));
    assert_eq!((read(&c, b, 0, 4), c.inode(b).size), (of_slice(2, 4, 4), 4));
    c.truncate(b, 0).unwrap();
    // Repeated calls copy the whole range, whatever the bound of one call is.
    let (size, mut done, mut calls) = (c.inode(a).size, 0, 0);
    while done < size {
        let copied = copy(&c, (a, done), (b, done), size - done).unwrap();
        assert!(copied > 0 && copied <= 4 * CHUNK);
        (done, calls) = (done + copied, calls + 1);
    }
    assert_eq!((calls, c.inode(b).size), (2, size));
    assert_eq!(paint(&**c.engine(), b), paint(&**c.engine(), a));
    check(&c);
}

/// A slice becomes garbage when its last row is dropped, in whatever order its rows are dropped.
fn a_shared_slice_is_garbage_after_its_last_row(factory: Factory<'_>) {
    for source_first in [true, false] {
        let c = fresh(factory);
        let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
        put(&c, a, 0, 8, 1);
        put(&c, a, 8, 8, 2);
        assert_eq!(copy(&c, (a, 0), (b, 100), 16), Ok(16));
        let names = if source_first { ["a", "b"] } else { ["b", "a"] };
        c.unlink(ROOT, names[0]).unwrap();
        assert_eq!(garbage(&**c.engine()), BTreeSet::new());
        c.unlink(ROOT, names[1]).unwrap();
        assert_eq!(garbage(&**c.engine()), BTreeSet::from([1, 2]));
        assert!(shared(&**c.engine()).is_empty());
        check(&c);
    }
    // Two rows in one file, one of them truncated; then a copy of the copy.
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    put(&c, a, 0, 8, 1);
    assert_eq!(copy(&c, (a, 0), (a, CHUNK), 8), Ok(8));
    assert_eq!(copy(&c, (a, CHUNK + 2), (b, 0), 4), Ok(4));
    assert_eq!(shared(&**c.engine()), BTreeMap::from([(1, 2)]));
    c.truncate(a, CHUNK).unwrap();
    assert_eq!(shared(&**c.engine()), BTreeMap::from([(1, 1)]));
    c.truncate(a, 0).unwrap();
    assert!(garbage(&**c.engine()).is_empty());
    assert_eq!(shared(&**c.engine()), BTreeMap::from([(1, 0)]));
    assert_eq!(read(&c, b, 0, 4), of_slice(1, 2, 4));
    c.truncate(b, 0).unwrap();
    assert_eq!(garbage(&**c.engine()), BTreeSet::from([1]));
    assert!(shared(&**c.engine()).is_empty());
    check(&c);
}

fn rows_of_one_write_or_compaction_share_a_slice(factory: Factory<'_>) {
    let c = fresh(factory);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    let engine = &**c.engine();
    put(&c, b, 0, 2, 9);
    // The rows are not in the order of their offsets. They lie in two chunks, and one covers a part of
    // another.
    let places = [(20, 2), (CHUNK + 5, 1), (0, 2), (21, 2), (40, 1), (CHUNK, 1)];
    put_scattered(&c, a, &places, 1);
    assert_eq!(shared(engine), BTreeMap::from([(1, 5)]));
    let expected = [(0, 3), (1, 4), (20, 0), (21, 5), (22, 6), (40, 7), (CHUNK, 8), (CHUNK + 5, 2)];
    assert_eq!(paint(engine, a), expected.map(|(at, from)| (at, content(SliceId(1), from))).into());
    assert_eq!(copy(&c, (a, 0), (b, 0), 30), Ok(30));
    assert_eq!((shared(engine), garbage(engine)), (BTreeMap::from([(1, 8)]), BTreeSet::new()));
    // A compaction stores three runs as one slice.
    let part = |pos, len, offset| Slice {
        pos,
        len,
        source: SliceSource::Blocks { id: SliceId(2), offset, size: 6 },
    };
    let new = [part(0, 2, 0), part(20, 3, 2), part(40, 1, 5)];
    let (chunk, old) = (ChunkIndex(0), chunk_rows(&c, a, 0));
    c.run(&Compact { ino: a, chunk, old, new: new.clone().into() }).unwrap();
    assert_eq!(chunk_rows(&c, a, 0)[..], new);
    assert_eq!(shared(engine), BTreeMap::from([(1, 4), (2, 2)]));
    c.truncate(a, CHUNK).unwrap();
    c.unlink(ROOT, "b").unwrap();
    assert_eq!((shared(engine), garbage(engine)), (BTreeMap::from([(2, 2)]), BTreeSet::from([1, 9])));
    c.unlink(ROOT, "a").unwrap();
    assert_eq!((shared(engine), garbage(engine)), (BTreeMap::new(), BTreeSet::from([1, 2, 9])));
    check(&c);
}

/// A client with a stale cache of the source must not commit rows whose slices are gone.
fn a_copy_has_the_source_data_of_its_commit(factory: Factory<'_>) {
    let a = fresh(factory);
    a.meta.set_exclusive(false);
    let b = client(a.engine());
    let (source, target) = (a.create(ROOT, "s").unwrap(), a.create(ROOT, "t").unwrap());
    put(&a, source, 0, 8, 1);
    assert_eq!(copy(&a, (source, 0), (target, 0), 8), Ok(8));
    b.truncate(target, 0).unwrap();
    b.truncate(source, 0).unwrap();
    put(&b, source, 0, 8, 2);
    assert_eq!(garbage(&**b.engine()), BTreeSet::from([1]));
    assert_eq!(copy(&a, (source, 0), (target, 0), 8), Ok(8));
    assert_eq!(read(&a, target, 0, 8), of_slice(2, 0, 8));
    assert_eq!(shared(&**b.engine()), BTreeMap::from([(2, 1)]));
    check(&a);
}

fn a_copy_ends_at_the_source_size_of_its_commit(factory: Factory<'_>) {
    let c = fresh(factory);
    let other = c.stranger();
    c.meta.set_exclusive(false);
    let (a, b) = (c.create(ROOT, "a").unwrap(), c.create(ROOT, "b").unwrap());
    // This client has cached the source as empty, and later as longer than it is.
    put(&other, a, 0, 8, 1);
    assert_eq!((copy(&c, (a, 0), (b, 0), 20), c.inode(b).size), (Ok(8), 8));
    other.truncate(a, 3).unwrap();
    other.truncate(b, 0).unwrap();
    assert_eq!((copy(&c, (a, 0), (b, 0), 20), c.inode(b).size), (Ok(3), 3));
    check(&c);
}

/// Another client writes the source in several steps while its chunks are read.
fn a_copy_is_of_one_moment(factory: Factory<'_>) {
    let race = Race::new(factory);
    let [source, target] = ["source", "target"].map(|name| race.client.create(ROOT, name).unwrap());
    // The client has cached the size of 16 bytes. The rival has truncated the file and written its first half
    // again.
    put(&race.client, source, 0, 16, 1);
    {
        let rival = race.rival.lock().unwrap();
        rival.truncate(source, 0).unwrap();
        put(&rival, source, 0, 8, 2);
    }
    let copied =
        race.lose(|r| put(r, r.at(ROOT, "source").ino, 8, 8, 3), |c| copy(c, (source, 0), (target, 0), 16));
    assert_eq!(copied, Ok(16));
    let expected = [of_slice(2, 0, 8), of_slice(3, 0, 8)].concat();
    assert_eq!(read(&race.client, target, 0, 16), expected, "no zeros in place of a later row");
    // The rival extends the file to another chunk. If the client read this chunk alone, it could miss an
    // earlier write to the first chunk.
    let counts = || race.faulty.inner().counts();
    let before = counts();
    let copied = race.lose(
        |r| put(r, r.at(ROOT, "source").ino, CHUNK, 8, 4),
        |c| copy(c, (source, 0), (target, 0), 2 * CHUNK),
    );
    assert_eq!(copied, Ok(CHUNK + 8));
    assert_eq!(read(&race.client, target, CHUNK, 8), of_slice(4, 0, 8));
    let done = counts() - before;
    assert_eq!((done.reads, done.commits), (1, 2), "all chunks are read together");
    check(&race.client);
}

fn compaction_replaces_only_the_rows_it_read(factory: Factory<'_>) {
    let c = fresh(factory);
    let ino = c.create(ROOT, "f").unwrap();
    let chunk = ChunkIndex(0);
    for (id, pos) in [(1, 0), (2, 4), (3, 2)] {
        put(&c, ino, pos, 6, id);
    }
    let old = chunk_rows(&c, ino, 0);
    assert_eq!(old.len(), 3);
    let compact = |old: &Arc<[Slice]>, new: Vec<Slice>| {
        c.run(&Compact { ino, chunk, old: Arc::clone(old), new: new.into() })
    };
    let before = c.inode(ino);
    // A row appended in the meantime stays, and stays on top.
    put(&c, ino, 8, 6, 4);
    compact(&old, vec![blocks(0, 10, 5)]).unwrap();
    assert_eq!(*chunk_rows(&c, ino, 0), [blocks(0, 10, 5), blocks(8, 6, 4)]);
    assert_eq!(read(&c, ino, 0, 14), [of_slice(5, 0, 8), of_slice(4, 0, 6)].concat());
    assert_eq!(garbage(&**c.engine()), BTreeSet::from([1, 2, 3]));
    assert_eq!(c.inode(ino).size, 14);
    assert_eq!(c.inode(ino).access_rev, before.access_rev);
    // Rows that were replaced already are not replaced again; the new slices are not stored either.
    assert_eq!(compact(&old, vec![blocks(0, 10, 6)]), Err(Errno::EAGAIN));
    assert_eq!(chunk_rows(&c, ino, 0).len(), 2);
    let stranger = c.stranger();
    let stale = Compact { ino, chunk, old, new: vec![blocks(0, 10, 6)].into() };
    assert_eq!(stranger.run(&stale), Err(Errno::EAGAIN));
    assert_eq!(garbage(&**c.engine()), BTreeSet::from([1, 2, 3]));
    // Without new rows, the old ones are only dropped.
    let old = chunk_rows(&c, ino, 0);
    compact(&old, Vec::new()).unwrap();
    assert!(rows(&**c.engine(), ino).is_empty());
    assert_eq!(compact(&old, Vec::new()), Err(Errno::EAGAIN));
    put(&c, ino, 0, 4, 7);
    let old = chunk_rows(&c, ino, 0);
    c.truncate(ino, 0).unwrap();
    assert_eq!(compact(&old, vec![blocks(0, 4, 8)]), Err(Errno::EAGAIN));
    c.unlink(ROOT, "f").unwrap();
    assert_eq!(compact(&old, vec![blocks(0, 4, 8)]), Err(Errno::ESTALE));
    assert_eq!(garbage(&**c.engine()), BTreeSet::from([1, 2, 3, 4, 5, 7]));
    check(&c);
}

fn unnamed_files_are_linked_or_removed(factory: Factory<'_>) {
    let c = fresh(factory);
    let dir = c.mkdir(ROOT, "d").unwrap();
    let orphan = |name: &str| c.run(&MakeOrphan(c.make_op(dir, name, MakeKind::Regular, 0o666)));
    let (kept, gone) = (orphan("x").unwrap(), orphan("x").unwrap());
    assert_eq!((kept.nlink, kept.mode.bits()), (0, 0o644));
    assert!(c.list(dir).is_empty());
    put(&c, kept.ino, 0, 8, 1);
    put(&c, gone.ino, 0, 8, 2);
    check(&c);
    let link = |ino, name: &str| c.link_op(ino, dir, name);
    let daemon = Authority::Daemon(types::Cred::root());
    assert_eq!(
        c.run_as(&link(kept.ino, "named"), &daemon),
        Err(Errno::ENOENT),
        "a daemon cannot check how it was created"
    );
    assert_eq!(c.run_as(&link(kept.ino, "named"), &KERNEL).map(drop), Ok(()));
    assert_eq!((c.inode(kept.ino).nlink, c.at(dir, "named").ino), (1, kept.ino));
    assert_eq!(
        c.run_as(&link(kept.ino, "again"), &daemon).map(drop),
        Ok(()),
        "it has a name, so it can be linked"
    );
    let session = c.meta.session();
    for ino in [kept.ino, gone.ino] {
        c.run(&Reap { session, ino }).unwrap();
    }
    assert_eq!(c.inode(kept.ino).nlink, 2, "an inode with a name is not reaped");
    assert_eq!(c.run(&link(gone.ino, "late")), Err(Errno::ENOENT));
    assert_eq!(garbage(&**c.engine()), BTreeSet::from([2]));
    assert_eq!(c.run(&Reap { session, ino: gone.ino }), Ok(()), "a second reap does nothing");
    let nowhere = c.make_op(Ino(1 << 40), "x", MakeKind::Regular, 0o666);
    assert_eq!(c.run(&MakeOrphan(nowhere)).unwrap_err(), Errno::ENOENT);
    let in_file = c.make_op(kept.ino, "x", MakeKind::Regular, 0o666);
    assert_eq!(c.run(&MakeOrphan(in_file)).unwrap_err(), Errno::ENOTDIR);
    check(&c);
}

fn a_whiteout_takes_the_old_name(factory: Factory<'_>) {
    let c = fresh(factory);
    let (from, to) = (c.mkdir(ROOT, "from").unwrap(), c.mkdir(ROOT, "to").unwrap());
    let (file, sub) = (c.create(from, "f").unwrap(), c.mkdir(from, "sub").unwrap());
    let replaced = c.create(to, "g").unwrap();
    let rename = |name: &str, new_name: &str, flags: RenameFlags, whiteout: Option<Whiteout>| {
        let (name, new_name) = (n(name), n(new_name));
        c.run(&Rename { parent: from, name, new_parent: to, new_name, flags, whiteout, open: None })
    };
    let whiteout = || Some(Whiteout { ino: c.next_ino(), uid: 7, gid: 8 });
    let exchange = RenameFlags { exchange: true, ..REPLACE };
    assert_eq!(rename("f", "g", exchange, whiteout()).unwrap_err(), Errno::EINVAL);
    let renamed = rename("f", "g", REPLACE, whiteout()).unwrap();
    assert_eq!((renamed.moved.ino, renamed.replaced.map(|gone| gone.inode.ino)), (file, Some(replaced)));
    let left = c.at(from, "f");
    assert_eq!((left.kind, left.rdev, left.mode.bits()), (types::FileType::CharDevice, 0, 0));
    assert_eq!((left.uid, left.gid, left.nlink), (7, 8, 1));
    rename("sub", "sub", REPLACE, whiteout()).unwrap();
    assert_eq!((c.inode(sub).parent, c.inode(from).nlink, c.inode(to).nlink), (to, 2, 3));
    // A rename between two names of one inode does nothing, so it leaves no whiteout either.
    c.link(file, from, "twin").unwrap();
    rename("twin", "g", REPLACE, whiteout()).unwrap();
    assert_eq!(c.at(from, "twin").ino, file);
    check(&c);
}

pub(super) fn shared(engine: &dyn Engine) -> BTreeMap<u64, u64> {
    let page = engine.scan(&Scan::Shared { after: SliceId(0), limit: 100_000 }).unwrap();
    let shared = page.snapshot.records.iter().map(|record| match record {
        Record::Shared(slice, rows) => (slice.0, *rows),
        other => panic!("not a shared slice: {other:?}"),
    });
    shared.collect()
}
