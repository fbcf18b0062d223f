//! The stream of changes.
//!
//! The log is read again and again. Commits become visible in another order than that of their numbers, so what is new
//! is told by snapshots: a row is news if its writer was still running, or not yet begun, in the snapshot of the last
//! look, and is seen by this one. So each row is told as soon as it can be read, once, and none is missed, however long
//! some transaction runs.
//!
//! Old rows are removed (function `trim`), and no clock says whether the stream has read them: this machine may have been
//! suspended. So each removal of rows records the greatest xid of them, the mark. A row that the last look could not see was
//! removed if the mark is not below that look's snapshot, or may have been if a transaction that was running then is below
//! the mark, has ended, and has left no row. The latter is also true of a transaction that has nothing to do with limenfs and
//! ran for longer than rows are kept: then the stream begins anew without need, once.

use std::sync::Arc;
use std::time::Duration;

use meta::{Change, EngineError, Order, Seq, Touched};
use pool::{Connect, Log, Tail};
use types::SessionId;

use crate::connection::{Connection, get};
use crate::engine::Shared;
use crate::error::Failure;

/// How often the log is looked at while somebody waits.
const PAUSE: Duration = Duration::from_millis(10);

const LOOK: &str = include_str!("look.sql");

/// A position in the log, and the connection that reads on from it.
#[derive(Debug)]
pub(crate) struct Position {
    shared: Arc<Shared>,
    connection: Connection,
    look: String,
    /// What the last look saw.
    snapshot: String,
}

/// All changes that are committed from now on.
pub(crate) fn open(shared: &Arc<Shared>) -> Result<Tail<Position>, EngineError> {
    let mut connection = shared.pool.connector().connect()?;
    Tail::new(shared.place(), PAUSE, || {
        let [snapshot] = connection.texts("SELECT pg_current_snapshot()::text")?;
        Ok(Position { shared: shared.clone(), connection, look: shared.names.text(LOOK), snapshot })
    })
}

impl Log for Position {
    type Failed = Failure;

    fn look(&mut self) -> Result<Vec<Change>, Failure> {
        let rows = self.connection.query(&self.look, &[&self.snapshot])?;
        let mut news = Vec::with_capacity(rows.len());
        for row in &rows {
            self.snapshot = get(row, 0)?;
            if get(row, 4)? {
                return Err(Failure::Missed);
            }
            let Some(seq) = get::<Option<i64>>(row, 1)? else { continue };
            let by = SessionId(get::<i64>(row, 2)? as u64);
            let touched = get::<Option<&[u8]>>(row, 3)?.and_then(Touched::decode);
            let touched =
                touched.ok_or(Failure::Malformed("a change of everything: the volume was emptied"))?;
            news.push(Change { seq: Seq(seq as u64), by, touched });
        }
        Ok(news)
    }

    fn order(&self) -> &Order {
        &self.shared.order
    }
}
