//! Checks for cycles of directories, which no walk from the root would ever reach.

use std::collections::HashSet;

use meta::{Engine, EngineError, Inode};
use types::{Ino, Name};

use super::{Problem, walk};

/// The largest number of directories that are remembered as visited.
const KNOWN: usize = 1 << 20;

/// From each directory, follows the recorded parents until it meets a directory that was visited before. If
/// that directory is on the same path, there is a cycle. Reports one problem for each cycle.
pub(super) fn check(engine: &dyn Engine, report: &mut dyn FnMut(Problem)) -> Result<(), EngineError> {
    let mut known: HashSet<Ino> = HashSet::from([Ino::ROOT]);
    walk::inodes(engine, |inode| {
        if !inode.kind.is_dir() {
            return Ok(());
        }
        if known.len() > KNOWN {
            known.clear();
            known.insert(Ino::ROOT);
        }
        let mut path: Vec<Inode> = Vec::new();
        let mut on_path: HashSet<Ino> = HashSet::new();
        let mut at = *inode;
        while !known.contains(&at.ino) {
            if !on_path.insert(at.ino) {
                let cycle = path.iter().skip_while(|inode| inode.ino != at.ino);
                if let Some((ino, parent, name)) = weakest(engine, cycle)? {
                    report(Problem::Cycle { ino, parent, name });
                }
                break;
            }
            path.push(at);
            match walk::read_inode(engine, at.parent)? {
                Some(parent) if parent.kind.is_dir() => at = parent,
                // A missing parent is reported as another problem.
                _ => break,
            }
        }
        known.extend(on_path);
        Ok(())
    })
}

/// Returns the directory with the lowest inode number of a cycle, its parent, and its name there; `None` if
/// the parent has no entry for it.
fn weakest<'a>(
    engine: &dyn Engine,
    cycle: impl Iterator<Item = &'a Inode>,
) -> Result<Option<(Ino, Ino, Name)>, EngineError> {
    let Some(inode) = cycle.min_by_key(|inode| inode.ino) else { return Ok(None) };
    let name = walk::name_in(engine, inode.parent, inode.ino)?;
    Ok(name.map(|name| (inode.ino, inode.parent, name)))
}
