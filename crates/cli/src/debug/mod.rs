//! `limen debug`: one archive with what is needed to look into a problem, without secrets.
//!
//! A part that cannot be collected is noted in the index and does not fail the command: a mount or a database
//! that hangs is often the problem. So child processes with a time limit send all requests to databases, and
//! all requests to mounts that go through the kernel. Requests to the socket of a mount's process have a
//! timeout.

mod archive;
mod limited;
mod machine;
mod process;
mod redact;

use std::path::{Path, PathBuf};

use clap::ValueHint;
use command::error::CliError;
use command::output;
use command::paths;
use command::process::host_name;
use command::registry::{self, Entry};
use command::statistics::query_text;
use command::units::show_size;
use types::Time;

use self::archive::Archive;
use self::limited::{limen, space};
use self::redact::Secrets;
use crate::stats;
use crate::target::mount_of;
use crate::url::MetaUrl;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The archive has: versions of limen, the kernel and the system; settings of the fuse module; for each volume its settings,
usage and sessions; for each mount its command line, statistics, metrics, stacks of its threads, limits and the end of its
log; free space. index.txt in it lists the parts, and says why a part is missing.

It has no contents of files, and no passwords, keys and credentials: they are removed from all parts. Logs can have names
of files, and metrics and settings have names of hosts and mount points. Read the archive before you give it to others.

Examples:
  limen debug
      all mounts of this machine
  limen debug /mnt -o /tmp/problem.tar.gz
  limen debug redis://db.example/ --no-logs")]
pub(crate) struct DebugArgs {
    /// The volume, by its metadata URL or by a path on its mount [default: all mounts of this machine]
    #[arg(value_name = "META-URL|PATH", value_hint = ValueHint::AnyPath)]
    target: Option<String>,
    /// The archive to write; it must not exist [default: limen-debug-HOST-TIME.tar.gz in the current
    /// directory]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Leave out the logs, which can have names of files
    #[arg(long)]
    no_logs: bool,
}

pub(crate) fn run(args: &DebugArgs) -> Result<(), CliError> {
    let (urls, mounts) = subjects(args.target.as_deref())?;
    let mut secrets = Secrets::of_environment();
    for url in &urls {
        if let MetaUrl::Network(url) = url {
            secrets.add_all(url.password().map(|password| password.reveal().to_owned()));
        }
    }
    for mount in &mounts {
        process::add_secrets(mount.process.pid, &mut secrets);
    }
    let path = args.output.clone().unwrap_or_else(default_path);
    let mut archive = Archive::create(&path, secrets)?;
    collect(&mut archive, &urls, &mounts, args)?;
    let done = archive.finish()?;
    let missing = match done.missing {
        0 => String::new(),
        missing => format!(" ({missing} could not be collected; index.txt says why)"),
    };
    let logs = if args.no_logs { "" } else { ", and logs, which can have names of files" };
    output::print(&format!(
        "Wrote {}, {}: {} parts{missing}.\nIt has no contents of files, passwords or keys. It has names of hosts and mount \
         points{logs}.\n",
        path.display(),
        show_size(done.bytes),
        done.parts,
    ))
}

/// The volumes and mounts that the archive is about.
fn subjects(target: Option<&str>) -> Result<(Vec<MetaUrl>, Vec<Entry>), CliError> {
    let alive = |entries: Vec<Entry>| -> Vec<Entry> {
        entries.into_iter().filter(|entry| entry.process.is_alive()).collect()
    };
    let mounts = match target {
        None => alive(registry::all()),
        Some(url) if url.contains("://") => {
            let url = MetaUrl::parse(url)?;
            let shown = url.to_string();
            let mounts = alive(registry::all()).into_iter().filter(|entry| entry.url == shown);
            return Ok((vec![url], mounts.collect()));
        }
        // The mount point itself is found without a request to the mount, which may hang.
        Some(path) => match alive(registry::by_mountpoint(&paths::mountpoint(Path::new(path))?)) {
            found if found.is_empty() => vec![mount_of(Path::new(path))?],
            found => found,
        },
    };
    let mut urls: Vec<MetaUrl> = Vec::new();
    for mount in &mounts {
        let url = MetaUrl::parse(&mount.url)?;
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    Ok((urls, mounts))
}

fn default_path() -> PathBuf {
    let time: String = Time::now().to_string().chars().filter(char::is_ascii_digit).collect();
    format!("limen-debug-{}-{time}.tar.gz", host_name()).into()
}

fn collect(
    archive: &mut Archive,
    urls: &[MetaUrl],
    mounts: &[Entry],
    args: &DebugArgs,
) -> Result<(), CliError> {
    archive.add("versions.txt", limen(&["version"]))?;
    archive.add("system.txt", machine::system())?;
    archive.add("kernel.txt", machine::kernel())?;
    archive.add("mounts.txt", machine::mounts())?;
    for (number, url) in (1..).zip(urls) {
        let url = url.to_string();
        let mut add = |name: &str, text| archive.add(&format!("volume-{number}/{name}"), text);
        add("url.txt", Ok(format!("{url}\n")))?;
        add("status.txt", limen(&["status", &url]))?;
        add("status.json", limen(&["status", "--json", &url]))?;
        add("settings.json", limen(&["config", "--json", &url]))?;
        add("space.txt", machine::space_of_store(&url))?;
    }
    for (number, mount) in (1..).zip(mounts) {
        let mut add = |name: &str, text| archive.add(&format!("mount-{number}/{name}"), text);
        let Entry { mountpoint, process, .. } = mount;
        let pid = process.pid;
        add("mount.txt", Ok(format!("{mount:#?}\n")))?;
        add("command.txt", process::command_line(pid))?;
        add("environment.txt", process::environment(pid))?;
        add("status.txt", process::file(pid, "status"))?;
        add("limits.txt", process::file(pid, "limits"))?;
        add("io.txt", process::file(pid, "io"))?;
        add("descriptors.txt", process::descriptors(pid))?;
        add("threads.txt", process::threads(pid))?;
        add("connection.txt", machine::connection(mount.device))?;
        add("statistics.json", query_text(mount, "statistics").map_err(|error| error.to_string()))?;
        add("metrics.txt", query_text(mount, "metrics").map_err(|error| error.to_string()))?;
        add("stats.json", stats::sample(mount).map_err(|error| error.to_string()))?;
        add("space.txt", space(&[&*mountpoint.to_string_lossy()]))?;
        if args.no_logs {
            continue;
        }
        match &mount.log {
            Some(log) => {
                add("log.txt", process::end_of(log))?;
                add("log.1.txt", process::end_of(&log.with_added_extension("1")))?;
            }
            None => add("log.txt", Err("the mount logs to its terminal".to_owned()))?,
        }
    }
    Ok(())
}
