//! The command line. The arguments of a command are in its own file.

use bench::BenchArgs;
use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::access::AccessArgs;
use crate::backup::BackupArgs;
use crate::clone::CloneArgs;
use crate::compact::CompactArgs;
use crate::config::ConfigArgs;
use crate::console::ConsoleArgs;
use crate::debug::DebugArgs;
use crate::destroy::DestroyArgs;
use crate::dump::DumpArgs;
use crate::format::FormatArgs;
use crate::fsck::FsckArgs;
use crate::gc::GcArgs;
use crate::info::InfoArgs;
use crate::load::LoadArgs;
use crate::ls::LsArgs;
use crate::man::ManArgs;
use crate::mdtest::MdtestArgs;
use crate::objbench::ObjbenchArgs;
use crate::options::MountArgs;
use crate::profile::ProfileArgs;
use crate::quota::QuotaArgs;
use crate::restore::RestoreArgs;
use crate::rmr::RmrArgs;
use crate::schemes;
use crate::sid::SidArgs;
use crate::stats::StatsArgs;
use crate::status::StatusArgs;
use crate::summary::SummaryArgs;
use crate::trash::TrashArgs;
use crate::umount::UmountArgs;
use crate::version::VersionArgs;
use crate::warmup::WarmupArgs;

/// A distributed POSIX file system: metadata in a database, file data in an object store.
#[derive(Debug, Parser)]
#[command(name = "limen", version, arg_required_else_help = true, after_help = overview())]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The text after the list of commands. The URLs and stores come from the tables that the parser uses.
fn overview() -> String {
    format!(
        "\
META-URL names the database that holds the volume's metadata:
{urls}A volume on a database server can be mounted on many machines at once. The parameters of each URL, such as TLS, are in
docs/servers.md.

Object stores for the file data, as limen format --storage KIND --bucket PLACE:
{stores}
A first volume:
  limen format sqlite:///var/lib/limen/home.db home
  limen mount -d sqlite:///var/lib/limen/home.db /mnt
  limen umount /mnt

Exit codes: 0 success, 1 failure, 2 the command line is wrong. Some commands have more; see their --help.
LIMEN_LOG filters the log, e.g. LIMEN_LOG=debug or LIMEN_LOG=info,vfs=trace.",
        urls = schemes::help(),
        stores = stores(),
    )
}

/// The kinds of stores, with an example of each form of a bucket.
fn stores() -> String {
    let mut text = String::new();
    for store in chunk::STORES {
        // Show only the text before the semicolon; the rest is in the help of limen format.
        let about = store.about.split(';').next().unwrap_or_default();
        let examples: Vec<&str> = store.buckets.iter().map(|(_, example)| *example).collect();
        let examples = if examples.is_empty() { String::new() } else { format!(": {}", examples.join(", ")) };
        text.push_str(&format!("  {:<8}{about}{examples}\n", store.name));
    }
    text
}

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
    /// Show how many bytes, files and directories are below a directory, as a tree
    Summary(SummaryArgs),
    /// Explain why an access is allowed or denied, list who has access, and preview permission changes
    Access(AccessArgs),
    /// Serve a local web page: usage as a map, sessions, live operations, quotas, and who can reach what
    Console(ConsoleArgs),
    /// Show what a mount does, one line a second
    Stats(StatsArgs),
    /// Show which users and processes send which requests to a mount, and for which files
    Profile(ProfileArgs),
    /// Write an archive with all that is needed to look into a problem, without secrets
    Debug(DebugArgs),
    /// Delete a volume and all its files permanently
    Destroy(DestroyArgs),
    /// Show a volume's settings, and change those that can be changed
    Config(ConfigArgs),
    /// Limit the size and number of files in a directory, or of a user or group
    Quota(QuotaArgs),
    /// Map SIDs of Windows domains in NFSv4 ACLs to uids and gids
    Sid(SidArgs),
    /// Check a volume's metadata and file data, and repair what can be repaired
    Fsck(FsckArgs),
    /// Show unreferenced data and files of a volume, and remove them
    Gc(GcArgs),
    /// Write all metadata of a volume to a file
    Dump(DumpArgs),
    /// Create a volume from a dump, on any kind of database
    Load(LoadArgs),
    /// List the backups of a volume's metadata in its object store, make one, and restore a volume from one
    Backup(BackupArgs),
    /// Copy a file or directory tree by reference: at once, without copying data
    Clone(CloneArgs),
    /// Put removed or overwritten files and directory trees back
    Restore(RestoreArgs),
    /// List what is in the trash of removed files, and delete it before its time
    Trash(TrashArgs),
    /// Remove directory trees with several threads, and count what was removed
    Rmr(RmrArgs),
    /// Read directory trees with several threads, to fill the caches; show and remove what is cached
    Warmup(WarmupArgs),
    /// Store files again that were written in many small parts, so that reading them takes fewer requests
    Compact(CompactArgs),
    /// Measure file operations on a mounted path of any file system, and the cost of ACLs
    Bench(BenchArgs),
    /// Measure metadata operations without a mount: create, stat, rename and remove a tree with many threads
    Mdtest(MdtestArgs),
    /// Test and measure an object store: put, get, list and delete
    Objbench(ObjbenchArgs),
    /// Show the version of this program and of the formats that it supports
    Version(VersionArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  limen completions bash >/usr/share/bash-completion/completions/limen"
    )]
    Completions { shell: Shell },
    /// Write the manual pages of all commands to a directory
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_command_line_definition() {
        Args::command().debug_assert();
    }
}
