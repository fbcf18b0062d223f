//! The stream of changes.
//!
//! Each commit adds an entry to a stream of the server, under its number. So who reads the stream on knows from the
//! numbers alone that nothing is missing.

use std::time::Duration;

use meta::{Change, Changes, EngineError, Seq, Touched};
use pool::{Asked, Failed};
use redis::Value;
use types::SessionId;

use crate::config::Config;
use crate::connect::{Conn, Script};
use crate::error::{Failure, Malformed};
use crate::read;
use crate::request::take;

/// The most entries taken at once.
const MOST_ENTRIES: usize = 1024;

/// Its number, and for each transaction its session and what it touched.
type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

#[derive(Debug)]
pub(crate) struct Watcher {
    conn: Conn,
    place: String,
    key: Vec<u8>,
    op_timeout: Duration,
    /// The newest number that was told.
    seen: u64,
    /// After a failure nothing is known any more.
    lost: bool,
}

impl Watcher {
    /// Watches from now on.
    pub(crate) fn new(mut conn: Conn, config: &Config) -> Result<Self, EngineError> {
        let seen = conn.run(Script::Read, &config.prefix, &read::request(&[]));
        let seen = seen.and_then(|mut answer| Ok(answer.take()?));
        let seen = seen.map_err(|failure| failure.engine_error(&config.shown, Asked::Look))?;
        let (place, key) = (config.shown.clone(), config.key("changes"));
        Ok(Watcher { conn, place, key, op_timeout: config.params.op_timeout, seen, lost: false })
    }

    fn ask(&mut self, wait: Duration) -> Result<Value, Failure> {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(MOST_ENTRIES);
        // A wait of 0 would be one for ever.
        if wait.as_millis() > 0 {
            command.arg("BLOCK").arg(wait.as_millis().to_string());
        }
        command.arg("STREAMS").arg(&self.key).arg(format!("{}-0", self.seen));
        self.conn.set_patience(self.op_timeout.saturating_add(wait))?;
        self.conn.ask_master(&command)
    }

    /// The transactions of an answer: one stream, and its entries.
    fn take(&mut self, answer: Value) -> Result<Vec<Change>, Malformed> {
        let streams: Option<Vec<(Vec<u8>, Vec<Entry>)>> = take(answer)?;
        let mut changes = Vec::new();
        for (id, txns) in streams.into_iter().flatten().flat_map(|(_, entries)| entries) {
            let last = id.strip_suffix("-0").and_then(|id| id.parse::<u64>().ok());
            let last = last.ok_or(Malformed("a change has no number"))?;
            let first = (last + 1).checked_sub(txns.len() as u64);
            if first != Some(self.seen + 1) {
                return Err(Malformed("changes were forgotten before they were asked for"));
            }
            for (by, touched) in txns {
                let by = by[..].try_into().map_err(|_| Malformed("the volume was wiped"))?;
                let touched = Touched::decode(&touched).ok_or(Malformed("a change cannot be read"))?;
                self.seen += 1;
                changes.push(Change { seq: Seq(self.seen), by: SessionId(u64::from_be_bytes(by)), touched });
            }
        }
        Ok(changes)
    }
}

impl Changes for Watcher {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        if self.lost {
            let message = format!("{}: changes may have been missed: watch anew", self.place);
            return Err(EngineError::permanent(message));
        }
        let changes = self.ask(wait).and_then(|answer| Ok(self.take(answer)?));
        self.lost = changes.is_err();
        changes.map_err(|failure| failure.engine_error(&self.place, Asked::Look))
    }
}
