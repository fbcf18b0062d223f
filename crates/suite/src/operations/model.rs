//! A simple model of a POSIX directory tree, without regard to cost: it stores no link counts and no parents,
//! and computes both by searching the whole tree.

use std::collections::BTreeMap;

use ops::{RenameFlags, XattrMode};
use types::{Errno, FileType, Ino};

/// One step: an operation with all its arguments, so that a run can be reduced.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Make { dir: Ino, name: String, ino: Ino, kind: FileType, mode: u32 },
    Link { ino: Ino, dir: Ino, name: String },
    Unlink { dir: Ino, name: String },
    Rmdir { dir: Ino, name: String },
    Rename { dir: Ino, name: String, to: Ino, new_name: String, flags: RenameFlags },
    Chmod { ino: Ino, mode: u32 },
    Truncate { ino: Ino, size: u64 },
    SetXattr { ino: Ino, name: String, value: String, mode: XattrMode },
    RemoveXattr { ino: Ino, name: String },
}

pub(super) type Xattrs = BTreeMap<String, String>;

#[derive(Clone, Debug)]
struct Object {
    kind: FileType,
    mode: u32,
    size: u64,
    xattrs: Xattrs,
    entries: BTreeMap<String, Ino>,
}

/// An inode as the engine and the model show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) kind: FileType,
    pub(super) mode: u32,
    pub(super) nlink: u32,
    pub(super) size: u64,
    pub(super) xattrs: Xattrs,
    pub(super) entries: BTreeMap<String, Ino>,
}

#[derive(Debug)]
pub(super) struct Model {
    objects: BTreeMap<Ino, Object>,
}

impl Model {
    pub(super) fn new() -> Self {
        let root = Object::new(FileType::Directory, 0o755, 4096);
        Model { objects: BTreeMap::from([(Ino::ROOT, root)]) }
    }

    /// Applies the act, or returns its errno.
    pub(super) fn act(&mut self, act: &Act) -> Result<(), Errno> {
        match act.clone() {
            Act::Make { dir, name, ino, kind, mode } => {
                if self.entry(dir, &name)?.is_some() {
                    return Err(Errno::EEXIST);
                }
                let size = match kind {
                    FileType::Directory => 4096,
                    FileType::Symlink => 6,
                    _ => 0,
                };
                let mode = if kind == FileType::Symlink { mode } else { mode & !0o022 };
                self.objects.insert(ino, Object::new(kind, mode, size));
                self.put(dir, name, ino);
            }
            Act::Link { ino, dir, name } => {
                if self.entry(dir, &name)?.is_some() {
                    return Err(Errno::EEXIST);
                }
                if self.object(ino).ok_or(Errno::ENOENT)?.kind.is_dir() {
                    return Err(Errno::EPERM);
                }
                self.put(dir, name, ino);
            }
            Act::Unlink { dir, name } => {
                let ino = self.entry(dir, &name)?.ok_or(Errno::ENOENT)?;
                if self.is_dir(ino) {
                    return Err(Errno::EISDIR);
                }
                self.remove(dir, &name);
            }
            Act::Rmdir { dir, name } => {
                let ino = self.entry(dir, &name)?.ok_or(Errno::ENOENT)?;
                if !self.is_dir(ino) {
                    return Err(Errno::ENOTDIR);
                }
                self.is_empty(ino)?;
                self.remove(dir, &name);
            }
            Act::Rename { dir, name, to, new_name, flags } => self.rename(dir, name, to, new_name, flags)?,
            Act::Chmod { ino, mode } => self.inode(ino)?.mode = mode,
            Act::Truncate { ino, size } => {
                let object = self.inode(ino)?;
                match object.kind {
                    FileType::Regular => object.size = size,
                    FileType::Directory => return Err(Errno::EISDIR),
                    _ => return Err(Errno::EINVAL),
                }
            }
            Act::SetXattr { ino, name, value, mode } => {
                let xattrs = &mut self.inode(ino)?.xattrs;
                match mode {
                    XattrMode::Create if xattrs.contains_key(&name) => return Err(Errno::EEXIST),
                    XattrMode::Replace if !xattrs.contains_key(&name) => return Err(Errno::ENODATA),
                    _ => drop(xattrs.insert(name, value)),
                }
            }
            Act::RemoveXattr { ino, name } => {
                self.inode(ino)?.xattrs.remove(&name).ok_or(Errno::ENODATA)?;
            }
        }
        Ok(())
    }

    /// The inode of a name in a directory.
    pub(super) fn entry(&self, dir: Ino, name: &str) -> Result<Option<Ino>, Errno> {
        let dir = self.object(dir).ok_or(Errno::ENOENT)?;
        if dir.kind.is_dir() { Ok(dir.entries.get(name).copied()) } else { Err(Errno::ENOTDIR) }
    }

    pub(super) fn show(&self) -> BTreeMap<Ino, Shown> {
        let shown = self.objects.iter().map(|(&ino, object)| {
            let subdirs = object.entries.values().filter(|ino| self.is_dir(**ino)).count();
            let nlink = if object.kind.is_dir() { 2 + subdirs } else { self.names(ino) };
            let Object { kind, mode, size, xattrs, entries } = object.clone();
            (ino, Shown { kind, mode, nlink: nlink as u32, size, xattrs, entries })
        });
        shown.collect()
    }

    fn rename(
        &mut self,
        dir: Ino,
        name: String,
        to: Ino,
        new_name: String,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if flags.no_replace && flags.exchange {
            return Err(Errno::EINVAL);
        }
        // Both directories are checked before either name.
        self.entry(dir, &name)?;
        self.entry(to, &new_name)?;
        let source = self.entry(dir, &name)?.ok_or(Errno::ENOENT)?;
        let target = self.entry(to, &new_name)?;
        if target.is_some() && flags.no_replace {
            return Err(Errno::EEXIST);
        }
        if target.is_none() && flags.exchange {
            return Err(Errno::ENOENT);
        }
        if self.holds(source, to) {
            return Err(Errno::EINVAL);
        }
        let Some(target) = target else {
            self.take(dir, &name);
            self.put(to, new_name, source);
            return Ok(());
        };
        if self.holds(target, dir) {
            return Err(if flags.exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == source {
            return Ok(());
        }
        if flags.exchange {
            self.put(dir, name, target);
            self.put(to, new_name, source);
            return Ok(());
        }
        match (self.is_dir(source), self.is_dir(target)) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) => self.is_empty(target)?,
            (false, false) => {}
        }
        self.remove(to, &new_name);
        self.take(dir, &name);
        self.put(to, new_name, source);
        Ok(())
    }

    fn object(&self, ino: Ino) -> Option<&Object> {
        self.objects.get(&ino)
    }

    fn inode(&mut self, ino: Ino) -> Result<&mut Object, Errno> {
        self.objects.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.object(ino).is_some_and(|object| object.kind.is_dir())
    }

    fn is_empty(&self, dir: Ino) -> Result<(), Errno> {
        let empty = self.object(dir).is_some_and(|object| object.entries.is_empty());
        if empty { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }

    /// Whether `dir` is `ino` or below it.
    fn holds(&self, ino: Ino, dir: Ino) -> bool {
        ino == dir
            || self
                .object(ino)
                .is_some_and(|object| object.entries.values().any(|&in_it| self.holds(in_it, dir)))
    }

    fn names(&self, ino: Ino) -> usize {
        self.objects.values().flat_map(|object| object.entries.values()).filter(|&&at| at == ino).count()
    }

    fn put(&mut self, dir: Ino, name: String, ino: Ino) {
        self.objects.get_mut(&dir).unwrap().entries.insert(name, ino);
    }

    fn take(&mut self, dir: Ino, name: &str) -> Ino {
        self.objects.get_mut(&dir).unwrap().entries.remove(name).unwrap()
    }

    fn remove(&mut self, dir: Ino, name: &str) {
        let ino = self.take(dir, name);
        if self.names(ino) == 0 {
            self.objects.remove(&ino);
        }
    }
}

impl Object {
    fn new(kind: FileType, mode: u32, size: u64) -> Self {
        Object { kind, mode, size, xattrs: Xattrs::new(), entries: BTreeMap::new() }
    }
}
