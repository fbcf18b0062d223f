//! Chunks that may have many rows: reads and flushes note them, compaction takes them.
//!
//! [`Candidates`] holds an estimate of the number of rows of each such chunk, and depends on no other part.
//! Its lock is held only within a call.

use std::sync::Mutex;

use host::HashMap;
use types::{ChunkIndex, Ino};

/// For each chunk, the sum of the numbers of rows that were noted. A row that is noted twice counts twice, so
/// this is only a hint; losing an entry does no harm.
#[derive(Debug, Default)]
pub(crate) struct Candidates(Mutex<HashMap<(Ino, ChunkIndex), usize>>);

/// The largest number of chunks in [`Candidates`].
const MAX_CANDIDATES: usize = 10_000;
/// The background thread never compacts a chunk with fewer rows.
pub(crate) const FEW_ROWS: usize = 16;

impl Candidates {
    /// Records that a read found this number of rows in a chunk, or that a commit added this number to it.
    pub(crate) fn note(&self, ino: Ino, chunk: ChunkIndex, rows: usize) {
        let mut known = host::lock(&self.0);
        if known.len() >= MAX_CANDIDATES {
            known.retain(|_, rows| *rows >= FEW_ROWS);
        }
        if known.len() < MAX_CANDIDATES {
            *known.entry((ino, chunk)).or_default() += rows;
        }
    }

    pub(crate) fn take(&self) -> Vec<(Ino, ChunkIndex)> {
        let mut known = host::lock(&self.0);
        known.extract_if(|_, rows| *rows >= FEW_ROWS).map(|(chunk, _)| chunk).collect()
    }
}
