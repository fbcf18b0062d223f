//! The engine in memory: the executable specification of [`Engine`], and a floor to measure others against.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, SliceId, SliceSource, Term};

use crate::change::Change;
use crate::engine::{Changes, Engine, EngineError, Outcome};
use crate::lock::{Lock, LockOwner};
use crate::record::{
    Beside, Counter, Edge, Facts, Garbage, LockWait, Node, Page, Record, Scan, Seq, Session, Settings, Usage,
    Want, Xattrs,
};
use crate::results::Results;
use crate::txn::{Effect, Guard, Txn};

/// All records in ordered maps behind one lock.
#[derive(Debug, Default)]
pub struct MemEngine {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    tables: Mutex<Tables>,
    /// Told of each commit.
    committed: Condvar,
}

#[derive(Debug, Default)]
struct Tables {
    seq: u64,
    nodes: BTreeMap<Ino, Node>,
    edges: BTreeMap<Ino, BTreeMap<Name, Edge>>,
    slices: BTreeMap<(Ino, ChunkIndex), Vec<Slice>>,
    xattrs: BTreeMap<Ino, Arc<Xattrs>>,
    symlinks: BTreeMap<Ino, Arc<[u8]>>,
    acls: BTreeMap<AclId, Arc<str>>,
    settings: Arc<Settings>,
    counters: BTreeMap<Counter, u64>,
    usage: Usage,
    sessions: BTreeMap<SessionId, Session>,
    /// Those that are open.
    terms: BTreeSet<(SessionId, Term)>,
    orphans: BTreeSet<(SessionId, Ino)>,
    locks: BTreeMap<Ino, Arc<[Lock]>>,
    waits: BTreeMap<LockOwner, LockWait>,
    garbage: BTreeMap<SliceId, u32>,
    /// Rows that refer to a slice beyond its first; absent if it was never shared.
    shared: BTreeMap<SliceId, u64>,
    applied: Results,
    /// The newest changes, while somebody watches.
    changes: VecDeque<Change>,
    watchers: usize,
}

/// How many changes a watcher may be behind.
const REMEMBERED_CHANGES: usize = 16_384;

impl Engine for MemEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        Ok(self.shared.lock().read(wants))
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        let mut tables = self.shared.lock();
        let outcomes = txns.iter().map(|txn| tables.commit(txn)).collect();
        if tables.watchers > 0 {
            self.shared.committed.notify_all();
        }
        Ok(outcomes)
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        Ok(self.shared.lock().scan(scan))
    }

    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let mut tables = self.shared.lock();
        *tables = Tables { seq: tables.seq + 1, watchers: tables.watchers, ..Tables::default() };
        Ok(())
    }

    fn watch(&self) -> Result<Option<Box<dyn Changes>>, EngineError> {
        let mut tables = self.shared.lock();
        tables.watchers += 1;
        Ok(Some(Box::new(MemChanges { shared: Arc::clone(&self.shared), seen: Seq(tables.seq) })))
    }
}

/// A position in the changes of an engine in memory.
#[derive(Debug)]
struct MemChanges {
    shared: Arc<Shared>,
    seen: Seq,
}

impl Changes for MemChanges {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        let tables = self.shared.lock();
        let waited =
            self.shared.committed.wait_timeout_while(tables, wait, |tables| Seq(tables.seq) <= self.seen);
        let (tables, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let behind = tables.seq.saturating_sub(self.seen.0);
        if behind > tables.changes.len() as u64 {
            return Err(EngineError::permanent("changes were forgotten before they were asked for"));
        }
        let news = tables.changes.iter().filter(|change| change.seq > self.seen).cloned().collect();
        self.seen = Seq(tables.seq);
        Ok(news)
    }
}

impl Drop for MemChanges {
    fn drop(&mut self) {
        let mut tables = self.shared.lock();
        tables.watchers -= 1;
        if tables.watchers == 0 {
            tables.changes.clear();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn commit(&mut self, txn: &Txn) -> Outcome {
        if let Some(seq) = self.applied.get(txn.op_id) {
            return Outcome::Committed { seq, nodes: Vec::new() };
        }
        if !txn.guards.iter().all(|guard| self.holds(guard)) {
            let wants: Vec<Want> = txn.guards.iter().map(Guard::want).collect();
            return Outcome::Conflict(self.read(&wants));
        }
        if txn.effects.is_empty() {
            return Outcome::Committed { seq: Seq(self.seq), nodes: Vec::new() };
        }
        let mut changed: Vec<Ino> = Vec::new();
        for effect in &txn.effects {
            self.apply(effect);
            changed.extend(effect.changed_node().filter(|ino| !changed.contains(ino)));
        }
        self.seq += 1;
        self.applied.note(txn, Seq(self.seq));
        if self.watchers > 0 {
            let by = txn.op_id.session();
            self.changes.push_back(Change { seq: Seq(self.seq), by, touched: txn.touched() });
            if self.changes.len() > REMEMBERED_CHANGES {
                self.changes.pop_front();
            }
        }
        let nodes = changed.iter().filter_map(|ino| self.nodes.get(ino).copied()).collect();
        Outcome::Committed { seq: Seq(self.seq), nodes }
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::EdgeIs { parent, name, ino } => self.edge(*parent, name).is_some_and(|e| e.ino == *ino),
            Guard::EdgeAbsent { parent, name } => self.edge(*parent, name).is_none(),
            Guard::Access { ino, rev } => self.nodes.get(ino).is_some_and(|n| n.access_rev == *rev),
            Guard::NodeAbsent { ino } => !self.nodes.contains_key(ino),
            Guard::Links { ino, nlink } => self.nodes.get(ino).is_some_and(|n| n.nlink == *nlink),
            Guard::ParentIs { ino, parent } => self.nodes.get(ino).is_some_and(|n| n.parent == *parent),
            Guard::Empty { ino } => self.is_empty(*ino),
            Guard::Xattr { ino, name, present } => {
                self.xattrs.get(ino).is_some_and(|x| x.contains_key(name)) == *present
            }
            Guard::Setting { name, value } => self.settings.get(*name) == value.as_ref(),
            Guard::Counter { counter, value } => self.counter(*counter) == *value,
            Guard::Size { ino, size } => self.nodes.get(ino).is_some_and(|n| n.size == *size),
            Guard::Locks { ino, locks } => self.nodes.contains_key(ino) && self.locks(*ino) == *locks,
            Guard::Rows { ino, chunk, rows } => {
                self.slices.get(&(*ino, *chunk)).map_or(&[][..], Vec::as_slice).starts_with(rows)
            }
            Guard::Room { max_inodes, max_blocks } => {
                self.usage.inodes < *max_inodes && self.usage.blocks < *max_blocks
            }
            Guard::Session { session, heartbeat } => {
                let found = self.sessions.get(session);
                found.is_some_and(|found| heartbeat.is_none_or(|heartbeat| found.heartbeat == heartbeat))
            }
            Guard::Term { session, term } => self.terms.contains(&(*session, *term)),
        }
    }

    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::PutNode(node) => {
                self.drop_node(node.ino);
                self.usage.inodes += 1;
                self.usage.blocks += node.blocks();
                self.nodes.insert(node.ino, *node);
            }
            Effect::DropNode { ino } => self.drop_node(*ino),
            Effect::PutEdge { parent, name, ino, kind } => {
                self.edges.entry(*parent).or_default().insert(name.clone(), Edge { ino: *ino, kind: *kind });
            }
            Effect::DropEdge { parent, name } => {
                if let Some(entries) = self.edges.get_mut(parent) {
                    entries.remove(name);
                    if entries.is_empty() {
                        self.edges.remove(parent);
                    }
                }
            }
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::Touch { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. } => {
                if let Some(node) = self.nodes.get_mut(ino) {
                    self.usage.blocks -= node.blocks();
                    effect.apply_to(node);
                    self.usage.blocks += node.blocks();
                }
            }
            Effect::AppendSlice { ino, chunk, slice } => {
                if self.nodes.contains_key(ino) {
                    self.slices.entry((*ino, *chunk)).or_default().push(slice.clone());
                }
            }
            Effect::DropSlices { ino, from, to } => self.drop_slices(*ino, *from, *to),
            Effect::ReplaceRows { ino, chunk, count, rows } => {
                if let Some(all) = self.slices.get_mut(&(*ino, *chunk)) {
                    let count = all.len().min(*count as usize);
                    let gone: Vec<Slice> = all.splice(..count, rows.iter().take(count).cloned()).collect();
                    if all.is_empty() {
                        self.slices.remove(&(*ino, *chunk));
                    }
                    self.release(&gone);
                }
            }
            Effect::Share { slice } => *self.shared.entry(*slice).or_default() += 1,
            Effect::PutXattr { ino, name, value } => {
                if self.nodes.contains_key(ino) {
                    Arc::make_mut(self.xattrs.entry(*ino).or_default()).insert(name.clone(), value.clone());
                }
            }
            Effect::DropXattr { ino, name } => {
                if let Some(xattrs) = self.xattrs.get_mut(ino) {
                    Arc::make_mut(xattrs).remove(name);
                }
            }
            Effect::PutAcl { id, text } => {
                self.acls.entry(*id).or_insert_with(|| text.clone());
            }
            Effect::PutSymlink { ino, target } => {
                if self.nodes.contains_key(ino) {
                    self.symlinks.insert(*ino, target.clone());
                }
            }
            Effect::PutOrphan { session, ino } => {
                self.orphans.insert((*session, *ino));
            }
            Effect::DropOrphan { session, ino } => {
                self.orphans.remove(&(*session, *ino));
            }
            Effect::PutLocks { ino, locks } if locks.is_empty() => drop(self.locks.remove(ino)),
            Effect::PutLocks { ino, locks } => {
                if self.nodes.contains_key(ino) {
                    self.locks.insert(*ino, locks.clone());
                }
            }
            Effect::PutWait(wait) => drop(self.waits.insert(wait.lock.owner, *wait)),
            Effect::DropWait { owner } => drop(self.waits.remove(owner)),
            Effect::PutSession(session) => {
                self.sessions.insert(session.id, session.clone());
            }
            Effect::DropSession { session } => {
                self.sessions.remove(session);
                self.terms.retain(|(of, _)| of != session);
            }
            Effect::BeginTerm { session, term, ended } => {
                if self.sessions.contains_key(session) {
                    self.terms.insert((*session, *term));
                    ended.iter().for_each(|term| _ = self.terms.remove(&(*session, *term)));
                }
            }
            Effect::DropGarbage { slice } => {
                self.garbage.remove(slice);
            }
            Effect::PutSetting { name, value } => {
                Arc::make_mut(&mut self.settings).insert((*name).to_owned(), value.clone());
            }
            Effect::SetCounter { counter, value } => {
                self.counters.insert(*counter, *value);
            }
            Effect::AddUsage { inodes, blocks } => {
                self.usage.inodes = self.usage.inodes.saturating_add_signed(*inodes);
                self.usage.blocks = self.usage.blocks.saturating_add_signed(*blocks);
            }
        }
    }

    fn drop_node(&mut self, ino: Ino) {
        let Some(node) = self.nodes.remove(&ino) else { return };
        self.usage.inodes -= 1;
        self.usage.blocks -= node.blocks();
        self.xattrs.remove(&ino);
        self.symlinks.remove(&ino);
        self.locks.remove(&ino);
        self.drop_slices(ino, ChunkIndex(0), ChunkIndex(u64::MAX));
    }

    fn drop_slices(&mut self, ino: Ino, from: ChunkIndex, to: ChunkIndex) {
        let dropped = self.slices.range((ino, from)..(ino, to.max(from)));
        let keys: Vec<_> = dropped.map(|(key, _)| *key).collect();
        for key in keys {
            let gone = self.slices.remove(&key).unwrap_or_default();
            self.release(&gone);
        }
    }

    /// What becomes of the slices of rows that are gone.
    fn release(&mut self, rows: &[Slice]) {
        for slice in rows {
            let SliceSource::Blocks { id, size, .. } = slice.source else { continue };
            match self.shared.get_mut(&id) {
                Some(others) if *others > 0 => *others -= 1,
                _ => {
                    self.shared.remove(&id);
                    self.garbage.insert(id, size);
                }
            }
        }
    }

    fn edge(&self, parent: Ino, name: &Name) -> Option<Edge> {
        self.edges.get(&parent)?.get(name).copied()
    }

    fn is_empty(&self, ino: Ino) -> bool {
        !self.edges.contains_key(&ino)
    }

    fn locks(&self, ino: Ino) -> Arc<[Lock]> {
        self.locks.get(&ino).cloned().unwrap_or_default()
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(&counter).copied().unwrap_or(0)
    }

    fn read(&self, wants: &[Want]) -> Facts {
        let mut records = Vec::with_capacity(wants.len() * 2);
        for want in wants {
            match want {
                Want::Node(ino) => self.push_node(*ino, &mut records),
                Want::Entry(parent, name) => {
                    let edge = self.edge(*parent, name);
                    records.push(Record::Edge(*parent, name.clone(), edge));
                    if let Some(edge) = edge {
                        self.push_node(edge.ino, &mut records);
                    }
                }
                Want::Empty(ino) => records.push(Record::Empty(*ino, self.is_empty(*ino))),
                Want::Xattrs(ino) => {
                    let xattrs = self.xattrs.get(ino).cloned().unwrap_or_default();
                    records.push(Record::Xattrs(*ino, xattrs));
                }
                Want::Symlink(ino) => {
                    records.push(Record::Symlink(*ino, self.symlinks.get(ino).cloned()));
                }
                Want::Slices(ino, chunk) => {
                    let rows = self.slices.get(&(*ino, *chunk)).map(|rows| rows.as_slice().into());
                    records.push(Record::Slices(*ino, *chunk, rows.unwrap_or_default()));
                }
                Want::Acl(id) => records.push(Record::Acl(*id, self.acls.get(id).cloned())),
                Want::Settings => records.push(Record::Settings(self.settings.clone())),
                Want::Counter(counter) => records.push(Record::Counter(*counter, self.counter(*counter))),
                Want::Locks(ino) => records.push(Record::Locks(*ino, self.locks(*ino))),
                Want::Waits => records.push(Record::Waits(self.waits.values().copied().collect())),
                Want::Usage => records.push(Record::Usage(self.usage)),
                Want::Session(id) => records.push(Record::Session(*id, self.sessions.get(id).cloned())),
            }
        }
        Facts { seq: Seq(self.seq), records }
    }

    fn push_node(&self, ino: Ino, records: &mut Vec<Record>) {
        let node = self.nodes.get(&ino).copied();
        records.push(Record::Node(ino, node));
        for id in node.iter().flat_map(Node::acls) {
            records.push(Record::Acl(id, self.acls.get(&id).cloned()));
        }
    }

    fn scan(&self, scan: &Scan) -> Page {
        let mut records = Vec::new();
        let mut rows = 0;
        let mut more = false;
        let mut row = |limit: usize| {
            more = rows == limit;
            rows += 1;
            !more
        };
        match scan {
            Scan::Dir { parent, after, limit, beside } => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let entries = self.edges.get(parent).into_iter();
                for (name, edge) in entries.flat_map(|e| e.range::<Name, _>((from, Bound::Unbounded))) {
                    if !row(*limit) {
                        break;
                    }
                    records.push(Record::Edge(*parent, name.clone(), Some(*edge)));
                    match beside {
                        Beside::Nothing => {}
                        Beside::Nodes => {
                            records.push(Record::Node(edge.ino, self.nodes.get(&edge.ino).copied()));
                        }
                        Beside::NodesWithAcls => self.push_node(edge.ino, &mut records),
                    }
                }
            }
            Scan::Nodes { after, limit } => {
                let nodes = self.nodes.range((Bound::Excluded(after), Bound::Unbounded));
                let nodes = nodes.take_while(|_| row(*limit));
                records.extend(nodes.map(|(ino, node)| Record::Node(*ino, Some(*node))));
            }
            Scan::Slices { ino, from, limit } => {
                let chunks = self.slices.range((*ino, *from)..(*ino, ChunkIndex(u64::MAX)));
                let chunks = chunks.take_while(|_| row(*limit));
                records.extend(
                    chunks.map(|(&(ino, chunk), rows)| Record::Slices(ino, chunk, rows.as_slice().into())),
                );
            }
            Scan::Orphans { after, limit } => {
                let orphans = self.orphans.range((Bound::Excluded(after), Bound::Unbounded));
                let orphans = orphans.take_while(|_| row(*limit));
                records.extend(orphans.map(|&(session, ino)| Record::Orphan(session, ino)));
            }
            Scan::Sessions { after, limit } => {
                let sessions = self.sessions.range((Bound::Excluded(after), Bound::Unbounded));
                let sessions = sessions.take_while(|_| row(*limit));
                records.extend(sessions.map(|(id, session)| Record::Session(*id, Some(session.clone()))));
            }
            Scan::Locks { after, limit } => {
                let locks = self.locks.range((Bound::Excluded(after), Bound::Unbounded));
                let locks = locks.take_while(|_| row(*limit));
                records.extend(locks.map(|(ino, locks)| Record::Locks(*ino, locks.clone())));
            }
            Scan::Garbage { after, limit } => {
                let garbage = self.garbage.range((Bound::Excluded(after), Bound::Unbounded));
                let garbage = garbage.take_while(|_| row(*limit));
                records.extend(garbage.map(|(&slice, &size)| Record::Garbage(Garbage { slice, size })));
            }
            Scan::Shared { after, limit } => {
                let shared = self.shared.range((Bound::Excluded(after), Bound::Unbounded));
                let shared = shared.take_while(|_| row(*limit));
                records.extend(shared.map(|(&slice, &rows)| Record::Shared(slice, rows)));
            }
            Scan::Acls { after, limit } => {
                let acls = self.acls.range((Bound::Excluded(after), Bound::Unbounded));
                let acls = acls.take_while(|_| row(*limit));
                records.extend(acls.map(|(&id, text)| Record::Acl(id, Some(text.clone()))));
            }
        }
        Page { facts: Facts { seq: Seq(self.seq), records }, more }
    }
}
