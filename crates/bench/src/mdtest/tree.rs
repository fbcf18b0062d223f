//! The tree of the benchmark, and each operation on its n-th directory or file.
//!
//! Directories are numbered level by level: the top is 0, and the children of `n` start at `n * dirs + 1`. So
//! names are computed from numbers, and no memory is needed for millions of files.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use command::error::CliError;
use types::{Errno, FileType, Ino, Mode};
use vfs::{Caller, DirPosition, MakeKind, MakeRequest, RenameFlags, Vfs};

use super::options::Shape;

/// The size of one write request.
const WRITE_BYTES: usize = 128 << 10;

/// A tree on a volume.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    vfs: &'a Vfs,
    shape: Shape,
    /// The path of the top directory, for messages.
    path: String,
    caller: &'a Caller<'a>,
    write_bytes: u64,
    /// See [`Shape::levels`].
    levels: Vec<u64>,
    /// The inode of each directory; 0 before it is created.
    inos: Vec<AtomicU64>,
    /// One more than the highest file number whose creation was started.
    files_begun: AtomicU64,
}

impl<'a> Tree<'a> {
    /// Describes a tree below `top`, and creates nothing. `levels` are those of `shape`.
    pub(super) fn new(
        vfs: &'a Vfs,
        caller: &'a Caller<'a>,
        top: &Top,
        shape: Shape,
        levels: Vec<u64>,
        write_bytes: u64,
    ) -> Self {
        let count = levels.last().copied().unwrap_or(1);
        let inos: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::default()).collect();
        if let Some(first) = inos.first() {
            first.store(top.ino.0, Ordering::Relaxed);
        }
        Tree {
            vfs,
            shape,
            path: top.path.clone(),
            caller,
            write_bytes,
            levels,
            inos,
            files_begun: AtomicU64::new(0),
        }
    }

    /// The numbers of all directories.
    pub(super) fn dirs(&self) -> Range<u64> {
        0..self.inos.len() as u64
    }

    /// The numbers of all files.
    pub(super) fn files(&self) -> Range<u64> {
        0..self.inos.len() as u64 * self.shape.files
    }

    /// The numbers of the files whose creation was started. Only these files can exist.
    pub(super) fn files_begun(&self) -> Range<u64> {
        0..self.files_begun.load(Ordering::Acquire)
    }

    /// The directory numbers of each level below the top. A level can be created only after the one above it.
    pub(super) fn levels(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
        self.levels.windows(2).skip(1).filter_map(|ends| Some(*ends.first()?..*ends.last()?))
    }

    /// Creates a directory, and records that the kernel got its attributes, as a mount does. Later operations
    /// in the directory are checked against the access revision in these attributes.
    pub(super) fn mkdir(&self, dir: u64) -> Result<(), CliError> {
        let (parent, name) = self.name_of_dir(dir);
        let request = self.request(parent, &name, MakeKind::Directory, 0o755);
        let made = self
            .vfs
            .names
            .make(self.caller, request)
            .map_err(|errno| self.error("mkdir", parent, &name, errno))?;
        self.vfs.caches.looked_up(&made);
        if let Some(ino) = self.inos.get(dir as usize) {
            ino.store(made.ino.0, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn rmdir(&self, dir: u64) -> Result<(), CliError> {
        let (parent, name) = self.name_of_dir(dir);
        let removed = self.vfs.names.rmdir(self.caller, self.ino(parent), name.as_bytes());
        removed.map_err(|errno| self.error("rmdir", parent, &name, errno))
    }

    /// Creates a file, writes it, and closes it.
    pub(super) fn create(&self, file: u64) -> Result<(), CliError> {
        self.files_begun.fetch_max(file + 1, Ordering::AcqRel);
        let (dir, name) = self.name_of_file(file, "file");
        let request = self.request(dir, &name, MakeKind::Regular, 0o644);
        let created = self.vfs.names.create(self.caller, request);
        let ino = created.map_err(|errno| self.error("create", dir, &name, errno))?.ino;
        let written = self.write(ino);
        let closed = self.vfs.files.close(ino);
        written.and(closed).map_err(|errno| self.error("write", dir, &name, errno))
    }

    pub(super) fn stat(&self, file: u64) -> Result<(), CliError> {
        let (dir, name) = self.name_of_file(file, "file");
        let found = self.vfs.names.lookup(self.caller, self.ino(dir), name.as_bytes());
        let size = match found.and_then(|entry| entry.ok_or(Errno::ENOENT)) {
            Ok(attr) => attr.size_bytes,
            Err(errno) => return Err(self.error("stat", dir, &name, errno)),
        };
        if size == self.write_bytes {
            return Ok(());
        }
        let written = self.write_bytes;
        Err(CliError::new(format!("a file has {size} bytes, but {written} were written"))
            .at(join(&self.path_of(dir), &name)))
    }

    pub(super) fn rename(&self, file: u64) -> Result<(), CliError> {
        let (dir, old) = self.name_of_file(file, "file");
        let (_, new) = self.name_of_file(file, "renamed");
        let ino = self.ino(dir);
        let flags = RenameFlags::default();
        let renamed =
            self.vfs.names.rename(self.caller, (ino, old.as_bytes()), (ino, new.as_bytes()), flags, false);
        renamed.map_err(|errno| self.error("rename", dir, &old, errno))
    }

    pub(super) fn unlink(&self, file: u64) -> Result<(), CliError> {
        let (dir, name) = self.name_of_file(file, "renamed");
        let unlinked = self.vfs.names.unlink(self.caller, self.ino(dir), name.as_bytes());
        unlinked.map_err(|errno| self.error("unlink", dir, &name, errno))
    }

    /// Lists a directory with attributes, and checks that it has all its entries.
    pub(super) fn list(&self, dir: u64) -> Result<(), CliError> {
        let list = || -> Result<u64, Errno> {
            let handle = self.vfs.listings.opendir(self.caller, self.ino(dir))?;
            let mut with_attributes = 0;
            let listed = self.vfs.listings.readdir(handle, DirPosition(0), true, &mut |entry| {
                with_attributes += u64::from(entry.attr.is_some());
                true
            });
            self.vfs.listings.closedir(handle)?;
            listed.map(|()| with_attributes)
        };
        let count = list().map_err(|errno| self.error("list", dir, ".", errno))?;
        let is_last = self.levels().next_back().is_none_or(|level| level.contains(&dir));
        let made = self.shape.files + if is_last { 0 } else { self.shape.dirs };
        if count == made {
            return Ok(());
        }
        Err(CliError::new(format!("{count} entries are listed, but {made} were created"))
            .at(self.path_of(dir)))
    }

    /// Removes a file by its old or new name, if it exists.
    pub(super) fn clear_file(&self, file: u64) -> Result<(), CliError> {
        for stem in ["file", "renamed"] {
            let (dir, name) = self.name_of_file(file, stem);
            let Some(ino) = self.made(dir) else { return Ok(()) };
            match self.vfs.names.unlink(self.caller, ino, name.as_bytes()) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(self.error("unlink", dir, &name, errno)),
            }
        }
        Ok(())
    }

    /// Removes a directory, if it exists.
    pub(super) fn clear_dir(&self, dir: u64) -> Result<(), CliError> {
        let (parent, name) = self.name_of_dir(dir);
        let Some(ino) = self.made(parent) else { return Ok(()) };
        match self.vfs.names.rmdir(self.caller, ino, name.as_bytes()) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.error("rmdir", parent, &name, errno)),
        }
    }

    fn write(&self, ino: Ino) -> Result<(), Errno> {
        if self.write_bytes == 0 {
            return Ok(());
        }
        let bytes = [0x5a; WRITE_BYTES];
        for offset in (0..self.write_bytes).step_by(WRITE_BYTES) {
            let len = (self.write_bytes - offset).min(WRITE_BYTES as u64) as usize;
            self.vfs.files.write(ino, offset, bytes.get(..len).unwrap_or_default())?;
        }
        self.vfs.files.flush(ino)
    }

    fn request<'n>(&self, dir: u64, name: &'n str, kind: MakeKind, mode: u32) -> MakeRequest<'n> {
        MakeRequest { parent: self.ino(dir), name: name.as_bytes(), kind, mode: Mode::new(mode), umask: 0 }
    }

    /// The parent of a directory, and its name there.
    fn name_of_dir(&self, dir: u64) -> (u64, String) {
        let before = dir.saturating_sub(1);
        let dirs = self.shape.dirs.max(1);
        (before / dirs, format!("dir.{}", before % dirs))
    }

    /// The directory of a file, and its name there.
    fn name_of_file(&self, file: u64, stem: &str) -> (u64, String) {
        let (files, dirs) = (self.shape.files.max(1), self.dirs().end.max(1));
        let (dir, number) =
            if self.shape.spread { (file % dirs, file / dirs) } else { (file / files, file % files) };
        (dir, format!("{stem}.{number}"))
    }

    /// The inode of a directory; before the directory is created, 0, which no inode has.
    fn ino(&self, dir: u64) -> Ino {
        Ino(self.inos.get(dir as usize).map_or(0, |ino| ino.load(Ordering::Acquire)))
    }

    fn made(&self, dir: u64) -> Option<Ino> {
        Some(self.ino(dir)).filter(|ino| ino.0 != 0)
    }

    fn path_of(&self, dir: u64) -> String {
        if dir == 0 {
            return self.path.clone();
        }
        let (parent, name) = self.name_of_dir(dir);
        join(&self.path_of(parent), &name)
    }

    fn error(&self, what: &str, dir: u64, name: &str, errno: Errno) -> CliError {
        CliError::new(format!("cannot {what}: {errno}")).at(join(&self.path_of(dir), name))
    }
}

/// The path of a name in a directory.
pub(super) fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

/// The directory to work in.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) ino: Ino,
    pub(super) path: String,
    /// The parent and name if this command created the directory, and therefore removes it.
    made_in: Option<(Ino, String)>,
}

impl Top {
    /// Finds the directory `path` of a volume, or creates it in an existing directory.
    ///
    /// # Errors
    /// The path contains `..`; its parent directory does not exist; it is not a directory, or is not empty.
    pub(super) fn make(vfs: &Vfs, caller: &Caller<'_>, path: &str) -> Result<Self, CliError> {
        let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
        if names.contains(&"..") {
            return Err(CliError::usage("a path from the root of the volume must not contain '..'").at(path));
        }
        let mut top = Top { ino: Ino::ROOT, path: "/".to_owned(), made_in: None };
        let fail =
            |what: &str, path: &str, errno: Errno| CliError::new(format!("cannot {what}: {errno}")).at(path);
        vfs.attributes.getattr(top.ino).map_err(|errno| fail("stat", "/", errno))?;
        for (index, name) in names.iter().enumerate() {
            let parent = top.ino;
            top.path = join(&top.path, name);
            let found = vfs
                .names
                .lookup(caller, parent, name.as_bytes())
                .map_err(|errno| fail("look up", &top.path, errno))?;
            top.ino = match found {
                Some(attr) if attr.kind == FileType::Directory => {
                    vfs.caches.looked_up(&attr);
                    attr.ino
                }
                Some(_) => return Err(CliError::new("not a directory").at(&top.path)),
                None if index + 1 < names.len() => {
                    return Err(CliError::new("the directory does not exist on the volume")
                        .at(&top.path)
                        .advise("create it first: only the last part of the path is created"));
                }
                None => {
                    let request = MakeRequest {
                        parent,
                        name: name.as_bytes(),
                        kind: MakeKind::Directory,
                        mode: Mode::new(0o755),
                        umask: 0,
                    };
                    top.made_in = Some((parent, (*name).to_owned()));
                    let made =
                        vfs.names.make(caller, request).map_err(|errno| fail("mkdir", &top.path, errno))?;
                    vfs.caches.looked_up(&made);
                    made.ino
                }
            };
        }
        let has_content = || top.has_content(vfs, caller).map_err(|errno| fail("list", &top.path, errno));
        if top.made_in.is_none() && has_content()? {
            return Err(CliError::new("the directory is not empty")
                .at(&top.path)
                .advise("name an empty directory, or one that does not exist yet"));
        }
        Ok(top)
    }

    /// Removes the directory if this command created it.
    ///
    /// # Errors
    /// Those of rmdir(2).
    pub(super) fn remove(&self, vfs: &Vfs, caller: &Caller<'_>) -> Result<(), CliError> {
        let Some((parent, name)) = &self.made_in else { return Ok(()) };
        let removed = vfs.names.rmdir(caller, *parent, name.as_bytes());
        removed.map_err(|errno| CliError::new(format!("cannot rmdir: {errno}")).at(&self.path))
    }

    fn has_content(&self, vfs: &Vfs, caller: &Caller<'_>) -> Result<bool, Errno> {
        let handle = vfs.listings.opendir(caller, self.ino)?;
        let mut content = false;
        let listed = vfs.listings.readdir(handle, DirPosition(0), false, &mut |entry| {
            content = !matches!(entry.name, b"." | b"..");
            !content
        });
        vfs.listings.closedir(handle)?;
        listed.map(|()| content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined() {
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a", "b"), "/a/b");
    }
}
