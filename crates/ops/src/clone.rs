//! Copies of files and trees by reference (`limen clone`).
//!
//! A copy is built below an inode without a name, which is an orphan of the session that makes it. So nobody
//! can see the copy before [`EndClone`] gives this inode its name, in one transaction. If the session ends
//! before that, the copy is removed like an unlinked file that was open ([`Prune`] for the files below it,
//! then [`Reap`](crate::Reap)).
//!
//! Several transactions make a copy. Each of them reads its part of the source at one moment
//! ([`View::prefetch_snapshot`]), and copies the part as of that moment, even if the source changes before
//! the commit. So guards confirm only what the copy needs when it commits. The rows that refer to blocks must
//! still be there, because the blocks are kept only while a row refers to them. The directory that gets the
//! name of the copy must be there too.
//!
//! The operations run with [`Authority::Kernel`](crate::Authority::Kernel) and so check no access: their
//! callers may read and create everything.

use std::sync::Arc;

use meta::{Effect, Guard, Inode, RecordKey, Xattrs, xattr_blocks};
use types::{CHUNK_BYTES, ChunkIndex, Errno, FileType, Ino, Name, SessionId, Slice};

use crate::op::{BoundBy, Ctx, Op, Plan};
use crate::range::share;
use crate::room::{make_room_to, require_room_for};
use crate::view::{PlanStop, View};

/// The maximum number of chunks of a file that are copied together with its inode, 16 GiB of data. Their
/// content is of one moment. [`CloneChunks`] copies further chunks.
pub const CLONED_CHUNKS: u64 = 256;

/// An inode to copy.
#[derive(Clone, Debug)]
pub struct CloneSource {
    pub ino: Ino,
    pub kind: FileType,
    /// The size when the inode was last read. It determines which chunks are read.
    pub size: u64,
    /// Whether the inode had extended attributes when it was last read.
    pub has_xattrs: bool,
}

impl CloneSource {
    pub fn new(inode: &Inode) -> CloneSource {
        let &Inode { ino, kind, size, .. } = inode;
        CloneSource { ino, kind, size, has_xattrs: inode.xattr_blocks > 0 }
    }

    /// The keys of the source's records, without the inode. `known` is the inode as it is known now. It may
    /// have changed since the source was listed: the file may be longer, or may have got extended attributes.
    fn keys(&self, known: Option<Inode>, max_chunks: u64) -> impl Iterator<Item = RecordKey> + use<> {
        let ino = self.ino;
        let size = known.map_or(0, |inode| inode.size).max(self.size);
        let chunks = if self.kind == FileType::Regular { chunks_of(size, max_chunks) } else { 0 };
        let has_xattrs = self.has_xattrs || known.is_some_and(|inode| inode.xattr_blocks > 0);
        let xattrs = has_xattrs.then_some(RecordKey::Xattrs(ino));
        let target = (self.kind == FileType::Symlink).then_some(RecordKey::Symlink(ino));
        let rows = (0..chunks).map(move |chunk| RecordKey::Slices(ino, ChunkIndex(chunk)));
        rows.chain(xattrs).chain(target)
    }

    /// The size of the copy, as a number of records of about the size of a row.
    pub fn size_in_records(&self, inode: &Inode) -> usize {
        1 + self.keys(None, CLONED_CHUNKS).count() + usize::from(inode.xattr_blocks)
    }
}

/// The chunks of a file that are copied together with its inode.
fn chunks_of(size: u64, max_chunks: u64) -> u64 {
    size.div_ceil(CHUNK_BYTES).min(max_chunks)
}

/// Begins a copy: copies its root without a name, as an orphan of this session. Replies with the source as of
/// the moment of the copy, and the session.
///
/// # Errors
/// ENOENT if `parent` does not exist; ENOTDIR if it is not a directory; ENOENT if it is in the trash; EEXIST
/// if the name exists in it; ESTALE if the source does not exist; EIO if the source is damaged; ENOSPC if the
/// volume is full.
#[derive(Debug)]
pub struct BeginClone {
    pub source: CloneSource,
    /// A number that no inode ever had.
    pub ino: Ino,
    /// The directory and name that [`EndClone`] will give to the copy.
    pub parent: Ino,
    pub name: Name,
    /// How many chunks of a file are copied with it, at most [`CLONED_CHUNKS`].
    pub max_chunks: u64,
}

impl Op for BeginClone {
    type Reply = (Inode, SessionId);
    const NAME: &'static str = "begin clone";
    // The cache would mark the new root as an empty directory, and would miss the entries that are copied
    // into it.
    const IS_REMEMBERED: bool = false;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        let dir = view.dir(self.parent)?;
        ctx.check_new(view, &dir, self.source.kind)?;
        if view.dirent(self.parent, &self.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let ino = self.source.ino;
        let others = self.source.keys(view.known_inode(ino), self.max_chunks);
        view.prefetch_snapshot([RecordKey::Inode(ino)].into_iter().chain(others).collect())?;
        let mut copies = Copies::of(self.max_chunks);
        let source = view.inode_not_held(self.source.ino)?.ok_or(Errno::ESTALE)?;
        copies.add(
            view,
            &source,
            Inode { nlink: 0, ..copy(&source, self.ino, &dir, self.max_chunks, ctx) },
        )?;
        copies.require_room(view, ctx)?;
        let mut effects = copies.into_effects();
        effects.push(Effect::PutOrphan { session: ctx.session, ino: self.ino });
        Ok(Plan { reply: (source, ctx.session), effects })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::DirectoryQuotas
    }
}

/// A directory entry to copy.
#[derive(Clone, Debug)]
pub struct CloneEntry {
    pub source: CloneSource,
    /// The directory in the copy that gets the entry.
    pub parent: Ino,
    pub name: Name,
    /// The inode number of the copy. No inode had it before, but if `is_linked`, each name of the source
    /// gives the same number.
    pub ino: Ino,
    /// Whether the source has several names. The copy is made with the first of them, and linked with the
    /// others.
    pub is_linked: bool,
}

/// The result for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClonedEntry {
    /// The source did not exist any more.
    Gone,
    /// The source, as it was copied.
    Copied(Inode),
    /// The copy got one more name.
    Linked,
}

/// Copies directory entries into directories of an unfinished copy. Replies with the result for each entry.
///
/// # Errors
/// ESTALE if the session that began the copy has ended; ENOENT if a directory of the copy does not exist; EIO
/// if a source is damaged; ENOSPC if the volume is full.
#[derive(Debug)]
pub struct CloneEntries<'a> {
    pub session: SessionId,
    /// The root of the copy, whose links are counted by [`EndClone`].
    pub root: Ino,
    pub entries: &'a [CloneEntry],
    /// How many chunks of each file are copied with it, at most [`CLONED_CHUNKS`].
    pub max_chunks: u64,
}

impl Op for CloneEntries<'_> {
    type Reply = Vec<ClonedEntry>;
    const NAME: &'static str = "clone entries";
    const IS_REMEMBERED: bool = false;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Self::Reply>, PlanStop> {
        if ctx.session != self.session {
            return Err(Errno::ESTALE.into());
        }
        view.prefetch_snapshot(self.keys(view))?;
        let mut copies = Copies::of(self.max_chunks);
        let mut reply = Vec::with_capacity(self.entries.len());
        let mut links: Vec<(Ino, i32)> = Vec::new();
        // The copies of linked inodes that this transaction makes.
        let mut made: Vec<Ino> = Vec::new();
        let mut dir: Option<Inode> = None;
        for entry in self.entries {
            let &CloneEntry { parent, ino, is_linked, .. } = entry;
            let kind = entry.source.kind;
            let dir = match dir {
                Some(dir) if dir.ino == parent => dir,
                _ => *dir.insert(view.dir(parent)?),
            };
            let is_there = is_linked && (made.contains(&ino) || view.find_inode(ino)?.is_some());
            if is_there {
                copies.effects.push(Effect::AddLinks { ino, delta: 1 });
                reply.push(ClonedEntry::Linked);
            } else if let Some(source) = view.inode_not_held(entry.source.ino)? {
                copies.add(view, &source, copy(&source, ino, &dir, self.max_chunks, ctx))?;
                if is_linked {
                    made.push(ino);
                }
                reply.push(ClonedEntry::Copied(source));
            } else {
                reply.push(ClonedEntry::Gone);
                continue;
            }
            copies.effects.push(Effect::PutDirent { parent, name: entry.name.clone(), ino, kind });
            if kind.is_dir() && parent != self.root {
                match links.iter_mut().find(|(dir, _)| *dir == parent) {
                    Some((_, delta)) => *delta += 1,
                    None => links.push((parent, 1)),
                }
            }
        }
        copies.require_room(view, ctx)?;
        let mut effects = copies.into_effects();
        effects.extend(links.into_iter().map(|(ino, delta)| Effect::AddLinks { ino, delta }));
        Ok(Plan { reply, effects })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::DirectoryQuotas
    }
}

impl CloneEntries<'_> {
    /// All records that the plan looks up.
    fn keys(&self, view: &View<'_>) -> Vec<RecordKey> {
        let mut keys = Vec::with_capacity(3 * self.entries.len());
        let mut last = Ino(0);
        for entry in self.entries {
            let source = &entry.source;
            if last != entry.parent {
                last = entry.parent;
                keys.push(RecordKey::Inode(last));
            }
            keys.push(RecordKey::Inode(source.ino));
            keys.extend(source.keys(view.known_inode(source.ino), self.max_chunks));
            if entry.is_linked {
                keys.push(RecordKey::Inode(entry.ino));
            }
        }
        keys
    }
}

/// Copies chunks of a large file, beyond those that were copied together with its inode. The copy is extended
/// to `end`, or to the end of the source if that is less.
///
/// # Errors
/// ESTALE if the session that began the copy has ended, or if one of the files does not exist; ENOSPC if the
/// volume is full.
#[derive(Debug)]
pub struct CloneChunks<'a> {
    pub session: SessionId,
    pub from: Ino,
    pub to: Ino,
    pub chunks: &'a [ChunkIndex],
    pub end: u64,
}

impl Op for CloneChunks<'_> {
    type Reply = ();
    const NAME: &'static str = "clone chunks";
    const IS_REMEMBERED: bool = false;

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        if ctx.session != self.session {
            return Err(Errno::ESTALE.into());
        }
        let inodes = [self.from, self.to].map(RecordKey::Inode);
        let rows = self.chunks.iter().map(|chunk| RecordKey::Slices(self.from, *chunk));
        view.prefetch_snapshot(inodes.into_iter().chain(rows).collect())?;
        let source = view.known_inode(self.from).ok_or(Errno::ESTALE)?;
        let target = view.inode(self.to)?;
        let end = source.size.min(self.end).max(target.size);
        make_room_to(view, ctx, &target, end)?;
        let mut effects = Vec::new();
        for chunk in self.chunks {
            copy_rows(view, self.from, *chunk, self.to, &mut effects)?;
        }
        effects.push(Effect::Extend { ino: self.to, size: end });
        Ok(Plan { reply: (), effects })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::DirectoryQuotas
    }
}

/// Gives a complete copy its name.
///
/// # Errors
/// ESTALE if the session that began the copy has ended; ENOENT if `parent` does not exist; ENOTDIR if it is
/// not a directory; ESTALE if the copy does not exist; ENOENT if `parent` is in the trash; EEXIST if the name
/// exists in `parent`; ESTALE if the copy has a name already; EXDEV if `parent` counts in other quotas than
/// when the copy was begun.
#[derive(Debug)]
pub struct EndClone {
    pub session: SessionId,
    pub root: Ino,
    pub parent: Ino,
    pub name: Name,
    /// The number of subdirectories of the root.
    pub subdirectories: u32,
}

impl Op for EndClone {
    type Reply = Inode;
    const NAME: &'static str = "end clone";

    fn plan(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<Plan<Inode>, PlanStop> {
        if ctx.session != self.session {
            return Err(Errno::ESTALE.into());
        }
        let EndClone { session, root: ino, parent, .. } = *self;
        let dir = view.dir(parent)?;
        let inode = view.inode(ino)?;
        let (kind, is_dir) = (inode.kind, inode.kind.is_dir());
        ctx.check_new(view, &dir, kind)?;
        if view.dirent(parent, &self.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if view.links(ino)? != 0 {
            return Err(Errno::ESTALE.into());
        }
        if inode.quota != dir.quota {
            return Err(Errno::EXDEV.into());
        }
        let links = if is_dir { self.subdirectories.saturating_add(2) } else { 1 };
        let delta = i32::try_from(links).unwrap_or(i32::MAX);
        let mut effects = vec![
            Effect::PutDirent { parent, name: self.name.clone(), ino, kind },
            Effect::AddLinks { ino, delta },
            Effect::DropOrphan { session, ino },
            super::set_ctime(ino, ctx.now),
            super::set_dir_times(parent, ctx.now),
        ];
        if is_dir {
            effects.push(Effect::AddLinks { ino: parent, delta: 1 });
        }
        Ok(Plan { reply: inode, effects })
    }
}

/// Removes entries of a directory in an unfinished copy or in the trash ([`EmptyTrash`](crate::EmptyTrash)).
/// An inode that loses its last name is removed too. A directory among the entries must be empty.
///
/// # Errors
/// ENOTEMPTY if a directory among the entries is not empty.
#[derive(Debug)]
pub struct Prune<'a> {
    pub dir: Ino,
    pub names: &'a [Name],
}

impl Op for Prune<'_> {
    type Reply = ();
    const NAME: &'static str = "prune";
    const IS_REMEMBERED: bool = false;

    fn plan(&self, view: &mut View<'_>, _: &Ctx<'_>) -> Result<Plan<()>, PlanStop> {
        let names = self.names.iter().map(|name| RecordKey::Dirent(self.dir, name.clone()));
        view.prefetch(std::iter::once(RecordKey::Inode(self.dir)).chain(names))?;
        // This lookup adds a guard of the directory, so a conflict also returns the directory's present
        // record.
        view.find_inode(self.dir)?;
        let mut effects = Vec::with_capacity(2 * self.names.len());
        // For each inode with several names, the number of its links that this transaction has removed so
        // far.
        let mut dropped: Vec<(Ino, u32)> = Vec::new();
        for name in self.names {
            let Some(dirent) = view.dirent(self.dir, name)? else { continue };
            let ino = dirent.ino;
            effects.push(Effect::DropDirent { parent: self.dir, name: name.clone() });
            let Some(inode) = view.find_inode(ino)? else { continue };
            if inode.kind.is_dir() {
                if !view.is_empty(ino) {
                    return Err(Errno::ENOTEMPTY.into());
                }
                effects.push(Effect::AddLinks { ino: self.dir, delta: -1 });
                effects.push(Effect::DropInode { ino });
                continue;
            }
            let links = view.links(ino)?;
            let before = match dropped.iter_mut().find(|(other, _)| *other == ino) {
                Some((_, before)) => before,
                None if links > 1 => {
                    dropped.push((ino, 0));
                    let last = dropped.len() - 1;
                    &mut dropped[last].1
                }
                None => &mut 0,
            };
            *before += 1;
            effects.push(match links > *before {
                true => Effect::AddLinks { ino, delta: -1 },
                false => Effect::DropInode { ino },
            });
        }
        Ok(Plan { reply: (), effects })
    }

    fn bound_by(&self) -> BoundBy {
        BoundBy::NoQuota
    }
}

/// The copy of an inode, for the directory `dir`, whose quota tag the copy gets. Its ctime is the present
/// time.
fn copy(source: &Inode, ino: Ino, dir: &Inode, max_chunks: u64, ctx: &Ctx<'_>) -> Inode {
    let is_dir = source.kind.is_dir();
    let size = match source.kind {
        FileType::Regular => source.size.min(max_chunks.saturating_mul(CHUNK_BYTES)),
        _ => source.size,
    };
    Inode {
        ino,
        nlink: if is_dir { 2 } else { 1 },
        size,
        ctime: ctx.now,
        parent: if is_dir { dir.ino } else { Ino(0) },
        access_rev: 1,
        quota: dir.quota,
        ..*source
    }
}

/// The effects that make copies, and the number of blocks that the copies take.
struct Copies {
    /// The new inodes. They are the first effects of the transaction. An SQL server applies all effects
    /// together only if no new inode comes after a shared slice, because a new inode may replace another one
    /// and so release slices.
    inodes: Vec<Inode>,
    effects: Vec<Effect>,
    blocks: u64,
    max_chunks: u64,
}

impl Copies {
    fn of(max_chunks: u64) -> Copies {
        Copies { inodes: Vec::new(), effects: Vec::new(), blocks: 0, max_chunks }
    }

    fn add(&mut self, view: &mut View<'_>, source: &Inode, mut inode: Inode) -> Result<(), PlanStop> {
        let ino = inode.ino;
        let xattrs = match source.xattr_blocks {
            0 => Arc::<Xattrs>::default(),
            _ => view.xattrs(source.ino)?,
        };
        let blocks = xattrs.values().map(|value| xattr_blocks(value.len()));
        inode.xattr_blocks = blocks.fold(0, u16::saturating_add);
        // The size of a held directory says which session holds it ([`Inode::holder`]). No session holds the
        // copy.
        inode.size = inode.shown_size();
        self.blocks += inode.blocks();
        self.inodes.push(inode);
        if source.kind == FileType::Symlink {
            let target = view.symlink(source.ino)?.ok_or_else(|| damaged(source.ino, "it has no target"))?;
            self.effects.push(Effect::PutSymlink { ino, target });
        }
        for (name, value) in xattrs.iter() {
            self.effects.push(Effect::PutXattr { ino, name: name.clone(), value: Arc::clone(value) });
        }
        if source.kind == FileType::Regular {
            for chunk in 0..chunks_of(source.size, self.max_chunks) {
                copy_rows(view, source.ino, ChunkIndex(chunk), ino, &mut self.effects)?;
            }
        }
        Ok(())
    }

    fn require_room(&self, view: &mut View<'_>, ctx: &Ctx<'_>) -> Result<(), PlanStop> {
        require_room_for(view, ctx, self.inodes.len() as u64, self.blocks)
    }

    fn into_effects(self) -> Vec<Effect> {
        self.inodes.into_iter().map(Effect::PutInode).chain(self.effects).collect()
    }
}

fn damaged(ino: Ino, reason: &str) -> Errno {
    tracing::error!(%ino, reason, "cannot copy a damaged file");
    Errno::EIO
}

/// Adds the rows of a chunk to the same chunk of another file. If any of the rows refers to blocks, a guard
/// requires that the rows are still there when the transaction commits.
fn copy_rows(
    view: &mut View<'_>,
    from: Ino,
    chunk: ChunkIndex,
    to: Ino,
    effects: &mut Vec<Effect>,
) -> Result<(), PlanStop> {
    let rows: Arc<[Slice]> = view.slices(from, chunk)?;
    let counts = share(rows.iter(), false);
    let has_blocks = !counts.is_empty();
    effects.extend(counts);
    effects.extend(rows.iter().map(|slice| Effect::AppendSlice { ino: to, chunk, slice: slice.clone() }));
    if has_blocks {
        view.guard_once(Guard::Rows { ino: from, chunk, rows });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use types::{Mode, SliceId, SliceSource, Time};

    use super::*;
    use crate::known::{OwnReads, known};
    use crate::testing::Direct;
    use crate::{Make, MakeKind, Write};

    /// If an inode came after a shared slice, an SQL server would apply the effects of each file separately,
    /// and search all effects for those of the file. That is 20 times slower for files with blocks.
    #[test]
    fn new_inodes_are_the_first_effects() {
        let direct = Direct::new();
        let mut entries = Vec::new();
        let mut keys = vec![RecordKey::Inode(Ino::ROOT)];
        for n in 0..3 {
            let (ino, name) = (Ino(100 + n), Name::new(format!("file-{n}").as_bytes()).unwrap());
            let (kind, mode) = (MakeKind::Regular, Mode::new(0o644));
            let make =
                Make { parent: Ino::ROOT, name: name.clone(), ino, kind, mode, umask: 0, uid: 0, gid: 0 };
            direct.run(&make).unwrap();
            let source = SliceSource::Blocks { id: SliceId(n + 1), offset: 0, size: 9 };
            let slices = vec![(ChunkIndex(0), Slice { pos: 0, len: 9, source })];
            direct.run(&Write { ino, slices, end: 9, mtime: Time::now() }).unwrap();
            keys.extend([RecordKey::Inode(ino), RecordKey::Slices(ino, ChunkIndex(0))]);
            let source = CloneSource { ino, kind: FileType::Regular, size: 9, has_xattrs: false };
            let name = Name::new(format!("copy-{n}").as_bytes()).unwrap();
            entries.push(CloneEntry { source, parent: Ino::ROOT, name, ino: Ino(200 + n), is_linked: false });
        }
        let records = meta::Engine::read(&direct.engine, &keys).unwrap().records;
        let fresh: OwnReads =
            records.iter().filter_map(|record| known(record, direct.ctx().volume.acl)).collect();
        let nothing = OwnReads::default();
        let mut view = View::new(&nothing, None, &fresh);
        let (session, root) = (direct.ctx().session, Ino::ROOT);
        let op = CloneEntries { session, root, entries: &entries, max_chunks: CLONED_CHUNKS };
        let effects = op.plan(&mut view, &direct.ctx()).unwrap().effects;
        let is_inode = |effect: &Effect| matches!(effect, Effect::PutInode(_));
        assert_eq!(effects.iter().filter(|effect| is_inode(effect)).count(), 3);
        assert!(effects.iter().take(3).all(is_inode), "{effects:?}");
    }
}
