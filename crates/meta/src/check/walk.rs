//! Ranges of records from their beginning to their end, a page at a time.

use types::{ChunkIndex, Ino, Name, SessionId, Slice, SliceId};

use crate::engine::{Engine, EngineError};
use crate::record::{Beside, Edge, Garbage, Node, Record, Scan};

/// Rows read at a time.
pub(super) const PAGE: usize = 1024;

/// Calls `each` with every record of a range; `next` says how to go on after the last one.
pub(super) fn pages<E: From<EngineError>>(
    engine: &dyn Engine,
    mut next: impl FnMut(Option<&Record>) -> Scan,
    mut each: impl FnMut(&Record) -> Result<(), E>,
) -> Result<(), E> {
    let mut last = None;
    loop {
        let page = engine.scan(&next(last.as_ref()))?;
        page.facts.records.iter().try_for_each(&mut each)?;
        last = page.facts.records.into_iter().next_back();
        if !page.more || last.is_none() {
            return Ok(());
        }
    }
}

/// Calls `each` with every inode after `after`, a page at a time, until it says that it has enough.
pub(super) fn node_pages<E: From<EngineError>>(
    engine: &dyn Engine,
    mut after: Ino,
    mut each: impl FnMut(&[Node]) -> Result<bool, E>,
) -> Result<(), E> {
    loop {
        let page = engine.scan(&Scan::Nodes { after, limit: PAGE })?;
        let nodes: Vec<Node> = page
            .facts
            .records
            .into_iter()
            .filter_map(|record| match record {
                Record::Node(_, node) => node,
                _ => None,
            })
            .collect();
        let Some(last) = nodes.last() else { return Ok(()) };
        after = last.ino;
        if !each(&nodes)? || !page.more {
            return Ok(());
        }
    }
}

pub(super) fn nodes<E: From<EngineError>>(
    engine: &dyn Engine,
    mut each: impl FnMut(&Node) -> Result<(), E>,
) -> Result<(), E> {
    node_pages(engine, Ino(0), |nodes| nodes.iter().try_for_each(&mut each).map(|()| true))
}

/// Calls `each` with every entry of a directory, until it says that it has enough.
pub(super) fn entries(
    engine: &dyn Engine,
    dir: Ino,
    mut each: impl FnMut(&Name, Edge) -> bool,
) -> Result<(), EngineError> {
    let mut after = None;
    loop {
        let page = engine.scan(&Scan::Dir {
            parent: dir,
            after: after.take(),
            limit: PAGE,
            beside: Beside::Nothing,
        })?;
        for record in page.facts.records {
            if let Record::Edge(_, name, Some(edge)) = record {
                if !each(&name, edge) {
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

/// Calls `each` with every entry of every directory, until it says that it has enough.
pub(super) fn all_entries(
    engine: &dyn Engine,
    mut each: impl FnMut(Ino, &Name, Edge) -> bool,
) -> Result<(), EngineError> {
    node_pages(engine, Ino(0), |nodes| {
        let mut more = true;
        for dir in nodes.iter().filter(|node| node.kind.is_dir()) {
            entries(engine, dir.ino, |name, edge| {
                more = each(dir.ino, name, edge);
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
