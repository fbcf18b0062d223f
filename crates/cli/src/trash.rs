//! `limen trash`: lists a volume's trash, and deletes files from it before they expire. `limen restore` uses
//! this list.
//!
//! On a mount, the commands use the directory `/.trash` like any program, so the permissions of its
//! directories decide what a user sees and deletes. In a volume that is named by its URL they use the
//! database.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use acl::idmap::Ids;
use clap::{ArgGroup, Subcommand, ValueHint};
use client::{Emptying, Meta};
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output::{self, Lines};
use command::registry;
use command::remove::{Removed, remove};
use command::units::{files_and_directories, files_or_directories, parse_threads, show_size};
use meta::{Inode, Record, Scan, ScanInclude};
use ops::{TRASH_NAME, TrashHour, TrashName};
use serde_json::{Value, json};
use types::{Ino, Time};

use crate::maintenance;
use crate::open::lock_unmounted;
use crate::options::Options;
use crate::parse::parse_span;
use crate::status::rfc3339;
use crate::target::{path_to_json, require_limen, show_name};
use crate::url::{Database, MetaUrl};
use crate::users::Users;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A removed or overwritten file is kept in the trash for as many days as the volume says (limen format --trash-days, limen
config --trash-days). Then a mount deletes it. Until then, limen restore puts it back. Files in the trash count in the
usage of the volume and in the quotas of their owners. If the volume is nearly full, the oldest files are deleted earlier.

The trash is the directory .trash in the root of the volume. Listings of the root do not show it. In it, users see
only their own removed files, and root sees all.")]
pub(crate) struct TrashArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List what is in the trash
    Ls(ListArgs),
    /// Delete what is in the trash
    Purge(PurgeArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A line ends with the number of the directory from which the file was removed. limen restore takes the former path of a file;
limen restore --dry-run DIR lists the former paths of all that was removed below DIR.

Examples:
  limen trash ls /mnt
  limen trash ls --json sqlite:///var/lib/limen/home.db")]
struct ListArgs {
    /// A path on a mount, or where the volume's metadata is
    #[arg(value_name = "PATH|META-URL", value_hint = ValueHint::AnyPath)]
    volume: String,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true))]
#[command(after_help = "\
Users delete only their own removed files, and root deletes those of all users. META-URL must not be mounted if the volume
is on the embedded engine.

Examples:
  limen trash purge --older 2h /mnt
  limen trash purge --all redis://db.example.org/1")]
struct PurgeArgs {
    /// A path on a mount, or where the volume's metadata is
    #[arg(value_name = "PATH|META-URL", value_hint = ValueHint::AnyPath)]
    volume: String,
    /// Delete files that were removed longer ago than this, e.g. 30m, 2h or 1d; whole hours are deleted
    #[arg(long, value_name = "TIME", value_parser = parse_span, group = "what")]
    older: Option<Duration>,
    /// Delete everything
    #[arg(long, group = "what")]
    all: bool,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &TrashArgs) -> Result<(), CliError> {
    match &args.action {
        Action::Ls(args) => list(args),
        Action::Purge(args) => purge(args),
    }
}

/// A removed file or directory.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Its path in the trash. Used only on a mount.
    pub(crate) path: PathBuf,
    pub(crate) name: TrashName,
    pub(crate) is_dir: bool,
}

/// The directory of an hour on a mount.
#[derive(Debug)]
pub(crate) struct HourDir {
    pub(crate) hour: TrashHour,
    pub(crate) path: PathBuf,
}

/// The trash of the mount on which a path is, or would be if it existed.
///
/// # Errors
/// The mount shows no trash.
pub(crate) fn trash_of(path: &Path) -> Result<PathBuf, CliError> {
    let top = top_of(path)?;
    require_limen(&top, path)?;
    let trash = top.join(OsStr::from_bytes(TRASH_NAME));
    match fs::symlink_metadata(&trash) {
        Ok(metadata) if metadata.ino() == Ino::TRASH.0 => Ok(trash),
        _ => Err(CliError::new("there is no trash")
            .at(top.display())
            .advise("the volume has none (limen config --trash-days), or the mount does not show its root")),
    }
}

/// The top of the mount on which a path is, or would be if it existed.
///
/// # Errors
/// The path is relative, and there is no current directory.
pub(crate) fn top_of(path: &Path) -> Result<PathBuf, CliError> {
    let path = absolute(path).usage().at(path.display())?;
    let mut at = path.as_path();
    let device = loop {
        match fs::symlink_metadata(at) {
            Ok(metadata) => break metadata.dev(),
            Err(_) => {
                at = at.parent().ok_or_else(|| CliError::new("no such directory").at(path.display()))?
            }
        }
    };
    while let Some(parent) = at.parent()
        && fs::symlink_metadata(parent).is_ok_and(|metadata| metadata.dev() == device)
    {
        at = parent;
    }
    Ok(at.to_owned())
}

/// How the mount of the trash maps and squashes users. The directory of a user in the trash is named after
/// the uid in the volume, not after the uid that the mount shows. If a user other than root mounts the
/// volume, only that user finds the mount's options here. For all others, the result maps no id.
pub(crate) fn ids_of(trash: &Path) -> Ids {
    let found = fs::symlink_metadata(trash).ok();
    let options = found.and_then(|found| Options::parse(&[registry::ids(found.dev())], false).ok());
    options.and_then(|options| options.rights.ids().ok()).unwrap_or_default()
}

/// The directories of hours that this user can read. As in [`Meta::trashed_hours`], an entry whose name is
/// not an hour, or an hour in the future, belongs to the hour of its ctime.
pub(crate) fn hours_in(trash: &Path) -> Result<Vec<HourDir>, CliError> {
    let users: Vec<PathBuf> = match fs::read_dir(trash) {
        Ok(entries) => {
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().at(trash.display())?
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let (uid, _) = ids_of(trash).caller(own.0, own.1);
            vec![trash.join(uid.to_string())]
        }
        Err(error) => return Err(CliError::new(error).at(trash.display())),
    };
    let (mut hours, now) = (Vec::new(), TrashHour::of(Time::now()));
    for user in users {
        let entries = match fs::read_dir(&user) {
            Ok(entries) => entries,
            // Nothing of this user is in the trash.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(CliError::new(error).at(user.display())),
        };
        for entry in entries {
            let entry = entry.at(user.display())?;
            let hour = TrashHour::from_name_until(entry.file_name().as_bytes(), now);
            let of_change =
                || fs::symlink_metadata(entry.path()).map(|of| TrashHour::of(Time::new(of.ctime(), 0))).ok();
            if let Some(hour) = hour.or_else(of_change) {
                hours.push(HourDir { hour, path: entry.path() });
            }
        }
    }
    hours.sort_by_key(|dir| dir.hour);
    Ok(hours)
}

/// The files and directories removed in an hour. Skips an entry if the inode number in its name is not the
/// number of its inode.
pub(crate) fn items_in(dir: &HourDir) -> Result<Vec<Item>, CliError> {
    // A symbolic link would lead out of the trash.
    if !fs::symlink_metadata(&dir.path).is_ok_and(|of| of.is_dir()) {
        return Ok(Vec::new());
    }
    let entries = match fs::read_dir(&dir.path) {
        Ok(entries) => entries,
        // The directory was deleted, or replaced by a file, a moment ago.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(CliError::new(error).at(dir.path.display())),
    };
    let mut items = Vec::new();
    for entry in entries {
        let entry = entry.at(dir.path.display())?;
        let Some(name) = TrashName::decode(entry.file_name().as_bytes()) else { continue };
        if entry.ino() != name.ino.0 {
            continue;
        }
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        items.push(Item { path: entry.path(), name, is_dir });
    }
    Ok(items)
}

/// A line of the list.
struct Row {
    removed: Time,
    uid: u32,
    is_dir: bool,
    bytes: u64,
    name: TrashName,
}

impl Row {
    fn print(&self, lines: &mut Lines, as_json: bool, users: &Users) -> Result<(), CliError> {
        let Row { removed, uid, is_dir, bytes, name } = self;
        let (text, hex) = path_to_json(name.name.as_bytes());
        if as_json {
            let mut value = json!({
                "removed": rfc3339(*removed),
                "hour": TrashHour::of(*removed).name(),
                "uid": uid,
                "directory": is_dir,
                "bytes": bytes,
                "ino": name.ino.0,
                "parent": name.parent.0,
                "name": text,
            });
            if let Some(hex) = hex {
                value["name_bytes"] = hex.into();
            }
            return lines.line(value.to_string());
        }
        let slash = if *is_dir { "/" } else { "" };
        let size = if *is_dir { "-".to_owned() } else { show_size(*bytes) };
        let shown = show_name(name.name.as_bytes());
        let user = users.user(*uid);
        lines.line(format!("{removed}  {user:<12} {size:>10}  {shown}{slash}  (from inode {})", name.parent))
    }
}

fn list(args: &ListArgs) -> Result<(), CliError> {
    let (mut lines, users) = (Lines::default(), Users::default());
    if args.volume.contains("://") {
        let url = MetaUrl::parse(&args.volume)?;
        let (database, _) = url.open_volume()?;
        let meta = url.client(database.engine(), 1000)?;
        let mut printed = Ok(());
        for hour in meta.trashed_hours(TrashHour(i64::MAX), None, usize::MAX).at(&url)? {
            let scan = Scan::Dir { parent: hour.dir, after: None, limit: 1024, include: ScanInclude::Inodes };
            for page in scan.pages(|scan| meta.scan(scan)) {
                for row in rows_of(&page.at(&url)?) {
                    printed = printed.and_then(|()| row.print(&mut lines, args.json, &users));
                }
            }
        }
        printed?;
    } else {
        for hour in hours_in(&trash_of(Path::new(&args.volume))?)? {
            for item in items_in(&hour)? {
                // The item may have been restored or deleted a moment ago.
                let Ok(of) = fs::symlink_metadata(&item.path) else { continue };
                let removed = Time::new(of.ctime(), u32::try_from(of.ctime_nsec()).unwrap_or(0));
                let bytes = if item.is_dir { 0 } else { of.len() };
                let Item { is_dir, name, .. } = item;
                Row { removed, uid: of.uid(), is_dir, bytes, name }.print(&mut lines, args.json, &users)?;
            }
        }
    }
    lines.flush()
}

fn rows_of(page: &[Record]) -> Vec<Row> {
    let inode_of = |ino: Ino| -> Option<Inode> {
        page.iter().find_map(|record| match record {
            Record::Inode(found, inode) if *found == ino => *inode,
            _ => None,
        })
    };
    let row = |record: &Record| {
        let Record::Dirent(_, name, Some(dirent)) = record else { return None };
        let (name, inode) = (TrashName::decode(name.as_bytes())?, inode_of(dirent.ino)?);
        let is_dir = inode.kind.is_dir();
        let bytes = if is_dir { 0 } else { inode.size };
        Some(Row { removed: inode.ctime, uid: inode.uid, is_dir, bytes, name })
    };
    page.iter().filter_map(row).collect()
}

fn purge(args: &PurgeArgs) -> Result<(), CliError> {
    let before = match args.older {
        None => TrashHour(i64::MAX),
        // An hour is deleted if it ended at least that long ago.
        Some(age) => {
            let secs = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            TrashHour::of(Time::new(Time::now().sec().saturating_sub(secs), 0))
        }
    };
    let removed = match args.volume.contains("://") {
        true => purge_volume(&MetaUrl::parse(&args.volume)?, before)?,
        false => purge_mount(Path::new(&args.volume), args.threads, before)?,
    };
    for (path, error) in &removed.failures {
        output::note(format!("cannot delete {}: {error}", path.display()));
    }
    let Removed { files, directories, failed, .. } = removed;
    output::result(
        args.json,
        || -> Value { json!({ "files": files, "directories": directories, "failed": failed }) },
        || format!("Deleted {} from the trash.\n", files_and_directories(files, directories)),
    )?;
    match failed {
        0 => Ok(()),
        _ => Err(CliError::new(format!("{} could not be deleted", files_or_directories(failed)))),
    }
}

fn purge_mount(path: &Path, threads: usize, before: TrashHour) -> Result<Removed, CliError> {
    let hours = hours_in(&trash_of(path)?)?;
    let interrupt = Interrupt::install()?;
    let bar = output::progress("deleted");
    let mut all = Removed::default();
    for dir in hours.iter().filter(|dir| dir.hour < before) {
        all.add(remove(&dir.path, threads, &bar, &|| interrupt.is_set())?);
    }
    bar.finish_and_clear();
    interrupt.check()?;
    Ok(all)
}

fn purge_volume(url: &MetaUrl, before: TrashHour) -> Result<Removed, CliError> {
    let (database, _) = url.open_volume()?;
    // A mount on the embedded engine caches what it has read, and is not notified of changes.
    let lock = lock_unmounted(url, &database, "name a path on the mount")?;
    let meta = Meta::open(database.engine(), 10_000).at(url)?;
    maintenance::require_none(url, &meta)?;
    meta.set_exclusive(!matches!(database, Database::Network(_)));
    let interrupt = Interrupt::install()?;
    let bar = output::progress("deleted");
    let files = Cell::new(0);
    let mut is_done = false;
    while !is_done && !interrupt.is_set() {
        let what = Emptying {
            before,
            user: None,
            most: u64::MAX,
            keeps: &|_| false,
            stop: &|| interrupt.is_set(),
            deleted: &|_, names| bar.inc(names.len() as u64),
        };
        let emptied = meta.empty_trash(&what).at(url)?;
        files.set(files.get() + emptied.entries);
        is_done = emptied.is_done || emptied.entries == 0;
    }
    bar.finish_and_clear();
    meta.sync().at(url)?;
    drop(lock);
    interrupt.check()?;
    Ok(Removed { files: files.get(), ..Removed::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hour_in_the_future_is_that_of_the_ctime() {
        let trash = tempfile::tempdir().unwrap();
        let (past, future) = (TrashHour(9), TrashHour(TrashHour::of(Time::now()).0 + 1000));
        for hour in [past, future] {
            fs::create_dir_all(trash.path().join("0").join(hour.name())).unwrap();
        }
        let hours = hours_in(trash.path()).unwrap();
        let hours: Vec<TrashHour> = hours.iter().map(|dir| dir.hour).collect();
        assert!(hours[0] == past && hours[1] < future, "{hours:?}");
    }
}
