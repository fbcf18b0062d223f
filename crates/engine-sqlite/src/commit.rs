//! Checks guards and applies effects, for a batch of transactions inside one SQLite transaction.
//!
//! A transaction needs no savepoint: all its guards are checked before its first effect, and an effect fails
//! only if the database fails, which fails the whole batch.
//!
//! An inode that several effects or several transactions of the batch change is read once and written once.
//! In between it is cached in [`Batch::inodes`]. The changes of the usage are also accumulated.
//! [`Batch::flush`] writes both. The new rows of a transaction are collected too, and are written before
//! anything that may read them, at the latest at the end of the transaction ([`Batch::write_additions`]).
//!
//! If no other process writes ([`ExclusiveCache`]), the cached inodes are kept for the following batches,
//! because most batches change the same directories. The last term that was found open is kept too, because
//! all changes of a mount are guarded by its term. The usage is then counted only in memory, because its row
//! would add one page to each commit. Meanwhile the row is marked as inexact, and another handle that needs
//! the usage counts the inodes. `Engine::sync` stores the exact usage. A mount calls it about a second after
//! a change, and at its end.

use std::sync::Arc;

use host::HashMap;
use meta::{Effect, Guard, Inode, Outcome, Record, RecordKey, Results, Seq, Txn, Usage, xattr_blocks};
use rusqlite::{Connection, OptionalExtension, Result};
use types::{ChunkIndex, Ino, OpId, SessionId, Slice, Term};

use crate::additions::{self, Additions, TOGETHER};
use crate::number::int;
use crate::sql::{Statements, execute_inode, parameters};
use crate::{quotas, read, rows, sql};

/// The maximum number of inodes that are kept from one batch to the next, about 200 bytes each.
const CACHED_INODES: usize = 16_384;

/// The transactions that are applied in one SQLite transaction.
pub(crate) struct Batch<'c, 't> {
    conn: &'c Connection,
    statements: Statements<'c>,
    seq: u64,
    inodes: Inodes,
    additions: Additions<'t>,
    /// The usage without `inodes_delta` and `blocks_delta`, if the stored row is out of date; `None` if the
    /// row is exact.
    counted: Option<Usage>,
    is_exclusive: bool,
    /// The last term that a guard found open.
    open_term: Option<(SessionId, Term)>,
    /// The inodes that may have to be written.
    stale: Vec<Ino>,
    /// The inodes that this batch has created, each with the position of the last row that was added to it.
    /// Rows that are added after this position need no search for the last row of their chunk.
    last_rows: HashMap<Ino, Option<(ChunkIndex, i64)>>,
    inodes_delta: i64,
    blocks_delta: i64,
    applied: HashMap<OpId, Seq>,
}

/// Inodes that were read or changed.
type Inodes = HashMap<Ino, Loaded>;

/// An inode as the batch has left it. `stale` means that its row has not been written yet. An absent inode
/// has no row.
#[derive(Debug)]
struct Loaded {
    inode: Option<Inode>,
    stale: bool,
}

/// The result of a batch, once it is committed.
pub(crate) struct Finished {
    /// The number of the last commit.
    pub(crate) seq: u64,
    pub(crate) cache: Option<ExclusiveCache>,
}

/// The state that a handle may cache as long as no other handle writes.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveCache {
    inodes: Inodes,
    open_term: Option<(SessionId, Term)>,
    /// The usage, if the stored row is out of date.
    pub(crate) counted: Option<Usage>,
}

impl ExclusiveCache {
    pub(crate) fn counting(counted: Option<Usage>) -> ExclusiveCache {
        ExclusiveCache { counted, ..ExclusiveCache::default() }
    }

    /// Lends the state to a batch. A batch that succeeds returns it; after one that fails, the records are
    /// read again.
    pub(crate) fn lend(&mut self) -> ExclusiveCache {
        let lent = ExclusiveCache { counted: self.counted, ..ExclusiveCache::default() };
        std::mem::replace(self, lent)
    }
}

impl<'c, 't> Batch<'c, 't> {
    /// Starts a batch in the transaction that is open on `conn`, after commit `seq`.
    pub(crate) fn new(conn: &'c Connection, seq: u64, cache: Option<ExclusiveCache>) -> Result<Self> {
        let is_exclusive = cache.is_some();
        let ExclusiveCache { inodes, open_term, mut counted } = cache.unwrap_or_default();
        if is_exclusive && counted.is_none() && !read::is_usage_exact(conn)? {
            // The exclusive handle that marked the row has died. (If this batch has only guards, that handle
            // may also be alive, in another process.) Count now, because the changes of the batch are added
            // to this value.
            counted = Some(read::usage(conn)?);
        }
        Ok(Batch {
            conn,
            statements: Statements::new(conn),
            seq,
            inodes,
            additions: Additions::default(),
            counted,
            is_exclusive,
            open_term,
            stale: Vec::new(),
            last_rows: HashMap::default(),
            inodes_delta: 0,
            blocks_delta: 0,
            applied: HashMap::default(),
        })
    }

    /// Checks all guards, then applies all effects.
    pub(crate) fn run(&mut self, txn: &'t Txn, results: &Results) -> Result<Outcome> {
        let earlier = self.applied.get(&txn.op_id).copied();
        if let Some(seq) = earlier.or_else(|| results.get(txn.op_id)) {
            return Ok(Outcome::Committed { seq, inodes: Vec::new() });
        }
        if !self.all_hold(&txn.guards)? {
            let keys: Vec<RecordKey> = txn.guards.iter().map(Guard::key).collect();
            self.flush()?;
            return Ok(Outcome::Conflict(read::snapshot(self.conn, Seq(self.seq), &keys, self.counted)?));
        }
        if txn.effects.is_empty() {
            return Ok(Outcome::Committed { seq: Seq(self.seq), inodes: Vec::new() });
        }
        txn.effects.iter().try_for_each(|effect| self.apply(effect))?;
        self.write_additions()?;
        self.seq += 1;
        self.applied.insert(txn.op_id, Seq(self.seq));
        let inodes = txn.changed_inodes().iter().filter_map(|ino| self.inodes.get(ino)?.inode).collect();
        Ok(Outcome::Committed { seq: Seq(self.seq), inodes })
    }

    /// Writes all pending changes.
    pub(crate) fn finish(mut self) -> Result<Finished> {
        self.flush()?;
        let mut inodes = self.inodes;
        if inodes.len() > CACHED_INODES {
            inodes.clear();
        }
        let (open_term, counted) = (self.open_term, self.counted);
        let cache = self.is_exclusive.then_some(ExclusiveCache { inodes, open_term, counted });
        Ok(Finished { seq: self.seq, cache })
    }

    fn flush(&mut self) -> Result<()> {
        for ino in self.stale.drain(..) {
            let Some(loaded) = self.inodes.get_mut(&ino).filter(|loaded| loaded.stale) else { continue };
            if let Some(inode) = &loaded.inode {
                execute_inode(self.statements.get(sql::update_inode())?, inode)?;
            }
            loaded.stale = false;
        }
        if (self.inodes_delta, self.blocks_delta) != (0, 0) {
            if self.is_exclusive {
                let usage = self.usage()?;
                self.count(usage)?;
            } else {
                const SQL: &str = "UPDATE usage SET inodes = inodes + ?1, blocks = blocks + ?2";
                self.conn.prepare_cached(SQL)?.execute([self.inodes_delta, self.blocks_delta])?;
            }
            (self.inodes_delta, self.blocks_delta) = (0, 0);
        }
        Ok(())
    }

    /// Keeps the usage in memory from now on. The first time, marks the stored row as inexact.
    fn count(&mut self, usage: Usage) -> Result<()> {
        if self.counted.replace(usage).is_none() {
            self.conn.prepare_cached("UPDATE usage SET exact = 0")?.execute([])?;
        }
        Ok(())
    }

    /// Writes the collected rows.
    fn write_additions(&mut self) -> Result<()> {
        if self.additions.is_empty() {
            return Ok(());
        }
        let inodes = std::mem::take(&mut self.additions.inodes);
        for part in inodes.chunks(TOGETHER) {
            if part.len() < TOGETHER || !additions::add_inodes(&mut self.statements, part)? {
                part.iter().try_for_each(|inode| self.add_inode(inode))?;
            }
        }
        self.additions.add_rows(&mut self.statements)
    }

    /// Adds an inode. An existing one is removed first, with everything that belongs to it.
    fn add_inode(&mut self, inode: &Inode) -> Result<()> {
        if !additions::add_inodes(&mut self.statements, &[inode])? {
            if let Some(old) = read::inode(&mut self.statements, inode.ino)? {
                self.remove(&old)?;
            }
            additions::add_inodes(&mut self.statements, &[inode])?;
        }
        Ok(())
    }

    fn all_hold(&mut self, guards: &[Guard]) -> Result<bool> {
        // There may be many guards on rows, so their rows are read together.
        let of_rows = || {
            guards.iter().filter_map(|guard| match guard {
                Guard::Rows { rows, .. } => Some((guard, rows)),
                _ => None,
            })
        };
        let keys: Vec<RecordKey> = of_rows().map(|(guard, _)| guard.key()).collect();
        let found = read::snapshot(self.conn, Seq(0), &keys, None)?.records;
        let is_stored = |((_, rows), found): ((_, &Arc<[Slice]>), &Record)| match found {
            Record::Slices(_, _, found) => found.starts_with(rows),
            _ => false,
        };
        if !of_rows().zip(&found).all(is_stored) {
            return Ok(false);
        }
        for guard in guards {
            if !matches!(guard, Guard::Rows { .. }) && !self.holds(guard)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn holds(&mut self, guard: &Guard) -> Result<bool> {
        let conn = self.conn;
        Ok(match guard {
            Guard::DirentIs { parent, name, ino } if self.inodes.contains_key(ino) => {
                read::dirent(&mut self.statements, *parent, name)? == Some(*ino)
            }
            Guard::DirentAbsent { parent, name } => {
                read::dirent(&mut self.statements, *parent, name)?.is_none()
            }
            Guard::Empty { ino } => {
                !self.statements.get("SELECT 1 FROM edge WHERE parent = ?1 LIMIT 1")?.exists([int(ino.0)])?
            }
            Guard::Access { ino, rev } => self.inode(*ino)?.is_some_and(|n| n.access_rev == *rev),
            Guard::InodeAbsent { ino } => self.inode(*ino)?.is_none(),
            Guard::Links { ino, nlink } => self.inode(*ino)?.is_some_and(|n| n.nlink == *nlink),
            Guard::ParentIs { ino, parent } => self.inode(*ino)?.is_some_and(|n| n.parent == *parent),
            Guard::XattrBlocks { ino, least, most } => {
                self.inode(*ino)?.is_some_and(|n| (*least..=*most).contains(&n.xattr_blocks))
            }
            Guard::Size { ino, size } => self.inode(*ino)?.is_some_and(|n| n.size == *size),
            Guard::Xattr { ino, name, blocks } => {
                const SQL: &str = "SELECT length(value) FROM xattr WHERE ino = ?1 AND name = ?2";
                let mut statement = conn.prepare_cached(SQL)?;
                let length = statement.query_row((int(ino.0), name.as_bytes()), |row| row.get::<_, u32>(0));
                length.optional()?.map_or(0, |length| xattr_blocks(length as usize)) == *blocks
            }
            Guard::Room { max_inodes, max_blocks } => {
                let usage = self.usage()?;
                usage.inodes < *max_inodes && usage.blocks < *max_blocks
            }
            Guard::Term { session, term } if self.open_term == Some((*session, *term)) => true,
            Guard::Term { session, term } => {
                const SQL: &str = "SELECT 1 FROM term WHERE session = ?1 AND term = ?2";
                let is_open = conn.prepare_cached(SQL)?.exists([int(session.0), term.0.into()])?;
                if is_open {
                    self.open_term = Some((*session, *term));
                }
                is_open
            }
            Guard::Acl { id } => {
                // The text of a condemned ACL begins with `!`.
                const SQL: &str = "SELECT 1 FROM acl WHERE id = ?1 AND text NOT LIKE '!%'";
                conn.prepare_cached(SQL)?.exists([&id.to_bytes()[..]])?
            }
            Guard::Locks { ino, .. } if self.inode(*ino)?.is_none() => false,
            _ => self.record_holds(guard)?,
        })
    }

    /// Checks a guard against the stored record that decides it.
    fn record_holds(&mut self, guard: &Guard) -> Result<bool> {
        let records = read::records(self.conn, &guard.key())?;
        Ok(match (guard, &records[..]) {
            (Guard::DirentIs { ino, .. }, [_, Record::Inode(found, inode), ..]) => {
                // A transaction that removes or renames an entry also changes its inode, so one statement
                // reads both.
                self.inodes.entry(*found).or_insert(Loaded { inode: *inode, stale: false });
                found == ino
            }
            (Guard::Setting { name, value }, [Record::Settings(found)]) => found.get(*name) == value.as_ref(),
            (Guard::Counter { value, .. }, [Record::Counter(_, found)]) => found == value,
            (Guard::Locks { locks, .. }, [Record::Locks(_, found)]) => found == locks,
            (Guard::Quota { outer, inodes, blocks, .. }, [Record::Quota(_, Some(quota))]) => {
                outer.is_none_or(|outer| quota.rule.outer == outer) && quota.fits(*inodes, *blocks)
            }
            (Guard::Quota { outer, .. }, [Record::Quota(_, None)]) => outer.is_none(),
            (Guard::Session { heartbeat, .. }, [Record::Session(_, Some(found))]) => {
                heartbeat.is_none_or(|heartbeat| found.heartbeat == heartbeat)
            }
            _ => false,
        })
    }

    fn apply(&mut self, effect: &'t Effect) -> Result<()> {
        let conn = self.conn;
        match effect {
            Effect::PutInode(inode) => self.put_inode(inode)?,
            Effect::DropInode { ino } => self.drop_inode(*ino)?,
            Effect::PutDirent { parent, name, ino, kind } => {
                self.additions.dirents.push((*parent, name, *ino, *kind));
            }
            Effect::DropDirent { parent, name } => {
                const SQL: &str = "DELETE FROM edge WHERE parent = ?1 AND name = ?2";
                self.write_additions()?;
                self.statements.get(SQL)?.execute((int(parent.0), name.as_bytes()))?;
            }
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::SetTimes { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. }
            | Effect::AddXattrBlocks { ino, .. } => self.change_inode(*ino, effect)?,
            Effect::AppendSlice { ino, chunk, slice } => self.append(*ino, *chunk, slice)?,
            Effect::DropSlices { ino, from, to } => {
                self.write_additions()?;
                self.last_rows.remove(ino);
                rows::drop_chunks(conn, *ino, *from, *to)?;
            }
            Effect::ReplaceRows { ino, chunk, count, rows } => {
                self.write_additions()?;
                self.last_rows.remove(ino);
                rows::replace(conn, *ino, *chunk, *count, rows)?;
            }
            Effect::Share { slice, rows } => self.additions.shares.push((*slice, *rows)),
            Effect::BeginTerm { session, term, ended } => {
                const BEGIN: &str = "INSERT INTO term (session, term) SELECT id, ?2 FROM session WHERE id = ?1 \
                                     ON CONFLICT DO NOTHING";
                const END: &str = "DELETE FROM term WHERE session = ?1 AND term = ?2";
                self.open_term = None;
                conn.prepare_cached(BEGIN)?.execute([int(session.0), term.0.into()])?;
                for term in &ended[..] {
                    conn.prepare_cached(END)?.execute([int(session.0), term.0.into()])?;
                }
            }
            Effect::AddUsage { inodes, blocks } => {
                // Apply the earlier changes of the usage first, because this effect clamps the usage at 0. A new
                // inode must be in its table before its changes are written.
                self.write_additions()?;
                self.flush()?;
                if self.is_exclusive {
                    let Usage { inodes: all, blocks: full } = self.usage()?;
                    let add = u64::saturating_add_signed;
                    self.count(Usage { inodes: add(all, *inodes), blocks: add(full, *blocks) })?;
                } else {
                    const SQL: &str =
                        "UPDATE usage SET inodes = max(inodes + ?1, 0), blocks = max(blocks + ?2, 0)";
                    conn.prepare_cached(SQL)?.execute([inodes, blocks])?;
                }
            }
            Effect::PutAcl { id, .. } => {
                self.put_all(effect)?;
                const SQL: &str = "UPDATE acl SET text = substr(text, 2) WHERE id = ?1 AND text LIKE '!%'";
                conn.prepare_cached(SQL)?.execute([&id.to_bytes()[..]])?;
            }
            Effect::CondemnAcl { id } => {
                const SQL: &str = "UPDATE acl SET text = '!' || text WHERE id = ?1 AND text NOT LIKE '!%'";
                conn.prepare_cached(SQL)?.execute([&id.to_bytes()[..]])?;
            }
            Effect::DropAcl { id } => {
                const SQL: &str = "DELETE FROM acl WHERE id = ?1 AND text LIKE '!%'";
                conn.prepare_cached(SQL)?.execute([&id.to_bytes()[..]])?;
            }
            Effect::PutQuota { key, rule } => quotas::put(conn, *key, rule)?,
            Effect::Charge { key, inodes, blocks } => quotas::charge(conn, *key, *inodes, *blocks)?,
            _ => {
                if let Effect::DropSession { session } = effect {
                    self.open_term = None;
                    conn.prepare_cached("DELETE FROM term WHERE session = ?1")?.execute([int(session.0)])?;
                }
                if let Some(key) = tables::removed(effect) {
                    self.write_additions()?;
                    self.statements.get(sql::remove(&key))?.execute(parameters(&key))?;
                }
                // Rows that belong to an inode are removed with it, so they are added only if it exists.
                match tables::holder(effect) {
                    Some(ino) if self.inode(ino)?.is_none() => {}
                    Some(_) => self.additions.others.extend(tables::put(effect)),
                    None => self.put_all(effect)?,
                }
            }
        }
        Ok(())
    }

    /// Puts the rows of an effect at once, without collecting them.
    fn put_all(&mut self, effect: &Effect) -> Result<()> {
        for line in &tables::put(effect) {
            self.statements.get(sql::put(line.table))?.execute(parameters(line))?;
        }
        Ok(())
    }

    /// The inode as the batch sees it; read from the database if it is not cached.
    fn inode(&mut self, ino: Ino) -> Result<Option<Inode>> {
        if let Some(loaded) = self.inodes.get(&ino) {
            return Ok(loaded.inode);
        }
        let inode = read::inode(&mut self.statements, ino)?;
        self.inodes.insert(ino, Loaded { inode, stale: false });
        Ok(inode)
    }

    fn usage(&self) -> Result<Usage> {
        let stored = self.counted.map_or_else(|| read::usage(self.conn), Ok)?;
        Ok(Usage {
            inodes: stored.inodes.wrapping_add_signed(self.inodes_delta),
            blocks: stored.blocks.wrapping_add_signed(self.blocks_delta),
        })
    }

    fn change_inode(&mut self, ino: Ino, effect: &Effect) -> Result<()> {
        let Some(mut inode) = self.inode(ino)? else { return Ok(()) };
        self.blocks_delta -= inode.blocks() as i64;
        effect.apply_to(&mut inode);
        self.blocks_delta += inode.blocks() as i64;
        self.stale.push(ino);
        self.inodes.insert(ino, Loaded { inode: Some(inode), stale: true });
        Ok(())
    }

    fn put_inode(&mut self, inode: &'t Inode) -> Result<()> {
        if self.inodes.get(&inode.ino).is_some_and(|loaded| loaded.inode.is_some()) {
            self.drop_inode(inode.ino)?;
        }
        self.inodes_delta += 1;
        self.blocks_delta += inode.blocks() as i64;
        self.inodes.insert(inode.ino, Loaded { inode: Some(*inode), stale: false });
        self.last_rows.insert(inode.ino, None);
        self.additions.inodes.push(inode);
        Ok(())
    }

    /// Adds a row that is newer than all other rows of its chunk.
    fn append(&mut self, ino: Ino, chunk: ChunkIndex, slice: &'t Slice) -> Result<()> {
        if let Some(last) = self.last_rows.get_mut(&ino)
            && last.is_none_or(|(last, _)| last <= chunk)
        {
            let place = last.filter(|(last, _)| *last == chunk).map_or(1, |(_, place)| place + 1);
            *last = Some((chunk, place));
            self.additions.slices.push((ino, chunk, place, slice));
        } else if self.inode(ino)?.is_some() {
            self.write_additions()?;
            rows::append(self.conn, ino, chunk, slice)?;
        }
        Ok(())
    }

    fn drop_inode(&mut self, ino: Ino) -> Result<()> {
        self.write_additions()?;
        let Some(inode) = self.inode(ino)? else { return Ok(()) };
        self.inodes.insert(ino, Loaded { inode: None, stale: false });
        self.last_rows.remove(&ino);
        self.remove(&inode)
    }

    /// Removes a stored inode with everything that belongs to it.
    fn remove(&mut self, inode: &Inode) -> Result<()> {
        let ino = inode.ino;
        self.inodes_delta -= 1;
        self.blocks_delta -= inode.blocks() as i64;
        let id = [int(ino.0)];
        self.statements.get("DELETE FROM node WHERE ino = ?1")?.execute(id)?;
        // Most inodes have no such rows: one query replaces six statements.
        const HANGS_ON: &str = "SELECT EXISTS (SELECT 1 FROM xattr WHERE ino = ?1), \
                                EXISTS (SELECT 1 FROM symlink WHERE ino = ?1), \
                                EXISTS (SELECT 1 FROM lock WHERE ino = ?1), \
                                EXISTS (SELECT 1 FROM slice WHERE ino = ?1)";
        let (xattrs, symlink, locks, slices) = self
            .statements
            .get(HANGS_ON)?
            .query_row(id, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        for (there, sql) in [
            (xattrs, "DELETE FROM xattr WHERE ino = ?1"),
            (symlink, "DELETE FROM symlink WHERE ino = ?1"),
            (locks, "DELETE FROM lock WHERE ino = ?1"),
        ] {
            if there {
                self.conn.prepare_cached(sql)?.execute(id)?;
            }
        }
        if slices {
            rows::drop_chunks(self.conn, ino, ChunkIndex(0), ChunkIndex(u64::MAX))?;
        }
        Ok(())
    }
}

/// Stores the exact usage. The caller opens the transaction.
pub(crate) fn write_usage(conn: &Connection, usage: Usage) -> Result<()> {
    const SQL: &str = "UPDATE usage SET inodes = ?1, blocks = ?2, exact = 1";
    conn.prepare_cached(SQL)?.execute([int(usage.inodes), int(usage.blocks)]).map(drop)
}
