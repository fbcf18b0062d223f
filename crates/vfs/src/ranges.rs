//! Ranges of open files: fallocate, seeking data and holes, copies by reference.

use chunk::{Piece, PieceSource};
use meta::{Record, Scan};
use ops::{Allocate, AllocateMode, CopyRange, KillPriv};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice};

use crate::caller::Caller;
use crate::fencing::InSession;
use crate::files::Files;

/// The kind of range that lseek(2) seeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// The number of chunks whose rows are read in one request.
const PAGE: usize = 64;

impl Files {
    /// Allocates, punches or zeroes a range of an open file, `fallocate(2)`.
    ///
    /// # Errors
    /// EBADF if the file is not open; those of [`KillPriv`], of [`Self::flush`] and of [`Allocate`].
    pub fn allocate(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: AllocateMode,
    ) -> Result<(), Errno> {
        let file = self.base.open.used(ino)?;
        self.kill_priv_unless_root(caller, ino)?;
        let mut data = file.lock();
        self.base.flush_locked(&file, &mut data)?;
        let session = self.base.fencing.session_of(&file, &mut data)?;
        data.rows.clear();
        self.base.commits.change(&InSession(session, &Allocate { ino, offset, len, mode }))
    }

    /// The first offset from `offset` on that has data ([`Seek::Data`]) or is in a hole ([`Seek::Hole`]). The
    /// end of the file counts as a hole.
    ///
    /// # Errors
    /// EBADF if the file is not open; those of [`Self::flush`]; ENXIO if `offset` is at or beyond the end of
    /// the file, or if [`Seek::Data`] finds only a hole.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let file = self.base.open.used(ino)?;
        self.base.flush_locked(&file, &mut file.lock())?;
        let size = self.base.attributes.inode(ino)?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        // The end of the last data found, or `offset` if none was found. A range without rows is a hole.
        let mut at = offset;
        let (mut from, _) = ChunkIndex::of(offset);
        loop {
            let page = self.base.meta.scan(&Scan::Slices { ino, from, limit: PAGE })?;
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

    /// Copies up to `len` bytes between open files: the target shares the slices of the source. Returns the
    /// number of copied bytes.
    ///
    /// # Errors
    /// EBADF unless both files are open; those of [`KillPriv`], of [`Self::flush`] and of [`CopyRange`].
    pub fn copy_range(
        &self,
        caller: &Caller<'_>,
        (from, offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let (source, target) = (self.base.open.used(from)?, self.base.open.used(to)?);
        self.kill_priv_unless_root(caller, to)?;
        self.base.flush_locked(&source, &mut source.lock())?;
        let mut data = target.lock();
        self.base.flush_locked(&target, &mut data)?;
        let session = self.base.fencing.session_of(&target, &mut data)?;
        data.rows.clear();
        self.base.commits.change(&InSession(session, &CopyRange { from, offset, to, to_offset, len }))
    }

    /// Clears SUID, SGID and file capabilities before a write if the caller lacks `CAP_FSETID`. In that case,
    /// the kernel sets `kill_suidgid`.
    ///
    /// # Errors
    /// Those of [`KillPriv`].
    pub fn kill_priv_of_writer(&self, ino: Ino, kill_suidgid: bool) -> Result<(), Errno> {
        // If the mount squashes callers, the kernel checked the capability of an identity that may not be the
        // caller's in the volume.
        if kill_suidgid || self.base.access.is_squashing() { self.kill_priv(ino) } else { Ok(()) }
    }

    /// As [`Self::kill_priv_of_writer`], for FALLOCATE and COPY_FILE_RANGE. Unlike WRITE and SETATTR, these
    /// requests do not say whether the caller has `CAP_FSETID`, although the kernel leaves it to the server
    /// to clear the bits (`file_modified`). User 0 is assumed to have this capability unless it is squashed.
    fn kill_priv_unless_root(&self, caller: &Caller<'_>, ino: Ino) -> Result<(), Errno> {
        if caller.is_superuser { Ok(()) } else { self.kill_priv(ino) }
    }

    /// Clears SUID, SGID and file capabilities, and makes the kernel read the mode again. After a write, the
    /// kernel reads only size and times again (`FUSE_STATX_MODSIZE`), so without this, `stat(2)` and
    /// `execve(2)` would use the old mode until the lifetime of the attributes ends.
    fn kill_priv(&self, ino: Ino) -> Result<(), Errno> {
        let changed = self.base.commits.change(&KillPriv(ino));
        // After an error of the database, the mode may have changed.
        if !matches!(changed, Ok(false)) {
            self.base.caches.invalidate_attributes(ino);
        }
        changed.map(drop)
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
