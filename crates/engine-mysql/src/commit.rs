//! A batch of transactions as one script, and what its answer says.
//!
//! The script locks all inodes that the batch names, and tells the client of them. Then come its parts: each checks its
//! guards in one statement, and if all hold, the effects follow. The client works out what the changed inodes became from
//! what they were: it has their rows, nobody else can change them, and [`Effect::apply_to`] says how.
//!
//! A transaction by itself is a part that also says what is there if a guard does not hold, and whether it is a repetition.
//! Of several, those of a run ([`meta::runs`]) are a part together first, for mostly all can be applied: such a script
//! fails as a whole where not all can, and another follows in which each is a part by itself. Those together do not look
//! for names that they are about to insert, nor for repetitions: keys that are there already tell of these. And they are
//! created together where there is a limit, if there is room for all of them; else in order.

use std::collections::{BTreeSet, HashMap};

use meta::{Effect, Guard, Node, Outcome, Seq, Touched, Txn, Want, ahead_of_room, most_added, runs};
use tables::Table;
use types::Ino;

use crate::connect::Connection;
use crate::effect::{self, Target};
use crate::error::Fault;
use crate::guard;
use crate::read;
use crate::rows::{Reader, Sets, fact};
use crate::script::{FAILED, HELD, ROOMY, Script, TIGHT};
use crate::sql::{bytes, joined, list};

/// Fails with [`TOO_MANY_ROWS`].
const FAIL: &str = "SET @v = (SELECT 1 UNION ALL SELECT 2)";
/// "Subquery returns more than 1 row"
const TOO_MANY_ROWS: u16 = 1242;
/// "Duplicate entry"
const DUPLICATE: u16 = 1062;

/// Commits all or nothing of what is not a conflict, by one request; by another where that one, which was not careful, did
/// nothing. What is read has this label.
pub(crate) fn commit(conn: &mut Connection, txns: &[Txn], label: Seq) -> Result<Vec<Outcome>, Fault> {
    let batch = Batch::new(txns, false);
    match conn.run(&batch.script) {
        Err(fault) if fault.code().is_some_and(|code| [TOO_MANY_ROWS, DUPLICATE].contains(&code)) => {
            // A block has done that itself.
            if conn.procedure {
                conn.query("ROLLBACK")?;
            }
            let batch = Batch::new(txns, true);
            batch.outcomes(conn.run(&batch.script)?, label)
        }
        sets => batch.outcomes(sets?, label),
    }
}

/// A batch, ready to be sent.
struct Batch<'t> {
    script: Script,
    parts: Vec<&'t [Txn]>,
    writes: bool,
}

impl<'t> Batch<'t> {
    /// Unless `careful`, the script also fails as a whole where a new inode has the number of an old one, which no operation
    /// does: so no script has to carry what would be done then.
    fn new(txns: &'t [Txn], careful: bool) -> Self {
        let mut script = Script::default();
        let writes = txns.iter().any(|txn| !txn.effects.is_empty());
        let together = txns.len() > 1 && !careful;
        let parts = if together { runs(txns) } else { txns.chunks(1).collect() };
        if writes {
            script.always("START TRANSACTION");
            lock(txns, careful, &mut script);
        } else if !limits(txns).is_empty() {
            // Nobody here adds anything.
            script.always("SET @t = 1");
        }
        for part in &parts {
            write(part, together, careful, &mut script);
        }
        if writes {
            script.always("COMMIT");
        }
        Batch { script, parts, writes }
    }

    /// The outcomes, from the sets of rows that the script gave; facts are of `label`.
    fn outcomes(&self, sets: Sets, label: Seq) -> Result<Vec<Outcome>, Fault> {
        let mut sets = sets.into_iter();
        let mut next = || sets.next().ok_or(Fault::Malformed("an answer ended early"));
        let mut nodes: HashMap<Ino, Node> = HashMap::new();
        if self.writes {
            for row in next()? {
                let node = fact(Table::NODE.fact, &row, Table::NODE.numbers.len()).node()?;
                nodes.insert(node.ino, node);
            }
        }
        let mut outcomes = Vec::new();
        for part in &self.parts {
            let summary = next()?;
            let summary = Reader::new(summary.first().ok_or(Fault::Malformed("a part has no answer"))?);
            let Some(repeated) = summary.optional(1)? else {
                // Only a transaction by itself says so.
                let wants = part.iter().flat_map(wants).collect::<Vec<_>>();
                outcomes.push(Outcome::Conflict(read::facts(&next()?, label, &wants)?));
                continue;
            };
            let first = if repeated == 0 { summary.number(0)? } else { repeated };
            let mut seqs = (first..).map(Seq);
            for txn in part.iter() {
                let seq = if txn.effects.is_empty() { None } else { seqs.next() };
                let nodes = if repeated == 0 { changed(&mut nodes, txn) } else { Vec::new() };
                outcomes.push(Outcome::Committed { seq: seq.unwrap_or(label), nodes });
            }
        }
        Ok(outcomes)
    }
}

fn wants(txn: &Txn) -> Vec<Want> {
    txn.guards.iter().map(Guard::want).collect()
}

/// The inodes that `txn` changed, as it left them.
fn changed(nodes: &mut HashMap<Ino, Node>, txn: &Txn) -> Vec<Node> {
    for effect in &txn.effects {
        match effect {
            Effect::PutNode(node) => drop(nodes.insert(node.ino, *node)),
            Effect::DropNode { ino } => drop(nodes.remove(ino)),
            _ => {
                let node = effect.changed_node().and_then(|ino| nodes.get_mut(&ino));
                node.map(|node| effect.apply_to(node));
            }
        }
    }
    txn.changed_nodes().iter().filter_map(|ino| nodes.get(ino).copied()).collect()
}

/// The limits that transactions are to stay within.
fn limits(txns: &[Txn]) -> Vec<&Guard> {
    let guards = txns.iter().flat_map(|txn| &txn.guards);
    guards.filter(|guard| matches!(guard, Guard::Room { .. })).collect()
}

/// Locks the volume's row, if need be, and the inodes, and gives these. Those that are new are locked by their insertion;
/// unless `careful`, nobody looks for them before.
fn lock(txns: &[Txn], careful: bool, script: &mut Script) {
    let (mut inos, mut made) = (BTreeSet::new(), BTreeSet::new());
    let limits = limits(txns);
    let mut volume = !limits.is_empty() && guard::adds_much(txns);
    for txn in txns.iter().filter(|txn| !txn.effects.is_empty()) {
        for want in txn.guards.iter().map(Guard::want) {
            volume |= tables::inode(&want).is_none() && want != Want::Usage;
            inos.extend(tables::inode(&want));
        }
        for effect in &txn.effects {
            volume |= matches!(
                effect,
                Effect::PutSetting { .. } | Effect::SetCounter { .. } | Effect::AddUsage { .. }
            );
            match tables::made(effect) {
                Some(ino) if !careful && !inos.contains(&ino) => drop(made.insert(ino)),
                _ => inos.extend(tables::holder(effect)),
            }
        }
    }
    let row = "SELECT id INTO @v FROM `@layout` WHERE id = 0";
    if !limits.is_empty() {
        let most = most_added(txns);
        let tight = limits.iter().map(|limit| format!("NOT {}", guard::room(limit, most, true)));
        let tight = joined(tight.collect::<BTreeSet<_>>(), " OR ");
        script.always(if volume { "SET @t = 1".to_owned() } else { format!("SELECT {tight} INTO @t") });
        // Far from the limits many may add at once; near them, one at a time.
        script.step(&[ROOMY], format!("{row} LOCK IN SHARE MODE"));
        script.step(&[TIGHT], format!("{row} FOR UPDATE"));
    } else if volume {
        script.always(format!("{row} FOR UPDATE"));
    }
    let inos: Vec<&Ino> = inos.difference(&made).collect();
    // A number that is none, for a list must not be empty.
    let inos = if inos.is_empty() { "NULL".to_owned() } else { list(inos) };
    script.always(format!(
        "SELECT {} FROM `@node` FORCE INDEX (PRIMARY) WHERE ino IN ({inos}) ORDER BY ino FOR UPDATE",
        list(Table::NODE.columns())
    ));
}

/// Writes a part: its check, its effects, its summary, and, of a transaction by itself, what is there if it conflicts.
fn write(part: &[Txn], together: bool, careful: bool, script: &mut Script) {
    let writers: Vec<&Txn> = part.iter().filter(|txn| !txn.effects.is_empty()).collect();
    script.always(check(part, &writers, together));
    let needs = if together { Vec::new() } else { vec![HELD] };
    if together {
        script.step(&[FAILED], FAIL);
    }
    if !writers.is_empty() {
        let mut target = Target { script, needs, careful };
        effect::apply(&mut target, &writers);
        target.put(log(&writers));
    }
    script.always("SELECT LAST_INSERT_ID(), @f");
    if let [txn] = part
        && !together
        && !txn.guards.is_empty()
    {
        script.step(&[FAILED], read::statement(&wants(txn)));
    }
}

/// Finds out whether the guards hold, and of a transaction by itself whether it is a repetition.
fn check(part: &[Txn], writers: &[&Txn], together: bool) -> String {
    let inserts = together && effect::are_new_names(writers);
    let is_inserted = |txn: &Txn, guard| {
        inserts && txn.effects.iter().filter_map(tables::named).any(|name| Some(name) == tables::free(guard))
    };
    let guards = part.iter().flat_map(|txn| txn.guards.iter().filter(|guard| !is_inserted(txn, guard)));
    let held = format!("IF({}, 0, NULL)", guard::all_hold(guards, ahead_of_room(part)));
    match writers {
        [txn] if !together => {
            let repeated = format!("(SELECT id FROM `@log` WHERE op_id = {})", op_id(txn));
            format!("SELECT CAST(COALESCE({repeated}, {held}) AS UNSIGNED) INTO @f")
        }
        _ => format!("SELECT {held} INTO @f"),
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
