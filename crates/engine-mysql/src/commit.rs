//! A batch of transactions as one script, and what its answer says.
//!
//! The script locks all inodes that the batch names, and tells the client of them. Then come its parts: each checks its
//! guards in one statement, and if all hold, the effects follow. The client works out what the changed inodes became from
//! what they were: it has their rows, nobody else can change them, and [`Effect::apply_to`](meta::Effect::apply_to) says how.
//!
//! A transaction by itself is a part that also says what is there if a guard does not hold, and whether it is a repetition.
//! Of several, those of a run ([`meta::runs`]) are a part together first, for mostly all can be applied: such a script
//! fails as a whole where not all can, and another follows in which each is a part by itself. Those together do not look
//! for names that they are about to insert, nor for repetitions: keys that are there already tell of these. And they are
//! created together where there is a limit, if there is room for all of them; else in order.

use std::collections::{BTreeSet, HashMap};

use meta::{Guard, Node, Outcome, Seq, Touched, Txn, Want, ahead_of_room, most_added, runs};
use tables::{Locks, Malformed, Table, joined, list};
use types::Ino;

use crate::connect::{Connection, fact, plain};
use crate::error::Fault;
use crate::script::{FAILED, HELD, ROOMY, Script, TIGHT};
use crate::sql::{bytes, of_session};
use crate::{effect, guard, read};

/// Fails with [`TOO_MANY_ROWS`].
const FAIL: &str = "SET @v = (SELECT 1 UNION ALL SELECT 2)";
/// "Subquery returns more than 1 row"
const TOO_MANY_ROWS: u16 = 1242;
/// "Duplicate entry"
const DUPLICATE: u16 = 1062;

/// Commits all or nothing of what is not a conflict, by one request; by another where that one, which was not careful, did
/// nothing. What is read has this label.
pub(crate) fn commit(conn: &mut Connection, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, Fault> {
    match attempt(conn, txns, label, false) {
        Err(fault) if fault.code().is_some_and(|code| [TOO_MANY_ROWS, DUPLICATE].contains(&code)) => {
            attempt(conn, txns, label, true)
        }
        done => done,
    }
}

/// Unless `careful`, the script also fails as a whole where a new inode has the number of an old one, which no operation
/// does: so no script has to carry what would be done then.
fn attempt(conn: &mut Connection, txns: &[Txn], label: Seq, careful: bool) -> Result<Vec<Outcome>, Fault> {
    let mut script = Script::default();
    let writes = txns.iter().any(|txn| !txn.effects.is_empty());
    let together = txns.len() > 1 && !careful;
    let parts = if together { runs(txns) } else { txns.chunks(1).collect() };
    if writes {
        script.put("START TRANSACTION");
        lock(txns, careful, &mut script);
    } else if limits(txns).next().is_some() {
        // Nobody here adds anything.
        script.put("SET @t = 1");
    }
    for part in &parts {
        write(part, together, careful, &mut script);
    }
    if writes {
        script.put("COMMIT");
    }
    let mut sets = conn.query(&script.text(conn.procedure))?.into_iter();
    let mut next = || sets.next().ok_or(Malformed("an answer ended early"));
    let mut nodes: HashMap<Ino, Option<Node>> = HashMap::new();
    if writes {
        for row in next()? {
            let node = fact(Table::NODE.fact, &row, Table::NODE.numbers.len()).node()?;
            nodes.insert(node.ino, Some(node));
        }
    }
    let mut outcomes = Vec::new();
    for part in parts {
        let summary = next()?;
        let summary = plain(summary.first().ok_or(Malformed("a part has no answer"))?);
        let Some(repeated) = summary.optional(1)? else {
            // Only a transaction by itself says so.
            outcomes.push(Outcome::Conflict(read::facts(&next()?, label, &wants(part))?));
            continue;
        };
        let first = if repeated == 0 { summary.number(0)? } else { repeated };
        let mut seqs = (first..).map(Seq);
        for txn in part {
            let seq = if txn.effects.is_empty() { None } else { seqs.next() };
            let nodes = if repeated == 0 { tables::follow(&mut nodes, txn) } else { Vec::new() };
            outcomes.push(Outcome::Committed { seq: seq.unwrap_or(label), nodes });
        }
    }
    Ok(outcomes)
}

fn wants(part: &[Txn]) -> Vec<Want> {
    part.iter().flat_map(|txn| &txn.guards).map(Guard::want).collect()
}

/// The limits that transactions are to stay within.
fn limits(txns: &[Txn]) -> impl Iterator<Item = &Guard> {
    txns.iter().flat_map(|txn| &txn.guards).filter(|guard| matches!(guard, Guard::Room { .. }))
}

/// Locks the volume's row, if need be, and the inodes, and gives these. Those that are new are locked by their insertion;
/// unless `careful`, nobody looks for them before.
fn lock(txns: &[Txn], careful: bool, script: &mut Script) {
    let mut locks = Locks::default();
    txns.iter().for_each(|txn| locks.add(txn));
    let Locks { sessions, mut inos, mut made, volume } = locks;
    let most = most_added(txns);
    let tight: BTreeSet<_> =
        limits(txns).map(|limit| format!("NOT {}", guard::room(limit, most, true))).collect();
    if volume || !tight.is_empty() {
        let alone = volume || most.inodes > guard::MOST.inodes || most.blocks > guard::MOST.blocks;
        script.put(format!("SELECT {} INTO @t", if alone { "1".to_owned() } else { joined(tight, " OR ") }));
        // Far from the limits many may add at once; near them, one at a time.
        let row = "SELECT id INTO @v FROM `@layout` WHERE id = 0";
        script.only_if(ROOMY, |script| script.put(format!("{row} LOCK IN SHARE MODE")));
        script.only_if(TIGHT, |script| script.put(format!("{row} FOR UPDATE")));
    }
    if careful {
        inos.append(&mut made);
    }
    // A number that is none, for a list must not be empty.
    let inos = if inos.is_empty() { "NULL".to_owned() } else { list(inos) };
    script.put(format!(
        "SELECT {} FROM `@node` FORCE INDEX (PRIMARY) WHERE ino IN ({inos}) ORDER BY ino FOR UPDATE",
        list(Table::NODE.columns())
    ));
    // Commits of these sessions end first, and later ones wait; so do renewals. The guards share the locks on the others.
    for (session, _) in sessions.iter().filter(|(_, is_exclusive)| **is_exclusive) {
        let rows = of_session(*session);
        script.put(format!(
            "SELECT COUNT(*) INTO @v FROM `@fence` FORCE INDEX (PRIMARY) WHERE {rows} FOR UPDATE"
        ));
    }
}

/// Writes a part: its check, its effects, its summary, and, of a transaction by itself, what is there if it conflicts.
fn write(part: &[Txn], together: bool, careful: bool, script: &mut Script) {
    let inserts = together && part.iter().all(tables::puts_free_names);
    let is_inserted = |txn: &Txn, guard| {
        inserts && txn.effects.iter().filter_map(tables::named).any(|name| Some(name) == tables::free(guard))
    };
    let guards = part.iter().flat_map(|txn| txn.guards.iter().filter(|guard| !is_inserted(txn, guard)));
    let writers: Vec<&Txn> = part.iter().filter(|txn| !txn.effects.is_empty()).collect();
    let all_hold = guard::all_hold(guards, ahead_of_room(part), !writers.is_empty());
    let mut held = format!("IF({all_hold}, 0, NULL)");
    if let ([txn], false) = (&writers[..], together) {
        let repeated = format!("(SELECT id FROM `@log` WHERE op_id = {})", op_id(txn));
        held = format!("CAST(COALESCE({repeated}, {held}) AS UNSIGNED)");
    }
    script.put(format!("SELECT {held} INTO @f"));
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
    script.put("SELECT LAST_INSERT_ID(), @f");
    if !together && part.iter().any(|txn| !txn.guards.is_empty()) {
        script.only_if(FAILED, |script| script.put(read::statement(&wants(part))));
    }
}

fn op_id(txn: &Txn) -> String {
    bytes(&txn.op_id.0.to_be_bytes())
}

/// Stores the operations with the commit, for repetitions, and for those who watch. Their numbers, taken under the locks
/// on all that they change, follow each other.
fn log(txns: &[&Txn]) -> String {
    let rows = txns.iter().map(|txn| {
        format!("({}, UNIX_TIMESTAMP(), {})", op_id(txn), bytes(&Touched::encode(&txn.touched())))
    });
    format!("INSERT INTO `@log` (op_id, at, touched) VALUES {}", list(rows))
}
