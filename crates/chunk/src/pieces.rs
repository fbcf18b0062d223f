//! Reads of chunks: the rows of a chunk are resolved to pieces, and each piece is read from its slice.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use types::{BLOCK_BYTES, Slice, SliceId};

use crate::ChunkError;
use crate::block::{BlockName, block_len};
use crate::pages::{page_key, pages_to_cache};
use crate::resolve::{Piece, PieceSource, resolve};
use crate::store::BlockStore;

impl BlockStore {
    /// Fills `buf` with the bytes of a chunk from `pos` on. `rows` are the chunk's rows in commit order.
    ///
    /// # Errors
    /// As for [`BlockStore::read`]; also [`ChunkError::Row`] for an inline row that holds fewer bytes than
    /// its length.
    pub fn read_chunk(&self, rows: &[Slice], pos: u32, buf: &mut [u8]) -> Result<(), ChunkError> {
        let pieces = resolve(rows, pos, buf.len() as u32);
        let (mut wanted, mut rest) = (Vec::with_capacity(pieces.len()), buf);
        for piece in &pieces {
            let (part, tail) = rest.split_at_mut(piece.len as usize);
            wanted.push((piece, part));
            rest = tail;
        }
        self.read_pieces(wanted)
    }

    /// Fills each buffer with the bytes of its piece, which has the same length. The pieces are read in the
    /// order of [`Piece::place`], not of the file. If ranges of a file share blocks, each piece can be in
    /// another block than the piece before. If they were read in the order of the file, and the cache had no
    /// room for all these blocks, a block would be fetched for each piece.
    ///
    /// # Errors
    /// As for [`BlockStore::read_chunk`], for the first damage in this order.
    pub fn read_pieces(&self, mut wanted: Vec<(&Piece<'_>, &mut [u8])>) -> Result<(), ChunkError> {
        wanted.sort_by_key(|(piece, _)| piece.place());
        let reader = self.piece_reader(wanted.iter().map(|(piece, _)| *piece));
        for (piece, buf) in wanted {
            match piece.source {
                PieceSource::Zeros => buf.fill(0),
                PieceSource::Inline(bytes) if bytes.len() == buf.len() => buf.copy_from_slice(bytes),
                PieceSource::Inline(bytes) => {
                    return Err(ChunkError::Row {
                        offset: 0,
                        len: piece.len.into(),
                        size: bytes.len() as u64,
                    });
                }
                PieceSource::Blocks { id, offset, size, .. } => reader.read_slice(id, size, offset, buf)?,
            }
        }
        Ok(())
    }

    /// Returns a reader for parts of these pieces. The caller should read most of them, in the order of
    /// [`Piece::place`]: how a block is fetched depends on how many bytes all pieces have in its slice.
    pub fn piece_reader<'p>(&self, pieces: impl IntoIterator<Item = &'p Piece<'p>>) -> PieceReader<'_> {
        PieceReader { store: self, shared: shared_bytes(pieces) }
    }

    /// Returns the `len` bytes from `pos` on of a chunk. Like [`BlockStore::read_chunk`], but does not copy
    /// bytes that are in one cached block.
    ///
    /// # Errors
    /// As for [`BlockStore::read_chunk`].
    pub fn chunk_bytes(&self, rows: &[Slice], pos: u32, len: u32) -> Result<Bytes, ChunkError> {
        if let [Piece { source: PieceSource::Blocks { id, offset, .. }, .. }] = *resolve(rows, pos, len)
            && let (index, from) = (offset / BLOCK_BYTES, offset % BLOCK_BYTES)
            && let Some(block) = self.inner.blocks.get(&(id, index))
            && u64::from(from) + u64::from(len) <= block.len() as u64
        {
            self.inner.counts.hits.fetch_add(1, Relaxed);
            return Ok(block.slice(from as usize..(from + len) as usize));
        }
        let mut buf = vec![0; len as usize];
        self.read_chunk(rows, pos, &mut buf)?;
        Ok(buf.into())
    }

    /// Fetches in the background those blocks that hold the `len` bytes from `pos` on of a chunk and are not
    /// cached. If several rows share a block and it has few of these bytes, only the pages with these bytes
    /// are fetched. Errors are not reported here, but by a later read of the block.
    pub fn prefetch(&self, rows: &[Slice], pos: u32, len: u32) {
        let pieces = resolve(rows, pos, len);
        let shared = shared_bytes(&pieces);
        for piece in &pieces {
            let PieceSource::Blocks { id, offset, size, .. } = piece.source else { continue };
            for block in offset / BLOCK_BYTES..offset.saturating_add(piece.len).div_ceil(BLOCK_BYTES) {
                let name = BlockName { id, block, len: block_len(size, block) };
                let start = offset.max(block * BLOCK_BYTES) - block * BLOCK_BYTES;
                if let Some(pages) = pages_to_cache(name, start, piece.len, shared.get(&id).copied()) {
                    self.prefetch_pages(name, pages);
                } else if name.len > 0 && self.inner.blocks.plan((id, block)) {
                    self.spawn(move |inner| {
                        if let Err(error) = inner.load_planned_block(name) {
                            tracing::debug!(%error, "a block could not be read ahead");
                        }
                    });
                }
            }
        }
    }

    fn prefetch_pages(&self, name: BlockName, pages: Range<u32>) {
        for page in pages {
            if !self.inner.blocks.contains(&(name.id, name.block))
                && self.inner.blocks.plan(page_key(name, page))
            {
                self.spawn(move |inner| {
                    if let Err(error) = inner.load_planned_page(name, page) {
                        tracing::debug!(%error, "a page could not be read ahead");
                    }
                });
            }
        }
    }
}

/// Reads pieces of a chunk; see [`BlockStore::piece_reader`].
#[derive(Debug)]
pub struct PieceReader<'s> {
    store: &'s BlockStore,
    shared: HashMap<SliceId, u64>,
}

impl PieceReader<'_> {
    /// As [`BlockStore::read`], for bytes of a slice that the pieces name.
    ///
    /// # Errors
    /// As for [`BlockStore::read`].
    pub fn read_slice(&self, id: SliceId, size: u32, offset: u32, buf: &mut [u8]) -> Result<(), ChunkError> {
        self.store.read_of(id, size, offset, buf, self.shared.get(&id).copied())
    }
}

/// For each slice that is shared ([`PieceSource::Blocks`]), the number of its bytes that the pieces have.
fn shared_bytes<'p>(pieces: impl IntoIterator<Item = &'p Piece<'p>>) -> HashMap<SliceId, u64> {
    let mut bytes = HashMap::new();
    for piece in pieces {
        if let PieceSource::Blocks { id, is_shared: true, .. } = piece.source {
            *bytes.entry(id).or_default() += u64::from(piece.len);
        }
    }
    bytes
}
