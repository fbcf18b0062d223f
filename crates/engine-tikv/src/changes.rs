//! The stream of changes. TiKV sends no notifications of changes, so the heads of all shards are polled. The
//! module `change_log` of the crate `keyspace` explains why no change is missed or reported twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use keyspace::{KeyQuery, KeyState, ReadSet, ShardHead, Source, decode_changes, decode_head};
use meta::{Change, CommitNumbers, EngineError};
use pool::{Log, LogTail};

use crate::read::seq;
use crate::shared::Shared;
use crate::upkeep::{IDLE, before};

/// The polling interval while a caller waits.
const PAUSE: Duration = Duration::from_millis(15);

#[derive(Debug)]
pub(crate) struct Seen {
    shared: Arc<Shared>,
    /// The timestamp of the last poll.
    at: u64,
    /// By shard: its head at the last poll, and the start timestamp of the transaction that wrote the head.
    heads: BTreeMap<u64, (ShardHead, u64)>,
}

/// Opens a stream of all changes that are committed after this returns.
pub(crate) fn open(shared: &Arc<Shared>) -> Result<LogTail<Seen>, EngineError> {
    LogTail::new(&shared.store.name(), PAUSE, || {
        let at = shared.store.timestamp()?;
        let heads = shared.heads(at)?;
        Ok(Seen { shared: Arc::clone(shared), at, heads })
    })
}

impl Log for Seen {
    type Error = EngineError;

    /// Takes one timestamp and one read, and a second read if there are changes.
    fn poll(&mut self) -> Result<Vec<Change>, EngineError> {
        let at = self.shared.store.timestamp()?;
        let heads = self.shared.heads(at)?;
        let idle = before(at, IDLE);
        // A shard is removed if nothing was written to it for IDLE, measured by the timestamps of the
        // cluster. If the last poll is older than IDLE, a shard may have been written and removed since then.
        if self.at < idle {
            return Err(lost());
        }
        let is_wiped =
            |(shard, (_, version)): (&u64, &(ShardHead, u64))| *version >= idle && !heads.contains_key(shard);
        if self.heads.iter().any(is_wiped) {
            return Err(EngineError::permanent("the volume was wiped"));
        }
        let mut keys = Vec::new();
        for (shard, (head, _)) in &heads {
            let before = self.heads.get(shard).map(|(head, _)| *head);
            let new = head.since(before).ok_or_else(lost)?;
            keys.extend(new.map(|number| self.shared.keys.changes(*shard, number)));
        }
        let mut news = Vec::new();
        if !keys.is_empty() {
            let queries: Vec<KeyQuery> = keys.iter().cloned().map(KeyQuery::Key).collect();
            let read_set = self.shared.read_as_of(at, &queries)?;
            for key in &keys {
                self.take(key, &read_set, &mut news)?;
            }
        }
        (self.at, self.heads) = (at, heads);
        Ok(news)
    }

    fn commit_numbers(&self) -> &CommitNumbers {
        &self.shared.commit_numbers
    }
}

impl Seen {
    fn take(&self, key: &[u8], read_set: &ReadSet, news: &mut Vec<Change>) -> Result<(), EngineError> {
        let KeyState::StoredValue(held) = read_set.get(key) else { return Err(lost()) };
        for entry in decode_changes(key, &held.value)? {
            let by = entry.op.session();
            news.push(Change { seq: seq(held.version, entry.index), by, invalidations: entry.invalidations });
        }
        Ok(())
    }
}

impl Shared {
    /// The head of each shard, and the start timestamp of the transaction that wrote it last.
    pub(crate) fn heads(&self, at: u64) -> Result<BTreeMap<u64, (ShardHead, u64)>, EngineError> {
        let read_set = self.read_as_of(at, &[KeyQuery::Span(self.keys.heads())])?;
        let mut heads = BTreeMap::new();
        for (key, held) in read_set.found() {
            let shard = self.keys.parse_head(key);
            let shard =
                shard.ok_or_else(|| EngineError::permanent("the head of a shard has an invalid key"))?;
            heads.insert(shard, (decode_head(key, &held.value)?, held.version));
        }
        Ok(heads)
    }
}

fn lost() -> EngineError {
    EngineError::permanent("changes were removed before this client read them")
}
