//! Commits a batch of transactions as one etcd transaction.
//!
//! The batch is decided from cached keys. The server compares the versions on which the decision depends, and
//! writes only if they are current. If they are not, the same response returns the current keys, and the
//! batch is decided again from those. So a commit takes one round trip if the cache is current, and two if it
//! is not. Of several concurrent commits one always succeeds, so retries end soon.
//!
//! The decision does not depend on the values that almost every commit changes: the times of a directory, and
//! the usage. Times are written without a comparison, a ctime only if it is later than the stored one. Each
//! writer adds to the usage in a shard of its own, in which it may reserve space below a limit.

use std::collections::BTreeSet;

use keyspace::{
    Batch, CachedSource, Done, Fresh, KeyQuery, KeyReader, Options, Overlay, Precondition, ReadSet, disagree,
    guard_keys, is_needed, likely,
};
use meta::{EngineError, Outcome, Snapshot, Txn};
use pool::{Intent, gradually};

use crate::read::{read_seq, seq};
use crate::request::{self, ROOM};
use crate::shared::Shared;
use crate::wire::{TXN, TxnRequest, TxnResponse};

/// The maximum number of attempts if other clients change the same records.
const ATTEMPTS: u32 = 200;
/// The number of retries without a pause. Each further retry waits first.
const BACKOFF_AFTER: u32 = 4;

impl Shared {
    pub(crate) fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let slot = self.shards.take();
        gradually(txns, |rest, outcomes| self.commit_some(rest, slot.number(), outcomes))
    }

    /// Commits a prefix of the transactions, as many as fit into one request.
    fn commit_some(&self, txns: &[Txn], shard: u64, outcomes: &mut Vec<Outcome>) -> Result<(), EngineError> {
        let mut read_set = ReadSet::default();
        let mut read_at = 0;
        for attempt in 0..ATTEMPTS {
            if attempt > BACKOFF_AFTER {
                self.jitter.pause(attempt);
            }
            let source = CachedSource::new(&read_set, &self.key_cache);
            let max_preconditions = self.max_ops - ROOM;
            let options = Options { blind: true, shard, read_at, max_preconditions, show: false };
            let batch = keyspace::decide(&self.keys, txns, &source, options);
            let fresh = read_at > 0 && batch.queried.iter().all(|query| read_set.has(query));
            if let Some(damaged) = batch.damaged() {
                if fresh {
                    return Err(damaged.clone().into());
                }
                // Cached keys come from several moments and may contradict each other.
                (read_set, read_at) = self.read_again(batch.queried)?;
                continue;
            }
            if batch.is_missing() || batch.done.is_empty() {
                let mut queries = batch.queried.clone();
                if fresh {
                    if !batch.conflicts() {
                        return Err(disagree());
                    }
                    let record_keys = guard_keys(txns.get(..1).unwrap_or_default());
                    let fresh = Fresh { read_set: &read_set, key_cache: &self.key_cache, keys: &self.keys };
                    let (answer, queried) = keyspace::answer(&self.keys, &record_keys, &fresh);
                    match answer {
                        Ok(records) => {
                            outcomes.push(Outcome::Conflict(Snapshot { seq: read_seq(read_at), records }));
                            return Ok(());
                        }
                        Err(keyspace::ReadStop::Damaged(damaged)) => return Err(damaged.into()),
                        Err(_) => queries.extend(queried),
                    }
                } else {
                    queries.extend(likely(&self.keys, &self.key_cache, &guard_keys(txns)));
                }
                (read_set, read_at) = self.read_again(queries)?;
                continue;
            }
            let decided = txns.get(..batch.done.len()).unwrap_or_default();
            if fresh && batch.writes.is_empty() {
                outcomes.extend(batch.done.into_iter().map(|done| outcome(done, read_at)));
                return Ok(());
            }
            let likely = likely(&self.keys, &self.key_cache, &guard_keys(decided)).into_iter();
            let likely = likely.filter(|query| is_needed(&self.keys, &self.key_cache, query));
            let otherwise: Vec<KeyQuery> =
                batch.queried.iter().cloned().chain(likely).collect::<BTreeSet<_>>().into_iter().collect();
            let shown: Vec<KeyQuery> = batch.shown.iter().cloned().collect();
            let encode = |preconditions: &[Precondition], otherwise: &[KeyQuery]| {
                request::commit(preconditions, read_at, &shown, &batch.writes, otherwise, self.max_ops)
            };
            let request = match encode(&batch.preconditions, &otherwise) {
                // The batch is too large for one request, so commit its first half.
                Err(_) if decided.len() > 1 => {
                    let half = decided.get(..decided.len() / 2).unwrap_or_default();
                    return self.commit_some(half, shard, outcomes);
                }
                // Fewer preconditions suffice if everything was read as of one moment.
                Err(_) if !fresh => {
                    (read_set, read_at) = self.read_again(batch.queried)?;
                    continue;
                }
                // If these preconditions do not hold, another request reads everything again.
                Err(_) => encode(&self.keys.join_shared_counts(batch.preconditions.clone()), &[])?,
                Ok(request) => request,
            };
            let answer = self.send(&batch, &request)?;
            let revision = answer.revision();
            if answer.succeeded {
                self.key_cache.note_writes(&batch.writes, revision);
                self.done.note(decided, &batch.done);
                let changes = |txn: &Txn| txn.effects.iter().any(|effect| effect.changed_inode().is_some());
                let mut done = batch.done;
                if decided.iter().any(changes) {
                    let mut found = ReadSet::default();
                    request::take(&mut found, &shown, answer.responses.into_iter());
                    let options = Options { show: true, ..options };
                    let again = keyspace::decide(&self.keys, decided, &Overlay(&found, &source), options);
                    if again.done.len() == done.len() {
                        done = again.done;
                    } else {
                        tracing::error!(
                            "bug in limenfs: the values that a commit returned lead to another decision of its batch"
                        );
                    }
                }
                outcomes.extend(done.into_iter().map(|done| outcome(done, revision)));
                return Ok(());
            }
            if request.failure.len() < otherwise.len() {
                // With a part of the values, the next attempt would take the other ones from the cache again.
                (read_set, read_at) = self.read_again(otherwise)?;
                continue;
            }
            let mut found = ReadSet::default();
            request::take(&mut found, &otherwise, answer.responses.into_iter());
            self.key_cache.note_snapshot(&self.keys, &found, revision);
            (read_set, read_at) = (found, revision);
        }
        Err(EngineError::transient(format!("gave up after {ATTEMPTS} conflicts with other clients")))
    }

    fn send(&self, batch: &Batch, request: &TxnRequest) -> Result<TxnResponse, EngineError> {
        let intent = if batch.writes.is_empty() { Intent::Read } else { Intent::Change };
        self.pool
            .request(intent, |connection| connection.run(|channel| channel.call(TXN, request)))
            .inspect_err(|_| {
                // The outcome is indeterminate, so drop the cached values of the keys that the batch writes.
                batch.writes.iter().for_each(|write| self.key_cache.forget(write.key()));
            })
    }

    fn read_again(&self, queries: impl IntoIterator<Item = KeyQuery>) -> Result<(ReadSet, u64), EngineError> {
        let (found, revision) = self.fetch(&Vec::from_iter(queries), None)?;
        self.key_cache.note_snapshot(&self.keys, &found, revision);
        Ok((found, revision))
    }
}

fn outcome(done: Done, revision: u64) -> Outcome {
    match done {
        Done::Committed { index, inodes } => Outcome::Committed { seq: seq(revision, index), inodes },
        Done::Claimed => Outcome::Committed { seq: read_seq(revision), inodes: Vec::new() },
        Done::Repeated { version, index } => {
            Outcome::Committed { seq: seq(version.unwrap_or(revision), index), inodes: Vec::new() }
        }
    }
}
