//! `limen fsck`: checks every record of a volume, with `--data` also every byte of its files, and repairs
//! what it can.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;

use check::{CheckScope, Checked, Location, Problem};
use chunk::{BlockStore, StoreOptions};
use clap::ValueHint;
use client::Meta;
use command::error::{CliError, ErrorAt};
use command::output::{self, ProgressBar};
use command::units::show_size;
use engine_sqlite::{LockError, MountLock};
use meta::{Counter, Engine, EngineError, Maintenance, Volume};
use serde_json::{Value, json};
use types::{Ino, Name, counted, plural};

use crate::gc::Unreferenced;
use crate::maintenance::{self, Exclusive, Tool};
use crate::marker;
use crate::records::{self, next_slice, usage, used_bytes};
use crate::scrub::{self, Damage};
use crate::sessions::living;
use crate::store::{KeyArgs, open_store};
use crate::target::{show_name, volume_url};
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
  limen fsck --path /projects/a sqlite:///var/lib/limen/home.db
      checks what is below one directory, in a time that depends mostly on its size
  limen fsck --repair sqlite:///var/lib/limen/home.db
      the volume must not be mounted; moves inodes that lost their names to /lost+found

A check with --path reports what the records below the path prove. It does not find inodes that lost their names, wrong usage
and quotas, unreferenced objects, and a link count or a share count of a block that is too high: the other names or rows may
be elsewhere. The output says how many files and slices that may concern.

If the volume is mounted, or is mounted during the check, the records are checked up to four times, and only a problem that
every check finds is reported, because a change in progress can look like damage to one check. The usage counters are not
compared then.")]
pub(crate) struct FsckArgs {
    /// Where the volume's metadata is, or a path on a mount of the volume; the whole volume is checked
    #[arg(value_name = "META-URL|PATH")]
    url: String,
    /// Check only this file, or this directory and everything below. The path begins at the volume's root,
    /// even if a subdirectory of the volume is mounted; symbolic links are not followed
    #[arg(long, value_name = "PATH", conflicts_with_all = ["repair", "end_maintenance"], value_hint = ValueHint::Other)]
    path: Option<OsString>,
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

const CANNOT_READ: &str = "the records cannot be read";

const REPAIRED: u8 = 1;
const WRONG: u8 = 4;
const NOT_CHECKED: u8 = 8;

/// At most this many problems, and this many damaged ranges of files, are kept; further ones are only
/// counted.
const MAX_KEPT: usize = 10_000;

/// On a mounted volume, this many further checks must find a problem again.
const CONFIRMED_BY: usize = 3;

/// A repair can reveal problems that a repaired problem hid, so the check runs again, at most this often.
const MAX_ROUNDS: usize = 100;

pub(crate) fn run(args: &FsckArgs) -> ExitCode {
    match check_volume(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::note(&error);
            ExitCode::from(if error.exit_code() == 2 { 2 } else { NOT_CHECKED })
        }
    }
}

/// The result of all checks.
#[derive(Debug, Default)]
struct Findings {
    checked: Checked,
    repaired: Vec<Problem>,
    left: Vec<Problem>,
    /// The number of problems beyond [`MAX_KEPT`], and of those that the check has only counted.
    unnamed: u64,
    damage: Vec<Damage>,
    /// The number of damaged ranges beyond [`MAX_KEPT`].
    unnamed_damage: u64,
    read_bytes: u64,
    unreferenced: Unreferenced,
}

fn check_volume(args: &FsckArgs) -> Result<u8, CliError> {
    let url = volume_url(&args.url)?;
    let (database, volume) = url.open_volume()?;
    let engine = database.engine();
    if args.end_maintenance {
        return end_maintenance(&url, engine);
    }
    let scope = args.scope(&*engine, &url)?;
    let access = VolumeAccess::take(args, &url, &database)?;
    // The commits of this engine fail if another process has ended the maintenance.
    let engine = if let VolumeAccess::Alone { exclusive } = &access { exclusive.engine() } else { engine };
    if let VolumeAccess::BesideMounts = access {
        output::note("the volume is mounted: only a problem that each of several checks finds is reported");
    }
    let (repairer, findings, bar) = (None, Findings::default(), output::progress("records checked"));
    let mut fsck = Fsck { args, scope, url: &url, volume: &volume, access, engine, repairer, findings, bar };
    let checked = fsck.run();
    fsck.bar.finish_and_clear();
    checked?;
    let Fsck { access: _access, scope, engine, findings, .. } = fsck;
    if !findings.repaired.is_empty() {
        engine.sync().what("the repairs may not survive a loss of power").at(&url)?;
    }
    let paths = findings.paths(&*engine, &scope).what(CANNOT_READ).at(&url)?;
    output::result(
        args.json,
        || findings.to_json(args, &volume, &paths),
        || findings.to_text(args, &volume, &paths),
    )?;
    Ok(findings.code())
}

impl FsckArgs {
    fn scope(&self, engine: &dyn Engine, url: &MetaUrl) -> Result<CheckScope, CliError> {
        let Some(path) = &self.path else { return Ok(CheckScope::Volume) };
        let show = || show_name(path.as_bytes());
        let names = path.as_bytes().split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let names: Result<Vec<Name>, _> = names.map(Name::new).collect();
        let names = names.map_err(|error| CliError::usage(error).at(show()))?;
        CheckScope::find(engine, &names).what(CANNOT_READ).at(url)?.ok_or_else(|| {
            CliError::new("there is no such path in the volume")
                .at(show())
                .advise("a path begins at the volume's root, and symbolic links in it are not followed")
        })
    }
}

/// How other changes of the volume are excluded during the check.
#[derive(Debug)]
enum VolumeAccess {
    /// No other process can change the volume: for a repair.
    Alone {
        exclusive: Box<Exclusive>,
    },
    /// The volume cannot be mounted while this lock is held.
    Locked {
        _lock: MountLock,
    },
    /// The volume was not mounted when the check began. A database server has no such lock, so the volume may
    /// have been mounted since then.
    Unmounted {
        /// The number of the next session at that time. Each client that changes the volume takes a session
        /// number first.
        next_session: u64,
    },
    BesideMounts,
}

impl VolumeAccess {
    fn take(args: &FsckArgs, url: &MetaUrl, database: &Database) -> Result<VolumeAccess, CliError> {
        if args.repair {
            let tool = Tool { name: "limen fsck --repair", force: Some(args.force) };
            let exclusive = Exclusive::begin(url, database, tool)?;
            return Ok(VolumeAccess::Alone { exclusive: Box::new(exclusive) });
        }
        let lock = match database.lock(false) {
            Ok(lock) => lock,
            Err(LockError::AlreadyMounted { .. }) => return Ok(VolumeAccess::BesideMounts),
            // A user that can only read the database file can still check the volume.
            Err(LockError::Io { .. }) => None,
        };
        match lock {
            Some(lock) => Ok(VolumeAccess::Locked { _lock: lock }),
            None => VolumeAccess::unlocked(&*database.engine()).at(url),
        }
    }

    fn unlocked(engine: &dyn Engine) -> Result<VolumeAccess, EngineError> {
        let next_session = next_session(engine)?;
        let is_mounted = !living(engine)?.is_empty();
        Ok(if is_mounted { VolumeAccess::BesideMounts } else { VolumeAccess::Unmounted { next_session } })
    }

    /// Whether a mount may have changed the volume since the check began.
    fn is_live(&mut self, engine: &dyn Engine) -> Result<bool, EngineError> {
        if let VolumeAccess::Unmounted { next_session: before } = *self
            && (next_session(engine)? != before || !living(engine)?.is_empty())
        {
            output::note(
                "the volume was in use during the check: only a problem that each of several checks finds is reported",
            );
            *self = VolumeAccess::BesideMounts;
        }
        Ok(matches!(self, VolumeAccess::BesideMounts))
    }
}

fn next_session(engine: &dyn Engine) -> Result<u64, EngineError> {
    records::next(engine, Counter::Session)
}

fn end_maintenance(url: &MetaUrl, engine: Arc<dyn Engine>) -> Result<u8, CliError> {
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

/// A check in progress.
struct Fsck<'a> {
    args: &'a FsckArgs,
    scope: CheckScope,
    url: &'a MetaUrl,
    volume: &'a Volume,
    access: VolumeAccess,
    engine: Arc<dyn Engine>,
    /// The client that repairs. The first repair opens it.
    repairer: Option<Meta>,
    findings: Findings,
    bar: ProgressBar,
}

impl Fsck<'_> {
    fn run(&mut self) -> Result<(), CliError> {
        self.check_records()?;
        if self.is_live()? {
            self.confirm_records()?;
        }
        if self.args.data {
            self.check_data()?;
            if !self.findings.damage.is_empty() && self.is_live()? {
                self.confirm_data()?;
            }
        }
        Ok(())
    }

    fn is_live(&mut self) -> Result<bool, CliError> {
        self.access.is_live(&*self.engine).at(self.url)
    }

    /// Checks the records, and repairs them if that is asked for.
    fn check_records(&mut self) -> Result<(), CliError> {
        for round in 0..=MAX_ROUNDS {
            let (mut problems, mut unnamed) = (Vec::new(), 0);
            self.findings.checked = self.scan(&mut |problem| match problems.len() < MAX_KEPT {
                true => problems.push(problem),
                false => unnamed += 1,
            })?;
            unnamed += self.findings.checked.unlisted;
            (self.findings.left, self.findings.unnamed) = (problems, unnamed);
            if !self.args.repair || round == MAX_ROUNDS || self.repair()? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Checks the records of a mounted volume several more times, and drops the problems that are not found
    /// each time: those were changes in progress.
    fn confirm_records(&mut self) -> Result<(), CliError> {
        let is_moving = |problem: &Problem| matches!(problem, Problem::Usage { .. } | Problem::Quota { .. });
        self.findings.left.retain(|problem| !is_moving(problem));
        for _ in 0..CONFIRMED_BY {
            if self.findings.left.is_empty() && self.findings.unnamed == 0 {
                break;
            }
            // Only problems that were found before are kept, so this list cannot exceed the bound. Problems
            // beyond the bound were never listed, so they can only be counted again.
            let (mut again, mut others) = (Vec::new(), 0);
            let known = &self.findings.left;
            let checked = self.scan(&mut |problem| match known.contains(&problem) {
                true => again.push(problem),
                false => others += u64::from(!is_moving(&problem)),
            })?;
            others += checked.unlisted;
            (self.findings.left, self.findings.unnamed) = (again, others.min(self.findings.unnamed));
        }
        Ok(())
    }

    fn scan(&self, report: &mut dyn FnMut(Problem)) -> Result<Checked, CliError> {
        let mut progress = |what: &'static str, count| {
            self.bar.set_message(what);
            self.bar.set_position(count);
        };
        check::check(&*self.engine, &self.scope, report, &mut progress).what(CANNOT_READ).at(self.url)
    }

    /// Repairs what can be repaired. Returns the number of repaired problems.
    fn repair(&mut self) -> Result<usize, CliError> {
        if self.findings.left.is_empty() {
            return Ok(0);
        }
        let meta = match &mut self.repairer {
            Some(meta) => meta,
            none => {
                let meta = self.url.client(Arc::clone(&self.engine), 10_000)?;
                meta.set_exclusive(true);
                none.insert(meta)
            }
        };
        // Counters are repaired first: other repairs create inodes in /lost+found, and need correct numbers
        // for them.
        self.findings.left.sort_by_key(|problem| !matches!(problem, Problem::Counter { .. }));
        let (mut left, mut count) = (Vec::new(), 0);
        for problem in self.findings.left.drain(..) {
            let done = check::repair(meta, &problem).what("cannot repair").at(self.url)?;
            count += usize::from(done);
            match done {
                true if self.findings.repaired.len() < MAX_KEPT => self.findings.repaired.push(problem),
                true => {}
                false => left.push(problem),
            }
        }
        self.findings.left = left;
        Ok(count)
    }

    fn store(&self) -> Result<Arc<BlockStore>, CliError> {
        // The cache keeps the block that is being read, because its parts are read one after the other.
        let options =
            StoreOptions { cache_bytes: 2 * u64::from(types::BLOCK_BYTES), ..StoreOptions::default() };
        open_store(self.volume, &self.args.keys, options)
    }

    fn check_data(&mut self) -> Result<(), CliError> {
        let store = self.store()?;
        let Fsck { scope, volume, engine, findings, bar, .. } = self;
        marker::verify(volume, &store)?;
        let read = match scope {
            // The data of files with holes is less than their size, so the total is an upper bound.
            CheckScope::Volume => {
                output::progress_of("MiB read", used_bytes(&usage(&**engine).at(self.url)?) >> 20)
            }
            CheckScope::Below(_) => output::progress("MiB read"),
        };
        let mut report = |damage: Damage| match findings.damage.len() < MAX_KEPT {
            true => findings.damage.push(damage),
            false => findings.unnamed_damage += 1,
        };
        let mut progress = |bytes: u64| read.set_position(bytes >> 20);
        findings.read_bytes = scrub::read_all(&**engine, scope, volume, &store, &mut report, &mut progress)?;
        read.finish_and_clear();
        if let CheckScope::Below(_) = scope {
            return Ok(());
        }
        bar.set_message("objects");
        let mut count = 0;
        findings.unreferenced = Unreferenced::find(&**engine, volume, &store, &mut |_| {
            count += 1;
            bar.set_position(count);
            Ok(())
        })?;
        let stored = next_slice(&**engine).at(self.url)?;
        let last = findings.unreferenced.last_slice;
        if stored <= last {
            findings.left.push(Problem::Counter { counter: Counter::Slice, stored, last });
            if self.args.repair {
                self.repair()?;
            }
        }
        Ok(())
    }

    /// Reads the data again, and drops damage that is not found a second time: its file was changed or
    /// removed while it was read.
    fn confirm_data(&mut self) -> Result<(), CliError> {
        // As in `confirm_records`, damage beyond the bound can only be counted again.
        let (mut again, mut others) = (Vec::new(), 0);
        let known = &self.findings.damage;
        let mut report = |damage: Damage| match known.contains(&damage) {
            true => again.push(damage),
            false => others += 1,
        };
        let store = self.store()?;
        scrub::read_all(&*self.engine, &self.scope, self.volume, &store, &mut report, &mut |_| {})?;
        let unnamed = others.min(self.findings.unnamed_damage);
        (self.findings.damage, self.findings.unnamed_damage) = (again, unnamed);
        Ok(())
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

    fn paths(&self, engine: &dyn Engine, scope: &CheckScope) -> Result<HashMap<Ino, Vec<u8>>, EngineError> {
        let mut inos: BTreeSet<Ino> = self.damage.iter().map(|damage| damage.ino).collect();
        inos.extend(self.problems().filter_map(|(problem, _)| match problem.location() {
            Location::Inode(ino) | Location::Dirent(ino, _) => Some(ino),
            Location::Volume => None,
        }));
        check::find_paths(engine, scope, &inos)
    }

    fn to_text(&self, args: &FsckArgs, volume: &Volume, paths: &HashMap<Ino, Vec<u8>>) -> String {
        let mut text = String::new();
        for (problem, repaired) in self.problems() {
            let place = location_text(&problem.location(), paths).map_or(String::new(), |place| place + ": ");
            let repaired = if repaired { " (repaired)" } else { "" };
            text.push_str(&format!("{place}{problem}{repaired}\n"));
        }
        for Damage { ino, from, to, error } in &self.damage {
            let place = path_text(*ino, paths);
            text.push_str(&format!("{place}: bytes {from} to {} cannot be read: {error}\n", to - 1));
        }
        if self.unnamed + self.unnamed_damage > 0 {
            text.push_str(&format!(
                "{} not listed\n",
                counted(self.unnamed + self.unnamed_damage, "more is", "more are")
            ));
        }
        let Checked { inodes, entries, rows, linked_elsewhere, shared_elsewhere, .. } = self.checked;
        let mut checked = format!(
            "{}, {}, {}",
            counted(inodes, "inode", "inodes"),
            counted(entries, "name", "names"),
            counted(rows, "row", "rows")
        );
        if args.data {
            checked.push_str(&format!(", {} of data", show_size(self.read_bytes)));
        }
        let name = &volume.name;
        let what = match &args.path {
            Some(path) => format!("'{}' of volume '{name}'", show_name(path.as_bytes())),
            None => format!("Volume '{name}'"),
        };
        text.push_str(&match (self.wrong(), self.repaired.len()) {
            (0, 0) => format!("{what} is clean: {checked}.\n"),
            (0, repaired) => {
                let repaired = counted(repaired, "problem was", "problems were");
                format!("{what} is clean now, {repaired} repaired: {checked}.\n")
            }
            (wrong, 0) => format!("{what} has {}: {checked}.\n", counted(wrong, "problem", "problems")),
            (wrong, repaired) => {
                let wrong = counted(wrong, "problem", "problems");
                let repaired = counted(repaired, "was", "were");
                format!("{what} has {wrong} left, {repaired} repaired: {checked}.\n")
            }
        });
        if linked_elsewhere > 0 {
            text.push_str(&format!(
                "{} more links than names there; whether the others are elsewhere was not checked.\n",
                counted(linked_elsewhere, "file has", "files have")
            ));
        }
        if shared_elsewhere > 0 {
            text.push_str(&format!(
                "{} shared with more rows than those there; whether the others are elsewhere was not checked.\n",
                counted(shared_elsewhere, "slice is", "slices are")
            ));
        }
        if self.unreferenced.objects > 0 {
            let Unreferenced { objects, bytes, .. } = self.unreferenced;
            text.push_str(&format!(
                "{} ({}) {} unreferenced; limen gc --delete removes {}.\n",
                counted(objects, "object", "objects"),
                show_size(bytes),
                plural(objects, "is", "are"),
                plural(objects, "it", "them")
            ));
        }
        text
    }

    fn to_json(&self, args: &FsckArgs, volume: &Volume, paths: &HashMap<Ino, Vec<u8>>) -> Value {
        let problem = |(problem, repaired): (&Problem, bool)| {
            let location = problem.location();
            let inode = match &location {
                Location::Inode(ino) => Some(ino.0),
                _ => None,
            };
            json!({
                "code": problem.code(),
                "path": match &location {
                    Location::Inode(ino) if !paths.contains_key(ino) => None,
                    location => location_text(location, paths),
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
            "path": args.path.as_ref().map(|path| path.to_string_lossy()),
            "clean": self.wrong() == 0,
            "checked": {
                "inodes": self.checked.inodes,
                "names": self.checked.entries,
                "rows": self.checked.rows,
                "bytes": self.read_bytes,
            },
            "problems": self.problems().map(problem).collect::<Vec<_>>(),
            "damage": self.damage.iter().map(damage).collect::<Vec<_>>(),
            "elsewhere": {
                "linked_files": self.checked.linked_elsewhere,
                "shared_slices": self.checked.shared_elsewhere,
            },
            "not_named": self.unnamed + self.unnamed_damage,
            // A check below a path does not search for unreferenced objects.
            "unreferenced": args.path.is_none().then(|| {
                json!({ "objects": self.unreferenced.objects, "bytes": self.unreferenced.bytes })
            }),
        })
    }
}

fn path_text(ino: Ino, paths: &HashMap<Ino, Vec<u8>>) -> String {
    paths.get(&ino).map_or_else(|| format!("inode {ino}"), |path| String::from_utf8_lossy(path).into_owned())
}

fn location_text(location: &Location, paths: &HashMap<Ino, Vec<u8>>) -> Option<String> {
    match location {
        Location::Volume => None,
        Location::Inode(ino) => Some(path_text(*ino, paths)),
        Location::Dirent(dir, name) => {
            let dir = path_text(*dir, paths);
            Some(format!("{}/{}", dir.trim_end_matches('/'), String::from_utf8_lossy(name.as_bytes())))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use meta::{Effect, Inode, MemEngine, RecordKey, Snapshot, Txn};
    use ops::{Authority, Make, MakeKind};
    use types::{
        BLOCK_BYTES, CHUNK_BYTES, ChunkIndex, FileType, Ino, Mode, Name, OpId, Slice, SliceId, SliceSource,
        Time,
    };

    use super::*;

    type Change = fn(Arc<dyn Engine>);

    /// A database that a client changes before the usage is read for the first time.
    #[derive(Debug)]
    struct Changing {
        inner: Arc<MemEngine>,
        change: Mutex<Option<Change>>,
    }

    impl Engine for Changing {
        meta::pass_on! { (.inner) commit scan sync wipe }

        fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
            if keys == [RecordKey::Usage]
                && let Some(change) = self.change.lock().unwrap().take()
            {
                change(self.inner.clone());
            }
            self.inner.read(keys)
        }
    }

    fn make_file(engine: Arc<dyn Engine>) {
        let meta = Meta::open(engine, 10).unwrap();
        let make = Make {
            parent: Ino::ROOT,
            name: Name::new(b"f").unwrap(),
            ino: Ino(meta.lease(Counter::Ino, 1).unwrap()),
            kind: MakeKind::Regular,
            mode: Mode::new(0o644),
            umask: 0,
            uid: 0,
            gid: 0,
        };
        meta.run(&make, &Authority::Kernel { revisions: None }).unwrap();
    }

    fn with_fsck<T>(volume: &Volume, engine: Arc<dyn Engine>, test: impl FnOnce(&mut Fsck<'_>) -> T) -> T {
        let url = MetaUrl::Memory("v".into());
        let args = FsckArgs {
            url: url.to_string(),
            path: None,
            repair: false,
            force: false,
            end_maintenance: false,
            data: false,
            json: false,
            keys: KeyArgs::default(),
        };
        let access = VolumeAccess::unlocked(&*engine).unwrap();
        let (repairer, findings, bar) = (None, Findings::default(), ProgressBar::hidden());
        let scope = CheckScope::Volume;
        test(&mut Fsck { args: &args, scope, url: &url, volume, access, engine, repairer, findings, bar })
    }

    fn problems_after(change: fn(Arc<dyn Engine>)) -> usize {
        let inner = Arc::new(MemEngine::default());
        let volume = Volume::in_memory("v");
        volume.format(&*inner).unwrap();
        let engine = Arc::new(Changing { inner, change: Mutex::new(Some(change)) });
        with_fsck(&volume, engine, |fsck| {
            fsck.run().unwrap();
            fsck.findings.left.len()
        })
    }

    #[test]
    fn change_by_a_client_that_begins_during_the_check_is_no_problem() {
        assert_eq!(problems_after(make_file), 0);
        let damage = |engine: Arc<dyn Engine>| {
            let effects = vec![Effect::AddUsage { inodes: 1, blocks: 0 }];
            engine.commit(&[Txn { op_id: OpId(1), guards: Vec::new(), effects }]).unwrap();
        };
        assert_eq!(problems_after(damage), 1);
    }

    #[test]
    fn damage_that_is_not_listed_is_confirmed() {
        let volume = Volume::in_memory("v");
        let engine = Arc::new(MemEngine::default());
        volume.format(&*engine).unwrap();
        // A new store in memory has none of the blocks of this file.
        let (ino, blocks) = (Ino(5), 3);
        let inode = Inode::new(ino, FileType::Regular, Mode::new(0o600), Time::now());
        let mut effects = vec![Effect::PutInode(Inode { size: CHUNK_BYTES, ..inode })];
        effects.extend((0..blocks).map(|at| {
            let source = SliceSource::Blocks { id: SliceId(1 + u64::from(at)), offset: 0, size: BLOCK_BYTES };
            let slice = Slice { pos: at * BLOCK_BYTES, len: BLOCK_BYTES, source };
            Effect::AppendSlice { ino, chunk: ChunkIndex(0), slice }
        }));
        engine.commit(&[Txn { op_id: OpId(7), guards: Vec::new(), effects }]).unwrap();
        let confirmed = |listed: usize, unnamed: u64| {
            with_fsck(&volume, Arc::clone(&engine) as Arc<dyn Engine>, |fsck| {
                fsck.check_data().unwrap();
                assert_eq!(fsck.findings.damage.len(), blocks as usize);
                fsck.findings.damage.truncate(listed);
                fsck.findings.unnamed_damage = unnamed;
                fsck.confirm_data().unwrap();
                (fsck.findings.damage.len(), fsck.findings.unnamed_damage)
            })
        };
        assert_eq!(confirmed(3, 0), (3, 0));
        assert_eq!(confirmed(1, 2), (1, 2));
        assert_eq!(confirmed(0, 3), (0, 3));
        // Damage that only the second reading finds is a change in progress.
        assert_eq!(confirmed(1, 1), (1, 1));
        assert_eq!(confirmed(1, 0), (1, 0));
    }
}
