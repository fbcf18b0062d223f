//! Ranges of open files: fallocate, where data and holes are, copies by reference.

use chunk::{Piece, PieceSource};
use meta::ops::{Allocate, AllocateMode, CopyRange, KillPriv};
use meta::{Record, Scan};
use types::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice};

use crate::caller::Caller;
use crate::fencing::Within;
use crate::open::OpenFile;
use crate::vfs::Vfs;

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Chunks whose rows are read at a time.
const PAGE: usize = 64;

impl Vfs {
    /// # Errors
    /// EBADF unless open; those of [`Allocate`] and of a flush.
    pub fn allocate(
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
        self.flush_locked(&file, &mut data)?;
        let session = self.session_of(&file, &mut data)?;
        data.rows.clear();
        self.change(&Within(session, &Allocate { ino, offset, len, mode }))
    }

    /// The first offset from `offset` on where there is data, or a hole: the end of the file is one.
    ///
    /// # Errors
    /// EBADF unless open; ENXIO from the end of the file on, and for data where only a hole is left; those of a flush.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let file = self.open_file(ino)?;
        self.flush_locked(&file, &mut file.lock())?;
        let size = self.node(ino)?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        // Where the last data that was met ends; what no row says is a hole.
        let mut at = offset;
        let (mut from, _) = ChunkIndex::of(offset);
        loop {
            let page = self.meta.scan(&Scan::Slices { ino, from, limit: PAGE })?;
            for record in &page.facts.records {
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

    /// Copies up to `len` bytes between open files without moving them; gives how many.
    ///
    /// # Errors
    /// EBADF unless both are open; those of [`CopyRange`] and of a flush.
    pub fn copy_range(
        &self,
        caller: &Caller<'_>,
        (from, offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let (source, target) = (self.open_file(from)?, self.open_file(to)?);
        self.kill_priv_unless_root(caller, to)?;
        self.flush_locked(&source, &mut source.lock())?;
        let mut data = target.lock();
        self.flush_locked(&target, &mut data)?;
        let session = self.session_of(&target, &mut data)?;
        data.rows.clear();
        self.change(&Within(session, &CopyRange { from, offset, to, to_offset, len }))
    }

    /// Clears SUID, SGID and file capabilities before the caller writes. `kill_suidgid`: it lacks `CAP_FSETID`.
    ///
    /// # Errors
    /// Those of [`KillPriv`].
    pub fn kill_priv_of_writer(&self, ino: Ino, kill_suidgid: bool) -> Result<(), Errno> {
        // A squashed caller has no capabilities, whatever the kernel says.
        if kill_suidgid || self.is_squashing() { self.kill_priv(ino) } else { Ok(()) }
    }

    /// Unlike WRITE and SETATTR, these requests do not say whether the caller has `CAP_FSETID`, and the kernel leaves
    /// `file_modified` to the server all the same: user 0 is taken to have it, if he is not squashed.
    fn kill_priv_unless_root(&self, caller: &Caller<'_>, ino: Ino) -> Result<(), Errno> {
        if caller.is_superuser { Ok(()) } else { self.kill_priv(ino) }
    }

    /// After a write the kernel asks again for size and times, but not for the mode (`FUSE_STATX_MODSIZE`): `stat(2)` and
    /// `execve(2)` would go by the old mode until its lifetime ends.
    fn kill_priv(&self, ino: Ino) -> Result<(), Errno> {
        let changed = self.change(&KillPriv(ino));
        // If the database failed, the mode may have changed.
        if !matches!(changed, Ok(false)) {
            self.forget_attributes(ino);
        }
        changed.map(drop)
    }

    fn open_file(&self, ino: Ino) -> Result<std::sync::Arc<OpenFile>, Errno> {
        self.files.get(ino).ok_or(Errno::EBADF)
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
