//! `limen summary`: the sizes and numbers of the files below a directory.
//!
//! Several threads list directories in bulk. At the last level that is shown and below, a directory with a
//! quota is not listed, because the counter of the quota is exact. The sums of a directory are added to the
//! directory above when everything below it is counted, and only the largest entries of each directory are
//! kept. So the memory depends on what is shown, not on the size of the tree.

mod limit;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::ValueHint;
use command::error::CliError;
use command::interrupt::Interrupt;
use command::output::{self, Columns, ProgressBar};
use command::pool::{self, Queue};
use command::units::{parse_threads, show_size};
use meta::{Engine, EngineError, Inode, QuotaKey, QuotaState, Record, RecordKey, Scan, ScanInclude, Usage};
use serde_json::{Value, json};
use types::{Ino, Name, QuotaId, counted};

pub(crate) use self::limit::Limit;
use crate::modes::kind_name;
use crate::records;
use crate::target::{Target, join, path_to_json, show_name};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
USED is the size of files and extended attributes in whole 4 KiB blocks, as in quotas; INODES is the number of files and
directories, with the directory itself. A file with several names counts where it is met first.

The quota of a directory, and the volume for its root, count USED and INODES exactly at any time. A directory at the
shown depth or below that has a quota is not listed, so FILES and DIRECTORIES are unknown (-) there and above; --walk lists it. The
counters include files that are open without a name. All other directories are read from the database, 1,024 entries a
request. A concurrent change may count or not. The size of a file that is being written can be about five seconds old.

META-URL:PATH is a path from the root of a volume, mounted or not.

Examples:
  limen summary /mnt/project
  limen summary --depth 0 redis://db.example.org/1
      one request, for a volume of any size
  limen summary --depth 1 --entries 0 --csv sqlite:///var/lib/limen/home.db:/users")]
pub(crate) struct SummaryArgs {
    /// A file or directory, as PATH or META-URL:PATH
    #[arg(value_name = "PATH|META-URL:PATH", value_hint = ValueHint::AnyPath, default_value = ".")]
    target: OsString,
    /// Show what is in directories down to this depth; 0 shows only the sum
    #[arg(short, long, value_name = "N", default_value = "2", value_parser = parse_depth)]
    depth: usize,
    /// Show this many entries of each directory, the largest ones; 0 shows all
    #[arg(short, long, value_name = "N", default_value = "10")]
    entries: usize,
    /// List every directory, to tell files from directories everywhere
    #[arg(long, visible_alias = "strict")]
    walk: bool,
    /// Number of threads
    #[arg(long, value_name = "N", value_parser = parse_threads, default_value = "8")]
    threads: usize,
    /// Print CSV, with sizes in bytes
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Entries read in one request.
const PAGE: usize = 1024;

/// The number of threads that count the files below a directory for `limen info` and `limen console`.
const INFO_THREADS: usize = 8;

/// The maximum number of entries that [`children`] returns.
const CHILDREN: usize = 1000;

/// The maximum number of files with several names that are remembered until all their names were met, at
/// about 50 bytes each.
const MAX_LINKED: usize = 1 << 20;

/// The deepest level that can be shown.
const MAX_DEPTH: usize = 64;

impl SummaryArgs {
    /// Arguments for a walk of another command, which prints the result itself.
    fn of(depth: usize, entries: usize, walk: bool) -> Self {
        SummaryArgs {
            target: OsString::new(),
            depth,
            entries,
            walk,
            threads: INFO_THREADS,
            csv: false,
            json: false,
        }
    }
}

pub(crate) fn run(args: &SummaryArgs) -> Result<(), CliError> {
    let target = Target::parse(&args.target)?;
    let path = match &target {
        Target::Local(path) => path.as_os_str().as_bytes().to_vec(),
        Target::Volume(_, path) => path.clone(),
    };
    let failed = |error: CliError| error.at(target.show());
    let (database, _, ino) = target.open()?;
    let engine = database.engine();
    let mut walk = Walk::new(&*engine, args, Interrupt::install()?);
    let found = walk.run(ino, args);
    walk.bar.finish_and_clear();
    walk.interrupt.check()?;
    let row = found.map_err(failed)?;
    if args.json {
        output::print_json(&row.to_json(&path))?;
    } else if args.csv {
        let mut text = "path,bytes,inodes,files,directories\n".to_owned();
        row.to_csv(&path, &mut text);
        output::print(&text)?;
    } else {
        let mut columns = Columns::new(1, &["PATH", "USED", "INODES", "FILES", "DIRECTORIES"]);
        row.to_columns(&path, 0, &mut columns);
        output::print(&columns.render())?;
    }
    match (walk.recounted.into_inner(), walk.damaged.into_inner()) {
        (0, 0) => Ok(()),
        (more, 0) => {
            let more = counted(more, "more name was", "more names were");
            output::note(format!("more than {MAX_LINKED} files have several names; {more} counted as files"));
            Ok(())
        }
        (_, damaged) => {
            let damaged = counted(damaged, "entry is damaged and was", "entries are damaged and were");
            Err(failed(CliError::new(format!("{damaged} not counted"))).advise("see limen fsck"))
        }
    }
}

/// The sum of a directory and everything below it. With `walk`, the whole tree is counted; otherwise the
/// result is `None` unless a counter knows the sum.
///
/// # Errors
/// Those of the database; a signal.
pub(crate) fn sum(engine: &dyn Engine, ino: Ino, walk: bool) -> Result<Option<Sum>, CliError> {
    let args = SummaryArgs::of(0, 1, walk);
    let mut counting = Walk::new(engine, &args, Interrupt::install()?);
    let found = if walk {
        counting.run(ino, &args).map(|row| Some(row.sum))
    } else {
        counting.quotas().map_err(CliError::from).and_then(|counted| {
            counting.counted = counted;
            Ok(counting.counter(ino)?)
        })
    };
    counting.bar.finish_and_clear();
    counting.interrupt.check()?;
    found
}

/// The sums of a directory and of each of its entries, within a limit.
///
/// # Errors
/// Those of the database; the file does not exist.
pub(crate) fn children(engine: &dyn Engine, ino: Ino, limit: Limit) -> Result<Children, CliError> {
    let args = SummaryArgs::of(1, CHILDREN, false);
    let mut walk = Walk::new(engine, &args, Interrupt::never());
    walk.bar = ProgressBar::hidden();
    walk.limit = limit;
    let row = walk.run(ino, &args)?;
    let names = walk.names.load(Ordering::Relaxed);
    let sum = if row.kind.is_dir() { walk.counter(ino)?.unwrap_or(row.sum) } else { row.sum };
    let entries = row.entries.into_iter().map(|row| (row.name, row.kind.is_dir(), row.sum)).collect();
    Ok(Children { sum, entries, others: row.others, cut_after: row.sum.is_cut.then_some(names) })
}

/// The sum of a directory and everything below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) inodes: u64,
    blocks: u64,
    pub(crate) files: u64,
    pub(crate) directories: u64,
    /// Whether a part is from a counter, which does not tell files from directories.
    is_mixed: bool,
    /// Whether a part was not counted, because the walk has a limit.
    pub(crate) is_cut: bool,
}

/// The sums of a directory and of each of its entries.
#[derive(Debug)]
pub(crate) struct Children {
    pub(crate) sum: Sum,
    /// The largest entries, in the order of size: name, whether it is a directory, and the sum below it.
    pub(crate) entries: Vec<(Vec<u8>, bool, Sum)>,
    /// The number of other entries, and their sum.
    pub(crate) others: (u64, Sum),
    /// How many names were counted, if the walk reached its limit.
    pub(crate) cut_after: Option<u64>,
}

/// A line of the result.
#[derive(Debug)]
struct Row {
    name: Vec<u8>,
    kind: types::FileType,
    sum: Sum,
    /// The largest entries, in the order of size.
    entries: Vec<Row>,
    /// The number of other entries, and their sum.
    others: (u64, Sum),
}

/// A directory that is shown, and is being counted.
struct Node {
    parent: Option<Arc<Node>>,
    name: Vec<u8>,
    depth: usize,
    /// Tasks and shown subdirectories that are not complete.
    pending: AtomicUsize,
    found: Mutex<(Sum, Vec<Row>, (u64, Sum))>,
}

/// Lists the entries of a directory after this name, and counts them in a node.
struct Task {
    dir: Ino,
    after: Option<Name>,
    node: Arc<Node>,
    /// Whether this is the directory of the node, so that its entries are shown.
    is_own: bool,
}

struct Walk<'a> {
    engine: &'a dyn Engine,
    depth: usize,
    entries: usize,
    /// The directories with a quota.
    counted: HashMap<Ino, QuotaKey>,
    interrupt: Interrupt,
    bar: ProgressBar,
    /// Files with several names, and how many of these were not met yet.
    linked: Mutex<HashMap<Ino, u32>>,
    is_failed: AtomicBool,
    error: Mutex<Option<CliError>>,
    damaged: AtomicU64,
    /// Names of files that may have been counted by another name.
    recounted: AtomicU64,
    limit: Limit,
    /// Names that were counted.
    names: AtomicU64,
    result: Mutex<Option<Row>>,
}

impl<'a> Walk<'a> {
    fn new(engine: &'a dyn Engine, args: &SummaryArgs, interrupt: Interrupt) -> Self {
        Walk {
            engine,
            depth: args.depth,
            entries: if args.entries == 0 { usize::MAX } else { args.entries },
            counted: HashMap::new(),
            interrupt,
            bar: output::progress("entries"),
            linked: Mutex::default(),
            is_failed: AtomicBool::new(false),
            error: Mutex::default(),
            damaged: AtomicU64::new(0),
            recounted: AtomicU64::new(0),
            limit: Limit::default(),
            names: AtomicU64::new(0),
            result: Mutex::default(),
        }
    }

    fn run(&mut self, ino: Ino, args: &SummaryArgs) -> Result<Row, CliError> {
        let inode = match self.engine.read(&[RecordKey::Inode(ino)])?.records.first() {
            Some(Record::Inode(_, Some(inode))) => *inode,
            _ => return Err(CliError::new("the file does not exist any more")),
        };
        let mut row = Row::new(Vec::new(), &inode);
        if !inode.kind.is_dir() {
            return Ok(row);
        }
        if !args.walk {
            self.counted = self.quotas()?;
            if args.depth == 0
                && let Some(sum) = self.counter(ino)?
            {
                row.sum = sum;
                return Ok(row);
            }
        }
        let node = Arc::new(Node::new(None, Vec::new(), &inode));
        pool::run(args.threads, vec![Task::new(ino, node)], |queue, task| self.step(queue, task));
        let lock =
            |error: &Mutex<Option<CliError>>| error.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (lock(&self.error), self.result.lock().unwrap_or_else(PoisonError::into_inner).take()) {
            (None, Some(row)) => Ok(row),
            (error, _) => Err(error.unwrap_or_else(|| CliError::new("interrupted"))),
        }
    }

    /// The directories whose quotas count all that is below them.
    fn quotas(&self) -> Result<HashMap<Ino, QuotaKey>, EngineError> {
        let scan = Scan::Quotas { after: None, limit: records::PAGE };
        let all = records::all(self.engine, scan, |record| match record {
            Record::Quota(key @ QuotaKey::Directory(_), Some(quota)) => Some((quota.rule.root, key)),
            _ => None,
        })?;
        Ok(all.into_iter().collect())
    }

    /// The sum that a counter has for a directory at this moment; `None` if nothing counts the directory.
    fn counter(&self, dir: Ino) -> Result<Option<Sum>, EngineError> {
        let of = |inodes, blocks| Sum { inodes, blocks, is_mixed: true, ..Sum::default() };
        let used = |count: i64| count.max(0).unsigned_abs();
        if dir == Ino::ROOT {
            // A walk from the root does not find the trash.
            let trash = RecordKey::Quota(QuotaKey::Directory(QuotaId::TRASH));
            let records = self.engine.read(&[RecordKey::Usage, trash])?.records;
            let [Record::Usage(usage), Record::Quota(_, trash)] = &records[..] else { return Ok(None) };
            let trash = trash.unwrap_or_default();
            let less = |all: u64, trash: i64| all.saturating_sub(used(trash));
            return Ok(Some(of(less(usage.inodes, trash.inodes), less(usage.blocks, trash.blocks))));
        }
        let Some(key) = self.counted.get(&dir) else { return Ok(None) };
        Ok(match self.engine.read(&[RecordKey::Quota(*key)])?.records.first() {
            Some(Record::Quota(_, Some(quota)))
                if quota.rule.state == QuotaState::Settled && quota.rule.root == dir =>
            {
                Some(of(used(quota.inodes), used(quota.blocks)))
            }
            _ => None,
        })
    }

    fn step(&self, queue: &Queue<Task>, task: Task) {
        if self.is_failed.load(Ordering::Relaxed) || self.interrupt.is_set() {
            return;
        }
        if self.limit.is_reached(self.names.load(Ordering::Relaxed)) {
            // The rest of the walk ends in the same way, and each directory gets what was counted so far.
            task.node.found().0.is_cut = true;
            return self.done(task.node);
        }
        match self.page(queue, &task) {
            Ok(()) => self.done(task.node),
            Err(error) => {
                self.is_failed.store(true, Ordering::Relaxed);
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error.into());
            }
        }
    }

    fn page(&self, queue: &Queue<Task>, task: &Task) -> Result<(), EngineError> {
        let Task { dir, after, node, is_own } = task;
        let (parent, after, include) = (*dir, after.clone(), ScanInclude::Inodes);
        let page = self.engine.scan(&Scan::Dir { parent, after, limit: PAGE, include })?;
        let mut records = page.snapshot.records.into_iter().peekable();
        let (mut tasks, mut last, mut sum) = (Vec::new(), None, Sum::default());
        let is_shown = *is_own && node.depth < self.depth;
        while let Some(record) = records.next() {
            let Record::Dirent(_, name, Some(dirent)) = record else { continue };
            self.bar.inc(1);
            self.names.fetch_add(1, Ordering::Relaxed);
            let inode = match records.next_if(|record| matches!(record, Record::Inode(..))) {
                Some(Record::Inode(ino, Some(inode))) if ino == dirent.ino => inode,
                _ => {
                    self.damaged.fetch_add(1, Ordering::Relaxed);
                    last = Some(name);
                    continue;
                }
            };
            if !inode.kind.is_dir() {
                if self.is_first_name(&inode) {
                    let row = Row::new(name.as_bytes().to_vec(), &inode);
                    if is_shown { node.take_in(row, self.entries) } else { sum.add(row.sum) }
                }
            } else if inode.parent != parent {
                // The directory is damaged, and could lead into a cycle.
                self.damaged.fetch_add(1, Ordering::Relaxed);
            } else {
                let is_deepest = !is_shown || node.depth + 1 == self.depth;
                let known = if is_deepest { self.counter(inode.ino)? } else { None };
                match known {
                    Some(known) if is_shown => {
                        let row = Row { sum: known, ..Row::new(name.as_bytes().to_vec(), &inode) };
                        node.take_in(row, self.entries);
                    }
                    Some(known) => sum.add(known),
                    None if is_shown => {
                        let below = Node::new(Some(Arc::clone(node)), name.as_bytes().to_vec(), &inode);
                        tasks.push(Task::new(inode.ino, Arc::new(below)));
                    }
                    None => {
                        sum.add(Sum::of(&inode));
                        let node = Arc::clone(node);
                        tasks.push(Task { dir: inode.ino, after: None, node, is_own: false });
                    }
                }
            }
            last = Some(name);
        }
        node.found().0.add(sum);
        node.pending.fetch_add(tasks.len() + usize::from(page.more), Ordering::AcqRel);
        // The rest of this directory is listed after the directories of this page, so that few tasks wait.
        if page.more {
            let node = Arc::clone(node);
            queue.push(Task { dir: parent, after: last, node, is_own: *is_own });
        }
        tasks.into_iter().rev().for_each(|task| queue.push(task));
        Ok(())
    }

    /// Whether no name of this file was counted before.
    fn is_first_name(&self, inode: &Inode) -> bool {
        if inode.nlink <= 1 {
            return true;
        }
        let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = linked.len() < MAX_LINKED;
        match linked.get_mut(&inode.ino) {
            Some(1) => _ = linked.remove(&inode.ino),
            Some(left) => *left -= 1,
            None if has_room => {
                linked.insert(inode.ino, inode.nlink - 1);
                return true;
            }
            None => {
                self.recounted.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Ends one task of a node. The last one completes the node, and with it possibly the nodes above.
    fn done(&self, mut node: Arc<Node>) {
        while node.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            let row = node.complete(self.entries);
            let Some(parent) = node.parent.clone() else {
                *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(row);
                return;
            };
            parent.take_in(row, self.entries);
            node = parent;
        }
    }
}

impl Task {
    fn new(dir: Ino, node: Arc<Node>) -> Self {
        Task { dir, after: None, node, is_own: true }
    }
}

impl Node {
    fn new(parent: Option<Arc<Node>>, name: Vec<u8>, inode: &Inode) -> Self {
        let depth = parent.as_ref().map_or(0, |parent| parent.depth + 1);
        let found = Mutex::new((Sum::of(inode), Vec::new(), Default::default()));
        Node { parent, name, depth, pending: AtomicUsize::new(1), found }
    }

    fn found(&self) -> MutexGuard<'_, (Sum, Vec<Row>, (u64, Sum))> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry. Its row is kept if it is one of the `most` largest.
    fn take_in(&self, row: Row, most: usize) {
        let (sum, rows, others) = &mut *self.found();
        sum.add(row.sum);
        rows.push(row);
        if rows.len() / 2 > most {
            keep_largest(rows, others, most);
        }
    }

    fn complete(&self, most: usize) -> Row {
        let (sum, mut entries, mut others) = std::mem::take(&mut *self.found());
        keep_largest(&mut entries, &mut others, most);
        Row { name: self.name.clone(), kind: types::FileType::Directory, sum, entries, others }
    }
}

fn keep_largest(rows: &mut Vec<Row>, others: &mut (u64, Sum), most: usize) {
    rows.sort_by(|a, b| (Reverse(a.sum.size()), &a.name).cmp(&(Reverse(b.sum.size()), &b.name)));
    for row in rows.drain(most.min(rows.len())..) {
        others.0 += 1;
        others.1.add(row.sum);
    }
}

impl Sum {
    fn of(inode: &Inode) -> Self {
        let directories = u64::from(inode.kind.is_dir());
        Sum { inodes: 1, blocks: inode.blocks(), files: 1 - directories, directories, ..Sum::default() }
    }

    fn add(&mut self, more: Sum) {
        self.inodes += more.inodes;
        self.blocks = self.blocks.saturating_add(more.blocks);
        self.files += more.files;
        self.directories += more.directories;
        self.is_mixed |= more.is_mixed;
        self.is_cut |= more.is_cut;
    }

    /// The key by which entries are ordered.
    fn size(&self) -> (u64, u64) {
        (self.blocks, self.inodes)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(Usage::BLOCK_BYTES)
    }

    /// `count`, a number of files or of directories; `None` if a part is from a counter, which does not tell
    /// them apart.
    pub(crate) fn apart(&self, count: u64) -> Option<u64> {
        (!self.is_mixed).then_some(count)
    }

    fn cells(&self, show: impl Fn(u64) -> String, unknown: &str) -> [String; 4] {
        let apart = |count| self.apart(count).map_or(unknown.to_owned(), |count| count.to_string());
        [show(self.bytes()), self.inodes.to_string(), apart(self.files), apart(self.directories)]
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "bytes": self.bytes(),
            "inodes": self.inodes,
            "files": self.apart(self.files),
            "directories": self.apart(self.directories),
        })
    }
}

impl Row {
    fn new(name: Vec<u8>, inode: &Inode) -> Self {
        Row { name, kind: inode.kind, sum: Sum::of(inode), entries: Vec::new(), others: Default::default() }
    }

    fn shown(&self, path: &[u8]) -> String {
        let slash = if self.kind.is_dir() && !path.ends_with(b"/") { "/" } else { "" };
        show_name(path) + slash
    }

    fn to_columns(&self, path: &[u8], depth: usize, to: &mut Columns) {
        let indent = "  ".repeat(depth);
        let mut line = |name: String, sum: &Sum| {
            to.line([name].into_iter().chain(sum.cells(show_size, "-")));
        };
        line(format!("{indent}{}", self.shown(path)), &self.sum);
        for entry in &self.entries {
            entry.to_columns(&entry.name, depth + 1, to);
        }
        if let (count @ 1.., sum) = &self.others {
            let cells = sum.cells(show_size, "-");
            to.line([format!("{indent}  ({count} more)")].into_iter().chain(cells));
        }
    }

    fn to_csv(&self, path: &[u8], to: &mut String) {
        let shown = self.shown(path);
        // RFC 4180 section 2.
        let quoted = match shown.contains([',', '"']) {
            true => format!("\"{}\"", shown.replace('"', "\"\"")),
            false => shown,
        };
        let cells = self.sum.cells(|bytes| bytes.to_string(), "");
        to.push_str(&format!("{quoted},{}\n", cells.join(",")));
        self.entries.iter().for_each(|entry| entry.to_csv(&join(path, &entry.name), to));
    }

    fn to_json(&self, path: &[u8]) -> Value {
        let mut value = self.sum.to_json();
        let (text, bytes) = path_to_json(path);
        value["path"] = text.into();
        if let Some(bytes) = bytes {
            value["path_bytes"] = bytes.into();
        }
        value["type"] = kind_name(self.kind).into();
        if self.kind.is_dir() {
            let entries = self.entries.iter().map(|entry| entry.to_json(&join(path, &entry.name)));
            value["entries"] = entries.collect();
            value["others"] = self.others.1.to_json();
            value["others"]["entries"] = self.others.0.into();
        }
        value
    }
}

fn parse_depth(text: &str) -> Result<usize, String> {
    let depth = text.parse().ok().filter(|depth| *depth <= MAX_DEPTH);
    depth.ok_or_else(|| format!("'{text}' is not a number from 0 to {MAX_DEPTH}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use client::Meta;
    use meta::{Counting, MemEngine, Volume};
    use ops::{Authority, Link, Make, MakeKind, QuotaLimits, Write};
    use types::{Mode, Time};

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: SummaryArgs,
    }

    const TOOL: Authority<'static> = Authority::Kernel { revisions: None };

    struct Tree {
        engine: Arc<Counting<MemEngine>>,
        meta: Meta,
    }

    impl Tree {
        /// A directory `full` (10) with 1,500 files; `deep` (3) with a chain of two directories, the last of
        /// which (5) has a file (6) that is also named in `full`; and a file `large` (7) with a symbolic
        /// link.
        fn new() -> Self {
            let engine = Arc::new(Counting::new(MemEngine::default()));
            Volume::in_memory("test").format(&*engine).unwrap();
            let meta = Meta::open(engine.clone(), 10_000).unwrap();
            let tree = Tree { engine, meta };
            tree.make(2, "full", 10, MakeKind::Directory);
            (0..1500).for_each(|n| tree.make(10, &format!("f{n}"), 100 + n, MakeKind::Regular));
            tree.make(2, "deep", 3, MakeKind::Directory);
            tree.make(3, "a", 4, MakeKind::Directory);
            tree.make(4, "b", 5, MakeKind::Directory);
            tree.make(5, "twice", 6, MakeKind::Regular);
            let link =
                Link { ino: Ino(6), parent: Ino(10), name: Name::new(b"again").unwrap(), orphan_of: None };
            tree.meta.run(&link, &TOOL).unwrap();
            tree.make(2, "large", 7, MakeKind::Regular);
            tree.make(2, "link", 8, MakeKind::Symlink(b"large".as_slice().into()));
            tree.resize(6, 5000);
            tree.resize(7, 100_000);
            tree
        }

        fn make(&self, parent: u64, name: &str, ino: u64, kind: MakeKind) {
            let (parent, ino, name) = (Ino(parent), Ino(ino), Name::new(name.as_bytes()).unwrap());
            let mode = Mode::new(0o755);
            let make = Make { parent, name, ino, kind, mode, umask: 0, uid: 0, gid: 0 };
            self.meta.run(&make, &TOOL).unwrap();
        }

        fn resize(&self, ino: u64, size: u64) {
            let write = Write { ino: Ino(ino), slices: Vec::new(), end: size, mtime: Time::new(1, 0) };
            self.meta.run(&write, &TOOL).unwrap();
        }

        /// The summary of the root, and how many scans it took.
        fn summary(&self, options: &[&str]) -> (Row, u64) {
            let args = Command::parse_from([&["summary"], options].concat()).args;
            let before = self.engine.counts().scans;
            let mut walk = Walk::new(&*self.engine, &args, Interrupt::install().unwrap());
            let row = walk.run(Ino::ROOT, &args).unwrap();
            assert_eq!((walk.damaged.into_inner(), walk.recounted.into_inner()), (0, 0));
            (row, self.engine.counts().scans - before)
        }
    }
    fn shown(row: &Row) -> Vec<(String, u64, u64, Option<u64>)> {
        let name = |row: &Row| String::from_utf8(row.name.clone()).unwrap();
        let line = |row: &Row| (name(row), row.sum.blocks, row.sum.inodes, row.sum.apart(row.sum.files));
        row.entries.iter().map(line).collect()
    }

    #[test]
    fn entries_are_counted_once_and_shown_by_size() {
        let tree = Tree::new();
        let (row, scans) = tree.summary(&["--walk", "--depth", "1", "--threads", "1"]);
        assert_eq!(row.sum, Sum { inodes: 1508, blocks: 27, files: 1503, directories: 5, ..Sum::default() });
        // The file with two names counts in the directory that is listed first.
        let (deep, full) = (("deep".to_owned(), 2, 4, Some(1)), ("full".to_owned(), 0, 1501, Some(1500)));
        let (large, link) = (("large".to_owned(), 25, 1, Some(1)), ("link".to_owned(), 0, 1, Some(1)));
        assert_eq!(shown(&row), [large, deep, full, link]);
        assert_eq!(
            (row.others.0, scans),
            (0, 6),
            "one of the root, two of 1,501 entries, three of the chain"
        );

        let (row, _) = tree.summary(&["--depth", "3", "--entries", "1"]);
        assert_eq!((row.sum.inodes, row.entries.len(), row.others.0), (1508, 1, 3));
        assert_eq!(
            row.others.1,
            Sum { inodes: 1506, blocks: 2, files: 1502, directories: 4, ..Sum::default() }
        );
        for threads in ["2", "8"] {
            let (again, _) = tree.summary(&["--walk", "--depth", "0", "--threads", threads]);
            assert_eq!((again.sum, again.entries.len()), (Sum { is_mixed: false, ..row.sum }, 0));
        }
    }

    #[test]
    fn directory_with_a_quota_is_not_listed_below_the_shown_depth() {
        let tree = Tree::new();
        let (volume, scans) = tree.summary(&["--depth", "0"]);
        assert_eq!((volume.sum.inodes, volume.sum.blocks, volume.sum.apart(1)), (1508, 27, None));
        assert_eq!(scans, 1, "of the quotas");
        for dir in [10, 3] {
            tree.meta.set_directory_quota(Ino(dir), QuotaLimits::default(), &mut |_| true).unwrap();
        }
        let (walked, _) = tree.summary(&["--walk", "--depth", "1"]);
        let (row, scans) = tree.summary(&["--depth", "1"]);
        assert_eq!(scans, 2, "of the quotas, and of the root");
        assert_eq!((row.sum.inodes, row.sum.blocks), (walked.sum.inodes, walked.sum.blocks));
        assert_eq!(row.entries[1].sum.apart(1).or(row.sum.apart(1)), None);
        // In a directory that is shown, files and directories are counted separately.
        let (row, scans) = tree.summary(&["--depth", "2", "--threads", "1"]);
        let deep = row.entries.iter().find(|row| row.name == b"deep").unwrap();
        assert_eq!((deep.sum.files, deep.sum.apart(deep.sum.files).is_some()), (1, true));
        assert_eq!(scans, 7);
    }

    #[test]
    fn output_has_whole_paths_and_says_what_is_unknown() {
        let tree = Tree::new();
        tree.meta.set_directory_quota(Ino(4), QuotaLimits::default(), &mut |_| true).unwrap();
        tree.make(2, "a \"b\",c", 9, MakeKind::Regular);
        let (row, _) = tree.summary(&["--depth", "2", "--entries", "3", "--threads", "1"]);
        let json = row.to_json(b"/mnt");
        let deep = &json["entries"][2];
        assert_eq!((&deep["path"], &deep["type"]), (&"/mnt/deep".into(), &"directory".into()));
        assert_eq!((&deep["files"], &deep["inodes"]), (&Value::Null, &4.into()));
        assert_eq!(deep["entries"][0]["path"], "/mnt/deep/a");
        assert_eq!((&json["others"]["entries"], &json["others"]["files"]), (&2.into(), &2.into()));
        let mut columns = Columns::new(1, &["PATH"]);
        row.to_columns(b"/mnt", 0, &mut columns);
        let text = columns.render();
        let line = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start));
            line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(line("  large").as_deref(), Some("large 100.0 KiB 1 1 0"), "{text}");
        assert_eq!(line("    a/").as_deref(), Some("a/ 8.0 KiB 3 - -"), "{text}");
        assert_eq!(line("  (2 more)").as_deref(), Some("(2 more) 0 B 2 2 0"), "{text}");
        let (row, _) = tree.summary(&["--depth", "1", "--entries", "0"]);
        let mut csv = String::new();
        row.to_csv(b"/", &mut csv);
        assert!(csv.contains("/deep/,8192,4,,\n") && csv.contains("\"/a \"\"b\"\",c\",0,1,1,0\n"), "{csv}");
    }
}
