//! Open files: open, create, read, write, flush, fsync, close.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use chunk::{ChunkError, Staged, Written};
use meta::ops::{Append, GetSlices, Open, OpenFor, Opened, Reap, Write};
use meta::{Doubt, Failure};
use types::{CHUNK_BYTES, ChunkIndex, Errno, FileType, Ino, SessionId, Slice, SliceId, SliceSource, Time};

use crate::access_check::Perm;
use crate::attr::Attr;
use crate::caller::Caller;
use crate::fencing::Within;
use crate::names::MakeRequest;
use crate::open::{DoubtfulFlush, FileData, OpenFile};
use crate::readahead;
use crate::vfs::{BY_KERNEL, Vfs};

impl Vfs {
    /// Opens a regular file; a file that is already open gets one more handle. `O_TRUNC` is not handled here:
    /// the kernel sends it as a separate truncation. Returns whether the caller may only append.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist or the kernel checked outdated permissions; EACCES by an NFSv4 ACL;
    /// EISDIR; EINVAL if the inode is not a regular file.
    pub fn open(&self, caller: &Caller<'_>, ino: Ino, what_for: OpenFor) -> Result<bool, Errno> {
        self.files.open(ino, || self.new_buffer());
        let opened = self.check_open(caller, ino, what_for);
        if opened.is_err() {
            self.close(ino)?;
        }
        opened
    }

    fn check_open(&self, caller: &Caller<'_>, ino: Ino, what_for: OpenFor) -> Result<bool, Errno> {
        // An inode that was deleted still answers `getattr`, but cannot be opened.
        let Opened { inode, append_only } =
            self.meta.run(&Open { ino, what_for }, &self.authority(caller))?;
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
        self.admit_by_kernel(caller, &inode, want)?;
        self.admit_posix(caller, &inode, want)?;
        Ok(append_only)
    }

    /// Creates a regular file and opens it.
    ///
    /// # Errors
    /// As [`Vfs::make`].
    pub fn create(&self, caller: &Caller<'_>, request: MakeRequest<'_>) -> Result<Attr, Errno> {
        let attr = self.make(caller, request)?;
        self.files.open(attr.ino, || self.new_buffer());
        Ok(attr)
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    ///
    /// # Errors
    /// EBADF unless open; EIO if the data is damaged or the object store fails.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let file = self.files.get(ino).ok_or(Errno::EBADF)?;
        self.read_file(&file, offset, len)
    }

    /// As [`Vfs::read`], for the kernel's cache.
    ///
    /// # Errors
    /// As [`Vfs::read`].
    pub fn read_to_cache(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes, Errno> {
        let file = self.files.get(ino).ok_or(Errno::EBADF)?;
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
        let size = self.inode(ino)?.size.max(unflushed_end);
        let len = size.saturating_sub(offset).min(u64::from(len));
        let mut data = file.lock();
        if data.buffer.touches(offset, len) {
            let mut buf = vec![0; len as usize];
            if !data.buffer.covers(offset, len) {
                self.read_stored(file, &mut data, offset, &mut buf)?;
            }
            data.buffer.overlay(offset, &mut buf).map_err(|error| data_error(ino, offset, &error))?;
            Ok(buf.into())
        } else {
            // The rows are read under the lock, so they include every write that ended before this read
            // began.
            let rows = self.rows(file, &mut data, offset, len)?;
            self.read_ahead(file, &mut data, offset..offset + len, size);
            drop(data);
            self.bytes_of(&rows, offset, len).or_else(|first| {
                // Compaction may have replaced the slices and deleted their blocks: read the rows again.
                let mut data = file.lock();
                data.rows.clear();
                let fresh = self.rows(file, &mut data, offset, len)?;
                if fresh == rows {
                    return Err(data_error(ino, offset, &first));
                }
                self.bytes_of(&fresh, offset, len).map_err(|error| data_error(ino, offset, &error))
            })
        }
    }

    /// Writes `bytes` at `offset`. The bytes are stored at the next flush. Call [`Vfs::kill_priv_of_writer`]
    /// first.
    ///
    /// # Errors
    /// EBADF unless open; EFBIG beyond 2^63 - 1 bytes; ENOSPC or EIO, also of an earlier write.
    pub fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let file = self.files.get(ino).ok_or(Errno::EBADF)?;
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(Errno::EFBIG)?;
        let failed = |error| data_error(ino, offset, &error);
        let mut data = file.lock();
        for _ in 0..MAX_ROUNDS {
            self.session_of(&file, &mut data)?;
            data.hold.get_or_insert_with(|| self.slices.hold());
            match data.buffer.write(offset, bytes).map_err(failed)? {
                Written::Buffered => {
                    file.set_dirty(end, Time::now());
                    return Ok(());
                }
                Written::Full => self.flush_locked(&file, &mut data)?,
                Written::Crowded => {
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
        self.session_of(&file, &mut data)?;
        data.hold.get_or_insert_with(|| self.slices.hold());
        data.buffer.write_beyond(offset, bytes).map_err(failed)?;
        file.set_dirty(end, Time::now());
        self.flush_locked(&file, &mut data)
    }

    /// Writes `bytes` at the end of the file as of the commit, also if other clients append; returns the
    /// offset. The bytes are committed when this returns.
    ///
    /// # Errors
    /// As [`Vfs::write`].
    pub fn append(&self, ino: Ino, bytes: &[u8]) -> Result<u64, Errno> {
        let file = self.files.get(ino).ok_or(Errno::EBADF)?;
        let mut data = file.lock();
        self.flush_locked(&file, &mut data)?;
        let session = self.session_of(&file, &mut data)?;
        data.rows.clear();
        let _hold = self.slices.hold();
        let len = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
        let size = self.inode(ino)?.size.saturating_add(u64::from(len));
        let (source, slices) = self.store_bytes(bytes.to_vec(), self.inline_limit(size))?;
        let offset = self.commit_rows(&Within(session, &Append { ino, source, len }), &slices)?;
        self.candidates.note(ino, ChunkIndex::of(offset).0, 1);
        Ok(offset)
    }

    /// Stores bytes as a slice, or inline in the row if they are at most `inline` bytes. Also returns the
    /// slice, if one was stored.
    pub(crate) fn store_bytes(
        &self,
        bytes: Vec<u8>,
        inline: Option<u32>,
    ) -> Result<(SliceSource, Vec<SliceId>), Errno> {
        let len = bytes.len() as u32;
        if inline.is_some_and(|limit| len <= limit) {
            return Ok((SliceSource::Inline(bytes.into()), Vec::new()));
        }
        let id = (self.writes.new_id)()?;
        self.store.put_slice(id, &bytes.into()).map_err(|error| {
            tracing::error!(%error, "cannot store file data");
            error.errno()
        })?;
        Ok((SliceSource::Blocks { id, offset: 0, size: len }, vec![id]))
    }

    /// Stores and commits the written data: other clients see it from now on (close-to-open consistency).
    ///
    /// # Errors
    /// EBADF unless open; ENOSPC; EIO. The data stays in memory and can be flushed again, until the last
    /// close.
    pub fn flush(&self, ino: Ino) -> Result<(), Errno> {
        let file = self.files.get(ino).ok_or(Errno::EBADF)?;
        let mut data = file.lock();
        self.flush_locked(&file, &mut data)
    }

    /// As [`Vfs::flush`], and makes the data durable.
    ///
    /// # Errors
    /// As [`Vfs::flush`].
    pub fn fsync(&self, ino: Ino) -> Result<(), Errno> {
        let file = self.files.get(ino).ok_or(Errno::EBADF)?;
        let mut data = file.lock();
        self.flush_locked(&file, &mut data)?;
        drop(data);
        self.make_durable()
    }

    /// Closes one handle of a file. The last close deletes an inode that has no name.
    ///
    /// # Errors
    /// As [`Vfs::flush`]. The file is closed even then, and data that could not be stored is lost.
    pub fn close(&self, ino: Ino) -> Result<(), Errno> {
        // The kernel may write back pages of a mapping after the last FLUSH.
        let flushed = match self.files.get(ino) {
            Some(file) if !file.is_orphan() && !file.is_fenced() => {
                self.flush_locked(&file, &mut file.lock())
            }
            _ => Ok(()),
        };
        if let Some(file) = self.files.close(ino) {
            if let Err(errno) = flushed
                && !file.is_fenced()
            {
                tracing::error!(%ino, %errno, bytes = file.lock().buffer.dirty_bytes(), "a file was closed with data that could not be stored; the data is lost");
            }
            if file.is_orphan() && !file.is_fenced() {
                self.change(&Reap { session: self.meta.session(), ino })?;
            }
        }
        flushed
    }

    /// Stores and commits the dirty data of a file whose lock is held. If the session is lost meanwhile and
    /// the file can continue, the flush is repeated under the next session.
    ///
    /// While a flush is in doubt, its bytes stay in the buffer, and no newer data is flushed before it.
    ///
    /// # Errors
    /// As [`Vfs::flush`].
    pub(crate) fn flush_locked(&self, file: &OpenFile, data: &mut FileData) -> Result<(), Errno> {
        loop {
            if let Some(errno) = data.lost {
                return Err(errno);
            }
            // A flush in doubt may have been planned under an earlier session, and is settled under that one.
            let (settled, session) = (self.settle_flush(file, data), self.session_of(file, data)?);
            match settled.and_then(|()| self.flush_within(session, file, data)) {
                Err(_) if self.is_rejoined(session) => {}
                done => return done,
            }
        }
    }

    fn flush_within(&self, session: SessionId, file: &OpenFile, data: &mut FileData) -> Result<(), Errno> {
        if !data.buffer.is_dirty() {
            // A truncation may have dropped the dirty data; the file must not appear longer because of it.
            file.set_clean();
            data.hold = None;
            return match data.buffer.take_error() {
                Some(error) => Err(data_error(file.ino, 0, &error)),
                None => Ok(()),
            };
        }
        let end = data.buffer.end();
        let size = self.inode(file.ino)?.size.max(end);
        let staged =
            data.buffer.stage(self.inline_limit(size)).map_err(|error| data_error(file.ino, 0, &error))?;
        let op = Write { ino: file.ino, slices: staged.rows.clone(), end, mtime: file.mtime() };
        self.commit_flush(session, data, op, staged, None)?;
        file.set_clean();
        Ok(())
    }

    /// Commits the rows of a flush. If the commit is in doubt, the flush is kept for [`Vfs::settle_flush`].
    fn commit_flush(
        &self,
        session: SessionId,
        data: &mut FileData,
        op: Write,
        staged: Staged,
        mut doubt: Option<Doubt>,
    ) -> Result<(), Errno> {
        let done = self.commit_rows_once(&Within(session, &op), &staged.slices(), &mut doubt);
        match (&done, doubt) {
            (Ok(()), _) => self.flushed(data, &op, &staged),
            (Err(_), Some(doubt)) => {
                data.rows.clear();
                data.in_doubt = Some(DoubtfulFlush { op, staged, doubt });
            }
            (Err(_), None) => {}
        }
        done
    }

    fn flushed(&self, data: &mut FileData, op: &Write, staged: &Staged) {
        data.buffer.committed(staged);
        if !data.buffer.is_dirty() {
            data.hold = None;
        }
        data.rows.clear();
        for (chunk, _) in &staged.rows {
            self.candidates.note(op.ino, *chunk, 1);
        }
    }

    /// Settles an earlier flush that is in doubt, if there is one.
    fn settle_flush(&self, file: &OpenFile, data: &mut FileData) -> Result<(), Errno> {
        let Some(DoubtfulFlush { op, staged, doubt }) = data.in_doubt.take() else { return Ok(()) };
        if !self.meta.is_forgotten(&doubt) {
            return self.commit_flush(doubt.session(), data, op, staged, Some(doubt));
        }
        // The database may have dropped the result of this operation id, so a retry could name the slices
        // twice. If no row names them, store the bytes as new slices, which the next flush names.
        let settled = match self.is_committed(&op) {
            Ok(true) => {
                self.flushed(data, &op, &staged);
                return Ok(());
            }
            Ok(false) => data.buffer.restage().map_err(|error| data_error(file.ino, 0, &error)),
            Err(errno) => Err(errno),
        };
        if settled.is_err() {
            data.in_doubt = Some(DoubtfulFlush { op, staged, doubt });
        }
        settled
    }

    /// Whether a row names a slice of this flush. Rows commit together, so one row means all.
    fn is_committed(&self, op: &Write) -> Result<bool, Errno> {
        for (chunk, row) in &op.slices {
            let SliceSource::Blocks { id, .. } = row.source else { continue };
            let rows = match self.meta.run(&GetSlices { ino: op.ino, chunk: *chunk }, &BY_KERNEL) {
                Err(Failure::Refused(Errno::ESTALE)) => return Ok(false),
                rows => rows?,
            };
            let names =
                |row: &Slice| matches!(row.source, SliceSource::Blocks { id: found, .. } if found == id);
            if rows.iter().any(names) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_stored(
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
    fn read_ahead(&self, file: &OpenFile, data: &mut FileData, range: Range<u64>, size: u64) {
        let most = readahead::most_bytes(self.store.cache_bytes(), self.files.count());
        let Some(next) = data.ahead.note(range, most) else { return };
        let (mut at, end) = (next.start, next.end.min(size));
        while at < end {
            let (_, pos) = ChunkIndex::of(at);
            let len = (CHUNK_BYTES - u64::from(pos)).min(end - at);
            match self.rows(file, data, at, len).as_deref() {
                Ok([rows]) => self.store.prefetch(rows, pos, len as u32),
                _ => return,
            }
            at += len;
        }
    }

    /// The rows of every chunk that the range overlaps.
    fn rows(
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
            let rows = match data.rows.get(&chunk).filter(|_| self.is_exclusive()) {
                Some(rows) => Arc::clone(rows),
                None => {
                    let rows = self.meta.run(&GetSlices { ino: file.ino, chunk }, &BY_KERNEL)?;
                    if data.rows.len() >= MAX_CHUNKS_HELD {
                        data.rows.clear();
                    }
                    data.rows.insert(chunk, Arc::clone(&rows));
                    self.candidates.note(file.ino, chunk, rows.len());
                    rows
                }
            };
            found.push(rows);
        }
        Ok(found)
    }

    /// The bytes at `offset` according to the rows of the chunks.
    fn bytes_of(&self, rows: &[Arc<[Slice]>], offset: u64, len: u64) -> Result<Bytes, ChunkError> {
        if let [rows] = rows {
            return self.store.chunk_bytes(rows, ChunkIndex::of(offset).1, len as u32);
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
            self.store.read_chunk(rows, pos, part)?;
            at += len as u64;
            rest = tail;
        }
        Ok(())
    }
}

/// How often a write tries to make room in the buffers before it goes beyond the budget.
const MAX_ROUNDS: usize = 4;

/// Chunks whose rows one open file caches.
const MAX_CHUNKS_HELD: usize = 64;

/// Logs an error of file data with its position, and returns its errno.
fn data_error(ino: Ino, offset: u64, error: &ChunkError) -> Errno {
    let (chunk, _) = ChunkIndex::of(offset);
    tracing::error!(%ino, %chunk, offset, %error, "cannot read or store file data");
    error.errno()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meta::ops::AtimeMode;
    use meta::{Fault, Faulty, MemEngine};
    use types::BLOCK_BYTES;

    use super::*;
    use crate::VfsOptions;
    use crate::fixture;

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
        assert_eq!(vfs.store.requests().gets, 2 * 36);
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
        while vfs.store.requests().gets < 3 {
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
            vfs.files.open(ino, || vfs.new_buffer());
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
            vfs.files.open(ino, || vfs.new_buffer());
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
