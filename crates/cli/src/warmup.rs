//! `limen warmup`: reads trees with several threads, so that later readers find them in the caches.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::interrupt::Interrupt;
use command::output::{self, ProgressBar};
use command::pool::{self, Queue};
use command::units::{parse_threads, show_size};
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  limen warmup /mnt/project
      the kernel's and the mount's caches keep the data as long as they have room")]
pub(crate) struct WarmupArgs {
    /// Files or directories, on any file system
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Read names and attributes only, not file data
    #[arg(long)]
    metadata: bool,
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
/// Errors are shown for this many files; further ones are only counted.
const MAX_SHOWN: u64 = 10;

pub(crate) fn run(args: &WarmupArgs) -> Result<(), CliError> {
    let interrupt = Interrupt::install()?;
    let walk = Walk {
        metadata_only: args.metadata,
        interrupt: &interrupt,
        bar: output::progress("read"),
        directories: AtomicU64::new(0),
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        messages: Mutex::default(),
    };
    let mut first = Vec::with_capacity(args.paths.len());
    for path in &args.paths {
        let metadata = fs::metadata(path).at(path.display())?;
        first.push(walk.task(path.clone(), &metadata));
    }
    pool::run(args.threads, first, |queue, task| walk.step(queue, task));
    walk.bar.finish_and_clear();
    let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (directories, files) = (value(&walk.directories), value(&walk.files));
    let (bytes, failed) = (value(&walk.bytes), value(&walk.failed));
    for line in walk.messages.into_inner().unwrap_or_else(PoisonError::into_inner) {
        output::note(line);
    }
    output::result(
        args.json,
        || json!({ "directories": directories, "files": files, "bytes": bytes, "failed": failed }),
        || format!("Read {directories} directories and {files} files with {}.\n", show_size(bytes)),
    )?;
    interrupt.check()?;
    match failed {
        0 => Ok(()),
        _ => Err(CliError::new(format!("{failed} files or directories could not be read"))),
    }
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
    failed: AtomicU64,
    messages: Mutex<Vec<String>>,
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

    fn note(&self, path: &Path, outcome: io::Result<()>) {
        if let Err(error) = outcome
            && self.failed.fetch_add(1, Ordering::Relaxed) < MAX_SHOWN
        {
            let line = format!("cannot read {}: {error}", path.display());
            self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }
}
