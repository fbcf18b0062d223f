//! Checks the inodes and names below a path. Names elsewhere are not known, so the link count of a file is
//! reported as wrong only if it is less than the number of its names below the path.

use std::collections::BTreeMap;

use meta::{EngineError, Inode};
use types::Ino;

use super::scope::{Entry, Standing, Step, Top, walk_below};
use super::totals::Run;
use super::tree::{Acls, check_inodes};
use super::{Problem, walk};

/// The stored link count of a file, and the number of its names that a walk has found.
struct Names {
    links: u32,
    names: u32,
}

/// The files with numbers above `after` up to `last`.
struct Window {
    after: Ino,
    last: Ino,
    limit: usize,
    files: BTreeMap<Ino, Names>,
}

pub(super) fn check(run: &mut Run<'_>, top: &Top) -> Result<(), EngineError> {
    let engine = run.engine;
    let mut acls = Acls::new(engine, run.report)?;
    let mut after = Ino(0);
    loop {
        let first = after == Ino(0);
        let mut window = Window { after, last: Ino(u64::MAX), limit: run.window, files: BTreeMap::new() };
        walk_below::<EngineError>(engine, top, |step| {
            match step {
                Step::Unnamed(inode) if first => check_reached(run, &mut acls, &[inode])?,
                Step::Entries(entries) => {
                    if first {
                        check_entries(run, &mut acls, entries)?;
                    }
                    let files = entries.iter().filter_map(|entry| entry.inode.as_ref());
                    files.filter(|inode| !inode.kind.is_dir()).for_each(|inode| window.count(inode));
                }
                Step::Left { dir, nlink, subdirs } if first && nlink != 2 + subdirs => {
                    (run.report)(Problem::Links { ino: dir, stored: nlink, actual: 2 + subdirs });
                }
                _ => {}
            }
            Ok(())
        })?;
        walk::orphans(engine, |session, ino| {
            if window.files.get(&ino).is_some_and(|file| file.links > 0) {
                (run.report)(Problem::StaleOrphan { session, ino });
            }
        })?;
        for (&ino, &Names { links, names }) in &window.files {
            if names > links {
                (run.report)(Problem::Links { ino, stored: links, actual: names });
            }
            run.totals.checked.linked_elsewhere += u64::from(names < links);
        }
        if window.last == Ino(u64::MAX) {
            return Ok(());
        }
        after = window.last;
    }
}

fn check_entries(run: &mut Run<'_>, acls: &mut Acls, entries: &[Entry]) -> Result<(), EngineError> {
    run.totals.checked.entries += entries.len() as u64;
    for entry in entries {
        let Entry { dir, ref name, dirent, ref inode, standing } = *entry;
        let (ino, name) = (dirent.ino, || name.clone());
        let Some(inode) = inode else {
            (run.report)(Problem::EntryWithoutInode { dir, name: name(), ino });
            continue;
        };
        run.totals.note_ino(ino);
        if inode.kind != dirent.kind {
            let (stored, actual) = (dirent.kind, inode.kind);
            (run.report)(Problem::EntryKind { dir, name: name(), ino, stored, actual });
        }
        match standing {
            Standing::SecondName => (run.report)(Problem::SecondName { dir, name: name(), ino }),
            Standing::Stray => (run.report)(Problem::Parent { ino, stored: inode.parent, actual: dir }),
            Standing::First | Standing::Again | Standing::Unsure => {}
        }
    }
    let reached: Vec<Inode> = entries.iter().filter_map(Entry::reached).copied().collect();
    check_reached(run, acls, &reached)
}

fn check_reached(run: &mut Run<'_>, acls: &mut Acls, inodes: &[Inode]) -> Result<(), EngineError> {
    check_inodes(run.engine, inodes, acls, run.report)?;
    run.totals.checked.inodes += inodes.len() as u64;
    (run.progress)("inodes", run.totals.checked.inodes);
    Ok(())
}

impl Window {
    /// Counts a name of a file. If the window would get too large, this function shortens it.
    fn count(&mut self, inode: &Inode) {
        if inode.ino <= self.after || self.last < inode.ino {
            return;
        }
        self.files.entry(inode.ino).or_insert(Names { links: inode.nlink, names: 0 }).names += 1;
        if self.files.len() > self.limit {
            self.files.pop_last();
            self.last = self.files.last_key_value().map_or(self.last, |(last, _)| *last);
        }
    }
}
