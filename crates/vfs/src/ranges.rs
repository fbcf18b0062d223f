//! Ranges of open files: fallocate, seeking data and holes, copies by reference.
//!
//! Holds nothing of its own. Depends on the open files, [`Flusher`], [`Commits`], [`Attributes`], [`AccessCheck`] and
//! [`Caches`].

use std::sync::Arc;

use chunk::{Piece, PieceSource};
use client::Meta;
use meta::{Record, Scan};
use ops::{Allocate, AllocateMode, CopyRange, KillPriv};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice};

use crate::access_check::AccessCheck;
use crate::attributes::Attributes;
use crate::caller::Caller;
use crate::coherence::Caches;
use crate::commits::Commits;
use crate::fencing::{Fencing, Within};
use crate::flush::Flusher;
use crate::open::{OpenFile, OpenTable};

/// What lseek(2) seeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Chunks whose rows are read in one request.
const PAGE: usize = 64;

#[derive(Debug)]
pub(crate) struct Ranges {
    pub(crate) meta: Arc<Meta>,
    pub(crate) access: Arc<AccessCheck>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) commits: Arc<Commits>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) open: Arc<OpenTable>,
    pub(crate) fencing: Arc<Fencing>,
    pub(crate) flusher: Arc<Flusher>,
}

impl Ranges {
    /// Allocates, punches or zeroes a range of an open file, `fallocate(2)`.
    ///
    /// # Errors
    /// EBADF unless open; those of [`Allocate`] and of a flush.
    pub(crate) fn allocate(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    ) -> Result<(), Errno> {
        let file = self.open_file(ino)?;
        self.kill_priv_unless_root(caller, ino)?;
        let mut data = file.lock();
        self.flusher.flush_locked(&file, &mut data)?;
        let session = self.fencing.session_of(&file, &mut data)?;
        data.rows.clear();
        self.commits.change(&Within(session, &Allocate { ino, offset, len, mode }))
    }

    /// The first offset from `offset` on that has data, or is in a hole. The end of the file counts as a
    /// hole.
    ///
    /// # Errors
    /// EBADF unless open; ENXIO at or beyond the end of the file, and for data if only a hole follows; those
    /// of a flush.
    pub(crate) fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let file = self.open_file(ino)?;
        self.flusher.flush_locked(&file, &mut file.lock())?;
        let size = self.attributes.inode(ino)?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        // The end of the last data found. A range without rows is a hole.
        let mut at = offset;
        let (mut from, _) = ChunkIndex::of(offset);
        loop {
            let page = self.meta.scan(&Scan::Slices { ino, from, limit: PAGE })?;
            for record in &page.snapshot.records {
                let Record::Slices(_, chunk, rows) = record else { continue };
                for (start, end) in data_in(*chunk, rows) {
                    match what {
                        _ if end <= at => {}
                        Seek::Data if start < size => return Ok(start.max(at)),
                        Seek::Hole if start > at => return Ok(at),
                        _ => at = end,
                    }
                }
                from = ChunkIndex(chunk.0 + 1);
            }
            if !page.more || at >= size {
                break;
            }
        }
        match what {
            Seek::Data => Err(Errno::ENXIO),
            Seek::Hole => Ok(at.min(size)),
        }
    }

    /// Copies up to `len` bytes between open files by sharing their slices; returns the number of bytes.
    ///
    /// # Errors
    /// EBADF unless both are open; those of [`CopyRange`] and of a flush.
    pub(crate) fn copy_range(
        &self,
        caller: &Caller<'_>,
        (from, offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let (source, target) = (self.open_file(from)?, self.open_file(to)?);
        self.kill_priv_unless_root(caller, to)?;
        self.flusher.flush_locked(&source, &mut source.lock())?;
        let mut data = target.lock();
        self.flusher.flush_locked(&target, &mut data)?;
        let session = self.fencing.session_of(&target, &mut data)?;
        data.rows.clear();
        self.commits.change(&Within(session, &CopyRange { from, offset, to, to_offset, len }))
    }

    /// Clears SUID, SGID and file capabilities before a write. `kill_suidgid`: the caller lacks `CAP_FSETID`.
    ///
    /// # Errors
    /// Those of [`KillPriv`].
    pub(crate) fn kill_priv_of_writer(&self, ino: Ino, kill_suidgid: bool) -> Result<(), Errno> {
        // A squashed caller has no capabilities, whatever the request says.
        if kill_suidgid || self.access.is_squashing() { self.kill_priv(ino) } else { Ok(()) }
    }

    /// Unlike WRITE and SETATTR, these requests do not say whether the caller has `CAP_FSETID`, although the
    /// kernel leaves `file_modified` to the server. User 0 is assumed to have it unless it is squashed.
    fn kill_priv_unless_root(&self, caller: &Caller<'_>, ino: Ino) -> Result<(), Errno> {
        if caller.is_superuser { Ok(()) } else { self.kill_priv(ino) }
    }

    /// After a write the kernel reads size and times again, but not the mode (`FUSE_STATX_MODSIZE`):
    /// `stat(2)` and `execve(2)` would use the old mode until its lifetime ends.
    fn kill_priv(&self, ino: Ino) -> Result<(), Errno> {
        let changed = self.commits.change(&KillPriv(ino));
        // After an error of the database, the mode may have changed.
        if !matches!(changed, Ok(false)) {
            self.caches.forget_attributes(ino);
        }
        changed.map(drop)
    }

    fn open_file(&self, ino: Ino) -> Result<Arc<OpenFile>, Errno> {
        self.open.get(ino).ok_or(Errno::EBADF)
    }
}

/// The ranges of a chunk that hold data, as offsets in the file, in order.
fn data_in(chunk: ChunkIndex, rows: &[Slice]) -> impl Iterator<Item = (u64, u64)> + use<> {
    let whole = chunk::resolve(rows, 0, CHUNK_BYTES as u32);
    let data = whole.iter().filter(|piece| piece.source != PieceSource::Zeros);
    let range = |piece: &Piece<'_>| {
        let start = chunk.start() + u64::from(piece.pos);
        (start, start + u64::from(piece.len))
    };
    data.map(range).collect::<Vec<_>>().into_iter()
}
