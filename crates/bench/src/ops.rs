//! The operations of the benchmark. Each thread runs them on its own files.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, XattrFlags, chmodat, lgetxattr, linkat, mkdirat, openat,
    renameat, setxattr, statx, symlinkat, unlinkat,
};
use rustix::io::{Errno, Result};

/// Files in a directory.
const GROUP: usize = 100;
/// `stat` and `ls` are repeated this often, because one pass is too short to be measured.
const FAST_PASSES: usize = 10;

const ATTRIBUTE: &str = "user.limen-bench";
const VALUE: &[u8] = b"sixteen bytes ..";
pub(crate) const ACCESS_ACL: &str = "system.posix_acl_access";
pub(crate) const DEFAULT_ACL: &str = "system.posix_acl_default";
/// The longest xattr value (`XATTR_SIZE_MAX`).
const ACL_BYTES: usize = 64 << 10;

/// The operations, in the order in which they run: listings while the files are new, deletion last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Op {
    Mkdir,
    /// Create an empty file and close it
    Create,
    /// Open a file for reading, and close it
    Open,
    Stat,
    /// List a tree with attributes and ACLs, like ls -lR
    #[value(name = "ls-lR")]
    ListLong,
    /// List the names of a directory of 100 that was listed before
    #[value(name = "ls")]
    List,
    Chmod,
    Setxattr,
    Hardlink,
    Symlink,
    Rename,
    /// Unlink a file's only name
    Delete,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Mkdir => "mkdir",
            Op::Create => "create",
            Op::Open => "open",
            Op::Stat => "stat",
            Op::ListLong => "ls -lR",
            Op::List => "ls",
            Op::Chmod => "chmod",
            Op::Setxattr => "setxattr",
            Op::Hardlink => "hardlink",
            Op::Symlink => "symlink",
            Op::Rename => "rename",
            Op::Delete => "delete",
        }
    }

    /// Whether this operation must run before those in `asked`, even if it is not measured itself.
    pub(crate) fn is_needed_by(self, asked: &[Op]) -> bool {
        match self {
            Op::Create => asked.iter().any(|op| !matches!(op, Op::Mkdir | Op::Symlink)),
            Op::ListLong => asked.contains(&Op::List),
            _ => false,
        }
    }
}

/// The files and directories of one thread.
#[derive(Debug)]
pub(crate) struct Share {
    root: PathBuf,
    files: usize,
    names: FileNames,
}

#[derive(Debug)]
struct FileNames {
    files: Vec<CString>,
    renamed: Vec<CString>,
}

/// The kinds of directories of a share; each kind has one directory for each group of files.
const KINDS: [&str; 4] = ["files", "dirs", "links", "symlinks"];

impl Share {
    /// Creates the directories for the operations.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) fn prepare(root: PathBuf, files: usize) -> std::io::Result<Self> {
        fs::create_dir(&root)?;
        for kind in KINDS {
            fs::create_dir(root.join(kind))?;
            for group in 0..files.div_ceil(GROUP) {
                fs::create_dir(root.join(kind).join(group.to_string()))?;
            }
        }
        let names = |prefix: &str| {
            let names = (0..GROUP).map(|n| CString::new(format!("{prefix}-{n:02}")));
            names.collect::<std::result::Result<_, _>>()
        };
        Ok(Share { root, files, names: FileNames { files: names("file")?, renamed: names("renamed")? } })
    }

    /// The directory of the hard links. From [`Op::Hardlink`] until its removal, each file has two names.
    pub(crate) fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// Runs the operation on all files. Returns the number of operations; for [`Op::ListLong`], each name is
    /// one.
    ///
    /// # Errors
    /// Errors of the file system; EINTR if `stop` returns true.
    pub(crate) fn run(&self, op: Op, renamed: bool, stop: &dyn Fn() -> bool) -> Result<u64> {
        let mut done = 0;
        match op {
            Op::ListLong => self.each_group("files", stop, |path, _, _| {
                done += list_long(path)?;
                Ok(())
            })?,
            Op::List => {
                for _ in 0..FAST_PASSES {
                    self.each_group("files", stop, |path, _, _| {
                        done += list(path)?;
                        Ok(())
                    })?;
                }
            }
            Op::Mkdir => self.each_file("dirs", stop, false, &mut done, |dir, _, name| {
                mkdirat(dir, name, Mode::RWXU | Mode::RWXG)
            })?,
            Op::Create => self.each_file("files", stop, renamed, &mut done, |dir, _, name| {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                openat(dir, name, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP).map(drop)
            })?,
            Op::Open => self.each_file("files", stop, renamed, &mut done, |dir, _, name| {
                openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(drop)
            })?,
            Op::Stat => {
                for _ in 0..FAST_PASSES {
                    self.each_file("files", stop, renamed, &mut done, |dir, _, name| {
                        statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS).map(drop)
                    })?;
                }
            }
            Op::Chmod => self.each_file("files", stop, renamed, &mut done, |dir, _, name| {
                chmodat(dir, name, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP, AtFlags::empty())
            })?,
            // Use the path, because setxattrat(2) does not exist on all kernels that limenfs supports.
            Op::Setxattr => self.each_file("files", stop, renamed, &mut done, |_, path, name| {
                let path = [path.as_os_str().as_bytes(), b"/", name.to_bytes()].concat();
                setxattr(path, ATTRIBUTE, VALUE, XattrFlags::empty())
            })?,
            Op::Hardlink => {
                let target = self.root.join("links");
                let mut group_of_links: Option<(PathBuf, OwnedFd)> = None;
                self.each_file("files", stop, renamed, &mut done, |dir, path, name| {
                    if group_of_links.as_ref().is_none_or(|(of, _)| of != path) {
                        let links = target.join(path.file_name().unwrap_or_default());
                        group_of_links = Some((path.to_owned(), open_path(&links)?));
                    }
                    match &group_of_links {
                        Some((_, links)) => linkat(dir, name, links, name, AtFlags::empty()),
                        None => Err(Errno::NOENT),
                    }
                })?;
            }
            Op::Symlink => self.each_file("symlinks", stop, renamed, &mut done, |dir, _, name| {
                symlinkat("../../files/target", dir, name)
            })?,
            Op::Rename => {
                let (from, to) = (&self.names.files, &self.names.renamed);
                self.each_group("files", stop, |_, dir, count| {
                    for (from, to) in from.iter().zip(to).take(count) {
                        renameat(dir, from, dir, to)?;
                        done += 1;
                    }
                    Ok(())
                })?;
            }
            Op::Delete => self.each_file("files", stop, renamed, &mut done, |dir, _, name| {
                unlinkat(dir, name, AtFlags::empty())
            })?,
        }
        Ok(done)
    }

    /// Calls `work` for each group, with its directory and its number of files.
    fn each_group(
        &self,
        kind: &str,
        stop: &dyn Fn() -> bool,
        mut work: impl FnMut(&Path, &OwnedFd, usize) -> Result<()>,
    ) -> Result<()> {
        for (group, first) in (0..self.files).step_by(GROUP).enumerate() {
            if stop() {
                return Err(Errno::INTR);
            }
            let path = self.root.join(kind).join(group.to_string());
            work(&path, &open_path(&path)?, GROUP.min(self.files - first))?;
        }
        Ok(())
    }

    fn each_file(
        &self,
        kind: &str,
        stop: &dyn Fn() -> bool,
        renamed: bool,
        done: &mut u64,
        mut work: impl FnMut(&OwnedFd, &Path, &CStr) -> Result<()>,
    ) -> Result<()> {
        let names = if renamed { &self.names.renamed } else { &self.names.files };
        self.each_group(kind, stop, |path, dir, count| {
            for name in &names[..count] {
                work(dir, path, name)?;
                *done += 1;
            }
            Ok(())
        })
    }
}

fn open_path(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Reads the names in a directory. Returns 1, for the directory.
fn list(path: &Path) -> Result<u64> {
    let dir = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for entry in Dir::new(dir)? {
        entry?;
    }
    Ok(1)
}

/// Lists a directory like `ls -l`: reads the attributes and the ACL of each name. Returns the number of
/// names.
fn list_long(path: &Path) -> Result<u64> {
    let dir = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut acl = vec![0_u8; ACL_BYTES];
    let mut full = Vec::with_capacity(path.as_os_str().len() + 32);
    let mut entries = 0;
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        statx(&dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        full.clear();
        full.extend_from_slice(path.as_os_str().as_bytes());
        full.push(b'/');
        full.extend_from_slice(name.to_bytes());
        match lgetxattr(full.as_slice(), ACCESS_ACL, acl.as_mut_slice()) {
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
        entries += 1;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_runs_on_each_file() {
        let place = tempfile::tempdir().unwrap();
        let share = Share::prepare(place.path().join("share"), 130).unwrap();
        let mut renamed = false;
        for &op in Op::value_variants() {
            let passes = if op == Op::Stat { 10 } else { 1 };
            let expected = if op == Op::List { 20 } else { passes * 130 };
            match share.run(op, renamed, &|| false) {
                Err(Errno::OPNOTSUPP) if op == Op::Setxattr => {}
                done => assert_eq!(done, Ok(expected), "{op:?}"),
            }
            renamed |= op == Op::Rename;
        }
        let count = |kind: &str| {
            let groups = fs::read_dir(place.path().join("share").join(kind)).unwrap();
            groups.map(|group| fs::read_dir(group.unwrap().path()).unwrap().count()).sum::<usize>()
        };
        assert_eq!(KINDS.map(count), [0, 130, 130, 130]);
        assert_eq!(share.run(Op::Open, true, &|| true), Err(Errno::INTR));
    }

    #[test]
    fn dependencies_between_operations_are_known() {
        assert!(Op::Create.is_needed_by(&[Op::Rename]) && !Op::Create.is_needed_by(&[Op::Mkdir]));
        assert!(Op::ListLong.is_needed_by(&[Op::List]) && !Op::Chmod.is_needed_by(Op::value_variants()));
    }
}
