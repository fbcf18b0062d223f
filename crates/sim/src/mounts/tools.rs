//! The tools beside the mounts: `limen fsck` and `limen gc`, on a machine of their own.
//!
//! Their code is in the crate `cli`, which no test tool may depend on, so these functions take the same steps
//! with the same functions of `check` and `client`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use check::{CheckScope, Problem};
use chunk::StoredBlock;
use client::{Failure, Meta};
use meta::{Counter, Engine, EngineError, Record, RecordKey, Scan};
use ops::{Authority, Reap};
use types::{BLOCK_BYTES, Ino, SessionId, SliceId};

use crate::cut::Kind;
use crate::mounts::engine::Network;
use crate::mounts::shared::{CACHE_RECORDS, CLIENTS, Shared};
use crate::mutant::Mutant;

/// On a mounted volume, this many further checks must find a problem again (`cli/src/fsck.rs`).
const CONFIRMED_BY: usize = 3;
const PAGE: usize = 3;

/// Runs one tool after the other until the end of the history.
pub(super) fn run(shared: &Arc<Shared>) {
    if !shared.conditions.has_tools {
        return;
    }
    let network = || Network { shared: Arc::clone(shared), client: CLIENTS };
    loop {
        host::sleep(Duration::from_millis(500 + host::random() % 8000));
        let is_check = host::random().is_multiple_of(2);
        if !shared.decide(Kind::Gc) {
            continue;
        }
        shared.trace(if is_check { "fsck begins" } else { "gc begins" });
        // If a request fails, so does the tool.
        if is_check {
            let problems = confirmed(&network()).unwrap_or_default();
            for problem in problems {
                shared.world().find(format!("fsck on the mounted volume finds {problem:?}"));
            }
        } else if let Ok(meta) = Meta::open(Arc::new(network()), CACHE_RECORDS) {
            let (inodes, slices) = collect(shared, &network(), &meta).unwrap_or_default();
            shared.trace(&format!("gc has removed {inodes} unlinked inodes, {slices} slices"));
        }
    }
}

/// The problems that each of several checks finds. A change in progress can look like a problem, but not in
/// all checks.
fn confirmed(engine: &dyn Engine) -> Result<Vec<Problem>, EngineError> {
    let mut left = Vec::new();
    check::check(engine, &CheckScope::Volume, &mut |problem| left.push(problem), &mut |_, _| {})?;
    left.retain(|problem| !matches!(problem, Problem::Usage { .. } | Problem::Quota { .. }));
    for _ in 0..CONFIRMED_BY {
        if left.is_empty() {
            break;
        }
        let mut again = Vec::new();
        let mut report = |problem: Problem| again.extend(left.contains(&problem).then_some(problem));
        check::check(engine, &CheckScope::Volume, &mut report, &mut |_, _| {})?;
        left = again;
    }
    Ok(left)
}

/// Removes the unlinked inodes of sessions that have no record, and the blocks that nothing refers to (`Left`
/// and `Sweeper` in `cli/src/gc.rs`). Even the newest blocks are removed, so the rules must hold without the
/// grace period.
fn collect(shared: &Shared, engine: &dyn Engine, meta: &Meta) -> Result<(usize, usize), Failure> {
    // The counter and the unlinked inodes are read before the sessions, so that a session which begins
    // meanwhile loses nothing.
    let next = match engine.read(&[RecordKey::Counter(Counter::Slice)])?.records.first() {
        Some(Record::Counter(_, next)) => SliceId(*next),
        _ => return Ok((0, 0)),
    };
    let mut orphans: Vec<(SessionId, Ino)> = Vec::new();
    loop {
        let after = orphans.last().copied().unwrap_or_default();
        let page = engine.scan(&Scan::Orphans { after, limit: PAGE })?;
        let before = orphans.len();
        orphans.extend(page.snapshot.records.into_iter().filter_map(|record| match record {
            Record::Orphan(session, ino) => Some((session, ino)),
            _ => None,
        }));
        if !page.more || orphans.len() == before {
            break;
        }
    }
    let page = engine.scan(&Scan::Sessions { after: SessionId(0), limit: 1000 })?;
    let living: BTreeMap<SessionId, SliceId> = page.snapshot.records.iter().filter_map(session).collect();
    if shared.mutant != Some(Mutant::GcRemovesOpen) {
        orphans.retain(|(session, _)| !living.contains_key(session));
    }
    let by_tool = Authority::Kernel { revisions: None };
    for &(session, ino) in &orphans {
        meta.run(&Reap { session, ino }, &by_tool)?;
    }
    let below = match shared.mutant {
        Some(Mutant::GcWithoutGrace) => SliceId(u64::MAX),
        _ => living.into_values().fold(next, SliceId::min),
    };
    let mut count = 0;
    check::for_each_slice_window(engine, |window| -> Result<(), EngineError> {
        let mut unused = BTreeMap::new();
        let mut look = |block: StoredBlock| {
            if window.holds(block.id) && window.get(block.id).is_none() && block.id < below {
                let size: &mut u32 = unused.entry(block.id).or_default();
                *size = (*size).max(block.block * BLOCK_BYTES + block.len);
            }
            Ok(())
        };
        let store = &shared.store.blocks;
        let walked = store.for_each_block(&mut look);
        for (slice, size) in unused.into_iter().filter(|_| walked.is_ok()) {
            count += usize::from(store.delete_slice(slice, size).is_ok());
        }
        Ok(())
    })?;
    Ok((orphans.len(), count))
}

fn session(record: &Record) -> Option<(SessionId, SliceId)> {
    match record {
        Record::Session(id, Some(session)) => Some((*id, session.first_slice)),
        _ => None,
    }
}
