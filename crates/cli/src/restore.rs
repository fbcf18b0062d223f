//! `limen restore`: puts removed files and trees back.
//!
//! The name of an entry of the trash contains the inode number of the directory from which it was removed
//! ([`ops::TrashName`]), and a directory that is put back keeps its inode number. So a tree is rebuilt from
//! its top: an entry is moved back into the directory with that number, and then the entries that were
//! removed from this entry follow. Each step is an ordinary rename(2) that replaces nothing. So the kernel or
//! the mount checks the user's permissions, and nothing is overwritten.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output::{self, ProgressBar};
use command::units::{files_and_directories, files_or_directories};
use ops::TrashHour;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use serde_json::json;
use types::{Errno, Ino, Time, plural};

use crate::parse::parse_span;
use crate::trash::{Item, hours_in, items_in, trash_of};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
PATH is the path that the file or directory had. If it does not exist, the file or directory that was removed last under
this path is put back, with everything that was removed below it, and with the directories above it if they were removed
too. If PATH is a directory that exists, everything that was removed below it is put back. Nothing is overwritten: a file
that has a newer one in its place stays in the trash (see --to).

A user restores files of its own, where it may create files; root restores everything. Owners, modes, times, ACLs and
extended attributes are as before. Hard links are not: a file with several names is removed with the last of them, and is
put back under this one.

Examples:
  limen restore /mnt/project
  limen restore --since 2h /mnt/project/src
  limen restore --to /mnt/old /mnt/project/report.txt")]
pub(crate) struct RestoreArgs {
    /// The former path of a file or directory, on a mount
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Only files that were removed in this time until now, e.g. 30m, 2h or 1d
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    since: Option<Duration>,
    /// Only files that were removed in this hour (UTC)
    #[arg(long, value_name = "YYYY-MM-DD-HH", value_parser = parse_hour)]
    hour: Option<TrashHour>,
    /// Put the files into this directory instead, which must be on the same mount
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    to: Option<PathBuf>,
    /// Only show what would be put back
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_hour(text: &str) -> Result<TrashHour, String> {
    TrashHour::from_name(text.as_bytes()).ok_or_else(|| "not an hour, e.g. 2026-11-24-09".to_owned())
}

/// The number of failures that are shown; further ones are only counted.
const SHOWN: usize = 10;

pub(crate) fn run(args: &RestoreArgs) -> Result<(), CliError> {
    let interrupt = Interrupt::install()?;
    let bar = output::progress("restored");
    let mut done = Done::default();
    for path in &args.paths {
        let trash = trash_of(path)?;
        let removed = Removed::read(&trash, args)?;
        let restore = Restore { removed: &removed, dry_run: args.dry_run, interrupt: &interrupt, bar: &bar };
        restore.path(path, args.to.as_deref(), &mut done)?;
    }
    bar.finish_and_clear();
    for (path, error) in &done.failures {
        output::note(format!("cannot restore {}: {error}", path.display()));
    }
    let Done { files, directories, failed, shown, .. } = &done;
    let would = if args.dry_run { "Would restore" } else { "Restored" };
    output::result(
        args.json,
        || {
            let paths: Vec<_> = shown.iter().map(|path| path.to_string_lossy()).collect();
            json!({ "files": files, "directories": directories, "failed": failed, "dry_run": args.dry_run, "paths": paths })
        },
        || {
            let mut text = String::new();
            for path in shown {
                text.push_str(&format!("{}\n", path.display()));
            }
            text + &format!("{would} {}.\n", files_and_directories(*files, *directories))
        },
    )?;
    interrupt.check()?;
    match done.failed {
        0 => Ok(()),
        failed => Err(CliError::new(format!(
            "{} {} not restored",
            files_or_directories(failed),
            plural(failed, "was", "were")
        ))),
    }
}

#[derive(Debug, Default)]
struct Done {
    files: u64,
    directories: u64,
    failed: u64,
    failures: Vec<(PathBuf, String)>,
    /// In a dry run, what would be restored.
    shown: Vec<PathBuf>,
}

impl Done {
    fn fail(&mut self, path: &Path, error: impl std::fmt::Display) {
        self.failed += 1;
        if self.failures.len() < SHOWN {
            self.failures.push((path.to_owned(), error.to_string()));
        }
    }
}

/// The entries of the trash, by the directory from which each was removed. For each name, only the entry that
/// was removed last.
struct Removed(HashMap<Ino, HashMap<Vec<u8>, Item>>);

impl Removed {
    fn read(trash: &Path, args: &RestoreArgs) -> Result<Removed, CliError> {
        let since = args.since.map(|span| {
            let secs = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
            Time::new(Time::now().sec().saturating_sub(secs), 0)
        });
        let mut removed: HashMap<Ino, HashMap<Vec<u8>, Item>> = HashMap::new();
        for dir in hours_in(trash)? {
            if args.hour.is_some_and(|hour| hour != dir.hour)
                || since.is_some_and(|since| dir.hour < TrashHour::of(since))
            {
                continue;
            }
            for item in items_in(&dir)? {
                if since.is_some_and(|since| removed_at(&item) < since) {
                    continue;
                }
                let of_dir = removed.entry(item.name.parent).or_default();
                let name = item.name.name.as_bytes().to_vec();
                match of_dir.get(&name) {
                    Some(other) if removed_at(other) > removed_at(&item) => {}
                    _ => _ = of_dir.insert(name, item),
                }
            }
        }
        Ok(Removed(removed))
    }

    fn find(&self, parent: Ino, name: &OsStr) -> Option<&Item> {
        self.0.get(&parent)?.get(name.as_bytes())
    }

    fn of(&self, parent: Ino) -> impl Iterator<Item = &Item> {
        self.0.get(&parent).into_iter().flat_map(HashMap::values)
    }
}

/// When the entry was removed: its ctime, which the removal has set.
fn removed_at(item: &Item) -> Time {
    match fs::symlink_metadata(&item.path) {
        Ok(of) => Time::new(of.ctime(), u32::try_from(of.ctime_nsec()).unwrap_or(0)),
        Err(_) => Time::MIN,
    }
}

struct Restore<'a> {
    removed: &'a Removed,
    dry_run: bool,
    interrupt: &'a Interrupt,
    bar: &'a ProgressBar,
}

impl Restore<'_> {
    fn path(&self, path: &Path, to: Option<&Path>, done: &mut Done) -> Result<(), CliError> {
        let path = absolute(path).usage().at(path.display())?;
        if let Ok(there) = fs::symlink_metadata(&path) {
            if there.is_dir() && to.is_none() {
                self.below(&path, Ino(there.ino()), done);
                return Ok(());
            }
            if to.is_none() {
                return Err(CliError::new(Errno::EEXIST)
                    .at(path.display())
                    .advise("name another directory with --to, or rename the file that is there now"));
            }
        }
        let (Some(above), Some(last)) = (path.parent(), path.file_name()) else {
            return Err(CliError::usage("the path does not end in a name").at(path.display()));
        };
        let absent = || {
            CliError::new("nothing was removed under this path, or it is not in your trash any more")
                .at(path.display())
                .advise("limen trash ls shows what is there")
        };
        // Directories on the path that do not exist are restored too, unless `--to` names another directory.
        let mut existing = above;
        let mut missing: Vec<&OsStr> = Vec::new();
        let mut parent = loop {
            match fs::metadata(existing) {
                Ok(there) => break Ino(there.ino()),
                Err(_) => {
                    missing.push(existing.file_name().ok_or_else(absent)?);
                    existing = existing.parent().ok_or_else(absent)?;
                }
            }
        };
        let mut at = existing.to_owned();
        let mut dirs = Vec::new();
        for name in missing.iter().rev() {
            let item = self.removed.find(parent, name).filter(|item| item.is_dir).ok_or_else(absent)?;
            dirs.push((item, at.clone(), parent));
            parent = item.name.ino;
            at.push(name);
        }
        let item = self.removed.find(parent, last).ok_or_else(absent)?;
        let (dir, ino) = match to {
            Some(dir) => (dir.to_owned(), None),
            None => {
                for (item, dir, ino) in dirs {
                    if !self.one(item, &dir, Some(ino), done) {
                        return Ok(());
                    }
                }
                (at, Some(parent))
            }
        };
        if self.one(item, &dir, ino, done) && item.is_dir {
            self.below(&dir.join(last), item.name.ino, done);
        }
        Ok(())
    }

    /// Puts back the entries that were removed from a directory and from those below it.
    fn below(&self, dir: &Path, ino: Ino, done: &mut Done) {
        let device = fs::symlink_metadata(dir).map(|there| there.dev()).ok();
        let mut dirs = vec![(dir.to_owned(), ino)];
        while let Some((dir, ino)) = dirs.pop() {
            if self.interrupt.is_set() {
                return;
            }
            // Search the existing subdirectories too. An error here is ignored: the user asked for removed
            // files, and a directory that cannot be read was not removed.
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir())
                    && let Ok(there) = entry.metadata()
                    && Some(there.dev()) == device
                {
                    dirs.push((entry.path(), Ino(there.ino())));
                }
            }
            for item in self.removed.of(ino) {
                if self.one(item, &dir, Some(ino), done) && item.is_dir {
                    dirs.push((dir.join(OsStr::from_bytes(item.name.name.as_bytes())), item.name.ino));
                }
            }
        }
    }

    /// Puts one entry back into a directory, which must be the inode `ino`, if that is given. Returns whether
    /// the entry was put back or, in a dry run, would be.
    fn one(&self, item: &Item, dir: &Path, ino: Option<Ino>, done: &mut Done) -> bool {
        let name = OsStr::from_bytes(item.name.name.as_bytes());
        let target = dir.join(name);
        if self.dry_run {
            if fs::symlink_metadata(&target).is_ok() {
                done.fail(&target, Errno::EEXIST);
                return false;
            }
            done.shown.push(target);
        } else if let Err(error) = put_back(item, dir, ino, name) {
            done.fail(&target, error);
            return false;
        }
        *(if item.is_dir { &mut done.directories } else { &mut done.files }) += 1;
        self.bar.inc(1);
        true
    }
}

/// Moves an entry into a directory. The owner of a directory above may have put a symbolic link on the path
/// since the path was found. So the directory is opened, and its inode is compared.
fn put_back(item: &Item, dir: &Path, ino: Option<Ino>, name: &OsStr) -> std::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    if let Some(ino) = ino
        && rustix::fs::fstat(&dir)?.st_ino != ino.0
    {
        return Err(rustix::io::Errno::STALE.into());
    }
    Ok(renameat_with(CWD, &item.path, &dir, name, RenameFlags::NOREPLACE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_restored_through_a_link_that_replaced_a_directory() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        for dir in ["dir", "other"] {
            fs::create_dir(at(dir)).unwrap();
        }
        let ino = Ino(fs::metadata(at("dir")).unwrap().ino());
        fs::write(at("removed"), "x").unwrap();
        let name = ops::TrashName { parent: ino, ino: Ino(9), name: types::Name::new(b"f").unwrap() };
        let item = Item { path: at("removed"), name, is_dir: false };
        let put = || put_back(&item, &at("dir"), Some(ino), OsStr::new("f"));
        fs::rename(at("dir"), at("moved")).unwrap();
        std::os::unix::fs::symlink(at("other"), at("dir")).unwrap();
        assert_eq!(put().unwrap_err().raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
        assert!(at("removed").exists() && !at("other/f").exists());
        fs::remove_file(at("dir")).unwrap();
        fs::rename(at("moved"), at("dir")).unwrap();
        put().unwrap();
        assert!(at("dir/f").exists());
    }

    #[test]
    fn hours_are_parsed_as_they_are_named() {
        let hour = parse_hour("2026-11-24-09").unwrap();
        assert_eq!(
            (hour.name().as_str(), hour.begin().to_string().as_str()),
            ("2026-11-24-09", "2026-11-24 09:00:00 UTC")
        );
        for wrong in
            ["", "2026-11-24", "2026-11-24-24", "2026-02-30-01", "2026-11-24-9", "x", "2026-13-01-00"]
        {
            parse_hour(wrong).unwrap_err();
        }
    }
}
