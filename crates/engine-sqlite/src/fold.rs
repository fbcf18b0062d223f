//! Folding the log into the database beside the commits.
//!
//! A fold waits for the disk twice, tens of milliseconds in which whoever commits would have everybody wait. So it is
//! done on a thread and a connection of its own, each time that so many transactions have gone into the log. Once it has
//! caught up, the next commit begins the log anew. Commits that keep coming meanwhile let the log grow; at
//! [`LOG_PAGES`] whoever commits then folds it after all.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, Result};

/// Transactions from one fold to the next. Each changes three or four pages as a rule, so these are some 30 MiB of log.
const EVERY_TXNS: u64 = 4096;

/// Where the log stops growing, in pages: 128 MiB.
pub(crate) const LOG_PAGES: u32 = 65_536;

#[derive(Debug)]
pub(crate) struct Folder {
    database: PathBuf,
    txns: AtomicU64,
    /// Held while the log is folded: of two folds at once, SQLite refuses one.
    folding: Arc<Mutex<()>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Folder {
    pub(crate) fn new(database: &Path) -> Self {
        let folding = Arc::default();
        Folder { database: database.to_owned(), txns: AtomicU64::new(0), folding, thread: Mutex::default() }
    }

    /// Notes that `txns` more transactions are in the log; `connect` makes the connection for a fold.
    pub(crate) fn note(&self, txns: u64, connect: fn(&Path) -> Result<Connection>) {
        if self.txns.fetch_add(txns, Ordering::Relaxed) + txns < EVERY_TXNS {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.txns.store(0, Ordering::Relaxed);
        let (database, folding) = (self.database.clone(), Arc::clone(&self.folding));
        let work = move || match connect(&database) {
            Ok(conn) => fold(&conn, &folding),
            Err(error) => tracing::warn!(%error, "no connection to fold the log into the database"),
        };
        match thread::Builder::new().name("limen-fold".into()).spawn(work) {
            Ok(spawned) => *thread = Some(spawned),
            Err(error) => tracing::warn!(%error, "no thread to fold the log into the database"),
        }
    }

    /// Folds the log by `conn`, after a fold that is under way.
    pub(crate) fn fold_now(&self, conn: &Connection) {
        fold(conn, &self.folding);
    }

    /// Folds the log and makes its file empty, if no read needs it.
    pub(crate) fn empty_log(&self, conn: &Connection) {
        checkpoint(conn, &self.folding, "PRAGMA wal_checkpoint(TRUNCATE)");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A fold that panicked left the log as it was.
        thread.map(JoinHandle::join);
    }
}

fn fold(conn: &Connection, folding: &Mutex<()>) {
    checkpoint(conn, folding, "PRAGMA wal_checkpoint(PASSIVE)");
}

fn checkpoint(conn: &Connection, folding: &Mutex<()>, pragma: &str) {
    let _folding = folding.lock().unwrap_or_else(PoisonError::into_inner);
    // The answer is a row of three numbers, of no interest here: what was not folded stays in the log.
    if let Err(error) = conn.query_row(pragma, [], |_| Ok(())) {
        tracing::warn!(%error, "the log cannot be folded into the database");
    }
}
