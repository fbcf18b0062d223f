//! Deletes what is in the trash, the oldest first, in small transactions.
//!
//! The trash has a directory for each user, and in it a directory for each hour. A call empties the hours
//! that are due, the oldest first. A call keeps no state for the next one, and ends after a number of
//! entries. So another client can go on with the work at any time.

use std::collections::HashSet;
use std::fmt;

use meta::{Dirent, Inode, Record, RecordKey, Scan, ScanInclude};
use ops::{EmptyTrash, Prune, TrashHour};
use types::{Errno, Ino, Name};

use crate::driver::{BY_KERNEL, Meta};
use crate::failure::Failure;

/// The maximum number of entries that one commit deletes. If such a commit is refused, the number is halved.
const AT_ONCE: usize = 128;
/// Entries read at a time.
const PAGE: usize = 1024;
/// The maximum number of directories of hours that one call empties.
const MAX_HOURS: usize = 4096;

/// An entry of a user's directory in the trash: the directory of an hour, or anything else that was put
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashedHour {
    pub hour: TrashHour,
    /// The directory of the uid. `user` is its name in the root of the trash.
    pub user_dir: Ino,
    pub user: Name,
    pub dir: Ino,
    /// The name in the directory of the uid.
    pub name: Name,
    pub is_dir: bool,
}

/// The entries to delete.
pub struct Emptying<'a> {
    /// Deletes only hours before this one.
    pub before: TrashHour,
    /// If set, deletes only in the directory with this name in the root of the trash. The name is a uid.
    pub user: Option<Name>,
    /// After tries to delete this many entries, the call ends. It first completes the page of entries that it
    /// has read, so there may be more. Entries that stay because they are open do not count.
    pub most: u64,
    /// Returns whether an inode must stay because it is open.
    pub keeps: &'a dyn Fn(Ino) -> bool,
    /// Called between commits. If it returns true, the call ends.
    pub stop: &'a dyn Fn() -> bool,
    /// Called after each commit, with the directory and the names that were deleted.
    pub deleted: &'a dyn Fn(Ino, &[Name]),
}

impl fmt::Debug for Emptying<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Emptying { before, user, most, .. } = self;
        f.debug_struct("Emptying").field("before", before).field("user", user).field("most", most).finish()
    }
}

/// The result of [`Meta::empty_trash`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// The number of deleted entries, without the directories of hours and users.
    pub entries: u64,
    /// Whether nothing is left that could be deleted.
    pub is_done: bool,
}

/// Whether the inode is a directory whose parent is not the directory that names it. It was just renamed, or
/// it is damaged. If it is damaged, a walk that entered it could go in a circle, or leave the tree.
pub(crate) fn is_elsewhere(inode: &Inode, parent: Ino) -> bool {
    inode.kind.is_dir() && inode.parent != parent
}

/// The entries of a page that was read with [`ScanInclude::Inodes`], with their inodes.
pub(crate) fn entries(page: Vec<Record>) -> impl Iterator<Item = (Name, Dirent, Option<Inode>)> {
    let mut records = page.into_iter().peekable();
    std::iter::from_fn(move || {
        loop {
            let Record::Dirent(_, name, Some(dirent)) = records.next()? else { continue };
            let is_inode = |record: &Record| matches!(record, Record::Inode(ino, _) if *ino == dirent.ino);
            let inode = match records.next_if(is_inode) {
                Some(Record::Inode(_, inode)) => inode,
                _ => None,
            };
            return Some((name, dirent, inode));
        }
    })
}

impl Meta {
    /// Whether the volume has a trash directory. The directory remains after the trash is turned off.
    ///
    /// # Errors
    /// Those of the database.
    pub fn has_trash(&self) -> Result<bool, Failure> {
        match self.run(&ops::GetInode(Ino::TRASH), &BY_KERNEL) {
            Ok(_) => Ok(true),
            Err(Failure::Operation(Errno::ESTALE)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// The hours in the trash before `before`, the oldest first; at most the `max` oldest. An entry whose
    /// name is not an hour, or an hour in the future, belongs to the hour of its ctime.
    ///
    /// # Errors
    /// Those of the database.
    pub fn trashed_hours(
        &self,
        before: TrashHour,
        user: Option<&Name>,
        max: usize,
    ) -> Result<Vec<TrashedHour>, Failure> {
        let mut hours: Vec<TrashedHour> = Vec::new();
        let users = Scan::Dir { parent: Ino::TRASH, after: None, limit: PAGE, include: ScanInclude::Nothing };
        for users in users.pages(|scan| self.scan(scan)) {
            for of_user in users? {
                let Record::Dirent(_, name, Some(dirent)) = of_user else { continue };
                if dirent.kind.is_dir() && user.is_none_or(|user| *user == name) {
                    self.hours_of(dirent.ino, &name, before, max, &mut hours)?;
                }
            }
        }
        hours.sort_by_key(|hour| hour.hour);
        hours.truncate(max);
        Ok(hours)
    }

    fn hours_of(
        &self,
        user_dir: Ino,
        user: &Name,
        before: TrashHour,
        max: usize,
        hours: &mut Vec<TrashedHour>,
    ) -> Result<(), Failure> {
        let now = TrashHour::of(types::Time::now());
        let scan = Scan::Dir { parent: user_dir, after: None, limit: PAGE, include: ScanInclude::Inodes };
        for page in scan.pages(|scan| self.scan(scan)) {
            let page = page?;
            let inode_of = |ino: Ino| {
                page.iter().find_map(|record| match record {
                    Record::Inode(found, inode) if *found == ino => *inode,
                    _ => None,
                })
            };
            for record in &page {
                let Record::Dirent(_, name, Some(dirent)) = record else { continue };
                if inode_of(dirent.ino).is_some_and(|inode| is_elsewhere(&inode, user_dir)) {
                    continue;
                }
                let by_name = TrashHour::from_name_until(name.as_bytes(), now);
                let by_change = || inode_of(dirent.ino).map(|inode: Inode| TrashHour::of(inode.ctime));
                let Some(hour) = by_name.or_else(by_change) else { continue };
                if hour < before {
                    let (dir, is_dir) = (dirent.ino, dirent.kind.is_dir());
                    let (user, name) = (user.clone(), name.clone());
                    hours.push(TrashedHour { hour, user_dir, user, dir, name, is_dir });
                }
            }
            if hours.len() / 2 > max {
                hours.sort_by_key(|hour| hour.hour);
                hours.truncate(max);
            }
        }
        Ok(())
    }

    /// Deletes entries of the trash.
    ///
    /// # Errors
    /// Those of the database.
    pub fn empty_trash(&self, what: &Emptying<'_>) -> Result<Emptied, Failure> {
        let mut emptied = Emptied::default();
        if !self.has_trash()? {
            return Ok(Emptied { is_done: true, ..emptied });
        }
        let hours = self.trashed_hours(what.before, what.user.as_ref(), MAX_HOURS)?;
        let (mut left, mut at_once) = (what.most, AT_ONCE);
        let mut is_done = hours.len() < MAX_HOURS;
        for TrashedHour { user_dir, user, dir, name, is_dir, .. } in hours {
            if is_dir && !self.empty_tree(dir, what, &mut left, &mut at_once, &mut emptied)? {
                is_done = false;
            }
            if left == 0 || (what.stop)() {
                return Ok(Emptied { is_done: false, ..emptied });
            }
            // A directory stays if it contains an open file, or a file that was trashed meanwhile.
            self.delete_if_empty(user_dir, &name, what)?;
            self.delete_if_empty(Ino::TRASH, &user, what)?;
        }
        Ok(Emptied { is_done, ..emptied })
    }

    fn delete_if_empty(&self, dir: Ino, name: &Name, what: &Emptying<'_>) -> Result<(), Failure> {
        let names = std::slice::from_ref(name);
        match self.run(&EmptyTrash(Prune { dir, names }), &BY_KERNEL) {
            Ok(()) => (what.deleted)(dir, names),
            // It is not empty, was moved out of the trash meanwhile, or is damaged. Go on with the others.
            Err(Failure::Operation(_)) => {}
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Deletes everything below a directory in the trash. Returns whether nothing is left.
    fn empty_tree(
        &self,
        root: Ino,
        what: &Emptying<'_>,
        left: &mut u64,
        at_once: &mut usize,
        emptied: &mut Emptied,
    ) -> Result<bool, Failure> {
        // The directories from the root to the one that is being emptied, and others that are still to be
        // emptied.
        let mut dirs = vec![root];
        // Visited directories are empty, or contain an entry that stays.
        let mut visited: HashSet<Ino> = HashSet::new();
        let mut is_empty = true;
        while let Some(&parent) = dirs.last() {
            let mut below: Vec<Ino> = Vec::new();
            let scan = Scan::Dir { parent, after: None, limit: PAGE, include: ScanInclude::Inodes };
            for page in scan.pages(|scan| self.scan(scan)) {
                let mut names: Vec<Name> = Vec::new();
                for (name, dirent, inode) in entries(page?) {
                    match () {
                        () if inode.is_some_and(|inode| is_elsewhere(&inode, parent)) => is_empty = false,
                        () if dirent.kind.is_dir() && !visited.contains(&dirent.ino) => {
                            if self.is_certainly_empty(dirent.ino)? {
                                names.push(name);
                            } else {
                                below.push(dirent.ino);
                            }
                        }
                        () if (what.keeps)(dirent.ino) => is_empty = false,
                        () => names.push(name),
                    }
                }
                // Entries that stay are not counted. Otherwise the open files of one user could use up every
                // call.
                *left = left.saturating_sub(names.len() as u64);
                is_empty &= self.delete(parent, names, what, at_once, emptied)?;
                if *left == 0 || (what.stop)() {
                    return Ok(false);
                }
            }
            if below.is_empty() {
                visited.insert(parent);
                dirs.pop();
            }
            dirs.extend(below);
        }
        Ok(is_empty)
    }

    /// Whether a directory has no entries now. Most directories in the trash were empty when they came there.
    fn is_certainly_empty(&self, dir: Ino) -> Result<bool, Failure> {
        let snapshot = self.retry(|| self.engine().read(&[RecordKey::Empty(dir)]))?;
        Ok(snapshot.records.iter().any(|record| matches!(record, Record::Empty(_, true))))
    }

    /// Deletes entries of a directory. Returns whether all are deleted.
    fn delete(
        &self,
        dir: Ino,
        mut names: Vec<Name>,
        what: &Emptying<'_>,
        at_once: &mut usize,
        emptied: &mut Emptied,
    ) -> Result<bool, Failure> {
        let mut is_empty = true;
        while !names.is_empty() {
            if (what.stop)() {
                return Ok(false);
            }
            let part = &names[..(*at_once).min(names.len())];
            match self.run(&EmptyTrash(Prune { dir, names: part }), &BY_KERNEL) {
                Ok(()) => {
                    emptied.entries += part.len() as u64;
                    (what.deleted)(dir, part);
                }
                // The transaction may be too large for the engine, or a directory among the names is not
                // empty.
                Err(failure)
                    if part.len() > 1
                        && (matches!(failure, Failure::Operation(_)) || failure.is_refusal()) =>
                {
                    *at_once = part.len().div_ceil(2);
                    continue;
                }
                Err(Failure::Operation(_)) => is_empty = false,
                Err(failure) => return Err(failure),
            }
            let done = part.len();
            names.drain(..done);
            *at_once = (*at_once * 2).min(AT_ONCE);
        }
        Ok(is_empty)
    }
}
