//! The table of open files: one [`OpenFile`] per inode, however often it is open.
//!
//! File handles have no state of their own: requests find their file by inode number, so writeback that the
//! kernel sends with any handle needs no special case.
//!
//! Lock order: a file's `data` before its `dropped`, and before a shard of the table. No thread holds two
//! locks of the same kind.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use chunk::{Staged, WriteBuffer};
use client::InDoubtTxn;
use host::HashMap;
use meta::Inode;
use ops::Write;
use serde::{Deserialize, Serialize};
use types::{ChunkIndex, Errno, Ino, SessionId, Slice, Time};

use crate::attr::Attr;
use crate::numbers::AllocationGuard;
use crate::readahead::ReadAhead;

/// An inode that is open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    data: Mutex<FileData>,
    /// The end of the furthest dirty byte, 0 if clean, and the time of the last write. Both are outside the
    /// lock so that getattr need not wait for a flush.
    dirty_end: AtomicU64,
    mtime_nanos: AtomicI64,
    /// The last name was removed while the file was open; the last close deletes the inode.
    orphan: AtomicBool,
    /// The file is lost with the session: see [`crate::fencing`].
    fenced: AtomicBool,
    /// The kernel may have pages of this file.
    cached: AtomicBool,
    dropped: Mutex<Dropped>,
    /// The inode as it was created, if a call on this mount created and opened the file. While `is_opening`
    /// is set, this call may still be in progress.
    created: OnceLock<Box<Inode>>,
    is_opening: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct FileData {
    pub(crate) buffer: WriteBuffer,
    /// A flush that is in doubt: it may have been committed, or may still be. It is settled before anything
    /// else is flushed.
    pub(crate) in_doubt: Option<DoubtfulFlush>,
    /// The error to report because written data is lost permanently.
    pub(crate) lost: Option<Errno>,
    /// Cached rows of chunks, read since the last change.
    pub(crate) rows: HashMap<ChunkIndex, Arc<[Slice]>>,
    pub(crate) ahead: ReadAhead,
    /// The session under which the dirty data was written.
    pub(crate) session: SessionId,
    /// Held from the first dirty byte until all dirty data is committed.
    pub(crate) allocation_guard: Option<AllocationGuard>,
}

/// The state of the kernel's pages of a file after the kernel last dropped them because a lock was granted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dropped {
    /// The version of the data, if all pages are of this version or later.
    pub(crate) version: Option<DataVersion>,
    /// How often this mount dropped written data that the kernel may still have in its pages.
    losses: u64,
}

/// Attributes that change with each change of a file's data by another mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataVersion {
    size: u64,
    mtime: Time,
    ctime: Time,
}

impl DataVersion {
    pub(crate) fn of(inode: &Inode) -> Self {
        DataVersion { size: inode.size, mtime: inode.mtime, ctime: inode.ctime }
    }
}

/// See [`FileData::in_doubt`].
#[derive(Debug)]
pub(crate) struct DoubtfulFlush {
    pub(crate) op: Write,
    pub(crate) staged: Staged,
    pub(crate) in_doubt: InDoubtTxn,
}

impl FileData {
    /// Whether there is written data, and a truncation to `len` cuts off all of it, so that it may be dropped
    /// instead of stored. `false` if a flush is in doubt, because it may still be committed, and if data was
    /// lost, because that must be reported.
    pub(crate) fn is_cut_off(&self, len: u64) -> bool {
        self.in_doubt.is_none()
            && self.lost.is_none()
            && self.buffer.is_dirty()
            && !self.buffer.is_dirty_in(0, len)
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
                allocation_guard: None,
            }),
            dirty_end: AtomicU64::new(0),
            mtime_nanos: AtomicI64::new(0),
            orphan: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            cached: AtomicBool::new(false),
            dropped: Mutex::default(),
            created: OnceLock::new(),
            is_opening: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FileData> {
        host::lock(&self.data)
    }

    /// Records that the buffer has dirty bytes up to `end`. The caller holds the lock of `data`, as for
    /// [`OpenFile::set_clean`].
    pub(crate) fn set_dirty(&self, end: u64, now: Time) {
        self.mtime_nanos.store(now.nanos(), Ordering::Relaxed);
        self.dirty_end.fetch_max(end, Ordering::Release);
    }

    /// Records that a truncation, which set `mtime`, left dirty bytes up to `end`, which is 0 if none are
    /// left. The next flush stores this `mtime` again.
    pub(crate) fn set_truncated(&self, end: u64, mtime: Time) {
        self.mtime_nanos.store(mtime.nanos(), Ordering::Relaxed);
        self.dirty_end.store(end, Ordering::Release);
    }

    /// Drops all written data, including that of a flush in doubt.
    pub(crate) fn drop_written(&self, data: &mut FileData) {
        data.in_doubt = None;
        data.buffer.truncate(0);
        data.allocation_guard = None;
        self.set_clean();
        let mut dropped = host::lock(&self.dropped);
        *dropped = Dropped { version: None, losses: dropped.losses + 1 };
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

    /// The effect of unflushed writes on the attributes.
    pub(crate) fn unflushed(&self) -> Option<Unflushed> {
        let end = self.dirty_end();
        (end > 0).then(|| Unflushed { end, mtime: self.mtime() })
    }

    pub(crate) fn set_orphan(&self, orphan: bool) {
        self.orphan.store(orphan, Ordering::Release);
    }

    /// Marks the file as lost; returns whether it was not marked before.
    pub(crate) fn set_fenced(&self) -> bool {
        !self.fenced.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Records that the kernel will cache the bytes of a read. Call it before that read takes the lock.
    pub(crate) fn set_cached(&self) {
        if !self.cached.load(Ordering::Relaxed) {
            self.cached.store(true, Ordering::Relaxed);
        }
    }

    /// The state of the kernel's pages.
    pub(crate) fn dropped(&self) -> Dropped {
        *host::lock(&self.dropped)
    }

    /// Notes that the kernel has dropped its pages, so all pages are of `version` or later. `version` and
    /// `before`, the state of the pages, were read before that. If this mount has dropped written data since
    /// then, the version is not recorded, because the kernel may have read that data again.
    pub(crate) fn note_dropped(&self, version: Option<DataVersion>, before: Dropped) {
        let mut dropped = host::lock(&self.dropped);
        if dropped.losses == before.losses {
            dropped.version = version;
        }
    }

    /// Whether the kernel may have pages of this file. If a read called [`OpenFile::set_cached`], a thread
    /// that has taken the lock after that read gets true.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached.load(Ordering::Relaxed)
    }

    pub(crate) fn set_created(&self, inode: &Inode) {
        let _ = self.created.set(Box::new(*inode));
        self.is_opening.store(true, Ordering::Release);
    }

    /// Records that a program has used the file, so the call that opened it has ended.
    fn set_used(&self) {
        if self.is_opening.load(Ordering::Relaxed) {
            self.is_opening.store(false, Ordering::Relaxed);
        }
    }

    /// The inode as a call on this mount created it, while that call may still be in progress.
    pub(crate) fn created(&self) -> Option<&Inode> {
        self.created.get().map(Box::as_ref).filter(|_| self.is_opening.load(Ordering::Acquire))
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }
}

/// The end of the furthest unflushed byte, and the time of the last write.
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

/// An open file, as one process describes it to the next.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FileState {
    pub(crate) ino: Ino,
    pub(crate) handles: u64,
    pub(crate) is_orphan: bool,
    pub(crate) is_fenced: bool,
    /// The errno, as a number, to report because written data is lost.
    pub(crate) lost: Option<i32>,
    /// See [`OpenFile::created`].
    pub(crate) created: Option<Inode>,
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
    released: Condvar,
}

impl Shard {
    /// Locks the shard at a moment when no unlink of this inode is in progress.
    fn lock_when_not_unlinking(&self, ino: Ino) -> MutexGuard<'_, HashMap<Ino, Slot>> {
        let mut slots = host::lock(&self.slots);
        while slots.get(&ino).is_some_and(|slot| slot.unlinking) {
            slots = host::wait(&self.released, &self.slots, slots);
        }
        slots
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// `None` if the inode is not open, but [`OpenTable::unlink_guard`] keeps it from being opened.
    file: Option<Arc<OpenFile>>,
    handles: u64,
    /// An unlink is in progress: opens wait.
    unlinking: bool,
}

impl OpenTable {
    /// Adds a handle to an inode. Waits while an unlink of it is in progress.
    pub(crate) fn open(&self, ino: Ino, new_buffer: impl FnOnce() -> WriteBuffer) -> Arc<OpenFile> {
        let mut slots = self.shard(ino).lock_when_not_unlinking(ino);
        let slot = slots.entry(ino).or_default();
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
        host::lock(&self.shard(ino).slots).get(&ino)?.file.clone()
    }

    /// An open file that a program uses.
    ///
    /// # Errors
    /// EBADF if the inode is not open.
    pub(crate) fn used(&self, ino: Ino) -> Result<Arc<OpenFile>, Errno> {
        let file = self.get(ino).ok_or(Errno::EBADF)?;
        file.set_used();
        Ok(file)
    }

    /// Closes one handle of an inode; returns the file if that was the last one.
    pub(crate) fn close(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        let mut slots = host::lock(&self.shard(ino).slots);
        let slot = slots.get_mut(&ino)?;
        slot.handles = slot.handles.saturating_sub(1);
        if slot.handles > 0 {
            return None;
        }
        let file = slot.file.take()?;
        self.open.fetch_sub(1, Ordering::Relaxed);
        if !slot.unlinking {
            slots.remove(&ino);
        }
        Some(file)
    }

    /// Keeps an inode from being opened until the guard is dropped. If the inode is open, the guard counts as
    /// one more handle, which the caller must close.
    pub(crate) fn unlink_guard(&self, ino: Ino) -> UnlinkGuard<'_> {
        let shard = self.shard(ino);
        let mut slots = shard.lock_when_not_unlinking(ino);
        let slot = slots.entry(ino).or_default();
        slot.unlinking = true;
        let file = slot.file.clone();
        if file.is_some() {
            slot.handles += 1;
        }
        UnlinkGuard { shard, ino, file }
    }

    /// If an inode that lost its last name is open, marks it as an orphan: the last close deletes it.
    /// Otherwise keeps it from being opened until the guard is dropped.
    pub(crate) fn orphan_guard(&self, ino: Ino) -> Option<UnlinkGuard<'_>> {
        let shard = self.shard(ino);
        let mut slots = shard.lock_when_not_unlinking(ino);
        let slot = slots.entry(ino).or_default();
        if let Some(file) = &slot.file {
            file.set_orphan(true);
            return None;
        }
        slot.unlinking = true;
        Some(UnlinkGuard { shard, ino, file: None })
    }

    /// Describes all open files for another process; `None` if written data of one is not stored.
    pub(crate) fn describe(&self) -> Option<Vec<FileState>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let slots: Vec<(Arc<OpenFile>, u64)> = host::lock(&shard.slots)
                .values()
                .filter_map(|slot| slot.file.clone().map(|file| (file, slot.handles)))
                .collect();
            for (file, handles) in slots {
                let data = file.lock();
                let is_unstored = data.buffer.is_dirty() || data.in_doubt.is_some();
                if is_unstored && !file.is_fenced() && data.lost.is_none() {
                    return None;
                }
                all.push(FileState {
                    ino: file.ino,
                    handles,
                    is_orphan: file.is_orphan(),
                    is_fenced: file.is_fenced(),
                    lost: data.lost.map(Errno::raw),
                    created: file.created().copied(),
                });
            }
        }
        Some(all)
    }

    /// Adds an open file that another process has described.
    pub(crate) fn restore(&self, state: FileState, new_buffer: impl FnOnce() -> WriteBuffer) {
        let file = self.open(state.ino, new_buffer);
        if let Some(slot) = host::lock(&self.shard(state.ino).slots).get_mut(&state.ino) {
            slot.handles = state.handles;
        }
        file.set_orphan(state.is_orphan);
        file.set_cached();
        if let Some(created) = &state.created {
            file.set_created(created);
        }
        if state.is_fenced {
            file.set_fenced();
        }
        file.lock().lost = state.lost.map(Errno::from_raw);
    }

    /// How many files are open.
    pub(crate) fn count(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// All open files.
    pub(crate) fn all(&self) -> Vec<Arc<OpenFile>> {
        let files = self.shards.iter().map(|shard| host::lock(&shard.slots));
        files.flat_map(|slots| slots.values().filter_map(|s| s.file.clone()).collect::<Vec<_>>()).collect()
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino.0 as usize % SHARDS]
    }
}

/// See [`OpenTable::unlink_guard`].
#[derive(Debug)]
pub(crate) struct UnlinkGuard<'a> {
    shard: &'a Shard,
    pub(crate) ino: Ino,
    /// The file, if it is open.
    pub(crate) file: Option<Arc<OpenFile>>,
}

impl Drop for UnlinkGuard<'_> {
    fn drop(&mut self) {
        let mut slots = host::lock(&self.shard.slots);
        if let Some(slot) = slots.get_mut(&self.ino) {
            slot.unlinking = false;
            if slot.file.is_none() {
                slots.remove(&self.ino);
            }
        }
        self.shard.released.notify_all();
    }
}
