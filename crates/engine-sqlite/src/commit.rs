//! Guards and effects, for a batch of transactions inside one SQLite transaction.
//!
//! No savepoint is taken for a transaction: its guards are all checked before its first effect, and an effect fails only
//! if the database does, which fails the whole batch.
//!
//! A node changed by several effects, or by several transactions of the batch, is read once and written once: it stands
//! in [`Batch::nodes`] between. So does what the batch adds to the volume's usage. Both are written by [`Batch::flush`].
//! Where no other process writes ([`Alone`]), nodes stand there for the batches that follow too, for most of them change
//! the same directories; and the usage is only counted on in memory, for its row would be one more page in each commit.

use std::collections::HashMap;

use meta::{Effect, Guard, Node, Outcome, Results, Seq, Txn, Usage, Want};
use rusqlite::{Connection, Result, params};
use types::{AclId, ChunkIndex, Ino, OpId};

use crate::locks;
use crate::read::{self, int};
use crate::rows;

/// How many nodes stand in memory from one batch to the next, some 200 bytes each.
const REMEMBERED_NODES: usize = 4096;

/// The transactions that went into one SQLite transaction so far.
pub(crate) struct Batch<'c> {
    conn: &'c Connection,
    seq: u64,
    nodes: Nodes,
    /// The usage before `inodes_delta` and `blocks_delta`, where its row is behind; `None` where that holds.
    counted: Option<Usage>,
    is_alone: bool,
    /// Which of `nodes` may be stale.
    stale: Vec<Ino>,
    inodes_delta: i64,
    blocks_delta: i64,
    applied: HashMap<OpId, Seq>,
}

/// Nodes that were read or changed.
type Nodes = HashMap<Ino, Loaded>;

/// A node as the batch left it; `stale` if its row is still to be written. An absent node has no row.
#[derive(Debug)]
struct Loaded {
    node: Option<Node>,
    stale: bool,
}

/// What a batch leaves, once it is committed.
pub(crate) struct Finished {
    /// Of the last commit.
    pub(crate) seq: u64,
    pub(crate) alone: Option<Alone>,
}

/// What a handle knows by itself for as long as no other writes.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    nodes: Nodes,
    /// The usage, where its row is behind.
    pub(crate) counted: Option<Usage>,
}

impl Alone {
    pub(crate) fn counting(counted: Option<Usage>) -> Alone {
        Alone { counted, ..Alone::default() }
    }

    /// For a batch, which gives it back. If it fails, the nodes are to be read again.
    pub(crate) fn lend(&mut self) -> Alone {
        Alone { nodes: std::mem::take(&mut self.nodes), counted: self.counted }
    }
}

impl<'c> Batch<'c> {
    /// A batch in the transaction open on `conn`, after commit `seq`.
    pub(crate) fn new(conn: &'c Connection, seq: u64, alone: Option<Alone>) -> Result<Self> {
        let is_alone = alone.is_some();
        let Alone { nodes, mut counted } = alone.unwrap_or_default();
        if is_alone && counted.is_none() && !read::is_usage_exact(conn)? {
            // Who was alone before has died. Counted now, for what the batch changes is added to it.
            counted = Some(read::usage(conn)?);
        }
        Ok(Batch {
            conn,
            seq,
            nodes,
            counted,
            is_alone,
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
            return Ok(Outcome::Committed { seq, nodes: Vec::new() });
        }
        for guard in &txn.guards {
            if !self.holds(guard)? {
                let wants: Vec<Want> = txn.guards.iter().map(Guard::want).collect();
                self.flush()?;
                return Ok(Outcome::Conflict(read::facts(self.conn, Seq(self.seq), &wants, self.counted)?));
            }
        }
        if txn.effects.is_empty() {
            return Ok(Outcome::Committed { seq: Seq(self.seq), nodes: Vec::new() });
        }
        let mut changed: Vec<Ino> = Vec::new();
        for effect in &txn.effects {
            self.apply(effect)?;
            changed.extend(effect.changed_node().filter(|ino| !changed.contains(ino)));
        }
        self.seq += 1;
        self.applied.insert(txn.op_id, Seq(self.seq));
        let nodes = changed.iter().filter_map(|ino| self.nodes.get(ino)?.node).collect();
        Ok(Outcome::Committed { seq: Seq(self.seq), nodes })
    }

    /// Writes everything out.
    pub(crate) fn finish(mut self) -> Result<Finished> {
        self.flush()?;
        let mut nodes = self.nodes;
        if nodes.len() > REMEMBERED_NODES {
            nodes.clear();
        }
        let alone = self.is_alone.then_some(Alone { nodes, counted: self.counted });
        Ok(Finished { seq: self.seq, alone })
    }

    fn flush(&mut self) -> Result<()> {
        for ino in self.stale.drain(..) {
            let Some(loaded) = self.nodes.get_mut(&ino).filter(|loaded| loaded.stale) else { continue };
            if let Some(node) = &loaded.node {
                const SQL: &str = "UPDATE node SET kind = ?2, mode = ?3, uid = ?4, gid = ?5, rdev = ?6, nlink = ?7, \
                                   size = ?8, atime = ?9, mtime = ?10, ctime = ?11, access_acl = ?12, \
                                   default_acl = ?13, parent = ?14, access_rev = ?15 WHERE ino = ?1";
                write_node(self.conn, SQL, node)?;
            }
            loaded.stale = false;
        }
        if (self.inodes_delta, self.blocks_delta) != (0, 0) {
            if self.is_alone {
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

    /// Keeps the usage in memory from here on.
    fn count(&mut self, usage: Usage) -> Result<()> {
        if self.counted.replace(usage).is_none() {
            self.conn.prepare_cached("UPDATE usage SET exact = 0")?.execute([])?;
        }
        Ok(())
    }

    fn holds(&mut self, guard: &Guard) -> Result<bool> {
        let conn = self.conn;
        Ok(match guard {
            Guard::EdgeIs { parent, name, ino } => {
                if self.nodes.contains_key(ino) {
                    return Ok(read::edge(conn, *parent, name)?.is_some_and(|edge| edge.ino == *ino));
                }
                // Who removes or renames an entry changes the inode behind it: both come with one statement.
                let Some((edge, node)) = read::entry(conn, *parent, name)? else { return Ok(false) };
                self.nodes.entry(edge.ino).or_insert(Loaded { node, stale: false });
                edge.ino == *ino
            }
            Guard::EdgeAbsent { parent, name } => read::edge(conn, *parent, name)?.is_none(),
            Guard::Access { ino, rev } => self.node(*ino)?.is_some_and(|n| n.access_rev == *rev),
            Guard::NodeAbsent { ino } => self.node(*ino)?.is_none(),
            Guard::Links { ino, nlink } => self.node(*ino)?.is_some_and(|n| n.nlink == *nlink),
            Guard::ParentIs { ino, parent } => self.node(*ino)?.is_some_and(|n| n.parent == *parent),
            Guard::Empty { ino } => read::is_empty(conn, *ino)?,
            Guard::Xattr { ino, name, present } => read::has_xattr(conn, *ino, name)? == *present,
            Guard::Setting { name, value } => read::setting(conn, name)? == *value,
            Guard::Counter { counter, value } => read::counter(conn, *counter)? == *value,
            Guard::Size { ino, size } => self.node(*ino)?.is_some_and(|n| n.size == *size),
            Guard::Locks { ino, locks } => {
                self.node(*ino)?.is_some() && locks::of(conn, *ino)?[..] == locks[..]
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
            Effect::PutNode(node) => self.put_node(node)?,
            Effect::DropNode { ino } => self.drop_node(*ino)?,
            Effect::PutEdge { parent, name, ino, kind } => {
                const SQL: &str = "INSERT INTO edge (parent, name, ino, kind) VALUES (?1, ?2, ?3, ?4) \
                                   ON CONFLICT DO UPDATE SET ino = excluded.ino, kind = excluded.kind";
                let params = (int(parent.0), name.as_bytes(), int(ino.0), kind.to_dtype());
                conn.prepare_cached(SQL)?.execute(params)?;
            }
            Effect::DropEdge { parent, name } => {
                const SQL: &str = "DELETE FROM edge WHERE parent = ?1 AND name = ?2";
                conn.prepare_cached(SQL)?.execute((int(parent.0), name.as_bytes()))?;
            }
            Effect::SetAccess { ino, .. }
            | Effect::SetParent { ino, .. }
            | Effect::AddLinks { ino, .. }
            | Effect::Touch { ino, .. }
            | Effect::SetSize { ino, .. }
            | Effect::Extend { ino, .. } => self.change_node(*ino, effect)?,
            Effect::AppendSlice { ino, chunk, slice } => {
                if self.node(*ino)?.is_some() {
                    rows::append(conn, *ino, *chunk, slice)?;
                }
            }
            Effect::DropSlices { ino, from, to } => rows::drop_chunks(conn, *ino, *from, *to)?,
            Effect::ReplaceRows { ino, chunk, count, rows } => {
                rows::replace(conn, *ino, *chunk, *count, rows)?;
            }
            Effect::Share { slice } => rows::share(conn, *slice)?,
            Effect::PutXattr { ino, name, value } => {
                if self.node(*ino)?.is_some() {
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
                if self.node(*ino)?.is_some() {
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
                if self.node(*ino)?.is_some() {
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
                // What the batch has added so far must not be lost to the bound.
                self.flush()?;
                if self.is_alone {
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

    /// The node as the batch sees it, loaded if need be.
    fn node(&mut self, ino: Ino) -> Result<Option<Node>> {
        if let Some(loaded) = self.nodes.get(&ino) {
            return Ok(loaded.node);
        }
        let node = read::node(self.conn, ino)?;
        self.nodes.insert(ino, Loaded { node, stale: false });
        Ok(node)
    }

    fn usage(&self) -> Result<Usage> {
        let stored = self.counted.map_or_else(|| read::usage(self.conn), Ok)?;
        Ok(Usage {
            inodes: stored.inodes.wrapping_add_signed(self.inodes_delta),
            blocks: stored.blocks.wrapping_add_signed(self.blocks_delta),
        })
    }

    fn change_node(&mut self, ino: Ino, effect: &Effect) -> Result<()> {
        let Some(mut node) = self.node(ino)? else { return Ok(()) };
        self.blocks_delta -= node.blocks() as i64;
        effect.apply_to(&mut node);
        self.blocks_delta += node.blocks() as i64;
        self.stale.push(ino);
        self.nodes.insert(ino, Loaded { node: Some(node), stale: true });
        Ok(())
    }

    fn put_node(&mut self, node: &Node) -> Result<()> {
        const SQL: &str = "INSERT INTO node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, \
                           access_acl, default_acl, parent, access_rev) \
                           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) \
                           ON CONFLICT DO NOTHING";
        // A new number is the rule, so the insert is tried before anything is looked up.
        if write_node(self.conn, SQL, node)? == 0 {
            self.drop_node(node.ino)?;
            write_node(self.conn, SQL, node)?;
        }
        self.inodes_delta += 1;
        self.blocks_delta += node.blocks() as i64;
        self.nodes.insert(node.ino, Loaded { node: Some(*node), stale: false });
        Ok(())
    }

    fn drop_node(&mut self, ino: Ino) -> Result<()> {
        let Some(node) = self.node(ino)? else { return Ok(()) };
        self.inodes_delta -= 1;
        self.blocks_delta -= node.blocks() as i64;
        self.nodes.insert(ino, Loaded { node: None, stale: false });
        let id = [int(ino.0)];
        self.conn.prepare_cached("DELETE FROM node WHERE ino = ?1")?.execute(id)?;
        // Most inodes have nothing of these: one look spares six statements.
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

/// Makes the row of the usage right, in a transaction of its own.
pub(crate) fn write_usage(conn: &Connection, usage: Usage) -> Result<()> {
    const SQL: &str = "UPDATE usage SET inodes = ?1, blocks = ?2, exact = 1";
    conn.prepare_cached(SQL)?.execute([int(usage.inodes), int(usage.blocks)]).map(drop)
}

/// Runs an INSERT or UPDATE whose parameters are the columns of a node in their order; says how many rows it changed.
fn write_node(conn: &Connection, sql: &str, node: &Node) -> Result<usize> {
    let acl = |id: AclId| (!id.is_none()).then(|| id.to_bytes());
    conn.prepare_cached(sql)?.execute(params![
        int(node.ino.0),
        node.kind.to_dtype(),
        node.mode.bits(),
        node.uid,
        node.gid,
        node.rdev,
        node.nlink,
        int(node.size),
        node.atime.nanos(),
        node.mtime.nanos(),
        node.ctime.nanos(),
        acl(node.access_acl),
        acl(node.default_acl),
        int(node.parent.0),
        int(node.access_rev),
    ])
}
