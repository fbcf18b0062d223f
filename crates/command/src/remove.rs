//! Removes trees with several threads.
//!
//! Each name is looked up separately, relative to its open directory, and symbolic links in the tree are
//! never followed. So only directories in the tree are opened, even if other processes rename files
//! meanwhile. If a directory is moved out of the tree after it was opened, it is still emptied.
//!
//! A directory is read one buffer at a time. One thread removes the files of a buffer, because the kernel
//! removes only one name of a directory at a time (`do_unlinkat` locks it); other threads work in other
//! directories. When all entries of a buffer were handled, the next buffer is read. So memory use depends
//! neither on the number of files nor on the size of a directory. The number of open descriptors grows only
//! with the depth of the tree and the number of threads.

use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use indicatif::ProgressBar;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, openat, openat2, seek, unlinkat,
};
use rustix::io::Errno;

use crate::error::{CliError, ErrorAt};
use crate::pool::{self, Queue};
use crate::process::raise_open_file_limit;

/// The buffer of getdents(2): about 2,000 entries.
const BUFFER_BYTES: usize = 64 << 10;
/// If a directory is not empty after its entries were removed, it is read again, at most this many times.
/// There is a limit because other processes can create files in it all the time.
const MAX_REWINDS: u32 = 8;
/// Errors are kept for this many files; further ones are only counted.
const MAX_KEPT: usize = 10;

/// The numbers of removed files and directories, and the failures.
#[derive(Debug, Default)]
pub struct Removed {
    /// Everything that is not a directory.
    pub files: u64,
    pub directories: u64,
    pub failed: u64,
    /// The first few failures.
    pub failures: Vec<(PathBuf, Errno)>,
}

impl Removed {
    /// Adds the counts of another tree.
    pub fn add(&mut self, more: Removed) {
        self.files += more.files;
        self.directories += more.directories;
        self.failed += more.failed;
        self.failures.extend(more.failures);
        self.failures.truncate(MAX_KEPT);
    }
}

/// Removes the file or tree at `path`, except other file systems mounted in it. A path that does not exist is
/// not a failure.
///
/// # Errors
/// `path` does not end in a name, or its parent directory cannot be opened. Failures inside the tree are
/// counted in the result.
pub fn remove(
    path: &Path,
    threads: usize,
    bar: &ProgressBar,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Removed, CliError> {
    remove_by(&|dir, name, flags| unlinkat(dir, name, flags), path, threads, bar, stop)
}

/// Removes a name in a directory, as unlinkat(2).
pub type UnlinkName<'a> = &'a (dyn Fn(BorrowedFd<'_>, &CStr, AtFlags) -> Result<(), Errno> + Sync);

/// As [`remove`], but removes each name with `unlink`.
///
/// # Errors
/// As for [`remove`].
pub fn remove_by(
    unlink: UnlinkName<'_>,
    path: &Path,
    threads: usize,
    bar: &ProgressBar,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Removed, CliError> {
    // Each level of a deep tree needs a descriptor.
    raise_open_file_limit();
    let (parent, name) = split(path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent_fd =
        openat(CWD, &parent, flags, Mode::empty()).what("cannot open the directory").at(parent.display())?;
    let base = Arc::new(Dir::new(None, CString::new(parent.as_os_str().as_bytes()).unwrap_or_default()));
    // The cell is empty: `base` was created a line above.
    let _ = base.fd.set(parent_fd);
    base.pending.store(1, Ordering::Relaxed);
    let walk = Walk {
        unlink,
        bar,
        stop,
        files: AtomicU64::new(0),
        directories: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        failures: Mutex::default(),
    };
    pool::run(threads, vec![Task::Unlink(base, name)], |queue, task| walk.step(queue, task));
    Ok(Removed {
        files: walk.files.into_inner(),
        directories: walk.directories.into_inner(),
        failed: walk.failed.into_inner(),
        failures: walk.failures.into_inner().unwrap_or_else(PoisonError::into_inner),
    })
}

/// A directory that is being emptied.
#[derive(Debug)]
struct Dir {
    /// `None` for the directory that contains the tree, which is not removed.
    parent: Option<Arc<Dir>>,
    name: CString,
    fd: OnceLock<OwnedFd>,
    /// Unfinished tasks for the entries of the last buffer.
    pending: AtomicUsize,
    /// Whether the directory could not be read, or an entry not removed, so that the directory must be kept.
    failed: AtomicBool,
    rewinds: AtomicU32,
}

#[derive(Debug)]
enum Task {
    /// Reads the next buffer of a directory.
    Read(Arc<Dir>),
    /// Removes the path that was given, which is not known to be a directory.
    Unlink(Arc<Dir>, CString),
}

impl Dir {
    fn new(parent: Option<Arc<Dir>>, name: CString) -> Self {
        Dir {
            parent,
            name,
            fd: OnceLock::new(),
            pending: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            rewinds: AtomicU32::new(0),
        }
    }

    fn path(&self) -> PathBuf {
        let mut names = vec![OsStr::from_bytes(self.name.to_bytes())];
        let mut above = self.parent.as_ref();
        while let Some(dir) = above {
            names.push(OsStr::from_bytes(dir.name.to_bytes()));
            above = dir.parent.as_ref();
        }
        names.iter().rev().collect()
    }
}

struct Walk<'a> {
    unlink: UnlinkName<'a>,
    bar: &'a ProgressBar,
    stop: &'a (dyn Fn() -> bool + Sync),
    files: AtomicU64,
    directories: AtomicU64,
    failed: AtomicU64,
    failures: Mutex<Vec<(PathBuf, Errno)>>,
}

impl Walk<'_> {
    fn step(&self, queue: &Queue<Task>, task: Task) {
        if (self.stop)() {
            return;
        }
        match task {
            Task::Read(dir) => self.read(queue, &dir),
            Task::Unlink(dir, name) => self.unlink_all(queue, &dir, [name]),
        }
    }

    /// Removes entries that are not known to be directories, and ends the task.
    fn unlink_all(&self, queue: &Queue<Task>, dir: &Arc<Dir>, names: impl IntoIterator<Item = CString>) {
        for name in names {
            if (self.stop)() {
                return;
            }
            self.unlink(queue, dir, name);
        }
        self.done(queue, dir);
    }

    fn unlink(&self, queue: &Queue<Task>, dir: &Arc<Dir>, name: CString) {
        let Some(fd) = dir.fd.get() else { return };
        match (self.unlink)(fd.as_fd(), &name, AtFlags::empty()) {
            Ok(()) => self.count(&self.files),
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                dir.pending.fetch_add(1, Ordering::AcqRel);
                queue.push(Task::Read(Arc::new(Dir::new(Some(Arc::clone(dir)), name))));
            }
            Err(error) => self.fail(dir, dir.path().join(OsStr::from_bytes(name.to_bytes())), error),
        }
    }

    /// Reads the next entries of a directory and queues tasks for them.
    fn read(&self, queue: &Queue<Task>, dir: &Arc<Dir>) {
        let Some(parent) = &dir.parent else { return };
        let opened = match dir.fd.get() {
            Some(_) => Ok(()),
            None => open_below(parent, &dir.name).map(|fd| {
                // The cell is empty: only the thread with this task opens the directory.
                let _ = dir.fd.set(fd);
            }),
        };
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let entries = opened.and_then(|()| match dir.fd.get() {
            Some(fd) => next_entries(fd, &mut buffer),
            None => Ok(None),
        });
        match entries {
            Ok(Some(entries)) => {
                let (directories, files): (Vec<_>, Vec<_>) =
                    entries.into_iter().partition(|(_, kind)| *kind == FileType::Directory);
                // The 1 stands for this task.
                dir.pending.store(1 + directories.len(), Ordering::Release);
                for (name, _) in directories {
                    queue.push(Task::Read(Arc::new(Dir::new(Some(Arc::clone(dir)), name))));
                }
                self.unlink_all(queue, dir, files.into_iter().map(|(name, _)| name));
            }
            Ok(None) => self.finish(queue, dir, parent, None),
            // A directory that cannot be read may be empty, and rmdir(2) needs no read permission.
            Err(Errno::ACCESS) => self.finish(queue, dir, parent, Some(Errno::ACCESS)),
            Err(Errno::NOENT) => self.done(queue, parent),
            Err(error) => {
                self.fail(dir, dir.path(), error);
                self.finish(queue, dir, parent, Some(error));
            }
        }
    }

    /// Removes a directory whose entries were all handled. `unread` is why it could not be read.
    fn finish(&self, queue: &Queue<Task>, dir: &Arc<Dir>, parent: &Arc<Dir>, unread: Option<Errno>) {
        if dir.failed.load(Ordering::Acquire) {
            parent.failed.store(true, Ordering::Release);
            return self.done(queue, parent);
        }
        let Some(fd) = parent.fd.get() else { return };
        match (self.unlink)(fd.as_fd(), &dir.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.count(&self.directories),
            Err(Errno::NOENT) => {}
            // A file was created in the directory meanwhile, or the file system's listing skips entries after
            // removals.
            Err(Errno::NOTEMPTY)
                if dir.rewinds.fetch_add(1, Ordering::Relaxed) < MAX_REWINDS
                    && dir.fd.get().is_some_and(|fd| seek(fd, SeekFrom::Start(0)).is_ok()) =>
            {
                return queue.push(Task::Read(Arc::clone(dir)));
            }
            Err(Errno::NOTEMPTY) => self.fail(parent, dir.path(), unread.unwrap_or(Errno::NOTEMPTY)),
            Err(error) => self.fail(parent, dir.path(), error),
        }
        self.done(queue, parent);
    }

    /// Ends one task for entries of `dir`. The last one queues the next read.
    fn done(&self, queue: &Queue<Task>, dir: &Arc<Dir>) {
        if dir.pending.fetch_sub(1, Ordering::AcqRel) == 1 && dir.parent.is_some() {
            queue.push(Task::Read(Arc::clone(dir)));
        }
    }

    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(1);
    }

    fn fail(&self, within: &Dir, path: PathBuf, error: Errno) {
        within.failed.store(true, Ordering::Release);
        self.failed.fetch_add(1, Ordering::Relaxed);
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < MAX_KEPT {
            failures.push((path, error));
        }
    }
}

/// Opens a directory in another, without following a symbolic link or crossing a mount point.
fn open_below(parent: &Dir, name: &CStr) -> Result<OwnedFd, Errno> {
    let Some(fd) = parent.fd.get() else { return Err(Errno::NOENT) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(fd, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

type Entries = Vec<(CString, FileType)>;

/// The entries of one getdents(2) call; `None` at the end of the directory.
fn next_entries(fd: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) -> Result<Option<Entries>, Errno> {
    let mut raw = RawDir::new(fd.as_fd(), buffer);
    let mut entries = None;
    while let Some(entry) = raw.next() {
        let entry = entry?;
        let entries = entries.get_or_insert_with(Vec::new);
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            entries.push((entry.file_name().to_owned(), entry.file_type()));
        }
        if raw.is_buffer_empty() {
            break;
        }
    }
    Ok(entries)
}

/// Splits `path` into its parent directory and its name, without a trailing slash. So the name of a symbolic
/// link stands for the link, even if a slash follows it.
///
/// # Errors
/// The path does not end in a name.
pub fn split(path: &Path) -> Result<(PathBuf, CString), CliError> {
    let wrong = || {
        CliError::usage("cannot remove a path that does not end in a name")
            .at(path.display())
            .advise("name the file or directory itself")
    };
    let last = path.components().next_back();
    let Some(Component::Normal(name)) = last else { return Err(wrong()) };
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    if bytes[..end].ends_with(b"/.") {
        return Err(wrong());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_owned(), CString::new(name.as_bytes()).map_err(|_| wrong())?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn remove_quietly(path: &Path) -> Removed {
        remove(path, 3, &ProgressBar::hidden(), &|| false).unwrap()
    }

    #[test]
    fn tree_is_removed_and_counted_without_following_links() {
        let place = tempfile::tempdir().unwrap();
        let (tree, outside) = (place.path().join("tree"), place.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        for d in 0..20 {
            let dir = tree.join(format!("{d}/a/b"));
            fs::create_dir_all(&dir).unwrap();
            for f in 0..200 {
                fs::write(dir.join(format!("{f}")), "").unwrap();
            }
            std::os::unix::fs::symlink(&outside, dir.join("link")).unwrap();
        }
        let removed = remove_quietly(&tree);
        assert_eq!((removed.files, removed.directories, removed.failed), (20 * 201, 61, 0));
        assert!(!tree.exists() && outside.join("kept").exists());
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        assert_eq!(remove_quietly(&place.path().join("link/")).files, 1);
        assert!(outside.join("kept").exists() && link.symlink_metadata().is_err());
    }

    #[test]
    fn large_directory_and_tree_deeper_than_path_max_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        fs::create_dir(&tree).unwrap();
        for f in 0..5000 {
            fs::write(tree.join(format!("a-name-that-fills-the-buffer-{f}")), "").unwrap();
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut fd = openat(CWD, &tree, flags, Mode::empty()).unwrap();
        let name = "d".repeat(200);
        for _ in 0..100 {
            rustix::fs::mkdirat(&fd, &name, Mode::RWXU).unwrap();
            fd = openat(&fd, &name, flags, Mode::empty()).unwrap();
        }
        let removed = remove_quietly(&tree);
        assert_eq!((removed.files, removed.directories, removed.failed), (5000, 101, 0));
    }

    #[test]
    fn absent_path_is_no_failure_but_absent_parent_is() {
        let place = tempfile::tempdir().unwrap();
        let removed = remove_quietly(&place.path().join("absent"));
        assert_eq!((removed.files, removed.failed), (0, 0));
        assert!(remove(&place.path().join("a/b"), 1, &ProgressBar::hidden(), &|| false).is_err());
    }
}
