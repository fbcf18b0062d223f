//! `limen fsck`: checks every record of a volume, with `--data` every byte of its files, and puts right what it can.

use std::collections::{BTreeSet, HashMap};
use std::process::ExitCode;
use std::sync::Arc;

use chunk::StoreOptions;
use engine_sqlite::{LockError, MountLock};
use indicatif::ProgressBar;
use meta::check::{self, Checked, Place, Problem};
use meta::{Counter, Engine, EngineError, Maintenance, Meta, Record, Volume, VolumeError, Want};
use serde_json::{Value, json};
use types::Ino;

use crate::args::KeyArgs;
use crate::fault::Fault;
use crate::gc::Unreferenced;
use crate::maintenance::{self, Exclusive, Tool};
use crate::marker;
use crate::output;
use crate::scrub::{self, Damage};
use crate::store::open_store;
use crate::units::show_size;
use crate::url::{Database, MetaUrl};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes, as fsck(8) has them: 0 nothing is wrong, 1 all that was wrong is repaired, 4 something is wrong and stays so,
8 the volume could not be checked; 2 the command line is wrong.

Files that were written but not yet named in the metadata when a mount was killed leave objects that nothing refers to.
That is nothing wrong; limen gc removes them.

Examples:
  limen fsck sqlite:///var/lib/limen/home.db
  limen fsck --data sqlite:///var/lib/limen/home.db
      reads all files and names those that are damaged, and where
  limen fsck --repair sqlite:///var/lib/limen/home.db
      while it is not mounted; inodes that lost their names go to /lost+found

While the volume is mounted, the records are checked up to four times, and only what each check finds counts: what programs
change meanwhile looks like damage to one check, and not to the next. The usage is not compared then.")]
pub(crate) struct FsckArgs {
    /// Where the volume's metadata is
    #[arg(value_name = "META-URL")]
    url: String,
    /// Put right what can be without losing anything; the volume must not be mounted, and cannot be meanwhile
    #[arg(long)]
    repair: bool,
    /// Remove sessions too that are not renewed for 90 seconds, because their machines are gone: this waits so long. A session
    /// that is renewed still keeps the volume
    #[arg(long, requires = "repair")]
    force: bool,
    /// Let mounts in again after a repair or removal that was killed on another machine
    #[arg(long, conflicts_with_all = ["repair", "data"])]
    end_maintenance: bool,
    /// Read every byte of every file too, and look for objects that nothing refers to
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

/// How many problems are held at a time, and how many ranges of files; more are counted.
const MOST: usize = 10_000;

/// How many further checks have to find a problem on a mounted volume.
const CONFIRMED_BY: usize = 3;

/// Each repair may bring out what was hidden by what it put right; so often it is looked again at most.
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

/// All there is to tell.
#[derive(Debug, Default)]
struct Findings {
    checked: Checked,
    repaired: Vec<Problem>,
    left: Vec<Problem>,
    /// Problems beyond those.
    unnamed: u64,
    damage: Vec<Damage>,
    /// Ranges of files beyond those.
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
    // A repair that has lost the volume changes nothing any more.
    let engine = if let Access::Alone { exclusive } = &access { exclusive.engine() } else { engine };
    if is_live {
        output::note("the volume is mounted: only a problem that each of several checks finds is told");
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

/// What keeps others from changing the volume meanwhile.
#[derive(Debug)]
enum Access {
    /// For a repair.
    Alone {
        exclusive: Box<Exclusive>,
    },
    /// Nobody mounts it while this lock is held; on a database server, nobody did at the beginning.
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
            // A user that may only read the volume can check it all the same.
            Err(LockError::Io { .. }) => None,
        };
        let sessions = maintenance::living(&*database.engine());
        let is_mounted = lock.is_none() && !sessions.map_err(|error| Fault::new(error).at(url))?.is_empty();
        Ok(if is_mounted { Access::BesideMounts } else { Access::Unmounted { _lock: lock } })
    }
}

fn end_maintenance(url: &MetaUrl, engine: Arc<dyn Engine>) -> Result<u8, Fault> {
    let text = match maintenance::end(url, engine)? {
        Some(Maintenance { tool, host, pid, .. }) => {
            format!(
                "The maintenance of '{tool}', process {pid} on {host}, is ended: the volume can be mounted.\n"
            )
        }
        None => "No tool works on the volume.\n".to_owned(),
    };
    output::print(&text).map(|()| 0)
}

/// Checks the records again, and drops the problems that are not found each time: those were changes under way.
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
        // Held apart from those of before, which may be more than are held: only what was found before counts.
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

/// Reads the data again, and drops the damage that is not found a second time: a file was removed while it was read.
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
        let mut report = |problem: Problem| match problems.len() < MOST {
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

/// Puts right what can be; says how much that was.
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
    // Numbers first: what has none to take cannot be put into a new directory.
    findings.left.sort_by_key(|problem| !matches!(problem, Problem::Counter { .. }));
    let (mut left, mut count) = (Vec::new(), 0);
    for problem in findings.left.drain(..) {
        let done = check::repair(meta, &problem)
            .map_err(|error| Fault::new(format!("cannot repair: {error}")).at(url))?;
        count += usize::from(done);
        match done {
            true if findings.repaired.len() < MOST => findings.repaired.push(problem),
            true => {}
            false => left.push(problem),
        }
    }
    findings.left = left;
    Ok(count)
}

fn open_meta(engine: &Arc<dyn Engine>) -> Result<Meta, VolumeError> {
    let meta = Meta::open(Arc::clone(engine), 10_000)?;
    meta.set_alone(true);
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
    let mut report = |damage: Damage| match findings.damage.len() < MOST {
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

/// The next number of a slice to be given out.
///
/// # Errors
/// Those of the database.
pub(crate) fn next_slice(engine: &dyn Engine) -> Result<u64, EngineError> {
    match engine.read(&[Want::Counter(Counter::Slice)])?.records.first() {
        Some(Record::Counter(_, value)) => Ok(*value),
        _ => Err(EngineError::permanent("the engine does not say which slice is next")),
    }
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
            text.push_str(&format!("{} more are not named here\n", self.unnamed + self.unnamed_damage));
        }
        let Checked { inodes, entries, rows } = self.checked;
        let mut looked = format!("{inodes} inodes, {entries} names, {rows} rows");
        if args.data {
            looked.push_str(&format!(", {} of data", show_size(self.read_bytes)));
        }
        let name = &volume.name;
        text.push_str(&match (self.wrong(), self.repaired.len()) {
            (0, 0) => format!("Volume '{name}' is clean: {looked}.\n"),
            (0, repaired) => {
                format!("Volume '{name}' is clean now, {repaired} problems are repaired: {looked}.\n")
            }
            (wrong, 0) => format!("Volume '{name}' has {wrong} problems: {looked}.\n"),
            (wrong, repaired) => {
                format!("Volume '{name}' has {wrong} problems left, {repaired} are repaired: {looked}.\n")
            }
        });
        if self.unreferenced.objects > 0 {
            let Unreferenced { objects, bytes, .. } = self.unreferenced;
            text.push_str(&format!(
                "Nothing refers to {objects} objects, {}; limen gc --delete removes them.\n",
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
