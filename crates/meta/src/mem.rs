//! The in-memory engine: the executable specification of [`Engine`], and a baseline for benchmarks of the
//! other engines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::Instant;
use types::{AclId, ChunkIndex, Ino, Name, SessionId, Slice, SliceId, SliceSource, Term};

use crate::change::Change;
use crate::engine::{Changes, Engine, EngineError, Outcome};
use crate::lock::{Lock, LockOwner};
use crate::quota::{Quota, QuotaKey};
use crate::record::{
    Counter, Dirent, Garbage, Inode, LockWait, Page, Record, RecordKey, Scan, ScanInclude, Seq, Session,
    Settings, Snapshot, Usage, Xattrs, xattr_blocks,
};
use crate::results::Results;
use crate::txn::{Effect, Guard, Txn};

/// All records, in ordered maps behind one lock.
#[derive(Debug, Default)]
pub struct MemEngine {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    tables: Mutex<Tables>,
    /// Notified after each commit while there is a watcher.
    committed: Condvar,
}

#[derive(Debug, Default)]
struct Tables {
    seq: u64,
    inodes: BTreeMap<Ino, Inode>,
    dirents: BTreeMap<Ino, BTreeMap<Name, Dirent>>,
    slices: BTreeMap<(Ino, ChunkIndex), Vec<Slice>>,
    xattrs: BTreeMap<Ino, Arc<Xattrs>>,
    symlinks: BTreeMap<Ino, Arc<[u8]>>,
    acls: BTreeMap<AclId, Arc<str>>,
    condemned_acls: BTreeSet<AclId>,
    settings: Arc<Settings>,
    counters: BTreeMap<Counter, u64>,
    usage: Usage,
    sessions: BTreeMap<SessionId, Session>,
    /// The open terms.
    terms: BTreeSet<(SessionId, Term)>,
    orphans: BTreeSet<(SessionId, Ino)>,
    locks: BTreeMap<Ino, Arc<[Lock]>>,
    waits: BTreeMap<LockOwner, LockWait>,
    quotas: BTreeMap<QuotaKey, Quota>,
    garbage: BTreeMap<SliceId, u32>,
    /// The number of rows, beyond the first, that refer to a slice; absent if the slice was never shared.
    shared: BTreeMap<SliceId, u64>,
    applied: Results,
    /// The newest changes, recorded only while there is a watcher.
    changes: VecDeque<Change>,
    watchers: usize,
}

/// The maximum number of changes that are kept for a watcher that lags behind.
const REMEMBERED_CHANGES: usize = 16_384;

impl Engine for MemEngine {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        Ok(self.shared.lock().read(keys))
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

/// A position in the change stream of an in-memory engine.
#[derive(Debug)]
struct MemChanges {
    shared: Arc<Shared>,
    seen: Seq,
}

impl Changes for MemChanges {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        let until = Instant::now() + wait;
        let mut tables = self.shared.lock();
        while Seq(tables.seq) <= self.seen && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            tables = host::wait_timeout(&self.shared.committed, &self.shared.tables, tables, left);
        }
        let behind = tables.seq.saturating_sub(self.seen.0);
        if behind > tables.changes.len() as u64 {
            return Err(EngineError::permanent("changes were dropped before this watcher read them"));
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
            return Outcome::Committed { seq, inodes: Vec::new() };
        }
        if !txn.guards.iter().all(|guard| self.holds(guard)) {
            let keys: Vec<RecordKey> = txn.guards.iter().map(Guard::key).collect();
            return Outcome::Conflict(self.read(&keys));
        }
        if txn.effects.is_empty() {
            return Outcome::Committed { seq: Seq(self.seq), inodes: Vec::new() };
        }
        let mut changed: Vec<Ino> = Vec::new();
        for effect in &txn.effects {
            self.apply(effect);
            changed.extend(effect.changed_inode().filter(|ino| !changed.contains(ino)));
        }
        self.seq += 1;
        self.applied.note(txn, Seq(self.seq));
        if self.watchers > 0 {
            let by = txn.op_id.session();
            self.changes.push_back(Change { seq: Seq(self.seq), by, invalidations: txn.invalidations() });
            if self.changes.len() > REMEMBERED_CHANGES {
                self.changes.pop_front();
            }
        }
        let inodes = changed.iter().filter_map(|ino| self.inodes.get(ino).copied()).collect();
        Outcome::Committed { seq: Seq(self.seq), inodes }
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::DirentIs { parent, name, ino } => {
                self.dirent(*parent, name).is_some_and(|e| e.ino == *ino)
            }
            Guard::DirentAbsent { parent, name } => self.dirent(*parent, name).is_none(),
            Guard::Access { ino, rev } => self.inodes.get(ino).is_some_and(|n| n.access_rev == *rev),
            Guard::InodeAbsent { ino } => !self.inodes.contains_key(ino),
            Guard::Links { ino, nlink } => self.inodes.get(ino).is_some_and(|n| n.nlink == *nlink),
            Guard::ParentIs { ino, parent } => self.inodes.get(ino).is_some_and(|n| n.parent == *parent),
            Guard::Empty { ino } => self.is_empty(*ino),
            Guard::Xattr { ino, name, blocks } => {
                let value = self.xattrs.get(ino).and_then(|xattrs| xattrs.get(name));
                value.map_or(0, |value| xattr_blocks(value.len())) == *blocks
            }
            Guard::XattrBlocks { ino, least, most } => {
                self.inodes.get(ino).is_some_and(|n| (*least..=*most).contains(&n.xattr_blocks))
            }
            Guard::Setting { name, value } => self.settings.get(*name) == value.as_ref(),
            Guard::Counter { counter, value } => self.counter(*counter) == *value,
            Guard::Size { ino, size } => self.inodes.get(ino).is_some_and(|n| n.size == *size),
            Guard::Locks { ino, locks } => self.inodes.contains_key(ino) && self.locks(*ino) == *locks,
            Guard::Rows { ino, chunk, rows } => {
                self.slices.get(&(*ino, *chunk)).map_or(&[][..], Vec::as_slice).starts_with(rows)
            }
            Guard::Room { max_inodes, max_blocks } => {
                self.usage.inodes < *max_inodes && self.usage.blocks < *max_blocks
            }
            Guard::Quota { key, outer, inodes, blocks } => match self.quotas.get(key) {
                Some(quota) => {
                    outer.is_none_or(|outer| quota.rule.outer == outer) && quota.fits(*inodes, *blocks)
                }
                None => outer.is_none(),
            },
            Guard::Session { session, heartbeat } => {
                let found = self.sessions.get(session);
                found.is_some_and(|found| heartbeat.is_none_or(|heartbeat| found.heartbeat == heartbeat))
            }
            Guard::Term { session, term } => self.terms.contains(&(*session, *term)),
            Guard::Acl { id } => self.acls.contains_key(id) && !self.condemned_acls.contains(id),
        }
    }

    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::PutInode(inode) => {
                self.drop_inode(inode.ino);
                self.usage.inodes += 1;
                self.usage.blocks += inode.blocks();
                self.inodes.insert(inode.ino, *inode);
            }
            Effect::DropInode { ino } => self.drop_inode(*ino),
            Effect::PutDirent { parent, name, ino, kind } => {
                self.dirents
                    .entry(*parent)
                    .or_default()
                    .insert(name.clone(), Dirent { ino: *ino, kind: *kind });
            }
            Effect::DropDirent { parent, name } => {
                if let Some(entries) = self.dirents.get_mut(parent) {
                    entries.remove(name);
                    if entries.is_empty() {
                        self.dirents.remove(parent);
                    }
                }
            }
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::SetTimes { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. }
            | Effect::AddXattrBlocks { ino, .. } => {
                if let Some(inode) = self.inodes.get_mut(ino) {
                    self.usage.blocks -= inode.blocks();
                    effect.apply_to(inode);
                    self.usage.blocks += inode.blocks();
                }
            }
            Effect::AppendSlice { ino, chunk, slice } => {
                if self.inodes.contains_key(ino) {
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
            Effect::Share { slice, rows } => *self.shared.entry(*slice).or_default() += u64::from(*rows),
            Effect::PutXattr { ino, name, value } => {
                if self.inodes.contains_key(ino) {
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
                self.condemned_acls.remove(id);
            }
            Effect::CondemnAcl { id } => {
                if self.acls.contains_key(id) {
                    self.condemned_acls.insert(*id);
                }
            }
            Effect::DropAcl { id } => {
                if self.condemned_acls.remove(id) {
                    self.acls.remove(id);
                }
            }
            Effect::PutSymlink { ino, target } => {
                if self.inodes.contains_key(ino) {
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
                if self.inodes.contains_key(ino) {
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
            Effect::PutQuota { key, rule } => self.quotas.entry(*key).or_default().rule = *rule,
            Effect::DropQuota { key } => drop(self.quotas.remove(key)),
            Effect::Charge { key, inodes, blocks } => {
                let quota = self.quotas.entry(*key).or_default();
                quota.inodes = quota.inodes.saturating_add(*inodes);
                quota.blocks = quota.blocks.saturating_add(*blocks);
            }
        }
    }

    fn drop_inode(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.remove(&ino) else { return };
        self.usage.inodes -= 1;
        self.usage.blocks -= inode.blocks();
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

    /// Updates the share counts and the garbage after these rows were removed from a file.
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

    fn dirent(&self, parent: Ino, name: &Name) -> Option<Dirent> {
        self.dirents.get(&parent)?.get(name).copied()
    }

    fn is_empty(&self, ino: Ino) -> bool {
        !self.dirents.contains_key(&ino)
    }

    fn locks(&self, ino: Ino) -> Arc<[Lock]> {
        self.locks.get(&ino).cloned().unwrap_or_default()
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(&counter).copied().unwrap_or(0)
    }

    fn read(&self, keys: &[RecordKey]) -> Snapshot {
        let mut records = Vec::with_capacity(keys.len() * 2);
        for key in keys {
            match key {
                RecordKey::Inode(ino) => self.push_inode(*ino, &mut records),
                RecordKey::Dirent(parent, name) => {
                    let dirent = self.dirent(*parent, name);
                    records.push(Record::Dirent(*parent, name.clone(), dirent));
                    if let Some(dirent) = dirent {
                        self.push_inode(dirent.ino, &mut records);
                    }
                }
                RecordKey::Empty(ino) => records.push(Record::Empty(*ino, self.is_empty(*ino))),
                RecordKey::Xattrs(ino) => {
                    let xattrs = self.xattrs.get(ino).cloned().unwrap_or_default();
                    records.push(Record::Xattrs(*ino, xattrs));
                }
                RecordKey::Symlink(ino) => {
                    records.push(Record::Symlink(*ino, self.symlinks.get(ino).cloned()));
                }
                RecordKey::Slices(ino, chunk) => {
                    let rows = self.slices.get(&(*ino, *chunk)).map(|rows| rows.as_slice().into());
                    records.push(Record::Slices(*ino, *chunk, rows.unwrap_or_default()));
                }
                RecordKey::Acl(id) => records.push(Record::Acl(*id, self.acls.get(id).cloned())),
                RecordKey::Settings => records.push(Record::Settings(self.settings.clone())),
                RecordKey::Counter(counter) => {
                    records.push(Record::Counter(*counter, self.counter(*counter)))
                }
                RecordKey::Locks(ino) => records.push(Record::Locks(*ino, self.locks(*ino))),
                RecordKey::Waits => records.push(Record::Waits(self.waits.values().copied().collect())),
                RecordKey::Usage => records.push(Record::Usage(self.usage)),
                RecordKey::Session(id) => records.push(Record::Session(*id, self.sessions.get(id).cloned())),
                RecordKey::Quota(key) => records.push(Record::Quota(*key, self.quotas.get(key).copied())),
            }
        }
        Snapshot { seq: Seq(self.seq), records }
    }

    fn push_inode(&self, ino: Ino, records: &mut Vec<Record>) {
        let inode = self.inodes.get(&ino).copied();
        records.push(Record::Inode(ino, inode));
        for id in inode.iter().flat_map(Inode::acls) {
            records.push(Record::Acl(id, self.acls.get(&id).cloned()));
        }
    }

    fn scan(&self, scan: &Scan) -> Page {
        let limit = scan.limit();
        let (records, more) = match scan {
            Scan::Dir { parent, after, include, .. } => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let entries = self.dirents.get(parent).into_iter();
                let mut entries = entries.flat_map(|all| all.range::<Name, _>((from, Bound::Unbounded)));
                let mut records = Vec::new();
                for (name, dirent) in entries.by_ref().take(limit) {
                    records.push(Record::Dirent(*parent, name.clone(), Some(*dirent)));
                    match include {
                        ScanInclude::Nothing => {}
                        ScanInclude::Inodes => {
                            records.push(Record::Inode(dirent.ino, self.inodes.get(&dirent.ino).copied()));
                        }
                        ScanInclude::InodesWithAcls => self.push_inode(dirent.ino, &mut records),
                    }
                }
                (records, entries.next().is_some())
            }
            Scan::Inodes { after, .. } => page(self.inodes.range(beyond(after)), limit, |(ino, inode)| {
                Record::Inode(*ino, Some(*inode))
            }),
            Scan::Slices { ino, from, .. } => {
                let chunks = self.slices.range((*ino, *from)..(*ino, ChunkIndex(u64::MAX)));
                page(chunks, limit, |(&(ino, chunk), rows)| {
                    Record::Slices(ino, chunk, rows.as_slice().into())
                })
            }
            Scan::Orphans { after, .. } => {
                page(self.orphans.range(beyond(after)), limit, |&(session, ino)| Record::Orphan(session, ino))
            }
            Scan::Sessions { after, .. } => {
                page(self.sessions.range(beyond(after)), limit, |(id, session)| {
                    Record::Session(*id, Some(session.clone()))
                })
            }
            Scan::Locks { after, .. } => page(self.locks.range(beyond(after)), limit, |(ino, locks)| {
                Record::Locks(*ino, locks.clone())
            }),
            Scan::Garbage { after, .. } => {
                page(self.garbage.range(beyond(after)), limit, |(&slice, &size)| {
                    Record::Garbage(Garbage { slice, size })
                })
            }
            Scan::Shared { after, .. } => {
                page(self.shared.range(beyond(after)), limit, |(&slice, &rows)| Record::Shared(slice, rows))
            }
            Scan::Acls { after, .. } => {
                page(self.acls.range(beyond(after)), limit, |(&id, text)| Record::Acl(id, Some(text.clone())))
            }
            Scan::Quotas { after, .. } => {
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                page(self.quotas.range((from, Bound::Unbounded)), limit, |(&key, &quota)| {
                    Record::Quota(key, Some(quota))
                })
            }
        };
        Page { snapshot: Snapshot { seq: Seq(self.seq), records }, more }
    }
}

fn beyond<K>(key: &K) -> (Bound<&K>, Bound<&K>) {
    (Bound::Excluded(key), Bound::Unbounded)
}

/// Builds the records of the first `limit` rows. Also returns whether there are more rows.
fn page<R>(
    mut rows: impl Iterator<Item = R>,
    limit: usize,
    record: impl Fn(R) -> Record,
) -> (Vec<Record>, bool) {
    let records = rows.by_ref().take(limit).map(record).collect();
    (records, rows.next().is_some())
}
