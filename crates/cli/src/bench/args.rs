//! The command line of `limen bench`.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};

use super::ops::Op;
use crate::args::parse_threads;
use crate::units::parse_size;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
It works in a directory of its own below PATH and removes it, also after Ctrl-C. A path called acl is written ./acl.
The figures: operations a second over all threads; CPU time an operation, of this process and of the mount's; and
on a limenfs mount the kernel's requests and the round trips to the metadata engine, an operation. ls -lR counts
entries, ls directories of 100 that were listed before.

Examples:
  limen bench /mnt --threads 4
  limen bench /mnt --floor
      against a mount in memory, by turns: how much of what FUSE can do here is reached
  limen bench /mnt --ops create,delete --big 1G --json
  limen bench acl /mnt"
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) comparison: Option<Comparison>,
    /// A directory on the file system to measure
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) load: Load,
    /// How often all is done; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "3")]
    pub(crate) rounds: usize,
    /// Measure a mount in memory too, by turns, and show the share of it that is reached
    #[arg(long)]
    pub(crate) floor: bool,
    /// Also write and read one file of this size, against the directory that the mount's objects are in
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) big: Option<u64>,
    /// The directory to compare the big file with [default: beside the volume's bucket]
    #[arg(long, value_name = "DIR", requires = "big", value_hint = ValueHint::DirPath)]
    pub(crate) store: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Comparison {
    /// Compare no ACLs, minimal ACLs, and ACLs of 300 users and 150 groups
    Acl(AclArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Three directories side by side take turns: one without ACLs; one with a default ACL that is a mode; one with access
and default ACLs of 300 named users and 150 named groups, which all that is made in it inherits. The loss is the
median over the rounds of each round's difference to no ACLs.

Example:
  limen bench acl /mnt --rounds 15")]
pub(crate) struct AclArgs {
    /// A directory on the file system to measure
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) load: Load,
    /// How often all is done; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "7")]
    pub(crate) rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a round is made of.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Load {
    /// Threads that work at once, each in directories of its own
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "1")]
    pub(crate) threads: usize,
    /// Files of all threads together, 100 in a directory
    #[arg(long, value_name = "N", value_parser = parse_files, default_value = "2000")]
    pub(crate) files: usize,
    /// Only these operations
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) ops: Vec<Op>,
}

impl Load {
    /// The operations asked for, in the order in which they are done.
    pub(crate) fn ops(&self) -> Vec<Op> {
        Op::ALL.into_iter().filter(|op| self.ops.is_empty() || self.ops.contains(op)).collect()
    }
}

fn parse_rounds(text: &str) -> Result<usize, String> {
    bounded(text, 1000)
}

fn parse_files(text: &str) -> Result<usize, String> {
    bounded(text, 100_000_000)
}

fn bounded(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {most}"))
}
