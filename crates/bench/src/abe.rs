//! `limen bench abe PATH`: the cost of access-based enumeration, and its dependence on the caller's number of
//! groups.
//!
//! The six trees are those of a report about large groups on ZFS and SMB (illumos 14735). In each tree, a
//! user can read a thousand directories with their files, or all directories and a thousand files in them.
//! The other entries are hidden if the mount has access-based enumeration. Listings with 4 and with 400
//! groups alternate. The group that grants access is the last group of both lists. Root creates the trees,
//! because only root can take another user's ids.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use acl::posix::{Entry, Perm, PosixAcl, Tag};
use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output::{self, Columns};
use command::statistics::Statistics;
use rustix::fs::{Gid, Uid, XattrFlags, setxattr};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};

use crate::figure::{figure, round};
use crate::load::parse_rounds;
use crate::ops::ACCESS_ACL;
use crate::scratch::Scratch;
use crate::series::Spread;

/// The user that lists, and its primary group. No real user or group is expected to have this id, or an id
/// from `FIRST_GROUP` on.
const USER: u32 = 712_345;
const FIRST_GROUP: u32 = 720_000;
const FEW_GROUPS: usize = 4;
const MANY_GROUPS: usize = 400;
/// The group that grants access. It is in both lists of groups, and has the highest id in them.
const LETS_IN: u32 = FIRST_GROUP + MANY_GROUPS as u32 - 1;
/// A group in neither list.
const SHUTS_OUT: u32 = FIRST_GROUP + 10_000;
const FILE_BYTES: usize = 25_000;
/// Threads that create a tree.
const MAKERS: usize = 4;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Six trees, one after the other: 1,000, 21,000 and 41,000 directories, each with one file of 25,000 bytes, of which a user
can read 1,000 directories; 200 and 500 directories with 200 such files each, of which the user can read the files of 5
directories; and 500 directories with 200 files each, of which the user can read two files in each directory (500-spread).
The user lists each tree with attributes, alternately as a member of 4 groups and of 400 groups. A mount without --abe, or
another file system, shows everything, for comparison.

The six trees together have 304,000 files with 7.6 GB; --scale makes them smaller. Only root can run this command.

Example:
  limen mount -d --abe sqlite:///srv/t.db /mnt && limen bench abe /mnt --scale 0.1")]
pub(crate) struct Options {
    /// A directory on the file system to measure
    #[arg(value_hint = ValueHint::DirPath)]
    path: PathBuf,
    /// Measure only these trees: 1000, 21000, 41000, 200, 500, 500-spread
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = CASES.map(|case| case.name))]
    cases: Vec<String>,
    /// Create only this fraction of the directories, more than 0 and at most 1
    #[arg(long, value_name = "PART", value_parser = parse_scale, default_value = "1")]
    scale: f64,
    /// Also list with a cold cache: drops the kernel's cached names and inodes of all file systems
    #[arg(long)]
    cold: bool,
    /// Number of rounds; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "7")]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok().filter(|scale: &f64| *scale > 0.0 && *scale <= 1.0);
    scale.ok_or_else(|| "write a number that is more than 0 and at most 1".to_owned())
}

/// One of the six trees.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    directories: usize,
    files: usize,
    open: Open,
}

/// The directories and files that the user can read.
#[derive(Clone, Copy, Debug)]
enum Open {
    /// This many directories, with their files.
    Directories(usize),
    /// All directories, and the files of this many directories.
    FilesOf(usize),
    /// All directories, and this many files in each.
    FilesInEach(usize),
}

const CASES: [Case; 6] = [
    Case { name: "1000", directories: 1_000, files: 1, open: Open::Directories(1_000) },
    Case { name: "21000", directories: 21_000, files: 1, open: Open::Directories(1_000) },
    Case { name: "41000", directories: 41_000, files: 1, open: Open::Directories(1_000) },
    Case { name: "200", directories: 200, files: 200, open: Open::FilesOf(5) },
    Case { name: "500", directories: 500, files: 200, open: Open::FilesOf(5) },
    Case { name: "500-spread", directories: 500, files: 200, open: Open::FilesInEach(2) },
];

impl Case {
    fn scaled(self, scale: f64) -> Self {
        let scaled = |count: usize| ((count as f64 * scale).round() as usize).max(1);
        let open = match self.open {
            Open::Directories(count) => Open::Directories(scaled(count)),
            Open::FilesOf(count) => Open::FilesOf(scaled(count)),
            each => each,
        };
        Case { directories: scaled(self.directories), open, ..self }
    }

    /// Whether the user can read the directory with this number.
    fn opens_directory(self, directory: usize) -> bool {
        match self.open {
            // They are spread over the whole listing, as in real trees.
            Open::Directories(count) => is_among(directory, self.directories, count),
            Open::FilesOf(_) | Open::FilesInEach(_) => true,
        }
    }

    fn opens_file(self, directory: usize, file: usize) -> bool {
        match self.open {
            Open::Directories(_) => true,
            Open::FilesOf(count) => is_among(directory, self.directories, count),
            Open::FilesInEach(count) => is_among(file, self.files, count),
        }
    }

    fn entries(self) -> usize {
        self.directories * (1 + self.files)
    }

    /// The number of entries in the directories that the user can list, readable or not.
    fn met(self) -> usize {
        match self.open {
            Open::Directories(count) => self.directories + count.min(self.directories) * self.files,
            Open::FilesOf(_) | Open::FilesInEach(_) => self.entries(),
        }
    }

    fn readable(self) -> usize {
        let of = |directory| {
            let files = (0..self.files).filter(|file| self.opens_file(directory, *file)).count();
            if self.opens_directory(directory) { 1 + files } else { 0 }
        };
        (0..self.directories).map(of).sum()
    }
}

/// Whether `number` is one of `count` numbers that are spread evenly over `all`.
fn is_among(number: usize, all: usize, count: usize) -> bool {
    (number + 1) * count / all > number * count / all
}

/// The result of one walk through a tree.
#[derive(Clone, Debug, Default)]
struct Walk {
    shown: usize,
    /// Directories that were shown but could not be listed.
    refused: usize,
    wall: Duration,
    mount: Option<Statistics>,
}

/// All walks of one kind.
#[derive(Debug, Default)]
struct Walks(Vec<Walk>);

impl Walks {
    fn millis(&self) -> Spread {
        Spread::of(self.0.iter().map(|walk| walk.wall.as_secs_f64() * 1e3))
    }

    fn to_json(&self) -> Value {
        let last = self.0.last().cloned().unwrap_or_default();
        let each = |of: fn(&Statistics) -> f64| {
            let all: Option<Vec<f64>> = self.0.iter().map(|walk| walk.mount.as_ref().map(of)).collect();
            all.map(|all| round(Spread::of(all).median))
        };
        json!({
            "ms": self.millis().to_json(),
            "shown": last.shown,
            "refused": last.refused,
            "mount": {
                "cpu_ms": each(|mount| mount.cpu.as_secs_f64() * 1e3),
                "fuse_requests": each(|mount| mount.all_requests() as f64),
                "engine_round_trips": each(|mount| mount.engine.round_trips() as f64),
            },
        })
    }
}

/// The measurements of a tree: with a cold and with a warm kernel cache, each with few and with many groups.
#[derive(Debug)]
struct Measured {
    case: Case,
    by_acl: bool,
    cold: [Walks; 2],
    warm: [Walks; 2],
}

impl Measured {
    /// By how many percent a walk with many groups takes longer.
    fn loss(walks: &[Walks; 2]) -> Spread {
        let [few, many] = walks;
        let pairs = few.0.iter().zip(&many.0);
        Spread::of(
            pairs.map(|(few, many)| {
                100.0 * (many.wall.as_secs_f64() / few.wall.as_secs_f64().max(1e-9) - 1.0)
            }),
        )
    }
}

/// Runs the benchmark and prints its results.
///
/// # Errors
/// This user is not root; the file system fails; the user interrupted the command.
pub(crate) fn run(args: &Options, interrupt: &Interrupt) -> Result<(), CliError> {
    if !rustix::process::geteuid().is_root() {
        return Err(CliError::new("this benchmark lists as another user, which only root can do")
            .advise("run it as root"));
    }
    let scratch = Scratch::make(&args.path)?;
    // Another user must be able to list the scratch directory.
    open_to_all(scratch.path(), Ok(()))?;
    let asked: Vec<Case> = CASES
        .iter()
        .filter(|case| args.cases.is_empty() || args.cases.iter().any(|name| name == case.name))
        .map(|case| case.scaled(args.scale))
        .collect();
    let bar = output::steps(asked.len() as u64);
    let mut results = Vec::new();
    for case in asked {
        bar.set_message(case.name);
        if !results.is_empty() {
            scratch.settle(interrupt)?;
        }
        let dir = scratch.path().join(case.name);
        open_to_all(&dir, fs::create_dir(&dir))?;
        let measured = make(&dir, case, interrupt)
            .and_then(|by_acl| measure(args, &scratch, &dir, case, by_acl, interrupt));
        scratch.remove(&dir)?;
        results.push(measured?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    output::result(args.json, || to_json(args, &results), || to_text(args, &results))
}

/// Lets every user list a created directory, whatever this process's umask is.
fn open_to_all(dir: &Path, made: io::Result<()>) -> Result<(), CliError> {
    let opened = made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o755)));
    opened.at(dir.display())
}

/// Creates the tree with several threads. Returns whether it has ACLs, because not every file system supports
/// them.
fn make(dir: &Path, case: Case, interrupt: &Interrupt) -> Result<bool, CliError> {
    let rights = Rights::of(dir).at(dir.display())?;
    let next = AtomicUsize::new(0);
    let content = vec![b'x'; FILE_BYTES];
    let work = || -> io::Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= case.directories || interrupt.is_set() {
                return Ok(());
            }
            make_directory(dir, case, number, &content, &rights)?;
        }
    };
    let outcome = thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS).map(|_| scope.spawn(work)).collect();
        // If a thread panics, the tree is incomplete, and the walks show that.
        makers.into_iter().filter_map(|maker| maker.join().ok()).collect::<io::Result<()>>()
    });
    outcome.what("cannot create the tree").at(dir.display())?;
    interrupt.check()?;
    Ok(matches!(rights, Rights::Acl { .. }))
}

fn make_directory(dir: &Path, case: Case, number: usize, content: &[u8], rights: &Rights) -> io::Result<()> {
    let path = dir.join(format!("directory-{number:05}"));
    fs::create_dir(&path)?;
    for file in 0..case.files {
        let path = path.join(format!("file-{file:03}"));
        File::create(&path)?.write_all(content)?;
        match case.open {
            Open::Directories(_) => fs::set_permissions(&path, Permissions::from_mode(0o644))?,
            _ => rights.give(&path, case.opens_file(number, file), 0o640)?,
        }
    }
    match case.open {
        Open::Directories(_) => rights.give(&path, case.opens_directory(number), 0o750),
        _ => fs::set_permissions(&path, Permissions::from_mode(0o755)),
    }
}

/// How the user gets access.
#[derive(Debug)]
enum Rights {
    /// By the `open` ACL, which names the user's group. The `shut` ACL names a group that the user is not in.
    Acl { open: Vec<u8>, shut: Vec<u8> },
    /// By the owning group, on a file system without ACLs.
    Group,
}

impl Rights {
    fn of(dir: &Path) -> io::Result<Self> {
        let (open, shut) = (acl_of(LETS_IN), acl_of(SHUTS_OUT));
        let (Some(open), Some(shut)) = (open, shut) else { return Ok(Rights::Group) };
        let probe = dir.join("probe");
        fs::create_dir(&probe)?;
        let set = setxattr(&probe, ACCESS_ACL, &open, XattrFlags::empty());
        fs::remove_dir(&probe)?;
        match set {
            Ok(()) => Ok(Rights::Acl { open, shut }),
            Err(Errno::OPNOTSUPP) => Ok(Rights::Group),
            Err(error) => Err(error.into()),
        }
    }

    fn give(&self, path: &Path, is_open: bool, mode: u32) -> io::Result<()> {
        match self {
            Rights::Acl { open, shut } => {
                let acl = if is_open { open } else { shut };
                Ok(setxattr(path, ACCESS_ACL, acl, XattrFlags::empty())?)
            }
            Rights::Group => {
                chown(path, None, Some(if is_open { LETS_IN } else { SHUTS_OUT }))?;
                fs::set_permissions(path, Permissions::from_mode(mode))
            }
        }
    }
}

fn acl_of(group: u32) -> Option<Vec<u8>> {
    let entries =
        [(Tag::UserObj, 7), (Tag::GroupObj, 0), (Tag::Group(group), 5), (Tag::Mask, 5), (Tag::Other, 0)];
    let entries = entries.map(|(tag, bits)| Entry { tag, perm: Perm::new(bits) });
    PosixAcl::from_entries(entries).ok().map(|acl| acl.to_xattr())
}

fn measure(
    args: &Options,
    scratch: &Scratch,
    dir: &Path,
    case: Case,
    by_acl: bool,
    interrupt: &Interrupt,
) -> Result<Measured, CliError> {
    let many: Vec<u32> = (FIRST_GROUP..=LETS_IN).collect();
    let few: Vec<u32> = many.iter().copied().take(FEW_GROUPS - 1).chain([LETS_IN]).collect();
    debug_assert_eq!((few.len(), many.len()), (FEW_GROUPS, MANY_GROUPS));
    let groups = [few, many];
    let mut result = Measured { case, by_acl, cold: Default::default(), warm: Default::default() };
    let walk = |groups: &[u32]| -> Result<Walk, CliError> {
        interrupt.check()?;
        let before = scratch.probe.ask()?;
        let mut walk = as_user(groups, || walk(dir)).map_err(|error| unseen(dir, &error))?;
        walk.mount = before.zip(scratch.probe.ask()?).map(|(before, after)| &after - &before);
        Ok(walk)
    };
    // This walk is not measured. After it, the mount has read the records from its database.
    walk(&groups[0])?;
    for round in 0..args.rounds {
        // The order alternates, because the first walk of a round finds colder processor caches.
        for turn in 0..2 {
            let which = (round + turn) % 2;
            if args.cold {
                forget_names()?;
                result.cold[which].0.push(walk(&groups[which])?);
            }
            result.warm[which].0.push(walk(&groups[which])?);
        }
    }
    Ok(result)
}

/// Lists the tree with attributes, like `ls -lR`.
fn walk(dir: &Path) -> io::Result<Walk> {
    let begun = Instant::now();
    let mut walk = Walk::default();
    let mut rest: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(dir) = rest.pop() {
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && walk.shown > 0 => {
                walk.refused += 1;
                continue;
            }
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            walk.shown += 1;
            if entry.metadata()?.is_dir() {
                rest.push(entry.path());
            }
        }
    }
    walk.wall = begun.elapsed();
    Ok(walk)
}

/// Runs `work` as the user, in a new thread, because ids that are set by system calls belong to the thread.
fn as_user<T: Send>(groups: &[u32], work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let body = || {
        let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        work()
    };
    let outcome = thread::scope(|scope| scope.spawn(body).join());
    outcome.unwrap_or_else(|_| Err(io::Error::other("the thread that lists has panicked")))
}

fn unseen(dir: &Path, error: &io::Error) -> CliError {
    let failed = CliError::new(format!("user {USER} cannot list the tree: {error}")).at(dir.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            failed.advise("let others search the directories above it (chmod o+x)")
        }
        _ => failed,
    }
}

/// Drops the kernel's cached names and inodes of all file systems.
fn forget_names() -> Result<(), CliError> {
    let path = "/proc/sys/vm/drop_caches";
    fs::write(path, "2").at(path)
}

/// The cost of a hidden entry in nanoseconds, if the tree `1000`, which has no hidden entries, was measured
/// too, and both trees show the same number of entries.
fn hidden_ns(result: &Measured, results: &[Measured]) -> Option<f64> {
    let plain = results.iter().find(|plain| plain.case.name == CASES[0].name)?;
    let few = |result: &Measured| Some((result.warm[0].0.last()?.shown, result.warm[0].millis().median));
    let ((shown, millis), (plain_shown, plain_millis)) = (few(result)?, few(plain)?);
    let hidden = result.case.met().checked_sub(shown).filter(|hidden| *hidden > 0)?;
    let is_like = matches!(result.case.open, Open::Directories(_)) && shown == plain_shown;
    is_like.then(|| (millis - plain_millis) * 1e6 / hidden as f64)
}

fn to_text(args: &Options, results: &[Measured]) -> String {
    let mut columns = Columns::new(
        1,
        &[
            "tree",
            "entries",
            "shown",
            "cold ms",
            "400 groups %",
            "warm ms",
            "400 groups %",
            "hidden ns",
            "requests",
            "trips",
        ],
    );
    for result in results {
        let last = result.warm[0].0.last().cloned().unwrap_or_default();
        let mut cells =
            vec![result.case.name.to_owned(), result.case.entries().to_string(), last.shown.to_string()];
        for walks in [&result.cold, &result.warm] {
            if walks[0].0.is_empty() {
                cells.extend([String::new(), String::new()]);
                continue;
            }
            cells.push(figure(walks[0].millis().median));
            cells.push(format!("{:+.1}", Measured::loss(walks).median));
        }
        cells.push(hidden_ns(result, results).map_or_else(String::new, |ns| format!("{ns:.0}")));
        if let Some(mount) = &last.mount {
            cells.extend([mount.all_requests().to_string(), mount.engine.round_trips().to_string()]);
        }
        columns.line(cells);
    }
    format!(
        "{}: listings with attributes by a user in {FEW_GROUPS} groups, and how much longer they take with {MANY_GROUPS}; \
         medians of {} alternating rounds.\nCold (with --cold): the kernel's cache of names is empty. Requests and round trips \
         are those of a warm listing.\n\n{}",
        args.path.display(),
        args.rounds,
        columns.render()
    )
}

fn to_json(args: &Options, results: &[Measured]) -> Value {
    let walks = |walks: &[Walks; 2]| -> Value {
        if walks[0].0.is_empty() {
            return Value::Null;
        }
        json!({
            "few_groups": walks[0].to_json(),
            "many_groups": walks[1].to_json(),
            "many_groups_loss_pct": Measured::loss(walks).to_json(),
        })
    };
    let case = |result: &Measured| {
        json!({
            "name": result.case.name,
            "directories": result.case.directories,
            "files_each": result.case.files,
            "entries": result.case.entries(),
            "readable": result.case.readable(),
            "rights": if result.by_acl { "acl" } else { "group" },
            "cold": walks(&result.cold),
            "warm": walks(&result.warm),
            "hidden_ns": hidden_ns(result, results).map(round),
        })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "path": args.path.to_string_lossy(),
        "through": "mount",
        "groups": [FEW_GROUPS, MANY_GROUPS],
        "scale": args.scale,
        "rounds": args.rounds,
        "cases": results.iter().map(case).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_can_read_a_thousand_entries_of_each_tree() {
        let readable =
            CASES.map(|case| case.readable() - if case.files == 1 { 1000 } else { case.directories });
        assert_eq!(readable, [1000; 6]);
        let entries = CASES.map(Case::entries);
        assert_eq!(entries, [2_000, 42_000, 82_000, 40_200, 100_500, 100_500]);
        assert_eq!(CASES.map(Case::met)[..3], [2_000, 22_000, 42_000]);
    }

    #[test]
    fn scale_makes_trees_smaller() {
        let small = CASES.map(|case| case.scaled(0.01));
        assert_eq!(small.map(|case| case.directories), [10, 210, 410, 2, 5, 5]);
        assert_eq!(small.map(Case::readable), [20, 20, 20, 202, 205, 15]);
        assert!((0..7).filter(|number| is_among(*number, 7, 3)).count() == 3);
    }
}
