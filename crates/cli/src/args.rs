//! The command line. The arguments of a command are in its own file.

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::access::AccessArgs;
use crate::bench::BenchArgs;
use crate::config::ConfigArgs;
use crate::destroy::DestroyArgs;
use crate::format::FormatArgs;
use crate::fsck::FsckArgs;
use crate::gc::GcArgs;
use crate::info::InfoArgs;
use crate::ls::LsArgs;
use crate::mdtest::MdtestArgs;
use crate::options::MountArgs;
use crate::rmr::RmrArgs;
use crate::status::StatusArgs;
use crate::umount::UmountArgs;
use crate::version::VersionArgs;
use crate::warmup::WarmupArgs;

/// A distributed POSIX file system: metadata in a database, file data in an object store.
#[derive(Debug, Parser)]
#[command(name = "limen", version, arg_required_else_help = true, after_help = OVERVIEW)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The line of the overview for TiKV, whose engine is an optional feature of the build.
#[cfg(feature = "tikv")]
macro_rules! tikv_line {
    () => {
        "  tikv://PD,PD/PREFIX          TiKV; PD is the address of a placement driver\n"
    };
}
#[cfg(not(feature = "tikv"))]
macro_rules! tikv_line {
    () => {
        ""
    };
}

const OVERVIEW: &str = concat!(
    "\
META-URL names the database that holds the volume's metadata:
  sqlite:///absolute/path.db   a SQLite database on this machine
  redis://HOST/N               Redis or Valkey; rediss:// with TLS, redis+unix:// for a socket
  postgres://USER@HOST/NAME    PostgreSQL
  mysql://USER@HOST/NAME       MySQL or MariaDB
  etcd://HOST,HOST             etcd; etcds:// with TLS
",
    tikv_line!(),
    "  mem://                       the memory of the mount, lost when it is unmounted: for trials
A volume on a database server can be mounted on many machines at once.

A first volume:
  limen format sqlite:///var/lib/limen/home.db home
  limen mount -d sqlite:///var/lib/limen/home.db /mnt
  limen umount /mnt

Exit codes: 0 success, 1 failure, 2 the command line is wrong. Some commands have more; see their --help.
LIMEN_LOG filters the log, e.g. LIMEN_LOG=debug or LIMEN_LOG=info,vfs=trace."
);

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a volume: metadata at META-URL, file data in an object store
    Format(FormatArgs),
    /// Mount a volume and serve it until it is unmounted
    Mount(MountArgs),
    /// Unmount a volume and wait until all its data is stored
    #[command(visible_alias = "unmount")]
    Umount(UmountArgs),
    /// Show a volume's settings, its usage, and its mounts
    Status(StatusArgs),
    /// Show how files on a mount are stored: inode, ACLs, slices, objects
    Info(InfoArgs),
    /// List directories with attributes and ACLs in bulk, on a mount or directly from a volume's database
    Ls(LsArgs),
    /// Explain why an access is allowed or denied, list who has access, and preview permission changes
    Access(AccessArgs),
    /// Delete a volume and all its files permanently
    Destroy(DestroyArgs),
    /// Show a volume's settings, and change those that can be changed
    Config(ConfigArgs),
    /// Check a volume's metadata and file data, and repair what can be repaired
    Fsck(FsckArgs),
    /// Show unreferenced data and files of a volume, and remove them
    Gc(GcArgs),
    /// Remove directory trees with several threads, and count what was removed
    Rmr(RmrArgs),
    /// Read directory trees with several threads, to fill the caches
    Warmup(WarmupArgs),
    /// Measure file operations on a mounted path of any file system, and the cost of ACLs
    Bench(BenchArgs),
    /// Measure metadata operations without a mount: create, stat, rename and remove a tree with many threads
    Mdtest(MdtestArgs),
    /// Show the version of this program and of the formats that it supports
    Version(VersionArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  limen completions bash >/usr/share/bash-completion/completions/limen"
    )]
    Completions { shell: Shell },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_command_line_definition() {
        Args::command().debug_assert();
    }

    #[test]
    fn help_shows_a_url_for_each_engine_of_the_build() {
        let shown = |name: &str| OVERVIEW.contains(&format!("  {name}://"));
        let engines = crate::url::engines();
        assert!(engines.iter().all(|name| shown(name)), "{engines:?}");
        assert_eq!(shown("tikv"), engines.contains(&"tikv"));
    }
}
