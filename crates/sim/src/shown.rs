//! What the engine holds, in the form in which the model holds it.

use std::collections::BTreeMap;

use meta::{MemEngine, Node, Record, Scan};
use types::{Ino, SliceSource};

use crate::model;
use crate::world::scan_all;

/// The bytes of a file as its rows give them, for the comparison with the model.
pub(crate) fn contents(engine: &MemEngine) -> BTreeMap<Ino, model::Object> {
    let mut files: BTreeMap<Ino, model::Object> = BTreeMap::new();
    for (ino, chunk, rows) in crate::world::rows(engine) {
        let file = files.entry(ino).or_default();
        for row in rows {
            let start = chunk.start() + u64::from(row.pos);
            let tail = file.cells.split_off(&start);
            file.cells.extend(tail.into_iter().filter(|(at, _)| *at >= start + u64::from(row.len)));
            if row.source != SliceSource::Hole {
                file.write(start, row.len, &row.source);
            }
        }
    }
    files
}

/// All inodes.
pub(crate) fn nodes(engine: &MemEngine) -> BTreeMap<Ino, Node> {
    let mut nodes = BTreeMap::new();
    scan_all(
        engine,
        |after| Scan::Nodes { after, limit: 1000 },
        Ino(0),
        |record| match record {
            Record::Node(ino, Some(node)) => {
                nodes.insert(*ino, *node);
                Some(*ino)
            }
            _ => None,
        },
    );
    nodes
}
