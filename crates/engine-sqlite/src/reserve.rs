//! Disk space that is given up when the disk is full, so that files can be removed and the volume can be
//! mounted.
//!
//! SQLite needs space to free space: a deletion appends pages to the log, a checkpoint may grow the database,
//! and opening the database creates the log and its index. So the file `NAME.reserve` beside the database
//! occupies some blocks. If the disk is full, the file is truncated for a transaction that adds nothing
//! ([`meta::Effect::adds`]), and for opening the database. Until the file can be allocated again,
//! transactions that add something fail, so that they cannot use up the space. Only the changes that a killed
//! mount had answered may use it ([`Engine::set_reserve_open`](meta::Engine::set_reserve_open)), because the
//! volume cannot be mounted, and nothing removed, before they are committed. The reserve is given up while
//! the file is empty; this state is in the file and not in memory, because other processes open the database
//! too.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::lock::with_suffix;

/// The reserve takes 1/16 of the file system, within the bounds below.
const PART: u64 = 16;
const MIN_BYTES: u64 = 256 << 10;
const MAX_BYTES: u64 = 8 << 20;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    file: OnceLock<File>,
}

impl Reserve {
    /// Opens the reserve of a database, if it has one.
    pub(crate) fn open(database: &Path) -> Self {
        let reserve = Reserve { path: with_suffix(database, ".reserve"), file: OnceLock::new() };
        reserve.find(false);
        reserve
    }

    /// Creates the reserve if there is none. If the disk has no space for it, the file stays empty, so the
    /// reserve counts as given up. If the file cannot be created, the volume can be used without a reserve,
    /// but removals may fail when the disk is full.
    pub(crate) fn make(&self) {
        if self.file.get().is_none() && self.find(true) && !self.restore() {
            tracing::warn!(path = %self.path.display(), "no space for the reserve: removing files may fail when the disk is full");
        }
    }

    /// True if the file exists and is empty.
    pub(crate) fn is_given_up(&self) -> bool {
        self.len() == Some(0)
    }

    /// Truncates the reserve to free its space. Returns `false` if the reserve is missing, already empty, or
    /// cannot be truncated.
    pub(crate) fn give_up(&self) -> bool {
        let Some(file) = self.file.get().filter(|_| self.len() != Some(0)) else { return false };
        match file.set_len(0) {
            Ok(()) => {
                tracing::warn!(path = %self.path.display(), "the disk is full: gave up the reserve to free space")
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot give up the reserve")
            }
        }
        self.is_given_up()
    }

    /// Allocates the reserve again. Returns `false` if the disk has no space for it; `true` if there is no
    /// reserve. A half or a quarter of the size is also accepted, because the database may have taken some of
    /// the space permanently.
    pub(crate) fn restore(&self) -> bool {
        let Some(file) = self.file.get() else { return true };
        let disk = self.disk().map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        let bytes = (disk / PART).clamp(MIN_BYTES, MAX_BYTES);
        [bytes, bytes / 2, bytes / 4].into_iter().any(|bytes| {
            let done = match fallocate(file, FallocateFlags::empty(), 0, bytes) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, bytes),
                done => done.map_err(io::Error::from),
            };
            if let Err(error) = &done {
                tracing::debug!(path = %self.path.display(), %error, bytes, "no space for the reserve");
                // Leave partly allocated space to transactions that free space.
                let _ = file.set_len(0);
            }
            done.is_ok()
        })
    }

    /// The size of the reserve in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.len().unwrap_or(0)
    }

    /// The free space of the reserve's file system in bytes; `u64::MAX` if it is unknown.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.disk().map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn disk(&self) -> Option<rustix::fs::StatVfs> {
        let directory = self.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        statvfs(directory.unwrap_or(Path::new("."))).ok()
    }

    fn len(&self) -> Option<u64> {
        Some(self.file.get()?.metadata().ok()?.len())
    }

    fn find(&self, create: bool) -> bool {
        let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).open(&self.path);
        file.is_ok_and(|file| self.file.set(file).is_ok())
    }
}

/// Closing the database restores the reserve, so that the database can be opened again on a full disk.
impl Drop for Reserve {
    fn drop(&mut self) {
        if self.is_given_up() {
            self.restore();
        }
    }
}

/// Writes at explicit offsets, because an attempt that failed may have moved the position of the file.
fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let len = ZEROS.len() as u64;
    (0..bytes.div_ceil(len)).try_for_each(|block| file.write_all_at(&ZEROS, block * len))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn reserve_of_zeros_has_no_hole_after_an_earlier_attempt() {
        let path = std::env::temp_dir().join(format!("limen-zeros-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        for _ in 0..2 {
            file.set_len(0).unwrap();
            write_zeros(&file, MIN_BYTES).unwrap();
        }
        file.sync_all().unwrap();
        let found = file.metadata().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.len(), MIN_BYTES);
        assert!(found.blocks() * 512 >= MIN_BYTES, "{found:?}");
    }
}
