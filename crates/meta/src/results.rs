//! The results of operations, kept in memory by an engine in order to recognize retries.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use host::HashMap;
use types::{OpId, SessionId, Term};

use crate::record::Seq;
use crate::txn::{Effect, Txn};

/// The maximum number of stored results that no term keeps ([`Txn::kept_by`]).
const REMEMBERED_OPS: usize = 16_384;

/// The commit numbers by operation id, separately for each term.
#[derive(Debug, Default)]
pub struct Results {
    terms: BTreeMap<(SessionId, Term), HashMap<OpId, Seq>>,
    /// The operations whose results no term keeps, oldest first. Some of these results may have been dropped
    /// already.
    order: VecDeque<OpId>,
}

impl Results {
    /// The number under which the operation was committed, if it is still kept.
    pub fn get(&self, op: OpId) -> Option<Seq> {
        self.terms.get(&term_of(op))?.get(&op).copied()
    }

    /// Records that a transaction with effects was committed or was recognized as a retry. If the transaction
    /// ends terms, drops the results of those terms.
    pub fn note(&mut self, txn: &Txn, seq: Seq) {
        for effect in &txn.effects {
            match effect {
                Effect::DropSession { session } => self.drop_terms(*session, Term::FIRST, Term(u32::MAX)),
                Effect::BeginTerm { session, ended, .. } => {
                    ended.iter().for_each(|term| self.drop_terms(*session, *term, *term));
                }
                _ => {}
            }
        }
        let of_term = self.terms.entry(term_of(txn.op_id)).or_default();
        if of_term.insert(txn.op_id, seq).is_some() || txn.kept_by().is_some() {
            return;
        }
        self.order.push_back(txn.op_id);
        if self.order.len() > REMEMBERED_OPS
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, op: OpId) {
        if let Entry::Occupied(mut of_term) = self.terms.entry(term_of(op)) {
            of_term.get_mut().remove(&op);
            if of_term.get().is_empty() {
                of_term.remove();
            }
        }
    }

    fn drop_terms(&mut self, session: SessionId, first: Term, last: Term) {
        let terms = self.terms.range((session, first)..=(session, last));
        let gone: Vec<_> = terms.map(|(term, _)| *term).collect();
        gone.iter().for_each(|term| _ = self.terms.remove(term));
    }
}

fn term_of(op: OpId) -> (SessionId, Term) {
    (op.session(), op.term())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txn::Guard;

    #[test]
    fn kept_results_are_bounded_by_the_operations_of_open_terms() {
        let count = |results: &Results| results.terms.values().map(HashMap::len).sum::<usize>();
        let session = SessionId(4);
        let mut results = Results::default();
        let within = |term, count, effects| {
            let (op_id, term) = (OpId::new(session, Term(term), count), Term(term));
            Txn { op_id, guards: vec![Guard::Term { session, term }], effects }
        };
        for term in 1..=20 {
            for count in 0..100 {
                results.note(&within(term, count, Vec::new()), Seq(1));
            }
            let ended = [Term(term)].into();
            let begin = Effect::BeginTerm { session, term: Term(term + 1), ended };
            results.note(&within(term + 1, 100, vec![begin]), Seq(2));
            assert_eq!(count(&results), 1);
        }
        for count in 0..20_000 {
            let visitor =
                Txn { op_id: OpId::new(SessionId(9), Term::NONE, count), ..within(0, 0, Vec::new()) };
            results.note(&visitor, Seq(3));
        }
        assert_eq!(count(&results), REMEMBERED_OPS + 1);
        assert_eq!(results.get(OpId::new(session, Term(21), 100)), Some(Seq(2)));
        let gone = Txn { effects: vec![Effect::DropSession { session }], ..within(21, 101, Vec::new()) };
        results.note(&gone, Seq(4));
        assert_eq!(results.get(OpId::new(session, Term(21), 100)), None);
    }
}
