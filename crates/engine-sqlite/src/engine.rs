//! The engine: opens a database, holds its connections, and implements [`Engine`].

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use meta::{
    Effect, Engine, EngineError, Outcome, Page, RecordKey, Results, Scan, Seq, Snapshot, SnapshotReader, Txn,
    Usage,
};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::checkpoint::{Checkpointer, LOG_PAGES};
use crate::commit::{Batch, ExclusiveCache, Finished, write_usage};
use crate::config::Options;
use crate::error::{OpenError, engine_error, full, is_full};
use crate::lock::{LockError, MountLock, Sharing, with_suffix};
use crate::pool::Pool;
use crate::queue::{Answer, GroupCommit};
use crate::reserve::Reserve;
use crate::{read, scan, schema};

/// How long a connection waits for a lock that another process holds (SQLITE_BUSY).
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// If fewer bytes than this are free on the disk, checkpoint the log early, so that the database grows in
/// small steps.
const LITTLE_BYTES: u64 = 64 << 20;

/// If at least [`LITTLE_BYTES`] are free, skip the check for this many batches. One check costs a tenth of a
/// create.
const AMPLE_FOR: u64 = 63;

/// The capacity of each connection's cache of prepared statements; larger than the number of statements.
const STATEMENTS: usize = 112;

/// A volume's metadata in an SQLite database in WAL mode, with one writer connection and several readers.
///
/// A commit is written to the log without waiting for the disk (`synchronous = NORMAL`). It survives the
/// death of the process at once, and a loss of power after [`Engine::sync`].
#[derive(Debug)]
pub struct SqliteEngine {
    path: PathBuf,
    // Declared before the writer, because fields are dropped in the order of their declaration. The
    // connection that is closed last checkpoints the log into the database, which a read-only connection
    // cannot do.
    readers: Pool,
    checkpointer: Checkpointer,
    writer: GroupCommit<Writer>,
    /// Changed only by the holder of the writer.
    exclusive: Mutex<Exclusive>,
    committed: AtomicU64,
    log: Log,
    commits: AtomicU64,
    transactions: AtomicU64,
    // Declared after the connections and `log`, because its drop allocates the reserve again, from the space
    // of the log. Closing the last connection removes the log, and its space is free once `log` is closed
    // too.
    reserve: Reserve,
    /// Whether batches that add something may use the reserve.
    is_reserve_open: AtomicBool,
    /// The number of batches that may skip the check of free space.
    ample_for: AtomicU64,
}

/// The exclusive lock, and the state that may be cached while it is held.
#[derive(Debug)]
struct Exclusive {
    /// The lock that [`SqliteEngine::lock_exclusive`] or [`SqliteEngine::take_over_lock`] returned. This
    /// reference can be upgraded until the lock is released.
    lock: Weak<File>,
    cache: ExclusiveCache,
}

impl Exclusive {
    fn cache(&mut self) -> Option<&mut ExclusiveCache> {
        (self.lock.strong_count() > 0).then_some(&mut self.cache)
    }
}

#[derive(Debug)]
struct Writer {
    conn: Connection,
    /// The results are kept in memory only, because a client retries an operation on the handle that it used
    /// before.
    results: Results,
}

/// Syncs the write-ahead log. SQLite itself syncs it either with each commit (`synchronous = FULL`) or only
/// at a checkpoint. Calling fdatasync(2) on a separate descriptor has the same effect, needs no lock and no
/// commit, and can run while other threads commit. Commits that are no longer in the log were synced into the
/// database before the log was restarted. Closing this descriptor releases no SQLite lock, because SQLite
/// locks the database and the index, never the log.
#[derive(Debug)]
struct Log {
    file: File,
    /// The number of the last commit known to be on disk; `None` before the first sync, because the log may
    /// hold commits of a process that died.
    synced: Mutex<Option<u64>>,
    /// Set when a sync fails. The kernel may have dropped the pages that it could not write, and would report
    /// success for the next sync.
    failed: AtomicBool,
    /// True if other processes commit too; `synced` does not cover their commits.
    shared: AtomicBool,
    syncs: AtomicU64,
}

/// Counters of a handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// COMMITs of the database that changed something.
    pub commits: u64,
    /// Transactions with effects in those commits.
    pub transactions: u64,
    /// Calls of fdatasync(2) on the log. Unless the volume is shared, a sync with nothing new makes none.
    pub syncs: u64,
}

impl SqliteEngine {
    /// Opens the database at `path` and migrates its schema to this version.
    ///
    /// # Errors
    /// [`OpenError::Missing`] if there is no database, unless `options.create`; [`OpenError::NotLimenfs`] if
    /// the file is something else; [`OpenError::Newer`] if a later limenfs created the schema;
    /// [`OpenError::Io`] and [`OpenError::Sqlite`] if a file cannot be read or written.
    pub fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let reserve = Reserve::open(path);
        let engine = match Self::open_with(path, options) {
            // The log and its index must be created, which needs space.
            Err(error) if error.is_full() && reserve.give_up() => Self::open_with(path, options),
            opened => opened,
        }?;
        if options.create {
            engine.reserve.make();
        }
        Ok(engine)
    }

    fn open_with(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let fail = |error| OpenError::new(path, error);
        let io = |error| OpenError::Io { path: path.to_owned(), error };
        if !options.create && !path.try_exists().map_err(io)? {
            return Err(OpenError::Missing(path.to_owned()));
        }
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, options.create);
        let mut conn = connect(path, flags).map_err(fail)?;
        // This takes effect only when the database is created. A create changes four pages, and writing them
        // to the log is half its cost: 42k creates/s with this page size, 30k with 4096. The longest name
        // still fits into a page.
        conn.pragma_update(None, "page_size", 2048).map_err(fail)?;
        schema::prepare(&mut conn, path, options.create)?;
        let set = conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
        if set.map_err(fail)? != "wal" {
            let error = "no write-ahead log can be created there: put the database on a local file system";
            return Err(io(io::Error::other(error)));
        }
        conn.pragma_update(None, "synchronous", "normal").map_err(fail)?;
        conn.pragma_update(None, "cache_size", -32 * 1024).map_err(fail)?;
        conn.pragma_update(None, "wal_autocheckpoint", LOG_PAGES).map_err(fail)?;
        conn.pragma_update(None, "journal_size_limit", 64 << 20).map_err(fail)?;
        // SQLite creates the log with the first transaction in WAL mode.
        conn.execute_batch("BEGIN IMMEDIATE; COMMIT").map_err(fail)?;
        let log = Log::open(path).map_err(io)?;
        Ok(SqliteEngine {
            path: path.to_owned(),
            readers: Pool::new(options.readers),
            checkpointer: Checkpointer::new(path),
            reserve: Reserve::open(path),
            is_reserve_open: AtomicBool::new(false),
            ample_for: AtomicU64::new(0),
            writer: GroupCommit::new(Writer { conn, results: Results::default() }),
            exclusive: Mutex::new(Exclusive { lock: Weak::new(), cache: ExclusiveCache::default() }),
            committed: AtomicU64::new(0),
            log,
            commits: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
        })
    }

    /// Takes the exclusive lock that a mount needs. Other processes can still open and read the database.
    ///
    /// # Errors
    /// [`LockError::AlreadyMounted`] if the volume is locked, by another process or by another [`MountLock`]
    /// of this process; [`LockError::Io`] if the lock file cannot be opened or written.
    pub fn lock_exclusive(&self) -> Result<MountLock, LockError> {
        let lock = self.take_lock(Sharing::Exclusive)?;
        let _writer = self.writer.writer();
        *self.exclusive() = Exclusive { lock: lock.watch(), cache: ExclusiveCache::default() };
        Ok(lock)
    }

    /// As [`SqliteEngine::lock_exclusive`], with the file of the lock that another process holds
    /// ([`MountLock::file`]). That process must not use the database any more.
    ///
    /// # Errors
    /// [`LockError::Io`] if `file` is not the lock file of this database, or cannot be written.
    pub fn take_over_lock(&self, file: File) -> Result<MountLock, LockError> {
        let lock = MountLock::take_over(&self.path, file)?;
        let _writer = self.writer.writer();
        *self.exclusive() = Exclusive { lock: lock.watch(), cache: ExclusiveCache::default() };
        Ok(lock)
    }

    /// Takes a shared lock, for mounts that share the volume with others that take this lock.
    ///
    /// # Errors
    /// [`LockError::AlreadyMounted`] if another handle holds the lock of [`SqliteEngine::lock_exclusive`];
    /// [`LockError::Io`] if the lock file or the database cannot be written.
    pub fn lock_shared(&self) -> Result<MountLock, LockError> {
        let lock = self.take_lock(Sharing::Shared)?;
        self.log.shared.store(true, Ordering::Relaxed);
        // A handle with the exclusive lock may have died and left the usage row inexact.
        let writer = self.writer.writer();
        let conn = &writer.conn;
        in_transaction(conn, "BEGIN IMMEDIATE", || {
            if read::is_usage_exact(conn)? { Ok(()) } else { write_usage(conn, read::usage(conn)?) }
        })
        .map_err(|error| LockError::Io { path: self.path.clone(), error: io::Error::other(error) })?;
        drop(writer);
        Ok(lock)
    }

    fn take_lock(&self, sharing: Sharing) -> Result<MountLock, LockError> {
        self.reserve.make();
        match MountLock::take(&self.path, sharing) {
            Err(LockError::Io { error, .. })
                if error.kind() == io::ErrorKind::StorageFull && self.reserve.give_up() =>
            {
                MountLock::take(&self.path, sharing)
            }
            taken => taken,
        }
    }

    /// Removes a database that no process has open, and the files beside it. Missing files are not an error.
    ///
    /// # Errors
    /// Those of `unlink(2)`. The call can be repeated.
    pub fn remove_files(path: &Path) -> io::Result<()> {
        for suffix in ["-wal", "-shm", "", ".lock", ".reserve"] {
            match fs::remove_file(with_suffix(path, suffix)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn stats(&self) -> Stats {
        Stats {
            commits: self.commits.load(Ordering::Relaxed),
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs: self.log.syncs.load(Ordering::Relaxed),
        }
    }

    /// Runs `work` on a reader connection in one snapshot, which contains at least the commits up to the
    /// number passed to `work`. The usage in memory, if `work` reads it, includes these commits too.
    fn snapshot<R>(
        &self,
        work: impl FnOnce(&Connection, u64) -> rusqlite::Result<R>,
    ) -> Result<R, EngineError> {
        self.statement(|conn, seq| in_transaction(conn, "BEGIN", || work(conn, seq)))
    }

    /// As [`SqliteEngine::snapshot`], for work of one statement, which reads as of one moment by itself.
    fn statement<R>(
        &self,
        work: impl FnOnce(&Connection, u64) -> rusqlite::Result<R>,
    ) -> Result<R, EngineError> {
        let run = || {
            let conn = self.readers.take(|| open_reader(&self.path))?;
            // Read this before the snapshot starts, so the snapshot contains at least this commit.
            let seq = self.committed.load(Ordering::Acquire);
            work(&conn, seq)
        };
        run().map_err(|error| engine_error(&self.path, &error))
    }

    fn exclusive(&self) -> MutexGuard<'_, Exclusive> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The usage in memory, if the stored row is out of date.
    fn counted(&self) -> Option<Usage> {
        self.exclusive().cache()?.counted
    }

    /// Stores the exact usage. The row stays exact until a batch changes the usage.
    fn write_usage(&self) -> rusqlite::Result<()> {
        if self.counted().is_none() {
            return Ok(());
        }
        let writer = self.writer.writer();
        let Some(usage) = self.counted() else { return Ok(()) };
        in_transaction(&writer.conn, "BEGIN IMMEDIATE", || write_usage(&writer.conn, usage))?;
        self.exclusive().cache.counted = None;
        Ok(())
    }

    /// Commits the transactions of several callers in one batch. If the batch fails, each caller's
    /// transactions are tried separately, so that one caller's failure does not affect the others.
    ///
    /// A batch that adds nothing may use the reserve. A batch that adds must restore the reserve first,
    /// unless `is_reserve_open` is set.
    fn commit_batch(&self, writer: &mut Writer, members: &[&[Txn]]) -> Vec<Answer> {
        let adds = !self.is_reserve_open.load(Ordering::Relaxed)
            && members.iter().any(|txns| txns.iter().flat_map(|txn| &txn.effects).any(Effect::adds));
        let mut done = if adds && !self.has_room_to_add(&writer.conn) {
            Err(full())
        } else {
            self.commit_together(writer, members)
        };
        let mut attempts = if adds { 1..2 } else { 1..3 };
        while done.as_ref().is_err_and(is_full)
            && let Some(attempt) = attempts.next()
            && (attempt == 1 || self.give_up_reserve())
        {
            // The log has no space to grow. After a checkpoint it restarts and reuses the space that it
            // already has.
            self.checkpointer.checkpoint_now(&writer.conn);
            if !adds || !self.reserve.is_given_up() {
                done = self.commit_together(writer, members);
            }
        }
        match done {
            Ok(outcomes) => outcomes.into_iter().map(Ok).collect(),
            Err(error) if members.len() == 1 => vec![Err(engine_error(&self.path, &error))],
            Err(_) => members.iter().flat_map(|member| self.commit_batch(writer, &[member])).collect(),
        }
    }

    /// True if a batch may add something; false if the reserve is given up and there is no space to restore
    /// it. If little space is free and a checkpoint would make the database grow by more than half of the
    /// reserve, runs that checkpoint now, so that the reserve suffices for later ones.
    fn has_room_to_add(&self, conn: &Connection) -> bool {
        if self.ample_for.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            return true;
        }
        if self.reserve.is_given_up() && !self.reserve.restore() {
            // The log may have grown into the space of the reserve, and only truncation shrinks it.
            self.checkpointer.empty_log(conn);
            if !self.reserve.restore() {
                return false;
            }
        }
        let reserved = self.reserve.bytes();
        if reserved > 0 && self.reserve.free_bytes() >= LITTLE_BYTES {
            self.ample_for.store(AMPLE_FOR, Ordering::Relaxed);
        } else if reserved > 0 && self.bytes_to_checkpoint(conn) > reserved / 2 {
            self.checkpointer.checkpoint_now(conn);
        }
        true
    }

    fn give_up_reserve(&self) -> bool {
        self.ample_for.store(0, Ordering::Relaxed);
        self.reserve.give_up()
    }

    /// The number of bytes by which a checkpoint makes the database file grow.
    fn bytes_to_checkpoint(&self, conn: &Connection) -> u64 {
        const BYTES: &str = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
        let bytes =
            conn.prepare_cached(BYTES).and_then(|mut bytes| bytes.query_row([], |row| row.get::<_, i64>(0)));
        let file = fs::metadata(&self.path).map_or(0, |file| file.len());
        u64::try_from(bytes.unwrap_or(0)).unwrap_or(0).saturating_sub(file)
    }

    fn commit_together(
        &self,
        writer: &mut Writer,
        members: &[&[Txn]],
    ) -> rusqlite::Result<Vec<Vec<Outcome>>> {
        let Writer { conn, results } = writer;
        let before = self.committed.load(Ordering::Relaxed);
        let cache = self.exclusive().cache().map(ExclusiveCache::lend);
        let (outcomes, finished) = in_transaction(conn, "BEGIN IMMEDIATE", || {
            let mut batch = Batch::new(conn, before, cache)?;
            let outcomes: Vec<Vec<Outcome>> = members
                .iter()
                .map(|member| member.iter().map(|txn| batch.run(txn, results)).collect())
                .collect::<rusqlite::Result<_>>()?;
            Ok((outcomes, batch.finish()?))
        })?;
        let Finished { seq, cache } = finished;
        if let (Some(cache), Some(left)) = (self.exclusive().cache(), cache) {
            *cache = left;
        }
        let all = members.iter().copied().flatten().zip(outcomes.iter().flatten());
        for (txn, outcome) in all.filter(|(txn, _)| !txn.effects.is_empty()) {
            if let Outcome::Committed { seq, .. } = outcome {
                results.note(txn, *seq);
            }
        }
        self.committed.store(seq, Ordering::Release);
        if seq > before {
            self.commits.fetch_add(1, Ordering::Relaxed);
            self.transactions.fetch_add(seq - before, Ordering::Relaxed);
            self.checkpointer.note(seq - before, open_checkpointer);
        }
        Ok(outcomes)
    }
}

impl Engine for SqliteEngine {
    fn is_embedded(&self) -> bool {
        true
    }

    fn set_reserve_open(&self, is_open: bool) {
        self.is_reserve_open.store(is_open, Ordering::Relaxed);
    }

    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let read = |conn: &Connection, seq| {
            let counted = if keys.contains(&RecordKey::Usage) { self.counted() } else { None };
            read::snapshot(conn, Seq(seq), keys, counted)
        };
        // The records of one key are read with one statement.
        if keys.len() == 1 { self.statement(read) } else { self.snapshot(read) }
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        if txns.iter().all(|txn| txn.effects.is_empty()) {
            // Guards without effects do not need the writer.
            return self.snapshot(|conn, seq| {
                let mut batch = Batch::new(conn, seq, Some(ExclusiveCache::counting(self.counted())))?;
                txns.iter().map(|txn| batch.run(txn, &Results::default())).collect()
            });
        }
        self.writer.commit(txns, |writer, members| self.commit_batch(writer, members))
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.snapshot(|conn, seq| scan::page(conn, Seq(seq), scan))
    }

    /// The reader is an open read transaction. While it is open, the log cannot be restarted, so every commit
    /// makes the log grow.
    fn open_snapshot(&self) -> Result<Option<Box<dyn SnapshotReader>>, EngineError> {
        let seq = Seq(self.committed.load(Ordering::Acquire));
        let begin = || {
            let conn = open_reader(&self.path)?;
            conn.execute_batch("BEGIN")?;
            // The first read determines the moment.
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            Ok(conn)
        };
        let conn = begin().map_err(|error| engine_error(&self.path, &error))?;
        Ok(Some(Box::new(SqliteSnapshot { conn, path: self.path.clone(), seq })))
    }

    fn sync(&self) -> Result<(), EngineError> {
        if let Err(error) = self.write_usage() {
            // Without an exact row, readers count the inodes themselves.
            tracing::warn!(%error, "cannot write the usage");
        }
        self.log.sync(self.committed.load(Ordering::Acquire)).map_err(|error| {
            let message = format!("{}: cannot sync the log: {error}", self.path.display());
            EngineError::permanent(message).with_errno(types::Errno::EIO)
        })
    }

    fn wipe(&self) -> Result<(), EngineError> {
        let mut writer = self.writer.writer();
        let conn = &writer.conn;
        let wipe = in_transaction(conn, "BEGIN IMMEDIATE", || {
            for table in schema::TABLES {
                conn.execute(&format!("DELETE FROM {table}"), [])?;
            }
            write_usage(conn, Usage::default())
        });
        wipe.map_err(|error| engine_error(&self.path, &error))?;
        writer.results = Results::default();
        self.exclusive().cache = ExclusiveCache::default();
        self.committed.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// A connection in a transaction that reads.
#[derive(Debug)]
struct SqliteSnapshot {
    conn: Connection,
    path: PathBuf,
    seq: Seq,
}

impl SnapshotReader for SqliteSnapshot {
    fn read(&mut self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        let read = read::snapshot(&self.conn, self.seq, keys, None);
        read.map_err(|error| engine_error(&self.path, &error))
    }

    fn scan(&mut self, scan: &Scan) -> Result<Page, EngineError> {
        scan::page(&self.conn, self.seq, scan).map_err(|error| engine_error(&self.path, &error))
    }
}

impl Log {
    fn open(database: &Path) -> io::Result<Self> {
        let file = File::open(with_suffix(database, "-wal"))?;
        // Sync the directory too, so that the names of the database and the log are durable.
        let directory = database.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(Log {
            file,
            synced: Mutex::new(None),
            failed: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
        })
    }

    /// Returns when all commits up to `seq` are on disk. One caller syncs for all callers that wait.
    fn sync(&self, seq: u64) -> io::Result<()> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::Relaxed) {
            return Err(io::Error::other("an earlier sync failed, so commits may have been lost"));
        }
        if !self.shared.load(Ordering::Relaxed) && synced.is_some_and(|synced| synced >= seq) {
            return Ok(());
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let done = self.file.sync_data();
        match &done {
            Ok(()) => *synced = Some(seq),
            Err(_) => self.failed.store(true, Ordering::Relaxed),
        }
        done
    }
}

/// Runs `work` in a transaction. After any error, including one of COMMIT, no transaction is left open.
fn in_transaction<R>(
    conn: &Connection,
    begin: &str,
    work: impl FnOnce() -> rusqlite::Result<R>,
) -> rusqlite::Result<R> {
    roll_back(conn);
    conn.prepare_cached(begin)?.execute([])?;
    let done = work().and_then(|result| {
        conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(result)
    });
    if done.is_err() {
        roll_back(conn);
    }
    done
}

/// Ends an open transaction. SQLite rolls back by itself after some errors but not after others.
fn roll_back(conn: &Connection) {
    if !conn.is_autocommit()
        && let Err(error) = conn.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "cannot roll back a transaction");
    }
}

fn open_checkpointer(path: &Path) -> rusqlite::Result<Connection> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.pragma_update(None, "cache_size", -8 * 1024)?;
    Ok(conn)
}

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Prepare each plan only once. Without this option SQLite inspects the bound values and may prepare a
    // statement again.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}
