//! Decides the transactions of a batch one after another, to be written together.

use std::collections::BTreeSet;

use meta::{Inode, Txn};
use types::{Ino, OpId};

use crate::keys::Keyspace;
use crate::source::{Assume, KeyQuery, ReadStop, Source};
use crate::state::{Options, State};
use crate::value::{Damaged, decode_log, encode_log};
use crate::writes::{KeyWrite, Precondition};

/// The result of a transaction, if the batch is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// `index` is the transaction's position among the committed transactions of the batch; the last one has
    /// 255.
    Committed { index: u8, inodes: Vec<Inode> },
    /// The guards hold, and the transaction has no effects.
    Claimed,
    /// The transaction was applied before: by the commit that gave its log entry this version, or, if `None`,
    /// earlier in this batch.
    Repeated { version: Option<u64>, index: u8 },
}

/// Why the decided part of a batch ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    All,
    Conflict,
    Flush,
    Missing,
    Damaged(Damaged),
}

/// The decided part of a batch.
#[derive(Debug)]
pub struct Batch {
    /// The results of the first transactions, possibly of all of them.
    pub done: Vec<Done>,
    pub preconditions: Vec<Precondition>,
    pub writes: Vec<KeyWrite>,
    /// All queries of the decision, whether or not the source had the answer.
    pub queried: BTreeSet<KeyQuery>,
    /// The keys and ranges that must be read with the commit to return the changed inodes.
    pub shown: BTreeSet<KeyQuery>,
    end: End,
}

impl Batch {
    /// Whether something must be read before anything can be decided.
    pub fn is_missing(&self) -> bool {
        self.end == End::Missing
    }

    /// Whether the first undecided transaction conflicts, according to the values that the source knows.
    pub fn conflicts(&self) -> bool {
        self.end == End::Conflict
    }

    pub fn damaged(&self) -> Option<&Damaged> {
        match &self.end {
            End::Damaged(damaged) => Some(damaged),
            _ => None,
        }
    }
}

/// The maximum number of transactions with effects written together: an index is one byte.
const MAX: usize = 200;
const LAST: u8 = u8::MAX;

/// Decides as many of the transactions as can be written together.
pub fn decide(keys: &Keyspace, txns: &[Txn], source: &dyn Source, options: Options) -> Batch {
    let mut state = State::new(keys, source, options);
    let mut run = Run::default();
    let mut end = End::All;
    for txn in txns {
        let more = 1 + txn.guards.len() + txn.effects.len();
        if run.ops.len() == MAX
            || !run.done.is_empty() && state.preconditions.len() + more > options.max_preconditions
        {
            break;
        }
        match run.step(&mut state, txn) {
            Ok(true) => {}
            Ok(false) if end == End::All => {
                end = End::Conflict;
                break;
            }
            // From the first undecided transaction on, the loop only collects what must be read.
            Ok(false) | Err(ReadStop::Missing) => end = End::Missing,
            Err(ReadStop::Flush) if end == End::Missing => break,
            Err(ReadStop::Flush) => {
                end = End::Flush;
                break;
            }
            Err(ReadStop::Damaged(damaged)) => {
                end = End::Damaged(damaged);
                break;
            }
        }
    }
    run.finish(state, end)
}

#[derive(Default)]
struct Run {
    done: Vec<Done>,
    ops: Vec<OpId>,
    logs: Vec<(usize, Vec<u8>, Vec<meta::Invalidation>)>,
    shown: BTreeSet<KeyQuery>,
}

impl Run {
    /// Checks the guards; if they hold, applies the effects.
    fn step(&mut self, state: &mut State<'_>, txn: &Txn) -> Result<bool, ReadStop> {
        if txn.effects.is_empty() {
            let holds = all(txn.guards.iter().map(|guard| state.holds(guard)))?;
            if holds {
                self.done.push(Done::Claimed);
            }
            return Ok(holds);
        }
        let key = state.keys.log(txn.op_id);
        if let Some(position) = self.ops.iter().position(|op| *op == txn.op_id) {
            self.done.push(Done::Repeated { version: None, index: position as u8 });
            return Ok(true);
        }
        let log = state.lookup.key(&key, Assume::Absent);
        if let Some(held) = log? {
            let index = decode_log(&key, &held.value)?.index;
            state.preconditions.insert(key, Some(held.version));
            self.done.push(Done::Repeated { version: Some(held.version), index });
            return Ok(true);
        }
        state.preconditions.insert(key.clone(), None);
        let holds = all(txn.guards.iter().map(|guard| state.holds(guard)));
        // If the guards can be decided only after a flush, the earlier transactions are written without the
        // effects of this one.
        if matches!(holds, Ok(false) | Err(ReadStop::Flush)) {
            return holds;
        }
        // Effects are applied even if a guard misses a value, to collect the queries of all missing values at
        // once.
        let applied: Vec<_> = txn.effects.iter().map(|effect| state.apply(effect)).collect();
        holds?;
        applied.into_iter().collect::<Result<(), ReadStop>>()?;
        let inodes = self.changed(state, txn)?;
        self.logs.push((self.done.len(), key, txn.invalidations()));
        self.ops.push(txn.op_id);
        self.done.push(Done::Committed { index: 0, inodes });
        Ok(true)
    }

    /// The inodes that existed before and are changed, in their new state.
    fn changed(&mut self, state: &mut State<'_>, txn: &Txn) -> Result<Vec<Inode>, ReadStop> {
        let mut inodes = Vec::new();
        for ino in txn.changed_inodes() {
            if state.options.show {
                inodes.extend(state.image(ino)?);
            } else {
                self.shown.extend(state.parts_of(ino));
            }
        }
        Ok(inodes)
    }

    fn finish(mut self, mut state: State<'_>, mut end: End) -> Batch {
        let last = self.logs.len().saturating_sub(1);
        let index_of = |position: usize| if position == last { LAST } else { position as u8 };
        let mut writes = Vec::new();
        if matches!(end, End::All | End::Conflict | End::Flush) {
            for (position, (done, key, invalidations)) in self.logs.iter().enumerate() {
                state.put(key.clone(), encode_log(index_of(position), invalidations));
                if let Some(Done::Committed { index, .. }) = self.done.get_mut(*done) {
                    *index = index_of(position);
                }
            }
            for done in &mut self.done {
                if let Done::Repeated { version: None, index } = done {
                    *index = index_of((*index).into());
                }
            }
            match state.build_writes() {
                Ok(built) => writes = built,
                Err(ReadStop::Damaged(damaged)) => end = End::Damaged(damaged),
                Err(ReadStop::Missing | ReadStop::Flush) => end = End::Missing,
            }
        }
        let preconditions = state.preconditions();
        Batch {
            done: self.done,
            preconditions,
            writes,
            queried: state.lookup.queried,
            shown: self.shown,
            end,
        }
    }
}

/// Whether all guards hold. Checks each of them, to collect the queries of all missing values at once.
fn all(guards: impl Iterator<Item = Result<bool, ReadStop>>) -> Result<bool, ReadStop> {
    let held: Vec<_> = guards.collect();
    held.into_iter().try_fold(true, |all, one| Ok(all && one?))
}

impl State<'_> {
    /// The keys that must be read to return an inode whose values the decision did not need.
    fn parts_of(&self, ino: Ino) -> Option<KeyQuery> {
        let inode = self.inode_states.get(&ino)?;
        let whole = inode.links.is_known() && inode.mtime.is_known() && inode.ctime.is_known();
        let base = inode.base.as_ref().filter(|_| inode.stored.is_some() && !whole)?;
        Some(KeyQuery::Group(self.keys.location(base)))
    }
}
