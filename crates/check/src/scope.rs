//! The part of a volume that a check covers, and the walk over the entries below a path.

use std::collections::{HashMap, HashSet};

use meta::{Beside, Dirent, Engine, EngineError, Inode, Record, RecordKey, Scan};
use types::{FileType, Ino, Name};

use super::walk::{self, name_in, read_inode};

/// The entry of the trash in the root, which is not stored.
const TRASH: &[u8] = b".trash";

/// The largest number of inodes that a walk remembers, to visit them once: directories, and files with several links.
const KNOWN: usize = 1 << 20;

/// The largest depth that is followed, in case the volume is damaged.
const DEPTH: usize = 1 << 16;

/// The part of a volume that a check covers.
#[derive(Clone, Debug)]
pub enum CheckScope {
    Volume,
    Below(Top),
}

/// A file, or a directory with everything below.
#[derive(Clone, Debug)]
pub struct Top {
    ino: Ino,
    /// The entry that names it. No entry names the trash.
    entry: Option<(Ino, Name, Dirent)>,
}

impl CheckScope {
    /// Finds a path from the volume's root. Symbolic links are not followed. `None` if it does not exist.
    ///
    /// # Errors
    /// Those of the database.
    pub fn find(engine: &dyn Engine, path: &[Name]) -> Result<Option<CheckScope>, EngineError> {
        let mut scope = CheckScope::Volume;
        for name in path {
            let dir = match &scope {
                CheckScope::Volume => Ino::ROOT,
                CheckScope::Below(top) => top.ino,
            };
            let key = RecordKey::Dirent(dir, name.clone());
            scope = CheckScope::Below(match engine.read(&[key])?.records.first() {
                Some(Record::Dirent(_, _, Some(dirent))) => {
                    Top { ino: dirent.ino, entry: Some((dir, name.clone(), *dirent)) }
                }
                _ if dir == Ino::ROOT && name.as_bytes() == TRASH => match read_inode(engine, Ino::TRASH)? {
                    Some(_) => Top { ino: Ino::TRASH, entry: None },
                    None => return Ok(None),
                },
                _ => return Ok(None),
            });
        }
        Ok(Some(scope))
    }
}

/// Whether no entry names the directory: it is the root of the volume or of the trash. Both have the root as their parent.
pub(super) fn is_top(ino: Ino) -> bool {
    ino == Ino::ROOT || ino == Ino::TRASH
}

/// An entry that a walk has found.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) dir: Ino,
    pub(super) name: Name,
    pub(super) dirent: Dirent,
    pub(super) inode: Option<Inode>,
    pub(super) standing: Standing,
}

/// What an entry is to the inode that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The first entry of the inode that the walk has found; for a directory, the one in its recorded parent.
    First,
    /// A further name of a file.
    Again,
    /// A further name of a directory, which the walk does not follow.
    SecondName,
    /// The name of a directory that has none in its recorded parent.
    Stray,
}

impl Entry {
    /// The inode, if this is the entry by which the walk reaches it.
    pub(super) fn reached(&self) -> Option<&Inode> {
        let is_reached = matches!(self.standing, Standing::First | Standing::Stray);
        self.inode.as_ref().filter(|_| is_reached)
    }
}

#[derive(Debug)]
pub(super) enum Step<'a> {
    /// The trash, which no entry names.
    Unnamed(Inode),
    Entries(&'a [Entry]),
    /// All entries of a directory were found. `subdirs` of them name directories.
    Left {
        dir: Ino,
        nlink: u32,
        subdirs: u32,
    },
}

/// A directory of the walk.
struct Open {
    dir: Ino,
    nlink: u32,
    subdirs: u32,
    after: Option<Name>,
    more: bool,
    /// Subdirectories of the last page that were not visited yet, with their link counts.
    pending: Vec<(Ino, u32)>,
}

impl Open {
    fn new((dir, nlink): (Ino, u32)) -> Self {
        Open { dir, nlink, subdirs: 0, after: None, more: true, pending: Vec::new() }
    }
}

/// Walks over the file or directory itself, and everything below a directory, depth first. Memory holds one name and
/// the subdirectories of one page for each level, and [`KNOWN`] inodes.
pub(super) fn walk_below<E: From<EngineError>>(
    engine: &dyn Engine,
    top: &Top,
    mut each: impl FnMut(Step<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let inode = read_inode(engine, top.ino)?;
    let mut known = Known(HashSet::new());
    match (&top.entry, inode) {
        (Some((dir, name, dirent)), inode) => {
            let (dir, name, dirent) = (*dir, name.clone(), *dirent);
            let standing = known.standing(engine, dir, inode.as_ref())?;
            each(Step::Entries(&[Entry { dir, name, dirent, inode, standing }]))?;
        }
        (None, Some(inode)) => each(Step::Unnamed(inode))?,
        (None, None) => {}
    }
    let mut stack: Vec<Open> =
        inode.iter().filter(|inode| inode.kind.is_dir()).map(|dir| Open::new((dir.ino, dir.nlink))).collect();
    known.add(top.ino);
    while let Some(open) = stack.last_mut() {
        if let Some(below) = open.pending.pop() {
            if stack.len() < DEPTH {
                stack.push(Open::new(below));
            }
        } else if open.more {
            let entries = open.next_page(engine, &mut known)?;
            each(Step::Entries(&entries))?;
        } else {
            let Open { dir, nlink, subdirs, .. } = *open;
            each(Step::Left { dir, nlink, subdirs })?;
            stack.pop();
        }
    }
    Ok(())
}

impl Open {
    fn next_page(&mut self, engine: &dyn Engine, known: &mut Known) -> Result<Vec<Entry>, EngineError> {
        let (parent, after) = (self.dir, self.after.take());
        let page = engine.scan(&Scan::Dir { parent, after, limit: walk::PAGE, beside: Beside::Inodes })?;
        let (mut dirents, mut inodes) = (Vec::new(), HashMap::new());
        for record in page.snapshot.records {
            match record {
                Record::Dirent(_, name, Some(dirent)) => dirents.push((name, dirent)),
                Record::Inode(ino, Some(inode)) => drop(inodes.insert(ino, inode)),
                _ => {}
            }
        }
        self.after = dirents.last().map(|(name, _)| name.clone());
        self.more = page.more && self.after.is_some();
        let mut entries = Vec::with_capacity(dirents.len());
        for (name, dirent) in dirents {
            self.subdirs += u32::from(dirent.kind.is_dir());
            let inode = inodes.get(&dirent.ino).copied();
            let standing = known.standing(engine, parent, inode.as_ref())?;
            let entry = Entry { dir: parent, name, dirent, inode, standing };
            let below = entry.reached().filter(|inode| inode.kind.is_dir());
            self.pending.extend(below.map(|inode| (inode.ino, inode.nlink)));
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// The inodes that a walk has reached and may find again.
struct Known(HashSet<Ino>);

impl Known {
    /// Returns whether the inode was not known before. If too many are known, it is not remembered.
    fn add(&mut self, ino: Ino) -> bool {
        if self.0.len() < KNOWN { self.0.insert(ino) } else { !self.0.contains(&ino) }
    }

    fn standing(
        &mut self,
        engine: &dyn Engine,
        dir: Ino,
        inode: Option<&Inode>,
    ) -> Result<Standing, EngineError> {
        let Some(Inode { ino, kind, nlink, parent, .. }) = inode else { return Ok(Standing::First) };
        if *kind != FileType::Directory {
            let again = *nlink > 1 && !self.add(*ino);
            return Ok(if again { Standing::Again } else { Standing::First });
        }
        // A directory on the way to this one is known, or its recorded parent has its name.
        let is_placed = *parent == dir;
        let is_second =
            is_top(*ino) || !is_placed && name_in(engine, *parent, *ino)?.is_some() || !self.add(*ino);
        Ok(match (is_second, is_placed) {
            (true, _) => Standing::SecondName,
            (false, true) => Standing::First,
            (false, false) => Standing::Stray,
        })
    }
}
