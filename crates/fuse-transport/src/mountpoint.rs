//! Mount points: checks before a mount, dead mounts, unmounting.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::Error;
use crate::fusermount;
use crate::mountinfo::MountInfo;
use crate::options::UnmountMode;

/// The limit of dead mounts on one mount point that one call cleans up.
const MAX_STACKED: usize = 16;

/// Unmounts the limenfs volume at `mountpoint`; without CAP_SYS_ADMIN, through fusermount3.
///
/// # Errors
/// [`Error::NotMounted`] if no limenfs volume is mounted there; [`Error::Busy`] if a process uses it, unless
/// `mode` is [`UnmountMode::Lazy`].
pub fn unmount(mountpoint: &Path, mode: UnmountMode) -> Result<(), Error> {
    let path = resolve(mountpoint)?;
    match info(&path)? {
        Some(info) if info.is_limen() => unmount_at(&path, mode),
        _ => Err(Error::NotMounted(path)),
    }
}

/// Unmounts dead limenfs mounts at `mountpoint`, left by a server that was killed; returns whether there was
/// one.
///
/// # Errors
/// [`Error::System`] if the state cannot be read or changed. A mount point that does not exist is no error:
/// there is no dead mount then.
pub fn clean_stale(mountpoint: &Path) -> Result<bool, Error> {
    let path = match resolve(mountpoint) {
        Err(Error::Missing(_)) => return Ok(false),
        path => path?,
    };
    let mut cleaned = false;
    for _ in 0..MAX_STACKED {
        match info(&path)? {
            Some(info) if info.is_limen() && is_dead(&path) => unmount_at(&path, UnmountMode::Lazy)?,
            _ => break,
        }
        tracing::info!(mountpoint = %path.display(), "unmounted a dead mount");
        cleaned = true;
    }
    Ok(cleaned)
}

/// Checks that a directory can be mounted over, and returns its absolute path.
pub(crate) fn check(mountpoint: &Path, allow_nonempty: bool) -> Result<PathBuf, Error> {
    let path = resolve(mountpoint)?;
    if info(&path)?.is_some_and(|info| info.is_limen()) {
        return Err(if is_dead(&path) { Error::Dead(path) } else { Error::AlreadyMounted(path) });
    }
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => return Err(Error::Dead(path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::Missing(path)),
        Err(e) => return Err(Error::at("stat", &path, e)),
    };
    if !metadata.is_dir() {
        return Err(Error::NotADirectory(path));
    }
    let mut entries = fs::read_dir(&path).map_err(|e| Error::at("list", &path, e))?;
    match allow_nonempty || entries.next().is_none() {
        true => Ok(path),
        false => Err(Error::NotEmpty(path)),
    }
}

/// Unmounts the topmost mount at `path`.
pub(crate) fn unmount_at(path: &Path, mode: UnmountMode) -> Result<(), Error> {
    let flags = match mode {
        UnmountMode::Clean => UnmountFlags::empty(),
        UnmountMode::Lazy => UnmountFlags::DETACH,
        UnmountMode::Force => UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy(path.into())),
        Err(Errno::PERM) => fusermount::unmount(path, mode),
        // The server has unmounted in the meantime, as it does when its connection is aborted.
        Err(Errno::INVAL) if info(path)?.is_none() => Err(Error::NotMounted(path.into())),
        Err(e) => Err(Error::at("unmount", path, e)),
    }
}

pub(crate) fn info(path: &Path) -> Result<Option<MountInfo>, Error> {
    MountInfo::at(path).map_err(|e| Error::system("read /proc/self/mountinfo", e))
}

/// Whether the server of the mount at `path` has ended. The kernel's cached attributes would hide that, so
/// they are read from the server.
fn is_dead(path: &Path) -> bool {
    let statx = rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    matches!(statx, Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The absolute path without symbolic links, as in mountinfo. If something is mounted on the last component,
/// that component is not resolved, because a dead or hanging server could not answer.
fn resolve(mountpoint: &Path) -> Result<PathBuf, Error> {
    if let (Some(parent), Some(name)) = (mountpoint.parent(), mountpoint.file_name()) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        if let Ok(parent) = fs::canonicalize(parent) {
            let path = parent.join(name);
            if info(&path)?.is_some() {
                return Ok(path);
            }
        }
    }
    fs::canonicalize(mountpoint).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::Missing(mountpoint.into()),
        io::ErrorKind::NotADirectory => Error::NotADirectory(mountpoint.into()),
        _ => Error::at("stat", mountpoint, e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_that_is_gone_is_not_mounted() {
        if !skip::is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for mode in [UnmountMode::Clean, UnmountMode::Lazy, UnmountMode::Force] {
            assert!(matches!(unmount_at(dir.path(), mode), Err(Error::NotMounted(_))), "{mode:?}");
        }
    }

    #[test]
    fn each_unsuitable_mount_point_has_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        assert!(check(dir.path(), false).is_ok());
        fs::write(&file, b"").unwrap();
        assert!(matches!(check(dir.path(), false), Err(Error::NotEmpty(_))));
        assert!(check(dir.path(), true).is_ok());
        assert!(matches!(check(&file, true), Err(Error::NotADirectory(_))));
        assert!(matches!(check(&file.join("x"), true), Err(Error::NotADirectory(_))));
        assert!(matches!(check(&dir.path().join("x"), true), Err(Error::Missing(_))));
    }

    #[test]
    fn only_limenfs_mounts_are_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(unmount(dir.path(), UnmountMode::Clean), Err(Error::NotMounted(_))));
        assert!(matches!(unmount(Path::new("/"), UnmountMode::Clean), Err(Error::NotMounted(_))));
        assert!(!clean_stale(dir.path()).unwrap());
        assert!(!clean_stale(&dir.path().join("x")).unwrap());
    }
}
