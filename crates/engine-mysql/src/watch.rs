//! The stream of changes: the log table, read every few milliseconds while somebody watches.
//!
//! Numbers of the log are given in the order in which transactions insert their rows, and they become visible in the
//! order in which these commit. So what is read may lack numbers in between. A number that is missing belongs to a
//! transaction that is still under way, which shows its row sooner or later, or to one that failed, which never will.
//! Rows that came after it are told at once: while the missing one is under way it holds the locks on all that it
//! changes, so those after it have nothing to do with it. Its own row is told when it shows.
//!
//! Whether a missing number will never come is found out exactly: `LOCK TABLES ... READ` is given when no transaction
//! that wrote to the table is open, for each holds the table's metadata lock until its end, from before it took a number.
//! What is not there then, up to the highest number that is, never comes. That is asked only for numbers that have been
//! missing for a while, which takes a transaction that failed at its very end.
//!
//! A gap is an error: when the connection is lost (what is at its other end next may be another server), when the
//! records were wiped, when the server became read-only as after a failover, when rows were trimmed that the stream has not
//! read. No clock says whether they were, because this machine may have been suspended: each look asks how far the log was
//! trimmed, in the statement that reads it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::{Change, EngineError, Order, Seq, Touched};
use pool::{Connect as _, Log, Numbers, Tail};
use tables::Malformed;
use types::SessionId;

use crate::config::Config;
use crate::connect::{Connection, Row, plain};
use crate::error::Fault;

/// From one look to the next.
const PERIOD: Duration = Duration::from_millis(10);
/// A number missing for so long is asked for; far longer than a transaction takes.
const MISSING: Duration = Duration::from_millis(250);
/// Rows of one look.
const ROWS: usize = 4096;

#[derive(Debug)]
pub(crate) struct Rows {
    conn: Connection,
    order: Arc<Order>,
    /// What the server said first: the epoch of the records, and whether it takes changes.
    was: Option<Row>,
    numbers: Numbers,
    /// Since when the same number is missing, if one is.
    missing: Instant,
}

/// A stream of what is committed from now on.
pub(crate) fn open(config: &Config, order: Arc<Order>) -> Result<Tail<Rows>, EngineError> {
    let conn = config.connect()?;
    Tail::new(&config.place, PERIOD, || Rows::begin(conn, order, config.params.op_timeout))
}

impl Rows {
    fn begin(conn: Connection, order: Arc<Order>, patience: Duration) -> Result<Self, Fault> {
        let begun = Instant::now();
        let mut rows = Rows { conn, order, was: None, numbers: Numbers::default(), missing: begun };
        // Who waits for the table keeps others waiting, too.
        rows.conn.query("SET SESSION lock_wait_timeout = 1")?;
        loop {
            match rows.settle()? {
                Some(newest) => {
                    rows.numbers.pass(newest);
                    break;
                }
                None if begun.elapsed() < patience => {}
                None => return Err(Malformed("a transaction on the log does not end").into()),
            }
        }
        rows.look()?;
        Ok(rows)
    }

    /// Up to which number all that is not there never comes; `None` if a transaction under way did not end.
    fn settle(&mut self) -> Result<Option<u64>, Fault> {
        const LOCK_WAIT_TIMEOUT: u16 = 1205;
        match self.conn.query("LOCK TABLES `@log` READ") {
            Err(fault) if fault.code() == Some(LOCK_WAIT_TIMEOUT) => return Ok(None),
            locked => locked?,
        };
        let newest = self.conn.row("SELECT COALESCE(MAX(id), 0) FROM `@log`")?;
        self.conn.query("UNLOCK TABLES")?;
        Ok(Some(plain(&newest).number(0)?))
    }
}

impl Log for Rows {
    type Failed = Fault;

    fn look(&mut self) -> Result<Vec<Change>, Fault> {
        let known = self.numbers.known();
        let mut sure = 0;
        if !self.numbers.is_settled() && self.missing.elapsed() >= MISSING {
            sure = self.settle()?.unwrap_or(0);
            self.missing = Instant::now();
        }
        // One statement, so that all is of one moment.
        let rows = self.conn.rows(&format!(
            "SELECT 0, epoch, @@GLOBAL.read_only, NULL, NULL FROM `@layout` UNION ALL \
             SELECT upto, NULL, NULL, NULL, NULL FROM `@trimmed` UNION ALL \
             (SELECT id, NULL, NULL, op_id, touched FROM `@log` WHERE id > {known} ORDER BY id LIMIT {ROWS})"
        ))?;
        let [now, trimmed, log @ ..] = &rows[..] else {
            return Err(Malformed("the tables say nothing of themselves").into());
        };
        let (mut changes, mut last) = (Vec::new(), 0);
        for row in log.iter().map(plain) {
            let id = row.number(0)?;
            last = last.max(id);
            if self.numbers.tell(id) {
                let by = row.bytes(3)?.first_chunk().map(|session| SessionId(u64::from_be_bytes(*session)));
                let by = by.ok_or(Malformed("an operation's id has not 16 bytes"))?;
                let touched = Touched::decode(row.bytes(4)?);
                let touched = touched.ok_or(Malformed("what an operation touched is unreadable"))?;
                changes.push(Change { seq: Seq(id), by, touched });
            }
        }
        if self.was.get_or_insert_with(|| now.clone()) != now {
            return Err(Malformed("the records were removed, or another server took over").into());
        }
        if plain(trimmed).number(0)? > known {
            return Err(Fault::Missed);
        }
        // Behind the last of many there may be more rows.
        self.numbers.pass(if log.len() >= ROWS { sure.min(last) } else { sure });
        if self.numbers.is_settled() || self.numbers.known() != known {
            self.missing = Instant::now();
        }
        Ok(changes)
    }

    fn order(&self) -> &Order {
        &self.order
    }
}
