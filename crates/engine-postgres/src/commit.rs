//! Runs of transactions, and their outcomes.

use std::collections::HashMap;

use meta::{EngineError, Facts, Guard, Node, Outcome, Seq, Txn, runs};
use pool::{Asked, in_halves, in_parts};
use tables::Found;
use tokio_postgres::Row;
use types::Ino;

use crate::engine::Shared;
use crate::error::Failure;
use crate::gather::Gathered;
use crate::read::fact;

/// The most transactions that one call of the server is asked for.
const LONGEST_RUN: usize = 1024;

/// After so many transactions of its own, a handle has a commit remove some that are old.
const TRIM_EVERY: u64 = 64;

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
    let args: Vec<_> = gathered.guards.args().collect();
    shared.pool.request(Asked::Look, |connection| {
        let rows = connection.call(&shared.sql.functions, &shared.sql.claim, &args)?;
        outcomes(&rows, txns, label)
    })
}

/// By one call, or where the server wants a run in parts, by one for each half.
fn commit_run(shared: &Shared, run: &[Txn], label: Seq) -> Result<Vec<Outcome>, EngineError> {
    in_halves(run, &mut |part| {
        // Nothing where the server wants a run in parts, and a single transaction with care.
        let commit = |gathered: &Gathered| {
            shared.pool.request(Asked::Change, |connection| {
                match connection.call(&shared.sql.functions, &shared.sql.commit, &gathered.args()) {
                    Err(failure) if failure.wants_parts() && !gathered.head.careful => Ok(None),
                    rows => outcomes(&rows?, part, label).map(Some),
                }
            })
        };
        let mut gathered = Gathered::new(part, false);
        gathered.head.trim = shared.turns.has_come(part.len(), TRIM_EVERY);
        if part.len() > 1 {
            return if gathered.head.layers == 1 { commit(&gathered) } else { Ok(None) };
        }
        let done = commit(&gathered)?;
        done.map_or_else(|| commit(&Gathered::new(part, true)), |done| Ok(Some(done)))
    })
}

fn outcomes(rows: &[Row], run: &[Txn], label: Seq) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes: Vec<Option<Outcome>> = run.iter().map(|_| None).collect();
    // How changed inodes are left; transactions of which guards failed, by number, and what these guards looked at.
    let mut left = Found::default();
    let (mut failed, mut looked) = (Vec::new(), Found::default());
    for row in rows {
        let fact = fact(row)?;
        match fact.about {
            // Sessions, operations, and the numbers of their commits.
            20 | 21 => {
                let count = fact.row.0.len() / 3;
                for at in 0..count {
                    let id = u128::from(fact.number(at)?) << 64 | u128::from(fact.number(count + at)?);
                    let place = run.iter().zip(&mut outcomes).find(|(txn, _)| txn.op_id.0 == id);
                    let Some((txn, outcome)) = place else {
                        return Err(Failure::Malformed("a transaction that is none"));
                    };
                    let is_repeated = fact.about == 21;
                    let nodes = if is_repeated { Vec::new() } else { changed_nodes(txn, &left.nodes) };
                    *outcome = Some(Outcome::Committed { seq: Seq(fact.number(2 * count + at)?), nodes });
                }
            }
            22 => failed.extend(fact.row.0.iter().flatten()),
            23 => {
                for (t, (txn, outcome)) in (1..).zip(run.iter().zip(&mut outcomes)) {
                    // The guards of transaction 0 are those of every transaction.
                    if failed.contains(&t) || failed.contains(&0) {
                        let wants: Vec<_> = txn.guards.iter().map(Guard::want).collect();
                        let records = looked.answer(&wants);
                        *outcome = Some(Outcome::Conflict(Facts { seq: label, records }));
                    }
                }
                (failed, looked) = Default::default();
            }
            _ if failed.is_empty() => left.take(&fact)?,
            _ => looked.take(&fact)?,
        }
    }
    // Of what only looked, silence says that its guards hold.
    if !failed.is_empty() {
        return Err(Failure::Malformed("what guards looked at has no end"));
    }
    let ended = |(txn, outcome): (&Txn, Option<Outcome>)| match outcome {
        Some(outcome) => Ok(outcome),
        // It only looked, and its guards hold.
        None if txn.effects.is_empty() => Ok(Outcome::Committed { seq: label, nodes: Vec::new() }),
        None => Err(Failure::Malformed("a transaction is not answered")),
    };
    run.iter().zip(outcomes).map(ended).collect()
}

/// The inodes that `txn` changed, as it left them: `left` holds those that were there before and still are.
fn changed_nodes(txn: &Txn, left: &HashMap<Ino, Node>) -> Vec<Node> {
    let mut others = HashMap::new();
    tables::follow(&mut others, txn);
    let node = |ino| others.get(&ino).copied().unwrap_or_else(|| left.get(&ino).copied());
    txn.changed_nodes().into_iter().filter_map(node).collect()
}
