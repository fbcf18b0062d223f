//! Background housekeeping: compacts old revisions, removes the results of completed operations, and merges
//! usage shards.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use keyspace::{KeyQuery, KeyReader, KeyWrite, PeriodicTask, ShardMerge, merge_shards};
use meta::EngineError;
use pool::Intent;
use types::OpId;

use crate::request;
use crate::shared::Shared;
use crate::wire::{COMPACT, CompactionRequest, CompactionResponse};

/// The interval between two runs. A revision is kept for at least one interval, because a read that consists
/// of several requests needs it.
const EVERY: Duration = Duration::from_secs(30);

pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<PeriodicTask> {
    let mut last = 0;
    PeriodicTask::start("limen-etcd", shared, EVERY, move |shared| last = shared.keep_up(last))
}

impl Shared {
    /// Does the housekeeping once. `last` is the revision at the previous run; returns the current revision.
    fn keep_up(&self, last: u64) -> u64 {
        if let Err(error) = self.forget_ops() {
            tracing::warn!(%error, "cannot remove the results of completed operations");
        }
        if let Err(error) = self.merge_usage_shards() {
            tracing::warn!(%error, "cannot merge the usage shards");
        }
        let Ok((_, now)) = self.fetch(&[KeyQuery::Key(self.keys.version())], None) else { return last };
        if self.compaction && last > 0 && now > last {
            let request = CompactionRequest { revision: request::signed(last) };
            // The server reports an error if another client compacted first.
            let compacted = self.pool.request(Intent::Read, |connection| {
                connection.run(|channel| channel.call::<CompactionResponse>(COMPACT, &request))
            });
            if let Err(error) = compacted {
                tracing::debug!(%error, "cannot compact old revisions");
            }
        }
        now
    }

    fn forget_ops(&self) -> Result<(), EngineError> {
        let remove = |old: &[OpId]| {
            let writes: Vec<KeyWrite> = old.iter().map(|op| KeyWrite::Delete(self.keys.log(*op))).collect();
            let request = request::commit(&[], 0, &[], &writes, &[], self.max_ops)?;
            self.transact(&request).map(drop)
        };
        while self.done.remove_old(self.max_ops - 1, remove)? {}
        Ok(())
    }

    /// Merges the usage shards into one if there are many.
    fn merge_usage_shards(&self) -> Result<(), EngineError> {
        let (read_set, read_at) = self.fetch(&[KeyQuery::Span(self.keys.usage_shards())], None)?;
        let found: Vec<_> = read_set.found().cloned().collect();
        let Some(ShardMerge { preconditions, writes }) = merge_shards(&self.keys, &found)? else {
            return Ok(());
        };
        let request = request::commit(&preconditions, read_at, &[], &writes, &[], self.max_ops)?;
        self.transact(&request).map(drop)
    }
}
