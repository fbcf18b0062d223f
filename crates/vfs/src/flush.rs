//! Flushes: written data is stored, and its rows are committed.
//!
//! The written data is in the open files, which the caller locks. Lock order: a file's data, then the locks
//! of [`Commits`](crate::commits::Commits).

use std::collections::BTreeSet;

use chunk::{ChunkError, Staged, WriteBuffer};
use client::{Failure, InDoubtTxn};
use ops::{GetSlices, Write};
use types::{ChunkIndex, Errno, Ino, SessionId, Slice, SliceId, SliceSource};

use crate::base::Base;
use crate::caller::BY_KERNEL;
use crate::fencing::InSession;
use crate::open::{DoubtfulFlush, FileData, OpenFile};

impl Base {
    pub(crate) fn new_buffer(&self) -> WriteBuffer {
        WriteBuffer::new(&self.writes)
    }

    /// The longest write, in bytes, that is stored inline in the metadata for a file of `size` bytes; `None`
    /// if its writes are stored in blocks.
    pub(crate) fn inline_limit(&self, size: u64) -> Option<u32> {
        let limit = self.meta.volume().inline_bytes;
        (size <= u64::from(limit)).then_some(limit)
    }

    /// Cancels the changes in doubt, and flushes every open file that has a name. Returns the first error
    /// after all were tried.
    pub(crate) fn flush_all(&self) -> Result<(), Errno> {
        let mut done = self.abandoned.settle(None).and(self.commits.settle().map_err(Errno::from));
        for file in self.open.all().iter().filter(|file| !file.is_orphan()) {
            let mut data = file.lock();
            if file.is_fenced() {
                // Programs that use the file get EIO later. This releases its memory now.
                let _ = self.fencing.session_of(file, &mut data);
            } else {
                done = done.and(self.flush_locked(file, &mut data));
            }
        }
        done
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
        self.writes.store.put_slice(id, &bytes.into()).map_err(|error| {
            tracing::error!(%error, "cannot store file data");
            error.errno()
        })?;
        Ok((SliceSource::Blocks { id, offset: 0, size: len }, vec![id]))
    }

    /// Removes slices, given with their sizes, that no row names or will name.
    pub(crate) fn discard(&self, slices: &[(SliceId, u32)]) {
        for &(id, size) in slices {
            if let Err(error) = self.store.delete_slice(id, size) {
                tracing::warn!(%error, "cannot remove the blocks of a change that failed");
            }
        }
    }

    /// Stores and commits the dirty data of a file whose lock is held. If the session is lost meanwhile, and
    /// the file is not lost with it, the flush is repeated under the next session.
    ///
    /// While a flush is in doubt, its bytes stay in the buffer, and no newer data is flushed before it.
    ///
    /// # Errors
    /// As [`Files::flush`](crate::files::Files::flush).
    pub(crate) fn flush_locked(&self, file: &OpenFile, data: &mut FileData) -> Result<(), Errno> {
        loop {
            if let Some(errno) = data.lost {
                return Err(errno);
            }
            // A flush in doubt may have been planned under an earlier session; it is settled under that
            // session.
            let (settled, session) = (self.settle_flush(file, data), self.fencing.session_of(file, data)?);
            match settled.and_then(|()| self.flush_within(session, file, data)) {
                Err(_) if self.fencing.is_rejoined(session) => {}
                done => return done,
            }
        }
    }

    fn flush_within(&self, session: SessionId, file: &OpenFile, data: &mut FileData) -> Result<(), Errno> {
        if !data.buffer.is_dirty() {
            // A truncation may have dropped the dirty data. That data must not extend the size that the file
            // shows any more.
            file.set_clean();
            data.allocation_guard = None;
            return match data.buffer.take_error() {
                Some(error) => Err(data_error(file.ino, 0, &error)),
                None => Ok(()),
            };
        }
        let end = data.buffer.end();
        let size = self.attributes.inode(file.ino)?.size.max(end);
        let staged =
            data.buffer.stage(self.inline_limit(size)).map_err(|error| data_error(file.ino, 0, &error))?;
        let op = Write { ino: file.ino, slices: staged.rows.clone(), end, mtime: file.mtime() };
        self.commit_flush(session, data, op, staged, None)?;
        file.set_clean();
        Ok(())
    }

    /// Commits the rows of a flush. If the commit is in doubt, the flush is kept for [`Self::settle_flush`].
    fn commit_flush(
        &self,
        session: SessionId,
        data: &mut FileData,
        op: Write,
        staged: Staged,
        mut in_doubt: Option<InDoubtTxn>,
    ) -> Result<(), Errno> {
        let done = self.commits.commit_rows_once(&InSession(session, &op), &staged.slices(), &mut in_doubt);
        match (&done, in_doubt) {
            (Ok(()), _) => self.flushed(data, &op, &staged),
            (Err(_), Some(in_doubt)) => {
                data.rows.clear();
                data.in_doubt = Some(DoubtfulFlush { op, staged, in_doubt });
            }
            // The flush did not happen and never will ([`client::Meta::run_once`]).
            (Err(_), None) => data.buffer.not_committed(&staged),
        }
        done
    }

    fn flushed(&self, data: &mut FileData, op: &Write, staged: &Staged) {
        data.buffer.committed(staged);
        if !data.buffer.is_dirty() {
            data.allocation_guard = None;
        }
        data.rows.clear();
        for (chunk, _) in &staged.rows {
            self.candidates.note(op.ino, *chunk, 1);
        }
    }

    /// Settles earlier flushes that are in doubt, if there are any.
    fn settle_flush(&self, file: &OpenFile, data: &mut FileData) -> Result<(), Errno> {
        self.abandoned.settle(Some(file.ino))?;
        let Some(DoubtfulFlush { op, staged, in_doubt }) = data.in_doubt.take() else { return Ok(()) };
        if !self.meta.is_forgotten(&in_doubt) {
            return self.commit_flush(in_doubt.session(), data, op, staged, Some(in_doubt));
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
            data.in_doubt = Some(DoubtfulFlush { op, staged, in_doubt });
        }
        settled
    }

    /// Whether the rows of this flush are committed. They are committed together, so it is enough to find
    /// one.
    fn is_committed(&self, op: &Write) -> Result<bool, Errno> {
        let slice = |row: &Slice| match row.source {
            SliceSource::Blocks { id, .. } => Some(id),
            _ => None,
        };
        let slices: BTreeSet<SliceId> = op.slices.iter().filter_map(|(_, row)| slice(row)).collect();
        let chunks: BTreeSet<ChunkIndex> = op.slices.iter().map(|(chunk, _)| *chunk).collect();
        for chunk in chunks {
            let rows = match self.meta.run(&GetSlices { ino: op.ino, chunk }, &BY_KERNEL) {
                Err(Failure::Operation(Errno::ESTALE)) => return Ok(false),
                rows => rows?,
            };
            if rows.iter().filter_map(slice).any(|id| slices.contains(&id)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;

/// Logs an error of file data with its position, and returns its errno.
pub(crate) fn data_error(ino: Ino, offset: u64, error: &ChunkError) -> Errno {
    let (chunk, _) = ChunkIndex::of(offset);
    tracing::error!(%ino, %chunk, offset, %error, "cannot read or store file data");
    error.errno()
}
