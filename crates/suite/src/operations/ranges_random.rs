//! Random changes of ranges, compared after each step with files that are plain maps of bytes. The slices
//! that rows refer to are compared with the engine's garbage and shared slices.

use std::collections::{BTreeMap, BTreeSet};

use ops::{AllocateMode, Compact, Write};
use types::{ChunkIndex, Errno, Ino, Slice, SliceId, SliceSource, Time};

use super::case::{Case, Factory};
use super::fixture::{Client, ROOT, fresh};
use super::invariants::check;
use super::ranges::{
    Bytes, CHUNK, MODES, ZERO, allocate, chunk_rows, content, copy, fill_zeros, garbage, paint, paint_rows,
    put, put_scattered, rows, shared,
};
use crate::rng::split_mix;

pub(super) const CASES: &[Case] =
    &[("random_ranges_agree_with_a_map_of_bytes", random_ranges_agree_with_a_map_of_bytes)];

/// One file of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct File {
    size: u64,
    bytes: Bytes,
}

/// Each run prints its seed; `LIMEN_TEST_SEED` replays one run, and `LIMEN_TEST_TIMES` multiplies the number
/// of runs.
fn random_ranges_agree_with_a_map_of_bytes(factory: Factory<'_>) {
    const RUNS: u64 = 8;
    const STEPS: usize = 150;
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("LIMEN_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..RUNS * number("LIMEN_TEST_TIMES").unwrap_or(1),
    };
    for seed in seeds {
        println!("seed {seed}");
        let mut run = Run::new(factory, seed);
        for step in 0..STEPS {
            let what = run.step();
            run.compare(&format!("seed {seed}, step {step}: {what}"));
        }
        for at in 0..run.files.len() {
            run.remove(at);
            run.compare(&format!("seed {seed}: file {at} removed"));
        }
        check(&run.client);
    }
}

struct Run {
    client: Client,
    rng_state: u64,
    next_slice: u64,
    /// All slices for which rows were ever written.
    stored: BTreeSet<u64>,
    files: Vec<(Ino, File)>,
}

impl Run {
    fn new(factory: Factory<'_>, seed: u64) -> Self {
        let client = fresh(factory);
        let files = ["0", "1", "2"].map(|name| (client.create(ROOT, name).unwrap(), File::default())).into();
        Run { client, rng_state: seed.wrapping_mul(0x1_0001), next_slice: 1, stored: BTreeSet::new(), files }
    }

    fn draw(&mut self, below: u64) -> u64 {
        split_mix(&mut self.rng_state) % below
    }

    /// An offset near the ends of the first chunks, where the rules interact.
    fn offset(&mut self) -> u64 {
        (self.draw(4) * CHUNK + self.draw(25)).saturating_sub(12)
    }

    fn len(&mut self) -> u64 {
        let chunks = if self.draw(4) == 0 { self.draw(3) } else { 0 };
        (chunks * CHUNK + self.draw(30)).saturating_sub(if chunks > 0 { 15 } else { 0 })
    }

    /// Runs one random step, and returns its description.
    fn step(&mut self) -> String {
        let at = self.draw(self.files.len() as u64) as usize;
        let (offset, len) = (self.offset(), self.len());
        match self.draw(20) {
            0..2 => self.write_scattered(at),
            2..7 => self.write(at, offset, len % 31),
            7..10 => self.allocate(at, offset, len),
            10..16 => {
                let (to, to_offset) = (self.draw(self.files.len() as u64) as usize, self.offset());
                self.copy((at, offset), (to, to_offset), len)
            }
            16 => self.truncate(at, offset),
            17..19 => self.compact(at),
            _ => {
                self.remove(at);
                format!("remove {at}")
            }
        }
    }

    fn write(&mut self, at: usize, offset: u64, len: u64) -> String {
        let (ino, id) = (self.files[at].0, self.next_slice);
        let (chunk, pos) = ChunkIndex::of(offset);
        let inline = self.draw(3) == 0 && len > 0 && u64::from(pos) + len <= CHUNK;
        let end = offset + len;
        let file = &mut self.files[at].1;
        if inline {
            let data: Vec<u8> = (0..len).map(|n| (id + n) as u8 | 1).collect();
            file.bytes.extend((offset..).zip(data.iter().copied()));
            let slice = Slice { pos, len: len as u32, source: SliceSource::Inline(data.into()) };
            let write = Write { ino, slices: vec![(chunk, slice)], end, mtime: Time::now() };
            self.client.run(&write).unwrap();
        } else {
            for byte in offset..end {
                // The next chunk starts with its own slice.
                let later = ChunkIndex::of(byte).0 != chunk;
                let start = if later { ChunkIndex::of(byte).0.start() } else { offset };
                let value = content(SliceId(id + u64::from(later)), (byte - start) as u32);
                file.bytes.insert(byte, value);
                self.stored.insert(id + u64::from(later));
            }
            put(&self.client, ino, offset, len, id);
            self.next_slice += 2;
        }
        file.size = file.size.max(end);
        format!("write {at} at {offset}+{len}, inline {inline}")
    }

    /// Writes to several places, whose rows share a slice.
    fn write_scattered(&mut self, at: usize) -> String {
        let (ino, id) = (self.files[at].0, self.next_slice);
        self.next_slice += 1;
        self.stored.insert(id);
        let mut places = Vec::new();
        for _ in 0..2 + self.draw(5) {
            let offset = self.offset();
            places.push((offset, (1 + self.draw(8)).min(CHUNK - offset % CHUNK) as u32));
        }
        let (mut skip, file) = (0, &mut self.files[at].1);
        for &(offset, len) in &places {
            let data = (0..len).map(|n| content(SliceId(id), skip + n));
            file.bytes.extend((offset..).zip(data));
            file.size = file.size.max(offset + u64::from(len));
            skip += len;
        }
        put_scattered(&self.client, ino, &places, id);
        format!("write {at} at {places:?}")
    }

    fn allocate(&mut self, at: usize, offset: u64, len: u64) -> String {
        let mode = MODES[self.draw(5) as usize];
        let (ino, file) = &mut self.files[at];
        let result = allocate(&self.client, *ino, offset, len, mode);
        assert_eq!(result, if len == 0 { Err(Errno::EINVAL) } else { Ok(()) });
        if len > 0 {
            if !matches!(mode, AllocateMode::Extend | AllocateMode::Reserve) {
                fill_zeros(&mut file.bytes, offset, offset + len);
            }
            if matches!(mode, AllocateMode::Extend | ZERO) {
                file.size = file.size.max(offset + len);
            }
        }
        format!("{mode:?} {at} at {offset}+{len}")
    }

    fn copy(&mut self, from: (usize, u64), to: (usize, u64), len: u64) -> String {
        let source = self.files[from.0].clone();
        let (target, file) = &mut self.files[to.0];
        let copied = copy(&self.client, (source.0, from.1), (*target, to.1), len);
        let overlap = from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len;
        if overlap {
            assert_eq!(copied, Err(Errno::EINVAL));
        } else {
            let copied = copied.unwrap();
            let most = len.min(source.1.size.saturating_sub(from.1));
            assert!(copied == most || copied > 3 * CHUNK, "{copied} of {most}");
            if copied > 0 {
                fill_zeros(&mut file.bytes, to.1, to.1 + copied);
                let bytes = source.1.bytes.range(from.1..from.1 + copied);
                file.bytes.extend(bytes.map(|(at, byte)| (at - from.1 + to.1, *byte)));
                file.size = file.size.max(to.1 + copied);
            }
        }
        format!("copy {from:?} to {to:?}, {len}")
    }

    fn truncate(&mut self, at: usize, size: u64) -> String {
        let (ino, file) = &mut self.files[at];
        self.client.truncate(*ino, size).unwrap();
        file.bytes.split_off(&size);
        file.size = size;
        format!("truncate {at} to {size}")
    }

    /// Replaces a chunk's rows by one row per run of bytes, unless there would then be more rows than before.
    fn compact(&mut self, at: usize) -> String {
        let (ino, chunk) = (self.files[at].0, ChunkIndex(self.draw(4)));
        let mut old = chunk_rows(&self.client, ino, chunk.0).to_vec();
        let mut left = paint_rows(&old);
        if self.draw(2) == 0 && old.len() > 1 {
            // Use only the oldest rows: the later ones then count as appended in the meantime.
            old.truncate(old.len() / 2);
            left = paint_rows(&old);
        }
        let mut new: Vec<Slice> = Vec::new();
        for (pos, byte) in left {
            match new.last_mut() {
                Some(Slice { pos: start, len, source: SliceSource::Inline(data) })
                    if u64::from(*start + *len) == pos =>
                {
                    *data = [&data[..], &[byte]].concat().into();
                    *len += 1;
                }
                _ => new.push(Slice { pos: pos as u32, len: 1, source: SliceSource::Inline([byte].into()) }),
            }
        }
        if new.len() > old.len() {
            return format!("no compaction of {at}: {} rows of {}", new.len(), old.len());
        }
        let compact = Compact { ino, chunk, old: old.into(), new: new.into() };
        self.client.run(&compact).unwrap();
        format!("{compact:?}")
    }

    fn remove(&mut self, at: usize) {
        let name = at.to_string();
        self.client.unlink(ROOT, &name).unwrap();
        self.files[at] = (self.client.create(ROOT, &name).unwrap(), File::default());
    }

    #[track_caller]
    fn compare(&self, what: &str) {
        let engine = &**self.client.engine();
        let mut referred: BTreeMap<u64, u64> = BTreeMap::new();
        for (ino, file) in &self.files {
            let found = File { size: self.client.inode(*ino).size, bytes: paint(engine, *ino) };
            assert_eq!(&found, file, "{ino}: {what}");
            let all = rows(engine, *ino);
            for row in all.iter().flat_map(|(_, rows)| rows.iter()) {
                if let SliceSource::Blocks { id, .. } = row.source {
                    *referred.entry(id.0).or_default() += 1;
                }
            }
        }
        let expected: BTreeMap<u64, u64> =
            referred.iter().filter(|(_, rows)| **rows > 1).map(|(id, rows)| (*id, rows - 1)).collect();
        let mut counts = shared(engine);
        // A slice that was shared keeps a count of 0 while one row is left.
        counts.retain(|id, extra| *extra > 0 || referred.get(id) != Some(&1));
        assert_eq!(counts, expected, "{what}");
        let unused: BTreeSet<u64> =
            self.stored.iter().filter(|id| !referred.contains_key(id)).copied().collect();
        assert_eq!(garbage(engine), unused, "{what}");
    }
}
