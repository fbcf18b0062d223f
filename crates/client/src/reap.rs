//! Removal of inodes without a name: unlinked files, and unfinished copies of trees.

use std::collections::HashSet;

use meta::{Record, RecordKey, Scan, ScanInclude};
use ops::{Prune, Reap, ReapAll};
use types::{Errno, Ino, Name};

use crate::driver::{BY_KERNEL, Meta};
use crate::failure::Failure;
use crate::trash::{entries, is_elsewhere};

/// The maximum number of entries that one commit removes. If the engine does not accept a transaction of that
/// size, the number is halved.
const PRUNED_AT_ONCE: usize = 256;

impl Meta {
    /// Removes orphans. If one commit for all is refused, for example because the files have very many
    /// slices, removes them one by one. The tree below the root of an unfinished copy is removed first, until
    /// `stop` returns true.
    ///
    /// # Errors
    /// ENOTEMPTY if an unfinished copy was not removed because of `stop` or because it is damaged; those of
    /// the database.
    pub fn reap(&self, orphans: &[Reap], stop: &dyn Fn() -> bool) -> Result<(), Failure> {
        if orphans.is_empty() {
            return Ok(());
        }
        match self.run(&ReapAll(orphans), &BY_KERNEL) {
            Err(failure) if failure.is_of_one() => {}
            done => return done,
        }
        let mut done = Ok(());
        for orphan in orphans {
            let mut reaped = self.run(orphan, &BY_KERNEL);
            if reaped == Err(Failure::Operation(Errno::ENOTEMPTY)) && !stop() {
                reaped = self.prune_tree(orphan.ino, stop).and_then(|()| self.run(orphan, &BY_KERNEL));
            }
            match reaped {
                Err(failure) if !failure.is_of_one() => return Err(failure),
                reaped => done = done.and(reaped),
            }
        }
        done
    }

    /// Removes everything below the root of an unfinished copy. No path leads there, and only a commit of the
    /// copy that was in doubt can still add entries.
    fn prune_tree(&self, root: Ino, stop: &dyn Fn() -> bool) -> Result<(), Failure> {
        match self.retry(|| self.engine().read(&[RecordKey::Inode(root)]))?.records.first() {
            // If the link count is not 0, the copy has just got its name.
            Some(Record::Inode(_, Some(inode))) if inode.kind.is_dir() && inode.nlink == 0 => {}
            _ => return Ok(()),
        }
        let mut at_once = PRUNED_AT_ONCE;
        // The directories from the root to the one that is being emptied, and others that are still to be
        // emptied.
        let mut dirs = vec![root];
        let (mut emptied, mut kept): (HashSet<Ino>, HashSet<Ino>) = Default::default();
        while let Some(&dir) = dirs.last() {
            if stop() {
                return Ok(());
            }
            let scan =
                Scan::Dir { parent: dir, after: None, limit: PRUNED_AT_ONCE, include: ScanInclude::Inodes };
            let (mut names, mut below): (Vec<Name>, Vec<Ino>) = (Vec::new(), Vec::new());
            let mut has_damage = false;
            for (name, dirent, inode) in entries(self.scan(&scan)?.snapshot.records) {
                // The damaged entry stays, and with it the directories above it, until a repair removes it.
                if inode.is_some_and(|inode| is_elsewhere(&inode, dir)) || kept.contains(&dirent.ino) {
                    has_damage = true;
                    continue;
                }
                if dirent.kind.is_dir() && !emptied.contains(&dirent.ino) {
                    below.push(dirent.ino);
                } else {
                    emptied.remove(&dirent.ino);
                    names.push(name);
                }
            }
            if names.is_empty() && below.is_empty() {
                if has_damage { &mut kept } else { &mut emptied }.insert(dir);
                dirs.pop();
            }
            while !names.is_empty() {
                if stop() {
                    return Ok(());
                }
                let part = &names[..at_once.min(names.len())];
                match self.run(&Prune { dir, names: part }, &BY_KERNEL) {
                    Ok(()) => drop(names.drain(..part.len())),
                    // The engine may not accept so large a transaction.
                    Err(failure) if part.len() > 1 && failure.is_refusal() => {
                        at_once = part.len().div_ceil(2);
                    }
                    // A commit that was in doubt has added an entry: list the directory again.
                    Err(Failure::Operation(Errno::ENOTEMPTY)) => break,
                    Err(failure) => return Err(failure),
                }
            }
            dirs.extend(below);
        }
        Ok(())
    }
}
