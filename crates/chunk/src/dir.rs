//! Objects stored as files of a local directory.
//!
//! [`Dir`] uses plain system calls instead of opendal's `fs` service. That service syncs every file when it
//! closes it, which close(2) does not promise, and never syncs the file's directory, without which a new file
//! can be lost in a power failure. It also passes each call to another thread.
//!
//! An object is written below `tmp/` and renamed, so that a process killed at any moment leaves no partial
//! object.
//!
//! For an existing volume, `tmp/` is created only after the marker of the store was found. If the file system
//! of the store is not mounted, its empty mount point has no `tmp/`, so no put can succeed there.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use host::HashMap;
use types::Errno;

use crate::ChunkError;
use crate::backend::{Backend, StoreError};
use crate::block::BlockName;
use crate::pool;

/// The directory for the objects of blocks, below the root.
pub(crate) const CHUNKS: &str = "chunks";
const TMP: &str = "tmp";

/// A temporary file that was not modified for this long was left by a process that is gone.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// From this number of objects on, one syncfs(2) is cheaper than one fsync(2) per object, because each fsync
/// may be a journal commit.
const MANY_OBJECTS: usize = 16;

/// Writeback of an object of at least this size starts as soon as it is written. The object is synced within
/// some seconds in any case, and the disk might be idle until then.
const LARGE_BYTES: usize = 1 << 20;

/// The maximum number of directories that are remembered as synced.
const MAX_SYNCED: usize = 1 << 14;

#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) root: PathBuf,
    serial: AtomicU64,
    /// The directories of objects whose parent directories up to the root were all synced, so that their
    /// paths survive a power failure. The key is the path below the root.
    synced: Mutex<HashMap<PathBuf, Identity>>,
}

/// The inode number and the time of birth of a directory. They distinguish it from another directory that
/// some process creates later at the same path.
type Identity = (u64, SystemTime);

impl Dir {
    /// Opens the store at `root`, and creates it if absent.
    pub(crate) fn create(root: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(root)?;
        let dir = Dir::at(root);
        dir.prepare()?;
        Ok(dir)
    }

    /// Opens the store at `root`, which must be a directory. Nothing is written.
    pub(crate) fn existing(root: &Path) -> Result<Self, StoreError> {
        let other = |errno, what: &str| Err(StoreError::Other(errno, what.to_owned()));
        match fs::metadata(root) {
            Ok(metadata) if metadata.is_dir() => Ok(Dir::at(root)),
            Ok(_) => other(Errno::ENOTDIR, "it is not a directory"),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                other(Errno::ENOENT, "the directory does not exist")
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The free bytes of the disk; `u64::MAX` if statvfs(3) fails.
    pub(crate) fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.root).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Calls `found` with the key and the metadata of every block. A store without a directory of blocks has
    /// none.
    ///
    /// # Errors
    /// Fails if a directory cannot be read; the errors of `found`.
    pub(crate) fn each_block(
        &self,
        found: &mut dyn FnMut(String, fs::Metadata) -> io::Result<()>,
    ) -> io::Result<()> {
        each_below(&self.root.join(CHUNKS), CHUNKS, 0, found)
    }

    /// Syncs directories of objects and, for those that are not known as synced, all parent directories up to
    /// the root. Returns the number of directories synced. A test checks it, because on a journaling file
    /// system each sync may wait for the disk.
    fn sync_directories(&self, directories: &BTreeSet<&Path>) -> io::Result<usize> {
        let (mut above, mut new) = (BTreeSet::new(), Vec::new());
        for directory in directories {
            let file = File::open(self.root.join(directory))?;
            file.sync_all()?;
            let metadata = file.metadata()?;
            // Not every file system records the time of birth.
            let identity = metadata.created().ok().map(|born| (metadata.ino(), born));
            if identity.is_none() || self.synced().get(*directory) != identity.as_ref() {
                above.extend(directory.ancestors().skip(1));
                new.extend(identity.map(|identity| (directory.to_path_buf(), identity)));
            }
        }
        for directory in &above {
            File::open(self.root.join(directory)).and_then(|file| file.sync_all())?;
        }
        let mut synced = self.synced();
        if synced.len() + new.len() > MAX_SYNCED {
            synced.clear();
        }
        synced.extend(new);
        Ok(directories.len() + above.len())
    }

    fn synced(&self) -> MutexGuard<'_, HashMap<PathBuf, Identity>> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store at `root`, which may be absent. All calls but [`Backend::put`] work without
    /// [`Backend::prepare`].
    pub(crate) fn at(root: &Path) -> Self {
        Dir { root: root.to_owned(), serial: AtomicU64::new(0), synced: Mutex::default() }
    }
}

impl Backend for Dir {
    fn free_bytes(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&self.root).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn device(&self) -> Option<u64> {
        fs::metadata(&self.root).ok().map(|metadata| metadata.dev())
    }

    fn put(&self, key: &str, data: Bytes, trailer: Vec<u8>) -> Result<(), StoreError> {
        let target = self.root.join(key);
        let name = key.rsplit('/').next().unwrap_or(key);
        let serial = self.serial.fetch_add(1, Relaxed);
        let tmp = self.root.join(TMP).join(format!("{name}.{}.{serial}", std::process::id()));
        let written = write(&tmp, &data, &trailer).and_then(|()| rename(&tmp, &target));
        if written.is_err() {
            // Report the first error; a temporary file that remains is removed once it is old.
            let _ = fs::remove_file(&tmp);
        }
        Ok(written?)
    }

    fn get(&self, key: &str, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        let file = File::open(self.root.join(key))?;
        Ok(read(&file, offset, len)?)
    }

    fn get_whole(&self, key: &str, at_most: usize) -> Result<Bytes, StoreError> {
        let file = File::open(self.root.join(key))?;
        let len = file.metadata()?.len();
        Ok(read(&file, 0, usize::try_from(len).map_or(at_most, |len| len.min(at_most)))?)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        match fs::remove_file(self.root.join(key)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let entries = match fs::read_dir(self.root.join(prefix)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
        }
        Ok(names)
    }

    fn modified(&self, key: &str) -> Result<Option<SystemTime>, StoreError> {
        match fs::metadata(self.root.join(key)).and_then(|metadata| metadata.modified()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            modified => Ok(Some(modified?)),
        }
    }

    fn prepare(&self) -> Result<(), StoreError> {
        let tmp = self.root.join(TMP);
        match fs::create_dir(&tmp) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
            _ => Ok(remove_abandoned(&tmp)?),
        }
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn sync(&self, keys: &[String]) -> Result<(), StoreError> {
        if keys.len() >= MANY_OBJECTS {
            return self.sync_all();
        }
        let mut directories = BTreeSet::new();
        for key in keys {
            match File::open(self.root.join(key)).and_then(|file| file.sync_all()) {
                // The object was deleted in the meantime, so there is nothing to sync.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                synced => synced?,
            }
            directories.extend(Path::new(key).parent());
        }
        self.sync_directories(&directories)?;
        Ok(())
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        let root = File::open(&self.root)?;
        rustix::fs::syncfs(&root).map_err(|error| io::Error::from(error).into())
    }

    fn remove_directory(&self, prefix: &str) -> Result<(), StoreError> {
        match fs::remove_dir(self.root.join(prefix)) {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    /// Removes all temporary files, of any process, and then the root directory if it is empty.
    fn remove_root(&self) -> Result<(), StoreError> {
        let tmp = self.root.join(TMP);
        match fs::remove_dir_all(&tmp) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => self.remove_directory(""),
        }
    }
}

/// Reads `len` bytes from `offset` on; fewer if the file ends earlier.
fn read(file: &File, offset: u64, len: usize) -> io::Result<Bytes> {
    let mut bytes = pool::any(len);
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(pool::freeze(bytes))
}

fn write(path: &Path, data: &[u8], trailer: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(data)?;
    file.write_all(trailer)?;
    if data.len() >= LARGE_BYTES {
        // The advice starts writeback of the dirty pages and does not wait for it. Pages under writeback stay
        // in the page cache (`generic_fadvise`). On a file system that ignores the advice, a later sync only
        // takes longer.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
    Ok(())
}

/// Renames. Creates the parent directories of the target only if the rename fails without them.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::rename(from, to)
        }
        renamed => renamed,
    }
}

fn remove_abandoned(tmp: &Path) -> io::Result<()> {
    let now = SystemTime::now();
    for entry in fs::read_dir(tmp)? {
        let entry = entry?;
        // Another process may rename the file at any moment, so its absence is not an error.
        let age = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|time| now.duration_since(time).ok());
        if age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn each_below(
    path: &Path,
    key: &str,
    depth: u32,
    found: &mut dyn FnMut(String, fs::Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let key = format!("{key}/{}", entry.file_name().to_string_lossy());
        // Keys have two levels of directories.
        if entry.file_type()?.is_dir() && depth < 2 {
            each_below(&entry.path(), &key, depth + 1, found)?;
        } else if BlockName::of_key(&key).is_some()
            && let Ok(metadata) = entry.metadata()
        {
            found(key, metadata)?;
        }
    }
    Ok(())
}

/// Creates a directory that only its owner can access, and its parents.
pub(crate) fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Checks that a volume's UUID can be the name of a directory.
pub(crate) fn check_volume(volume: &str) -> Result<(), ChunkError> {
    if volume.is_empty() || volume.starts_with('.') || volume.contains(['/', '\0']) {
        return Err(ChunkError::Config(format!("{volume:?} cannot name the directory of a volume")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process may remove an empty directory, and create it again, at any moment.
    #[test]
    fn directories_above_are_synced_once_for_each_new_directory() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::create(place.path()).unwrap();
        let put = || dir.put("chunks/1/2/object", Bytes::from_static(b"data"), Vec::new()).unwrap();
        let synced = || dir.sync_directories(&BTreeSet::from([Path::new("chunks/1/2")])).unwrap();
        put();
        assert_eq!([synced(), synced()], [4, 1]);
        fs::remove_dir_all(place.path().join("chunks/1")).unwrap();
        put();
        assert_eq!([synced(), synced()], [4, 1]);
    }
}
