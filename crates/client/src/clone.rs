//! Copies trees by reference. `ops/src/clone.rs` says how a copy is built and why nobody sees a part of it.
//!
//! Several threads take tasks from a stack. A task is a directory of the source whose copy exists, but whose
//! entries are not copied yet. A thread lists directories until it has entries for one transaction, copies
//! the entries, and adds the subdirectories among them to the stack. So a transaction has many entries even
//! if directories are small. The newest task is taken first, so few tasks wait: memory depends on the depth
//! of the tree and the number of files with several names, not on the number of files.
//!
//! Lock order: `tasks`, `numbers` and `links` are never held together, nor during a request, except `numbers`
//! during the request for more numbers.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use meta::{Counter, EngineError, ErrorKind, Inode, Record, RecordKey, Scan, ScanInclude};
use ops::{
    BeginClone, CLONED_CHUNKS, CloneChunks, CloneEntries, CloneEntry, CloneSource, ClonedEntry, EndClone,
    Reap,
};
use types::{CHUNK_BYTES, ChunkIndex, Errno, FileType, Ino, Name, SessionId};

use crate::driver::{BY_KERNEL, Meta};
use crate::failure::Failure;

/// About how many records one transaction copies: entries, rows of files and blocks of extended attributes.
const RECORDS_AT_ONCE: usize = 1024;
/// Entries that are listed at a time.
const PAGE: usize = 512;
/// The maximum number of inode numbers that are leased at a time. The first leases are smaller.
const MAX_LEASE: u64 = 1 << 14;

/// A copy to make.
#[derive(Clone, Debug)]
pub struct CloneRequest {
    pub source: Ino,
    /// The directory and name of the copy.
    pub parent: Ino,
    pub name: Name,
    pub threads: usize,
}

/// The amount copied so far. Another thread may read it meanwhile.
#[derive(Debug, Default)]
pub struct CloneProgress {
    pub inodes: AtomicU64,
    pub directories: AtomicU64,
    /// The sum of the sizes of the files.
    pub bytes: AtomicU64,
}

/// Why a copy was not made.
#[derive(Debug, thiserror::Error)]
pub enum CloneError {
    #[error("interrupted")]
    Interrupted,
    /// The quota of the directory that gets the copy was set or removed during the copy.
    #[error("the quota of the target directory has changed during the copy")]
    QuotaChanged,
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// The error of a copy, and whether all of its parts are certainly removed. If not, they are removed when the
/// session has ended, unless a commit in doubt has given the copy its name.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CloneFailure {
    pub error: CloneError,
    pub is_removed: bool,
}

impl Meta {
    /// Copies a file, or a directory with everything below it, by reference. The copy appears under its name
    /// at one moment. If `stop` returns true, the copy ends with [`CloneError::Interrupted`]. After an error,
    /// the parts that were already copied are removed. If `leave` returns true, the removal ends, and the
    /// clean-up after the session removes the rest.
    ///
    /// # Errors
    /// Those of [`BeginClone`], [`CloneEntries`], [`CloneChunks`] and [`EndClone`]; [`CloneError`].
    pub fn clone_tree(
        &self,
        request: &CloneRequest,
        progress: &CloneProgress,
        stop: &(dyn Fn() -> bool + Sync),
        leave: &dyn Fn() -> bool,
    ) -> Result<Inode, CloneFailure> {
        let kept = |error| CloneFailure { error, is_removed: true };
        // The copy reads everything from the engine, so the engine must have the held records.
        self.give_back().map_err(|failure| kept(failure.into()))?;
        let source = self.clone_source(request.source).map_err(|failure| kept(failure.into()))?;
        let numbers = Numbers::default();
        let root = numbers.take(self).map_err(|failure| kept(failure.into()))?;
        let (parent, name) = (request.parent, request.name.clone());
        let mut begin = BeginClone { source, ino: root, parent, name, max_chunks: CLONED_CHUNKS };
        let (source, session) = loop {
            match self.run(&begin, &BY_KERNEL) {
                Ok(begun) => break begun,
                Err(Failure::Engine(error)) if error.is_refusal() && begin.max_chunks > 1 => {
                    begin.max_chunks /= 2;
                }
                Err(failure) => {
                    let is_removed = !is_doubtful(&failure);
                    return Err(CloneFailure { error: failure.into(), is_removed });
                }
            }
        };
        let BeginClone { name, max_chunks, .. } = begin;
        let cloner = Cloner {
            meta: self,
            request,
            progress,
            stop,
            session,
            root,
            numbers,
            links: Mutex::default(),
            tasks: Mutex::default(),
            changed: Condvar::new(),
            records_at_once: AtomicUsize::new(RECORDS_AT_ONCE),
            chunks_at_once: AtomicU64::new(max_chunks),
            subdirectories: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
            error: Mutex::default(),
        };
        let copied = cloner.run(&source);
        let mut may_end = false;
        let done = copied.and_then(|()| {
            let subdirectories = cloner.subdirectories.load(Ordering::Relaxed);
            let end = EndClone { session, root, parent, name, subdirectories };
            self.run(&end, &BY_KERNEL).map_err(|failure| {
                // The copy may still get its name.
                may_end = is_doubtful(&failure);
                match failure {
                    Failure::Operation(Errno::EXDEV) => CloneError::QuotaChanged,
                    failure => failure.into(),
                }
            })
        });
        done.map_err(|error| {
            let is_removed = !may_end && self.reap(&[Reap { session, ino: root }], leave).is_ok();
            CloneFailure { error, is_removed }
        })
    }

    fn clone_source(&self, ino: Ino) -> Result<CloneSource, Failure> {
        match self.retry(|| self.engine().read(&[RecordKey::Inode(ino)]))?.records.first() {
            Some(Record::Inode(_, Some(inode))) => Ok(CloneSource::new(inode)),
            _ => Err(Errno::ENOENT.into()),
        }
    }
}

/// Inode numbers that no inode ever had.
#[derive(Debug)]
struct Numbers(Mutex<(Range<u64>, u64)>);

impl Default for Numbers {
    fn default() -> Self {
        Numbers(Mutex::new((0..0, 16)))
    }
}

impl Numbers {
    fn take(&self, meta: &Meta) -> Result<Ino, Failure> {
        let mut numbers = host::lock(&self.0);
        let (left, lease) = &mut *numbers;
        if left.is_empty() {
            let first = meta.lease(Counter::Ino, *lease)?;
            *left = first..first.saturating_add(*lease);
            *lease = (*lease * 4).min(MAX_LEASE);
        }
        left.next().map(Ino).ok_or_else(|| Errno::EIO.into())
    }
}

/// A directory of the source, whose entries after `after` are to be listed and copied, and its copy.
#[derive(Debug)]
struct Task {
    from: Ino,
    to: Ino,
    after: Option<Name>,
}

#[derive(Debug, Default)]
struct Tasks {
    waiting: Vec<Task>,
    running: usize,
}

struct Cloner<'a> {
    meta: &'a Meta,
    request: &'a CloneRequest,
    progress: &'a CloneProgress,
    stop: &'a (dyn Fn() -> bool + Sync),
    session: SessionId,
    root: Ino,
    numbers: Numbers,
    /// For each file with several names: its copy, and how many of its names have not been met yet.
    links: Mutex<HashMap<Ino, (Ino, u32)>>,
    tasks: Mutex<Tasks>,
    changed: Condvar,
    /// [`RECORDS_AT_ONCE`], or less if the engine does not accept that many.
    records_at_once: AtomicUsize,
    /// How many chunks of a file one transaction copies: [`CLONED_CHUNKS`], or less if the engine does not
    /// accept that many.
    chunks_at_once: AtomicU64,
    /// The subdirectories of the root.
    subdirectories: AtomicU32,
    is_over: AtomicBool,
    error: Mutex<Option<CloneError>>,
}

/// Entries for the next transaction.
#[derive(Default)]
struct Gathered {
    entries: Vec<CloneEntry>,
    sizes: Vec<usize>,
    size: usize,
}

impl Cloner<'_> {
    fn run(&self, source: &Inode) -> Result<(), CloneError> {
        self.count(source);
        if source.kind.is_dir() {
            self.push(vec![Task { from: source.ino, to: self.root, after: None }]);
            host::with_helpers("limen-clone", self.request.threads.saturating_sub(1), &|| self.work());
        } else {
            self.copy_rest(source, self.root, self.chunks_at_once.load(Ordering::Relaxed))?;
        }
        if (self.stop)() {
            return Err(CloneError::Interrupted);
        }
        match self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            // A thread that panicked has left its tasks undone.
            None if self.lock_tasks().running > 0 || !self.lock_tasks().waiting.is_empty() => {
                Err(Failure::from(EngineError::permanent("a thread of the copy has panicked")).into())
            }
            None => Ok(()),
        }
    }

    fn count(&self, inode: &Inode) {
        self.progress.inodes.fetch_add(1, Ordering::Relaxed);
        match inode.kind {
            FileType::Directory => _ = self.progress.directories.fetch_add(1, Ordering::Relaxed),
            FileType::Regular => _ = self.progress.bytes.fetch_add(inode.size, Ordering::Relaxed),
            _ => {}
        }
    }

    fn lock_tasks(&self) -> std::sync::MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, tasks: Vec<Task>) {
        if !tasks.is_empty() {
            self.lock_tasks().waiting.extend(tasks);
            self.changed.notify_all();
        }
    }

    /// Runs tasks until none is left.
    fn work(&self) {
        while let Some(task) = self.take() {
            let mut running = Running { cloner: self, is_done: false };
            if let Err(error) = self.copy_from(task) {
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                self.is_over.store(true, Ordering::Release);
            }
            running.is_done = true;
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || (self.stop)()
    }

    /// The next task; `None` if all are done, or if the work is to end.
    fn take(&self) -> Option<Task> {
        let mut tasks = self.lock_tasks();
        loop {
            if self.is_over() {
                return None;
            }
            if let Some(task) = tasks.waiting.pop() {
                tasks.running += 1;
                return Some(task);
            }
            if tasks.running == 0 {
                return None;
            }
            tasks = host::wait(&self.changed, &self.tasks, tasks);
        }
    }

    /// Copies the next entries of a directory, and then of other waiting directories, until there are enough
    /// for one transaction. Directories are listed in whole pages, so there may be more entries than that.
    fn copy_from(&self, first: Task) -> Result<(), CloneError> {
        let mut gathered = Gathered::default();
        let mut next = Some(first);
        while let Some(task) = next {
            self.list(task, &mut gathered)?;
            let is_full = gathered.size >= self.records_at_once.load(Ordering::Relaxed) || self.is_over();
            next = if is_full { None } else { self.lock_tasks().waiting.pop() };
        }
        let mut below = Vec::new();
        let copied = self.copy(&gathered, &mut below)?;
        for (entry, (cloned, chunks)) in gathered.entries.iter().zip(copied) {
            if let ClonedEntry::Copied(source) = cloned {
                self.count(&source);
                self.copy_rest(&source, entry.ino, chunks)?;
            }
        }
        self.push(below);
        Ok(())
    }

    /// Lists the next entries of a directory.
    fn list(&self, task: Task, gathered: &mut Gathered) -> Result<(), CloneError> {
        let Task { from, to, after } = task;
        let page =
            self.meta.scan(&Scan::Dir { parent: from, after, limit: PAGE, include: ScanInclude::Inodes })?;
        let mut records = page.snapshot.records.into_iter().peekable();
        let mut last = None;
        while let Some(record) = records.next() {
            let Record::Dirent(_, name, Some(dirent)) = record else { continue };
            last = Some(name.clone());
            let is_inode =
                |record: &Record| matches!(record, Record::Inode(ino, Some(_)) if *ino == dirent.ino);
            let Some(Record::Inode(_, Some(inode))) = records.next_if(is_inode) else {
                tracing::error!(dir = %from, ?name, "the entry of a directory has no inode");
                return Err(Failure::from(Errno::EIO).into());
            };
            if inode.kind.is_dir() && inode.parent != from {
                // The directory was renamed or is damaged. If it is damaged, the walk could go in a circle.
                continue;
            }
            let is_linked = !inode.kind.is_dir() && inode.nlink > 1;
            let ino = if is_linked { self.copy_of(&inode)? } else { self.numbers.take(self.meta)? };
            let source = CloneSource::new(&inode);
            let size = source.size_in_records(&inode);
            gathered.sizes.push(size);
            gathered.size += size;
            gathered.entries.push(CloneEntry { source, parent: to, name, ino, is_linked });
        }
        if page.more && last.is_some() {
            self.push(vec![Task { from, to, after: last }]);
        }
        Ok(())
    }

    /// The inode number of the copy of a file with several names.
    fn copy_of(&self, inode: &Inode) -> Result<Ino, Failure> {
        let known = |links: &mut HashMap<Ino, (Ino, u32)>| {
            let (copy, left) = links.get_mut(&inode.ino)?;
            let copy = *copy;
            *left -= 1;
            if *left == 0 {
                links.remove(&inode.ino);
            }
            Some(copy)
        };
        if let Some(copy) = known(&mut self.links.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(copy);
        }
        let number = self.numbers.take(self.meta)?;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have met another name of the file meanwhile.
        if let Some(copy) = known(&mut links) {
            return Ok(copy);
        }
        links.insert(inode.ino, (number, inode.nlink - 1));
        Ok(number)
    }

    /// Copies entries, in as many transactions as needed. Adds the directories among them to `below`. Returns
    /// the result for each entry, and the maximum number of chunks of each file that were copied.
    fn copy(
        &self,
        gathered: &Gathered,
        below: &mut Vec<Task>,
    ) -> Result<Vec<(ClonedEntry, u64)>, CloneError> {
        let (mut entries, mut sizes) = (&gathered.entries[..], &gathered.sizes[..]);
        let mut copied = Vec::with_capacity(entries.len());
        while !entries.is_empty() {
            if self.is_over() {
                return Err(CloneError::Interrupted);
            }
            let most = self.records_at_once.load(Ordering::Relaxed);
            let mut size = 0;
            let fits = |more: &&usize| {
                size += **more;
                size <= most
            };
            let count = sizes.iter().take_while(fits).count().max(1);
            let (part, rest) = entries.split_at(count);
            let max_chunks = self.chunks_at_once.load(Ordering::Relaxed);
            let (session, root) = (self.session, self.root);
            let op = CloneEntries { session, root, entries: part, max_chunks };
            match self.meta.run(&op, &BY_KERNEL) {
                Ok(done) => {
                    for (entry, cloned) in part.iter().zip(&done) {
                        if let ClonedEntry::Copied(source) = cloned
                            && source.kind.is_dir()
                        {
                            below.push(Task { from: source.ino, to: entry.ino, after: None });
                            if entry.parent == self.root {
                                self.subdirectories.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    copied.extend(done.into_iter().map(|cloned| (cloned, max_chunks)));
                    (entries, sizes) = (rest, &sizes[count..]);
                }
                // The engine may not accept so large a transaction, or others change the files all the time.
                Err(Failure::Engine(error)) if count > 1 && error.is_refusal() => {
                    let less = sizes[..count].iter().sum::<usize>() / 2;
                    self.records_at_once.fetch_min(less.max(1), Ordering::Relaxed);
                }
                Err(Failure::Engine(error))
                    if count == 1
                        && error.is_refusal()
                        && part[0].source.size > CHUNK_BYTES
                        && max_chunks > 1 =>
                {
                    self.chunks_at_once.fetch_min(max_chunks / 2, Ordering::Relaxed);
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(copied)
    }

    /// Copies the chunks of a large file beyond the first ones, which were copied together with its inode.
    fn copy_rest(&self, source: &Inode, to: Ino, copied: u64) -> Result<(), CloneError> {
        if source.kind != FileType::Regular || source.size <= copied.saturating_mul(CHUNK_BYTES) {
            return Ok(());
        }
        let (from, session) = (source.ino, self.session);
        let run = |chunks: &[ChunkIndex], end| {
            self.meta.run(&CloneChunks { session, from, to, chunks, end }, &BY_KERNEL)
        };
        let scan = Scan::Slices { ino: from, from: ChunkIndex(copied), limit: CLONED_CHUNKS as usize };
        for page in scan.pages(|scan| self.meta.scan(scan)) {
            let chunk = |record: &Record| match record {
                Record::Slices(_, chunk, _) => Some(*chunk),
                _ => None,
            };
            let chunks: Vec<ChunkIndex> = page?.iter().filter_map(chunk).collect();
            let mut rest = &chunks[..];
            while let Some(last) = rest.len().checked_sub(1) {
                if self.is_over() {
                    return Err(CloneError::Interrupted);
                }
                let most = self.chunks_at_once.load(Ordering::Relaxed).max(1) - 1;
                let (part, after) = rest.split_at(last.min(usize::try_from(most).unwrap_or(usize::MAX)) + 1);
                let end = part.last().map_or(0, |last| (last.0 + 1).saturating_mul(CHUNK_BYTES));
                match run(part, end) {
                    Ok(()) => rest = after,
                    Err(Failure::Engine(error)) if error.is_refusal() && part.len() > 1 => {
                        self.chunks_at_once.fetch_min(part.len() as u64 / 2, Ordering::Relaxed);
                    }
                    Err(failure) => return Err(failure.into()),
                }
            }
        }
        // The end of the file may be a hole.
        Ok(run(&[], u64::MAX)?)
    }
}

/// Whether an operation may have happened, or may still happen.
fn is_doubtful(failure: &Failure) -> bool {
    matches!(failure, Failure::Engine(error) if error.kind == ErrorKind::Indeterminate)
}

/// A running task. Dropping it wakes the threads that wait for more tasks or for the end.
struct Running<'a, 'c> {
    cloner: &'a Cloner<'c>,
    /// Not set if the thread has panicked.
    is_done: bool,
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        if self.is_done {
            self.cloner.lock_tasks().running -= 1;
        } else {
            self.cloner.is_over.store(true, Ordering::Release);
        }
        self.cloner.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meta::{Counting, MemEngine, Volume};
    use ops::{Make, MakeKind, Write};
    use types::{Mode, Slice, SliceId, SliceSource, Time};

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn make(meta: &Meta, parent: Ino, text: &str, kind: MakeKind) -> Ino {
        let ino = Ino(meta.lease(Counter::Ino, 1).unwrap());
        let mode = Mode::new(0o755);
        let make = Make { parent, name: name(text), ino, kind, mode, umask: 0, uid: 0, gid: 0 };
        meta.run(&make, &BY_KERNEL).unwrap().ino
    }

    /// The cost of a copy depends on the number of entries, not on the number of directories that they are
    /// in.
    #[test]
    fn a_thousand_files_are_copied_with_few_round_trips() {
        for (directories, scans) in [(1, 2), (10, 10)] {
            let engine = Arc::new(Counting::new(MemEngine::default()));
            Volume::in_memory("test").format(&*engine).unwrap();
            let meta = Meta::open(engine.clone(), 100_000).unwrap();
            let src = make(&meta, Ino::ROOT, "src", MakeKind::Directory);
            for n in 0..1000 {
                let (dir, text) = (format!("{}", n % directories), format!("file-{n}"));
                let dir = match n < directories {
                    true => make(&meta, src, &dir, MakeKind::Directory),
                    false => {
                        meta.run(&ops::Lookup { parent: src, name: name(&dir) }, &BY_KERNEL)
                            .unwrap()
                            .unwrap()
                            .ino
                    }
                };
                let ino = make(&meta, dir, &text, MakeKind::Regular);
                let source = SliceSource::Blocks { id: SliceId(n + 1), offset: 0, size: 9 };
                let slices = vec![(ChunkIndex(0), Slice { pos: 0, len: 9, source })];
                meta.run(&Write { ino, slices, end: 9, mtime: Time::now() }, &BY_KERNEL).unwrap();
            }
            let request = CloneRequest { source: src, parent: Ino::ROOT, name: name("copy"), threads: 1 };
            let progress = CloneProgress::default();
            let before = engine.counts();
            meta.clone_tree(&request, &progress, &|| false, &|| false).unwrap();
            let cost = engine.counts() - before;
            assert_eq!(progress.inodes.into_inner(), 1001 + directories);
            // One page of the root, then each directory in pages of 512 entries.
            assert_eq!(cost.scans, 1 + scans, "{directories} directories");
            // These are requests for the source, for the begin and the end of the copy, for four leases of
            // numbers, and for three transactions: one has the directories, and two have the files, which are
            // two records each.
            assert!(cost.reads <= 15 && cost.commits <= 12, "{directories} directories: {cost:?}");
        }
    }
}
