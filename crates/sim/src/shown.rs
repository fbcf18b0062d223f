//! The state of the engine, in the form of the model.

use std::collections::BTreeMap;

use meta::{Inode, MemEngine, Record, Scan};
use types::{Ino, SliceSource};

use crate::model;
use crate::scan::scan_all;

/// The bytes of each file according to its rows, for the comparison with the model.
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
pub(crate) fn inodes(engine: &MemEngine) -> BTreeMap<Ino, Inode> {
    let mut inodes = BTreeMap::new();
    scan_all(
        engine,
        |after| Scan::Inodes { after, limit: 1000 },
        Ino(0),
        |record| match record {
            Record::Inode(ino, Some(inode)) => {
                inodes.insert(*ino, *inode);
                Some(*ino)
            }
            _ => None,
        },
    );
    inodes
}
