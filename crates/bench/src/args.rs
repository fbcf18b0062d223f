//! The command line of `limen bench`.

use std::path::PathBuf;

use clap::{Subcommand, ValueHint};
use command::error::CliError;
use command::interrupt::Interrupt;

use crate::big::VolumeOf;
use crate::{abe, acl, files};

#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
The benchmark creates a directory of its own below PATH and removes it at the end, even after Ctrl-C. Write a path named
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
pub struct BenchArgs {
    #[command(subcommand)]
    comparison: Option<Comparison>,
    /// A directory on the file system to measure
    #[arg(required = true, value_hint = ValueHint::DirPath)]
    path: Option<PathBuf>,
    #[command(flatten)]
    files: files::Options,
}

#[derive(Debug, Subcommand)]
enum Comparison {
    /// Compare files without ACLs, with minimal ACLs, and with ACLs of 300 users and 150 groups
    Acl(acl::Options),
    /// Measure listings with access-based enumeration, for a user in 4 groups and in 400 groups
    Abe(abe::Options),
}

/// Runs the benchmark and prints its results. `volume_of` reads the settings of the mount's volume. They name
/// the directory of its objects, beside which the big file is also written.
///
/// # Errors
/// The file system or the mount in memory fails; the user interrupted the command.
pub fn run(args: &BenchArgs, volume_of: VolumeOf<'_>) -> Result<(), CliError> {
    let interrupt = Interrupt::install()?;
    match (&args.comparison, &args.path) {
        (Some(Comparison::Acl(args)), _) => acl::run(args, &interrupt),
        (Some(Comparison::Abe(args)), _) => abe::run(args, &interrupt),
        (None, Some(path)) => files::run(path, &args.files, volume_of, &interrupt),
        (None, None) => Err(CliError::usage("no path is given").advise("name a directory to measure")),
    }
}
