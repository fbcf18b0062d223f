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
//! records were wiped, when the server became read-only as after a failover, when the stream was not read for so long that rows may have been trimmed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meta::{Change, Changes, EngineError, Order, Seq, Touched};
use pool::{Asked, Connect as _, Failed as _, poll};
use types::SessionId;

use crate::connect::{Connection, Connector};
use crate::engine::KEPT_SECONDS;
use crate::error::Fault;
use crate::rows::Reader;

/// From one look to the next.
const PERIOD: Duration = Duration::from_millis(10);
/// A number missing for so long is asked for; far longer than a transaction takes.
const MISSING: Duration = Duration::from_millis(250);
/// Rows of one look.
const ROWS: usize = 4096;
/// Rows are kept for [`KEPT_SECONDS`]; whoever looks again after this time has missed none.
const PATIENCE: Duration = Duration::from_secs(KEPT_SECONDS * 2 / 3);

#[derive(Debug)]
pub(crate) struct Stream {
    conn: Connection,
    place: String,
    order: Arc<Order>,
    /// What the server said first: the epoch of the records, and whether it takes changes.
    was: Option<(u64, u64)>,
    log: Numbers,
    /// The first number is missing that [`Numbers::known`] is before, and since when.
    missing: Option<(u64, Instant)>,
    looked: Instant,
    broken: bool,
}

/// Which numbers of the log are accounted for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Numbers {
    /// All up to this one were told or never come.
    known: u64,
    /// Those beyond that were told.
    told: BTreeSet<u64>,
    /// Those up to this one are there or never come.
    settled: u64,
}

impl Numbers {
    /// Whether the row of this number is to be told, which it then is.
    fn tell(&mut self, id: u64) -> bool {
        id > self.known && self.told.insert(id)
    }

    /// A look has shown all rows up to number `covered`; the look began after what `settled` says was found out.
    fn looked(&mut self, covered: u64) {
        let sure = self.settled.min(covered);
        while let Some(&id) = self.told.first()
            && (id == self.known + 1 || id <= sure)
        {
            self.known = id;
            self.told.pop_first();
        }
        self.known = self.known.max(sure);
    }
}

impl Stream {
    /// A stream of what is committed from now on.
    pub(crate) fn open(connector: &Connector, order: Arc<Order>) -> Result<Self, EngineError> {
        let mut stream = Stream {
            conn: connector.connect()?,
            place: connector.place().to_owned(),
            order,
            was: None,
            log: Numbers::default(),
            missing: None,
            looked: Instant::now(),
            broken: false,
        };
        match stream.begin(connector.0.params.op_timeout) {
            Ok(()) => Ok(stream),
            Err(fault) => Err(fault.engine_error(&stream.place, Asked::Look)),
        }
    }

    fn begin(&mut self, patience: Duration) -> Result<(), Fault> {
        let deadline = Instant::now() + patience;
        // Who waits for the table keeps others waiting, too.
        self.conn.query("SET SESSION lock_wait_timeout = 1")?;
        while !self.settle()? {
            if Instant::now() >= deadline {
                return Err(Fault::Malformed("a transaction on the log does not end"));
            }
        }
        self.log.known = self.log.settled;
        self.look().map(drop)
    }

    /// What became visible since the last look.
    fn look(&mut self) -> Result<Vec<Change>, Fault> {
        if self.looked.elapsed() > PATIENCE {
            return Err(Fault::Malformed("changes were not read for so long that some may be forgotten"));
        }
        let known = self.log.known;
        // One statement, so that all is of one moment.
        let rows = self.conn.rows(&format!(
            "SELECT 0, epoch, @@GLOBAL.read_only, NULL, NULL FROM `@layout` UNION ALL \
             (SELECT id, NULL, NULL, op_id, touched FROM `@log` WHERE id > {known} ORDER BY id LIMIT {ROWS})"
        ))?;
        self.looked = Instant::now();
        let mut changes = Vec::new();
        let mut now = None;
        let mut last = 0;
        for row in rows.iter().map(Reader::new) {
            let id = row.number(0)?;
            if id == 0 {
                now = Some((row.number(1)?, row.number(2)?));
                continue;
            }
            last = last.max(id);
            if self.log.tell(id) {
                changes.push(change(id, row)?);
            }
        }
        let now = now.ok_or(Fault::Malformed("the tables say nothing of themselves"))?;
        if *self.was.get_or_insert(now) != now {
            return Err(Fault::Malformed("the records were removed, or another server took over"));
        }
        self.log.looked(if rows.len() > ROWS { last } else { u64::MAX });
        changes.sort_unstable_by_key(|change| change.seq);
        Ok(changes)
    }

    /// Finds out up to which number all that is not there never comes; `false` if a transaction under way did not end.
    fn settle(&mut self) -> Result<bool, Fault> {
        const LOCK_WAIT_TIMEOUT: u16 = 1205;
        match self.conn.query("LOCK TABLES `@log` READ") {
            Err(fault) if fault.code() == Some(LOCK_WAIT_TIMEOUT) => return Ok(false),
            locked => locked?,
        };
        let newest = self.conn.row("SELECT COALESCE(MAX(id), 0) FROM `@log`")?;
        self.conn.query("UNLOCK TABLES")?;
        self.log.settled = Reader::new(&newest).number(0)?;
        Ok(true)
    }

    /// Looks, and asks for what is missing for long.
    fn step(&mut self) -> Result<Vec<Change>, Fault> {
        let changes = self.look()?;
        self.missing = match self.missing {
            _ if self.log.told.is_empty() => None,
            Some((known, since)) if known == self.log.known => {
                if since.elapsed() < MISSING {
                    Some((known, since))
                } else {
                    self.settle()?;
                    None
                }
            }
            _ => Some((self.log.known, Instant::now())),
        };
        Ok(changes)
    }
}

impl Changes for Stream {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        let changes = poll(wait, PERIOD, || {
            if self.broken {
                return Err(EngineError::permanent(format!("{}: changes were missed", self.place)));
            }
            self.step().map_err(|fault| {
                self.broken = true;
                fault.engine_error(&self.place, Asked::Look)
            })
        })?;
        if let Some(last) = changes.last() {
            self.order.heard(last.seq);
        }
        Ok(changes)
    }
}

fn change(id: u64, row: Reader<'_>) -> Result<Change, Fault> {
    let op_id = row.bytes(3)?.try_into().map(u128::from_be_bytes);
    let op_id = op_id.map_err(|_| Fault::Malformed("an operation's id has not 16 bytes"))?;
    let touched = Touched::decode(row.bytes(4)?);
    let touched = touched.ok_or(Fault::Malformed("what an operation touched is unreadable"))?;
    Ok(Change { seq: Seq(id), by: SessionId((op_id >> 64) as u64), touched })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_shows_late_is_told_and_one_that_never_comes_is_passed() {
        let mut log = Numbers { known: 10, ..Numbers::default() };
        assert!(log.tell(11) && log.tell(13));
        log.looked(u64::MAX);
        assert_eq!((log.known, log.told.len()), (11, 1));
        assert!(!log.tell(11) && !log.tell(13) && log.tell(12));
        log.looked(u64::MAX);
        assert_eq!((log.known, log.told.len()), (13, 0));
        assert!(log.tell(16) && log.tell(20));
        log.settled = 18;
        log.looked(17);
        assert_eq!((log.known, log.told.len()), (17, 1), "of 18 nothing was seen yet");
        log.looked(u64::MAX);
        assert_eq!((log.known, log.told.len()), (18, 1));
    }
}
