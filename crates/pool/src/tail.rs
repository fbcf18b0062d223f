//! Streams of changes from servers that push no changes: a log is polled.

use std::fmt::Debug;
use std::thread::sleep;
use std::time::{Duration, Instant};

use meta::{Change, Changes, CommitNumbers, EngineError};

use crate::loops::poll;
use crate::request::{Intent, RequestError};

/// A log, and the position up to which it was read.
pub trait Log: Debug + Send {
    type Error: RequestError;

    /// Returns the changes that have become visible since the last call, in any order. An implementation must
    /// prove that no change in between was removed from the log. A clock proves nothing, because the machine
    /// may have been suspended between two calls; stored data does.
    ///
    /// # Errors
    /// Changes may be missing from here on.
    fn poll(&mut self) -> Result<Vec<Change>, Self::Error>;

    /// The [`CommitNumbers`] in which the stream records the sequence numbers that it delivers.
    fn commit_numbers(&self) -> &CommitNumbers;
}

/// A stream of the changes of a log from now on.
#[derive(Debug)]
pub struct LogTail<L> {
    log: L,
    address: String,
    /// The minimum time between two polls; only the last poll of a call, at the end of its wait, may come
    /// earlier. So a busy log is read in batches. Otherwise, a client would poll hundreds of times a second
    /// because of its own commits.
    period: Duration,
    /// When the log was last polled.
    polled: Option<Instant>,
    /// Set after a failure: changes may have been missed.
    lost: bool,
}

impl<L: Log> LogTail<L> {
    /// Delivers the changes committed after `open` has determined the start position in the log. `address` is
    /// that of [`Connect::address`](crate::Connect::address).
    ///
    /// # Errors
    /// The error of `open`.
    pub fn new(
        address: &str,
        period: Duration,
        open: impl FnOnce() -> Result<L, L::Error>,
    ) -> Result<Self, EngineError> {
        let log = open().map_err(|error| error.engine_error(address, Intent::Read))?;
        Ok(LogTail { log, address: address.to_owned(), period, polled: None, lost: false })
    }

    fn poll_once(&mut self) -> Result<Vec<Change>, EngineError> {
        if self.lost {
            return Err(EngineError::permanent(format!(
                "{}: changes may have been missed: open a new stream",
                self.address
            )));
        }
        self.polled = Some(Instant::now());
        let news = self.log.poll();
        self.lost = news.is_err();
        news.map_err(|error| error.engine_error(&self.address, Intent::Read))
    }
}

impl<L: Log> Changes for LogTail<L> {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        if let Some(polled) = self.polled
            && !self.lost
        {
            sleep(self.period.saturating_sub(polled.elapsed()));
        }
        let mut news = poll(wait, self.period, || self.poll_once())?;
        news.sort_unstable_by_key(|change| change.seq);
        if let Some(last) = news.last() {
            self.log.commit_numbers().saw_commit(last.seq);
        }
        Ok(news)
    }
}

#[cfg(test)]
mod tests {
    use meta::Seq;
    use types::SessionId;

    use super::*;

    #[derive(Debug, Default)]
    struct ScriptedLog(Vec<Result<Vec<u64>, EngineError>>, CommitNumbers);

    impl Log for ScriptedLog {
        type Error = EngineError;

        fn poll(&mut self) -> Result<Vec<Change>, EngineError> {
            let change = |seq| Change { seq: Seq(seq), by: SessionId(0), invalidations: Vec::new() };
            self.0.pop().unwrap_or(Ok(Vec::new())).map(|seqs| seqs.into_iter().map(change).collect())
        }

        fn commit_numbers(&self) -> &CommitNumbers {
            &self.1
        }
    }

    #[test]
    fn changes_are_delivered_in_order_and_not_after_a_failure() {
        let log =
            ScriptedLog(vec![Err(EngineError::transient("gone")), Ok(vec![3, 2])], CommitNumbers::default());
        let mut tail = LogTail::new("x", Duration::ZERO, || Ok(log)).unwrap();
        let found: Vec<u64> = tail.next(Duration::ZERO).unwrap().iter().map(|change| change.seq.0).collect();
        assert_eq!((found, tail.log.commit_numbers().read()), (vec![2, 3], Seq(3)));
        tail.next(Duration::ZERO).unwrap_err();
        tail.next(Duration::ZERO).unwrap_err();
    }

    #[test]
    fn busy_log_is_polled_once_per_period() {
        let period = Duration::from_millis(5);
        let log = ScriptedLog((1..=5).rev().map(|seq| Ok(vec![seq])).collect(), CommitNumbers::default());
        let mut tail = LogTail::new("x", period, || Ok(log)).unwrap();
        let begun = Instant::now();
        (0..5).for_each(|_| assert_eq!(tail.next(Duration::ZERO).unwrap().len(), 1));
        assert!(begun.elapsed() >= 4 * period);
    }
}
