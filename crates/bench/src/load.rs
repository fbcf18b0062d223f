//! The options that say how much work a benchmark does.

use clap::ValueEnum;
use command::units::{parse_count, parse_threads};

use crate::ops::Op;

/// The work of one round. A benchmark runs several rounds, and shows medians.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Load {
    /// Number of threads, each with its own directories
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "1")]
    pub(crate) threads: usize,
    /// Number of files of all threads together, 100 in a directory
    #[arg(long, value_name = "N", value_parser = parse_files, default_value = "2000")]
    pub(crate) files: usize,
    /// Measure only these operations
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) ops: Vec<Op>,
}

impl Load {
    /// The operations to measure, in the order in which they run.
    pub(crate) fn ops(&self) -> Vec<Op> {
        let all = Op::value_variants().iter().copied();
        all.filter(|op| self.ops.is_empty() || self.ops.contains(op)).collect()
    }
}

pub(crate) fn parse_rounds(text: &str) -> Result<usize, String> {
    parse_count(text, 1000)
}

fn parse_files(text: &str) -> Result<usize, String> {
    parse_count(text, 100_000_000)
}
