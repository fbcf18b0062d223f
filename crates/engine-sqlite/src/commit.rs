//! Checks guards and applies effects, for a batch of transactions inside one SQLite transaction.
//!
//! A transaction needs no savepoint: all its guards are checked before its first effect, and an effect fails
//! only if the database fails, which fails the whole batch.
//!
//! An inode that several effects or several transactions of the batch change is read once and written once.
//! In between it is cached in [`Batch::inodes`]. The changes of the usage are also accumulated.
//! [`Batch::flush`] writes both. If no other process writes ([`ExclusiveCache`]), the cached inodes are kept
//! for the following batches, because most batches change the same directories. The usage is then counted
//! only in memory, because its row would add one page to each commit. Meanwhile the row is marked as inexact, and
//! a client that reads it counts the inodes. `Engine::sync` stores the exact usage, once a second and at the end.

use std::collections::HashMap;

use meta::{Effect, Guard, Inode, Outcome, RecordKey, Results, Seq, Txn, Usage};
use rusqlite::{Connection, Result, params};
use types::{AclId, ChunkIndex, Ino, OpId};

use crate::locks;
use crate::number::int;
use crate::read;
use crate::rows;

/// The maximum number of inodes that are kept from one batch to the next, about 200 bytes each.
const CACHED_INODES: usize = 4096;

/// The transactions that are applied in one SQLite transaction.
pub(crate) struct Batch<'c> {
    conn: &'c Connection,
    seq: u64,
    inodes: Inodes,
    /// The usage without `inodes_delta` and `blocks_delta`, if the stored row is out of date; `None` if the
    /// row is exact.
    counted: Option<Usage>,
    is_exclusive: bool,
    /// The inodes that may have to be written.
    stale: Vec<Ino>,
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

/// What a handle may cache as long as no other handle writes.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveCache {
    inodes: Inodes,
    /// The usage, if the stored row is out of date.
    pub(crate) counted: Option<Usage>,
}

impl ExclusiveCache {
    pub(crate) fn counting(counted: Option<Usage>) -> ExclusiveCache {
        ExclusiveCache { counted, ..ExclusiveCache::default() }
    }

    /// Lends the state to a batch, which returns it. If the batch fails, the inodes are read again.
    pub(crate) fn lend(&mut self) -> ExclusiveCache {
        ExclusiveCache { inodes: std::mem::take(&mut self.inodes), counted: self.counted }
    }
}

impl<'c> Batch<'c> {
    /// Starts a batch in the transaction that is open on `conn`, after commit `seq`.
    pub(crate) fn new(conn: &'c Connection, seq: u64, cache: Option<ExclusiveCache>) -> Result<Self> {
        let is_exclusive = cache.is_some();
        let ExclusiveCache { inodes, mut counted } = cache.unwrap_or_default();
        if is_exclusive && counted.is_none() && !read::is_usage_exact(conn)? {
            // The previous exclusive handle died. Count now, because the changes of the batch are added to
            // this value.
            counted = Some(read::usage(conn)?);
        }
        Ok(Batch {
            conn,
            seq,
            inodes,
            counted,
            is_exclusive,
            stale: Vec::new(),
            inodes_delta: 0,
            blocks_delta: 0,
            applied: HashMap::new(),
        })
    }

    /// Checks all guards, then applies all effects.
    pub(crate) fn run(&mut self, txn: &Txn, results: &Results) -> Result<Outcome> {
        let earlier = self.applied.get(&txn.op_id).copied();
        if let Some(seq) = earlier.or_else(|| results.get(txn.op_id)) {
            return Ok(Outcome::Committed { seq, inodes: Vec::new() });
        }
        for guard in &txn.guards {
            if !self.holds(guard)? {
                let wants: Vec<RecordKey> = txn.guards.iter().map(Guard::want).collect();
                self.flush()?;
                return Ok(Outcome::Conflict(read::snapshot(
                    self.conn,
                    Seq(self.seq),
                    &wants,
                    self.counted,
                )?));
            }
        }
        if txn.effects.is_empty() {
            return Ok(Outcome::Committed { seq: Seq(self.seq), inodes: Vec::new() });
        }
        let mut changed: Vec<Ino> = Vec::new();
        for effect in &txn.effects {
            self.apply(effect)?;
            changed.extend(effect.changed_inode().filter(|ino| !changed.contains(ino)));
        }
        self.seq += 1;
        self.applied.insert(txn.op_id, Seq(self.seq));
        let inodes = changed.iter().filter_map(|ino| self.inodes.get(ino)?.inode).collect();
        Ok(Outcome::Committed { seq: Seq(self.seq), inodes })
    }

    /// Writes all pending changes.
    pub(crate) fn finish(mut self) -> Result<Finished> {
        self.flush()?;
        let mut inodes = self.inodes;
        if inodes.len() > CACHED_INODES {
            inodes.clear();
        }
        let cache = self.is_exclusive.then_some(ExclusiveCache { inodes, counted: self.counted });
        Ok(Finished { seq: self.seq, cache })
    }

    fn flush(&mut self) -> Result<()> {
        for ino in self.stale.drain(..) {
            let Some(loaded) = self.inodes.get_mut(&ino).filter(|loaded| loaded.stale) else { continue };
            if let Some(inode) = &loaded.inode {
                const SQL: &str = "UPDATE node SET kind = ?2, mode = ?3, uid = ?4, gid = ?5, rdev = ?6, nlink = ?7, \
                                   size = ?8, atime = ?9, mtime = ?10, ctime = ?11, access_acl = ?12, \
                                   default_acl = ?13, parent = ?14, access_rev = ?15, xattr_blocks = ?16 WHERE ino = ?1";
                write_inode(self.conn, SQL, inode)?;
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

    fn holds(&mut self, guard: &Guard) -> Result<bool> {
        let conn = self.conn;
        Ok(match guard {
            Guard::DirentIs { parent, name, ino } => {
                if self.inodes.contains_key(ino) {
                    return Ok(read::dirent(conn, *parent, name)?.is_some_and(|dirent| dirent.ino == *ino));
                }
                // A transaction that removes or renames an entry also changes its inode, so one statement
                // reads both.
                let Some((dirent, inode)) = read::entry(conn, *parent, name)? else { return Ok(false) };
                self.inodes.entry(dirent.ino).or_insert(Loaded { inode, stale: false });
                dirent.ino == *ino
            }
            Guard::DirentAbsent { parent, name } => read::dirent(conn, *parent, name)?.is_none(),
            Guard::Access { ino, rev } => self.inode(*ino)?.is_some_and(|n| n.access_rev == *rev),
            Guard::InodeAbsent { ino } => self.inode(*ino)?.is_none(),
            Guard::Links { ino, nlink } => self.inode(*ino)?.is_some_and(|n| n.nlink == *nlink),
            Guard::ParentIs { ino, parent } => self.inode(*ino)?.is_some_and(|n| n.parent == *parent),
            Guard::Empty { ino } => read::is_empty(conn, *ino)?,
            Guard::Xattr { ino, name, blocks } => read::xattr_blocks(conn, *ino, name)? == *blocks,
            Guard::XattrBlocks { ino, most } => self.inode(*ino)?.is_some_and(|n| n.xattr_blocks <= *most),
            Guard::Setting { name, value } => read::setting(conn, name)? == *value,
            Guard::Counter { counter, value } => read::counter(conn, *counter)? == *value,
            Guard::Size { ino, size } => self.inode(*ino)?.is_some_and(|n| n.size == *size),
            Guard::Locks { ino, locks } => {
                self.inode(*ino)?.is_some() && locks::of(conn, *ino)?[..] == locks[..]
            }
            Guard::Rows { ino, chunk, rows } => read::slices(conn, *ino, *chunk)?.starts_with(rows),
            Guard::Room { max_inodes, max_blocks } => {
                let usage = self.usage()?;
                usage.inodes < *max_inodes && usage.blocks < *max_blocks
            }
            Guard::Session { session, heartbeat } => {
                let found = read::heartbeat(conn, *session)?;
                found.is_some_and(|found| heartbeat.is_none_or(|heartbeat| found == heartbeat))
            }
            Guard::Term { session, term } => {
                const SQL: &str = "SELECT 1 FROM term WHERE session = ?1 AND term = ?2";
                conn.prepare_cached(SQL)?.exists([int(session.0), term.0.into()])?
            }
        })
    }

    fn apply(&mut self, effect: &Effect) -> Result<()> {
        let conn = self.conn;
        match effect {
            Effect::PutInode(inode) => self.put_inode(inode)?,
            Effect::DropInode { ino } => self.drop_inode(*ino)?,
            Effect::PutDirent { parent, name, ino, kind } => {
                const SQL: &str = "INSERT INTO edge (parent, name, ino, kind) VALUES (?1, ?2, ?3, ?4) \
                                   ON CONFLICT DO UPDATE SET ino = excluded.ino, kind = excluded.kind";
                let params = (int(parent.0), name.as_bytes(), int(ino.0), kind.to_dtype());
                conn.prepare_cached(SQL)?.execute(params)?;
            }
            Effect::DropDirent { parent, name } => {
                const SQL: &str = "DELETE FROM edge WHERE parent = ?1 AND name = ?2";
                conn.prepare_cached(SQL)?.execute((int(parent.0), name.as_bytes()))?;
            }
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::SetTimes { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. }
            | Effect::AddXattrBlocks { ino, .. } => self.change_inode(*ino, effect)?,
            Effect::AppendSlice { ino, chunk, slice } => {
                if self.inode(*ino)?.is_some() {
                    rows::append(conn, *ino, *chunk, slice)?;
                }
            }
            Effect::DropSlices { ino, from, to } => rows::drop_chunks(conn, *ino, *from, *to)?,
            Effect::ReplaceRows { ino, chunk, count, rows } => {
                rows::replace(conn, *ino, *chunk, *count, rows)?;
            }
            Effect::Share { slice } => rows::share(conn, *slice)?,
            Effect::PutXattr { ino, name, value } => {
                if self.inode(*ino)?.is_some() {
                    const SQL: &str = "INSERT INTO xattr (ino, name, value) VALUES (?1, ?2, ?3) \
                                       ON CONFLICT DO UPDATE SET value = excluded.value";
                    conn.prepare_cached(SQL)?.execute((int(ino.0), name.as_bytes(), &value[..]))?;
                }
            }
            Effect::DropXattr { ino, name } => {
                const SQL: &str = "DELETE FROM xattr WHERE ino = ?1 AND name = ?2";
                conn.prepare_cached(SQL)?.execute((int(ino.0), name.as_bytes()))?;
            }
            Effect::PutAcl { id, text } => {
                const SQL: &str = "INSERT INTO acl (id, text) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
                conn.prepare_cached(SQL)?.execute((id.to_bytes(), &text[..]))?;
            }
            Effect::PutSymlink { ino, target } => {
                if self.inode(*ino)?.is_some() {
                    const SQL: &str = "INSERT INTO symlink (ino, target) VALUES (?1, ?2) \
                                       ON CONFLICT DO UPDATE SET target = excluded.target";
                    conn.prepare_cached(SQL)?.execute((int(ino.0), &target[..]))?;
                }
            }
            Effect::PutOrphan { session, ino } => {
                const SQL: &str = "INSERT INTO orphan (session, ino) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
                conn.prepare_cached(SQL)?.execute([int(session.0), int(ino.0)])?;
            }
            Effect::DropOrphan { session, ino } => {
                const SQL: &str = "DELETE FROM orphan WHERE session = ?1 AND ino = ?2";
                conn.prepare_cached(SQL)?.execute([int(session.0), int(ino.0)])?;
            }
            Effect::PutLocks { ino, locks } => {
                if self.inode(*ino)?.is_some() {
                    locks::put(conn, *ino, locks)?;
                }
            }
            Effect::PutWait(wait) => locks::put_wait(conn, wait)?,
            Effect::DropWait { owner } => locks::drop_wait(conn, *owner)?,
            Effect::PutSession(s) => {
                const SQL: &str = "REPLACE INTO session (id, host, pid, mountpoint, since, heartbeat, boot_id, \
                                   pid_namespace, start_time, version, first_slice) \
                                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
                conn.prepare_cached(SQL)?.execute(params![
                    int(s.id.0),
                    s.host,
                    s.pid,
                    s.mountpoint,
                    s.since.nanos(),
                    s.heartbeat.nanos(),
                    s.process.boot_id,
                    int(s.process.pid_namespace),
                    int(s.process.start_time),
                    s.version,
                    int(s.first_slice.0),
                ])?;
            }
            Effect::DropSession { session } => {
                conn.prepare_cached("DELETE FROM session WHERE id = ?1")?.execute([int(session.0)])?;
                conn.prepare_cached("DELETE FROM term WHERE session = ?1")?.execute([int(session.0)])?;
            }
            Effect::BeginTerm { session, term, ended } => {
                const BEGIN: &str = "INSERT INTO term (session, term) SELECT id, ?2 FROM session WHERE id = ?1 \
                                     ON CONFLICT DO NOTHING";
                const END: &str = "DELETE FROM term WHERE session = ?1 AND term = ?2";
                conn.prepare_cached(BEGIN)?.execute([int(session.0), term.0.into()])?;
                for term in &ended[..] {
                    conn.prepare_cached(END)?.execute([int(session.0), term.0.into()])?;
                }
            }
            Effect::DropGarbage { slice } => {
                conn.prepare_cached("DELETE FROM garbage WHERE slice = ?1")?.execute([int(slice.0)])?;
            }
            Effect::PutSetting { name, value } => {
                const SQL: &str = "REPLACE INTO setting (name, value) VALUES (?1, ?2)";
                conn.prepare_cached(SQL)?.execute((name, value))?;
            }
            Effect::SetCounter { counter, value } => {
                const SQL: &str = "REPLACE INTO counter (name, value) VALUES (?1, ?2)";
                conn.prepare_cached(SQL)?.execute((counter.name(), int(*value)))?;
            }
            Effect::AddUsage { inodes, blocks } => {
                // Write the batch's additions first, because this effect clamps the usage at 0.
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
        }
        Ok(())
    }

    /// The inode as the batch sees it; read from the database if it is not cached.
    fn inode(&mut self, ino: Ino) -> Result<Option<Inode>> {
        if let Some(loaded) = self.inodes.get(&ino) {
            return Ok(loaded.inode);
        }
        let inode = read::inode(self.conn, ino)?;
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

    fn put_inode(&mut self, inode: &Inode) -> Result<()> {
        const SQL: &str = "INSERT INTO node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, \
                           access_acl, default_acl, parent, access_rev, xattr_blocks) \
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) \
                           ON CONFLICT DO NOTHING";
        // The inode number is usually new, so try the insert first.
        if write_inode(self.conn, SQL, inode)? == 0 {
            self.drop_inode(inode.ino)?;
            write_inode(self.conn, SQL, inode)?;
        }
        self.inodes_delta += 1;
        self.blocks_delta += inode.blocks() as i64;
        self.inodes.insert(inode.ino, Loaded { inode: Some(*inode), stale: false });
        Ok(())
    }

    fn drop_inode(&mut self, ino: Ino) -> Result<()> {
        let Some(inode) = self.inode(ino)? else { return Ok(()) };
        self.inodes_delta -= 1;
        self.blocks_delta -= inode.blocks() as i64;
        self.inodes.insert(ino, Loaded { inode: None, stale: false });
        let id = [int(ino.0)];
        self.conn.prepare_cached("DELETE FROM node WHERE ino = ?1")?.execute(id)?;
        // Most inodes have no such rows: one query replaces six statements.
        const HANGS_ON: &str = "SELECT EXISTS (SELECT 1 FROM xattr WHERE ino = ?1), \
                                EXISTS (SELECT 1 FROM symlink WHERE ino = ?1), \
                                EXISTS (SELECT 1 FROM lock WHERE ino = ?1), \
                                EXISTS (SELECT 1 FROM slice WHERE ino = ?1)";
        let (xattrs, symlink, locks, slices) = self
            .conn
            .prepare_cached(HANGS_ON)?
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

/// Runs an INSERT or UPDATE whose parameters are the columns of an inode in order. Returns the number of
/// changed rows.
fn write_inode(conn: &Connection, sql: &str, inode: &Inode) -> Result<usize> {
    let acl = |id: AclId| (!id.is_none()).then(|| id.to_bytes());
    conn.prepare_cached(sql)?.execute(params![
        int(inode.ino.0),
        inode.kind.to_dtype(),
        inode.mode.bits(),
        inode.uid,
        inode.gid,
        inode.rdev,
        inode.nlink,
        int(inode.size),
        inode.atime.nanos(),
        inode.mtime.nanos(),
        inode.ctime.nanos(),
        acl(inode.access_acl),
        acl(inode.default_acl),
        int(inode.parent.0),
        int(inode.access_rev),
        inode.xattr_blocks,
    ])
}
