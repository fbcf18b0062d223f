//! `limen warmup`: reads trees with several threads, so that later readers find them in the caches; or shows
//! how much of them is cached; or evicts them.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::file_requests::FileRequest;
use command::interrupt::Interrupt;
use command::output::{self, ProgressBar};
use command::pool::{self, Queue};
use command::units::{files_and_directories, parse_threads, show_size};
use serde_json::json;
use types::counted;

use crate::each_file::{EachFile, Failures};
use crate::target::attributes_of;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Data that is read goes through the caches of the kernel and of the mount, which keep it as long as they have room: for more
than memory, mount with -o cache_dir=DIR.

--check counts whole blocks in the caches of the mount, in memory and on the local disk, not the kernel's cache and not
data that is stored in the metadata. --check and --evict work only on limenfs, for root and the user that runs the mount.

Examples:
  limen warmup /mnt/project
  limen warmup --check /mnt/project
  find /mnt/project -name '*.parquet' | limen warmup --from -
      only these files
  limen warmup --evict /mnt/project
      makes room in the caches")]
pub(crate) struct WarmupArgs {
    /// Files or directories, on any file system
    #[arg(required_unless_present = "from", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Also the paths in this file, one path on each line; - for standard input
    #[arg(short = 'f', long, value_name = "FILE", visible_alias = "file", value_hint = ValueHint::FilePath)]
    from: Option<PathBuf>,
    /// Read names and attributes only, not file data
    #[arg(long, conflicts_with_all = ["check", "evict"])]
    metadata: bool,
    /// Read nothing: show how much of the files is in the caches of the mount
    #[arg(long, conflicts_with = "evict")]
    check: bool,
    /// Read nothing: remove the files from the caches of the mount and of the kernel
    #[arg(long)]
    evict: bool,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Files longer than this are read in parts, by several threads in parallel.
const PART_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 1 << 20;
/// If this many tasks wait, a thread that finds another file reads that file itself.
const MAX_WAITING: usize = 10_000;

pub(crate) fn run(args: &WarmupArgs) -> Result<(), CliError> {
    let interrupt = Interrupt::install()?;
    let mut paths = args.paths.clone();
    if let Some(list) = &args.from {
        paths.extend(listed(list)?);
    }
    match (args.check, args.evict) {
        (true, _) => ask(args, &paths, FileRequest::Cached, &interrupt),
        (_, true) => ask(args, &paths, FileRequest::Evict, &interrupt),
        _ => read(args, &paths, &interrupt),
    }
}

/// The paths that a file names.
fn listed(list: &Path) -> Result<Vec<PathBuf>, CliError> {
    let mut text = Vec::new();
    let done = match list.as_os_str().as_bytes() {
        b"-" => io::stdin().lock().read_to_end(&mut text),
        _ => File::open(list).and_then(|mut file| file.read_to_end(&mut text)),
    };
    done.at(list.display())?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).collect())
}

/// Asks the mounts how much of the files they have cached, or to evict them.
fn ask(
    args: &WarmupArgs,
    paths: &[PathBuf],
    request: FileRequest,
    interrupt: &Interrupt,
) -> Result<(), CliError> {
    let is_check = request == FileRequest::Cached;
    let bar = output::progress(if is_check { "checked" } else { "evicted" });
    let failures = Failures::new(if is_check { "check" } else { "evict" });
    let [files, stored, cached] = [(); 3].map(|()| AtomicU64::new(0));
    for path in paths {
        EachFile::new(path, request, interrupt, &bar, &failures)?.run(args.threads, &|answer| {
            let of = |field: &str| answer[field].as_u64().unwrap_or(0);
            files.fetch_add(1, Ordering::Relaxed);
            stored.fetch_add(of("stored"), Ordering::Relaxed);
            cached.fetch_add(of("cached"), Ordering::Relaxed);
        })?;
    }
    bar.finish_and_clear();
    failures.show();
    let [files, stored, cached] = [files, stored, cached].map(AtomicU64::into_inner);
    output::result(
        args.json,
        || json!({ "files": files, "stored": stored, "cached": cached, "failed": failures.count() }),
        || match is_check {
            true => format!(
                "{} of {} in {} are cached ({}).\n",
                show_size(cached),
                show_size(stored),
                counted(files, "file", "files"),
                percent(cached, stored)
            ),
            false => format!("Evicted {} of {}.\n", show_size(cached), counted(files, "file", "files")),
        },
    )?;
    interrupt.check()?;
    failures.result()
}

/// A share in whole percent, rounded down, so that 100 % means all.
fn percent(part: u64, all: u64) -> String {
    format!("{} %", if all == 0 { 100 } else { u128::from(part) * 100 / u128::from(all) })
}

fn read(args: &WarmupArgs, paths: &[PathBuf], interrupt: &Interrupt) -> Result<(), CliError> {
    let failures = Failures::new("read");
    let walk = Walk {
        metadata_only: args.metadata,
        interrupt,
        bar: output::progress("read"),
        directories: AtomicU64::new(0),
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        failures: &failures,
    };
    let mut first = Vec::with_capacity(paths.len());
    for path in paths {
        attributes_of(path)?;
        let metadata = fs::metadata(path).at(path.display())?;
        first.push(walk.task(path.clone(), &metadata));
    }
    pool::run(args.threads, first, |queue, task| walk.step(queue, task));
    walk.bar.finish_and_clear();
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (directories, files) = (value(&walk.directories), value(&walk.files));
    let (bytes, failed) = (value(&walk.bytes), failures.count());
    failures.show();
    output::result(
        args.json,
        || json!({ "directories": directories, "files": files, "bytes": bytes, "failed": failed }),
        || format!("Read {} with {}.\n", files_and_directories(files, directories), show_size(bytes)),
    )?;
    interrupt.check()?;
    failures.result()
}

#[derive(Debug)]
enum Task {
    /// A directory and its device number.
    Dir(PathBuf, u64),
    /// A file's bytes from the offset, at most [`PART_BYTES`] of them.
    Part(PathBuf, u64),
    /// A file with nothing to read.
    Other,
}

struct Walk<'a> {
    metadata_only: bool,
    interrupt: &'a Interrupt,
    bar: ProgressBar,
    directories: AtomicU64,
    files: AtomicU64,
    bytes: AtomicU64,
    failures: &'a Failures,
}

impl Walk<'_> {
    fn task(&self, path: PathBuf, metadata: &Metadata) -> Task {
        if metadata.is_dir() {
            return Task::Dir(path, metadata.dev());
        }
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(1);
        if self.metadata_only || !metadata.is_file() || metadata.len() == 0 {
            return Task::Other;
        }
        Task::Part(path, 0)
    }

    fn step(&self, queue: &Queue<Task>, task: Task) {
        if self.interrupt.is_set() {
            return;
        }
        match task {
            Task::Dir(path, device) => {
                self.directories.fetch_add(1, Ordering::Relaxed);
                self.bar.inc(1);
                self.note(&path, self.list(queue, &path, device));
            }
            Task::Part(path, offset) => {
                let outcome = self.read(queue, &path, offset);
                self.note(&path, outcome);
            }
            Task::Other => {}
        }
    }

    fn list(&self, queue: &Queue<Task>, path: &Path, device: u64) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let path = entry.path();
            // Symbolic links are not followed, and other file systems mounted inside the tree are skipped.
            match entry.metadata() {
                Ok(metadata) if metadata.dev() != device => {}
                Ok(metadata) => match self.task(path, &metadata) {
                    task @ Task::Part(..) if queue.waiting() >= MAX_WAITING => self.step(queue, task),
                    Task::Other => {}
                    task => queue.push(task),
                },
                Err(error) => self.note(&path, Err(error)),
            }
        }
        Ok(())
    }

    /// Reads one part of a file. The first part's task also queues the other parts.
    fn read(&self, queue: &Queue<Task>, path: &Path, offset: u64) -> io::Result<()> {
        let file = File::open(path)?;
        if offset == 0 {
            let parts = file.metadata()?.len().div_ceil(PART_BYTES);
            // In reverse order, because the newest task runs first.
            (1..parts).rev().for_each(|part| queue.push(Task::Part(path.to_owned(), part * PART_BYTES)));
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut at, end) = (offset, offset + PART_BYTES);
        while at < end && !self.interrupt.is_set() {
            let most = BUFFER_BYTES.min((end - at) as usize);
            match file.read_at(&mut buffer[..most], at)? {
                0 => break,
                read => at += read as u64,
            }
        }
        self.bytes.fetch_add(at - offset, Ordering::Relaxed);
        Ok(())
    }

    /// Notes a failure. The walk begins at paths that exist, so a path that does not exist was removed
    /// meanwhile, which is no failure.
    fn note(&self, path: &Path, outcome: io::Result<()>) {
        match outcome {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.failures.note(path, &error),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_removed_during_the_walk_is_no_failure() {
        let failures = Failures::new("read");
        let interrupt = Interrupt::never();
        let walk = Walk {
            metadata_only: false,
            interrupt: &interrupt,
            bar: ProgressBar::hidden(),
            directories: AtomicU64::new(0),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            failures: &failures,
        };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("f"), "text").unwrap();
        let gone = dir.path().join("gone");
        let tasks = [
            Task::Dir(dir.path().to_owned(), fs::metadata(dir.path()).unwrap().dev()),
            Task::Part(gone.clone(), 0),
            Task::Dir(gone, 0),
        ];
        pool::run(1, tasks.into(), |queue, task| walk.step(queue, task));
        assert_eq!((failures.count(), walk.bytes.load(Ordering::Relaxed)), (0, 4));
        let dir = dir.path().join("f");
        pool::run(1, vec![Task::Dir(dir, 0)], |queue, task| walk.step(queue, task));
        assert_eq!(failures.count(), 1);
    }
}
