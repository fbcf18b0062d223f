//! Sends a batch of transactions as one script, and reads the reply.
//!
//! The script locks all inodes that the batch names, and returns their rows. The parts of the script follow.
//! Each part checks its guards in one statement; if all hold, its effects follow. The client computes the new
//! state of the changed inodes from the returned rows, by [`Effect::apply_to`](meta::Effect::apply_to): no
//! other transaction can change these rows.
//!
//! A part with a single transaction also returns the records that its guards read, if a guard does not hold,
//! and whether the transaction is a repetition. If there are several transactions, the first script has one
//! part per conflict-free group ([`meta::conflict_free_groups`]), because usually all of them can be applied.
//! If not all can, that script fails as a whole, and a second script follows in which each transaction is a
//! part by itself. A part with several transactions reads neither the names that it inserts nor the log:
//! unique keys detect existing names and repetitions. If there is a limit, the transactions of such a part
//! are applied if there is room for all of them, in the volume and in each quota; otherwise they are applied
//! one by one, in order.
//!
//! The server parses each statement anew, which costs 40 to 100 µs of its CPU time. So one statement checks
//! all guards of a part, and one changes all inodes that change in the same columns.

use std::collections::BTreeSet;

use host::HashMap;
use meta::{Guard, Inode, Invalidation, Outcome, RecordKey, Seq, Txn, conflict_free_groups, max_added};
use tables::{LockSet, Malformed, Table, joined, list};
use types::Ino;

use crate::connect::{Connection, plain, reply_row};
use crate::error::Failure;
use crate::script::{FAILED, HELD, ROOMY, Script, TIGHT};
use crate::sql::{bytes, of_session};
use crate::{effect, guard, read};

/// Fails with [`TOO_MANY_ROWS`].
const FAIL: &str = "SET @ignored = (SELECT 1 UNION ALL SELECT 2)";
/// "Subquery returns more than 1 row"
const TOO_MANY_ROWS: u16 = 1242;
/// "Duplicate entry"
const DUPLICATE: u16 = 1062;

/// Commits all transactions that do not conflict. This takes one request, or two if the first one fails as a
/// whole. Records that are read get the sequence number `label`.
pub(crate) fn commit(conn: &mut Connection, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, Failure> {
    match attempt(conn, txns, label, false) {
        Err(failure) if failure.code().is_some_and(|code| [TOO_MANY_ROWS, DUPLICATE].contains(&code)) => {
            attempt(conn, txns, label, true)
        }
        done => done,
    }
}

/// Sends a script. Unless `careful` is set, it fails as a whole if a new inode has the number of an existing
/// one; a script of several transactions also fails if a guard does not hold or if an operation is a
/// repetition. No operation uses an inode number again, so only a careful script has statements that replace
/// an existing inode.
fn attempt(conn: &mut Connection, txns: &[Txn], label: Seq, careful: bool) -> Result<Vec<Outcome>, Failure> {
    let mut script = Script::default();
    let writes = txns.iter().any(|txn| !txn.effects.is_empty());
    let together = txns.len() > 1 && !careful;
    let parts = if together { conflict_free_groups(txns) } else { txns.chunks(1).collect() };
    if writes {
        script.put("START TRANSACTION");
        lock(txns, careful, &mut script);
    } else if limits(txns).next().is_some() {
        // Nothing is added, so the guards need not leave room for what other commits add.
        script.put("SET @tight = 1");
    }
    for part in &parts {
        write(part, together, careful, &mut script);
    }
    if writes {
        script.put("COMMIT");
    }
    let mut sets = conn.query(&script.text(conn.procedure))?.into_iter();
    let mut next = || sets.next().ok_or(Malformed("a reply is incomplete"));
    let mut inodes: HashMap<Ino, Option<Inode>> = HashMap::default();
    if writes {
        for row in next()? {
            let inode = reply_row(Table::INODE.kind, &row, Table::INODE.numbers.len()).inode()?;
            inodes.insert(inode.ino, Some(inode));
        }
    }
    let mut outcomes = Vec::new();
    for part in parts {
        let summary = next()?;
        let summary = plain(summary.first().ok_or(Malformed("a part has no result"))?);
        let Some(repeated) = summary.optional(1)? else {
            // Only a part with a single transaction reports a conflict.
            outcomes.push(Outcome::Conflict(read::snapshot(&next()?, label, &keys(part))?));
            continue;
        };
        let first = if repeated == 0 { summary.number(0)? } else { repeated };
        let mut seqs = (first..).map(Seq);
        for txn in part {
            let seq = if txn.effects.is_empty() { None } else { seqs.next() };
            let inodes = if repeated == 0 { tables::follow(&mut inodes, txn) } else { Vec::new() };
            outcomes.push(Outcome::Committed { seq: seq.unwrap_or(label), inodes });
        }
    }
    Ok(outcomes)
}

fn keys(part: &[Txn]) -> Vec<RecordKey> {
    part.iter().flat_map(|txn| &txn.guards).map(Guard::key).collect()
}

/// The guards of the transactions on the volume's room, its limits of inodes and blocks.
fn limits(txns: &[Txn]) -> impl Iterator<Item = &Guard> {
    txns.iter().flat_map(|txn| &txn.guards).filter(|guard| matches!(guard, Guard::Room { .. }))
}

/// Writes the statements that lock the volume's row, if necessary, the inodes, the quotas, and the sessions
/// that need an exclusive lock. They return the rows of the inodes. The insertion of a new inode locks it, so
/// its row is selected here only if `careful` is set.
fn lock(txns: &[Txn], careful: bool, script: &mut Script) {
    let mut locks = LockSet::default();
    txns.iter().for_each(|txn| locks.add(txn));
    let LockSet { sessions, mut inos, mut made, quotas, uncertain_quotas, volume, .. } = locks;
    let most = max_added(txns);
    let mut tight: BTreeSet<_> =
        limits(txns).map(|limit| format!("NOT {}", guard::room(limit, most, true))).collect();
    let limited = !tight.is_empty();
    // Two commits that insert quotas could meet in a deadlock, because one cannot lock a row before it
    // exists.
    if !uncertain_quotas.is_empty() {
        let (count, rows) = (uncertain_quotas.len(), guard::quotas(&uncertain_quotas));
        tight.insert(format!("(SELECT COUNT(*) < {count} FROM `@quota` WHERE {rows})"));
    }
    if volume || !tight.is_empty() {
        let much = most.inodes > guard::MAX.inodes || most.blocks > guard::MAX.blocks;
        let exclusive = volume || limited && much;
        script.put(format!(
            "SELECT {} INTO @tight",
            if exclusive { "1".to_owned() } else { joined(tight, " OR ") }
        ));
        // Far from the limits many commits may add at once; near them, only one at a time.
        let row = "SELECT id INTO @ignored FROM `@layout` WHERE id = 0";
        if limited {
            script.only_if(ROOMY, |script| script.put(format!("{row} LOCK IN SHARE MODE")));
        }
        script.only_if(TIGHT, |script| script.put(format!("{row} FOR UPDATE")));
    }
    if careful {
        inos.append(&mut made);
    }
    // NULL matches no number; a list must not be empty.
    let inos = if inos.is_empty() { "NULL".to_owned() } else { list(inos) };
    script.put(format!(
        "SELECT {} FROM `@node` FORCE INDEX (PRIMARY) WHERE ino IN ({inos}) ORDER BY ino FOR UPDATE",
        list(Table::INODE.columns())
    ));
    if !quotas.is_empty() {
        script.put(format!(
            "SELECT COUNT(*) INTO @ignored FROM `@quota` FORCE INDEX (PRIMARY) WHERE {} FOR UPDATE",
            guard::quotas(&quotas)
        ));
    }
    // These locks wait for in-flight commits of these sessions. Later commits and renewals wait for these
    // locks. The guards take shared locks on the other sessions.
    for (session, _) in sessions.iter().filter(|(_, is_exclusive)| **is_exclusive) {
        let rows = of_session(*session);
        script.put(format!(
            "SELECT COUNT(*) INTO @ignored FROM `@fence` FORCE INDEX (PRIMARY) WHERE {rows} FOR UPDATE"
        ));
    }
}

/// Writes a part: its check, its effects, its summary, and, if it has a single transaction, the records that
/// its guards read, in case it conflicts.
fn write(part: &[Txn], together: bool, careful: bool, script: &mut Script) {
    let inserts = together && part.iter().all(tables::puts_free_names);
    let is_inserted = |txn: &Txn, guard| {
        inserts && txn.effects.iter().filter_map(tables::named).any(|name| Some(name) == tables::free(guard))
    };
    let guards = part.iter().flat_map(|txn| txn.guards.iter().filter(|guard| !is_inserted(txn, guard)));
    let writers: Vec<&Txn> = part.iter().filter(|txn| !txn.effects.is_empty()).collect();
    let all_hold = guard::all_hold(guards, part, !writers.is_empty());
    let mut held = format!("IF({all_hold}, 0, NULL)");
    if let ([txn], false) = (&writers[..], together) {
        let repeated = format!("(SELECT id FROM `@log` WHERE op_id = {})", op_id(txn));
        held = format!("CAST(COALESCE({repeated}, {held}) AS UNSIGNED)");
    }
    script.put(format!("SELECT {held} INTO @outcome"));
    let apply = |script: &mut Script| {
        if !writers.is_empty() {
            effect::apply(script, &writers, careful);
            script.put(log(&writers));
        }
    };
    if together {
        script.only_if(FAILED, |script| script.put(FAIL));
        apply(script);
    } else {
        script.only_if(HELD, apply);
    }
    script.put("SELECT LAST_INSERT_ID(), @outcome");
    if !together && part.iter().any(|txn| !txn.guards.is_empty()) {
        script.only_if(FAILED, |script| script.put(read::statement(&keys(part))));
    }
}

fn op_id(txn: &Txn) -> String {
    bytes(&txn.op_id.0.to_be_bytes())
}

/// Stores the operations with the commit, to detect repetitions and for watchers. Their sequence numbers are
/// taken while everything that they change is locked, and are consecutive.
fn log(txns: &[&Txn]) -> String {
    let rows = txns.iter().map(|txn| {
        format!("({}, UNIX_TIMESTAMP(), {})", op_id(txn), bytes(&Invalidation::encode(&txn.invalidations())))
    });
    format!("INSERT INTO `@log` (op_id, at, invalidations) VALUES {}", list(rows))
}
