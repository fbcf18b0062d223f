//! Sends a request to a mount for each file of a tree, with several threads: for `limen compact` and
//! `limen warmup`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use command::error::{CliError, ErrorAt};
use command::file_requests::{FileRequest, FileRequests, MAX_CONNECTIONS};
use command::interrupt::Interrupt;
use command::output::{self, ProgressBar};
use command::pool::{self, Queue};
use command::registry::Entry;
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde_json::Value;

use crate::target::{attributes_of, mount_of};

/// If this many tasks wait, a thread that finds another file sends the request for that file itself.
const MAX_WAITING: usize = 10_000;
/// Errors are shown for this many files; further ones are only counted.
const MAX_SHOWN: u64 = 10;

/// The files and directories for which the command failed.
#[derive(Debug)]
pub(crate) struct Failures {
    /// The verb of messages: "cannot VERB PATH".
    verb: &'static str,
    count: AtomicU64,
    messages: Mutex<Vec<String>>,
}

impl Failures {
    pub(crate) fn new(verb: &'static str) -> Self {
        Failures { verb, count: AtomicU64::new(0), messages: Mutex::default() }
    }

    pub(crate) fn note(&self, path: &Path, error: &dyn std::fmt::Display) {
        if self.count.fetch_add(1, Ordering::Relaxed) < MAX_SHOWN {
            let line = format!("cannot {} {}: {error}", self.verb, path.display());
            self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn show(&self) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(output::note);
    }

    /// # Errors
    /// The command failed for a file or directory.
    pub(crate) fn result(&self) -> Result<(), CliError> {
        match self.count() {
            0 => Ok(()),
            failed => {
                Err(CliError::new(format!("cannot {} {failed} of the files or directories", self.verb)))
            }
        }
    }
}

/// A tree on a mount.
pub(crate) struct EachFile<'a> {
    path: PathBuf,
    metadata: Metadata,
    entry: Entry,
    request: FileRequest,
    interrupt: &'a Interrupt,
    bar: &'a ProgressBar,
    failures: &'a Failures,
}

enum Task {
    Dir(PathBuf),
    File(PathBuf, u64),
}

impl<'a> EachFile<'a> {
    /// # Errors
    /// The path does not exist, or is not on a limenfs mount of this user or root.
    pub(crate) fn new(
        path: &Path,
        request: FileRequest,
        interrupt: &'a Interrupt,
        bar: &'a ProgressBar,
        failures: &'a Failures,
    ) -> Result<Self, CliError> {
        let metadata = attributes_of(path)?;
        let entry = mount_of(path)?;
        Ok(EachFile { path: path.to_owned(), metadata, entry, request, interrupt, bar, failures })
    }

    /// # Errors
    /// The mount is read-only.
    pub(crate) fn require_writable(&self) -> Result<(), CliError> {
        match statvfs(&self.path).at(self.path.display())?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            true => Err(CliError::new("the mount is read-only").at(self.entry.mountpoint.display())),
            false => Ok(()),
        }
    }

    /// Sends the request for each regular file that is not empty. `take` gets the answers.
    ///
    /// # Errors
    /// The mount does not answer.
    pub(crate) fn run(&self, threads: usize, take: &(dyn Fn(&Value) + Sync)) -> Result<(), CliError> {
        let requests = FileRequests::new(&self.entry, self.request, self.interrupt);
        // Find out before the walk whether the mount answers.
        requests.connect_first().at(self.entry.mountpoint.display())?;
        let walk = Walk { each: self, requests, take };
        let first = walk.task(self.path.clone(), &self.metadata);
        // Each thread has a connection.
        let threads = threads.min(MAX_CONNECTIONS);
        pool::run(threads, first.into_iter().collect(), |queue, task| walk.step(queue, task));
        Ok(())
    }
}

struct Walk<'a> {
    each: &'a EachFile<'a>,
    requests: FileRequests<'a>,
    take: &'a (dyn Fn(&Value) + Sync),
}

impl Walk<'_> {
    /// The task for a path; other file systems that are mounted below are skipped.
    fn task(&self, path: PathBuf, metadata: &Metadata) -> Option<Task> {
        match metadata.is_dir() {
            _ if metadata.dev() != self.each.entry.device => None,
            true => Some(Task::Dir(path)),
            false if metadata.is_file() && metadata.len() > 0 => Some(Task::File(path, metadata.ino())),
            false => None,
        }
    }

    fn step(&self, queue: &Queue<Task>, task: Task) {
        let EachFile { interrupt, bar, failures, .. } = self.each;
        if interrupt.is_set() {
            return;
        }
        match task {
            Task::Dir(path) => match self.list(queue, &path) {
                // The directory was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failures.note(&path, &error),
                Ok(()) => {}
            },
            Task::File(path, ino) => {
                bar.inc(1);
                match self.requests.ask(ino) {
                    Ok(answer) => (self.take)(&answer),
                    Err(error) if !interrupt.is_set() => failures.note(&path, &error),
                    Err(_) => {}
                }
            }
        }
    }

    fn list(&self, queue: &Queue<Task>, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let path = entry.path();
            match entry.metadata() {
                Ok(metadata) => match self.task(path, &metadata) {
                    Some(task @ Task::File(..)) if queue.waiting() >= MAX_WAITING => self.step(queue, task),
                    Some(task) => queue.push(task),
                    None => {}
                },
                // The file was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.each.failures.note(&path, &error),
            }
        }
        Ok(())
    }
}
