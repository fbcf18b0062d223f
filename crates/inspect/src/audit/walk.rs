//! The walk over all names.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use meta::{Engine, Inode, Record, Scan, ScanInclude, Volume};
use types::{FileType, Ino, Name};

use super::class::{Classes, ParentAccess};
use super::model::{Audit, AuditError, AuditView, Kind, Progress, Seen, SeenEntry, Start, VisitedName};
use super::texts::{Texts, Undecided};
use crate::QueryError;
use crate::path::join;

/// The number of entries read at once, about 200 bytes each.
const PAGE: usize = 8192;

/// From this depth on, pages are small, because the subdirectories of one page of each directory above are
/// held in memory.
const DEEP: usize = 32;
const PAGE_DEEP: usize = 64;

/// The maximum number of directories above the start. It bounds the search for the root on a damaged volume.
const MAX_DEPTH: usize = 1 << 16;

pub(super) struct Audited<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) volume: &'a Volume,
    pub(super) before: &'a AuditView,
    pub(super) after: Option<&'a AuditView>,
    pub(super) progress: &'a Progress<'a>,
}

/// A directory to read, from the first name after `after` on.
#[derive(Debug)]
struct Task {
    dir: Ino,
    after: Option<Name>,
    depth: usize,
    /// The access to the directory in each view; `None` before the root is evaluated.
    above: [Option<ParentAccess>; 2],
    /// Whether each view's edit applies to the whole content of the directory.
    inside: [bool; 2],
    /// `None` if names are only counted.
    path: Option<Vec<u8>>,
}

/// A name, and the inode that it refers to.
struct Entry {
    name: Name,
    kind: FileType,
    inode: Option<Inode>,
}

/// The state and the counts of one thread.
struct Reader<'a> {
    audited: &'a Audited<'a>,
    texts: Texts<'a>,
    before: Classes<'a>,
    /// `None` without a planned change.
    after: Option<Classes<'a>>,
    audit: Audit,
}

/// The access to an inode in each view.
struct Evaluated {
    /// The inode in the state that was evaluated.
    inode: Inode,
    seen: [Seen; 2],
    /// The access to the inode, for its entries.
    above: [ParentAccess; 2],
    inside: [bool; 2],
}

type Each<'a, E> = Option<&'a mut dyn FnMut(VisitedName<'_>) -> Result<(), E>>;

impl Audited<'_> {
    pub(super) fn list<E: From<AuditError>>(
        &self,
        start: &Start,
        each: &mut dyn FnMut(VisitedName<'_>) -> Result<(), E>,
    ) -> Result<Audit, E> {
        let mut reader = Reader::new(self);
        let first = reader.begin(start, true, &mut Some(&mut *each))?;
        let mut waiting = vec![first];
        while let Some(task) = waiting.pop() {
            waiting.extend(reader.read(task, &mut Some(&mut *each))?);
        }
        Ok(reader.finish())
    }

    pub(super) fn count(&self, start: &Start, threads: usize) -> Result<Audit, AuditError> {
        let mut reader = Reader::new(self);
        let first = reader.begin::<AuditError>(start, false, &mut None)?;
        let tasks = Tasks::new(first);
        let serve = |mut reader: Reader<'_>| -> Result<Audit, AuditError> {
            while let Some(task) = tasks.take() {
                let _working = Working(&tasks);
                match reader.read::<AuditError>(task, &mut None) {
                    Ok(more) => tasks.push(more),
                    Err(error) => {
                        tasks.abandon();
                        return Err(error);
                    }
                }
            }
            Ok(reader.finish())
        };
        thread::scope(|scope| {
            // If no thread can be started, this one does all the work.
            let others: Vec<_> = (1..threads)
                .filter_map(|_| {
                    let work = || serve(Reader::new(self));
                    thread::Builder::new().name("limen-audit".into()).spawn_scoped(scope, work).ok()
                })
                .collect();
            let mut all = serve(reader);
            for other in others {
                let counted = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all = all.and_then(|mut all| {
                    all.merge(&counted?);
                    Ok(all)
                });
            }
            all
        })
    }

    pub(super) fn entries(
        &self,
        dir: Ino,
        after: Option<Name>,
        limit: usize,
    ) -> Result<(Vec<SeenEntry>, bool), AuditError> {
        let mut reader = Reader::new(self);
        let start = Start { dir, path: Vec::new() };
        let task = reader.begin::<AuditError>(&start, false, &mut None)?;
        let (entries, more) = reader.page(dir, after, limit)?;
        let mut seen = Vec::with_capacity(entries.len());
        for (at, Entry { name, kind, inode }) in entries.iter().enumerate() {
            let ahead = entries.get(at + 1..).unwrap_or_default().iter();
            let ahead = ahead.filter_map(|entry| entry.inode.as_ref());
            let (inode, sees, above) = match inode {
                None => (None, Seen::default(), None),
                Some(inode) => {
                    let Some(found) = reader.evaluate(inode, Some(&task), ahead)? else { continue };
                    (Some(found.inode), found.seen[0], Some(found.above[0]))
                }
            };
            let listed = above.is_some_and(|above| above.is_listed());
            seen.push(SeenEntry { name: name.clone(), kind: *kind, inode, seen: sees, listed });
        }
        Ok((seen, more))
    }
}

impl<'a> Reader<'a> {
    fn new(audited: &'a Audited<'a>) -> Self {
        Reader {
            audited,
            texts: Texts::new(audited.engine),
            before: Classes::new(audited.before, audited.volume),
            after: audited.after.map(|view| Classes::new(view, audited.volume)),
            audit: Audit::default(),
        }
    }

    fn finish(self) -> Audit {
        let decisions = self.before.decisions + self.after.map_or(0, |after| after.decisions);
        Audit { decisions, ..self.audit }
    }

    /// Evaluates the directories from the root to the start, and counts the start.
    fn begin<E: From<AuditError>>(
        &mut self,
        start: &Start,
        with_paths: bool,
        each: &mut Each<'_, E>,
    ) -> Result<Task, E> {
        let chain = self.ancestors(start.dir)?;
        let mut task = Task {
            dir: Ino::ROOT,
            after: None,
            depth: 0,
            above: [None; 2],
            inside: [false; 2],
            path: with_paths.then(|| start.path.clone()),
        };
        let last = chain.len().saturating_sub(1);
        for (depth, inode) in chain.iter().enumerate() {
            let ahead = chain.get(depth + 1..).unwrap_or_default().iter();
            let evaluated = self.evaluate(inode, (depth > 0).then_some(&task), ahead)?;
            let Evaluated { seen, above, inside, .. } = evaluated.ok_or(AuditError::Gone)?;
            task = Task { dir: inode.ino, above: above.map(Some), inside, ..task };
            if depth == last {
                self.report(&start.path, inode.kind, seen, each)?;
            }
        }
        Ok(task)
    }

    /// A directory and those above it, the root first. Each is read with its ACL.
    fn ancestors(&mut self, dir: Ino) -> Result<Vec<Inode>, AuditError> {
        let mut chain: Vec<Inode> = Vec::new();
        let mut at = dir;
        loop {
            // A removed directory without a link may still be open.
            let found = self.texts.inode(at)?.filter(|inode| !inode.kind.is_dir() || inode.nlink > 0);
            let Some(inode) = found.filter(|_| chain.len() < MAX_DEPTH) else {
                let Some(child) = chain.last() else { return Err(AuditError::Gone) };
                // The directory above may have been removed after this one was removed or moved.
                let now = self.texts.inode(child.ino)?;
                let is_moved = now.is_none_or(|now| now.nlink == 0 || now.parent != child.parent);
                return Err(if is_moved { AuditError::Gone } else { lost(at) });
            };
            if !inode.kind.is_dir() {
                return Err(AuditError::NoDirectory);
            }
            chain.push(inode);
            if at == Ino::ROOT {
                chain.reverse();
                return Ok(chain);
            }
            at = inode.parent;
        }
    }

    /// Reads a page of a directory. Returns the tasks that remain; the last one is to be taken first.
    fn read<E: From<AuditError>>(&mut self, task: Task, each: &mut Each<'_, E>) -> Result<Vec<Task>, E> {
        let limit = if task.depth < DEEP { PAGE } else { PAGE_DEEP };
        let (mut entries, more) = self.page(task.dir, task.after.clone(), limit)?;
        let mut below = Vec::new();
        let mut rest = entries.as_slice();
        while let [Entry { name, kind, inode }, ahead @ ..] = rest {
            rest = ahead;
            let path = task.path.as_ref().map(|dir| join(dir, name.as_bytes()));
            let shown = path.as_deref().unwrap_or_default();
            match inode {
                None => {
                    self.audit.damaged += 1;
                    self.report(shown, *kind, [Seen::default(); 2], each)?;
                }
                Some(inode) => {
                    let ahead = ahead.iter().filter_map(|entry| entry.inode.as_ref());
                    let Some(found) = self.evaluate(inode, Some(&task), ahead)? else { continue };
                    let Evaluated { seen, above, inside, .. } = found;
                    self.report(shown, inode.kind, seen, each)?;
                    // A directory whose parent field names another directory is damage. If the walk entered
                    // it, the walk might never end.
                    if inode.kind.is_dir() && inode.parent == task.dir {
                        let depth = task.depth + 1;
                        let above = above.map(Some);
                        below.push(Task { dir: inode.ino, after: None, depth, above, inside, path });
                    }
                }
            }
        }
        (self.audited.progress)(entries.len() as u64);
        let last = entries.pop().map(|entry| entry.name);
        // The rest of this directory comes after all directories of this page.
        below.reverse();
        if more && last.is_some() {
            below.insert(0, Task { after: last, ..task });
        }
        Ok(below)
    }

    /// Reads entries of a directory with their inodes. Also returns whether there are more.
    fn page(&self, dir: Ino, after: Option<Name>, limit: usize) -> Result<(Vec<Entry>, bool), AuditError> {
        let scan = Scan::Dir { parent: dir, after, limit, include: ScanInclude::Inodes };
        let page = self.audited.engine.scan(&scan)?;
        let mut entries: Vec<Entry> = Vec::with_capacity(page.snapshot.records.len() / 2);
        for record in page.snapshot.records {
            match record {
                Record::Dirent(_, name, Some(dirent)) => {
                    entries.push(Entry { name, kind: dirent.kind, inode: None });
                }
                Record::Inode(_, inode) => {
                    if let Some(last) = entries.last_mut() {
                        last.inode = inode;
                    }
                }
                _ => {}
            }
        }
        Ok((entries, page.more))
    }

    /// Evaluates the access of each view to an inode in the directory of `task`, or to the root if `task` is
    /// `None`. If the inode got another ACL since it was read, evaluates its present state. `None` if it was
    /// removed.
    fn evaluate<'n>(
        &mut self,
        inode: &Inode,
        task: Option<&Task>,
        ahead: impl Iterator<Item = &'n Inode> + Clone,
    ) -> Result<Option<Evaluated>, AuditError> {
        let mut inode = *inode;
        loop {
            match self.evaluate_as_read(&inode, task, ahead.clone()) {
                // The inode and its present ACL were read together.
                Err(Undecided::Changed(Some(now))) => inode = now,
                Err(Undecided::Changed(None)) => return Ok(None),
                Err(Undecided::Failed(error)) => return Err(error),
                Ok(evaluated) => {
                    if evaluated.above[0].is_damaged() {
                        self.audit.damaged += 1;
                    }
                    return Ok(Some(evaluated));
                }
            }
        }
    }

    fn evaluate_as_read<'n>(
        &mut self,
        inode: &Inode,
        task: Option<&Task>,
        ahead: impl Iterator<Item = &'n Inode> + Clone,
    ) -> Result<Evaluated, Undecided> {
        let texts = &mut self.texts;
        let mut evaluated = |classes: &mut Classes<'_>, view: usize| {
            let edited = classes.is_edited(inode, task.is_some_and(|task| task.inside[view]));
            let inside = edited && classes.is_recursive();
            let above = task.map(|task| task.above[view]);
            // The root has no directory above it.
            let reached = above.is_none_or(|above| above.is_some_and(|above| above.searched));
            let decided = classes.decide(inode, edited, texts, ahead.clone())?;
            let rights = if reached {
                classes.rights(inode.kind, above.flatten().as_ref(), &decided)
            } else {
                Default::default()
            };
            Ok::<_, Undecided>((Seen { reached, rights }, classes.above(reached, decided), inside))
        };
        let before = evaluated(&mut self.before, 0)?;
        let after = match &mut self.after {
            Some(after) => evaluated(after, 1)?,
            None => before,
        };
        let [(seen, above, inside), (seen_after, above_after, inside_after)] = [before, after];
        Ok(Evaluated {
            inode: *inode,
            seen: [seen, seen_after],
            above: [above, above_after],
            inside: [inside, inside_after],
        })
    }

    fn report<E>(
        &mut self,
        path: &[u8],
        kind: FileType,
        [before, after]: [Seen; 2],
        each: &mut Each<'_, E>,
    ) -> Result<(), E> {
        let kind = match kind {
            FileType::Directory => Kind::Directory,
            FileType::Regular => Kind::File,
            _ => Kind::Other,
        };
        self.audit.add(kind, before, after);
        match each {
            Some(each) => each(VisitedName { path, kind, before, after }),
            None => Ok(()),
        }
    }
}

fn lost(ino: Ino) -> AuditError {
    QueryError::Damaged { ino: ino.0, what: "the directories above it do not lead to the root" }.into()
}

/// The directories still to be read. The newest is taken first, so that a walk goes depth first and keeps few
/// tasks.
struct Tasks {
    state: Mutex<Waiting>,
    changed: Condvar,
}

struct Waiting {
    tasks: Vec<Task>,
    working: usize,
    abandoned: bool,
}

impl Tasks {
    fn new(first: Task) -> Self {
        let state = Waiting { tasks: vec![first], working: 0, abandoned: false };
        Tasks { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn push(&self, more: Vec<Task>) {
        if !more.is_empty() {
            self.lock().tasks.extend(more);
            self.changed.notify_all();
        }
    }

    /// `None` when all tasks are done, or after [`Self::abandon`].
    fn take(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.abandoned {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                state.working += 1;
                return Some(task);
            }
            if state.working == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn abandon(&self) {
        self.lock().abandoned = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task in progress. A panic ends the task too, so that other threads do not wait forever.
struct Working<'a>(&'a Tasks);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.working -= 1;
        if state.working == 0 {
            self.0.changed.notify_all();
        }
    }
}
