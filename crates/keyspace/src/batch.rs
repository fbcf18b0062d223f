//! A batch of transactions, decided one after another and written together.

use std::collections::BTreeSet;

use meta::{Node, Txn};
use types::{Ino, OpId};

use crate::keys::Keyspace;
use crate::settle::{Claim, Write};
use crate::source::{Access, Presume, Source, Stop};
use crate::state::State;
use crate::value::{Damaged, decode_log, encode_log};

/// How a store writes.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The store can delete ranges, claim that a range is empty or unchanged, and put a value that is greater: so that
    /// need not be read which decides nothing.
    pub blind: bool,
    /// Whose part of the usage this batch moves; nobody else should at the same time. Not 0.
    pub lane: u64,
    /// How many claims the store takes at once. One transaction may need more by itself.
    pub most_claims: usize,
    /// Whether the inodes that were changed are shown: once all of them can be known.
    pub show: bool,
}

/// What became of a transaction, if the batch is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// `index`: its position among those of the batch that are; the last one has 255.
    Committed { index: u8, nodes: Vec<Node> },
    /// Its guards hold, and it changes nothing.
    Claimed,
    /// It was done before: by the write that gave its log entry this version, or in this batch.
    Repeated { version: Option<u64>, index: u8 },
}

/// Why a batch ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    All,
    Conflict,
    Flush,
    Missing,
    Damaged(Damaged),
}

/// A batch as far as it was decided.
#[derive(Debug)]
pub struct Batch {
    /// The first of the transactions; if all goes well, all of them.
    pub done: Vec<Done>,
    pub claims: Vec<Claim>,
    pub writes: Vec<Write>,
    /// What was looked at, known or not.
    pub accessed: BTreeSet<Access>,
    /// What has to be known beyond that to show the inodes.
    pub shown: BTreeSet<Access>,
    end: End,
}

impl Batch {
    /// Whether something has to be read before anything can be said.
    pub fn is_missing(&self) -> bool {
        self.end == End::Missing
    }

    /// Whether the transaction after [`Batch::done`] conflicts, by what is known.
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

/// How many transactions with effects are written together at most: so many have an index of their own.
const MOST: usize = 200;
const LAST: u8 = u8::MAX;

/// Decides as many of the transactions as can be written together.
pub fn decide(keys: &Keyspace, txns: &[Txn], source: &dyn Source, options: Options) -> Batch {
    let mut state = State::new(keys, source, options);
    let mut run = Run::default();
    let mut end = End::All;
    for txn in txns {
        let more = 1 + txn.guards.len() + txn.effects.len();
        if run.ops.len() == MOST || !run.done.is_empty() && state.claims.len() + more > options.most_claims {
            break;
        }
        match run.step(&mut state, txn) {
            Ok(true) => {}
            Ok(false) if end == End::All => {
                end = End::Conflict;
                break;
            }
            // What came before it could not be decided, so this says nothing but what else has to be read.
            Ok(false) | Err(Stop::Missing) => end = End::Missing,
            Err(Stop::Flush) if end == End::Missing => break,
            Err(Stop::Flush) => {
                end = End::Flush;
                break;
            }
            Err(Stop::Damaged(damaged)) => {
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
    logs: Vec<(usize, Vec<u8>, Vec<meta::Touched>)>,
    shown: BTreeSet<Access>,
}

impl Run {
    /// Whether its guards hold; then its effects are applied.
    fn step(&mut self, state: &mut State<'_>, txn: &Txn) -> Result<bool, Stop> {
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
        let log = state.look.key(&key, Presume::Absent);
        if let Some(held) = log? {
            let index = decode_log(&key, &held.value)?.index;
            state.claims.insert(key, Some(held.version));
            self.done.push(Done::Repeated { version: Some(held.version), index });
            return Ok(true);
        }
        state.claims.insert(key.clone(), None);
        let holds = all(txn.guards.iter().map(|guard| state.holds(guard)));
        if holds == Ok(false) {
            return Ok(false);
        }
        // Also after something is lacking, to learn at once what else is.
        let applied: Vec<_> = txn.effects.iter().map(|effect| state.apply(effect)).collect();
        holds?;
        applied.into_iter().collect::<Result<(), Stop>>()?;
        let nodes = self.changed(state, txn)?;
        self.logs.push((self.done.len(), key, txn.touched()));
        self.ops.push(txn.op_id);
        self.done.push(Done::Committed { index: 0, nodes });
        Ok(true)
    }

    /// The inodes that were there before and are changed, as they are now.
    fn changed(&mut self, state: &mut State<'_>, txn: &Txn) -> Result<Vec<Node>, Stop> {
        let mut inos: Vec<Ino> = Vec::new();
        for ino in txn.effects.iter().filter_map(meta::Effect::changed_node) {
            if !inos.contains(&ino) {
                inos.push(ino);
            }
        }
        let mut nodes = Vec::new();
        for ino in inos {
            if state.options.show {
                nodes.extend(state.image(ino)?);
            } else {
                self.shown.extend(state.parts_of(ino));
            }
        }
        Ok(nodes)
    }

    fn finish(mut self, mut state: State<'_>, mut end: End) -> Batch {
        let last = self.logs.len().saturating_sub(1);
        let index_of = |position: usize| if position == last { LAST } else { position as u8 };
        let mut writes = Vec::new();
        if matches!(end, End::All | End::Conflict | End::Flush) {
            for (position, (done, key, touched)) in self.logs.iter().enumerate() {
                state.put(key.clone(), encode_log(index_of(position), touched));
                if let Some(Done::Committed { index, .. }) = self.done.get_mut(*done) {
                    *index = index_of(position);
                }
            }
            for done in &mut self.done {
                if let Done::Repeated { version: None, index } = done {
                    *index = index_of((*index).into());
                }
            }
            match state.settle() {
                Ok(settled) => writes = settled,
                Err(Stop::Damaged(damaged)) => end = End::Damaged(damaged),
                Err(Stop::Missing | Stop::Flush) => end = End::Missing,
            }
        }
        let claims = state.claims();
        Batch { done: self.done, claims, writes, accessed: state.look.accessed, shown: self.shown, end }
    }
}

/// Whether all hold; each is looked at, to learn at once what all of them lack.
fn all(guards: impl Iterator<Item = Result<bool, Stop>>) -> Result<bool, Stop> {
    let looked: Vec<_> = guards.collect();
    looked.into_iter().try_fold(true, |all, one| Ok(all && one?))
}

impl State<'_> {
    /// What has to be read to show an inode, beyond what was looked at.
    fn parts_of(&self, ino: Ino) -> Option<Access> {
        use crate::state::Part;
        let node = self.nodes.get(&ino)?;
        let known = |part| matches!(part, Part::Clean | Part::Dirty);
        let whole = known(node.links) && known(node.mtime) && known(node.ctime);
        let base = node.base.as_ref().filter(|_| node.stored.is_some() && !whole)?;
        Some(Access::Group(self.keys.home(base)))
    }
}
