//! Open files: open, read, write, append, flush, fsync, close.
//!
//! Holds nothing of its own: what is open is in [`OpenTable`]. Depends on [`Rows`] (stored data), [`Flusher`], [`Space`],
//! [`Fencing`], [`Attributes`] and the access checks. Lock order: that of [`Space`], then one file's data, then the locks of
//! [`Commits`].

use std::sync::Arc;

use bytes::Bytes;
use chunk::Written;
use client::Meta;
use ops::{Append, Open, OpenFor, Opened, Reap};
use types::{ChunkIndex, Errno, FileType, Ino, Time};

use crate::access_check::{AccessCheck, Perm};
use crate::attributes::Attributes;
use crate::caller::Caller;
use crate::candidates::Candidates;
use crate::changes::CallerChanges;
use crate::coherence::Caches;
use crate::commits::Commits;
use crate::fencing::{Fencing, Within};
use crate::flush::Flusher;
use crate::numbers::Numbers;
use crate::open::{OpenFile, OpenTable};
use crate::rows::{Rows, data_error};
use crate::space::Space;

#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) meta: Arc<Meta>,
    pub(crate) slices: Arc<Numbers>,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) changes: Arc<CallerChanges>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) fencing: Arc<Fencing>,
    pub(crate) candidates: Arc<Candidates>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) rows: Rows,
    pub(crate) space: Space,
}

impl Files {
    /// Opens a regular file; a file that is already open gets one more handle. `O_TRUNC` is not handled here:
    /// the kernel sends it as a separate truncation. Returns whether the caller may only append.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist or the kernel checked outdated permissions; EACCES by an NFSv4 ACL;
    /// EISDIR; EINVAL if the inode is not a regular file.
    pub(crate) fn open(&self, caller: &Caller<'_>, ino: Ino, what_for: OpenFor) -> Result<bool, Errno> {
        self.add_handle(ino);
        let opened = self.check_open(caller, ino, what_for);
        if opened.is_err() {
            self.close(ino)?;
        }
        opened
    }

    /// Adds a handle to a regular file without any check.
    pub(crate) fn add_handle(&self, ino: Ino) -> Arc<OpenFile> {
        self.open.open(ino, || self.flusher.new_buffer())
    }

    fn check_open(&self, caller: &Caller<'_>, ino: Ino, what_for: OpenFor) -> Result<bool, Errno> {
        // An inode that was deleted still answers `getattr`, but cannot be opened.
        let Opened { inode, append_only } =
            self.meta.run(&Open { ino, what_for }, &self.access.authority(caller))?;
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let wanted =
            [(what_for.read, Perm::READ), (what_for.write, Perm::WRITE), (what_for.execute, Perm::EXECUTE)];
        let want = wanted
            .into_iter()
            .filter(|(requested, _)| *requested)
            .fold(Perm::NONE, |all, (_, perm)| all | perm);
        self.changes.admit_by_kernel(caller, &inode, want)?;
        self.access.admit_posix(caller, &inode, want)?;
        Ok(append_only)
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// EBADF unless open; EIO if the data is damaged or the object store fails.
    pub(crate) fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let file = self.open.get(ino).ok_or(Errno::EBADF)?;
        self.read_file(&file, offset, len)
    }

    /// As [`Self::read`], for the kernel's cache.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_to_cache(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let file = self.open.get(ino).ok_or(Errno::EBADF)?;
        file.set_cached();
        self.read_file(&file, offset, len)
    }

    fn read_file(&self, file: &OpenFile, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let ino = file.ino;
        if file.is_fenced() {
            return Err(Errno::EIO);
        }
        // The order matters: a flush between the two reads then shows in both. In the other order it could
        // show in neither, and the read would be short.
        let unflushed_end = file.dirty_end();
        let size = self.attributes.inode(ino)?.size.max(unflushed_end);
        let len = size.saturating_sub(offset).min(u64::from(len));
        let mut data = file.lock();
        if data.buffer.touches(offset, len) {
            let mut buf = vec![0; len as usize];
            if !data.buffer.covers(offset, len) {
                self.rows.read_stored(file, &mut data, offset, &mut buf)?;
            }
            data.buffer.overlay(offset, &mut buf).map_err(|error| data_error(ino, offset, &error))?;
            Ok(buf.into())
        } else {
            // The rows are read under the lock, so they include every write that ended before this read
            // began.
            let rows = self.rows.rows(file, &mut data, offset, len)?;
            self.rows.read_ahead(file, &mut data, offset..offset + len, size);
            drop(data);
            self.rows.bytes_of(&rows, offset, len).or_else(|first| {
                // Compaction may have replaced the slices and deleted their blocks: read the rows again.
                let mut data = file.lock();
                data.rows.clear();
                let fresh = self.rows.rows(file, &mut data, offset, len)?;
                if fresh == rows {
                    return Err(data_error(ino, offset, &first));
                }
                self.rows.bytes_of(&fresh, offset, len).map_err(|error| data_error(ino, offset, &error))
            })
        }
    }

    /// Writes `bytes` at `offset`. The bytes are stored at the next flush. Call [`Ranges::kill_priv_of_writer`](crate::ranges::Ranges::kill_priv_of_writer)
    /// first.
    ///
    /// # Errors
    /// EBADF unless open; EFBIG beyond 2^63 - 1 bytes; ENOSPC or EIO, also of an earlier write.
    pub(crate) fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let file = self.open.get(ino).ok_or(Errno::EBADF)?;
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        let failed = |error| data_error(ino, offset, &error);
        let mut data = file.lock();
        for _ in 0..MAX_ROUNDS {
            self.fencing.session_of(&file, &mut data)?;
            data.hold.get_or_insert_with(|| self.slices.hold());
            match data.buffer.write(offset, bytes).map_err(failed)? {
                Written::Buffered => {
                    file.set_dirty(end, Time::now());
                    return Ok(());
                }
                Written::Full => self.flusher.flush_locked(&file, &mut data)?,
                Written::Crowded => {
                    // Hold no file's lock while other files are flushed: two writers that flush each other's
                    // file would deadlock.
                    drop(data);
                    self.space.make_space()?;
                    data = file.lock();
                }
            }
        }
        // Other writers took the room each time. This write goes beyond the budget, but is stored before the
        // call returns.
        self.fencing.session_of(&file, &mut data)?;
        data.hold.get_or_insert_with(|| self.slices.hold());
        data.buffer.write_beyond(offset, bytes).map_err(failed)?;
        file.set_dirty(end, Time::now());
        self.flusher.flush_locked(&file, &mut data)
    }

    /// Writes `bytes` at the end of the file as of the commit, also if other clients append; returns the
    /// offset. The bytes are committed when this returns.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn append(&self, ino: Ino, bytes: &[u8]) -> Result<u64, Errno> {
        let file = self.open.get(ino).ok_or(Errno::EBADF)?;
        let mut data = file.lock();
        self.flusher.flush_locked(&file, &mut data)?;
        let session = self.fencing.session_of(&file, &mut data)?;
        data.rows.clear();
        let _hold = self.slices.hold();
        let len = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
        let size = self.attributes.inode(ino)?.size.saturating_add(u64::from(len));
        let (source, slices) = self.flusher.store_bytes(bytes.to_vec(), self.flusher.inline_limit(size))?;
        let offset = self.commits.commit_rows(&Within(session, &Append { ino, source, len }), &slices)?;
        self.candidates.note(ino, ChunkIndex::of(offset).0, 1);
        Ok(offset)
    }

    /// Drops pages that the kernel may have read during an `O_DIRECT` write. The kernel drops the pages of the range before
    /// each such write, but not after one that is asynchronous (`generic_file_direct_write`). Does nothing if the file was
    /// not read through the page cache since it was opened.
    ///
    /// Called before the reply. The next read(2) then asks for the attributes, and the new mtime makes the kernel drop all
    /// pages. A mapping asks for nothing, so another thread drops the range: pages that are being read are locked until
    /// their reply, and so are those of a write that the kernel sends through its cache after all.
    pub(crate) fn forget_overwritten(&self, ino: Ino, offset: u64, len: u64) {
        if self.open.get(ino).is_some_and(|file| file.is_cached()) {
            self.caches.forget_attributes(ino);
            self.caches.forget_range(ino, offset, len);
        }
    }

    /// Stores and commits the written data: other clients see it from now on (close-to-open consistency).
    ///
    /// # Errors
    /// EBADF unless open; ENOSPC; EIO. The data stays in memory and can be flushed again, until the last
    /// close.
    pub(crate) fn flush(&self, ino: Ino) -> Result<(), Errno> {
        let file = self.open.get(ino).ok_or(Errno::EBADF)?;
        let mut data = file.lock();
        self.flusher.flush_locked(&file, &mut data)
    }

    /// As [`Self::flush`], and makes the data durable.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub(crate) fn fsync(&self, ino: Ino) -> Result<(), Errno> {
        let file = self.open.get(ino).ok_or(Errno::EBADF)?;
        let mut data = file.lock();
        self.flusher.flush_locked(&file, &mut data)?;
        drop(data);
        self.commits.make_durable()
    }

    /// Closes one handle of a file. The last close deletes an inode that has no name.
    ///
    /// # Errors
    /// As [`Self::flush`]. The file is closed even then, and data that could not be stored is lost.
    pub(crate) fn close(&self, ino: Ino) -> Result<(), Errno> {
        // The kernel may write back pages of a mapping after the last FLUSH.
        let flushed = match self.open.get(ino) {
            Some(file) if !file.is_orphan() && !file.is_fenced() => {
                self.flusher.flush_locked(&file, &mut file.lock())
            }
            _ => Ok(()),
        };
        if let Some(file) = self.open.close(ino) {
            if let Err(errno) = flushed
                && !file.is_fenced()
            {
                tracing::error!(%ino, %errno, bytes = file.lock().buffer.dirty_bytes(), "a file was closed with data that could not be stored; the data is lost");
            }
            if file.is_orphan() && !file.is_fenced() {
                self.commits.change(&Reap { session: self.meta.session(), ino })?;
            }
        }
        flushed
    }
}

/// How often a write tries to make room in the buffers before it goes beyond the budget.
const MAX_ROUNDS: usize = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meta::{Fault, Faulty, MemEngine};
    use ops::{AtimeMode, GetSlices};
    use types::{BLOCK_BYTES, Slice, SliceId, SliceSource};

    use super::*;
    use crate::caller::BY_KERNEL;
    use crate::fixture;
    use crate::{Vfs, VfsOptions};

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn sequential_readers_fetch_each_block_once() {
        // The cache holds the blocks written last, but not those read first.
        let (vfs, _) = fixture::volume_with_cache(AtimeMode::Never, 12 * BLOCK);
        let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 251) as u8).collect();
        // More than two chunks.
        let size = 36 * BLOCK;
        let files = ["a", "b"].map(|name| fixture::make(&vfs, name));
        for ino in files {
            for at in (0..size).step_by(bytes.len()) {
                vfs.write(ino, at, &bytes).unwrap();
            }
            vfs.flush(ino).unwrap();
        }
        for at in (0..size).step_by(bytes.len()) {
            for ino in files {
                assert!(vfs.read(ino, at, 1 << 20).unwrap() == bytes);
            }
        }
        assert_eq!(vfs.parts.files.rows.store.requests().gets, 2 * 36);
    }

    #[test]
    fn sequential_reads_prefetch_the_next_block() {
        let (vfs, _) = fixture::volume_with_cache(AtimeMode::Never, 16 * BLOCK);
        let ino = fixture::make(&vfs, "a");
        let bytes = vec![7; BLOCK as usize];
        for block in 0..40 {
            vfs.write(ino, block * BLOCK, &bytes).unwrap();
        }
        vfs.flush(ino).unwrap();
        // The reads end in the second block; the third block is prefetched.
        for at in (0..=BLOCK).step_by(1 << 20) {
            vfs.read(ino, at, 1 << 20).unwrap();
        }
        while vfs.parts.files.rows.store.requests().gets < 3 {
            std::thread::yield_now();
        }
    }

    /// A mount that does not retry, and an empty file. Another file was flushed before, so that slice numbers
    /// are leased.
    fn without_retries() -> (Vfs, Arc<Faulty<MemEngine>>, Ino) {
        let (vfs, engine) = fixture::unreliable_volume(VfsOptions::default());
        vfs.meta().set_patience(Duration::ZERO);
        let other = fixture::make(&vfs, "other");
        vfs.write(other, 0, &[1; 5000]).unwrap();
        vfs.flush(other).unwrap();
        let ino = fixture::make(&vfs, "f");
        (vfs, engine, ino)
    }

    /// The slices that rows of the first chunk name, in order.
    fn slices(vfs: &Vfs, ino: Ino) -> Vec<SliceId> {
        let rows = vfs.meta().run(&GetSlices { ino, chunk: ChunkIndex(0) }, &BY_KERNEL).unwrap();
        let id = |row: &Slice| match row.source {
            SliceSource::Blocks { id, .. } => Some(id),
            _ => None,
        };
        rows.iter().filter_map(id).collect()
    }

    #[test]
    fn flush_in_doubt_is_retried_under_its_id_before_newer_data() {
        for arrives_first in [true, false] {
            let (vfs, engine, ino) = without_retries();
            vfs.write(ino, 0, &[1; 6000]).unwrap();
            engine.script([Fault::Late, Fault::None, Fault::Before]);
            assert_eq!(vfs.flush(ino), Err(Errno::EIO));
            vfs.write(ino, 0, &[2; 5000]).unwrap();
            let mut bytes = vec![2; 6000];
            bytes[5000..].fill(1);
            assert_eq!(vfs.read(ino, 0, 6000).unwrap(), bytes);
            assert_eq!(vfs.fsync(ino), Err(Errno::EIO), "the database still fails");
            assert_eq!(vfs.read(ino, 0, 6000).unwrap(), bytes);
            if arrives_first {
                engine.deliver().unwrap();
            }
            vfs.fsync(ino).unwrap();
            engine.deliver().unwrap();
            let named = slices(&vfs, ino);
            assert!(named.len() == 2 && named[0] != named[1], "{named:?}");
            vfs.close(ino).unwrap();
            vfs.parts.files.open.open(ino, || vfs.parts.files.flusher.new_buffer());
            assert_eq!(vfs.read(ino, 0, 6000).unwrap(), bytes);
        }
    }

    #[test]
    fn flush_whose_result_was_dropped_names_no_slice_twice() {
        for arrives_first in [true, false] {
            let (vfs, engine, ino) = without_retries();
            vfs.meta().set_repeat_for(Duration::ZERO);
            let bytes: Vec<u8> = (0..3 * BLOCK + 7000).map(|i| (i / 251) as u8).collect();
            vfs.write(ino, 0, &bytes).unwrap();
            engine.script([Fault::Late]);
            assert_eq!(vfs.flush(ino), Err(Errno::EIO));
            if arrives_first {
                engine.deliver().unwrap();
            }
            vfs.flush(ino).unwrap();
            engine.deliver().unwrap();
            let named = slices(&vfs, ino);
            assert!(named.len() == 1 || (!arrives_first && named.len() == 2 && named[0] != named[1]));
            vfs.close(ino).unwrap();
            vfs.parts.files.open.open(ino, || vfs.parts.files.flusher.new_buffer());
            assert!(vfs.read(ino, 0, bytes.len() as u32).unwrap() == bytes);
        }
    }

    #[test]
    fn truncation_after_a_flush_in_doubt_hides_its_late_commit() {
        let (vfs, engine, ino) = without_retries();
        vfs.write(ino, 0, &[1; 6000]).unwrap();
        engine.script([Fault::Late]);
        assert_eq!(vfs.flush(ino), Err(Errno::EIO));
        let cut = crate::AttrChange { size_bytes: Some(10), ..Default::default() };
        assert_eq!(vfs.setattr(&fixture::root(), ino, cut).unwrap().size_bytes, 10);
        engine.deliver().unwrap();
        let grow = crate::AttrChange { size_bytes: Some(6000), ..Default::default() };
        vfs.setattr(&fixture::root(), ino, grow).unwrap();
        let mut bytes = vec![0; 6000];
        bytes[..10].fill(1);
        assert_eq!(vfs.read(ino, 0, 6000).unwrap(), bytes);
    }
}
