//! Background housekeeping: removes the results of operations that no client will retry, the usage shards and
//! heads of closed handles, and old versions.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyspace::{KeyQuery, KeyWrite, PeriodicTask, ShardMerge, Span, merge_shards};
use meta::EngineError;
use types::OpId;

use crate::read::LOGICAL_BITS;
use crate::shared::Shared;
use crate::store::{CommitError, Mutation, Phases};

/// The interval of the housekeeping.
const EVERY: Duration = Duration::from_secs(30);
/// The interval at which old versions are deleted, and their minimum age. A read that needs several requests
/// takes less time.
const GC_EVERY: Duration = Duration::from_secs(600);
/// A shard is removed if nothing was written to it for this time.
pub(crate) const IDLE: Duration = Duration::from_secs(600);
/// The maximum number of keys that one transaction removes.
const AT_ONCE: usize = 1000;
/// The maximum number of attempts of one step.
const ATTEMPTS: usize = 20;

pub(crate) fn start(shared: &Arc<Shared>, gc: bool) -> io::Result<PeriodicTask> {
    let mut collected = Instant::now();
    PeriodicTask::start("limen-tikv", shared, EVERY, move |shared| {
        shared.keep_up();
        if gc && collected.elapsed() >= GC_EVERY {
            collected = Instant::now();
            let done =
                shared.store.timestamp().and_then(|now| shared.store.forget_before(before(now, GC_EVERY)));
            warn(done, "cannot delete old versions");
        }
    })
}

/// The timestamp that is `age` before `now`.
pub(crate) fn before(now: u64, age: Duration) -> u64 {
    let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    now.saturating_sub(millis.saturating_mul(1 << LOGICAL_BITS))
}

impl Shared {
    pub(crate) fn keep_up(&self) {
        warn(self.forget_ops(), "cannot remove the results of old operations");
        warn(self.merge_usage_shards(), "cannot merge the usage shards");
        warn(self.remove_idle_shards(IDLE), "cannot remove the shards of closed handles");
    }

    fn forget_ops(&self) -> Result<(), EngineError> {
        let remove = |old: &[OpId]| {
            self.commit_now(old.iter().map(|op| Mutation::Delete(self.keys.log(*op))).collect())
        };
        while self.done.remove_old(AT_ONCE, remove)? {}
        Ok(())
    }

    /// Commits mutations that depend on no record.
    fn commit_now(&self, mutations: Vec<Mutation>) -> Result<(), EngineError> {
        for _ in 0..ATTEMPTS {
            match self.store.begin(Phases::Two)?.commit(mutations.clone()) {
                Ok(()) => return Ok(()),
                Err(CommitError::Conflict(_) | CommitError::OnePhaseRefused) => {}
                Err(CommitError::Failed(error)) => return Err(error),
            }
        }
        Err(EngineError::transient("repeated conflicts with other clients"))
    }

    /// Merges the usage into one shard, if there are many.
    fn merge_usage_shards(&self) -> Result<(), EngineError> {
        let attempt = self.store.begin(Phases::Two)?;
        let start = attempt.started_at();
        let read_set = self.read_as_of(start, &[KeyQuery::Span(self.keys.usage_shards())])?;
        let found: Vec<_> = read_set.found().cloned().collect();
        let Some(ShardMerge { preconditions, writes }) = merge_shards(&self.keys, &found)? else {
            return Ok(());
        };
        // If another transaction writes one of the shards at the same time, the merge is left to the next
        // run.
        CommitError::failure(attempt.commit(self.mutations(start, &preconditions, &writes)?))
    }

    /// Removes the shards to which nothing was written for `idle`. Every stream of changes has read their
    /// changes, or will fail.
    pub(crate) fn remove_idle_shards(&self, idle: Duration) -> Result<(), EngineError> {
        let now = self.store.timestamp()?;
        for (shard, (_, version)) in self.heads(now)? {
            if version >= before(now, idle) {
                continue;
            }
            let attempt = self.store.begin(Phases::Two)?;
            let start = attempt.started_at();
            let changes = self.read_as_of(start, &[KeyQuery::Span(self.keys.all_changes(shard))])?;
            let mut writes: Vec<KeyWrite> =
                changes.found().map(|(key, _)| KeyWrite::Delete(key.to_vec())).collect();
            writes.push(KeyWrite::Delete(self.keys.head(shard)));
            // If the shard was written in the meantime, its head has a new version, and the shard is kept.
            let unchanged = self.heads(start)?.get(&shard).is_some_and(|(_, again)| *again == version);
            if unchanged {
                CommitError::failure(attempt.commit(self.mutations(start, &[], &writes)?))?;
            }
        }
        Ok(())
    }

    /// Removes everything except the version of the layout. The settings are removed last, together, because
    /// a later wipe recognizes the volume by them.
    pub(crate) fn wipe(&self) -> Result<(), EngineError> {
        let (all, settings) = (self.keys.all(), self.keys.settings());
        let before = Span { end: settings.start.clone(), ..all.clone() };
        let after = Span { start: settings.end.clone(), ..all };
        for span in [before, after, settings] {
            self.wipe_span(&span)?;
        }
        self.key_cache.clear();
        Ok(())
    }

    fn wipe_span(&self, span: &Span) -> Result<(), EngineError> {
        let version = self.keys.version();
        let mut failures = 0;
        loop {
            let attempt = self.store.begin(Phases::Two)?;
            let start = attempt.started_at();
            let some = KeyQuery::Span(Span { limit: AT_ONCE, ..span.clone() });
            let found = self.read_as_of(start, &[some])?;
            let keys = found.found().filter(|(key, _)| *key != version);
            let deletes: Vec<_> = keys.map(|(key, _)| Mutation::Delete(key.to_vec())).collect();
            if deletes.is_empty() {
                return Ok(());
            }
            match attempt.commit(deletes) {
                Ok(()) => failures = 0,
                Err(CommitError::Failed(error)) => return Err(error),
                Err(CommitError::Conflict(_) | CommitError::OnePhaseRefused) if failures < ATTEMPTS => {
                    failures += 1
                }
                Err(_) => {
                    return Err(EngineError::transient(
                        "other clients keep writing to the volume: unmount it everywhere",
                    ));
                }
            }
        }
    }

    /// Removes the version of the layout, unless the volume has other keys.
    pub(crate) fn remove(&self) -> Result<(), EngineError> {
        let attempt = self.store.begin(Phases::Two)?;
        let two = KeyQuery::Span(Span { limit: 2, ..self.keys.all() });
        let version = self.keys.version();
        if self.read_as_of(attempt.started_at(), &[two])?.found().any(|(key, _)| *key != version) {
            return Ok(());
        }
        attempt.commit(vec![Mutation::Delete(version)]).map_err(|error| match error {
            CommitError::Failed(error) => error,
            _ => EngineError::transient("another client writes to the volume: unmount it everywhere"),
        })
    }
}

fn warn(done: Result<(), EngineError>, what: &str) {
    if let Err(error) = done {
        tracing::warn!(%error, "{what}");
    }
}
