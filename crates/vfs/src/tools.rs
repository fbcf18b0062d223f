//! Requests of tools to a mount about one file: compact it, tell how much of it is cached, evict it from the
//! caches.
//!
//! No access is checked, so the caller must be the superuser or the user that runs the mount. The end of the
//! session stops a compaction and waits for it.

use std::collections::HashSet;
use std::sync::Arc;

use meta::{Record, Scan};
use types::{ChunkIndex, Errno, Ino, Slice, SliceId, SliceSource};

use crate::compact::{Compacted, Threshold, compact};
use crate::vfs::Vfs;

/// How many chunks are read in one request.
const PAGE: usize = 64;

/// How often the compaction of a chunk is tried if others change the chunk meanwhile.
const TRIES: u32 = 3;

/// The bytes of a file that are in the object store, and how many of them are in the caches of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedBytes {
    pub stored: u64,
    pub cached: u64,
}

impl Vfs {
    /// Compacts a file as far as possible: afterwards each run of data without a hole has one row in each
    /// chunk. Chunks that are changed all the time stay as they are.
    ///
    /// # Errors
    /// Those of a flush if the file is open; EIO if the store or the database fails, or if the session ends;
    /// ENOSPC and EDQUOT of the store.
    pub fn compact(&self, ino: Ino) -> Result<Compacted, Errno> {
        let _running = host::read(&self.lifecycle.tools);
        if let Some(file) = self.base.open.get(ino).filter(|file| !file.is_orphan() && !file.is_fenced()) {
            let mut data = file.lock();
            self.base.flush_locked(&file, &mut data)?;
        }
        let mut sum = Compacted::default();
        self.each_chunk(ino, |chunk, rows| {
            if rows.len() < 2 {
                sum.rows_before += rows.len() as u64;
                sum.rows_after += rows.len() as u64;
                return Ok(());
            }
            for attempt in 1.. {
                if self.base.stop.is_set() {
                    return Err(Errno::EIO);
                }
                match compact(&self.base, ino, chunk, Threshold::Any) {
                    Ok(done) => {
                        sum.rows_before += done.rows_before;
                        sum.rows_after += done.rows_after;
                        sum.bytes += done.bytes;
                        break;
                    }
                    // The file was deleted meanwhile.
                    Err(Errno::ESTALE) => break,
                    // The chunk changes all the time.
                    Err(Errno::EAGAIN) if attempt >= TRIES => break,
                    Err(Errno::EAGAIN) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Ok(())
        })?;
        Ok(sum)
    }

    /// How much of a file is in the caches of this mount, in memory and on the local disk. The kernel's cache
    /// does not count.
    ///
    /// # Errors
    /// EIO if the database fails.
    pub fn cached_bytes(&self, ino: Ino) -> Result<CachedBytes, Errno> {
        let mut sum = CachedBytes::default();
        self.each_slice(ino, |id, size| {
            sum.stored += u64::from(size);
            sum.cached += self.base.store.cached_bytes(id, size);
        })?;
        Ok(sum)
    }

    /// Removes a file from the caches of this mount and of the kernel. Returns how much of it this mount had
    /// cached.
    ///
    /// # Errors
    /// EIO if the database fails.
    pub fn evict(&self, ino: Ino) -> Result<CachedBytes, Errno> {
        let before = self.cached_bytes(ino)?;
        self.each_slice(ino, |id, size| self.base.store.evict(id, size))?;
        self.caches.invalidate_inode(ino, true);
        Ok(before)
    }

    fn each_chunk(
        &self,
        ino: Ino,
        mut found: impl FnMut(ChunkIndex, Arc<[Slice]>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let scan = Scan::Slices { ino, from: ChunkIndex(0), limit: PAGE };
        for page in scan.pages(|scan| self.base.meta.scan(scan)) {
            for record in page? {
                if let Record::Slices(_, chunk, rows) = record {
                    found(chunk, rows)?;
                }
            }
        }
        Ok(())
    }

    /// Calls `found` with each slice that rows of the file refer to, and its size, once for each chunk that
    /// refers to it.
    fn each_slice(&self, ino: Ino, mut found: impl FnMut(SliceId, u32)) -> Result<(), Errno> {
        self.each_chunk(ino, |_, rows| {
            let mut seen = HashSet::new();
            for row in rows.iter() {
                if let SliceSource::Blocks { id, size, .. } = row.source
                    && seen.insert(id)
                {
                    found(id, size);
                }
            }
            Ok(())
        })
    }
}
