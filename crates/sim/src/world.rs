//! The engine, all commits to it, and the checks at each commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meta::{Effect, Engine, Guard, MemEngine, Outcome, Quota, QuotaKey, Record, RecordKey, Txn, Usage};
use types::{OpId, SessionId, Slice, SliceId, SliceSource};

use crate::machine::Clocks;
use crate::mutant::Mutant;
use crate::quotas::{self, Limits};

/// An applied transaction.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    pub(crate) step: usize,
    pub(crate) seq: u64,
    pub(crate) op_id: OpId,
    /// Whether it is part of an operation. A lease of numbers or the mark of an operation in doubt is not.
    pub(crate) is_real: bool,
    /// The rows that it appended, each with its offset in the file.
    pub(crate) rows: Vec<(u64, Slice)>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) engine: MemEngine,
    mutant: Option<Mutant>,
    /// The limits at the beginning, if the volume has quotas.
    pub(crate) limits: Option<[Limits; 2]>,
    /// The quotas after the last commit.
    quotas: Vec<(QuotaKey, Quota)>,
    clocks: Arc<Clocks>,
    /// The time of each commit, in order.
    times: Vec<(Duration, u64)>,
    count: usize,
    pub(crate) seq: u64,
    pub(crate) commits: Vec<Commit>,
    applied: BTreeMap<OpId, usize>,
    dropped: BTreeSet<SessionId>,
    /// Slices whose blocks were deleted from the object store.
    deleted: BTreeSet<SliceId>,
    pub(crate) findings: Vec<String>,
    /// The time of the first finding.
    pub(crate) found_at: Option<Duration>,
    pub(crate) trace: Vec<String>,
}

impl World {
    pub(crate) fn new(
        engine: MemEngine,
        limits: Option<[Limits; 2]>,
        mutant: Option<Mutant>,
        clocks: Arc<Clocks>,
    ) -> Self {
        let (seq, quotas) = (newest(&engine), quotas::all(&engine));
        World {
            engine,
            limits,
            quotas,
            mutant,
            clocks,
            times: Vec::new(),
            count: 0,
            seq,
            commits: Vec::new(),
            applied: BTreeMap::new(),
            dropped: BTreeSet::new(),
            deleted: BTreeSet::new(),
            findings: Vec::new(),
            found_at: None,
            trace: Vec::new(),
        }
    }

    /// Commits the transactions of a step and records those that were applied.
    pub(crate) fn commit(&mut self, step: usize, txns: &[Txn]) -> Vec<Outcome> {
        txns.iter().map(|txn| self.commit_one(step, txn)).collect()
    }

    fn commit_one(&mut self, step: usize, txn: &Txn) -> Outcome {
        let mut sent = txn.clone();
        if let Some(mutant) = self.mutant {
            mutant.spoil(&mut sent, self.count);
            let loses = mutant == Mutant::LosesCommit && self.count % 16 == 15;
            self.count += 1;
            if loses && is_real(txn) {
                self.seq = newest(&self.engine);
                return Outcome::Committed { seq: meta::Seq(self.seq), inodes: Vec::new() };
            }
        }
        let before = self.seq;
        let outcomes = self.engine.commit(std::slice::from_ref(&sent)).unwrap_or_default();
        let Some(outcome) = outcomes.into_iter().next() else {
            return Outcome::Conflict(meta::Snapshot::default());
        };
        let is_applied = matches!(&outcome, Outcome::Committed { seq, .. } if seq.0 > before);
        if is_applied {
            if self.mutant == Some(Mutant::Twice) && is_real(txn) {
                let op_id = OpId(u128::MAX - self.count as u128);
                let _ = self.engine.commit(&[Txn { op_id, guards: Vec::new(), effects: sent.effects }]);
            }
            self.seq = newest(&self.engine);
            self.times.push((self.clocks.now(), self.seq));
            self.note(step, txn);
            self.check_quotas(step);
        }
        let what = match &outcome {
            Outcome::Conflict(_) => "conflict",
            Outcome::Committed { .. } if is_applied => "applied",
            Outcome::Committed { .. } => "no change",
        };
        self.trace.push(format!("  step {step}: {} {what} at {}", shown(txn), self.seq));
        outcome
    }

    /// Checks that every quota equals the usage of the volume, and that no commit adds anything above a
    /// limit.
    fn check_quotas(&mut self, step: usize) {
        if self.quotas.is_empty() {
            return;
        }
        let quotas = quotas::all(&self.engine);
        let usage = self.engine.read(&[RecordKey::Usage]).map(|snapshot| snapshot.records);
        let usage = match usage.as_deref() {
            Ok([Record::Usage(Usage { inodes, blocks })]) => (*inodes as i64, *blocks as i64),
            _ => return,
        };
        let mut findings = Vec::new();
        for ((key, is), (_, was)) in quotas.iter().zip(&self.quotas) {
            if (is.inodes, is.blocks) != usage {
                findings.push(format!("step {step}: {key:?} counts {is:?}, but the volume has {usage:?}"));
            }
            let exceeds = |is: i64, was: i64, most: u64| is > was && is > most as i64;
            if exceeds(is.inodes, was.inodes, is.rule.max_inodes)
                || exceeds(is.blocks, was.blocks, is.rule.max_blocks)
            {
                findings.push(format!("step {step}: {key:?} goes above a limit: {is:?}"));
            }
        }
        if quotas.len() != self.quotas.len() {
            findings.push(format!("step {step}: quotas are lost: {quotas:?}"));
        }
        self.quotas = quotas;
        findings.into_iter().for_each(|finding| self.find(finding));
    }

    fn note(&mut self, step: usize, txn: &Txn) {
        let is_real = is_real(txn);
        let rows = txn.effects.iter().filter_map(|effect| match effect {
            Effect::AppendSlice { chunk, slice, .. } => {
                Some((chunk.start() + u64::from(slice.pos), slice.clone()))
            }
            _ => None,
        });
        let rows = rows.collect();
        self.commits.push(Commit { step, seq: self.seq, op_id: txn.op_id, is_real, rows });
        let times = self.applied.entry(txn.op_id).or_default();
        *times += 1;
        let times = *times;
        if times > 1 {
            self.find(format!("step {step}: an operation id was applied {times} times"));
        }
        let session = SessionId((txn.op_id.0 >> 64) as u64);
        // A lost session may still remove the mark of an operation in doubt, because the mark says nothing
        // about the volume.
        let is_mark = txn.effects.iter().all(|effect| matches!(effect, Effect::DropWait { .. }));
        if self.dropped.contains(&session) && !is_mark {
            self.find(format!("step {step}: a change of session {session} after its removal"));
        }
        for effect in &txn.effects {
            match effect {
                Effect::DropSession { session } => drop(self.dropped.insert(*session)),
                Effect::PutSession(session) if self.dropped.contains(&session.id) => {
                    self.find(format!("step {step}: session {} exists again after its removal", session.id));
                }
                Effect::AppendSlice { slice, .. } => self.named(step, slice),
                Effect::ReplaceRows { rows, .. } => rows.iter().for_each(|slice| self.named(step, slice)),
                Effect::PutLocks { ino, locks }
                    if locks.iter().any(|one| locks.iter().any(|other| one.conflicts_with(other))) =>
                {
                    self.find(format!("step {step}: two owners hold a lock on {ino}: {locks:?}"));
                }
                _ => {}
            }
        }
    }

    fn named(&mut self, step: usize, slice: &Slice) {
        if let SliceSource::Blocks { id, .. } = slice.source
            && self.deleted.contains(&id)
        {
            self.find(format!("step {step}: a row names slice {}, whose blocks were deleted", id.0));
        }
    }

    /// Deletes the blocks of slices from the object store.
    pub(crate) fn delete(&mut self, step: usize, slices: &[SliceId]) {
        let mut in_use = BTreeSet::new();
        for slice in rows(&self.engine).into_iter().flat_map(|(_, _, rows)| rows) {
            if let SliceSource::Blocks { id, .. } = slice.source {
                in_use.insert(id);
            }
        }
        for slice in slices {
            if in_use.contains(slice) {
                self.find(format!("step {step}: slice {} is deleted, but a row names it", slice.0));
            }
            self.deleted.insert(*slice);
        }
    }

    pub(crate) fn is_deleted(&self, slice: SliceId) -> bool {
        self.deleted.contains(&slice)
    }

    /// The heartbeat in the record of a session.
    pub(crate) fn heartbeat(&self, session: SessionId) -> Option<i64> {
        let snapshot = self.engine.read(&[RecordKey::Session(session)]).ok()?;
        match snapshot.records.first() {
            Some(Record::Session(_, Some(session))) => Some(session.heartbeat.nanos()),
            _ => None,
        }
    }

    pub(crate) fn time(&self) -> Duration {
        self.clocks.now()
    }

    /// The sequence number of the newest commit at a moment.
    pub(crate) fn seq_at(&self, moment: Duration) -> u64 {
        let before = self.times.partition_point(|(time, _)| *time <= moment);
        before.checked_sub(1).map_or(0, |at| self.times[at].1)
    }

    pub(crate) fn find(&mut self, finding: String) {
        self.found_at.get_or_insert(self.clocks.now());
        self.findings.push(finding);
    }
}

fn newest(engine: &MemEngine) -> u64 {
    engine.read(&[]).map_or(0, |snapshot| snapshot.seq.0)
}

/// Whether a transaction is part of an operation. A lease of numbers or the mark of an operation in doubt is
/// not.
fn is_real(txn: &Txn) -> bool {
    let is_beside = |effect: &Effect| {
        matches!(effect, Effect::PutWait(_) | Effect::DropWait { .. } | Effect::SetCounter { .. })
    };
    !txn.effects.iter().all(is_beside)
}

/// A transaction as text. Times and the random ids of clients without a session are left out, so that a seed
/// always gives the same text.
fn shown(txn: &Txn) -> String {
    let session = (txn.op_id.0 >> 64) as u64;
    let by =
        if session >> 63 == 1 { "visitor".to_owned() } else { format!("{session}.{}", txn.op_id.0 as u64) };
    let effects: Vec<String> = txn.effects.iter().map(effect).collect();
    format!("{by} {{{}}} ({} guards)", effects.join(", "), txn.guards.len())
}

fn effect(effect: &Effect) -> String {
    match effect {
        Effect::PutInode(inode) => format!("inode {}", inode.ino),
        Effect::DropInode { ino } => format!("drop inode {ino}"),
        Effect::PutDirent { parent, name, ino, .. } => format!("{parent}/{name:?} = {ino}"),
        Effect::DropDirent { parent, name } => format!("drop {parent}/{name:?}"),
        Effect::SetAccess { ino, access } => format!("access {ino} {:?}", access.mode),
        Effect::SetTimes { ino, .. } => format!("set times {ino}"),
        Effect::PutSession(session) => format!("session {} {}", session.id, session.heartbeat.nanos()),
        Effect::PutWait(_) => "wait".to_owned(),
        Effect::DropWait { .. } => "drop wait".to_owned(),
        Effect::PutXattr { ino, name, value } => format!("xattr {ino} {name:?}, {} bytes", value.len()),
        other => format!("{other:?}"),
    }
}

/// The rows of all files.
pub(crate) fn rows(engine: &MemEngine) -> Vec<(types::Ino, types::ChunkIndex, Vec<Slice>)> {
    let mut all = Vec::new();
    let _ = check::for_each_chunk::<meta::EngineError>(
        engine,
        &check::CheckScope::Volume,
        |inode, chunk, rows| {
            all.push((inode.ino, chunk, rows.to_vec()));
            Ok(())
        },
    );
    all
}

/// The session that a transaction removes, and the heartbeat that its guard requires.
pub(crate) fn removes(txn: &Txn) -> Option<(SessionId, i64)> {
    txn.guards.iter().find_map(|guard| match guard {
        Guard::Session { session, heartbeat: Some(heartbeat) }
            if txn.effects.contains(&Effect::DropSession { session: *session }) =>
        {
            Some((*session, heartbeat.nanos()))
        }
        _ => None,
    })
}
