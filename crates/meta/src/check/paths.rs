//! Where inodes are in the tree, for people.

use std::collections::{BTreeSet, HashMap};

use types::{Ino, Name};

use super::walk;
use crate::engine::{Engine, EngineError};
use crate::record::{Node, Record, Want};

/// How deep a path is followed, should the volume be damaged.
const DEPTH: usize = 4096;

/// A path from the volume's root, with a slash at its beginning, of each of `inos` that a name leads to. A file with
/// several names comes with the first that is met.
///
/// # Errors
/// Those of the database.
pub fn find_paths(engine: &dyn Engine, inos: &BTreeSet<Ino>) -> Result<HashMap<Ino, Vec<u8>>, EngineError> {
    let mut places: Vec<(Ino, Name, Ino)> = Vec::new();
    let mut left: BTreeSet<Ino> = inos.iter().copied().filter(|ino| *ino != Ino::ROOT).collect();
    if !left.is_empty() {
        walk::all_entries(engine, |dir, name, edge| {
            if left.remove(&edge.ino) {
                places.push((dir, name.clone(), edge.ino));
            }
            !left.is_empty()
        })?;
    }
    let mut dirs: HashMap<Ino, Vec<u8>> = HashMap::from([(Ino::ROOT, Vec::new())]);
    let mut found = HashMap::from([(Ino::ROOT, b"/".to_vec())]);
    for (dir, name, ino) in places {
        let path = join(&path_of_dir(engine, dir, &mut dirs)?, &name);
        found.insert(ino, path);
    }
    Ok(found)
}

/// The path of a directory without a slash at its end; those on the way are remembered in `known`.
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
        let parent = read_node(engine, at)?.map_or(Ino(0), |node| node.parent);
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
