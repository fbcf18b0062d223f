//! Commits groups of transactions, and reads their outcomes.
//!
//! The server inserts rows without a search for existing ones. If the only new name of a group exists,
//! function `commit` notices that before it changes anything, and checks everything in the same call. If one
//! of several names, a new inode or the id of an operation exists, the call fails, and the group is sent
//! again with `full` set. An existing id or inode is rare: an operation is repeated only after its connection
//! was lost, and no operation uses an inode number again.
//!
//! A commit that a session guards takes an advisory lock on the session in shared mode, before the statement
//! that reads the session. A commit that removes the session or ends a term takes the lock exclusively.
//! Without the lock, the removal could be committed after that statement and before the end of the commit.
//! Commits and renewals share the lock, so they do not wait for each other.

use host::HashMap;
use meta::{EngineError, Guard, Inode, Outcome, Seq, Snapshot, Txn, conflict_free_groups};
use pool::{Intent, in_halves, in_parts};
use tables::ReplyContent;
use tokio_postgres::Row;
use types::Ino;

use crate::code;
use crate::error::Failure;
use crate::gather::Gathered;
use crate::read::reply_row;
use crate::shared::{Shared, Sql};

/// The maximum number of transactions in one call of the server.
const MAX_TXNS: usize = 1024;

/// Once per this many transactions of a handle, a commit also removes old transactions from the log.
const TRIM_EVERY: u64 = 64;

/// Commits each transaction separately, in order. Usually this needs one call per conflict-free group.
pub(crate) fn commit(shared: &Shared, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
    if txns.iter().all(|txn| txn.effects.is_empty()) {
        let label = shared.numbers.read();
        let parts = txns.chunks(MAX_TXNS).map(|part| claim(shared, part, label));
        return Ok(parts.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect());
    }
    let groups = conflict_free_groups(txns).into_iter().flat_map(|group| group.chunks(MAX_TXNS));
    shared.numbers.commit(|label| in_parts(groups, |group| commit_group(shared, group, label)))
}

/// Checks transactions that have only guards. It takes no lock.
fn claim(shared: &Shared, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, EngineError> {
    if txns.iter().all(|txn| txn.guards.is_empty()) {
        return Ok(txns.iter().map(|_| Outcome::Committed { seq: label, inodes: Vec::new() }).collect());
    }
    let gathered = Gathered::new(txns, false);
    let args: Vec<_> = gathered.guards.args().collect();
    shared.pool.request(Intent::Read, |connection| {
        let rows = connection.call(&shared.sql.functions, &shared.sql.claim, &args)?;
        outcomes(&rows, txns, label)
    })
}

/// Commits a group in one call. If the server asks for smaller parts, or if the effects of the group need
/// several stages, commits each half in the same way.
fn commit_group(shared: &Shared, group: &[Txn], label: Seq) -> Result<Vec<Outcome>, EngineError> {
    in_halves(group, &mut |part| {
        // Returns `None` if the server asks for smaller parts. A single transaction is then sent with
        // `careful`.
        let commit = |mut gathered: Gathered| {
            shared.pool.request(Intent::Change, |connection| {
                let Sql { functions, commit, .. } = &shared.sql;
                let mut reply = connection.call(functions, commit, &gathered.args());
                if reply.as_ref().is_err_and(Failure::found_row) {
                    gathered.head.full = true;
                    reply = connection.call(functions, commit, &gathered.args());
                }
                match reply {
                    Err(failure) if failure.wants_parts() && !gathered.head.careful => Ok(None),
                    rows => outcomes(&rows?, part, label).map(Some),
                }
            })
        };
        let mut gathered = Gathered::new(part, false);
        gathered.head.trim = shared.commits.is_due(part.len(), TRIM_EVERY);
        if part.len() > 1 {
            return if gathered.head.stages == 1 { commit(gathered) } else { Ok(None) };
        }
        let done = commit(gathered)?;
        done.map_or_else(|| commit(Gathered::new(part, true)), |done| Ok(Some(done)))
    })
}

fn outcomes(rows: &[Row], group: &[Txn], label: Seq) -> Result<Vec<Outcome>, Failure> {
    let mut outcomes: Vec<Option<Outcome>> = group.iter().map(|_| None).collect();
    // `changed`: the changed inodes. `failed`: the numbers of the transactions whose guards failed. `found`:
    // the records that these guards read.
    let mut changed = ReplyContent::default();
    let (mut failed, mut found) = (Vec::new(), ReplyContent::default());
    for row in rows {
        let row = reply_row(row)?;
        match i64::from(row.kind) {
            // The halves of the operation ids, and the sequence numbers of the commits.
            code::COMMITTED | code::REPEATED => {
                let count = row.row.0.len() / 3;
                for at in 0..count {
                    let id = u128::from(row.number(at)?) << 64 | u128::from(row.number(count + at)?);
                    let place = group.iter().zip(&mut outcomes).find(|(txn, _)| txn.op_id.0 == id);
                    let Some((txn, outcome)) = place else {
                        return Err(Failure::Malformed("the result of an unknown transaction"));
                    };
                    let is_repeated = i64::from(row.kind) == code::REPEATED;
                    let inodes = if is_repeated { Vec::new() } else { changed_inodes(txn, &changed.inodes) };
                    *outcome = Some(Outcome::Committed { seq: Seq(row.number(2 * count + at)?), inodes });
                }
            }
            code::FAILED => failed.extend(row.row.0.iter().flatten()),
            code::CONFLICT_END => {
                for (t, (txn, outcome)) in (1..).zip(group.iter().zip(&mut outcomes)) {
                    // The guards of transaction 0 apply to every transaction.
                    if failed.contains(&t) || failed.contains(&0) {
                        let keys: Vec<_> = txn.guards.iter().map(Guard::key).collect();
                        let records = found.answer(&keys);
                        *outcome = Some(Outcome::Conflict(Snapshot { seq: label, records }));
                    }
                }
                (failed, found) = Default::default();
            }
            _ if failed.is_empty() => changed.take(&row)?,
            _ => found.take(&row)?,
        }
    }
    if !failed.is_empty() {
        return Err(Failure::Malformed("the records of a conflict are incomplete"));
    }
    let ended = |(txn, outcome): (&Txn, Option<Outcome>)| match outcome {
        Some(outcome) => Ok(outcome),
        // The server sends nothing for a transaction without effects whose guards hold.
        None if txn.effects.is_empty() => Ok(Outcome::Committed { seq: label, inodes: Vec::new() }),
        None => Err(Failure::Malformed("a transaction has no result")),
    };
    group.iter().zip(outcomes).map(ended).collect()
}

/// The inodes that `txn` changed, as it left them. `changed` holds the inodes that existed before and still
/// exist.
fn changed_inodes(txn: &Txn, changed: &HashMap<Ino, Inode>) -> Vec<Inode> {
    let mut others = HashMap::default();
    tables::follow(&mut others, txn);
    let inode = |ino| others.get(&ino).copied().unwrap_or_else(|| changed.get(&ino).copied());
    txn.changed_inodes().into_iter().filter_map(inode).collect()
}
