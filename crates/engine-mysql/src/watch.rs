//! The stream of changes: the log table, polled every few milliseconds while a caller waits.
//!
//! Transactions take the numbers of the log in the order in which they insert their rows, but the rows become
//! visible in the order in which the transactions commit. So a poll may find gaps. A missing number belongs
//! to an in-flight transaction, whose row appears sooner or later, or to one that failed, whose row never
//! appears. Rows after a gap are reported at once: while the transaction of the missing row is in flight it
//! holds the locks on everything that it changes, so the later rows are independent of it. Its own row is
//! reported when it appears.
//!
//! Whether a missing number will never appear is determined exactly. The server grants `LOCK TABLES ... READ`
//! when no transaction that wrote to the table is open, because each one holds the table's metadata lock from
//! before it took a number until its end. At that moment, every missing number up to the highest existing one
//! is missing for ever. This is done only for numbers that have been missing for a while, which happens only
//! if a transaction failed at its very end.
//!
//! The stream ends with an error if it may have missed changes: if the connection is lost (the next
//! connection may reach another server), if the records were wiped, if the server became read-only, as after
//! a failover, or if rows were trimmed that the stream has not read. No clock can tell whether it has read
//! them, because this machine may have been suspended. So each poll reads how far the log was trimmed, in the
//! same statement that reads the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::{Change, CommitNumbers, EngineError, Invalidation, Seq};
use pool::{Connect as _, DeliveredNumbers, Log, LogTail};
use tables::Malformed;
use types::SessionId;

use crate::config::Config;
use crate::connect::{Connection, Row, plain};
use crate::error::Failure;

/// The polling interval.
const PERIOD: Duration = Duration::from_millis(10);
/// After this time, the stream checks whether a missing number will ever appear. It is far longer than a
/// transaction takes.
const MISSING: Duration = Duration::from_millis(250);
/// The maximum number of rows that one request reads.
const ROWS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Rows {
    conn: Connection,
    commit_numbers: Arc<CommitNumbers>,
    /// The server's first reply: the epoch of the records, and whether the server is read-only.
    was: Option<Row>,
    numbers: DeliveredNumbers,
    /// The time since which the same number is missing, if any is.
    missing: Instant,
}

/// Opens a stream of all changes that are committed from now on.
pub(crate) fn open(
    config: &Config,
    commit_numbers: Arc<CommitNumbers>,
) -> Result<LogTail<Rows>, EngineError> {
    let conn = config.connect()?;
    LogTail::new(&config.address, PERIOD, || Rows::begin(conn, commit_numbers, config.params.op_timeout))
}

impl Rows {
    fn begin(
        conn: Connection,
        commit_numbers: Arc<CommitNumbers>,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let begun = Instant::now();
        let mut rows =
            Rows { conn, commit_numbers, was: None, numbers: DeliveredNumbers::default(), missing: begun };
        // While this connection waits for the table lock, it blocks other connections too.
        rows.conn.query("SET SESSION lock_wait_timeout = 1")?;
        loop {
            match rows.settle()? {
                Some(newest) => break rows.numbers.pass(newest),
                None if begun.elapsed() < timeout => {}
                None => return Err(Failure::Endless),
            }
        }
        rows.poll()?;
        Ok(rows)
    }

    /// The number up to which no missing number will appear; `None` if an in-flight transaction did not end
    /// in time.
    fn settle(&mut self) -> Result<Option<u64>, Failure> {
        const LOCK_WAIT_TIMEOUT: u16 = 1205;
        match self.conn.query("LOCK TABLES `@log` READ") {
            Err(failure) if failure.code() == Some(LOCK_WAIT_TIMEOUT) => return Ok(None),
            locked => locked?,
        };
        let newest = self.conn.row("SELECT COALESCE(MAX(id), 0) FROM `@log`")?;
        self.conn.query("UNLOCK TABLES")?;
        Ok(Some(plain(&newest).number(0)?))
    }
}

impl Log for Rows {
    type Error = Failure;

    fn poll(&mut self) -> Result<Vec<Change>, Failure> {
        let known = self.numbers.known();
        let mut sure = 0;
        if !self.numbers.is_settled() && self.missing.elapsed() >= MISSING {
            sure = self.settle()?.unwrap_or(0);
            self.missing = Instant::now();
        }
        let (mut changes, mut last) = (Vec::new(), known);
        loop {
            // Each round is one statement, so that its rows are of one moment.
            let rows = self.conn.rows(&format!(
                "SELECT 0, epoch, @@GLOBAL.read_only, NULL, NULL FROM `@layout` UNION ALL \
                 SELECT upto, NULL, NULL, NULL, NULL FROM `@trimmed` UNION ALL \
                 (SELECT id, NULL, NULL, op_id, invalidations FROM `@log` WHERE id > {last} ORDER BY id LIMIT {ROWS})"
            ))?;
            let [now, trimmed, log @ ..] = &rows[..] else {
                return Err(Malformed("the row of layout or trimmed is missing").into());
            };
            for row in log.iter().map(plain) {
                let id = row.number(0)?;
                last = last.max(id);
                if self.numbers.deliver(id) {
                    let by =
                        row.bytes(3)?.first_chunk().map(|session| SessionId(u64::from_be_bytes(*session)));
                    let by = by.ok_or(Malformed("the id of an operation is too short"))?;
                    let invalidations = Invalidation::decode(row.bytes(4)?);
                    let invalidations =
                        invalidations.ok_or(Malformed("the changes of an operation are unreadable"))?;
                    changes.push(Change { seq: Seq(id), by, invalidations });
                }
            }
            if self.was.get_or_insert_with(|| now.clone()) != now {
                return Err(Failure::Wiped);
            }
            if plain(trimmed).number(0)? > known {
                return Err(Failure::Missed);
            }
            if log.len() < ROWS {
                break;
            }
        }
        self.numbers.pass(sure);
        if self.numbers.is_settled() || self.numbers.known() != known {
            self.missing = Instant::now();
        }
        Ok(changes)
    }

    fn commit_numbers(&self) -> &CommitNumbers {
        &self.commit_numbers
    }
}
