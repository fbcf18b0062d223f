//! Scans of whole ranges of records, page by page.

use meta::{Beside, Dirent, Engine, EngineError, Garbage, Inode, Record, Scan};
use types::{ChunkIndex, Ino, Name, SessionId, Slice, SliceId};

/// The number of rows in a page.
pub(super) const PAGE: usize = 1024;

/// Calls `each` with every record of a range. `next` returns the scan that continues after the given record.
pub(super) fn pages<E: From<EngineError>>(
    engine: &dyn Engine,
    mut next: impl FnMut(Option<&Record>) -> Scan,
    mut each: impl FnMut(&Record) -> Result<(), E>,
) -> Result<(), E> {
    let mut last = None;
    loop {
        let page = engine.scan(&next(last.as_ref()))?;
        page.snapshot.records.iter().try_for_each(&mut each)?;
        last = page.snapshot.records.into_iter().next_back();
        if !page.more || last.is_none() {
            return Ok(());
        }
    }
}

/// Calls `each` with every page of inodes after `after`, until `each` returns `false`.
pub(super) fn inode_pages<E: From<EngineError>>(
    engine: &dyn Engine,
    mut after: Ino,
    mut each: impl FnMut(&[Inode]) -> Result<bool, E>,
) -> Result<(), E> {
    loop {
        let page = engine.scan(&Scan::Inodes { after, limit: PAGE })?;
        let inodes: Vec<Inode> = page
            .snapshot
            .records
            .into_iter()
            .filter_map(|record| match record {
                Record::Inode(_, inode) => inode,
                _ => None,
            })
            .collect();
        let Some(last) = inodes.last() else { return Ok(()) };
        after = last.ino;
        if !each(&inodes)? || !page.more {
            return Ok(());
        }
    }
}

pub(super) fn inodes<E: From<EngineError>>(
    engine: &dyn Engine,
    mut each: impl FnMut(&Inode) -> Result<(), E>,
) -> Result<(), E> {
    inode_pages(engine, Ino(0), |inodes| inodes.iter().try_for_each(&mut each).map(|()| true))
}

/// Calls `each` with every entry of a directory, until `each` returns `false`.
pub(super) fn entries(
    engine: &dyn Engine,
    dir: Ino,
    mut each: impl FnMut(&Name, Dirent) -> bool,
) -> Result<(), EngineError> {
    let mut after = None;
    loop {
        let page = engine.scan(&Scan::Dir {
            parent: dir,
            after: after.take(),
            limit: PAGE,
            beside: Beside::Nothing,
        })?;
        for record in page.snapshot.records {
            if let Record::Dirent(_, name, Some(dirent)) = record {
                if !each(&name, dirent) {
                    return Ok(());
                }
                after = Some(name);
            }
        }
        if !page.more || after.is_none() {
            return Ok(());
        }
    }
}

/// Calls `each` with every entry of every directory, until `each` returns `false`.
pub(super) fn all_entries(
    engine: &dyn Engine,
    mut each: impl FnMut(Ino, &Name, Dirent) -> bool,
) -> Result<(), EngineError> {
    inode_pages(engine, Ino(0), |inodes| {
        let mut more = true;
        for dir in inodes.iter().filter(|inode| inode.kind.is_dir()) {
            entries(engine, dir.ino, |name, dirent| {
                more = each(dir.ino, name, dirent);
                more
            })?;
            if !more {
                break;
            }
        }
        Ok(more)
    })
}

/// Calls `each` with the rows of every chunk of a file.
pub(super) fn chunks<E: From<EngineError>>(
    engine: &dyn Engine,
    ino: Ino,
    mut each: impl FnMut(ChunkIndex, &[Slice]) -> Result<(), E>,
) -> Result<(), E> {
    let mut from = ChunkIndex(0);
    pages(
        engine,
        |last| {
            if let Some(Record::Slices(_, chunk, _)) = last {
                from = ChunkIndex(chunk.0.saturating_add(1));
            }
            Scan::Slices { ino, from, limit: PAGE }
        },
        |record| {
            if let Record::Slices(_, chunk, rows) = record {
                each(*chunk, rows)?;
            }
            Ok(())
        },
    )
}

pub(super) fn orphans(engine: &dyn Engine, mut each: impl FnMut(SessionId, Ino)) -> Result<(), EngineError> {
    let mut after = (SessionId(0), Ino(0));
    pages(
        engine,
        |last| {
            if let Some(Record::Orphan(session, ino)) = last {
                after = (*session, *ino);
            }
            Scan::Orphans { after, limit: PAGE }
        },
        |record| {
            if let Record::Orphan(session, ino) = record {
                each(*session, *ino);
            }
            Ok(())
        },
    )
}

pub(super) fn garbage(
    engine: &dyn Engine,
    mut after: SliceId,
    mut each: impl FnMut(Garbage),
) -> Result<(), EngineError> {
    pages(
        engine,
        |last| {
            if let Some(Record::Garbage(garbage)) = last {
                after = garbage.slice;
            }
            Scan::Garbage { after, limit: PAGE }
        },
        |record| {
            if let Record::Garbage(garbage) = record {
                each(*garbage);
            }
            Ok(())
        },
    )
}

pub(super) fn shared(
    engine: &dyn Engine,
    mut after: SliceId,
    mut each: impl FnMut(SliceId, u64),
) -> Result<(), EngineError> {
    pages(
        engine,
        |last| {
            if let Some(Record::Shared(slice, _)) = last {
                after = *slice;
            }
            Scan::Shared { after, limit: PAGE }
        },
        |record| {
            if let Record::Shared(slice, rows) = record {
                each(*slice, *rows);
            }
            Ok(())
        },
    )
}
