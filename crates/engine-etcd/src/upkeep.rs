//! Forgetting what is no longer needed, in the background: old revisions of keys, and operations that nobody will repeat.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use keyspace::{Access, Fold, Snapshot, Upkeep, Write, fold};
use meta::EngineError;
use pool::Asked;

use crate::engine::Shared;
use crate::read::fetch;
use crate::request;
use crate::wire::{COMPACT, CompactionRequest, CompactionResponse};

/// How often it is done. Revisions are kept for as long as that, twice at most: they serve reads of several parts.
const EVERY: Duration = Duration::from_secs(30);

pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Upkeep> {
    let mut last = 0;
    Upkeep::start("limen-etcd", shared, EVERY, move |shared| last = shared.keep_up(last))
}

impl Shared {
    /// Does it once; `last` is the revision of the last time.
    fn keep_up(&self, last: i64) -> i64 {
        loop {
            let old = self.done.take_old(self.max_ops - 1);
            if old.is_empty() {
                break;
            }
            let writes: Vec<Write> = old.iter().map(|op| Write::Delete(self.keys.log(*op))).collect();
            let deleted = request::commit(&[], 0, &[], &writes, &[], self.max_ops)
                .and_then(|request| self.transact(&request));
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
            self.pool.request(Asked::Look, |connection| fetch(connection, &version, 0, 1, &mut snapshot));
        let Ok(now) = now else { return last };
        if self.compaction && last > 0 && now > last {
            let request = CompactionRequest { revision: last };
            // Another client may have been faster, which the server calls an error.
            let compacted = self.pool.request(Asked::Look, |connection| {
                connection.run(|channel| channel.call::<CompactionResponse>(COMPACT, &request))
            });
            if let Err(error) = compacted {
                tracing::debug!(%error, "old revisions were not dropped");
            }
        }
        now
    }

    /// Brings the usage into one lane, should there be many.
    fn fold_lanes(&self) -> Result<(), EngineError> {
        let lanes = Access::Span(self.keys.lanes());
        let mut snapshot = Snapshot::default();
        let read_at = self.pool.request(Asked::Look, |connection| {
            fetch(connection, std::slice::from_ref(&lanes), 0, 1, &mut snapshot)
        })?;
        let found: Vec<_> = snapshot.found().cloned().collect();
        let Some(Fold { claims, writes }) = fold(&self.keys, &found)? else { return Ok(()) };
        let request = request::commit(&claims, read_at, &[], &writes, &[], self.max_ops)?;
        self.transact(&request).map(drop)
    }
}
