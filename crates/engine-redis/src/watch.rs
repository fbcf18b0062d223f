//! The stream of changes.
//!
//! Each call of the commit script that changes something appends one entry to a Redis stream. The entry's ID
//! is the number of its last transaction. A gap in the numbers shows the reader that entries are missing.

use std::time::Duration;

use meta::{Change, Changes, EngineError, Invalidation, Seq};
use pool::{Intent, RequestError};
use redis::Value;
use types::SessionId;

use crate::config::Config;
use crate::connect::{Conn, Script};
use crate::error::{Failure, Malformed};
use crate::read;
use crate::request::take;

/// The maximum number of entries that one request reads.
const MAX_ENTRIES: usize = 1024;

/// An entry ID, and for each transaction its session and its invalidations.
type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

#[derive(Debug)]
pub(crate) struct Watcher {
    conn: Conn,
    address: String,
    key: Vec<u8>,
    op_timeout: Duration,
    /// The number of the last transaction that was returned.
    seen: u64,
    /// Set after an error: changes may have been missed.
    lost: bool,
}

impl Watcher {
    /// Starts watching at the current commit number.
    pub(crate) fn new(mut conn: Conn, config: &Config) -> Result<Self, EngineError> {
        let seen = conn.run(Script::Read, &config.prefix, &read::request(&[]));
        let seen = seen.and_then(|mut answer| Ok(answer.take()?));
        let seen = seen.map_err(|failure| failure.engine_error(&config.shown, Intent::Read))?;
        let (address, key) = (config.shown.clone(), config.key("changes"));
        Ok(Watcher { conn, address, key, op_timeout: config.params.op_timeout, seen, lost: false })
    }

    fn ask(&mut self, wait: Duration) -> Result<Value, Failure> {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(MAX_ENTRIES);
        // For XREAD, BLOCK 0 means to wait without a limit.
        if wait.as_millis() > 0 {
            command.arg("BLOCK").arg(wait.as_millis().to_string());
        }
        command.arg("STREAMS").arg(&self.key).arg(format!("{}-0", self.seen));
        self.conn.set_read_timeout(self.op_timeout.saturating_add(wait))?;
        self.conn.ask_master(&command)
    }

    fn read_all(&mut self, wait: Duration) -> Result<Vec<Change>, Failure> {
        let answer = self.ask(wait)?;
        let mut changes = Vec::new();
        let mut entries = self.take(answer, &mut changes)?;
        while entries >= MAX_ENTRIES {
            let answer = self.ask(Duration::ZERO)?;
            entries = self.take(answer, &mut changes)?;
        }
        Ok(changes)
    }

    /// Decodes the answer of XREAD: one stream and its entries. Returns the number of entries.
    fn take(&mut self, answer: Value, changes: &mut Vec<Change>) -> Result<usize, Failure> {
        let streams: Option<Vec<(Vec<u8>, Vec<Entry>)>> = take(answer)?;
        let mut entries = 0;
        for (id, txns) in streams.into_iter().flatten().flat_map(|(_, entries)| entries) {
            entries += 1;
            let last = id.strip_suffix("-0").and_then(|id| id.parse::<u64>().ok());
            let last = last.ok_or(Malformed("a change has no number"))?;
            let first = (last + 1).checked_sub(txns.len() as u64);
            if first != Some(self.seen + 1) {
                return Err(Failure::Missed);
            }
            for (by, invalidations) in txns {
                let by = by[..].try_into().map_err(|_| Failure::Wiped)?;
                let invalidations =
                    Invalidation::decode(&invalidations).ok_or(Malformed("a change cannot be read"))?;
                self.seen += 1;
                changes.push(Change {
                    seq: Seq(self.seen),
                    by: SessionId(u64::from_be_bytes(by)),
                    invalidations,
                });
            }
        }
        Ok(entries)
    }
}

impl Changes for Watcher {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        if self.lost {
            let message = format!("{}: changes may have been missed: start a new watch", self.address);
            return Err(EngineError::permanent(message));
        }
        let changes = self.read_all(wait);
        self.lost = changes.is_err();
        changes.map_err(|failure| failure.engine_error(&self.address, Intent::Read))
    }
}
