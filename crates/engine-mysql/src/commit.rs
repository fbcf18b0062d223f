//! A batch of transactions as one script, and what its answer says.
//!
//! The script locks all inodes that the batch names, and tells the client of them. Then it goes from run to run
//! ([`meta::runs`]): it checks all guards of a run in one statement; if all hold, the effects of all transactions are
//! applied together, else those of each that may be, and the others get their facts. The client works out what the
//! changed inodes became from what they were: it has their rows, nobody else can change them, and [`Effect::apply_to`] says how.
//!
//! What to do about a conflict is most of such a script, and mostly there is none. So several transactions are sent
//! without it first: a *hopeful* script fails as a whole where not all can be applied, and the careful one follows. It does
//! not look for names that it is about to insert, nor for repetitions: keys that are there already tell of these. And it
//! takes creates together where there is a limit, if there is room for all of them; the careful one gives it in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use meta::{
    Effect, Guard, Node, Outcome, Seq, Touched, Txn, Want, ahead_of_room, most_added, runs, runs_in_order,
};
use types::Ino;

use crate::effect::{self, Target};
use crate::error::Fault;
use crate::guard;
use crate::read::{self, Answers};
use crate::rows::{NODE_COLUMNS, RowReader, Sets, node_at};
use crate::script::{Count, Script, When};
use crate::sql::{Bytes, joined, list};

/// Transactions in one run; each has a bit in a number of the database.
const RUN: usize = 60;

/// A batch, ready to be sent.
#[derive(Debug)]
pub(crate) struct Batch<'t> {
    pub(crate) script: Script,
    runs: Vec<&'t [Txn]>,
    writes: bool,
}

impl<'t> Batch<'t> {
    /// `p` is what the names of tables begin with. Unless `careful`, the script fails as a whole ([`wants_care`]) where a
    /// new inode has the number of an old one, which no operation does: so no script has to carry what would be done then.
    pub(crate) fn new(p: &str, txns: &'t [Txn], careful: bool) -> Self {
        let mut script = Script::default();
        let writes = txns.iter().any(|txn| !txn.effects.is_empty());
        let care = match (careful, writes && txns.len() > 1) {
            (true, _) => Care::Full,
            (false, true) => Care::Hopeful,
            (false, false) => Care::NewInodes,
        };
        let runs = if careful { runs_in_order(txns) } else { runs(txns) };
        let runs: Vec<&[Txn]> = runs.into_iter().flat_map(|run| run.chunks(RUN)).collect();
        if writes {
            script.always("START TRANSACTION");
            lock(p, txns, careful, &mut script);
        } else if !limits(txns).is_empty() {
            // Nobody here adds anything.
            script.always("SET @t = 1");
        }
        for run in &runs {
            write_run(p, run, care, &mut script);
        }
        if writes {
            script.always("COMMIT");
        }
        Batch { script, runs, writes }
    }

    /// The outcomes, from the sets of rows that the script gave; facts are of `label`.
    pub(crate) fn outcomes(&self, sets: Sets, label: Seq) -> Result<Vec<Outcome>, Fault> {
        let mut sets = sets.into_iter();
        let mut next = || sets.next().ok_or(Fault::malformed("an answer ended early"));
        let mut nodes: HashMap<Ino, Node> = HashMap::new();
        if self.writes {
            for row in next()? {
                let node = node_at(&RowReader(&row), 0, 13)?;
                nodes.insert(node.ino, node);
            }
        }
        let mut outcomes = Vec::new();
        for run in &self.runs {
            let summary = next()?;
            let summary = RowReader(summary.first().ok_or(Fault::malformed("a run has no answer"))?);
            let (failed, repeated): (u64, u64) = (summary.number(0)?, summary.number(1)?);
            let mut seqs: HashMap<Vec<u8>, u64> = HashMap::new();
            let first: Option<u64> = summary.optional(2)?;
            let mut facts = Vec::new();
            if failed | repeated != 0 {
                for (index, txn) in run.iter().enumerate() {
                    if failed & 1 << index != 0 {
                        facts.push((index, Answers::from_rows(next()?)?.facts(label, &wants(txn))?));
                    }
                }
                if has_effects(run) {
                    for row in next()? {
                        let row = RowReader(&row);
                        seqs.insert(row.bytes(0)?.to_vec(), row.number(1)?);
                    }
                }
            }
            let mut facts = facts.into_iter().peekable();
            let mut logged = 0;
            for (index, txn) in run.iter().enumerate() {
                if let Some((_, facts)) = facts.next_if(|(at, _)| *at == index) {
                    outcomes.push(Outcome::Conflict(facts));
                    continue;
                }
                if txn.effects.is_empty() {
                    outcomes.push(Outcome::Committed { seq: label, nodes: Vec::new() });
                    continue;
                }
                let seq = match first {
                    Some(first) if failed | repeated == 0 => Some(first + logged),
                    _ => seqs.get(&txn.op_id.0.to_be_bytes()[..]).copied(),
                };
                logged += 1;
                let seq = Seq(seq.ok_or(Fault::malformed("a transaction got no number"))?);
                let changed = if repeated & 1 << index == 0 { changed(&mut nodes, txn) } else { Vec::new() };
                outcomes.push(Outcome::Committed { seq, nodes: changed });
            }
        }
        Ok(outcomes)
    }
}

/// What a script is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// All can be applied.
    Hopeful,
    /// All but new inodes that have the number of old ones.
    NewInodes,
    Full,
}

/// Fails with [`TOO_MANY_ROWS`].
const FAIL: &str = "SET @v = (SELECT 1 UNION ALL SELECT 2)";
/// "Subquery returns more than 1 row"
const TOO_MANY_ROWS: u16 = 1242;
/// "Duplicate entry"
const DUPLICATE: u16 = 1062;

/// Whether a script that was not careful did nothing, and a careful one may succeed.
pub(crate) fn wants_care(fault: &Fault) -> bool {
    fault.code().is_some_and(|code| [TOO_MANY_ROWS, DUPLICATE].contains(&code))
}

fn has_effects(run: &[Txn]) -> bool {
    run.iter().any(|txn| !txn.effects.is_empty())
}

fn wants(txn: &Txn) -> Vec<Want> {
    txn.guards.iter().map(Guard::want).collect()
}

/// The inodes that `txn` changed, as it left them.
fn changed(nodes: &mut HashMap<Ino, Node>, txn: &Txn) -> Vec<Node> {
    let mut changed: Vec<Ino> = Vec::new();
    for effect in &txn.effects {
        match effect {
            Effect::PutNode(node) => drop(nodes.insert(node.ino, *node)),
            Effect::DropNode { ino } => drop(nodes.remove(ino)),
            _ => {
                if let Some(ino) = effect.changed_node() {
                    nodes.get_mut(&ino).map(|node| effect.apply_to(node));
                    if !changed.contains(&ino) {
                        changed.push(ino);
                    }
                }
            }
        }
    }
    changed.iter().filter_map(|ino| nodes.get(ino).copied()).collect()
}

/// The limits that transactions are to stay within.
fn limits(txns: &[Txn]) -> Vec<&Guard> {
    let guards = txns.iter().flat_map(|txn| &txn.guards);
    guards.filter(|guard| matches!(guard, Guard::Room { .. })).collect()
}

/// Locks the volume's row, if need be, and the inodes, and gives these. Those that are new are locked by their insertion;
/// unless `careful`, nobody looks for them before.
fn lock(p: &str, txns: &[Txn], careful: bool, script: &mut Script) {
    let mut inos = BTreeSet::new();
    let mut made = BTreeSet::new();
    let mut volume = false;
    let limits = limits(txns);
    for txn in txns.iter().filter(|txn| !txn.effects.is_empty()) {
        for guard in &txn.guards {
            match guard.want() {
                Want::Node(ino)
                | Want::Entry(ino, _)
                | Want::Empty(ino)
                | Want::Xattrs(ino)
                | Want::Slices(ino, _)
                | Want::Locks(ino) => drop(inos.insert(ino.0)),
                Want::Usage => {}
                _ => volume = true,
            }
        }
        for effect in &txn.effects {
            match effect {
                Effect::PutNode(Node { ino, .. }) if !careful && !inos.contains(&ino.0) => {
                    made.insert(ino.0);
                }
                Effect::PutNode(Node { ino, .. })
                | Effect::DropNode { ino }
                | Effect::PutEdge { parent: ino, .. }
                | Effect::DropEdge { parent: ino, .. }
                | Effect::SetAccess { ino, .. }
                | Effect::SetParent { ino, .. }
                | Effect::AddLinks { ino, .. }
                | Effect::Touch { ino, .. }
                | Effect::SetSize { ino, .. }
                | Effect::Extend { ino, .. }
                | Effect::AppendSlice { ino, .. }
                | Effect::DropSlices { ino, .. }
                | Effect::ReplaceRows { ino, .. }
                | Effect::PutXattr { ino, .. }
                | Effect::DropXattr { ino, .. }
                | Effect::PutSymlink { ino, .. }
                | Effect::PutLocks { ino, .. } => drop(inos.insert(ino.0)),
                Effect::PutSetting { .. } | Effect::SetCounter { .. } | Effect::AddUsage { .. } => {
                    volume = true
                }
                _ => {}
            }
        }
    }
    let inos: Vec<u64> = inos.difference(&made).copied().collect();
    volume |= !limits.is_empty() && guard::adds_much(txns);
    if !limits.is_empty() {
        script.always(match volume {
            true => "SET @t = 1, @u = 0".to_owned(),
            false => {
                let most = most_added(txns);
                let tight = limits.iter().map(|limit| format!("NOT {}", guard::room(p, limit, most, true)));
                let tight = joined(tight.collect::<BTreeSet<_>>(), " OR ");
                format!("SELECT t, NOT t INTO @t, @u FROM (SELECT {tight} AS t) AS l")
            }
        });
        // Far from the limits many may add at once; near them, one at a time.
        let lock = format!("SELECT id INTO @v FROM `{p}layout` WHERE id = 0");
        script.step(When::Always, Count::Roomy, format!("{lock} LOCK IN SHARE MODE"));
        script.step(When::Always, Count::Tight, format!("{lock} FOR UPDATE"));
    } else if volume {
        script.always(format!("SELECT id INTO @v FROM `{p}layout` WHERE id = 0 FOR UPDATE"));
    }
    // A number that is none, for a list must not be empty.
    let inos = if inos.is_empty() { "NULL".to_owned() } else { list(inos) };
    script.always(format!(
        "SELECT {NODE_COLUMNS} FROM `{p}node` FORCE INDEX (PRIMARY) WHERE ino IN ({inos}) ORDER BY ino FOR UPDATE"
    ));
}

fn write_run(p: &str, run: &[Txn], care: Care, script: &mut Script) {
    let writers: Vec<&Txn> = run.iter().filter(|txn| !txn.effects.is_empty()).collect();
    let careful = care == Care::Full;
    script.always(check(p, run, &writers, care));
    let mut when = When::All;
    if care == Care::Hopeful {
        script.when(When::Some, FAIL);
        // It goes on only if all are to be applied.
        when = When::Always;
    }
    let summary = "SELECT @f, @r";
    // All together.
    effect::apply(&mut Target { script, when, p, careful }, &writers);
    if writers.is_empty() {
        script.when(when, format!("{summary}, NULL"));
    } else {
        script.when(when, log(p, &writers));
        script.when(when, format!("{summary}, LAST_INSERT_ID()"));
    }
    if care == Care::Hopeful {
        return;
    }
    // Or each by itself.
    script.when(When::Some, format!("{summary}, NULL"));
    for (index, txn) in run.iter().enumerate() {
        if !txn.guards.is_empty() {
            script.when(When::Failed(index), read::statement(p, &wants(txn)));
        }
        if !txn.effects.is_empty() && run.len() > 1 {
            effect::apply(&mut Target { script, when: When::Passed(index), p, careful }, &[txn]);
            script.when(When::Passed(index), log(p, &[txn]));
        }
    }
    if !writers.is_empty() {
        let ops = list(writers.iter().map(|txn| op_id(txn)));
        script.when(When::Some, format!("SELECT op_id, id FROM `{p}log` WHERE op_id IN ({ops})"));
    }
}

/// Finds out which transactions fail, and which are repetitions.
fn check(p: &str, run: &[Txn], writers: &[&Txn], care: Care) -> String {
    let bit = |index: usize| 1_u64 << index;
    let ahead = ahead_of_room(run);
    if care == Care::Hopeful {
        let inserts = effect::are_new_names(writers);
        let is_inserted =
            |txn, guard| inserts && effect::names(txn).any(|name| Some(name) == effect::free(guard));
        let guards = run.iter().flat_map(|txn| txn.guards.iter().filter(|guard| !is_inserted(txn, guard)));
        return format!("SELECT IF({}, 0, 1), 0, 0 INTO @f, @r, @x", guard::all_hold(p, guards, ahead));
    }
    // What several transactions look at is looked at once.
    let mut conditions: BTreeMap<String, u64> = BTreeMap::new();
    for (index, txn) in run.iter().enumerate() {
        for guard in &txn.guards {
            *conditions.entry(guard::condition(p, guard, ahead)).or_default() |= bit(index);
        }
    }
    let failed = match conditions.is_empty() {
        true => "0".to_owned(),
        false => joined(conditions.iter().map(|(held, bits)| format!("IF({held}, 0, {bits})")), " | "),
    };
    if writers.is_empty() {
        return format!("SELECT {failed}, 0 INTO @f, @r");
    }
    let numbered = run.iter().enumerate().filter(|(_, txn)| !txn.effects.is_empty());
    let bits = numbered.map(|(index, txn)| format!("WHEN {} THEN {}", op_id(txn), bit(index)));
    let ops = list(writers.iter().map(|txn| op_id(txn)));
    let repeated = format!(
        "SELECT COALESCE(BIT_OR(CASE op_id {} ELSE 0 END), 0) AS ops FROM `{p}log` WHERE op_id IN ({ops})",
        joined(bits, " ")
    );
    let puts = writers.iter().flat_map(|txn| &txn.effects).filter_map(|effect| match effect {
        Effect::PutNode(node) => Some(node.ino.0),
        _ => None,
    });
    let puts = list(puts);
    let replaced = match puts.is_empty() || care != Care::Full {
        true => "0".to_owned(),
        false => format!("(SELECT COUNT(*) FROM `{p}node` WHERE ino IN ({puts}))"),
    };
    format!("SELECT ({failed}) & ~done.ops, done.ops, {replaced} INTO @f, @r, @x FROM ({repeated}) AS done")
}

fn op_id(txn: &Txn) -> String {
    Bytes(&txn.op_id.0.to_be_bytes()).to_string()
}

/// Stores the operations with the commit, for repetitions, and for those who watch. Their numbers, taken under the locks
/// on all that they change, follow each other.
fn log(p: &str, txns: &[&Txn]) -> String {
    let rows = txns.iter().map(|txn| {
        format!("({}, UNIX_TIMESTAMP(), {})", op_id(txn), Bytes(&Touched::encode(&txn.touched())))
    });
    format!("INSERT INTO `{p}log` (op_id, at, touched) VALUES {}", list(rows))
}
