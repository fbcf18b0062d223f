//! Which transactions of a journal were committed last.

use std::collections::VecDeque;

use types::OpId;

/// The maximum number of ids in [`Last`]. If there were more, none are known.
const MAX_IDS: usize = 64;

/// The ids of the transactions that were committed last, as they were sent. The first one is certainly in
/// the database, and the others only if their guards held. None are known after the queue had a transaction
/// that is not in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Last(pub(crate) Vec<OpId>);

impl Last {
    /// Notes that the first `count` transactions of the queue are committed. `at` returns the id of a
    /// transaction of the queue, and whether its guards may fail. `sent` is how they were merged; a merged
    /// transaction has the id of its first part.
    pub(crate) fn note(&mut self, at: impl Fn(usize) -> Option<(OpId, bool)>, sent: &[u32], count: usize) {
        let mut end = 0;
        for merged in sent {
            let Some((id, is_optional)) = at(end).filter(|_| end < count) else { break };
            end += *merged as usize;
            if !is_optional {
                self.0 = vec![id];
            } else if !self.0.is_empty() {
                self.0.push(id);
            }
        }
        if end != count || self.0.len() > MAX_IDS {
            self.0.clear();
        }
    }
}

/// The transactions of a journal, as far as [`Last`] needs them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) ids: VecDeque<(OpId, bool)>,
    pub(crate) sent: Vec<u32>,
    pub(crate) last: Last,
}

impl Queue {
    /// Notes that the first `count` transactions are committed, and how the first of the others are merged.
    pub(crate) fn commit(&mut self, count: usize, sent: &[u32]) {
        self.last.note(|at| self.ids.get(at).copied(), &self.sent, count);
        self.ids.drain(..count.min(self.ids.len()));
        self.sent = sent.to_vec();
    }
}
