//! Reads the data of files, and reports the ranges that cannot be read.

use check::CheckScope;
use chunk::{BlockStore, ChunkError, PAGE_BYTES, Piece, PieceReader, PieceSource, resolve};
use command::error::CliError;
use meta::{Engine, Volume};
use types::{BLOCK_BYTES, CHUNK_BYTES, Ino, SliceId};

use crate::store::store_error;

/// A range of a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) ino: Ino,
    /// Offsets in the file, in bytes; `to` is exclusive.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) error: String,
}

/// Reads all bytes of the files of `scope` that programs would read; overwritten bytes are skipped. Returns
/// the number of bytes that were requested from objects, including those that cannot be read.
///
/// # Errors
/// The database fails; the store fails for another reason than a missing or damaged object.
pub(crate) fn read_all(
    engine: &dyn Engine,
    scope: &CheckScope,
    volume: &Volume,
    store: &BlockStore,
    report: &mut dyn FnMut(Damage),
    progress: &mut dyn FnMut(u64),
) -> Result<u64, CliError> {
    let buf = vec![0; BLOCK_BYTES as usize];
    let mut scrub = Scrub { buf, bytes: 0, found: Vec::new(), pending: None, report };
    let done = check::for_each_chunk::<CliError>(engine, scope, |inode, chunk, rows| {
        let mut pieces = resolve(rows, 0, CHUNK_BYTES as u32);
        // Rows at distant offsets may share a block. In the order of blocks, each block is read only once.
        pieces.sort_by_key(Piece::place);
        let reader = store.piece_reader(&pieces);
        let read = pieces.iter().try_for_each(|piece| {
            let at = chunk.start() + u64::from(piece.pos);
            match piece.source {
                PieceSource::Zeros => {}
                PieceSource::Inline(bytes) if bytes.len() == piece.len as usize => {}
                PieceSource::Inline(bytes) => {
                    let (len, size) = (piece.len.into(), bytes.len() as u64);
                    scrub.found.push((at, piece.len, ChunkError::Row { offset: 0, len, size }));
                }
                PieceSource::Blocks { id, offset, size, .. } => {
                    let part = Part { id, size, offset, len: piece.len };
                    scrub.read(&reader, at, part).map_err(|error| store_error(volume, &error))?;
                    progress(scrub.bytes);
                }
            }
            Ok(())
        });
        scrub.merge_found(inode.ino);
        read
    });
    scrub.report_pending();
    done.map(|()| scrub.bytes)
}

/// Some bytes of a slice.
#[derive(Clone, Copy)]
struct Part {
    id: SliceId,
    size: u32,
    offset: u32,
    len: u32,
}

struct Scrub<'a> {
    buf: Vec<u8>,
    bytes: u64,
    /// The damaged ranges of the chunk, by their offsets in the file, not sorted.
    found: Vec<(u64, u32, ChunkError)>,
    /// The last damaged range and its object. The range grows while the next range is damaged in the same
    /// object.
    pending: Option<(Damage, Option<String>)>,
    report: &'a mut dyn FnMut(Damage),
}

impl Scrub<'_> {
    /// Reads the part of a slice that a row refers to, block by block. A damaged block is read again page by
    /// page.
    fn read(&mut self, reader: &PieceReader<'_>, at: u64, part: Part) -> Result<(), ChunkError> {
        if u64::from(part.offset) + u64::from(part.len) > u64::from(part.size) {
            let (offset, len, size) = (part.offset.into(), part.len.into(), part.size.into());
            self.found.push((at, part.len, ChunkError::Row { offset, len, size }));
            return Ok(());
        }
        self.bytes += u64::from(part.len);
        for (skip, block) in part.cut(BLOCK_BYTES) {
            let at = at + u64::from(skip);
            match self.fetch(reader, block) {
                Ok(()) => {}
                Err(ChunkError::Corrupt { .. } | ChunkError::Short { .. }) => {
                    self.pages(reader, at, block)?;
                }
                Err(error @ ChunkError::Missing { .. }) => self.found.push((at, block.len, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn pages(&mut self, reader: &PieceReader<'_>, at: u64, block: Part) -> Result<(), ChunkError> {
        for (skip, page) in block.cut(PAGE_BYTES) {
            match self.fetch(reader, page) {
                Ok(()) => {}
                Err(
                    error @ (ChunkError::Corrupt { .. }
                    | ChunkError::Short { .. }
                    | ChunkError::Missing { .. }),
                ) => self.found.push((at + u64::from(skip), page.len, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn fetch(&mut self, reader: &PieceReader<'_>, part: Part) -> Result<(), ChunkError> {
        reader.read_slice(part.id, part.size, part.offset, &mut self.buf[..part.len as usize])
    }

    /// Reports the damaged ranges of a chunk in the order of the file.
    fn merge_found(&mut self, ino: Ino) {
        let mut found = std::mem::take(&mut self.found);
        found.sort_by_key(|(at, ..)| *at);
        found.iter().for_each(|(at, len, error)| self.damaged(ino, *at, *len, error));
    }

    /// Reports a damaged range. Adjacent ranges in one object are merged, with the error of the first.
    fn damaged(&mut self, ino: Ino, from: u64, len: u32, error: &ChunkError) {
        let key = match error {
            ChunkError::Corrupt { key, .. } | ChunkError::Short { key, .. } => Some(key.clone()),
            _ => None,
        };
        let to = from + u64::from(len);
        match &mut self.pending {
            Some((damage, of)) if damage.ino == ino && damage.to == from && key.is_some() && *of == key => {
                damage.to = to;
            }
            _ => {
                self.report_pending();
                self.pending = Some((Damage { ino, from, to, error: error.to_string() }, key));
            }
        }
    }

    fn report_pending(&mut self) {
        if let Some((damage, _)) = self.pending.take() {
            (self.report)(damage);
        }
    }
}

impl Part {
    /// Splits the part at multiples of `unit` in the slice. Each piece comes with its offset in this part.
    fn cut(self, unit: u32) -> impl Iterator<Item = (u32, Part)> {
        let (end, mut at) = (self.offset + self.len, self.offset);
        std::iter::from_fn(move || {
            let offset = at;
            let next = (u64::from(offset / unit) + 1) * u64::from(unit);
            at = next.min(end.into()) as u32;
            (offset < end).then(|| (offset - self.offset, Part { offset, len: at - offset, ..self }))
        })
    }
}

#[cfg(test)]
mod tests {
    use chunk::StorageConfig;
    use meta::{Effect, Inode, MemEngine, Txn};
    use types::{ChunkIndex, FileType, Mode, OpId, Slice, SliceSource, Time};

    use super::*;

    #[test]
    fn a_shared_block_is_read_once_and_its_damage_is_reported_in_the_order_of_the_file() {
        const SLICES: u32 = 4;
        const LEN: u32 = 4096;
        let engine = MemEngine::default();
        let volume = Volume::in_memory("v");
        volume.format(&engine).unwrap();
        let config = StorageConfig { storage: "memory".into(), bucket: String::new() };
        // The cache has room for two of the four blocks.
        let store = BlockStore::open(&config, 2 * u64::from(BLOCK_BYTES)).unwrap();
        // The third slice is missing.
        for id in [1, 2, 4] {
            store.put_slice(SliceId(id), &vec![id as u8; BLOCK_BYTES as usize].into()).unwrap();
        }
        let ino = Ino(5);
        let inode = Inode::new(ino, FileType::Regular, Mode::new(0o600), Time::now());
        let row = |index: u32| Slice {
            pos: index * LEN,
            len: LEN,
            source: SliceSource::Blocks {
                id: SliceId(1 + u64::from(index % SLICES)),
                offset: index / SLICES * LEN,
                size: BLOCK_BYTES,
            },
        };
        let append = |slice| Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice };
        let mut effects = vec![Effect::PutInode(Inode { size: CHUNK_BYTES, ..inode })];
        effects.extend((0..SLICES * BLOCK_BYTES / LEN).map(row).map(append));
        engine.commit(&[Txn { op_id: OpId(7), guards: Vec::new(), effects }]).unwrap();
        let mut found = Vec::new();
        let bytes = read_all(
            &engine,
            &CheckScope::Volume,
            &volume,
            &store,
            &mut |damage| found.push(damage),
            &mut |_| {},
        )
        .unwrap();
        assert_eq!(bytes, u64::from(SLICES * BLOCK_BYTES));
        assert_eq!(store.requests().gets, 3 + u64::from(BLOCK_BYTES / LEN));
        let offsets: Vec<u64> = found.iter().map(|damage| damage.from).collect();
        let expected = (2..SLICES * BLOCK_BYTES / LEN).step_by(SLICES as usize);
        assert_eq!(offsets, expected.map(|index| u64::from(index * LEN)).collect::<Vec<_>>());
    }

    #[test]
    fn parts_are_split_at_unit_boundaries() {
        let cut = |offset, len| -> Vec<(u32, u32, u32)> {
            let part = Part { id: SliceId(1), size: 100, offset, len };
            part.cut(10).map(|(skip, part)| (skip, part.offset, part.len)).collect()
        };
        assert_eq!(cut(0, 10), [(0, 0, 10)]);
        assert_eq!(cut(7, 15), [(0, 7, 3), (3, 10, 10), (13, 20, 2)]);
        assert_eq!(cut(7, 0), []);
    }
}
