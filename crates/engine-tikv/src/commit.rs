//! Commits a batch of transactions as one optimistic transaction of TiKV.
//!
//! The transaction takes its timestamp, reads everything that the batch depends on as of that timestamp,
//! decides the batch, and commits. The keys that the decision depends on and that are not written are locked.
//! This is necessary because TiKV detects conflicts only between writes (snapshot isolation): without the
//! locks, two transactions that each read a key that the other writes would both succeed. So a commit takes
//! one timestamp, one read and one commit, as long as the locations of the inodes are cached. If a guard does
//! not hold, its records may need one more read; a conflict with a concurrent transaction costs another
//! attempt.
//!
//! The term that guards a commit is read and not locked, because otherwise all commits of a mount would
//! conflict. Each commit writes the head of a shard of its term anyway, and a transaction that ends the term
//! or removes the session locks the heads of all its shards. So that transaction conflicts with every commit
//! that read the term earlier and is not committed yet.
//!
//! A commit is numbered by the timestamp at which its transaction began, because no client can read the
//! timestamp of the commit itself. If two transactions conflict, the later one began after the earlier one
//! was committed, so the commits that change one record are numbered in their order.
//!
//! Transactions are committed in one phase if the server can do that. If the server refuses, the transaction
//! is rolled back and attempted again in two phases. Async commit is off, because the client cannot complete
//! the async commits that another client left unfinished.

use keyspace::{
    Answer, Batch, CachedSource, ChangeEntry, Done, KeyQuery, KeyState, KeyWrite, Options, Precondition,
    ReadSet, ReadStop, ShardHead, Source, answer, decide, decode_head, encode_changes, encode_head,
    guard_keys,
};
use meta::{EngineError, Outcome, Record, Seq, Snapshot, Txn};
use pool::gradually;

use crate::read::{MAX_TXNS, seal, seq};
use crate::shared::Shared;
use crate::store::{CommitError, Mutation, Phases};

/// The maximum number of attempts of a transaction that conflicts with others.
const ATTEMPTS: u32 = 200;
/// The number of retries without a pause. Each further retry waits first.
const RETRIES_WITHOUT_PAUSE: u32 = 1;
/// The maximum number of keys on which a TiKV transaction has preconditions, unless it commits only a single
/// transaction of the batch.
const MAX_PRECONDITIONS: usize = 4096;

/// The decision on the first transactions.
enum Plan {
    Commit(Batch, Option<ShardHead>),
    Conflict(Vec<Record>),
}

impl Shared {
    pub(crate) fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.commit_numbers.commit(|label| {
            let shard = self.shards.take();
            gradually(txns, |rest, outcomes| {
                let some = rest.get(..MAX_TXNS).unwrap_or(rest);
                self.commit_some(some, shard.number_for(some), label, outcomes)
            })
        })
    }

    /// Commits as many of the first transactions as can be committed together.
    fn commit_some(
        &self,
        txns: &[Txn],
        shard: u64,
        label: Seq,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), EngineError> {
        let mut phases = Phases::One;
        let mut cause = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > RETRIES_WITHOUT_PAUSE {
                self.jitter.pause(attempt);
            }
            let transaction = self.store.begin(phases)?;
            let start = transaction.started_at();
            let nothing = ReadSet::default();
            let (_, mut first) = self.plan(txns, shard, &CachedSource::new(&nothing, &self.key_cache));
            // The plan asks for the usage shards only when it knows everything else, so read them at once.
            first.extend([0, shard].map(|shard| KeyQuery::Key(self.keys.usage_shard(shard))));
            let (plan, _) = keyspace::read_until_complete(self, Some(start), first, false, |source| {
                self.plan(txns, shard, source)
            })?;
            let (batch, head) = match plan {
                Plan::Conflict(records) => {
                    outcomes.push(Outcome::Conflict(Snapshot { seq: label, records }));
                    return Ok(());
                }
                Plan::Commit(batch, head) => (batch, head),
            };
            if !batch.writes.is_empty() {
                let mut mutations = self.change_log_writes(txns, &batch, shard, start, head);
                // The head is written, so it needs no lock.
                let head = self.keys.head(shard);
                let others = self.mutations(start, &batch.preconditions, &batch.writes)?;
                mutations.extend(others.into_iter().filter(|other| other.key() != head));
                match transaction.commit(mutations) {
                    Ok(()) => {}
                    Err(CommitError::Conflict(why)) => {
                        cause = why;
                        continue;
                    }
                    Err(CommitError::OnePhaseRefused) => {
                        phases = Phases::Two;
                        continue;
                    }
                    Err(CommitError::Failed(error)) => return Err(error),
                }
                self.key_cache.note_writes(&batch.writes, start);
                self.done.note(txns, &batch.done);
            }
            outcomes.extend(batch.done.into_iter().map(|done| outcome(done, start, label)));
            return Ok(());
        }
        Err(EngineError::transient(format!("{ATTEMPTS} conflicts with other clients in a row: {cause}")))
    }

    /// Decides with the known values, or returns what else must be read.
    fn plan(&self, txns: &[Txn], shard: u64, source: &dyn Source) -> Answer<Plan> {
        // Everything is read as of one moment.
        let read_at = u64::MAX;
        let options =
            Options { blind: false, shard, read_at, max_preconditions: MAX_PRECONDITIONS, show: true };
        let batch = decide(&self.keys, txns, source, options);
        let key = self.keys.head(shard);
        let mut queried = batch.queried.clone();
        queried.insert(KeyQuery::Key(key.clone()));
        let plan = if let Some(damaged) = batch.damaged() {
            Err(damaged.clone().into())
        } else if batch.is_missing() {
            Err(ReadStop::Missing)
        } else if batch.done.is_empty() {
            let record_keys = guard_keys(txns.get(..1).unwrap_or_default());
            let (records, more) = answer(&self.keys, &record_keys, source);
            queried.extend(more);
            records.map(Plan::Conflict)
        } else {
            match source.get(&key) {
                KeyState::StoredValue(held) => decode_head(&key, &held.value)
                    .map(|head| Plan::Commit(batch, Some(head)))
                    .map_err(ReadStop::from),
                KeyState::Absent | KeyState::Unknown => Ok(Plan::Commit(batch, None)),
            }
        };
        (plan, queried)
    }

    /// The writes to the log of changes, by which other clients learn of the batch; see the module
    /// `change_log` of the crate `keyspace`.
    fn change_log_writes(
        &self,
        txns: &[Txn],
        batch: &Batch,
        shard: u64,
        start: u64,
        head: Option<ShardHead>,
    ) -> Vec<Mutation> {
        let entry = |(done, txn): (&Done, &Txn)| match done {
            Done::Committed { index, .. } => {
                Some(ChangeEntry { op: txn.op_id, index: *index, invalidations: txn.invalidations() })
            }
            Done::Claimed | Done::Repeated { .. } => None,
        };
        let entries: Vec<ChangeEntry> = batch.done.iter().zip(txns).filter_map(entry).collect();
        let head = ShardHead::after(head, start);
        let put = |key, value: &[u8]| Mutation::Put(key, seal(value, start));
        let mut mutations = vec![
            put(self.keys.head(shard), &encode_head(head)),
            put(self.keys.changes(shard, head.last), &encode_changes(&entries)),
        ];
        let old = head.last.checked_sub(keyspace::KEPT).filter(|old| *old >= head.first);
        mutations.extend(old.map(|old| Mutation::Delete(self.keys.changes(shard, old))));
        mutations
    }

    /// The writes of a transaction, and locks on the other keys that it depends on.
    pub(crate) fn mutations(
        &self,
        start: u64,
        preconditions: &[Precondition],
        writes: &[KeyWrite],
    ) -> Result<Vec<Mutation>, EngineError> {
        let mut mutations = Vec::with_capacity(writes.len() + preconditions.len());
        for write in writes {
            mutations.push(match write {
                KeyWrite::Put(key, value) => Mutation::Put(key.clone(), seal(value, start)),
                KeyWrite::Delete(key) => Mutation::Delete(key.clone()),
                KeyWrite::PutGreater(..) | KeyWrite::DeleteSpan(_) => {
                    return Err(EngineError::permanent("a kind of write that TiKV does not support"));
                }
            });
        }
        let written: std::collections::BTreeSet<&[u8]> = writes.iter().map(KeyWrite::key).collect();
        for precondition in preconditions {
            let (key, cannot_change) = match precondition {
                Precondition::Key(key, version) => (key, version.is_some() && self.keys.is_constant(key)),
                Precondition::Untouched(key) => (key, false),
                // The keys that decide whether a range is empty or unchanged have preconditions of their own.
                Precondition::Empty(_) | Precondition::Unchanged(_) => continue,
            };
            if !cannot_change && !written.contains(key.as_slice()) {
                mutations.push(Mutation::Lock(key.clone()));
            }
        }
        Ok(mutations)
    }
}

fn outcome(done: Done, start: u64, label: Seq) -> Outcome {
    match done {
        Done::Committed { index, inodes } => Outcome::Committed { seq: seq(start, index), inodes },
        Done::Claimed => Outcome::Committed { seq: label, inodes: Vec::new() },
        Done::Repeated { version, index } => {
            Outcome::Committed { seq: seq(version.unwrap_or(start), index), inodes: Vec::new() }
        }
    }
}
