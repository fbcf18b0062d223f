//! Runs of transactions, and their outcomes.

use std::collections::HashMap;

use meta::{Effect, EngineError, Guard, Node, Outcome, Seq, Txn, runs};
use pool::{Asked, in_parts};
use tables::{Fact, Found};
use tokio_postgres::Row;
use types::Ino;

use crate::connection::Connection;
use crate::engine::Shared;
use crate::error::{Failure, IN_PARTS};
use crate::gather::Gathered;
use crate::read::{Values, fact};

/// The most transactions that one call of the server is asked for.
const LONGEST_RUN: usize = 1024;

/// Commits each transaction by itself, in order: a call for each run, as a rule one.
pub(crate) fn commit(shared: &Shared, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
    if txns.iter().all(|txn| txn.effects.is_empty()) {
        let label = shared.order.read();
        let parts = txns.chunks(LONGEST_RUN).map(|part| claim(shared, part, label));
        return Ok(parts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect());
    }
    let runs = runs(txns).into_iter().flat_map(|run| run.chunks(LONGEST_RUN));
    shared.order.commit(|label| in_parts(runs, |run| commit_run(shared, run, label)))
}

/// Guards alone are looked at without a lock.
fn claim(shared: &Shared, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, EngineError> {
    if txns.iter().all(|txn| txn.guards.is_empty()) {
        return Ok(txns.iter().map(|_| Outcome::Committed { seq: label, nodes: Vec::new() }).collect());
    }
    let gathered = Gathered::new(txns, false);
    let mut args = Vec::new();
    gathered.guards.push_to(&mut args);
    shared.pool.request(Asked::Look, |connection| {
        let rows = connection.call(&shared.sql.functions, &shared.sql.claim, &args)?;
        outcomes(&rows, txns, label)
    })
}

fn commit_run(shared: &Shared, run: &[Txn], label: Seq) -> Result<Vec<Outcome>, EngineError> {
    let commit = |gathered: &Gathered| {
        shared.pool.request(Asked::Change, |connection| call(shared, connection, run, gathered, label))
    };
    let mut gathered = Gathered::new(run, false);
    gathered.head.trim = shared.is_time_to_trim(run.len());
    if run.len() == 1 || gathered.head.layers == 1 {
        if let Some(outcomes) = commit(&gathered)? {
            return Ok(outcomes);
        }
        if run.len() == 1 {
            let done = commit(&Gathered::new(run, true))?;
            return done.ok_or_else(|| EngineError::permanent("the server wants less than one transaction"));
        }
    }
    // The halves, and of those that are not wanted either the halves again.
    in_parts(run.chunks(run.len().div_ceil(2)), |half| commit_run(shared, half, label))
}

/// One call for a run; `None` if the server wants it in parts, and a single transaction with care.
fn call(
    shared: &Shared,
    connection: &mut Connection,
    run: &[Txn],
    gathered: &Gathered,
    label: Seq,
) -> Result<Option<Vec<Outcome>>, Failure> {
    match connection.call(&shared.sql.functions, &shared.sql.commit, &gathered.args()) {
        Ok(rows) => outcomes(&rows, run, label).map(Some),
        Err(failure) if !gathered.head.careful && failure.code().is_some_and(|c| c.code() == IN_PARTS) => {
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// What became of a transaction.
#[derive(Clone, Copy)]
enum Fate {
    /// It only looked, and its guards hold.
    Holds,
    Committed(Seq),
    Repeated(Seq),
    /// What its guards looked at has this place.
    Failed(usize),
}

fn outcomes(rows: &[Row], run: &[Txn], label: Seq) -> Result<Vec<Outcome>, Failure> {
    let mut fates = vec![Fate::Holds; run.len()];
    // What guards that failed looked at, and how changed inodes are left.
    let mut looked: Vec<Found> = Vec::new();
    let mut left = Found::default();
    let mut looking = false;
    let mut set = |place: Option<usize>, fate: Fate| {
        let place = place.and_then(|place| fates.get_mut(place));
        *place.ok_or(Failure::Malformed("a transaction that is none"))? = fate;
        Ok::<_, Failure>(())
    };
    let by_id = |fact: &Fact<Values<'_>>| {
        let id = (fact.number(0)?, fact.number(1)?);
        Ok::<_, Failure>(run.iter().position(|txn| ((txn.op_id.0 >> 64) as u64, txn.op_id.0 as u64) == id))
    };
    for row in rows {
        let fact = fact(row)?;
        match fact.about {
            20 => set(by_id(&fact)?, Fate::Committed(Seq(fact.number(2)?)))?,
            21 => set(by_id(&fact)?, Fate::Repeated(Seq(fact.number(2)?)))?,
            22 => {
                looking = true;
                looked.push(Found::default());
                for at in 0..fact.row.numbers.len() {
                    let t = usize::try_from(fact.number(at)?).ok();
                    set(t.and_then(|t| t.checked_sub(1)), Fate::Failed(looked.len() - 1))?;
                }
            }
            23 => looking = false,
            _ => looked.last_mut().filter(|_| looking).unwrap_or(&mut left).take(&fact)?,
        }
    }
    let outcome = |(txn, fate): (&Txn, &Fate)| match *fate {
        Fate::Holds if !txn.effects.is_empty() => Err(Failure::Malformed("a transaction is not answered")),
        Fate::Holds => Ok(Outcome::Committed { seq: label, nodes: Vec::new() }),
        Fate::Repeated(seq) => Ok(Outcome::Committed { seq, nodes: Vec::new() }),
        Fate::Committed(seq) => Ok(Outcome::Committed { seq, nodes: changed_nodes(txn, &left.nodes) }),
        Fate::Failed(at) => {
            let wants: Vec<_> = txn.guards.iter().map(Guard::want).collect();
            Ok(Outcome::Conflict(meta::Facts {
                seq: label,
                records: looked.get(at).map(|looked| looked.answer(&wants)).unwrap_or_default(),
            }))
        }
    };
    run.iter().zip(&fates).map(outcome).collect()
}

/// The inodes that `txn` changed, as it left them: `left` holds those that were there before and still are.
fn changed_nodes(txn: &Txn, left: &HashMap<Ino, Node>) -> Vec<Node> {
    let mut others: HashMap<Ino, Option<Node>> = HashMap::new();
    for effect in &txn.effects {
        match effect {
            Effect::PutNode(node) => drop(others.insert(node.ino, Some(*node))),
            Effect::DropNode { ino } => drop(others.insert(*ino, None)),
            _ => {
                let made = effect.changed_node().and_then(|ino| others.get_mut(&ino)?.as_mut());
                made.map(|node| effect.apply_to(node));
            }
        }
    }
    let node = |ino| others.get(&ino).copied().unwrap_or_else(|| left.get(&ino).copied());
    txn.changed_nodes().into_iter().filter_map(node).collect()
}
