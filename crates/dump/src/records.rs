//! Records of an engine as lines, in the order of a dump.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meta::{
    Counter, Engine, EngineError, Inode, LastBackup, Maintenance, Page, Record, RecordKey, Scan, ScanInclude,
    Snapshot, SnapshotReader, Volume, Xattrs,
};
use types::{AclId, CHUNK_BYTES, ChunkIndex, FileType, Ino, SessionId, Slice, SliceSource};

use crate::counts::Counts;
use crate::line::{Bytes, Line, MAX_ROWS, acl_text};

/// The number of rows in a page of a scan.
const PAGE: usize = 1024;

/// The number of inodes whose other records are read together.
const TOGETHER: usize = 256;

/// The number of chunks of a large file that are read together.
const CHUNKS: usize = 64;

/// The maximum number of chunks of a file whose rows are read chunk by chunk, together with those of other
/// files. The rows of a larger file, which may be sparse, are read by a scan.
const FEW_CHUNKS: u64 = 4;

/// When the xattrs that are to be read together reach this size, in bytes, they are read.
const XATTR_BYTES: u64 = 4 << 20;

/// When the data in a line has this size, in bytes, the next row goes to another line.
const ROW_BYTES: usize = 256 << 10;

/// The present records of an engine. Several reads are of one moment only if nothing changes meanwhile.
#[derive(Clone, Debug)]
pub struct Live(pub Arc<dyn Engine>);

impl SnapshotReader for Live {
    fn read(&mut self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        self.0.read(keys)
    }

    fn scan(&mut self, scan: &Scan) -> Result<Page, EngineError> {
        self.0.scan(scan)
    }
}

/// Calls `each` with every line between the first and the last one, except those of unfinished copies of
/// trees if `leaves_out_copies`.
///
/// # Errors
/// Those of the database, and the first one of `each`.
pub fn dump<E: From<EngineError>>(
    source: &mut dyn SnapshotReader,
    leaves_out_copies: bool,
    each: &mut dyn FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    volume_lines(&source.read(&volume_keys())?.records, each)?;
    acls(source, each)?;
    let mut counts = Counts::read(source)?;
    let mut counted = |line: Line| {
        counts.add(&line);
        each(line)
    };
    let hidden = if leaves_out_copies { unfinished_copies(source)? } else { HashSet::new() };
    let mut after = Ino(0);
    loop {
        let page = source.scan(&Scan::Inodes { after, limit: TOGETHER })?;
        let all = inodes_of(page.snapshot.records);
        let Some(last) = all.last() else { break };
        after = last.ino;
        let linked: Vec<Inode> =
            all.into_iter().filter(|inode| inode.nlink > 0 && !hidden.contains(&inode.ino)).collect();
        inodes(source, &linked, &mut counted)?;
        if !page.more {
            break;
        }
    }
    counts.lines(each)
}

/// The roots of unfinished copies of trees: directories without a name.
pub(crate) fn roots_of_copies(source: &mut dyn SnapshotReader) -> Result<Vec<Ino>, EngineError> {
    let orphans: Vec<Ino> =
        all(source, Scan::Orphans { after: (SessionId(0), Ino(0)), limit: PAGE }, |record| match record {
            Record::Orphan(_, ino) => Some(ino),
            _ => None,
        })?;
    let mut dirs = Vec::new();
    for some in orphans.chunks(PAGE) {
        let keys: Vec<RecordKey> = some.iter().copied().map(RecordKey::Inode).collect();
        let inodes = inodes_of(source.read(&keys)?.records);
        dirs.extend(inodes.iter().filter(|inode| inode.kind.is_dir() && inode.nlink == 0).map(|dir| dir.ino));
    }
    Ok(dirs)
}

/// The inodes below the roots of unfinished copies.
fn unfinished_copies(source: &mut dyn SnapshotReader) -> Result<HashSet<Ino>, EngineError> {
    let mut dirs = roots_of_copies(source)?;
    let mut hidden = HashSet::new();
    while let Some(parent) = dirs.pop() {
        let scan = Scan::Dir { parent, after: None, limit: PAGE, include: ScanInclude::Nothing };
        let entries = all(source, scan, |record| match record {
            Record::Dirent(_, _, dirent) => dirent,
            _ => None,
        })?;
        for entry in entries {
            if hidden.insert(entry.ino) && entry.kind.is_dir() {
                dirs.push(entry.ino);
            }
        }
    }
    Ok(hidden)
}

fn all<T>(
    source: &mut dyn SnapshotReader,
    scan: Scan,
    pick: impl Fn(Record) -> Option<T>,
) -> Result<Vec<T>, EngineError> {
    let mut found = Vec::new();
    for page in scan.pages(|scan| source.scan(scan)) {
        found.extend(page?.into_iter().filter_map(&pick));
    }
    Ok(found)
}

/// The keys of settings and counters.
pub(crate) fn volume_keys() -> Vec<RecordKey> {
    let counters = Counter::ALL.map(RecordKey::Counter);
    [RecordKey::Settings].into_iter().chain(counters).collect()
}

/// The lines of settings and counters.
pub(crate) fn volume_lines<E>(
    records: &[Record],
    each: &mut dyn FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    for record in records {
        match record {
            Record::Settings(settings) => {
                for (name, value) in settings.iter().filter(|(name, _)| !is_local(name)) {
                    each(Line::Setting { name: name.clone(), value: value.clone() })?;
                }
            }
            Record::Counter(counter, next) => {
                each(Line::Counter { name: counter.name().to_owned(), next: *next })?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a setting is about this database, not about the volume.
pub(crate) fn is_local(name: &str) -> bool {
    let local =
        [Maintenance::SETTING, LastBackup::SETTING, Volume::LOADING, Volume::LOADED, Volume::ACL_SWEEP];
    local.contains(&name)
}

fn acls<E: From<EngineError>>(
    source: &mut dyn SnapshotReader,
    each: &mut dyn FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    let mut after = AclId::NONE;
    loop {
        let page = source.scan(&Scan::Acls { after, limit: PAGE })?;
        let before = after;
        for record in page.snapshot.records {
            if let Record::Acl(id, Some(text)) = record {
                after = id;
                each(Line::Acl { id: acl_text(id), text: text.to_string() })?;
            }
        }
        if !page.more || after == before {
            return Ok(());
        }
    }
}

fn inodes_of(records: Vec<Record>) -> Vec<Inode> {
    let inode = |record| match record {
        Record::Inode(_, inode) => inode,
        _ => None,
    };
    records.into_iter().filter_map(inode).collect()
}

/// The xattrs, symlink targets and rows of some inodes.
#[derive(Debug, Default)]
pub(crate) struct InodeContents {
    xattrs: HashMap<Ino, Arc<Xattrs>>,
    symlinks: HashMap<Ino, Arc<[u8]>>,
    rows: HashMap<(Ino, ChunkIndex), Arc<[Slice]>>,
}

impl InodeContents {
    fn read(source: &mut dyn SnapshotReader, inodes: &[Inode]) -> Result<InodeContents, EngineError> {
        let mut stored = InodeContents::default();
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for inode in inodes {
            if inode.xattr_blocks > 0 {
                keys.push(RecordKey::Xattrs(inode.ino));
                bytes += u64::from(inode.xattr_blocks) * meta::Usage::BLOCK_BYTES;
            }
            match inode.kind {
                FileType::Symlink => keys.push(RecordKey::Symlink(inode.ino)),
                FileType::Regular => {
                    keys.extend(few_chunks(inode).map(|chunk| RecordKey::Slices(inode.ino, chunk)));
                }
                _ => {}
            }
            if bytes >= XATTR_BYTES {
                stored.take(source.read(&std::mem::take(&mut keys))?.records);
                bytes = 0;
            }
        }
        if !keys.is_empty() {
            stored.take(source.read(&keys)?.records);
        }
        Ok(stored)
    }

    pub(crate) fn of(records: Vec<Record>) -> InodeContents {
        let mut stored = InodeContents::default();
        stored.take(records);
        stored
    }

    fn take(&mut self, records: Vec<Record>) {
        for record in records {
            match record {
                Record::Xattrs(ino, xattrs) => _ = self.xattrs.insert(ino, xattrs),
                Record::Symlink(ino, Some(target)) => _ = self.symlinks.insert(ino, target),
                Record::Slices(ino, chunk, rows) => _ = self.rows.insert((ino, chunk), rows),
                _ => {}
            }
        }
    }

    /// The lines of an inode, without the rows of a large file.
    pub(crate) fn lines<E>(
        &self,
        inode: &Inode,
        each: &mut dyn FnMut(Line) -> Result<(), E>,
    ) -> Result<(), E> {
        let ino = inode.ino;
        each(Line::Inode(Box::new(inode.into())))?;
        for (name, value) in self.xattrs.get(&ino).into_iter().flat_map(|xattrs| xattrs.iter()) {
            let (name, value) = (Bytes(name.as_bytes().into()), Bytes(Arc::clone(value)));
            each(Line::Xattr { ino: ino.0, name, value })?;
        }
        if let Some(target) = self.symlinks.get(&ino) {
            each(Line::Symlink { ino: ino.0, target: Bytes(Arc::clone(target)) })?;
        }
        let few = if is_large(inode) { 0 } else { chunks_of(inode) };
        self.chunk_lines(ino, few, each)
    }

    /// The lines of the first `chunks` of a file.
    pub(crate) fn chunk_lines<E>(
        &self,
        ino: Ino,
        chunks: u64,
        each: &mut dyn FnMut(Line) -> Result<(), E>,
    ) -> Result<(), E> {
        for chunk in (0..chunks).map(ChunkIndex) {
            if let Some(slices) = self.rows.get(&(ino, chunk)) {
                rows(ino, chunk, slices, each)?;
            }
        }
        Ok(())
    }
}

/// The keys of an inode and of everything that can be stored with it. The rows are those of the first
/// `chunks` chunks, but at least of [`FEW_CHUNKS`].
pub(crate) fn inode_keys(ino: Ino, chunks: u64) -> impl Iterator<Item = RecordKey> {
    let rows = (0..chunks.max(FEW_CHUNKS)).map(move |chunk| RecordKey::Slices(ino, ChunkIndex(chunk)));
    [RecordKey::Inode(ino), RecordKey::Xattrs(ino), RecordKey::Symlink(ino)].into_iter().chain(rows)
}

/// Whether the inode is a file whose rows are read by a scan.
pub(crate) fn is_large(inode: &Inode) -> bool {
    inode.kind == FileType::Regular && chunks_of(inode) > FEW_CHUNKS
}

pub(crate) fn chunks_of(inode: &Inode) -> u64 {
    let size = if inode.kind == FileType::Regular { inode.size } else { 0 };
    size.div_ceil(CHUNK_BYTES).max(1)
}

/// The chunks of a file that is not large.
fn few_chunks(inode: &Inode) -> impl Iterator<Item = ChunkIndex> + use<> {
    let count = if is_large(inode) { 0 } else { chunks_of(inode) };
    (0..count).map(ChunkIndex)
}

/// The lines of some inodes, and of the entries in those that are directories.
fn inodes<E: From<EngineError>>(
    source: &mut dyn SnapshotReader,
    inodes: &[Inode],
    each: &mut dyn FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    let stored = InodeContents::read(source, inodes)?;
    for inode in inodes {
        stored.lines(inode, each)?;
        if is_large(inode) {
            many_chunks(source, inode.ino, each)?;
        } else if inode.kind.is_dir() {
            entries(source, inode.ino, each)?;
        }
    }
    Ok(())
}

/// The rows of a large file.
pub(crate) fn many_chunks<E: From<EngineError>>(
    source: &mut dyn SnapshotReader,
    ino: Ino,
    each: &mut dyn FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    let mut from = ChunkIndex(0);
    loop {
        let page = source.scan(&Scan::Slices { ino, from, limit: CHUNKS })?;
        let before = from;
        for record in page.snapshot.records {
            if let Record::Slices(_, chunk, slices) = record {
                from = ChunkIndex(chunk.0.saturating_add(1));
                rows(ino, chunk, &slices, each)?;
            }
        }
        if !page.more || from == before {
            return Ok(());
        }
    }
}

fn rows<E>(
    ino: Ino,
    chunk: ChunkIndex,
    slices: &[Slice],
    each: &mut dyn FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for (at, slice) in slices.iter().enumerate() {
        rows.push(slice.into());
        bytes += if let SliceSource::Inline(data) = &slice.source { data.len() } else { 0 };
        if rows.len() >= MAX_ROWS || bytes >= ROW_BYTES || at + 1 == slices.len() {
            each(Line::Rows { ino: ino.0, chunk: chunk.0, rows: std::mem::take(&mut rows) })?;
            bytes = 0;
        }
    }
    Ok(())
}

fn entries<E: From<EngineError>>(
    source: &mut dyn SnapshotReader,
    dir: Ino,
    each: &mut dyn FnMut(Line) -> Result<(), E>,
) -> Result<(), E> {
    let mut after = None;
    loop {
        let scan = Scan::Dir { parent: dir, after: after.take(), limit: PAGE, include: ScanInclude::Nothing };
        let page = source.scan(&scan)?;
        for record in page.snapshot.records {
            if let Record::Dirent(_, name, Some(dirent)) = record {
                each(Line::Entry {
                    dir: dir.0,
                    name: Bytes(name.as_bytes().into()),
                    ino: dirent.ino.0,
                    kind: dirent.kind.into(),
                })?;
                after = Some(name);
            }
        }
        if !page.more || after.is_none() {
            return Ok(());
        }
    }
}
