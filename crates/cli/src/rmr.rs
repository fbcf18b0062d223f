//! `limen rmr`: removes trees with several threads.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output;
use command::remove::{Removed, remove, remove_by, split};
use command::units::{files_and_directories, files_or_directories, parse_threads};
use fuse::MountInfo;
use serde_json::json;
use types::{counted, plural};

use crate::skip_trash::SkipTrash;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Symbolic links are removed, not followed. A path that is a mount point, or has one below it, is refused. A path that does
not exist is not an error.

If the volume has a trash (limen config --trash-days), everything goes there, as with rm(1), and uses space until it expires;
limen restore puts it back. With --skip-trash, it is deleted at once. Only the owner of a file, and root, can delete it from
the trash: files of other users stay there, and the command says so and fails with exit code 1.

Examples:
  limen rmr /mnt/old /mnt/older
  limen rmr --skip-trash /mnt/old")]
pub(crate) struct RmrArgs {
    /// Files or directories, on any file system
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Delete at once what would go to the trash; all paths must be on mounts of limenfs that show the root
    /// of the volume
    #[arg(long)]
    skip_trash: bool,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "32")]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RmrArgs) -> Result<(), CliError> {
    // All paths are checked before anything is removed.
    let mounts = MountInfo::all(Path::new("/proc/self")).what("cannot list the mounts")?;
    let mounts: Vec<PathBuf> = mounts.into_iter().map(|mount| mount.mount_point).collect();
    for path in &args.paths {
        refuse(path, &mounts)?;
    }
    let skips: Vec<Option<SkipTrash>> = match args.skip_trash {
        true => args.paths.iter().map(|path| SkipTrash::of(path).map(Some)).collect::<Result<_, _>>()?,
        false => args.paths.iter().map(|_| None).collect(),
    };
    let interrupt = Interrupt::install()?;
    let bar = output::progress("removed");
    let mut all = Removed::default();
    let stop = || interrupt.is_set();
    for (path, skip) in args.paths.iter().zip(&skips) {
        all.add(match skip {
            Some(skip) => {
                remove_by(&|dir, name, flags| skip.unlink(dir, name, flags), path, args.threads, &bar, &stop)?
            }
            None => remove(path, args.threads, &bar, &stop)?,
        });
    }
    let left: u64 = skips.iter().flatten().map(SkipTrash::left).sum();
    bar.finish_and_clear();
    for (path, error) in &all.failures {
        output::note(format!("cannot remove {}: {error}", path.display()));
    }
    let Removed { files, directories, failed, .. } = all;
    output::result(
        args.json,
        || json!({ "files": files, "directories": directories, "failed": failed, "left_in_trash": left }),
        || format!("Removed {}.\n", files_and_directories(files, directories)),
    )?;
    interrupt.check()?;
    match failed {
        0 if left > 0 => Err(CliError::new(format!(
            "{} {} still in the trash",
            counted(left, "removed file or directory", "removed files or directories"),
            plural(left, "is", "are")
        ))
        .advise("only their owners or root can delete them there: limen trash purge")),
        0 => Ok(()),
        _ => Err(CliError::new(format!("{} could not be removed", files_or_directories(failed)))),
    }
}

/// Refuses paths that are most likely a mistake: the root directory, a mount point, and a directory with a
/// mount point below.
fn refuse(path: &Path, mounts: &[PathBuf]) -> Result<(), CliError> {
    let (parent, name) = split(path)?;
    // If the parent directory does not exist, `remove` reports it.
    let Ok(parent) = fs::canonicalize(parent) else { return Ok(()) };
    let full = parent.join(OsStr::from_bytes(name.to_bytes()));
    match mounts.iter().find(|mount| mount.starts_with(&full)) {
        Some(mount) => Err(CliError::usage("a file system is mounted there")
            .at(mount.display())
            .advise("unmount it first, or name the files in it; nothing was removed")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_dots_and_mount_points_are_refused() {
        let mounts = ["/", "/mnt", "/srv/x/y"].map(PathBuf::from);
        for path in ["/", ".", "..", "a/..", "a/.", "", "/mnt", "/mnt/", "/srv"] {
            assert_eq!(refuse(Path::new(path), &mounts).unwrap_err().exit_code(), 2, "{path}");
        }
        assert!(refuse(Path::new("/mnt/a"), &mounts).is_ok());
        assert!(refuse(Path::new("/etc/x"), &mounts).is_ok());
    }
}
