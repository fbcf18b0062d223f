//! The part of a volume that a check covers, and the walk over the entries below a path.

use std::collections::{HashMap, HashSet};

use meta::{Dirent, Engine, EngineError, Inode, Record, RecordKey, Scan, ScanInclude};
use types::{FileType, Ino, Name};

use super::walk::{self, name_in, read_inode};

/// The entry of the trash in the root, which is not stored.
const TRASH: &[u8] = b".trash";

/// The largest number of directories, and of files with several links, that a walk remembers in order to
/// visit each of them once.
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
    /// The entry that names the file or directory. No entry names the trash.
    entry: Option<(Ino, Name, Dirent)>,
}

impl CheckScope {
    /// Finds the file or directory at a path from the volume's root; an empty path is the whole volume.
    /// Symbolic links are not followed. `None` if the path does not exist.
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

/// Whether no entry names the directory: it is the root of the volume or of the trash. Both have the root as
/// their parent.
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

/// The relation of an entry to the inode that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The first entry of the inode that the walk has found; for a directory, the one in its recorded parent.
    First,
    /// A further name of a file.
    Again,
    /// A name of a file with several names. The walk has found too many such files to remember this one, so
    /// this may be a further name.
    Unsure,
    /// A further name of a directory, which the walk does not follow.
    SecondName,
    /// The name of a directory that has none in its recorded parent.
    Stray,
}

impl Entry {
    /// The inode, if this is the entry by which the walk reaches it.
    pub(super) fn reached(&self) -> Option<&Inode> {
        let is_reached = matches!(self.standing, Standing::First | Standing::Stray | Standing::Unsure);
        self.inode.as_ref().filter(|_| is_reached)
    }

    /// Whether no other entry reaches the inode.
    pub(super) fn is_only(&self) -> bool {
        self.standing != Standing::Unsure
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

/// Walks over the file or directory itself, and everything below a directory, depth first. Memory holds one
/// name and the subdirectories of one page for each level, and the inodes of [`Known`].
pub(super) fn walk_below<E: From<EngineError>>(
    engine: &dyn Engine,
    top: &Top,
    each: impl FnMut(Step<'_>) -> Result<(), E>,
) -> Result<(), E> {
    walk_with(engine, top, KNOWN, each)
}

fn walk_with<E: From<EngineError>>(
    engine: &dyn Engine,
    top: &Top,
    limit: usize,
    mut each: impl FnMut(Step<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let inode = read_inode(engine, top.ino)?;
    let mut known = Known { dirs: HashSet::new(), files: HashSet::new(), limit };
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
    known.dirs.insert(top.ino);
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
        let page =
            engine.scan(&Scan::Dir { parent, after, limit: walk::PAGE, include: ScanInclude::Inodes })?;
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
struct Known {
    dirs: HashSet<Ino>,
    /// Files with several links.
    files: HashSet<Ino>,
    /// The largest number of each.
    limit: usize,
}

impl Known {
    /// Whether the inode is new to the walk; `None` if it is new, but too many are known to remember it.
    fn add(known: &mut HashSet<Ino>, ino: Ino, limit: usize) -> Option<bool> {
        match known.contains(&ino) {
            true => Some(false),
            false if known.len() >= limit => None,
            false => Some(known.insert(ino)),
        }
    }

    fn standing(
        &mut self,
        engine: &dyn Engine,
        dir: Ino,
        inode: Option<&Inode>,
    ) -> Result<Standing, EngineError> {
        let Some(Inode { ino, kind, nlink, parent, .. }) = inode else { return Ok(Standing::First) };
        if *kind != FileType::Directory {
            if *nlink <= 1 {
                return Ok(Standing::First);
            }
            return Ok(match Known::add(&mut self.files, *ino, self.limit) {
                Some(true) => Standing::First,
                Some(false) => Standing::Again,
                None => Standing::Unsure,
            });
        }
        // The entry is a second name if it names the root or the trash, if the recorded parent also has a
        // name for the directory, or if the walk has reached the directory already.
        let is_placed = *parent == dir;
        let is_second = is_top(*ino)
            || !is_placed && name_in(engine, *parent, *ino)?.is_some()
            || Known::add(&mut self.dirs, *ino, self.limit) == Some(false);
        Ok(match (is_second, is_placed) {
            (true, _) => Standing::SecondName,
            (false, true) => Standing::First,
            (false, false) => Standing::Stray,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use client::Meta;
    use meta::{Counter, MemEngine, Volume};
    use ops::{Authority, Link, Make, MakeKind};
    use types::Mode;

    use super::*;

    #[test]
    fn file_with_several_names_is_reached_once_or_said_to_be_unsure() {
        let engine: Arc<dyn Engine> = Arc::new(MemEngine::default());
        Volume::in_memory("test").format(&*engine).unwrap();
        let meta = Meta::open(Arc::clone(&engine), 100).unwrap();
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let kernel = Authority::Kernel { revisions: None };
        let make = |parent, text: &str, kind| {
            let ino = Ino(meta.lease(Counter::Ino, 1).unwrap());
            let op = Make {
                parent,
                name: name(text),
                ino,
                kind,
                mode: Mode::new(0o755),
                umask: 0,
                uid: 0,
                gid: 0,
            };
            meta.run(&op, &kernel).unwrap().ino
        };
        let dir = make(Ino::ROOT, "d", MakeKind::Directory);
        for text in ["a", "b", "c"] {
            let ino = make(dir, text, MakeKind::Regular);
            meta.run(&Link { ino, parent: dir, name: name(&format!("{text}2")), orphan_of: None }, &kernel)
                .unwrap();
        }
        let Some(CheckScope::Below(top)) = CheckScope::find(&*engine, &[name("d")]).unwrap() else {
            panic!()
        };
        let standings = |limit| {
            let mut found = Vec::new();
            walk_with::<EngineError>(&*engine, &top, limit, |step| {
                if let Step::Entries(entries) = step {
                    found.extend(entries.iter().map(|entry| entry.standing));
                }
                Ok(())
            })
            .unwrap();
            found
        };
        use Standing::{Again, First, Unsure};
        assert_eq!(standings(KNOWN), [First, First, Again, First, Again, First, Again]);
        assert_eq!(standings(2), [First, First, Again, First, Again, Unsure, Unsure]);
    }
}
