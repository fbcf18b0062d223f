//! The table of open files: one [`OpenFile`] an inode, however often it is open.
//!
//! File handles carry no state of their own, so requests find their file by inode number, and write-back that the
//! kernel sends with a guessed handle is no special case.
//!
//! Lock order: a file's `data` before a shard of the table; neither is held while the other kind of file is waited for.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use chunk::{Staged, WriteBuffer};
use host::HashMap;
use meta::Doubt;
use meta::ops::Write;
use types::{ChunkIndex, Errno, Ino, SessionId, Slice, Time};

use crate::attr::Attr;
use crate::numbers::Hold;
use crate::readahead::ReadAhead;

/// An inode that is open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    data: Mutex<FileData>,
    /// The end of the furthest dirty byte, 0 when clean; and the time of the last write. They stand outside the lock
    /// so that getattr need not wait for a flush.
    dirty_end: AtomicU64,
    mtime_nanos: AtomicI64,
    /// It lost its last name while open, and goes when it is closed.
    orphan: AtomicBool,
    /// It cannot go on: see [`crate::fencing`].
    fenced: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct FileData {
    pub(crate) buffer: WriteBuffer,
    /// A flush that may have happened, or may yet. It goes on before anything else is flushed.
    pub(crate) in_doubt: Option<DoubtfulFlush>,
    /// Why what was written is lost for good.
    pub(crate) lost: Option<Errno>,
    /// The rows of chunks read since the last change.
    pub(crate) rows: HashMap<ChunkIndex, Arc<[Slice]>>,
    pub(crate) ahead: ReadAhead,
    /// The session under which the dirty data was written.
    pub(crate) session: SessionId,
    /// Held from the first dirty byte until all is committed.
    pub(crate) hold: Option<Hold>,
}

/// See [`FileData::in_doubt`].
#[derive(Debug)]
pub(crate) struct DoubtfulFlush {
    pub(crate) op: Write,
    pub(crate) staged: Staged,
    pub(crate) doubt: Doubt,
}

impl FileData {
    /// Drops what was written from file offset `len` on, before a truncation to it. A flush in doubt may still commit what
    /// it holds, so that stays for the truncation itself to hide.
    pub(crate) fn truncate(&mut self, len: u64) {
        if self.in_doubt.is_none() {
            self.buffer.truncate(len);
        }
    }
}

impl OpenFile {
    fn new(ino: Ino, buffer: WriteBuffer) -> Self {
        OpenFile {
            ino,
            data: Mutex::new(FileData {
                buffer,
                in_doubt: None,
                lost: None,
                rows: HashMap::default(),
                ahead: ReadAhead::default(),
                session: SessionId(0),
                hold: None,
            }),
            dirty_end: AtomicU64::new(0),
            mtime_nanos: AtomicI64::new(0),
            orphan: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FileData> {
        host::lock(&self.data)
    }

    /// Notes that bytes up to `end` are in the buffer. The caller holds the lock, as for [`OpenFile::set_clean`].
    pub(crate) fn set_dirty(&self, end: u64, now: Time) {
        self.mtime_nanos.store(now.nanos(), Ordering::Relaxed);
        self.dirty_end.fetch_max(end, Ordering::Release);
    }

    pub(crate) fn set_clean(&self) {
        self.dirty_end.store(0, Ordering::Release);
    }

    pub(crate) fn mtime(&self) -> Time {
        Time::from_nanos(self.mtime_nanos.load(Ordering::Relaxed))
    }

    pub(crate) fn dirty_end(&self) -> u64 {
        self.dirty_end.load(Ordering::Acquire)
    }

    /// What is written but not flushed.
    pub(crate) fn unflushed(&self) -> Option<Unflushed> {
        let end = self.dirty_end();
        (end > 0).then(|| Unflushed { end, mtime: self.mtime() })
    }

    pub(crate) fn set_orphan(&self, orphan: bool) {
        self.orphan.store(orphan, Ordering::Release);
    }

    /// Says whether it was not lost before.
    pub(crate) fn set_fenced(&self) -> bool {
        !self.fenced.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }
}

/// The end of the furthest byte that waits for a flush, and when the last was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unflushed {
    end: u64,
    mtime: Time,
}

impl Unflushed {
    pub(crate) fn overlay(self, attr: &mut Attr) {
        attr.size_bytes = attr.size_bytes.max(self.end);
        attr.mtime = self.mtime;
        attr.ctime = attr.ctime.max(self.mtime);
    }
}

const SHARDS: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct OpenTable {
    shards: [Shard; SHARDS],
    open: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Mutex<HashMap<Ino, Slot>>,
    unsealed: Condvar,
}

#[derive(Debug)]
struct Slot {
    /// `None` while nobody has it open and it is only sealed.
    file: Option<Arc<OpenFile>>,
    handles: u64,
    /// An unlink is deciding its fate: opens wait.
    sealed: bool,
}

impl OpenTable {
    /// Opens an inode once more. Waits while an unlink of it is under way.
    pub(crate) fn open(&self, ino: Ino, new_buffer: impl FnOnce() -> WriteBuffer) -> Arc<OpenFile> {
        let shard = self.shard(ino);
        let mut slots = shard.lock();
        while slots.get(&ino).is_some_and(|slot| slot.sealed) {
            slots = host::wait(&shard.unsealed, &shard.slots, slots);
        }
        let slot = slots.entry(ino).or_insert(Slot { file: None, handles: 0, sealed: false });
        let file = slot.file.get_or_insert_with(|| {
            self.open.fetch_add(1, Ordering::Relaxed);
            Arc::new(OpenFile::new(ino, new_buffer()))
        });
        slot.handles += 1;
        Arc::clone(file)
    }

    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        if self.open.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.shard(ino).lock().get(&ino)?.file.clone()
    }

    /// Closes an inode once; returns the file if that was the last time.
    pub(crate) fn close(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        let mut slots = self.shard(ino).lock();
        let slot = slots.get_mut(&ino)?;
        slot.handles = slot.handles.saturating_sub(1);
        if slot.handles > 0 {
            return None;
        }
        let file = slot.file.take()?;
        self.open.fetch_sub(1, Ordering::Relaxed);
        if !slot.sealed {
            slots.remove(&ino);
        }
        Some(file)
    }

    /// Keeps an inode from being opened until the seal is dropped. If it is open, the seal counts as one more handle,
    /// which the caller closes.
    pub(crate) fn seal(&self, ino: Ino) -> Seal<'_> {
        let shard = self.shard(ino);
        let mut slots = shard.lock();
        while slots.get(&ino).is_some_and(|slot| slot.sealed) {
            slots = host::wait(&shard.unsealed, &shard.slots, slots);
        }
        let slot = slots.entry(ino).or_insert(Slot { file: None, handles: 0, sealed: false });
        slot.sealed = true;
        let file = slot.file.clone();
        if file.is_some() {
            slot.handles += 1;
        }
        Seal { shard, ino, file }
    }

    /// How many files are open.
    pub(crate) fn count(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// All open files.
    pub(crate) fn all(&self) -> Vec<Arc<OpenFile>> {
        let files = self.shards.iter().map(|shard| shard.lock());
        files.flat_map(|slots| slots.values().filter_map(|s| s.file.clone()).collect::<Vec<_>>()).collect()
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`OpenTable::seal`].
#[derive(Debug)]
pub(crate) struct Seal<'a> {
    shard: &'a Shard,
    ino: Ino,
    /// The file, if it is open.
    pub(crate) file: Option<Arc<OpenFile>>,
}

impl Drop for Seal<'_> {
    fn drop(&mut self) {
        let mut slots = self.shard.lock();
        if let Some(slot) = slots.get_mut(&self.ino) {
            slot.sealed = false;
            if slot.file.is_none() {
                slots.remove(&self.ino);
            }
        }
        self.shard.unsealed.notify_all();
    }
}
