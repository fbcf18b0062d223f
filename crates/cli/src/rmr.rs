//! `limen rmr`: removes trees with several threads.
//!
//! Names are looked up one at a time, each in its open directory, and symbolic links are never followed: whatever
//! others rename meanwhile, nothing outside the tree is touched. A directory is read one buffer at a time, its entries
//! are removed by whoever is free, and the last of them goes on with the next buffer; so memory depends on neither the
//! number of files nor their directory's size. Open descriptors are as many as the tree is deep, for each thread.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use indicatif::ProgressBar;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, openat, openat2, seek, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::args::RmrArgs;
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::output;
use crate::pool::{self, Queue};

/// Names handed to a thread at once.
const BATCH: usize = 64;
/// What getdents(2) may fill at once: some 2,000 entries.
const BUFFER_BYTES: usize = 64 << 10;
/// How often a directory that is not empty at its end is read again: others may put files into it all the time.
const MAX_REWINDS: u32 = 8;
/// What went wrong is kept for this many files, and counted for all.
const MAX_KEPT: usize = 10;

pub(crate) fn run(args: &RmrArgs) -> Result<(), Fault> {
    // All are looked at before anything is removed.
    let mounts = mount_points()?;
    for path in &args.paths {
        refuse(path, &mounts)?;
    }
    let interrupt = Interrupt::install()?;
    let bar = output::progress("removed");
    let mut all = Removed::default();
    for path in &args.paths {
        let removed = remove(path, args.threads, &bar, &|| interrupt.is_set())?;
        all.add(removed);
    }
    bar.finish_and_clear();
    for (path, error) in &all.failures {
        output::note(format!("cannot remove it: {error}: {}", path.display()));
    }
    let Removed { files, directories, failed, .. } = all;
    if args.json {
        output::print_json(&json!({ "files": files, "directories": directories, "failed": failed }))?;
    } else {
        output::print(&format!("Removed {files} files and {directories} directories.\n"))?;
    }
    interrupt.check()?;
    match failed {
        0 => Ok(()),
        _ => Err(Fault::new(format!("{failed} files or directories could not be removed"))),
    }
}

/// What was removed, and what could not be.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Whatever is no directory.
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) failed: u64,
    /// Some of those.
    pub(crate) failures: Vec<(PathBuf, Errno)>,
}

impl Removed {
    fn add(&mut self, more: Removed) {
        self.files += more.files;
        self.directories += more.directories;
        self.failed += more.failed;
        self.failures.extend(more.failures);
        self.failures.truncate(MAX_KEPT);
    }
}

/// Removes what is at `path`, with all that is in it but for other mounts; what is absent already is no failure.
///
/// # Errors
/// The directory that holds `path` cannot be opened. What happens within is in the answer.
pub(crate) fn remove(
    path: &Path,
    threads: usize,
    bar: &ProgressBar,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Removed, Fault> {
    allow_open_files();
    let (parent, name) = split(path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent_fd = openat(CWD, &parent, flags, Mode::empty())
        .map_err(|error| Fault::new(format!("cannot open the directory: {error}")).at(parent.display()))?;
    let base = Arc::new(Dir::new(None, CString::new(parent.as_os_str().as_bytes()).unwrap_or_default()));
    // It was made a line above, without a descriptor.
    let _ = base.fd.set(parent_fd);
    base.pending.store(1, Ordering::Relaxed);
    let walk = Walk {
        bar,
        stop,
        files: AtomicU64::new(0),
        directories: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        failures: Mutex::default(),
    };
    pool::run(threads, vec![Task::Unlink(base, vec![name])], |queue, task| walk.step(queue, task));
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
    /// `None` for the directory that holds the tree; it stays.
    parent: Option<Arc<Dir>>,
    name: CString,
    fd: OnceLock<OwnedFd>,
    /// Tasks that work on what the last buffer held.
    pending: AtomicUsize,
    /// Something in it stays, and so must it.
    failed: AtomicBool,
    rewinds: AtomicU32,
}

#[derive(Debug)]
enum Task {
    /// Goes on with reading a directory.
    Read(Arc<Dir>),
    /// Removes entries, of which the kind may not be known.
    Unlink(Arc<Dir>, Vec<CString>),
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
            Task::Unlink(dir, names) => {
                for name in names {
                    self.unlink(queue, &dir, name);
                }
                self.done(queue, &dir);
            }
        }
    }

    fn unlink(&self, queue: &Queue<Task>, dir: &Arc<Dir>, name: CString) {
        let Some(fd) = dir.fd.get() else { return };
        match unlinkat(fd, &name, AtFlags::empty()) {
            Ok(()) => self.count(&self.files),
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                dir.pending.fetch_add(1, Ordering::AcqRel);
                queue.push(Task::Read(Arc::new(Dir::new(Some(Arc::clone(dir)), name))));
            }
            Err(error) => self.fail(dir, dir.path().join(OsStr::from_bytes(name.to_bytes())), error),
        }
    }

    /// Reads the next entries of a directory and hands them out.
    fn read(&self, queue: &Queue<Task>, dir: &Arc<Dir>) {
        let Some(parent) = &dir.parent else { return };
        let opened = match dir.fd.get() {
            Some(_) => Ok(()),
            None => open_below(parent, &dir.name).map(|fd| {
                // Only whoever holds the task works on the directory.
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
                // One more, for this task itself.
                dir.pending.store(1 + directories.len() + files.len().div_ceil(BATCH), Ordering::Release);
                for (name, _) in directories {
                    queue.push(Task::Read(Arc::new(Dir::new(Some(Arc::clone(dir)), name))));
                }
                let mut files = files.into_iter().map(|(name, _)| name).peekable();
                while files.peek().is_some() {
                    let batch = files.by_ref().take(BATCH).collect();
                    queue.push(Task::Unlink(Arc::clone(dir), batch));
                }
                self.done(queue, dir);
            }
            // A directory that may not be read may still be empty.
            Ok(None) | Err(Errno::ACCESS) => self.finish(queue, dir, parent),
            Err(Errno::NOENT) => self.done(queue, parent),
            Err(error) => {
                self.fail(dir, dir.path(), error);
                self.finish(queue, dir, parent);
            }
        }
    }

    /// Removes a directory that was read to its end.
    fn finish(&self, queue: &Queue<Task>, dir: &Arc<Dir>, parent: &Arc<Dir>) {
        if dir.failed.load(Ordering::Acquire) {
            parent.failed.store(true, Ordering::Release);
            return self.done(queue, parent);
        }
        let Some(fd) = parent.fd.get() else { return };
        match unlinkat(fd, &dir.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.count(&self.directories),
            Err(Errno::NOENT) => {}
            // Something was put into it meanwhile, or the file system's listings do not outlive removals.
            Err(Errno::NOTEMPTY)
                if dir.rewinds.fetch_add(1, Ordering::Relaxed) < MAX_REWINDS
                    && dir.fd.get().is_some_and(|fd| seek(fd, SeekFrom::Start(0)).is_ok()) =>
            {
                return queue.push(Task::Read(Arc::clone(dir)));
            }
            Err(error) => self.fail(parent, dir.path(), error),
        }
        self.done(queue, parent);
    }

    /// A task on what is in `dir` is done; the last one goes on reading.
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

/// Opens a directory in another: neither a link nor what is mounted there.
fn open_below(parent: &Dir, name: &CStr) -> Result<OwnedFd, Errno> {
    let Some(fd) = parent.fd.get() else { return Err(Errno::NOENT) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(fd, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

type Entries = Vec<(CString, FileType)>;

/// What one getdents(2) gives; `None` at the end.
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

/// The directory that holds `path`, and its name there. A slash at the end does not make a link a directory.
fn split(path: &Path) -> Result<(PathBuf, CString), Fault> {
    let wrong = || {
        Fault::usage("this cannot be removed")
            .at(path.display())
            .advise("name a file or directory by its name")
    };
    let last = path.components().next_back();
    let Some(Component::Normal(name)) = last else { return Err(wrong()) };
    if path.as_os_str().as_bytes().ends_with(b"/.") {
        return Err(wrong());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_owned(), CString::new(name.as_bytes()).map_err(|_| wrong())?))
}

/// Refuses what nobody means: the root, a mount point, and whatever has a mount point below it.
fn refuse(path: &Path, mounts: &[PathBuf]) -> Result<(), Fault> {
    let (parent, name) = split(path)?;
    // Without the directory there is nothing to remove, which is said later.
    let Ok(parent) = fs::canonicalize(parent) else { return Ok(()) };
    let full = parent.join(OsStr::from_bytes(name.to_bytes()));
    match mounts.iter().find(|mount| mount.starts_with(&full)) {
        Some(mount) => Err(Fault::usage("a file system is mounted there")
            .at(mount.display())
            .advise("unmount it first, or name what is in it; nothing was removed")),
        None => Ok(()),
    }
}

/// Field 5 of each line in `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).
fn mount_points() -> Result<Vec<PathBuf>, Fault> {
    const SOURCE: &str = "/proc/self/mountinfo";
    let text = fs::read(SOURCE).map_err(|error| Fault::new(error).at(SOURCE))?;
    let field = |line: &[u8]| line.split(|&byte| byte == b' ').nth(4).map(unescape);
    Ok(text.split(|&byte| byte == b'\n').filter_map(field).collect())
}

/// Blanks, newlines and backslashes stand there as three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Each level of a deep tree needs a descriptor, and the usual soft limit is for programs that use select(2).
fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, a tree that is too deep is reported as such.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove_quietly(path: &Path) -> Removed {
        remove(path, 3, &ProgressBar::hidden(), &|| false).unwrap()
    }

    #[test]
    fn a_tree_is_removed_and_counted_and_links_are_not_followed() {
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
    fn a_directory_larger_than_a_buffer_and_one_deeper_than_a_path_may_be_long() {
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
    fn an_absent_path_is_nothing_and_an_absent_parent_a_fault() {
        let place = tempfile::tempdir().unwrap();
        let removed = remove_quietly(&place.path().join("absent"));
        assert_eq!((removed.files, removed.failed), (0, 0));
        assert!(remove(&place.path().join("a/b"), 1, &ProgressBar::hidden(), &|| false).is_err());
    }

    #[test]
    fn what_nobody_means_is_refused() {
        let mounts = ["/", "/mnt", "/srv/x/y"].map(PathBuf::from);
        for path in ["/", ".", "..", "a/..", "a/.", "", "/mnt", "/mnt/", "/srv"] {
            assert_eq!(refuse(Path::new(path), &mounts).unwrap_err().exit_code(), 2, "{path}");
        }
        assert!(refuse(Path::new("/mnt/a"), &mounts).is_ok());
        assert!(refuse(Path::new("/etc/x"), &mounts).is_ok());
    }

    #[test]
    fn mount_points_with_blanks_are_read() {
        assert_eq!(unescape(br"/a\040b\134c"), PathBuf::from(r"/a b\c"));
        assert_eq!(unescape(br"/a\9"), PathBuf::from(r"/a\9"));
        assert!(mount_points().unwrap().contains(&PathBuf::from("/")));
    }
}
