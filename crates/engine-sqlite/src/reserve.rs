//! Room on the disk that is given up when the disk is full, so that files can be removed and the volume mounted.
//!
//! SQLite needs room to free room: a deletion appends pages to the log, folding the log lets the database grow, and opening
//! the database makes the log and its index. So a file beside the database, `NAME.reserve`, holds some blocks. It is made
//! empty for a transaction that adds nothing ([`meta::Effect::adds`]) and for opening the database. Until there is room to
//! allocate it again, transactions that add are refused, so that none of them uses it up. The state is the size of the file,
//! because other processes open the database too.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::lock::with_suffix;

/// The reserve takes this part of the file system, within the bounds below.
const PART: u64 = 16;
const MIN_BYTES: u64 = 256 << 10;
const MAX_BYTES: u64 = 8 << 20;

#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    file: OnceLock<File>,
}

impl Reserve {
    /// The reserve of a database, if it has one.
    pub(crate) fn open(database: &Path) -> Self {
        let reserve = Reserve { path: with_suffix(database, ".reserve"), file: OnceLock::new() };
        reserve.find(false);
        reserve
    }

    /// Makes it if it is not there and the disk has room. A volume without one is used as if the disk was never full.
    pub(crate) fn make(&self) {
        if self.file.get().is_none() && self.find(true) && !self.restore() {
            tracing::warn!(path = %self.path.display(), "no room for the reserve: removing files may fail on a full disk");
        }
    }

    /// Whether it was given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.len() == Some(0)
    }

    /// Makes its room free; `false` if it has none.
    pub(crate) fn give_up(&self) -> bool {
        let Some(file) = self.file.get().filter(|_| self.len() != Some(0)) else { return false };
        match file.set_len(0) {
            Ok(()) => {
                tracing::warn!(path = %self.path.display(), "the disk is full: its reserve is given up to free room")
            }
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the reserve cannot be given up")
            }
        }
        self.is_given_up()
    }

    /// Allocates it again; `false` if the disk has no room for it. A part of it may do, because the database may have taken
    /// some of the room for good.
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
                tracing::debug!(path = %self.path.display(), %error, bytes, "no room for the reserve");
                // What was allocated of it is left to those that free room.
                let _ = file.set_len(0);
            }
            done.is_ok()
        })
    }

    /// How much of the disk it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.len().unwrap_or(0)
    }

    /// What is free on the disk beside it.
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

/// Closing the database restores the reserve, so that it can be opened again.
impl Drop for Reserve {
    fn drop(&mut self) {
        if self.is_given_up() {
            self.restore();
        }
    }
}

fn write_zeros(mut file: &File, bytes: u64) -> io::Result<()> {
    let zeros = [0; 64 << 10];
    (0..bytes.div_ceil(zeros.len() as u64)).try_for_each(|_| file.write_all(&zeros))
}
