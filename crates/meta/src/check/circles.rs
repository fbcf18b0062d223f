//! Directories that lie in themselves, which no walk from the root would ever meet.

use std::collections::HashSet;

use types::{Ino, Name};

use super::{Problem, paths, walk};
use crate::engine::{Engine, EngineError};
use crate::record::Node;

/// Directories known to lead to the root are remembered, up to so many.
const KNOWN: usize = 1 << 20;

/// From each directory, walks up by what it says of its parent until it meets one that was walked before. A circle is
/// what meets itself instead; one problem is reported for each.
pub(super) fn check(engine: &dyn Engine, report: &mut dyn FnMut(Problem)) -> Result<(), EngineError> {
    let mut known: HashSet<Ino> = HashSet::from([Ino::ROOT]);
    walk::nodes(engine, |node| {
        if !node.kind.is_dir() {
            return Ok(());
        }
        if known.len() > KNOWN {
            known.clear();
            known.insert(Ino::ROOT);
        }
        let mut path: Vec<Node> = Vec::new();
        let mut on_path: HashSet<Ino> = HashSet::new();
        let mut at = *node;
        while !known.contains(&at.ino) {
            if !on_path.insert(at.ino) {
                let circle = path.iter().skip_while(|node| node.ino != at.ino);
                if let Some((ino, parent, name)) = weakest(engine, circle)? {
                    report(Problem::Circle { ino, parent, name });
                }
                break;
            }
            path.push(at);
            match paths::read_node(engine, at.parent)? {
                Some(parent) if parent.kind.is_dir() => at = parent,
                // That is a problem of its own.
                _ => break,
            }
        }
        known.extend(on_path);
        Ok(())
    })
}

/// The directory of a circle with the lowest number, and its name; `None` if it has no name there, and so is lost.
fn weakest<'a>(
    engine: &dyn Engine,
    circle: impl Iterator<Item = &'a Node>,
) -> Result<Option<(Ino, Ino, Name)>, EngineError> {
    let Some(node) = circle.min_by_key(|node| node.ino) else { return Ok(None) };
    let name = paths::name_in(engine, node.parent, node.ino)?;
    Ok(name.map(|name| (node.ino, node.parent, name)))
}
