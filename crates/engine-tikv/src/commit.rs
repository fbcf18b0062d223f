//! A batch of transactions as one optimistic transaction of TiKV.
//!
//! The transaction takes its timestamp, reads all that the batch looks at as of then, decides it, and is committed with
//! the keys that decided it: those that it does not write are locked, for TiKV keeps transactions apart by what they
//! write and not by what they read (snapshot isolation), so that two of which each reads what the other writes would
//! both succeed. So it is one timestamp, one read and one commit, as long as what is remembered says where the inodes
//! are. A conflict with what was read costs a read at most; one with a transaction that was faster another attempt.
//!
//! The term that guards a commit is read and not locked, because then all commits of a mount would conflict. Instead,
//! each commit writes the head of a lane of its term anyway, and the end of the term, or the removal of the session, locks
//! the heads of all its lanes. So a commit that read the term before its end was committed conflicts with that.
//!
//! Transactions are committed in one phase where the server can. Where it says that it cannot, the transaction is undone
//! and attempted again in two. Async commit is off: the client cannot complete what another one left behind by it.

use keyspace::{
    Access, Answer, Batch, Claim, Done, Head, Known, Options, Recall, Snapshot, Source, Stop, Told, Write,
    answer, decide, decode_head, encode_head, encode_told, wants,
};
use meta::{EngineError, Facts, Outcome, Record, Seq, Txn};
use pool::gradually;

use crate::engine::Shared;
use crate::read::{MOST_TXNS, seal, seq};
use crate::store::{CommitError, Mutation, Phases};

/// How often a transaction may find that others were faster.
const ATTEMPTS: u32 = 200;
/// From then on it waits a little before it tries again.
const PATIENT: u32 = 1;
/// Keys that one transaction claims at most, unless it is a single one of the batch's.
const MOST_CLAIMS: usize = 4096;

/// What is to become of the first of the transactions.
enum Plan {
    Commit(Batch, Option<Head>),
    Conflict(Vec<Record>),
}

impl Shared {
    pub(crate) fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        self.order.commit(|label| {
            let lane = self.lanes.take();
            gradually(txns, |rest, outcomes| {
                let some = rest.get(..MOST_TXNS).unwrap_or(rest);
                self.commit_some(some, lane.number_for(some), label, outcomes)
            })
        })
    }

    /// Commits the first of the transactions, as many as go together.
    fn commit_some(
        &self,
        txns: &[Txn],
        lane: u64,
        label: Seq,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), EngineError> {
        let mut phases = Phases::One;
        let mut faster = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > PATIENT {
                self.jitter.pause(attempt);
            }
            let transaction = self.store.begin(phases)?;
            let start = transaction.started_at();
            let nothing = Snapshot::default();
            let (_, mut first) = self.plan(txns, lane, &Recall::new(&nothing, &self.memory));
            // They are looked at only once everything else is known.
            first.extend([0, lane].map(|lane| Access::Key(self.keys.lane(lane))));
            let (plan, _) = self.read_until(Some(start), first, |source| self.plan(txns, lane, source))?;
            let (batch, head) = match plan {
                Plan::Conflict(records) => {
                    outcomes.push(Outcome::Conflict(Facts { seq: label, records }));
                    return Ok(());
                }
                Plan::Commit(batch, head) => (batch, head),
            };
            if !batch.writes.is_empty() {
                let mut mutations = self.telling(txns, &batch, lane, start, head);
                // The head is written, which is more than a lock on it.
                let head = self.keys.head(lane);
                let others = self.mutations(start, &batch.claims, &batch.writes)?;
                mutations.extend(others.into_iter().filter(|other| other.key() != head));
                match transaction.commit(mutations) {
                    Ok(()) => {}
                    Err(CommitError::Conflict(why)) => {
                        faster = why;
                        continue;
                    }
                    Err(CommitError::OnePhaseRefused) => {
                        phases = Phases::Two;
                        continue;
                    }
                    Err(CommitError::Failed(error)) => return Err(error),
                }
                self.memory.note_writes(&batch.writes, start);
                self.done.note(txns, &batch.done);
            }
            outcomes.extend(batch.done.into_iter().map(|done| outcome(done, start, label)));
            return Ok(());
        }
        Err(EngineError::transient(format!("{ATTEMPTS} times other clients were faster: {faster}")))
    }

    /// Decides by what is known, or says what else has to be.
    fn plan(&self, txns: &[Txn], lane: u64, source: &dyn Source) -> Answer<Plan> {
        let options = Options { blind: false, lane, most_claims: MOST_CLAIMS, show: true };
        let batch = decide(&self.keys, txns, source, options);
        let key = self.keys.head(lane);
        let mut looked = batch.accessed.clone();
        looked.insert(Access::Key(key.clone()));
        let plan = if let Some(damaged) = batch.damaged() {
            Err(damaged.clone().into())
        } else if batch.is_missing() {
            Err(Stop::Missing)
        } else if batch.done.is_empty() {
            let wants = wants(txns.get(..1).unwrap_or_default());
            let (records, more) = answer(&self.keys, &wants, source);
            looked.extend(more);
            records.map(Plan::Conflict)
        } else {
            match source.get(&key) {
                Known::Held(held) => decode_head(&key, &held.value)
                    .map(|head| Plan::Commit(batch, Some(head)))
                    .map_err(Stop::from),
                Known::Absent | Known::Unknown => Ok(Plan::Commit(batch, None)),
            }
        };
        (plan, looked)
    }

    /// What lets others hear of the batch; see the module `told` of the crate `keyspace`.
    fn telling(
        &self,
        txns: &[Txn],
        batch: &Batch,
        lane: u64,
        start: u64,
        head: Option<Head>,
    ) -> Vec<Mutation> {
        let told = |(done, txn): (&Done, &Txn)| match done {
            Done::Committed { index, .. } => {
                Some(Told { op: txn.op_id, index: *index, touched: txn.touched() })
            }
            Done::Claimed | Done::Repeated { .. } => None,
        };
        let told: Vec<Told> = batch.done.iter().zip(txns).filter_map(told).collect();
        let head = Head::after(head, start);
        let put = |key, value: &[u8]| Mutation::Put(key, seal(value, start));
        let mut mutations = vec![
            put(self.keys.head(lane), &encode_head(head)),
            put(self.keys.told(lane, head.last), &encode_told(&told)),
        ];
        let old = head.last.checked_sub(keyspace::KEPT).filter(|old| *old >= head.first);
        mutations.extend(old.map(|old| Mutation::Delete(self.keys.told(lane, old))));
        mutations
    }

    /// The writes of a transaction, and locks on what it rests on beside them.
    pub(crate) fn mutations(
        &self,
        start: u64,
        claims: &[Claim],
        writes: &[Write],
    ) -> Result<Vec<Mutation>, EngineError> {
        let mut mutations = Vec::with_capacity(writes.len() + claims.len());
        for write in writes {
            mutations.push(match write {
                Write::Put(key, value) => Mutation::Put(key.clone(), seal(value, start)),
                Write::Delete(key) => Mutation::Delete(key.clone()),
                Write::PutGreater(..) | Write::PutIfAbsent(..) | Write::DeleteSpan(_) => {
                    return Err(EngineError::permanent("a write that TiKV does not have"));
                }
            });
        }
        let written: std::collections::BTreeSet<&[u8]> = writes.iter().map(Write::key).collect();
        for claim in claims {
            let (key, cannot_change) = match claim {
                Claim::Key(key, version) => (key, version.is_some() && self.keys.is_constant(key)),
                Claim::Untouched(key) => (key, false),
                // That a range is empty or unchanged rests on keys that are claimed, too.
                Claim::Empty(_) | Claim::Unchanged(_) => continue,
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
        Done::Committed { index, nodes } => Outcome::Committed { seq: seq(start, index), nodes },
        Done::Claimed => Outcome::Committed { seq: label, nodes: Vec::new() },
        Done::Repeated { version, index } => {
            Outcome::Committed { seq: seq(version.unwrap_or(start), index), nodes: Vec::new() }
        }
    }
}
