//! Forgetting what is no longer needed, in the background: old revisions of keys, and operations that nobody will repeat.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use keyspace::{Access, Claim, Lane, Snapshot, Write, decode_lane, encode_lane};
use meta::EngineError;
use types::OpId;

use crate::engine::Shared;
use crate::error::Asked;
use crate::read::fetch;
use crate::request;
use crate::wire::{COMPACT, CompactionRequest, CompactionResponse, TXN, TxnRequest, TxnResponse};

/// How often it is done. Revisions are kept for as long as that, twice at most: they serve reads of several parts.
const EVERY: Duration = Duration::from_secs(30);
/// Operations are remembered for so long, and so many of them.
const REMEMBERED_FOR: Duration = Duration::from_secs(180);
const REMEMBERED_OPS: usize = 16_384;
/// Lanes of the usage beyond which they are folded.
const MOST_LANES: usize = 64;

/// Operations that were done by this handle, oldest first.
#[derive(Debug, Default)]
pub(crate) struct DoneOps(Mutex<VecDeque<(OpId, Instant)>>);

impl DoneOps {
    pub(crate) fn note(&self, ops: impl Iterator<Item = OpId>) {
        let now = Instant::now();
        let mut done = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        done.extend(ops.map(|op| (op, now)));
    }

    /// Some that are old enough to be forgotten.
    fn take_old(&self, most: usize) -> Vec<OpId> {
        let mut done = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut old = Vec::new();
        while done.len() > REMEMBERED_OPS
            && old.len() < most
            && done.front().is_some_and(|(_, at)| at.elapsed() > REMEMBERED_FOR)
            && let Some((op, _)) = done.pop_front()
        {
            old.push(op);
        }
        old
    }
}

/// The thread that does it; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    _alive: Sender<()>,
}

impl Upkeep {
    pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let (alive, ended) = mpsc::channel::<()>();
        let shared: Weak<Shared> = Arc::downgrade(shared);
        thread::Builder::new().name("limen-etcd".into()).spawn(move || {
            let mut last = 0;
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let Some(shared) = shared.upgrade() else { return };
                last = shared.keep_up(last);
            }
        })?;
        Ok(Upkeep { _alive: alive })
    }
}

impl Shared {
    /// Does it once; `last` is the revision of the last time.
    fn keep_up(&self, last: i64) -> i64 {
        loop {
            let old = self.done.take_old(self.max_ops - 1);
            if old.is_empty() {
                break;
            }
            let success = old.iter().map(|op| request::delete(&self.keys.log(*op), &[])).collect();
            let request = TxnRequest { success, ..TxnRequest::default() };
            let deleted = self.with_connection(Asked::Change, |connection| {
                connection.run(|channel| channel.call::<TxnResponse>(TXN, &request))
            });
            if let Err(error) = deleted {
                tracing::warn!(%error, "operations that are done stay remembered");
                break;
            }
        }
        if let Err(error) = self.fold_lanes() {
            tracing::warn!(%error, "the usage stays in many parts");
        }
        let mut snapshot = Snapshot::default();
        let version = [Access::Key(self.keys.version())];
        let now =
            self.with_connection(Asked::Look, |connection| fetch(connection, &version, 0, 1, &mut snapshot));
        let Ok(now) = now else { return last };
        if self.compaction && last > 0 && now > last {
            let request = CompactionRequest { revision: last };
            // Another client may have been faster, which the server calls an error.
            let compacted = self.with_connection(Asked::Look, |connection| {
                connection.run(|channel| channel.call::<CompactionResponse>(COMPACT, &request))
            });
            if let Err(error) = compacted {
                tracing::debug!(%error, "old revisions were not dropped");
            }
        }
        now
    }

    /// Brings the usage into one lane, should handles that are gone have left many. Whoever writes one of them meanwhile
    /// makes this fail, to be done another time.
    fn fold_lanes(&self) -> Result<(), EngineError> {
        let lanes = Access::Span(self.keys.lanes());
        let mut snapshot = Snapshot::default();
        let read_at = self.with_connection(Asked::Look, |connection| {
            fetch(connection, std::slice::from_ref(&lanes), 0, 1, &mut snapshot)
        })?;
        let found: Vec<_> = snapshot.found().cloned().collect();
        if found.len() <= MOST_LANES {
            return Ok(());
        }
        let first = self.keys.lane(0);
        let (mut sum, mut claims, mut writes) = (Lane::default(), Vec::new(), Vec::new());
        // Lane 0 is the first in order, so it is among those that are folded.
        for (key, held) in found.into_iter().take(MOST_LANES) {
            let lane = decode_lane(&key, &held.value);
            let lane = lane.map_err(|damaged| EngineError::permanent(damaged.to_string()))?;
            sum.inodes = sum.inodes.wrapping_add(lane.inodes);
            sum.blocks = sum.blocks.wrapping_add(lane.blocks);
            claims.push(Claim::Key(key.to_vec(), Some(held.version)));
            if key != first {
                writes.push(Write::Delete(key.to_vec()));
            }
        }
        if !claims.iter().any(|claim| matches!(claim, Claim::Key(key, _) if *key == first)) {
            claims.push(Claim::Key(first.clone(), None));
        }
        writes.push(Write::Put(first, encode_lane(sum)));
        let request = request::commit(&claims, read_at, &[], &writes, &[], self.max_ops)?;
        self.with_connection(Asked::Change, |connection| {
            connection.run(|channel| channel.call::<TxnResponse>(TXN, &request))
        })?;
        Ok(())
    }
}
