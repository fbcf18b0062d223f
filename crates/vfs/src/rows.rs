//! Stored file data: the rows of chunks, and the bytes they name.
//!
//! Rows are cached in the open files, which the caller locks.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use chunk::ChunkError;
use ops::GetSlices;
use types::{CHUNK_BYTES, ChunkIndex, Errno, Slice};

use crate::caller::BY_KERNEL;
use crate::files::Files;
use crate::flush::data_error;
use crate::open::{FileData, OpenFile};
use crate::readahead;

impl Files {
    pub(crate) fn read_stored(
        &self,
        file: &OpenFile,
        data: &mut FileData,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Errno> {
        let rows = self.rows(file, data, offset, buf.len() as u64)?;
        self.read_rows(&rows, offset, buf).map_err(|error| data_error(file.ino, offset, &error))
    }

    /// Prefetches the data after `range`. Errors are ignored here; the read itself reports them.
    pub(crate) fn read_ahead(&self, file: &OpenFile, data: &mut FileData, range: Range<u64>, size: u64) {
        let most = readahead::most_bytes(self.base.store.cache_bytes(), self.base.open.count());
        let Some(next) = data.ahead.note(range, most) else { return };
        let (mut at, end) = (next.start, next.end.min(size));
        while at < end {
            let (_, pos) = ChunkIndex::of(at);
            let len = (CHUNK_BYTES - u64::from(pos)).min(end - at);
            match self.rows(file, data, at, len).as_deref() {
                Ok([rows]) => self.base.store.prefetch(rows, pos, len as u32),
                _ => return,
            }
            at += len;
        }
    }

    /// The rows of every chunk that the range overlaps.
    pub(crate) fn rows(
        &self,
        file: &OpenFile,
        data: &mut FileData,
        offset: u64,
        len: u64,
    ) -> Result<Vec<Arc<[Slice]>>, Errno> {
        let chunks = offset / CHUNK_BYTES..(offset + len).div_ceil(CHUNK_BYTES);
        let mut found = Vec::with_capacity(2);
        for chunk in chunks.map(ChunkIndex) {
            // Cached rows are valid only while no other client can add to them.
            let rows = match data.rows.get(&chunk).filter(|_| self.base.meta.is_exclusive()) {
                Some(rows) => Arc::clone(rows),
                None => {
                    let rows = self.base.meta.run(&GetSlices { ino: file.ino, chunk }, &BY_KERNEL)?;
                    if data.rows.len() >= MAX_CHUNKS_HELD {
                        data.rows.clear();
                    }
                    data.rows.insert(chunk, Arc::clone(&rows));
                    self.base.candidates.note(file.ino, chunk, rows.len());
                    rows
                }
            };
            found.push(rows);
        }
        Ok(found)
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

/// Chunks whose rows one open file caches.
const MAX_CHUNKS_HELD: usize = 64;
