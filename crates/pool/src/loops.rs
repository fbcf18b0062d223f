//! Loops: polls, batches that are committed in parts, attempts on several servers, pauses between attempts.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use meta::{EngineError, ErrorKind, Outcome, Txn};

/// Calls `attempt` at the interval `every` until it returns something, for at most `wait`, but at least once.
///
/// # Errors
/// The first error of `attempt`.
pub(crate) fn poll<T>(
    wait: Duration,
    every: Duration,
    mut attempt: impl FnMut() -> Result<Vec<T>, EngineError>,
) -> Result<Vec<T>, EngineError> {
    let deadline = Instant::now() + wait;
    loop {
        let news = attempt()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if !news.is_empty() || left.is_zero() {
            return Ok(news);
        }
        sleep(every.min(left));
    }
}

/// Commits the parts one after the other.
///
/// # Errors
/// The first error of `commit`. After the first part, the error is made indeterminate, because the parts
/// before it are committed.
pub fn in_parts<'t>(
    parts: impl IntoIterator<Item = &'t [Txn]>,
    mut commit: impl FnMut(&'t [Txn]) -> Result<Vec<Outcome>, EngineError>,
) -> Result<Vec<Outcome>, EngineError> {
    let mut outcomes = Vec::new();
    for part in parts {
        match commit(part) {
            Ok(done) if outcomes.is_empty() => outcomes = done,
            Ok(done) => outcomes.extend(done),
            Err(error) if outcomes.is_empty() => return Err(error),
            Err(error) => return Err(EngineError { kind: ErrorKind::Indeterminate, ..error }),
        }
    }
    Ok(outcomes)
}

/// Commits all transactions with one call of `commit`. If it returns `None`, they are too large for one
/// request, and each half is committed in the same way.
///
/// # Errors
/// Those of [`in_parts`]; a permanent error if `commit` returns `None` for a single transaction.
pub fn in_halves(
    txns: &[Txn],
    commit: &mut impl FnMut(&[Txn]) -> Result<Option<Vec<Outcome>>, EngineError>,
) -> Result<Vec<Outcome>, EngineError> {
    match commit(txns)? {
        Some(outcomes) => Ok(outcomes),
        None if txns.len() < 2 => Err(EngineError::permanent("transaction too large for the server")),
        None => in_parts(txns.chunks(txns.len().div_ceil(2)), |half| in_halves(half, commit)),
    }
}

/// Counts transactions, for work that is due once per a given number of transactions.
#[derive(Debug, Default)]
pub struct CommitCounter(AtomicU64);

impl CommitCounter {
    /// Counts `txns` more transactions. Returns whether work is due that is done once per `every`
    /// transactions.
    pub fn is_due(&self, txns: usize, every: u64) -> bool {
        let before = self.0.fetch_add(txns as u64, Ordering::Relaxed);
        before / every != (before + txns as u64) / every
    }
}

/// Calls `commit` with the remaining transactions, until none remains. Each call commits as many of the first
/// ones as can be committed together, and appends their outcomes.
///
/// # Errors
/// The first error of `commit`. If a change was committed before, the error is made indeterminate.
pub fn gradually(
    txns: &[Txn],
    mut commit: impl FnMut(&[Txn], &mut Vec<Outcome>) -> Result<(), EngineError>,
) -> Result<Vec<Outcome>, EngineError> {
    let mut outcomes = Vec::with_capacity(txns.len());
    while let Some(rest) = txns.get(outcomes.len()..).filter(|rest| !rest.is_empty()) {
        if let Err(error) = commit(rest, &mut outcomes) {
            let changed = |(outcome, txn): (&Outcome, &Txn)| {
                matches!(outcome, Outcome::Committed { .. }) && !txn.effects.is_empty()
            };
            let partly = outcomes.iter().zip(txns).any(changed);
            return Err(if partly { EngineError { kind: ErrorKind::Indeterminate, ..error } } else { error });
        }
    }
    Ok(outcomes)
}

/// Tries one address after the other, and returns the first success of `attempt`.
///
/// # Errors
/// The error of the last attempt; `none` if there are no addresses.
pub fn first<P, T>(
    addresses: impl IntoIterator<Item = P>,
    none: EngineError,
    mut attempt: impl FnMut(P) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let mut why = none;
    for address in addresses {
        match attempt(address) {
            Ok(found) => return Ok(found),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Random pauses between attempts, so that clients that conflict do not retry at the same time.
#[derive(Debug, Default)]
pub struct Jitter {
    random: RandomState,
    drawn: AtomicU64,
}

impl Jitter {
    /// Sleeps for a random time: at most 0.2 ms for each attempt so far, and at most 10 ms.
    pub fn pause(&self, attempts: u32) {
        let max_us = 200 * u64::from(attempts.clamp(1, 50));
        sleep(Duration::from_micros(self.random() % max_us));
    }

    /// An unpredictable number.
    pub fn random(&self) -> u64 {
        self.random.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use meta::Seq;
    use types::OpId;

    use super::*;

    #[test]
    fn poll_repeats_until_there_is_something_or_the_time_is_over() {
        let mut attempts = 0;
        let mut attempt = || {
            attempts += 1;
            Ok(if attempts < 3 { vec![] } else { vec![attempts] })
        };
        assert_eq!(poll(Duration::from_secs(60), Duration::from_nanos(1), &mut attempt), Ok(vec![3]));
        assert_eq!(poll::<u8>(Duration::ZERO, Duration::from_secs(60), || Ok(vec![])), Ok(vec![]));
        let failed = EngineError::transient("gone");
        assert_eq!(poll::<u8>(Duration::ZERO, Duration::ZERO, || Err(failed.clone())), Err(failed));
    }

    #[test]
    fn first_returns_the_first_success_or_the_last_error() {
        let odd = |n: u32| if n % 2 == 1 { Ok(n) } else { Err(EngineError::transient(n.to_string())) };
        let none = || EngineError::permanent("none");
        assert_eq!(first([2, 3, 5], none(), odd), Ok(3));
        assert_eq!(first([2, 4], none(), odd), Err(EngineError::transient("4")));
        assert_eq!(first([], none(), odd), Err(none()));
    }

    #[test]
    fn an_error_after_a_committed_part_is_indeterminate() {
        let txn = |n| Txn { op_id: OpId(n), guards: vec![], effects: vec![] };
        let txns = [txn(1), txn(2), txn(3)];
        let done = |txn: &Txn| Outcome::Committed { seq: Seq(txn.op_id.0 as u64), inodes: vec![] };
        let all: Vec<_> = txns.iter().map(done).collect();
        assert_eq!(in_parts(txns.chunks(2), |part| Ok(part.iter().map(done).collect())), Ok(all));
        let fail_at = |bad: u128| {
            let failed = in_parts(txns.chunks(1), |part| match part {
                [txn] if txn.op_id.0 == bad => Err(EngineError::transient("no")),
                part => Ok(part.iter().map(done).collect()),
            });
            failed.unwrap_err().kind
        };
        assert_eq!(fail_at(1), ErrorKind::Determinate { transient: true });
        assert_eq!(fail_at(3), ErrorKind::Indeterminate);
        let most = |most: usize| {
            let mut commit = |part: &[Txn]| Ok((part.len() <= most).then(|| part.iter().map(done).collect()));
            in_halves(&txns, &mut commit)
        };
        assert_eq!(most(1), most(3));
        assert_eq!(most(1).unwrap().len(), 3);
        most(0).unwrap_err();
    }

    #[test]
    fn periodic_work_is_due_once_per_number_of_transactions() {
        let commits = CommitCounter::default();
        let due = [3, 3, 5, 1, 8, 4].map(|txns| commits.is_due(txns, 10));
        assert_eq!(due, [false, false, true, false, true, false]);
    }
}
