//! Scattered writes: the small extents of one flush share slices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meta::{Engine, Record, Scan};
use ops::AtimeMode;
use suite::Fault;
use types::{BLOCK_BYTES, CHUNK_BYTES, ChunkIndex, Errno, Ino, SliceId, SliceSource};

use crate::{AttrChange, Vfs, VfsOptions, fixture};

/// The number of rows that name each slice, the stored counts of shared slices, and the garbage.
struct References {
    rows: BTreeMap<u64, u64>,
    shared: BTreeMap<u64, u64>,
    garbage: BTreeSet<u64>,
}

fn references(engine: &dyn Engine, ino: Ino) -> References {
    let scan = |scan: Scan| {
        let page = engine.scan(&scan).unwrap();
        assert!(!page.more);
        page.snapshot.records
    };
    let (after, limit) = (SliceId(0), 1_000_000);
    let mut rows = BTreeMap::new();
    for record in scan(Scan::Slices { ino, from: ChunkIndex(0), limit }) {
        let Record::Slices(_, _, found) = record else { panic!("{record:?}") };
        for row in found.iter() {
            if let SliceSource::Blocks { id, .. } = row.source {
                *rows.entry(id.0).or_default() += 1;
            }
        }
    }
    let shared = scan(Scan::Shared { after, limit }).into_iter().map(|record| match record {
        Record::Shared(slice, rows) => (slice.0, rows),
        other => panic!("{other:?}"),
    });
    let garbage = scan(Scan::Garbage { after, limit }).into_iter().map(|record| match record {
        Record::Garbage(garbage) => garbage.slice.0,
        other => panic!("{other:?}"),
    });
    References { rows, shared: shared.collect(), garbage: garbage.collect() }
}

/// Panics unless the count of each slice with several rows is exact. Returns the number of slices.
fn check_counts(engine: &dyn Engine, ino: Ino) -> usize {
    let References { rows, shared, garbage } = references(engine, ino);
    for (slice, rows) in &rows {
        assert_eq!(shared.get(slice).copied().unwrap_or(0), rows - 1, "slice {slice}");
    }
    assert!(shared.keys().all(|slice| rows.contains_key(slice)), "{shared:?}");
    assert!(garbage.iter().all(|slice| !rows.contains_key(slice)), "{garbage:?}");
    rows.len()
}

fn set_size(vfs: &Vfs, ino: Ino, size: u64) {
    let change = AttrChange { size_bytes: Some(size), ..AttrChange::default() };
    vfs.setattr(&fixture::root(), ino, change).unwrap();
}

fn read_all(vfs: &Vfs, ino: Ino, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let part = vfs.files.read(ino, bytes.len() as u64, 1 << 20).unwrap();
        assert!(!part.is_empty());
        bytes.extend_from_slice(&part);
    }
    bytes
}

#[test]
fn fifty_thousand_scattered_writes_make_few_objects() {
    const WRITES: usize = 50_000;
    let size = CHUNK_BYTES as usize;
    let (vfs, engine) = fixture::volume(AtimeMode::Never);
    let ino = fixture::make(&vfs, "f");
    set_size(&vfs, ino, size as u64);
    let mut model = vec![0; size];
    let before = engine.counts();
    for n in 0..WRITES {
        // Each offset is written once, in scattered order. No two writes are adjacent.
        let at = n * 7919 % WRITES * (size / WRITES);
        let data = (n as u64 + 1).to_le_bytes();
        model[at..at + 8].copy_from_slice(&data);
        vfs.files.write(ino, at as u64, &data).unwrap();
    }
    vfs.files.fsync(ino).unwrap();
    let flushes = WRITES.div_ceil(1024);
    let requests = vfs.base.store.requests();
    assert_eq!((requests.puts, requests.gets), (flushes as u64, 0));
    // The additional commit leases slice numbers.
    assert_eq!((engine.counts() - before).commits, flushes as u64 + 1);
    assert_eq!(check_counts(engine.inner(), ino), flushes);
    assert!(read_all(&vfs, ino, size) == model);
    // The slices become garbage when their last rows are deleted, and not before.
    set_size(&vfs, ino, size as u64 / 2);
    assert_eq!(check_counts(engine.inner(), ino), flushes);
    vfs.files.close(ino).unwrap();
    vfs.names.unlink(&fixture::root(), Ino::ROOT, b"f").unwrap();
    let left = references(engine.inner(), ino);
    assert_eq!((left.rows.len(), left.shared.len(), left.garbage.len()), (0, 0, flushes));
    vfs.lifecycle.cleanup.collect_garbage().unwrap();
    assert_eq!(vfs.base.store.requests().deletes, flushes as u64);
    assert!(references(engine.inner(), ino).garbage.is_empty());
}

#[test]
fn sequential_writes_share_nothing() {
    let (vfs, engine) = fixture::volume(AtimeMode::Never);
    let ino = fixture::make(&vfs, "f");
    let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 251) as u8).collect();
    let blocks = 2 * CHUNK_BYTES / u64::from(BLOCK_BYTES);
    for at in (0..2 * CHUNK_BYTES + 100_000).step_by(bytes.len()) {
        vfs.files.write(ino, at, &bytes).unwrap();
    }
    vfs.files.flush(ino).unwrap();
    assert_eq!(vfs.base.store.requests().puts, blocks + 1);
    let found = references(engine.inner(), ino);
    assert_eq!((found.rows.len(), found.shared.len()), (3, 0));
}

#[test]
fn random_writes_read_back_like_an_array_of_bytes() {
    let size = CHUNK_BYTES as usize + (CHUNK_BYTES as usize) / 8;
    for seed in 0..4_u64 {
        let mut state = seed.wrapping_mul(0x1_0001) + 1;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        let (vfs, engine) = fixture::volume_with_cache(AtimeMode::Never, 16 << 20);
        let ino = fixture::make(&vfs, "f");
        let mut model = vec![0; size];
        let mut end = 0;
        for step in 0..6000_u64 {
            // Most offsets are in a few hot ranges, so that rows overlap and compaction has work.
            let hot = below(4) as usize * (size / 4);
            let near = if below(4) > 0 { hot + below(200_000) as usize } else { below(size as u64) as usize };
            let longest = if below(50) == 0 { 300_000 } else { 5000 };
            let len = (1 + below(longest) as usize).min(size - near.min(size - 1));
            let at = near.min(size - len);
            match below(400) {
                0 => {
                    set_size(&vfs, ino, at as u64);
                    model[at..].fill(0);
                    end = at;
                }
                1..4 => vfs.files.flush(ino).unwrap(),
                4 => crate::compact::compact_candidates(&vfs.base),
                5 => vfs.lifecycle.cleanup.collect_garbage().unwrap(),
                6..30 => {
                    let wanted = &model[at..(at + len).min(end).max(at)];
                    assert!(
                        vfs.files.read(ino, at as u64, len as u32).unwrap() == wanted,
                        "seed {seed}, step {step}"
                    );
                }
                _ => {
                    let data: Vec<u8> = (0..len).map(|i| (step as usize + i) as u8).collect();
                    model[at..at + len].copy_from_slice(&data);
                    end = end.max(at + len);
                    vfs.files.write(ino, at as u64, &data).unwrap();
                }
            }
        }
        vfs.files.flush(ino).unwrap();
        check_counts(engine.inner(), ino);
        assert!(read_all(&vfs, ino, end) == model[..end], "seed {seed}");
        set_size(&vfs, ino, 0);
        vfs.lifecycle.cleanup.collect_garbage().unwrap();
        let left = references(engine.inner(), ino);
        assert!(left.rows.is_empty() && left.shared.is_empty() && left.garbage.is_empty(), "seed {seed}");
        let mut stored = 0;
        let count = &mut |_: chunk::StoredBlock| {
            stored += 1;
            Ok::<(), chunk::ChunkError>(())
        };
        vfs.base.store.for_each_block(count).unwrap();
        assert_eq!(stored, 0, "seed {seed}");
    }
}

#[test]
fn a_scattered_flush_in_doubt_is_counted_once() {
    for (arrives_first, is_forgotten) in [(true, false), (false, false), (true, true), (false, true)] {
        let (vfs, engine) = fixture::unreliable_volume(VfsOptions::default());
        vfs.meta().set_retry_timeout(Duration::ZERO);
        if is_forgotten {
            vfs.meta().set_repeat_for(Duration::ZERO);
        }
        let other = fixture::make(&vfs, "other");
        vfs.files.write(other, 0, &[1; 5000]).unwrap();
        vfs.files.flush(other).unwrap();
        let ino = fixture::make(&vfs, "f");
        let places: Vec<u64> = (0..300).map(|i| (i * 77 % 300) * 5000).collect();
        for (n, at) in places.iter().enumerate() {
            vfs.files.write(ino, *at, &[n as u8 | 1; 700]).unwrap();
        }
        engine.script([Fault::Late]);
        assert_eq!(vfs.files.flush(ino), Err(Errno::EIO));
        if arrives_first {
            engine.deliver().unwrap();
        }
        vfs.files.flush(ino).unwrap();
        engine.deliver().unwrap();
        // If a flush was stored again, the late commit of its first attempt adds rows of another slice.
        let slices = if is_forgotten && !arrives_first { 2 } else { 1 };
        assert_eq!(check_counts(engine.inner(), ino), slices, "{arrives_first} {is_forgotten}");
        vfs.files.close(ino).unwrap();
        vfs.base.open.open(ino, || vfs.base.new_buffer());
        for (n, at) in places.iter().enumerate() {
            assert_eq!(vfs.files.read(ino, *at, 700).unwrap(), [n as u8 | 1; 700][..]);
        }
    }
}
