//! The paths of inodes, for messages.

use std::collections::{BTreeSet, HashMap};

use meta::{Engine, EngineError};
use types::{Ino, Name};

use super::scope::{CheckScope, Step, walk_below};
use super::walk::{self, name_in, read_inode};

/// The largest depth that is followed, in case the volume is damaged.
const DEPTH: usize = 4096;

/// The path of the trash, which no entry names.
const TRASH: &[u8] = b"/.trash";

/// Finds a path from the volume's root, with a leading slash, for each of `inos` that has a name in `scope`.
/// If `scope` is a part of the volume, finds one for every other directory of `inos` too. A file with several
/// names gets the path of the first name found. If a directory on the path has no name, the path begins with
/// `/#` and the directory's number.
///
/// # Errors
/// Those of the database.
pub fn find_paths(
    engine: &dyn Engine,
    scope: &CheckScope,
    inos: &BTreeSet<Ino>,
) -> Result<HashMap<Ino, Vec<u8>>, EngineError> {
    let mut places: Vec<(Ino, Name, Ino)> = Vec::new();
    let mut left: BTreeSet<Ino> = inos.iter().copied().filter(|ino| *ino != Ino::ROOT).collect();
    let nothing = left.is_empty();
    let mut find = |dir, name: &Name, ino| {
        if left.remove(&ino) {
            places.push((dir, name.clone(), ino));
        }
        !left.is_empty()
    };
    match scope {
        _ if nothing => {}
        CheckScope::Volume => walk::all_entries(engine, |dir, name, dirent| find(dir, name, dirent.ino))?,
        CheckScope::Below(top) => walk_below::<EngineError>(engine, top, |step| {
            if let Step::Entries(entries) = step {
                entries.iter().all(|entry| find(entry.dir, &entry.name, entry.dirent.ino));
            }
            Ok(())
        })?,
    }
    let mut dirs: HashMap<Ino, Vec<u8>> =
        HashMap::from([(Ino::ROOT, Vec::new()), (Ino::TRASH, TRASH.to_vec())]);
    let mut found = HashMap::from([(Ino::ROOT, b"/".to_vec()), (Ino::TRASH, TRASH.to_vec())]);
    for (dir, name, ino) in places {
        let path = join(&path_of_dir(engine, dir, &mut dirs)?, &name);
        found.insert(ino, path);
    }
    if let CheckScope::Below(_) = scope {
        for ino in left {
            if read_inode(engine, ino)?.is_some_and(|inode| inode.kind.is_dir()) {
                found.insert(ino, path_of_dir(engine, ino, &mut dirs)?);
            }
        }
    }
    Ok(found)
}

/// The path of a directory without a trailing slash. If a directory on the path has no name, or the path has
/// more than [`DEPTH`] names, the path begins with `/#` and an inode number. The paths of the ancestors are
/// stored in `known`.
fn path_of_dir(
    engine: &dyn Engine,
    dir: Ino,
    known: &mut HashMap<Ino, Vec<u8>>,
) -> Result<Vec<u8>, EngineError> {
    let mut below: Vec<(Ino, Name)> = Vec::new();
    let mut at = dir;
    let mut path = loop {
        if let Some(path) = known.get(&at) {
            break path.clone();
        }
        let parent = read_inode(engine, at)?.map_or(Ino(0), |inode| inode.parent);
        match name_in(engine, parent, at)? {
            Some(name) if below.len() < DEPTH => below.push((at, name)),
            _ => break format!("/#{at}").into_bytes(),
        }
        at = parent;
    };
    for (dir, name) in below.into_iter().rev() {
        path = join(&path, &name);
        known.insert(dir, path.clone());
    }
    Ok(path)
}

fn join(dir: &[u8], name: &Name) -> Vec<u8> {
    [dir, b"/", name.as_bytes()].concat()
}
