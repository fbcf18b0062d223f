//! Open files: open, read, write, append, flush, fsync, close.
//!
//! The open files are in [`OpenTable`](crate::open::OpenTable). Lock order: `making`, then one file's data,
//! then the locks of [`Commits`](crate::commits::Commits).

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use chunk::Written;
use ops::{Append, Open, OpenAccess, Opened};
use types::{ChunkIndex, Errno, FileType, Ino, Time};

use crate::access_check::Perm;
use crate::base::Base;
use crate::caller::Caller;
use crate::fencing::InSession;
use crate::flush::data_error;
use crate::open::OpenFile;

/// Open files.
#[derive(Debug)]
pub struct Files {
    pub(crate) base: Arc<Base>,
    /// Held while room is made in the write buffers; locked before any file.
    pub(crate) making: Mutex<()>,
}

impl Files {
    pub(crate) fn new(base: &Arc<Base>) -> Self {
        Files { base: Arc::clone(base), making: Mutex::default() }
    }

    /// Opens a regular file; a file that is already open gets one more handle. `O_TRUNC` is not handled here:
    /// the kernel sends it as a separate truncation. Returns whether the caller may only append.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist; EIO if its NFSv4 ACL is missing or damaged; EACCES if that ACL
    /// denies the access; EISDIR if the inode is a directory; EINVAL if it is another inode that is not a
    /// regular file; ESTALE if the kernel checked outdated permissions and the caller's credential cannot be
    /// read; EACCES if the current permissions deny the access.
    pub fn open(&self, caller: &Caller<'_>, ino: Ino, open_access: OpenAccess) -> Result<bool, Errno> {
        self.add_handle(ino);
        let opened = self.check_open(caller, ino, open_access);
        if opened.is_err() {
            self.close(ino)?;
        }
        opened
    }

    /// Adds a handle to a regular file without any check.
    pub(crate) fn add_handle(&self, ino: Ino) -> Arc<OpenFile> {
        self.base.open.open(ino, || self.base.new_buffer())
    }

    fn check_open(&self, caller: &Caller<'_>, ino: Ino, open_access: OpenAccess) -> Result<bool, Errno> {
        let held = self.base.caches.held_by_kernel();
        // `getattr` may still find a deleted inode, but it cannot be opened.
        let Opened { inode, append_only } =
            self.base.meta.run(&Open { ino, open_access }, &self.base.access.authority(caller))?;
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let wanted = [
            (open_access.read, Perm::READ),
            (open_access.write, Perm::WRITE),
            (open_access.execute, Perm::EXECUTE),
        ];
        let want = wanted
            .into_iter()
            .filter(|(requested, _)| *requested)
            .fold(Perm::NONE, |all, (_, perm)| all | perm);
        self.base.check_by_kernel(caller, held, &inode, want)?;
        self.base.access.check_posix(caller, &inode, want)?;
        Ok(append_only)
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// EBADF if the file is not open; ESTALE if another mount has deleted it; EIO if it was lost with the
    /// session, if the data is damaged, or if the object store or the database fails.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let file = self.base.open.used(ino)?;
        self.read_file(&file, offset, len)
    }

    /// As [`Self::read`], for a read whose bytes the kernel puts into its page cache.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_to_cache(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let file = self.base.open.used(ino)?;
        file.set_cached();
        self.read_file(&file, offset, len)
    }

    fn read_file(&self, file: &OpenFile, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let ino = file.ino;
        if file.is_fenced() {
            return Err(Errno::EIO);
        }
        // The order matters: bytes that are flushed between these two reads are then in both sizes. In the
        // other order they could be in neither, and the read would be short.
        let unflushed_end = file.dirty_end();
        let size = self.base.attributes.inode(ino)?.size.max(unflushed_end);
        let len = size.saturating_sub(offset).min(u64::from(len));
        let mut data = file.lock();
        if data.buffer.is_dirty_in(offset, len) {
            let mut buf = vec![0; len as usize];
            if !data.buffer.covers(offset, len) {
                self.read_stored(file, &mut data, offset, &mut buf)?;
            }
            data.buffer.overlay(offset, &mut buf).map_err(|error| data_error(ino, offset, &error))?;
            Ok(buf.into())
        } else {
            // The rows are read under the lock, so they include every write that ended before this read
            // began.
            let stored = self.stored(file, &mut data, offset, len)?;
            let (rows, len) = (stored.rows, stored.len);
            self.read_ahead(file, &mut data, offset..offset + len, size);
            drop(data);
            self.bytes_of(&rows, offset, len).or_else(|first| {
                // Compaction may have replaced the slices and deleted their blocks: read the rows again.
                let mut data = file.lock();
                data.rows.clear();
                let fresh = self.stored(file, &mut data, offset, len)?;
                if fresh.rows == rows {
                    return Err(data_error(ino, offset, &first));
                }
                self.bytes_of(&fresh.rows, offset, fresh.len).map_err(|error| data_error(ino, offset, &error))
            })
        }
    }

    /// Writes `bytes` at `offset`. The bytes are committed at the next flush. Call
    /// [`Self::kill_priv_of_writer`] first.
    ///
    /// # Errors
    /// EBADF if the file is not open; EFBIG if the write ends beyond 2^63 - 1 bytes; EIO if the file was lost
    /// with the session; ENOSPC, EDQUOT or EIO if this write or an earlier one cannot be stored.
    pub fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let file = self.base.open.used(ino)?;
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        let failed = |error| data_error(ino, offset, &error);
        let mut data = file.lock();
        for _ in 0..MAX_ROUNDS {
            self.base.fencing.session_of(&file, &mut data)?;
            data.allocation_guard.get_or_insert_with(|| self.base.slices.guard());
            match data.buffer.write(offset, bytes).map_err(failed)? {
                Written::Buffered => {
                    file.set_dirty(end, Time::now());
                    return Ok(());
                }
                Written::Full => self.base.flush_locked(&file, &mut data)?,
                Written::BudgetUsedByOthers => {
                    // Hold no file's lock while other files are flushed: two writers that flush each other's
                    // file would deadlock.
                    drop(data);
                    self.make_space()?;
                    data = file.lock();
                }
            }
        }
        // Other writers took the room each time. This write goes beyond the budget, but is stored before the
        // call returns.
        self.base.fencing.session_of(&file, &mut data)?;
        data.allocation_guard.get_or_insert_with(|| self.base.slices.guard());
        data.buffer.write_beyond(offset, bytes).map_err(failed)?;
        file.set_dirty(end, Time::now());
        self.base.flush_locked(&file, &mut data)
    }

    /// Writes `bytes` at the end of the file as of the commit, even if other clients append; returns the
    /// offset. The bytes are committed when this returns.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn append(&self, ino: Ino, bytes: &[u8]) -> Result<u64, Errno> {
        let file = self.base.open.used(ino)?;
        let mut data = file.lock();
        self.base.flush_locked(&file, &mut data)?;
        let session = self.base.fencing.session_of(&file, &mut data)?;
        data.rows.clear();
        let _guard = self.base.slices.guard();
        let len = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
        let size = self.base.attributes.inode(ino)?.size.saturating_add(u64::from(len));
        let (source, slices) = self.base.store_bytes(bytes.to_vec(), self.base.inline_limit(size))?;
        let mut in_doubt = false;
        let append = InSession(session, &Append { ino, source, len });
        let appended = self.base.commits.commit_rows(&append, &slices, &mut in_doubt);
        if appended.is_err() && !in_doubt {
            let slices: Vec<_> = slices.iter().map(|id| (*id, len)).collect();
            self.base.discard(&slices);
        }
        let offset = appended?;
        self.base.candidates.note(ino, ChunkIndex::of(offset).0, 1);
        Ok(offset)
    }

    /// Drops pages that the kernel may have read during an `O_DIRECT` write. The kernel drops the pages of
    /// the range before each such write, but not after one that is asynchronous
    /// (`generic_file_direct_write`). Does nothing if the file was not read through the page cache since it
    /// was opened.
    ///
    /// Called before the reply. The next read(2) then requests the attributes, and the new mtime makes the
    /// kernel drop all pages. An access through a mapping requests none, so the range is dropped too. Another
    /// thread does that, because it may have to wait for locked pages: the kernel locks a page until the READ
    /// that fills it is answered, and during a WRITE that it sends from its cache.
    pub fn invalidate_overwritten(&self, ino: Ino, offset: u64, len: u64) {
        if self.base.open.get(ino).is_some_and(|file| file.is_cached()) {
            self.base.caches.invalidate_attributes(ino);
            self.base.caches.invalidate_range(ino, offset, len);
        }
    }

    /// Stores and commits the written data: other clients see it from now on (close-to-open consistency).
    ///
    /// # Errors
    /// EBADF if the file is not open; EIO if it was lost with the session; ESTALE if another mount has
    /// deleted it; ENOSPC if the volume or the store is full; EDQUOT if a quota is exhausted; EIO if the
    /// store or the database fails. After the last three, the data stays in memory and can be flushed again,
    /// until the last close.
    pub fn flush(&self, ino: Ino) -> Result<(), Errno> {
        let file = self.base.open.used(ino)?;
        let mut data = file.lock();
        self.base.flush_locked(&file, &mut data)
    }

    /// As [`Self::flush`], and makes the data durable.
    ///
    /// # Errors
    /// As [`Self::flush`]; EIO if a staged block of the file's data was lost.
    pub fn fsync(&self, ino: Ino) -> Result<(), Errno> {
        let file = self.base.open.used(ino)?;
        let mut data = file.lock();
        self.base.flush_locked(&file, &mut data)?;
        drop(data);
        self.base.commits.make_durable()?;
        if self.base.store.has_lost() { self.verify_lost(ino) } else { Ok(()) }
    }

    /// Closes one handle of a file. The last close deletes an inode that has no name.
    ///
    /// # Errors
    /// As [`Self::flush`]; those of the database. The handle is closed even then. If it was the last one,
    /// data that could not be stored is lost.
    pub fn close(&self, ino: Ino) -> Result<(), Errno> {
        // The kernel may write back pages of a mapping after the last FLUSH.
        let (flushed, closed, bytes) = match self.base.open.get(ino) {
            Some(file) if !file.is_orphan() && !file.is_fenced() => {
                let mut data = file.lock();
                let flushed = self.base.flush_locked(&file, &mut data);
                let bytes = data.buffer.dirty_bytes();
                let closed = match data.in_doubt {
                    Some(_) => self.base.abandoned.close(&file, &mut data),
                    None => self.base.open.close(ino),
                };
                (flushed, closed, bytes)
            }
            _ => (Ok(()), self.base.open.close(ino), 0),
        };
        if let Some(file) = closed {
            if let Err(errno) = flushed
                && !file.is_fenced()
            {
                tracing::error!(%ino, %errno, bytes, "a file was closed with data that could not be stored; the data is lost");
            }
            if file.is_orphan() && !file.is_fenced() {
                self.base.reap(self.base.meta.session(), ino)?;
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

    use meta::MemEngine;
    use ops::{AtimeMode, GetSlices};
    use suite::{Fault, Faulty};
    use types::{BLOCK_BYTES, Slice, SliceId, SliceSource};

    use super::*;
    use crate::caller::BY_KERNEL;
    use crate::fixture::{self, NO_WAIT, Shared};
    use crate::{Vfs, VfsOptions};

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn sequential_readers_fetch_each_block_once() {
        // The cache holds the blocks written last, but not those read first.
        let (vfs, _) = fixture::volume_with_cache(AtimeMode::Never, 12 * BLOCK);
        let bytes: Vec<u8> = (0..1 << 20).map(|i| (i / 251) as u8).collect();
        // The file has more than two chunks.
        let size = 36 * BLOCK;
        let files = ["a", "b"].map(|name| fixture::make(&vfs, name));
        for ino in files {
            for at in (0..size).step_by(bytes.len()) {
                vfs.files.write(ino, at, &bytes).unwrap();
            }
            vfs.files.flush(ino).unwrap();
        }
        for at in (0..size).step_by(bytes.len()) {
            for ino in files {
                assert!(vfs.files.read(ino, at, 1 << 20).unwrap() == bytes);
            }
        }
        assert_eq!(vfs.base.store.requests().gets, 2 * 36);
    }

    #[test]
    fn sequential_reads_prefetch_the_next_block() {
        let (vfs, _) = fixture::volume_with_cache(AtimeMode::Never, 16 * BLOCK);
        let ino = fixture::make(&vfs, "a");
        let bytes = vec![7; BLOCK as usize];
        for block in 0..40 {
            vfs.files.write(ino, block * BLOCK, &bytes).unwrap();
        }
        vfs.files.flush(ino).unwrap();
        // The reads end in the second block; the third block is prefetched.
        for at in (0..=BLOCK).step_by(1 << 20) {
            vfs.files.read(ino, at, 1 << 20).unwrap();
        }
        while vfs.base.store.requests().gets < 3 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_read_ends_at_the_size_that_the_file_has_with_the_rows() {
        let shared = Shared::new();
        let [vfs, other] = [(); 2].map(|()| shared.mount(NO_WAIT));
        // This mount uses the size that it has cached, however old it is.
        vfs.meta().set_lifetime(Duration::from_secs(3600));
        let ino = fixture::make(&vfs, "f");
        vfs.files.write(ino, 0, &[7; 6000]).unwrap();
        vfs.files.flush(ino).unwrap();
        let cut = |size| {
            let cut = crate::AttrChange { size_bytes: Some(size), ..Default::default() };
            other.setattr(&fixture::root(), ino, cut).unwrap();
        };
        let read = |is: u64, was: u64| {
            assert_eq!(vfs.attributes.inode(ino).unwrap().size, was, "the cached size");
            let before = shared.engine.counts();
            let bytes = vfs.files.read(ino, 0, 9000).unwrap();
            assert_eq!(bytes, vec![7; is as usize]);
            assert_eq!((shared.engine.counts() - before).round_trips(), 1);
        };
        read(6000, 6000);
        cut(100);
        read(100, 6000);
        // Unflushed bytes of this mount are part of the file.
        vfs.files.write(ino, 100, &[7; 20]).unwrap();
        cut(50);
        cut(100);
        let bytes = vfs.files.read(ino, 0, 9000).unwrap();
        assert_eq!((bytes.len(), &bytes[..50], &bytes[100..]), (120, &[7; 50][..], &[7; 20][..]));
        vfs.files.flush(ino).unwrap();
        vfs.files.read(ino, 0, 9000).unwrap();
        cut(0);
        read(0, 120);
        vfs.files.write(ino, 0, &[7; 10]).unwrap();
        vfs.files.flush(ino).unwrap();
        other.names.unlink(&fixture::root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(vfs.attributes.inode(ino).unwrap().size, 10, "the cached size");
        assert_eq!(vfs.files.read(ino, 0, 10), Err(Errno::ESTALE));
        vfs.files.close(ino).unwrap();
    }

    /// A mount that does not retry, and an empty file. Another file was flushed before, so that slice numbers
    /// are leased.
    fn without_retries() -> (Vfs, Arc<Faulty<MemEngine>>, Ino) {
        let (vfs, engine) = fixture::unreliable_volume(VfsOptions::default());
        vfs.meta().set_retry_timeout(Duration::ZERO);
        let other = fixture::make(&vfs, "other");
        vfs.files.write(other, 0, &[1; 5000]).unwrap();
        vfs.files.flush(other).unwrap();
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
    fn a_partly_dirty_read_finds_data_that_compaction_has_moved() {
        let (vfs, _, ino) = without_retries();
        for at in [0, 6000] {
            vfs.files.write(ino, at, &[1; 6000]).unwrap();
            vfs.files.flush(ino).unwrap();
        }
        let file = vfs.base.open.get(ino).unwrap();
        vfs.files.read(ino, 0, 12_000).unwrap();
        let before = file.lock().rows.clone();
        vfs.compact(ino).unwrap();
        vfs.lifecycle.cleanup.collect_garbage().unwrap();
        assert!(vfs.base.store.requests().deletes >= 2, "the blocks of the old rows are deleted");
        vfs.files.write(ino, 0, &[2; 10]).unwrap();
        // The read has its rows from before the compaction.
        file.lock().rows = before;
        let bytes = vfs.files.read(ino, 0, 12_000).unwrap();
        assert!(bytes[..10] == [2; 10] && bytes[10..] == [1; 11_990]);
    }

    #[test]
    fn blocks_of_changes_that_certainly_failed_are_removed() {
        type Fails = fn(&Vfs, Ino) -> Errno;
        let close: Fails = |vfs, ino| {
            vfs.files.write(ino, 0, &[1; 6000]).unwrap();
            vfs.files.close(ino).unwrap_err()
        };
        let append: Fails = |vfs, ino| vfs.files.append(ino, &[1; 6000]).unwrap_err();
        for (name, fails) in [("close", close), ("append", append)] {
            for (fault, is_removed) in [(Fault::Before, true), (Fault::Late, false)] {
                let (vfs, engine, ino) = without_retries();
                let before = vfs.base.store.requests();
                // After a change in doubt, the next requests fail too.
                engine.script([fault].into_iter().chain([Fault::Before; 5]));
                assert_eq!(fails(&vfs, ino), Errno::EIO, "{name}");
                engine.script([]);
                let done = || vfs.base.store.requests();
                assert_eq!(done().puts - before.puts, 1, "{name}");
                let deadline =
                    std::time::Instant::now() + Duration::from_secs(if is_removed { 60 } else { 0 });
                while done().deletes == before.deletes && std::time::Instant::now() < deadline {
                    std::thread::yield_now();
                }
                assert_eq!(done().deletes - before.deletes, u64::from(is_removed), "{name} {fault:?}");
                engine.deliver().unwrap();
            }
        }
    }

    #[test]
    fn fsync_fails_while_the_file_has_data_that_was_lost_before_its_upload() {
        let (vfs, faults, [_store, local]) = fixture::volume_with_writeback();
        faults.add(chunk::StoreCall::Put, chunk::Fault::Fail(Errno::EIO), 1000);
        let [ino, other] = ["f", "g"].map(|name| fixture::make(&vfs, name));
        for ino in [ino, other] {
            vfs.files.write(ino, 0, &[1; 6000]).unwrap();
            vfs.files.flush(ino).unwrap();
        }
        let key = chunk::object_key(slices(&vfs, ino)[0], 0, 6000);
        std::fs::remove_file(local.path().join("v/staging/0").join(key)).unwrap();
        faults.clear();
        vfs.base.store.wait_uploads(Duration::from_secs(60), &mut |_| {}).unwrap();
        assert_eq!(vfs.files.fsync(ino), Err(Errno::EIO));
        assert_eq!(vfs.files.fsync(ino), Err(Errno::EIO), "the data stays lost");
        vfs.files.fsync(other).unwrap();
        let cut = crate::AttrChange { size_bytes: Some(0), ..Default::default() };
        vfs.setattr(&fixture::root(), ino, cut).unwrap();
        vfs.files.write(ino, 0, &[2; 6000]).unwrap();
        vfs.files.fsync(ino).unwrap();
    }

    #[test]
    fn data_whose_flush_failed_is_still_stored_by_the_next_flush() {
        let (vfs, engine, ino) = without_retries();
        // The small ranges share a block.
        for at in [0, 50_000, 100_000] {
            vfs.files.write(ino, at, &[1; 6000]).unwrap();
        }
        engine.script([Fault::Before]);
        assert_eq!(vfs.files.flush(ino), Err(Errno::EIO));
        engine.script([]);
        vfs.base.open.get(ino).unwrap().lock().buffer.truncate(56_000);
        vfs.files.flush(ino).unwrap();
        for at in [0, 50_000] {
            assert_eq!(vfs.files.read(ino, at, 6000).unwrap(), &[1; 6000][..]);
        }
        assert_eq!(vfs.base.store.requests().deletes, 0);
    }

    #[test]
    fn flush_in_doubt_is_retried_under_its_id_before_newer_data() {
        for arrives_first in [true, false] {
            let (vfs, engine, ino) = without_retries();
            vfs.files.write(ino, 0, &[1; 6000]).unwrap();
            engine.script([Fault::Late, Fault::None, Fault::Before]);
            assert_eq!(vfs.files.flush(ino), Err(Errno::EIO));
            vfs.files.write(ino, 0, &[2; 5000]).unwrap();
            let mut bytes = vec![2; 6000];
            bytes[5000..].fill(1);
            assert_eq!(vfs.files.read(ino, 0, 6000).unwrap(), bytes);
            assert_eq!(vfs.files.fsync(ino), Err(Errno::EIO), "the database still fails");
            assert_eq!(vfs.files.read(ino, 0, 6000).unwrap(), bytes);
            if arrives_first {
                engine.deliver().unwrap();
            }
            vfs.files.fsync(ino).unwrap();
            engine.deliver().unwrap();
            let named = slices(&vfs, ino);
            assert!(named.len() == 2 && named[0] != named[1], "{named:?}");
            vfs.files.close(ino).unwrap();
            vfs.base.open.open(ino, || vfs.base.new_buffer());
            assert_eq!(vfs.files.read(ino, 0, 6000).unwrap(), bytes);
        }
    }

    #[test]
    fn flush_in_doubt_of_a_closed_file_never_replaces_newer_data() {
        for (arrives_first, truncates) in [(true, false), (false, false), (true, true), (false, true)] {
            let (vfs, engine, ino) = without_retries();
            vfs.files.write(ino, 0, &[1; 6000]).unwrap();
            engine.script([Fault::Late, Fault::Before]);
            assert_eq!(vfs.files.flush(ino), Err(Errno::EIO));
            assert_eq!(vfs.files.close(ino), Err(Errno::EIO), "the database still fails");
            engine.script([]);
            if arrives_first {
                engine.deliver().unwrap();
            }
            if truncates {
                let cut = crate::AttrChange { size_bytes: Some(0), ..Default::default() };
                vfs.setattr(&fixture::root(), ino, cut).unwrap();
            }
            vfs.base.open.open(ino, || vfs.base.new_buffer());
            vfs.files.write(ino, 0, &[2; 5000]).unwrap();
            vfs.files.fsync(ino).unwrap();
            engine.deliver().unwrap();
            let mut bytes = vec![2; 5000];
            if arrives_first && !truncates {
                bytes.resize(6000, 1);
            }
            vfs.files.close(ino).unwrap();
            vfs.base.open.open(ino, || vfs.base.new_buffer());
            assert!(vfs.files.read(ino, 0, 9000).unwrap() == bytes, "{arrives_first} {truncates}");
        }
    }

    #[test]
    fn flush_whose_result_was_dropped_names_no_slice_twice() {
        for arrives_first in [true, false] {
            let (vfs, engine, ino) = without_retries();
            vfs.meta().set_repeat_for(Duration::ZERO);
            let bytes: Vec<u8> = (0..3 * BLOCK + 7000).map(|i| (i / 251) as u8).collect();
            vfs.files.write(ino, 0, &bytes).unwrap();
            engine.script([Fault::Late]);
            assert_eq!(vfs.files.flush(ino), Err(Errno::EIO));
            if arrives_first {
                engine.deliver().unwrap();
            }
            vfs.files.flush(ino).unwrap();
            engine.deliver().unwrap();
            let named = slices(&vfs, ino);
            assert!(named.len() == 1 || (!arrives_first && named.len() == 2 && named[0] != named[1]));
            vfs.files.close(ino).unwrap();
            vfs.base.open.open(ino, || vfs.base.new_buffer());
            assert!(vfs.files.read(ino, 0, bytes.len() as u32).unwrap() == bytes);
        }
    }

    #[test]
    fn truncation_after_a_flush_in_doubt_hides_its_late_commit() {
        let (vfs, engine, ino) = without_retries();
        vfs.files.write(ino, 0, &[1; 6000]).unwrap();
        engine.script([Fault::Late]);
        assert_eq!(vfs.files.flush(ino), Err(Errno::EIO));
        let cut = crate::AttrChange { size_bytes: Some(10), ..Default::default() };
        assert_eq!(vfs.setattr(&fixture::root(), ino, cut).unwrap().size_bytes, 10);
        engine.deliver().unwrap();
        let grow = crate::AttrChange { size_bytes: Some(6000), ..Default::default() };
        vfs.setattr(&fixture::root(), ino, grow).unwrap();
        let mut bytes = vec![0; 6000];
        bytes[..10].fill(1);
        assert_eq!(vfs.files.read(ino, 0, 6000).unwrap(), bytes);
    }
}
