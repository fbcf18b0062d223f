//! A batch of transactions as one etcd transaction.
//!
//! The batch is decided by what is remembered; the server compares what that rests on, and writes if it is so. If not,
//! the same answer brings what stands there instead, and the batch is decided by that. So it is one round trip where
//! the memory is right, and two where it is not. Somebody's transaction always succeeds, so none waits in vain for long;
//! and what everybody moves, a directory's times and the usage, rests on nothing: times are put as they are, the
//! ctime if it is later, and the usage has a lane for each who writes, with a share of the room below a limit.

use std::collections::BTreeSet;

use keyspace::{
    Above, Access, Batch, Done, Fresh, Options, Recall, Snapshot, disagree, is_needed, likely, wants,
};
use meta::{EngineError, Facts, Outcome, Txn};
use pool::{Asked, gradually};

use crate::engine::Shared;
use crate::read::{fetch, read_seq, seq};
use crate::request::{self, ROOM};
use crate::wire::{TXN, TxnRequest, TxnResponse};

/// How often a transaction may find that others were faster.
const ATTEMPTS: u32 = 200;
/// From then on it waits a little before it tries again.
const PATIENT: u32 = 4;

impl Shared {
    pub(crate) fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let lane = self.lanes.take();
        gradually(txns, |rest, outcomes| self.commit_some(rest, lane.number(), outcomes))
    }

    /// Commits the first of the transactions, as many as go together.
    fn commit_some(&self, txns: &[Txn], lane: u64, outcomes: &mut Vec<Outcome>) -> Result<(), EngineError> {
        let mut snapshot = Snapshot::default();
        let mut read_at = 0;
        for attempt in 0..ATTEMPTS {
            if attempt > PATIENT {
                self.jitter.pause(attempt);
            }
            let source = Recall::new(&snapshot, &self.memory);
            let options = Options { blind: true, lane, most_claims: self.max_ops - ROOM, show: false };
            let batch = keyspace::decide(&self.keys, txns, &source, options);
            let fresh = read_at > 0 && batch.accessed.iter().all(|access| snapshot.has(access));
            if let Some(damaged) = batch.damaged() {
                if fresh {
                    return Err(damaged.clone().into());
                }
                // What is remembered is of several moments, and need not fit together.
                (snapshot, read_at) = self.read_again(&batch.accessed)?;
                continue;
            }
            if batch.is_missing() || batch.done.is_empty() {
                let mut accesses = batch.accessed.clone();
                if fresh {
                    if !batch.conflicts() {
                        return Err(disagree());
                    }
                    let wants = wants(txns.get(..1).unwrap_or_default());
                    let fresh = Fresh { snapshot: &snapshot, memory: &self.memory, keys: &self.keys };
                    let (answer, looked) = keyspace::answer(&self.keys, &wants, &fresh);
                    match answer {
                        Ok(records) => {
                            outcomes.push(Outcome::Conflict(Facts { seq: read_seq(read_at), records }));
                            return Ok(());
                        }
                        Err(keyspace::Stop::Damaged(damaged)) => return Err(damaged.into()),
                        Err(_) => accesses.extend(looked),
                    }
                } else {
                    accesses.extend(likely(&self.keys, &self.memory, &wants(txns)));
                }
                (snapshot, read_at) = self.read_again(&accesses)?;
                continue;
            }
            let decided = txns.get(..batch.done.len()).unwrap_or_default();
            if fresh && batch.writes.is_empty() {
                outcomes.extend(batch.done.into_iter().map(|done| outcome(done, read_at)));
                return Ok(());
            }
            let mut otherwise = batch.accessed.clone();
            otherwise.extend(likely(&self.keys, &self.memory, &wants(decided)));
            let otherwise: Vec<Access> =
                otherwise.into_iter().filter(|access| is_needed(&self.keys, &self.memory, access)).collect();
            let shown: Vec<Access> = batch.shown.iter().cloned().collect();
            let request =
                request::commit(&batch.claims, read_at, &shown, &batch.writes, &otherwise, self.max_ops);
            let request = match request {
                // It is more than one request holds; so the half of it first.
                Err(_) if decided.len() > 1 => {
                    let half = decided.get(..decided.len() / 2).unwrap_or_default();
                    return self.commit_some(half, lane, outcomes);
                }
                request => request?,
            };
            let answer = self.send(&batch, &request)?;
            let revision = answer.header.map_or(0, |header| header.revision);
            if answer.succeeded {
                self.memory.note_writes(&batch.writes, revision.unsigned_abs());
                self.done.note(decided, &batch.done);
                let changes = |txn: &Txn| txn.effects.iter().any(|effect| effect.changed_node().is_some());
                let mut done = batch.done;
                if decided.iter().any(changes) {
                    let mut found = Snapshot::default();
                    request::take(&mut found, &shown, answer.responses.into_iter());
                    let options = Options { show: true, ..options };
                    let again = keyspace::decide(&self.keys, decided, &Above(&found, &source), options);
                    if again.done.len() == done.len() {
                        done = again.done;
                    } else {
                        tracing::error!("a batch was decided in two ways");
                    }
                }
                outcomes.extend(done.into_iter().map(|done| outcome(done, revision)));
                return Ok(());
            }
            let mut found = Snapshot::default();
            request::take(&mut found, &otherwise, answer.responses.into_iter());
            self.memory.note_snapshot(&self.keys, &found, revision.unsigned_abs());
            (snapshot, read_at) = (found, revision);
        }
        Err(EngineError::transient(format!("{ATTEMPTS} times other clients were faster")))
    }

    fn send(&self, batch: &Batch, request: &TxnRequest) -> Result<TxnResponse, EngineError> {
        let asked = if batch.writes.is_empty() { Asked::Look } else { Asked::Change };
        self.pool
            .request(asked, |connection| connection.run(|channel| channel.call(TXN, request)))
            .inspect_err(|_| {
                // Nobody knows what stands there now.
                batch.writes.iter().for_each(|write| self.memory.forget(write.key()));
            })
    }

    fn read_again(&self, accesses: &BTreeSet<Access>) -> Result<(Snapshot, i64), EngineError> {
        let accesses: Vec<Access> = accesses.iter().cloned().collect();
        let mut snapshot = Snapshot::default();
        let revision = self.pool.request(Asked::Look, |connection| {
            fetch(connection, &accesses, 0, self.max_ops, &mut snapshot)
        })?;
        self.memory.note_snapshot(&self.keys, &snapshot, revision.unsigned_abs());
        Ok((snapshot, revision))
    }
}

fn outcome(done: Done, revision: i64) -> Outcome {
    match done {
        Done::Committed { index, nodes } => Outcome::Committed { seq: seq(revision, index), nodes },
        Done::Claimed => Outcome::Committed { seq: read_seq(revision), nodes: Vec::new() },
        Done::Repeated { version, index } => {
            let by = version.and_then(|version| i64::try_from(version).ok()).unwrap_or(revision);
            Outcome::Committed { seq: seq(by, index), nodes: Vec::new() }
        }
    }
}
