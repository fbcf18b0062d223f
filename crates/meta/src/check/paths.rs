//! Where inodes are in the tree, for people.

use std::collections::{BTreeSet, HashMap};

use types::{Ino, Name};

use super::walk;
use crate::engine::{Engine, EngineError};
use crate::record::{Node, Record, Want};

/// How deep a path is followed, should the volume be damaged.
const DEPTH: usize = 4096;

/// A path from the volume's root, with a slash at its beginning, of each of `inos` that has one, and of each entry's
/// directory and name. A file with several names comes with the first that is met.
///
/// # Errors
/// Those of the database.
pub fn find_paths(engine: &dyn Engine, inos: &BTreeSet<Ino>) -> Result<HashMap<Ino, Vec<u8>>, EngineError> {
    let mut found = HashMap::new();
    let mut places: Vec<(Ino, Name, Ino)> = Vec::new();
    let mut files: BTreeSet<Ino> = BTreeSet::new();
    for &ino in inos {
        match read_node(engine, ino)? {
            Some(node) if node.kind.is_dir() => drop(found.insert(ino, path_of_dir(engine, ino)?)),
            _ => drop(files.insert(ino)),
        }
    }
    if !files.is_empty() {
        walk::all_entries(engine, |dir, name, edge| {
            if files.remove(&edge.ino) {
                places.push((dir, name.clone(), edge.ino));
            }
            !files.is_empty()
        })?;
    }
    for (dir, name, ino) in places {
        let mut path = path_of_dir(engine, dir)?;
        if path != b"/" {
            path.push(b'/');
        }
        path.extend(name.as_bytes());
        found.insert(ino, path);
    }
    Ok(found)
}

fn path_of_dir(engine: &dyn Engine, dir: Ino) -> Result<Vec<u8>, EngineError> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = dir;
    while at != Ino::ROOT && names.len() < DEPTH {
        let parent = read_node(engine, at)?.map_or(Ino(0), |node| node.parent);
        match name_in(engine, parent, at)? {
            Some(name) => names.push(name.as_bytes().to_vec()),
            None => {
                names.push(format!("#{at}").into_bytes());
                break;
            }
        }
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.into_iter().rev() {
        path.push(b'/');
        path.extend(name);
    }
    Ok(if path.is_empty() { b"/".to_vec() } else { path })
}

/// The name under which `ino` lies in a directory.
pub(super) fn name_in(engine: &dyn Engine, dir: Ino, ino: Ino) -> Result<Option<Name>, EngineError> {
    let mut found = None;
    walk::entries(engine, dir, |name, edge| {
        if edge.ino == ino {
            found = Some(name.clone());
        }
        found.is_none()
    })?;
    Ok(found)
}

pub(super) fn read_node(engine: &dyn Engine, ino: Ino) -> Result<Option<Node>, EngineError> {
    match engine.read(&[Want::Node(ino)])?.records.first() {
        Some(Record::Node(_, node)) => Ok(*node),
        _ => Ok(None),
    }
}
