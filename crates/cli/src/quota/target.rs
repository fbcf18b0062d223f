//! The volume and directory that the target of a quota command names.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use client::{Failure, Meta, QuotaChange, QuotaError, Retagging};
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output;
use command::registry::{self, Entry};
use engine_sqlite::LockError;
use meta::{Quota, QuotaKey, QuotaRule, QuotaState, Record, Scan, ScanInclude};
use ops::{Authority, GetInode, GetQuotas};
use serde_json::Value;
use types::{Errno, Ino, Name, QuotaId};

use crate::journals;
use crate::maintenance::require_none;
use crate::records::usage;
use crate::target::{Target, path_to_json, show_name};
use crate::url::{Database, MetaUrl};
use crate::users::Users;

pub(super) const BY_TOOL: Authority<'static> = Authority::Kernel { revisions: None };

/// A volume, and the file in it that a target names.
pub(crate) struct QuotaTarget {
    pub(super) shown: String,
    pub(super) database: Database,
    pub(super) meta: Meta,
    pub(super) ino: Ino,
}

impl QuotaTarget {
    pub(super) fn open(target: &OsStr) -> Result<QuotaTarget, CliError> {
        let target = Target::parse(target)?;
        let shown = target.show();
        let (database, _, ino) = target.open()?;
        let engine = database.engine();
        let meta = Meta::open(engine, 10_000).map_err(|error| CliError::new(error).at(&shown))?;
        if let Target::Volume(url, _) = &target {
            require_none(url, &meta)?;
        }
        Ok(QuotaTarget { shown, database, meta, ino })
    }

    /// The root of a volume that is open, for queries only. `shown` names it in messages.
    ///
    /// # Errors
    /// The database holds no volume, or one that this version of limen cannot read.
    pub(crate) fn of(database: &Database, shown: String) -> Result<QuotaTarget, CliError> {
        let meta = Meta::open(database.engine(), 10_000).map_err(|error| CliError::new(error).at(&shown))?;
        Ok(QuotaTarget { shown, database: database.clone(), meta, ino: Ino::ROOT })
    }

    /// Changes a quota, and shows the progress. Ctrl-C ends the walk. A mount of the embedded engine makes
    /// the change itself, because it would not see inodes that this process changes. `walks` says whether the
    /// change walks through inodes.
    pub(super) fn change(&self, change: QuotaChange, walks: bool) -> Result<QuotaKey, CliError> {
        match self.database.lock(false) {
            Ok(lock) => {
                if lock.is_some() {
                    journals::replay(self.database.file(), &self.meta).at(&self.shown)?;
                }
                self.change_here(change)
            }
            Err(LockError::Io { path, error }) => Err(CliError::new(error).at(path.display())),
            Err(LockError::AlreadyMounted { .. }) => match self.mount() {
                Some(mount) => self.watch(|progress| command::quotas::request(&mount, change, progress)),
                // A change of limits alone needs no walk, and the mount reads them from the database.
                None if !walks => self.change_here(change),
                None => Err(CliError::new("another process uses the database, which serves one at a time")
                    .at(&self.shown)
                    .advise("give the command on the machine and as the user that mounts the volume")),
            },
        }
    }

    fn change_here(&self, change: QuotaChange) -> Result<QuotaKey, CliError> {
        let key = self.watch(|progress| Ok(self.meta.change_quota(change, progress)))?;
        self.sync()?;
        Ok(key)
    }

    /// The mount of this machine that serves the volume of an embedded database.
    fn mount(&self) -> Option<Entry> {
        let Database::Sqlite(engine) = &self.database else { return None };
        let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let own = file(engine.path())?;
        let serves = |entry: &Entry| match MetaUrl::parse(&entry.url) {
            Ok(MetaUrl::Sqlite(path)) => entry.process.is_alive() && file(&path) == Some(own),
            _ => false,
        };
        registry::all().into_iter().find(serves)
    }

    pub(super) fn failed(&self, error: impl std::fmt::Display) -> CliError {
        CliError::new(error).at(&self.shown)
    }

    pub(super) fn sync(&self) -> Result<(), CliError> {
        self.meta.sync().map_err(|error| self.failed(error))
    }

    pub(crate) fn quotas(&self) -> Result<Vec<(QuotaKey, Quota)>, CliError> {
        self.meta.quotas().map_err(|error| self.failed(error))
    }

    pub(super) fn quota_of(&self, dir: Ino) -> Result<Option<(QuotaId, Quota)>, CliError> {
        Ok(self.quotas()?.into_iter().find_map(|(key, quota)| match key {
            QuotaKey::Directory(id) if quota.rule.root == dir => Some((id, quota)),
            _ => None,
        }))
    }

    /// The quota of the target, which must be a directory.
    pub(super) fn directory_quota(&self) -> Result<Option<(QuotaId, Quota)>, CliError> {
        self.require_directory()?;
        self.quota_of(self.ino)
    }

    /// # Errors
    /// ENOTDIR: the target is not a directory.
    pub(super) fn require_directory(&self) -> Result<(), CliError> {
        match self.meta.run(&GetInode(self.ino), &BY_TOOL) {
            Ok(inode) if inode.kind.is_dir() => Ok(()),
            Ok(_) => Err(self.failed(Errno::ENOTDIR)),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    pub(super) fn rule(&self, key: QuotaKey) -> Result<Option<QuotaRule>, CliError> {
        Ok(self.quotas()?.into_iter().find(|(found, _)| *found == key).map(|(_, quota)| quota.rule))
    }

    pub(super) fn counts_owners(&self) -> Result<bool, CliError> {
        let (_, owners) = self.meta.run(&GetQuotas, &BY_TOOL).map_err(|error| self.failed(error))?;
        Ok(owners == Some(QuotaState::Settled))
    }

    /// Runs `work`, which calls its argument after each step of a walk, and shows the progress.
    fn watch(
        &self,
        work: impl FnOnce(&mut dyn FnMut(&Retagging) -> bool) -> Result<Result<QuotaKey, QuotaError>, CliError>,
    ) -> Result<QuotaKey, CliError> {
        let interrupt = Interrupt::install()?;
        // The number of inodes only estimates the time left.
        let inodes = usage(&*self.database.engine()).map_or(0, |usage| usage.inodes);
        let bar = output::progress_of("inodes", inodes);
        let done = work(&mut |done| {
            bar.set_position(done.seen);
            !interrupt.is_set()
        });
        bar.finish_and_clear();
        done.at(&self.shown)?.map_err(|error| match error {
            QuotaError::Inside { dir } => {
                CliError::new(format!("{} below it has a quota", self.path(dir))).at(&self.shown).advise(
                    "delete that quota first, and set it again afterwards: quotas nest from the outside in",
                )
            }
            QuotaError::Removing => {
                CliError::new(&error).at(&self.shown).advise("complete it with limen quota delete")
            }
            QuotaError::Unfinished { dir } => {
                CliError::new(format!("the quota of {} around it is incomplete", self.path(dir)))
                    .at(&self.shown)
                    .advise("complete it with limen quota set or limen quota delete, or wait for the command that does so")
            }
            QuotaError::Interrupted => {
                CliError::new("interrupted").at(&self.shown).advise("give the same command again to go on")
            }
            QuotaError::Failed(Failure::Operation(Errno::ELOOP)) => self.failed(format!(
                "the directory is already in {} quotas, and more cannot be nested",
                ops::MAX_NESTED_QUOTAS
            )),
            error => self.failed(error),
        })
    }

    /// The path of a directory, or its inode number.
    pub(super) fn path(&self, dir: Ino) -> String {
        let found = self.find_path(dir).ok().flatten();
        found.map_or_else(|| format!("inode {dir}"), |path| show_name(&path))
    }

    /// The path of a directory, from the names in the directories above it; `None` if it does not exist.
    pub(crate) fn find_path(&self, dir: Ino) -> Result<Option<Vec<u8>>, Failure> {
        const DEPTH: usize = 4096;
        let mut names: Vec<Name> = Vec::new();
        let mut at = dir;
        if dir == Ino::TRASH {
            return Ok(Some([b"/", ops::TRASH_NAME].concat()));
        }
        while at != Ino::ROOT && names.len() < DEPTH {
            let parent = match self.meta.run(&GetInode(at), &BY_TOOL) {
                Err(Failure::Operation(_)) => return Ok(None),
                inode => inode?.parent,
            };
            let Some(name) = self.find_name(parent, at)? else { return Ok(None) };
            names.push(name);
            at = parent;
        }
        let path: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", name.as_bytes()].concat()).collect();
        Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
    }

    pub(super) fn find_name(&self, parent: Ino, ino: Ino) -> Result<Option<Name>, Failure> {
        let scan = Scan::Dir { parent, after: None, limit: 1000, include: ScanInclude::Nothing };
        for page in scan.pages(|scan| self.meta.scan(scan)) {
            let found = page?.iter().find_map(|record| match record {
                Record::Dirent(_, name, Some(dirent)) if dirent.ino == ino => Some(name.clone()),
                _ => None,
            });
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// The directory, user or group of a quota.
pub(crate) fn whose(key: QuotaKey, path: Option<&[u8]>, users: &Users) -> String {
    match (key, path) {
        (QuotaKey::Directory(_), Some(path)) => show_name(path),
        (QuotaKey::Directory(id), None) => format!("(directory removed; --id {id})"),
        (QuotaKey::User(uid), _) => format!("user {}", users.user(uid)),
        (QuotaKey::Group(gid), _) => format!("group {}", users.group(gid)),
    }
}

/// Adds the path of a directory, and its hexadecimal bytes if it is not UTF-8.
pub(super) fn add_path(value: &mut Value, path: Option<&[u8]>) {
    let (text, bytes) = path.map(path_to_json).unzip();
    value["path"] = text.into();
    if let Some(bytes) = bytes.flatten() {
        value["path_bytes"] = bytes.into();
    }
}
