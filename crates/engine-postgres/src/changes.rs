//! The stream of changes.
//!
//! The log is polled. Commits do not become visible in the order of their sequence numbers, so new rows are
//! found by snapshots: a row is new if the transaction that wrote it was still running, or had not begun, in
//! the snapshot of the previous poll, and is visible to this poll. So each row is reported exactly once, as
//! soon as it is visible, and none is missed, however long a transaction runs. NOTIFY is not used, because
//! all commits that use it take one lock.
//!
//! Old rows are removed (function `trim`). No clock can tell whether the stream has read them, because this
//! machine may have been suspended. So each removal stores the greatest xid of the removed rows: the mark.
//! The stream may have missed a row in two cases:
//!
//! - the mark is equal to or above the xmax of the previous poll's snapshot;
//! - a transaction that was running in that snapshot has ended and left no row, and its xid is equal to or
//!   below the mark. A transaction of another program that ran for longer than rows are kept also looks like
//!   this. Then the stream fails although it has missed nothing, and is opened again.

use std::sync::Arc;
use std::time::Duration;

use meta::{Change, CommitNumbers, EngineError, Invalidation, Seq};
use pool::{Connect, Log, LogTail};
use types::SessionId;

use crate::connection::{Connection, get};
use crate::error::Failure;
use crate::shared::Shared;

/// The polling interval while a caller waits.
const PAUSE: Duration = Duration::from_millis(10);

const NEW_ROWS: &str = include_str!("new_rows.sql");

/// A position in the log, and the connection that reads the log from there.
#[derive(Debug)]
pub(crate) struct Position {
    shared: Arc<Shared>,
    connection: Connection,
    statement: String,
    /// The snapshot of the previous poll.
    snapshot: String,
}

/// All changes that are committed from now on.
pub(crate) fn open(shared: &Arc<Shared>) -> Result<LogTail<Position>, EngineError> {
    let mut connection = shared.pool.connector().connect()?;
    LogTail::new(shared.address(), PAUSE, || {
        let [snapshot] = connection.texts("SELECT pg_current_snapshot()::text")?;
        Ok(Position { shared: shared.clone(), connection, statement: shared.tables.text(NEW_ROWS), snapshot })
    })
}

impl Log for Position {
    type Error = Failure;

    fn poll(&mut self) -> Result<Vec<Change>, Failure> {
        let rows = self.connection.query(&self.statement, &[&self.snapshot])?;
        let mut news = Vec::with_capacity(rows.len());
        for row in &rows {
            self.snapshot = get(row, 0)?;
            if get(row, 4)? {
                return Err(Failure::Missed);
            }
            let Some(seq) = get::<Option<i64>>(row, 1)? else { continue };
            let by = SessionId(get::<i64>(row, 2)? as u64);
            let invalidations = get::<Option<&[u8]>>(row, 3)?.ok_or(Failure::Wiped)?;
            let invalidations = Invalidation::decode(invalidations)
                .ok_or(Failure::Malformed("the changes of an operation are unreadable"))?;
            news.push(Change { seq: Seq(seq as u64), by, invalidations });
        }
        Ok(news)
    }

    fn commit_numbers(&self) -> &CommitNumbers {
        &self.shared.numbers
    }
}
