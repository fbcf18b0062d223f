//! Streams of changes from servers that push none: a log is looked at again and again.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use meta::{Change, Changes, EngineError, Order};

use crate::again::poll;

/// A log, and how far it was read.
pub trait Log: Debug + Send {
    /// What has become visible since the last look, in any order.
    ///
    /// # Errors
    /// Changes may be missing from here on.
    fn look(&mut self) -> Result<Vec<Change>, EngineError>;

    /// What hears of the numbers that are told.
    fn order(&self) -> &Order;
}

/// What was logged longer ago may be forgotten, so whoever looks less often may have missed something.
pub const LONGEST_GAP: Duration = Duration::from_secs(120);

/// A stream of what a log says from now on.
#[derive(Debug)]
pub struct Tail<L> {
    log: L,
    /// From one look to the next, while somebody waits.
    period: Duration,
    looked: Instant,
    /// After a failure nothing is known any more.
    lost: bool,
}

impl<L: Log> Tail<L> {
    /// `looked` is when the log was last looked at.
    pub fn new(log: L, period: Duration, looked: Instant) -> Self {
        Tail { log, period, looked, lost: false }
    }

    fn look(&mut self) -> Result<Vec<Change>, EngineError> {
        if self.lost || self.looked.elapsed() > LONGEST_GAP {
            return Err(EngineError::permanent("changes may have been forgotten before they were asked for"));
        }
        let looked = Instant::now();
        let news = self.log.look();
        (self.looked, self.lost) = (looked, news.is_err());
        news
    }
}

impl<L: Log> Changes for Tail<L> {
    fn next(&mut self, wait: Duration) -> Result<Vec<Change>, EngineError> {
        let mut news = poll(wait, self.period, || self.look())?;
        news.sort_unstable_by_key(|change| change.seq);
        if let Some(last) = news.last() {
            self.log.order().heard(last.seq);
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
    struct Looks(Vec<Result<Vec<u64>, EngineError>>, Order);

    impl Log for Looks {
        fn look(&mut self) -> Result<Vec<Change>, EngineError> {
            let change = |seq| Change { seq: Seq(seq), by: SessionId(0), touched: Vec::new() };
            self.0.pop().unwrap_or(Ok(Vec::new())).map(|seqs| seqs.into_iter().map(change).collect())
        }

        fn order(&self) -> &Order {
            &self.1
        }
    }

    #[test]
    fn what_is_told_is_in_order_and_nothing_is_after_a_failure_or_a_gap() {
        let log = Looks(vec![Err(EngineError::transient("gone")), Ok(vec![3, 2])], Order::default());
        let mut tail = Tail::new(log, Duration::ZERO, Instant::now());
        let told: Vec<u64> = tail.next(Duration::ZERO).unwrap().iter().map(|change| change.seq.0).collect();
        assert_eq!((told, tail.log.order().read()), (vec![2, 3], Seq(3)));
        tail.next(Duration::ZERO).unwrap_err();
        tail.next(Duration::ZERO).unwrap_err();
        let Some(long_ago) = Instant::now().checked_sub(LONGEST_GAP) else { return };
        let mut tail = Tail::new(Looks::default(), Duration::ZERO, long_ago);
        tail.next(Duration::ZERO).unwrap_err();
    }
}
