//! The walk over all names.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use meta::{AclKind, Beside, Engine, Node, Record, Scan, Want};
use types::{FileType, Ino, Name};

use super::class::Above;
use super::texts::Texts;
use super::{Audit, AuditError, Classes, Kind, Met, Progress, Seen, Start, View};
use crate::Trouble;
use crate::route::join;

/// Entries read at once, some 200 bytes each.
const PAGE: usize = 8192;

/// From so many directories within one another on, pages become small, for one of each is held.
const DEEP: usize = 32;
const PAGE_DEEP: usize = 64;

/// How many directories above the start are climbed, should the volume be damaged.
const MAX_DEPTH: usize = 1 << 16;

pub(super) struct Audited<'a> {
    pub(super) engine: &'a dyn Engine,
    pub(super) acl: AclKind,
    pub(super) before: &'a View,
    pub(super) after: Option<&'a View>,
    pub(super) progress: &'a Progress<'a>,
}

/// A directory to read, from somewhere in it on.
#[derive(Debug)]
struct Task {
    dir: Ino,
    after: Option<Name>,
    depth: usize,
    /// What each view has of it; none where it is damaged.
    above: [Option<Above>; 2],
    /// Whether each view's edit is of all that is in it.
    inside: [bool; 2],
    /// Kept only for lists.
    path: Option<Vec<u8>>,
}

/// A name, and the inode that it leads to.
struct Entry {
    name: Name,
    kind: FileType,
    node: Option<Node>,
}

/// What one thread remembers and counts.
struct Reader<'a> {
    audited: &'a Audited<'a>,
    texts: Texts<'a>,
    before: Classes<'a>,
    /// None where nothing is thought to be different.
    after: Option<Classes<'a>>,
    audit: Audit,
}

type Each<'a, E> = Option<&'a mut dyn FnMut(Met<'_>) -> Result<(), E>>;

impl Audited<'_> {
    pub(super) fn list<E: From<AuditError>>(
        &self,
        start: &Start,
        each: &mut dyn FnMut(Met<'_>) -> Result<(), E>,
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
            // Where no thread can be had, this one alone does it too.
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

    /// A directory and those above it, the root first.
    fn climb(&self, dir: Ino) -> Result<Vec<Node>, AuditError> {
        let mut chain = Vec::new();
        let mut at = dir;
        loop {
            let found =
                self.engine.read(&[Want::Node(at)])?.records.into_iter().find_map(|record| match record {
                    Record::Node(_, node) => node,
                    _ => None,
                });
            let lost = Trouble::Damaged { ino: at.0, what: "the directories above it lead nowhere" };
            let node = found.filter(|_| chain.len() < MAX_DEPTH).ok_or(lost)?;
            if !node.kind.is_dir() {
                return Err(AuditError::NoDirectory);
            }
            chain.push(node);
            if at == Ino::ROOT {
                chain.reverse();
                return Ok(chain);
            }
            at = node.parent;
        }
    }
}

impl<'a> Reader<'a> {
    fn new(audited: &'a Audited<'a>) -> Self {
        Reader {
            audited,
            texts: Texts::new(audited.engine),
            before: Classes::new(audited.before, audited.acl),
            after: audited.after.map(|view| Classes::new(view, audited.acl)),
            audit: Audit::default(),
        }
    }

    fn finish(self) -> Audit {
        let decisions = self.before.decisions + self.after.map_or(0, |after| after.decisions);
        Audit { decisions, ..self.audit }
    }

    /// Judges the way down to the first directory, and counts that.
    fn begin<E: From<AuditError>>(
        &mut self,
        start: &Start,
        with_paths: bool,
        each: &mut Each<'_, E>,
    ) -> Result<Task, E> {
        let chain = self.audited.climb(start.dir)?;
        let mut task = Task {
            dir: Ino::ROOT,
            after: None,
            depth: 0,
            above: [None; 2],
            inside: [false; 2],
            path: with_paths.then(|| start.path.clone()),
        };
        let last = chain.len().saturating_sub(1);
        for (depth, node) in chain.iter().enumerate() {
            let ahead = chain.get(depth + 1..).unwrap_or_default().iter();
            let (seen, above, inside) = self.judge(node, (depth > 0).then_some(&task), ahead)?;
            task = Task { dir: node.ino, above, inside, ..task };
            if depth == last {
                self.tell(&start.path, node.kind, seen, each)?;
            }
        }
        Ok(task)
    }

    /// Reads a page of a directory; what is left to read comes back, to be taken from its end.
    fn read<E: From<AuditError>>(&mut self, task: Task, each: &mut Each<'_, E>) -> Result<Vec<Task>, E> {
        let limit = if task.depth < DEEP { PAGE } else { PAGE_DEEP };
        let scan = Scan::Dir { parent: task.dir, after: task.after.clone(), limit, beside: Beside::Nodes };
        let page = self.audited.engine.scan(&scan).map_err(AuditError::from)?;
        let mut entries: Vec<Entry> = Vec::with_capacity(page.facts.records.len() / 2);
        for record in page.facts.records {
            match record {
                Record::Edge(_, name, Some(edge)) => {
                    entries.push(Entry { name, kind: edge.kind, node: None });
                }
                Record::Node(_, node) => {
                    if let Some(last) = entries.last_mut() {
                        last.node = node;
                    }
                }
                _ => {}
            }
        }
        let mut below = Vec::new();
        let mut rest = entries.as_slice();
        while let [Entry { name, kind, node }, ahead @ ..] = rest {
            rest = ahead;
            let path = task.path.as_ref().map(|dir| join(dir, name.as_bytes()));
            let shown = path.as_deref().unwrap_or_default();
            match node {
                None => {
                    self.audit.damaged += 1;
                    self.tell(shown, *kind, [Seen::default(); 2], each)?;
                }
                Some(node) => {
                    let ahead = ahead.iter().filter_map(|entry| entry.node.as_ref());
                    let (seen, above, inside) = self.judge(node, Some(&task), ahead)?;
                    self.tell(shown, node.kind, seen, each)?;
                    // A directory that says it lies elsewhere is damage; to follow it could go round in a circle.
                    if node.kind.is_dir() && node.parent == task.dir {
                        let depth = task.depth + 1;
                        below.push(Task { dir: node.ino, after: None, depth, above, inside, path });
                    }
                }
            }
        }
        (self.audited.progress)(entries.len() as u64);
        let last = entries.pop().map(|entry| entry.name);
        // The rest of this directory comes after all that was found in it.
        below.reverse();
        if page.more && last.is_some() {
            below.insert(0, Task { after: last, ..task });
        }
        Ok(below)
    }

    /// What each view may do with an inode in the directory of `task`, or with the root.
    #[expect(clippy::type_complexity, reason = "three things of two views each, taken apart at once")]
    fn judge<'n>(
        &mut self,
        node: &Node,
        task: Option<&Task>,
        ahead: impl Iterator<Item = &'n Node> + Clone,
    ) -> Result<([Seen; 2], [Option<Above>; 2], [bool; 2]), AuditError> {
        let texts = &mut self.texts;
        let mut judged = |classes: &mut Classes<'_>, view: usize| {
            let edited = classes.is_edited(node, task.is_some_and(|task| task.inside[view]));
            let inside = edited && classes.is_recursive();
            let above = task.map(|task| task.above[view]);
            // Nothing is above the root.
            let reached = above.is_none_or(|above| above.is_some_and(|above| above.searched));
            let Some(decided) = classes.decide(node, edited, texts, ahead.clone())? else {
                return Ok((Seen { reached, ..Seen::default() }, None, inside));
            };
            let rights = if reached {
                classes.rights(node.kind, above.flatten().as_ref(), &decided)
            } else {
                Default::default()
            };
            Ok::<_, AuditError>((Seen { reached, rights }, Some(classes.above(reached, decided)), inside))
        };
        let (seen, above, inside) = judged(&mut self.before, 0)?;
        let (seen_after, above_after, inside_after) = match &mut self.after {
            Some(after) => judged(after, 1)?,
            None => (seen, above, inside),
        };
        if above.is_none() {
            self.audit.damaged += 1;
        }
        Ok(([seen, seen_after], [above, above_after], [inside, inside_after]))
    }

    fn tell<E>(
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
            Some(each) => each(Met { path, kind, before, after }),
            None => Ok(()),
        }
    }
}

/// The directories that wait. The newest goes first, so that a walk goes deep before it goes broad, and keeps few.
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

    /// `None` when all is done, or nothing more is to be.
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

/// A task under way; it ends even by a panic, so that nobody waits for it for ever.
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
