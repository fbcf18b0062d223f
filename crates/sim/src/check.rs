//! The checks on a history. The model, which applies the commits in order, must reach the state of the
//! engine, and every reply must have been correct.

use std::collections::BTreeMap;

use meta::{Engine, MemEngine, Record, RecordKey, Scan, ScanInclude};
use types::{Errno, Ino};

use crate::act::{Got, Reply, Step};
use crate::client::LEASE;
use crate::model::{Model, Object};
use crate::quotas::Limits;
use crate::shared::{Ended, Shared};
use crate::shown::{contents, inodes};
use crate::world::Commit;
use crate::xattrs::{self, Values};

/// Checks the history and adds what is wrong to the findings.
pub(crate) fn check_history(shared: &Shared) {
    let steps = shared.steps();
    let mut findings = Vec::new();
    let commits = commits(shared, &steps, &mut findings);
    let limits = shared.world().limits;
    let states = replay(&commits, &steps, limits, &mut findings);
    if !findings.is_empty() {
        findings.into_iter().for_each(|finding| shared.world().find(finding));
        return;
    }
    for step in &steps {
        // The cache is used no longer than the lease, whatever the client has received from the stream.
        let floor = step.floor.max(shared.world().seq_at(step.at.saturating_sub(LEASE)));
        replies(step, floor, &commits, &states, &steps, &mut findings);
    }
    let mut world = shared.world();
    if let Some(last) = states.0.values().last() {
        compare(&world.engine, last, &mut findings);
    }
    let mut problems = Vec::new();
    let checked = check::check(
        &world.engine,
        &check::CheckScope::Volume,
        &mut |problem| problems.push(problem),
        &mut |_, _| {},
    );
    if let Err(error) = checked {
        findings.push(format!("the check failed: {error}"));
    }
    findings.extend(problems.iter().map(|problem| format!("the volume is damaged: {problem:?}")));
    findings.into_iter().for_each(|finding| world.find(finding));
}

/// The commit of each step that has one. A second commit of a step is a finding.
fn commits(shared: &Shared, steps: &[Ended], findings: &mut Vec<String>) -> BTreeMap<usize, Commit> {
    let mut commits = BTreeMap::new();
    for commit in shared.world().commits.iter().filter(|commit| commit.is_real) {
        let step = &steps[commit.step];
        if matches!(step.step, Step::Other(_)) {
            continue;
        }
        if commits.insert(commit.step, commit.clone()).is_some() {
            findings.push(format!(
                "step {}: committed twice, under {:x}: {:?}",
                commit.step, commit.op_id.0, step.step
            ));
        }
    }
    commits
}

/// The model after each commit.
struct States(BTreeMap<u64, Model>);

impl States {
    fn at(&self, seq: u64) -> Option<&Model> {
        self.0.range(..=seq).next_back().map(|(_, model)| model)
    }

    /// The states from one commit to another, both included.
    fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &Model> {
        let later = if from < to { Some(self.0.range(from + 1..=to)) } else { None };
        self.at(from).into_iter().chain(later.into_iter().flatten().map(|(_, model)| model))
    }
}

fn replay(
    commits: &BTreeMap<usize, Commit>,
    steps: &[Ended],
    limits: Option<[Limits; 2]>,
    findings: &mut Vec<String>,
) -> States {
    let mut order: Vec<&Commit> = commits.values().collect();
    order.sort_unstable_by_key(|commit| commit.seq);
    let mut model = Model::new(limits);
    let mut states = States(BTreeMap::from([(0, model.clone())]));
    for commit in order {
        let (seq, number) = (commit.seq, commit.step);
        let step = &steps[number];
        let expected = model.apply(&step.step);
        copied(step, commit, expected.as_ref(), &mut model, &states, findings);
        let reply = match (&step.step, &expected, &step.got) {
            // The reply only says whether the session was removed.
            (Step::Remove { .. }, ..) => Ok(()),
            (_, Ok(expected), Got::Done(reply)) if expected != reply => {
                Err(format!("replied {reply:?}, not {expected:?}"))
            }
            (_, Err(errno), _) => {
                Err(format!("was committed at {seq}, but should have failed with {errno:?}"))
            }
            _ => Ok(()),
        };
        if let Err(what) = reply {
            findings.push(format!("step {number}: {:?} {what}", step.step));
            // The state of the model is meaningless from here on.
            return states;
        }
        states.0.insert(seq, model.clone());
    }
    states
}

/// Checks that a copy contains what the source contained at some moment of the call, and puts these bytes
/// into the model. A copy may lack a write that is committed between the copy's plan and its commit
/// (`Guard::Rows` permits newer rows); copy_file_range(2) is not atomic either.
fn copied(
    ended: &Ended,
    commit: &Commit,
    expected: Result<&Reply, &Errno>,
    model: &mut Model,
    states: &States,
    findings: &mut Vec<String>,
) {
    let Step::Copy { from, offset, to, to_offset, .. } = ended.step else { return };
    let Ok(&Reply::Number(len)) = expected else { return };
    let mut copy = Object::default();
    for (at, row) in &commit.rows {
        copy.write(*at, row.len, &row.source);
    }
    let bytes = copy.bytes(to_offset, len);
    let held = |model: &Model| model.objects.get(&from).is_some_and(|it| it.bytes(offset, len) == bytes);
    if !states.between(ended.began, commit.seq).any(held) {
        findings.push(format!("step {}: copied bytes that the source never contained", ended.number));
    }
    if let Some(object) = model.objects.get_mut(&to) {
        object.cells.retain(|at, _| *at < to_offset || *at >= to_offset + len);
        object.cells.extend(bytes.into_iter().map(|(at, cell)| (to_offset + at, cell)));
    }
}

fn replies(
    ended: &Ended,
    floor: u64,
    commits: &BTreeMap<usize, Commit>,
    states: &States,
    steps: &[Ended],
    findings: &mut Vec<String>,
) {
    let commit = commits.get(&ended.number);
    let mut find = |what: String| findings.push(format!("step {}: {:?} {what}", ended.number, ended.step));
    let (from, to) = (ended.began, ended.ended);
    match (&ended.step, &ended.got) {
        (Step::Other(_) | Step::Remove { .. }, _) | (_, Got::InDoubt) => {}
        (Step::Lookup { .. } | Step::Stat { .. }, Got::Done(Reply::Found(found))) => {
            let floor = floor.min(from);
            let of_name = floor.max(own(ended, commits, steps));
            check_lookup(&ended.step, found.as_ref(), states, (of_name, floor, to), &mut find);
        }
        (Step::ListXattrs { ino }, Got::Done(Reply::Xattrs(found))) => {
            let floor = floor.min(from).max(own(ended, commits, steps));
            if !states.between(floor, to).any(|model| model.xattrs(*ino) == *found) {
                find(format!("listed {found:?}, which was not the state from {floor} to {to}"));
            }
        }
        (_, Got::Done(_)) if commit.is_some() => {}
        (_, Got::Done(reply)) => {
            let is_true = |model: &Model| {
                let mut after = model.clone();
                after.apply(&ended.step).as_ref() == Ok(reply) && after == *model
            };
            if !states.between(from, to).any(is_true) {
                find(format!("replied {reply:?} without a commit, but should have changed something"));
            }
        }
        (_, _) if commit.is_some() => find(format!("ended with {:?}, but was committed", ended.got)),
        (Step::Compact { .. }, Got::Error(Errno::EAGAIN)) => {}
        (step, Got::Error(errno)) => {
            let from = if step.is_read() { floor.min(from) } else { from };
            if !states.between(from, to).any(|model| model.clone().apply(step) == Err(*errno)) {
                find(format!("failed with {errno:?}, which was never correct"));
            }
        }
        (_, Got::Failed | Got::Fenced) => {}
    }
}

/// The newest commit of the same client to the same name, or to the extended attributes of the same inode,
/// that succeeded before the read began. The client must see its own changes.
fn own(lookup: &Ended, commits: &BTreeMap<usize, Commit>, steps: &[Ended]) -> u64 {
    let known = steps[..lookup.number].iter().filter(|step| {
        step.client == lookup.client
            && step.session == lookup.session
            && step.lines.1 < lookup.lines.0
            && matches!(step.got, Got::Done(_))
            && is_of(&step.step, &lookup.step)
    });
    let seqs = known.filter_map(|step| commits.get(&step.number)).map(|commit| commit.seq);
    seqs.filter(|seq| *seq <= lookup.began).max().unwrap_or(0)
}

/// Whether `step`, if it succeeds, changes what `lookup` reads.
fn is_of(step: &Step, lookup: &Step) -> bool {
    let (of, wanted) = match lookup {
        Step::Lookup { dir, name } => (*dir, *name),
        Step::ListXattrs { ino: of } => {
            return matches!(step, Step::SetXattr { ino, .. } | Step::RemoveXattr { ino, .. } if ino == of);
        }
        _ => return false,
    };
    match step {
        Step::Make { dir, name, .. }
        | Step::Link { dir, name, .. }
        | Step::Unlink { dir, name, .. }
        | Step::Rmdir { dir, name } => (*dir, *name) == (of, wanted),
        Step::Rename { dir, name, to, new_name, .. } => {
            (*dir, *name) == (of, wanted) || (*to, *new_name) == (of, wanted)
        }
        _ => false,
    }
}

/// A lookup reads the name and the inode at two moments. Each result must have been true at its moment.
fn check_lookup(
    step: &Step,
    found: Option<&(Ino, crate::act::Seen)>,
    states: &States,
    (of_name, from, to): (u64, u64, u64),
    find: &mut impl FnMut(String),
) {
    if let Step::Lookup { dir, name } = step {
        let expected = found.map(|(ino, _)| *ino);
        if !states.between(of_name, to).any(|model| model.entry(*dir, name) == Ok(expected)) {
            find(format!("found {expected:?}, which was not the state from {of_name} to {to}"));
        }
    }
    if let Some((ino, seen)) = found
        && !states.between(from, to).any(|model| model.seen(*ino) == Some(*seen))
    {
        find(format!("found {ino} as {seen:?}, which was not its state from {from} to {to}"));
    }
}

/// Compares the final state of the engine with the model.
fn compare(engine: &MemEngine, model: &Model, findings: &mut Vec<String>) {
    let (inodes, contents) = (inodes(engine), contents(engine));
    let usage = engine.read(&[RecordKey::Usage]).map(|snapshot| snapshot.records).unwrap_or_default();
    if usage != [Record::Usage(model.usage())] {
        findings.push(format!("the volume counts {usage:?} at the end, not {:?}", model.usage()));
    }
    for ino in inodes.keys().filter(|ino| !model.objects.contains_key(ino)) {
        findings.push(format!("{ino} exists at the end, but should not"));
    }
    for (ino, object) in &model.objects {
        let Some(inode) = inodes.get(ino) else {
            findings.push(format!("{ino} is lost"));
            continue;
        };
        let stored = (inode.mode.bits(), inode.nlink, inode.size);
        let seen = model.seen(*ino).map(|seen| (seen.mode, seen.nlink, seen.size));
        if seen != Some(stored) {
            findings.push(format!("{ino} has the mode, links and size {stored:?} at the end, not {seen:?}"));
        }
        let cells = contents.get(ino).map(|file| file.cells.clone()).unwrap_or_default();
        if cells != object.cells {
            findings.push(format!("{ino} contains {cells:?} at the end, not {:?}", object.cells));
        }
        let values = xattrs_of(engine, *ino);
        if values != object.xattrs {
            findings.push(format!("{ino} has the xattrs {values:?} at the end, not {:?}", object.xattrs));
        }
        if u64::from(inode.xattr_blocks) != xattrs::blocks(&object.xattrs) {
            let (says, is) = (inode.xattr_blocks, xattrs::blocks(&object.xattrs));
            findings.push(format!("{ino} counts {says} blocks of xattrs at the end, not {is}"));
        }
        let mut entries = BTreeMap::new();
        let mut locks = BTreeMap::new();
        let scan = Scan::Dir { parent: *ino, after: None, limit: 1000, include: ScanInclude::Nothing };
        let dir = engine.scan(&scan).map(|page| page.snapshot.records).unwrap_or_default();
        let held =
            engine.read(&[RecordKey::Locks(*ino)]).map(|snapshot| snapshot.records).unwrap_or_default();
        for record in dir.into_iter().chain(held) {
            match record {
                Record::Dirent(_, name, Some(dirent)) => {
                    entries.insert(String::from_utf8_lossy(name.as_bytes()).into_owned(), dirent.ino);
                }
                Record::Locks(_, all) => locks.extend(all.iter().map(|lock| (lock.owner, lock.exclusive))),
                _ => {}
            }
        }
        if entries != object.entries {
            findings.push(format!("{ino} lists {entries:?} at the end, not {:?}", object.entries));
        }
        if locks != object.locks {
            findings.push(format!("{ino} has the locks {locks:?} at the end, not {:?}", object.locks));
        }
    }
}

fn xattrs_of(engine: &MemEngine, ino: Ino) -> Values {
    let found = engine.read(&[RecordKey::Xattrs(ino)]).map(|snapshot| snapshot.records);
    let of = |record: &Record| match record {
        Record::Xattrs(_, all) => Some(xattrs::values(all)),
        _ => None,
    };
    found.unwrap_or_default().iter().find_map(of).unwrap_or_default()
}
