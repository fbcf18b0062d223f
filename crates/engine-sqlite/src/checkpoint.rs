//! Checkpoints: copying the log into the database, concurrently with commits.
//!
//! A checkpoint waits for the disk twice. If the committing thread did this, all callers would wait for tens
//! of milliseconds. So a checkpoint runs on its own thread and connection, each time that [`EVERY_TXNS`]
//! transactions have been appended to the log. When a checkpoint has copied the whole log, the next commit
//! restarts the log from the beginning. Commits that arrive in the meantime let the log grow. At
//! [`LOG_PAGES`] the committing thread runs a checkpoint itself.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, Result};

/// Transactions between two checkpoints. A transaction usually changes three or four pages, so this is about
/// 30 MiB of log.
const EVERY_TXNS: u64 = 4096;

/// The log size, in pages, at which SQLite checkpoints during a commit: 128 MiB.
pub(crate) const LOG_PAGES: u32 = 65_536;

#[derive(Debug)]
pub(crate) struct Checkpointer {
    database: PathBuf,
    txns: AtomicU64,
    /// Held during a checkpoint, because SQLite rejects a second concurrent one.
    running: Arc<Mutex<()>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Checkpointer {
    pub(crate) fn new(database: &Path) -> Self {
        let running = Arc::default();
        Checkpointer {
            database: database.to_owned(),
            txns: AtomicU64::new(0),
            running,
            thread: Mutex::default(),
        }
    }

    /// Records that `txns` more transactions are in the log, and starts a checkpoint if one is due. `connect`
    /// opens the connection of the checkpoint.
    pub(crate) fn note(&self, txns: u64, connect: fn(&Path) -> Result<Connection>) {
        if self.txns.fetch_add(txns, Ordering::Relaxed) + txns < EVERY_TXNS {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.txns.store(0, Ordering::Relaxed);
        let (database, running) = (self.database.clone(), Arc::clone(&self.running));
        let work = move || {
            host::begin_thread();
            match connect(&database) {
                Ok(conn) => passive(&conn, &running),
                Err(error) => tracing::warn!(%error, "cannot open a connection to checkpoint the log"),
            }
        };
        match thread::Builder::new().name("limen-wal".into()).spawn(work) {
            Ok(spawned) => *thread = Some(spawned),
            Err(error) => tracing::warn!(%error, "cannot start a thread to checkpoint the log"),
        }
    }

    /// Checkpoints the log through `conn`. Waits for a checkpoint in progress.
    pub(crate) fn checkpoint_now(&self, conn: &Connection) {
        passive(conn, &self.running);
    }

    /// Checkpoints the log and truncates its file, if no reader needs it.
    pub(crate) fn empty_log(&self, conn: &Connection) {
        checkpoint(conn, &self.running, "PRAGMA wal_checkpoint(TRUNCATE)");
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A checkpoint that panicked left the log unchanged.
        thread.map(JoinHandle::join);
    }
}

fn passive(conn: &Connection, running: &Mutex<()>) {
    checkpoint(conn, running, "PRAGMA wal_checkpoint(PASSIVE)");
}

fn checkpoint(conn: &Connection, running: &Mutex<()>, pragma: &str) {
    let _running = running.lock().unwrap_or_else(PoisonError::into_inner);
    // The result row is ignored: frames that were not copied stay in the log.
    if let Err(error) = conn.query_row(pragma, [], |_| Ok(())) {
        tracing::warn!(%error, "cannot checkpoint the log into the database");
    }
}
