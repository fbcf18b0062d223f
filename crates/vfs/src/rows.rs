//! Stored file data: the rows of chunks, and the bytes they name.
//!
//! Rows are cached in the open files, which the caller locks.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use chunk::{ChunkError, PieceSource};
use meta::{Record, Scan};
use ops::{GetChunk, StoredChunk};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice};

use crate::caller::BY_KERNEL;
use crate::files::Files;
use crate::flush::data_error;
use crate::open::{FileData, OpenFile};
use crate::readahead;

/// The stored data of a range.
pub(crate) struct Stored {
    /// The rows of every chunk that the range overlaps, up to the end of the file.
    pub(crate) rows: Vec<Arc<[Slice]>>,
    /// How many bytes of the range are before the end of the file.
    pub(crate) len: u64,
}

impl Files {
    /// Fills `buf` with the stored bytes at `offset`, and shortens it at the end of the file. Compaction may
    /// have replaced the slices of cached rows and deleted their blocks, so after an error the rows are read
    /// again.
    pub(crate) fn read_stored(
        &self,
        file: &OpenFile,
        data: &mut FileData,
        offset: u64,
        buf: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let stored = self.stored(file, data, offset, buf.len() as u64)?;
        buf.truncate(stored.len as usize);
        self.read_rows(&stored.rows, offset, buf).or_else(|first| {
            data.rows.clear();
            let fresh = self.stored(file, data, offset, buf.len() as u64)?;
            if fresh.rows == stored.rows {
                return Err(data_error(file.ino, offset, &first));
            }
            buf.truncate(fresh.len as usize);
            // The failed attempt may have filled ranges that are holes according to the new rows.
            buf.fill(0);
            self.read_rows(&fresh.rows, offset, buf).map_err(|error| data_error(file.ino, offset, &error))
        })
    }

    /// Checks the stored data of a file if a staged block of it may have been lost.
    ///
    /// # Errors
    /// EIO if the store does not have such data; those of the database.
    pub(crate) fn verify_lost(&self, ino: Ino) -> Result<(), Errno> {
        let mut from = ChunkIndex(0);
        loop {
            let page = self.base.meta.scan(&Scan::Slices { ino, from, limit: PAGE })?;
            for record in &page.snapshot.records {
                let Record::Slices(_, chunk, rows) = record else { continue };
                for piece in chunk::resolve(rows, 0, CHUNK_BYTES as u32) {
                    if let PieceSource::Blocks { id, size, .. } = piece.source
                        && self.base.store.may_have_lost(id)
                    {
                        let at = chunk.start() + u64::from(piece.pos);
                        let verified = self.base.store.verify_slice(id, size);
                        verified.map_err(|error| data_error(ino, at, &error))?;
                    }
                }
                from = ChunkIndex(chunk.0 + 1);
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Prefetches the data after `range`. Errors are ignored here; the read itself reports them.
    pub(crate) fn read_ahead(&self, file: &OpenFile, data: &mut FileData, range: Range<u64>, size: u64) {
        let most = readahead::max_bytes(self.base.store.cache_bytes(), self.base.open.count());
        let Some(next) = data.ahead.note(range, most) else { return };
        let (mut at, end) = (next.start, next.end.min(size));
        while at < end {
            let (_, pos) = ChunkIndex::of(at);
            let len = (CHUNK_BYTES - u64::from(pos)).min(end - at);
            match self.stored(file, data, at, len) {
                Ok(Stored { rows, len }) if len > 0 => {
                    rows.iter().for_each(|rows| self.base.store.prefetch(rows, pos, len as u32));
                }
                _ => return,
            }
            at += len;
        }
    }

    /// The stored data of a range, up to the end of the file at the moment when the rows are read. The
    /// caller's size may be older: if the file was truncated since, the rows of the bytes cut off are gone.
    /// Unflushed writes count as part of the file.
    ///
    /// # Errors
    /// ESTALE if another mount has deleted the file; EIO if the database fails.
    pub(crate) fn stored(
        &self,
        file: &OpenFile,
        data: &mut FileData,
        offset: u64,
        len: u64,
    ) -> Result<Stored, Errno> {
        let ino = file.ino;
        let (mut at, mut end) = (offset, offset + len);
        let mut found = Vec::with_capacity(2);
        while at < end {
            let (chunk, _) = ChunkIndex::of(at);
            // Cached rows are valid only while no other client can add to them. The caller's size is then
            // exact.
            let rows = match data.rows.get(&chunk).filter(|_| self.base.meta.is_exclusive()) {
                Some(rows) => Arc::clone(rows),
                None => {
                    let StoredChunk { size, rows } =
                        self.base.meta.run(&GetChunk { ino, chunk }, &BY_KERNEL)?;
                    end = end.min(size.max(file.dirty_end()));
                    if data.rows.len() >= MAX_CHUNKS_HELD {
                        data.rows.clear();
                    }
                    data.rows.insert(chunk, Arc::clone(&rows));
                    self.base.candidates.note(ino, chunk, rows.len());
                    rows
                }
            };
            found.push(rows);
            at = chunk.start() + CHUNK_BYTES;
        }
        Ok(Stored { rows: found, len: end.saturating_sub(offset) })
    }

    /// The bytes at `offset` according to the rows of the chunks.
    pub(crate) fn bytes_of(&self, rows: &[Arc<[Slice]>], offset: u64, len: u64) -> Result<Bytes, ChunkError> {
        if let [rows] = rows {
            return self.base.store.chunk_bytes(rows, ChunkIndex::of(offset).1, len as u32);
        }
        let mut buf = vec![0; len as usize];
        self.read_rows(rows, offset, &mut buf)?;
        Ok(buf.into())
    }

    fn read_rows(&self, rows: &[Arc<[Slice]>], offset: u64, buf: &mut [u8]) -> Result<(), ChunkError> {
        let (mut at, mut rest) = (offset, buf);
        for rows in rows {
            let (_, pos) = ChunkIndex::of(at);
            let len = (CHUNK_BYTES - u64::from(pos)).min(rest.len() as u64) as usize;
            let (part, tail) = rest.split_at_mut(len);
            self.base.store.read_chunk(rows, pos, part)?;
            at += len as u64;
            rest = tail;
        }
        Ok(())
    }
}

/// The number of chunks whose rows are read in one request.
const PAGE: usize = 64;
/// Chunks whose rows one open file caches.
const MAX_CHUNKS_HELD: usize = 64;
