//! `limen bench`: its command line. The benchmarks are in the crate `bench`.

use std::path::PathBuf;

use bench::load::Load;
use bench::ops::Op;
use bench::{abe, acl, files};
use clap::{Subcommand, ValueEnum, ValueHint};
use command::fault::Fault;
use command::interrupt::Interrupt;
use command::units::parse_size;
use meta::Volume;

use crate::parse::parse_threads;
use crate::url::MetaUrl;

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
The benchmark creates a directory of its own below PATH and removes it at the end, also after Ctrl-C. Write a path named
acl or abe as ./acl or ./abe.
Columns: operations per second of all threads; CPU time per operation of this process and of the mount's process; and on a
limenfs mount, requests of the kernel and round trips to the metadata engine per operation. For ls -lR, an operation is one
entry; for ls, one directory of 100 entries that was listed before.

Examples:
  limen bench /mnt --threads 4
  limen bench /mnt --floor
      alternates with a mount in memory, and shows which share of its speed is reached
  limen bench /mnt --ops create,delete --big 1G --json
  limen bench acl /mnt
  limen bench abe /mnt --scale 0.1"
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    comparison: Option<Comparison>,
    /// A directory on the file system to measure
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    path: Option<PathBuf>,
    #[command(flatten)]
    load: LoadArgs,
    /// Number of rounds; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "3")]
    rounds: usize,
    /// Also measure a mount in memory, in alternation, and show the share of its speed that is reached
    #[arg(long)]
    floor: bool,
    /// Also write and read one file of this size, and compare with the directory of the mount's objects
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    big: Option<u64>,
    /// The directory to compare the big file with [default: the parent directory of the volume's bucket]
    #[arg(long, value_name = "DIR", requires = "big", value_hint = ValueHint::DirPath)]
    store: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Comparison {
    /// Compare files without ACLs, with minimal ACLs, and with ACLs of 300 users and 150 groups
    Acl(AclArgs),
    /// Measure listings with access-based enumeration, for a user in 4 groups and in 400 groups
    Abe(AbeArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Six trees, one after the other: 1,000, 21,000 and 41,000 directories, each with one file of 25,000 bytes, of which a user
can read 1,000 directories; 200 and 500 directories with 200 such files each, of which the user can read the files of 5
directories; and 500 directories with 200 files each, of which the user can read two files in each directory (500-spread).
The user lists each tree with attributes, alternately as a member of 4 groups and of 400 groups. A mount without --abe, or
another file system, shows everything, for comparison.

The six trees together have 304,000 files with 7.6 GB; --scale makes them smaller. Only root can run this command.

Example:
  limen mount -d --abe sqlite:///srv/t.db /mnt && limen bench abe /mnt --scale 0.1")]
struct AbeArgs {
    /// A directory on the file system to measure
    #[arg(value_hint = ValueHint::DirPath)]
    path: PathBuf,
    /// Measure only these trees: 1000, 21000, 41000, 200, 500, 500-spread
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["1000", "21000", "41000", "200", "500", "500-spread"])]
    cases: Vec<String>,
    /// Create only this fraction of the directories, more than 0 and at most 1
    #[arg(long, value_name = "PART", value_parser = parse_scale, default_value = "1")]
    scale: f64,
    /// Also list with a cold cache: drops the kernel's cached names and inodes of all file systems
    #[arg(long)]
    cold: bool,
    /// Number of rounds; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "7")]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The rounds alternate between three directories: one without ACLs; one with a minimal default ACL, which says the same as a
mode; and one with access and default ACLs of 300 named users and 150 named groups, which all files created in it inherit.
The loss of a round is its difference to the round without ACLs; the median over the rounds is shown.

Example:
  limen bench acl /mnt --rounds 15")]
struct AclArgs {
    /// A directory on the file system to measure
    #[arg(value_hint = ValueHint::DirPath)]
    path: PathBuf,
    #[command(flatten)]
    load: LoadArgs,
    /// Number of rounds; medians are shown
    #[arg(long, value_name = "N", value_parser = parse_rounds, default_value = "7")]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The work of a round.
#[derive(Clone, Debug, clap::Args)]
struct LoadArgs {
    /// Number of threads, each with its own directories
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "1")]
    threads: usize,
    /// Number of files of all threads together, 100 in a directory
    #[arg(long, value_name = "N", value_parser = parse_files, default_value = "2000")]
    files: usize,
    /// Measure only these operations
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    ops: Vec<OpArg>,
}

/// An operation, as `--ops` names it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OpArg {
    Mkdir,
    /// Create an empty file and close it
    Create,
    /// Open a file for reading, and close it
    Open,
    Stat,
    /// List a tree with attributes and ACLs, like ls -lR
    #[value(name = "ls-lR")]
    ListLong,
    /// List the names of a directory of 100 that was listed before
    #[value(name = "ls")]
    List,
    Chmod,
    Setxattr,
    Hardlink,
    Symlink,
    Rename,
    /// Unlink a file's only name
    Delete,
}

impl From<OpArg> for Op {
    fn from(op: OpArg) -> Op {
        match op {
            OpArg::Mkdir => Op::Mkdir,
            OpArg::Create => Op::Create,
            OpArg::Open => Op::Open,
            OpArg::Stat => Op::Stat,
            OpArg::ListLong => Op::ListLong,
            OpArg::List => Op::List,
            OpArg::Chmod => Op::Chmod,
            OpArg::Setxattr => Op::Setxattr,
            OpArg::Hardlink => Op::Hardlink,
            OpArg::Symlink => Op::Symlink,
            OpArg::Rename => Op::Rename,
            OpArg::Delete => Op::Delete,
        }
    }
}

impl From<&LoadArgs> for Load {
    fn from(args: &LoadArgs) -> Load {
        let ops = args.ops.iter().map(|op| Op::from(*op)).collect();
        Load { threads: args.threads, files: args.files, ops }
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Fault> {
    let interrupt = Interrupt::install()?;
    match (&args.comparison, &args.path) {
        (Some(Comparison::Acl(args)), _) => acl::run(&args.options(), &interrupt),
        (Some(Comparison::Abe(args)), _) => abe::run(&args.options(), &interrupt),
        (None, Some(path)) => files::run(&args.options(path.clone()), &volume_of, &interrupt),
        (None, None) => Err(Fault::usage("no path is given").advise("name a directory to measure")),
    }
}

/// The volume with this URL; `None` if it is in the memory of its mount.
fn volume_of(url: &str) -> Result<Option<Volume>, Fault> {
    match MetaUrl::parse(url)? {
        MetaUrl::Memory(_) => Ok(None),
        url => Ok(Some(url.open_volume()?.1)),
    }
}

impl BenchArgs {
    fn options(&self, path: PathBuf) -> files::Options {
        files::Options {
            path,
            load: Load::from(&self.load),
            rounds: self.rounds,
            floor: self.floor,
            big_bytes: self.big,
            store: self.store.clone(),
            json: self.json,
        }
    }
}

impl AclArgs {
    fn options(&self) -> acl::Options {
        acl::Options {
            path: self.path.clone(),
            load: Load::from(&self.load),
            rounds: self.rounds,
            json: self.json,
        }
    }
}

impl AbeArgs {
    fn options(&self) -> abe::Options {
        abe::Options {
            path: self.path.clone(),
            cases: self.cases.clone(),
            scale: self.scale,
            cold: self.cold,
            rounds: self.rounds,
            json: self.json,
        }
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
