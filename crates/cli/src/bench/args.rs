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
It works in a directory of its own below PATH and removes it, also after Ctrl-C. A path called acl or
abe is written ./acl, ./abe.
The figures: operations a second over all threads; CPU time an operation, of this process and of the mount's; and
on a limenfs mount the kernel's requests and the round trips to the metadata engine, an operation. ls -lR counts
entries, ls directories of 100 that were listed before.

Examples:
  limen bench /mnt --threads 4
  limen bench /mnt --floor
      against a mount in memory, by turns: how much of what FUSE can do here is reached
  limen bench /mnt --ops create,delete --big 1G --json
  limen bench acl /mnt
  limen bench abe /mnt --scale 0.1"
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
    /// Measure listings that hide what their caller may not read, with four and with four hundred groups
    Abe(AbeArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Six trees, one after the other: 1,000, 21,000 and 41,000 directories with a file of 25,000 bytes in each, of which a user
may read 1,000; 200 and 500 directories of 200 such files, of which he may read those in 5; and 500 directories of 200, of
which he may read two in each (500-spread). He lists each with attributes, in four groups and in four hundred, by turns.
A mount without --abe, and any other file system, shows him everything, for comparison.

On a mount, the trees hold 304,000 files with 7.6 GB; --scale makes them smaller. Takes root. A path called abe is
written ./abe.

Example:
  limen mount -d --abe sqlite:///srv/t.db /mnt && limen bench abe /mnt --scale 0.1")]
pub(crate) struct AbeArgs {
    /// A directory on the file system to measure
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) path: PathBuf,
    /// Only these trees: 1000, 21000, 41000, 200, 500, 500-spread
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["1000", "21000", "41000", "200", "500", "500-spread"])]
    pub(crate) cases: Vec<String>,
    /// Make so large a part of the directories, more than 0 and at most 1
    #[arg(long, value_name = "PART", value_parser = parse_scale, default_value = "1")]
    pub(crate) scale: f64,
    /// Also list after the kernel has forgotten all names, those of other file systems too
    #[arg(long)]
    pub(crate) cold: bool,
    /// How often each tree is listed; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "7")]
    pub(crate) rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
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

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok().filter(|scale: &f64| *scale > 0.0 && *scale <= 1.0);
    scale.ok_or_else(|| "write a number that is more than 0 and at most 1".to_owned())
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
