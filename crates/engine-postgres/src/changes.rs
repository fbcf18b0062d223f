//! The stream of changes.
//!
//! The log is read again and again. Commits become visible in another order than that of their numbers, so what is new
//! is told by snapshots: a row is news if its writer was still running, or not yet begun, in the snapshot of the last
//! look, and is seen by this one. So each row is told as soon as it can be read, once, and none is missed, however long
//! some transaction runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::{Change, EngineError, Order, Seq, Touched};
use pool::{Asked, Connect, Failed, Log, Tail};
use types::SessionId;

use crate::connection::{Connection, get};
use crate::engine::Shared;
use crate::error::Failure;

/// How often the log is looked at while somebody waits.
const PAUSE: Duration = Duration::from_millis(10);

const LOOK: &str = "WITH now AS MATERIALIZED (SELECT pg_current_snapshot() AS snapshot), \
                    news AS (SELECT l.seq, l.session, l.touched FROM @log l \
                             WHERE l.xid >= pg_snapshot_xmax($1::text::pg_snapshot) \
                             UNION ALL \
                             SELECT l.seq, l.session, l.touched FROM @log l \
                             WHERE l.xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))) \
                    SELECT now.snapshot::text, news.seq, news.session, news.touched \
                    FROM now LEFT JOIN news ON true ORDER BY news.seq";

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
    let looked = Instant::now();
    let snapshot = connection.texts("SELECT pg_current_snapshot()::text");
    let [snapshot] = snapshot.map_err(|failure| failure.engine_error(shared.place(), Asked::Look))?;
    let position = Position { shared: shared.clone(), connection, look: shared.names.text(LOOK), snapshot };
    Ok(Tail::new(position, PAUSE, looked))
}

impl Log for Position {
    fn look(&mut self) -> Result<Vec<Change>, EngineError> {
        let failed = |failure: Failure| failure.engine_error(self.shared.place(), Asked::Look);
        let rows = self.connection.query(&self.look, &[&self.snapshot]).map_err(failed)?;
        let mut news = Vec::with_capacity(rows.len());
        for row in &rows {
            self.snapshot = get(row, 0).map_err(failed)?;
            let Some(seq) = get::<Option<i64>>(row, 1).map_err(failed)? else { continue };
            let by = SessionId(get::<i64>(row, 2).map_err(failed)? as u64);
            let touched = get::<Option<&[u8]>>(row, 3).map_err(failed)?.and_then(Touched::decode);
            let Some(touched) = touched else {
                return Err(EngineError::permanent("the volume was emptied, or its log is damaged"));
            };
            news.push(Change { seq: Seq(seq as u64), by, touched });
        }
        Ok(news)
    }

    fn order(&self) -> &Order {
        &self.shared.order
    }
}
