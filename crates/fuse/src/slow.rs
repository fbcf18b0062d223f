//! The log of slow requests, and of the time that each waited for the engine, the store and pauses.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuse_proto::{Operation, Request};
use metrics::Waited;

/// The limit of lines in each interval. Further slow requests are only counted.
const LINES: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(10);

/// Logs requests that take at least `from`, at a limited rate.
#[derive(Debug)]
pub(crate) struct SlowLog {
    from: Duration,
    rate: Mutex<Rate>,
}

/// The lines of the current interval.
#[derive(Debug)]
struct Rate {
    began: Instant,
    lines: u32,
    /// Slow requests that were not logged since the last line.
    suppressed: u64,
}

impl Rate {
    /// Returns the number of requests that were not logged since the last line, if a line may be written now;
    /// otherwise `None`.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.began) >= INTERVAL {
            (self.began, self.lines) = (now, 0);
        }
        if self.lines == LINES {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl SlowLog {
    pub(crate) fn new(from: Option<Duration>) -> Self {
        let rate = Rate { began: Instant::now(), lines: 0, suppressed: 0 };
        SlowLog { from: from.unwrap_or(Duration::MAX), rate: Mutex::new(rate) }
    }

    /// Logs the request that this thread has just handled in `time`, if it was slow.
    pub(crate) fn check(&self, request: &Request<'_>, time: Duration) {
        if time < self.from {
            return;
        }
        let admitted = self.rate.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        let Some(suppressed) = admitted else { return };
        let waited @ Waited { engine, engine_calls, store, store_calls, pauses, retries } = metrics::waited();
        let header = &request.header;
        tracing::warn!(
            op = %header.opcode,
            inode = header.nodeid.0,
            name = %format_args!("\"{}\"", name(&request.operation).escape_ascii()),
            uid = header.uid,
            pid = header.pid,
            ?time,
            ?engine,
            engine_calls,
            ?store,
            store_calls,
            ?pauses,
            retries,
            // The time of work on this thread, and of waiting for other threads.
            rest = ?time.saturating_sub(waited.total()),
            suppressed,
            "slow request"
        );
    }
}

/// The name in the operation's arguments, in the directory of the request; empty if the operation takes none.
fn name<'a>(operation: &Operation<'a>) -> &'a [u8] {
    match *operation {
        Operation::Create(create) | Operation::TmpFile(create) => create.name,
        Operation::Lookup { name }
        | Operation::Symlink { name, .. }
        | Operation::MkNod { name, .. }
        | Operation::MkDir { name, .. }
        | Operation::Unlink { name }
        | Operation::RmDir { name }
        | Operation::Rename { name, .. }
        | Operation::Link { name, .. } => name,
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_the_next_one_tells_how_many_are_missing() {
        let began = Instant::now();
        let mut rate = Rate { began, lines: 0, suppressed: 0 };
        for _ in 0..LINES {
            assert_eq!(rate.admit(began), Some(0));
        }
        assert_eq!(rate.admit(began + INTERVAL / 2), None);
        assert_eq!(rate.admit(began + INTERVAL / 2), None);
        assert_eq!(rate.admit(began + INTERVAL), Some(2));
        assert_eq!(rate.admit(began + INTERVAL), Some(0));
    }
}
