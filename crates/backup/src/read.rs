//! Reads a backup as a dump.

use std::io::{self, BufRead, Read};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use chunk::{BACKUP_PART_BYTES, BackupId, BlockStore};
use dump::{DumpError, Reader};

use crate::manifest::Manifest;

/// Opens a backup to read it from its beginning. The reader holds one part in memory.
///
/// # Errors
/// The store fails; a part is missing or damaged, or was encrypted with another key. The reader fails with
/// the same errors.
pub fn open(store: &Arc<BlockStore>, backup: BackupId, manifest: &Manifest) -> Result<Reader, DumpError> {
    let parts =
        PartReader { store: Arc::clone(store), backup, part: 0, left: manifest.bytes, buffer: Bytes::new() };
    Reader::open(Box::new(parts))
}

#[derive(Debug)]
struct PartReader {
    store: Arc<BlockStore>,
    backup: BackupId,
    /// The number of the next part.
    part: u32,
    /// The number of bytes in the next part and all later ones.
    left: u64,
    /// The bytes of the previous part that were not read yet.
    buffer: Bytes,
}

impl BufRead for PartReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.buffer.is_empty() && self.left > 0 {
            let len = u32::try_from(self.left).unwrap_or(u32::MAX).min(BACKUP_PART_BYTES);
            self.buffer = self.store.backup_part(self.backup, self.part, len).map_err(io::Error::other)?;
            self.part += 1;
            self.left -= u64::from(len);
        }
        Ok(&self.buffer)
    }

    fn consume(&mut self, count: usize) {
        self.buffer.advance(count);
    }
}

impl Read for PartReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let taken = self.fill_buf()?.read(into)?;
        self.consume(taken);
        Ok(taken)
    }
}
