//! `limen fsck`: checks every record of a volume, with `--data` also every byte of its files, and repairs
//! what it can.

use std::collections::{BTreeSet, HashMap};
use std::process::ExitCode;
use std::sync::Arc;

use check::{Checked, Place, Problem};
use chunk::StoreOptions;
use client::Meta;
use command::fault::Fault;
use command::output;
use command::output::ProgressBar;
use command::units::show_size;
use engine_sqlite::{LockError, MountLock};
use meta::{Counter, Engine, EngineError, Maintenance, Volume, VolumeError};
use serde_json::{Value, json};
use types::Ino;

use crate::gc::Unreferenced;
use crate::maintenance::{self, Exclusive, Tool};
use crate::marker;
use crate::records::next_slice;
use crate::scrub::{self, Damage};
use crate::sessions::living;
use crate::store::KeyArgs;
use crate::store::open_store;
use crate::url::{Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes, as of fsck(8): 0 no errors, 1 all errors are repaired, 4 errors are left, 8 the volume could not be checked;
2 the command line is wrong.

A mount that is killed can leave objects that it stored but did not yet refer to in the metadata. That is not an error;
limen gc removes them.

Examples:
  limen fsck sqlite:///var/lib/limen/home.db
  limen fsck --data sqlite:///var/lib/limen/home.db
      reads all files, and shows which are damaged and at which offsets
  limen fsck --repair sqlite:///var/lib/limen/home.db
      the volume must not be mounted; moves inodes that lost their names to /lost+found

If the volume is mounted, the records are checked up to four times, and only a problem that every check finds is reported,
because a change in progress can look like damage to one check. The usage counters are not compared then.")]
pub(crate) struct FsckArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    url: String,
    /// Repair what can be repaired without losing data; the volume must not be mounted, and new mounts are
    /// refused meanwhile
    #[arg(long)]
    repair: bool,
    /// Wait 90 seconds, and remove sessions that are not renewed in that time, because their machines are
    /// gone. A session that is still renewed keeps the volume in use
    #[arg(long, requires = "repair")]
    force: bool,
    /// Allow mounts again after a repair or removal was killed on another machine
    #[arg(long, conflicts_with_all = ["repair", "data"])]
    end_maintenance: bool,
    /// Also read every byte of every file, and search for objects that nothing refers to
    #[arg(long)]
    data: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
}

const REPAIRED: u8 = 1;
const WRONG: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// The most problems, and the most damaged ranges of files, that are kept; further ones are only counted.
const MAX_KEPT: usize = 10_000;

/// On a mounted volume, this many further checks must find a problem again.
const CONFIRMED_BY: usize = 3;

/// A repair can reveal problems that the repaired one hid, so the check runs again, at most this often.
const MAX_ROUNDS: usize = 100;

pub(crate) fn run(args: &FsckArgs) -> ExitCode {
    match check_volume(args) {
        Ok(code) => ExitCode::from(code),
        Err(fault) => {
            output::note(&fault);
            ExitCode::from(if fault.exit_code() == 2 { 2 } else { NOT_CHECKED })
        }
    }
}

/// The result of all checks.
#[derive(Debug, Default)]
struct Findings {
    checked: Checked,
    repaired: Vec<Problem>,
    left: Vec<Problem>,
    /// The number of problems beyond [`MAX_KEPT`].
    unnamed: u64,
    damage: Vec<Damage>,
    /// The number of damaged ranges beyond [`MAX_KEPT`].
    unnamed_damage: u64,
    read_bytes: u64,
    unreferenced: Unreferenced,
}

fn check_volume(args: &FsckArgs) -> Result<u8, Fault> {
    let url = MetaUrl::parse(&args.url)?;
    let (database, volume) = url.open_volume()?;
    let engine = database.engine();
    if args.end_maintenance {
        return end_maintenance(&url, engine);
    }
    let access = Access::take(args, &url, &database)?;
    let is_live = matches!(access, Access::BesideMounts);
    // The commits of a repair fail if it no longer has the volume.
    let engine = if let Access::Alone { exclusive } = &access { exclusive.engine() } else { engine };
    if is_live {
        output::note("the volume is mounted: only a problem that each of several checks finds is reported");
    }
    let failed = |error: EngineError| Fault::new(format!("the records cannot be read: {error}")).at(&url);
    let bar = output::progress("records checked");
    let mut repairer = None;
    let mut findings = Findings::default();
    let rounds = if is_live { CONFIRMED_BY } else { 0 };
    let checked = check_records(args, &url, &engine, &mut repairer, &mut findings, &bar)
        .and_then(|()| confirm_records(&url, &database, rounds, &mut findings, &bar))
        .and_then(|()| match args.data {
            true => check_data(args, &url, &engine, &volume, &mut repairer, &mut findings, &bar),
            false => Ok(()),
        })
        .and_then(|()| match args.data && is_live && !findings.damage.is_empty() {
            true => confirm_data(args, &database, &volume, &mut findings),
            false => Ok(()),
        });
    bar.finish_and_clear();
    checked?;
    if !findings.repaired.is_empty() {
        engine.sync().map_err(failed)?;
    }
    let paths = findings.paths(&*engine).map_err(failed)?;
    match args.json {
        true => output::print_json(&findings.to_json(&volume, &paths))?,
        false => output::print(&findings.to_text(args, &volume, &paths))?,
    }
    Ok(findings.code())
}

/// How other changes of the volume are excluded during the check.
#[derive(Debug)]
enum Access {
    /// For a repair.
    Alone {
        exclusive: Box<Exclusive>,
    },
    /// The volume cannot be mounted while this lock is held. On a database server there is no lock: the
    /// volume was not mounted when the check began.
    Unmounted {
        _lock: Option<MountLock>,
    },
    BesideMounts,
}

impl Access {
    fn take(args: &FsckArgs, url: &MetaUrl, database: &Database) -> Result<Access, Fault> {
        if args.repair {
            let tool = Tool { name: "limen fsck --repair", force: Some(args.force) };
            let exclusive = Exclusive::begin(url, database, tool)?;
            return Ok(Access::Alone { exclusive: Box::new(exclusive) });
        }
        let lock = match database.lock(false) {
            Ok(lock) => lock,
            Err(LockError::AlreadyMounted { .. }) => return Ok(Access::BesideMounts),
            // A user that can only read the database file can still check the volume.
            Err(LockError::Io { .. }) => None,
        };
        let sessions = living(&*database.engine());
        let is_mounted = lock.is_none() && !sessions.map_err(|error| Fault::new(error).at(url))?.is_empty();
        Ok(if is_mounted { Access::BesideMounts } else { Access::Unmounted { _lock: lock } })
    }
}

fn end_maintenance(url: &MetaUrl, engine: Arc<dyn Engine>) -> Result<u8, Fault> {
    let text = match maintenance::end(url, engine)? {
        Some(Maintenance { tool, host, pid, .. }) => {
            format!(
                "Ended the maintenance of '{tool}', process {pid} on {host}: the volume can be mounted.\n"
            )
        }
        None => "No tool has announced work on the volume.\n".to_owned(),
    };
    output::print(&text).map(|()| 0)
}

/// Checks the records `rounds` more times, and drops the problems that are not found each time: those were
/// changes in progress.
fn confirm_records(
    url: &MetaUrl,
    database: &Database,
    rounds: usize,
    findings: &mut Findings,
    bar: &ProgressBar,
) -> Result<(), Fault> {
    let is_moving = |problem: &Problem| matches!(problem, Problem::Usage { .. });
    for _ in 0..rounds {
        findings.left.retain(|problem| rounds == 0 || !is_moving(problem));
        if findings.left.is_empty() {
            break;
        }
        // Only problems that were found before are kept, so this list cannot exceed the bound.
        let mut again = Vec::new();
        let known = &findings.left;
        let mut report = |problem: Problem| again.extend(known.contains(&problem).then_some(problem));
        let mut progress = |what: &'static str, count| {
            bar.set_message(what);
            bar.set_position(count);
        };
        check::check(&*database.engine(), &mut report, &mut progress)
            .map_err(|error| Fault::new(format!("the records cannot be read: {error}")).at(url))?;
        (findings.left, findings.unnamed) = (again, 0);
    }
    Ok(())
}

/// Reads the data again, and drops damage that is not found a second time: the file was removed while it was
/// read.
fn confirm_data(
    args: &FsckArgs,
    database: &Database,
    volume: &Volume,
    findings: &mut Findings,
) -> Result<(), Fault> {
    let options = StoreOptions { cache_bytes: 0, ..StoreOptions::default() };
    let store = open_store(volume, &args.keys, options)?;
    let mut again = Vec::new();
    let known = &findings.damage;
    let mut report = |damage: Damage| again.extend(known.contains(&damage).then_some(damage));
    scrub::read_all(&*database.engine(), volume, &store, &mut report, &mut |_| {})?;
    (findings.damage, findings.unnamed_damage) = (again, 0);
    Ok(())
}

fn check_records(
    args: &FsckArgs,
    url: &MetaUrl,
    engine: &Arc<dyn Engine>,
    repairer: &mut Option<Meta>,
    findings: &mut Findings,
    bar: &ProgressBar,
) -> Result<(), Fault> {
    for round in 0..=MAX_ROUNDS {
        let (mut problems, mut unnamed) = (Vec::new(), 0);
        let mut report = |problem: Problem| match problems.len() < MAX_KEPT {
            true => problems.push(problem),
            false => unnamed += 1,
        };
        let mut progress = |what: &'static str, count| {
            bar.set_message(what);
            bar.set_position(count);
        };
        let checked = check::check(&**engine, &mut report, &mut progress);
        findings.checked =
            checked.map_err(|error| Fault::new(format!("the records cannot be read: {error}")).at(url))?;
        (findings.left, findings.unnamed) = (problems, unnamed);
        if !args.repair || findings.left.is_empty() || round == MAX_ROUNDS {
            return Ok(());
        }
        if repair(url, engine, repairer, findings)? == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Repairs what can be repaired. Returns the number of repaired problems.
fn repair(
    url: &MetaUrl,
    engine: &Arc<dyn Engine>,
    repairer: &mut Option<Meta>,
    findings: &mut Findings,
) -> Result<usize, Fault> {
    let meta = match repairer {
        Some(meta) => meta,
        None => repairer.insert(open_meta(engine).map_err(|error| url.volume_fault(error))?),
    };
    // Counters first: other repairs create inodes in /lost+found, and need correct numbers for them.
    findings.left.sort_by_key(|problem| !matches!(problem, Problem::Counter { .. }));
    let (mut left, mut count) = (Vec::new(), 0);
    for problem in findings.left.drain(..) {
        let done = check::repair(meta, &problem)
            .map_err(|error| Fault::new(format!("cannot repair: {error}")).at(url))?;
        count += usize::from(done);
        match done {
            true if findings.repaired.len() < MAX_KEPT => findings.repaired.push(problem),
            true => {}
            false => left.push(problem),
        }
    }
    findings.left = left;
    Ok(count)
}

fn open_meta(engine: &Arc<dyn Engine>) -> Result<Meta, VolumeError> {
    let meta = Meta::open(Arc::clone(engine), 10_000)?;
    meta.set_exclusive(true);
    Ok(meta)
}

fn check_data(
    args: &FsckArgs,
    url: &MetaUrl,
    engine: &Arc<dyn Engine>,
    volume: &Volume,
    repairer: &mut Option<Meta>,
    findings: &mut Findings,
    bar: &ProgressBar,
) -> Result<(), Fault> {
    let options = StoreOptions { cache_bytes: 0, ..StoreOptions::default() };
    let store = open_store(volume, &args.keys, options)?;
    marker::verify(volume, &store)?;
    bar.set_message("MiB read");
    let mut report = |damage: Damage| match findings.damage.len() < MAX_KEPT {
        true => findings.damage.push(damage),
        false => findings.unnamed_damage += 1,
    };
    let mut progress = |bytes: u64| bar.set_position(bytes >> 20);
    findings.read_bytes = scrub::read_all(&**engine, volume, &store, &mut report, &mut progress)?;
    bar.set_message("objects");
    let mut count = 0;
    findings.unreferenced = Unreferenced::find(&**engine, volume, &store, &mut |_| {
        count += 1;
        bar.set_position(count);
        Ok(())
    })?;
    let failed = |error: EngineError| Fault::new(error).at(url);
    let says = next_slice(&**engine).map_err(failed)?;
    let last = findings.unreferenced.last_slice;
    if says <= last {
        findings.left.push(Problem::Counter { counter: Counter::Slice, says, last });
        if args.repair {
            repair(url, engine, repairer, findings)?;
        }
    }
    Ok(())
}

impl Findings {
    fn wrong(&self) -> u64 {
        (self.left.len() + self.damage.len()) as u64 + self.unnamed + self.unnamed_damage
    }

    fn code(&self) -> u8 {
        match (self.wrong(), self.repaired.is_empty()) {
            (0, true) => 0,
            (0, false) => REPAIRED,
            _ => WRONG,
        }
    }

    fn problems(&self) -> impl Iterator<Item = (&Problem, bool)> {
        let repaired = self.repaired.iter().map(|problem| (problem, true));
        repaired.chain(self.left.iter().map(|problem| (problem, false)))
    }

    fn paths(&self, engine: &dyn Engine) -> Result<HashMap<Ino, Vec<u8>>, EngineError> {
        let mut inos: BTreeSet<Ino> = self.damage.iter().map(|damage| damage.ino).collect();
        inos.extend(self.problems().filter_map(|(problem, _)| match problem.place() {
            Place::Inode(ino) | Place::Entry(ino, _) => Some(ino),
            Place::Volume => None,
        }));
        check::find_paths(engine, &inos)
    }

    fn to_text(&self, args: &FsckArgs, volume: &Volume, paths: &HashMap<Ino, Vec<u8>>) -> String {
        let mut text = String::new();
        for (problem, repaired) in self.problems() {
            let place = place_text(&problem.place(), paths).map_or(String::new(), |place| place + ": ");
            let repaired = if repaired { " (repaired)" } else { "" };
            text.push_str(&format!("{place}{problem}{repaired}\n"));
        }
        for Damage { ino, from, to, error } in &self.damage {
            let place = path_text(*ino, paths);
            text.push_str(&format!("{place}: bytes {from} to {} cannot be read: {error}\n", to - 1));
        }
        if self.unnamed + self.unnamed_damage > 0 {
            text.push_str(&format!("{} more are not listed\n", self.unnamed + self.unnamed_damage));
        }
        let Checked { inodes, entries, rows } = self.checked;
        let mut checked = format!("{inodes} inodes, {entries} names, {rows} rows");
        if args.data {
            checked.push_str(&format!(", {} of data", show_size(self.read_bytes)));
        }
        let name = &volume.name;
        text.push_str(&match (self.wrong(), self.repaired.len()) {
            (0, 0) => format!("Volume '{name}' is clean: {checked}.\n"),
            (0, repaired) => {
                format!("Volume '{name}' is clean now, {repaired} problems were repaired: {checked}.\n")
            }
            (wrong, 0) => format!("Volume '{name}' has {wrong} problems: {checked}.\n"),
            (wrong, repaired) => {
                format!("Volume '{name}' has {wrong} problems left, {repaired} were repaired: {checked}.\n")
            }
        });
        if self.unreferenced.objects > 0 {
            let Unreferenced { objects, bytes, .. } = self.unreferenced;
            text.push_str(&format!(
                "{objects} objects ({}) are unreferenced; limen gc --delete removes them.\n",
                show_size(bytes)
            ));
        }
        text
    }

    fn to_json(&self, volume: &Volume, paths: &HashMap<Ino, Vec<u8>>) -> Value {
        let problem = |(problem, repaired): (&Problem, bool)| {
            let place = problem.place();
            let inode = match &place {
                Place::Inode(ino) => Some(ino.0),
                _ => None,
            };
            json!({
                "code": problem.code(),
                "path": match &place {
                    Place::Inode(ino) if !paths.contains_key(ino) => None,
                    place => place_text(place, paths),
                },
                "inode": inode,
                "message": problem.to_string(),
                "repaired": repaired,
            })
        };
        let damage = |damage: &Damage| {
            json!({
                "path": paths.get(&damage.ino).map(|path| String::from_utf8_lossy(path)),
                "inode": damage.ino.0,
                "from": damage.from,
                "to": damage.to,
                "message": damage.error,
            })
        };
        json!({
            "volume": volume.name,
            "clean": self.wrong() == 0,
            "checked": {
                "inodes": self.checked.inodes,
                "names": self.checked.entries,
                "rows": self.checked.rows,
                "bytes": self.read_bytes,
            },
            "problems": self.problems().map(problem).collect::<Vec<_>>(),
            "damage": self.damage.iter().map(damage).collect::<Vec<_>>(),
            "not_named": self.unnamed + self.unnamed_damage,
            "unreferenced": { "objects": self.unreferenced.objects, "bytes": self.unreferenced.bytes },
        })
    }
}

fn path_text(ino: Ino, paths: &HashMap<Ino, Vec<u8>>) -> String {
    paths.get(&ino).map_or_else(|| format!("inode {ino}"), |path| String::from_utf8_lossy(path).into_owned())
}

fn place_text(place: &Place, paths: &HashMap<Ino, Vec<u8>>) -> Option<String> {
    match place {
        Place::Volume => None,
        Place::Inode(ino) => Some(path_text(*ino, paths)),
        Place::Entry(dir, name) => {
            let dir = path_text(*dir, paths);
            Some(format!("{}/{}", dir.trim_end_matches('/'), String::from_utf8_lossy(name.as_bytes())))
        }
    }
}
