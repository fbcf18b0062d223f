//! The engine: its connections, and the boundary it implements.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use meta::{Effect, Engine, EngineError, Facts, Outcome, Page, Results, Scan, Seq, Txn, Usage, Want};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::commit::{Alone, Batch, Finished, write_usage};
use crate::config::Options;
use crate::error::{OpenError, engine_error, full, is_full};
use crate::fold::{Folder, LOG_PAGES};
use crate::lock::{LockError, MountLock, Sharing, with_suffix};
use crate::pool::Pool;
use crate::queue::{Answer, GroupCommit};
use crate::reserve::Reserve;
use crate::{read, scan, schema};

/// How long a connection waits for a lock that another process holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// With less than this free on the disk, the log is folded before the database would have to grow by much.
const LITTLE_BYTES: u64 = 64 << 20;

/// How many commits go by before a disk with more than that free is looked at again: a look costs a tenth of a create.
const AMPLE_FOR: u64 = 63;

/// Prepared statements kept by each connection; more than there are.
const STATEMENTS: usize = 96;

/// A volume's metadata in an SQLite database in WAL mode, with one writer connection and several readers.
///
/// Commits are written to the log without waiting for the disk (`synchronous = NORMAL`): they survive the death of the
/// process at once, and a loss of power after [`Engine::sync`].
#[derive(Debug)]
pub struct SqliteEngine {
    path: PathBuf,
    // Before the writer, for connections close in this order, and the last one folds the log into the database, which
    // a read-only one cannot.
    readers: Pool,
    folder: Folder,
    writer: GroupCommit<Writer>,
    /// Changed by who has the writer.
    sole: Mutex<Sole>,
    committed: AtomicU64,
    log: Log,
    commits: AtomicU64,
    transactions: AtomicU64,
    // Last: the log is removed with the last connection, and its room is free when `log` is closed as well.
    reserve: Reserve,
    /// Commits for which the disk need not be looked at.
    ample_for: AtomicU64,
}

/// The right to be alone, and what is known because of it.
#[derive(Debug)]
struct Sole {
    /// There while this handle's [`SqliteEngine::lock_exclusive`] is held.
    lock: Weak<File>,
    known: Alone,
}

impl Sole {
    fn known(&mut self) -> Option<&mut Alone> {
        (self.lock.strong_count() > 0).then_some(&mut self.known)
    }
}

#[derive(Debug)]
struct Writer {
    conn: Connection,
    /// A retry comes from this handle, since no other has the volume open for writing; so memory is enough.
    results: Results,
}

/// The write-ahead log, to be synced. SQLite itself would sync it only with each commit (`synchronous = FULL`) or when
/// it folds it into the database; but syncing the file through a descriptor of our own does the same without a lock
/// and without a commit, while others commit: whatever is not in the log any more was synced into the database before
/// the log was begun anew. No lock is lost by it, for SQLite locks the database and the index, never the log.
#[derive(Debug)]
struct Log {
    file: File,
    /// The number of the last commit known to be on disk; `None` before the first sync, for the log may hold commits
    /// of a process that died.
    synced: Mutex<Option<u64>>,
    /// Set by a sync that failed: the kernel may have dropped what it could not write, and would report the next sync
    /// as done.
    failed: AtomicBool,
    /// Other processes commit too, of which `synced` knows nothing.
    shared: AtomicBool,
    syncs: AtomicU64,
}

/// What a handle has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// COMMITs of the database.
    pub commits: u64,
    /// Transactions with effects that those contained.
    pub transactions: u64,
    /// Syncs of the log that went to the disk.
    pub syncs: u64,
}

impl SqliteEngine {
    /// Opens the database at `path`, and brings its schema to this version.
    ///
    /// # Errors
    /// [`OpenError::Missing`] where there is none, unless `options.create`; [`OpenError::NotLimenfs`] for another kind
    /// of file; [`OpenError::Newer`] for the schema of a later limenfs.
    pub fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let reserve = Reserve::open(path);
        let engine = match Self::open_with(path, options) {
            // The log and its index have to be made.
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
        // Has an effect only on a database that is about to be made. A create changes four pages, and writing them to
        // the log is half its cost: 42k creates/s with this size, 30k with 4096. The longest name still fits a page.
        conn.pragma_update(None, "page_size", 2048).map_err(fail)?;
        schema::prepare(&mut conn, path, options.create)?;
        let set = conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
        if set.map_err(fail)? != "wal" {
            let error = "no write-ahead log can be kept there: put the database on a local file system";
            return Err(io(io::Error::other(error)));
        }
        conn.pragma_update(None, "synchronous", "normal").map_err(fail)?;
        conn.pragma_update(None, "cache_size", -32 * 1024).map_err(fail)?;
        conn.pragma_update(None, "wal_autocheckpoint", LOG_PAGES).map_err(fail)?;
        conn.pragma_update(None, "journal_size_limit", 64 << 20).map_err(fail)?;
        // The log comes into being with the first transaction in WAL mode.
        conn.execute_batch("BEGIN IMMEDIATE; COMMIT").map_err(fail)?;
        let log = Log::open(path).map_err(io)?;
        Ok(SqliteEngine {
            path: path.to_owned(),
            readers: Pool::new(options.readers),
            folder: Folder::new(path),
            reserve: Reserve::open(path),
            ample_for: AtomicU64::new(0),
            writer: GroupCommit::new(Writer { conn, results: Results::default() }),
            sole: Mutex::new(Sole { lock: Weak::new(), known: Alone::default() }),
            committed: AtomicU64::new(0),
            log,
            commits: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
        })
    }

    /// Takes the right to mount the volume; the database can still be opened and read by others.
    ///
    /// # Errors
    /// [`LockError::AlreadyMounted`] while another process, or another lock in this one, has it.
    pub fn lock_exclusive(&self) -> Result<MountLock, LockError> {
        let lock = self.take_lock(Sharing::Alone)?;
        let _writer = self.writer.writer();
        *self.sole() = Sole { lock: lock.watch(), known: Alone::default() };
        Ok(lock)
    }

    /// Takes the right to mount the volume together with others that take it by this call.
    ///
    /// # Errors
    /// [`LockError::AlreadyMounted`] while one has it that took it by [`SqliteEngine::lock_exclusive`].
    pub fn lock_shared(&self) -> Result<MountLock, LockError> {
        let lock = self.take_lock(Sharing::Shared)?;
        self.log.shared.store(true, Ordering::Relaxed);
        // One that was alone may have died.
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

    /// Removes a database that nobody has open, with the files that stand beside it. Those that are not there are fine.
    ///
    /// # Errors
    /// Of `unlink(2)`; calling again is fine.
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

    /// Runs `work` on a reader connection, within one snapshot, which is at least as new as the number it is given.
    fn snapshot<R>(
        &self,
        work: impl FnOnce(&Connection, u64) -> rusqlite::Result<R>,
    ) -> Result<R, EngineError> {
        let run = || {
            let conn = self.readers.take(|| open_reader(&self.path))?;
            // Before the snapshot, which then holds this commit, if not a later one too.
            let seq = self.committed.load(Ordering::Acquire);
            in_transaction(&conn, "BEGIN", || work(&conn, seq))
        };
        run().map_err(|error| engine_error(&self.path, &error))
    }

    fn sole(&self) -> MutexGuard<'_, Sole> {
        self.sole.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The usage, if it is known better than its row says.
    fn counted(&self) -> Option<Usage> {
        self.sole().known()?.counted
    }

    /// Makes the usage's row right, until the next batch.
    fn write_usage(&self) -> rusqlite::Result<()> {
        if self.counted().is_none() {
            return Ok(());
        }
        let writer = self.writer.writer();
        let Some(usage) = self.counted() else { return Ok(()) };
        in_transaction(&writer.conn, "BEGIN IMMEDIATE", || write_usage(&writer.conn, usage))?;
        self.sole().known.counted = None;
        Ok(())
    }

    /// Commits a batch of callers. Should the batch fail, each is tried by itself, so that none pays for another's
    /// failure.
    ///
    /// A batch that adds nothing may use the reserve; one that adds has to fill it up again first.
    fn commit_batch(&self, writer: &mut Writer, members: &[&[Txn]]) -> Vec<Answer> {
        let adds = members.iter().any(|txns| txns.iter().flat_map(|txn| &txn.effects).any(Effect::adds));
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
            // The log finds no room to grow. Folded into the database, it begins anew in the room it already has.
            self.folder.fold_now(&writer.conn);
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

    /// Whether something may be added: the reserve is there, and is enough to fold the log into the database.
    fn has_room_to_add(&self, conn: &Connection) -> bool {
        if self.ample_for.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            return true;
        }
        if self.reserve.is_given_up() && !self.reserve.restore() {
            // The log may have grown into the room of the reserve, and keeps its size otherwise.
            self.folder.empty_log(conn);
            if !self.reserve.restore() {
                return false;
            }
        }
        let reserved = self.reserve.bytes();
        if reserved > 0 && self.reserve.free_bytes() >= LITTLE_BYTES {
            self.ample_for.store(AMPLE_FOR, Ordering::Relaxed);
        } else if reserved > 0 && self.unfolded_bytes(conn) > reserved / 2 {
            self.folder.fold_now(conn);
        }
        true
    }

    fn give_up_reserve(&self) -> bool {
        self.ample_for.store(0, Ordering::Relaxed);
        self.reserve.give_up()
    }

    /// By how much the database grows when the log is folded.
    fn unfolded_bytes(&self, conn: &Connection) -> u64 {
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
        let alone = self.sole().known().map(Alone::lend);
        let (outcomes, finished) = in_transaction(conn, "BEGIN IMMEDIATE", || {
            let mut batch = Batch::new(conn, before, alone)?;
            let run = |member: &&[Txn]| member.iter().map(|txn| batch.run(txn, results)).collect();
            let outcomes: Vec<Vec<Outcome>> = members.iter().map(run).collect::<rusqlite::Result<_>>()?;
            Ok((outcomes, batch.finish()?))
        })?;
        let Finished { seq, alone } = finished;
        if let (Some(known), Some(left)) = (self.sole().known(), alone) {
            *known = left;
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
            self.folder.note(seq - before, open_folder);
        }
        Ok(outcomes)
    }
}

impl Engine for SqliteEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        let counted = self.counted();
        self.snapshot(|conn, seq| read::facts(conn, Seq(seq), wants, counted))
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        if txns.iter().all(|txn| txn.effects.is_empty()) {
            // Guards alone need no writer.
            let counted = self.counted();
            return self.snapshot(|conn, seq| {
                let mut batch = Batch::new(conn, seq, Some(Alone::counting(counted)))?;
                txns.iter().map(|txn| batch.run(txn, &Results::default())).collect()
            });
        }
        self.writer.commit(txns, |writer, members| self.commit_batch(writer, members))
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        self.snapshot(|conn, seq| scan::page(conn, Seq(seq), scan))
    }

    fn sync(&self) -> Result<(), EngineError> {
        if let Err(error) = self.write_usage() {
            // It is counted anew when it is asked for.
            tracing::warn!(%error, "the usage could not be written");
        }
        self.log.sync(self.committed.load(Ordering::Acquire)).map_err(|error| {
            let message = format!("{}: the log cannot be synced: {error}", self.path.display());
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
        self.sole().known = Alone::default();
        self.committed.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Log {
    fn open(database: &Path) -> io::Result<Self> {
        let file = File::open(with_suffix(database, "-wal"))?;
        // The names of database and log are to survive as well.
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

    /// Returns when all up to commit `seq` is on disk. Of several callers one goes to the disk for all who wait.
    fn sync(&self, seq: u64) -> io::Result<()> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::Relaxed) {
            return Err(io::Error::other("an earlier sync failed, what it lost is unknown"));
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

/// A transaction around `work`; whatever fails, COMMIT included, leaves none behind.
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

/// Ends an open transaction, if there is one: SQLite itself ends it after some errors and not after others.
fn roll_back(conn: &Connection) {
    if !conn.is_autocommit()
        && let Err(error) = conn.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "a transaction could not be rolled back");
    }
}

fn open_folder(path: &Path) -> rusqlite::Result<Connection> {
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
    // A plan is made once. Otherwise SQLite looks at each value bound, and may parse a statement again because of it.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}
