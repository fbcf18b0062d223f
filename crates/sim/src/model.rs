//! A simple model of the tree, without regard to cost: it stores neither link counts nor rows.

use std::collections::BTreeMap;

use meta::{LockKind, LockOwner, Usage};
use ops::{UnlinkOutcome, XattrMode};
use types::{CHUNK_BYTES, Errno, Ino, SliceSource};

use crate::act::{Reply, Seen, Step};
use crate::quotas::Limits;
use crate::xattrs::{self, Values};

/// The source of one byte of a file: a byte of a slice in the object store, or one in the row itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Block(u64, u32),
    Inline(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Object {
    pub(crate) is_dir: bool,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) entries: BTreeMap<String, Ino>,
    /// The bytes that are stored; all others are zero.
    pub(crate) cells: BTreeMap<u64, Cell>,
    pub(crate) locks: BTreeMap<LockOwner, bool>,
    pub(crate) xattrs: Values,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) objects: BTreeMap<Ino, Object>,
    /// The limits of the quotas around the tree, if there are any.
    pub(crate) limits: Option<[Limits; 2]>,
}

impl Model {
    pub(crate) fn new(limits: Option<[Limits; 2]>) -> Self {
        let root = Object { is_dir: true, mode: 0o755, size: 4096, ..Object::default() };
        Model { objects: BTreeMap::from([(Ino::ROOT, root)]), limits }
    }

    /// Applies the step, or returns the errno with which it must fail. The inodes and blocks that it adds
    /// must fit below all limits.
    pub(crate) fn apply(&mut self, step: &Step) -> Result<Reply, Errno> {
        if self.limits.is_none() {
            return self.change(step);
        }
        let before = self.clone();
        let reply = self.change(step)?;
        let (was, is) = (before.usage(), self.usage());
        let exceeds = |limits: &Limits| {
            is.inodes > was.inodes.max(limits.inodes) || is.blocks > was.blocks.max(limits.blocks)
        };
        if self.limits.iter().flatten().any(exceeds) {
            *self = before;
            return Err(Errno::EDQUOT);
        }
        Ok(reply)
    }

    fn change(&mut self, step: &Step) -> Result<Reply, Errno> {
        match step.clone() {
            Step::Make { dir, name, ino, is_dir, mode } => {
                if self.entry(dir, name)?.is_some() {
                    return Err(Errno::EEXIST);
                }
                if self.objects.contains_key(&ino) {
                    // The inode number was assigned twice.
                    return Err(Errno::EIO);
                }
                let size = if is_dir { 4096 } else { 0 };
                self.objects.insert(ino, Object { is_dir, mode, size, ..Object::default() });
                self.put(dir, name, ino);
                Ok(Reply::Ino(ino))
            }
            Step::Link { ino, dir, name, orphan_of } => {
                if self.entry(dir, name)?.is_some() {
                    return Err(Errno::EEXIST);
                }
                if self.objects.get(&ino).ok_or(Errno::ENOENT)?.is_dir {
                    return Err(Errno::EPERM);
                }
                if self.names(ino) == 0 && orphan_of.is_none() {
                    return Err(Errno::ENOENT);
                }
                self.put(dir, name, ino);
                Ok(Reply::Nothing)
            }
            Step::Unlink { dir, name, open } => {
                let ino = self.entry(dir, name)?.ok_or(Errno::ENOENT)?;
                if self.is_dir(ino) {
                    return Err(Errno::EISDIR);
                }
                self.take(dir, name);
                let outcome = self.release(ino, open);
                Ok(Reply::Unlinked(ino, outcome))
            }
            Step::Rmdir { dir, name } => {
                let ino = self.entry(dir, name)?.ok_or(Errno::ENOENT)?;
                if !self.is_dir(ino) {
                    return Err(Errno::ENOTDIR);
                }
                self.require_empty(ino)?;
                self.take(dir, name);
                self.objects.remove(&ino);
                Ok(Reply::Ino(ino))
            }
            Step::Rename { dir, name, to, new_name, flags } => {
                self.rename((dir, name), (to, new_name), flags.no_replace, flags.exchange)
            }
            Step::Chmod { ino, mode } => {
                self.object(ino)?.mode = mode;
                Ok(Reply::Nothing)
            }
            Step::Truncate { ino, size } => {
                let object = self.object(ino)?;
                object.size = size;
                object.cells.split_off(&size);
                Ok(Reply::Nothing)
            }
            Step::Write { ino, offset, len, source } => {
                self.object(ino)?.write(offset, len, &source);
                Ok(Reply::Nothing)
            }
            Step::Append { ino, len, source } => {
                let object = self.object(ino)?;
                let offset = object.size;
                object.write(offset, len, &source);
                Ok(Reply::Number(offset))
            }
            Step::Copy { from, offset, to, to_offset, len } => {
                self.copy((from, offset), (to, to_offset), len)
            }
            Step::Compact { ino, .. } => {
                self.object(ino)?;
                Ok(Reply::Nothing)
            }
            Step::Lock { ino, owner, exclusive } => {
                let locks = &mut self.object(ino)?.locks;
                let conflicts = |(other, is_exclusive): (&LockOwner, &bool)| {
                    *other != owner && other.kind == owner.kind && (exclusive || *is_exclusive)
                };
                if locks.iter().any(conflicts) {
                    return Err(Errno::EAGAIN);
                }
                locks.insert(owner, exclusive);
                Ok(Reply::Nothing)
            }
            Step::Unlock { ino, owner } => {
                if let Some(object) = self.objects.get_mut(&ino) {
                    object.locks.remove(&owner);
                }
                Ok(Reply::Nothing)
            }
            Step::DropLocks { ino, session } => {
                if let Some(object) = self.objects.get_mut(&ino) {
                    object.locks.retain(|owner, _| owner.session != session);
                }
                Ok(Reply::Nothing)
            }
            Step::Reap { ino, .. } => {
                if self.objects.contains_key(&ino) && self.names(ino) == 0 {
                    self.objects.remove(&ino);
                }
                Ok(Reply::Nothing)
            }
            Step::SetXattr { ino, name, value, mode } => {
                if value.len > xattrs::MAX_BYTES {
                    return Err(Errno::E2BIG);
                }
                let values = &mut self.object(ino)?.xattrs;
                let old = values.get(&name).map(|old| old.blocks());
                match (mode, old) {
                    (XattrMode::Create, Some(_)) => return Err(Errno::EEXIST),
                    (XattrMode::Replace, None) => return Err(Errno::ENODATA),
                    _ => {}
                }
                let others = xattrs::blocks(values) - old.unwrap_or_default();
                if value.blocks() > old.unwrap_or_default() && others + value.blocks() > xattrs::MAX_BLOCKS {
                    return Err(Errno::ENOSPC);
                }
                values.insert(name, value);
                Ok(Reply::Nothing)
            }
            Step::RemoveXattr { ino, name } => {
                self.object(ino)?.xattrs.remove(&name).map(|_| Reply::Nothing).ok_or(Errno::ENODATA)
            }
            Step::ListXattrs { ino } => Ok(Reply::Xattrs(self.xattrs(ino))),
            Step::SetLimits { quota, limits } => {
                self.limits.as_mut().ok_or(Errno::ENOENT)?[quota] = limits;
                Ok(Reply::Nothing)
            }
            Step::Lookup { dir, name } => {
                let ino = self.entry(dir, name)?;
                Ok(Reply::Found(ino.and_then(|ino| Some((ino, self.seen(ino)?)))))
            }
            Step::Stat { ino } => Ok(Reply::Found(Some((ino, self.seen(ino).ok_or(Errno::ESTALE)?)))),
            Step::Other(_) | Step::Remove { .. } => Ok(Reply::Nothing),
        }
    }

    /// The inode that a name in a directory refers to.
    pub(crate) fn entry(&self, dir: Ino, name: &str) -> Result<Option<Ino>, Errno> {
        let object = self.objects.get(&dir).ok_or(Errno::ENOENT)?;
        if object.is_dir { Ok(object.entries.get(name).copied()) } else { Err(Errno::ENOTDIR) }
    }

    pub(crate) fn seen(&self, ino: Ino) -> Option<Seen> {
        let object = self.objects.get(&ino)?;
        let subdirs = object.entries.values().filter(|ino| self.is_dir(**ino)).count();
        let nlink = if object.is_dir { 2 + subdirs } else { self.names(ino) } as u32;
        Some(Seen { is_dir: object.is_dir, mode: object.mode, nlink, size: object.size })
    }

    /// The extended attributes of an inode; none if it does not exist.
    pub(crate) fn xattrs(&self, ino: Ino) -> Values {
        self.objects.get(&ino).map_or_else(Values::new, |object| object.xattrs.clone())
    }

    /// The usage that follows from the tree.
    pub(crate) fn usage(&self) -> Usage {
        let data = |object: &Object| if object.is_dir { 0 } else { object.size.div_ceil(4096) };
        let blocks = self.objects.values().map(|object| data(object) + xattrs::blocks(&object.xattrs)).sum();
        Usage { inodes: self.objects.len() as u64, blocks }
    }

    fn rename(
        &mut self,
        (dir, name): (Ino, &str),
        (to, new_name): (Ino, &str),
        no_replace: bool,
        exchange: bool,
    ) -> Result<Reply, Errno> {
        // Both directories are checked before either name.
        self.entry(dir, name)?;
        self.entry(to, new_name)?;
        let source = self.entry(dir, name)?.ok_or(Errno::ENOENT)?;
        let target = self.entry(to, new_name)?;
        if target.is_some() && no_replace {
            return Err(Errno::EEXIST);
        }
        if target.is_none() && exchange {
            return Err(Errno::ENOENT);
        }
        if self.holds(source, to) {
            return Err(Errno::EINVAL);
        }
        let mut reply = (None, None);
        if let Some(target) = target {
            if self.holds(target, dir) {
                return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
            }
            if target != source && exchange {
                self.put(dir, name, target);
                self.put(to, new_name, source);
                reply.0 = Some(target);
            } else if target != source {
                match (self.is_dir(source), self.is_dir(target)) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    (true, true) => self.require_empty(target)?,
                    (false, false) => {}
                }
                self.take(to, new_name);
                reply.1 = Some((target, self.release(target, None)));
            }
        }
        if target != Some(source) && !exchange {
            self.take(dir, name);
            self.put(to, new_name, source);
        }
        Ok(Reply::Moved { moved: source, exchanged: reply.0, replaced: reply.1 })
    }

    fn copy(
        &mut self,
        (from, offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<Reply, Errno> {
        let source = self.object(from)?.clone();
        let target = self.object(to)?;
        if from == to && offset < to_offset + len && to_offset < offset + len {
            return Err(Errno::EINVAL);
        }
        let end = (offset + len).min(source.size).min((offset / CHUNK_BYTES + 4) * CHUNK_BYTES);
        let copied = end.saturating_sub(offset);
        if copied > 0 {
            for at in 0..copied {
                match source.cells.get(&(offset + at)) {
                    Some(cell) => target.cells.insert(to_offset + at, *cell),
                    None => target.cells.remove(&(to_offset + at)),
                };
            }
            target.size = target.size.max(to_offset + copied);
        }
        Ok(Reply::Number(copied))
    }

    fn object(&mut self, ino: Ino) -> Result<&mut Object, Errno> {
        self.objects.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.objects.get(&ino).is_some_and(|object| object.is_dir)
    }

    fn require_empty(&self, dir: Ino) -> Result<(), Errno> {
        let empty = self.objects.get(&dir).is_some_and(|object| object.entries.is_empty());
        if empty { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }

    /// Whether `dir` is `ino` or is below it.
    fn holds(&self, ino: Ino, dir: Ino) -> bool {
        let in_it = |object: &Object| object.entries.values().any(|&in_it| self.holds(in_it, dir));
        ino == dir || self.objects.get(&ino).is_some_and(in_it)
    }

    fn names(&self, ino: Ino) -> usize {
        self.objects.values().flat_map(|object| object.entries.values()).filter(|&&at| at == ino).count()
    }

    fn put(&mut self, dir: Ino, name: &str, ino: Ino) {
        if let Some(object) = self.objects.get_mut(&dir) {
            object.entries.insert(name.to_owned(), ino);
        }
    }

    fn take(&mut self, dir: Ino, name: &str) {
        if let Some(object) = self.objects.get_mut(&dir) {
            object.entries.remove(name);
        }
    }

    /// Returns what happens to an inode that has lost a name. Removes the inode if it has no name left and is
    /// not open.
    fn release(&mut self, ino: Ino, open: Option<Ino>) -> UnlinkOutcome {
        if self.names(ino) > 0 {
            UnlinkOutcome::Linked
        } else if open == Some(ino) {
            UnlinkOutcome::Orphan
        } else {
            self.objects.remove(&ino);
            UnlinkOutcome::Removed
        }
    }
}

impl Object {
    /// A range of bytes; positions are relative to its beginning.
    pub(crate) fn bytes(&self, from: u64, len: u64) -> Vec<(u64, Cell)> {
        self.cells.range(from..from + len).map(|(at, cell)| (at - from, *cell)).collect()
    }

    /// Writes bytes at an offset and extends the file if needed.
    pub(crate) fn write(&mut self, offset: u64, len: u32, source: &SliceSource) {
        for at in 0..len {
            let cell = match source {
                SliceSource::Hole => None,
                SliceSource::Inline(bytes) => bytes.get(at as usize).map(|byte| Cell::Inline(*byte)),
                SliceSource::Blocks { id, offset, .. } => Some(Cell::Block(id.0, offset + at)),
            };
            match cell {
                Some(cell) => self.cells.insert(offset + u64::from(at), cell),
                None => self.cells.remove(&(offset + u64::from(at))),
            };
        }
        self.size = self.size.max(offset + u64::from(len));
    }
}

/// The owner of a lock on a whole file.
pub(crate) fn owner(session: types::SessionId, number: u64, flock: bool) -> LockOwner {
    let kind = if flock { LockKind::Flock } else { LockKind::Posix };
    LockOwner { session, owner: number, kind }
}
