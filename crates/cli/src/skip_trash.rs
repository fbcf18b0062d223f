//! Removes files and directories of a mount without leaving them in its trash: right after a removal, the
//! entry in the trash is deleted too. Only the owner of the entry and root can do that.
//!
//! The name of the entry contains the inode numbers of the directory and of the removed file, which are read
//! before the removal. So no other entry is deleted. Some removed files have no entry in the trash, such as
//! files with other hard links, and files that this mount has open.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use acl::idmap::Ids;
use command::error::CliError;
use ops::{TRASH_NAME, TrashHour, TrashName};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags, open, openat, statat, statx, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use types::{Ino, Name, Time};

use crate::target::require_limen;
use crate::trash::{ids_of, top_of};

/// The uid and hour that name a directory of the trash.
type Hour = (u32, TrashHour);

/// The maximum number of directories of hours that are kept open. Only a tree with many owners needs more.
const MAX_OPEN: usize = 256;

/// The pauses, in milliseconds, before each retry of a deletion that failed with ESTALE. A deletion fails so
/// if other threads move directories into the same directory of the trash: each moved directory gets a new
/// parent, which the kernel may not know yet.
const PAUSES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

#[derive(Debug)]
pub(crate) struct SkipTrash {
    /// `None` if the volume has no trash.
    trash: Option<PathBuf>,
    ids: Ids,
    hours: Mutex<HashMap<Hour, Arc<OwnedFd>>>,
    left: AtomicU64,
}

impl SkipTrash {
    /// # Errors
    /// The path is not on limenfs; the mount does not show the root of the volume.
    pub(crate) fn of(path: &Path) -> Result<SkipTrash, CliError> {
        let top = top_of(path)?;
        let root = require_limen(&top, path)?;
        let trash = top.join(OsStr::from_bytes(TRASH_NAME));
        let has_trash = fs::symlink_metadata(&trash).is_ok_and(|found| found.ino() == Ino::TRASH.0);
        if !has_trash && root.ino() != Ino::ROOT.0 {
            return Err(CliError::new(
                "the mount does not show the root of the volume, and so not its trash",
            )
            .at(top.display())
            .advise("mount the whole volume, or use limen trash purge META-URL afterwards"));
        }
        let ids = ids_of(&trash);
        let trash = has_trash.then_some(trash);
        Ok(SkipTrash { trash, ids, hours: Mutex::default(), left: AtomicU64::new(0) })
    }

    /// The number of removed files and directories that stayed in the trash.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Like unlinkat(2), but also deletes the removed file or directory from the trash.
    ///
    /// # Errors
    /// Those of unlinkat(2).
    pub(crate) fn unlink(&self, dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> Result<(), Errno> {
        let Some(trash) = &self.trash else { return unlinkat(dir, name, flags) };
        let before = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let held = before.as_ref().ok().and_then(|found| hold(dir, name, found));
        let earlier = TrashHour::of(Time::now());
        unlinkat(dir, name, flags)?;
        let later = TrashHour::of(Time::now());
        let Ok(removed) = before else { return Ok(()) };
        let kind = FileType::from_raw_mode(removed.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Directory) {
            return Ok(());
        }
        let hours = if earlier == later { vec![later] } else { vec![later, earlier] };
        for hour in hours {
            match self.delete(trash, hour, dir, name, &removed, flags) {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(_) => {
                    // A file that has other hard links, or that is open, did not go to the trash.
                    let is_there = kind.is_dir()
                        || removed.st_nlink == 1 && !held.is_some_and(|file| is_deleted(&file, &removed));
                    self.left.fetch_add(is_there.into(), Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn delete(
        &self,
        trash: &Path,
        hour: TrashHour,
        dir: BorrowedFd<'_>,
        name: &CStr,
        removed: &Stat,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        let name = Name::new(name.to_bytes()).map_err(|_| Errno::NOENT)?;
        // The number of an inode never changes, so the file system need not be asked.
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let parent = statx(dir, c"", how, StatxFlags::INO)?.stx_ino;
        let name = TrashName::encode(Ino(parent), Ino(removed.st_ino), &name).map_err(|_| Errno::NOENT)?;
        let hour = self.open_hour(trash, (removed.st_uid, hour))?;
        for pause in PAUSES {
            match unlinkat(&hour, name.as_bytes(), flags) {
                Err(Errno::STALE) => thread::sleep(Duration::from_millis(pause)),
                done => return done,
            }
            // A retry makes the kernel look up the name again, but not the directory of the hour. This call
            // makes it read the attributes of that directory again.
            let _ = statx(&hour, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::MODE);
        }
        unlinkat(&hour, name.as_bytes(), flags)
    }

    fn open_hour(&self, trash: &Path, key: Hour) -> Result<Arc<OwnedFd>, Errno> {
        let lock = || self.hours.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hour) = lock().get(&key) {
            return Ok(Arc::clone(hour));
        }
        let (uid, hour) = key;
        let path = user_dir(trash, &self.ids, uid)?.join(hour.name());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = Arc::new(open(&path, flags, Mode::empty())?);
        let mut hours = lock();
        if hours.len() >= MAX_OPEN {
            hours.clear();
        }
        hours.insert(key, Arc::clone(&opened));
        Ok(opened)
    }
}

/// A reference to a file of another user, which this process cannot find in the trash. The reference does not
/// count as open. Directories are not held: the kernel could then fail to look them up in the trash (ESTALE).
fn hold(dir: BorrowedFd<'_>, name: &CStr, found: &Stat) -> Option<OwnedFd> {
    let user = geteuid();
    let is_other = !user.is_root() && user.as_raw() != found.st_uid;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let is_dir = FileType::from_raw_mode(found.st_mode).is_dir();
    (is_other && !is_dir).then(|| openat(dir, name, flags, Mode::empty()).ok()).flatten()
}

/// Whether this file, which is `removed`, has no name any more, not even in the trash.
fn is_deleted(file: &OwnedFd, removed: &Stat) -> bool {
    // The kernel counts the removed name itself, and does not know the name in the trash.
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    match statx(file, c"", how, StatxFlags::INO | StatxFlags::NLINK) {
        Ok(found) => found.stx_ino == removed.st_ino && found.stx_nlink == 0,
        Err(errno) => matches!(errno, Errno::STALE | Errno::NOENT),
    }
}

/// The directory of the trash for the files of the owner that the mount shows with this uid.
///
/// # Errors
/// ENOENT if there is none; EACCES if it cannot be found, because only root can list these directories.
fn user_dir(trash: &Path, ids: &Ids, uid: u32) -> Result<PathBuf, Errno> {
    let is_of = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == uid);
    let named = trash.join(ids.user_in_volume(uid).to_string());
    if is_of(&named) {
        return Ok(named);
    }
    // The id map of another user's mount is not known, so search for the directory that this uid owns.
    let all = fs::read_dir(trash).map_err(|_| Errno::ACCESS)?;
    all.flatten().map(|entry| entry.path()).find(|path| is_of(path)).ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn file_without_a_name_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = OwnedFd::from(fs::File::create(&path).unwrap());
        let found = fstat(&file).unwrap();
        assert!(!is_deleted(&file, &found));
        fs::remove_file(path).unwrap();
        assert!(is_deleted(&file, &found));
    }
}
