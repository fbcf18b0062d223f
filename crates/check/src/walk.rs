//! Scans of whole ranges of records, page by page.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meta::{Dirent, Engine, EngineError, Garbage, Inode, Page, Record, RecordKey, Scan, ScanInclude};
use types::{ChunkIndex, FileType, Ino, Name, SessionId, Slice, SliceId};

/// The number of records in a page.
pub(super) const PAGE: usize = 1024;

/// The number of threads that read the rows of files if the engine needs a round trip for each read.
const READERS: usize = 8;

/// A read that takes at least this time counts as a round trip.
const ROUND_TRIP: Duration = Duration::from_micros(40);

/// The number of files whose first chunks are in memory at the same time.
const TOGETHER: usize = 128;

/// The number of first chunks of a file that one request reads.
const FIRST_CHUNKS: usize = 4;

/// Calls `each` with every record of a range.
pub(super) fn records<E: From<EngineError>>(
    engine: &dyn Engine,
    scan: Scan,
    mut each: impl FnMut(&Record) -> Result<(), E>,
) -> Result<(), E> {
    for page in scan.pages(|scan| engine.scan(scan)) {
        page?.iter().try_for_each(&mut each)?;
    }
    Ok(())
}

/// Calls `each` with every page of inodes after `after`, until `each` returns `false`.
pub(super) fn inode_pages<E: From<EngineError>>(
    engine: &dyn Engine,
    after: Ino,
    mut each: impl FnMut(&[Inode]) -> Result<bool, E>,
) -> Result<(), E> {
    for page in (Scan::Inodes { after, limit: PAGE }).pages(|scan| engine.scan(scan)) {
        let inode = |record: &Record| match record {
            Record::Inode(_, inode) => *inode,
            _ => None,
        };
        let inodes: Vec<Inode> = page?.iter().filter_map(inode).collect();
        if inodes.is_empty() || !each(&inodes)? {
            break;
        }
    }
    Ok(())
}

pub(super) fn inodes<E: From<EngineError>>(
    engine: &dyn Engine,
    mut each: impl FnMut(&Inode) -> Result<(), E>,
) -> Result<(), E> {
    inode_pages(engine, Ino(0), |inodes| inodes.iter().try_for_each(&mut each).map(|()| true))
}

/// Calls `each` with every entry of a directory, until `each` returns `false`. Returns `false` if `each` did.
pub(super) fn entries(
    engine: &dyn Engine,
    dir: Ino,
    mut each: impl FnMut(&Name, Dirent) -> bool,
) -> Result<bool, EngineError> {
    let scan = Scan::Dir { parent: dir, after: None, limit: PAGE, include: ScanInclude::Nothing };
    for page in scan.pages(|scan| engine.scan(scan)) {
        for record in page? {
            if let Record::Dirent(_, name, Some(dirent)) = record
                && !each(&name, dirent)
            {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Calls `each` with every entry of every directory, until `each` returns `false`.
pub(super) fn all_entries(
    engine: &dyn Engine,
    mut each: impl FnMut(Ino, &Name, Dirent) -> bool,
) -> Result<(), EngineError> {
    inode_pages(engine, Ino(0), |inodes| {
        for dir in inodes.iter().filter(|inode| inode.kind.is_dir()) {
            if !entries(engine, dir.ino, |name, dirent| each(dir.ino, name, dirent))? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Calls `each` with the rows of every chunk of every regular file among `inodes`. If a read is a round trip,
/// [`READERS`] threads read the first chunks of different files at the same time.
pub(super) fn chunks_of_all<E: From<EngineError>>(
    engine: &dyn Engine,
    inodes: &[Inode],
    mut each: impl FnMut(&Inode, ChunkIndex, &[Slice]) -> Result<(), E>,
) -> Result<(), E> {
    let files: Vec<&Inode> = inodes.iter().filter(|inode| inode.kind == FileType::Regular).collect();
    for files in files.chunks(TOGETHER) {
        let first = |ino| engine.scan(&Scan::Slices { ino, from: ChunkIndex(0), limit: FIRST_CHUNKS });
        let next = AtomicUsize::new(0);
        let take = |next: &AtomicUsize| files.get(next.fetch_add(1, Ordering::Relaxed));
        let read = || {
            std::iter::from_fn(|| take(&next)).map(|inode| (inode.ino, first(inode.ino))).collect::<Vec<_>>()
        };
        // The first file shows whether the engine needs a round trip. If not, threads would cost more than
        // they save.
        let began = host::Instant::now();
        let alone = take(&next).map(|inode| (inode.ino, first(inode.ino)));
        let is_remote = began.elapsed() >= ROUND_TRIP;
        let helpers = if is_remote { READERS.min(files.len()).saturating_sub(1) } else { 0 };
        let found = host::with_helpers("limen-check", helpers, &read).into_iter().flatten();
        let mut found: HashMap<Ino, Result<Page, EngineError>> = found.chain(alone).collect();
        for inode in files {
            // If a thread ended early, the pages that it has read are missing.
            let page = found.remove(&inode.ino).unwrap_or_else(|| first(inode.ino))?;
            let mut from = ChunkIndex(0);
            for record in &page.snapshot.records {
                if let Record::Slices(_, chunk, rows) = record {
                    from = ChunkIndex(chunk.0.saturating_add(1));
                    each(inode, *chunk, rows)?;
                }
            }
            if page.more {
                chunks(engine, inode.ino, from, |chunk, rows| each(inode, chunk, rows))?;
            }
        }
    }
    Ok(())
}

/// Calls `each` with the rows of every chunk of a file from chunk `from` on.
pub(super) fn chunks<E: From<EngineError>>(
    engine: &dyn Engine,
    ino: Ino,
    from: ChunkIndex,
    mut each: impl FnMut(ChunkIndex, &[Slice]) -> Result<(), E>,
) -> Result<(), E> {
    records(engine, Scan::Slices { ino, from, limit: PAGE }, |record| match record {
        Record::Slices(_, chunk, rows) => each(*chunk, rows),
        _ => Ok(()),
    })
}

pub(super) fn sessions(engine: &dyn Engine, mut each: impl FnMut(SessionId)) -> Result<(), EngineError> {
    records(engine, Scan::Sessions { after: SessionId(0), limit: PAGE }, |record| {
        if let Record::Session(session, _) = record {
            each(*session);
        }
        Ok(())
    })
}

pub(super) fn orphans(engine: &dyn Engine, mut each: impl FnMut(SessionId, Ino)) -> Result<(), EngineError> {
    records(engine, Scan::Orphans { after: (SessionId(0), Ino(0)), limit: PAGE }, |record| {
        if let Record::Orphan(session, ino) = record {
            each(*session, *ino);
        }
        Ok(())
    })
}

/// Calls `each` with the garbage slices of a range.
pub(super) fn garbage(
    engine: &dyn Engine,
    range: RangeInclusive<SliceId>,
    mut each: impl FnMut(Garbage),
) -> Result<(), EngineError> {
    let scan = Scan::Garbage { after: before(&range), limit: PAGE };
    records_until(engine, scan, |record| {
        if let Record::Garbage(garbage) = record
            && range.contains(&garbage.slice)
        {
            each(*garbage);
            return true;
        }
        false
    })
}

/// Calls `each` with the slices of a range that were ever shared.
pub(super) fn shared(
    engine: &dyn Engine,
    range: RangeInclusive<SliceId>,
    mut each: impl FnMut(SliceId, u64),
) -> Result<(), EngineError> {
    let scan = Scan::Shared { after: before(&range), limit: PAGE };
    records_until(engine, scan, |record| {
        if let Record::Shared(slice, rows) = record
            && range.contains(slice)
        {
            each(*slice, *rows);
            return true;
        }
        false
    })
}

/// The number after which a scan of a range begins.
fn before(range: &RangeInclusive<SliceId>) -> SliceId {
    SliceId(range.start().0.saturating_sub(1))
}

/// Calls `each` with the records of a range until `each` returns `false`.
fn records_until(
    engine: &dyn Engine,
    scan: Scan,
    mut each: impl FnMut(&Record) -> bool,
) -> Result<(), EngineError> {
    for page in scan.pages(|scan| engine.scan(scan)) {
        if !page?.iter().all(&mut each) {
            break;
        }
    }
    Ok(())
}

/// The name of `ino` in a directory.
pub(super) fn name_in(engine: &dyn Engine, dir: Ino, ino: Ino) -> Result<Option<Name>, EngineError> {
    let mut found = None;
    entries(engine, dir, |name, dirent| {
        if dirent.ino == ino {
            found = Some(name.clone());
        }
        found.is_none()
    })?;
    Ok(found)
}

pub(super) fn read_inode(engine: &dyn Engine, ino: Ino) -> Result<Option<Inode>, EngineError> {
    match engine.read(&[RecordKey::Inode(ino)])?.records.first() {
        Some(Record::Inode(_, inode)) => Ok(*inode),
        _ => Ok(None),
    }
}
