//! The work of a round.

use crate::ops::Op;

/// How much one round does.
#[derive(Clone, Debug)]
pub struct Load {
    /// The number of threads, each with its own directories.
    pub threads: usize,
    /// The number of files of all threads together.
    pub files: usize,
    /// The operations to measure; all if it is empty.
    pub ops: Vec<Op>,
}

impl Load {
    /// The operations to measure, in the order in which they run.
    pub(crate) fn ops(&self) -> Vec<Op> {
        Op::ALL.into_iter().filter(|op| self.ops.is_empty() || self.ops.contains(op)).collect()
    }
}
