//! The queued transactions of held directories, and how they are merged into requests and marked; see
//! `held.rs`.

use std::collections::VecDeque;

use meta::{Effect, Txn};
use types::{OpId, SliceSource, Term};

use crate::merge::join;
use crate::ticket::Ticket;

/// The maximum number of queued transactions in one request, and roughly the maximum size of the request.
pub(crate) const MAX_GROUP: usize = 256;
pub(crate) const MAX_GROUP_BYTES: usize = 1 << 20;

/// A transaction that is to be committed. It was answered, unless it is optional.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) txn: Txn,
    /// Keeps the term of the transaction open.
    pub(crate) _ticket: Ticket,
    /// Whether a guard may fail. If one fails, the transaction is not needed.
    pub(crate) is_optional: bool,
}

/// The first part of the queue, as it was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) txns: Vec<Txn>,
    /// For each transaction, how it was made from queued ones.
    pub(crate) merged: Vec<Merged>,
}

/// The mark of a transaction: a term that its commit opens, and to which no operation belongs. The terms of
/// operations are counted from 1, and a session never has 2^31 of them, so no term of an operation is a mark.
pub(crate) fn mark_of(id: OpId) -> Term {
    const MARK: u32 = 1 << 31;
    Term(MARK | id.0 as u32 & (MARK - 1))
}

/// How a transaction was made from queued ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merged {
    pub(crate) count: usize,
    /// Whether a guard may fail.
    pub(crate) is_optional: bool,
}

impl Queued {
    /// The approximate number of bytes that the transaction adds to a request.
    fn bytes(&self) -> usize {
        let effect = |effect: &Effect| match effect {
            Effect::PutAcl { text, .. } => text.len(),
            Effect::PutXattr { value, .. } => value.len(),
            Effect::PutSymlink { target, .. } => target.len(),
            Effect::AppendSlice { slice, .. } => match &slice.source {
                SliceSource::Inline(bytes) => bytes.len(),
                _ => 0,
            },
            _ => 0,
        };
        256 + self.txn.effects.iter().map(effect).sum::<usize>()
    }
}

impl Sent {
    /// The first part of the queue, merged, as one request.
    pub(crate) fn first_of(queue: &VecDeque<Queued>) -> Sent {
        let (mut bytes, mut sent) = (0, Sent { txns: Vec::new(), merged: Vec::new() });
        for queued in queue.iter().take(MAX_GROUP) {
            bytes += queued.bytes();
            if bytes > MAX_GROUP_BYTES && !sent.txns.is_empty() {
                break;
            }
            let joined = match (sent.txns.last_mut(), sent.merged.last_mut()) {
                (Some(last), Some(Merged { count, is_optional: false })) if !queued.is_optional => {
                    join(last, &queued.txn).map(|both| (*last, *count) = (both, *count + 1))
                }
                _ => None,
            };
            if joined.is_none() {
                sent.txns.push(queued.txn.clone());
                sent.merged.push(Merged { count: 1, is_optional: queued.is_optional });
            }
        }
        sent
    }

    /// Adds to each transaction an effect that stores its mark and removes the mark of the transaction before
    /// it. An embedded engine forgets the results of transactions when the process ends. The mark is
    /// committed together with the transaction, so a replay learns from it which of the transactions that
    /// were sent last are committed.
    pub(crate) fn mark(&mut self, last_mark: &mut Option<Term>) {
        for txn in &mut self.txns {
            let mark = mark_of(txn.op_id);
            let ended = last_mark.replace(mark).into_iter().collect();
            txn.effects.push(Effect::BeginTerm { session: txn.op_id.session(), term: mark, ended });
        }
    }

    /// The first part of the queue, merged as it was sent according to a journal. The journal may also count
    /// transactions that are not in the queue; they were never answered.
    pub(crate) fn by_counts(queue: &VecDeque<Queued>, counts: &[u32]) -> Option<Sent> {
        let (mut sent, mut queue) = (Sent { txns: Vec::new(), merged: Vec::new() }, queue.iter());
        for &count in counts {
            let Some(first) = queue.next() else { break };
            let (mut txn, mut merged) =
                (first.txn.clone(), Merged { count: 1, is_optional: first.is_optional });
            while merged.count < count as usize
                && let Some(next) = queue.next()
            {
                txn = join(&txn, &next.txn)?;
                merged.count += 1;
            }
            sent.txns.push(txn);
            sent.merged.push(merged);
        }
        (!sent.txns.is_empty()).then_some(sent)
    }
}

pub(crate) fn counts(merged: &[Merged]) -> Vec<u32> {
    merged.iter().map(|merged| u32::try_from(merged.count).unwrap_or(u32::MAX)).collect()
}
